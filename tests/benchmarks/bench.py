"""What every row needs: sizes, contenders, stopwatch, disk floor, grown threads. No row lives here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import AnyMessage

from tests.benchmarks.contenders import Contender, Saver
from tests.benchmarks.messages import conversation
from tests.benchmarks.state import ThreadState
from tests.benchmarks.timing import DiskFloor, Prepare, Stopwatch

#: Super-steps of one run while a thread is grown: like a real one, a grown thread is many runs long.
_STEPS_PER_TURN: Final = 12


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything a run measures."""

    small: int = 20
    middle: int = 500
    large: int = 5000
    small_rounds: int = 120
    middle_rounds: int = 60
    large_rounds: int = 40
    steps_per_thread: int = 10
    stored_turns: int = 500
    cold_rounds: int = 21
    parallel_writes: int = 100
    parallel_threads: int = 16
    parallel_rounds: int = 20
    history: int = 3000
    history_rounds: int = 60
    late_put: int = 5000
    late_window: int = 100
    memory_threads: int = 500
    memory_steps: int = 20
    block_rounds: int = 15
    agent_turns: int = 30
    agent_threads: int = 4
    healthy_rounds: int = 40
    tokens: int = 10_000
    stream_rounds: int = 7
    turn_rounds: int = 200
    inbox_rounds: int = 200
    fan_out: int = 200
    fan_out_rounds: int = 11
    steps: int = 10_000
    step_rounds: int = 100
    step_read_rounds: int = 21
    delta_steps: int = 1000
    delta_rounds: int = 60
    delta_read_rounds: int = 21
    resume_messages: int = 500
    resume_rounds: int = 9
    curve_messages: tuple[int, ...] = (5, 15, 50, 150, 500, 1500, 5000)
    curve_rounds: int = 21
    curve_turns: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500)


#: Small enough for a smoke test; the figures mean nothing.
QUICK: Final = Sizes(
    small=6,
    middle=20,
    large=60,
    small_rounds=4,
    middle_rounds=3,
    large_rounds=3,
    steps_per_thread=2,
    stored_turns=6,
    cold_rounds=2,
    parallel_writes=8,
    parallel_threads=4,
    parallel_rounds=2,
    history=24,
    history_rounds=2,
    late_put=40,
    late_window=10,
    memory_threads=5,
    memory_steps=4,
    block_rounds=2,
    agent_turns=2,
    agent_threads=1,
    healthy_rounds=2,
    tokens=60,
    stream_rounds=2,
    turn_rounds=2,
    inbox_rounds=2,
    fan_out=6,
    fan_out_rounds=1,
    steps=20,
    step_rounds=3,
    step_read_rounds=2,
    delta_steps=12,
    delta_rounds=3,
    delta_read_rounds=2,
    resume_messages=20,
    resume_rounds=1,
    curve_messages=(4, 12),
    curve_rounds=2,
    curve_turns=(1, 3),
)


@dataclass(slots=True)
class Grown:
    """A thread that already holds many messages; its `saver` only where the contender cannot reopen."""

    root: Path
    state: ThreadState
    saver: Saver | None


@dataclass(slots=True)
class Bench:
    """One benchmark run over a directory of its own.

    Attributes:
        root: Where everything is written; the file system whose speed is measured.
        contenders: Who takes part, in the order of the table.
        sizes: How much is measured.
        stopwatch: Times, or profiles, every measured call.
        floor: The disk's own cost, in the same directory.
    """

    root: Path
    contenders: Sequence[Contender]
    sizes: Sizes
    stopwatch: Stopwatch
    floor: DiskFloor
    _grown: dict[tuple[str, int], Grown] = field(default_factory=dict)
    _directories: int = 0

    def directory(self, label: str) -> Path:
        """A fresh path for one contender in one row; nothing is there yet."""
        self._directories += 1
        return self.root / f"{self._directories:03}-{label}"

    def interleave(
        self,
        prepared: dict[str, Prepare],
        *,
        rounds: int,
        floor: Callable[[], Any] | None = None,
    ) -> dict[str, list[float]]:
        """Time all contenders round by round, the disk floor among them unless a profiler runs."""
        if floor is not None and not self.stopwatch.profiling:
            prepared = prepared | {"floor": floor_round(floor)}
        return self.stopwatch.interleave(prepared, rounds=rounds)

    def grown(self, contender: Contender, size: int) -> Grown:
        """A thread of `size` messages that nobody else uses.

        Ours is grown message by message over many turns, because its layout on disk depends on how a
        state came about. A peer stores every state whole: one put of it all gives the same last
        checkpoint.
        """
        if not contender.reopens:
            return self._grow(contender, size)
        key = (contender.name, size)
        if key not in self._grown:
            self._grown[key] = self._grow(contender, size)
        kept = self._grown[key]
        root = self.directory(f"{contender.name}-copy")
        contender.copy(kept.root, root)
        return Grown(root, kept.state.clone(), None)

    def _grow(self, contender: Contender, size: int) -> Grown:
        messages = list(islice(conversation("grown"), size))
        root = self.directory(f"{contender.name}-grown-{size}")
        state = ThreadState("grown")
        saver = contender.open(root, durable=False)
        if contender.name == "ours":
            grow_by_steps(contender, saver, state, messages)
        else:
            state.start_with(saver, messages[:-1]).commit(saver)
            state.add_message(saver, messages[-1]).commit(saver)
        if not contender.reopens:
            return Grown(root, state, saver)
        contender.close(saver)
        return Grown(root, state, None)

    def following(self, size: int, count: int) -> list[AnyMessage]:
        """The next `count` messages of a thread grown to `size`."""
        return list(islice(conversation("grown"), size, size + count))


def grow_by_steps(contender: Contender, saver: Saver, state: ThreadState, messages: Sequence[AnyMessage]) -> None:
    """Add `messages` one super-step each, a dozen super-steps to a turn."""
    for begin in range(0, len(messages), _STEPS_PER_TURN):
        with contender.turn(saver, state.config) as config, state.run_under(config):
            for message in messages[begin : begin + _STEPS_PER_TURN]:
                state.add_message(saver, message).commit(saver)


def floor_round(call: Callable[[], Any]) -> Prepare:
    """The disk floor as one more contender of a row."""

    @contextmanager
    def prepare(number: int) -> Iterator[Callable[[], Any]]:
        yield call

    return prepare
