"""The list of rows, in the order of the table, and which group of measurements each comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmarks import eventloop, footprint, reading, writing
from tests.benchmarks.bench import Bench
from tests.benchmarks.results import Result


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that one function measures together.

    Attributes:
        keys: The rows it gives, in order.
        measure: Measures them.
        profiled: Whether its measured calls run where a profiler sees them: on the measuring thread.
    """

    keys: tuple[str, ...]
    measure: Callable[[Bench], list[Result]]
    profiled: bool = True


GROUPS: Final = (
    Group(("step-20",), writing.step_with_few),
    Group(("step-500",), writing.step_with_hundreds),
    Group(("step-5000",), writing.step_with_thousands),
    Group(("bytes", "blocks"), footprint.disk, profiled=False),
    Group(("cold-500",), reading.cold_hundreds),
    Group(("cold-5000",), reading.cold_thousands),
    Group(("writes-100",), writing.parallel_put_writes),
    Group(("latest-3000", "list-3000"), reading.after_long_history),
    Group(("put-5000",), writing.late_put),
    Group(("memory",), footprint.memory, profiled=False),
    Group(("loop",), eventloop.longest_block, profiled=False),
)

KEYS: Final = tuple(key for group in GROUPS for key in group.keys)


def groups_for(keys: Sequence[str]) -> list[Group]:
    """The groups that measure `keys`, in table order.

    Raises:
        ValueError: A key names no row; the message lists those that exist.
    """
    unknown = sorted(set(keys) - set(KEYS))
    if unknown:
        raise ValueError(f"no such row: {', '.join(unknown)}; rows are {', '.join(KEYS)}")
    return [group for group in GROUPS if set(group.keys) & set(keys)]
