"""A saver that counts what it is asked for, to know how many durable writes a run needs at least. Nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from langgraph.checkpoint.memory import InMemorySaver

from tests.benchmarks.floors import repeated, together
from tests.benchmarks.timing import DiskFloor


class Saves(NamedTuple):
    """How often something was saved.

    Attributes:
        checkpoints: Calls of `put`; each is a durable file at least.
        pending: Calls of `put_writes`; each is a durable append at least.
    """

    checkpoints: int
    pending: int

    def on(self, disk: DiskFloor, *, appends: int = 0) -> Callable[[], None]:
        """These writes on a disk, one after the other, and so many appends more."""
        return together(repeated(self.pending + appends, disk.append), repeated(self.checkpoints, disk.file))

    def text(self, *, appends: int = 0) -> str:
        """The same in words."""
        return f"{self.pending + appends} durable appends, {self.checkpoints} durable files"


class CountingSaver(InMemorySaver):
    """Keeps everything, and counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self._checkpoints = self._pending = 0

    @property
    def saves(self) -> Saves:
        """What there was until now."""
        return Saves(self._checkpoints, self._pending)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        self._checkpoints += 1
        return super().put(*args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        self._pending += 1
        super().put_writes(*args, **kwargs)
