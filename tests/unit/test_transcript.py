"""Journal records: how they are sealed, what a row of them adds up to, and what silence among them means."""

from __future__ import annotations

from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Command

from langgraph_turncheckpoint import RefusedValueError, TurnCheckpointSaver, UnserializableValueError
from langgraph_turncheckpoint import _transcript as kinds
from langgraph_turncheckpoint._finalize import Facts
from langgraph_turncheckpoint._transcript import (
    CallKey,
    Prompt,
    Record,
    Transcript,
    answer_id,
    decode_records,
    encode_record,
    keys_of,
    messages_in,
    tool_message,
)
from tests.unit.test_serde import KeyedCipher, Pickling

SERDES = {"default": None, "encrypting": EncryptedSerializer(KeyedCipher(b"key")), "custom": Pickling()}

CALLS = AIMessage(
    "",
    id="ai",
    tool_calls=[{"name": name, "args": {}, "id": f"c{number}"} for number, name in enumerate("abc")],
)
C0, C1, C2 = (CallKey("ai", f"c{number}", name) for number, name in enumerate("abc"))


def answer(call_id: str, text: str = "done", **kwargs: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, **kwargs)


def told(*records: tuple[Any, ...], token: int = 1) -> Transcript:
    """What one turn's records add up to."""
    transcript = Transcript()
    transcript.add(token, [Record(kind, list(fields)) for kind, *fields in records])
    return transcript


def said(run: str, message: AIMessage, task: str = "model:1") -> list[tuple[Any, ...]]:
    """A model's whole reply."""
    return [
        (kinds.MODEL, run, "h", "model", task),
        (kinds.REPLY, run, message, [key.call_id for key in keys_of(message)]),
    ]


@pytest.fixture(params=SERDES)
def codec(request, tmp_path):
    return TurnCheckpointSaver(tmp_path / "s", serde=SERDES[request.param]).store.codec


# --- bytes ---

RECORDS = [
    (kinds.PROMPT, [None, [HumanMessage("hi", id="h")]]),
    (kinds.MODEL, ["run", "h", "model", ""]),
    (kinds.TEXT, ["run", "Half \U0001f4a1"]),
    (kinds.REASONING, ["run", "hm"]),
    (kinds.REPLY, ["run", CALLS, ["c0", "c2"]]),
    (kinds.RETURNED, ["model:1", [["ai", ["c0", "c1", "c2"]], [None, []]]]),
    (kinds.CALLS, ["ai", [["c0", "a"], ["c1", "b"]]]),
    (kinds.START, ["ai", "c0", "a"]),
    (kinds.RESULT, ["ai", "c0", "a", answer("c0", id="t")]),
    (kinds.FAILED, ["ai", "c1", "b", "ValueError: no"]),
    (kinds.PAUSED, [None, "c2", "c"]),
    (kinds.ASKED, ["ai", "c2", "c", 1]),
    (kinds.ALLOWED, ["ai", "c2", "c", 2]),
    (kinds.NODE, ["tools:2", [["ai", "c0", "a"], [None, "c1", "b"]]]),
    (kinds.RESTED, ["tools:2"]),
    (kinds.FROM, ["1f0-checkpoint"]),
    (kinds.STORED, [["h", "ai"]]),
    (kinds.REMOVED, [["h"]]),
    (kinds.DELIVERED, [["m1", "m2"]]),
    (kinds.ENDED, ["failed", "error"]),
    (kinds.GAP, []),
]


@pytest.mark.parametrize(("kind", "fields"), RECORDS, ids=[kind for kind, _ in RECORDS])
def test_a_record_comes_back_as_it_was(codec, kind, fields):
    assert decode_records(codec, [encode_record(codec, kind, fields)]) == ([Record(kind, fields)], [])


def test_what_a_tool_gave_comes_back_whole(codec):
    output = [Command(update={"messages": [answer("c0")], "files": {"a": 1}}, goto="next"), answer("c1")]
    records, _ = decode_records(codec, [encode_record(codec, kinds.RESULT, [*C0, output])])
    assert records[0].fields[3] == output


def test_an_encrypting_serde_leaves_nothing_readable_but_the_kind(tmp_path):
    codec = TurnCheckpointSaver(tmp_path / "s", serde=SERDES["encrypting"]).store.codec
    data = encode_record(codec, kinds.TEXT, ["run-id", "very secret"])
    assert kinds.TEXT.encode() in data
    assert b"secret" not in data
    assert b"run-id" not in data


def test_plaintext_where_the_saver_encrypts_is_refused(tmp_path):
    plain = TurnCheckpointSaver(tmp_path / "a").store.codec
    sealed = TurnCheckpointSaver(tmp_path / "b", serde=SERDES["encrypting"]).store.codec
    with pytest.raises(RefusedValueError):
        decode_records(sealed, [encode_record(plain, kinds.TEXT, ["run", "planted"])])


@pytest.mark.parametrize("payload", [b"", b"noise", ormsgpack.packb([1, 2]), ormsgpack.packb("x"), ormsgpack.packb(7)])
def test_a_record_that_cannot_be_read_is_told_and_costs_only_itself(codec, payload):
    good = encode_record(codec, kinds.TEXT, ["run", "text"])
    records, unreadable = decode_records(codec, [good, payload, good])
    assert [record.kind for record in records] == [kinds.TEXT, kinds.TEXT]
    assert len(unreadable) == 1
    assert unreadable[0].startswith("record 1")


def test_a_value_the_serde_cannot_write_is_named(tmp_path):
    codec = TurnCheckpointSaver(tmp_path / "s").store.codec
    with pytest.raises(UnserializableValueError, match="journal"):
        encode_record(codec, kinds.RESULT, [*C0, {"deep": [lambda: None]}])


# --- calls ---

MODEL = (kinds.MODEL, "run", "h", "model", "model:1")
REPLY = (kinds.REPLY, "run", CALLS, ["c0", "c1", "c2"])
UNCOVERED: Any = (kinds.REPLY, "run", CALLS, [])
START, RESULT, FAILED, PAUSED = (
    (kinds.START, *C0),
    (kinds.RESULT, *C0, answer("c0")),
    (kinds.FAILED, *C0, "E: x"),
    (kinds.PAUSED, *C0),
)


@pytest.mark.parametrize(
    ("records", "facts"),
    [
        ([], Facts()),
        ([(kinds.CALLS, "ai", [["c0", "a"]])], Facts(known=True)),
        ([START], Facts(started=True, known=True)),
        ([START, RESULT], Facts(started=True, result=True, known=True)),
        ([RESULT], Facts(result=True, known=True)),
        ([START, FAILED], Facts(started=True, error="E: x", known=True)),
        ([START, FAILED, START], Facts(started=True, known=True)),
        ([START, FAILED, START, RESULT], Facts(started=True, result=True, known=True)),
        ([START, PAUSED], Facts(started=True, paused=True, known=True)),
        ([START, PAUSED, START], Facts(started=True, known=True)),
        ([PAUSED], Facts(paused=True, known=True)),
        ([(kinds.CALLS, "ai", [["c0", "a"]]), (kinds.GAP,)], Facts()),
        ([START, (kinds.GAP,)], Facts(started=True)),
    ],
    ids=str,
)
def test_later_events_of_a_call_undo_earlier_ones(records, facts):
    assert told(*records).facts(C0) == facts


def test_silence_about_a_covered_call_of_a_whole_reply_means_that_it_did_not_start():
    transcript = told(MODEL, (kinds.REPLY, "run", CALLS, ["c0", "c2"]))
    assert transcript.facts(C2) == Facts(known=True)
    assert transcript.facts(C2._replace(ai_id="other")) == Facts()
    assert transcript.facts(C1) == Facts()
    evidence = transcript.call_evidence({})
    assert {key: found.facts.known for key, found in evidence.items()} == {C0[:2]: True, C1[:2]: False, C2[:2]: True}


def test_a_gap_takes_the_meaning_from_silence_about_every_call():
    transcript = told(MODEL, REPLY, (kinds.GAP,))
    assert {found.facts for found in transcript.call_evidence({}).values()} == {Facts()}
    assert transcript.has_gap


def test_a_call_is_covered_by_its_message_too_once_that_is_known_to_whoever_runs_it():
    transcript = told(MODEL, UNCOVERED, (kinds.CALLS, "ai", [["c1", "b"]]))
    assert transcript.covered == {C1[:2]}
    assert [transcript.facts(key).known for key in keys_of(CALLS)] == [False, True, False]


def test_the_same_id_in_two_messages_is_two_calls():
    one, two = C0._replace(ai_id="one"), C0._replace(ai_id="two")
    transcript = told((kinds.START, *one), (kinds.RESULT, *one, answer("c0", "first")), (kinds.START, *two))
    assert transcript.facts(one).result
    assert not transcript.facts(two).result
    assert transcript.output(one).text == "first"
    assert transcript.output(two) is None
    assert transcript.newest("c0") == two
    assert transcript.newest("c1") is None


def test_the_same_id_twice_in_a_message_is_two_calls_if_the_tools_differ():
    other = C0._replace(tool="b")
    transcript = told(START, (kinds.RESULT, *C0, answer("c0", "first")), (kinds.START, *other))
    assert transcript.facts(C0).result
    assert not transcript.facts(other).result
    assert (transcript.output(C0).text, transcript.output(other)) == ("first", None)


def test_of_two_calls_of_one_message_with_one_id_no_result_is_given_to_either():
    """Answers are told apart by the id alone."""
    other = C0._replace(tool="b")
    transcript = told(START, (kinds.START, *other), (kinds.RESULT, *other, answer("c0", "whose?")))
    found = transcript.call_evidence({})["ai", "c0"]
    assert (found.facts, found.result) == (Facts(started=True, known=True), None)


def test_a_call_whose_message_is_not_known_is_the_last_of_its_id_and_tool():
    transcript = told((kinds.RESULT, "one", "c0", "a", answer("c0", "first")), (kinds.START, "two", "c0", "a"))
    assert transcript.facts(C0._replace(ai_id=None)) == Facts(started=True, known=True)
    assert transcript.facts(CallKey(None, "c0", "b")) == Facts()
    anonymous = told((kinds.START, None, "c0", "a"))
    assert anonymous.facts(C0).started
    assert anonymous.facts(C0._replace(ai_id=None)).started
    assert not anonymous.facts(CallKey("ai", "c0", "b")).started


def test_what_is_known_of_a_call_of_one_reply_is_not_said_of_another_message():
    transcript = told(MODEL, REPLY, START)
    assert transcript.facts(C0._replace(ai_id=None)).started
    assert transcript.facts(C0._replace(ai_id="other")) == Facts()


def test_a_new_reply_has_nothing_to_do_with_older_calls_of_its_ids():
    transcript = told((kinds.START, None, "c0", "a"), (kinds.RESULT, None, "c0", "a", answer("c0")), MODEL, REPLY)
    assert transcript.facts(C0) == Facts(known=True)
    assert transcript.output(C0) is None
    assert transcript.newest("c0") == C0


def test_records_of_several_turns_add_up():
    transcript = told(START, token=3)
    transcript.add(5, [Record(kinds.RESULT, [*C0, answer("c0")])])
    assert transcript.tokens == [3, 5]
    assert transcript.facts(C0).result


# --- persons ---


def test_how_many_answers_came_before_the_question_about_a_call_is_remembered():
    transcript = told((kinds.ASKED, *C0, 0), (kinds.ASKED, *C1, 2), (kinds.ASKED, *C1, 3))
    assert [transcript.asked(key) for key in (C0, C1, C2)] == [0, 3, None]
    assert not transcript.facts(C0).started


def test_a_person_who_lets_a_call_run_has_taken_answers_that_its_next_starts_skip():
    transcript = told(START, (kinds.ALLOWED, *C0, 2))
    assert (transcript.consumed(C0), transcript.consumed(C1)) == (2, 0)
    again = told(START, (kinds.ASKED, *C0, 1), (kinds.ALLOWED, *C0, 2), START)
    assert again.consumed(C0) == 2
    assert again.asked(C0) is None  # a call that starts anew is asked about anew
    assert again.facts(C0) == Facts(started=True, known=True)


# --- nodes that run tools unseen ---


def test_calls_of_a_node_that_would_run_them_unseen_may_have_started():
    transcript = told(MODEL, UNCOVERED, (kinds.NODE, "tools:2", [list(C0), list(C1)]))
    assert [transcript.facts(key).started for key in (C0, C1, C2)] == [True, True, False]
    assert transcript.was_touched(CALLS)
    evidence = transcript.call_evidence({})
    assert [evidence[key[:2]].facts.started for key in (C0, C1, C2)] == [True, True, False]
    assert not transcript.is_empty


def test_what_is_known_of_such_a_call_beside_counts():
    transcript = told((kinds.NODE, "tools:2", [list(C0)]), RESULT)
    assert transcript.facts(C0) == Facts(started=True, result=True, known=True)


def test_calls_of_such_a_node_are_told_apart_by_message_and_tool():
    transcript = told(MODEL, UNCOVERED, (kinds.NODE, "tools:2", [list(C0)]))
    assert not transcript.facts(C0._replace(ai_id="other")).started
    assert not transcript.facts(C0._replace(tool="b")).started
    assert transcript.facts(C0._replace(ai_id=None)).started


def test_a_node_that_rests_has_run_no_tool_that_it_will_not_run_again():
    transcript = told((kinds.NODE, "one", [list(C0)]), (kinds.NODE, "two", [list(C1)]), (kinds.RESTED, "one"))
    assert [transcript.facts(key).started for key in (C0, C1)] == [False, True]
    again = told((kinds.NODE, "one", [list(C0)]), (kinds.RESTED, "one"), (kinds.NODE, "one", [list(C0)]))
    assert again.facts(C0).started


def test_a_node_that_rests_without_having_begun_changes_nothing():
    assert told(START, (kinds.RESTED, "one")).facts(C0) == Facts(started=True, known=True)


# --- evidence ---


def test_evidence_has_the_answer_in_what_the_tool_gave():
    command: Command[Any] = Command(update={"messages": [answer("c1", "other"), answer("c0", "mine", id="t")]})
    result = told(START, (kinds.RESULT, *C0, command)).call_evidence({})["ai", "c0"].result
    assert result is not None
    assert (result.text, result.id) == ("mine", "t")


def test_an_answer_without_an_id_gets_the_same_one_each_time():
    def made(key: CallKey) -> str | None:
        result = told((kinds.RESULT, *key, answer("c0"))).call_evidence({})[key[:2]].result
        assert result is not None
        return result.id

    others = [C0._replace(ai_id="other"), C0._replace(tool="b"), C0._replace(ai_id=None)]
    assert made(C0) == made(C0) == answer_id(C0)
    assert len({made(key) for key in (C0, *others)}) == 4


def test_a_result_without_an_answer_in_it_is_only_a_start():
    """A tool that gave a bare `Command(goto=...)` has run, but there is nothing to answer with."""
    evidence = told((kinds.RESULT, *C0, Command(goto="next"))).call_evidence({})
    assert evidence["ai", "c0"].facts == Facts(started=True, known=True)
    assert evidence["ai", "c0"].result is None


def test_a_call_was_last_heard_of_in_the_turn_that_recorded_something_about_it():
    transcript = told(*said("run", CALLS), START, token=3)
    transcript.add(5, [Record(kinds.RESULT, [*C0, answer("c0")])])
    assert [transcript.token_of(key) for key in (C0, C1, C0._replace(ai_id="other"))] == [5, 3, None]
    evidence = transcript.call_evidence({3: "user", 5: "limit"})
    assert {key: found.cause for key, found in evidence.items()} == {C0[:2]: "limit", C1[:2]: "user", C2[:2]: "user"}


def test_why_a_turn_has_ended_is_not_made_up():
    transcript = told(*said("run", CALLS), START, (kinds.CALLS, "other", [["c9", "a"]]))
    assert {found.cause for found in transcript.call_evidence({}).values()} == {None}
    assert transcript.call_evidence({1: "user"})["other", "c9"].cause is None


def test_a_message_is_touched_once_any_of_its_calls_started():
    assert not told(MODEL, REPLY).was_touched(CALLS)
    assert told(MODEL, REPLY, (kinds.START, *C2)).was_touched(CALLS)
    assert told(MODEL, REPLY, (kinds.RESULT, *C2, answer("c2"))).was_touched(CALLS)
    other = CALLS.model_copy(update={"id": "other"})
    records = [*said("run", CALLS), *said("next", other), (kinds.START, *C2._replace(ai_id="other"))]
    assert not told(*records).was_touched(CALLS)
    assert told(*records).was_touched(other)


def test_a_call_in_a_message_that_no_model_gave_is_that_of_the_last_reply_with_its_id():
    """A node may have given the reply another id."""
    transcript = told(MODEL, REPLY, (kinds.START, *C2._replace(ai_id="renamed")))
    assert transcript.was_touched(CALLS)
    assert transcript.call_evidence({})[C2[:2]].facts == Facts(started=True, known=True)
    assert not transcript.facts(C1).started


def test_calls_of_a_message_are_those_with_an_id_also_if_they_cannot_be_parsed():
    message = CALLS.model_copy(
        update={
            "tool_calls": [*CALLS.tool_calls, {"name": "d", "args": {}, "id": None}],
            "invalid_tool_calls": [{"name": "e", "args": "{", "id": "c9", "error": "cut off"}],
        }
    )
    assert keys_of(message) == [C0, C1, C2, CallKey("ai", "c9", "e")]


# --- replies and prompts ---


def test_text_and_reasoning_belong_to_their_model_call():
    transcript = told(
        (kinds.MODEL, "one", "h", "model", "model:1"),
        (kinds.MODEL, "two", "h", "other", "sub:1|other:2"),
        (kinds.TEXT, "one", "Ha"),
        (kinds.TEXT, "two", "Ot"),
        (kinds.REASONING, "one", "hm"),
        (kinds.TEXT, "one", "lf"),
        (kinds.TEXT, "never started", "lost"),
        (kinds.REPLY, "never started", CALLS, ["c0"]),
        (kinds.REASONING, "never started", "lost"),
        token=7,
    )
    one, two = transcript.replies
    assert (one.run, one.anchor, one.node, one.task, one.checkpoint_ns) == ("7-one", "h", "model", "model:1", "")
    assert (one.text, one.reasoning, one.message, one.is_internal) == ("Half", "hm", None, False)
    assert (two.text, two.task, two.checkpoint_ns) == ("Ot", "sub:1|other:2", "sub:1")
    assert transcript.covered == set()


def test_the_same_model_run_in_two_turns_is_two_replies():
    transcript = told(MODEL, (kinds.TEXT, "run", "a"), token=1)
    transcript.add(2, [Record(MODEL[0], list(MODEL[1:])), Record(kinds.TEXT, ["run", "b"])])
    assert [(reply.run, reply.text) for reply in transcript.replies] == [("1-run", "a"), ("2-run", "b")]


def test_the_timeline_has_prompts_and_replies_in_order():
    messages: list[BaseMessage] = [HumanMessage("hi", id="h")]
    transcript = told((kinds.PROMPT, None, messages), MODEL)
    assert transcript.timeline[0] == Prompt(None, messages)
    assert transcript.timeline[1:] == transcript.replies
    assert transcript.replies[0].anchor == "h"


def test_messages_that_a_checkpoint_had_or_that_were_taken_out_are_remembered():
    transcript = told(MODEL, REPLY, START, (kinds.STORED, ["h", "ai"]), (kinds.STORED, ["i"]), (kinds.REMOVED, ["h"]))
    assert transcript.stored == {"h", "ai", "i"}
    assert transcript.removed == {"h"}
    assert transcript.facts(C0).started  # the call did start, whatever became of its message
    assert [reply.message for reply in transcript.replies] == [CALLS]


# --- what nodes gave ---


def given(*messages: tuple[str | None, list[str]], task: str = "model:1") -> tuple[Any, ...]:
    """A node has ended, and gave these messages."""
    return (kinds.RETURNED, task, [list(message) for message in messages])


ALL = ["c0", "c1", "c2"]


def kept(transcript: Transcript) -> list[tuple[str | None, bool]]:
    """The id of each reply, and whether its node has kept it to itself."""
    return [(reply.message.id, reply.is_internal) for reply in transcript.replies if reply.message is not None]


def test_a_reply_that_its_node_gave_as_it_was_is_no_secret():
    transcript = told(MODEL, REPLY, given(("ai", ALL)))
    assert kept(transcript) == [("ai", False)]
    assert transcript.replies[0].message is CALLS


def test_a_reply_that_its_node_did_not_give_is_internal():
    assert kept(told(MODEL, REPLY)) == [("ai", False)]
    assert kept(told(MODEL, REPLY, given())) == [("ai", True)]
    assert kept(told(MODEL, REPLY, given(("other", ["c7"])))) == [("ai", True)]
    assert kept(told(MODEL, REPLY, given(("other", [])))) == [("ai", True)]


def test_a_node_says_nothing_of_replies_in_other_tasks():
    assert kept(told(MODEL, REPLY, given(task="model:2"))) == [("ai", False)]


def test_of_several_replies_in_a_node_those_it_did_not_give_are_internal():
    thought, answered = AIMessage("a thought", id="t"), AIMessage("an answer", id="a")
    records = [*said("1", thought), *said("2", CALLS), *said("3", answered)]
    assert kept(told(*records, given(("ai", ALL), ("a", [])))) == [("t", True), ("ai", False), ("a", False)]
    # Of several without calls, nobody can tell which one became a message with another id.
    assert kept(told(*records, given(("ai", ALL), ("new", [])))) == [("t", True), ("ai", False), ("a", True)]


def test_two_replies_do_not_become_one_message():
    twin = CALLS.model_copy(update={"id": "twin"})
    assert kept(told(*said("1", CALLS), *said("2", twin), given(("new", ALL)))) == [("new", False), ("twin", True)]


def test_a_reply_that_a_node_gives_again_later_is_not_internal():
    assert kept(told(MODEL, REPLY, given(), given(("ai", ALL)))) == [("ai", False)]


def test_a_reply_without_calls_may_be_given_under_another_id():
    transcript = told(*said("1", AIMessage("Hello", id="x")), given(("y", [])))
    assert kept(transcript) == [("y", False)]
    assert transcript.replies[0].message == AIMessage("Hello", id="y")


@pytest.mark.parametrize("new", ["new", None])
def test_calls_of_a_reply_that_was_given_another_id_are_known_by_that(new):
    transcript = told(MODEL, REPLY, START, given((new, ALL)), (kinds.RESULT, new, "c1", "b", answer("c1")))
    renamed, silent = (key._replace(ai_id=new) for key in (C0, C2))
    assert kept(transcript) == [(new, False)]
    assert transcript.facts(renamed) == Facts(started=True, known=True)
    assert transcript.facts(C1._replace(ai_id=new)) == Facts(result=True, known=True)
    assert transcript.facts(silent) == Facts(known=True)
    assert transcript.newest("c2") == silent
    evidence = transcript.call_evidence({})
    assert evidence[new, "c0"].facts.started
    assert evidence[new, "c1"].result is not None


def test_the_message_that_the_model_gave_is_not_changed_in_place():
    told(MODEL, REPLY, given(("new", ALL)))
    assert CALLS.id == "ai"


def test_a_reply_that_was_cut_off_in_a_node_that_has_ended_is_still_told():
    transcript = told(MODEL, (kinds.TEXT, "run", "Half"), given(("new", [])))
    assert [(reply.text, reply.is_internal) for reply in transcript.replies] == [("Half", False)]


# --- whole turns ---


def test_what_a_complete_run_has_recorded_is_left_out():
    transcript = told(START, RESULT, (kinds.ENDED, "completed", None))
    assert transcript.is_empty
    assert transcript.tokens == []
    assert transcript.facts(C0) == Facts()


def test_after_a_complete_run_of_a_turn_only_the_next_one_counts():
    transcript = told(START, (kinds.ENDED, "completed", None), (kinds.START, *C1))
    assert not transcript.facts(C0).started
    assert transcript.facts(C1).started
    assert transcript.tokens == [1]
    assert transcript.last_end is None


@pytest.mark.parametrize(
    "end", [("failed", "limit"), ("paused", None), ("cancelled", "user"), ("superseded", "superseded")]
)
def test_a_run_that_did_not_complete_counts_and_says_how_it_ended(end):
    transcript = told(START, (kinds.ENDED, *end))
    assert transcript.last_end == end
    assert transcript.facts(C0).started
    assert transcript.tokens == [1]


def test_a_turn_that_went_on_after_an_end_has_no_known_end():
    transcript = told(START, (kinds.ENDED, "failed", "error"))
    transcript.add(2, [Record(kinds.START, list(C1))])
    assert transcript.last_end is None
    assert transcript.tokens == [1, 2]


def test_a_journal_without_events_counts_for_nothing():
    transcript = Transcript()
    transcript.add(1, [])
    assert transcript.is_empty
    assert transcript.timeline == []
    assert transcript.call_evidence({}) == {}


def test_records_of_a_kind_that_a_later_version_added_are_passed_over():
    transcript = told(("weather", "sunny"), START)
    assert transcript.facts(C0).started
    assert not transcript.has_gap


def test_messages_of_a_complete_run_are_not_remembered_as_stored_or_removed():
    transcript = told((kinds.STORED, ["a"]), (kinds.REMOVED, ["b"]), (kinds.ENDED, "completed", None), START)
    assert (transcript.stored, transcript.removed) == (set(), set())


def test_where_each_turn_started_from_is_what_its_first_run_says():
    transcript = told((kinds.FROM, "one"), START, (kinds.FROM, "two"), token=3)
    transcript.add(5, [Record(kinds.FROM, [""])])
    assert transcript.started_from == {3: "one", 5: ""}


@pytest.mark.parametrize(
    "record",
    [(kinds.DELIVERED, ["a"]), (kinds.STORED, ["a"]), (kinds.REMOVED, ["a"]), (kinds.FROM, "x"), (kinds.RESTED, "t")],
    ids=lambda record: record[0],
)
def test_a_turn_of_which_only_such_records_are_left_has_left_nothing_to_bring_back(record):
    transcript = told(record)
    assert transcript.is_empty
    assert transcript.timeline == []
    assert transcript.call_evidence({}) == {}


# --- messages in what a tool gave ---

DONE = answer("c0")


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (DONE, 1),
        ([DONE, answer("c1")], 2),
        ((DONE,), 1),
        ({"messages": [DONE], "other": 3}, 1),
        (Command(update={"messages": [DONE]}), 1),
        (Command(update=[("messages", [DONE])]), 1),
        ([Command(update={"messages": DONE}), "text"], 1),
        (Command(goto="x"), 0),
        ("text", 0),
        (None, 0),
        ({"deep": {"er": [DONE]}}, 1),
    ],
)
def test_messages_are_found_in_whatever_a_tool_gives(output, count):
    assert len(messages_in(output)) == count
    assert (tool_message(output, "c0") is DONE) == (count > 0)
    assert tool_message(output, "zz") is None
