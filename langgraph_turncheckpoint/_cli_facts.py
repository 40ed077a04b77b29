"""What the reading commands say, as plain records put together from the store. Nothing is printed here, nothing is
written, and no graph is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

from langchain_core.messages import BaseMessage

from . import _files, _turns
from ._checkpoint_files import NamespaceFiles
from ._cli_values import Unfamiliar
from ._fields import id_time_ns
from ._loading import Head, LoadedFile
from ._standing import UNREADABLE, ThreadState, left_of, nodes_between, standing
from ._store import Store
from ._thread_files import ThreadFiles, thread_ids
from ._turn import Cause, LedgerState

#: Channels of LangGraph's own.
INNER: Final = ("branch:", "join:", "__")

#: How a thread stands that was cut off in its work.
CUT_OFF: Final = frozenset({"interrupted", "unfinished"})


@dataclass(frozen=True, slots=True)
class ThreadLine:
    """One thread in a list.

    Attributes:
        thread_id: The thread.
        state: How its newest turn ended. Where nobody announced that, or it was an import, what the newest checkpoint
            tells; "unknown" if that cannot be read, "damaged" if it is damaged.
        cause: Why, if before its work was done.
        interrupted: Whether it was cut off in its work, or is at work in a run whose end nobody will announce.
        waiting: Whether a person is asked; `None` as `next`.
        next: The nodes that would go on; `None` if the newest checkpoint cannot be read, or there is none yet.
        closed: Whether it refuses new runs.
        turns: How many turns there were.
        checkpoints: How many checkpoints there are, over all namespaces.
        updated_at: When the newest one was made; when a turn last began or ended, if there is none.
        size_bytes: Of all its files.
        damage: What is wrong with its newest checkpoint, or `None`.
    """

    thread_id: str
    state: ThreadState
    cause: Cause | None
    interrupted: bool
    waiting: bool | None
    next: list[str] | None
    closed: bool
    turns: int
    checkpoints: int
    updated_at: datetime | None
    size_bytes: int
    damage: str | None


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """One checkpoint in a history; fields that come from inside it are `None` if it cannot be read.

    Attributes:
        checkpoint_id: Its id.
        namespace: Its namespace; empty for the root graph.
        parent_id: Its parent.
        created_at: When it was made.
        turn: The token of the turn that wrote it; `None` outside any.
        step: LangGraph's number of the super-step.
        source: LangGraph's word for where it comes from: "input", "loop", "update" or "fork".
        ran: The nodes that ran for it.
        changed: The channels of the state that differ in version from its parent's.
        next: The nodes that come next.
        writes: How many writes wait on it.
        size_bytes: Of its file; what it shares with others is in theirs.
        damage: What is wrong with it, or `None`.
    """

    checkpoint_id: str
    namespace: str
    parent_id: str | None
    created_at: datetime | None
    turn: int | None
    step: int | None
    source: str | None
    ran: list[str] | None
    changed: list[str] | None
    next: list[str] | None
    writes: int | None
    size_bytes: int
    damage: str | None


# --- threads ---


def created_at(checkpoint_id: str) -> datetime | None:
    """When a checkpoint was made, by its id; `None` where the id does not tell."""
    at_ns = id_time_ns(checkpoint_id)
    return None if at_ns is None else datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=at_ns // 1000)


def newest_at(store: Store, thread_id: str) -> float:
    """When a thread's newest checkpoint was made, in seconds since 1970, from names alone."""
    thread = store.thread(thread_id)
    found = [head for files in thread.unnamed_namespaces(_state(thread)) if (head := files.head_id())]
    moments = [moment for head in found if (moment := created_at(head)) is not None]
    return max(moments).timestamp() if moments else _modified(thread.ledger.path)


def unstored_threads(store: Store) -> list[str]:
    """The threads that have turns and no checkpoint yet, such as one that was killed in its first turn under
    `durability="exit"`.
    """
    found = []
    for thread_id in thread_ids(store.root, fsync=False, on_damage=lambda _damage: None):
        with suppress(*UNREADABLE):
            thread = store.thread(thread_id)
            state = _state(thread)
            has_checkpoint = any(files.head_id() is not None for files in thread.unnamed_namespaces(state))
            if not has_checkpoint and _turns.logged_turns(thread, state)[0]:
                found.append(thread_id)
    return found


def thread_line(store: Store, thread_id: str) -> ThreadLine:
    """What is to be said of one thread. Of its newest checkpoint the head is read, and that its pages are sound."""
    thread = store.thread(thread_id)
    state = _state(thread)
    turns, _ = _turns.logged_turns(thread, state)
    found = standing(store.codec, thread.namespace(state, ""), turns)
    newest = newest_at(store, thread_id)
    return ThreadLine(
        thread_id=thread_id,
        state=found.state,
        cause=found.cause,
        interrupted=found.state in CUT_OFF,
        waiting=None if found.left is None else found.left.waiting,
        next=None if found.left is None else found.left.nodes,
        closed=state.closed,
        turns=len(turns),
        checkpoints=sum(1 for files in thread.unnamed_namespaces(state) for _ in files.ids()),
        updated_at=datetime.fromtimestamp(newest, timezone.utc) if newest else None,
        size_bytes=sum(_files.file_sizes(thread.path)),
        damage=found.damage or None,
    )


def _state(thread: ThreadFiles) -> LedgerState:
    return thread.ledger.read() or LedgerState()


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


# --- checkpoints ---


def namespace_files(store: Store, thread_id: str, namespace: str | None) -> list[tuple[str, NamespaceFiles]]:
    """The namespaces of a thread, or the one of this name."""
    thread = store.thread(thread_id)
    state = _state(thread)
    if namespace is not None:
        return [(namespace, thread.namespace(state, namespace))]
    return thread.namespaces(state)


def checkpoint_lines(store: Store, thread_id: str, namespace: str | None) -> Iterator[CheckpointLine]:
    """Every checkpoint of a thread, newest first."""
    places = [
        (checkpoint_id, name, files)
        for name, files in namespace_files(store, thread_id, namespace)
        for checkpoint_id in files.ids()
    ]
    for checkpoint_id, name, files in sorted(places, key=lambda place: place[0], reverse=True):
        yield _checkpoint_line(store, name, files, checkpoint_id)


def _checkpoint_line(store: Store, namespace: str, files: NamespaceFiles, checkpoint_id: str) -> CheckpointLine:
    path = files.file(checkpoint_id)
    size = os.stat(path).st_size if os.path.exists(path) else 0
    damage, parent_id, token = None, None, None
    metadata: Mapping[str, Any] = {}
    ran = changed = next_nodes = writes = None
    try:
        file = store.file(files, checkpoint_id)
        if file is not None:
            parent_id, token = file.parent_id, file.token
            head = file.head()
            metadata = head.metadata
            before = _readable(store, files, parent_id)
            ran = sorted(name for name in nodes_between(before, head) if not name.startswith("__"))
            changed = _changed(before, head.checkpoint)
            next_nodes, writes = left_of(file).nodes, len(file.writes())
            damage = file.image.damage or None
    except UNREADABLE as error:
        damage = getattr(error, "reason", None) or str(error)
    return CheckpointLine(
        checkpoint_id=checkpoint_id,
        namespace=namespace,
        parent_id=parent_id,
        created_at=created_at(checkpoint_id),
        turn=token or None,
        step=metadata.get("step"),
        source=metadata.get("source"),
        ran=ran,
        changed=changed,
        next=next_nodes,
        writes=writes,
        size_bytes=size,
        damage=damage,
    )


def _readable(store: Store, files: NamespaceFiles, checkpoint_id: str | None) -> tuple[LoadedFile, Head] | None:
    try:
        file = store.file(files, checkpoint_id)
        return None if file is None else (file, file.head())
    except UNREADABLE:
        return None


def _changed(before: tuple[LoadedFile, Head] | None, after: Mapping[str, Any]) -> list[str]:
    """The channels that have another version."""
    versions = {} if before is None else before[1].checkpoint.get("channel_versions") or {}
    now = after.get("channel_versions") or {}
    changed = [channel for channel, version in now.items() if version != versions.get(channel)]
    return sorted(channel for channel in changed if not channel.startswith(INNER))


# --- differences ---


class Difference(NamedTuple):
    """How one channel differs between two checkpoints.

    Attributes:
        channel: The channel.
        kind: "added", "removed" or "changed".
        before: Its value in the first; `None` where it is not there.
        after: Its value in the second.
        messages: Of lists of messages, the differences message by message.
    """

    channel: str
    kind: str
    before: Any
    after: Any
    messages: list[MessageDifference] | None


class MessageDifference(NamedTuple):
    """How one message differs.

    Attributes:
        kind: "added", "removed" or "changed".
        position: Where it is in the second list, or was in the first.
        before: The message in the first.
        after: The message in the second.
    """

    kind: str
    position: int
    before: Any
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """The channels whose values differ, in order of their names; what is LangGraph's own is left out."""
    found = []
    for channel in sorted({*before, *after}):
        if channel.startswith(INNER):
            continue
        old, new = before.get(channel), after.get(channel)
        if channel not in before or channel not in after:
            kind = "added" if channel not in before else "removed"
            only = new if kind == "added" else old
            several = _message_differences([], new) if kind == "added" else _message_differences(old, [])
            found.append(Difference(channel, kind, old, new, several if _is_messages(only) else None))
        elif not _is_same(old, new):
            messages = _message_differences(old, new) if _is_messages(old) and _is_messages(new) else None
            found.append(Difference(channel, "changed", old, new, messages))
    return found


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, BaseMessage) for each in value)


def _is_same(old: Any, new: Any) -> bool:
    try:
        return bool(type(old) is type(new) and old == new) or (isinstance(old, Unfamiliar) and old == new)
    except Exception:  # noqa: BLE001 - arrays and the like compare as they please
        return repr(old) == repr(new)


def _message_differences(old: Any, new: Any) -> list[MessageDifference]:
    if not (_is_messages(old) and _is_messages(new)):
        return []
    known = {_key(message, place): (place, message) for place, message in enumerate(old)}
    here = {_key(message, place) for place, message in enumerate(new)}
    found = [MessageDifference("removed", p, m, None) for key, (p, m) in known.items() if key not in here]
    for place, message in enumerate(new):
        before = known.get(_key(message, place))
        if before is None:
            found.append(MessageDifference("added", place, None, message))
        elif not _is_same(before[1], message):
            found.append(MessageDifference("changed", place, before[1], message))
    return found


def _key(message: BaseMessage, place: int) -> str:
    return message.id or f"#{place}"
