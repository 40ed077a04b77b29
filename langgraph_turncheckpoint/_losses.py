"""What a thread loses when some of its checkpoints cannot be read any more: how far it goes back, and how many messages
that costs. Heads are read, and no value; nothing is moved here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ._checkpoint_files import NamespaceFiles
from ._standing import UNREADABLE
from ._store import Store
from .errors import StorageError


class Point(NamedTuple):
    """Where a thread is.

    Attributes:
        step: LangGraph's number of the super-step; `None` if that cannot be read.
        messages: How many messages it holds; `None` if that cannot be told, or it has none.
    """

    step: int | None = None
    messages: int | None = None


class Loss(NamedTuple):
    """What a thread loses.

    Attributes:
        gone: The checkpoints of the root graph that cannot be read, oldest first.
        inner: How many there are of subgraphs.
        before: Where the thread was; `None` if its newest checkpoint stays.
        after: Where it goes on.
    """

    gone: Sequence[str]
    inner: int = 0
    before: Point | None = None
    after: Point = Point()

    def told(self, *, dry_run: bool) -> str:
        """The loss in one sentence, of what would be or what is."""
        parts = []
        if self.before is not None:
            parts.append(self._back(self.before, dry_run=dry_run))
        elif self.gone:
            parts.append("its newest checkpoint stays, and so do its messages")
        any_more = "" if dry_run else " any more"
        if self.gone:
            number = len(self.gone)
            older = "older " if self.before is None else ""
            noun = f"{older}checkpoint" if number == 1 else f"{older}checkpoints"
            parts.append(f"{number} {noun} cannot be read{any_more}: {_range(self.gone)}")
        if self.inner:
            noun = "checkpoint" if self.inner == 1 else "checkpoints"
            parts.append(f"{self.inner} {noun} of subgraphs cannot be read{any_more}")
        return "; ".join(parts)

    def _back(self, before: Point, *, dry_run: bool) -> str:
        was = "its newest checkpoint, which is damaged itself," if before.step is None else f"step {before.step}"
        now = "an earlier one" if self.after.step is None else f"step {self.after.step}"
        went = f"{'would go' if dry_run else 'went'} back from {was} to {now}"
        if self.after.messages is None:
            return went
        if before.messages is None:
            held = f"{self.after.messages} {_messages(self.after.messages)}"
            return f"{went}, where it {'would hold' if dry_run else 'holds'} {held}"
        missing = before.messages - self.after.messages
        if missing > 0:
            lose = "would lose" if dry_run else "lost"
            return f"{went}, and {lose} {missing} of its {before.messages} {_messages(before.messages)}"
        hold = "would hold" if dry_run else "holds"
        instead = f", instead of {before.messages}" if missing else ", as before"
        return f"{went}, where it {hold} {self.after.messages} {_messages(self.after.messages)}{instead}"


def _messages(number: int) -> str:
    return "message" if number == 1 else "messages"


def _range(ids: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((ids[0], ids[-1])))


def loss_of(store: Store, root: NamespaceFiles, gone: Mapping[str, Collection[str]], *, messages_key: str) -> Loss:
    """What goes with checkpoints.

    Args:
        store: The store.
        root: The namespace of the root graph.
        gone: By the directory of a namespace, the checkpoints that cannot be read.
        messages_key: The channel of the history.
    """
    here = sorted(gone.get(root.path, ()))
    inner = sum(len(ids) for path, ids in gone.items() if path != root.path)
    there = [*root.ids()]
    kept = next((checkpoint_id for checkpoint_id in there if checkpoint_id not in here), None)
    if not here or not there or there[0] == kept:
        return Loss(here, inner)
    after = Point() if kept is None else _point(store, root, kept, messages_key)
    return Loss(here, inner, _point(store, root, there[0], messages_key), after)


def _point(store: Store, files: NamespaceFiles, checkpoint_id: str, messages_key: str) -> Point:
    try:
        file = store.file(files, checkpoint_id)
        if file is None:
            return Point()
        head = file.head()
    except (*UNREADABLE, StorageError):
        return Point()
    step = head.metadata.get("step")
    try:
        messages = file.length(head, messages_key)
    except (*UNREADABLE, StorageError):
        messages = None
    return Point(step if type(step) is int else None, messages)
