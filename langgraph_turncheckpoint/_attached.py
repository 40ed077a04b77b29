"""A guarded copy of a compiled graph, and one run of it: the turn is opened before the run reads its thread, and
settled when the run ends, however that is. What is put in order in between is not decided here.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from functools import partial
from types import MethodType
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs, var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import Command

from . import _events
from ._guard_core import CHECKPOINTER_KEY, GuardCore
from ._guarded_node import adds_messages
from ._histories import FinalizedHistory, is_healthy
from ._history_channel import in_order
from ._offload import offload
from ._open_turn import OpenTurn
from ._pending import INTERRUPT
from ._recorder import RunRecorder, View
from ._recovery import (
    NULL_TASK_ID,
    Operation,
    Recovery,
    RecoveryReport,
    Steps,
    arun_steps,
    has_reducer,
    history_in,
    replacement,
    run_steps,
)
from ._running import RunningTurn
from ._runs import TURN_KEY, explicit_token
from ._tool_calls import anchor_of
from ._tool_gate import aguarded_call, guarded_call, with_unreadable
from ._watched_saver import Look, WatchedSaver
from .errors import (
    InvalidIdError,
    StorageError,
    ThreadBusyError,
    TurnCheckpointError,
    UnsupportedGraphError,
    UnsupportedSaverError,
)
from .inbox import undelivered

GraphT = TypeVar("GraphT", bound=Pregel[Any, Any, Any, Any])

#: In the configurable of a graph that runs as a task of another one.
TASK_KEY: Final = "__pregel_task_id"


def attached(core: GuardCore, graph: GraphT) -> GraphT:
    """A guarded copy of a graph; see `TurnGuard.attach`."""
    given: Any = graph
    if isinstance(given, GuardedGraph):
        if given.guard_core is core:
            return graph
        raise UnsupportedGraphError("the graph is attached to another guard already; attach the original graph")
    if not isinstance(given, Pregel):
        raise UnsupportedGraphError(f"attach takes a compiled graph, not {type(given).__name__}; call compile() first")
    _check_saver(core, graph)
    _check_history(core, graph)
    tools = _gated_tools_of(graph)
    core.policies.check_tools(tools)
    for tool in tools:
        core.policies.of(tool.name, tool.metadata)
    gated = _gated(core, graph)
    name = f"Guarded{type(graph).__name__}"
    # Only the class can carry these: a graph's attributes are the arguments of its next copy.
    members = {"guard_core": core, "guard_view": _view_of(gated), "unguarded": gated, "__doc__": type(graph).__doc__}
    guarded_class = type(name, (GuardedGraph, type(graph)), members)
    attributes = {name: value for name, value in vars(gated).items() if name != "__orig_class__"}
    return cast(GraphT, guarded_class(**attributes))


def _check_saver(core: GuardCore, graph: Pregel[Any, Any, Any, Any]) -> None:
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise UnsupportedGraphError("the graph saves nothing; compile it with checkpointer=...")
    core.check_saver(saver)


def _check_history(core: GuardCore, graph: Pregel[Any, Any, Any, Any]) -> None:
    """Refuse a graph that keeps its history in another channel. One without any may be attached for its turns."""
    key = core.rules.messages_key
    if key in graph.channels:
        return
    found = {name for name, channel in graph.channels.items() if getattr(channel, "operator", None) is add_messages}
    # A test fails when LangGraph renames it.
    found |= {node.bound._messages_key for node in graph.nodes.values() if isinstance(node.bound, ToolNode)}  # noqa: SLF001
    found &= graph.channels.keys()
    if found:
        names = " or ".join(f"messages_key={name!r}" for name in sorted(found))
        text = f"the graph has no channel {key!r}, its history is elsewhere; use TurnGuard(..., {names})"
        raise UnsupportedGraphError(text)


def _gated(core: GuardCore, graph: GraphT) -> GraphT:
    """A copy whose tool nodes ask the guard before each tool, and whose history is kept in order, in subgraphs, too."""
    nodes = dict(graph.nodes)
    for name, node in graph.nodes.items():
        bound = node.bound
        if isinstance(bound, ToolNode):
            nodes[name] = node.copy({"bound": _gated_tools(core, bound)})
        elif isinstance(bound, Pregel):
            nodes[name] = node.copy({"bound": _gated(core, bound)})
    channels = in_order(graph.channels, core.rules.messages_key, core.rules.unanswered)
    return graph.copy({"nodes": nodes, "channels": channels})


def _gated_tools(core: GuardCore, node: ToolNode) -> ToolNode:
    """A copy of a tool node with the guard outermost. A test fails when LangGraph renames what is set here."""
    inner, ainner = node._wrap_tool_call, node._awrap_tool_call  # noqa: SLF001 - nothing public sets them later

    def wrap(request: Any, execute: Any) -> Any:
        around = execute if inner is None else lambda r: inner(r, execute)
        return with_unreadable(core, request, guarded_call(core, request, around))

    async def awrap(request: Any, execute: Any) -> Any:
        async def around(r: Any) -> Any:
            if ainner is not None:
                return await ainner(r, execute)
            return await execute(r)

        return with_unreadable(core, request, await aguarded_call(core, request, around))

    gated = copy.copy(node)
    for name in ("func", "afunc"):
        method = getattr(node, name)
        if getattr(method, "__self__", None) is node:
            setattr(gated, name, MethodType(method.__func__, gated))
    gated._wrap_tool_call, gated._awrap_tool_call = wrap, awrap  # noqa: SLF001
    return gated


def _gated_tools_of(graph: Pregel[Any, Any, Any, Any]) -> list[BaseTool]:
    """The tools that tool nodes run, in subgraphs, too."""
    found: list[BaseTool] = []
    for node in graph.nodes.values():
        if isinstance(node.bound, ToolNode):
            found += node.bound.tools_by_name.values()
        elif isinstance(node.bound, Pregel):
            found += _gated_tools_of(node.bound)
    return found


def _view_of(graph: Pregel[Any, Any, Any, Any]) -> View:
    """What is seen of a gated graph's runs. Its gated nodes ask the guard, or hold a graph whose nodes do."""
    tools = frozenset(tool.name for tool in _gated_tools_of(graph))
    nodes = frozenset(name for name, node in graph.nodes.items() if isinstance(node.bound, (ToolNode, Pregel)))
    return View(covers=lambda name: name in tools, gated=nodes)


class GuardedGraph:
    """What a guarded graph does otherwise than the graph it is a copy of: its runs have a turn."""

    guard_core: GuardCore
    guard_view: View
    unguarded: Pregel[Any, Any, Any, Any]
    config: Any

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002 - LangGraph's name
        """As the graph's own; `invoke` comes here, too."""
        run = _run_of(self, input, config, kwargs)
        parent = cast(Any, super())
        if run is None:
            yield from parent.stream(input, config, **kwargs)
            return
        with run, contextlib.closing(parent.stream(run.input, run.config, **kwargs, control=run.control)) as chunks:
            yield from chunks

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002 - LangGraph's name
        """As the graph's own; `ainvoke` comes here, too."""
        run = _run_of(self, input, config, kwargs)
        parent = cast(Any, super())
        if run is None:
            async for chunk in parent.astream(input, config, **kwargs):
                yield chunk
            return
        async with run:
            running = parent.astream(run.input, run.config, **kwargs, control=run.control)
            async with contextlib.aclosing(running) as chunks:
                async for chunk in chunks:
                    yield chunk


def _run_of(
    graph: GuardedGraph, given: Any, config: RunnableConfig | None, kwargs: dict[str, Any]
) -> GuardedRun | None:
    own = (config or {}).get("configurable", {})
    if own.get("thread_id") is not None and not own.get(TASK_KEY):
        # It names its thread, so it is a run of its own, also where it is called from a node of another graph.
        merged = merge_configs(graph.config, config)
    else:
        merged = ensure_config(merge_configs(graph.config, config))
    conf = merged["configurable"]
    if conf.get("thread_id") is None or TASK_KEY in conf or conf.get("checkpoint_ns"):
        return None  # nothing is saved, or the run around this one has the turn
    control = kwargs.pop("control", None) or RunControl()
    return GuardedRun(graph, given, config, merged, control)


def _without_recorders(config: RunnableConfig | None) -> RunnableConfig:
    """The config with the callbacks that a run gets, but for those that record the run around it."""
    ambient = var_child_runnable_config.get() or {}
    callbacks = (config or {}).get("callbacks") or ambient.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        for handler in [handler for handler in manager.handlers if isinstance(handler, RunRecorder)]:
            manager.remove_handler(handler)
        return cast(RunnableConfig, {**(config or {}), "callbacks": manager})
    kept = [handler for handler in callbacks or () if not isinstance(handler, RunRecorder)]
    return cast(RunnableConfig, {**(config or {}), "callbacks": kept})


def _holds_already(core: GuardCore, thread_id: str) -> int | None:
    """The token of the turn around this call, if it is on the same thread."""
    ambient = var_child_runnable_config.get() or {}
    callbacks = ambient.get("callbacks")
    handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or ()
    for handler in handlers:
        if isinstance(handler, RunRecorder):
            running = handler.running
            if running.thread_id == thread_id and running.store.root == core.home.store.root:
                return running.token
    return None


class GuardedRun:
    """One run of a guarded graph, as a (async) context manager."""

    def __init__(
        self,
        graph: GuardedGraph,
        given: Any,
        config: RunnableConfig | None,
        merged: RunnableConfig,
        control: RunControl,
    ) -> None:
        self._graph, self._core, self._view = graph.unguarded, graph.guard_core, graph.guard_view
        self._given, self._merged, self.control = given, merged, control
        self.input, self.config = given, config
        # A command that answers no question goes its own way, and leaves what is open behind.
        self._continues = given is None or (isinstance(given, Command) and given.resume is not None)
        self._is_addressed = bool(merged["configurable"].get("checkpoint_id"))
        self._open: OpenTurn | None = None
        self._messages: list[Any] | None = None
        self._running: RunningTurn | None = None
        self._starts_empty = False

    def __enter__(self) -> None:
        self._open = self._turn()
        turned = self._merged if self._open is None else self._open.__enter__()
        try:
            self._begin(turned)
        except BaseException as error:
            if self._open is not None:
                self._open.__exit__(type(error), error, None)
            raise

    async def __aenter__(self) -> None:
        self._open = await offload(self._turn)
        turned = self._merged if self._open is None else await self._open.__aenter__()
        try:
            await offload(self._begin, turned)
        except BaseException as error:
            if self._open is not None:
                await self._open.__aexit__(type(error), error, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end(error)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await offload(self._end, error)

    # --- beginning ---

    def _turn(self) -> OpenTurn | None:
        """A turn of the run's own, unless its config carries one."""
        conf = self._merged["configurable"]
        carried = conf.get(TURN_KEY)
        if isinstance(carried, Mapping):
            if carried.get("thread_id") != str(conf["thread_id"]):
                reason = f"is that of another thread than {conf['thread_id']!r}; open one for this thread"
                raise InvalidIdError("turn", dict(carried), reason)
            return None
        held = _holds_already(self._core, str(conf["thread_id"]))
        if held is not None and self._core.strategy == "enqueue":
            raise ThreadBusyError(str(conf["thread_id"]), held)  # it would wait for itself
        opening = dict(conf)
        if self._continues and (earlier := self._core.home.store.newest_turn(str(conf["thread_id"]))):
            opening[TURN_KEY] = {"thread_id": str(conf["thread_id"]), "token": earlier}
        return self._core.home.turn(
            cast(RunnableConfig, {"configurable": opening}),
            multitask_strategy=self._core.strategy,
            timeout=self._core.timeout,
        )

    def _begin(self, turned: RunnableConfig) -> None:
        core, conf = self._core, turned["configurable"]
        thread_id = str(conf["thread_id"])
        token = explicit_token(conf, thread_id)
        assert token is not None
        turn = core.home.store.explicit_turn(thread_id, token)
        core.home.store.check_turn(thread_id, turn)
        self._running, _ = core.running(thread_id, turn, self.control, self._view)
        self._plain = cast(RunnableConfig, {"configurable": {"thread_id": thread_id, TURN_KEY: conf[TURN_KEY]}})
        base = self._running.rolled_back_to if not core.knows_turns and turn.base is not None else None
        self._starts_empty = base == ""
        watched = WatchedSaver(
            cast("BaseCheckpointSaver[Any]", self._graph.checkpointer),
            self._running,
            messages_key=core.rules.messages_key,
            inbox=core.home.inbox(thread_id),
            recover=self._recover,
            arecover=self._arecover,
            checks=not core.knows_turns,
            starts_empty=self._starts_empty,
        )
        added = {TURN_KEY: conf[TURN_KEY], CHECKPOINTER_KEY: watched}
        if not core.knows_turns and turn.base is not None and not self._starts_empty:
            added |= self._rolled_back(base)
        own: RunnableConfig = {"configurable": added, "callbacks": [self._running.recorder]}
        self.config = merge_configs(_without_recorders(self.config), own)
        if not self._continues and not isinstance(self._given, Command):
            self.input, self._messages = _with_messages(self._given, self._graph, core.rules.messages_key)

    def _rolled_back(self, base: str | None) -> dict[str, Any]:
        if not base:
            raise UnsupportedSaverError(
                "the older run was overtaken before it had told where it started from, so nothing can be rolled "
                "back to; run again"
            )
        assert self._running is not None
        self._running.started_from(base)
        return {"checkpoint_id": base}

    # --- the run's first look at its thread ---

    def _note_start(self, saved: CheckpointTuple | None) -> None:
        """Where turns are kept apart from checkpoints, a rollback finds its way back by this."""
        if not self._core.knows_turns and self._running is not None:
            conf = {} if saved is None else saved.config["configurable"]
            self._running.started_from(str(conf.get("checkpoint_id") or ""))

    def _recover(self, saved: CheckpointTuple | None) -> Look:
        self._note_start(saved)
        if self._starts_empty:
            self._started([])
            return Look()
        history, look = self._history(saved), Look()
        try:
            if saved is not None and self._is_addressed:
                history, look = self._closed(saved, run_steps(self._of_addressed(saved, history), self._graph))
            elif (steps := self._steps(saved)) is not None:
                look = Look(again=run_steps(steps, self._graph).changed)
        except Exception as error:  # noqa: BLE001 - a state's reducers may raise anything
            self._give_up(saved, history, error)
        if look.again or history is None:
            history = self._values(self._graph.get_state(self._plain).values)
        self._started(history)
        return look

    async def _arecover(self, saved: CheckpointTuple | None) -> Look:
        await offload(self._note_start, saved)
        if self._starts_empty:
            await offload(self._started, [])
            return Look()
        history, look = self._history(saved), Look()
        try:
            if saved is not None and self._is_addressed:
                done = await arun_steps(self._of_addressed(saved, history), self._graph)
                history, look = await offload(self._closed, saved, done)
            elif (steps := await offload(self._steps, saved)) is not None:
                look = Look(again=(await arun_steps(steps, self._graph)).changed)
        except Exception as error:  # noqa: BLE001 - a state's reducers may raise anything
            await offload(self._give_up, saved, history, error)
        if look.again or history is None:
            history = self._values((await self._graph.aget_state(self._plain)).values)
        await offload(self._started, history)
        return look

    def _of_addressed(
        self, saved: CheckpointTuple, history: list[Any] | None
    ) -> Generator[Operation, Any, FinalizedHistory]:
        """The history of the checkpoint that the run was pointed at, without calls that nobody will answer."""
        assert self._running is not None
        config = cast(RunnableConfig, {"configurable": {**saved.config["configurable"], **self._plain["configurable"]}})
        recovery = Recovery(self._graph, config, self._running, rules=self._core.rules, gated=self._view.gated or ())
        # What comes with the input answers calls at the very end of the history itself.
        return recovery.of_addressed(saved, history, goes_on=self._continues, behind=self._messages is not None)

    def _closed(self, saved: CheckpointTuple, done: FinalizedHistory) -> tuple[list[Any], Look]:
        self._within_input(saved, done.messages)
        if not done.changed:
            return done.messages, Look()
        key = self._core.rules.messages_key
        value = replacement(self._graph.channels.get(key), done.messages)
        return done.messages, Look(writes=[(NULL_TASK_ID, key, value)])

    def _give_up(self, saved: CheckpointTuple | None, history: list[Any] | None, error: Exception) -> None:
        """What is pending cannot be applied to the state. LangGraph will drop it for a new input, and so does this."""
        if isinstance(error, TurnCheckpointError):
            raise error
        running, with_input = self._running, not self._continues
        if running is None or (with_input and (saved is None or history is None or self._messages is None)):
            raise error
        _events.went_on(running.thread_id, running.token, error, with_input=with_input)
        if with_input and saved is not None and history is not None:
            self._within_input(saved, history)
        # Where it continues, the graph itself may know how to go on, and its tools still ask the guard.

    def _within_input(self, saved: CheckpointTuple, history: list[Any]) -> None:
        """Put answers to open calls in front of the input, where no checkpoint can be added before the run."""
        if self._messages is not None and self._running is not None:
            recovery = Recovery(self._graph, self._plain, self._running, rules=self._core.rules)
            recovery.of_arriving(saved, self._messages, behind=history)

    def _steps(self, saved: CheckpointTuple | None) -> Steps | None:
        """What there is to do, if the checkpoint and the journals do not show that all is well."""
        running, rules = self._running, self._core.rules
        assert running is not None
        pending = [] if saved is None else saved.pending_writes or []
        recovery = Recovery(self._graph, self._plain, running, rules=rules, gated=self._view.gated or ())
        history = self._history(saved)
        caller = next((message for message in reversed(history or ()) if isinstance(message, AIMessage)), None)
        if caller is not None:
            running.know(caller)
        if self._continues:
            is_cut_off = any(w[0] == NULL_TASK_ID and w[1] == rules.messages_key for w in pending)
            if is_cut_off and isinstance(self._given, Command):
                is_cut_off = False  # its own writes
            is_whole = history is None or is_healthy(history, unanswered=rules.unanswered) or history[-1] is caller
            if running.earlier.is_empty and not is_cut_off and is_whole:
                return None
            return recovery.before_continuing(is_cut_off=is_cut_off)
        arriving = self._messages if self._messages is not None else []
        if arriving and not has_reducer(self._graph.channels.get(rules.messages_key)):
            recovery.of_arriving(saved, arriving, behind=[])
            return None
        is_quiet = running.earlier.is_empty and not any(w[1] != INTERRUPT for w in pending)
        if is_quiet and history is not None and is_healthy([*history, *arriving], unanswered=rules.unanswered):
            return None
        return recovery.before_new_message(arriving)

    def _history(self, saved: CheckpointTuple | None) -> list[Any] | None:
        """The messages in a checkpoint; `None` where they are not all in it."""
        key = self._core.rules.messages_key
        if isinstance(self._graph.channels.get(key), DeltaChannel):
            return None
        return [] if saved is None else history_in(saved, key)

    def _values(self, values: Any) -> list[Any]:
        found = values.get(self._core.rules.messages_key) if isinstance(values, Mapping) else None
        return list(found) if isinstance(found, (list, tuple)) else []

    def _started(self, history: list[Any]) -> None:
        """What the run starts from is known now: its own messages, and those that waited, come behind it."""
        running = self._running
        assert running is not None
        running.history_begins(history)
        if self._messages is None:
            return
        inbox = self._core.home.inbox(running.thread_id)
        pending = inbox.pending()
        waiting = undelivered(pending, history)
        if len(waiting) < len(pending):
            # Stored already, by a run that died before it could say so.
            still = {message.id for message in waiting}
            with contextlib.suppress(StorageError):  # the next run tries again
                inbox.acknowledge({str(message.id) for message in pending} - still)
        # LangGraph has not read the list yet; it is this run's own.
        self._messages[:0] = waiting
        running.handed_on(str(message.id) for message in waiting)
        fresh = [m for m in self._messages if isinstance(m, BaseMessage) and m.type != "remove"]
        after = anchor_of(history)
        if all(m.id for m in fresh) and (after is not None or not history):
            running.prompt(after, fresh)

    # --- the end ---

    def _end(self, error: BaseException | None) -> None:
        running = self._running
        if running is None:
            return
        state, cause = self._core.end_of_run(running, error)
        if self._open is None:
            self._core.forget(running, is_over=False)
            return
        try:
            self._open.settle(state, cause)
        finally:
            self._core.forget(running, is_over=True)


def _with_messages(given: Any, graph: Pregel[Any, Any, Any, Any], key: str) -> tuple[Any, list[Any] | None]:
    """The input with a list of messages of its own, each with an id; `None` where it has no such list."""
    found = given.get(key) if isinstance(given, Mapping) else getattr(given, key, None)
    if found is None or isinstance(found, Mapping):
        return given, None
    several = list(found) if isinstance(found, list) else [found]
    if key in graph.channels and adds_messages(graph.channels[key]):
        try:
            several = list(convert_to_messages(several))
        except (ValueError, TypeError, NotImplementedError):
            return given, None  # LangGraph will say what is wrong
    elif not isinstance(found, list):
        return given, None
    for message in several:
        if isinstance(message, BaseMessage) and message.id is None:
            message.id = str(uuid4())  # LangGraph does the same, a little later
    if isinstance(given, Mapping):
        return {**given, key: several}, several
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return dataclasses.replace(given, **{key: several}), several
    if hasattr(given, "model_copy"):
        return given.model_copy(update={key: several}), several
    return given, None


# --- by hand ---


def recover_by_hand(core: GuardCore, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> RecoveryReport:
    """See `TurnGuard.recover`."""
    run = _by_hand(core, graph, config)
    with run:
        try:
            return run_steps(run.everything(), run.graph)
        except TurnCheckpointError:
            raise
        except Exception:  # noqa: BLE001 - a state's reducers may raise anything
            return run_steps(run.everything(has_state=False), run.graph)


async def arecover_by_hand(
    core: GuardCore, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig
) -> RecoveryReport:
    """Async twin of `recover_by_hand`."""
    run = _by_hand(core, graph, config)
    async with run:
        try:
            return await arun_steps(await offload(run.everything), run.graph)
        except TurnCheckpointError:
            raise
        except Exception:  # noqa: BLE001 - a state's reducers may raise anything
            return await arun_steps(await offload(partial(run.everything, has_state=False)), run.graph)


def _by_hand(core: GuardCore, graph: Any, config: RunnableConfig) -> _RunByHand:
    guarded = attached(core, graph)
    merged = ensure_config(merge_configs(guarded.config, config))
    if merged["configurable"].get("thread_id") is None:
        raise InvalidIdError("thread_id", None, "is missing")
    return _RunByHand(guarded, {}, None, merged, RunControl())


class _RunByHand(GuardedRun):
    """A turn in which nothing but a recovery happens."""

    @property
    def graph(self) -> Pregel[Any, Any, Any, Any]:
        return self._graph

    def everything(self, *, has_state: bool = True) -> Steps:
        """Whatever there is to close; `has_state` tells whether what is pending can be applied."""
        assert self._running is not None
        recovery = Recovery(self._graph, self._plain, self._running, rules=self._core.rules)
        return recovery.by_hand() if has_state else recovery.without_state()
