"""Edits, forks and replays of a thread behave over our saver as over LangGraph's own."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import StateUpdate
from typing_extensions import TypedDict

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script, Subject


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    files: dict[str, Any]


def _abc(driver: Driver, **options: Any) -> Subject:
    """A graph of three nodes that each note their name."""
    builder: StateGraph[Any] = StateGraph(Log)

    def noting(name: str) -> Any:
        def node(state: Log) -> Log:
            count = driver.effect(name)
            return {"log": [f"{name}{count}"], "files": {**state.get("files", {}), name: {"runs": count}}}

        return node

    for name in "abc":
        builder.add_node(name, noting(name))
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    builder.add_edge("c", END)
    return driver.graph(lambda saver: builder.compile(checkpointer=saver, **options))


def edits_of_a_finished_thread(driver: Driver) -> None:
    graph = _abc(driver)
    graph.invoke({"log": ["go"]})
    graph.update({"log": ["as the last writer"]})
    graph.state()
    graph.update({"log": ["as a"]}, as_node="a")
    graph.state()
    graph.invoke(None)


def edits_of_a_thread_that_never_ran(driver: Driver) -> None:
    graph = _abc(driver)
    graph.state()
    graph.update({"log": ["as a"], "files": {"given": {"by": "hand"}}}, as_node="a")
    graph.state()
    graph.invoke(None)
    graph.update({"log": ["input"]}, as_node="__input__", thread="second")
    graph.state(thread="second")
    graph.invoke(None, thread="second")


def edits_that_end_or_copy(driver: Driver) -> None:
    graph = _abc(driver, interrupt_before=["b"])
    graph.invoke({"log": ["go"]})
    graph.update(None, as_node=END)
    graph.state()
    graph.invoke({"log": ["go again"]})
    graph.update(None, as_node="__copy__")
    graph.state()
    graph.update(None)
    graph.state()
    graph.invoke(None)


def edits_while_paused(driver: Driver) -> None:
    graph = _abc(driver, interrupt_before=["b"], interrupt_after=["b"])
    graph.invoke({"log": ["go"]})
    graph.update({"log": ["edit 1"]})
    graph.update({"log": ["edit 2"], "files": {}})
    graph.invoke(None)
    graph.update({"log": ["instead of c"]}, as_node="c")
    graph.state()
    graph.invoke(None)


def several_super_steps_at_once(driver: Driver) -> None:
    graph = _abc(driver)
    graph.bulk_update(
        [
            [StateUpdate({"log": ["imported question"]}, "__input__")],
            [StateUpdate({"log": ["imported a"]}, "a")],
            [StateUpdate({"log": ["imported b"]}, "b")],
            [StateUpdate({"log": ["imported c"]}, "c")],
        ]
    )
    graph.state()
    graph.invoke({"log": ["live"]})
    graph.bulk_update([[StateUpdate({"log": ["after"]}, "a")], [StateUpdate(None, "__copy__")]])
    graph.state()
    graph.invoke(None)


def several_edits_in_one_super_step(driver: Driver) -> None:
    builder: StateGraph[Any] = StateGraph(Log)
    for name in ("left", "right", "join"):
        builder.add_node(name, lambda state, name=name: {"log": [name]})
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "join")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.bulk_update(
        [
            [StateUpdate({"log": ["question"]}, "__input__")],
            [StateUpdate({"log": ["left"]}, "left"), StateUpdate({"log": ["right"]}, "right")],
        ]
    )
    graph.state()
    graph.invoke(None)


def replay_from_every_checkpoint(driver: Driver) -> None:
    graph = _abc(driver)
    graph.invoke({"log": ["go"]})
    for state in graph.history():
        graph.state(at=state.config)
        graph.invoke(None, at=state.config)
        graph.state()


def fork_from_the_middle_and_go_on(driver: Driver) -> None:
    graph = _abc(driver)
    graph.invoke({"log": ["first"]})
    graph.invoke({"log": ["second"]})
    past = graph.history()
    middle = past[len(past) // 2]
    fork = graph.update({"log": ["forked"]}, at=middle.config)
    graph.state(at=fork)
    graph.invoke(None, at=fork)
    graph.invoke({"log": ["on the fork"]})
    graph.invoke({"log": ["input at an old checkpoint"]}, at=past[1].config)
    graph.history()


def fork_of_a_fork(driver: Driver) -> None:
    graph = _abc(driver)
    graph.invoke({"log": ["go"]})
    past = graph.history()
    oldest = past[-1]
    first = graph.update({"log": ["fork 1"]}, at=oldest.config, as_node="a")
    second = graph.update({"log": ["fork 2"]}, at=first, as_node="b")
    third = graph.update({"log": ["fork 3"]}, at=first, as_node="b")
    for fork in (third, second, first):
        graph.invoke(None, at=fork)


def histories_asked_for_in_parts(driver: Driver) -> None:
    graph = _abc(driver)
    graph.invoke({"log": ["first"]})
    graph.update({"log": ["edit"]}, as_node="a")
    graph.invoke(None)
    past = graph.history()
    graph.history(limit=2)
    graph.history(before=past[0].config)
    graph.history(before=past[0].config, limit=1)
    graph.history(filter={"source": "update"})
    graph.history(filter={"source": "loop", "step": 1})
    graph.history(filter={"source": "nothing like it"})
    graph.history(at=past[1].config)


def a_thread_deleted_and_begun_again(driver: Driver) -> None:
    graph = _abc(driver)
    graph.invoke({"log": ["first life"]})
    graph.invoke({"log": ["neighbour"]}, thread="neighbour")
    driver.delete_thread("main")
    graph.state()
    graph.history()
    graph.invoke({"log": ["second life"]})
    graph.update({"log": ["edit"]})
    graph.invoke(None)


def a_copied_thread_lives_its_own_life(driver: Driver) -> None:
    graph = _abc(driver, interrupt_before=["c"])
    graph.invoke({"log": ["go"]})
    driver.copy_thread("main", "twin")
    graph.state(thread="twin")
    graph.invoke(None, thread="twin")
    graph.invoke({"log": ["original goes on"]})
    graph.history(thread="twin")


SCRIPTS: tuple[Script, ...] = (
    edits_of_a_finished_thread,
    edits_of_a_thread_that_never_ran,
    edits_that_end_or_copy,
    edits_while_paused,
    several_super_steps_at_once,
    several_edits_in_one_super_step,
    replay_from_every_checkpoint,
    fork_from_the_middle_and_go_on,
    fork_of_a_fork,
    histories_asked_for_in_parts,
    a_thread_deleted_and_begun_again,
    a_copied_thread_lives_its_own_life,
)


def a_pruned_thread_goes_on(driver: Driver) -> None:
    graph = _abc(driver, interrupt_before=["c"])
    graph.invoke({"log": ["go"]})
    driver.prune("main")
    driver.note("values", graph.read("main").values)
    graph.invoke(None)
    driver.prune("main")
    graph.invoke({"log": ["second turn"]})
    graph.invoke(None)
    driver.prune("main")


@each_way(*SCRIPTS)
def test_edits_are_the_same(script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool) -> None:
    """Every edit, fork and replay leaves the same checkpoints behind as over the in-memory saver."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)


@each_way(a_pruned_thread_goes_on)
def test_pruning_changes_no_value(script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool) -> None:
    """A thread pruned to its latest checkpoint, paused or not, goes on as one that kept everything."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts, values_only=True)
