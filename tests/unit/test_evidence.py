"""From journals to what a history lacks: prompts and replies, each behind the message it belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.types import Command

from langgraph_turncheckpoint import _evidence
from langgraph_turncheckpoint import _transcript as kinds
from langgraph_turncheckpoint._evidence import (
    Wishes,
    aligned,
    evidence_of,
    graph_names,
    lost_prompts,
    other_updates,
    recorded_reply,
    update_of,
)
from langgraph_turncheckpoint._finalize import Facts
from langgraph_turncheckpoint._histories import METADATA_KEY, Evidence, GivenAnswer, finalize_history
from langgraph_turncheckpoint._tool_calls import anchor_of
from langgraph_turncheckpoint._transcript import CallKey, Prompt, Record, Transcript
from langgraph_turncheckpoint._turn import Cause

ALL = Wishes()
ASK = HumanMessage("ask", id="h1")
CALL: Any = {"name": "a", "args": {}, "id": "c0"}
CALLS = AIMessage("", id="ai", tool_calls=[CALL])
SAID = AIMessage("said", id="said")
C0 = CallKey("ai", "c0", "a")
MODEL = (kinds.MODEL, "run", "h1", "model", "model:1")
REPLY = (kinds.REPLY, "run", CALLS, ["c0"])
START = (kinds.START, *C0)


def told(*records: tuple[Any, ...], token: int = 4) -> Transcript:
    transcript = Transcript()
    transcript.add(token, [Record(kind, list(fields)) for kind, *fields in records])
    return transcript


def known(
    transcript: Transcript, history: list[BaseMessage], *, cause: Cause = "restart", token: int = 9, **kwargs: Any
) -> Evidence:
    """What turns that all ended by `cause` left behind, for a turn with `token`."""
    causes = dict.fromkeys(transcript.tokens, cause)
    asked: dict[str, Any] = {"causes": causes, "wishes": ALL, **kwargs}
    return evidence_of(transcript, history, cause=cause, turn_token=token, **asked)


def added(transcript: Transcript, history: list[BaseMessage], **kwargs: Any) -> list[tuple[str | None, str, bool]]:
    """What is to be added: behind which message, the text, and whether only if a message follows."""
    found = known(transcript, history, **kwargs)
    return [(a.after, a.message.text, a.required_follower) for a in found.additions]


def test_nothing_recorded_is_nothing_to_add():
    found = known(Transcript(), [ASK], cause="user")
    assert (found.additions, found.calls, found.cause, found.turn_token, found.paused) == ([], {}, "user", 9, False)


def test_messages_of_a_prompt_stand_behind_each_other():
    more = [HumanMessage("two", id="h2"), HumanMessage("three", id="h3")]
    assert added(told((kinds.PROMPT, "ai0", [ASK, *more])), []) == [
        ("ai0", "ask", False),
        ("h1", "two", False),
        ("h2", "three", False),
    ]


def test_a_cut_off_reply_and_its_note_stand_behind_its_prompt():
    transcript = told(MODEL, (kinds.TEXT, "run", "Half"))
    found = known(transcript, [ASK])
    partial, note = found.additions
    assert (partial.after, partial.message.text, partial.required_follower) == ("h1", "Half", True)
    assert (note.after, note.message.type, note.required_follower) == (partial.message.id, "human", True)
    said = partial.message.response_metadata[METADATA_KEY]
    assert said == {"outcome": "interrupted", "cause": "restart", "turn_token": 9}
    assert note.message.response_metadata[METADATA_KEY]["marker"] is True


def test_its_ids_are_the_same_each_time():
    one, two = (known(told(MODEL, (kinds.TEXT, "run", "Half")), [ASK], cause="user", token=token) for token in (5, 6))
    assert [a.message.id for a in one.additions] == [a.message.id for a in two.additions]


@pytest.mark.parametrize(
    ("wishes", "count"),
    [(Wishes(), 2), (Wishes(mark=False), 1), (Wishes(keep_text=False), 0), (Wishes(False, False), 0)],
)
def test_both_can_be_switched_off(wishes, count):
    assert len(added(told(MODEL, (kinds.TEXT, "run", "Half")), [ASK], wishes=wishes)) == count


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_a_reply_that_says_nothing_is_no_message(text):
    assert added(told(MODEL, (kinds.TEXT, "run", text), (kinds.REASONING, "run", "hm")), [ASK]) == []


def test_a_prompt_that_was_answered_gets_no_second_reply():
    assert added(told(MODEL, (kinds.TEXT, "run", "Half")), [ASK, SAID]) == []
    assert added(told(MODEL, REPLY), [ASK, CALLS]) == []


def test_a_prompt_that_another_message_follows_is_not_answered_by_that():
    transcript = told(MODEL, (kinds.TEXT, "run", "Half"))
    assert len(added(transcript, [ASK, HumanMessage("more", id="h2"), SAID])) == 2


def test_a_whole_reply_waits_for_a_follower_unless_its_calls_have_started():
    assert added(told(MODEL, REPLY), [ASK]) == [("h1", "", True)]
    assert added(told(MODEL, REPLY, START), [ASK]) == [("h1", "", False)]


def tries(*replies: tuple[str, str | None, AIMessage | None]) -> Transcript:
    records: list[tuple[Any, ...]] = []
    for run, text, message in replies:
        records.append((kinds.MODEL, run, "h1", "model", "model:1"))
        records += [(kinds.TEXT, run, text)] if text else []
        records += [(kinds.REPLY, run, message, [])] if message else []
    return told(*records)


@pytest.mark.parametrize(
    ("replies", "kept"),
    [
        ([("1", "a", None), ("2", None, None)], "a"),
        ([("1", "a", None), ("2", "b", None)], "b"),
        ([("1", "a", None), ("2", "b", None), ("3", None, None)], "b"),
        ([("1", "a", None), ("2", None, SAID)], "said"),
        ([("1", None, SAID), ("2", None, None)], "said"),
        ([("1", None, SAID), ("2", "b", None)], "said"),
        ([("1", None, AIMessage("old", id="old")), ("2", None, SAID)], "said"),
    ],
)
def test_of_several_tries_one_remains(replies, kept):
    assert added(tries(*replies), [ASK], wishes=Wishes(mark=False)) == [("h1", kept, True)]


def test_a_long_turn_is_looked_at_in_linear_time(monkeypatch):
    """A turn of 2,000 model calls took eight seconds, in which the event loop stood still."""
    looks = 0
    records: list[tuple[Any, ...]] = []
    history: list[BaseMessage] = [ASK]
    for number in range(200):
        said = AIMessage("", id=f"ai-{number}", tool_calls=[{**CALL, "id": f"c{number}"}])
        records.append((kinds.MODEL, f"run {number}", history[-1].id, "model", f"model:{number}"))
        records.append((kinds.REPLY, f"run {number}", said, []))
        history.append(said)

    def counted(checkpoint_ns):
        nonlocal looks
        looks += 1
        return graph_names(checkpoint_ns)

    monkeypatch.setattr(_evidence, "graph_names", counted)
    known(told(*records), history)
    assert 0 < looks < 10 * 200


def test_replies_in_other_namespaces_are_no_part_of_this_history():
    transcript = told(
        (kinds.MODEL, "inner", "h1", "model", "sub:1|model:2"),
        (kinds.TEXT, "inner", "inside"),
        (kinds.MODEL, "outer", "h1", "model", "model:3"),
        (kinds.TEXT, "outer", "outside"),
    )
    wishes = Wishes(mark=False)
    assert added(transcript, [ASK], wishes=wishes, namespaces={""}) == [("h1", "outside", True)]
    assert added(transcript, [ASK], wishes=wishes, namespaces={"sub:1"}) == [("h1", "inside", True)]
    # The id of a task differs from run to run.
    assert added(transcript, [ASK], wishes=wishes, namespaces={"sub:9"}) == [("h1", "inside", True)]
    assert added(transcript, [ASK], wishes=wishes, namespaces={"other:1"}) == []
    assert added(transcript, [ASK], wishes=wishes, namespaces=set()) == []
    assert added(transcript, [ASK], wishes=wishes) == [("h1", "inside", True), ("h1", "outside", True)]


def test_nodes_that_answer_one_prompt_beside_each_other_each_have_their_say():
    other = AIMessage("other", id="other")
    records: list[Any] = [
        (kinds.MODEL, "one", "h1", "one", "one:1"),
        (kinds.MODEL, "two", "h1", "two", "two:2"),
        (kinds.REPLY, "two", other, []),
        (kinds.REPLY, "one", SAID, []),
    ]
    assert added(told(*records), [ASK]) == [("h1", "said", True), ("h1", "other", True)]
    # The other node's reply in the history is no answer in place of this one's.
    assert added(told(*records), [ASK, other]) == [("h1", "said", True)]
    both = [ASK, other, SAID]
    evidence = known(told(*records), both)
    assert not finalize_history(both, evidence).changed


def test_a_reply_to_a_prompt_without_an_id_has_no_place():
    assert added(told((kinds.MODEL, "run", None, "model", "model:1"), (kinds.TEXT, "run", "Half")), [ASK]) == []


def test_finalizing_with_the_evidence_is_idempotent_and_keeps_the_order():
    transcript = told(
        (kinds.PROMPT, None, [ASK]),
        MODEL,
        (kinds.TEXT, "run", "Half"),
        (kinds.PROMPT, "h1", [HumanMessage("more", id="h2")]),
        (kinds.MODEL, "next", "h2", "model", "model:2"),
        (kinds.TEXT, "next", "Other half"),
    )

    def finalized(history: list[BaseMessage]) -> Any:
        evidence = known(transcript, history, cause="user", wishes=Wishes(mark=False))
        return finalize_history(history, evidence)

    new = HumanMessage("new", id="h3")
    for stored in ([ASK, HumanMessage("more", id="h2"), new], [ASK, new], [new]):
        first = finalized(list(stored))
        said = [m.text for m in first.messages]
        # A prompt of which the very start is lost goes to the start; nothing else may change places.
        assert sorted(said) == sorted(["ask", "Half", "more", "Other half", "new"]), said
        assert said.index("ask") < said.index("Half") < said.index("more") < said.index("Other half")
        assert said[-1] == "new"
        assert not finalized(first.messages).changed


# --- several turns ---


def test_each_turn_is_said_to_have_ended_by_its_own_cause():
    transcript = told(MODEL, (kinds.TEXT, "run", "Half"), (kinds.PROMPT, "h1", [HumanMessage("more", id="h2")]))
    more: list[Any] = [(kinds.MODEL, "run", "h2", "model", "model:1"), REPLY, START]
    transcript.add(6, [Record(kind, list(fields)) for kind, *fields in more])
    history: list[BaseMessage] = [ASK, HumanMessage("more", id="h2"), HumanMessage("new", id="h3")]

    def told_with(causes: dict[int, Cause]) -> tuple[list[str], Cause]:
        evidence = known(transcript, history, cause="unknown", causes=causes)
        done = finalize_history(history, evidence)
        notes = [m.response_metadata[METADATA_KEY]["cause"] for m in done.added if METADATA_KEY in m.response_metadata]
        (given,) = done.answers
        return notes, given.cause

    assert told_with({4: "user", 6: "limit"}) == (["user", "user"], "limit")
    assert told_with({6: "error"}) == (["unknown", "unknown"], "error")
    assert told_with({4: "error"}) == (["error", "error"], "unknown")


# --- what is missing on purpose ---


@pytest.mark.parametrize("kind", [kinds.STORED, kinds.REMOVED])
def test_messages_that_a_checkpoint_had_or_a_node_took_out_do_not_come_back(kind):
    assert added(told((kinds.PROMPT, None, [ASK]), (kind, ["h1"])), []) == []
    assert added(told(MODEL, REPLY, START, (kind, ["ai"])), [ASK]) == []


def test_what_stands_in_the_history_still_is_not_gone():
    transcript = told((kinds.PROMPT, None, [ASK]), MODEL, REPLY, (kinds.STORED, ["h1"]))
    assert added(transcript, [ASK]) == [(None, "ask", False), ("h1", "", True)]


def test_of_a_prompt_only_what_no_checkpoint_had_is_missing():
    more = HumanMessage("more", id="h2")
    transcript = told((kinds.PROMPT, None, [ASK, more]), (kinds.STORED, ["h1"]))
    assert added(transcript, []) == [(None, "more", False)]


def test_what_stood_behind_a_message_that_is_gone_goes_to_the_end_of_what_was_stored():
    summary = HumanMessage("summary", id="s")
    records: list[Any] = [(kinds.MODEL, "run", "ai", "model", "model:2"), (kinds.REPLY, "run", SAID, [])]
    prompt = (kinds.PROMPT, "ai", [HumanMessage("next", id="h2")])
    gone, new = (kinds.REMOVED, ["h1", "ai"]), HumanMessage("new", id="h3")
    assert added(told(prompt, gone), [summary, SAID, new]) == [("said", "next", False)]
    assert added(told(*records, gone), [summary, AIMessage("ok", id="ok"), new]) == [("ok", "said", True)]
    assert added(told(prompt), [summary, SAID, new]) == [("ai", "next", False)]  # of another lineage


def test_a_reply_that_its_node_kept_to_itself_is_no_message():
    assert added(told(MODEL, REPLY, START, (kinds.RETURNED, "model:1", [])), [ASK]) == []
    assert added(told(MODEL, REPLY, START, (kinds.RETURNED, "model:1", [["ai", ["c0"]]])), [ASK]) == [("h1", "", False)]


def test_a_reply_that_its_node_gave_under_another_id_is_added_under_that():
    transcript = told(MODEL, REPLY, START, (kinds.RETURNED, "model:1", [["new", ["c0"]]]))
    found = known(transcript, [ASK])
    assert [a.message.id for a in found.additions] == ["new"]
    assert found.calls["new", "c0"].facts == Facts(started=True, known=True)
    assert added(transcript, [ASK, CALLS.model_copy(update={"id": "new"})]) == []


def test_what_is_known_of_a_call_in_a_message_without_an_id_counts_for_the_last_that_makes_it():
    history = [ASK, AIMessage("", tool_calls=[CALL])]
    found = known(told(MODEL, REPLY, START), history)
    assert found.calls[None, "c0"].facts == Facts(started=True, known=True)
    named = known(told(MODEL, REPLY, START), [ASK, CALLS])
    assert (None, "c0") not in named.calls


# --- prompts ---


def test_prompts_that_the_history_lacks_are_found_without_the_replies_to_them():
    transcript = told((kinds.PROMPT, None, [ASK]), MODEL, REPLY, START)
    found = lost_prompts(transcript, [])
    assert [(a.after, a.message, a.required_follower) for a in found.additions] == [(None, ASK, False)]
    assert not found.calls
    assert lost_prompts(told(MODEL, REPLY), []).additions == []


@pytest.mark.parametrize("kind", [kinds.STORED, kinds.REMOVED])
def test_a_prompt_that_was_stored_and_taken_out_again_is_not_lost(kind):
    assert lost_prompts(told((kinds.PROMPT, None, [ASK]), (kind, ["h1"])), []).additions == []


def test_a_prompt_in_the_history_is_not_added_again():
    evidence = lost_prompts(told((kinds.PROMPT, None, [ASK])), [ASK])
    assert not finalize_history([ASK], evidence).changed


def test_entries_are_known_by_the_ids_of_a_history_that_says_the_same_at_the_same_place():
    again = HumanMessage("ask", id="again")
    transcript = told((kinds.PROMPT, None, [ASK]), MODEL, REPLY)
    prompt, reply = aligned(transcript.timeline, [again])
    assert isinstance(prompt, Prompt)
    assert prompt.messages == [again]
    assert not isinstance(reply, Prompt)
    assert reply.anchor == "again"
    assert lost_prompts(transcript, [again]).additions[0].message is again


def test_a_prompt_behind_another_that_goes_by_a_new_id_follows_it():
    more = HumanMessage("more", id="h2")
    timeline = told((kinds.PROMPT, None, [ASK]), (kinds.PROMPT, "h1", [more])).timeline
    new = [HumanMessage("ask", id="n1"), ToolMessage("x", tool_call_id="c0", id="t"), HumanMessage("more", id="n2")]
    assert aligned(timeline, new) == [Prompt(None, [new[0]]), Prompt("n1", [new[2]])]


@pytest.mark.parametrize("arrived", ["with it", "later"])
def test_a_prompt_is_found_beside_a_message_that_arrived_under_an_id_of_its_own(arrived):
    """G7: an update or a message of the inbox beside it is stored under one id, whoever stores it."""
    other, again = HumanMessage("other", id="h0"), HumanMessage("ask", id="again")
    timeline = told((kinds.PROMPT, None, [other, ASK] if arrived == "with it" else [ASK])).timeline
    assert aligned(timeline, [other, again]) == [Prompt(None, [other, again] if arrived == "with it" else [again])]


def test_a_message_that_is_there_under_its_own_id_is_not_taken_for_another_that_says_the_same():
    twin = HumanMessage("ask", id="twin")
    timeline = told((kinds.PROMPT, None, [twin, ASK])).timeline
    assert aligned(timeline, [twin]) == timeline


@pytest.mark.parametrize(
    "history",
    [
        [],
        [HumanMessage("something else", id="x")],
        [AIMessage("ask", id="x")],
        [SAID, HumanMessage("ask", id="x")],
        [HumanMessage("other", id="x"), ASK],
        ["raw"],
    ],
    ids=["empty", "other text", "other role", "other place", "its own id", "raw"],
)
def test_otherwise_entries_keep_their_ids(history):
    timeline = told((kinds.PROMPT, None, [ASK]), MODEL).timeline
    assert aligned(timeline, history) == timeline


def test_a_prompt_behind_a_message_that_the_history_does_not_have_keeps_its_ids():
    timeline = told((kinds.PROMPT, "gone", [ASK])).timeline
    assert aligned(timeline, [HumanMessage("ask", id="x")]) == timeline


def test_of_several_messages_of_a_prompt_all_must_say_the_same():
    more = HumanMessage("more", id="h2")
    timeline = told((kinds.PROMPT, None, [ASK, more])).timeline
    half: list[BaseMessage] = [HumanMessage("ask", id="x"), HumanMessage("different", id="y")]
    assert aligned(timeline, half) == timeline
    assert aligned(timeline, half[:1]) == timeline
    whole = [half[0], HumanMessage("more", id="y")]
    assert aligned(timeline, whole) == [Prompt(None, whole)]


@pytest.mark.parametrize(
    ("namespace", "names"),
    [
        ("", ""),
        ("sub:1", "sub"),
        ("sub:1|deeper:2", "sub|deeper"),
        ("sub", "sub"),
        ("sub:1|1|deeper:2", "sub|1|deeper"),
    ],
)
def test_a_graph_is_named_without_the_ids_of_its_tasks(namespace, names):
    assert graph_names(namespace) == names


# --- what tools have written beside messages ---

DONE = ToolMessage("done", tool_call_id="c0", name="a", id="t")
WROTE: Command[Any] = Command(update={"messages": [DONE], "files": {"x": 1}, "count": 2})


def given(**changes: Any) -> GivenAnswer:
    return GivenAnswer("c0", "a", "recorded", "restart", DONE)._replace(**changes)


def wrote(output: Any, *answers: GivenAnswer, key: CallKey = C0) -> list[tuple[str, Any]]:
    """What is written beside messages, by answers in a history that ends with the call."""
    transcript = told(MODEL, REPLY, (kinds.RESULT, *key, output))
    return other_updates(transcript, answers or [given()], [ASK, CALLS, DONE], "messages")


def test_what_a_tool_whose_recorded_result_is_used_wrote_beside_is_written_too():
    assert wrote(WROTE) == [("files", {"x": 1}), ("count", 2)]
    pairs: Command[Any] = Command(update=[("files", {"x": 1}), ("messages", [DONE]), ("files", {"y": 2})])
    assert wrote(pairs) == [("files", {"x": 1}), ("files", {"y": 2})]


def test_the_key_of_the_messages_is_the_graphs():
    transcript = told((kinds.RESULT, *C0, WROTE))
    assert [key for key, _ in other_updates(transcript, [given()], [CALLS], "files")] == ["messages", "count"]


@pytest.mark.parametrize(
    ("output", "answers"),
    [
        (DONE, [given()]),
        (WROTE, [given(outcome="unknown")]),
        (WROTE, [given(call_id="c1")]),
        (WROTE, [given(tool_name="b")]),
        (Command(graph=Command.PARENT, update={"files": {"x": 1}}), [given()]),
        (Command(goto="next"), [given()]),
    ],
    ids=["message", "not used", "other call", "other tool", "other graph", "no update"],
)
def test_nothing_else_is_written(output, answers):
    assert wrote(output, *answers) == []


def test_nothing_is_written_of_a_call_of_that_id_in_another_message():
    assert wrote(WROTE, key=C0._replace(tool="b")) == []
    transcript = told(MODEL, REPLY, (kinds.RESULT, *C0, WROTE))
    assert other_updates(transcript, [given()], [CALLS, CALLS.model_copy(update={"id": "later"})], "messages") == []


def test_a_command_with_an_update_of_any_other_shape_writes_nothing():
    assert update_of(Command()) == []
    assert update_of(Command(update=[DONE])) == []
    assert update_of(Command(update={"a": 1})) == update_of(Command(update=[("a", 1)])) == [("a", 1)]


# --- a reply that must not be asked for again ---


def test_a_reply_whose_calls_have_started_is_given_again():
    assert recorded_reply(told(MODEL, REPLY, START), [ASK], checkpoint_ns="") is CALLS


@pytest.mark.parametrize(
    ("records", "history", "namespace"),
    [
        ([MODEL, REPLY], [ASK], ""),
        ([MODEL, REPLY, START], [], ""),
        ([MODEL, REPLY, START], [ASK], "sub:1"),
        ([MODEL, REPLY, START], [HumanMessage("ask")], ""),
        ([MODEL, REPLY, START, (kinds.RETURNED, "model:1", [])], [ASK], ""),
        ([MODEL, REPLY, START, (kinds.STORED, ["ai"])], [ASK], ""),
        ([MODEL, REPLY, START, (kinds.REMOVED, ["ai"])], [ASK], ""),
        ([MODEL, REPLY, START], [ASK, HumanMessage("more", id="h2")], ""),
        ([MODEL, REPLY, START], [ASK, CALLS, ToolMessage("x", tool_call_id="c0")], ""),
        ([MODEL, (kinds.TEXT, "run", "Half"), START], [ASK], ""),
        ([], [ASK], ""),
    ],
    ids=[
        "not started",
        "no history",
        "namespace",
        "no id",
        "internal",
        "stored",
        "removed",
        "new message",
        "already there",
        "cut off",
        "nothing",
    ],
)
def test_any_other_model_call_is_made(records, history, namespace):
    assert recorded_reply(told(*records), history, checkpoint_ns=namespace) is None


def test_a_reply_in_a_subgraph_is_given_again_whichever_task_it_runs_in():
    transcript = told((kinds.MODEL, "run", "h1", "model", "sub:1|model:2"), REPLY, START)
    assert recorded_reply(transcript, [ASK], checkpoint_ns="sub:7") is CALLS
    assert recorded_reply(transcript, [ASK], checkpoint_ns="") is None


def test_a_reply_to_a_prompt_that_goes_by_a_new_id_is_given_again():
    transcript = told((kinds.PROMPT, None, [ASK]), MODEL, REPLY, START)
    assert recorded_reply(transcript, [HumanMessage("ask", id="again")], checkpoint_ns="") is CALLS


def test_a_reply_whose_calls_a_node_may_have_run_unseen_is_given_again():
    transcript = told(MODEL, (kinds.REPLY, "run", CALLS, []), (kinds.NODE, "tools:2", [list(C0)]))
    assert recorded_reply(transcript, [ASK], checkpoint_ns="") is CALLS


def test_the_newest_whole_reply_to_the_prompt_decides():
    later = CALLS.model_copy(update={"id": "later", "tool_calls": [{**CALL, "id": "c9"}]})
    records = [MODEL, REPLY, START, (kinds.MODEL, "two", "h1", "model", "model:2"), (kinds.REPLY, "two", later, ["c9"])]
    assert recorded_reply(told(*records), [ASK], checkpoint_ns="") is None
    assert recorded_reply(told(*records, (kinds.START, "later", "c9", "a")), [ASK], checkpoint_ns="") is later


# --- anchors ---


@pytest.mark.parametrize(
    ("history", "anchor"),
    [
        ([], None),
        ([ASK], "h1"),
        ([ASK, CALLS, ToolMessage("x", tool_call_id="c0", id="t")], "ai"),
        ([ASK, SystemMessage("s", id="s")], "h1"),
        ([SystemMessage("s", id="s")], None),
        ([ASK, HumanMessage("no id")], None),
        (["raw", ASK, {"role": "user"}], "h1"),
    ],
)
def test_an_anchor_is_the_last_message_of_a_person_or_a_model(history, anchor):
    assert anchor_of(history) == anchor
