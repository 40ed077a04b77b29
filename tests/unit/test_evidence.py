"""From journals to what a history lacks: prompts and replies, each behind the message it belongs to."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_turncheckpoint import _transcript as kinds
from langgraph_turncheckpoint._evidence import Wishes, anchor_of, evidence_of, recorded_reply
from langgraph_turncheckpoint._histories import METADATA_KEY, finalize_history
from langgraph_turncheckpoint._transcript import Record, Transcript

ALL = Wishes()
ASK = HumanMessage("ask", id="h1")
CALL: Any = {"name": "a", "args": {}, "id": "c0"}
CALLS = AIMessage("", id="ai", tool_calls=[CALL])
SAID = AIMessage("said", id="said")
MODEL = (kinds.MODEL, "run", "h1", "model", "")
REPLY = (kinds.REPLY, "run", CALLS)
START = (kinds.START, "ai", "c0", "a")


def told(*records: tuple[Any, ...], token: int = 4) -> Transcript:
    transcript = Transcript()
    transcript.add(token, [Record(kind, list(fields)) for kind, *fields in records])
    return transcript


def added(
    transcript: Transcript, history: list[BaseMessage], *, wishes: Wishes = ALL, **kwargs: Any
) -> list[tuple[str | None, str, bool]]:
    """What is to be added: behind which message, the text, and whether only if a message follows."""
    found = evidence_of(transcript, history, cause="restart", turn_token=9, wishes=wishes, **kwargs)
    return [(a.after, a.message.text, a.required_follower) for a in found.additions]


def test_nothing_recorded_is_nothing_to_add():
    found = evidence_of(Transcript(), [ASK], cause="user", turn_token=9, wishes=Wishes())
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
    found = evidence_of(transcript, [ASK], cause="restart", turn_token=9, wishes=Wishes())
    partial, note = found.additions
    assert (partial.after, partial.message.text, partial.required_follower) == ("h1", "Half", True)
    assert (note.after, note.message.type, note.required_follower) == (partial.message.id, "human", True)
    said = partial.message.response_metadata[METADATA_KEY]
    assert said == {"outcome": "interrupted", "cause": "restart", "turn_token": 9}
    assert note.message.response_metadata[METADATA_KEY]["marker"] is True


def test_its_ids_are_the_same_each_time():
    one, two = (
        evidence_of(told(MODEL, (kinds.TEXT, "run", "Half")), [ASK], cause="user", turn_token=t, wishes=Wishes())
        for t in (5, 6)
    )
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
        records.append((kinds.MODEL, run, "h1", "model", ""))
        records += [(kinds.TEXT, run, text)] if text else []
        records += [(kinds.REPLY, run, message)] if message else []
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


def test_replies_in_other_namespaces_are_no_part_of_this_history():
    transcript = told(
        (kinds.MODEL, "inner", "h1", "model", "sub:1"),
        (kinds.TEXT, "inner", "inside"),
        (kinds.MODEL, "outer", "h1", "model", ""),
        (kinds.TEXT, "outer", "outside"),
    )
    wishes = Wishes(mark=False)
    assert added(transcript, [ASK], wishes=wishes, namespaces={""}) == [("h1", "outside", True)]
    assert added(transcript, [ASK], wishes=wishes, namespaces={"sub:1"}) == [("h1", "inside", True)]
    assert added(transcript, [ASK], wishes=wishes, namespaces=set()) == []
    assert added(transcript, [ASK], wishes=wishes) == [("h1", "outside", True)]


def test_a_reply_to_a_prompt_without_an_id_has_no_place():
    assert added(told((kinds.MODEL, "run", None, "model", ""), (kinds.TEXT, "run", "Half")), [ASK]) == []


def test_finalizing_with_the_evidence_is_idempotent_and_keeps_the_order():
    transcript = told(
        (kinds.PROMPT, None, [ASK]),
        MODEL,
        (kinds.TEXT, "run", "Half"),
        (kinds.PROMPT, "h1", [HumanMessage("more", id="h2")]),
        (kinds.MODEL, "next", "h2", "model", ""),
        (kinds.TEXT, "next", "Other half"),
    )

    def finalized(history: list[BaseMessage]) -> Any:
        evidence = evidence_of(transcript, history, cause="user", turn_token=9, wishes=Wishes(mark=False))
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


# --- a reply that must not be asked for again ---


def test_a_reply_whose_calls_have_started_is_given_again():
    assert recorded_reply(told(MODEL, REPLY, START), [ASK], checkpoint_ns="") is CALLS


@pytest.mark.parametrize(
    ("records", "history", "namespace"),
    [
        ([MODEL, REPLY], [ASK], ""),
        ([MODEL, REPLY, START], [], ""),
        ([MODEL, REPLY, START], [ASK], "sub:1"),
        ([MODEL, REPLY, START], [ASK, HumanMessage("more", id="h2")], ""),
        ([MODEL, REPLY, START], [ASK, CALLS, ToolMessage("x", tool_call_id="c0")], ""),
        ([MODEL, (kinds.TEXT, "run", "Half"), START], [ASK], ""),
        ([], [ASK], ""),
    ],
    ids=["not started", "no history", "namespace", "new message", "already there", "cut off", "nothing"],
)
def test_any_other_model_call_is_made(records, history, namespace):
    assert recorded_reply(told(*records), history, checkpoint_ns=namespace) is None


def test_the_newest_whole_reply_to_the_prompt_decides():
    later = CALLS.model_copy(update={"id": "later", "tool_calls": [{**CALL, "id": "c9"}]})
    records = [MODEL, REPLY, START, (kinds.MODEL, "two", "h1", "model", ""), (kinds.REPLY, "two", later)]
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
