"""Rows that weigh: bytes and blocks on disk, resident memory. Nothing is timed here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final

from langgraph.checkpoint.memory import InMemorySaver

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import Contender
from tests.benchmarks.floors import stored_bytes
from tests.benchmarks.lane import Lane
from tests.benchmarks.messages import two_message_turns
from tests.benchmarks.results import Floor, Result, against_bound, against_peer
from tests.benchmarks.state import ThreadState
from tests.benchmarks.weighing import DiskUse

_MEMORY_BOUND_BYTES: Final = 60_000_000
_FILE_BLOCK_BYTES: Final = 4096
_REPOSITORY: Final = Path(__file__).absolute().parents[2]


def disk(bench: Bench) -> list[Result]:
    """What stays on disk of many short runs: two messages each, one super-step per message."""
    turns = bench.sizes.stored_turns
    used: dict[str, DiskUse] = {}
    notes = ["after close, directories counted; PostgreSQL without an empty database and without the server's log"]
    for contender in (one for one in bench.contenders if one.reopens):
        root = bench.directory(f"{contender.name}-disk")
        open_use = list(uses_after(contender, root, [turns]))[-1]
        closed_use = used[contender.name] = contender.disk_use(root)
        notes.append(f"{contender.name} {open_use.size_bytes / 1e6:.2f} MB while open, {closed_use.files} files")
    least_bytes, puts = _least_bytes(turns)
    work = f"after {turns:,} two-message turns ({2 * turns:,} puts)"
    return [
        against_peer(
            "bytes",
            f"bytes {work}",
            {name: use.size_bytes for name, use in used.items()},
            times=150,
            target="150 x fewer",
            unit="bytes",
            floor=Floor(least_bytes, "each message once, each checkpoint's ids, versions and metadata, packed"),
            note="; ".join(notes),
        ),
        against_peer(
            "blocks",
            f"disk blocks {work}",
            {name: use.blocks_bytes for name, use in used.items()},
            times=50,
            target="50 x fewer",
            unit="bytes",
            floor=Floor(puts * _FILE_BLOCK_BYTES, f"a block of {_FILE_BLOCK_BYTES:,} bytes for each of {puts:,} files"),
        ),
    ]


def uses_after(contender: Contender, root: Path, turns: Sequence[int], *, durable: bool = True) -> Iterator[DiskUse]:
    """The use after so many turns of one thread, for each of these numbers; then closes.

    What is given while the thread goes on includes a write-ahead log that is not written back.
    """
    with ExitStack() as stack:
        saver = contender.open(root, durable=durable)
        stack.callback(contender.close, saver)
        lane = Lane(contender, saver)
        stack.callback(lane.settle)
        state = ThreadState("disk")
        messages = two_message_turns("disk")
        for number in range(1, turns[-1] + 1):
            lane.enter(state)
            lane.add([next(messages), next(messages)])
            lane.settle()
            if number in turns:
                yield contender.disk_use(root)
        contender.write_back(saver)


def _least_bytes(turns: int) -> tuple[int, int]:
    """What the turns come to if each message is kept once, and how many checkpoints they are."""
    saver = InMemorySaver()
    state = ThreadState("disk")
    total = 0
    messages = list(islice(two_message_turns("disk"), 2 * turns))
    for message in messages:
        step = state.add_message(saver, message)
        total += stored_bytes(step.checkpoint, step.metadata, [message])
    return total, len(messages)


def memory(bench: Bench) -> list[Result]:
    """Resident memory that many threads leave in one saver; each contender in its own process."""
    threads, steps = bench.sizes.memory_threads, bench.sizes.memory_steps
    grown = _resident_growth(bench, threads, steps)
    return [
        against_bound(
            "memory",
            f"resident memory, {threads * steps:,} checkpoints over {threads:,} threads",
            grown,
            bound=_MEMORY_BOUND_BYTES,
            target="under 60 MB",
            note="growth over the start of the process that writes, saver still open; a server's memory is not in it"
            if grown
            else "not measured: needs /proc/self/status",
        )
    ]


def _resident_growth(bench: Bench, threads: int, steps: int) -> dict[str, float]:
    if not Path("/proc/self/status").exists():
        return {}
    grown: dict[str, float] = {}
    with ExitStack() as stack:
        running: dict[str, subprocess.Popen[str]] = {}
        for one in bench.contenders:
            name, root = one.name, bench.directory(f"{one.name}-memory")
            arguments = [name, str(one.server or ""), str(root), str(threads), str(steps)]
            command = [sys.executable, "-m", "tests.benchmarks.resident", *arguments]
            process = subprocess.Popen(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True)
            running[name] = stack.enter_context(process)
        for name, process in running.items():
            answer, _ = process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"the memory process of {name} ended with status {process.returncode}")
            grown[name] = float(json.loads(answer)["grown_bytes"])
    return grown
