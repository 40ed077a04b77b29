"""When two checkpoints are the same, and where they differ first. Nothing is read or written here, and no message
shows a stored value: what people wrote to their agents belongs in no log.

Two values are the same if LangGraph's serializer writes both to the same bytes, or if they are equal part by part.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple, TypeAlias

from langgraph.checkpoint import base
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, PendingWrite
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel
from xxhash import xxh3_128_digest

#: A namespace and a checkpoint id: where a checkpoint stands in its thread.
Key: TypeAlias = tuple[str, str]

#: Newer LangGraph says in which order pending writes come back; older savers return them as they arrived.
_WRITES_ARE_SORTED: Final = hasattr(base, "writes_sort_key")

_serde: Final = JsonPlusSerializer()


class SeenWrite(NamedTuple):
    """A pending write, its value by fingerprint; an empty one if the serializer cannot write it."""

    task_id: str
    channel: str
    value: bytes


class Seen(NamedTuple):
    """What is remembered of a checkpoint that was read: small, however large it was.

    Attributes:
        key: Its namespace and its id.
        parent_id: The id of its parent.
        versions: The version of each channel.
        rest: The fingerprint of all but the values and the writes, metadata included.
        values: The fingerprint of each channel's value.
        repeated: The delta channels that hold no value of their own here. LangGraph's savers differ in whether
            such a checkpoint shows the snapshot of an earlier one, as both rebuild the same value.
        writes: The pending writes, in order.
    """

    key: Key
    parent_id: str | None
    versions: Mapping[str, Any]
    rest: bytes
    values: Mapping[str, bytes]
    repeated: frozenset[str]
    writes: tuple[SeenWrite, ...]


def key_of(found: CheckpointTuple) -> Key:
    """Where a checkpoint stands."""
    conf = found.config["configurable"]
    return str(conf.get("checkpoint_ns") or ""), str(found.checkpoint["id"])


def parent_of(found: CheckpointTuple) -> str | None:
    """The id of a checkpoint's parent."""
    return found.parent_config["configurable"].get("checkpoint_id") if found.parent_config else None


def fingerprint(value: Any) -> bytes:
    """Equal for values that the serializer writes alike; empty if it cannot write this one."""
    try:
        tag, data = _serde.dumps_typed(value)
    except Exception:  # noqa: BLE001 - objects fail in ways of their own; they are compared part by part then
        return b""
    return xxh3_128_digest(tag.encode() + b"\0" + data)


def seen(found: CheckpointTuple) -> Seen:
    """What to remember of a checkpoint."""
    counters = found.metadata.get("counters_since_delta_snapshot")
    return Seen(
        key_of(found),
        parent_of(found),
        dict(found.checkpoint.get("channel_versions") or {}),
        fingerprint(_sorted(_rest(found))),
        {channel: fingerprint(value) for channel, value in found.checkpoint["channel_values"].items()},
        frozenset(counters) if isinstance(counters, Mapping) else frozenset(),
        tuple(SeenWrite(task, channel, fingerprint(value)) for task, channel, value in found.pending_writes or ()),
    )


def _rest(found: CheckpointTuple) -> dict[str, Any]:
    body = {name: value for name, value in found.checkpoint.items() if name != "channel_values" and value is not None}
    return {"parent": parent_of(found), "checkpoint": body, "metadata": dict(found.metadata)}


def _sorted(value: Any) -> Any:
    """The same with every dict in order: a database that keeps JSON does not keep the order of its keys."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def look_alike(left: Seen, right: Seen) -> bool:
    """Whether two checkpoints are the same by their fingerprints, their writes aside.

    If not, they may still be equal; `body_difference` tells.
    """
    if left.rest != right.rest or not left.rest:
        return False
    for channel in left.values.keys() | right.values.keys():
        here, there = left.values.get(channel), right.values.get(channel)
        if here is None or there is None:
            if channel not in left.repeated:
                return False
        elif here != there or not here:
            return False
    return True


def body_difference(left: CheckpointTuple, right: CheckpointTuple) -> str | None:
    """Where two checkpoints differ first, their writes aside; `None` if they are equal."""
    if (found := first_difference(_rest(left), _rest(right), "")) is not None:
        return found
    repeated = seen(left).repeated
    here, there = left.checkpoint["channel_values"], right.checkpoint["channel_values"]
    for channel in sorted(here.keys() | there.keys()):
        if channel not in here or channel not in there:
            if channel not in repeated:
                return f"channel {channel!r} has a value on one side only"
        elif (found := first_difference(here[channel], there[channel], f"channel {channel!r}")) is not None:
            return found
    return None


def missing_writes(source: Seen, there: Seen) -> tuple[bool, bool]:
    """Whether the destination lacks writes of the source, and whether it holds any that cannot be the source's.

    A write to a special channel that the source has, too, is no obstacle: it gives way to the newer one.
    """
    by_value = bool(all(write.value for write in (*source.writes, *there.writes)))
    ours, theirs = (
        Counter(write if by_value else write._replace(value=b"") for write in side.writes) for side in (source, there)
    )
    named = {(write.task_id, write.channel) for write in source.writes}
    foreign = any(
        write.channel not in WRITES_IDX_MAP or (write.task_id, write.channel) not in named for write in theirs - ours
    )
    return bool(ours - theirs), foreign


def _special_first(write: PendingWrite) -> tuple[str, int]:
    return write[0], WRITES_IDX_MAP.get(write[1], 0)


def writes_difference(left: CheckpointTuple, right: CheckpointTuple) -> str | None:
    """Where the pending writes of two checkpoints differ first; `None` if they are equal and in the same order."""
    here, there = list(left.pending_writes or ()), list(right.pending_writes or ())
    if len(here) != len(there):
        return f"{len(here)} and {len(there)} pending writes"
    if not _WRITES_ARE_SORTED:
        # Some of those savers list the special writes of a task where they came, others in front.
        here, there = (sorted(side, key=_special_first) for side in (here, there))
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        where = f"pending write {number} to {one[1]!r} of task {one[0]}"
        if one[:2] != other[:2]:
            return f"{where} is at another place"
        if (found := first_difference(one[2], other[2], where)) is not None:
            return found
    return None


def first_difference(left: Any, right: Any, where: str) -> str | None:
    """Where two values differ first, without showing them; `None` if they are the same."""
    if left is right or ((packed := fingerprint(left)) and packed == fingerprint(right)):
        return None
    if type(left) is not type(right):
        return f"{where or 'the checkpoint'} is {_kind(left)} in one and {_kind(right)} in the other"
    if isinstance(left, BaseException):
        return first_difference(left.args, right.args, f"{where}.args")
    if isinstance(left, Mapping):
        return _mapping_difference(left, right, where)
    if isinstance(left, Sequence | deque) and not isinstance(left, str | bytes | bytearray):
        if len(left) != len(right):
            return f"{where} has {len(left)} items in one and {len(right)} in the other"
        return _any(
            first_difference(one, other, f"{where}[{number}]")
            for number, (one, other) in enumerate(zip(left, right, strict=True))
        )
    if (parts := _parts(left)) is not None:
        return _mapping_difference(parts, _parts(right) or {}, where)
    return None if _is_equal(left, right) else f"{where} differs"


def _is_equal(left: Any, right: Any) -> bool:
    try:
        is_same = bool(left == right or (left != left and right != right))  # noqa: PLR0124 - not a number
    except Exception:  # noqa: BLE001 - comparing may fail in any way
        is_same = False
    return is_same or (not isinstance(left, AbstractSet) and repr(left) == repr(right))


def _mapping_difference(left: Mapping[Any, Any], right: Mapping[Any, Any], where: str) -> str | None:
    if left.keys() != right.keys():
        alone = min(map(str, left.keys() ^ right.keys()))
        return f"{where or 'the checkpoint'} has {alone!r} in one of them only"
    return _any(first_difference(left[key], right[key], f"{where}[{key!r}]" if where else str(key)) for key in left)


def _parts(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    kind: Any = type(value)
    if isinstance(value, type) or kind.__eq__ is not object.__eq__:
        return None
    slots = [name for name in getattr(kind, "__slots__", ()) if hasattr(value, name)]
    if slots:
        return {name: getattr(value, name) for name in slots}
    return dict(vars(value)) if hasattr(value, "__dict__") else None


def _any(found: Any) -> str | None:
    return next((each for each in found if each is not None), None)


def _kind(value: Any) -> str:
    return type(value).__name__
