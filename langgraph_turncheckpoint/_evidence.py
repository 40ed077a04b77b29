"""From what journals tell to what a history lacks: the messages that may not have reached it, and what is known of
its calls. How a history is put in order is `_histories`' business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import Command

from ._finalize import Reason
from ._histories import Addition, Evidence, GivenAnswer, marked_partial, marker
from ._tool_calls import anchor_of, end_of_replies, last_caller
from ._transcript import CallKey, Prompt, Reply, Transcript

#: The anchor of a reply that belongs to the very start.
AT_START: Final = ""


class Wishes(NamedTuple):
    """What a user wants to see of a reply that was cut off.

    Attributes:
        keep_text: Whether its text becomes a message.
        mark: Whether a short note follows it.
    """

    keep_text: bool = True
    mark: bool = True


def evidence_of(
    transcript: Transcript,
    history: Sequence[Any],
    *,
    cause: Reason,
    causes: Mapping[int, Reason],
    turn_token: int,
    wishes: Wishes,
    namespaces: Collection[str] | None = None,
    paused: bool = False,
    stored: Collection[str] = (),
) -> Evidence:
    """What earlier turns left behind, for a history that goes on with a new message.

    Args:
        transcript: What their journals tell.
        history: The messages as they are stored.
        cause: Why the last of them ended.
        causes: Why each of them ended, by token.
        turn_token: The turn the answers are given in.
        wishes: What to keep of a reply that was cut off.
        namespaces: The checkpoint namespaces whose models speak in this history; all if `None`.
        paused: Whether the thread waited for a person.
        stored: Ids of messages that checkpoints hold, beside those the journals know of.
    """
    additions: list[Addition] = []
    followers = _followers(history)
    names = None if namespaces is None else {graph_names(namespace) for namespace in namespaces}
    gone = _gone(transcript, history, stored)
    timeline = _within(aligned(transcript.timeline, history), history, gone)
    speakers = _speakers(timeline)
    for entry, is_last in _with_last_replies(timeline, names):
        if isinstance(entry, Prompt):
            additions += _prompt(entry)
        elif is_last and entry.anchor is not None and not _is_answered(entry, speakers, followers):
            ended = causes.get(int(entry.run.partition("-")[0]), cause)
            made = _reply(entry, transcript, cause=ended, turn_token=turn_token, wishes=wishes)
            additions += [addition for addition in made if addition.message.id not in gone]
    calls = transcript.call_evidence(causes)
    if history and _last_caller_has_no_id(history):
        # The model's reply had an id, which the graph has not kept.
        ids = {message.id for message in history if isinstance(message, BaseMessage)}
        for key, known in list(calls.items()):
            newest = transcript.newest(key[1])
            if key[0] is not None and key[0] not in ids and newest is not None and newest[:2] == key:
                calls[None, key[1]] = known
    return Evidence(calls=calls, cause=cause, turn_token=turn_token, additions=additions, paused=paused)


def lost_prompts(transcript: Transcript, history: Sequence[Any], *, stored: Collection[str] = ()) -> Evidence:
    """Only the messages that runs were started with, or that came from the inbox, and that the history lacks."""
    timeline = _within(aligned(transcript.timeline, history), history, _gone(transcript, history, stored))
    return Evidence(additions=[a for entry in timeline if isinstance(entry, Prompt) for a in _prompt(entry)])


def other_updates(
    transcript: Transcript, answers: Sequence[GivenAnswer], history: Sequence[Any], messages_key: str
) -> list[tuple[str, Any]]:
    """What tools whose recorded results are used have written beside messages."""
    found = []
    for answer in answers:
        caller = last_caller(history, answer.call_id)
        key = CallKey(None if caller is None else caller.id, answer.call_id, answer.tool_name)
        output = transcript.output(key)
        for part in output if isinstance(output, list) else [output]:
            if answer.outcome == "recorded" and isinstance(part, Command) and part.graph is None:
                found += [write for write in update_of(part) if write[0] != messages_key]
    return found


def update_of(command: Command[Any]) -> list[tuple[str, Any]]:
    """What a command writes, key by key."""
    update = command.update
    if isinstance(update, Mapping):
        return list(update.items())
    if isinstance(update, (list, tuple)) and all(isinstance(write, tuple) and len(write) == 2 for write in update):
        return list(update)
    return []


def _gone(transcript: Transcript, history: Sequence[Any], stored: Collection[str]) -> set[str]:
    """Ids of the messages that are missing on purpose: a checkpoint had them, or a node took them out."""
    ids = {message.id for message in history if isinstance(message, BaseMessage)}
    return {*transcript.stored, *transcript.removed, *stored}.difference(ids)


def _within(timeline: Sequence[Prompt | Reply], history: Sequence[Any], gone: Collection[str]) -> list[Prompt | Reply]:
    """The entries that may be missing from the history by accident, and where they belong in it.

    What stood behind a message that is gone goes to the end of what was stored.
    """
    end = anchor_of(history[: end_of_replies(history)]) or AT_START

    def placed(anchor: str | None) -> str | None:
        return end if anchor in gone else anchor

    found: list[Prompt | Reply] = []
    for entry in timeline:
        if isinstance(entry, Prompt):
            kept = [message for message in entry.messages if message.id not in gone]
            if kept:
                after = placed(entry.after)
                found.append(Prompt(None if after == AT_START else after, kept))
        elif not entry.is_internal and (entry.message is None or entry.message.id not in gone):
            found.append(entry._replace(anchor=placed(entry.anchor)))
    return found


def aligned(timeline: Sequence[Prompt | Reply], history: Sequence[Any]) -> list[Prompt | Reply]:
    """The entries, with the ids that the history knows its messages by.

    A message that is given without an id gets one when it is stored; a run that goes on after a crash in between
    gives it another. It is the same if it says the same before the next reply; what else stands there may have come
    with it under an id of its own, or later. Several such runs may have left one each.
    """
    places = {message.id: place for place, message in enumerate(history) if isinstance(message, BaseMessage)}
    alias: dict[str | None, str | None] = {}
    missing: dict[str | None, list[BaseMessage]] = {}
    found: list[Prompt | Reply] = []
    for entry in timeline:
        if isinstance(entry, Reply):
            found.append(entry._replace(anchor=alias.get(entry.anchor, entry.anchor)))
            continue
        after = alias.get(entry.after, entry.after)
        messages = entry.messages
        if not all(message.id in places for message in messages) and (after is None or after in places):
            there = _found_again(messages, _unanswered(history[0 if after is None else places[after] + 1 :]), places)
            if there is None:
                earlier = missing.setdefault(after, messages)
                there = earlier if list(map(_said, earlier)) == list(map(_said, messages)) else messages
            alias.update((old.id, new.id) for old, new in zip(messages, there, strict=True) if old is not new)
            messages = there
        found.append(Prompt(after, messages))
    return found


def _unanswered(history: Iterable[Any]) -> list[Any]:
    """What stands there before the next reply of a model, without answers of tools."""
    before = takewhile(lambda message: not isinstance(message, AIMessage), history)
    return [message for message in before if not isinstance(message, ToolMessage)]


def _found_again(
    messages: Sequence[BaseMessage], there: Iterable[Any], known: Collection[str | None]
) -> list[BaseMessage] | None:
    """The messages as they are there, in their order; `None` if one of them is not."""
    own = {message.id for message in messages}
    rest = iter([each for each in there if getattr(each, "id", None) not in own])
    found = []
    for message in messages:
        if message.id in known:
            found.append(message)
        elif (again := next((each for each in rest if _said(each) == _said(message)), None)) is not None:
            found.append(again)
        else:
            return None
    return found


def _said(message: Any) -> tuple[Any, Any]:
    return getattr(message, "type", None), getattr(message, "content", None)


def graph_names(checkpoint_ns: str) -> str:
    """A namespace without the ids of tasks, which differ from run to run."""
    return "|".join(part.partition(":")[0] for part in checkpoint_ns.split("|"))


def _last_caller_has_no_id(history: Sequence[Any]) -> bool:
    caller = next((m for m in reversed(history) if isinstance(m, AIMessage) and m.tool_calls), None)
    return caller is not None and caller.id is None


def _prompt(entry: Prompt) -> list[Addition]:
    additions, after = [], entry.after
    for message in entry.messages:
        additions.append(Addition(after, message))
        after = message.id
    return additions


def recorded_reply(transcript: Transcript, history: Sequence[Any], *, checkpoint_ns: str) -> AIMessage | None:
    """The reply to the very end of a history, if a tool call in it was already started.

    The model must not be asked again then: it would make the call under another id, and its effect would happen
    twice.
    """
    if not history:
        return None
    last, names = anchor_of(history), graph_names(checkpoint_ns)
    if last is None:
        return None
    for entry in reversed(aligned(transcript.timeline, history)):
        if isinstance(entry, Prompt) or entry.message is None or entry.is_internal:
            continue
        if entry.message.id in transcript.stored or entry.message.id in transcript.removed:
            continue  # the thread was there already, and has been taken back
        if entry.anchor == last and graph_names(entry.checkpoint_ns) == names:
            return entry.message if transcript.was_touched(entry.message) else None
    return None


def _followers(history: Sequence[Any]) -> dict[str, set[str | None]]:
    """The ids of the replies that stand behind each message."""
    found: dict[str, set[str | None]] = {}
    last = None
    for message in history:
        if isinstance(message, AIMessage) and last is not None:
            found.setdefault(last, set()).add(message.id)
        if isinstance(message, BaseMessage) and not isinstance(message, ToolMessage):
            last = message.id
    return found


def _speakers(timeline: Sequence[Prompt | Reply]) -> dict[str | None, set[tuple[str, str]]]:
    """The nodes that have said each whole reply, by its id."""
    found: dict[str | None, set[tuple[str, str]]] = {}
    for entry in timeline:
        if isinstance(entry, Reply) and entry.message is not None:
            found.setdefault(entry.message.id, set()).add(_place(entry))
    return found


def _is_answered(
    entry: Reply,
    speakers: Mapping[str | None, set[tuple[str, str]]],
    followers: Mapping[str, set[str | None]],
) -> bool:
    """Whether the history has a reply to the same prompt that is not of another node, which may answer beside it."""
    own = {_place(entry)}
    return any(not speakers.get(reply, own) - own for reply in followers.get(entry.anchor or "", ()))


def _place(entry: Reply) -> tuple[str, str]:
    return entry.node, graph_names(entry.checkpoint_ns)


def _with_last_replies(
    timeline: list[Prompt | Reply], names: Collection[str] | None
) -> list[tuple[Prompt | Reply, bool]]:
    """Each entry, and whether it is what remains of one node's replies to one prompt.

    The last whole reply counts; if none is whole, the last that has any text: a retry that had not said anything
    yet does not take away what the first try had said.
    """
    best: dict[tuple[Any, ...], Reply] = {}
    for entry in timeline:
        if isinstance(entry, Prompt) or (names is not None and graph_names(entry.checkpoint_ns) not in names):
            continue
        key = (entry.anchor, *_place(entry))
        known = best.get(key)
        if known is None or entry.message is not None or (entry.text and known.message is None):
            best[key] = entry
    kept = {id(entry) for entry in best.values()}
    return [(entry, isinstance(entry, Prompt) or id(entry) in kept) for entry in timeline]


def _reply(entry: Reply, transcript: Transcript, *, cause: Reason, turn_token: int, wishes: Wishes) -> list[Addition]:
    anchor = entry.anchor or None
    if entry.message is not None:
        # A reply whose calls were started has effects: it belongs there whatever follows.
        return [Addition(anchor, entry.message, required_follower=not transcript.was_touched(entry.message))]
    if not (entry.text.strip() and wishes.keep_text):
        return []
    partial = marked_partial(entry.text, cause=cause, token=turn_token, id=f"interrupted-{entry.run}")
    found = [Addition(anchor, partial, required_follower=True)]
    if wishes.mark:
        note = marker(cause, turn_token, id=f"interrupted-{entry.run}-note")
        found.append(Addition(partial.id, note, required_follower=True))
    return found
