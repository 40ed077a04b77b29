"""The commit protocol: what is done under a thread's lock to put a checkpoint and to add writes, in which order
and with which syncs. Decisions are `_turn`'s, bytes are `_records`'s; no LangGraph.

A turn's token is on the disk before the first write that it protects. Writes of several callers to one
thread are appended with one sync: whoever holds the lock takes along what others have queued meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from ._checkpoint_files import NamespaceFiles, Tail
from ._layout import CHECKPOINT_SUFFIX
from ._ledger import HeldLedger
from ._records import Section
from ._thread_files import ThreadFiles
from ._turn import LedgerEvent, advance, check_current, check_outside_turn
from ._turns import Turn, note_refusal
from .errors import StaleTurnError, StorageError, ThreadClosedError

#: Tails kept in memory; one that is not there is read from its file.
TAILS_LIMIT: Final = 512


class Committed(NamedTuple):
    """Where a put has gone."""

    first_blob: int
    epoch: int
    generation: int


class Target(NamedTuple):
    """Where a write goes.

    Attributes:
        thread: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint that is put, or that writes belong to.
        turn: The writer's turn; `None` outside any turn.
    """

    thread: ThreadFiles
    checkpoint_ns: str
    checkpoint_id: str
    turn: Turn | None


class WriteJob:
    """Writes of one task that wait to be appended.

    Args:
        target: The checkpoint, and who writes.
        task_id: The task.
        indexes: The index of each write; a negative one replaces, any other is kept if present.
        section_of: Builds the section for the writes at the given positions.
        read_head: If the writer got the checkpoint's id by asking for the latest, the newest id then.

    Attributes:
        first_blob: Where the blobs went; `None` if every write was there already.
        all_new: Whether all the writes are new and in the checkpoint's own file.
        namespace_path: The namespace's directory.
        done: Whether the job has been looked at; `error` is what came of it.
    """

    def __init__(
        self,
        target: Target,
        task_id: str,
        indexes: Sequence[int],
        section_of: Callable[[list[int]], Section],
        *,
        read_head: str | None,
    ) -> None:
        self.target, self.task_id, self.indexes, self.section_of = target, task_id, indexes, section_of
        self.read_head = read_head
        self.first_blob: int | None = None
        self.all_new = False
        self.namespace_path = ""
        self.done = False
        self.error: Exception | None = None


class _Queue:
    """Jobs for one thread. Whoever finds nobody busy does all of them; the others wait."""

    __slots__ = ("busy", "changed", "jobs")

    def __init__(self) -> None:
        self.jobs: list[WriteJob] = []
        self.busy = False
        self.changed = threading.Condition(threading.Lock())


class Commits:
    """Commits to the threads of one store. Shared by all savers of a directory in this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[tuple[str, bool], _Queue] = {}
        self._swept: OrderedDict[str, None] = OrderedDict()
        self._tails: OrderedDict[tuple[str, str], tuple[str, tuple[int, ...], Tail]] = OrderedDict()
        self._arriving: dict[tuple[str, str, str], threading.Event] = {}

    # --- checkpoints ---

    @contextmanager
    def arriving(self, target: Target) -> Iterator[None]:
        """While this is entered, writes of this process for the checkpoint wait for it.

        LangGraph hands over a checkpoint and the first writes on it at the same instant. Writes that win need a file
        of their own, which the checkpoint then has to take in: five waits for the disk in place of one.
        """
        key, arrived = _key(target), threading.Event()
        with self._guard:
            self._arriving[key] = arrived
        try:
            yield
        finally:
            with self._guard:
                if self._arriving.get(key) is arrived:
                    del self._arriving[key]
            arrived.set()

    def put(
        self,
        target: Target,
        parent_id: str | None,
        section: Section,
        *,
        built_on: tuple[int, int] | None,
        read_head: str | None,
        fsync: bool,
    ) -> Committed | None:
        """Commit a checkpoint.

        Args:
            target: The checkpoint; outside any turn the put opens one of its own.
            parent_id: The checkpoint it follows.
            section: Its body.
            built_on: Generation and epoch at which the pages it refers to were known to be there.
            read_head: If the writer got the parent's id by asking for the latest, the newest id then.
            fsync: Whether to wait for the disk.

        Returns:
            Where it went, or `None` if pages may have been removed since `built_on`: nothing was
            written, and the section must be built anew.

        Raises:
            StaleTurnError, ThreadClosedError: See `_turn`. Nothing was written.
            StorageError: The system refused. Nothing was written.
        """
        thread, checkpoint_ns, checkpoint_id, turn = target
        with thread.ledger.hold() as held:
            files = thread.namespace(held.state, checkpoint_ns)
            if turn is not None:
                self._admit(held, thread, turn, "put", fsync=fsync)
            else:
                check_outside_turn(
                    held.state,
                    thread_id=thread.thread_id,
                    named_id=parent_id,
                    named_exists=parent_id is not None and files.exists(parent_id),
                    read_head=read_head,
                    head_id=None if read_head is None else files.head_id(),
                )
            state = held.state
            if built_on is not None and built_on != (state.generation, state.epoch):
                return None
            if turn is None:
                held.write(advance(state, LedgerEvent.OPEN, thread_id=thread.thread_id))
                if fsync:
                    held.sync()
            else:
                turn.generation = state.generation
            self.sweep(thread, held)
            with held.committing():
                path, first_blob, tail = files.commit(checkpoint_id, section)
            self._remember(files, checkpoint_id, path, tail)
            return Committed(first_blob, state.epoch, state.generation)

    # --- writes ---

    def put_writes(self, job: WriteJob, *, fsync: bool) -> None:
        """Append writes; durable on return with `fsync`. `job.first_blob` is `None` if all were there.

        Raises:
            StaleTurnError, ThreadClosedError: See `_turn`. Nothing was written.
            StorageError: The system refused. Nothing was written.
        """
        key = job.target.thread.path, fsync  # a batch is synced or not as a whole
        with self._guard:
            arrived = self._arriving.get(_key(job.target))
        if arrived is not None:
            arrived.wait()  # whatever has become of it
        with self._guard:
            queue = self._queues.setdefault(key, _Queue())
            queue.jobs.append(job)
        try:
            leads = False
            try:
                with queue.changed:
                    while queue.busy and not job.done:
                        queue.changed.wait()
                    if not job.done:
                        queue.busy = leads = True
                if leads:
                    self._lead(queue, job, fsync=fsync)
            finally:
                if leads:
                    with queue.changed:
                        queue.busy = False
                        queue.changed.notify_all()
        finally:
            with self._guard:
                if job in queue.jobs:  # interrupted while waiting
                    queue.jobs.remove(job)
                if not queue.jobs and not queue.busy:
                    self._queues.pop(key, None)
        if job.error is not None:
            raise job.error

    def _lead(self, queue: _Queue, own: WriteJob, *, fsync: bool) -> None:
        with self._guard:
            batch, queue.jobs = queue.jobs, []
        try:
            self._append(own.target.thread, batch, fsync=fsync)
        finally:
            with self._guard:
                # Some are left undone only if this caller was interrupted: the others do theirs themselves.
                # What is in the file by then is not written twice.
                queue.jobs[:0] = [job for job in batch if not job.done and job is not own]

    def _append(self, thread: ThreadFiles, batch: list[WriteJob], *, fsync: bool) -> None:
        groups: dict[tuple[str, str], list[WriteJob]] = {}
        failed: Exception | None = None
        try:
            with thread.ledger.hold() as held:
                for job in batch:
                    try:
                        self._check_job(held, thread, job, fsync=fsync)
                    except Exception as error:  # noqa: BLE001 - raised again in its caller
                        job.error = error
                    else:
                        groups.setdefault(job.target[1:3], []).append(job)
                if groups:
                    self.sweep(thread, held)
                for (checkpoint_ns, checkpoint_id), jobs in groups.items():
                    try:
                        files = thread.namespace(held.state, checkpoint_ns)
                        with held.committing():
                            self._append_to(files, checkpoint_id, jobs)
                    except Exception as error:  # noqa: BLE001 - raised again in their callers
                        for job in jobs:
                            job.error = error
        except Exception as error:  # noqa: BLE001 - raised again in every caller
            failed = error
        for job in batch:
            job.error, job.done = job.error or failed, True

    def _check_job(self, held: HeldLedger, thread: ThreadFiles, job: WriteJob, *, fsync: bool) -> None:
        _, checkpoint_ns, checkpoint_id, turn = job.target
        if turn is not None:
            self._admit(held, thread, turn, "put_writes", fsync=fsync)
            return
        files = thread.namespace(held.state, checkpoint_ns)
        check_outside_turn(
            held.state,
            thread_id=thread.thread_id,
            named_id=checkpoint_id,
            named_exists=files.exists(checkpoint_id),
            read_head=job.read_head,
            head_id=None if job.read_head is None else files.head_id(),
        )

    def _append_to(self, files: NamespaceFiles, checkpoint_id: str, jobs: list[WriteJob]) -> None:
        path, tail = self._tail(files, checkpoint_id)
        sections, seen, number = [], {}, 0
        if tail is not None:
            seen, number = {task: set(indexes) for task, indexes in tail.seen.items()}, tail.next_blob
        for job in jobs:
            present = seen.setdefault(job.task_id, set())
            fresh = [position for position, index in enumerate(job.indexes) if index < 0 or index not in present]
            if not fresh:
                continue
            present.update(job.indexes)
            section = job.section_of(fresh)
            job.first_blob, job.namespace_path = number, files.path
            job.all_new = len(fresh) == len(job.indexes) and path.endswith(CHECKPOINT_SUFFIX)
            number += len(section.blobs)
            sections.append(section)
        if not sections:
            files.settle(path)  # who wrote them may have been killed before they were on the disk
            return
        self._tails.pop((files.path, checkpoint_id), None)
        if tail is None:
            files.start(checkpoint_id, sections)
        else:
            self._remember(files, checkpoint_id, path, files.append(path, tail, sections))

    def _tail(self, files: NamespaceFiles, checkpoint_id: str) -> tuple[str, Tail | None]:
        with self._guard:
            remembered = self._tails.get((files.path, checkpoint_id))
        if remembered is not None:
            path, signature, tail = remembered
            try:
                status = os.stat(path)
            except OSError:
                status = None
            if status is not None and _signature(status) == signature:
                return path, tail
        return files.tail(checkpoint_id)

    def _remember(self, files: NamespaceFiles, checkpoint_id: str, path: str, tail: Tail) -> None:
        if not path.endswith(CHECKPOINT_SUFFIX):
            return
        try:
            signature = _signature(os.stat(path))
        except OSError:
            return
        with self._guard:
            self._tails[files.path, checkpoint_id] = (path, signature, tail)
            self._tails.move_to_end((files.path, checkpoint_id))
            while len(self._tails) > TAILS_LIMIT:
                self._tails.popitem(last=False)

    def sweep(self, thread: ThreadFiles, held: HeldLedger) -> None:
        """Remove what a dead writer left behind: after a crash of its process, and once at our start."""
        with self._guard:
            is_known = thread.path in self._swept
            self._swept[thread.path] = None
            if len(self._swept) > TAILS_LIMIT:
                self._swept.popitem(last=False)
        if not is_known or held.was_interrupted:
            for files in thread.unnamed_namespaces(held.state):
                with suppress(StorageError):  # litter is no reason to refuse a write
                    files.sweep()
            held.was_interrupted = False

    @staticmethod
    def _admit(held: HeldLedger, thread: ThreadFiles, turn: Turn, operation: str, *, fsync: bool) -> None:
        state = held.state
        try:
            check_current(state, turn.token, thread_id=thread.thread_id)
        except (StaleTurnError, ThreadClosedError):
            note_refusal(thread, state, turn, operation)
            raise
        if turn.token > state.token:
            # The ledger was replaced by an older copy. Tokens still only grow.
            held.write(state._replace(token=turn.token))
            turn.durable = False
        if fsync and not turn.durable:
            held.sync()
            turn.durable = True


def _key(target: Target) -> tuple[str, str, str]:
    return target.thread.path, target.checkpoint_ns, target.checkpoint_id


def _signature(status: os.stat_result) -> tuple[int, ...]:
    """What changes when anybody else writes to a file."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
