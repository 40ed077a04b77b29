"""Where guarded agents live: a saver's storage, used in one colour, and a file in which effects are counted.

No graph and no assertion about histories is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Literal, cast

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint.guard import TurnGuard

Colour = Literal["sync", "async"]


class Effects:
    """A file that the tools append to, so that what really ran can be counted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, name: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{name}\n".encode())
        os.close(descriptor)

    def all(self) -> list[str]:
        """The names, in order of time."""
        return self._path.read_text().split() if self._path.exists() else []

    def counts(self) -> dict[str, int]:
        """How often each ran."""
        found = self.all()
        return {name: found.count(name) for name in sorted(set(found))}


class Place:
    """One saver's storage, used in one colour.

    Args:
        kind: "turn", "memory", "sqlite" or "aiosqlite".
        colour: How graphs are run.
        path: The directory of everything.
        serde: For the "turn" kind, its serializer.
    """

    def __init__(self, kind: str, colour: Colour, path: Path, *, serde: Any = None) -> None:
        self.kind, self.colour, self.path, self._serde = kind, colour, path, serde
        self.effects = Effects(path / "effects")
        self._loop = asyncio.new_event_loop() if colour == "async" else None
        self._memory = InMemorySaver()
        self._close: list[Callable[[], Any]] = []

    def open(self) -> BaseCheckpointSaver[Any]:
        """A saver that remembers nothing, as that of another process; in memory there is only the one."""
        if self.kind == "turn":
            saver = TurnCheckpointSaver(self.path / "store", fsync=False, serde=self._serde)
            self._close.append(saver.close)
            return saver
        if self.kind == "memory":
            return self._memory
        if self.kind == "sqlite":
            from langgraph.checkpoint.sqlite import SqliteSaver

            connection = sqlite3.connect(self.path / "threads.sqlite", check_same_thread=False)
            self._close.append(connection.close)
            return SqliteSaver(connection)
        return cast("BaseCheckpointSaver[Any]", self.wait(self._open_async()))

    async def _open_async(self) -> BaseCheckpointSaver[Any]:
        import aiosqlite
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        connection = await aiosqlite.connect(self.path / "threads.sqlite")
        self._close.append(lambda: self.wait(connection.close()))
        return AsyncSqliteSaver(connection)

    def guard(self, saver: BaseCheckpointSaver[Any], **options: Any) -> TurnGuard:
        """A guard whose directory outlives the saver instance."""
        if self.kind != "turn":
            options["path"] = self.path / "turns"
        return TurnGuard(saver, **options)

    def journals_hold(self, text: str) -> bool:
        """Whether a text is in a journal; only for what is not encrypted."""
        return any(text.encode() in _bytes_of(file) for file in self.path.rglob("*.journal"))

    def writes_hold(self, text: str) -> bool:
        """Whether a text is a pending write of the newest checkpoint."""
        found = self.newest()
        return found is not None and text in repr(found.pending_writes)

    def history_holds(self, text: str) -> bool:
        """Whether the history in the newest checkpoint has a text."""
        found = self.newest()
        return found is not None and repr(text) in repr(found.checkpoint["channel_values"].get("messages"))

    def newest(self) -> CheckpointTuple | None:
        """The newest checkpoint of the thread "t", read from any thread, in any loop."""
        config: Any = {"configurable": {"thread_id": "t"}}
        if self.kind == "turn":
            return TurnCheckpointSaver(self.path / "store", serde=self._serde).get_tuple(config)
        if self.kind == "memory":
            return self._memory.get_tuple(config)
        from langgraph.checkpoint.sqlite import SqliteSaver

        with contextlib.closing(sqlite3.connect(self.path / "threads.sqlite")) as connection:
            return SqliteSaver(connection).get_tuple(config)

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in this place's loop."""
        assert self._loop is not None
        return self._loop.run_until_complete(coroutine)

    def call(self, target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """A method, or its async twin."""
        if self.colour == "sync":
            return getattr(target, method)(*args, **kwargs)
        return self.wait(getattr(target, f"a{method}")(*args, **kwargs))

    def close(self) -> None:
        for close in self._close:
            close()
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.is_file() else b""
    except FileNotFoundError:
        return b""


PLACES: Final[tuple[tuple[str, Colour], ...]] = (
    ("turn", "sync"),
    ("turn", "async"),
    ("memory", "sync"),
    ("memory", "async"),
    ("sqlite", "sync"),
    ("aiosqlite", "async"),
)


@contextlib.contextmanager
def opened(kind: str, colour: Colour, path: Path, **options: Any) -> Iterator[Place]:
    """A place for as long as a block lasts."""
    place = Place(kind, colour, path, **options)
    try:
        yield place
    finally:
        place.close()
