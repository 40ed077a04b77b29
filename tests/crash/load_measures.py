"""What a process of the load measures of itself: how long calls take, its memory, its open files, what it has on disk.
Nothing is judged here.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import resource
import sys
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from langgraph_turncheckpoint import TurnCheckpointSaver

#: Steps of a histogram per doubling; a figure is exact to 2 %.
_PER_OCTAVE: Final = 32


class Spread:
    """How often something took how long, in a space that does not grow with how often."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.longest = 0.0

    @property
    def count(self) -> int:
        """How many there were."""
        return self._counts.total()

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[round(math.log2(max(seconds, 1e-7)) * _PER_OCTAVE)] += 1
        self.longest = max(self.longest, seconds)

    def merge(self, other: Spread) -> None:
        """Count those of another one."""
        self._counts.update(other._counts)
        self.longest = max(self.longest, other.longest)

    def quantile(self, share: float) -> float:
        """Seconds that this share of them did not exceed; 0 if there were none."""
        left = share * self.count
        for step, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                return float(2 ** (step / _PER_OCTAVE))
        return 0.0


class Timed(TurnCheckpointSaver):
    """Notes how long calls take, as their caller sees it: for an async one that includes the wait for a thread."""

    taken: deque[tuple[str, float]]

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = perf_counter()
        yield
        self.taken.append((name, perf_counter() - begun))

    def drain(self) -> dict[str, Spread]:
        """What was noted since the last time."""
        spreads: dict[str, Spread] = {}
        for _ in range(len(self.taken)):
            name, seconds = self.taken.popleft()
            spreads.setdefault(name, Spread()).add(seconds)
        return spreads


class TimedSync(Timed):
    """Notes the blocking calls."""

    def get_tuple(self, config: Any) -> Any:
        with self._timed("get_tuple"):
            return super().get_tuple(config)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed("put"):
            return super().put(*args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        with self._timed("put_writes"):
            super().put_writes(*args, **kwargs)


class TimedAsync(Timed):
    """Notes the async calls."""

    async def aget_tuple(self, config: Any) -> Any:
        with self._timed("get_tuple"):
            return await super().aget_tuple(config)

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed("put"):
            return await super().aput(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        with self._timed("put_writes"):
            await super().aput_writes(*args, **kwargs)


def timed_saver(path: Path, *, is_async: bool, fsync: bool) -> Timed:
    """A saver that notes how long the calls of one colour take."""
    saver = (TimedAsync if is_async else TimedSync)(path, fsync=fsync)
    saver.taken = deque()
    return saver


def resident_bytes() -> int:
    """The memory that this process holds now; where the system does not tell, the most it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class OpenFiles(NamedTuple):
    """The descriptors of a process: how many, and which of them are files of the store."""

    total: int
    in_store: list[str]
    outside: list[str]

    @property
    def others(self) -> int:
        """How many are not files of the store, which calls that are under way have open."""
        return len(self.outside)


def open_files(store: Path) -> OpenFiles:
    """What is open in this process now, after unreachable objects are gone."""
    gc.collect()
    here = next((path for path in ("/proc/self/fd", "/dev/fd") if os.path.isdir(path)), None)
    if here is None:
        return OpenFiles(0, [], [])
    names = os.listdir(here)
    targets = []
    for name in names:
        with contextlib.suppress(OSError):  # that of the listing itself, and what a call has closed since
            targets.append(os.readlink(os.path.join(here, name)))
    inside = [target for target in targets if f"{target}{os.sep}".startswith(f"{store}{os.sep}")]
    return OpenFiles(len(names), inside, [target for target in targets if target not in inside])


class Disk(NamedTuple):
    """What a directory takes: files, their bytes, the blocks of files and directories, and temporaries."""

    files: int
    size_bytes: int
    block_bytes: int
    temporaries: list[str]


def disk(root: Path) -> Disk:
    """Walk a directory; what is removed meanwhile is passed over."""
    files = size = blocks = 0
    temporaries = []
    for directory, _, names in os.walk(root):
        for name in ("", *names):
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                blocks += getattr(status, "st_blocks", 0) * 512
                if name:
                    files += 1
                    size += status.st_size
                if name.endswith(".tmp"):
                    temporaries.append(path)
    return Disk(files, size, blocks, temporaries)
