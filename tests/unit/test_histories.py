"""Histories are repaired with what is true of each call, and whole ones are left alone."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.messages.tool import tool_call, tool_call_chunk

from langgraph_turncheckpoint._finalize import Facts, Outcome
from langgraph_turncheckpoint._histories import (
    Addition,
    CallEvidence,
    Evidence,
    Text,
    finalize_history,
    is_healthy,
    marked_partial,
    marker,
)
from langgraph_turncheckpoint._turn import CAUSES, Cause

KNOWN_SILENCE: Final = CallEvidence(Facts(known=True))
STARTED: Final = CallEvidence(Facts(started=True, known=True))


def asks(*ids: str | None, id: str | None = "a", name: str = "search", **fields: Any) -> AIMessage:  # noqa: A002
    calls = [{"name": name, "args": {"n": n}, "id": call_id} for n, call_id in enumerate(ids)]
    return AIMessage(fields.pop("content", ""), tool_calls=calls, id=id, **fields)


def answers(call_id: str, text: str = "real", **fields: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, id=fields.pop("id", f"{call_id}:{text}"), **fields)


def says(text: str = "hi", id: str | None = "h") -> HumanMessage:  # noqa: A002
    return HumanMessage(text, id=id)


def shape(messages: list[Any]) -> list[str]:
    """One word per item: type, and for answers the call and who made it."""
    out = []
    for message in messages:
        if isinstance(message, ToolMessage):
            made = message.response_metadata.get("turncheckpoint")
            out.append(f"{message.tool_call_id}={made['outcome'] if made else message.text}")
        else:
            out.append(getattr(message, "id", None) or type(message).__name__)
    return out


def make_pairs(count: int) -> list[AnyMessage]:
    out: list[AnyMessage] = []
    for n in range(count):
        out += [asks(f"c{n}", id=f"a{n}"), answers(f"c{n}")]
    return out


# --- what is whole stays as it is


@pytest.mark.parametrize(
    "history",
    [
        [],
        [says()],
        [SystemMessage("s"), says(), AIMessage("hello")],
        [says(), asks("c0"), answers("c0"), AIMessage("done")],
        [says(), asks("c0", "c1"), answers("c1"), answers("c0"), says(id="h2")],
        [asks("c0", id="a1"), answers("c0"), asks("c0", id="a2"), answers("c0", "again")],
        [asks("c0", id=None), answers("c0", id=None)],
        [asks("c0", content=[{"type": "tool_use", "id": "c0", "name": "search", "input": {}}, "text"]), answers("c0")],
        [AIMessage([{"type": "tool_use", "id": "c0", "name": "search", "input": {}}]), answers("c0")],
        [AIMessageChunk(content="", tool_calls=[tool_call(name="t", args={}, id="c0")]), answers("c0")],
        [("user", "hi"), {"role": "user", "content": "hi"}, None, asks("c0"), answers("c0"), 7],
    ],
    ids=shape,
)
def test_a_whole_history_is_the_same_list_and_costs_no_update(history):
    before = list(history)
    done = finalize_history(history)
    assert done.messages is history
    assert done[1:] == ([], [], [], [], False)
    assert all(a is b for a, b in zip(history, before, strict=True))
    assert is_healthy(history)


def test_a_whole_history_of_5_000_pairs_needs_no_update():
    history = make_pairs(5_000)
    assert is_healthy(history)
    assert finalize_history(history).messages is history


def test_a_tuple_of_messages_comes_back_as_a_list():
    assert finalize_history((says(),)).messages == [says()]


# --- unanswered calls


def test_an_open_call_is_answered_behind_its_message_and_before_what_follows():
    history = [says(), asks("c0"), says("next", id="h2")]
    done = finalize_history(history, cause="user")
    assert shape(done.messages) == ["h", "a", "c0=unknown", "h2"]
    (given,) = done.answers
    assert given.message is done.messages[2]
    assert given[:4] == ("c0", "search", "unknown", "user")
    assert (given.message.status, given.message.name) == ("error", "search")
    assert given.message.response_metadata == {
        "turncheckpoint": {"outcome": "unknown", "cause": "user", "turn_token": 0}
    }
    assert done.changed
    assert not is_healthy(history)


def test_each_answer_made_has_its_own_id():
    made = [given.message.id for given in finalize_history([asks("c0", "c1"), asks("c0", id="b")]).answers]
    assert len(set(made)) == 3
    assert None not in made


def test_repairing_one_history_twice_makes_the_same_ids():
    """Two nodes may repair it at once; a reducer that merges by id then keeps one of each."""
    history = [asks("c0", None), says()]
    first, second = (finalize_history(history, Evidence(turn_token=5)).messages for _ in range(2))
    assert [message.id for message in first] == [message.id for message in second]
    assert first[1].id != finalize_history(history, Evidence(turn_token=6)).messages[1].id


def test_ids_may_be_any_text():
    done = finalize_history([asks("\ud800", "\n", None, id="\udfff")])
    assert len({given.message.id for given in done.answers}) == 3


def test_damage_in_the_middle_is_repaired_in_place():
    """C4."""
    history = [says(), asks("c0"), says(id="h2"), AIMessage("ok", id="b"), asks("c1", id="d"), answers("c1")]
    done = finalize_history(history)
    assert shape(done.messages) == ["h", "a", "c0=unknown", "h2", "b", "d", "c1=real"]
    assert done.messages[-2] is history[-2]


def test_a_real_answer_further_down_is_moved_and_an_orphan_set_aside():
    """C6."""
    history = [asks("c0"), says(), answers("c0"), answers("zz")]
    done = finalize_history(history)
    assert shape(done.messages) == ["a", "c0=real", "h"]
    assert done.messages[1] is history[2]
    assert (done.moved, done.set_aside, done.answers) == ([history[2]], [history[3]], [])


def test_repaired_answers_stand_in_the_order_of_the_calls():
    history = [asks("c0", "c1", "c2"), answers("c2"), says(), answers("c0")]
    done = finalize_history(history)
    assert shape(done.messages) == ["a", "c0=real", "c1=unknown", "c2=real", "h"]
    assert done.moved == [history[3]]


def test_the_first_answer_counts_also_when_we_made_it():
    """C13, C60: a late real result of a closed call is no second answer."""
    closed = finalize_history([asks("c0"), says()]).messages
    done = finalize_history([*closed, answers("c0", "late")])
    assert shape(done.messages) == ["a", "c0=unknown", "h"]
    assert shape(done.set_aside) == ["c0=late"]


def test_a_second_answer_right_behind_the_first_is_set_aside():
    done = finalize_history([asks("c0"), answers("c0", "one"), answers("c0", "two"), says()])
    assert shape(done.messages) == ["a", "c0=one", "h"]
    assert shape(done.set_aside) == ["c0=two"]


def test_answers_are_matched_per_message_when_ids_repeat():
    history = [asks("c0", id="a1"), says(), asks("c0", id="a2"), answers("c0")]
    assert shape(finalize_history(history).messages) == ["a1", "c0=unknown", "h", "a2", "c0=real"]


def test_an_answer_counts_for_the_nearest_message_before_it_only():
    history = [asks("c0", id="a1"), says(), asks("c0", id="a2"), answers("c0", "one"), answers("c0", "two")]
    done = finalize_history(history)
    assert shape(done.messages) == ["a1", "c0=unknown", "h", "a2", "c0=one"]
    assert shape(done.set_aside) == ["c0=two"]


def test_answers_of_an_earlier_message_behind_a_later_one_are_sorted_out():
    history = [asks("c0", id="a1"), asks("c1", id="a2"), answers("c0"), answers("c1")]
    done = finalize_history(history)
    assert shape(done.messages) == ["a1", "c0=real", "a2", "c1=real"]
    assert done.moved == [history[2]]


def test_a_history_that_starts_with_answers_gets_no_invented_call():
    """C15."""
    history = [answers("c0"), says(), AIMessage("ok", id="b")]
    done = finalize_history(history)
    assert shape(done.messages) == ["h", "b"]
    assert done.set_aside == [history[0]]


def test_an_answer_before_its_call_does_not_count():
    done = finalize_history([answers("c0"), asks("c0")])
    assert shape(done.messages) == ["a", "c0=unknown"]


def test_odd_items_stay_where_they_are():
    odd = {"role": "user", "content": "hi"}
    done = finalize_history([asks("c0"), odd, ("ai", "x"), answers("c0")])
    assert done.messages[2:] == [odd, ("ai", "x")]
    assert shape(done.moved) == ["c0=real"]


def test_a_message_that_lacks_fields_does_not_stop_the_repair():
    """A stored message that validation refuses is loaded without validation."""
    broken = AIMessage.model_construct(content=None, tool_calls=[{"name": "t"}], invalid_tool_calls=[])
    done = finalize_history([broken, asks("c0"), says()])
    assert [given.tool_name for given in done.answers] == ["t", "search"]
    assert not finalize_history(done.messages).changed


# --- calls that cannot be named as they are


def test_calls_with_unreadable_arguments_are_answered():
    """C11."""
    invalid = [{"name": "search", "args": '{"q": "tru', "id": "c1", "error": None, "type": "invalid_tool_call"}]
    history = [asks("c0", invalid_tool_calls=invalid), answers("c0"), says()]
    done = finalize_history(history)
    assert shape(done.messages) == ["a", "c0=real", "c1=invalid", "h"]
    assert done.messages[0] is history[0]
    assert done.answers[0].cause == "error"
    assert not finalize_history(done.messages).changed
    assert is_healthy(done.messages)


@pytest.mark.parametrize("missing", [None, ""])
def test_calls_without_an_id_get_a_lasting_one(missing):
    invalid = [{"name": None, "args": None, "id": missing, "error": None, "type": "invalid_tool_call"}]
    history = [says(), asks(missing, invalid_tool_calls=invalid), says(id="h2")]
    before = copy.deepcopy(history)
    done = finalize_history(history)
    assert history == before
    message = done.messages[1]
    ids = [call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)]
    assert [given.call_id for given in done.answers] == ids
    assert len(set(ids)) == 2
    assert all(0 < len(call_id) <= 40 and call_id.replace("_", "").isalnum() for call_id in ids)
    assert ids == [given.call_id for given in finalize_history(history).answers]
    assert (message.id, message.invalid_tool_calls[0]["name"]) == ("a", "unknown_tool")
    assert message.invalid_tool_calls[0]["args"] == ""
    assert not finalize_history(done.messages).changed


def test_an_answered_call_without_a_name_gets_one():
    """Anthropic refuses an empty name."""
    history = [asks("c0", name=""), answers("c0")]
    done = finalize_history(history)
    assert done.messages[0].tool_calls[0]["name"] == "unknown_tool"
    assert done.messages[1] is history[1]
    assert not is_healthy(history)
    assert is_healthy(done.messages)


def test_two_messages_without_ids_get_different_call_ids():
    done = finalize_history([asks(None, id=None), asks(None, id=None)])
    assert len({given.call_id for given in done.answers}) == 2


def test_an_answer_to_an_empty_id_follows_its_call():
    history = [asks(""), answers("", "real"), says()]
    done = finalize_history(history)
    call_id = done.messages[0].tool_calls[0]["id"]
    assert shape(done.messages) == ["a", f"{call_id}=real", "h"]
    assert (done.answers, done.set_aside, done.moved) == ([], [], [])


def test_an_astray_answer_to_an_empty_id_follows_its_call():
    done = finalize_history([asks(""), says(), answers("", "real")])
    call_id = done.messages[0].tool_calls[0]["id"]
    assert shape(done.messages) == ["a", f"{call_id}=real", "h"]


def test_unreadable_calls_get_arguments_that_can_be_sent():
    """OpenAI refuses `null`."""
    unreadable = {"name": "search", "args": None, "id": "c0", "error": None, "type": "invalid_tool_call"}
    history = [AIMessage("", invalid_tool_calls=[unreadable], id="a"), answers("c0")]
    done = finalize_history(history)
    assert done.messages[0].invalid_tool_calls[0]["args"] == ""
    assert done.messages[1] is history[1]


def test_two_calls_with_one_id_become_two_answered_calls():
    done = finalize_history([asks("c0", "c0"), answers("c0", "one"), answers("c0", "two")])
    first, second = (call["id"] for call in done.messages[0].tool_calls)
    assert first == "c0"
    assert second != "c0"
    assert shape(done.messages) == ["a", "c0=one", f"{second}=two"]
    assert not finalize_history(done.messages).changed


def test_what_is_known_of_an_id_that_two_calls_share_counts_for_the_first():
    done = finalize_history([asks("c0", "c0")], Evidence({("a", "c0"): KNOWN_SILENCE}))
    assert [given.outcome for given in done.answers] == ["not_run", "unknown"]


def test_content_follows_the_ids_of_the_calls():
    content = [
        {"type": "text", "text": "let me see"},
        {"type": "tool_use", "id": "", "name": "search", "input": {"n": 0}},
        {"type": "tool_use", "id": "c1", "name": "search", "input": {"n": 1}},
        "plain",
        {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "search", "arguments": "{}"},
    ]
    history = [asks("", "c1", "c1", content=content)]
    before = copy.deepcopy(content)
    message = finalize_history(history).messages[0]
    ids = [call["id"] for call in message.tool_calls]
    assert content == before
    assert [message.content[1]["id"], message.content[2]["id"], message.content[4]["call_id"]] == ids
    assert (message.content[0], message.content[3], message.content[4]["id"]) == (content[0], "plain", "fc_1")


def test_a_call_that_only_the_content_states_is_answered():
    block = {"type": "tool_use", "id": "c0", "name": "search", "input": {}}
    history = [AIMessage([block], id="a"), says()]
    done = finalize_history(history)
    assert shape(done.messages) == ["a", "c0=unknown", "h"]
    assert done.messages[0] is history[0]


def result_block(call_id: str) -> dict[str, str]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x"}


def test_a_prompt_right_behind_a_call_may_answer_it_in_its_content():
    """So do apps that speak to Anthropic without ToolMessages; a second answer would be refused there."""
    history = [asks("c0", "c1"), answers("c1"), HumanMessage([result_block("c0"), "text"]), AIMessage("ok", id="b")]
    assert finalize_history(history).messages is history
    assert is_healthy(history)


def test_an_answer_in_the_content_of_a_later_prompt_does_not_count():
    later = HumanMessage([result_block("c0")], id="h2")
    done = finalize_history([asks("c0"), says(), later])
    assert shape(done.messages) == ["a", "c0=unknown", "h", "h2"]
    done = finalize_history([asks("c0", id="a1"), asks("c1", id="a2"), later])
    assert shape(done.messages) == ["a1", "c0=unknown", "a2", "c1=unknown", "h2"]


def test_a_call_that_the_content_states_twice_is_answered_once():
    block = {"type": "tool_use", "id": "c0", "name": "search", "input": {}}
    assert shape(finalize_history([AIMessage([block, block], id="a")]).messages) == ["a", "c0=unknown"]


def test_calls_that_the_provider_runs_itself_need_no_answer():
    history = [AIMessage([{"type": "server_tool_use", "id": "s0", "name": "web_search", "input": {}}]), says()]
    assert finalize_history(history).messages is history


def test_a_chunk_keeps_its_new_call_ids_when_it_is_stored_and_loaded():
    chunk = AIMessageChunk(
        content="",
        tool_call_chunks=[tool_call_chunk(name="search", args="{}", id=None, index=0)],
        id="a",
        chunk_position="last",
    )
    done = finalize_history([chunk, says()])
    loaded = messages_from_dict(json.loads(json.dumps(messages_to_dict(done.messages))))
    message, answer = loaded[:2]
    assert isinstance(message, AIMessage)
    assert isinstance(answer, ToolMessage)
    assert message.tool_calls[0]["id"] == answer.tool_call_id
    assert is_healthy(loaded)


# --- answers that may come later


def test_calls_of_listed_tools_may_stay_open():
    """C14."""
    history = [asks("c0", name="handoff"), AIMessage("working", id="b"), says()]
    assert finalize_history(history, unanswered={"handoff"}).messages is history
    assert is_healthy(history, unanswered=["handoff"])
    assert not is_healthy(history)


def test_late_answers_of_listed_tools_stay_where_they_are():
    history = [asks("c0", name="handoff"), says(), answers("c0"), AIMessage("ok", id="b")]
    assert finalize_history(history, unanswered={"handoff"}).messages is history


def test_other_calls_beside_an_open_one_are_answered():
    calls = [{"name": "handoff", "args": {}, "id": "c0"}, {"name": "search", "args": {}, "id": "c1"}]
    history = [AIMessage("", tool_calls=calls, id="a"), says(), answers("c0"), answers("c1"), answers("c0", "two")]
    done = finalize_history(history, unanswered={"handoff"})
    assert shape(done.messages) == ["a", "c1=real", "h", "c0=real"]
    assert shape(done.set_aside) == ["c0=two"]
    assert not finalize_history(done.messages, unanswered={"handoff"}).changed


def test_calls_from_a_place_on_may_stay_open():
    history = [asks("c0", id="a1"), says(), asks("c1", id="a2")]
    done = finalize_history(history, until=2)
    assert shape(done.messages) == ["a1", "c0=unknown", "h", "a2"]
    assert finalize_history(history[2:], until=0).messages == history[2:]
    assert shape(finalize_history(history, until=9).messages)[-1] == "c1=unknown"


def test_additions_shift_the_place_from_which_calls_may_stay_open():
    history = [says(), asks("c1", id="a2")]
    evidence = Evidence(additions=[Addition(None, says(id="h0")), Addition("h0", asks("c0", id="a1"))])
    done = finalize_history(history, evidence, until=1)
    assert shape(done.messages) == ["h0", "a1", "c0=unknown", "h", "a2"]


# --- what is known


def test_each_call_gets_what_is_true_of_it():
    """C2, C8."""
    recorded = answers("c0", "found", id="r0")
    evidence = Evidence(
        {
            ("a", "c0"): CallEvidence(Facts(result=True, started=True, known=True), recorded),
            ("a", "c1"): STARTED,
            ("a", "c2"): KNOWN_SILENCE,
            ("a", "c3"): CallEvidence(Facts(started=True, error="ValueError('boom')", known=True)),
            ("a", "c4"): CallEvidence(Facts(paused=True, known=True)),
        },
        cause="restart",
        turn_token=7,
    )
    done = finalize_history([asks("c0", "c1", "c2", "c3", "c4", "c5"), says()], evidence)
    assert shape(done.messages) == [
        "a", "c0=found", "c1=unknown", "c2=not_run", "c3=failed", "c4=superseded", "c5=unknown", "h"
    ]  # fmt: skip
    assert done.messages[1] is recorded
    assert [given.cause for given in done.answers] == [
        "restart",
        "restart",
        "restart",
        "error",
        "superseded",
        "restart",
    ]
    assert "ValueError('boom')" in done.messages[4].text
    assert {message.response_metadata["turncheckpoint"]["turn_token"] for message in done.messages[2:7]} == {7}


def test_a_result_that_was_recorded_but_not_kept_is_said_to_be_lost():
    done = finalize_history([asks("c0")], Evidence({("a", "c0"): CallEvidence(Facts(result=True))}))
    assert shape(done.messages) == ["a", "c0=recorded"]
    assert "not kept" in done.messages[1].text


def test_a_recorded_result_is_given_once_where_ids_of_messages_repeat():
    evidence = Evidence({("a", "c0"): CallEvidence(Facts(result=True), answers("c0", "recorded"))})
    done = finalize_history([asks("c0"), says(), asks("c0")], evidence)
    assert shape(done.messages) == ["a", "c0=recorded", "h", "a", "c0=unknown"]


def test_a_recorded_result_follows_the_id_of_its_call():
    evidence = Evidence({("a", "c0"): CallEvidence(Facts(result=True), answers("old"))})
    done = finalize_history([asks("c0")], evidence)
    assert shape(done.messages) == ["a", "c0=real"]


def test_an_answer_in_the_history_goes_before_a_recorded_one():
    evidence = Evidence({("a", "c0"): CallEvidence(Facts(result=True), answers("c0", "recorded"))})
    history = [asks("c0"), answers("c0")]
    assert finalize_history(history, evidence).messages is history


def test_evidence_without_a_message_id_counts_for_the_last_message_with_the_call():
    evidence = Evidence({(None, "c0"): KNOWN_SILENCE}, cause="user")
    done = finalize_history([asks("c0", id="a1"), asks("c0", id="a2"), asks("c1", id="a3")], evidence)
    assert [(given.outcome, given.cause) for given in done.answers] == [
        ("unknown", "unknown"),
        ("not_run", "user"),
        ("unknown", "user"),
    ]


def test_a_message_without_an_id_finds_its_evidence():
    evidence = Evidence({(None, "c0"): KNOWN_SILENCE})
    done = finalize_history([asks("c0", id=None), asks("c0", id="b")], evidence)
    assert [given.outcome for given in done.answers] == ["unknown", "not_run"]
    done = finalize_history([asks("c0", id=None)], Evidence({(None, "c0"): KNOWN_SILENCE}))
    assert done.answers[0].outcome == "not_run"


def test_old_damage_is_not_blamed_on_the_turn_that_ended():
    done = finalize_history([asks("c0", id="a1"), says(), asks("c1", id="a2"), says(id="h2")], Evidence(cause="user"))
    assert [given.cause for given in done.answers] == ["unknown", "user"]


def test_the_text_of_a_cut_off_reply_does_not_hide_the_calls_before_it():
    reply = Addition("a", marked_partial("Half", cause="user", token=3, id="p"))
    done = finalize_history([asks("c0"), says()], Evidence(additions=[reply], cause="user"))
    assert shape(done.messages) == ["a", "c0=unknown", "p", "h"]
    assert done.answers[0].cause == "user"


@pytest.mark.parametrize("facts", [Facts(), Facts(known=True), Facts(paused=True)], ids=str)
def test_a_pause_that_was_passed_over_supersedes_what_had_not_started(facts):
    """C62."""
    evidence = Evidence({("a2", "c1"): CallEvidence(facts), ("a2", "c2"): STARTED}, cause="restart", paused=True)
    done = finalize_history([asks("c0", id="a1"), says(), asks("c1", "c2", id="a2"), says(id="h2")], evidence)
    assert [(given.outcome, given.cause) for given in done.answers] == [
        ("unknown", "unknown"),
        ("superseded", "superseded"),
        ("unknown", "restart"),
    ]


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_can_be_read_by_a_program(cause):
    """C5."""
    (given,) = finalize_history([asks("c0")], Evidence({("a", "c0"): STARTED}, cause=cause)).answers
    assert given.message.response_metadata["turncheckpoint"]["cause"] == cause


def test_texts_can_be_replaced_per_tool():
    calls = [{"name": name, "args": {"n": 1}, "id": name} for name in ("search", "buy", "sell")]

    def tell(outcome: Outcome, cause: Cause, call: Any) -> str:
        return f"{call['name']} {call['args']}: {outcome}, {cause}"

    texts: dict[str, Text] = {"search": "gone", "*": tell}
    done = finalize_history([AIMessage("", tool_calls=calls)], cause="limit", texts=texts)
    assert [given.message.text for given in done.answers] == [
        "gone",
        "buy {'n': 1}: unknown, limit",
        "sell {'n': 1}: unknown, limit",
    ]


def test_a_recorded_result_keeps_its_text():
    evidence = Evidence({("a", "c0"): CallEvidence(Facts(result=True), answers("c0"))})
    assert shape(finalize_history([asks("c0")], evidence, texts={"*": "other"}).messages) == ["a", "c0=real"]


# --- additions


def added(history: list[Any], *additions: Addition, **options: Any) -> list[str]:
    return shape(finalize_history(history, Evidence(additions=additions), **options).messages)


def test_additions_stand_behind_their_anchors_in_the_order_given():
    history = [says(id="h1"), AIMessage("x", id="b"), says(id="h2")]
    additions = [
        Addition("h1", says(id="n1")),
        Addition("h1", says(id="n2")),
        Addition("n1", says(id="n1.1")),
        Addition(None, SystemMessage("s", id="s")),
        Addition("h2", says(id="n3")),
    ]
    assert added(history, *additions) == ["s", "h1", "n1", "n1.1", "n2", "b", "h2", "n3"]


def test_an_addition_may_come_before_its_anchor_in_the_list():
    assert added([says()], Addition("n1", says(id="n2")), Addition("h", says(id="n1"))) == ["h", "n1", "n2"]


@pytest.mark.parametrize("anchor", ["a", "c0:real", "c1:real"])
def test_an_addition_goes_behind_the_answers_of_its_anchor(anchor):
    history = [asks("c0", "c1"), answers("c0"), answers("c1"), says()]
    assert added(history, Addition(anchor, says(id="n"))) == ["a", "c0=real", "c1=real", "n", "h"]


def test_an_addition_goes_behind_answers_that_are_only_now_given():
    assert added([asks("c0"), says()], Addition("a", says(id="n"))) == ["a", "c0=unknown", "n", "h"]
    assert added([asks("c0"), says(), answers("c0")], Addition("a", says(id="n"))) == ["a", "c0=real", "n", "h"]


def test_calls_of_an_added_message_are_answered():
    evidence = Evidence(
        {("a", "c0"): STARTED}, additions=[Addition("h", asks("c0")), Addition("a", says(id="n"))], cause="restart"
    )
    done = finalize_history([says()], evidence)
    assert shape(done.messages) == ["h", "a", "c0=unknown", "n"]
    assert done.answers[0].cause == "restart"
    assert shape(done.added) == ["a", "n"]


def test_an_addition_that_is_there_already_is_left_out():
    history = [says(), AIMessage("x", id="b")]
    additions = [Addition("h", says(id="b")), Addition("b", says(id="h"))]
    done = finalize_history(history, Evidence(additions=additions))
    assert done.messages is history
    assert (done.added, done.changed) == ([], False)


def test_an_addition_to_another_lineage_is_left_out_with_all_behind_it():
    assert added([says()], Addition("gone", says(id="n")), Addition("n", says(id="n2"))) == ["h"]


def test_no_addition_is_made_twice():
    assert added([says()], Addition("h", says(id="n")), Addition("h", says(id="n"))) == ["h", "n"]


def test_a_long_chain_of_additions_is_made():
    chain = [Addition(f"n{n}" if n else None, says(id=f"n{n + 1}")) for n in range(5_000)]
    assert added([], *chain) == [f"n{n + 1}" for n in range(5_000)]


def test_results_are_no_additions():
    assert added([asks("c0")], Addition("a", answers("c0"))) == ["a", "c0=unknown"]


@pytest.mark.parametrize(
    ("history", "follower_comes", "expected"),
    [
        ([says()], False, ["h"]),
        ([says()], True, ["h", "p", "m"]),
        ([says(), says(id="h2")], False, ["h", "p", "m", "h2"]),
        ([AIMessage("x", id="b")], True, ["b"]),
    ],
)
def test_a_cut_off_reply_is_only_put_behind_a_prompt_that_nothing_else_will_answer(history, follower_comes, expected):
    reply = Addition("h", marked_partial("Half", cause="user", token=3, id="p"), required_follower=True)
    note = Addition("p", marker("user", 3, id="m"))
    assert added(history, reply, note, follower_comes=follower_comes) == expected


@pytest.mark.parametrize("start", [["h"], ["h", "n"]])
def test_a_later_addition_is_a_follower_wherever_the_history_has_it_already(start):
    reply = Addition("h", marked_partial("Half", cause="user", token=3, id="p"), required_follower=True)
    note, prompt = Addition("p", says(id="m")), Addition("h", says(id="n"))
    assert added([says(id=name) for name in start], reply, note, prompt) == ["h", "p", "m", "n"]


def test_an_addition_goes_behind_those_before_it_that_the_history_has_already():
    additions = [Addition("h", says(id=name)) for name in ("n1", "n2", "n3")] + [Addition("n1", says(id="n1.1"))]
    expected = ["h", "n1", "n1.1", "n2", "n3", "h2"]
    for there in (["n1"], ["n1", "n1.1"], ["n1", "n1.1", "n2"]):
        assert added([says(), *(says(id=name) for name in there), says(id="h2")], *additions) == expected


def test_additions_behind_an_addition_keep_their_order():
    additions = [Addition("h", says(id="n")), Addition("n", says(id="n1")), Addition("n", says(id="n2"))]
    assert added([says()], *additions) == ["h", "n", "n1", "n2"]


def test_an_addition_never_stands_before_its_anchor():
    additions = [Addition("h2", says(id="h1")), Addition("h2", says(id="n"))]
    assert added([says(id="h1"), says(id="h2")], *additions) == ["h1", "h2", "n"]


def test_an_addition_behind_an_astray_answer_goes_where_the_answer_goes():
    history = [asks("c0"), says(), answers("c0")]
    assert added(history, Addition("c0:real", says(id="n"))) == ["a", "c0=real", "n", "h"]


def test_what_is_there_is_an_anchor_even_if_its_own_is_gone():
    additions = [Addition("gone", says(id="h")), Addition("h", says(id="n")), Addition("gone", says(id="n2"))]
    assert added([says()], *additions) == ["h", "n"]


def test_answers_and_other_additions_are_no_followers():
    reply = Addition("a", marked_partial("Half", cause="user", token=3, id="p"), required_follower=True)
    history = [asks("c0"), answers("c0")]
    assert added(history, reply) == ["a", "c0=real"]
    assert added(history, Addition("a", says(id="n")), reply) == ["a", "c0=real", "n"]


def test_a_cut_off_reply_is_marked_for_programs():
    """C63."""
    reply, note = marked_partial("Half", cause="user", token=3, id="p"), marker("user", 3, id="m")
    assert (reply.content, reply.id, reply.tool_calls) == ("Half", "p", [])
    assert reply.response_metadata == {"turncheckpoint": {"outcome": "interrupted", "cause": "user", "turn_token": 3}}
    assert (note.text[0], note.text[-1], note.id) == ("[", "]", "m")
    assert note.response_metadata == {"turncheckpoint": {"marker": True, "cause": "user", "turn_token": 3}}


# --- cost


def test_the_work_grows_with_the_history_and_not_faster():
    """C12, counted in look-ups of call ids, for a history in which everything is astray."""

    def count(pairs: int) -> int:
        looked_up = 0

        class Counted(ToolMessage):
            def __getattribute__(self, name: str) -> Any:
                nonlocal looked_up
                looked_up += name == "tool_call_id"
                return super().__getattribute__(name)

        asked = [asks(f"c{n}", id=f"a{n}") for n in range(pairs)]
        given = [Counted(content="x", tool_call_id=f"c{n}", id=f"t{n}") for n in range(pairs)]
        finalize_history([*asked, *given])
        return looked_up

    assert count(400) <= 4 * count(100) + 4
