"""What all ways into the guard share: which turn a call belongs to, who records it, and what happens when its run
ends. What is decided about tools and histories is not here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import GraphInterrupt

from . import _files
from ._finalize import Policy
from ._histories import is_healthy
from ._journal import is_live, journal_path, journal_tokens
from ._open_turn import end_of
from ._policies import Policies
from ._recorder import RunRecorder, View, graph_namespace
from ._recovery import RecoveryReport, Rules
from ._run_ends import run_ends
from ._running import RunningTurn, note_results
from ._runs import control_of, explicit_token
from ._tool_calls import messages_of_state
from ._turn import Cause, Strategy, TurnState
from ._turns import Turn
from .errors import (
    InvalidIdError,
    JournalWarning,
    StaleTurnError,
    StorageError,
    TurnCheckpointError,
    UnsupportedSaverError,
)
from .saver import TurnCheckpointSaver

#: Where LangGraph puts the checkpointer of a run.
CHECKPOINTER_KEY: Final = "__pregel_checkpointer"


class GuardCore:
    """A guard without its ways in.

    Args:
        saver: The graph's checkpointer.
        home: Where turns, journals and inboxes are; the saver itself, if it knows turns.
        policies: What to do about tools that had started.
        rules: How histories are finalized.
        strategy: What a run does on a busy thread.
        timeout: How long it waits, in seconds.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        home: TurnCheckpointSaver,
        *,
        policies: Policies,
        rules: Rules,
        strategy: Strategy,
        timeout: float | None,
    ) -> None:
        self.saver, self.home, self.policies, self.rules = saver, home, policies, rules
        self.strategy, self.timeout = strategy, timeout
        #: Whether the tools of the graphs that nodes are guarded in ask the guard, too.
        self.gates_tools = False
        #: How many nodes the guard sits around, and the names of those that have run.
        self.guarded_nodes = 0
        self.guarded_names: set[str] = set()
        #: The names of nodes whose tools have asked the guard.
        self.gated_names: set[str] = set()
        #: Calls that are running in event loops, by thread, task and AI message.
        self.in_flight: dict[tuple[Any, ...], set[asyncio.Future[None]]] = {}
        self._live: dict[tuple[str, int], RunningTurn] = {}
        self._make_locks()
        _cores.add(self)

    def _make_locks(self) -> None:
        #: For looks at what is live, also from event loops; nothing is read or waited for with it.
        self._lock = threading.Lock()
        #: By thread, for the beginning of a run, which reads journals and may wait for another process.
        self._beginnings: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()

    @property
    def knows_turns(self) -> bool:
        """Whether the saver itself refuses the writes of older turns."""
        return self.home is self.saver

    def reset(self) -> None:
        """In a forked child: the turns are its parent's."""
        self._make_locks()
        self._live.clear()

    def history(self, state: Any) -> Sequence[Any]:
        """The messages in a state of any shape."""
        return messages_of_state(state, self.rules.messages_key)

    def policy_of(self, request: Any) -> Policy:
        """The policy of the tool that a request of a `ToolNode` is for."""
        name = str(request.tool_call["name"])
        tools = getattr(request.runtime, "tools", None)
        if tools and not self.policies.has_seen(name):
            self.policies.check_tools(tools, are_all=False)  # the graph may have other tool nodes
        return self.policies.of(name, getattr(request.tool, "metadata", None))

    def unchanged(self, thread_id: str) -> RecoveryReport:
        """What is told of a thread that nothing is done about."""
        return RecoveryReport(thread_id, self.home.store.newest_turn(thread_id))

    def is_gated(self, config: RunnableConfig, running: RunningTurn) -> None:
        """The node of a config asks the guard before each of its tools."""
        node = (config.get("metadata") or {}).get("langgraph_node")
        if node in self.gated_names or node is None:
            return
        self.gated_names.add(str(node))
        running.recorder.node_rested(str((config.get("configurable") or {}).get("checkpoint_ns") or ""))

    def check_saver(self, saver: BaseCheckpointSaver[Any]) -> None:
        """Refuse a graph that saves elsewhere: what its runs leave would never be found.

        Raises:
            UnsupportedSaverError: It does.
        """
        if saver is self.saver:
            return
        # LangGraph runs a graph with a copy of its saver, and an attached one with a wrapper of ours.
        for name in ("path", "conn", "storage"):
            here, there = getattr(self.saver, name, None), getattr(saver, name, None)
            if here is not None and (here is there or (name == "path" and here == there)):
                return
        raise UnsupportedSaverError(
            f"the graph saves to {saver!r}, and the guard was made for {self.saver!r}; give both the same saver"
        )

    def contact(self, config: RunnableConfig) -> RunningTurn | None:
        """The turn that a node's config belongs to; `None` where nothing is saved.

        Raises:
            StaleTurnError, ThreadClosedError: The turn is over.
            UnsupportedSaverError: The run saves elsewhere.
        """
        conf = config.get("configurable") or {}
        saver = conf.get(CHECKPOINTER_KEY)
        if conf.get("thread_id") is None or not saver:
            return None
        if isinstance(saver, BaseCheckpointSaver):
            self.check_saver(saver)
        thread_id, control = str(conf["thread_id"]), control_of(conf)
        token = explicit_token(conf, thread_id)
        store = self.home.store
        manager = config.get("callbacks")
        task = str(conf.get("checkpoint_ns") or "")
        parent = manager.parent_run_id if isinstance(manager, BaseCallbackManager) else run_ends().node_of(task)
        depth = task.count("|") + 1
        if token is None and parent is not None and not run_ends().knows(parent, depth):
            # A cancelled run that is only now on its way here must not take a turn from a newer one.
            raise StaleTurnError(thread_id, 0, 0, "the run it belongs to has ended")
        if token is not None:
            turn = store.explicit_turn(thread_id, token)
        elif control is not None:
            turn = store.run_turn(control, thread_id, base="")
        else:
            return None
        running, is_new_run = self.running(thread_id, turn, control)
        if is_new_run:
            is_explicit = token is not None

            def ended(error: BaseException | None, paused: bool) -> None:
                self._run_ended(running, control, error, paused=paused, is_explicit=is_explicit)

            # An agent's own tool node asks for every tool; in a graph built by hand there may be others.
            watcher = _Nodes(self, running) if self.gates_tools and self.guarded_nodes else None
            if not run_ends().listen(parent, depth, ended, watcher=watcher) and parent is not None:
                # It was cancelled while this was on its way here: nobody waits for it, and nobody would end it.
                self._run_ended(running, control, asyncio.CancelledError(), paused=False, is_explicit=is_explicit)
                raise StaleTurnError(thread_id, turn.token, turn.token, "the run it belongs to has ended")
        return running

    def running(
        self, thread_id: str, turn: Turn, control: object, view: View | None = None
    ) -> tuple[RunningTurn, bool]:
        """What the guard knows of a live turn, and whether a run begins with this call.

        Args:
            thread_id: The thread.
            turn: The turn.
            control: What is the same for the whole run.
            view: What will be seen of the run; by default, what nodes show that the guard sits in.

        Raises:
            StaleTurnError, ThreadClosedError: The turn is over.
        """
        with self._lock:
            beginning = self._beginnings.setdefault(thread_id, threading.Lock())
        with beginning:
            running = self._live.get((thread_id, turn.token))
            if running is None:
                if turn.journal is None:
                    self._mark(thread_id, turn)
                running = RunningTurn(self.home.store, thread_id, turn)
                self._goes_live(running)
            is_new = running.control is not control or control is None
            if is_new:
                try:
                    running.begin_run(control)
                except BaseException:
                    # What cannot be read cannot be gone on from, and nobody will tell that this turn is over.
                    with self._lock:
                        self._live.pop((thread_id, turn.token), None)
                    self.home.store.settle_turn(thread_id, turn, "failed", "error", raise_token=False)
                    raise
                seen = view or View(covers=lambda _: self.gates_tools)
                running.recorder = RunRecorder(running, self.policies.of, seen)
            return running, is_new

    def _goes_live(self, running: RunningTurn) -> None:
        with self._lock:
            older = [key for key in self._live if key[0] == running.thread_id and key[1] < running.token]
            overtaken = [self._live.pop(key) for key in older]
            # Nobody tells here that a turn by hand has ended.
            for key in [key for key, other in self._live.items() if not other.journal.is_open]:
                del self._live[key]
            self._live[running.thread_id, running.token] = running
        for other in overtaken:
            other.journal.close()  # nothing of it starts or is recorded any more

    def _mark(self, thread_id: str, turn: Turn) -> None:
        try:
            self.home.store.mark_run(thread_id, turn)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            reason = "was opened in another process; open it with saver.turn where its guarded graph runs"
            raise InvalidIdError("turn", turn.token, reason) from error

    def record_into(self, config: RunnableConfig, running: RunningTurn) -> None:
        """Let the recorder see what is called with a config."""
        callbacks = config.get("callbacks")
        recorder = running.recorder
        if isinstance(callbacks, BaseCallbackManager):
            if not any(handler is recorder for handler in callbacks.handlers):
                callbacks.add_handler(recorder, inherit=True)
        elif not any(handler is recorder for handler in callbacks or ()):
            config["callbacks"] = [*(callbacks or ()), recorder]

    def node_config(self, config: RunnableConfig) -> RunnableConfig:
        """Thread and namespace of the graph that a node is in."""
        conf = config["configurable"]
        checkpoint_ns = graph_namespace(conf.get("checkpoint_ns") or "")
        return {"configurable": {"thread_id": conf["thread_id"], "checkpoint_ns": checkpoint_ns}}

    def _run_ended(
        self, running: RunningTurn, control: object, error: BaseException | None, *, paused: bool, is_explicit: bool
    ) -> None:
        """A run that the guard only saw from inside is over."""
        if running.control is not control:
            return
        running.is_paused = running.is_paused or paused
        state, cause = self.end_of_run(running, error)
        if is_explicit:
            self.forget(running, is_over=False)
            return
        try:
            self.home.store.settle_turn(running.thread_id, running.turn, state, cause, raise_token=False)
        finally:
            self.forget(running, is_over=True)

    def end_of_run(self, running: RunningTurn, error: BaseException | None) -> tuple[TurnState, Cause | None]:
        """Note how a run has ended. If it is complete, what its journal and older ones tell is in the checkpoints."""
        state, cause = end_of(error)
        if state == "completed" and (running.is_paused or self._is_at_breakpoint(running)):
            state = "paused"
        running.is_absorbed = state == "completed" and self._is_absorbed(running)
        running.end_run("unknown" if state == "completed" and not running.is_absorbed else state, cause)
        if running.is_absorbed:
            self._let_go(running)
        return state, cause

    def _is_at_breakpoint(self, running: RunningTurn) -> bool:
        """Whether a run that the guard only saw from inside has stopped in front of its tools, for nobody says so."""
        if running.is_watched or not self.knows_turns or not running.open_calls():
            return False
        try:
            left = self.home.store.standing(running.thread_id).left
        except TurnCheckpointError:
            return False
        return left is not None and bool(left.nodes)

    def _is_absorbed(self, running: RunningTurn) -> bool:
        """Whether a run that ended well has left nothing open; one that found nothing to do has changed nothing."""
        if not running.is_watched:
            return not running.open_calls()
        stored = running.stored_history
        return stored is not None and is_healthy(stored, unanswered=self.rules.unanswered)

    def forget(self, running: RunningTurn, *, is_over: bool) -> None:
        """A run, or its whole turn, is over."""
        running.control = None
        if not is_over:
            return
        with self._lock:
            self._live.pop((running.thread_id, running.token), None)
        if running.is_absorbed and running.turn.journal is not None:
            running.turn.journal.close()
            with suppress(StorageError):  # it says itself that its run is complete
                _files.remove_file(running.turn.journal.path)

    def _let_go(self, running: RunningTurn) -> None:
        """What the checkpoints hold need not be kept elsewhere. The run is no worse for what cannot be removed now:
        the next one that ends well does it, and messages that come twice have their ids.
        """
        try:
            if running.delivered:
                self.home.inbox(running.thread_id).acknowledge(running.delivered)
            self._remove_older_journals(running)
        except StorageError as error:
            text = (
                f"thread {running.thread_id!r}: what its checkpoints hold is kept in journals or inbox, too ({error})"
            )
            warnings.warn(text, JournalWarning, stacklevel=2)

    def _remove_older_journals(self, running: RunningTurn) -> None:
        """Only the newest turn may; whoever was overtaken leaves them to the newer one."""
        thread = self.home.store.thread(running.thread_id)
        with thread.ledger.hold() as held:
            if held.state.token != running.token:
                return
            directory = thread.generation(held.state)
            paths = {token: journal_path(directory, token) for token in journal_tokens(directory)}
            dead = {token: path for token, path in paths.items() if token < running.token and not is_live(path)}
            note_results(self.home.store, thread, held.state, dead)
            for path in dead.values():
                _files.remove_file(path)


class _Nodes:
    """Watches the nodes of a run that the guard only sees from inside.

    That it gates some tools is known before any of them has run; which nodes run them is not. Until one has asked, it
    may be another that runs its tools by itself, and its calls count as begun.
    """

    def __init__(self, core: GuardCore, running: RunningTurn) -> None:
        self._core, self._running = core, running

    def node_began(self, task: str, node: str) -> None:
        if node in self._core.guarded_names or node in self._core.gated_names:
            return
        if calls := self._running.open_calls():
            # Not synced: it is for graphs that need not be, and the system's memory outlives the process.
            self._running.recorder.opaque_began(task, calls, sync=False)

    def node_done(self, task: str, outputs: Any) -> None:
        self._running.recorder.node_ended(task, outputs)

    def node_broke_off(self, task: str, error: BaseException) -> None:
        if isinstance(error, GraphInterrupt):
            self._running.recorder.node_rested(task)


_cores: weakref.WeakSet[GuardCore] = weakref.WeakSet()


def _forget_turns() -> None:
    for core in list(_cores):
        core.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_turns)
