"""When a run ends, for a guard that only sits in its nodes. LangChain lets a handler join every run of the process;
this one keeps nothing but who called whom, and tells when a run that was asked for is over.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphInterrupt

#: Beyond this many runs the oldest are forgotten: a generator that nobody closes never ends.
RUNS_KEPT: Final = 20_000

#: How the tag begins that LangGraph gives the run of a node, and of nothing in it.
STEP_TAG: Final = "graph:step:"

#: Gets the error, if there was one, and whether a node of the run has paused for a person.
Listener = Callable[["BaseException | None", bool], None]


class NodeWatcher(Protocol):
    """Wants to know which nodes of a graph run."""

    def node_began(self, task: str, node: str) -> None:
        """A node of the graph itself is about to run."""

    def node_done(self, task: str, outputs: Any) -> None:
        """It has given this."""

    def node_broke_off(self, task: str, error: BaseException) -> None:
        """It has raised, or waits for a person."""


class RunEnds(BaseCallbackHandler):
    """Tells listeners when a graph ends."""

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parents: OrderedDict[UUID, UUID | None] = OrderedDict()
        self._listeners: dict[UUID, list[Listener]] = {}
        #: By run of a node, its task; and the other way round.
        self._nodes: dict[UUID, str] = {}
        self._tasks: dict[str, UUID] = {}
        self._paused: set[UUID] = set()
        #: By run of a graph, who watches its nodes; by run of a node that is watched, the same.
        self._watchers: dict[UUID, list[NodeWatcher]] = {}
        self._watched: dict[UUID, tuple[str, list[NodeWatcher]]] = {}

    def reset(self) -> None:
        """In a forked child: whoever held the lock does not exist there, and the runs are its parent's."""
        self._lock = threading.Lock()
        for known in (self._parents, self._listeners, self._nodes, self._tasks, self._paused):
            known.clear()
        self._watchers.clear()
        self._watched.clear()

    def listen(
        self, run_id: UUID | None, depth: int, listener: Listener, *, watcher: NodeWatcher | None = None
    ) -> bool:
        """Call `listener` once, when the graph that a node belongs to ends.

        Args:
            run_id: The run of the node, or one within it.
            depth: How many graphs deep the node is: 1 for a node of the graph itself, 2 for one of its subgraphs.
            listener: Who wants to know.
            watcher: Who wants to know of its nodes, from now on.

        Returns:
            Whether that run is known.
        """
        with self._lock:
            graph = self._graph(run_id, depth)
            if graph is None:
                return False
            self._listeners.setdefault(graph, []).append(listener)
            if watcher is not None:
                self._watchers.setdefault(graph, []).append(watcher)
            return True

    def knows(self, run_id: UUID | None, depth: int) -> bool:
        """Whether the graph that a node belongs to has begun, and not ended."""
        with self._lock:
            return self._graph(run_id, depth) is not None

    def node_of(self, task: str) -> UUID | None:
        """The run of the node that is a task, by its checkpoint namespace."""
        with self._lock:
            return self._tasks.get(task)

    def _graph(self, run_id: UUID | None, depth: int) -> UUID | None:
        """The run of the graph that is `depth` graphs up."""
        for _ in range(depth):
            while run_id is not None and run_id not in self._nodes:
                run_id = self._parents.get(run_id)
            run_id = None if run_id is None else self._parents.get(run_id)
        return run_id if run_id in self._parents else None

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """A chain or node starts."""
        is_node = any(tag.startswith(STEP_TAG) for tag in tags or ())
        task = str((metadata or {}).get("langgraph_checkpoint_ns") or "") if is_node else None
        self._started(run_id, parent_run_id, task)
        if not is_node or parent_run_id is None:
            return
        with self._lock:
            watchers = list(self._watchers.get(parent_run_id, ()))
            if watchers:
                self._watched[run_id] = str(task), watchers
        for watcher in watchers:
            watcher.node_began(str(task), str((metadata or {}).get("langgraph_node") or ""))

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        """A tool starts; it may call a graph."""
        self._started(run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """A chain or node is done."""
        task, watchers = self._watched.pop(run_id, ("", []))
        for watcher in watchers:
            watcher.node_done(task, outputs)
        self._ended(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A chain or node raised."""
        task, watchers = self._watched.pop(run_id, ("", []))
        for watcher in watchers:
            watcher.node_broke_off(task, error)
        self._ended(run_id, error)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """A tool is done."""
        self._ended(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A tool raised."""
        self._ended(run_id, error)

    def _started(self, run_id: UUID, parent_run_id: UUID | None, task: str | None = None) -> None:
        with self._lock:
            self._parents[run_id] = parent_run_id
            if task is not None:
                self._nodes[run_id] = task
                if task:
                    self._tasks[task] = run_id
            if len(self._parents) > RUNS_KEPT:
                forgotten, _ = self._parents.popitem(last=False)
                self._forget(forgotten)

    def _forget(self, run_id: UUID) -> tuple[list[Listener], bool]:
        has_paused = run_id in self._paused
        self._paused.discard(run_id)
        self._watchers.pop(run_id, None)
        self._watched.pop(run_id, None)
        task = self._nodes.pop(run_id, None)
        if task is not None and self._tasks.get(task) == run_id:
            del self._tasks[task]
        return self._listeners.pop(run_id, []), has_paused

    def _ended(self, run_id: UUID, error: BaseException | None) -> None:
        with self._lock:
            if isinstance(error, GraphInterrupt):
                # Whichever graph around it is listened to: a pause within it is a pause of it.
                above = self._parents.get(run_id)
                while above is not None:
                    self._paused.add(above)
                    above = self._parents.get(above)
            self._parents.pop(run_id, None)
            listeners, has_paused = self._forget(run_id)
        for listener in listeners:
            listener(error, has_paused)


_ends: RunEnds | None = None
_guard = threading.Lock()


def run_ends() -> RunEnds:
    """The handler of this process; the first call makes it join every run that starts from then on."""
    global _ends
    with _guard:
        if _ends is None:
            _ends = RunEnds()
            variable: ContextVar[RunEnds | None] = ContextVar("turncheckpoint_run_ends", default=_ends)
            register_configure_hook(variable, inheritable=True)
        return _ends


def _forget_runs() -> None:
    global _guard
    _guard = threading.Lock()
    if _ends is not None:
        _ends.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_runs)
