"""`migrate` and `amigrate`: the threads of one saver to another. How one thread is copied is `_thread_copy`'s.

The ways to take in or write out a single thread as a file can be imported from here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

from ._blocking import blocking, check_outside_loop, run_on
from ._copy_plan import counted
from ._homemade import aimport_homemade, import_homemade
from ._offload import offload
from ._portable import ExportReport, aexport_thread, aimport_thread, export_thread, import_thread
from ._saver_views import Origin, SaverView, view_of
from ._thread_copy import Rules, ThreadCopy, ThreadReport
from ._unreadable import Unreadable, not_copied
from .errors import (
    DamagedCheckpointError,
    MigrationError,
    StorageError,
    TurnCheckpointError,
    UnknownFormatError,
)

__all__ = [
    "ExportReport",
    "MigrationReport",
    "Progress",
    "ThreadReport",
    "Unreadable",
    "aexport_thread",
    "aimport_homemade",
    "aimport_thread",
    "amigrate",
    "export_thread",
    "import_homemade",
    "import_thread",
    "migrate",
]

#: How many threads a message names.
NAMED_THREADS: Final = 3


class Progress(NamedTuple):
    """How far a migration is.

    Attributes:
        thread_id: The thread it is at.
        threads_done: Threads that are finished, also those that could not be copied.
        threads_total: Threads to go through.
        checkpoints_done: Checkpoints that are in the destination now, over all threads.
        checkpoints_total: How many there will be, as far as that is known by now.
    """

    thread_id: str
    threads_done: int
    threads_total: int
    checkpoints_done: int
    checkpoints_total: int


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration did, thread by thread.

    Attributes:
        threads: One entry for each thread that is in the destination now.
        verified: Whether source and destination were compared at the end, and nothing of the source was unreadable.
    """

    threads: tuple[ThreadReport, ...]
    verified: bool

    @property
    def checkpoints(self) -> int:
        """How many checkpoints the source has in these threads."""
        return sum(thread.checkpoints for thread in self.threads)

    @property
    def copied(self) -> int:
        """How many of them were put now."""
        return sum(thread.copied for thread in self.threads)

    @property
    def unreadable(self) -> int:
        """How many of them could not be read, or not with all their writes."""
        return sum(len(thread.unreadable) for thread in self.threads)

    def __str__(self) -> str:
        kinds: Mapping[str, str] = {
            "copied": "copied",
            "continued": "continued",
            "unchanged": "there already",
            "ahead": "gone on in the destination",
        }
        parts = [
            f"{number} {text}"
            for state, text in kinds.items()
            if (number := sum(thread.state == state for thread in self.threads))
        ]
        compared = ", compared" if self.verified else ""
        return (
            f"{counted(len(self.threads), 'thread')} ({', '.join(parts) or 'none'}), {self.copied} of "
            f"{counted(self.checkpoints, 'checkpoint')} put now{compared}{''.join(self._remarks())}"
        )

    def _remarks(self) -> Iterator[str]:
        damaged = sum(bool(thread.unreadable) for thread in self.threads)
        if damaged:
            missing = sum(len(not_copied(thread.unreadable)) for thread in self.threads)
            if missing:
                yield f"; {counted(missing, 'checkpoint')} of {counted(damaged, 'thread')} could not be read"
            if half := self.unreadable - missing:
                yield f"; {counted(half, 'checkpoint')} could not be read with all waiting writes"
        pruned = sum(thread.pruned for thread in self.threads)
        older = sum(thread.older for thread in self.threads)
        if pruned:
            yield f"; {counted(pruned, 'checkpoint')} pruned there left out"
        if older:
            yield f"; {older} of them older than what was there, as after a prune"


Place: TypeAlias = BaseCheckpointSaver[Any] | str | os.PathLike[str]


def migrate(
    source: Place,
    destination: Place,
    *,
    thread_ids: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    progress: Callable[[Progress], object] | None = None,
    verify: bool = True,
    strict: bool = False,
    restore_deleted: bool = False,
    restore_pruned: bool = False,
) -> MigrationReport:
    """Copy threads from one saver to another: checkpoints of all namespaces, forks, metadata, pending writes.

    Any two of LangGraph's savers, in either direction. The source is only read. In the destination nothing is
    overwritten or deleted: what is there already and the same is left alone, and a thread that is another one is
    refused. So the call may be repeated: after a kill it goes on where it was, and once all is there it changes
    nothing.

    Pending writes come back in the order they had. Their task paths and positions are kept where the source is one
    of LangGraph's savers or ours. A thread that is open in a turn of `TurnCheckpointSaver.turn` in the destination is
    left to that turn; a plain run on a thread that lacks something there is fenced out. What is put into a
    `TurnCheckpointSaver` belongs to a turn of its own, whose state is "imported".

    A thread that cannot be copied does not keep the others from it; all such errors are raised together at the end.

    Args:
        source: Where the threads are: a saver, or a place such as `sqlite:app.db`, `postgresql://...` or a directory,
            which is opened read-only.
        destination: Where they go: a saver, a `PostgresSaver` after `setup()`; or a place, which may be new.
        thread_ids: Which threads; all if `None`.
        exclude: Threads to leave out.
        progress: Is told after each checkpoint. What it raises ends the migration.
        verify: Whether to read each copied thread again from both and to compare them by value.
        strict: Whether a thread of a `TurnCheckpointSaver` of which any checkpoint is damaged is an error. Otherwise
            the others are copied, and the report says which are missing.
        restore_deleted: Whether threads that the destination has deleted may come back.
        restore_pruned: Whether checkpoints that the destination has pruned may come back, also into a thread that has
            gone on since.

    Returns:
        What became of each thread, and what of it could not be read.

    Raises:
        MigrationError: Threads could not be copied, and `errors` says for each why: a `ThreadConflictError`,
            `DeletedThreadError`, `SourceChangedError`, `CopyDiffersError`, `ThreadClosedError`, `ThreadBusyError` or
            `StaleTurnError`. Or the source cannot be read at all, or has no such thread; then nothing was copied.
        PlaceError: One of the two is no such place. Nothing was changed.
        TypeError: One of the two is no saver and no place.

    Example:
        ```python
        print(migrate("sqlite:app.db", "./checkpoints"))
        ```
    """
    rules = Rules(verify=verify, restore_deleted=restore_deleted, restore_pruned=restore_pruned, strict=strict)
    with contextlib.ExitStack() as stack:
        savers = _opened(stack, source, destination)
        for saver in savers:
            check_outside_loop(saver)
        run = _Migration(view_of(savers[0]), view_of(savers[1]), progress, threading.Event())
        return run.all_threads(thread_ids, exclude, rules)


async def amigrate(
    source: Place,
    destination: Place,
    *,
    thread_ids: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    progress: Callable[[Progress], object] | None = None,
    verify: bool = True,
    strict: bool = False,
    restore_deleted: bool = False,
    restore_pruned: bool = False,
) -> MigrationReport:
    """Async twin of `migrate`, also for savers that only have async methods.

    `progress` is called in the event loop. A cancelled call ends before the next checkpoint, and may be repeated.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()

    async def told_in_loop(at: Progress) -> None:
        if progress is not None:
            progress(at)

    def tell(at: Progress) -> None:
        run_on(loop, told_in_loop(at))

    rules = Rules(verify=verify, restore_deleted=restore_deleted, restore_pruned=restore_pruned, strict=strict)

    def all_threads() -> MigrationReport:
        with contextlib.ExitStack() as stack:
            views = [view_of(blocking(saver, loop)) for saver in _opened(stack, source, destination)]
            run = _Migration(views[0], views[1], tell if progress is not None else None, stop)
            return run.all_threads(thread_ids, exclude, rules)

    running = asyncio.ensure_future(offload(all_threads))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(Exception):
            await running
        raise


def _opened(stack: contextlib.ExitStack, source: Place, destination: Place) -> list[BaseCheckpointSaver[Any]]:
    """The two savers; places stay open as long as the stack."""
    from ._migrate_places import open_place  # noqa: PLC0415 - loads the database's module, which an app may not need

    savers: list[BaseCheckpointSaver[Any]] = []
    roles: tuple[tuple[Place, Literal["source", "destination"]], ...]
    roles = ((source, "source"), (destination, "destination"))
    for given, role in roles:
        if isinstance(given, str | os.PathLike):
            savers.append(stack.enter_context(open_place(os.fspath(given), role=role)))
        else:
            savers.append(given)
    return savers


class _Migration:
    """One call of `migrate`."""

    def __init__(
        self,
        source: SaverView,
        destination: SaverView,
        progress: Callable[[Progress], object] | None,
        stop: threading.Event,
    ) -> None:
        self._source: Origin = source
        self._source_directory = source.directory
        self._destination, self._progress, self._stop = destination, progress, stop
        if source.saver is destination.saver or (source.directory and source.directory == destination.directory):
            raise MigrationError("source and destination are the same; nothing was done")

    def all_threads(self, thread_ids: Iterable[str] | None, exclude: Iterable[str], rules: Rules) -> MigrationReport:
        counts = _named_counts(self._source, thread_ids, exclude)
        total, done = sum(number for _, number in counts.values()), 0
        reports: list[ThreadReport] = []
        errors: list[Exception] = [
            MigrationError(f"a thread of the source has lost its name, and was not copied: {lost}")
            for lost in (self._source.lost_threads() if thread_ids is None else ())
        ]
        unnamed = len(errors)
        for position, (thread_id, (source_id, expected)) in enumerate(counts.items()):
            at = Progress(thread_id, position, len(counts), done, total)
            here, whole = 0, expected

            def tell(there: int, of: int, at: Progress = at, expected: int = expected) -> None:
                nonlocal here, whole
                here, whole = there, of
                before, others = at.checkpoints_done, at.checkpoints_total - expected
                self._tell(at._replace(checkpoints_done=before + there, checkpoints_total=others + of))

            copy = ThreadCopy(self._source, source_id, self._destination, thread_id, stop=self._stop)
            try:
                report = copy.run(tell, rules)
            except TurnCheckpointError as error:
                errors.append(_naming(error, thread_id))
                if _concerns_all(error, self._source_directory):
                    break
            else:
                reports.append(report)
                total += whole - expected
            done += here
            self._tell(Progress(thread_id, position + 1, len(counts), done, total))
        found = MigrationReport(tuple(reports), rules.verify and not any(report.unreadable for report in reports))
        if errors:
            raise _summed_up(errors, len(counts) + unnamed, found) from errors[0]
        return found

    def _tell(self, at: Progress) -> None:
        if self._progress is not None:
            self._progress(at)


def _named_counts(
    source: Origin, thread_ids: Iterable[str] | None, exclude: Iterable[str]
) -> dict[str, tuple[Any, int]]:
    """The threads to copy: by the id they will have, the id in the source and how many checkpoints there are.

    Raises:
        MigrationError: The source has not all that were named, or has two that would get the same id.
    """
    wanted, unwanted = None if thread_ids is None else _ids(thread_ids), _ids(exclude)
    if wanted is not None and not source.counts_threads:
        return {thread_id: (thread_id, 0) for thread_id in wanted if thread_id not in unwanted}
    counts: dict[str, tuple[Any, int]] = {}
    for source_id, number in sorted(source.thread_counts().items(), key=lambda entry: str(entry[0])):
        if str(source_id) in counts:
            raise MigrationError("the source has two threads of this id, a string and another type", str(source_id))
        counts[str(source_id)] = source_id, number
    if unknown := [thread_id for thread_id in (*(wanted or ()), *unwanted) if thread_id not in counts]:
        raise MigrationError(f"the source has no thread {_list(unknown)}; nothing was copied")
    return {each: counts[each] for each in (counts if wanted is None else wanted) if each not in unwanted}


def _ids(thread_ids: Iterable[str]) -> list[str]:
    return [thread_ids] if isinstance(thread_ids, str) else list(dict.fromkeys(map(str, thread_ids)))


def _naming(error: TurnCheckpointError, thread_id: str) -> TurnCheckpointError:
    """The same error, if it tells which thread or file it is about; else one that does."""
    if isinstance(error, StorageError) or getattr(error, "thread_id", None) is not None:
        return error
    named = MigrationError(str(error), thread_id)
    named.__cause__ = error
    return named


def _concerns_all(error: TurnCheckpointError, source: str | None) -> bool:
    """Whether the next thread would fare no better: the disk is full, say. A file of the source is one thread's."""
    if not isinstance(error, StorageError) or isinstance(error, DamagedCheckpointError | UnknownFormatError):
        return False
    path = os.path.realpath(error.filename) if isinstance(error.filename, str) else ""
    return source is None or not path.startswith(source + os.sep)


def _summed_up(errors: list[Exception], number: int, report: MigrationReport) -> MigrationError:
    lines = "".join(f"\n- {error}" for error in errors[:NAMED_THREADS])
    more = f"\n- and {len(errors) - NAMED_THREADS} more" if len(errors) > NAMED_THREADS else ""
    left = number - len(report.threads)
    reason = f"{left} of {counted(number, 'thread')} could not be copied, or not be checked:{lines}{more}"
    return MigrationError(reason, None, tuple(errors), report)


def _list(thread_ids: list[str]) -> str:
    more = ", ..." if len(thread_ids) > NAMED_THREADS else ""
    return ", ".join(map(repr, thread_ids[:NAMED_THREADS])) + more
