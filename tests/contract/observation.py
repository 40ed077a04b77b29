"""Turns what LangGraph and its savers return into plain data that two savers can be compared by.

Random ids become names in order of appearance and clocks are left out; everything else stays, down to the
difference between a list and a tuple. No saver, no graph and no assertion lives here.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langgraph.checkpoint import base
from langgraph.checkpoint.base import CheckpointTuple, PendingWrite
from langgraph.types import Interrupt, StateSnapshot
from pydantic import BaseModel

#: Newer LangGraph says in which order pending writes come back; older savers return them as they arrived.
PENDING_WRITES_ARE_SORTED: Final = hasattr(base, "writes_sort_key")

_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"
)
_NULL_TASK: Final = "00000000-0000-0000-0000-000000000000"
_POSITION_KEYS: Final = ("thread_id", "checkpoint_ns", "checkpoint_id")


class Naming:
    """Names ids in the order in which they are first seen; the same id always gets the same name.

    Attributes:
        in_writes: Whether the text comes from a write that was stored while its messages may still have been
            waiting for their ids, which a reducer gives them in place. Both outcomes are LangGraph's.
    """

    def __init__(self, names: dict[str, str] | None = None, *, in_writes: bool = False) -> None:
        self._names = {_NULL_TASK: "null-task"} if names is None else names
        self.in_writes = in_writes

    def __call__(self, text: str) -> str:
        return _ID.sub(lambda found: self._names.setdefault(found[0], f"<id{len(self._names)}>"), text)

    def for_writes(self) -> Naming:
        """The same names, for what comes from pending writes."""
        return Naming(self._names, in_writes=True)


class _Anonymous(Naming):
    """Replaces every id by the same word, for sort keys that must not depend on random ids."""

    def for_writes(self) -> Naming:
        return self

    def __call__(self, text: str) -> str:
        return _ID.sub("<id>", text)


anonymous: Final = _Anonymous(in_writes=True)


def plain(value: Any, rename: Naming) -> Any:
    """Describes any value so that `==` tells apart all that a user could tell apart."""
    if type(value) is str:
        return rename(value)
    if value is None or isinstance(value, bool | int | float | complex | bytes | bytearray):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, StateSnapshot):
        return snapshot(value, rename)
    content = _content(value, rename)
    if content is None:
        text = repr(value)
        return type(value).__name__ if " at 0x" in text else rename(f"{type(value).__name__} {text}")
    return [type(value).__name__, content]


def _content(value: Any, rename: Naming) -> Any:
    """What a container or an object holds; `None` if it is neither."""
    if isinstance(value, BaseModel):
        fields = dict(value)
        if isinstance(value, BaseMessage) and rename.in_writes and (value.id is None or _ID.fullmatch(value.id)):
            del fields["id"]
        return unordered(fields, rename)
    if isinstance(value, Mapping):
        return [(plain(key, rename), plain(item, rename)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, rename) for item in value), key=repr)
    if isinstance(value, BaseException):
        return [plain(argument, rename) for argument in value.args]
    if isinstance(value, Sequence | deque) and not isinstance(value, str) and not hasattr(value, "_fields"):
        if value and all(isinstance(item, Interrupt) for item in value):
            # A run reports the questions of parallel tasks in the order in which their threads got there.
            value = sorted(value, key=lambda item: repr(plain(item, anonymous)))
        return [plain(item, rename) for item in value]
    if names := _field_names(value):
        return [(name, plain(getattr(value, name, None), rename)) for name in names]
    return None


def _field_names(value: Any) -> Sequence[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    kind: Any = type(value)
    if hasattr(kind, "_fields"):
        return list(kind._fields)
    # Slots of other libraries may be caches; what they want to be told apart by is in their `repr`.
    return list(kind.__slots__) if kind.__module__.startswith("langgraph.") and hasattr(kind, "__slots__") else ()


def unordered(mapping: Mapping[Any, Any], rename: Naming) -> dict[str, Any]:
    """Describes a mapping whose own order means nothing; what it holds keeps its order."""
    items = sorted(mapping.items(), key=lambda item: anonymous(str(item[0])))
    return {str(plain(key, rename)): plain(value, rename) for key, value in items}


def position(config: Any, rename: Naming) -> Any:
    """Describes which checkpoint a config points at; a saver may carry more in it than that."""
    if config is None:
        return None
    configurable = config["configurable"]
    described: dict[str, Any] = {key: rename(str(configurable[key])) for key in _POSITION_KEYS if configurable.get(key)}
    if parents := configurable.get("checkpoint_map"):
        described["checkpoint_map"] = {rename(name): rename(str(parents[name])) for name in parents}
    return described


def snapshot(state: StateSnapshot, rename: Naming) -> dict[str, Any]:
    """Describes a `StateSnapshot`, nested ones included."""
    values = state.values
    return {
        "config": position(state.config, rename),
        "parent": position(state.parent_config, rename),
        "values": unordered(values, rename) if isinstance(values, Mapping) else plain(values, rename),
        "next": list(state.next),
        "metadata": unordered(state.metadata or {}, rename),
        "has a date": state.created_at is not None,
        "interrupts": [plain(each, rename) for each in state.interrupts],
        "tasks": [
            {
                "id": rename(task.id),
                "name": task.name,
                "path": plain(task.path, rename),
                "error": plain(task.error, rename),
                "interrupts": [plain(each, rename) for each in task.interrupts],
                "result": plain(task.result, rename.for_writes()),
                "state": position(task.state, rename) if isinstance(task.state, dict) else plain(task.state, rename),
            }
            for task in state.tasks
        ],
    }


def stored(found: Iterable[CheckpointTuple], rename: Naming, *, rebuilt: Collection[str] = ()) -> list[dict[str, Any]]:
    """Describes all checkpoints of a thread, namespace by namespace, newest first within each.

    Savers differ in how they interleave namespaces, and namespaces carry random ids: they are sorted by their
    readable part, then by what they hold, then by age.
    """
    by_namespace: dict[str, list[CheckpointTuple]] = {}
    for each in found:
        by_namespace.setdefault(each.config["configurable"].get("checkpoint_ns", ""), []).append(each)
    readable = Counter(anonymous(namespace) for namespace in by_namespace)

    def order(item: tuple[str, list[CheckpointTuple]]) -> tuple[str, str, str]:
        name, found = anonymous(item[0]), item[1]
        content = repr([checkpoint(each, anonymous) for each in found]) if readable[name] > 1 else ""
        return name, content, found[-1].checkpoint["id"]

    ordered = sorted(by_namespace.items(), key=order)
    return [checkpoint(each, rename, rebuilt=rebuilt) for _, tuples in ordered for each in tuples]


def checkpoint(found: CheckpointTuple, rename: Naming, *, rebuilt: Collection[str] = ()) -> dict[str, Any]:
    """Describes one `CheckpointTuple` as the saver returns it; versions by their rank.

    `rebuilt` names delta channels. LangGraph's savers differ in whether a later checkpoint repeats the snapshot of
    an earlier one, as both give the same value; so only the values that graphs rebuild are compared.
    """
    body: dict[str, Any] = {**found.checkpoint}
    values = {name: value for name, value in body.pop("channel_values").items() if name not in rebuilt}
    seen: Mapping[str, Mapping[str, Any]] = body.pop("versions_seen")
    del body["ts"]
    return {
        "config": position(found.config, rename),
        "parent": position(found.parent_config, rename),
        "metadata": unordered(found.metadata, rename),
        "channel_values": unordered(values, rename),
        "channel_versions": _ranks(body.pop("channel_versions"), rename),
        "versions_seen": {
            rename(node): _ranks(versions, rename)
            for node, versions in sorted(seen.items(), key=lambda item: anonymous(item[0]))
        },
        "rest": unordered(body, rename),
        "pending_writes": _writes(found.pending_writes or (), rename.for_writes()),
    }


def _writes(writes: Iterable[PendingWrite], rename: Naming) -> list[Any]:
    if PENDING_WRITES_ARE_SORTED:
        return [(rename(task_id), channel, plain(value, rename)) for task_id, channel, value in writes]
    by_task: dict[str, list[Any]] = {}
    for task_id, channel, value in writes:
        by_task.setdefault(task_id, []).append((channel, plain(value, anonymous)))
    return sorted((sorted(each, key=repr) for each in by_task.values()), key=repr)


def _ranks(versions: Mapping[str, Any], rename: Naming) -> dict[str, int]:
    """The count that leads a version, be it an integer or the `count.random` of LangGraph's savers."""
    return {rename(channel): int(str(version).split(".")[0]) for channel, version in sorted(versions.items())}
