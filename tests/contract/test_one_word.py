"""`turns`, the thread's own word and the picture say one word for how a plain run ended, whatever the graph is like and
wherever it stopped; and it is what LangGraph says of the thread.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Annotated, Any, Final, TypeAlias

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.constants import END, START
from langgraph.graph import StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import TurnCheckpointSaver, migrate

CONFIG: Final[Any] = {"configurable": {"thread_id": "1"}}
Node: TypeAlias = Any


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


class OutOfOrderError(Exception):
    """What a node raises."""


class CutOff(BaseException):
    """What stops a run as the end of its process does: nothing of it is stored."""


def work(_state: Any) -> Any:
    return {"seen": ["work"]}


def ask(_state: Any) -> Any:
    return {"seen": [interrupt("may I?")]}


def ask_twice(_state: Any) -> Any:
    return {"seen": [interrupt("may I?"), interrupt("really?")]}


def stop(_state: Any) -> Any:
    raise CutOff


def fail(_state: Any) -> Any:
    raise OutOfOrderError("no paper")


def builder(**nodes: Node) -> Any:
    made: Any = StateGraph(State)
    for name, node in nodes.items():
        made.add_node(name, node)
    return made


def first(node: Node) -> Any:
    return builder(b=node).add_edge(START, "b")


def line(node: Node) -> Any:
    return builder(a=work, b=node).add_edge(START, "b").add_edge("b", "a")


def behind(node: Node) -> Any:
    return builder(a=work, b=node).add_edge(START, "a").add_edge("a", "b")


def sent(node: Node) -> Any:
    made = builder(a=work, b=node).add_edge(START, "a")
    return made.add_conditional_edges("a", lambda _state: [Send("b", {"seen": []})], ["b"])


def joined(node: Node) -> Any:
    made = builder(a=work, a2=work, b=node).add_edge(START, "a").add_edge(START, "a2")
    return made.add_edge(["a", "a2"], "b").add_edge("b", END)


def deferred(node: Node) -> Any:
    return builder(a=work).add_node("b", node, defer=True).add_edge(START, "a").add_edge("a", "b")


def inner(node: Node) -> Any:
    return first(first(node).compile())


SHAPES: Final = (first, line, behind, sent, joined, deferred, inner)
NODES: Final = (work, ask, ask_twice, stop, fail)


@pytest.fixture
def saver(tmp_path) -> TurnCheckpointSaver:
    return TurnCheckpointSaver(tmp_path / "store", fsync=False)


def run(graph: Any, given: Any, **options: Any) -> None:
    with contextlib.suppress(OutOfOrderError, CutOff):
        graph.invoke(given, CONFIG, **options)


def pictured(saver: TurnCheckpointSaver) -> list[str]:
    return [turn["state"] for turn in saver.timeline("1").to_dict()["turns"] if turn["token"]]


def assert_one_word(saver: TurnCheckpointSaver, graph: Any) -> str:
    """The word for the thread's newest turn."""
    turns = [record.state for record in saver.turns("1")]
    word = saver.store.standing("1").state
    assert pictured(saver) == turns[::-1]
    assert word == turns[0]
    assert word in (saver._repr_html_() or "")
    stored = graph.get_state(CONFIG)
    if word != "failed":
        assert word == ("paused" if stored.interrupts else "unfinished" if stored.next else "completed")
    return word


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_three_views_have_one_word(saver, shape, node, durability):
    graph = shape(node).compile(checkpointer=saver)
    run(graph, {"seen": []}, durability=durability)
    words = [assert_one_word(saver, graph)]
    more: Any = {work: [], ask: [Command(resume="yes")], ask_twice: [Command(resume="yes")] * 2}
    for given in more.get(node, [None]):
        run(graph, given, durability=durability)
        words.append(assert_one_word(saver, graph))
    assert words[0] == {work: "completed", fail: "failed", stop: "unfinished"}.get(node, "paused")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_run_that_stopped_before_a_node_has_left_it_to_do(saver, shape):
    graph = shape(work).compile(checkpointer=saver, interrupt_before=["b"])
    run(graph, {"seen": []})
    assert assert_one_word(saver, graph) == "unfinished"
    run(graph, None)
    assert assert_one_word(saver, graph) == "completed"


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_imported_has_the_word_it_had(saver, shape, node):
    memory = InMemorySaver()
    graph = shape(node).compile(checkpointer=memory)
    run(graph, {"seen": []})
    if node is ask_twice:
        run(graph, Command(resume="yes"))
    migrate(memory, saver)
    band = saver.timeline("1").to_dict()["turns"][-1]
    assert (band["state"], band["left_as"]) == ("imported", saver.store.standing("1").state)


def test_a_damaged_checkpoint_makes_the_end_unknown_in_both_lists(saver, tmp_path, recwarn):
    graph = behind(work).compile(checkpointer=saver)
    for _ in range(3):
        run(graph, {"seen": []})
    found = sorted((tmp_path / "store").rglob("*.ckpt"), key=lambda path: path.name)
    for path in found:
        whole = path.read_bytes()
        for place in (30, len(whole) // 2, len(whole) - 3):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert pictured(saver) == [record.state for record in saver.turns("1")][::-1], (path.name, place)
        path.write_bytes(whole)


def test_a_run_that_left_nothing_has_the_same_word_in_both_lists(saver):
    """It died before it wrote anything, or is at work on what it found."""
    graph = behind(stop).compile(checkpointer=saver)
    run(graph, {"seen": []})
    for _ in range(2):
        saver.store.run_turn(object(), "1", base="")
        assert pictured(saver) == [record.state for record in saver.turns("1")][::-1]
