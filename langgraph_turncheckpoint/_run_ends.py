"""When a run ends, for a guard that only sits in its nodes. LangChain lets a handler join every run of the process;
this one keeps nothing but who called whom, and tells when a run that was asked for is over.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphInterrupt

#: Beyond this many runs the oldest are forgotten: a generator that nobody closes never ends.
RUNS_KEPT: Final = 20_000

#: Gets the error, if there was one, and whether a node of the run has paused for a person.
Listener = Callable[["BaseException | None", bool], None]


class RunEnds(BaseCallbackHandler):
    """Tells listeners when the root of a run ends."""

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parents: OrderedDict[UUID, UUID | None] = OrderedDict()
        self._listeners: dict[UUID, list[Listener]] = {}
        self._paused: set[UUID] = set()

    def listen(self, run_id: UUID | None, listener: Listener) -> bool:
        """Call `listener` once, when the outermost run around `run_id` ends.

        Returns:
            Whether that run is known.
        """
        with self._lock:
            root = self._root(run_id)
            if root is None:
                return False
            self._listeners.setdefault(root, []).append(listener)
            return True

    def _root(self, run_id: UUID | None) -> UUID | None:
        while run_id is not None and (parent := self._parents.get(run_id)) is not None:
            run_id = parent
        return run_id if run_id in self._parents else None

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        """A chain or node starts."""
        self._started(run_id, parent_run_id)

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        """A tool starts; it may call a graph."""
        self._started(run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """A chain or node is done."""
        self._ended(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A chain or node raised."""
        self._ended(run_id, error)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """A tool is done."""
        self._ended(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A tool raised."""
        self._ended(run_id, error)

    def _started(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        with self._lock:
            self._parents[run_id] = parent_run_id
            if len(self._parents) > RUNS_KEPT:
                forgotten, _ = self._parents.popitem(last=False)
                self._listeners.pop(forgotten, None)
                self._paused.discard(forgotten)

    def _ended(self, run_id: UUID, error: BaseException | None) -> None:
        with self._lock:
            if isinstance(error, GraphInterrupt) and (root := self._root(run_id)) is not None:
                self._paused.add(root)
            self._parents.pop(run_id, None)
            listeners = self._listeners.pop(run_id, ())
            has_paused = run_id in self._paused
            self._paused.discard(run_id)
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
