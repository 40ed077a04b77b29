"""The guard as a middleware of `langchain.agents.create_agent`. It translates between LangChain's hooks and the
guard; this is the only module that needs LangChain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from langchain.agents.middleware.types import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from ._guard_core import CHECKPOINTER_KEY, GuardCore
from ._histories import finalize_history
from ._history_edits import edits_of
from ._model_pass import Prepared, prepare
from ._offload import offload
from ._running import new_id
from ._runs import RUNTIME_KEY
from ._tool_gate import aguarded_call, guarded_call


class GuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Made by `TurnGuard.middleware`. Belongs first in the list of middleware, that is outermost."""

    def __init__(self, core: GuardCore) -> None:
        super().__init__()
        self._core = core

    @property
    def name(self) -> str:
        """As it is shown in an agent's graph."""
        return "TurnGuard"

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Give the model a history in order, and write what was put in order with its reply."""
        config = _config_of(request)
        prepared = self._prepare(request, config)
        if prepared is None:
            return handler(request)
        if prepared.reply is not None:
            return _with_history(ModelResponse(result=[prepared.reply]), prepared, config)
        return _with_history(handler(self._request(request, prepared)), prepared, config)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """Async twin of `wrap_model_call`."""
        config = _config_of(request)
        prepared = await offload(self._prepare, request, config)
        if prepared is None:
            return await handler(request)
        if prepared.reply is not None:
            return _with_history(ModelResponse(result=[prepared.reply]), prepared, config)
        return _with_history(await handler(self._request(request, prepared)), prepared, config)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Ask the guard before a tool runs."""
        return guarded_call(self._core, request, handler)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Async twin of `wrap_tool_call`."""
        return await aguarded_call(self._core, request, handler)

    def _prepare(self, request: ModelRequest[Any], config: RunnableConfig) -> Prepared | None:
        core = self._core
        running = core.contact(config)
        if running is None:
            return None
        core.record_into(config, running)
        if request.tools:
            core.policies.check_tools(request.tools)
        return prepare(
            running,
            _history(request),
            rules=core.rules,
            saver=core.saver,
            config=core.node_config(config),
            inbox=core.home.inbox(running.thread_id),
        )

    def _request(self, request: ModelRequest[Any], prepared: Prepared) -> ModelRequest[Any]:
        """The request with the history in order; what another middleware has made of the messages stays."""
        if not prepared.changed:
            return request
        if prepared.old is not request.state["messages"] or request.messages == request.state["messages"]:
            return request.override(messages=prepared.messages)
        rules = self._core.rules
        view = finalize_history(request.messages, unanswered=rules.unanswered, texts=rules.texts)
        return request.override(messages=view.messages)


def _history(request: ModelRequest[Any]) -> list[Any]:
    """The history as it will be in the state.

    LangChain itself answers calls that it could not parse, and writes those answers; what another middleware has
    made of the messages is for the model alone.
    """
    state: list[Any] = request.state["messages"]
    if len(request.messages) <= len(state):
        return state
    added = iter(request.messages)
    extra = []
    for message in state:
        for found in added:
            if found is message:
                break
            extra.append(found)
        else:
            return state
    extra += added
    return list(request.messages) if all(isinstance(message, ToolMessage) for message in extra) else state


def _config_of(request: ModelRequest[Any]) -> RunnableConfig:
    try:
        return get_config()
    except RuntimeError:
        # Before Python 3.11 a coroutine does not see it. What its turn is found by is in the runtime, too.
        runtime = request.runtime
        info = runtime.execution_info
        if info is None:
            raise
        found = {
            "thread_id": info.thread_id,
            "checkpoint_ns": info.checkpoint_ns,
            RUNTIME_KEY: runtime,
            CHECKPOINTER_KEY: info.thread_id is not None,
        }
        return {"configurable": found}


def _with_history(given: Any, prepared: Prepared, config: RunnableConfig) -> Any:
    """The model's response, and the history in front of it."""
    response: Any = given
    command: Command[Any] | None = None
    if isinstance(response, ExtendedModelResponse):
        response, command = response.model_response, response.command
    if isinstance(response, AIMessage):
        response = ModelResponse(result=[response])
    result = cast("ModelResponse[Any]", response).result
    prepared.was_called(str(config["configurable"].get("checkpoint_ns") or ""), result)
    if not (prepared.changed or prepared.updates):
        return given
    for message in result:
        if message.id is None:
            message.id = new_id()
    # LangChain writes the reply first; it is taken back, and comes again behind the history.
    edits = edits_of([*prepared.old, *result], [*prepared.messages, *result])
    if edits is None:
        writes: list[Any] = [[RemoveMessage(id=REMOVE_ALL_MESSAGES), *prepared.messages, *result]]
    else:
        writes = list(edits)
    update = [*prepared.updates, *(("messages", write) for write in writes)]
    if command is not None:
        update = [*command._update_as_tuples(), *update]  # noqa: SLF001 - an update has many shapes, and this knows them
    return ExtendedModelResponse(model_response=response, command=Command(update=update))
