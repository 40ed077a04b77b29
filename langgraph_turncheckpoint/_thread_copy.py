"""One thread: what of it is missing in the destination, what stands in the way, copying it, and comparing both. Which
threads there are, and in what order, is `migrate`'s business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Literal, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple

from ._copy_plan import (
    LEAVE_OUT,
    Plan,
    Thread,
    below,
    changed_versions,
    counted,
    make_plan,
    named,
    oldest_first,
)
from ._same_values import Key, Seen, body_difference, look_alike, missing_writes, seen, writes_difference
from ._saver_views import Origin, SaverView, StoppedError, told
from ._unreadable import Unreadable, check_readable, described, goes_back, not_copied
from ._write_calls import write_calls
from .errors import (
    CopyDiffersError,
    DeletedThreadError,
    MigrationError,
    SourceChangedError,
    TurnCheckpointError,
)

#: How many differences an error names.
NAMED_DIFFERENCES: Final = 3

#: What callers of the library may do; commands say it in their own words.
RESTORE_DELETED: Final = "pass restore_deleted=True"


class ThreadReport(NamedTuple):
    """What became of one thread.

    Attributes:
        thread_id: The thread.
        state: `copied`: it was not there before. `continued`: part of it was. `unchanged`: all of it was. `ahead`:
            all of it was, but for what was pruned, and the destination has gone on since.
        checkpoints: How many the source has, readable or not.
        copied: How many of them were put now.
        unreadable: Those that could not be read, and what is wrong with them. All others were copied.
        pruned: How many were left out because the destination has pruned them.
        older: How many of the copied ones come before some that were there already: the destination had them once,
            or they were saved late.
        goes_back: Whether the newest checkpoint is among the unreadable, so that the copy goes on from an older one.
    """

    thread_id: str
    state: Literal["copied", "continued", "unchanged", "ahead"]
    checkpoints: int
    copied: int
    unreadable: tuple[Unreadable, ...] = ()
    pruned: int = 0
    older: int = 0
    goes_back: bool = False

    @property
    def damage(self) -> str:
        """What could not be read, in one line; empty if everything could."""
        if not self.unreadable:
            return ""
        return described(self.unreadable, self.checkpoints - len(not_copied(self.unreadable)), back=self.goes_back)


class Rules(NamedTuple):
    """How threads are copied.

    Attributes:
        verify: Whether to read everything again from both and to compare it.
        restore_deleted: Whether to bring back what the destination has deleted.
        restore_pruned: Whether to bring back what the destination has pruned.
        strict: Whether a thread that cannot be read wholly is refused.
    """

    verify: bool = True
    restore_deleted: bool = False
    restore_pruned: bool = False
    strict: bool = False


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
        instead: What errors advise if the destination's thread is to stay.
    """

    def __init__(
        self,
        origin: Origin,
        source_id: Any,
        destination: SaverView,
        thread_id: str,
        *,
        stop: threading.Event,
        instead: str = LEAVE_OUT,
    ) -> None:
        self._origin, self._source_id, self._destination = origin, source_id, destination
        self._thread_id, self._stop, self._instead = thread_id, stop, instead
        self._lost: Collection[Key] = ()
        self._nameless: Collection[str] = ()
        self._half_read: Collection[Key] = ()

    def run(self, tell: Callable[[int, int], None], rules: Rules) -> ThreadReport:
        """Copy what is missing.

        Args:
            tell: Hears how many checkpoints are there, and how many there will be.
            rules: How.

        Raises:
            MigrationError: It could not be copied; the subclasses say why. What was copied stays.
            ThreadClosedError, ThreadBusyError, StaleTurnError: The destination does not take it now.
        """
        source = self._scan_source()
        lost = tuple(self._origin.unreadable(self._source_id, source))
        if not source and not lost:
            raise MigrationError("the source has no such thread", self._thread_id)
        check_readable(self._thread_id, source, lost, strict=rules.strict)
        self._remember(source, lost)
        there = self._scan_destination()
        gone = self._pruned(source, there)
        plan = self._plan(source, there, gone, restore=rules.restore_pruned)
        was_empty = not there
        tell(len(source) - len(plan.checkpoints), len(source))
        if plan.checkpoints or plan.writes:
            self._check_deleted(plan, restore=rules.restore_deleted)
            with self._destination.writing(self._thread_id) as config:
                # From here on nobody else writes there, if it is ours; what came before that is seen now.
                there = self._scan_destination()
                gone = self._pruned(source, there)
                plan = self._plan(source, there, gone, restore=rules.restore_pruned)
                self._check_deleted(plan, restore=rules.restore_deleted)
                self._copy(source, plan, config, tell)
            if rules.verify:
                self._check_source(source)
                there = self._scan_destination()
        left_out = 0 if rules.restore_pruned else len(gone)
        if rules.verify:
            # A destination that prunes by itself may have done so while it was written to.
            gone |= self._pruned(source, there)
            self._check_copy({key: one for key, one in source.items() if key in there or key not in gone}, there, plan)
        copied = len(plan.checkpoints)
        state: Literal["copied", "continued", "unchanged", "ahead"]
        if plan.is_ahead:
            state = "ahead"
        elif copied or plan.writes:
            state = "copied" if was_empty else "continued"
        else:
            state = "unchanged"
        total = len(source) + len(not_copied(lost))
        back = goes_back(source, lost)
        return ThreadReport(self._thread_id, state, total, copied, lost, left_out, plan.older, back)

    def _scan_source(self) -> Thread:
        return scan(self._origin, self._source_id, self._stop, without=self._destination.drops)

    def _scan_destination(self) -> Thread:
        found = scan(self._destination, self._thread_id, self._stop, without=self._destination.drops)
        return {key: one for key, one in found.items() if key not in self._lost and key[1] not in self._nameless}

    def _remember(self, source: Thread, lost: Collection[Unreadable]) -> None:
        """What the source cannot show any more may well be in the destination, from before it was damaged."""
        missing = not_copied(lost)
        named = {(each.checkpoint_ns, each.checkpoint_id) for each in missing if each.checkpoint_ns is not None}
        nameless = {each.checkpoint_id for each in missing if each.checkpoint_ns is None}
        self._lost, self._nameless = named - source.keys(), nameless - {key[1] for key in source}
        self._half_read = {key for each in lost if (key := (each.checkpoint_ns or "", each.checkpoint_id)) in source}

    def _pruned(self, source: Thread, there: Thread) -> set[Key]:
        return self._destination.pruned(self._thread_id, below(source, there))

    def _plan(self, source: Thread, there: Thread, gone: Collection[Key], *, restore: bool) -> Plan:
        def same(key: Key) -> str | None:
            return None if look_alike(source[key], there[key]) else self._difference(key)

        return make_plan(
            self._thread_id,
            source,
            there,
            same,
            gone=gone,
            restore=restore,
            half_read=self._half_read,
            instead=self._instead,
        )

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
                f"source's are as old. They were not brought back; {self._instead}, or {RESTORE_DELETED}."
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
            raise self._changed(f"it has {counted(len(new), 'checkpoint')} more")
        for key in oldest_first(before):
            if key not in now:
                raise self._changed(f"checkpoint {named(key)} is gone")
            is_known = all((now[key].rest, *now[key].values.values(), *(w.value for w in now[key].writes)))
            if is_known and not (look_alike(before[key], now[key]) and before[key].writes == now[key].writes):
                raise self._changed(f"checkpoint {named(key)} is another one now, or has other pending writes")

    def _changed(self, what: str) -> SourceChangedError:
        advice = "Stop what writes to it and run the same migration again; it goes on from here."
        return SourceChangedError(f"the source changed while it was copied: {what}. {advice}", self._thread_id)

    def _check_copy(self, source: Thread, there: Thread, plan: Plan) -> None:
        if plan.is_ahead:  # who goes on writes to what is there
            source, there = ({key: side[key] for key in plan.checkpoints if key in side} for side in (source, there))
        differences = [f"{named(key)}: {what}" for key, what in self._differences(source, there)]
        if differences:
            count, first = len(differences), "; ".join(differences[:NAMED_DIFFERENCES])
            more = f" and {count - NAMED_DIFFERENCES} more" if count > NAMED_DIFFERENCES else ""
            advice = f"This is what a {self._destination.name} makes of it; keep the source."
            reason = f"the copy differs in {counted(count, 'checkpoint')}: {first}{more}. {advice}"
            raise CopyDiffersError(reason, self._thread_id)

    def _differences(self, source: Thread, there: Thread) -> Iterator[tuple[Key, str]]:
        for key in oldest_first(source.keys() | there.keys()):
            if key not in there or key not in source:
                yield key, "is in one of them only"
                continue
            if key in self._half_read and not missing_writes(source[key], there[key])[0]:
                writes, alike = False, look_alike(source[key], there[key])  # the destination may have more of them
            else:
                is_known = all(write.value for write in source[key].writes)
                same_writes = is_known and source[key].writes == there[key].writes
                writes, alike = True, look_alike(source[key], there[key]) and same_writes
            if not alike and (difference := self._difference(key, writes=writes)) is not None:
                yield key, difference


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
