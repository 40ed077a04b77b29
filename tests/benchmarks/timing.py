"""Stopwatch and disk floor: how long calls take, interleaved, and what the disk asks. Knows no savers.

Machine noise comes in waves of seconds. Contenders are therefore timed round by round, in rotating
order, and the floor takes its turn among them: a slow moment of the disk hits all alike.
"""

from __future__ import annotations

import cProfile
import gc
import os
import pstats
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any, Final

#: One round of one contender: entered untimed, gives the call to time, clears up untimed.
Round = AbstractContextManager[Callable[[], Any]]
Prepare = Callable[[int], Round]

_PAGE: Final = 4096
_RECORD: Final = 1024
_sync_data: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


class Stopwatch:
    """Times calls of several contenders, or profiles the calls of one."""

    def __init__(self, *, profile: bool = False) -> None:
        self._profiler = cProfile.Profile() if profile else None
        self._timed = 0

    @property
    def profiling(self) -> bool:
        """Whether times are distorted because each call runs under a profiler."""
        return self._profiler is not None

    def time(self, call: Callable[[], Any]) -> float:
        """Seconds that `call` took; what it gave back is released after the clock has stopped."""
        if self._profiler is not None:
            self._profiler.enable()
        begun = perf_counter()
        kept = call()
        took = perf_counter() - begun
        self._timed += 1
        if self._profiler is not None:
            self._profiler.disable()
        del kept
        return took

    def interleave(self, prepared: Mapping[str, Prepare], *, rounds: int) -> dict[str, list[float]]:
        """Seconds per contender and round. Each round times every contender once, in rotating order."""
        names = list(prepared)
        taken: dict[str, list[float]] = {name: [] for name in names}
        gc.collect()
        for number in range(rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                with prepared[name](number) as call:
                    taken[name].append(self.time(call))
        return taken

    def print_profile(self, *, top: int) -> None:
        """The functions that took longest by themselves, then those that took longest in total."""
        if self._profiler is None:
            raise ValueError("this stopwatch was not made to profile")
        sys.stdout.write(f"{self._timed} timed calls, profiled:\n")
        for order in ("tottime", "cumulative"):
            pstats.Stats(self._profiler).strip_dirs().sort_stats(order).print_stats(top)


def medians(taken: Mapping[str, Iterable[float]]) -> dict[str, float]:
    """The p50 of each contender, in seconds."""
    return {name: median(values) for name, values in taken.items()}


class DiskFloor:
    """The two cheapest durable writes a directory allows; a durable saver needs one of them per call."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._number = 0
        self._page = os.urandom(_PAGE)
        self._record = os.urandom(_RECORD)
        self._directory = os.open(root, os.O_RDONLY)
        self._log = os.open(root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __enter__(self) -> DiskFloor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._directory)
        os.close(self._log)

    def file(self) -> None:
        """A durable atomic file: 4 KiB under a temporary name, flushed, renamed, directory flushed."""
        self._number += 1
        temporary = self._root / "temporary"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, self._page)
            _sync_data(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, self._root / f"file-{self._number}")
        os.fsync(self._directory)

    def append(self) -> None:
        """A durable append: 1 KiB to an open file, flushed."""
        os.write(self._log, self._record)
        _sync_data(self._log)

    def removal(self) -> None:
        """A durable removal of a file: unlinked, directory flushed. The file was made by `file`."""
        os.unlink(self._root / f"file-{self._number}")
        self._number -= 1
        os.fsync(self._directory)

    def super_step(self) -> None:
        """What `put_writes` and `put` need at least: one append, one atomic file."""
        self.append()
        self.file()
