"""Histories that a provider accepts: each tool call of a list of messages answered exactly once, right behind
its message. Only lists of LangChain messages go in and out; where they are stored is known elsewhere.

`finalize_history` repairs, `is_healthy` says quickly that there is nothing to repair.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4, uuid5

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ._finalize import Facts, Outcome, Reason, cause_in, decide, marker_text, passed_over_by, wording
from ._pairing import Slot, Survey, is_surely_paired
from ._tool_calls import Call
from ._turn import Cause
from .errors import PolicyWarning

#: Key in `response_metadata` by which everything that this package makes can be told from what others said.
METADATA_KEY: Final = "turncheckpoint"

#: Names the ids of answers that are made.
_ANSWERS: Final = UUID("b7d0a1f4-2c55-4f0d-9d41-0a3b6e8c7f12")

#: Text instead of `wording`: fixed, or made from outcome, cause and tool call.
Text = str | Callable[[Outcome, Cause, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class CallEvidence:
    """What is known of one tool call.

    Attributes:
        facts: As a journal or pending writes tell them.
        result: The recorded result, if `facts.result`.
        cause: Why the turn ended in which it was last heard of; that of the evidence if `None`.
    """

    facts: Facts
    result: ToolMessage | None = None
    cause: Reason | None = None


class Addition(NamedTuple):
    """A message that belongs into the history but may not have reached it.

    Attributes:
        after: Id of the message it goes behind (and behind that message's answers); `None` for the very start.
            If there is no such message, the history is of another lineage and the addition is left out.
        message: The message; left out if the history has one with its id. Give it an id, or it is added each time.
            A ToolMessage is left out: what is known of results belongs into `Evidence.calls`.
        required_follower: Leave it out if nothing follows the place, neither a message of the history nor a later
            addition, so that the text of a reply is not put behind a prompt that is about to be answered anyway.
    """

    after: str | None
    message: BaseMessage
    required_follower: bool = False


class ReviewedCall(NamedTuple):
    """A call that a person was asked about: its tool and arguments."""

    tool: Any
    args: Any


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the turn that left a history unfinished.

    Attributes:
        calls: By id of the AIMessage and of the tool call. An entry under `(None, call id)` counts for the last
            AIMessage that has this call.
        cause: Why the turn ended.
        turn_token: The turn's token, for the metadata of what is made.
        additions: Messages that may be missing from the history.
        paused: An interrupt of the thread is passed over: calls of the last AIMessage that did not start
            waited for a person.
        reviewed: Where it asked about some of them alone, before any of them was to run, these. `None` otherwise.
        is_overtaken: Something newer comes, a message as a rule, and passes over what waited for a person. Not where
            a thread is put in order by hand.
    """

    calls: Mapping[tuple[str | None, str], CallEvidence] = field(default_factory=dict)
    cause: Reason = "unknown"
    turn_token: int = 0
    additions: Sequence[Addition] = ()
    paused: bool = False
    reviewed: Sequence[ReviewedCall] | None = None
    is_overtaken: bool = True


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
    cause: Reason = "unknown",
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
        survey = None if is_surely_paired(messages) else Survey(messages, frozenset(unanswered), until)
        groups = _by_block(evidence.additions, _blocks(messages, survey))
        items, added, until = _insert(messages, groups, until, follower_comes=follower_comes)
    survey = None if is_surely_paired(items) else Survey(items, frozenset(unanswered), until)
    if survey is None or not survey.is_damaged:
        same = items if isinstance(items, list) else list(items)
        return FinalizedHistory(same, [], [], [], added, changed=bool(added))
    missing = list(survey.missing())
    last_ai = _last_ai(survey) if missing and evidence is not None else -1
    known = {} if evidence is None else dict(evidence.calls)
    answers = {
        id(slot): _answer(
            slot.call,
            _take(known, survey, slot),
            evidence,
            message_id=items[slot.ai].id,
            cause=cause,
            texts=texts or {},
            is_of_last=slot.ai == last_ai,
        )
        for slot in missing
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


def marked_partial(text: str, *, cause: Reason, token: int, id: str) -> AIMessage:  # noqa: A002 - LangChain's name
    """The text of a reply that was cut off, as a message marked as interrupted."""
    note = {"outcome": "interrupted", "cause": cause_in(cause), "turn_token": token}
    return AIMessage(content=text, id=id, response_metadata={METADATA_KEY: note})


def marker(cause: Reason, token: int, *, id: str) -> HumanMessage:  # noqa: A002 - LangChain's name
    """The note behind a reply that was cut off."""
    note = {"marker": True, "cause": cause_in(cause), "turn_token": token}
    return HumanMessage(content=marker_text(cause), id=id, response_metadata={METADATA_KEY: note})


def made_answer(
    call: Call,
    outcome: Outcome,
    cause: Reason,
    *,
    texts: Mapping[str, Text],
    turn_token: int,
    id: str,  # noqa: A002 - LangChain's name
    error: str = "",
) -> ToolMessage:
    """An answer that says what is known of a call, marked as such."""
    text = texts.get(call.name, texts.get("*"))
    if text is None:
        text = wording(outcome, cause, call.name, error=error)
    elif not isinstance(text, str):
        text = _made_text(text, outcome, cause_in(cause), call) or wording(outcome, cause, call.name, error=error)
    return ToolMessage(
        content=text,
        name=call.name,
        tool_call_id=call.id,
        id=id,
        status="error",
        response_metadata={METADATA_KEY: {"outcome": outcome, "cause": cause_in(cause), "turn_token": turn_token}},
    )


def _made_text(make: Callable[..., Any], outcome: Outcome, cause: Cause, call: Call) -> str:
    """What the user's function gives; empty if it fails, since a thread shall not be stuck for a text."""
    try:
        made = make(outcome, cause, call.stated)
    except Exception as error:  # noqa: BLE001 - it is somebody else's function
        reason = f"{type(error).__name__}: {error}"
    else:
        if isinstance(made, str):
            return made
        reason = f"it gave {type(made).__name__}, not a string"
    text = f"texts: the function for {call.name!r} failed ({reason}); the usual text is used"
    warnings.warn(text, PolicyWarning, stacklevel=2)
    return ""


def _answer(
    call: Call,
    entry: CallEvidence | None,
    evidence: Evidence | None,
    *,
    message_id: str | None,
    cause: Reason,
    texts: Mapping[str, Text],
    is_of_last: bool,
) -> GivenAnswer:
    """What is true of a call without an answer, as an answer. `is_of_last`: its message is the last AIMessage."""
    if evidence is not None and (entry is not None or is_of_last):
        cause = evidence.cause
    if entry is not None and entry.cause is not None:
        cause = entry.cause
    if entry is not None and entry.result is not None:
        result = entry.result
        if result.tool_call_id != call.id:
            result = result.model_copy(update={"tool_call_id": call.id})
        return GivenAnswer(call.id, call.name, "recorded", cause_in(cause), result)
    facts = Facts() if entry is None else entry.facts
    is_overtaken = evidence is None or evidence.is_overtaken
    outcome, named = decide(facts, cause=cause, invalid=call.invalid, is_overtaken=is_overtaken)
    waited = evidence is not None and evidence.paused and is_of_last and not facts.started
    if waited and outcome in {"unknown", "not_run"}:
        outcome = "superseded" if _is_reviewed(call, evidence) else "not_run"
        named = passed_over_by(cause, is_overtaken=is_overtaken)
    token = 0 if evidence is None else evidence.turn_token
    made_id, error = _answer_id(message_id, call.id, token), facts.error or ""
    message = made_answer(call, outcome, named, texts=texts, turn_token=token, id=made_id, error=error)
    return GivenAnswer(call.id, call.name, outcome, cause_in(named), message)


def _is_reviewed(call: Call, evidence: Evidence | None) -> bool:
    """Whether a person may have been asked about a call."""
    if evidence is None or evidence.reviewed is None:
        return True
    return ReviewedCall(call.name, call.stated.get("args")) in evidence.reviewed


def _answer_id(ai_id: str | None, call_id: str, token: int) -> str:
    """The same id each time, where the message with the call has one: two nodes may repair one history at once."""
    return str(uuid4() if ai_id is None else uuid5(_ANSWERS, f"{ai_id!a} {call_id!a} {token}"))


def _last_ai(survey: Survey) -> int:
    """The place of the last AIMessage, other than a text that we marked as cut off."""
    for place in range(len(survey.items) - 1, -1, -1):
        item = survey.items[place]
        if isinstance(item, AIMessage) and (place in survey.slots_of or METADATA_KEY not in item.response_metadata):
            return place
    return -1


def _take(known: dict[tuple[str | None, str], CallEvidence], survey: Survey, slot: Slot) -> CallEvidence | None:
    """What is known of a call. It is taken out, so that no result is given twice where ids of messages repeat.

    Of two calls with one id it is known of the first; the second has another id by now.
    """
    message_id, call_id = survey.items[slot.ai].id, slot.call.id
    entry = None if message_id is None else known.pop((message_id, call_id), None)
    if entry is None and survey.newest_with[slot.call.stated_id] == slot.ai:
        entry = known.pop((None, call_id), None)
    return entry


def _insert(
    messages: Sequence[Any], groups: dict[int, list[Addition]], until: int | None, *, follower_comes: bool
) -> tuple[Sequence[Any], list[BaseMessage], int | None]:
    """The history with additions behind its blocks, which of them were made, and where `until` is now."""
    if not groups:
        return messages, [], until
    out: list[Any] = []
    added: list[BaseMessage] = []
    until_now: int | None = None
    block = -1
    choice = _Choice()
    for place, item in enumerate(messages):
        if not isinstance(item, ToolMessage):
            new = choice.of(groups.pop(block, []), followed=True)
            out += new
            added += new
            block = place
        if place == until:
            until_now = len(out)
        out.append(item)
    new = choice.of(groups.pop(block, []), followed=follower_comes)
    out += new
    added += new
    return (out, added, until_now) if added else (messages, [], until)


def _blocks(messages: Sequence[Any], survey: Survey | None) -> dict[str | None, int]:
    """The place of the block that each message is in, by its id: an item with the answers behind it.

    An answer that stands elsewhere belongs to the block that it is to be moved to.
    """
    moved = {} if survey is None else {slot.place: slot.ai for slot in survey.slots() if slot.is_astray}
    block_of: dict[str | None, int] = {None: -1}
    block = -1
    for place, item in enumerate(messages):
        if not isinstance(item, ToolMessage):
            block = place
        if isinstance(item, BaseMessage) and item.id is not None:
            block_of[item.id] = moved.get(place, block)
    return block_of


def _by_block(additions: Sequence[Addition], block_of: Mapping[str | None, int]) -> dict[int, list[Addition]]:
    """What the history lacks, by the block it goes behind.

    Additions form trees, each behind its anchor. One goes behind the last of those before it in its tree that is
    in the history, so that a second pass finds the same places.
    """
    known: set[str] = set()
    nodes: list[Addition] = []
    for addition in additions:
        if not isinstance(addition.message, ToolMessage) and addition.message.id not in known:
            nodes.append(addition)
            known.update(filter(None, [addition.message.id]))
    behind: dict[str | int, list[Addition]] = {}
    for node in nodes:
        if node.after in known:
            behind.setdefault(node.after, []).append(node)
        elif node.after in block_of:
            behind.setdefault(block_of[node.after], []).append(node)
    groups: dict[int, list[Addition]] = {}
    for block in sorted(key for key in behind if isinstance(key, int)):
        _walk(behind.pop(block), block, behind, block_of, groups)
    for node in nodes:  # what stands in the history is an anchor even if its own is gone
        if node.message.id in behind and node.message.id in block_of:
            _walk([node], -1, behind, block_of, groups)
    return groups


def _walk(
    siblings: list[Addition],
    block: int,
    behind: dict[str | int, list[Addition]],
    block_of: Mapping[str | None, int],
    groups: dict[int, list[Addition]],
) -> None:
    """Sort additions, and all behind them, into groups. What is done is taken out of `behind`."""
    stack = siblings[::-1]
    while stack:
        node = stack.pop()
        if node.message.id is not None and node.message.id in block_of:
            block = max(block, block_of[node.message.id])
        else:
            groups.setdefault(block, []).append(node)
        if node.message.id is not None:
            stack += reversed(behind.pop(node.message.id, []))


class _Choice:
    """Which additions are made, asked for one block after the other."""

    def __init__(self) -> None:
        self._conditional: set[str] = set()  # needs a follower, or stands behind one that does
        self._left_out: set[str] = set()

    def of(self, group: list[Addition], *, followed: bool) -> list[BaseMessage]:
        """Those of one block. Any that is sure to be made is a follower of those before it."""
        last_sure = -1
        for n, (after, message, required) in enumerate(group):
            if not required and after not in self._conditional:
                last_sure = n
            elif message.id is not None:
                self._conditional.add(message.id)
        chosen: list[BaseMessage] = []
        for n, (after, message, required) in enumerate(group):
            if after not in self._left_out and not (required and not followed and n > last_sure):
                chosen.append(message)
            elif message.id is not None:
                self._left_out.add(message.id)
        return chosen
