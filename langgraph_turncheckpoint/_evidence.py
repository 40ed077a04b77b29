"""From what journals tell to what a history lacks: the messages that may not have reached it, and what is known of
its calls. How a history is put in order is `_histories`' business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ._histories import Addition, Evidence, marked_partial, marker
from ._transcript import Prompt, Reply, Transcript
from ._turn import Cause


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
    cause: Cause,
    turn_token: int,
    wishes: Wishes,
    namespaces: Collection[str] | None = None,
    paused: bool = False,
) -> Evidence:
    """What earlier turns left behind, for a history that goes on with a new message.

    Args:
        transcript: What their journals tell.
        history: The messages as they are stored.
        cause: Why the last of them ended.
        turn_token: The turn the answers are given in.
        wishes: What to keep of a reply that was cut off.
        namespaces: The checkpoint namespaces whose models speak in this history; all if `None`.
        paused: Whether the thread waited for a person.
    """
    additions: list[Addition] = []
    answered = _answered(history)
    for entry, is_last in _with_last_replies(transcript.timeline, namespaces):
        if isinstance(entry, Prompt):
            after = entry.after
            for message in entry.messages:
                additions.append(Addition(after, message))
                after = message.id
        elif is_last and entry.anchor is not None and entry.anchor not in answered:
            additions += _reply(entry, transcript, cause=cause, turn_token=turn_token, wishes=wishes)
    return Evidence(
        calls=transcript.call_evidence(), cause=cause, turn_token=turn_token, additions=additions, paused=paused
    )


def recorded_reply(transcript: Transcript, history: Sequence[Any], *, checkpoint_ns: str) -> AIMessage | None:
    """The reply to the very end of a history, if a tool call in it was already started.

    The model must not be asked again then: it would make the call under another id, and its effect would happen
    twice.
    """
    if not history:
        return None
    last = anchor_of(history)
    for entry in reversed(transcript.replies):
        if entry.message is not None and entry.anchor == last is not None and entry.checkpoint_ns == checkpoint_ns:
            return entry.message if transcript.was_touched(entry.message) else None
    return None


def anchor_of(history: Sequence[Any]) -> str | None:
    """The id of the last message that is from a person or a model; answers of tools belong to the latter."""
    for message in reversed(history):
        if isinstance(message, (HumanMessage, AIMessage)):
            return message.id
    return None


def _answered(history: Sequence[Any]) -> set[str]:
    """The ids of messages whose reply is in the history."""
    found, last = set(), None
    for message in history:
        if isinstance(message, AIMessage) and last is not None:
            found.add(last)
        if isinstance(message, BaseMessage) and not isinstance(message, ToolMessage):
            last = message.id
    return found


def _with_last_replies(
    timeline: list[Prompt | Reply], namespaces: Collection[str] | None
) -> list[tuple[Prompt | Reply, bool]]:
    """Each entry, and whether it is what remains of the replies to one prompt.

    The last whole reply counts; if none is whole, the last that has any text: a retry that had not said anything
    yet does not take away what the first try had said.
    """
    best: dict[str | None, Reply] = {}
    for entry in timeline:
        if isinstance(entry, Prompt) or (namespaces is not None and entry.checkpoint_ns not in namespaces):
            continue
        known = best.get(entry.anchor)
        if known is None or entry.message is not None or (entry.text and known.message is None):
            best[entry.anchor] = entry
    return [(entry, isinstance(entry, Prompt) or best.get(entry.anchor) is entry) for entry in timeline]


def _reply(entry: Reply, transcript: Transcript, *, cause: Cause, turn_token: int, wishes: Wishes) -> list[Addition]:
    if entry.message is not None:
        # A reply whose calls were started has effects: it belongs there whatever follows.
        return [Addition(entry.anchor, entry.message, required_follower=not transcript.was_touched(entry.message))]
    if not (entry.text.strip() and wishes.keep_text):
        return []
    partial = marked_partial(entry.text, cause=cause, token=turn_token, id=f"interrupted-{entry.run}")
    found = [Addition(entry.anchor, partial, required_follower=True)]
    if wishes.mark:
        note = marker(cause, turn_token, id=f"interrupted-{entry.run}-note")
        found.append(Addition(partial.id, note, required_follower=True))
    return found
