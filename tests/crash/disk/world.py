"""One process that uses a store and knows what must be in it: the threads there are, what is stored in them, and how a
checkpoint, writes or a record is put. Which operations there are is not said here, nor is there any crash.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP, empty_checkpoint

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._running import RunningTurn
from langgraph_turncheckpoint._runs import TURN_KEY
from langgraph_turncheckpoint._turns import Turn
from tests.crash.disk.contents import Contents, Place, Writes

#: The second is spelled out in its ledger only.
THREADS: Final = ("main", "A Thread/" + "with a long name " * 8)
NAMESPACES: Final = ("", "sub:1")
RUNS: Final = ("run-1", "run-2")

#: Where the numbers of a process begin that goes on behind a killed one, of one behind a loss of power, and of the last
#: one of all. Writes that wait for their checkpoint cannot be seen: no process may happen upon an id of another one.
AFTER_A_KILL: Final = 50_000
AFTER_A_FAILURE: Final = 70_000
AT_LAST: Final = 90_000


def config_of(place: tuple[str, str, str | None], extra: Mapping[str, Any] | None = None) -> Any:
    """A config that addresses a checkpoint, or the newest."""
    thread, checkpoint_ns, checkpoint_id = place
    conf: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": checkpoint_ns, **(extra or {})}
    return {"configurable": conf if checkpoint_id is None else {**conf, "checkpoint_id": checkpoint_id}}


def checkpoint_id(number: int) -> str:
    """Ids that sort as they were made."""
    return f"1f0{number:05}-0000-6000-8000-0000000000{number % 100:02}"


class OpenedTurn(NamedTuple):
    """A turn that was opened by hand."""

    turn: Turn
    running: RunningTurn


class World:
    """One process that uses a store, and what it knows to be in it.

    Args:
        root: The store's directory.
        contents: What is in it.
        fsync: Whether writes wait for the disk.
        dice: Chooses threads, values and the like.
        first: The first number for new checkpoints and messages.
    """

    def __init__(self, root: str, contents: Contents, *, fsync: bool, dice: random.Random, first: int) -> None:
        self.saver = TurnCheckpointSaver(root, fsync=fsync)
        self.contents, self.dice, self.fsync = contents, dice, fsync
        self.last = first - 1
        self.runs: dict[str, dict[str, Any]] = {}
        self.turns: dict[str, OpenedTurn] = {}

    def close(self) -> None:
        """Give all files back."""
        for opened in self.turns.values():
            if opened.turn.journal is not None:
                opened.turn.journal.close()

    # --- what there is ---

    def number(self) -> int:
        """A number that was not used before."""
        self.last += 1
        return self.last

    def token(self, thread: str) -> int:
        """The token in the ledger now."""
        state = self.saver.store.thread(thread).ledger.read()
        return 0 if state is None else state.token

    def is_closed(self, thread: str) -> bool:
        """Whether a thread is closed."""
        return bool(self.contents.items.get(("closed", thread)))

    def choose(self, wanted: Callable[[str], object]) -> str | None:
        """Some thread of which this is so."""
        found = [thread for thread in THREADS if wanted(thread)]
        # Most of it happens in one thread: what hangs together is more likely to break.
        return None if not found else found[0] if self.dice.random() < 0.7 else self.dice.choice(found)

    def some_place(self, thread: str) -> Place | None:
        """Some checkpoint of a thread, mostly the newest of its namespace."""
        namespaces = self.contents.namespaces(thread)
        if not namespaces:
            return None
        checkpoint_ns = self.dice.choice(namespaces)
        ids = self.contents.ids(thread, checkpoint_ns)
        return thread, checkpoint_ns, ids[-1] if self.dice.random() < 0.8 else self.dice.choice(ids)

    def writer(self, thread: str) -> dict[str, Any] | None:
        """What a config carries for one who writes: the turn or run that this process has on a thread, if any."""
        if (opened := self.turns.get(thread)) is not None:
            return {TURN_KEY: {"thread_id": thread, "token": opened.turn.token}}
        return self.runs.get(thread)

    def overtaken(self, thread: str) -> None:
        """Whoever held the thread here is fenced out."""
        self.runs.pop(thread, None)
        if (opened := self.turns.pop(thread, None)) is not None and opened.turn.journal is not None:
            opened.turn.journal.close()

    # --- what is stored ---

    def new_checkpoint(self, place: tuple[str, str, str | None], new_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A checkpoint that follows another one, and the versions that are new in it."""
        before = self.contents.items.get(("checkpoint", *map(str, place)), ({}, {}, None))[0]
        old_values, versions = before.get("channel_values", {}), dict(before.get("channel_versions", {}))
        number = self.number()
        size = 40 if not old_values else 1
        log = [*old_values.get("log", []), *(f"entry {number} {n} {self.dice.random()}" for n in range(size))]
        values = {**old_values, "log": log, "messages": [HumanMessage(f"text {number}", id=f"m-{number}")]}
        new = {"log": f"{number:032}.0", "messages": f"{number:032}.0"}
        if "large" not in values or self.dice.random() < 0.1:
            values["large"] = self.dice.randbytes(3000).hex()
            new["large"] = f"{number:032}.0"
        versions |= new
        return {**empty_checkpoint(), "id": new_id, "channel_values": values, "channel_versions": versions}, new

    def put(self, place: tuple[str, str, str | None], new_id: str, extra: dict[str, Any] | None) -> Contents:
        """Put a checkpoint behind another one."""
        thread, checkpoint_ns, parent = place
        is_there = ("checkpoint", thread, checkpoint_ns, new_id) in self.contents.items
        checkpoint, new = self.new_checkpoint((thread, checkpoint_ns, new_id if is_there else parent), new_id)
        metadata = {"source": "loop", "step": 1, "parents": {}, "run_id": self.dice.choice(RUNS)}
        self.saver.put(config_of(place, extra), cast(Any, checkpoint), cast(Any, metadata), cast(Any, new))
        if extra is None:
            self.overtaken(thread)
        item = checkpoint, metadata, parent
        contents = self.contents.with_items({("checkpoint", thread, checkpoint_ns, new_id): item})
        return contents.with_token(thread, self.token(thread), certain=True)

    def put_writes(
        self, place: Place, extra: dict[str, Any] | None, task: str, writes: list[tuple[str, Any]]
    ) -> Contents:
        """Put writes of one task."""
        self.saver.put_writes(config_of(place, extra), writes, task, f"~{task}")
        entries: Writes = {
            (task, WRITES_IDX_MAP.get(channel, at)): (f"~{task}", channel, value)
            for at, (channel, value) in enumerate(writes)
        }
        contents = self.contents.with_writes(place, entries)
        return contents if extra is None else contents.with_token(place[0], self.token(place[0]), certain=True)

    def record(self, thread: str, written: Callable[[RunningTurn], object], *, certain: bool) -> Contents:
        """Write a record into the journal of the turn that is open here."""
        opened = self.turns[thread]
        journal = self.contents.journals[thread, opened.turn.token]
        seen: list[tuple[str, str]] = []
        real = opened.running._append_record

        def append_record(kind: str, fields: list[Any], *, sync: bool) -> bool:
            seen.append((kind, plain(fields)))
            return real(kind, fields, sync=sync)

        opened.running._append_record = append_record  # type: ignore[method-assign]
        try:
            written(opened.running)
        finally:
            opened.running._append_record = real  # type: ignore[method-assign]
        records = (*journal.records, *seen)
        journal = journal._replace(records=records, certain=len(records) if certain else journal.certain)
        return self.contents.with_journal(thread, opened.turn.token, journal)


def plain(fields: Any) -> str:
    """The fields of a journal's record, comparable."""
    return repr(
        [
            [part.content if isinstance(part, HumanMessage) else part for part in each]
            if isinstance(each, list)
            else each
            for each in fields
        ]
    )
