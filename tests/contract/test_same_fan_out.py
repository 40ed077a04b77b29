"""Parallel work behaves over our saver as over LangGraph's own: who wrote what, and in which order it counts."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script

ONE_AT_A_TIME = {"max_concurrency": 1}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    text: Annotated[str, operator.add]
    item: int


def _fan_out(work: Any, count: int) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("plan", lambda state: {"log": ["plan"]})
    builder.add_node("work", work)
    builder.add_node("join", lambda state: {"log": ["join"], "text": "."})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan", lambda state: [Send("work", {"item": number}) for number in range(count)], ["work"]
    )
    builder.add_edge("work", "join")
    builder.add_edge("join", END)
    return builder


def order_of_twelve_tasks(driver: Driver) -> None:
    builder = _fan_out(lambda state: {"log": [("done", state["item"])], "text": f"{state['item']} "}, 12)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": [], "text": ">"})
    graph.invoke({"log": ["again"], "text": ">"})


def finished_tasks_outlive_a_failing_one(driver: Driver) -> None:
    def work(state: Log) -> Log:
        if driver.effect(f"work {state['item']}") == 1 and state["item"] == 3:
            raise ValueError(f"item {state['item']} is not ready")
        return {"log": [("done", state["item"])], "text": f"{state['item']} "}

    builder = _fan_out(work, 4)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": [], "text": ""}, config=ONE_AT_A_TIME)
    graph.state()
    graph.invoke(None, config=ONE_AT_A_TIME)
    graph.state()


def a_new_message_after_a_failing_task(driver: Driver) -> None:
    def work(state: Log) -> Log:
        if driver.effect(f"work {state['item']}") == 1 and state["item"] == 2:
            raise ValueError("not ready")
        return {"log": [("done", state["item"])]}

    builder = _fan_out(work, 3)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["first"]}, config=ONE_AT_A_TIME)
    graph.invoke({"log": ["second"]}, config=ONE_AT_A_TIME)
    graph.state()


def fan_out_of_a_fan_out(driver: Driver) -> None:
    builder: StateGraph[Any] = StateGraph(Log)

    def split(state: Log) -> Command[Any]:
        item = state["item"]
        return Command(
            update={"log": [("split", item)]},
            goto=[Send("leaf", {"item": item * 10 + number}) for number in range(3)],
        )

    builder.add_node("split", split, destinations=("leaf",))
    builder.add_node("leaf", lambda state: {"log": [("leaf", state["item"])], "text": f"{state['item']} "})
    builder.add_node("join", lambda state: {"log": [f"joined after {len(state['log'])}"]}, defer=True)
    builder.add_conditional_edges(START, lambda state: [Send("split", {"item": n}) for n in range(3)], ["split"])
    builder.add_edge("leaf", "join")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": [], "text": ""})
    graph.state()


def branches_of_different_length_joined(driver: Driver) -> None:
    """The join waits for both; LangGraph counts in place who has arrived."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name in ("short", "long1", "long2", "long3", "join", "last"):
        builder.add_node(name, lambda state, name=name: {"log": [name]}, defer=name == "last")
    builder.add_edge(START, "short")
    builder.add_edge(START, "long1")
    builder.add_edge("long1", "long2")
    builder.add_edge("long2", "long3")
    builder.add_edge(["short", "long3"], "join")
    builder.add_edge("short", "last")
    builder.add_edge("join", "last")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []}, **driver.unhurried)
    graph.invoke({"log": ["again"]}, **driver.unhurried)


def paused_between_fan_out_and_join(driver: Driver) -> None:
    builder = _fan_out(lambda state: {"log": [("done", state["item"])]}, 5)
    graph = driver.graph(
        lambda saver: builder.compile(checkpointer=saver, interrupt_before=["work"], interrupt_after=["work"])
    )
    graph.invoke({"log": []})
    graph.state()
    graph.invoke(None)
    graph.state()
    graph.invoke(None)


def a_task_answered_from_outside(driver: Driver) -> None:
    """The result of one pending task is supplied by `update_state`; the others still run."""
    builder = _fan_out(lambda state: {"log": [("done", state["item"])]}, 3)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver, interrupt_before=["work"]))
    graph.invoke({"log": []})
    tasks = graph.state().tasks
    graph.update({"log": ["by hand"]}, as_node="work", task_id=tasks[1].id)
    graph.state()
    graph.invoke(None)
    graph.invoke(None)


SCRIPTS: tuple[Script, ...] = (
    order_of_twelve_tasks,
    finished_tasks_outlive_a_failing_one,
    a_new_message_after_a_failing_task,
    fan_out_of_a_fan_out,
    branches_of_different_length_joined,
    paused_between_fan_out_and_join,
    a_task_answered_from_outside,
)


@each_way(*SCRIPTS)
def test_parallel_work_is_the_same(
    script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool
) -> None:
    """An order-sensitive reducer sees the writes of parallel tasks in the order of the in-memory saver."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)
