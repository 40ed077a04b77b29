"""Agents with scripted models and counted tools, behind each way into the guard, over several savers, in both colours.

A `Way` is how a graph and the guard come together, an `Agent` is one process' life with them in a place. What is right
is asserted elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent
from langgraph.types import Send, interrupt

from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.guarded_places import PLACES, Colour, Effects, Place
from tests.contract.true_histories import assert_valid, shape

#: A failing test waits so long for what never comes.
HANG_SECONDS: Final = 20.0

# --- the model and its tools ---


class Model(BaseChatModel):
    """Says what its script says to the text of the last message; to all else, that it is done."""

    script: Mapping[str, AIMessage]
    seen: list[list[BaseMessage]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        self.seen.append(list(messages))
        reply = self.script.get(messages[-1].text)
        message = AIMessage(f"done after {len(messages)}") if reply is None else reply.model_copy(update={"id": None})
        return ChatResult(generations=[ChatGeneration(message=message)])


def calls(*names: str, first: int = 0, **fields: Any) -> AIMessage:
    """One message that calls these tools, as c0, c1, ..."""
    found = [{"name": name, "args": {}, "id": f"c{first + n}", "type": "tool_call"} for n, name in enumerate(names)]
    return AIMessage("", tool_calls=found, **fields)


class Ending(NamedTuple):
    """How a tool ends its run: "kill" its process, "stop" the run, raise an `error`, or wait for `resumed`.

    It does so when `after()` holds, so that nothing depends on who is faster.
    """

    how: Literal["kill", "stop", "error", "block"]
    after: Callable[[], bool] = lambda: True
    reached: Any = None
    resumed: Any = None


def toolbox(effects: Effects, names: Sequence[str], endings: Mapping[str, Ending], colour: Colour) -> list[BaseTool]:
    """Tools by name: each notes its effect and gives "<name> gave"; "ask..." asks a person first."""
    return [_tool(name, effects, endings.get(name), colour) for name in names]


def _tool(name: str, effects: Effects, ending: Ending | None, colour: Colour) -> BaseTool:
    def run() -> str:
        if name.startswith("ask"):
            answer = interrupt({"may": name})
            if answer == "no":
                return f"{name} rejected"
        effects.add(name)
        if ending is not None:
            _wait_until(ending.after)
            _end(ending, name)
            if ending.how == "stop":
                raise KeyboardInterrupt
            if ending.how == "block":
                assert ending.resumed.wait(HANG_SECONDS)
        return f"{name} gave"

    async def arun() -> str:
        if ending is None:
            return run()
        effects.add(name)
        # What it waits for is in a file; nobody has an event to give.
        while not ending.after():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        _end(ending, name)
        if ending.how == "stop":
            await asyncio.Event().wait()
        if ending.how == "block":
            # The loop must not stand still: the one who wakes this tool may need it.
            assert await asyncio.get_running_loop().run_in_executor(None, ending.resumed.wait, HANG_SECONDS)
        return f"{name} gave"

    run.__name__ = name
    return StructuredTool.from_function(
        func=run, coroutine=arun if colour == "async" else None, name=name, description=name
    )


def _end(ending: Ending, name: str) -> None:
    if ending.how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending.reached is not None:
        ending.reached.set()
    if ending.how == "error":
        raise ValueError(f"{name} broke")


def _wait_until(condition: Callable[[], bool]) -> None:
    """Poll for what only a file of another thread or process tells."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "what a tool waits for never comes"
        time.sleep(0.002)


# --- graphs ---


class Way(NamedTuple):
    """How a graph and the guard come together.

    Attributes:
        name: As it is shown.
        graph: "create_agent", "react" or "hand".
        guard: "middleware", "node", "attach", "recover" (over runs that know no guard) or "recover-attached".
        fan_out: Whether each call has a task of its own.
    """

    name: str
    graph: str
    guard: str
    fan_out: bool = True

    @property
    def is_by_hand(self) -> bool:
        """Whether the guard acts between the runs only."""
        return self.guard.startswith("recover")

    @property
    def has_journal(self) -> bool:
        """Whether the guard sees what happens in a run."""
        return self.guard != "recover"


WAYS: Final = {
    way.name: way
    for way in (
        Way("middleware", "create_agent", "middleware"),
        Way("node", "hand", "node"),
        Way("node-one-task", "hand", "node", fan_out=False),
        Way("attach-agent", "create_agent", "attach"),
        Way("attach", "hand", "attach"),
        Way("attach-one-task", "hand", "attach", fan_out=False),
        Way("attach-react", "react", "attach"),
        Way("attach-react-one-task", "react", "attach", fan_out=False),
        Way("recover", "create_agent", "recover"),
        Way("recover-attached", "hand", "recover-attached"),
        Way("recover-attached-one-task", "hand", "recover-attached", fan_out=False),
    )
}
GUARDED_WAYS: Final = [way for way in WAYS.values() if not way.is_by_hand]
#: One of each kind, where the way makes little difference.
SOME_WAYS: Final = [WAYS[n] for n in ("middleware", "node-one-task", "attach-agent", "attach-one-task")]
#: One of each kind, for savers other than ours.
FEW_WAYS: Final = [WAYS[n] for n in ("middleware", "node", "node-one-task", "attach-agent", "attach-one-task")]


def hand_built(
    model: Model,
    tools: list[BaseTool],
    *,
    colour: Colour,
    fan_out: bool,
    state: Any = MessagesState,
    key: str = "messages",
    guard: TurnGuard | None = None,
    replaces: bool = False,
    has_ids: bool = True,
) -> StateGraph[Any]:
    """A model node and a tool node; with `guard`, through `guard.node` and `wrap_tool_call`.

    Args:
        model: The model.
        tools: Its tools.
        colour: Of the nodes.
        fan_out: Whether each call has a task of its own.
        state: The graph's state.
        key: The key of the history.
        guard: The guard that sits in the nodes.
        replaces: Whether nodes write the whole history, for a state without a reducer.
        has_ids: Whether replies have ids.
    """

    def history(values: Any) -> list[Any]:
        return list(values[key] if isinstance(values, Mapping) else getattr(values, key))

    def told(values: Any, *messages: BaseMessage) -> Any:
        return {key: [*(history(values) if replaces else ()), *messages]}

    def named(reply: BaseMessage) -> BaseMessage:
        return reply if has_ids else reply.model_copy(update={"id": None})

    def ask(values: Any) -> Any:
        return told(values, named(model.invoke(history(values))))

    async def aask(values: Any) -> Any:
        return told(values, named(await model.ainvoke(history(values))))

    def route(values: Any) -> Any:
        last = history(values)[-1]
        if not (isinstance(last, AIMessage) and last.tool_calls):
            return END
        if not fan_out:
            return "tools"
        context = {"__type": "tool_call_with_context", "state": values}
        return [Send("tools", {**context, "tool_call": tool_call}) for tool_call in last.tool_calls]

    node: Any = ask if colour == "sync" else aask
    wraps: dict[str, Any] = {}
    if guard is not None:
        node = guard.node(node)
        wraps = {"wrap_tool_call": guard.wrap_tool_call, "awrap_tool_call": guard.awrap_tool_call}
    tool_node: Any = ToolNode(tools, messages_key=key, **wraps)

    def act(values: Any, config: RunnableConfig) -> Any:
        return told(values, *tool_node.invoke(values, config)[key])

    async def aact(values: Any, config: RunnableConfig) -> Any:
        return told(values, *(await tool_node.ainvoke(values, config))[key])

    own: Any = act if colour == "sync" else aact
    builder: StateGraph[Any] = StateGraph(state)
    builder.add_node("model", node)
    builder.add_node("tools", own if replaces else tool_node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools", END])
    builder.add_edge("tools", "model")
    return builder


def built(way: Way, model: Model, tools: list[BaseTool], guard: TurnGuard | None, colour: Colour) -> Any:
    """The graph of a way, made for a saver: a function of it. Without `guard`, the graph as it is without one."""
    if way.graph == "create_agent":
        from langchain.agents import create_agent

        middleware = [guard.middleware()] if guard is not None and way.guard == "middleware" else []
        return lambda saver: create_agent(model, tools, middleware=middleware, checkpointer=saver)
    if way.graph == "react":
        version: Any = "v2" if way.fan_out else "v1"

        def react(saver: Any) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it is deprecated, and in use
                return create_react_agent(model, tools, version=version, checkpointer=saver)

        return react
    own = guard if way.guard == "node" else None
    builder = hand_built(model, tools, colour=colour, fan_out=way.fan_out, guard=own)
    return lambda saver: builder.compile(checkpointer=saver)


TOOLS: Final = ("fast", "slow", "third", "boom", "ask", "f0", "f1", "f2")


class Agent:
    """One process' life with an agent on one thread.

    Args:
        place: Where its threads are.
        way: How the guard comes in.
        script: What the model says, by the text of the last message.
        endings: How tools end their run, by name.
        make: Makes the graph's function of a saver from model, tools, guard and colour, instead of the way's own.
        tools: Instead of those of `toolbox`.
        thread: Its id.
        replaces: Whether an input is the whole history, for a state without a reducer.
        options: Of the guard.
    """

    def __init__(
        self,
        place: Place,
        way: Way,
        script: Mapping[str, AIMessage] | None = None,
        *,
        endings: Mapping[str, Ending] | None = None,
        make: Callable[..., Any] | None = None,
        tools: list[BaseTool] | None = None,
        thread: str = "t",
        replaces: bool = False,
        **options: Any,
    ) -> None:
        self.place, self.way, self.replaces = place, way, replaces
        self.model = Model(script=script or {}, seen=[])
        self.saver = place.open()
        self.guard = place.guard(self.saver, **options)
        self.config: Any = {"configurable": {"thread_id": thread}}
        self.key = options.get("messages_key", "messages")
        tools = toolbox(place.effects, TOOLS, endings or {}, place.colour) if tools is None else tools
        make = make or built
        self.graph = make(way, self.model, tools, self.guard, place.colour)(self.saver)
        #: As a program that knows nothing of the guard would make it.
        self.plain = make(way, self.model, tools, None, place.colour)
        self.guarded = self.graph
        if way.guard in ("attach", "recover-attached"):
            self.guarded = self.guard.attach(self.graph)

    @property
    def seen(self) -> list[BaseMessage]:
        """The history that the model was given last."""
        return self.model.seen[-1]

    def run(self, given: Any, **config: Any) -> Any:
        """A run as it is before anything has gone wrong."""
        return self.place.call(self.guarded, "invoke", given, {**self.config, **config})

    def say(self, text: str, **config: Any) -> list[Any]:
        """A new message, after what went wrong; gives the history."""
        if self.way.is_by_hand:
            self.recover()
        before = self.stored() if self.replaces else []
        return self.go_on({self.key: [*before, HumanMessage(text)]}, **config)

    def go_on(self, given: Any, **config: Any) -> list[Any]:
        """A run with an input, or `None` or a `Command`; gives the history."""
        graph = self.guarded
        if self.way.is_by_hand:
            assert given is not None, "there is nothing to go on with behind a recovery by hand"
            self.recover()
            graph = self.graph
        return _history(self.place.call(graph, "invoke", given, {**self.config, **config}), self.key)

    def recover(self) -> Any:
        """`guard.recover`."""
        return self.place.call(self.guard, "recover", self.graph, self.config)

    def stop_in(self, text: str, reached: threading.Event, **config: Any) -> None:
        """Send a message and stop the run once a tool has got there: Ctrl-C if it blocks, a cancelled task if not."""
        given = {self.key: [HumanMessage(text)]}
        if self.place.colour == "sync":
            with pytest.raises(KeyboardInterrupt):
                self.run(given, **config)
            return

        async def cancel() -> None:
            task = asyncio.ensure_future(self.guarded.ainvoke(given, {**self.config, **config}))
            # The event is one of threads, for both colours.
            while not reached.is_set() and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()

        self.place.wait(cancel())

    def stored(self) -> list[Any]:
        """The history, as a fresh saver and a graph without the guard read it."""
        return _history(self.state().values, self.key)

    def state(self) -> Any:
        """The state, as a fresh saver and a graph without the guard read it."""
        return self.place.call(self.plain(self.place.open()), "get_state", self.config)


def _history(values: Any, key: str) -> list[Any]:
    found = values.get(key, []) if isinstance(values, Mapping) else getattr(values, key)
    return list(found)


def assert_settled(agent: Agent, *, gave: Sequence[str] = ()) -> None:
    """What the thread holds is in order, also for a program without the guard, and a second pass changes nothing.

    Args:
        agent: Whose thread.
        gave: Tools whose real results must be there.
    """
    stored = agent.stored()
    assert_valid(stored)
    texts = [str(message.text) for message in stored if isinstance(message, ToolMessage)]
    for name in gave:
        assert texts.count(f"{name} gave") == 1, shape(stored)
    before = agent.state().config
    report = agent.recover()
    assert not report.changed
    assert agent.state().config == before
    assert agent.stored() == stored


def over(ways: Sequence[Way], *, few: Sequence[Way] = FEW_WAYS, places: Sequence[Any] = PLACES) -> Any:
    """Parametrizes a test over `way`, `kind` and `colour`: all ways with our saver, a few with the others."""
    found = [
        pytest.param(way, kind, colour, id=f"{kind}-{colour}-{way.name}")
        for kind, colour in places
        for way in ways
        if kind == "turn" or way in few
    ]
    return pytest.mark.parametrize(("way", "kind", "colour"), found)
