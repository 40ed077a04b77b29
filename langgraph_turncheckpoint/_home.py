"""Where a guard keeps turns, journals and inboxes: with a saver that knows turns, or in a directory of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from .errors import UnsupportedSaverError
from .saver import TurnCheckpointSaver


def home_of(saver: object, path: str | os.PathLike[str] | None) -> TurnCheckpointSaver:
    """The saver whose directory is used.

    Raises:
        UnsupportedSaverError: It is no saver, or one that no directory can be guessed for.
        ValueError: A path was given for a saver that needs none.
    """
    if isinstance(saver, TurnCheckpointSaver):
        if path is not None:
            raise ValueError("path is for other savers; a TurnCheckpointSaver keeps turns and journals itself")
        return saver
    if not isinstance(saver, BaseCheckpointSaver):
        raise UnsupportedSaverError(
            f"a guard needs the graph's checkpointer, not {type(saver).__name__}; "
            "pass the BaseCheckpointSaver that the graph is compiled with"
        )
    if path is None:
        path = _default_path(saver)
    return TurnCheckpointSaver(path, serde=saver.serde)


def _default_path(saver: BaseCheckpointSaver[Any]) -> str:
    connection: Any = getattr(saver, "conn", None)
    if type(connection).__module__ == "sqlite3":
        database = next((row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"), "")
        if database:
            return f"{database}.turns"
        return _temporary_directory(saver)
    if isinstance(saver, InMemorySaver):
        return _temporary_directory(saver)
    raise UnsupportedSaverError(
        f"{type(saver).__name__} has no directory for turns and journals; pass TurnGuard(saver, path=...), "
        "a directory that outlives the process"
    )


def _temporary_directory(saver: BaseCheckpointSaver[Any]) -> str:
    """A directory that goes with a saver which does not outlive the process either."""
    directory = tempfile.mkdtemp(prefix="turncheckpoint-")
    weakref.finalize(saver, _remove, directory, os.getpid())
    return directory


def _remove(directory: str, process_id: int) -> None:
    if os.getpid() == process_id:  # a forked child ends, too, and the directory is its parent's
        shutil.rmtree(directory, ignore_errors=True)
