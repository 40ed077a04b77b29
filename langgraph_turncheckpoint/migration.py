"""`migrate` and `amigrate`: the threads of one saver to another. How one thread is copied is `_thread_copy`'s.

The ways to take in or write out a single thread as a file can be imported from here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver

from ._homemade import aimport_homemade, import_homemade
from ._offload import offload
from ._portable import aexport_thread, aimport_thread, export_thread, import_thread
from ._saver_views import Origin, SaverView, blocking, check_outside_loop, run_on, view_of
from ._thread_copy import ThreadCopy, ThreadReport
from .errors import (
    DamagedCheckpointError,
    MigrationError,
    StorageError,
    TurnCheckpointError,
    UnknownFormatError,
)

__all__ = [
    "MigrationReport",
    "Progress",
    "ThreadReport",
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
        verified: Whether source and destination were compared at the end.
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
            f"{len(self.threads)} threads ({', '.join(parts) or 'none'}), {self.copied} of {self.checkpoints} "
            f"checkpoints put now{compared}"
        )


def migrate(
    source: BaseCheckpointSaver[Any],
    destination: BaseCheckpointSaver[Any],
    *,
    thread_ids: Iterable[str] | None = None,
    progress: Callable[[Progress], object] | None = None,
    verify: bool = True,
    restore_deleted: bool = False,
) -> MigrationReport:
    """Copy threads from one saver to another: checkpoints of all namespaces, forks, metadata, pending writes.

    Any two of LangGraph's savers, in either direction. The source is only read. In the destination nothing is
    overwritten or deleted: what is there already and the same is left alone, and a thread that is another one is
    refused. So the call may be repeated: after a kill it goes on where it was, and once all is there it changes
    nothing.

    Pending writes come back in the order they had. Their task paths and positions are kept where the source is one
    of LangGraph's savers or ours. A thread that is open in a turn of `TurnCheckpointSaver.turn` in the destination is
    left to that turn; a plain run on a thread that lacks something there is fenced out.

    A thread that cannot be copied does not keep the others from it; all such errors are raised together at the end.

    Args:
        source: Where the threads are.
        destination: Where they go; a `PostgresSaver` after `setup()`.
        thread_ids: Which threads; all if `None`.
        progress: Is told after each checkpoint. What it raises ends the migration.
        verify: Whether to read each copied thread again from both and to compare them by value.
        restore_deleted: Whether threads that the destination has deleted may come back.

    Returns:
        What became of each thread.

    Raises:
        MigrationError: Threads could not be copied, and `errors` says for each why: a `ThreadConflictError`,
            `DeletedThreadError`, `SourceChangedError`, `CopyDiffersError`, `ThreadClosedError`, `ThreadBusyError` or
            `StaleTurnError`. Or the source cannot be read at all, or has no such thread; then nothing was copied.
        TypeError: One of the two is no saver.

    Example:
        ```python
        with SqliteSaver.from_conn_string("app.db") as old:
            print(migrate(old, TurnCheckpointSaver("./checkpoints")))
        ```
    """
    for saver in (source, destination):
        check_outside_loop(saver)
    run = _Migration(view_of(source), view_of(destination), progress, threading.Event())
    return run.all_threads(thread_ids, verify=verify, restore_deleted=restore_deleted)


async def amigrate(
    source: BaseCheckpointSaver[Any],
    destination: BaseCheckpointSaver[Any],
    *,
    thread_ids: Iterable[str] | None = None,
    progress: Callable[[Progress], object] | None = None,
    verify: bool = True,
    restore_deleted: bool = False,
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

    views = [view_of(blocking(saver, loop)) for saver in (source, destination)]
    run = _Migration(views[0], views[1], tell if progress is not None else None, stop)
    running = asyncio.ensure_future(
        offload(run.all_threads, thread_ids, verify=verify, restore_deleted=restore_deleted)
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(Exception):
            await running
        raise


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
        self._destination, self._progress, self._stop = destination, progress, stop
        if source.saver is destination.saver:
            raise MigrationError("source and destination are the same saver; nothing was done")

    def all_threads(self, thread_ids: Iterable[str] | None, *, verify: bool, restore_deleted: bool) -> MigrationReport:
        counts = _named_counts(self._source, thread_ids)
        total, done = sum(number for _, number in counts.values()), 0
        reports: list[ThreadReport] = []
        errors: list[Exception] = []
        for position, (thread_id, (source_id, expected)) in enumerate(counts.items()):
            at = Progress(thread_id, position, len(counts), done, total)
            here = 0

            def tell(there: int, of: int, at: Progress = at, expected: int = expected) -> None:
                nonlocal here
                here = there
                before, others = at.checkpoints_done, at.checkpoints_total - expected
                self._tell(at._replace(checkpoints_done=before + there, checkpoints_total=others + of))

            copy = ThreadCopy(self._source, source_id, self._destination, thread_id, stop=self._stop)
            try:
                report = copy.run(tell, verify=verify, restore_deleted=restore_deleted)
            except TurnCheckpointError as error:
                errors.append(error)
                if _concerns_all(error):
                    break
            else:
                reports.append(report)
                total += report.checkpoints - expected
            done += here
            self._tell(Progress(thread_id, position + 1, len(counts), done, total))
        found = MigrationReport(tuple(reports), verify)
        if errors:
            raise _summed_up(errors, len(counts), found) from errors[0]
        return found

    def _tell(self, at: Progress) -> None:
        if self._progress is not None:
            self._progress(at)


def _named_counts(source: Origin, thread_ids: Iterable[str] | None) -> dict[str, tuple[Any, int]]:
    """The threads to copy: by the id they will have, the id in the source and how many checkpoints there are.

    Raises:
        MigrationError: The source has not all of them, or has two that would get the same id.
    """
    wanted = None if thread_ids is None else _ids(thread_ids)
    if wanted is not None and not source.counts_threads:
        return {thread_id: (thread_id, 0) for thread_id in wanted}
    counts: dict[str, tuple[Any, int]] = {}
    for source_id, number in sorted(source.thread_counts().items(), key=lambda entry: str(entry[0])):
        if str(source_id) in counts:
            raise MigrationError("the source has two threads of this id, a string and another type", str(source_id))
        counts[str(source_id)] = source_id, number
    if wanted is None:
        return counts
    if unknown := [thread_id for thread_id in wanted if thread_id not in counts]:
        raise MigrationError(f"the source has no thread {_list(unknown)}; nothing was copied")
    return {thread_id: counts[thread_id] for thread_id in wanted}


def _ids(thread_ids: Iterable[str]) -> list[str]:
    return [thread_ids] if isinstance(thread_ids, str) else list(dict.fromkeys(map(str, thread_ids)))


def _concerns_all(error: TurnCheckpointError) -> bool:
    """Whether the next thread would fare no better: the disk is full, say."""
    return isinstance(error, StorageError) and not isinstance(error, DamagedCheckpointError | UnknownFormatError)


def _summed_up(errors: list[Exception], number: int, report: MigrationReport) -> MigrationError:
    lines = "".join(f"\n- {error}" for error in errors[:NAMED_THREADS])
    more = f"\n- and {len(errors) - NAMED_THREADS} more" if len(errors) > NAMED_THREADS else ""
    left = number - len(report.threads)
    reason = f"{left} of {number} threads could not be copied, or not be checked:{lines}{more}"
    return MigrationError(reason, None, tuple(errors), report)


def _list(thread_ids: list[str]) -> str:
    more = ", ..." if len(thread_ids) > NAMED_THREADS else ""
    return ", ".join(map(repr, thread_ids[:NAMED_THREADS])) + more
