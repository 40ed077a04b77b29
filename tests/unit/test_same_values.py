"""When two checkpoints count as the same, and that a difference is named by its place and never shown."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_turncheckpoint._same_values import (
    body_difference,
    fingerprint,
    first_difference,
    look_alike,
    seen,
    writes_difference,
)


@dataclasses.dataclass
class Odd:
    """The serializer can write this one only if its content can be written."""

    content: Any


class Opaque:
    """Neither equal to anything but itself nor serializable."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Unequal:
    """Comparing it fails."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __repr__(self) -> str:
        return "unequal"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({3, 1, 2}, {1, 2, 3}),
        (float("nan"), float("nan")),
        ([HumanMessage("a", id="1")], [HumanMessage("a", id="1")]),
        (Opaque([1, {"a": Opaque(2)}]), Opaque([1, {"a": Opaque(2)}])),
        (Odd(Opaque(1)), Odd(Opaque(1))),
        (ValueError("a"), ValueError("a")),
        (_DeltaSnapshot([1]), _DeltaSnapshot([1])),
        (Unequal(), Unequal()),
        (deque([Opaque(1)]), deque([Opaque(1)])),
    ],
)
def test_same_values_have_no_difference(left, right):
    assert first_difference(left, right, "x") is None


@pytest.mark.parametrize(
    ("left", "right", "where"),
    [
        (1, 2, "x differs"),
        (1, True, "x is int in one and bool in the other"),
        ([1, [2, "secret"]], [1, [2, "other"]], "x[1][1] differs"),
        ([1], [1, 2], "x has 1 items in one and 2 in the other"),
        ({"a": 1}, {"a": 1, "b": 2}, "x has 'b' in one of them only"),
        ([HumanMessage("secret", id="1")], [HumanMessage("other", id="1")], "x[0]['content'] differs"),
        (HumanMessage("a", id="1"), AIMessage("a", id="1"), "x is HumanMessage in one and AIMessage in the other"),
        (Opaque({"a": 1}), Opaque({"a": 2}), "x['content']['a'] differs"),
        (Odd(Opaque(1)), Odd(Opaque(2)), "x['content']['content'] differs"),
        (ValueError("a"), ValueError("b"), "x.args[0] differs"),
        ({1, 2}, {1, 3}, "x differs"),
    ],
)
def test_a_difference_is_named_by_its_place_and_not_shown(left, right, where):
    assert first_difference(left, right, "x") == where


def test_what_the_serializer_cannot_write_has_no_fingerprint():
    assert fingerprint(Opaque(1)) == b""
    assert fingerprint([1]) == fingerprint([1]) != fingerprint([2])


def made(values: Any = None, writes: Any = (), parent: str | None = None, **metadata: Any) -> CheckpointTuple:
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "2024",
        "channel_values": {} if values is None else values,
        "channel_versions": {"a": "1"},
        "versions_seen": {},
    }
    parent_config: Any = {"configurable": {"checkpoint_id": parent}} if parent else None
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": "", "checkpoint_id": "1"}}
    return CheckpointTuple(config, checkpoint, metadata, parent_config, list(writes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left", "right", "difference"),
    [
        (made({"a": 1}), made({"a": 1}), None),
        (made({"a": {1: 2, 3: 4}}), made({"a": {3: 4, 1: 2}}), None),
        (made({"a": 1}), made({"a": 2}), "channel 'a' differs"),
        (made({"a": 1}), made(), "channel 'a' has a value on one side only"),
        (made(step=1), made(step=2), "metadata['step'] differs"),
        (made(parent="0"), made(), "parent is str in one and NoneType in the other"),
        (made({"a": Opaque(1)}), made({"a": Opaque(1)}), None),
    ],
)
def test_bodies_are_compared_by_value(left, right, difference):
    assert body_difference(left, right) == difference
    if difference is not None:
        assert not look_alike(seen(left), seen(right))
    assert look_alike(seen(made({"a": 1})), seen(made({"a": 1})))


def test_a_repeated_snapshot_of_a_delta_channel_is_no_difference():
    counters = {"a": [0, 1]}
    one = made({"a": _DeltaSnapshot([1])}, counters_since_delta_snapshot=counters)
    other = made(counters_since_delta_snapshot=counters)
    assert look_alike(seen(one), seen(other))
    assert body_difference(one, other) is None
    assert body_difference(made({"a": _DeltaSnapshot([1])}), made()) == "channel 'a' has a value on one side only"


@pytest.mark.parametrize(
    ("left", "right", "difference"),
    [
        ([], [], None),
        ([("t", "a", 1)], [("t", "a", 1)], None),
        ([("t", "a", 1)], [], "1 and 0 pending writes"),
        ([("t", "a", 1)], [("t", "a", 2)], "pending write 0 to 'a' of task t differs"),
        ([("t", "a", 1)], [("t", "b", 1)], "pending write 0 to 'a' of task t is at another place"),
        ([("t", "a", 1), ("t", "a", 2)], [("t", "a", 2), ("t", "a", 1)], "pending write 0 to 'a' of task t differs"),
    ],
)
def test_writes_are_compared_in_order(left, right, difference):
    assert writes_difference(made(writes=left), made(writes=right)) == difference
