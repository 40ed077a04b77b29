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
    Prompt,
    Record,
    Transcript,
    decode_records,
    encode_record,
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


def answer(call_id: str, text: str = "done", **kwargs: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, **kwargs)


def told(*records: tuple[Any, ...], token: int = 1) -> Transcript:
    """What one turn's records add up to."""
    transcript = Transcript()
    transcript.add(token, [Record(kind, list(fields)) for kind, *fields in records])
    return transcript


@pytest.fixture(params=SERDES)
def codec(request, tmp_path):
    return TurnCheckpointSaver(tmp_path / "s", serde=SERDES[request.param]).store.codec


# --- bytes ---

RECORDS = [
    (kinds.PROMPT, [None, [HumanMessage("hi", id="h")]]),
    (kinds.MODEL, ["run", "h", "model", ""]),
    (kinds.TEXT, ["run", "Half \U0001f4a1"]),
    (kinds.REPLY, ["run", CALLS]),
    (kinds.CALLS, ["ai", ["c0", "c1"]]),
    (kinds.START, ["ai", "c0", "a"]),
    (kinds.RESULT, ["ai", "c0", answer("c0", id="t")]),
    (kinds.FAILED, ["ai", "c1", "ValueError: no"]),
    (kinds.PAUSED, [None, "c2"]),
    (kinds.TRIMMED, [3]),
    (kinds.DELIVERED, [["m1", "m2"]]),
    (kinds.ENDED, ["failed", "error"]),
    (kinds.GAP, []),
]


@pytest.mark.parametrize(("kind", "fields"), RECORDS, ids=[kind for kind, _ in RECORDS])
def test_a_record_comes_back_as_it_was(codec, kind, fields):
    assert decode_records(codec, [encode_record(codec, kind, fields)]) == ([Record(kind, fields)], [])


def test_what_a_tool_gave_comes_back_whole(codec):
    output = [Command(update={"messages": [answer("c0")], "files": {"a": 1}}, goto="next"), answer("c1")]
    records, _ = decode_records(codec, [encode_record(codec, kinds.RESULT, ["ai", "c0", output])])
    assert records[0].fields[2] == output


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
        encode_record(codec, kinds.RESULT, ["ai", "c0", {"deep": [lambda: None]}])


# --- calls ---

START, RESULT, FAILED, PAUSED = (
    (kinds.START, "ai", "c0", "a"),
    (kinds.RESULT, "ai", "c0", answer("c0")),
    (kinds.FAILED, "ai", "c0", "E: x"),
    (kinds.PAUSED, "ai", "c0"),
)


@pytest.mark.parametrize(
    ("records", "facts"),
    [
        ([], Facts()),
        ([(kinds.CALLS, "ai", ["c0"])], Facts(known=True)),
        ([START], Facts(started=True, known=True)),
        ([START, RESULT], Facts(started=True, result=True, known=True)),
        ([RESULT], Facts(result=True, known=True)),
        ([START, FAILED], Facts(started=True, error="E: x", known=True)),
        ([START, FAILED, START], Facts(started=True, known=True)),
        ([START, FAILED, START, RESULT], Facts(started=True, result=True, known=True)),
        ([START, PAUSED], Facts(started=True, paused=True, known=True)),
        ([START, PAUSED, START], Facts(started=True, known=True)),
        ([PAUSED], Facts(paused=True, known=True)),
        ([(kinds.CALLS, "ai", ["c0"]), (kinds.GAP,)], Facts()),
        ([START, (kinds.GAP,)], Facts(started=True)),
    ],
    ids=str,
)
def test_later_events_of_a_call_undo_earlier_ones(records, facts):
    assert told(*records).facts("ai", "c0") == facts


def test_a_call_of_a_whole_reply_is_known_to_be_silent():
    transcript = told((kinds.MODEL, "run", "h", "model", ""), (kinds.REPLY, "run", CALLS))
    assert transcript.facts("ai", "c2") == Facts(known=True)
    assert transcript.facts("other", "c2") == Facts()
    assert set(transcript.call_evidence()) == {("ai", "c0"), ("ai", "c1"), ("ai", "c2")}


def test_the_same_id_in_two_messages_is_two_calls():
    transcript = told(
        (kinds.START, "one", "c0", "a"),
        (kinds.RESULT, "one", "c0", answer("c0", "first")),
        (kinds.START, "two", "c0", "a"),
    )
    assert transcript.facts("one", "c0").result
    assert not transcript.facts("two", "c0").result
    assert transcript.output("one", "c0").text == "first"
    assert transcript.output("two", "c0") is None


def test_a_call_whose_message_is_not_known_is_the_last_of_its_id():
    transcript = told((kinds.RESULT, "one", "c0", answer("c0", "first")), (kinds.START, "two", "c0", "a"))
    assert transcript.facts(None, "c0") == Facts(started=True, known=True)
    anonymous = told((kinds.START, None, "c0", "a"))
    assert anonymous.facts("ai", "c0").started
    assert anonymous.facts(None, "c0").started


def test_records_of_several_turns_add_up():
    transcript = told(START, token=3)
    transcript.add(5, [Record(kinds.RESULT, ["ai", "c0", answer("c0")])])
    assert transcript.tokens == [3, 5]
    assert transcript.facts("ai", "c0").result


def test_evidence_has_the_answer_in_what_the_tool_gave():
    command: Command[Any] = Command(update={"messages": [answer("c1", "other"), answer("c0", "mine", id="t")]})
    result = told(START, (kinds.RESULT, "ai", "c0", command)).call_evidence()["ai", "c0"].result
    assert result is not None
    assert (result.text, result.id) == ("mine", "t")


def test_an_answer_without_an_id_gets_the_same_one_each_time():
    def made(ai_id: str) -> str | None:
        result = told((kinds.RESULT, ai_id, "c0", answer("c0"))).call_evidence()[ai_id, "c0"].result
        assert result is not None
        return result.id

    assert made("ai")
    assert made("ai") == made("ai")
    assert made("ai") != made("other")


def test_a_result_without_an_answer_in_it_is_only_a_start():
    """A tool that gave a bare `Command(goto=...)` has run, but there is nothing to answer with."""
    evidence = told((kinds.RESULT, "ai", "c0", Command(goto="next"))).call_evidence()
    assert evidence["ai", "c0"].facts == Facts(started=True, known=True)
    assert evidence["ai", "c0"].result is None


def test_a_message_is_touched_once_any_of_its_calls_started():
    reply = [(kinds.MODEL, "run", "h", "model", ""), (kinds.REPLY, "run", CALLS)]
    assert not told(*reply).was_touched(CALLS)
    assert told(*reply, (kinds.START, "ai", "c2", "c")).was_touched(CALLS)
    assert not told(*reply, (kinds.START, "other", "c2", "c")).was_touched(CALLS)


# --- replies and prompts ---


def test_text_and_reasoning_belong_to_their_model_call():
    transcript = told(
        (kinds.MODEL, "one", "h", "model", ""),
        (kinds.MODEL, "two", "h", "other", "sub:1"),
        (kinds.TEXT, "one", "Ha"),
        (kinds.TEXT, "two", "Ot"),
        (kinds.REASONING, "one", "hm"),
        (kinds.TEXT, "one", "lf"),
        (kinds.TEXT, "never started", "lost"),
        (kinds.REPLY, "never started", CALLS),
        token=7,
    )
    one, two = transcript.replies
    assert (one.run, one.anchor, one.node, one.checkpoint_ns) == ("7-one", "h", "model", "")
    assert (one.text, one.reasoning, one.message) == ("Half", "hm", None)
    assert (two.text, two.checkpoint_ns) == ("Ot", "sub:1")


def test_the_same_model_run_in_two_turns_is_two_replies():
    transcript = told((kinds.MODEL, "run", "h", "model", ""), (kinds.TEXT, "run", "a"), token=1)
    transcript.add(2, [Record(kinds.MODEL, ["run", "h", "model", ""]), Record(kinds.TEXT, ["run", "b"])])
    assert [(reply.run, reply.text) for reply in transcript.replies] == [("1-run", "a"), ("2-run", "b")]


def test_the_timeline_has_prompts_and_replies_in_order():
    messages: list[BaseMessage] = [HumanMessage("hi", id="h")]
    transcript = told((kinds.PROMPT, None, messages), (kinds.MODEL, "run", "h", "model", ""))
    assert transcript.timeline[0] == Prompt(None, messages)
    assert transcript.timeline[1:] == transcript.replies
    assert transcript.replies[0].anchor == "h"


def test_what_was_said_before_messages_were_taken_out_is_not_put_back():
    transcript = told(
        (kinds.PROMPT, None, [HumanMessage("hi", id="h")]),
        (kinds.MODEL, "run", "h", "model", ""),
        (kinds.REPLY, "run", CALLS),
        START,
        (kinds.TRIMMED, 1),
        (kinds.MODEL, "next", "h", "model", ""),
        (kinds.TEXT, "next", "after"),
    )
    assert [reply.text for reply in transcript.replies] == ["after"]
    assert transcript.facts("ai", "c0").started  # but the call did start


# --- whole turns ---


def test_what_a_complete_run_has_recorded_is_left_out():
    transcript = told(START, RESULT, (kinds.ENDED, "completed", None))
    assert transcript.is_empty
    assert transcript.tokens == []
    assert transcript.facts("ai", "c0") == Facts()


def test_after_a_complete_run_of_a_turn_only_the_next_one_counts():
    transcript = told(START, (kinds.ENDED, "completed", None), (kinds.START, "ai", "c1", "b"))
    assert not transcript.facts("ai", "c0").started
    assert transcript.facts("ai", "c1").started
    assert transcript.tokens == [1]
    assert transcript.last_end is None


@pytest.mark.parametrize(
    "end", [("failed", "limit"), ("paused", None), ("cancelled", "user"), ("superseded", "superseded")]
)
def test_a_run_that_did_not_complete_counts_and_says_how_it_ended(end):
    transcript = told(START, (kinds.ENDED, *end))
    assert transcript.last_end == end
    assert transcript.facts("ai", "c0").started
    assert transcript.tokens == [1]


def test_a_turn_that_went_on_after_an_end_has_no_known_end():
    transcript = told(START, (kinds.ENDED, "failed", "error"))
    transcript.add(2, [Record(kinds.START, ["ai", "c1", "b"])])
    assert transcript.last_end is None
    assert transcript.tokens == [1, 2]


def test_a_journal_without_events_counts_for_nothing():
    transcript = Transcript()
    transcript.add(1, [])
    assert transcript.is_empty
    assert transcript.timeline == []
    assert transcript.call_evidence() == {}


def test_records_of_a_kind_that_a_later_version_added_are_passed_over():
    transcript = told(("weather", "sunny"), START)
    assert transcript.facts("ai", "c0").started
    assert not transcript.has_gap


def test_delivered_messages_are_remembered():
    assert told((kinds.DELIVERED, ["a"]), (kinds.DELIVERED, ["b", "a"])).delivered == {"a", "b"}


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
