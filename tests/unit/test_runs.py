"""Which turn a run holds: where LangGraph keeps its per-run object, and what is remembered of runs and for how long."""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import RunControl
from langgraph.types import Command, Send, StateUpdate, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import TurnCheckpointSaver, _turns
from langgraph_turncheckpoint._runs import (
    RUNS_KEPT,
    TURN_KEY,
    Runs,
    control_of,
    explicit_token,
)

CONFIG: Any = {"configurable": {"thread_id": "main"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Listening(InMemorySaver):
    """LangGraph's own saver, which also notes the control of each call: what a run brings along depends on no saver."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, Any]] = []

    def note(self, method: str, config: RunnableConfig | None) -> None:
        self.heard.append((method, control_of((config or {}).get("configurable", {}))))

    def get_tuple(self, config: RunnableConfig) -> Any:
        self.note("get_tuple", config)
        return super().get_tuple(config)

    def put(self, config: RunnableConfig, *args: Any) -> Any:
        self.note("put", config)
        return super().put(config, *args)

    def put_writes(self, config: RunnableConfig, *args: Any, **kwargs: Any) -> None:
        self.note("put_writes", config)
        super().put_writes(config, *args, **kwargs)

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Any:
        self.note("list", config)
        return super().list(config, **kwargs)

    def take(self) -> tuple[set[str], set[Any]]:
        """The methods called and the controls heard since the last time."""
        heard, self.heard = self.heard, []
        return {method for method, _ in heard}, {control for _, control in heard}


def asking_graph(saver: Any) -> Any:
    """Two levels below the root: a fan-out, and a node that asks."""

    def ask(state: Log) -> Log:
        return {"log": [interrupt("well?")]}

    leaf: StateGraph[Any] = StateGraph(Log)
    leaf.add_node("many", lambda state: {"log": ["one of many"]})
    leaf.add_node("ask", ask)
    leaf.add_conditional_edges(START, lambda state: [Send("many", {}) for _ in range(3)], ["many"])
    leaf.add_edge("many", "ask")
    graph: Any = leaf.compile()
    for depth in range(2):
        builder: StateGraph[Any] = StateGraph(Log)
        builder.add_node("below", graph)
        builder.add_edge(START, "below")
        builder.add_edge("below", END)
        graph = builder.compile(checkpointer=saver if depth == 1 else None)
    return graph


def call(graph: Any, colour: str, method: str, *args: Any, **kwargs: Any) -> Any:
    if colour == "sync":
        result = getattr(graph, method)(*args, **kwargs)
        return list(result) if method.startswith(("stream", "get_state_history")) else result

    async def run() -> Any:
        result = getattr(graph, f"a{method}")(*args, **kwargs)
        return [each async for each in result] if hasattr(result, "__aiter__") else await result

    return asyncio.run(run())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_every_call_of_a_run_carries_one_control_of_its_own(colour, durability):
    """T2: root and subgraphs, reads and writes. Fails when LangGraph keeps the control elsewhere."""
    saver = Listening()
    graph = asking_graph(saver)
    controls = []
    for method, graph_input in (("invoke", {"log": ["go"]}), ("stream", Command(resume="fine")), ("invoke", {})):
        call(graph, colour, method, graph_input, CONFIG, durability=durability)
        methods, heard = saver.take()
        assert {"get_tuple", "put", *([] if durability == "exit" else ["put_writes"])} <= methods
        assert len(heard) == 1
        controls.append(heard.pop())
    assert all(isinstance(control, RunControl) for control in controls)
    assert len(set(controls)) == 3


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_calls_outside_a_run_carry_no_control(colour):
    """T3 rests on it: reading and editing the state, history and bulk updates, subgraphs included."""
    saver = Listening()
    graph = asking_graph(saver)
    call(graph, colour, "invoke", {"log": ["go"]}, CONFIG)
    saver.take()
    state = call(graph, colour, "get_state", CONFIG, subgraphs=True)
    nested = state.tasks[0].state.config
    call(graph, colour, "get_state", nested)
    call(graph, colour, "get_state_history", CONFIG)
    call(graph, colour, "update_state", nested, {"log": ["edited"]})
    call(graph, colour, "update_state", CONFIG, {"log": ["edited"]}, as_node="below")
    call(graph, colour, "bulk_update_state", CONFIG, [[StateUpdate({"log": ["edited"]}, "below")]])
    methods, heard = saver.take()
    assert {"get_tuple", "put", "list"} <= methods
    assert heard == {None}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_functional_workflow_carries_its_control_too(colour):
    """T2 with `@entrypoint` and `@task`."""
    saver = Listening()

    @task
    def double(number: int) -> int:
        return 2 * number

    @task
    async def adouble(number: int) -> int:
        return 2 * number

    if colour == "sync":

        @entrypoint(checkpointer=saver)
        def workflow(number: int) -> int:
            return double(number).result()
    else:

        @entrypoint(checkpointer=saver)
        async def workflow(number: int) -> int:
            return await adouble(number)

    assert call(workflow, colour, "invoke", 4, CONFIG) == 8
    methods, heard = saver.take()
    assert {"get_tuple", "put", "put_writes"} <= methods
    assert len(heard) == 1
    assert heard.pop() is not None


def test_two_runs_at_once_have_two_controls():
    saver = Listening()
    meet = threading.Barrier(2)
    builder: StateGraph[Any] = StateGraph(Log)

    def together(state: Log) -> Log:
        meet.wait(60)
        return {}

    builder.add_node("node", together)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda thread: graph.invoke({}, {"configurable": {"thread_id": thread}}), ["a", "b"]))
    assert len(saver.take()[1]) == 2


@pytest.mark.parametrize("configurable", [{}, {"__pregel_runtime": None}, {"__pregel_runtime": "of another kind"}])
def test_a_configurable_without_a_runtime_is_outside_any_run(configurable):
    assert control_of(configurable) is None


@pytest.mark.parametrize(
    ("configurable", "token"),
    [
        ({}, None),
        ({TURN_KEY: {"thread_id": "main", "token": 7}}, 7),
        ({TURN_KEY: {"thread_id": "another", "token": 7}}, None),
        ({TURN_KEY: "junk"}, None),
        ({TURN_KEY: None}, None),
    ],
)
def test_an_explicit_token_counts_for_its_own_thread_only(configurable, token):
    """T4: a graph called inside another one inherits its configurable."""
    assert explicit_token(configurable, "main") == token


class Control:
    """Stands in for LangGraph's: an object that is one run's."""


def test_a_run_has_one_turn_per_thread_and_another_run_has_its_own():
    runs, one, two = Runs(), Control(), Control()
    assert runs.turn_of(one, "a") is runs.turn_of(one, "a")
    assert runs.turn_of(one, "a") is not runs.turn_of(one, "b")
    assert runs.turn_of(one, "a") is not runs.turn_of(two, "a")


def test_runs_that_have_ended_are_forgotten_and_living_ones_are_not():
    """T2: a map that is bounded by the runs that live, and a forgotten run that cannot come back."""
    runs = Runs()
    living = [Control() for _ in range(50)]
    turns = [runs.turn_of(control, "main") for control in living]
    for _ in range(20 * RUNS_KEPT):
        runs.turn_of(Control(), "main")
    assert len(runs) <= 2 * RUNS_KEPT + len(living)
    assert [runs.turn_of(control, "main") for control in living] == turns


def test_more_living_runs_than_are_kept_all_keep_their_turns():
    """However many there are: one forgotten while it lives would come back as the newest run."""
    runs = Runs()
    living = [Control() for _ in range(3 * RUNS_KEPT)]
    turns = [runs.turn_of(control, "main") for control in living]
    for _ in range(RUNS_KEPT):
        runs.turn_of(Control(), "main")
    assert [runs.turn_of(control, "main") for control in living] == turns


def test_the_control_of_a_run_is_not_taken_for_that_of_an_earlier_one():
    """The id of an object is given to another one when it is gone; its turn is not."""
    runs = Runs()
    turns = {id(runs.turn_of(Control(), "main")) for _ in range(RUNS_KEPT - 1)}
    assert len(turns) == RUNS_KEPT - 1


def test_a_control_can_be_collected_after_its_run_was_forgotten():
    runs = Runs()
    control = Control()
    gone = weakref.ref(control)
    runs.turn_of(control, "main")
    del control
    for _ in range(2 * RUNS_KEPT):
        runs.turn_of(Control(), "main")
    gc.collect()
    assert gone() is None


def test_sixteen_threads_that_race_for_the_first_contact_share_one_turn(tmp_path):
    """T2: fanned-out tasks of one run reach a thread at the same moment; one token is taken."""
    saver, control, start = TurnCheckpointSaver(tmp_path), Control(), threading.Barrier(16)

    def contact(_: int) -> Any:
        start.wait(60)
        return saver._store.run_turn(control, "main", base="")

    with ThreadPoolExecutor(16) as pool:
        turns = set(pool.map(contact, range(16)))
    assert len(turns) == 1
    assert turns.pop().token == 1


def test_a_first_contact_that_failed_is_made_again(tmp_path, monkeypatch):
    """An interrupted or refused opening leaves no half turn behind."""
    saver, control = TurnCheckpointSaver(tmp_path), Control()
    real = _turns.open_run

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_turns, "open_run", fail)
    with pytest.raises(KeyboardInterrupt):
        saver._store.run_turn(control, "main", base="")
    monkeypatch.setattr(_turns, "open_run", real)
    assert saver._store.run_turn(control, "main", base="").token == 1


def links(tmp_path: Path) -> list[Path]:
    """One directory by several names."""
    directory = tmp_path / "real"
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory, target_is_directory=True)
    return [directory, tmp_path / "link", tmp_path / "real" / ".." / "real"]


def test_savers_on_one_directory_agree_on_the_turn_of_a_run(tmp_path):
    """T1, T2: whatever instance of the process a run speaks to, and by whatever name the directory goes."""
    control = Control()
    savers = [TurnCheckpointSaver(path) for path in links(tmp_path)]
    savers.append(savers[0].with_allowlist([("tests.unit.test_runs", "Control")]))
    turns = [saver._store.run_turn(control, "main", base="") for saver in savers]
    assert len({id(turn) for turn in turns}) == 1


def test_a_run_that_uses_two_savers_on_one_directory_writes_under_one_turn(tmp_path):
    """The root graph has one saver, a graph inside it another one, and the node's own reads a third."""
    paths = links(tmp_path)
    inner: StateGraph[Any] = StateGraph(Log)
    inner.add_node("node", lambda state: {"log": ["inner"]})
    inner.add_edge(START, "node")
    inner_graph = inner.compile(checkpointer=TurnCheckpointSaver(paths[1]))

    def node(state: Log, config: RunnableConfig) -> Log:
        TurnCheckpointSaver(paths[2]).get_tuple({"configurable": {**config["configurable"], "checkpoint_ns": ""}})
        return {"log": inner_graph.invoke({"log": ["asked"]}, config)["log"]}

    outer: StateGraph[Any] = StateGraph(Log)
    outer.add_node("node", node)
    outer.add_edge(START, "node")
    graph = outer.compile(checkpointer=TurnCheckpointSaver(paths[0]))
    assert graph.invoke({"log": ["go"]}, CONFIG)["log"] == ["go", "asked", "inner"]
    state = TurnCheckpointSaver(paths[0])._store.thread("main").ledger.read()
    assert state is not None
    assert state.token == 1


def test_savers_on_different_directories_have_different_turns(tmp_path):
    control = Control()
    one, two = (TurnCheckpointSaver(tmp_path / name)._store.run_turn(control, "main", base="") for name in "ab")
    assert one is not two
