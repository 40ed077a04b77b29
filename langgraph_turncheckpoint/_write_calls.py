"""The calls of `put_writes` that give pending writes back their places. A saver keys a write by task and position in
the list it came in, and sorts by the task's path; a listing shows neither. No saver is called here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, PendingWrite


class WriteKey(NamedTuple):
    """Where a write stands, as its saver keeps it."""

    task_path: str
    task_id: str
    position: int
    channel: str


class WriteCall(NamedTuple):
    """One call of `put_writes`."""

    task_id: str
    task_path: str
    writes: list[tuple[str, Any]]


class _Placed(NamedTuple):
    task_path: str
    task_id: str
    position: int
    channel: str
    value: Any

    @property
    def write(self) -> tuple[str, Any]:
        return self.channel, self.value


def write_calls(writes: Sequence[PendingWrite], keys: Sequence[WriteKey] | None) -> list[WriteCall]:
    """The calls that store `writes` so that they come back in the same order.

    Args:
        writes: Pending writes as a listing gives them.
        keys: Where they stand, in any order; `None` if the saver does not tell. Paths and positions are exact with
            it, except that a position is lost where the ones before it were never stored and nothing of the task's
            can stand in for them. Without it the order is kept by paths that count.
    """
    placed = _placed(writes, keys) if keys is not None else None
    by_task: dict[str, list[_Placed]] = defaultdict(list)
    for each in _counted(writes) if placed is None else placed:
        by_task[each.task_id].append(each)
    return [call for task in by_task.values() for call in _calls_of_task(task)]


def _placed(writes: Sequence[PendingWrite], keys: Sequence[WriteKey]) -> list[_Placed] | None:
    """Each write with its key; `None` if they do not fit, because something was written in between."""
    waiting: dict[tuple[str, str], deque[WriteKey]] = defaultdict(deque)
    for key in sorted(keys):
        waiting[key.task_id, key.channel].append(key)
    if len(keys) != len(writes) or any(not waiting[task_id, channel] for task_id, channel, _ in writes):
        return None
    found = []
    for task_id, channel, value in writes:
        if not waiting[task_id, channel]:
            return None
        key = waiting[task_id, channel].popleft()
        found.append(_Placed(key.task_path, task_id, key.position, channel, value))
    return found


def _counted(writes: Sequence[PendingWrite]) -> Iterator[_Placed]:
    """Places made up so that sorting by them gives the order in which the writes came."""
    tasks = [write[0] for write in writes]
    by_id = tasks == sorted(tasks)  # then it is the order of tasks without a path, which need none
    next_position: dict[str, int] = defaultdict(int)
    row, before = -1, None
    for task_id, channel, value in writes:
        row += task_id != before
        before = task_id
        position = WRITES_IDX_MAP.get(channel)
        if position is None:
            position = next_position[task_id]
            next_position[task_id] += 1
        yield _Placed("" if by_id else f"{row:06}", task_id, position, channel, value)


def _calls_of_task(placed: list[_Placed]) -> Iterator[WriteCall]:
    special = [each for each in placed if each.position < 0]
    ordinary = [each for each in placed if each.position >= 0]
    yield from _grouped(special)
    stored: dict[int, tuple[str, Any]] = {}
    stood_in = False
    # One call for each stretch of the same path, in the order of the positions.
    for path, group in groupby(sorted(ordinary, key=lambda each: each.position), key=lambda each: each.task_path):
        own = {each.position: each.write for each in group}
        row: list[tuple[str, Any]] = []
        for position in range(max(own) + 1):
            # What is stored already under a position stays, and a special write has a place of its own: neither
            # does anything but fill the gap.
            write = own.get(position) or stored.get(position)
            if write is None and special:
                write, stood_in = special[0].write, True
            if write is not None:
                row.append(write)
        stored |= own
        yield WriteCall(placed[0].task_id, path, row)
    if stood_in:
        yield from _grouped(special)  # some savers took over the path of the list it filled


def _grouped(special: list[_Placed]) -> Iterator[WriteCall]:
    by_path: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for each in special:
        by_path[each.task_path].append(each.write)
    for path, writes in by_path.items():
        yield WriteCall(special[0].task_id, path, writes)
