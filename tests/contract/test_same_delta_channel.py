"""A `DeltaChannel`, which is stored as the writes of its ancestors, gives the same values over our saver.

Prune and copy are where a saver can lose it without a word, so both are compared with a thread that kept all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt
from typing_extensions import TypedDict

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script, Subject
from tests.contract.observation import PENDING_WRITES_ARE_SORTED


def extend(current: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    """An order-sensitive reducer that may be given its writes in batches of any size."""
    return [*current, *(item for write in writes for item in write)]


def merge(current: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Later writes win, key by key."""
    merged = dict(current)
    for write in writes:
        merged.update(write)
    return merged


class Rare(TypedDict, total=False):
    items: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=1000)]
    files: Annotated[dict[str, Any], DeltaChannel(merge, snapshot_frequency=1000)]
    plain: Annotated[list[Any], operator.add]


class Often(TypedDict, total=False):
    items: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=4)]
    files: Annotated[dict[str, Any], DeltaChannel(merge, snapshot_frequency=3)]
    plain: Annotated[list[Any], operator.add]


class Always(TypedDict, total=False):
    items: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=1)]
    files: Annotated[dict[str, Any], DeltaChannel(merge, snapshot_frequency=1)]
    plain: Annotated[list[Any], operator.add]


class Plain(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    files: dict[str, Any]
    plain: Annotated[list[Any], operator.add]


def _builder(driver: Driver, schema: Any) -> StateGraph[Any]:
    driver.delta_channels = frozenset({"items", "files"})
    builder: StateGraph[Any] = StateGraph(schema)

    def noting(name: str) -> Any:
        def node(state: Any) -> Any:
            count = driver.effect(name)
            label = f"{name}{count} after {len(state.get('items', []))}"
            return {"items": [label], "files": {name: label, f"{name}{count}": [count]}, "plain": [name]}

        return node

    for name in "ab":
        builder.add_node(name, noting(name))
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)
    return builder


def _graph(driver: Driver, schema: Any, **options: Any) -> Subject:
    builder = _builder(driver, schema)
    return driver.graph(lambda saver: builder.compile(checkpointer=saver, **options))


def _ancestry(driver: Driver, graph: Subject) -> None:
    for state in graph.history():
        driver.delta_history(["items", "files"], at=state.config)


def _many_turns(driver: Driver, schema: Any) -> None:
    graph = _graph(driver, schema)
    for turn in range(5):
        graph.invoke({"items": [f"turn {turn}"]})
    _ancestry(driver, graph)


def turns_without_a_snapshot(driver: Driver) -> None:
    _many_turns(driver, Rare)


def turns_with_snapshots(driver: Driver) -> None:
    _many_turns(driver, Often)


def turns_with_a_snapshot_each(driver: Driver) -> None:
    _many_turns(driver, Always)


def paused_edited_and_resumed(driver: Driver) -> None:
    builder = _builder(driver, Often)

    def ask(state: Any) -> Any:
        return {"items": [interrupt(f"seen {len(state['items'])}")]}

    builder.add_node("ask", ask)
    builder.add_edge("b", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver, interrupt_after=["a"]))
    graph.invoke({"items": ["go"]})
    graph.update({"items": ["edit"]}, as_node="a")
    graph.invoke(None)
    graph.state()
    graph.invoke(Command(resume="answer"))
    graph.invoke({"items": ["second turn"]})
    _ancestry(driver, graph)


def edits_and_imports(driver: Driver) -> None:
    graph = _graph(driver, Often)
    graph.bulk_update(
        [
            [StateUpdate({"items": ["imported"]}, "__input__")],
            [StateUpdate({"items": ["imported a"], "files": {"a": "imported"}}, "a")],
        ]
    )
    graph.invoke(None)
    graph.update({"items": ["edit 1"]}, as_node="b")
    graph.update({"items": ["edit 2"], "files": {"b": b"edited"}}, as_node="a")
    graph.state()
    graph.invoke(None)
    _ancestry(driver, graph)


def overwritten_in_the_middle(driver: Driver) -> None:
    graph = _graph(driver, Often)
    graph.invoke({"items": ["first"]})
    graph.update({"items": Overwrite(["all new"])}, as_node="b")
    graph.invoke({"items": ["second"]})
    _ancestry(driver, graph)


def forks_do_not_see_each_other(driver: Driver) -> None:
    graph = _graph(driver, Often)
    for turn in range(3):
        graph.invoke({"items": [f"turn {turn}"]})
    past = graph.history()
    middle = past[len(past) // 2]
    fork = graph.update({"items": ["fork"]}, at=middle.config)
    other = graph.update({"items": ["other fork"]}, at=middle.config)
    graph.invoke(None, at=fork)
    graph.state(at=other)
    graph.invoke({"items": ["input on the other fork"]}, at=other)
    graph.invoke({"items": ["input at the middle"]}, at=middle.config)
    graph.invoke(None, at=past[0].config)
    _ancestry(driver, graph)


def a_plain_list_that_became_a_delta_channel(driver: Driver) -> None:
    before = _graph(driver, Plain)
    before.invoke({"items": ["old"]})
    before.invoke({"items": ["still old"]})
    after = _graph(driver, Often)
    after.threads.add("main")
    after.state()
    after.invoke({"items": ["new"]})
    after.invoke({"items": ["newer"]})
    before.threads.clear()
    _ancestry(driver, after)


def inside_a_subgraph(driver: Driver) -> None:
    inner = _builder(driver, Often)

    def ask(state: Any) -> Any:
        return {"items": [interrupt(f"seen {len(state['items'])}")]}

    inner.add_node("ask", ask)
    inner.add_edge("b", "ask")
    outer: StateGraph[Any] = StateGraph(Often)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    graph = driver.graph(lambda saver: outer.compile(checkpointer=saver))
    for turn in range(2):
        graph.invoke({"items": [f"turn {turn}"]})
        graph.state(subgraphs=True)
        graph.invoke(Command(resume=f"answer {turn}"))


def a_copy_and_its_original_part_ways(driver: Driver) -> None:
    graph = _graph(driver, Often)
    for turn in range(3):
        graph.invoke({"items": [f"turn {turn}"]})
    driver.copy_thread("main", "twin")
    graph.state(thread="twin")
    graph.history(thread="twin")
    graph.invoke({"items": ["twin"]}, thread="twin")
    graph.invoke({"items": ["original"]})
    graph.history(thread="twin")


def _fan_out(driver: Driver, schema: Any) -> None:
    driver.delta_channels = frozenset({"items", "files"})
    builder: StateGraph[Any] = StateGraph(schema)
    builder.add_node("work", lambda state: {"items": [state["plain"]], "files": {"last": state["plain"]}})
    builder.add_node("join", lambda state: {"items": ["join"]})
    builder.add_conditional_edges(
        START, lambda state: [Send("work", {"plain": [number]}) for number in range(12)], ["work"]
    )
    builder.add_edge("work", "join")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"items": ["go"]})
    graph.invoke({"items": ["again"]})
    _ancestry(driver, graph)


def fan_out_without_a_snapshot(driver: Driver) -> None:
    _fan_out(driver, Rare)


def fan_out_with_snapshots(driver: Driver) -> None:
    _fan_out(driver, Often)


def _pruned_between_turns(driver: Driver, schema: Any) -> None:
    graph = _graph(driver, schema)
    for turn in range(4):
        graph.invoke({"items": [f"turn {turn}"]})
        driver.note("before", graph.read("main").values)
        driver.prune("main")
        driver.note("after", graph.read("main").values)


def pruned_without_a_snapshot(driver: Driver) -> None:
    _pruned_between_turns(driver, Rare)


def pruned_with_snapshots(driver: Driver) -> None:
    _pruned_between_turns(driver, Often)


def pruned_with_a_snapshot_each(driver: Driver) -> None:
    _pruned_between_turns(driver, Always)


def pruned_while_paused(driver: Driver) -> None:
    builder = _builder(driver, Often)

    def ask(state: Any) -> Any:
        return {"items": [interrupt(f"seen {len(state['items'])}")], "plain": ["asked"]}

    builder.add_node("ask", ask)
    builder.add_edge("b", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    for turn in range(3):
        graph.invoke({"items": [f"turn {turn}"]})
        driver.prune("main")
        driver.note("paused", graph.read("main").values)
        graph.invoke(Command(resume=f"answer {turn}"))
        driver.prune("main")


def pruned_then_copied(driver: Driver) -> None:
    graph = _graph(driver, Often)
    for turn in range(3):
        graph.invoke({"items": [f"turn {turn}"]})
    driver.prune("main")
    driver.copy_thread("main", "twin")
    driver.prune("main", "twin")
    graph.invoke({"items": ["twin"]}, thread="twin")
    graph.invoke({"items": ["original"]})
    driver.prune("twin")
    driver.note("twin", graph.read("twin").values)


SCRIPTS: tuple[Script, ...] = (
    turns_without_a_snapshot,
    turns_with_snapshots,
    turns_with_a_snapshot_each,
    paused_edited_and_resumed,
    edits_and_imports,
    overwritten_in_the_middle,
    inside_a_subgraph,
    a_copy_and_its_original_part_ways,
)
NEWER_SCRIPTS: tuple[Script, ...] = (
    forks_do_not_see_each_other,
    a_plain_list_that_became_a_delta_channel,
    fan_out_without_a_snapshot,
    fan_out_with_snapshots,
)
PRUNING: tuple[Script, ...] = (
    pruned_without_a_snapshot,
    pruned_with_snapshots,
    pruned_with_a_snapshot_each,
    pruned_while_paused,
    pruned_then_copied,
)


@each_way(*SCRIPTS)
def test_delta_channels_are_the_same(
    script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool
) -> None:
    """Every checkpoint of the history rebuilds the value that the in-memory saver rebuilds."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)


@pytest.mark.skipif(
    not PENDING_WRITES_ARE_SORTED,
    reason="this LangGraph replays parallel writes by task id, and mixes up forks and values of former channels",
)
@each_way(*NEWER_SCRIPTS)
def test_delta_channels_of_parallel_work_and_forks_are_the_same(
    script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool
) -> None:
    """Parallel writes are replayed in the order of the run; a fork replays only its own."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)


@each_way(*PRUNING)
def test_pruning_changes_no_delta_channel(
    script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool
) -> None:
    """C41: pruned threads have the values of threads that kept every ancestor, and go on alike."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts, values_only=True)
