"""Turns by hand in one process: busy threads and the four strategies, rollbacks, ends and their records."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.errors import GraphRecursionError

from langgraph_turncheckpoint import (
    DamageWarning,
    InvalidIdError,
    StaleTurnError,
    StorageError,
    ThreadBusyError,
    ThreadClosedError,
    TurnCheckpointSaver,
    _files,
    _turns,
)
from langgraph_turncheckpoint._journal import is_live, journal_path, journal_tokens, read_journal
from langgraph_turncheckpoint._runs import TURN_KEY
from langgraph_turncheckpoint._turn import CAUSES, STRATEGIES
from langgraph_turncheckpoint._turn_log import TurnLog
from langgraph_turncheckpoint._turns import is_misplaced, parse_journal_header
from langgraph_turncheckpoint._waiting import ticket_numbers
from tests.contract.test_turn_cases import COLOURS, MAIN, answering, call, found_at, one_node, put
from tests.system_calls import SystemCalls, substituted

HANG_SECONDS = 30.0


def log_of(saver: Any, config: Any = MAIN) -> list[Any]:
    """What the graph's state holds now."""
    return list(answering(saver).get_state(config).values.get("log", []))


def states(saver: TurnCheckpointSaver) -> list[tuple[int, str, str | None]]:
    """Token, state and cause of each turn, newest first."""
    return [(record.token, record.state, record.cause) for record in saver.turns("main")]


def files_of_turns(saver: TurnCheckpointSaver) -> list[str]:
    """Journals and tickets of the thread."""
    names = _files.list_directory(saver._store.generation_dir("main"))
    return sorted(name for name in names if name.startswith(("j-", "q-")))


@contextmanager
def held(saver: TurnCheckpointSaver, colour: str = "sync", **kwargs: Any) -> Iterator[Any]:
    """A block of a turn, in a loop of its own if it is asynchronous."""
    block = saver.turn(MAIN, **kwargs)
    if colour == "sync":
        with block as config:
            yield config
        return
    loop = asyncio.new_event_loop()
    try:
        config = loop.run_until_complete(block.__aenter__())
        try:
            yield config
        except BaseException as error:
            loop.run_until_complete(block.__aexit__(type(error), error, error.__traceback__))
            raise
        loop.run_until_complete(block.__aexit__(None, None, None))
    finally:
        loop.close()


async def seen(condition: Callable[[], bool]) -> None:
    """Wait until others, of which some are threads, have come so far."""
    while not condition():  # noqa: ASYNC110 - what they do sets no event
        await asyncio.sleep(0.001)


# --- is it busy ---


@COLOURS
def test_a_thread_is_busy_while_a_block_lasts_and_not_after(saver, colour):
    """C33, for this saver and any other one on the directory."""
    other = TurnCheckpointSaver(saver.path)
    assert not call(colour, saver, "is_busy", "main")
    with held(saver, colour) as config:
        answering(saver).invoke({"log": ["x"]}, config)
        assert call(colour, saver, "is_busy", "main")
        assert other.is_busy("main")
        assert not other.is_busy("another")
    assert not call(colour, other, "is_busy", "main")
    assert files_of_turns(saver) == []


def test_a_plain_run_makes_nobody_wait(saver):
    seen = []

    def node(state: Any) -> Any:
        seen.append(saver.is_busy("main"))
        with pytest.raises(ThreadBusyError), saver.turn(MAIN), saver.turn(MAIN, multitask_strategy="reject"):
            pass
        return {}

    with pytest.raises(StaleTurnError):
        one_node(saver, node).invoke({"log": ["x"]}, MAIN, durability="sync")
    assert seen == [False]


@pytest.mark.parametrize("event", ["cancel", "close", "delete", "put", "copy"])
def test_a_thread_whose_turn_was_fenced_out_is_not_busy(saver, event):
    put(saver, {"configurable": {"thread_id": "source", "checkpoint_ns": ""}})
    with saver.turn(MAIN) as config:
        answering(saver).invoke({"log": ["x"]}, config)
        if event == "cancel":
            saver.cancel_turn("main")
        elif event == "close":
            saver.close_thread("main")
        elif event == "delete":
            saver.delete_thread("main")
        elif event == "copy":
            saver.copy_thread("source", "main")
        else:
            put(saver)
        assert not saver.is_busy("main")
    assert not saver.is_busy("main")
    assert [name for name in files_of_turns(saver) if name.startswith("q-")] == []


def test_a_block_that_nobody_refers_to_any_more_is_still_a_turn_and_can_be_taken_over(saver):
    saver.turn(MAIN).__enter__()
    assert saver.is_busy("main")
    with saver.turn(MAIN) as config:
        answering(saver).invoke({"log": ["x"]}, config)
    assert not saver.is_busy("main")


# --- strategies ---


@COLOURS
def test_an_interrupting_turn_takes_over_and_the_older_one_is_refused(saver, colour):
    """C29, C34: by default; the late answer of the older turn never appears."""
    with held(saver) as older:
        answering(saver).invoke({"log": ["older"]}, older)
        with held(saver, colour) as newer:
            with pytest.raises(StaleTurnError):
                answering(saver).invoke({"log": ["late"]}, older)
            answering(saver, "newer").invoke({"log": ["x"]}, newer)
        with pytest.raises(StaleTurnError):
            put(saver, {"configurable": {**older["configurable"], "checkpoint_ns": ""}})
    assert log_of(saver) == ["older", "done", "x", "newer"]
    assert states(saver) == [(2, "completed", None), (1, "superseded", "superseded")]


@COLOURS
def test_a_rejected_turn_changes_nothing(saver, colour):
    with saver.turn(MAIN) as config:
        with pytest.raises(ThreadBusyError) as caught, held(saver, colour, multitask_strategy="reject"):
            raise AssertionError
        assert (caught.value.thread_id, caught.value.token, caught.value.waited) == ("main", 1, 0.0)
        assert "'main'" in str(caught.value)
        assert len(saver.turns("main")) == 1
        answering(saver).invoke({"log": ["x"]}, config)
    with held(saver, colour, multitask_strategy="reject") as config:
        answering(saver).invoke({"log": ["y"]}, config)
    assert log_of(saver) == ["x", "done", "y", "done"]


@COLOURS
def test_a_turn_in_line_gives_up_when_its_time_is_over_and_leaves_no_ticket(saver, colour):
    with saver.turn(MAIN) as config:
        with pytest.raises(ThreadBusyError) as caught, held(saver, colour, multitask_strategy="enqueue", timeout=0.03):
            raise AssertionError
        assert caught.value.waited >= 0.03
        assert "after waiting" in str(caught.value)
        assert files_of_turns(saver) == ["j-1.journal"]
        answering(saver).invoke({"log": ["x"]}, config)
    assert states(saver) == [(1, "completed", None)]


def wait_for_tickets(saver: TurnCheckpointSaver, count: int) -> None:
    directory, deadline = saver._store.generation_dir("main"), threading.Event()
    while len(ticket_numbers(directory)) < count:
        assert not deadline.wait(0.001)


def test_who_waits_is_served_in_order(saver):
    """T5: in order of arrival, whatever the colour."""
    order: list[int] = []

    def wait(number: int) -> None:
        with held(saver, "async" if number % 2 else "sync", multitask_strategy="enqueue", timeout=HANG_SECONDS):
            order.append(number)
            assert saver.is_busy("main")

    with ThreadPoolExecutor(8) as pool:
        with saver.turn(MAIN):
            results = []
            for number in range(8):
                results.append(pool.submit(wait, number))
                wait_for_tickets(saver, number + 1)
            assert order == []
        for result in results:
            result.result(HANG_SECONDS)
    assert order == list(range(8))
    assert files_of_turns(saver) == []
    assert {record.state for record in saver.turns("main")} == {"completed"}


def test_who_waits_first_is_not_overtaken_by_who_comes_when_the_thread_is_free(saver, monkeypatch):
    """The newcomer finds the thread free, and stands behind the one who waits all the same."""
    first = saver._store.pending_turn("main", strategy="enqueue", timeout=None)
    with saver.turn(MAIN):
        assert first.attempt() is None
    second = saver._store.pending_turn("main", strategy="enqueue", timeout=None)
    assert second.attempt() is None
    turn = first.attempt()
    assert turn is not None
    assert second.attempt() is None
    saver._store.settle_turn("main", turn, "completed")
    turn = second.attempt()
    assert turn is not None
    saver._store.settle_turn("main", turn, "completed")
    assert files_of_turns(saver) == []


def test_who_waits_hears_that_the_thread_was_closed(saver):
    waiting = [saver._store.pending_turn("main", strategy="enqueue", timeout=None) for _ in range(2)]
    with saver.turn(MAIN):
        assert [pending.attempt() for pending in waiting] == [None, None]
        saver.close_thread("main")
        for pending in waiting:
            with pytest.raises(ThreadClosedError):
                pending.attempt()
            pending.abandon()
    assert files_of_turns(saver) == []


@pytest.mark.parametrize("event", ["delete", "copy"])
def test_who_waits_goes_on_waiting_in_the_next_life_of_the_thread(saver, event):
    put(saver, {"configurable": {"thread_id": "source", "checkpoint_ns": ""}})
    pending = saver._store.pending_turn("main", strategy="enqueue", timeout=None)
    with saver.turn(MAIN):
        assert pending.attempt() is None
        if event == "delete":
            saver.delete_thread("main")
        else:
            saver.copy_thread("source", "main")
        with saver.turn(MAIN):
            assert pending.attempt() is None
    turn = pending.attempt()
    assert turn is not None
    saver._store.settle_turn("main", turn, "completed")
    assert files_of_turns(saver) == []


def test_a_cancelled_waiter_leaves_the_line(saver):
    async def scenario() -> None:
        async def wait() -> None:
            async with saver.turn(MAIN, multitask_strategy="enqueue"):
                raise AssertionError

        async with saver.turn(MAIN):
            task = asyncio.create_task(wait())
            await seen(lambda: len(ticket_numbers(saver._store.generation_dir("main"))) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert files_of_turns(saver) == ["j-1.journal"]

    asyncio.run(scenario())


def test_a_turn_that_was_opened_for_a_cancelled_waiter_is_given_back(saver, monkeypatch):
    """The cancellation hides that the last attempt gave a turn."""
    opening, cancelled = threading.Event(), threading.Event()
    real = _turns._open

    def slow(*args: Any, **kwargs: Any) -> Any:
        turn = real(*args, **kwargs)
        opening.set()
        assert cancelled.wait(HANG_SECONDS)
        return turn

    async def scenario() -> None:
        async def enter() -> None:
            async with saver.turn(MAIN):
                raise AssertionError

        task = asyncio.create_task(enter())
        await seen(opening.is_set)
        task.cancel()
        await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(_turns, "_open", slow)
    asyncio.run(scenario())
    assert not saver.is_busy("main")
    assert states(saver) == [(1, "cancelled", "unknown")]
    assert files_of_turns(saver) == []


def test_waiters_occupy_no_thread_while_they_wait(saver):
    """More tasks wait than there are threads for blocking work, and others work on meanwhile."""

    async def scenario() -> None:
        async def wait() -> None:
            async with saver.turn(MAIN, multitask_strategy="enqueue"):
                pass

        async with saver.turn(MAIN) as config:
            tasks = [asyncio.create_task(wait()) for _ in range(40)]
            await seen(lambda: len(ticket_numbers(saver._store.generation_dir("main"))) == 40)
            await answering(saver).ainvoke({"log": ["x"]}, config)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))
    assert files_of_turns(saver) == []


# --- C32: twenty runs on one thread ---


def add(saver: TurnCheckpointSaver, number: int, **kwargs: Any) -> None:
    with saver.turn(MAIN, **kwargs) as config:
        answering(saver).invoke({"log": [number]}, config)


async def aadd(saver: TurnCheckpointSaver, number: int, **kwargs: Any) -> None:
    async with saver.turn(MAIN, **kwargs) as config:
        await answering(saver).ainvoke({"log": [number]}, config)


@COLOURS
def test_of_twenty_runs_in_line_none_is_lost(saver, colour):
    """C32: all twenty inputs are in the final state."""
    kwargs = {"multitask_strategy": "enqueue", "timeout": HANG_SECONDS}
    if colour == "sync":
        with ThreadPoolExecutor(20) as pool:
            for result in [pool.submit(add, saver, number, **kwargs) for number in range(20)]:
                result.result(HANG_SECONDS)
    else:

        async def all_of_them() -> None:
            await asyncio.gather(*(aadd(saver, number, **kwargs) for number in range(20)))

        asyncio.run(all_of_them())
    log = log_of(saver)
    assert sorted(log[::2]) == list(range(20))
    assert set(log[1::2]) == {"done"}
    assert [state for _, state, _ in states(saver)] == ["completed"] * 20


@COLOURS
def test_of_twenty_runs_that_reject_one_succeeds(saver, colour):
    """C32: the other nineteen hear that the thread is busy."""
    if colour == "sync":
        refused = threading.Semaphore(0)

        def node(state: Any) -> Any:
            for _ in range(19):
                assert refused.acquire(timeout=HANG_SECONDS)
            return {"log": ["done"]}

        graph = one_node(saver, node)

        def run(number: int) -> str:
            try:
                with saver.turn(MAIN, multitask_strategy="reject") as config:
                    graph.invoke({"log": [number]}, config)
            except ThreadBusyError:
                refused.release()
                return "busy"
            return "done"

        with ThreadPoolExecutor(20) as pool:
            outcomes = list(pool.map(run, range(20)))
    else:

        async def all_of_them() -> list[str]:
            refused = asyncio.Semaphore(0)

            async def node(state: Any) -> Any:
                for _ in range(19):
                    await asyncio.wait_for(refused.acquire(), HANG_SECONDS)
                return {"log": ["done"]}

            graph = one_node(saver, node)

            async def run(number: int) -> str:
                try:
                    async with saver.turn(MAIN, multitask_strategy="reject") as config:
                        await graph.ainvoke({"log": [number]}, config)
                except ThreadBusyError:
                    refused.release()
                    return "busy"
                return "done"

            return await asyncio.gather(*map(run, range(20)))

        outcomes = asyncio.run(all_of_them())
    assert sorted(outcomes) == ["busy"] * 19 + ["done"]
    assert len(log_of(saver)) == 2


# --- rollback ---


@COLOURS
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_rollback_starts_before_the_older_turns_input(saver, colour, durability):
    answering(saver).invoke({"log": ["before"]}, MAIN)
    before = log_of(saver)
    with saver.turn(MAIN) as older:
        answering(saver).invoke({"log": ["to be undone"]}, older)
        written = len(list(saver.list(MAIN)))
        block = saver.turn(MAIN, multitask_strategy="rollback")
        with block as newer:
            assert block.base == newer["configurable"][TURN_KEY]["base"] != ""
            assert log_of(saver, newer) == before
            result = call(
                colour, answering(saver, "instead"), "invoke", {"log": ["again"]}, newer, durability=durability
            )
            assert result["log"] == [*before, "again", "instead"]
            assert log_of(saver, newer) == log_of(saver) == result["log"]
            # A second run of the turn goes on from the first.
            result = call(colour, answering(saver, "more"), "invoke", {"log": ["and"]}, newer)
            assert result["log"] == [*before, "again", "instead", "and", "more"]
    assert log_of(saver) == result["log"]
    assert len(list(saver.list(MAIN))) > written
    assert states(saver)[:2] == [(3, "completed", None), (2, "superseded", "superseded")]


def test_a_rollback_of_a_threads_first_turn_starts_from_nothing(saver):
    with saver.turn(MAIN) as older:
        answering(saver).invoke({"log": ["to be undone"]}, older)
        with saver.turn(MAIN, multitask_strategy="rollback") as newer:
            assert saver.get_tuple(newer) is None
            assert saver.get_delta_channel_history(config=newer, channels=["log"]) == {"log": {"writes": []}}
            assert answering(saver).invoke({"log": ["x"]}, newer)["log"] == ["x", "done"]
    assert log_of(saver) == ["x", "done"]


def test_a_rollback_of_a_rollback_goes_back_as_far(saver):
    answering(saver).invoke({"log": ["before"]}, MAIN)
    with saver.turn(MAIN) as first:
        answering(saver).invoke({"log": ["1"]}, first)
        with saver.turn(MAIN, multitask_strategy="rollback") as second:
            answering(saver).invoke({"log": ["2"]}, second)
            with saver.turn(MAIN, multitask_strategy="rollback") as third:
                assert answering(saver).invoke({"log": ["3"]}, third)["log"] == ["before", "done", "3", "done"]


def test_a_thread_that_is_not_busy_is_not_rolled_back(saver):
    add(saver, 1)
    answering(saver).invoke({"log": [2]}, MAIN)
    block = saver.turn(MAIN, multitask_strategy="rollback")
    with block as config:
        assert block.base is None
        assert "base" not in config["configurable"][TURN_KEY]
        answering(saver).invoke({"log": [3]}, config)
    assert log_of(saver) == [1, "done", 2, "done", 3, "done"]


def test_a_rollback_that_writes_nothing_undoes_nothing(saver):
    with saver.turn(MAIN) as older:
        answering(saver).invoke({"log": ["stays"]}, older)
        with saver.turn(MAIN, multitask_strategy="rollback"):
            pass
    assert log_of(saver) == ["stays", "done"]


def test_pruning_leaves_what_a_rollback_starts_from(saver):
    answering(saver).invoke({"log": ["before"]}, MAIN)
    with saver.turn(MAIN) as older:
        for number in range(3):
            answering(saver).invoke({"log": [number]}, older)
        with saver.turn(MAIN, multitask_strategy="rollback") as newer:
            saver.prune(["main"])
            assert answering(saver).invoke({"log": ["x"]}, newer)["log"] == ["before", "done", "x", "done"]


def test_a_rollback_reaches_every_namespace(saver):
    inner = {"configurable": {"thread_id": "main", "checkpoint_ns": "inner:1"}}
    old = put(saver, inner, value="old")
    put(saver)
    with saver.turn(MAIN) as older:
        at = {"configurable": {**older["configurable"], **old["configurable"]}}
        put(saver, at, value="newer")
        put(saver, {"configurable": {**older["configurable"], "checkpoint_ns": "inner:2"}}, value="only newer")
        with saver.turn(MAIN, multitask_strategy="rollback") as newer:
            seen = {"configurable": {**newer["configurable"], "checkpoint_ns": "inner:1"}}
            assert found_at(saver, seen).checkpoint["channel_values"] == {"value": "old"}
            assert found_at(saver, inner).checkpoint["channel_values"] == {"value": "newer"}
            assert saver.get_tuple({"configurable": {**newer["configurable"], "checkpoint_ns": "inner:2"}}) is None


# --- ends and their records ---


ENDS = [
    (None, "completed", None),
    (ValueError(), "failed", "error"),
    (GraphRecursionError(), "failed", "limit"),
    (asyncio.CancelledError(), "cancelled", "unknown"),
    (GeneratorExit(), "cancelled", "unknown"),
    (SystemExit(), "cancelled", "unknown"),
    (KeyboardInterrupt(), "cancelled", "user"),
    (StaleTurnError("main", 1, 2), "superseded", "superseded"),
]


@COLOURS
@pytest.mark.parametrize(("error", "state", "cause"), ENDS, ids=lambda value: type(value).__name__)
def test_the_end_of_a_block_says_how_its_turn_ended(saver, colour, error, state, cause):
    block = saver.turn(MAIN)
    if colour == "sync":
        block.__enter__()
        block.__exit__(type(error), error, None)
    else:

        async def scenario() -> None:
            await block.__aenter__()
            await block.__aexit__(type(error), error, None)

        asyncio.run(scenario())
    assert states(saver) == [(1, state, cause)]
    assert saver._store.settle_cause("main", 1) == (state, cause)
    assert not saver.is_busy("main")


def test_a_turn_that_was_settled_before_its_end_keeps_what_was_said(saver):
    block = saver.turn(MAIN)
    with block as config:
        answering(saver).invoke({"log": ["x"]}, config)
        block.settle("paused")
        block.settle("failed", "error")
        assert not saver.is_busy("main")
        with pytest.raises(StaleTurnError):
            answering(saver).invoke({"log": ["late"]}, config)
    assert states(saver) == [(1, "paused", None)]
    assert log_of(saver) == ["x", "done"]


@pytest.mark.parametrize("reason", CAUSES)
@COLOURS
def test_a_cancelled_turn_says_why(saver, colour, reason):
    with saver.turn(MAIN) as config:
        call(colour, saver, "cancel_turn", "main", reason=reason)
        with pytest.raises(StaleTurnError):
            answering(saver).invoke({"log": ["x"]}, config)
    assert states(saver) == [(1, "cancelled", reason)]


def test_an_unknown_reason_is_refused_and_nothing_is_cancelled(saver):
    with saver.turn(MAIN):
        with pytest.raises(ValueError, match="'restart', 'user'"):
            saver.cancel_turn("main", reason="because")
        assert saver.is_busy("main")


def test_a_cancelled_plain_run_says_why_too(saver):
    def node(state: Any) -> Any:
        saver.cancel_turn("main", reason="user")
        return {}

    with pytest.raises(StaleTurnError):
        one_node(saver, node).invoke({"log": ["x"]}, MAIN, durability="sync")
    assert states(saver) == [(1, "cancelled", "user")]


def test_closing_a_thread_cancels_what_runs_and_says_nothing_of_what_may_have_ended(saver):
    answering(saver).invoke({"log": ["x"]}, MAIN)
    saver.close_thread("main")
    saver.reopen_thread("main")
    with saver.turn(MAIN):
        saver.close_thread("main")
    assert [entry[1:] for entry in states(saver)] == [("cancelled", "unknown"), ("completed", None)]


def test_a_turn_ends_superseded_when_a_write_outside_any_turn_fenced_it_out(saver):
    with saver.turn(MAIN):
        put(saver)
        assert states(saver) == [(1, "superseded", "superseded")]
    assert states(saver) == [(1, "superseded", "superseded")]


def test_a_deleted_thread_has_no_turns(saver):
    with saver.turn(MAIN) as config:
        answering(saver).invoke({"log": ["x"]}, config)
        saver.delete_thread("main")
        assert saver.turns("main") == []
    assert saver.turns("main") == []
    assert saver.thread_ids() == []


@COLOURS
def test_records_tell_times_lineage_and_the_checkpoints_that_are_left(saver, colour):
    started = datetime.now(timezone.utc)
    answering(saver).invoke({"log": ["plain"]}, MAIN)
    with saver.turn(MAIN) as config:
        answering(saver).invoke({"log": ["x"]}, config)
        with saver.turn(config) as continued:
            answering(saver).invoke({"log": ["y"]}, continued)
    put(saver, found_at(saver).config)
    third, second, first = call(colour, saver, "turns", "main")
    ids: dict[int, list[str]] = {1: [], 2: [], 3: []}
    for found in saver.list(MAIN):
        checkpoint_id = found.checkpoint["id"]
        loaded = saver._store.by_id("main", "", checkpoint_id)
        assert loaded is not None
        if loaded.token:
            ids[loaded.token].insert(0, checkpoint_id)
    for record in (first, second, third):
        assert (record.first_checkpoint_id, record.last_checkpoint_id) == (ids[record.token][0], ids[record.token][-1])
    assert (first.continues, second.continues, third.continues) == (None, None, 2)
    assert (first.state, second.state, third.state) == ("completed", "superseded", "completed")
    assert (first.announced, second.announced, third.announced) == (False, True, True)
    assert started <= first.opened_at <= second.opened_at <= third.opened_at <= datetime.now(timezone.utc)
    assert first.settled_at is None
    assert third.settled_at is not None
    assert third.settled_at >= third.opened_at
    assert [record.token for record in call(colour, saver, "turns", "main", limit=2)] == [3, 2]
    assert saver.turns("main", limit=0) == saver.turns("main", limit=-1) == []
    saver.prune(["main"])
    assert {(record.first_checkpoint_id, record.last_checkpoint_id) for record in saver.turns("main")} == {(None, None)}


def test_a_turn_that_wrote_nothing_has_no_checkpoints(saver):
    with saver.turn(MAIN):
        (record,) = saver.turns("main")
        assert (record.state, record.first_checkpoint_id, record.last_checkpoint_id) == ("running", None, None)
    assert saver.turns("nobody") == []


def test_a_damaged_log_tells_what_is_sound_and_warns_once(saver):
    for number in range(3):
        add(saver, number)
    path = Path(saver._store.generation_dir("main")) / "turns"
    path.write_bytes(path.read_bytes().replace(b"opened", b"?pened", 1))
    with pytest.warns(DamageWarning, match="log of the turns") as caught:
        records = saver.turns("main")
    assert len(caught) == 1
    assert [record.token for record in records] == [5, 3]
    assert [(Path(finding.path).name, finding.kind) for finding in saver.verify()] == [("turns", "damaged")]


def test_a_log_that_cannot_be_written_stops_no_turn(saver, monkeypatch):
    """What cannot be logged is lost, and nothing else."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise StorageError(errno.ENOSPC, "no space", "turns")

    monkeypatch.setattr(TurnLog, "append", refuse)
    add(saver, 1)
    answering(saver).invoke({"log": [2]}, MAIN)
    assert log_of(saver) == [1, "done", 2, "done"]
    assert saver.turns("main") == []


# --- what else a block is ---


def test_the_four_strategies_are_named_where_another_is_asked_for(saver):
    with pytest.raises(ValueError, match="queue") as caught:
        saver.turn(MAIN, multitask_strategy="queue")
    assert all(repr(name) in str(caught.value) for name in STRATEGIES)


@pytest.mark.parametrize("strategy", ["interrupt", "reject", "rollback"])
def test_a_timeout_for_who_does_not_wait_is_refused(saver, strategy):
    with pytest.raises(ValueError, match="enqueue"):
        saver.turn(MAIN, multitask_strategy=strategy, timeout=1.0)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_that_is_no_time_is_refused(saver, timeout):
    with pytest.raises(ValueError, match="seconds"):
        saver.turn(MAIN, multitask_strategy="enqueue", timeout=timeout)


def test_the_turn_of_another_thread_is_refused_with_advice(saver):
    with saver.turn(MAIN) as config:
        with pytest.raises(InvalidIdError, match="outside that turn") as caught:
            saver.turn({"configurable": {**config["configurable"], "thread_id": "another"}})
        assert caught.value.name == "turn"


def test_a_block_can_be_used_again_but_not_twice_at_once(saver):
    block = saver.turn(MAIN)
    with block:
        with pytest.raises(RuntimeError, match="open already"):
            block.__enter__()
        assert saver.is_busy("main")
    with block:
        assert block.token > 1
    assert block.thread_id == "main"
    assert [state for _, state, _ in states(saver)] == ["completed", "completed"]


def test_a_journal_that_was_written_to_stays_and_a_blank_one_goes(saver):
    block = saver.turn(MAIN)
    with block:
        assert block.journal is not None
        assert block.journal.append(b"record", sync=True)
        path = block.journal.path
        assert is_live(path)
    assert not is_live(path)
    content = read_journal(path)
    assert content is not None
    assert content.payloads == [b"record"]
    with saver.turn(MAIN):
        assert files_of_turns(saver) == [f"j-{block.token}.journal", f"j-{saver.turns('main')[0].token}.journal"]
    assert files_of_turns(saver) == [f"j-{block.token}.journal"]
    assert saver.verify() == []


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_header_of_a_journal_names_the_thread_unless_the_store_is_encrypted(tmp_path, monkeypatch, encrypted):
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16) if encrypted else None
    saver = TurnCheckpointSaver(tmp_path, serde=serde)
    head = put(saver)["configurable"]["checkpoint_id"]
    block = saver.turn(MAIN)
    with block:
        assert block.journal is not None
        content = read_journal(block.journal.path)
        assert content is not None
        assert content.header is not None
        header = parse_journal_header(content.header)
    assert header.thread_id == (None if encrypted else "main")
    assert (header.opened.token, header.opened.start) == (block.token, head)


def test_a_turn_that_cannot_be_marked_is_not_opened_and_fences_nobody_out(saver, monkeypatch):
    with saver.turn(MAIN) as config:

        def fault(position: int, name: str) -> int | None:
            made = calls.calls[-1][1] if calls.calls else ""
            return errno.ENOSPC if name == "open" and str(made).endswith(".journal") and "j-2" in str(made) else None

        calls = SystemCalls(fault)
        with substituted(calls), pytest.raises(StorageError):
            saver.turn(MAIN).__enter__()
        answering(saver).invoke({"log": ["x"]}, config)
        assert saver.is_busy("main")
    assert log_of(saver) == ["x", "done"]
    assert files_of_turns(saver) == []


def test_a_token_whose_journal_is_there_already_is_passed_over(saver):
    """As a process leaves it that died before it had raised the token, or a ledger restored from a backup."""
    put(saver)
    leftover = Path(journal_path(saver._store.generation_dir("main"), 2))
    leftover.write_bytes(b"of somebody else")
    block = saver.turn(MAIN)
    with block:
        assert block.token == 3
    assert leftover.read_bytes() == b"of somebody else"


def test_blank_journals_of_dead_turns_do_not_pile_up(saver, monkeypatch):
    monkeypatch.setattr(_turns, "JOURNALS_KEPT", 4)
    directory = ""
    for _ in range(20):
        block = saver.turn(MAIN)
        block.__enter__()
        directory = saver._store.generation_dir("main")
        assert block.journal is not None
        block.journal.close()  # as if the process had died
    assert len(journal_tokens(directory)) <= 6
    assert {state for _, state, _ in states(saver)} == {"interrupted"}


def test_an_inherited_config_of_the_turn_needs_no_second_sync_of_the_token(saver):
    with saver.turn(MAIN) as config:
        turn = saver._store.explicit_turn("main", config["configurable"][TURN_KEY]["token"])
        assert turn.durable
        assert turn.journal is not None
        assert turn.journal.is_open


def test_what_a_dead_waiter_left_is_found_and_goes_with_the_next_one(saver):
    put(saver)
    ticket = Path(saver._store.generation_dir("main")) / "q-3"
    ticket.touch()
    (finding,) = saver.verify()
    assert (finding.path, finding.kind) == (str(ticket), "temporary")
    add(saver, 1, multitask_strategy="enqueue", timeout=HANG_SECONDS)
    assert saver.verify() == []


def test_a_journal_of_the_source_comes_along_as_that_of_a_dead_turn_and_those_of_the_target_stay(saver):
    source: Any = {"configurable": {"thread_id": "source"}}
    block = saver.turn(source)
    with block as config:
        answering(saver).invoke({"log": ["x"]}, config)
        assert block.journal is not None
        block.journal.append(b"of the source", sync=False)
    other = saver.turn(MAIN)
    with other:
        assert other.journal is not None
        other.journal.append(b"of the target", sync=False)
    assert states(saver) == [(1, "completed", None)]
    saver.copy_thread("source", "main")
    assert states(saver) == [(3, "completed", None), (1, "completed", None)]
    for token, payload in ((1, b"of the target"), (3, b"of the source")):
        path = journal_path(saver._store.generation_dir("main"), token)
        content = read_journal(path)
        assert content is not None
        assert content.payloads == [payload]
        assert content.header is not None
        assert not is_misplaced(content.header, token=token, thread_id="main")
        assert not is_live(path)
    assert log_of(saver) == ["x", "done"]
    with saver.turn(MAIN) as config:
        assert config["configurable"][TURN_KEY]["token"] == 5
    assert saver.stats().threads == 2


def test_a_thread_with_turns_and_no_checkpoint_is_not_listed(saver):
    with saver.turn(MAIN):
        assert saver.thread_ids() == []
        assert list(saver.list(None)) == []
        saver.copy_thread("main", "other")
    assert saver.stats()[:2] == (0, 0)
    assert saver.verify() == []


# --- what the guard builds on ---


def test_a_plain_run_can_be_marked_and_settled_without_fencing_what_it_still_writes(saver):
    store, control = saver._store, object()
    put(saver)
    turn = store.run_turn(control, "main", base="")
    assert states(saver) == [(2, "unknown", None)]
    journal = store.mark_run("main", turn, continues=1)
    assert store.mark_run("main", turn) is journal is turn.journal
    assert turn.durable
    assert saver.is_busy("main")
    assert states(saver) == [(2, "running", None)]
    assert saver.turns("main")[0].continues == 1
    with pytest.raises(ThreadBusyError):
        store.open_turn("main", strategy="reject")
    store.settle_turn("main", turn, "paused", None, raise_token=False)
    assert not saver.is_busy("main")
    assert os.path.exists(journal.path)
    assert states(saver) == [(2, "paused", None)]
    store.check_turn("main", turn)
    assert not journal.append(b"late", sync=True)


def test_a_superseded_run_cannot_be_marked(saver):
    turn = saver._store.run_turn(object(), "main", base="")
    saver._store.run_turn(object(), "main", base="")
    with pytest.raises(StaleTurnError):
        saver._store.mark_run("main", turn)
    assert turn.journal is None
    saver.close_thread("main")
    with pytest.raises(ThreadClosedError):
        saver._store.mark_run("main", turn)


def test_a_marked_run_is_rolled_back_to_where_it_was_marked(saver):
    answering(saver).invoke({"log": ["before"]}, MAIN)

    def node(state: Any) -> Any:
        with saver.turn(MAIN, multitask_strategy="rollback") as config:
            assert answering(saver).invoke({"log": ["x"]}, config)["log"] == ["before", "done", "x", "done"]
        return {}

    graph = one_node(saver, node)
    store = saver._store
    real = store.run_turn

    def marked(control: object, thread_id: str, *, base: str) -> Any:
        turn = real(control, thread_id, base=base)
        if turn.journal is None:
            store.mark_run(thread_id, turn)
        return turn

    store.run_turn = marked
    with pytest.raises(StaleTurnError):
        graph.invoke({"log": ["to be undone"]}, MAIN, durability="sync")
    assert log_of(saver) == ["before", "done", "x", "done"]
