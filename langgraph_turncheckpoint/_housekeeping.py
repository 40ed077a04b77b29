"""When retention runs: beside the writes, in a thread of its own that this process shares over all its savers. What may
go, and how it goes, is decided elsewhere.

A write only counts itself here. The thread starts with the first job and ends when it has had none for a while; the end
of the interpreter takes it along between two batches, and a forked child begins without it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from . import _upkeep
from ._events import UPKEEP, described
from ._retention import Retention, is_due
from ._store import Store

#: Seconds without a job after which the thread ends.
IDLE_SECONDS: Final = 10.0

#: Seconds that the end of the interpreter waits for the batch that is under way. A disk that hangs is not waited for:
#: a removal may be cut short at any point.
EXIT_SECONDS: Final = 2.0

#: Threads of the store whose puts are counted; one that is forgotten is looked at once too often.
COUNTED_LIMIT: Final = 4096

Retain: TypeAlias = Callable[..., int]


class Job(NamedTuple):
    """A thread that is to be looked at."""

    housekeeping: Housekeeping
    store: Store
    thread_id: str


class Housekeeping:
    """The retention of one saver, and its copies.

    Args:
        retention: What is kept.
        clock: Seconds since 1970.
        retain: Does the work.
    """

    def __init__(
        self, retention: Retention, *, clock: Callable[[], float] = time.time, retain: Retain = _upkeep.retain
    ) -> None:
        self.retention, self._clock, self._retain = retention, clock, retain
        self._puts: OrderedDict[str, int] = OrderedDict()
        self._failed: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        _all.add(self)

    def stored(self, store: Any, thread_id: str) -> None:
        """A checkpoint was put. Never fails and never waits for a file."""
        with self._lock:
            puts = self._puts.get(thread_id)
            self._puts[thread_id] = (puts or 0) + 1
            if len(self._puts) > COUNTED_LIMIT:
                self._puts.popitem(last=False)
        if is_due(puts=(puts or 0) + 1, looked=puts is not None, is_between_turns=False):
            self._submit(store, thread_id)

    def between_turns(self, store: Any, thread_id: str) -> None:
        """A turn has ended, or the next one begun. Never fails and never waits for a file."""
        puts = self._puts.get(thread_id)
        if is_due(puts=puts or 0, looked=puts is not None, is_between_turns=True):
            self._submit(store, thread_id)

    def reset_lock(self) -> None:
        """In a forked child: whoever held it does not exist there."""
        self._lock = threading.Lock()

    def _submit(self, store: Store, thread_id: str) -> None:
        with self._lock:
            self._puts[thread_id] = 0
        _worker.submit(Job(self, store, thread_id))

    def run(self, job: Job, is_stopped: Callable[[], bool]) -> None:
        """Look at one thread now. What fails is logged, once per thread as a warning, and left to the next time."""
        try:
            count = self._retain(job.store, job.thread_id, self.retention, clock=self._clock, is_stopped=is_stopped)
        except Exception as error:  # noqa: BLE001 - nobody waits for the outcome; the log is all there is
            with self._lock:
                is_known = job.thread_id in self._failed
                self._failed[job.thread_id] = None
                if len(self._failed) > COUNTED_LIMIT:
                    self._failed.popitem(last=False)
            level = logging.DEBUG if is_known else logging.WARNING
            text = "thread %r: old checkpoints could not be removed, and stay: %s"
            UPKEEP.log(level, text, job.thread_id, described(error))
        else:
            if count:
                UPKEEP.debug("thread %r: %d old checkpoints removed", job.thread_id, count)


class _Worker:
    """Does one job after the other. A thread of the store that is waiting already is not queued again."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._jobs: OrderedDict[tuple[int, str, str], Job] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._is_busy = self._is_stopped = False

    def submit(self, job: Job) -> None:
        with self._changed:
            if self._is_stopped:
                return
            self._jobs.setdefault((id(job.housekeeping), job.store.root, job.thread_id), job)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="turncheckpoint-upkeep", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the interpreter ends, or the system has no thread to give
                    self._thread = None
                    self._jobs.clear()
                    UPKEEP.debug("no retention now: %s", error)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to do; whether that was so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._jobs or self._is_busy), timeout)

    def stop(self) -> None:
        """Forget what is waiting, and wait a little for what is under way."""
        with self._changed:
            self._is_stopped = True
            self._jobs.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(EXIT_SECONDS)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait(IDLE_SECONDS)
                    if self._is_stopped or not self._jobs:
                        self._thread = None
                        return
                _, job = self._jobs.popitem(last=False)
                self._is_busy = True
            try:
                job.housekeeping.run(job, lambda: self._is_stopped)
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()
            del job  # a store that nobody else holds may go


def drain(timeout: float) -> bool:
    """Wait until no retention is under way or waiting in this process; whether that was so within `timeout` seconds."""
    return _worker.drain(timeout)


_all: weakref.WeakSet[Housekeeping] = weakref.WeakSet()
_worker = _Worker()


def _begin_anew() -> None:
    global _worker
    _worker = _Worker()
    for housekeeping in list(_all):
        housekeeping.reset_lock()


@atexit.register
def _stop() -> None:
    _worker.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
