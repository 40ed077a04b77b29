"""The agent of the short scenarios: three tools whose effects can be counted, a scripted model, and a history that
can be read. No process is started or stopped here, and nothing is drawn.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from .guard import TurnGuard

THREAD_ID: Final = "trip"
#: One tool at a time, so that "never started" is no matter of luck.
THREAD: Final[RunnableConfig] = {"configurable": {"thread_id": THREAD_ID}, "max_concurrency": 1}

#: What each tool is for, and what it returns.
TOOLS: Final = {
    "find_room": ("Look for a free room; changes nothing.", "room 12 is free"),
    "book_hotel": ("Book the room.", "room 12 is booked"),
    "charge_card": ("Charge the card.", "120 EUR were charged"),
    "send_mail": ("Send a confirmation.", "the mail was sent"),
}

#: Runs one tool: its name -> its result.
Perform: TypeAlias = Callable[[str], str]
Graph: TypeAlias = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]


class HistoryRefusedError(Exception):
    """The model got a history that model providers refuse; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One message as a person reads it.

    Attributes:
        who: "user", "model", or the name of a tool.
        text: What it says.
        outcome: Of an answer that the guard gave in a tool's place, what is known of the call.
    """

    who: str
    text: str
    outcome: str | None = None


class Effects:
    """What the tools have done to the world outside, in a file that no crash takes back: one line per effect."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def add(self, name: str) -> None:
        """Do it. Durable on return, whatever happens to the process afterwards."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{name}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def count(self, names: Iterable[str]) -> dict[str, int]:
        """How often each of these tools has taken effect."""
        done = Counter(self.path.read_text(encoding="utf-8").split() if self.path.exists() else ())
        return {name: done[name] for name in names}

    def perform(self, name: str) -> str:
        """Run one tool to its end."""
        self.add(name)
        return TOOLS[name][1]


def build_trip_graph(
    replies: Sequence[Sequence[str]],
    perform: Perform,
    saver: BaseCheckpointSaver[Any],
    *,
    seen: Callable[[list[HistoryLine]], None] = lambda _lines: None,
) -> Graph:
    """The agent as LangGraph's own documentation builds one: a model node and one tool node.

    All calls of a reply are one task. Where each is a task of its own, as in `create_agent`, LangGraph keeps the
    result of one that has finished, too, but knows as little of one that was cut off.

    Args:
        replies: The tools that the model calls, reply by reply; after them it says that it is done.
        perform: Runs a tool.
        saver: The checkpointer.
        seen: Gets each history that the model gets.
    """

    def ask_model(state: MessagesState) -> dict[str, list[AnyMessage]]:
        seen(read_history(state["messages"]))
        return {"messages": [_reply(state["messages"], replies)]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", ask_model)
    builder.add_node("tools", ToolNode([_build_tool(name, perform) for name in TOOLS]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def guarded(graph: Graph, saver: BaseCheckpointSaver[Any], *, on_restart: Mapping[str, str] | None = None) -> Graph:
    """The same graph with a guard: the one line that an app adds."""
    return TurnGuard(saver, on_restart=on_restart).attach(graph)


def _build_tool(name: str, perform: Perform) -> BaseTool:
    def run() -> str:
        return perform(name)

    return StructuredTool.from_function(run, name=name, description=TOOLS[name][0])


def _reply(messages: Sequence[AnyMessage], replies: Sequence[Sequence[str]]) -> AIMessage:
    """The fake model: it has no memory, and refuses what the providers of real ones refuse.

    Raises:
        HistoryRefusedError: A tool call is not answered right behind its message.
    """
    open_calls = find_unanswered(messages)
    if open_calls:
        raise HistoryRefusedError(f"no answer to the tool calls {', '.join(open_calls)}")
    turn = sum(isinstance(message, AIMessage) for message in messages)
    if turn >= len(replies):
        return AIMessage("(goes on from here)", id=f"reply-{turn}")
    calls = [ToolCall(name=name, args={}, id=f"call-{turn}-{name}", type="tool_call") for name in replies[turn]]
    return AIMessage("", tool_calls=calls, id=f"reply-{turn}")


def find_unanswered(messages: Sequence[AnyMessage]) -> list[str]:
    """Names of the tools whose calls have no answer right behind the message that made them."""
    found: list[str] = []
    for position, message in enumerate(messages):
        if isinstance(message, AIMessage):
            answered = {answer.tool_call_id for answer in _answers_behind(messages, position)}
            found += [call["name"] for call in message.tool_calls if call["id"] not in answered]
    return found


def _answers_behind(messages: Sequence[AnyMessage], position: int) -> Iterator[ToolMessage]:
    for message in messages[position + 1 :]:
        if not isinstance(message, ToolMessage):
            return
        yield message


def read_history(messages: Sequence[AnyMessage]) -> list[HistoryLine]:
    """A history as a person reads it."""
    lines = []
    for message in messages:
        if isinstance(message, ToolMessage):
            known = message.response_metadata.get("turncheckpoint", {})
            lines.append(HistoryLine(message.name or "tool", message.text, known.get("outcome")))
        elif isinstance(message, AIMessage) and message.tool_calls:
            lines.append(HistoryLine("model", "calls " + ", ".join(call["name"] for call in message.tool_calls)))
        else:
            lines.append(HistoryLine("user" if isinstance(message, HumanMessage) else "model", message.text))
    return lines
