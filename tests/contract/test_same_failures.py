"""Failing, retried, limited and abandoned runs behave over our saver as over LangGraph's own."""

from __future__ import annotations

import operator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from langgraph.errors import NodeError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script

AT_ONCE = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=ConnectionError)
ONE_AT_A_TIME = {"max_concurrency": 1}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    item: int


def _chain(*nodes: tuple[str, Any, dict[str, Any]]) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(Log)
    for name, node, options in nodes:
        builder.add_node(name, node, **options)
    builder.add_edge(START, nodes[0][0])
    for (before, *_), (after, *_) in pairwise(nodes):
        builder.add_edge(before, after)
    builder.add_edge(nodes[-1][0], END)
    return builder


def _noting(driver: Driver, name: str) -> Any:
    def node(state: Log) -> Log:
        driver.effect(name)
        return {"log": [name]}

    return node


def _failing(driver: Driver, name: str, times: int, error: Exception) -> Any:
    def node(state: Log) -> Log:
        if driver.effect(name) <= times:
            raise error
        return {"log": [name]}

    return node


def tried_again_until_it_works(driver: Driver) -> None:
    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        ("flaky", _failing(driver, "flaky", 2, ConnectionError("no line")), {"retry_policy": AT_ONCE}),
        ("last", _noting(driver, "last"), {}),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()


def tried_again_in_vain(driver: Driver) -> None:
    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        ("flaky", _failing(driver, "flaky", 4, ConnectionError("no line", 7)), {"retry_policy": AT_ONCE}),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke(None)
    graph.state()


def an_error_and_a_new_message(driver: Driver) -> None:
    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        ("flaky", _failing(driver, "flaky", 1, ValueError("bad \u00fc \ud83d\ude00 input")), {}),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke({"log": ["something else"]})
    graph.state()


def an_error_mended_by_an_edit(driver: Driver) -> None:
    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        ("broken", _failing(driver, "broken", 9, ValueError("always")), {}),
        ("last", _noting(driver, "last"), {}),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.update({"log": ["done by hand"]}, as_node="broken")
    graph.state()
    graph.invoke(None)


def an_error_in_the_very_first_node(driver: Driver) -> None:
    builder = _chain(("broken", _failing(driver, "broken", 1, KeyError("k")), {}))
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke(None)


def an_error_that_a_handler_mends(driver: Driver) -> None:
    def mend(state: Log, error: NodeError) -> Command[Any]:
        driver.effect("mend")
        return Command(update={"log": [f"{error.node}: {error.error!r}"]}, goto="last")

    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        ("broken", _failing(driver, "broken", 9, ValueError("always")), {"error_handler": mend}),
        ("last", _noting(driver, "last"), {}),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke({"log": ["again"]})


def an_error_that_a_handler_asks_about(driver: Driver) -> None:
    def ask(state: Log, error: NodeError) -> Log:
        driver.effect("ask")
        return {"log": [interrupt(f"what about {error.error!r}?")]}

    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        (
            "broken",
            _failing(driver, "broken", 9, ConnectionError("always")),
            {"error_handler": ask, "retry_policy": AT_ONCE},
        ),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke(Command(resume="forget it"))
    graph.state()


def an_error_that_its_handler_does_not_survive(driver: Driver) -> None:
    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        (
            "broken",
            _failing(driver, "broken", 9, ValueError("always")),
            {"error_handler": _failing(driver, "handler", 1, RuntimeError("the handler too"))},
        ),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke(None)
    graph.state()


def a_handler_among_parallel_tasks(driver: Driver) -> None:
    def work(state: Log) -> Log:
        driver.effect(f"work {state['item']}")
        if state["item"] % 2:
            raise ValueError(f"item {state['item']}")
        return {"log": [state["item"]]}

    def mend(state: Log, error: NodeError) -> Log:
        return {"log": [f"mended {error.error!r}"]}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("work", work, error_handler=mend)
    builder.add_node("join", _noting(driver, "join"))
    builder.add_conditional_edges(START, lambda state: [Send("work", {"item": n}) for n in range(4)], ["work"])
    builder.add_edge("work", "join")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]}, config=ONE_AT_A_TIME)
    graph.state()


def the_recursion_limit_reached(driver: Driver) -> None:
    builder = _chain(*((name, _noting(driver, name), {}) for name in "abcdef"))
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]}, config={"recursion_limit": 1})
    graph.state()
    graph.invoke(None, config={"recursion_limit": 2})
    graph.state()
    graph.invoke({"log": ["new"]}, config={"recursion_limit": 3})
    graph.invoke(None)
    graph.state()


def a_stream_left_at_each_of_its_chunks(driver: Driver) -> None:
    builder = _chain(*((name, _noting(driver, name), {}) for name in "abc"))
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    for chunks in (1, 2, 3):
        thread = f"left after {chunks}"
        graph.stream({"log": ["go"]}, stop_after=chunks, thread=thread)
        graph.state(thread=thread)
        graph.invoke(None, thread=thread)
        graph.stream({"log": ["new"]}, stop_after=chunks, thread=thread, mode="values")
        graph.invoke({"log": ["newer"]}, thread=thread)


def all_that_a_stream_tells(driver: Driver) -> None:
    builder = _chain(
        ("first", _noting(driver, "first"), {}),
        ("flaky", _failing(driver, "flaky", 1, ConnectionError("no line")), {"retry_policy": AT_ONCE}),
    )
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    for mode in ("values", "updates", "tasks"):
        graph.stream({"log": [mode]}, mode=mode)


SCRIPTS: tuple[Script, ...] = (
    tried_again_until_it_works,
    tried_again_in_vain,
    an_error_and_a_new_message,
    an_error_mended_by_an_edit,
    an_error_in_the_very_first_node,
    an_error_that_a_handler_mends,
    an_error_that_a_handler_asks_about,
    an_error_that_its_handler_does_not_survive,
    a_handler_among_parallel_tasks,
    the_recursion_limit_reached,
    a_stream_left_at_each_of_its_chunks,
    all_that_a_stream_tells,
)


@each_way(*SCRIPTS)
def test_failures_are_the_same(script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool) -> None:
    """A run that did not end well leaves behind what it leaves behind over the in-memory saver."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)
