"""Blocking work for async callers: where it runs, and when its caller may be told that it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_turncheckpoint import TurnCheckpointSaver, _files
from langgraph_turncheckpoint._offload import WORKERS, offload

#: What is to happen has happened long before that; only what must not happen is waited for.
A_WHILE = 0.3
HANG_SECONDS = 30.0


class Blocking:
    """An operation that stands still until it is let go, and notes when it has ended."""

    def __init__(self, *, raises: Exception | None = None) -> None:
        self.started, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()
        self._raises = raises

    def __call__(self) -> str:
        self.started.set()
        assert self.release.wait(HANG_SECONDS)
        self.ended.set()
        if self._raises is not None:
            raise self._raises
        return "done"


async def started(operation: Blocking) -> None:
    await asyncio.to_thread(operation.started.wait, HANG_SECONDS)


async def test_what_the_operation_returns_is_returned():
    assert await offload(lambda *args, **kwargs: (args, kwargs), 1, 2, three=3) == ((1, 2), {"three": 3})


async def test_what_the_operation_raises_is_raised():
    def fail() -> None:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        await offload(fail)


async def test_the_operation_sees_the_context_of_its_caller():
    """Callbacks and tracers travel in context variables."""
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    assert await offload(variable.get) == "the caller's"


async def test_the_loop_goes_on_while_the_operation_blocks():
    operation = Blocking()
    task = asyncio.create_task(offload(operation))
    await started(operation)
    assert not task.done()
    operation.release.set()
    assert await task == "done"


async def test_a_cancelled_caller_is_told_only_when_the_operation_has_ended():
    """When the caller sees `CancelledError`, nothing is still being written."""
    operation, seen = Blocking(), []

    async def caller() -> None:
        try:
            await offload(operation)
        finally:
            seen.append(operation.ended.is_set())

    task = asyncio.create_task(caller())
    await started(operation)
    task.cancel()
    await asyncio.wait([task], timeout=A_WHILE)
    assert not task.done()
    operation.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [True]


async def test_a_caller_cancelled_again_and_again_waits_all_the_same():
    operation = Blocking()
    task = asyncio.create_task(offload(operation))
    await started(operation)
    for _ in range(20):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    operation.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert operation.ended.is_set()


async def test_a_caller_whose_time_is_up_waits_all_the_same():
    """`asyncio.wait_for` cancels, too."""
    operation = Blocking()
    timed = asyncio.create_task(asyncio.wait_for(offload(operation), timeout=0.01))
    await asyncio.wait([timed], timeout=A_WHILE)
    assert not timed.done()
    operation.release.set()
    with pytest.raises(asyncio.TimeoutError):
        await timed
    assert operation.ended.is_set()


async def test_the_cancellation_wins_over_what_the_operation_raised():
    """And nothing is left behind that would be reported as never retrieved: warnings are errors here."""
    operation = Blocking(raises=ZeroDivisionError("late"))
    task = asyncio.create_task(offload(operation))
    await started(operation)
    task.cancel()
    await asyncio.sleep(0)
    operation.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def set_when_cancelled(event: threading.Event) -> None:
    """A task that tells when its loop ends: by then every task of the loop has been cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        event.set()


def test_a_loop_that_ends_with_tasks_running_waits_for_their_operations():
    """`asyncio.run` cancels every task of the loop at its end, whichever they are; a write must not outlive it."""
    told = threading.Event()
    operation_saw: list[bool] = []
    running, loop_ends = threading.Event(), threading.Event()

    def operation() -> None:
        running.set()
        assert loop_ends.wait(HANG_SECONDS)
        operation_saw.append(told.wait(A_WHILE))

    async def caller() -> None:
        try:
            await offload(operation)
        finally:
            told.set()

    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(caller()), asyncio.create_task(set_when_cancelled(loop_ends))]
        await asyncio.to_thread(running.wait, HANG_SECONDS)
        return tasks

    tasks = asyncio.run(main())
    assert [task.cancelled() for task in tasks] == [True, True]
    assert operation_saw == [False]


async def test_an_app_whose_default_executor_is_full_can_still_save():
    """A save must not wait for slow tools, which may wait for it."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    hold = threading.Event()
    slow_tool = loop.run_in_executor(None, hold.wait, HANG_SECONDS)
    name = await asyncio.wait_for(offload(lambda: threading.current_thread().name), HANG_SECONDS)
    assert name.startswith("turncheckpoint")
    hold.set()
    assert await slow_tool


async def test_as_many_operations_as_there_are_workers_run_at_once():
    meet = threading.Barrier(WORKERS)
    assert sorted(await asyncio.gather(*(offload(meet.wait, HANG_SECONDS) for _ in range(WORKERS)))) == list(
        range(WORKERS)
    )


class Log(TypedDict, total=False):
    log: list[Any]


def graph_of(saver: Any) -> Any:
    async def node(state: Log) -> Log:
        return {"log": [*state["log"], "node"]}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


@pytest.fixture(scope="module")
def module_graph(tmp_path_factory):
    """Built once, outside any loop, as a module does at import."""
    return graph_of(TurnCheckpointSaver(tmp_path_factory.mktemp("store")))


async def use(graph: Any, thread: str, times: int) -> list[Any]:
    """Runs the graph and everything async of its saver on a thread."""
    config: Any = {"configurable": {"thread_id": thread}}
    saver = graph.checkpointer
    for _ in range(times):
        state = await graph.aget_state(config)
        await graph.ainvoke({"log": state.values.get("log", [])}, config)
    found = [each async for each in saver.alist(config)]
    await saver.aprune([thread])
    assert len([each async for each in saver.alist(config)]) == 1
    assert len(found) > times
    log: list[Any] = (await graph.aget_state(config)).values["log"]
    return log


def test_one_saver_serves_three_loops_one_after_the_other(module_graph):
    """C37: three `asyncio.run` calls."""
    for number in range(1, 4):
        assert asyncio.run(use(module_graph, "in turn", 2)) == ["node"] * 2 * number


def test_one_saver_serves_the_loops_of_two_threads_at_once(module_graph):
    """C37: each thread has a loop of its own, and a third one is used by nobody but the main thread."""
    meet = threading.Barrier(2)

    def run(thread: str) -> list[Any]:
        async def main() -> list[Any]:
            await asyncio.to_thread(meet.wait, HANG_SECONDS)
            return await use(module_graph, thread, 5)

        return asyncio.run(main())

    with ThreadPoolExecutor(2) as pool:
        logs = [pool.submit(run, name) for name in ("left", "right")]
        assert [log.result(HANG_SECONDS) for log in logs] == [["node"] * 5] * 2
    assert asyncio.run(use(module_graph, "left", 1)) == ["node"] * 6


def test_a_loop_that_was_closed_in_the_middle_of_a_save_does_not_harm_the_next(tmp_path, monkeypatch):
    """C37: the save ends, whole or not at all, and the saver goes on in a new loop."""
    saver = TurnCheckpointSaver(tmp_path)
    reached, loop_ends, real = threading.Event(), threading.Event(), _files.replace_file

    def slow(*args: Any, **kwargs: Any) -> None:
        reached.set()
        assert loop_ends.wait(HANG_SECONDS)
        real(*args, **kwargs)

    monkeypatch.setattr(_files, "replace_file", slow)
    config: Any = {"configurable": {"thread_id": "main", "checkpoint_ns": ""}}
    checkpoint = empty_checkpoint()

    async def leave() -> list[asyncio.Task[Any]]:
        save = asyncio.create_task(saver.aput(config, checkpoint, {}, {}))
        witness = asyncio.create_task(set_when_cancelled(loop_ends))
        await asyncio.to_thread(reached.wait, HANG_SECONDS)
        return [save, witness]

    assert [task.cancelled() for task in asyncio.run(leave())] == [True, True]
    found = asyncio.run(saver.aget_tuple(config))
    assert found is not None
    assert found.checkpoint["id"] == checkpoint["id"]
    assert saver.verify() == []
