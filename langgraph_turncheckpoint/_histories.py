"""Histories that a provider accepts: each tool call of a list of messages answered exactly once, right behind
its message. Only lists of LangChain messages go in and out; where they are stored is known elsewhere.

`finalize_history` repairs, `is_healthy` says quickly that there is nothing to repair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ._finalize import Facts, Outcome, decide, marker_text, wording
from ._pairing import Slot, Survey, is_surely_paired
from ._turn import Cause

#: Key in `response_metadata` by which everything that this package makes can be told from what others said.
METADATA_KEY: Final = "turncheckpoint"

#: Text instead of `wording`: fixed, or made from outcome, cause and tool call.
Text = str | Callable[[Outcome, Cause, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class CallEvidence:
    """What is known of one tool call.

    Attributes:
        facts: As a journal or pending writes tell them.
        result: The recorded result, if `facts.result`.
    """

    facts: Facts
    result: ToolMessage | None = None


class Addition(NamedTuple):
    """A message that belongs into the history but may not have reached it.

    Attributes:
        after: Id of the message it goes behind (and behind that message's answers); `None` for the very start.
            If there is no such message, the history is of another lineage and the addition is left out.
        message: The message; left out if the history has one with its id. Give it an id, or it is added each time.
            A ToolMessage is left out: what is known of results belongs into `Evidence.calls`.
        required_follower: Leave it out if no message follows the place, so that the text of a reply is not put
            behind a prompt that is about to be answered anyway.
    """

    after: str | None
    message: BaseMessage
    required_follower: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the turn that left a history unfinished.

    Attributes:
        calls: By id of the AIMessage and of the tool call. An entry under `(None, call id)` counts for the last
            AIMessage that has this call.
        cause: Why the turn ended.
        turn_token: The turn's token, for the metadata of what is made.
        additions: Messages that may be missing from the history.
        paused: An interrupt of the thread was passed over: calls of the last AIMessage that did not start
            waited for a person.
    """

    calls: Mapping[tuple[str | None, str], CallEvidence] = field(default_factory=dict)
    cause: Cause = "unknown"
    turn_token: int = 0
    additions: Sequence[Addition] = ()
    paused: bool = False


class GivenAnswer(NamedTuple):
    """One answer that a history lacked."""

    call_id: str
    tool_name: str
    outcome: Outcome
    cause: Cause
    message: ToolMessage


class FinalizedHistory(NamedTuple):
    """A history, and what was done to it.

    Attributes:
        messages: The whole history; the very list that was passed in, if nothing changed.
        answers: What was given to calls without an answer.
        moved: Answers that stood too far down.
        set_aside: What was left out: answers to no call, and second answers.
        added: The additions that were made.
        changed: Whether `messages` differs from what was passed in.
    """

    messages: list[Any]
    answers: list[GivenAnswer]
    moved: list[ToolMessage]
    set_aside: list[BaseMessage]
    added: list[BaseMessage]
    changed: bool


def finalize_history(
    messages: Sequence[Any],
    evidence: Evidence | None = None,
    *,
    cause: Cause = "unknown",
    unanswered: Collection[str] = (),
    texts: Mapping[str, Text] | None = None,
    follower_comes: bool = False,
    until: int | None = None,
) -> FinalizedHistory:
    """Answer every tool call once, right behind its message, with what is true of it.

    Takes linear time, changes no message in place and keeps those it need not change. A second pass changes
    nothing. Items that are no messages stay where they are.

    Args:
        messages: The history.
        evidence: What is known of the turn that left it unfinished. Its cause is named for calls it knows and
            for those of the last AIMessage.
        cause: The cause named for all other calls.
        unanswered: Names of tools whose calls may stay open, because their answers come later.
        texts: By tool name, or "*" for all others, the text of an answer that is made.
        follower_comes: Whether a message is about to be appended.
        until: Calls of AIMessages from this index on may stay open.
    """
    items: Sequence[Any] = messages
    added: list[BaseMessage] = []
    if evidence is not None and evidence.additions:
        items, added, until = _insert(messages, evidence.additions, until, follower_comes=follower_comes)
    survey = None if is_surely_paired(items) else Survey(items, frozenset(unanswered), until)
    if survey is None or not survey.is_damaged:
        same = items if isinstance(items, list) else list(items)
        return FinalizedHistory(same, [], [], [], added, changed=bool(added))
    missing = list(survey.missing())
    last_ai = _last_ai(survey) if missing and evidence is not None else -1
    answers = {
        id(slot): _answer(slot, survey, evidence, cause, texts or {}, in_last=slot.ai == last_ai) for slot in missing
    }
    return FinalizedHistory(
        survey.rebuild({key: answer.message for key, answer in answers.items()}),
        list(answers.values()),
        [slot.answer for slot in survey.slots() if slot.answer is not None and slot.is_astray],
        [items[place] for place in survey.surplus],
        added,
        changed=True,
    )


def is_healthy(messages: Sequence[Any], *, unanswered: Collection[str] = ()) -> bool:
    """Whether `finalize_history` without evidence would change nothing.

    Takes a fraction of its time for a history in which every call is answered right behind its message.
    """
    return is_surely_paired(messages) or not Survey(messages, frozenset(unanswered), None).is_damaged


def marked_partial(text: str, *, cause: Cause, token: int, id: str) -> AIMessage:  # noqa: A002 - LangChain's name
    """The text of a reply that was cut off, as a message marked as interrupted."""
    note = {"outcome": "interrupted", "cause": cause, "turn_token": token}
    return AIMessage(content=text, id=id, response_metadata={METADATA_KEY: note})


def marker(cause: Cause, token: int, *, id: str) -> HumanMessage:  # noqa: A002 - LangChain's name
    """The note behind a reply that was cut off."""
    note = {"marker": True, "cause": cause, "turn_token": token}
    return HumanMessage(content=marker_text(cause), id=id, response_metadata={METADATA_KEY: note})


def _answer(
    slot: Slot, survey: Survey, evidence: Evidence | None, cause: Cause, texts: Mapping[str, Text], *, in_last: bool
) -> GivenAnswer:
    """What is true of a call without an answer, as an answer."""
    call = slot.call
    entry = None if evidence is None else _entry(slot, survey, evidence)
    if evidence is not None and (entry is not None or in_last):
        cause = evidence.cause
    if entry is not None and entry.result is not None:
        result = entry.result
        if result.tool_call_id != call.id:
            result = result.model_copy(update={"tool_call_id": call.id})
        return GivenAnswer(call.id, call.name, "recorded", cause, result)
    facts = Facts() if entry is None else entry.facts
    outcome, named = decide(facts, cause=cause, invalid=call.invalid)
    waited = evidence is not None and evidence.paused and in_last and not facts.started
    if waited and outcome in {"unknown", "not_run"}:
        outcome, named = "superseded", "superseded"
    text = texts.get(call.name, texts.get("*"))
    if text is None:
        text = wording(outcome, named, call.name, error=facts.error or "")
    elif not isinstance(text, str):
        text = text(outcome, named, call.stated)
    note = {"outcome": outcome, "cause": named, "turn_token": 0 if evidence is None else evidence.turn_token}
    message = ToolMessage(
        content=text,
        name=call.name,
        tool_call_id=call.id,
        id=str(uuid4()),
        status="error",
        response_metadata={METADATA_KEY: note},
    )
    return GivenAnswer(call.id, call.name, outcome, named, message)


def _last_ai(survey: Survey) -> int:
    """The place of the last AIMessage, other than a text that we marked as cut off."""
    for place in range(len(survey.items) - 1, -1, -1):
        item = survey.items[place]
        if isinstance(item, AIMessage) and (place in survey.slots_of or METADATA_KEY not in item.response_metadata):
            return place
    return -1


def _entry(slot: Slot, survey: Survey, evidence: Evidence) -> CallEvidence | None:
    stated_id = slot.call.stated_id
    if stated_id and stated_id != slot.call.id:
        return None  # the second of two calls with one id: what is known is known of the first
    call_id = slot.call.id
    entry = evidence.calls.get((survey.items[slot.ai].id, call_id))
    if entry is None and survey.newest_with[stated_id] == slot.ai:
        entry = evidence.calls.get((None, call_id))
    return entry


def _insert(
    messages: Sequence[Any], additions: Sequence[Addition], until: int | None, *, follower_comes: bool
) -> tuple[Sequence[Any], list[BaseMessage], int | None]:
    """The history with the additions at their places, which of them were made, and where `until` is now."""
    behind = _by_anchor(messages, additions)
    if not behind:
        return messages, [], until
    last = max((place for place, item in enumerate(messages) if not isinstance(item, ToolMessage)), default=-1)
    out: list[Any] = []
    added: list[BaseMessage] = []
    until_now: int | None = None
    anchors: list[str | None] = [None]
    for place, item in enumerate(messages):
        if anchors and not isinstance(item, ToolMessage):
            followed = follower_comes or place <= last
            new = [message for anchor in anchors for message in _behind(anchor, behind, followed=followed)]
            out += new
            added += new
            anchors.clear()
        if place == until:
            until_now = len(out)
        out.append(item)
        if isinstance(item, BaseMessage) and item.id is not None and item.id in behind:
            anchors.append(item.id)
    new = [message for anchor in anchors for message in _behind(anchor, behind, followed=follower_comes)]
    out += new
    added += new
    return (out, added, until_now) if added else (messages, [], until)


def _by_anchor(messages: Sequence[Any], additions: Sequence[Addition]) -> dict[str | None, list[Addition]]:
    """The additions that the history lacks, in order, by the id of the message they go behind."""
    ids = {item.id for item in messages if isinstance(item, BaseMessage) and item.id is not None}
    behind: dict[str | None, list[Addition]] = {}
    for addition in additions:
        message = addition.message
        if message.id not in ids and not isinstance(message, ToolMessage):
            behind.setdefault(addition.after, []).append(addition)
            if message.id is not None:
                ids.add(message.id)
    return behind


def _behind(anchor: str | None, behind: dict[str | None, list[Addition]], *, followed: bool) -> Iterator[BaseMessage]:
    """What goes behind a message, and behind that in turn. Each addition is taken out of `behind`."""
    stack = behind.pop(anchor, [])[::-1]
    while stack:
        addition = stack.pop()
        if addition.required_follower and not followed:
            continue
        yield addition.message
        if addition.message.id is not None:
            stack += reversed(behind.pop(addition.message.id, []))
