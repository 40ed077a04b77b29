"""The savers that are compared, each opened, held for a turn and closed the same way. No measuring here.

SqliteSaver runs as it sets itself up, in WAL mode, with `PRAGMA synchronous=FULL`: a commit is on the
disk when the call returns, as ours promises with `fsync=True`. InMemorySaver keeps nothing and shows
what serialization alone costs.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import aiosqlite
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_turncheckpoint import TurnCheckpointSaver

Saver = BaseCheckpointSaver[Any]


class Contender(ABC):
    """One kind of saver; `reopens` says whether a fresh instance finds what an earlier one stored."""

    name: str
    reopens: bool = True

    @abstractmethod
    def open(self, root: Path, *, durable: bool = True) -> Saver:
        """A new saver over `root`; `durable=False` does not wait for the disk, for data only read."""

    @abstractmethod
    def close(self, saver: Saver) -> None:
        """Give back what `open` took."""

    @contextmanager
    def turn(self, saver: Saver, config: RunnableConfig) -> Iterator[RunnableConfig]:
        """Hold the thread as a run would; peers know no turns."""
        yield config

    @asynccontextmanager
    async def open_async(self, root: Path, config: RunnableConfig) -> AsyncIterator[tuple[Saver, RunnableConfig]]:
        """A saver whose async methods work, and the config of a turn held on it."""
        saver = self.open(root)
        try:
            yield saver, config
        finally:
            self.close(saver)


class Ours(Contender):
    """TurnCheckpointSaver; a turn holds one token for its whole length, as a run does."""

    name = "ours"

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        return TurnCheckpointSaver(root, fsync=durable)

    def close(self, saver: Saver) -> None:
        assert isinstance(saver, TurnCheckpointSaver)
        saver.close()

    @contextmanager
    def turn(self, saver: Saver, config: RunnableConfig) -> Iterator[RunnableConfig]:
        assert isinstance(saver, TurnCheckpointSaver)
        with saver.turn(config) as held:
            yield held

    @asynccontextmanager
    async def open_async(self, root: Path, config: RunnableConfig) -> AsyncIterator[tuple[Saver, RunnableConfig]]:
        async with TurnCheckpointSaver(root, fsync=True) as saver, saver.turn(config) as held:
            yield saver, held


class Sqlite(Contender):
    """SqliteSaver with full synchronization; AsyncSqliteSaver where async methods are measured."""

    name = "sqlite"

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        root.mkdir(parents=True, exist_ok=True)
        saver = SqliteSaver(sqlite3.connect(root / "checkpoints.sqlite", check_same_thread=False))
        saver.setup()
        saver.conn.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        return saver

    def close(self, saver: Saver) -> None:
        assert isinstance(saver, SqliteSaver)
        saver.conn.close()

    @asynccontextmanager
    async def open_async(self, root: Path, config: RunnableConfig) -> AsyncIterator[tuple[Saver, RunnableConfig]]:
        # The blocking sibling makes the file, so that this coroutine touches no path.
        self.close(self.open(root))
        async with aiosqlite.connect(root / "checkpoints.sqlite") as connection:
            saver = AsyncSqliteSaver(connection)
            await saver.setup()
            await connection.execute("PRAGMA synchronous=FULL")
            yield saver, config


class InMemory(Contender):
    """InMemorySaver; a fresh instance would be empty, so reads reuse the one that was written to."""

    name = "inmemory"
    reopens = False

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        return InMemorySaver()

    def close(self, saver: Saver) -> None:
        return None


CONTENDERS: Final[tuple[Contender, ...]] = (Ours(), Sqlite(), InMemory())
