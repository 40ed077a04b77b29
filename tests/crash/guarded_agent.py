"""An agent under the guard, run in a process that dies at a chosen boundary or takes up what a dead one has left.

A boundary is the moment before or after a system call of the package, an effect of a tool, or a word of the model.
What must hold afterwards is not said here.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import EmptyInputError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Durability
from pydantic import PrivateAttr

from langgraph_turncheckpoint import TurnCheckpointSaver, TurnGuard
from tests.crash.processes import Line
from tests.system_calls import RECORDED, SystemCalls, substituted

Way = Literal["attach", "middleware", "node", "attach-node"]
WAYS: Final[tuple[Way, ...]] = ("attach", "middleware", "node", "attach-node")
DURABILITIES: Final[tuple[Durability, ...]] = ("sync", "async", "exit")

THREAD: Final = "t"
CONFIG: Final[RunnableConfig] = {"configurable": {"thread_id": THREAD}}
#: What the model wants to do, in the order of its steps. Calls of one step run side by side.
PLAN: Final = (("fast", "slow", "after"), ("finish",))
TOOLS: Final = tuple(name for step in PLAN for name in step)
FIRST_PROMPT: Final = "prompt-1"
POSTED: Final = "posted-meanwhile"


class Case(NamedTuple):
    """How a turn is run.

    Attributes:
        way: How the guard is in the graph: with `create_agent`, whose calls fan out, by `attach` or `middleware`;
            with one task for all calls of a step, by `node` and `wrap_tool_call` or by `attach`.
        durability: LangGraph's.
        used: Whether the thread had a turn before.
        colour: "sync" or "async".
    """

    way: Way
    durability: Durability
    used: bool = True
    colour: str = "sync"

    def __str__(self) -> str:
        thread = "used" if self.used else "fresh"
        return f"{self.way}, {self.durability}, {thread} thread, {self.colour}"


# --- boundaries ---


class Boundaries(SystemCalls):
    """Counts the boundaries of a run, and kills the process at one of them."""

    def __init__(self, deadly: int | None) -> None:
        super().__init__()
        self.names_crossed: list[str] = []
        self._deadly = deadly
        self._guard = threading.Lock()

    def cross(self, name: str) -> None:
        """This is a boundary."""
        with self._guard:
            position = len(self.names_crossed)
            self.names_crossed.append(name)
            if position == self._deadly:
                os.kill(os.getpid(), signal.SIGKILL)

    def note(self, name: str, args: tuple[Any, ...]) -> int | None:
        self.cross(f"before {_named(name, args)}")
        return None

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name not in RECORDED:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self.cross(f"after {_named(name, args)}")
            return result

        return call


def _named(name: str, args: tuple[Any, ...]) -> str:
    """A call, by its name and that of the file, if it is called by it."""
    if name == "open" and args[1] & os.O_CREAT:
        name = "create"
    return f"{name} {os.path.basename(args[0])}" if args and isinstance(args[0], str) else name


# --- the model and its tools ---


def outcome_of(message: BaseMessage) -> str | None:
    """What the guard says of a call, if it has answered it."""
    return (message.response_metadata.get("turncheckpoint") or {}).get("outcome")


def wanted(messages: Sequence[BaseMessage]) -> list[str]:
    """The next tools to call, from the history alone: those that it does not show to have been called.

    A call that was not run, as the history says, is made again; one of unknown outcome is not.
    """
    if not any(isinstance(m, HumanMessage) and str(m.content).startswith("prompt-") for m in messages):
        return []
    not_run = {m.tool_call_id for m in messages if isinstance(m, ToolMessage) and outcome_of(m) == "not_run"}
    calls = [call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
    done = {call["name"] for call in calls if call["id"] not in not_run}
    for step in PLAN:
        if missing := [name for name in step if name not in done]:
            return missing
    return []


class Planner(BaseChatModel):
    """Streams a text that no other reply has, and the calls that are left to make."""

    cross: Callable[[str], None]
    _seen: list[list[BaseMessage]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "planner"

    @property
    def seen(self) -> list[list[BaseMessage]]:
        """The histories that it was asked with."""
        return self._seen

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self._seen.append(list(messages))
        calls = [
            tool_call_chunk(name=name, args='{"of": 1}', id=f"call-{name}-{uuid4().hex[:8]}", index=index)
            for index, name in enumerate(wanted(messages))
        ]
        words = [AIMessageChunk(content=word) for word in (f"said-{uuid4().hex[:8]}", " and no more")]
        for chunk in (*words, AIMessageChunk(content="", tool_call_chunks=calls)):
            self.cross("before a word")
            generation = ChatGenerationChunk(message=chunk)
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=generation)
            yield generation

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError


class Tools:
    """The tools, whose effects are lines in a file.

    Args:
        directory: Where the file is.
        saver: `slow` posts a message into the thread's inbox.
        cross: Told before and after each effect.
        in_order: Whether `slow` waits for `fast`, and `after` for `slow`.
    """

    def __init__(
        self, directory: Path, saver: TurnCheckpointSaver, cross: Callable[[str], None], *, in_order: bool
    ) -> None:
        self._effects, self._saver, self._cross, self._in_order = directory / "effects", saver, cross, in_order
        self._done = {name: threading.Event() for name in TOOLS}

    def all(self) -> list[BaseTool]:
        """The tools of the plan."""
        return [self._tool(name) for name in TOOLS]

    def _tool(self, name: str) -> BaseTool:
        waits_for = {"slow": "fast", "after": "slow"}.get(name)

        def work(of: int) -> str:
            if waits_for and self._in_order:
                self._done[waits_for].wait()
            result = f"result-{uuid4().hex[:8]}"
            self._cross(f"before the effect of {name}")
            fd = os.open(self._effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, f"{name} {result}\n".encode())
            os.close(fd)
            self._cross(f"after the effect of {name}")
            if name == "slow":
                self._saver.inbox(THREAD).post(HumanMessage(POSTED, id=POSTED))
            self._done[name].set()
            return result

        return StructuredTool.from_function(work, name=name, description=name)


def graph_of(way: Way, saver: TurnCheckpointSaver, model: Planner, tools: list[BaseTool]) -> Any:
    """The agent, guarded."""
    from langchain.agents import create_agent

    guard = TurnGuard(saver)
    if way == "attach":
        return guard.attach(create_agent(model, tools, checkpointer=saver))
    if way == "middleware":
        return create_agent(model, tools, middleware=[guard.middleware()], checkpointer=saver)

    def ask(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"], config)]}

    builder = StateGraph(MessagesState)
    if way == "node":
        tool_node = ToolNode(tools, wrap_tool_call=guard.wrap_tool_call, awrap_tool_call=guard.awrap_tool_call)
        builder.add_node("model", guard.node(ask))
    else:
        tool_node = ToolNode(tools)
        builder.add_node("model", ask)
    builder.add_node("tools", tool_node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=saver)
    return guard.attach(graph) if way == "attach-node" else graph


# --- processes ---


class Session:
    """The agent in one process, as if that had just been started."""

    def __init__(self, directory: Path, case: Case, cross: Callable[[str], None], *, in_order: bool = False) -> None:
        self.saver = TurnCheckpointSaver(directory / "store")
        self.model = Planner(cross=cross)
        tools = Tools(directory, self.saver, cross, in_order=in_order).all()
        self._case, self._graph = case, graph_of(case.way, self.saver, self.model, tools)

    def say(self, text: str) -> None:
        """A turn with a new message."""
        self._run({"messages": [HumanMessage(text)]})

    def go_on(self, *, otherwise: str) -> bool:
        """The turn goes on; where LangGraph has nothing to go on with, a turn with a new message.

        Returns:
            Whether it had something.
        """
        try:
            self._run(None)
        except EmptyInputError:
            self.say(otherwise)
            return False
        return True

    def _run(self, given: Any) -> None:
        kwargs: Any = {"stream_mode": ["messages", "values"], "durability": self._case.durability}
        if self._case.colour == "sync":
            for _ in self._graph.stream(given, CONFIG, **kwargs):
                pass
            return

        async def consume() -> None:
            async for _ in self._graph.astream(given, CONFIG, **kwargs):
                pass

        asyncio.run(consume())


def say_hello(line: Line, directory: Path) -> None:
    """Makes a used thread: a turn without tools."""
    Session(directory, Case("attach", "sync"), lambda name: None).say("hello")
    line.tell("said")


def die_at(line: Line, directory: Path, case: Case, text: str, goes_on: bool, deadly: int | None) -> None:
    """A turn in which the process is killed at the boundary `deadly`; tells the names of all if it survives."""
    with substituted(Boundaries(deadly)) as calls:
        assert isinstance(calls, Boundaries)
        session = Session(directory, case, calls.cross, in_order=text == FIRST_PROMPT)
        if goes_on:
            session.go_on(otherwise=text)
        else:
            session.say(text)
        names = list(calls.names_crossed)
    line.tell(names)


class TakenUp(NamedTuple):
    """What came of it when a thread was taken up.

    Attributes:
        was_busy: Whether the thread was taken for busy at the start, or later.
        went_on: Whether there was something to go on with; `None` if a new message came instead.
        after_resume: The stored history after the turn that took it up.
        after_next: And after one more ordinary turn.
        seen: Each history that the model was asked with.
        waiting: Ids of messages that still wait in the inbox, although that turn had them or could have had them.
        turns: State and cause of each turn.
    """

    was_busy: tuple[bool, bool, bool]
    went_on: bool | None
    after_resume: list[BaseMessage]
    after_next: list[BaseMessage]
    seen: list[list[BaseMessage]]
    waiting: list[str | None]
    turns: list[tuple[str, str | None]]


def take_up(line: Line, directory: Path, case: Case, text: str, goes_on: bool) -> None:
    """Goes on, or says something new; then there is an ordinary turn. Tells a `TakenUp`."""
    session = Session(directory, case, lambda name: None)
    busy = [TurnCheckpointSaver(directory / "store").is_busy(THREAD)]
    went_on = None
    if goes_on:
        went_on = session.go_on(otherwise=text)
    else:
        session.say(text)
    busy.append(session.saver.is_busy(THREAD))
    after_resume, inbox = stored(directory), session.saver.inbox(THREAD)
    waited = {message.id for message in inbox.pending()}
    session.say("next")
    busy.append(session.saver.is_busy(THREAD))
    after_next = stored(directory)
    waited |= {message.id for message in after_next}
    waiting = [message.id for message in inbox.pending() if message.id in waited]
    # What a poster that died had begun goes with the next post.
    inbox.acknowledge([inbox.post("late")])
    turns = [(turn.state, turn.cause) for turn in session.saver.turns(THREAD)]
    found = TakenUp(tuple(busy), went_on, after_resume, after_next, session.model.seen, waiting, turns)  # type: ignore[arg-type]
    line.tell(found)


def stored(directory: Path) -> list[BaseMessage]:
    """The history as somebody without a guard reads it."""
    saved = TurnCheckpointSaver(directory / "store").get_tuple(CONFIG)
    return list(saved.checkpoint["channel_values"].get("messages", ())) if saved is not None else []


def in_files(directory: Path, pattern: str, names: str) -> set[str]:
    """What matches in the bytes of those files of a store whose names match."""
    found: set[bytes] = set()
    for path in (directory / "store").rglob(names):
        found.update(re.findall(pattern.encode(), path.read_bytes()))
    return {each.decode() for each in found}
