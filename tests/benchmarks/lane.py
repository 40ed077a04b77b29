"""One contender at work on one thread at a time, inside a turn, as a run would be. Nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from langchain_core.messages import AnyMessage

from tests.benchmarks.bench import Bench, Grown
from tests.benchmarks.contenders import Contender, Saver
from tests.benchmarks.state import SuperStep, ThreadState

Call = Callable[[], Any]


class Lane:
    """A saver, the thread it is working on, and the turn that is open there."""

    def __init__(self, contender: Contender, saver: Saver) -> None:
        self.contender = contender
        self.saver = saver
        self.state = ThreadState("none")
        self._turn = ExitStack()

    def enter(self, state: ThreadState) -> None:
        """Settle the turn on the thread before, and open one on this."""
        self.settle()
        self.state = state
        config = self._turn.enter_context(self.contender.turn(self.saver, state.config))
        self._turn.enter_context(state.run_under(config))

    def reopen(self, root: Path) -> None:
        """Go on with a new saver over `root`."""
        self.settle()
        self.contender.close(self.saver)
        self.saver = self.contender.open(root)

    def settle(self) -> None:
        """End the open turn, if there is one."""
        self._turn.close()

    def add(self, messages: Iterable[AnyMessage]) -> None:
        """Super-steps nobody times."""
        for message in messages:
            self.state.add_message(self.saver, message).commit(self.saver)

    @contextmanager
    def super_step(self, message: AnyMessage) -> Iterator[Call]:
        """A round that times `put_writes` and `put` of one more message."""
        step = self.state.add_message(self.saver, message)
        yield lambda: step.commit(self.saver)

    @contextmanager
    def small_put(self, number: int) -> Iterator[Call]:
        """A round that times the `put` alone of a small state."""
        step: SuperStep = self.state.set_small(self.saver, number)
        yield lambda: step.put(self.saver)


@contextmanager
def open_lane(bench: Bench, contender: Contender, label: str, *, grown: Grown | None = None) -> Iterator[Lane]:
    """A lane over a fresh directory, or over a grown thread, entered and read as a run would."""
    saver = grown.saver if grown is not None and grown.saver is not None else None
    if saver is None:
        saver = contender.open(grown.root if grown is not None else bench.directory(f"{contender.name}-{label}"))
    lane = Lane(contender, saver)
    try:
        if grown is not None:
            lane.enter(grown.state)
            saver.get_tuple(grown.state.config)
        yield lane
    finally:
        lane.settle()
        contender.close(lane.saver)
