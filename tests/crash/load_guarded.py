"""An agent under the guard as a part of the load: each visit is a prompt, a tool call, its result and an answer, and a
message that is posted while the tool runs. What its history must hold follows from how often it was visited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from typing_extensions import TypedDict

from langgraph_turncheckpoint import TurnCheckpointSaver, TurnGuard
from tests.crash.load_threads import WrongReadError, configured

#: What the names of these threads begin with.
GUARDED: Final = "guarded-"
#: After how many visits such a thread is deleted.
LIFE_VISITS: Final = 6


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def _model(state: Chat) -> dict[str, Any]:
    """Calls the tool for a prompt, and says that it is done once that has an answer."""
    messages = state["messages"]
    prompt = next(m for m in reversed(messages) if isinstance(m, HumanMessage) and str(m.id).startswith("prompt"))
    behind = messages[messages.index(prompt) :]
    if any(isinstance(message, ToolMessage) for message in behind):
        return {"messages": [AIMessage("done", id=f"done-{prompt.id}")]}
    call = {"name": "work", "args": {"prompt": prompt.id}, "id": f"call-{prompt.id}", "type": "tool_call"}
    return {"messages": [AIMessage("", id=f"ask-{prompt.id}", tool_calls=[call])]}


def _onward(state: Chat) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


class Guarded:
    """The agent, on one saver."""

    def __init__(self, saver: TurnCheckpointSaver) -> None:
        guard = TurnGuard(saver, default_on_restart="rerun")

        @tool
        def work(prompt: str, config: RunnableConfig) -> str:
            """Works, and has a message posted to the thread it works for."""
            thread_id = config["configurable"]["thread_id"]
            saver.inbox(thread_id).post(HumanMessage("also this", id=f"posted-{prompt}"))
            return f"worked on {prompt}"

        builder: StateGraph[Any] = StateGraph(Chat)
        builder.add_node("model", guard.node(_model))
        tools = ToolNode([work], wrap_tool_call=guard.wrap_tool_call, awrap_tool_call=guard.awrap_tool_call)
        builder.add_node("tools", tools)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", _onward, ["tools", END])
        builder.add_edge("tools", "model")
        self._saver, self._graph = saver, guard.attach(builder.compile(checkpointer=saver))

    async def visit(self, number: int, visit: int, *, is_async: bool, again: bool) -> None:
        """One turn of the agent; `again` if somebody died in it.

        Raises:
            WrongReadError: The history is not what it must be.
        """
        thread_id = f"{GUARDED}{number}"
        config, first = configured(thread_id), visit - visit % LIFE_VISITS
        prompt = HumanMessage(f"prompt {visit}", id=f"prompt-{visit}")
        given: Any = {"messages": [prompt]}
        if again:
            state = await self._graph.aget_state(config) if is_async else self._graph.get_state(config)
            if any(message.id == prompt.id for message in state.values.get("messages", ())):
                given = None
        if visit and visit == first and given is not None:
            await self._saver.adelete_thread(thread_id) if is_async else self._saver.delete_thread(thread_id)
        result = await self._graph.ainvoke(given, config) if is_async else self._graph.invoke(given, config)
        for wrong in wrong_with(result["messages"], range(first, visit + 1)):
            raise WrongReadError(f"{thread_id!r} after visit {visit}: {wrong}; {[m.id for m in result['messages']]}")


def wrong_with(history: Sequence[BaseMessage], visits: Sequence[int]) -> list[str]:
    """What is wrong with a history after the given visits."""
    counts = Counter(str(message.id) for message in history)
    parts = ("prompt", "ask-prompt", "done-prompt", "posted-prompt")
    once = [f"{part}-{visit}" for visit in visits for part in parts]
    wrong = [f"{message_id} is there {counts[message_id]} times" for message_id in once if counts[message_id] != 1]
    open_calls: list[str] = []
    for message in history:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                wrong.append(f"{message.tool_call_id} is answered out of place")
            open_calls = [call for call in open_calls if call != message.tool_call_id]
            continue
        if open_calls:
            wrong.append(f"{open_calls} are not answered behind their message")
        open_calls = [str(call["id"]) for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return wrong
