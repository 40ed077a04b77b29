"""An agent under the guard in a process that may die at any instant, and what it says outward of what it has done. What
must hold afterwards is not said here.

Everything it says is a line in one file per thread, appended with one system call after the fact: a checkpoint that
`put` has returned for, a result that is recorded, an effect of a tool. So the lines are in the order in which all of
that has happened, and none is lost with the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import random
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

from langchain.agents import create_agent
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

from langgraph_turncheckpoint import TurnCheckpointSaver, TurnGuard, _running
from tests.crash.processes import Line

Way = Literal["attach", "middleware", "node"]
WAYS: Final[tuple[Way, ...]] = ("attach", "middleware", "node")
DURABILITIES: Final[tuple[Durability, ...]] = ("sync", "async", "exit")
Extra = Literal["post", "update", "prune"]
EXTRAS: Final[tuple[Extra, ...]] = ("post", "update", "prune")

#: What the model wants to do about each prompt, step by step. Calls of one step run side by side.
PLAN: Final = (("fast", "slow", "again"), ("last",))
TOOLS: Final = tuple(name for step in PLAN for name in step)
#: The tool that may run again where nobody knows what it has done; all others may not.
RERUN: Final = "again"
#: Seconds that a tool works, at most.
WORK_SECONDS: Final = 0.012
PROMPT: Final = "prompt-"
RESULT: Final = "result-"


class Round(NamedTuple):
    """What a process does before it dies, if it does.

    Attributes:
        directory: Where the store is, and what is said outward.
        thread: The thread.
        way: How the guard is in the graph.
        durability: LangGraph's.
        colour: "sync" or "async".
        fsync: The saver's.
        number: Of the round; what is said in it is named by this.
        goes_on: Whether the thread goes on, or a new message comes.
        extras: What is done to the thread before that.
        is_whole: Whether there is one more turn, and then a look at everything; nobody is killed meanwhile.
        sabotage: What breaks the process first, to see whether that is noticed.
    """

    directory: Path
    thread: str
    way: Way
    durability: Durability
    colour: Literal["sync", "async"]
    fsync: bool
    number: int
    goes_on: bool = False
    extras: tuple[Extra, ...] = ()
    is_whole: bool = False
    sabotage: Callable[[], object] | None = None

    @property
    def store(self) -> Path:
        """The store."""
        return self.directory / "store"

    @property
    def said(self) -> Path:
        """The file of what the processes of this thread say outward."""
        return self.directory / f"{self.thread}.said"

    @property
    def asked(self) -> Path:
        """The file of what the model is asked with in this round."""
        return self.directory / f"{self.thread}.asked"

    def __str__(self) -> str:
        act = "goes on" if self.goes_on else "new message"
        first = " and ".join([*self.extras, act])
        return f"round {self.number}, thread {self.thread}, {self.durability}, {self.colour}: {first}"


class Looked(NamedTuple):
    """What there is after a whole round.

    Attributes:
        history: The stored messages.
        next: What the graph would do next.
        waiting: Ids of what waits in the inbox.
        is_busy: Whether the thread is taken for busy.
    """

    history: list[BaseMessage]
    next: tuple[str, ...]
    waiting: list[str | None]
    is_busy: bool


class Said:
    """What is said outward."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(self, *what: Any) -> None:
        """Append a line; it outlives this process."""
        os.write(self._fd, f"{json.dumps(what)}\n".encode())


def digest(messages: Sequence[BaseMessage]) -> list[int]:
    """How many messages there are, and what the last are like."""
    last = [(message.type, message.id, message.content) for message in messages[-8:]]
    return [len(messages), zlib.crc32(repr(last).encode())]


def results_of(output: Any) -> Iterator[ToolMessage]:
    """What tools have really given, in an output of whatever shape."""
    for each in output if isinstance(output, (list, tuple)) else [output]:
        if isinstance(each, ToolMessage) and str(each.content).startswith(RESULT):
            yield each


class AcknowledgingSaver(TurnCheckpointSaver):
    """Says outward what is durable, once it is."""

    def __init__(self, path: Path, said: Said, *, fsync: bool) -> None:
        super().__init__(path, fsync=fsync)
        self._said = said

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> RunnableConfig:
        stored = super().put(config, checkpoint, metadata, new_versions)
        self._said.say("checkpoint", checkpoint["id"], digest(checkpoint["channel_values"].get("messages", ())))
        return stored

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        for channel, value in writes:
            for message in results_of(value) if channel == "messages" else ():
                self._said.say("result", message.tool_call_id, message.content)


def say_recorded_results(said: Said) -> None:
    """From now on this process says which results its journal holds."""
    real = _running.RunningTurn.tool_ended

    def tool_ended(self: _running.RunningTurn, key: Any, output: Any) -> None:
        real(self, key, output)
        for message in results_of(output):
            said.say("result", message.tool_call_id, message.content)

    _running.RunningTurn.tool_ended = tool_ended  # type: ignore[method-assign]


# --- the model and its tools ---


def outcome_of(message: BaseMessage) -> str | None:
    """What the guard says of a call, if it has answered it."""
    return (message.response_metadata.get("turncheckpoint") or {}).get("outcome")


def wanted(messages: Sequence[BaseMessage]) -> list[str]:
    """The next tools to call for the last prompt, from the history alone.

    A call that was not run, as the history says, is made again; one of unknown outcome is not.
    """
    prompts = [n for n, m in enumerate(messages) if isinstance(m, HumanMessage) and m.text.startswith(PROMPT)]
    own = messages[prompts[-1] :] if prompts else ()
    not_run = {m.tool_call_id for m in own if isinstance(m, ToolMessage) and outcome_of(m) == "not_run"}
    calls = [call for m in own if isinstance(m, AIMessage) for call in m.tool_calls]
    done = {call["name"] for call in calls if call["id"] not in not_run}
    for step in PLAN:
        if prompts and (missing := [name for name in step if name not in done]):
            return missing
    return []


class Planner(BaseChatModel):
    """Streams a text that no other reply has, and the calls that are left to make."""

    asked: Callable[[list[BaseMessage]], object]

    @property
    def _llm_type(self) -> str:
        return "planner"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self.asked(messages)
        keys = [(name, f"{name}-{uuid4().hex[:12]}") for name in wanted(messages)]
        calls = [
            tool_call_chunk(name=name, args=json.dumps({"key": key}), id=key, index=index)
            for index, (name, key) in enumerate(keys)
        ]
        words = [AIMessageChunk(content=word) for word in (f"said-{uuid4().hex[:8]}", " and no more")]
        for chunk in (*words, AIMessageChunk(content="", tool_call_chunks=calls)):
            generation = ChatGenerationChunk(message=chunk)
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=generation)
            yield generation

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError


class Agent:
    """The agent in one process, as if that had just been started."""

    def __init__(self, given: Round) -> None:
        self._round, self._said = given, Said(given.said)
        if given.sabotage is not None:
            given.sabotage()
        say_recorded_results(self._said)
        self.saver = AcknowledgingSaver(given.store, self._said, fsync=given.fsync)
        self._inbox = self.saver.inbox(given.thread)
        self._config: RunnableConfig = {"configurable": {"thread_id": given.thread}}
        self._asked = 0
        self._graph = self._made()

    def act(self) -> None:
        """Do what the round asks for."""
        for extra in self._round.extras:
            getattr(self, f"_{extra}")()
        if self._round.goes_on:
            self._go_on()
        else:
            self._say(f"{PROMPT}{self._round.number}")

    def finish(self) -> Looked:
        """One more turn, and what there is then."""
        self._say(f"{PROMPT}{self._round.number}-next")
        # What a poster that died had begun goes with the next post.
        self._inbox.acknowledge([self._inbox.post("late")])
        state = self._graph.get_state(self._config)
        waiting = [message.id for message in self._inbox.pending()]
        is_busy = self.saver.is_busy(self._round.thread)
        return Looked(list(state.values["messages"]), state.next, waiting, is_busy)

    # --- what a round is made of ---

    def _post(self) -> None:
        message_id = f"posted-{uuid4().hex[:12]}"
        self._inbox.post(HumanMessage(message_id, id=message_id))
        self._said.say("posted", message_id)

    def _update(self) -> None:
        message_id = f"updated-{uuid4().hex[:12]}"
        self._graph.update_state(self._config, {"messages": [HumanMessage(message_id, id=message_id)]}, START)
        self._said.say("updated", message_id)

    def _prune(self) -> None:
        self._said.say("pruning")
        self.saver.prune([self._round.thread])

    def _say(self, text: str) -> None:
        self._run({"messages": [HumanMessage(text)]})

    def _go_on(self) -> None:
        try:
            self._run(None)
        except EmptyInputError:
            self._say(f"{PROMPT}{self._round.number}")

    def _run(self, given: Any) -> None:
        self._said.say("begun")
        kwargs: Any = {"stream_mode": ["messages", "values"], "durability": self._round.durability}
        if self._round.colour == "sync":
            for _ in self._graph.stream(given, self._config, **kwargs):
                pass
        else:

            async def consume() -> None:
                async for _ in self._graph.astream(given, self._config, **kwargs):
                    pass

            asyncio.run(consume())
        self._said.say("over")

    # --- the graph ---

    def _made(self) -> Any:
        model, tools = Planner(asked=self._is_asked), [self._tool(name) for name in TOOLS]
        guard = TurnGuard(self.saver, on_restart={RERUN: "rerun"})
        if self._round.way == "attach":
            return guard.attach(create_agent(model, tools, checkpointer=self.saver))
        if self._round.way == "middleware":
            return create_agent(model, tools, middleware=[guard.middleware()], checkpointer=self.saver)

        def ask(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            return {"messages": [model.invoke(state["messages"], config)]}

        builder = StateGraph(MessagesState)
        builder.add_node("model", guard.node(ask))
        tool_node = ToolNode(tools, wrap_tool_call=guard.wrap_tool_call, awrap_tool_call=guard.awrap_tool_call)
        builder.add_node("tools", tool_node)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
        return builder.compile(checkpointer=self.saver)

    def _is_asked(self, messages: list[BaseMessage]) -> None:
        with self._round.asked.open("ab", buffering=0) as file:
            at = file.tell()
            file.write(pickle.dumps(messages))
        self._said.say("asked", at)

    def _tool(self, name: str) -> BaseTool:
        def begin(key: str) -> float:
            self._said.say("started", key)
            return random() * WORK_SECONDS

        def end(key: str) -> str:
            result = f"{RESULT}{uuid4().hex[:12]}"
            self._said.say("ended", key, result)
            if name == "slow":
                self._post()
            return result

        def work(key: str) -> str:
            time.sleep(begin(key))
            return end(key)

        async def awork(key: str) -> str:
            await asyncio.sleep(begin(key))
            return await asyncio.to_thread(end, key)

        return StructuredTool.from_function(work, awork, name=name, description=name)


def play(line: Line, given: Round) -> None:
    """A round, from the moment when it says so; a whole one ends with a `Looked`. Waits to be told to leave."""
    agent = Agent(given)
    line.tell("ready")
    agent.act()
    line.tell("acted")
    if given.is_whole:
        line.tell(agent.finish())
    line.hear()
