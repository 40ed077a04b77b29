"""Any saver as a migration sees it: its threads, their checkpoints, and where each pending write stands. What
LangGraph's interface does not tell is asked of the savers that are known; nothing is written here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from ._blocking import check_saver
from ._runs import UNDATED_KEY
from ._same_values import Key
from ._sql_rows import SqlTables, tables_of
from ._thread_files import thread_ids
from ._turn import LedgerState
from ._unreadable import Unreadable, pruned, unreadable
from ._write_calls import WriteKey
from .errors import DamagedCheckpointError, MigrationError, RefusedValueError, TurnCheckpointError
from .saver import TurnCheckpointSaver

#: What callers of the library may do; commands say it in their own words.
NAME_THEM: Final = "name them with thread_ids"
OTHER_SERDE: Final = "Pass the saver with the serde that it was written with"


class StoppedError(Exception):
    """Whoever asked for the copy does not wait for it any more."""


class Origin(Protocol):
    """Where threads are copied from.

    Attributes:
        counts_threads: Whether its threads can be counted without reading them.
    """

    counts_threads: bool

    def thread_counts(self) -> Mapping[Any, int]:
        """How many checkpoints each thread has, by the id as the saver keeps it."""

    def tuples(self, thread_id: Any) -> Iterator[CheckpointTuple]:
        """Every checkpoint of a thread, newest first within each namespace."""

    def tuple_at(self, thread_id: Any, key: Key) -> CheckpointTuple | None:
        """One checkpoint."""

    def write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:
        """Where the pending writes of a checkpoint stand, in any order; `None` if that cannot be told."""

    def unreadable(self, thread_id: Any, found: Collection[Key]) -> Sequence[Unreadable]:
        """What of a thread is there beside the checkpoints that were `found`, and cannot be read."""

    def lost_threads(self) -> Sequence[DamagedCheckpointError]:
        """Threads of which not even the id can be read."""


class SaverView:
    """A saver of which nothing is known but LangGraph's interface.

    Args:
        saver: The saver; its blocking methods are used.

    Attributes:
        counts_threads: See `Origin`.
        drops: The metadata keys whose values it does not keep, by design or because it was told so.
    """

    counts_threads: bool = False
    drops: frozenset[str] = frozenset()

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver

    @property
    def name(self) -> str:
        """The saver, for messages."""
        return type(self.saver).__name__

    @property
    def directory(self) -> str | None:
        """Where it keeps its files, if that is a directory of its own."""
        return None

    def thread_counts(self) -> Mapping[Any, int]:
        """See `Origin`."""
        with _reading(f"its threads cannot be listed; {NAME_THEM}"):
            return Counter(found.config["configurable"]["thread_id"] for found in self.saver.list(None))

    def tuples(self, thread_id: Any) -> Iterator[CheckpointTuple]:
        """See `Origin`."""
        with _reading("its checkpoints cannot be read", thread_id):
            yield from self.saver.list({"configurable": {"thread_id": thread_id}})

    def tuple_at(self, thread_id: Any, key: Key) -> CheckpointTuple | None:
        """See `Origin`."""
        conf = {"thread_id": thread_id, "checkpoint_ns": key[0], "checkpoint_id": key[1]}
        with _reading(f"checkpoint {key[1]} cannot be read", thread_id):
            return self.saver.get_tuple({"configurable": conf})

    def write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:
        """See `Origin`."""
        try:
            return self._write_keys(thread_id, key)
        except TurnCheckpointError:
            raise
        except Exception:  # noqa: BLE001 - a saver may keep its writes in another way some day; the order stays
            return None

    def _write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:  # noqa: ARG002 - some know
        return None

    def unreadable(self, thread_id: Any, found: Collection[Key]) -> Sequence[Unreadable]:  # noqa: ARG002 - ours knows
        """See `Origin`; other savers raise when they are read."""
        return ()

    def lost_threads(self) -> Sequence[DamagedCheckpointError]:
        """See `Origin`."""
        return ()

    def writing(self, thread_id: str) -> AbstractContextManager[RunnableConfig]:
        """What must be open while a thread is written to; gives the config to write with."""
        return nullcontext({"configurable": {"thread_id": thread_id}})

    def pruned(self, thread_id: str, keys: Iterable[Key]) -> set[Key]:  # noqa: ARG002 - ours knows
        """Those of `keys` that were there once and have been pruned, as far as that can be told."""
        return set()

    def deleted_upto(self, thread_id: str) -> str:  # noqa: ARG002 - some know
        """The newest checkpoint that was deleted together with the thread; empty if none is known."""
        return ""


class OwnView(SaverView):
    """A `TurnCheckpointSaver`: writes under a turn of its own, and knows what was deleted, pruned or damaged."""

    saver: TurnCheckpointSaver
    counts_threads = True

    def __init__(self, saver: TurnCheckpointSaver) -> None:
        super().__init__(saver)
        self.drops = saver.redacted_keys

    @property
    def directory(self) -> str:
        """See `SaverView`."""
        return os.path.realpath(self.saver.path)

    def thread_counts(self) -> Mapping[Any, int]:
        """See `Origin`."""
        store = self.saver.store
        counts = {}
        for thread_id in self.saver.thread_ids():
            thread = store.thread(thread_id)
            namespaces = thread.unnamed_namespaces(thread.ledger.read() or LedgerState())
            counts[thread_id] = sum(sum(1 for _ in files.ids()) for files in namespaces)
        return counts

    def _write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:
        thread = self.saver.store.thread(thread_id)
        state = thread.ledger.read()
        file = state and self.saver.store.file(thread.namespace(state, key[0]), key[1])
        return [WriteKey(*each) for each in file.write_keys()] if file else None

    def unreadable(self, thread_id: Any, found: Collection[Key]) -> Sequence[Unreadable]:
        """See `Origin`."""
        return unreadable(self.saver.store, thread_id, found)

    def lost_threads(self) -> Sequence[DamagedCheckpointError]:
        """See `Origin`."""
        lost: list[DamagedCheckpointError] = []
        for _ in thread_ids(self.saver.path, fsync=False, on_damage=lost.append):
            pass
        return lost

    @contextmanager
    def writing(self, thread_id: str) -> Iterator[RunnableConfig]:
        """See `SaverView`; whoever has a turn on the thread keeps it.

        The turn ends as "imported" where all has been put. Where not, it ends as any turn whose block raises does:
        what it has brought is a part of the thread. When its writes were made nobody knows.
        """
        turn = self.saver.turn({"configurable": {"thread_id": thread_id}}, multitask_strategy="reject")
        with turn as config:
            try:
                yield {**config, "configurable": {**config["configurable"], UNDATED_KEY: True}}
            except StoppedError:
                turn.settle("cancelled", "unknown")  # who cancels a task of asyncio does not say who wanted it
                raise
            turn.settle("imported")

    def pruned(self, thread_id: str, keys: Iterable[Key]) -> set[Key]:
        """See `SaverView`."""
        return pruned(self.saver.store, thread_id, keys)

    def deleted_upto(self, thread_id: str) -> str:
        """See `SaverView`."""
        state = self.saver.store.thread(thread_id).ledger.read()
        return state.deleted_upto if state is not None else ""


class MemoryView(SaverView):
    """An `InMemorySaver`."""

    saver: InMemorySaver
    counts_threads = True

    def thread_counts(self) -> Mapping[Any, int]:
        """See `Origin`."""
        counts = {thread_id: sum(map(len, spaces.values())) for thread_id, spaces in self.saver.storage.items()}
        return {thread_id: number for thread_id, number in counts.items() if number}

    def _write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:
        found = self.saver.writes.get((thread_id, *key), {})
        return [WriteKey(path, task, position, channel) for (task, position), (_, channel, _, path) in found.items()]


class SqlView(SaverView):
    """One of LangGraph's savers on a database."""

    counts_threads = True

    def __init__(self, saver: BaseCheckpointSaver[Any], tables: SqlTables) -> None:
        super().__init__(saver)
        self.drops, self._tables = tables.drops, tables

    def thread_counts(self) -> Mapping[Any, int]:
        """See `Origin`."""
        with _reading("its threads cannot be listed"):
            return self._tables.counts(self.saver)

    def _write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:
        return [WriteKey(*row) for row in self._tables.write_keys(self.saver, thread_id, key)]


def view_of(saver: BaseCheckpointSaver[Any]) -> SaverView:
    """A saver as a migration sees it.

    Raises:
        TypeError: It is no saver.
    """
    check_saver(saver)
    if isinstance(saver, TurnCheckpointSaver):
        return OwnView(saver)
    if isinstance(saver, InMemorySaver):
        return MemoryView(saver)
    tables = tables_of(saver)
    return SaverView(saver) if tables is None else SqlView(saver, tables)


class _reading:  # noqa: N801 - used like a function
    """Turns whatever a saver or its database raises into an error that names the thread."""

    def __init__(self, what: str, thread_id: Any = None) -> None:
        self._what, self._thread_id = what, thread_id

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        thread_id = None if self._thread_id is None else str(self._thread_id)
        if type(error) is MigrationError and error.thread_id is None and thread_id is not None:
            raise MigrationError(error.reason, thread_id) from error
        if isinstance(error, RefusedValueError) and thread_id is not None:
            raise MigrationError(str(error), thread_id) from error
        if isinstance(error, Exception) and not isinstance(error, TurnCheckpointError | StoppedError):
            raise MigrationError(f"{self._what}: {told(error)}", thread_id) from error


def told(error: BaseException) -> str:
    """An error of another library in one line, with what usually helps."""
    text = " ".join(str(error).split()) or "no message"
    advice = next((advice for sign, advice in _ADVICE if sign in f"{type(error).__name__} {text}".lower()), "")
    return f"{type(error).__name__}: {text:.300}{advice}"


_ADVICE: Final = (
    ("unknown serialization type", f". {OTHER_SERDE}"),
    ("mac check failed", ". Is it encrypted with another key?"),
    ("decrypt", ". Is it encrypted with another key?"),
    ("locked", ". Another program holds the database; stop it, or try again"),
    ("undefinedtable", ". Call setup() on the saver once"),
    ("no such table", ". Is it the right database?"),
    ("notimplementederror", ". This saver has no blocking methods; use the async twin"),
    ("invalidstateerror", ". Use the async twin in an event loop"),
)
