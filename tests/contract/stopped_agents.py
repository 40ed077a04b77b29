"""Agents for tests of runs that are stopped: a model that streams what its script says and can be cut off anywhere,
tools that leave a line for each real execution, and each way of putting a guard around them.

No assertion about a guard lives here; `broken_rule` only says whether a provider would take a history.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import Field

from langgraph_turncheckpoint.guard import TurnGuard

#: A piece of a reply: text, a chunk, something to do on the way, or the error that cuts it off.
Piece = str | AIMessageChunk | Callable[[], Any] | BaseException
Script = Callable[[Sequence[BaseMessage]], Iterable[Piece]]

#: The ways a guard can sit in a graph.
WAYS: Final = ("middleware", "node", "attach")
#: The ways a graph can be run.
RUNS: Final = ("invoke", "stream", "ainvoke", "astream", "astream_events")


def calling(*names: str, first: int = 0, **args: Any) -> AIMessageChunk:
    """A piece with one call for each tool, `c0`, `c1` and so on."""
    import json

    chunks = [
        tool_call_chunk(name=name, args=json.dumps(args), id=f"c{first + place}", index=place)
        for place, name in enumerate(names)
    ]
    return AIMessageChunk(content="", tool_call_chunks=chunks)


class Speaker(BaseChatModel):
    """Says what its script makes of the history, piece by piece.

    Attributes:
        script: From the history to the pieces of the reply.
        seen: The histories it was called with.
        streams: Whether it streams even if nobody asked for that.
    """

    script: Any
    seen: list[list[BaseMessage]] = Field(default_factory=list)
    streaming: bool = True

    def __init__(self, **kwargs: Any) -> None:
        # LangChain looks whether it was set.
        super().__init__(**{"streaming": True, **kwargs})

    @property
    def _llm_type(self) -> str:
        return "speaker"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        whole = AIMessageChunk(content="")
        for chunk in self._stream(messages):
            whole += chunk.message  # type: ignore[assignment]
        message = AIMessage(whole.content, tool_calls=whole.tool_calls, invalid_tool_calls=whole.invalid_tool_calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self.seen.append(list(messages))
        for piece in self.script(messages):
            if isinstance(piece, BaseException):
                raise piece
            if callable(piece):
                piece()
                continue
            yield ChatGenerationChunk(message=_chunk(piece))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.seen.append(list(messages))
        for piece in self.script(messages):
            if isinstance(piece, BaseException):
                raise piece
            if callable(piece):
                found = piece()
                if inspect.isawaitable(found):
                    await found
                continue
            yield ChatGenerationChunk(message=_chunk(piece))


def _chunk(piece: str | AIMessageChunk) -> AIMessageChunk:
    return AIMessageChunk(content=piece) if isinstance(piece, str) else piece.model_copy(deep=True)


def by_prompt(**replies: Sequence[Piece]) -> Script:
    """A script by the text of the last message of a person, apart from notes of the guard; "done" for any other.

    Once tools have answered, the reply is "done", too.
    """

    def script(messages: Sequence[BaseMessage]) -> Iterable[Piece]:
        if isinstance(messages[-1], ToolMessage):
            return ["done"]
        said = [m.content for m in messages if isinstance(m, HumanMessage) and not m.response_metadata]
        return replies.get(str(said[-1]), ["done"]) if said else ["done"]

    return script


class Effects:
    """The real executions of tools, in a file that outlives their process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str) -> None:
        """A tool has taken effect."""
        with self.path.open("a") as file:
            file.write(f"{name}\n")

    @property
    def names(self) -> list[str]:
        """What has taken effect, in order."""
        return self.path.read_text().split() if self.path.exists() else []

    def tool(
        self,
        name: str,
        then: Callable[[], Any] | None = None,
        *,
        athen: Callable[[], Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> BaseTool:
        """A tool that leaves its line and then does something; it gives `<name> done`."""

        def run() -> str:
            self.add(name)
            found = then() if then is not None else None
            return f"{name} done" if found is None else str(found)

        async def arun() -> str:
            self.add(name)
            found = athen() if athen is not None else None
            if inspect.isawaitable(found):
                found = await found
            return f"{name} done" if found is None else str(found)

        return StructuredTool.from_function(
            func=run,
            coroutine=arun if athen is not None else None,
            name=name,
            description=name,
            metadata=dict(metadata) if metadata else None,
        )


def by_hand(saver: Any, model: Any, tools: Sequence[BaseTool], *, guard: TurnGuard | None = None) -> Any:
    """A graph of a model node and a tool node, with the guard in both, if there is one. All calls are one task."""

    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def aspeak(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"], config)]}

    from langchain_core.runnables import RunnableLambda

    node: Any = RunnableLambda(speak, aspeak, name="speak")
    wraps: dict[str, Any] = {}
    if guard is not None:
        node = guard.node(node)
        wraps = {"wrap_tool_call": guard.wrap_tool_call, "awrap_tool_call": guard.awrap_tool_call}
    builder = StateGraph(MessagesState).add_node("model", node).add_node("tools", ToolNode(tools, **wraps))
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def guarded(
    way: str,
    saver: Any,
    model: Any,
    tools: Sequence[BaseTool] = (),
    *,
    middleware: Sequence[Any] = (),
    guard: TurnGuard | None = None,
    **options: Any,
) -> Any:
    """An agent with a guard in it; `options` are the guard's."""
    guard = guard or TurnGuard(saver, **options)
    if way == "middleware":
        return create_agent(model, list(tools), middleware=[guard.middleware(), *middleware], checkpointer=saver)
    if way == "node":
        assert not middleware
        return by_hand(saver, model, tools, guard=guard)
    if way == "attach":
        return guard.attach(create_agent(model, list(tools), middleware=list(middleware), checkpointer=saver))
    assert way == "attach-by-hand"
    return guard.attach(by_hand(saver, model, tools))


def thread(thread_id: str = "t") -> RunnableConfig:
    """The config of a thread."""
    return {"configurable": {"thread_id": thread_id}}


def asked(text: str, **kwargs: Any) -> dict[str, Any]:
    """An input with one message of a person, whose id is its text unless another is given."""
    return {"messages": [HumanMessage(text, **{"id": text, **kwargs})]}


def run(graph: Any, given: Any, how: str = "invoke", config: RunnableConfig | None = None, **kwargs: Any) -> Any:
    """Run a graph to its end; returns the values of its thread."""
    config = config or thread()
    if how == "invoke":
        graph.invoke(given, config, **kwargs)
    elif how == "stream":
        for _ in graph.stream(given, config, stream_mode="messages", **kwargs):
            pass
    else:
        asyncio.run(arun(graph, given, how, config, **kwargs))
        return asyncio.run(graph.aget_state(config)).values
    return graph.get_state(config).values


async def arun(
    graph: Any, given: Any, how: str = "ainvoke", config: RunnableConfig | None = None, **kwargs: Any
) -> None:
    """Run a graph to its end, awaiting it."""
    config = config or thread()
    if how == "ainvoke":
        await graph.ainvoke(given, config, **kwargs)
    elif how == "astream":
        async for _ in graph.astream(given, config, stream_mode="messages", **kwargs):
            pass
    else:
        async for _ in graph.astream_events(given, config, version="v2", **kwargs):
            pass


def history(graph: Any, config: RunnableConfig | None = None) -> list[Any]:
    """The messages of a thread."""
    found: list[Any] = graph.get_state(config or thread()).values.get("messages", [])
    return found


def texts(messages: Iterable[BaseMessage]) -> list[tuple[str, Any]]:
    """Type and content of each message."""
    return [(message.type, message.text) for message in messages]


def notes(messages: Iterable[BaseMessage]) -> list[dict[str, Any]]:
    """What the guard says of each message that it made."""
    found = [message.response_metadata.get("turncheckpoint") for message in messages]
    return [note for note in found if note]


def outcomes(messages: Iterable[BaseMessage]) -> dict[str, str]:
    """By tool call, what its answer is: "real", or what the guard says of it."""
    return {
        m.tool_call_id: m.response_metadata.get("turncheckpoint", {}).get("outcome", "real")
        for m in messages
        if isinstance(m, ToolMessage)
    }


def broken_rule(messages: Sequence[Any]) -> str | None:
    """Why a provider would refuse a history; `None` if it would not."""
    seen_ids: set[str] = set()
    place = 0
    while place < len(messages):
        message = messages[place]
        if message.id in seen_ids:
            return f"{message.id} is there twice"
        seen_ids.add(message.id)
        place += 1
        if isinstance(message, ToolMessage):
            return f"{message.tool_call_id} answers nothing at {place - 1}"
        if isinstance(message, AIMessage):
            wanted = [call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)]
            given = []
            while place < len(messages) and isinstance(messages[place], ToolMessage):
                given.append(messages[place].tool_call_id)
                place += 1
            if sorted(map(str, wanted)) != sorted(map(str, given)):
                return f"calls {wanted} are answered by {given}"
    return None
