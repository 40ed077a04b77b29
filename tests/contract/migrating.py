"""Threads of every kind that graphs leave behind, on any saver, for the tests of migration: interrupted and resumed,
failed half-way in a fan-out, forked, nested, edited, with delta channels. No assertion lives here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint import base
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._saver_views import view_of
from tests.contract.test_same_delta_channel import extend, merge

#: Earlier versions of LangGraph's savers list the writes of a checkpoint in an order of their own.
WRITES_ARE_SORTED = hasattr(base, "writes_sort_key")


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    items: Annotated[list[Any], operator.add]
    files: dict[str, Any]


class Delta(TypedDict, total=False):
    items: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=3)]
    files: Annotated[dict[str, Any], DeltaChannel(merge, snapshot_frequency=1000)]
    plain: Annotated[list[Any], operator.add]


def config_of(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "user": "somebody", "tier": 3}, "metadata": {"origin": "test"}}


def talking(saver: BaseCheckpointSaver[Any]) -> Any:
    """A conversation with tool calls, a question to a person, and values of many types."""
    builder: StateGraph[Any] = StateGraph(State)

    def model(state: Any) -> Any:
        number = len(state["messages"])
        call = {"name": "look", "args": {"at": f"thing {number}"}, "id": f"call-{number}"}
        return {"messages": [AIMessage(f"let me look {number}", tool_calls=[call])], "items": [(1, "two"), {3, 4}]}

    def tool(state: Any) -> Any:
        call = state["messages"][-1].tool_calls[0]
        answer = interrupt({"may I": call["args"]}) if len(state["messages"]) % 3 == 2 else "seen"
        return {"messages": [ToolMessage(str(answer), tool_call_id=call["id"])], "files": {"a.txt": b"\x00\xff"}}

    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tool")
    builder.add_edge("tool", END)
    return builder.compile(checkpointer=saver)


def fanning(saver: BaseCheckpointSaver[Any]) -> Any:
    """A fan-out of which one task fails and one asks, so that the writes of the others stay pending."""
    builder: StateGraph[Any] = StateGraph(State)

    def spread(state: Any) -> Any:
        return [Send("work", {"items": [number]}) for number in range(6)]

    def work(state: Any) -> Any:
        (number,) = state["items"]
        if number == 3:
            raise RuntimeError("broken")
        if number == 4:
            interrupt("and now?")
        return {"items": [f"result {number}"], "messages": [("ai", str(number))]} if number else {"items": ["zero"]}

    builder.add_node("plan", lambda state: {"items": ["planned"]})
    builder.add_node("work", work)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", spread, ["work"])
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


def nested(saver: BaseCheckpointSaver[Any]) -> Any:
    """Graphs in graphs in graphs, with a question at the bottom."""

    def level(name: str, inner: Any) -> StateGraph[Any]:
        builder: StateGraph[Any] = StateGraph(State)
        builder.add_node("before", lambda state: {"items": [f"before {name}"]})
        builder.add_node(name, inner)
        builder.add_edge(START, "before")
        builder.add_edge("before", name)
        builder.add_edge(name, END)
        return builder

    ask = level("ask", lambda state: {"items": [interrupt("deep down")]})
    middle = level("middle", ask.compile())
    return level("top", middle.compile()).compile(checkpointer=saver)


def counting(saver: BaseCheckpointSaver[Any]) -> Any:
    """Delta channels, with and without snapshots."""
    builder: StateGraph[Any] = StateGraph(Delta)

    def node(name: str) -> Any:
        return lambda state: {"items": [f"{name} {len(state.get('items', []))}"], "files": {name: [1]}, "plain": [name]}

    def fan(state: Any) -> Any:
        return [Send("many", {"plain": [number]}) for number in range(11)]

    builder.add_node("a", node("a"))
    builder.add_node("many", lambda state: {"items": [f"many {state['plain']}"], "files": {"last": state["plain"]}})
    builder.add_node("b", node("b"))
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", fan, ["many"])
    builder.add_edge("many", "b")
    builder.add_edge("b", END)
    return builder.compile(checkpointer=saver)


def talk(saver: BaseCheckpointSaver[Any], thread_id: str, *, turns: int = 2) -> None:
    graph, config = talking(saver), config_of(thread_id)
    for turn in range(turns):
        graph.invoke({"messages": [HumanMessage(f"hello {turn} of {thread_id} \N{SNOWMAN}")]}, config)
        if graph.get_state(config).next and turn + 1 < turns:
            graph.invoke(Command(resume="yes"), config)


def fork(saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
    talk(saver, thread_id)
    graph = talking(saver)
    past = list(graph.get_state_history(config_of(thread_id)))
    middle = past[len(past) // 2]
    graph.update_state(middle.config, {"items": ["forked"]}, as_node="model")
    other = graph.update_state(middle.config, {"files": {"fork": None}}, as_node="tool")
    graph.invoke({"messages": [("user", "on the fork")]}, other)


def fan(saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
    with pytest.raises(RuntimeError):
        fanning(saver).invoke({"items": ["go"]}, config_of(thread_id))


def nest(saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
    graph = nested(saver)
    graph.invoke({"items": ["one"]}, config_of(thread_id))
    graph.invoke(Command(resume="answered"), config_of(thread_id))
    graph.invoke({"items": ["two"]}, config_of(thread_id))


def count(saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
    graph = counting(saver)
    for turn in range(3):
        graph.invoke({"items": [f"turn {turn}"]}, config_of(thread_id))
    past = list(graph.get_state_history(config_of(thread_id)))
    graph.update_state(past[4].config, {"items": ["edit"], "files": {"edit": 1}}, as_node="b")


KINDS: dict[str, Callable[[BaseCheckpointSaver[Any], str], None]] = {
    "talk": talk,
    "fork": fork,
    "fan": fan,
    "nest": nest,
    "count": count,
}
GRAPHS: dict[str, Callable[[BaseCheckpointSaver[Any]], Any]] = {
    "talk": talking,
    "fork": talking,
    "fan": fanning,
    "nest": nested,
    "count": counting,
}


def populate(saver: BaseCheckpointSaver[Any], *, each: int = 1) -> list[str]:
    """`each` threads of every kind; their ids."""
    ids = [f"{kind}-{number}" for number in range(each) for kind in KINDS]
    for thread_id in ids:
        KINDS[thread_id.partition("-")[0]](saver, thread_id)
    return sorted(ids)


def listed(saver: BaseCheckpointSaver[Any], thread_id: str) -> dict[tuple[str, str], Any]:
    """All that `list` shows of a thread, by namespace and id, without the repeated snapshots of delta channels."""
    found = {}
    for each in saver.list({"configurable": {"thread_id": thread_id}}):
        delta = each.metadata.get("counters_since_delta_snapshot") or {}
        values = {name: value for name, value in each.checkpoint["channel_values"].items() if name not in delta}
        key = each.config["configurable"]["checkpoint_ns"], each.checkpoint["id"]
        parent = each.parent_config and each.parent_config["configurable"]["checkpoint_id"]
        rest = {name: value for name, value in each.checkpoint.items() if name != "channel_values"}
        writes = [(task, channel, repr(value)) for task, channel, value in each.pending_writes or ()]
        if not WRITES_ARE_SORTED:
            writes.sort(key=lambda write: (write[0], base.WRITES_IDX_MAP.get(write[1], 0)))
        found[key] = rest, values, each.metadata, parent, writes
    return found


def places_of_writes(saver: BaseCheckpointSaver[Any], thread_id: str) -> dict[Any, Any]:
    """Task path, task, position and channel of each pending write, as the saver keeps them."""
    view, found = view_of(saver), {}
    for each in list(saver.list({"configurable": {"thread_id": thread_id}})):
        key = each.config["configurable"]["checkpoint_ns"], each.checkpoint["id"]
        keys = view.write_keys(thread_id, key)
        assert keys is not None
        found[key] = sorted(keys)
    return found


def states(saver: BaseCheckpointSaver[Any], thread_id: str) -> list[Any]:
    """What the graph of a thread makes of its whole history."""
    graph = GRAPHS[thread_id.partition("-")[0]](saver)
    past = graph.get_state_history({"configurable": {"thread_id": thread_id}})
    return [(s.config["configurable"]["checkpoint_id"], s.values, s.next, repr(s.tasks), s.metadata) for s in past]


@contextmanager
def sqlite_saver(path: Path, **options: Any) -> Iterator[Any]:
    """LangGraph's saver on a file."""
    import sqlite3
    from contextlib import closing

    from langgraph.checkpoint.sqlite import SqliteSaver

    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        connection.execute("PRAGMA synchronous=OFF")  # no test here is about power loss
        yield SqliteSaver(connection, **options)


def savers(tmp_path: Path, kind: str) -> BaseCheckpointSaver[Any]:
    """A fresh saver that needs no closing."""
    return InMemorySaver() if kind == "memory" else TurnCheckpointSaver(tmp_path / kind, fsync=False)
