"""Graphs inside graphs behave over our saver as over LangGraph's own, whatever namespace their state lives in."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    topic: str


class OnlyLog(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Inner(TypedDict, total=False):
    topic: str
    log: Annotated[list[Any], operator.add]
    turns: Annotated[int, operator.add]


def _one_node(name: str, node: Any, schema: Any = Log, output: Any = None) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(schema, output_schema=output)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder


def _asking(driver: Driver, name: str) -> Any:
    def node(state: Log) -> Log:
        driver.effect(f"{name} started")
        answer = interrupt({"from": name, "topic": state.get("topic")})
        driver.effect(f"{name} answered")
        return {"log": [(name, answer)]}

    return node


def _noting(driver: Driver, name: str) -> Any:
    def node(state: Log) -> Log:
        driver.effect(name)
        return {"log": [name]}

    return node


def _wrapped(driver: Driver, depth: int, bottom: Any) -> StateGraph[Any]:
    """A graph `depth` levels deep; each level notes itself before and after the level below."""
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("before", _noting(driver, f"before {depth}"))
    builder.add_node("after", _noting(driver, f"after {depth}"))
    below = bottom if depth == 1 else _wrapped(driver, depth - 1, bottom).compile()
    builder.add_node("below", below)
    builder.add_edge(START, "before")
    builder.add_edge("before", "below")
    builder.add_edge("below", "after")
    builder.add_edge("after", END)
    return builder


def a_pause_inside_a_subgraph(driver: Driver) -> None:
    inner = _one_node("ask", _asking(driver, "inner")).compile()
    outer = _wrapped(driver, 1, inner)
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    graph.invoke({"log": ["go"], "topic": "x"})
    graph.state(subgraphs=True)
    graph.invoke(Command(resume="yes"))
    graph.state(subgraphs=True)


def a_pause_in_a_subgraph_called_by_a_node(driver: Driver) -> None:
    inner = _one_node("ask", _asking(driver, "inner")).compile()

    def call(state: Log) -> Log:
        driver.effect("called")
        return {"log": inner.invoke({"topic": "called", "log": []})["log"]}

    outer = _wrapped(driver, 1, call)
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state(subgraphs=True)
    graph.invoke(Command(resume="yes"))
    graph.invoke({"log": ["second turn"]})
    graph.invoke(Command(resume="again"))


def a_subgraph_that_remembers(driver: Driver) -> None:
    def count(state: Inner) -> Inner:
        turns = state.get("turns", 0)
        return {"turns": 1, "log": [f"inner turn {turns}"]}

    inner = _one_node("count", count, Inner).compile(checkpointer=True)
    outer = _wrapped(driver, 1, inner)
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    for turn in range(3):
        graph.invoke({"log": [f"turn {turn}"]})
    graph.invoke({"log": ["elsewhere"]}, thread="other")


def a_subgraph_that_remembers_and_asks(driver: Driver) -> None:
    inner = _one_node("ask", _asking(driver, "inner"), Inner).compile(checkpointer=True)
    outer = _wrapped(driver, 1, inner)
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    for turn in range(2):
        graph.invoke({"log": [f"turn {turn}"], "topic": str(turn)})
        graph.state(subgraphs=True)
        graph.invoke(Command(resume=f"answer {turn}"))


def four_levels_and_a_pause_at_the_bottom(driver: Driver) -> None:
    outer = _wrapped(driver, 4, _asking(driver, "bottom"))
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    graph.invoke({"log": ["go"], "topic": "deep"})
    graph.state(subgraphs=True)
    graph.invoke(Command(resume="from the top"))
    graph.state(subgraphs=True)


def four_levels_that_remember(driver: Driver) -> None:
    def leaf(state: Inner) -> Inner:
        return {"turns": 1, "log": [f"leaf turn {state.get('turns', 0)}"]}

    level: Any = _one_node("leaf", leaf, Inner)
    for depth in range(3):
        level = _one_node(f"level{depth}", level.compile(checkpointer=True), Inner)
    graph = driver.graph(lambda saver: level.compile(checkpointer=saver))
    for turn in range(3):
        graph.invoke({"log": [f"turn {turn}"]})


def the_bottom_state_edited_while_paused(driver: Driver) -> None:
    outer = _wrapped(driver, 4, _asking(driver, "bottom"))
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    graph.invoke({"log": ["go"], "topic": "deep"})
    state = graph.state(subgraphs=True)
    while state.tasks and state.tasks[0].state is not None:
        state = state.tasks[0].state  # type: ignore[assignment]
    graph.update({"topic": "edited", "log": ["edit"]}, at=state.config)
    graph.state(subgraphs=True)
    graph.invoke(None)
    graph.invoke(Command(resume="yes"))


def a_pause_in_each_of_several_subgraphs(driver: Driver) -> None:
    inner = _one_node("ask", _asking(driver, "inner"), output=OnlyLog).compile()
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("inner", inner)
    builder.add_node("join", _noting(driver, "join"))
    builder.add_conditional_edges(
        START, lambda state: [Send("inner", {"topic": f"topic {number}"}) for number in range(3)], ["inner"]
    )
    builder.add_edge("inner", "join")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    asked = graph.state().interrupts
    graph.invoke(Command(resume={asked[1].id: "second first"}))
    graph.state()
    graph.invoke(Command(resume={each.id: f"answer to {each.value['topic']}" for each in asked}))


def two_subgraphs_side_by_side(driver: Driver) -> None:
    builder: StateGraph[Any] = StateGraph(Log)
    for name in ("left", "right"):
        builder.add_node(name, _one_node("ask", _asking(driver, name), output=OnlyLog).compile())
        builder.add_edge(START, name)
    builder.add_node("join", _noting(driver, "join"))
    builder.add_edge(["left", "right"], "join")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": [], "topic": "both"})
    asked = {each.value["from"]: each.id for each in graph.state(subgraphs=True).interrupts}
    graph.invoke(Command(resume={asked["right"]: "right answer"}))
    graph.invoke(Command(resume={asked["left"]: "left answer"}))


def back_in_time_inside_a_subgraph(driver: Driver) -> None:
    inner = _one_node("first", _noting(driver, "first"))
    inner.add_node("ask", _asking(driver, "inner"))
    inner.add_edge("first", "ask")
    outer = _wrapped(driver, 1, inner.compile())
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    graph.invoke({"log": ["go"], "topic": "x"})
    nested = graph.state(subgraphs=True).tasks[0].state
    assert nested is not None
    past = graph.history(at=nested.config)  # type: ignore[union-attr]
    graph.invoke(Command(resume="yes"))
    graph.invoke(None, at=past[-1].config)
    graph.state(subgraphs=True)
    fork = graph.update({"topic": "forked"}, at=past[0].config)
    graph.invoke(None, at=fork)


def back_in_time_before_a_subgraph(driver: Driver) -> None:
    inner = _one_node("ask", _asking(driver, "inner")).compile()
    outer = _wrapped(driver, 2, inner)
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    graph.invoke({"log": ["go"], "topic": "x"})
    graph.invoke(Command(resume="yes"))
    past = [state for state in graph.history() if state.next == ("below",)]
    for state in past[:1]:
        graph.invoke(None, at=state.config)
        graph.invoke(Command(resume="otherwise"))


def a_subgraph_that_sends_its_parent_elsewhere(driver: Driver) -> None:
    def leave(state: Log) -> Command[Any]:
        return Command(graph=Command.PARENT, goto="other", update={"log": ["from inside"]})

    inner = _one_node("leave", leave).compile()
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("inner", inner, destinations=("other",))
    builder.add_node("other", _noting(driver, "other"))
    builder.add_edge(START, "inner")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.invoke({"log": ["go again"]})


def a_subgraph_that_fails_and_is_run_again(driver: Driver) -> None:
    def flaky(state: Log) -> Log:
        if driver.effect("flaky") == 1:
            raise RuntimeError("not yet")
        return {"log": ["done"]}

    inner = _one_node("first", _noting(driver, "first"))
    inner.add_node("flaky", flaky)
    inner.add_edge("first", "flaky")
    outer = _wrapped(driver, 2, inner.compile())
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state(subgraphs=True)
    graph.invoke(None)
    graph.state(subgraphs=True)


SCRIPTS: tuple[Script, ...] = (
    a_pause_inside_a_subgraph,
    a_pause_in_a_subgraph_called_by_a_node,
    a_subgraph_that_remembers,
    a_subgraph_that_remembers_and_asks,
    four_levels_and_a_pause_at_the_bottom,
    four_levels_that_remember,
    the_bottom_state_edited_while_paused,
    a_pause_in_each_of_several_subgraphs,
    two_subgraphs_side_by_side,
    back_in_time_inside_a_subgraph,
    back_in_time_before_a_subgraph,
    a_subgraph_that_sends_its_parent_elsewhere,
    a_subgraph_that_fails_and_is_run_again,
)


@each_way(*SCRIPTS)
def test_subgraphs_are_the_same(script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool) -> None:
    """A subgraph keeps, resumes and forgets exactly what it does over the in-memory saver."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)
