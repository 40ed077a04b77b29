"""State of every kind and size comes back from our saver as from LangGraph's own, also when only a part changed.

A saver that stores only what changed is tempted to trust what it saw before; these scripts give it reasons not to.
"""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import operator
import uuid
from collections import deque
from pathlib import Path
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from typing_extensions import TypedDict

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script, Subject


class Anything(TypedDict, total=False):
    value: Any
    other: Any
    steps: Annotated[int, operator.add]


def _keeping(driver: Driver, node: Any = None) -> Subject:
    builder: StateGraph[Any] = StateGraph(Anything)
    builder.add_node("step", node or (lambda state: {"steps": 1}))
    builder.add_edge(START, "step")
    return driver.graph(lambda saver: builder.compile(checkpointer=saver))


def values_of_many_kinds(driver: Driver) -> None:
    graph = _keeping(driver)
    kinds: list[Any] = [
        None,
        True,
        0,
        -1.5,
        float("inf"),
        2**63 - 1,
        "",
        "nul \x00 and \u202eright to left\u202c and \U0001f600",
        b"",
        bytes(range(256)),
        [],
        {},
        (),
        ((1, (2, [3, (4,)])),),
        {"a": {"b": {"c": [None, {"d": ("e",)}]}}},
        {1: "int key", "1": "str key"},
        {1, 2, 3},
        frozenset({"x"}),
        deque([1, 2], maxlen=5),
        datetime.datetime(2024, 2, 29, 12, 30, 45, 678, tzinfo=datetime.timezone.utc),
        datetime.date(2024, 2, 29),
        datetime.timedelta(days=1, microseconds=5),
        decimal.Decimal("1.10"),
        uuid.UUID("12345678-1234-5678-1234-567812345678"),
        Path("a/b"),
        ipaddress.ip_address("127.0.0.1"),
        Document(page_content="text", metadata={"page": 1}),
        AIMessage("hi", id="m1", tool_calls=[{"name": "f", "args": {"x": [1]}, "id": "c1", "type": "tool_call"}]),
    ]
    for value in kinds:
        graph.invoke({"value": value, "other": [value]})
        graph.state()


def messages_in_many_pages(driver: Driver) -> None:
    """Far more messages than fit one page; each turn adds two, some turns change old ones."""
    builder: StateGraph[Any] = StateGraph(MessagesState)

    def answer(state: MessagesState) -> dict[str, Any]:
        count = len(state["messages"])
        calls = [{"name": "look", "args": {"n": count}, "id": f"c{count}", "type": "tool_call"}]
        return {
            "messages": [
                AIMessage(f"answer {count}", id=f"a{count}", tool_calls=calls),
                ToolMessage(f"result {count}", tool_call_id=f"c{count}", id=f"t{count}", artifact={"raw": b"\x01"}),
            ]
        }

    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    history = [HumanMessage(f"old {number}", id=f"h{number}") for number in range(70)]
    graph.invoke({"messages": [SystemMessage("be brief", id="sys"), *history]})
    graph.invoke({"messages": [HumanMessage("next", id="n1")]})
    graph.invoke({"messages": [HumanMessage("replaced", id="h40")]})
    graph.invoke({"messages": [RemoveMessage(id="h3"), RemoveMessage(id="h67"), HumanMessage("on", id="n2")]})
    past = graph.history()
    graph.invoke({"messages": [HumanMessage("from the past", id="n3")]}, at=past[-2].config)
    graph.invoke({"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *history[:40], HumanMessage("short", id="n4")]})
    # With an id, too: LangGraph gives one to an input message in place, while the save of the input is under way.
    graph.invoke({"messages": [HumanMessage("last", id="n5")]})


def objects_changed_in_place(driver: Driver) -> None:
    """Nodes that change what they were given, instead of returning something new."""

    def careless(state: Anything) -> Anything:
        step = state.get("steps", 0)
        messages, files = state["value"], state["other"]
        messages[step % len(messages)].content += f" changed {step}"
        messages[0].additional_kwargs.setdefault("seen", []).append(step)
        files[f"f{step}"] = {"text": "x" * step}
        files["f0"]["text"] = f"rewritten {step}"
        return {"value": messages, "other": files, "steps": 1}

    graph = _keeping(driver, careless)
    messages = [HumanMessage(f"message {number}", id=f"m{number}") for number in range(50)]
    files = {f"f{number}": {"text": str(number)} for number in range(40)}
    graph.invoke({"value": messages, "other": files}, **driver.unhurried)
    for _ in range(4):
        graph.invoke({}, **driver.unhurried)


def lists_and_dicts_that_shrink_and_move(driver: Driver) -> None:
    def rearrange(state: Anything) -> Anything:
        step = state.get("steps", 0)
        value, other = list(state["value"]), dict(state["other"])
        if step % 3 == 0:
            value.insert(0, f"in front {step}")
            other.pop(next(iter(other)))
        elif step % 3 == 1:
            del value[10:60]
            other = dict(reversed(other.items()))
        else:
            value += [{"n": n, "step": step} for n in range(50)]
            other[f"new {step}"] = [b"\x00" * step]
        return {"value": value, "other": other, "steps": 1}

    graph = _keeping(driver, rearrange)
    graph.invoke({"value": list(range(150)), "other": {f"k{number}": number for number in range(100)}})
    for _ in range(7):
        graph.invoke({})
    graph.invoke({"value": [], "other": {"only": None}})


def values_that_look_alike(driver: Driver) -> None:
    """Values that are equal, or have equal texts, but are not the same."""
    graph = _keeping(driver)
    for one, other in (
        ([1] * 33, [True] * 33),
        ([1.0] * 33, [1] * 33),
        ([(1, 2)] * 33, [[1, 2]] * 33),
        (["1"] * 33, [b"1"] * 33),
        ([0.0] * 33, [-0.0] * 33),
        ([HumanMessage("x", id="1")] * 33, [AIMessage("x", id="1")] * 33),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([{"a": 1, "b": 2}] * 33, [{"b": 2, "a": 1}] * 33),
    ):
        for value in (one, other, one):
            graph.invoke({"value": value, "other": [value]})
            graph.state()


def a_value_cleared_and_set_again(driver: Driver) -> None:
    graph = _keeping(driver)
    for value in ([1, 2], None, [1, 2], [], None, {"a": None}):
        graph.invoke({"value": value})
    graph.update({"value": ["set"]})
    graph.state()


SCRIPTS: tuple[Script, ...] = (
    values_of_many_kinds,
    messages_in_many_pages,
    objects_changed_in_place,
    lists_and_dicts_that_shrink_and_move,
    values_that_look_alike,
    a_value_cleared_and_set_again,
)


@each_way(*SCRIPTS)
def test_values_are_the_same(script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool) -> None:
    """What comes back has the kinds, the order and the content that the in-memory saver gives back."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)
