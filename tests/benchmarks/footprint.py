"""Rows that weigh: bytes and blocks on disk, resident memory. Nothing is timed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from langgraph.checkpoint.sqlite import SqliteSaver

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import Contender
from tests.benchmarks.lane import Lane
from tests.benchmarks.messages import two_message_turns
from tests.benchmarks.results import Result, against_bound, against_peer
from tests.benchmarks.state import ThreadState

_MEMORY_BOUND_BYTES: Final = 60_000_000
_BLOCK_BYTES: Final = 512
_REPOSITORY: Final = Path(__file__).absolute().parents[2]


class DiskUse(NamedTuple):
    """What a directory takes, directories themselves included, as `du` counts it."""

    size_bytes: int
    blocks_bytes: int
    files: int


def disk_use(root: Path) -> DiskUse:
    """Sum over `root` and everything below it."""
    size = blocks = files = 0
    for directory, _, names in os.walk(root):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            found = os.lstat(path)
            size += found.st_size
            blocks += found.st_blocks * _BLOCK_BYTES
        files += len(names)
    return DiskUse(size, blocks, files)


def disk(bench: Bench) -> list[Result]:
    """What stays on disk of many short runs: two messages each, one super-step per message."""
    turns = bench.sizes.stored_turns
    used: dict[str, DiskUse] = {}
    notes = []
    for contender in (one for one in bench.contenders if one.reopens):
        root = bench.directory(f"{contender.name}-disk")
        open_use = _store_turns(contender, root, turns)
        closed_use = used[contender.name] = disk_use(root)
        notes.append(f"{contender.name} {open_use.size_bytes / 1e6:.2f} MB while open, {closed_use.files} files")
    note = "; ".join(notes)
    work = f"after {turns:,} two-message turns ({2 * turns:,} puts)"
    return [
        against_peer(
            "bytes",
            f"bytes {work}",
            {name: use.size_bytes for name, use in used.items()},
            times=150,
            target="150 x fewer",
            unit="bytes",
            note=f"after close, directories counted; {note}",
        ),
        against_peer(
            "blocks",
            f"disk blocks {work}",
            {name: use.blocks_bytes for name, use in used.items()},
            times=50,
            target="50 x fewer",
            unit="bytes",
        ),
    ]


def _store_turns(contender: Contender, root: Path, turns: int) -> DiskUse:
    """Run the turns and close; gives the use just before closing, a write-ahead log included."""
    with ExitStack() as stack:
        saver = contender.open(root)
        stack.callback(contender.close, saver)
        lane = Lane(contender, saver)
        stack.callback(lane.settle)
        state = ThreadState("disk")
        messages = two_message_turns("disk")
        for _ in range(turns):
            lane.enter(state)
            lane.add([next(messages), next(messages)])
        lane.settle()
        used = disk_use(root)
        if isinstance(saver, SqliteSaver):
            saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return used


def memory(bench: Bench) -> list[Result]:
    """Resident memory that many threads leave in one saver; each contender in its own process."""
    threads, steps = bench.sizes.memory_threads, bench.sizes.memory_steps
    grown = _resident_growth([one.name for one in bench.contenders], bench, threads, steps)
    return [
        against_bound(
            "memory",
            f"resident memory, {threads * steps:,} checkpoints over {threads:,} threads",
            grown,
            bound=_MEMORY_BOUND_BYTES,
            target="under 60 MB",
            note="growth over the start of the process that writes, saver still open"
            if grown
            else "not measured: needs /proc/self/status",
        )
    ]


def _resident_growth(names: Iterable[str], bench: Bench, threads: int, steps: int) -> dict[str, float]:
    if not Path("/proc/self/status").exists():
        return {}
    grown: dict[str, float] = {}
    with ExitStack() as stack:
        running: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            arguments = [name, str(bench.directory(f"{name}-memory")), str(threads), str(steps)]
            command = [sys.executable, "-m", "tests.benchmarks.resident", *arguments]
            process = subprocess.Popen(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True)
            running[name] = stack.enter_context(process)
        for name, process in running.items():
            answer, _ = process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"the memory process of {name} ended with status {process.returncode}")
            grown[name] = float(json.loads(answer)["grown_bytes"])
    return grown
