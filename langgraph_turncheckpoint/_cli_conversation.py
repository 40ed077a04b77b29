"""A thread as a model would see it: its messages with their turns and what became of each tool call, put together from
the store. Nothing is printed here, nothing is written, and no graph is needed.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.graph.message import add_messages

from ._checkpoint_files import NamespaceFiles
from ._cli_facts import INNER, created_at
from ._cli_values import LookingSaver
from ._evidence import lost_prompts
from ._histories import METADATA_KEY
from ._inbox_files import InboxFiles
from ._repair import RepairRules, planned_history, why_left
from ._running import load_transcript
from ._standing import UNREADABLE, Left, ThreadState, left_of
from ._store import Loaded, Store
from ._tool_calls import calls_of
from ._turn import LedgerState
from ._turn_log import TurnRecord
from .errors import DamageWarning, UnknownFormatError

#: How many of the newest turns are looked at to tell which message is of which turn.
TURNS_TOLD_APART: Final = 200


@dataclass(frozen=True, slots=True)
class CallLine:
    """A tool call in a conversation.

    Attributes:
        id: Its id.
        name: Its tool.
        args: Its arguments; a string where they could not be parsed.
        outcome: "ok" or "error" as the tool said; what the guard says of it ("recorded", "unknown", "not_run", ...);
            "returned" if it has a result that the history gets once the run goes on; else "waiting" for a person,
            "running", or "open" if there is no answer.
    """

    id: str
    name: str
    args: Any
    outcome: str


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A message in a conversation.

    Attributes:
        message: The message.
        turn: The token of the turn that it came in, if that can be told.
        stored: Whether the checkpoint holds it; if not, it is what a new message or a repair would add.
        calls: Its tool calls.
        outcome: Of an answer: as that of its call.
        cause: Of an answer by the guard: why.
    """

    message: Any
    turn: int | None
    stored: bool
    calls: list[CallLine]
    outcome: str | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A thread as a model would see it.

    Attributes:
        thread_id: The thread.
        state: How it stands now, whichever checkpoint is shown.
        checkpoint_id: The checkpoint it is read from.
        created_at: When that was made.
        turns: The records of its newest turns, oldest first.
        messages: The messages; `None` if the state holds no list of messages.
        values: All other channels.
        left: What is left to do.
        note: Why the messages are shown as they are stored although calls are open, or what else is to be known.
        inbox: How many messages wait in its inbox.
    """

    thread_id: str
    state: ThreadState
    checkpoint_id: str
    created_at: datetime | None
    turns: list[TurnRecord]
    messages: list[MessageLine] | None
    values: dict[str, Any]
    left: Left
    note: str
    inbox: int


def conversation(
    saver: LookingSaver, thread_id: str, *, checkpoint_id: str | None, rules: RepairRules, as_stored: bool
) -> Conversation | None:
    """A thread as a model would see it.

    Args:
        saver: The store.
        thread_id: The thread.
        checkpoint_id: The checkpoint; the newest that is whole if `None`.
        rules: Where the conversation is.
        as_stored: Whether to leave open calls open.

    Returns:
        The conversation; `None` if there is no such checkpoint.
    """
    store, key = saver.store, rules.messages_key
    loaded = store.latest(thread_id, "") if checkpoint_id is None else store.by_id(thread_id, "", checkpoint_id)
    if loaded is None:
        return None
    values = loaded.checkpoint["channel_values"]
    stored = _messages(saver, thread_id, loaded, key)
    thread = store.thread(thread_id)
    files = thread.namespace(thread.ledger.read() or LedgerState(), "")
    file = store.file(files, loaded.checkpoint_id)
    left = Left([], waiting=False) if file is None else left_of(file)
    records = saver.turns(thread_id, limit=TURNS_TOLD_APART)[::-1]
    shown, note, returned = stored, "", frozenset[str]()
    if stored is not None and checkpoint_id is None and not as_stored:
        shown, note, returned = _finalized(saver, thread_id, loaded, stored, rules)
    lines = None
    if shown is not None:
        turns = _turns_of(store, files, records, stored or [], key)
        busy = bool(records) and records[-1].state == "running"
        open_calls = "waiting" if left.waiting else "running" if busy else "open"
        outcomes = dict.fromkeys(returned, "returned")
        lines = list(_message_lines(shown, stored or [], turns, defaultdict(lambda: open_calls, outcomes)))
    return Conversation(
        thread_id=thread_id,
        state=store.standing(thread_id).state,
        checkpoint_id=loaded.checkpoint_id,
        created_at=created_at(loaded.checkpoint_id),
        turns=records,
        messages=lines,
        values={name: value for name, value in values.items() if name != key and not name.startswith(INNER)},
        left=left,
        note=note,
        inbox=_waiting_in_inbox(saver, thread_id),
    )


def _messages(saver: LookingSaver, thread_id: str, loaded: Loaded, key: str) -> list[Any] | None:
    found = loaded.checkpoint["channel_values"].get(key)
    found = getattr(found, "value", found)  # a snapshot of a DeltaChannel
    if isinstance(found, (list, tuple)):
        return list(found)
    if key not in (loaded.checkpoint.get("channel_versions") or {}) or found is not None:
        return None
    # A DeltaChannel that is put together from the writes to it.
    history = saver.store.delta_history(thread_id, loaded.checkpoint_ns, loaded.checkpoint_id, [key])[key]
    messages: Any = getattr(history.get("seed"), "value", history.get("seed")) or []
    for _, _, value in history["writes"]:
        messages = add_messages(messages, value)
    return list(messages) or None


def _finalized(
    saver: LookingSaver, thread_id: str, loaded: Loaded, stored: list[Any], rules: RepairRules
) -> tuple[list[Any], str, frozenset[str]]:
    """The history with every call answered; or as it is stored, why, and which of the open calls have returned."""
    none = frozenset[str]()
    if not all(isinstance(message, BaseMessage) for message in stored):
        return stored, "", none
    done = planned_history(saver, saver.store, thread_id, loaded, rules)
    if done is None:
        return stored, "", none
    reason = why_left(saver, saver.store, thread_id, loaded, rules._replace(idle=0.0))
    if reason is not None:
        returned = frozenset(answer.call_id for answer in done.answers if answer.outcome == "recorded")
        return stored, f"calls are open, and {reason}", returned
    note = "calls were open; what a new message or `repair` would add is marked as not stored"
    return list(done.messages), note, none


def _turns_of(
    store: Store, files: NamespaceFiles, records: Sequence[TurnRecord], stored: Sequence[Any], key: str
) -> dict[str, int]:
    """The turn that each message came in, by its id."""
    wanted = {message.id for message in stored if isinstance(message, BaseMessage) and message.id}
    found: dict[str, int] = {}
    written = [record for record in records if record.last_checkpoint_id is not None]
    # The first of many cannot be told from those before it.
    before = set() if len(written) < TURNS_TOLD_APART else _ids_at(store, files, written[0].last_checkpoint_id, key)
    for record in written:
        for message_id in (_ids_at(store, files, record.last_checkpoint_id, key) & wanted) - before:
            found.setdefault(message_id, record.token)
    return found


def _ids_at(store: Store, files: NamespaceFiles, checkpoint_id: str | None, key: str) -> set[str]:
    """The ids of the messages that a checkpoint holds."""
    try:
        file = store.file(files, checkpoint_id)
        if file is None:
            return set()
        head = file.head()
        value = file.value(head, key) if key in head.channels else None
    except UNREADABLE:
        return set()
    several = value if isinstance(value, (list, tuple)) else ()
    return {message.id for message in several if isinstance(message, BaseMessage) and message.id}


def _message_lines(
    shown: Sequence[Any], stored: Sequence[Any], turns: Mapping[str, int], open_calls: Mapping[str, str]
) -> Iterator[MessageLine]:
    held = {id(message) for message in stored}
    answers = {m.tool_call_id: _outcome(m)[0] for m in shown if isinstance(m, ToolMessage)}
    turn: int | None = None
    for place, message in enumerate(shown):
        turn = turns.get(getattr(message, "id", None) or "", turn)
        calls: list[CallLine] = []
        outcome: tuple[str | None, str | None] = None, None
        if isinstance(message, AIMessage):
            for call in calls_of(message, place):
                stated = call.stated
                args = stated.get("args")
                calls.append(CallLine(call.id, call.name, args, answers.get(call.id) or open_calls[call.id]))
        elif isinstance(message, ToolMessage):
            outcome = _outcome(message)
        yield MessageLine(message, turn, id(message) in held, calls, *outcome)


def _outcome(message: ToolMessage) -> tuple[str, str | None]:
    note = (message.response_metadata or {}).get(METADATA_KEY)
    if isinstance(note, Mapping) and "outcome" in note:
        return str(note["outcome"]), str(note.get("cause"))
    return ("error" if message.status == "error" else "ok"), None


#: How a thread's last turn ended of which no checkpoint tells.
_ENDED: Final[Mapping[str, str]] = {
    "completed": "its last turn completed",
    "paused": "its last turn paused",
    "failed": "its last turn failed",
    "cancelled": "its last turn was cancelled",
    "superseded": "its last turn was superseded",
    "interrupted": "its last turn was interrupted",
    "running": "a turn is running",
}


def why_nothing(saver: LookingSaver, thread_id: str) -> str:
    """Why a thread has nothing to show, as a clause, and what brings back what it was asked."""
    thread = saver.store.thread(thread_id)
    state = thread.ledger.read() or LedgerState()
    if any(files.head_id() is not None for files in thread.unnamed_namespaces(state)):
        return "holds no checkpoint of the root graph"
    turn = next(iter(saver.turns(thread_id, limit=1)), None)
    if turn is None:
        return "has no checkpoint yet"
    told = f"has no checkpoint yet; {_ENDED.get(turn.state, 'its last turn has written nothing')}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        transcript = load_transcript(saver.store, thread_id, state.token)
    if turn.state == "running" or not lost_prompts(transcript, []).additions:
        return told
    return f"{told}: invoke(None) with the guard attached brings the prompt back"


def _waiting_in_inbox(saver: LookingSaver, thread_id: str) -> int:
    files = InboxFiles(saver.store.thread(thread_id), fsync=False)
    try:
        return len(files.items(lambda _damage: None))
    except UnknownFormatError:
        return 0
