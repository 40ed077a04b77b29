"""The list of rows, in the order of the table, and which group of measurements each comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmarks import eventloop, fanout, footprint, guarded, reading, resuming, steps, streaming, turns, writing
from tests.benchmarks.bench import Bench
from tests.benchmarks.results import Result


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that one function measures together.

    Attributes:
        keys: The rows it gives, in order.
        measure: Measures them.
        profiled: Whether its measured calls run where a profiler sees them: on the measuring thread.
            Of an agent it sees nodes, callbacks and the guard, not the saves that LangGraph leaves to other threads.
    """

    keys: tuple[str, ...]
    measure: Callable[[Bench], list[Result]]
    profiled: bool = True


SAVER_GROUPS: Final = (
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

#: LangGraph saves from threads of its own, which no profiler of the measuring thread sees.
RUN_GROUPS: Final = (
    Group(("added", "added-attach", "added-middleware"), guarded.added_by_turn, profiled=False),
    Group(("fan-out",), fanout.wide_fan_out, profiled=False),
    Group(("steps-10000", "latest-10000", "list-10000"), steps.long_thread, profiled=False),
    Group(("delta-step", "delta-cold"), steps.delta_channel, profiled=False),
    Group(("resume", "resume-import", "resume-load"), resuming.fresh_process, profiled=False),
)

GUARD_GROUPS: Final = (
    Group(("attach-sync",), guarded.attached_agent_sync),
    Group(("attach",), guarded.attached_agent),
    Group(("middleware-sync",), guarded.agent_with_middleware_sync),
    Group(("middleware",), guarded.agent_with_middleware),
    Group(("healthy-attach", "healthy-middleware"), guarded.healthy_history),
    Group(("stream",), streaming.streamed_inside),
    Group(("stream-messages",), streaming.streamed_to_caller, profiled=False),
    Group(("turn-open", "turn-settle"), turns.turn_by_hand),
    Group(("inbox-post", "inbox-deliver"), turns.inbox),
)

GROUPS: Final = (*SAVER_GROUPS, *RUN_GROUPS, *GUARD_GROUPS)

#: Parts of the table that can be asked for by one name.
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(key for group in groups for key in group.keys)
    for name, groups in (("saver", SAVER_GROUPS), ("runs", RUN_GROUPS), ("guard", GUARD_GROUPS))
}

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
