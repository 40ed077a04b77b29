"""When retention runs: what brings a thread up, in what order jobs are done, and how the thread that does them ends."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from langgraph_turncheckpoint import _housekeeping
from langgraph_turncheckpoint._housekeeping import Housekeeping, _Worker
from langgraph_turncheckpoint._retention import PUTS_BETWEEN, Retention
from tests.crash.processes import PATIENCE_SECONDS


class Place:
    """What a job needs of a store."""

    def __init__(self, root: str = "here") -> None:
        self.root = root


class Work:
    """A retention that notes what it is asked, and waits until it is let go where `held` names the thread."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.held = ""
        self.begun, self.go = threading.Event(), threading.Event()
        self.answer: Callable[[str], int] = lambda thread_id: 0

    def __call__(self, store: Any, thread_id: str, retention: Retention, **options: Any) -> int:
        if thread_id == self.held:
            self.begun.set()
            assert self.go.wait(PATIENCE_SECONDS)
        self.done.append(thread_id)
        return self.answer(thread_id)


@pytest.fixture
def worker(monkeypatch):
    worker = _Worker()
    monkeypatch.setattr(_housekeeping, "_worker", worker)
    yield worker
    worker.stop()


@pytest.fixture
def work():
    return Work()


def keeping(work: Callable[..., int]) -> Housekeeping:
    return Housekeeping(Retention(keep_last=1), retain=work)


def settled() -> None:
    assert _housekeeping.drain(PATIENCE_SECONDS)


def put(housekeeping: Housekeeping, *threads: str) -> None:
    for thread_id in threads:
        housekeeping.stored(Place(), thread_id)
        settled()


# --- when ---


def test_a_thread_is_looked_at_at_its_first_put_and_once_in_so_many(worker, work):
    housekeeping = keeping(work)
    looked: list[int] = []
    for n in range(1, 2 * PUTS_BETWEEN + 2):
        put(housekeeping, "1")
        if len(work.done) > len(looked):
            looked.append(n)
    assert looked == [1, 1 + PUTS_BETWEEN, 1 + 2 * PUTS_BETWEEN]


def test_each_thread_is_counted_alone(worker, work):
    housekeeping = keeping(work)
    put(housekeeping, *["1", "2"] * (PUTS_BETWEEN - 1))
    assert work.done == ["1", "2"]


def test_between_turns_a_thread_is_looked_at_where_it_never_was_or_has_changed(worker, work):
    housekeeping = keeping(work)
    for _ in range(2):
        housekeeping.between_turns(Place(), "1")
        settled()
    assert work.done == ["1"]  # what earlier processes have left
    put(housekeeping, "1")
    assert work.done == ["1"]
    housekeeping.between_turns(Place(), "1")
    settled()
    assert work.done == ["1", "1"]


def test_of_more_threads_than_are_counted_the_oldest_is_forgotten_and_looked_at_again(worker, work, monkeypatch):
    monkeypatch.setattr(_housekeeping, "COUNTED_LIMIT", 2)
    housekeeping = keeping(work)
    put(housekeeping, "1", "2", "3", "3", "2", "1")
    assert work.done == ["1", "2", "3", "1"]


# --- what fails ---


def test_a_failure_is_a_warning_once_per_thread_and_no_end_of_the_work(worker, work, caplog):
    def fail(thread_id: str) -> int:
        raise PermissionError(13, thread_id)

    caplog.set_level(logging.DEBUG, "langgraph_turncheckpoint")
    work.answer = fail
    housekeeping = keeping(work)
    for thread_id in ("1", "1", "2", "2", "1"):
        housekeeping._submit(Place(), thread_id)  # type: ignore[arg-type]
        settled()
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["WARNING", "DEBUG", "WARNING", "DEBUG", "DEBUG"]
    assert told[0][1] == "thread '1': old checkpoints could not be removed, and stay: PermissionError"


def test_of_more_failing_threads_than_are_remembered_the_oldest_is_warned_of_again(worker, work, caplog, monkeypatch):
    def fail(thread_id: str) -> int:
        raise OSError

    monkeypatch.setattr(_housekeeping, "COUNTED_LIMIT", 2)
    work.answer = fail
    housekeeping = keeping(work)
    for thread_id in ("1", "2", "3", "3", "1"):
        housekeeping._submit(Place(), thread_id)  # type: ignore[arg-type]
        settled()
    warned = [record.getMessage()[:10] for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["thread '1'", "thread '2'", "thread '3'", "thread '1'"]


def test_what_was_removed_is_told_to_who_debugs_and_nothing_is_told_of_nothing(worker, work, caplog):
    caplog.set_level(logging.DEBUG, "langgraph_turncheckpoint")
    work.answer = int
    put(keeping(work), "0", "7")
    assert [record.getMessage() for record in caplog.records] == ["thread '7': 7 old checkpoints removed"]


# --- in what order ---


@pytest.fixture
def held(worker, work):
    """A worker that is in the middle of a job."""
    work.held = "held"
    housekeeping = keeping(work)
    housekeeping.stored(Place(), "held")
    assert work.begun.wait(PATIENCE_SECONDS)
    yield housekeeping
    work.go.set()


def test_what_waits_is_done_in_order_and_not_twice(held, work):
    for thread_id in ("1", "2", "1", "3", "2"):
        held._submit(Place(), thread_id)
    work.go.set()
    settled()
    assert work.done == ["held", "1", "2", "3"]


def test_one_thread_in_two_stores_or_of_two_savers_is_looked_at_for_each(held, work):
    held._submit(Place("here"), "1")
    held._submit(Place("there"), "1")
    other = keeping(work)
    other._submit(Place("here"), "1")  # type: ignore[arg-type]
    work.go.set()
    settled()
    assert work.done == ["held", "1", "1", "1"]


def test_who_waits_for_the_end_waits_for_the_job_that_is_under_way(held, worker, work):
    assert not worker.drain(0.0)
    work.go.set()
    assert worker.drain(PATIENCE_SECONDS)
    assert work.done == ["held"]


def test_a_store_that_nobody_else_holds_may_go_while_the_thread_waits_for_more(worker, work, monkeypatch):
    monkeypatch.setattr(_housekeeping, "IDLE_SECONDS", 100 * PATIENCE_SECONDS)
    place, gone = Place(), threading.Event()
    weakref.finalize(place, gone.set)
    keeping(work).stored(place, "1")
    settled()
    del place
    assert gone.wait(PATIENCE_SECONDS)  # its thread lets go of it a moment after it has said that it is done


# --- the end ---


def test_stopping_forgets_what_waits_and_waits_for_what_is_under_way(worker):
    done: list[str] = []
    begun = threading.Event()

    def retain(store: Any, thread_id: str, retention: Retention, *, is_stopped: Callable[[], bool], **_: Any) -> int:
        begun.set()
        if not done:
            told = threading.Event()
            while not is_stopped():  # a retention asks between two batches
                told.wait(0.001)
        done.append(thread_id)
        return 0

    housekeeping = keeping(retain)
    housekeeping.stored(Place(), "1")
    assert begun.wait(PATIENCE_SECONDS)
    housekeeping.stored(Place(), "2")
    worker.stop()
    assert done == ["1"]
    housekeeping.stored(Place(), "3")
    assert worker._jobs == {}
    assert done == ["1"]


def test_stopping_ends_a_thread_that_has_nothing_to_do(worker, work):
    put(keeping(work), "1")
    thread = worker._thread
    worker.stop()
    assert worker._thread is None
    assert thread is None or not thread.is_alive()


def test_where_no_thread_can_be_started_nothing_fails_and_the_next_put_tries_again(worker, work, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    housekeeping = keeping(work)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        housekeeping.stored(Place(), "1")
        assert worker.drain(0.0)
    housekeeping.between_turns(Place(), "2")
    settled()
    assert work.done == ["2"]


def test_a_forked_child_waits_for_no_lock_of_its_parent(worker, work):
    housekeeping = keeping(work)
    with housekeeping._lock:
        _housekeeping._begin_anew()
        assert housekeeping._lock.acquire(blocking=False)
        fresh = housekeeping._lock
    fresh.release()
    assert _housekeeping._worker is not worker
    put(housekeeping, "1")
    assert work.done == ["1"]
    _housekeeping._worker.stop()


def test_a_thread_that_had_nothing_to_do_for_long_ends_and_the_next_job_starts_another(worker, work, monkeypatch):
    monkeypatch.setattr(_housekeeping, "IDLE_SECONDS", 0.0)
    housekeeping = keeping(work)
    for thread_id in ("1", "2"):
        housekeeping.stored(Place(), thread_id)
        thread = worker._thread
        settled()
        if thread is not None:
            thread.join(PATIENCE_SECONDS)
        assert worker._thread is None
    assert work.done == ["1", "2"]
