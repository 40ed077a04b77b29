"""The end of a graph is told to who listens, once, with its error and whether it has paused."""

from __future__ import annotations

import asyncio
import operator
import os
import threading
import warnings
from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_turncheckpoint import _run_ends
from langgraph_turncheckpoint._run_ends import STEP_TAG, RunEnds, run_ends


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[BaseException | None, bool]] = []

    def __call__(self, error: BaseException | None, paused: bool) -> None:
        self.calls.append((error, paused))


def started(ends: RunEnds, parent: UUID | None = None, *, tags: list[str] | None = None) -> UUID:
    """A graph, a chain, or whatever else is no node."""
    run_id = uuid4()
    ends.on_chain_start(None, None, run_id=run_id, parent_run_id=parent, tags=tags)
    return run_id


def node_of(ends: RunEnds, graph: UUID) -> UUID:
    """A node of a graph."""
    return started(ends, graph, tags=["mine", f"{STEP_TAG}3"])


def test_the_end_is_told_once():
    ends, heard = RunEnds(), Heard()
    graph = started(ends)
    assert ends.listen(node_of(ends, graph), 1, heard)
    ends.on_chain_end(None, run_id=graph)
    ends.on_chain_end(None, run_id=graph)
    assert heard.calls == [(None, False)]


def test_an_error_is_handed_on():
    ends, heard, error = RunEnds(), Heard(), ValueError("x")
    graph = started(ends)
    ends.listen(node_of(ends, graph), 1, heard)
    ends.on_chain_error(error, run_id=graph)
    assert heard.calls == [(error, False)]


def test_the_end_of_a_part_is_not_the_end():
    ends, heard = RunEnds(), Heard()
    graph = started(ends)
    node = node_of(ends, graph)
    part = started(ends, node, tags=["seq:step:1"])
    assert ends.listen(part, 1, heard)
    ends.on_chain_end(None, run_id=part)
    ends.on_chain_error(ValueError(), run_id=node)
    assert heard.calls == []
    ends.on_chain_end(None, run_id=graph)
    assert heard.calls == [(None, False)]


def test_of_graphs_in_graphs_the_one_so_many_levels_up_is_meant():
    ends, heard = RunEnds(), [Heard(), Heard(), Heard()]
    graphs, node = [], None
    for _ in range(3):
        graphs.append(started(ends, node))
        node = node_of(ends, graphs[-1])
    for depth in (1, 2, 3):
        assert ends.listen(node, depth, heard[3 - depth])
    assert not ends.listen(node, 4, Heard())
    for graph in reversed(graphs):
        ends.on_chain_end(None, run_id=graph)
    assert [each.calls for each in heard] == [[(None, False)]] * 3
    # What listens three levels up is not told when the innermost graph ends.
    assert ends._listeners == {}


def test_a_graph_that_a_tool_calls_ends_before_the_graph_of_the_tool():
    ends, inner_heard, outer_heard = RunEnds(), Heard(), Heard()
    outer, call = started(ends), uuid4()
    node = node_of(ends, outer)
    ends.on_tool_start(None, "", run_id=call, parent_run_id=node)
    inner = started(ends, call)
    assert ends.listen(node_of(ends, inner), 1, inner_heard)
    assert ends.listen(call, 1, outer_heard)
    ends.on_chain_end(None, run_id=inner)
    assert (len(inner_heard.calls), len(outer_heard.calls)) == (1, 0)
    ends.on_tool_error(ValueError(), run_id=call)
    assert outer_heard.calls == []
    ends.on_chain_end(None, run_id=outer)
    assert (len(inner_heard.calls), len(outer_heard.calls)) == (1, 1)


def test_a_pause_anywhere_in_a_graph_is_a_pause_of_it():
    ends, inner_heard, outer_heard, other = RunEnds(), Heard(), Heard(), Heard()
    outer, elsewhere = started(ends), started(ends)
    node = node_of(ends, outer)
    inner = started(ends, node)
    inner_node = node_of(ends, inner)
    ends.listen(inner_node, 1, inner_heard)
    ends.listen(inner_node, 2, outer_heard)
    ends.listen(node_of(ends, elsewhere), 1, other)
    ends.on_chain_error(GraphInterrupt(()), run_id=inner_node)
    for graph in (inner, outer, elsewhere):
        ends.on_chain_end(None, run_id=graph)
    assert inner_heard.calls == outer_heard.calls == [(None, True)]
    assert other.calls == [(None, False)]


def test_several_listeners_are_all_told():
    ends, heard = RunEnds(), Heard()
    graph = started(ends)
    node = node_of(ends, graph)
    ends.listen(node, 1, heard)
    ends.listen(node, 1, heard)
    ends.on_chain_end(None, run_id=graph)
    assert heard.calls == [(None, False)] * 2


@pytest.mark.parametrize("unknown", [None, uuid4()])
def test_a_run_that_is_not_known_cannot_be_listened_to(unknown):
    assert not RunEnds().listen(unknown, 1, Heard())


def test_a_graph_that_is_over_or_a_chain_without_a_node_cannot_be_listened_to():
    ends = RunEnds()
    graph = started(ends)
    node = node_of(ends, graph)
    assert not ends.listen(graph, 1, Heard())
    ends.on_chain_end(None, run_id=graph)
    assert not ends.listen(node, 1, Heard())


def test_runs_that_never_end_are_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr(_run_ends, "RUNS_KEPT", 10)
    ends, heard = RunEnds(), Heard()
    first = started(ends)
    lost = node_of(ends, first)
    ends.listen(lost, 1, heard)
    graphs = [started(ends) for _ in range(5)]
    nodes = [node_of(ends, graph) for graph in graphs]
    assert not ends.listen(lost, 1, heard)
    assert all(ends.listen(node, 1, Heard()) for node in nodes)
    ends.on_chain_end(None, run_id=first)
    assert heard.calls == []
    assert len(ends._parents) <= 10
    assert set(ends._listeners) == set(graphs)


def test_nothing_of_a_run_that_ended_is_kept():
    ends = RunEnds()
    graph = started(ends)
    for _ in range(100):
        ends.on_chain_end(None, run_id=node_of(ends, graph))
    node = node_of(ends, graph)
    ends.listen(node, 1, Heard())
    ends.on_chain_error(GraphInterrupt(()), run_id=node)
    ends.on_chain_end(None, run_id=graph)
    assert (len(ends._parents), ends._listeners, ends._paused, ends._nodes, ends._tasks) == (0, {}, set(), {}, {})


def test_the_run_of_a_node_is_found_by_its_task_while_it_lasts():
    ends = RunEnds()
    first, again = uuid4(), uuid4()
    named = {"langgraph_checkpoint_ns": "model:1"}
    for run_id in (first, again):  # a run that is dispatched again has the same tasks
        ends.on_chain_start(None, None, run_id=run_id, tags=[f"{STEP_TAG}1"], metadata=named)
    ends.on_chain_start(None, None, run_id=uuid4(), metadata=named)
    assert ends.node_of("model:1") == again
    assert ends.node_of("") is ends.node_of("model:2") is None
    ends.on_chain_end(None, run_id=first)
    assert ends.node_of("model:1") == again
    ends.on_chain_end(None, run_id=again)
    assert ends.node_of("model:1") is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_waits_for_no_lock_and_ends_no_run_of_its_parents():
    ends, heard = run_ends(), Heard()
    graph = started(ends)
    assert ends.listen(node_of(ends, graph), 1, heard)
    with ends._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads about
        child = os.fork()
        if child == 0:
            is_free = ends._lock.acquire(timeout=5)
            if is_free:
                ends._lock.release()
                ends.on_chain_end(None, run_id=graph)
            os._exit(0 if is_free and not heard.calls else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ends.on_chain_end(None, run_id=graph)
    assert heard.calls == [(None, False)]


def test_runs_of_many_threads_do_not_disturb_each_other():
    ends = RunEnds()
    heard = [Heard() for _ in range(8)]

    def work(mine: Heard) -> None:
        for _ in range(50):
            graph = started(ends)
            ends.listen(node_of(ends, graph), 1, mine)
            ends.on_chain_end(None, run_id=graph)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(mine.calls) for mine in heard] == [50] * 8


# --- the handler of this process ---


class State(TypedDict):
    total: Annotated[int, operator.add]


def graph_of(work: Callable[..., Any]) -> Any:
    return StateGraph(State).add_node("work", work).add_edge(START, "work").compile()


def test_there_is_one_handler_and_it_joins_every_run_of_a_graph():
    """This is what LangGraph's tag of a node's run is for; it fails when LangGraph renames it."""
    ends = run_ends()
    assert run_ends() is ends
    heard = Heard()
    seen: list[Any] = []

    def after(state: State) -> None:
        seen.append("after")

    def work(state: State, config: RunnableConfig) -> State:
        manager: Any = config["callbacks"]
        assert any(handler is ends for handler in manager.handlers)
        assert ends.listen(manager.parent_run_id, 1, heard)
        seen.append(len(heard.calls))
        return {"total": 1}

    assert graph_of(work).invoke({"total": 1}) == {"total": 2}
    assert heard.calls == [(None, False)]
    assert asyncio.run(graph_of(work).ainvoke({"total": 1})) == {"total": 2}
    assert heard.calls == [(None, False)] * 2
    chain = RunnableLambda(lambda state: state) | graph_of(work) | RunnableLambda(after)
    chain.invoke({"total": 1})
    assert len(heard.calls) == 3
    assert seen == [0, 1, 2, "after"]


def test_a_new_thread_has_the_handler_too():
    ends, found = run_ends(), []

    def look(_: Any, config: RunnableConfig) -> None:
        manager: Any = config["callbacks"]
        found.append(any(handler is ends for handler in manager.handlers))

    worker = threading.Thread(target=lambda: RunnableLambda(look).invoke(None))
    worker.start()
    worker.join()
    assert found == [True]


def test_a_graph_in_a_node_and_a_graph_in_a_tool_end_for_themselves():
    ends, heard, order = run_ends(), {"inner": Heard(), "outer": Heard()}, []

    def inner_work(state: State, config: RunnableConfig) -> State:
        manager: Any = config["callbacks"]
        assert ends.listen(manager.parent_run_id, 1, heard["inner"])
        return {"total": 1}

    @tool
    def ask() -> int:
        """Ask another graph."""
        return int(graph_of(inner_work).invoke({"total": 0})["total"])

    def outer_work(state: State, config: RunnableConfig) -> State:
        manager: Any = config["callbacks"]
        assert ends.listen(manager.parent_run_id, 1, heard["outer"])
        ask.invoke({})
        order.append((len(heard["inner"].calls), len(heard["outer"].calls)))
        graph_of(inner_work).invoke({"total": 0})
        order.append((len(heard["inner"].calls), len(heard["outer"].calls)))
        return {"total": 1}

    graph_of(outer_work).invoke({"total": 0})
    assert order == [(1, 0), (2, 0)]
    assert len(heard["outer"].calls) == 1
