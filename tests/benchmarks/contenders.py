"""The savers that are compared, each opened, held for a turn and closed the same way. No measuring here.

SqliteSaver runs as it sets itself up, in WAL mode, with `PRAGMA synchronous=FULL`: a commit is on the
disk when the call returns, as ours promises with `fsync=True`. InMemorySaver keeps nothing and shows
what serialization alone costs. A saver is imported when it is first used, so that a process that times
its start pays for one of them. Peers that need more than this project's tests do are in `peers`.
"""

from __future__ import annotations

import importlib
import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from tests.benchmarks.weighing import DiskUse, disk_use

Saver = BaseCheckpointSaver[Any]


class Contender(ABC):
    """One kind of saver.

    Attributes:
        name: Its name on the command line and in files.
        label: Its heading in tables and plots.
        module: What an app imports to have it.
        setting: How it runs, where that is not the only way.
        reopens: Whether a fresh instance finds what an earlier one stored.
        server: Where its server is, if it has one; a directory.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    module: ClassVar[str]
    setting: ClassVar[str] = ""
    reopens: ClassVar[bool] = True
    server: Path | None = None

    def load(self) -> None:
        """Import it."""
        importlib.import_module(self.module)

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

    def copy(self, source: Path, target: Path) -> None:
        """Make `target` hold what a closed saver has stored at `source`."""
        shutil.copytree(source, target)

    def write_back(self, saver: Saver) -> None:
        """Bring what is still in a log to where it stays, where there is one."""
        return

    def disk_use(self, root: Path) -> DiskUse:
        """What it takes to keep what is stored at `root`."""
        return disk_use(root)


class Ours(Contender):
    """TurnCheckpointSaver; a turn holds one token for its whole length, as a run does."""

    name = "ours"
    label = "ours"
    module = "langgraph_turncheckpoint.saver"
    setting = "ours with fsync on"

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        from langgraph_turncheckpoint import TurnCheckpointSaver

        return TurnCheckpointSaver(root, fsync=durable)

    def close(self, saver: Saver) -> None:
        saver.close()  # type: ignore[attr-defined]

    @contextmanager
    def turn(self, saver: Saver, config: RunnableConfig) -> Iterator[RunnableConfig]:
        with saver.turn(config) as held:  # type: ignore[attr-defined]
            yield held

    @asynccontextmanager
    async def open_async(self, root: Path, config: RunnableConfig) -> AsyncIterator[tuple[Saver, RunnableConfig]]:
        from langgraph_turncheckpoint import TurnCheckpointSaver

        async with TurnCheckpointSaver(root, fsync=True) as saver, saver.turn(config) as held:
            yield saver, held


class Sqlite(Contender):
    """SqliteSaver with full synchronization; AsyncSqliteSaver where async methods are measured."""

    name = "sqlite"
    label = "SqliteSaver"
    module = "langgraph.checkpoint.sqlite"
    setting = "SqliteSaver in WAL mode with synchronous=FULL"

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        from langgraph.checkpoint.sqlite import SqliteSaver

        root.mkdir(parents=True, exist_ok=True)
        saver = SqliteSaver(sqlite3.connect(root / "checkpoints.sqlite", check_same_thread=False))
        saver.setup()
        saver.conn.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        return saver

    def close(self, saver: Saver) -> None:
        saver.conn.close()  # type: ignore[attr-defined]

    @asynccontextmanager
    async def open_async(self, root: Path, config: RunnableConfig) -> AsyncIterator[tuple[Saver, RunnableConfig]]:
        import aiosqlite
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        # The blocking sibling makes the file, so that this coroutine touches no path.
        self.close(self.open(root))
        async with aiosqlite.connect(root / "checkpoints.sqlite") as connection:
            saver = AsyncSqliteSaver(connection)
            await saver.setup()
            await connection.execute("PRAGMA synchronous=FULL")
            yield saver, config

    def write_back(self, saver: Saver) -> None:
        saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[attr-defined]


class InMemory(Contender):
    """InMemorySaver; a fresh instance would be empty, so reads reuse the one that was written to."""

    name = "inmemory"
    label = "InMemorySaver"
    module = "langgraph.checkpoint.memory"
    reopens = False

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        from langgraph.checkpoint.memory import InMemorySaver

        return InMemorySaver()

    def close(self, saver: Saver) -> None:
        return None


#: Those that take part in every run.
CONTENDERS: Final[tuple[Contender, ...]] = (Ours(), Sqlite(), InMemory())
