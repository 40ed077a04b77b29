"""Writes get their places back: replayed into a model of what savers do, they are keyed and sorted as before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base import WRITES_IDX_MAP

from langgraph_turncheckpoint._write_calls import WriteKey, write_calls


def replayed(calls: list[Any], *, keeps_path: bool = False) -> list[tuple[str, str, int, str, Any]]:
    """What a saver holds after the calls, in LangGraph's order.

    Args:
        calls: The calls.
        keeps_path: Whether a special write that is replaced keeps the path it had, as in PostgreSQL.
    """
    held: dict[tuple[str, int], tuple[str, str, Any]] = {}
    for task_id, path, writes in calls:
        for position, (channel, value) in enumerate(writes):
            key = task_id, WRITES_IDX_MAP.get(channel, position)
            if key in held and key[1] >= 0:
                continue
            held[key] = (held[key][0] if keeps_path and key in held else path), channel, value
    return sorted((path, task, position, channel, value) for (task, position), (path, channel, value) in held.items())


def both(places: list[tuple[str, str, int, str, Any]]) -> tuple[Any, Any]:
    ordered = sorted(places)
    writes = [(task, channel, value) for _, task, _, channel, value in ordered]
    return writes, [WriteKey(path, task, position, channel) for path, task, position, channel, _ in ordered]


@pytest.mark.parametrize("keeps_path", [False, True])
@pytest.mark.parametrize(
    "places",
    [
        [],
        [("~a", "t", 0, "x", 1), ("~a", "t", 1, "x", 2), ("~a", "t", 2, "y", 3)],
        [("", "t", -4, "__resume__", 1), ("~a", "t", 0, "x", 1)],
        [("", "t", -4, "__resume__", 1), ("~a", "t", 1, "x", 1), ("~a", "t", 3, "x", 2)],
        [("~a", "t", 0, "x", 0), ("~b", "t", 1, "x", 1), ("~b", "t", 2, "x", 2)],
        [("~b", "s", 0, "x", 0), ("~a", "t", 0, "x", 1), ("~a", "t", -1, "__error__", "no")],
        [("~a", "t", -3, "__interrupt__", 1), ("", "t", -4, "__resume__", 2), ("~a", "t", 2, "x", 3)],
    ],
)
def test_paths_and_positions_come_back(places, keeps_path):
    assert replayed(write_calls(*both(places)), keeps_path=keeps_path) == sorted(places)


def test_a_gap_that_nothing_can_fill_closes_and_the_order_stays():
    places = [("~a", "t", 1, "x", 1), ("~a", "t", 4, "x", 2)]
    assert replayed(write_calls(*both(places))) == [("~a", "t", 0, "x", 1), ("~a", "t", 1, "x", 2)]


def test_keys_that_do_not_fit_are_not_used():
    writes = [("t", "x", 1), ("t", "x", 2)]
    for keys in ([WriteKey("~a", "t", 0, "x")], [WriteKey("~a", "t", 0, "x"), WriteKey("~a", "t", 1, "y")]):
        assert replayed(write_calls(writes, keys)) == [("", "t", 0, "x", 1), ("", "t", 1, "x", 2)]


SPECIAL = sorted(WRITES_IDX_MAP)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.one_of(st.sampled_from(["x", "y"]), st.sampled_from(SPECIAL))), max_size=12
    )
)
def test_without_keys_writes_keep_their_order(pairs):
    """As a saver lists them: the special writes of a task before its others, each special channel once."""
    writes: list[Any] = []
    for number, (task, channel) in enumerate(pairs):
        if channel not in SPECIAL or all(write[:2] != (task, channel) for write in writes):
            writes.append((task, channel, number))
    runs: list[list[Any]] = []
    for write in writes:
        if not runs or runs[-1][0][0] != write[0]:
            runs.append([])
        runs[-1].append(write)
    listed = [
        write
        for run in runs
        for write in sorted(run, key=lambda write: (WRITES_IDX_MAP.get(write[1], 0), run.index(write)))
    ]
    found = [(task, channel, value) for _, task, _, channel, value in replayed(write_calls(listed, None))]
    assert found == listed


@given(st.data())
def test_with_keys_every_place_that_a_saver_can_hold_comes_back(data):
    places = []
    for task in data.draw(st.lists(st.sampled_from("abc"), unique=True)):
        length = data.draw(st.integers(0, 5))
        places += [
            (data.draw(st.sampled_from(["", "~p"])), task, position, "x", position) for position in range(length)
        ]
        for channel in data.draw(st.lists(st.sampled_from(SPECIAL), unique=True)):
            places.append((data.draw(st.sampled_from(["", "~p"])), task, WRITES_IDX_MAP[channel], channel, 0))
    calls = write_calls(*both(places))
    assert replayed(calls) == sorted(places)
    assert replayed([*calls, *calls]) == sorted(places)
