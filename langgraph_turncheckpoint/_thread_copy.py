"""One thread: what of it is missing in the destination, what stands in the way, copying it, and comparing both. Which
threads there are, and in what order, is `migrate`'s business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple

from ._same_values import (
    Key,
    Seen,
    body_difference,
    look_alike,
    missing_writes,
    seen,
    writes_difference,
)
from ._saver_views import Origin, SaverView, told
from ._write_calls import write_calls
from .errors import (
    CopyDiffersError,
    DeletedThreadError,
    MigrationError,
    SourceChangedError,
    ThreadConflictError,
    TurnCheckpointError,
)

#: How many differences an error names.
NAMED_DIFFERENCES: Final = 3

Thread = Mapping[Key, Seen]
Same = Callable[[Key], "str | None"]


class ThreadReport(NamedTuple):
    """What became of one thread.

    Attributes:
        thread_id: The thread.
        state: `copied`: it was not there before. `continued`: part of it was. `unchanged`: all of it was. `ahead`:
            all of it was, and the destination has gone on since.
        checkpoints: How many the source has.
        copied: How many of them were put now.
    """

    thread_id: str
    state: Literal["copied", "continued", "unchanged", "ahead"]
    checkpoints: int
    copied: int


class Plan(NamedTuple):
    """What is to be done for a thread.

    Attributes:
        checkpoints: What is missing, parents first.
        writes: The checkpoints that are there and lack pending writes.
        is_ahead: Whether the destination has gone on from what the source has.
    """

    checkpoints: list[Key]
    writes: list[Key]
    is_ahead: bool


class StoppedError(Exception):
    """Whoever asked for the copy does not wait for it any more."""


def make_plan(thread_id: str, source: Thread, there: Thread, same: Same) -> Plan:
    """What a destination lacks of a thread.

    Args:
        thread_id: For the error.
        source: The thread in the source.
        there: What the destination has under the id.
        same: Where the two versions of a checkpoint differ, `None` if they do not.

    Raises:
        ThreadConflictError: The destination holds something else.
    """
    common = source.keys() & there.keys()
    for key in _oldest_first(common):
        if (difference := same(key)) is not None:
            raise _conflict(thread_id, f"checkpoint {named(key)} is another one there: {difference}")
    missing, extra = source.keys() - there.keys(), there.keys() - source.keys()
    is_ahead = bool(extra) and not missing and min(key[1] for key in extra) > max(key[1] for key in source)
    if extra and not is_ahead:
        raise _conflict(thread_id, f"it has checkpoint {named(_oldest_first(extra)[0])}, which the source has not")
    writes = []
    for key in _oldest_first(common) if not is_ahead else ():
        lacks, has_foreign = missing_writes(source[key], there[key])
        if has_foreign:
            raise _conflict(thread_id, f"checkpoint {named(key)} has pending writes there that the source has not")
        if lacks:
            writes.append(key)
    return Plan(parents_first(source, missing), writes, is_ahead)


def _conflict(thread_id: str, what: str) -> ThreadConflictError:
    advice = "Nothing of it was overwritten; delete the thread there first, or leave it out with thread_ids."
    return ThreadConflictError(f"the destination holds another thread under this id: {what}. {advice}", thread_id)


def named(key: Key) -> str:
    """A checkpoint, for messages."""
    return f"{key[1]} of namespace {key[0]!r}" if key[0] else key[1]


def _oldest_first(keys: Iterable[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: (key[1], key[0]))


def parents_first(thread: Thread, wanted: Iterable[Key]) -> list[Key]:
    """The checkpoints in the order of their ids, except that a parent always comes before its children.

    Ids grow with time only within one process, so a parent's may be greater than its child's.
    """
    waiting = dict.fromkeys(_oldest_first(wanted))
    ordered: list[Key] = []
    while waiting:
        chain = [next(iter(waiting))]
        del waiting[chain[0]]
        while (parent := (chain[-1][0], thread[chain[-1]].parent_id or "")) in waiting:
            del waiting[parent]  # which also ends a circle
            chain.append(parent)
        ordered += reversed(chain)
    return ordered


def scan(
    origin: Origin, thread_id: Any, stop: threading.Event | None = None, *, without: Collection[str] = ()
) -> dict[Key, Seen]:
    """All checkpoints of a thread, by place; what is kept of each is small.

    Args:
        origin: Where the thread is.
        thread_id: The thread.
        stop: Ends it before the next checkpoint.
        without: Keys of the metadata that do not count.
    """
    found = {}
    for each in origin.tuples(thread_id):
        if stop is not None and stop.is_set():
            raise StoppedError
        remembered = seen(reduced(each, without))
        found[remembered.key] = remembered
    return found


def reduced(found: CheckpointTuple, without: Collection[str]) -> CheckpointTuple:
    """A checkpoint without some keys of its metadata."""
    if not any(name in found.metadata for name in without):
        return found
    kept = {name: value for name, value in found.metadata.items() if name not in without}
    return found._replace(metadata=cast(CheckpointMetadata, kept))


class ThreadCopy:
    """Copies one thread.

    Args:
        origin: Where it is.
        source_id: Its id there, as that saver keeps it.
        destination: Where it goes.
        thread_id: Its id there.
        stop: Ends the copy before the next checkpoint.
    """

    def __init__(
        self, origin: Origin, source_id: Any, destination: SaverView, thread_id: str, *, stop: threading.Event
    ) -> None:
        self._origin, self._source_id, self._destination = origin, source_id, destination
        self._thread_id, self._stop = thread_id, stop

    def run(self, tell: Callable[[int, int], None], *, verify: bool, restore_deleted: bool) -> ThreadReport:
        """Copy what is missing.

        Args:
            tell: Hears how many checkpoints are there, and how many there will be.
            verify: Whether to read everything again from both and to compare it.
            restore_deleted: Whether to bring back what the destination has deleted.

        Raises:
            MigrationError: It could not be copied; the subclasses say why. What was copied stays.
            ThreadClosedError, ThreadBusyError, StaleTurnError: The destination does not take it now.
        """
        source = self._scan_source()
        if not source:
            raise MigrationError("the source has no such thread", self._thread_id)
        there = self._scan_destination()
        plan = self._plan(source, there)
        was_empty = not there
        tell(len(source) - len(plan.checkpoints), len(source))
        if plan.checkpoints or plan.writes:
            self._check_deleted(plan, restore=restore_deleted)
            with self._destination.writing(self._thread_id) as config:
                # From here on nobody else writes there, if it is ours; what came before that is seen now.
                plan = self._plan(source, self._scan_destination())
                self._check_deleted(plan, restore=restore_deleted)
                self._copy(source, plan, config, tell)
            if verify:
                self._check_source(source)
                there = self._scan_destination()
        if verify and not plan.is_ahead:
            self._check_copy(source, there)
        copied = len(plan.checkpoints)
        if plan.is_ahead:
            return ThreadReport(self._thread_id, "ahead", len(source), 0)
        if not copied and not plan.writes:
            return ThreadReport(self._thread_id, "unchanged", len(source), 0)
        return ThreadReport(self._thread_id, "copied" if was_empty else "continued", len(source), copied)

    def _scan_source(self) -> Thread:
        return scan(self._origin, self._source_id, self._stop, without=self._destination.drops)

    def _scan_destination(self) -> Thread:
        return scan(self._destination, self._thread_id, self._stop, without=self._destination.drops)

    def _plan(self, source: Thread, there: Thread) -> Plan:
        def same(key: Key) -> str | None:
            return None if look_alike(source[key], there[key]) else self._difference(key)

        return make_plan(self._thread_id, source, there, same)

    def _difference(self, key: Key, *, writes: bool = False) -> str | None:
        left = self._origin.tuple_at(self._source_id, key)
        right = self._destination.tuple_at(self._thread_id, key)
        if left is None or right is None:
            return "it is gone from one of them"
        left, right = (reduced(each, self._destination.drops) for each in (left, right))
        return body_difference(left, right) or (writes_difference(left, right) if writes else None)

    def _check_deleted(self, plan: Plan, *, restore: bool) -> None:
        upto = self._destination.deleted_upto(self._thread_id)
        gone = [key for key in (*plan.checkpoints, *plan.writes) if key[1] <= upto]
        if gone and not restore:
            reason = (
                f"the destination has deleted checkpoints up to {upto} with their thread, and {len(gone)} of the "
                "source's are as old. They were not brought back; leave the thread out with thread_ids, or pass "
                "restore_deleted=True."
            )
            raise DeletedThreadError(reason, self._thread_id)

    def _copy(self, source: Thread, plan: Plan, config: RunnableConfig, tell: Callable[[int, int], None]) -> None:
        done = len(source) - len(plan.checkpoints)
        for key in plan.writes:
            self._put_writes(self._read(source, key), key, config)
        for key in plan.checkpoints:
            found = self._read(source, key)
            self._put(found, source, key, config)
            self._put_writes(found, key, config)
            done += 1
            tell(done, len(source))

    def _read(self, source: Thread, key: Key) -> CheckpointTuple:
        if self._stop.is_set():
            raise StoppedError
        found = self._origin.tuple_at(self._source_id, key)
        if found is None:
            raise self._changed(f"checkpoint {named(key)} is gone")
        now = seen(reduced(found, self._destination.drops))
        if not look_alike(source[key], now) and now.rest and all(now.values.values()):
            raise self._changed(f"checkpoint {named(key)} is another one now")
        return found

    def _put(self, found: CheckpointTuple, source: Thread, key: Key, config: RunnableConfig) -> None:
        this = source[key]
        conf = {**config["configurable"], "checkpoint_ns": key[0]}
        if this.parent_id is not None:
            conf["checkpoint_id"] = this.parent_id
        parent = source.get((key[0], this.parent_id or ""))
        with _putting(self._thread_id, key):
            self._destination.saver.put(
                {"configurable": conf}, found.checkpoint, found.metadata, dict(changed_versions(this, parent))
            )

    def _put_writes(self, found: CheckpointTuple, key: Key, config: RunnableConfig) -> None:
        if not found.pending_writes:
            return
        conf = {**config["configurable"], "checkpoint_ns": key[0], "checkpoint_id": key[1]}
        keys = self._origin.write_keys(self._source_id, key)
        with _putting(self._thread_id, key):
            for call in write_calls(found.pending_writes, keys):
                self._destination.saver.put_writes({"configurable": conf}, call.writes, call.task_id, call.task_path)

    def _check_source(self, before: Thread) -> None:
        now = self._scan_source()
        if new := now.keys() - before.keys():
            raise self._changed(f"it has {len(new)} checkpoints more")
        for key in _oldest_first(before):
            if key not in now:
                raise self._changed(f"checkpoint {named(key)} is gone")
            is_known = all((now[key].rest, *now[key].values.values(), *(w.value for w in now[key].writes)))
            if is_known and not (look_alike(before[key], now[key]) and before[key].writes == now[key].writes):
                raise self._changed(f"checkpoint {named(key)} is another one now, or has other pending writes")

    def _changed(self, what: str) -> SourceChangedError:
        advice = "Stop what writes to it and run the same migration again; it goes on from here."
        return SourceChangedError(f"the source changed while it was copied: {what}. {advice}", self._thread_id)

    def _check_copy(self, source: Thread, there: Thread) -> None:
        differences = [f"{named(key)}: {what}" for key, what in self._differences(source, there)]
        if differences:
            count, first = len(differences), "; ".join(differences[:NAMED_DIFFERENCES])
            more = f" and {count - NAMED_DIFFERENCES} more" if count > NAMED_DIFFERENCES else ""
            advice = f"This is what a {self._destination.name} makes of it; keep the source."
            raise CopyDiffersError(f"the copy differs in {count} checkpoints: {first}{more}. {advice}", self._thread_id)

    def _differences(self, source: Thread, there: Thread) -> Iterator[tuple[Key, str]]:
        for key in _oldest_first(source.keys() | there.keys()):
            if key not in there or key not in source:
                yield key, "is in one of them only"
                continue
            is_known = all(write.value for write in source[key].writes)
            alike = look_alike(source[key], there[key]) and is_known and source[key].writes == there[key].writes
            if not alike and (difference := self._difference(key, writes=True)) is not None:
                yield key, difference


def changed_versions(this: Seen, parent: Seen | None) -> Iterator[tuple[str, Any]]:
    """The versions of the channels whose values are not those of the parent.

    A channel without a value is left out: some savers would take that for the end of a value that an earlier
    checkpoint has under the same version.
    """
    for channel, value in this.values.items():
        version = this.versions.get(channel)
        is_parents = parent is not None and parent.versions.get(channel) == version and value
        if version is not None and not (is_parents and parent is not None and parent.values.get(channel) == value):
            yield channel, version


class _putting:  # noqa: N801 - used like a function
    """Turns whatever a saver or its database raises into an error that names thread and checkpoint."""

    def __init__(self, thread_id: str, key: Key) -> None:
        self._thread_id, self._key = thread_id, key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, TurnCheckpointError):
            raise MigrationError(
                f"the destination refuses checkpoint {named(self._key)}: {told(error)}", self._thread_id
            ) from error
