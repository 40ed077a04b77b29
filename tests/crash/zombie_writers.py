"""A process that writes to a few threads under turns of every kind, and writes down what came of each attempt. Whether
what came of it is right is not said here.

What it writes down names the hold of the thread's lock in which it was decided. The order of all holds, over all
processes, is in one file that is only appended to while the lock is held.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint

from langgraph_turncheckpoint import StaleTurnError, ThreadBusyError, TurnCheckpointSaver, _files
from langgraph_turncheckpoint._records import parse_slots
from langgraph_turncheckpoint._runs import RUNTIME_KEY, TURN_KEY
from tests.crash.processes import PATIENCE_SECONDS, Line

PROCESSES: Final = 4
THREADS: Final = ("a", "b", "c")
CHANNEL: Final = "mark"
#: The id of each thread's first checkpoint, lower than any other.
FIRST: Final = str(UUID(int=1))
#: Seconds that a turn of strategy "enqueue" waits; a holder may be stopped for longer.
QUEUE_SECONDS: Final = 0.05

#: How a writer comes to a thread, and how often: as a LangGraph run, with a turn by hand, outside any turn.
WAYS: Final = {
    "run": 6,
    "interrupt": 3,
    "reject": 2,
    "enqueue": 2,
    "rollback": 2,
    "update": 4,
    "fork": 1,
    "cancel": 1,
}


class Assignment(NamedTuple):
    """What the processes of a batch do.

    Attributes:
        directory: Where the store is, and what is written down.
        seed: What each process draws from, together with its number.
        writes: How many writes each process tries.
        fsync: The saver's.
        sabotage: What breaks the process first, to see whether that is noticed.
    """

    directory: Path
    seed: str
    writes: int
    fsync: bool
    sabotage: Callable[[], object] | None = None

    @property
    def store(self) -> Path:
        """The store."""
        return self.directory / "store"

    @property
    def order(self) -> Path:
        """The order of all holds."""
        return self.directory / "order"

    def log(self, who: int) -> Path:
        """What a process has written down."""
        return self.directory / f"{who}.log"


class _Appended:
    """A file that is appended to with one system call per line."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())


class Holds:
    """The holds of threads' locks by this process, numbered from 1.

    Attributes:
        last: The last one.
        last_raise: The last one in which a token was raised.
    """

    def __init__(self, order: Path, who: int) -> None:
        self._order, self._who = _Appended(order), who
        self.last = self.last_raise = 0
        self._token = 0

    def begins(self, thread: str, fd: int) -> None:
        """The lock was taken."""
        self.last += 1
        self._token = self._read(fd)
        self._order.add(f"+ {self._who} {self.last} {thread} {self._token}")

    def ends(self, thread: str, fd: int) -> None:
        """The lock is about to be given back."""
        token = self._read(fd)
        if token != self._token:
            self.last_raise = self.last
        self._order.add(f"- {self._who} {self.last} {thread} {token}")

    @staticmethod
    def _read(fd: int) -> int:
        slot, _ = parse_slots(os.pread(fd, 1 << 12, 0))
        return 0 if slot is None else slot.state.token


def count_holds(holds: Holds) -> None:
    """From now on this process notes its holds."""

    class CountedFile(_files.LockedFile):
        def __enter__(self) -> _files.LockedFile:
            entered = super().__enter__()
            holds.begins(self._thread, self.fd)
            return entered

        def __exit__(self, *exc_info: object) -> None:
            holds.ends(self._thread, self.fd)
            super().__exit__(*exc_info)

        @property
        def _thread(self) -> str:
            return os.path.basename(os.path.dirname(self._path))

    _files.LockedFile = CountedFile  # type: ignore[misc]


class Writer:
    """One process that writes.

    Args:
        assignment: What to do.
        who: Its number.
        holds: Its holds.
    """

    def __init__(self, assignment: Assignment, who: int, holds: Holds) -> None:
        self._saver = TurnCheckpointSaver(assignment.store, fsync=assignment.fsync)
        self._random = Random(f"{assignment.seed}, {who}")
        self._log, self._who, self._holds = _Appended(assignment.log(who)), who, holds
        self._made = self._turns = 0
        self.tried = 0

    def act(self) -> None:
        """Come to a thread in some way, and write to it."""
        (way,) = self._random.choices(list(WAYS), list(WAYS.values()))
        thread = self._random.choice(THREADS)
        self._turns += 1
        try:
            if way == "run":
                self._run(thread)
            elif way in ("update", "fork"):
                self._outside(thread, is_fork=way == "fork")
            elif way == "cancel":
                self._saver.cancel_turn(thread, reason="user")
            else:
                self._by_hand(thread, way)
        except ThreadBusyError:
            self._note("busy", thread)
        except Exception as error:  # noqa: BLE001 - whatever it is, it should not be
            self._note("error", thread, text=f"{way}: {type(error).__name__}: {error}")

    # --- ways to a thread ---

    def _run(self, thread: str) -> None:
        """As LangGraph does: its first contact opens the turn."""
        control = object()
        config = self._config(thread, {RUNTIME_KEY: SimpleNamespace(control=control)})
        saved = self._saver.get_tuple(config)
        token = self._saver.store.run_turn(control, thread, base="").token
        self._opened(thread, token, "run", base=None)
        self._write_some(thread, config, saved, token)

    def _by_hand(self, thread: str, strategy: str) -> None:
        timeout = QUEUE_SECONDS if strategy == "enqueue" else None
        turn = self._saver.turn(self._config(thread, {}), multitask_strategy=strategy, timeout=timeout)
        with turn as config:
            token = config["configurable"][TURN_KEY]["token"]
            self._opened(thread, token, strategy, base=turn.base)
            saved = self._saver.get_tuple(config)
            last = self._write_some(thread, config, saved, token)
        if self._random.random() < 0.3:
            # The turn is over, and what still has its config must not write.
            self._put(thread, config, last, token)

    def _outside(self, thread: str, *, is_fork: bool) -> None:
        """As `update_state` does; a fork addresses its parent by id."""
        for _ in range(self._random.randint(1, 3)):
            saved = self._saver.get_tuple(self._config(thread, {}))
            parent = None if saved is None else saved.config["configurable"]["checkpoint_id"]
            if is_fork and parent is not None:
                self._put(thread, self._config(thread, {}), str(parent), 0, is_fork=True)
            else:
                self._put(thread, self._config(thread, {}), parent, 0)

    # --- writing ---

    def _write_some(self, thread: str, config: Any, saved: CheckpointTuple | None, token: int) -> str | None:
        """A few super-steps; who is refused tries once more. Returns the last checkpoint."""
        last = None if saved is None else saved.config["configurable"]["checkpoint_id"]
        for _ in range(self._random.randint(1, 10)):
            writes = self._random.choice((0, 1, 1, 2)) if last is not None else 0
            # All of them are tried, also behind a refused one.
            accepted = [self._put_writes(thread, config, str(last), token) for _ in range(writes)]
            is_accepted = all(accepted)
            stored = self._put(thread, config, last, token) if is_accepted else None
            if stored is None:
                self._put(thread, config, last, token)
                break
            last = stored
        return last

    def _put(self, thread: str, config: Any, parent: str | None, token: int, *, is_fork: bool = False) -> str | None:
        """Returns the id of the checkpoint if it was accepted."""
        checkpoint = self._checkpoint()
        at: RunnableConfig = {"configurable": {**config["configurable"], "checkpoint_id": parent}}
        self.tried += 1
        is_accepted = True
        try:
            self._saver.put(at, checkpoint, {}, dict(checkpoint["channel_versions"]))
        except StaleTurnError:
            is_accepted = False
        read_head = getattr(parent, "head_id", None)
        self._note(
            "put", thread, token, id=checkpoint["id"], parent=parent, head=read_head, fork=is_fork, ok=is_accepted
        )
        return checkpoint["id"] if is_accepted else None

    def _put_writes(self, thread: str, config: Any, checkpoint_id: str, token: int) -> bool:
        at: RunnableConfig = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint_id}}
        self._made += 1
        task = f"task-{self._who}-{self._made}"
        self.tried += 1
        is_accepted = True
        try:
            self._saver.put_writes(at, [(CHANNEL, self._made)], task)
        except StaleTurnError:
            is_accepted = False
        self._note("writes", thread, token, id=checkpoint_id, task=task, ok=is_accepted)
        return is_accepted

    def _checkpoint(self) -> Checkpoint:
        self._made += 1
        checkpoint = empty_checkpoint()
        # LangGraph's ids come from the time of day. This clock is the same for all processes, too, and never goes back.
        checkpoint["id"] = str(UUID(int=(time.monotonic_ns() << 64) | (self._who << 32) | self._made))
        checkpoint["channel_values"] = {CHANNEL: [self._who, self._turns, self._made]}
        checkpoint["channel_versions"] = {CHANNEL: f"{self._made:032}.{self._who}"}
        return checkpoint

    @staticmethod
    def _config(thread: str, more: dict[str, Any]) -> Any:
        return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}

    # --- writing down ---

    def _opened(self, thread: str, token: int, strategy: str, *, base: str | None) -> None:
        self._write("opened", thread, token, self._holds.last_raise, strategy=strategy, base=base)

    def _note(self, kind: str, thread: str, token: int = 0, **more: Any) -> None:
        self._write(kind, thread, token, self._holds.last, **more)

    def _write(self, kind: str, thread: str, token: int, hold: int, **more: Any) -> None:
        known = {"kind": kind, "thread": thread, "token": token, "hold": hold, "turn": self._turns, **more}
        self._log.add(json.dumps(known))


def write_on(line: Line, assignment: Assignment, who: int) -> None:
    """Write until as many writes were tried as are asked for.

    The parent is told when all is ready, and when all is done. It says when to begin, and when to leave: then nobody
    stops or wakes this process any more.
    """
    holds = Holds(assignment.order, who)
    count_holds(holds)
    if assignment.sabotage is not None:
        assignment.sabotage()
    writer = Writer(assignment, who, holds)
    line.tell("ready")
    line.hear()
    while writer.tried < assignment.writes:
        writer.act()
    line.tell("done")
    while not line.speaks_within(PATIENCE_SECONDS):
        pass  # the others take as long as they do; if the parent dies, that is heard, too
    line.hear()
