"""The guard around a node that calls a model, whatever the shape of the node and of its state. It hands the node a
history in order, and hands LangGraph what the node returns, behind what was put in order.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite

from ._guard_core import GuardCore
from ._history_edits import edits_of
from ._model_pass import Prepared, prepare
from ._offload import offload
from ._recorder import graph_namespace
from ._recovery import Rules, has_reducer
from ._tool_calls import messages_of_state
from ._transcript import messages_in

#: Where LangGraph puts the reader of a task's channels.
READ_KEY: Final = "__pregel_read"


def guarded_node(core: GuardCore, node: Any, messages_key: str) -> Any:
    """A node of the same kind around `node`."""
    core.guarded_nodes += 1
    rules = dataclasses.replace(core.rules, messages_key=messages_key)
    guarded = _Guarded(core, rules)
    if isinstance(node, Runnable):

        def invoke(state: Any, config: RunnableConfig) -> Any:
            return guarded.run(state, config, lambda prepared: node.invoke(prepared, config))

        async def ainvoke(state: Any, config: RunnableConfig) -> Any:
            return await guarded.arun(state, config, lambda prepared: node.ainvoke(prepared, config))

        return RunnableLambda(invoke, ainvoke, name=node.get_name())
    if not callable(node):
        raise TypeError(f"a node is a function or a Runnable, not {type(node).__name__}")
    return _around(guarded, node)


def _around(guarded: _Guarded, node: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(node)
    takes_config = "config" in signature.parameters
    call = node if inspect.isroutine(node) else node.__call__  # type: ignore[operator]

    if inspect.iscoroutinefunction(call):

        @functools.wraps(node)
        async def awrapper(state: Any, *args: Any, config: RunnableConfig, **kwargs: Any) -> Any:
            if takes_config:
                kwargs["config"] = config
            return await guarded.arun(state, config, lambda prepared: node(prepared, *args, **kwargs))

        wrapper: Any = awrapper
    else:

        @functools.wraps(node)
        def swrapper(state: Any, *args: Any, config: RunnableConfig, **kwargs: Any) -> Any:
            if takes_config:
                kwargs["config"] = config
            return guarded.run(state, config, lambda prepared: node(prepared, *args, **kwargs))

        wrapper = swrapper
    # LangGraph gives a node what its signature asks for, by name.
    first, *others = signature.parameters.values()
    keywords = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in others
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    if not takes_config:
        keywords.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, annotation=RunnableConfig))
    wrapper.__signature__ = signature.replace(parameters=[first, *keywords])
    return cast(Callable[..., Any], wrapper)


class _Guarded:
    """What happens around one call of a node."""

    def __init__(self, core: GuardCore, rules: Rules) -> None:
        self._core, self._rules = core, rules

    def run(self, state: Any, config: RunnableConfig, call: Callable[[Any], Any]) -> Any:
        prepared = self._prepare(state, config)
        if prepared is None:
            return call(state)
        if prepared.reply is not None:
            return self._result(config, prepared, self._known(state, prepared))
        return self._result(config, prepared, call(self._with_history(state, prepared)))

    async def arun(self, state: Any, config: RunnableConfig, call: Callable[[Any], Awaitable[Any]]) -> Any:
        prepared = await offload(self._prepare, state, config)
        if prepared is None:
            return await call(state)
        if prepared.reply is not None:
            return self._result(config, prepared, self._known(state, prepared))
        return self._result(config, prepared, await call(self._with_history(state, prepared)))

    def _prepare(self, state: Any, config: RunnableConfig) -> Prepared | None:
        running = self._core.contact(config)
        if running is None:
            return None
        self._core.record_into(config, running)
        self._core.guarded_names.add(str((config.get("metadata") or {}).get("langgraph_node")))
        return prepare(
            running,
            messages_of_state(state, self._rules.messages_key),
            rules=self._rules,
            saver=self._core.saver,
            config=self._core.node_config(config),
            inbox=self._core.home.inbox(running.thread_id),
        )

    def _is_first(self, config: RunnableConfig) -> bool:
        """Whether no node of the same step that may be guarded writes before this one.

        Only then does what this one puts in order stand in front of what they all say.
        """
        own, core = str((config.get("metadata") or {}).get("langgraph_node")), self._core
        beside = nodes_of_step(config)
        if own not in beside or core.guarded_nodes < 2:
            return True
        are_known = len(core.guarded_names) >= core.guarded_nodes
        return not any(name < own and (name in core.guarded_names or not are_known) for name in beside)

    def _known(self, state: Any, prepared: Prepared) -> Any:
        """What the node would return if its model said again what it has said."""
        replies = [prepared.reply]
        return replies if isinstance(state, list) else {self._rules.messages_key: replies}

    def _with_history(self, state: Any, prepared: Prepared) -> Any:
        key, messages = self._rules.messages_key, prepared.messages
        if not prepared.changed:
            return state
        if isinstance(state, list):
            return messages
        if isinstance(state, Mapping):
            return {**state, key: messages}
        if dataclasses.is_dataclass(state) and not isinstance(state, type):
            return dataclasses.replace(state, **{key: messages})
        if hasattr(state, "model_copy"):
            return state.model_copy(update={key: messages})
        return state

    def _result(self, config: RunnableConfig, prepared: Prepared, result: Any) -> Any:
        """What the node returned, and the history it was given, if that is new to the state."""
        task = str(config["configurable"].get("checkpoint_ns") or "")
        prepared.was_called(task, messages_in(result))
        if prepared.updates:
            result = [Command(update=prepared.updates), *_as_list(result)]
        if not prepared.changed:
            return result
        key = self._rules.messages_key
        channel = channel_of(config, key)
        new = _messages_of(result, key)
        edits = edits_of(prepared.old, prepared.messages) if adds_messages(channel) else None
        if edits is not None and not (self._is_first(config) and prepared.running.claim_repair(_step(config))):
            return result  # a node beside this one writes the same
        if edits is not None:
            # In front of what the node adds, and without a claim on what other nodes add in the same step.
            removed, appended = edits
            return [Command(update=[(key, removed), (key, appended)]), *_as_list(result)]
        if has_reducer(channel) and self._core.guarded_nodes > 1:
            # Another node may be in the same step, and what it adds would be lost if this one replaced the history.
            return result
        if isinstance(channel, BinaryOperatorAggregate):
            history = channel.operator(prepared.messages, new) if new is not None else prepared.messages
        elif isinstance(channel, DeltaChannel):
            history = channel.reducer(list(prepared.messages), [new]) if new is not None else prepared.messages
        elif channel is None:
            history = _add_messages(prepared.messages, new or [])
        else:
            return result if new is not None else [*_as_list(result), Command(update={key: prepared.messages})]
        # The last write of a step wins over what its reducer made of the others.
        return [*_as_list(result), Command(update={key: Overwrite(list(history))})]


def _step(config: RunnableConfig) -> tuple[str, int]:
    """Where and when a node runs: its graph's namespace, and the super-step."""
    step = (config.get("metadata") or {}).get("langgraph_step") or 0
    return graph_namespace(config["configurable"].get("checkpoint_ns") or ""), int(step)


_add_messages: Final[Callable[[Any, Any], Any]] = add_messages


def channel_of(config: RunnableConfig, key: str) -> Any:
    """The channel behind a key of the state; `None` where LangGraph does not show it."""
    found = _channels_of(config).get(key)
    return found if hasattr(found, "from_checkpoint") else None


def nodes_of_step(config: RunnableConfig) -> set[str]:
    """The nodes that edges have led to in this super-step; LangGraph applies what they write by their names."""
    return {
        name.rpartition(":")[2]
        for name, channel in _channels_of(config).items()
        if name.startswith(("branch:to:", "join:")) and channel.is_available()
    }


def _channels_of(config: RunnableConfig) -> Mapping[str, Any]:
    """The channels of the graph that a node is in.

    The look-up is here and nowhere else; a test fails when LangGraph changes it.
    """
    read = (config.get("configurable") or {}).get(READ_KEY)
    for argument in getattr(read, "args", ()):
        if isinstance(argument, Mapping) and any(hasattr(each, "from_checkpoint") for each in argument.values()):
            return argument
    return {}


def adds_messages(channel: Any) -> bool:
    """Whether a channel understands messages that are to be removed, by their ids."""
    if isinstance(channel, DeltaChannel):
        function: Any = channel.reducer
    else:
        function = getattr(channel, "operator", None)
    function = getattr(function, "func", function)
    return getattr(function, "__name__", "") in _MESSAGE_REDUCERS


_MESSAGE_REDUCERS: Final = frozenset({"add_messages", "_add_messages", "_messages_delta_reducer"})


def _as_list(result: Any) -> list[Any]:
    if result is None:
        return []
    return list(result) if isinstance(result, list) and any(isinstance(r, Command) for r in result) else [result]


def _messages_of(result: Any, key: str) -> Any:
    """What a node's result writes to the history, or `None`."""
    if isinstance(result, Command):
        return _messages_of(result.update, key)
    if isinstance(result, Mapping):
        return result.get(key)
    if isinstance(result, list):
        if not any(isinstance(item, (Command, Mapping, tuple)) for item in result):
            return result or None  # a graph whose whole state is the list of messages
        found = [part for item in result if (part := _messages_of(item, key)) is not None]
        return [m for part in found for m in (part if isinstance(part, list) else [part])] or None
    return getattr(result, key, None) if result is not None else None
