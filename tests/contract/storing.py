"""Checkpoints made by hand, as LangGraph makes them, for tests of how a saver stores them.

A `Thread` puts one checkpoint behind the other and remembers what it put; comparing is exact in type. What a graph
would do with them is tested elsewhere.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_turncheckpoint import TurnCheckpointSaver

_SERDE = JsonPlusSerializer()


def addressed(thread_id: Any, checkpoint_ns: str = "", checkpoint_id: str | None = None) -> RunnableConfig:
    """The config that addresses a thread, a namespace and perhaps a checkpoint."""
    conf = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    return {"configurable": conf if checkpoint_id is None else {**conf, "checkpoint_id": checkpoint_id}}


def numbered(number: int) -> str:
    """A checkpoint id in the usual form, in the order of the numbers."""
    return f"1ef00000-0000-6000-8000-{number:012x}"


def packed(value: Any) -> bytes:
    """The serializer's bytes of a value: equal only where types are equal, too."""
    return _SERDE.dumps_typed(value)[1]


class Thread:
    """One namespace of a thread, written checkpoint by checkpoint.

    Args:
        saver: Where to.
        thread_id: The thread.
        checkpoint_ns: The namespace.
        metadata: Goes into the metadata of every checkpoint.
    """

    def __init__(
        self,
        saver: TurnCheckpointSaver,
        thread_id: Any = "thread",
        checkpoint_ns: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.saver, self.thread_id, self.checkpoint_ns = saver, thread_id, checkpoint_ns
        self.metadata = dict(metadata or {})
        self.config = addressed(thread_id, checkpoint_ns)
        self.last: Checkpoint | None = None
        self.values: dict[str, bytes] = {}
        self.ids: list[str] = []

    def next(self, values: Mapping[str, Any], number: int | None = None) -> Checkpoint:
        """The checkpoint after the last one put, with the versions of changed channels raised."""
        before = self.last["channel_versions"] if self.last is not None else {}
        old = self.last["channel_values"] if self.last is not None else {}
        checkpoint = empty_checkpoint()
        checkpoint["id"] = numbered(len(self.ids) + 1 if number is None else number)
        checkpoint["channel_values"] = dict(values)
        versions: dict[str, Any] = {}
        for channel in values:
            if channel in old and packed(old[channel]) == packed(values[channel]):
                versions[channel] = before[channel]
            else:
                versions[channel] = self.saver.get_next_version(cast(Any, before.get(channel)), None)
        checkpoint["channel_versions"] = versions
        return checkpoint

    def put(self, values: Mapping[str, Any], **options: Any) -> RunnableConfig:
        """Put the next checkpoint and address it; `number` gives it an id, `metadata` more metadata."""
        checkpoint = self.next(values, options.get("number"))
        return self.put_checkpoint(checkpoint, **options)

    def put_checkpoint(self, checkpoint: Checkpoint, **options: Any) -> RunnableConfig:
        """Put a checkpoint as the next one."""
        before = self.last["channel_versions"] if self.last is not None else {}
        changed = {c: v for c, v in checkpoint["channel_versions"].items() if before.get(c) != v}
        metadata: Any = {"source": "loop", "step": len(self.ids), **self.metadata, **options.get("metadata", {})}
        config = self.saver.put(self.config, checkpoint, cast(CheckpointMetadata, metadata), changed)
        self.config, self.last = config, checkpoint
        self.ids.append(checkpoint["id"])
        self.values[checkpoint["id"]] = packed(checkpoint["channel_values"])
        return config

    def write(self, *values: Any, task_id: str = "task", channel: str = "messages") -> None:
        """Put writes on the last checkpoint."""
        self.saver.put_writes(self.config, [(channel, value) for value in values], task_id)

    def at(self, position: int) -> RunnableConfig:
        """The config that addresses one of the checkpoints put."""
        return addressed(self.thread_id, self.checkpoint_ns, self.ids[position])

    def assert_whole(self, saver: TurnCheckpointSaver, ids: list[str] | None = None) -> None:
        """Every checkpoint put, or those of `ids`, has exactly its values, and the list has no others."""
        expected = self.ids if ids is None else ids
        listed = list(saver.list(addressed(self.thread_id, self.checkpoint_ns)))
        assert [found.checkpoint["id"] for found in listed] == sorted(expected, reverse=True)
        for checkpoint_id in expected:
            found = saver.get_tuple(addressed(self.thread_id, self.checkpoint_ns, checkpoint_id))
            assert found is not None
            assert packed(found.checkpoint["channel_values"]) == self.values[checkpoint_id]


def fresh(saver: TurnCheckpointSaver, **options: Any) -> TurnCheckpointSaver:
    """A saver on the same directory that remembers nothing, like one of another process."""
    return TurnCheckpointSaver(saver.path, **{"fsync": False, "serde": saver.serde, **options})


def read(saver: TurnCheckpointSaver, config: RunnableConfig) -> Any:
    """The checkpoint at a config, as a saver that remembers nothing reads it."""
    found = fresh(saver).get_tuple(config)
    assert found is not None
    return found


def latest(saver: TurnCheckpointSaver, thread_id: Any = "thread", checkpoint_ns: str = "") -> Any:
    """The newest checkpoint, as a saver that remembers nothing reads it."""
    return read(saver, addressed(thread_id, checkpoint_ns))


def files_below(path: str | Path) -> dict[str, bytes]:
    """Every file below a directory, by relative path."""
    found = {}
    for directory, _, names in os.walk(path):
        for name in names:
            file = Path(directory, name)
            found[str(file.relative_to(path))] = file.read_bytes()
    return found


def named(path: str | Path, ending: str) -> list[Path]:
    """The files below a directory whose names end so."""
    return sorted(Path(path).rglob(f"*{ending}"))


def file_of(saver: TurnCheckpointSaver, checkpoint_id: str, ending: str = ".ckpt") -> Path:
    """The file of a checkpoint."""
    (found,) = [file for file in named(saver.path, ending) if checkpoint_id in file.name]
    return found


def size_of(path: str | Path) -> int:
    """Bytes in all files below a directory."""
    return sum(len(data) for data in files_below(path).values())


@contextmanager
def noticed() -> Iterator[list[str]]:
    """Collects the names of warning classes instead of failing on warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names: list[str] = []
        yield names
        names += [found.category.__name__ for found in caught]
