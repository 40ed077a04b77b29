"""Processes that are stopped and woken at random while all of them write to the same few threads: who is too late is
refused, and nobody else. How they write is in `zombie_writers`, what must hold in `zombie_verdict`.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from time import monotonic, perf_counter
from typing import Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.crash.figures import Figure, zero
from tests.crash.processes import PATIENCE_SECONDS, Child
from tests.crash.zombie_verdict import KINDS, Verdict, verdict_on
from tests.crash.zombie_writers import FIRST, PROCESSES, THREADS, Assignment, write_on

#: Writes that one process tries in a batch; each batch has a store of its own.
BATCH: Final = 600
#: Every so manieth batch waits for the disk.
SYNCED: Final = 8
#: Seconds between two stops, and for which one lasts, at most; a few last ten times as long.
GAP: Final = 0.006
STOPPED: Final = 0.03
#: At most so many are asleep at a time.
ASLEEP: Final = 2
#: Findings of one kind that are told; a thing that is wrong is often wrong a thousand times.
TOLD: Final = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How many writes, and which."""
    parser.add_argument("--writes", type=int, default=100_000, help="how many are tried, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, help="a directory for everything that is written, to look at it afterwards"
    )


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """As many batches as it takes."""
    begun, stops, number = perf_counter(), 0, 0
    counts: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        while counts["tried"] < options.writes:
            share = min(BATCH, -(-(options.writes - counts["tried"]) // PROCESSES))
            directory = (options.keep or Path(temporary)) / f"batch-{number}"
            assignment = Assignment(directory, f"{options.seed}, {number}", share, fsync=number % SYNCED == 0)
            more, verdict = run_batch(assignment)
            stops += more
            counts.update(verdict.counts)
            for each in verdict.wrong:
                wrong[each.kind] += 1
                if wrong[each.kind] <= TOLD:
                    findings.append(f"--seed {options.seed}, batch {number}: {each.kind}: {each.text}")
            number += 1
    seconds = perf_counter() - begun
    figures = [
        Figure("writes tried", counts["tried"]),
        Figure("writes accepted", counts["accepted"]),
        Figure("writes refused", counts["refused"]),
        Figure("turns opened", counts["opened"]),
        Figure("processes stopped and woken", stops),
        Figure("writes tried per second", counts["tried"] / seconds),
        *(zero(kind, wrong[kind]) for kind in KINDS),
    ]
    return figures, findings


def run_batch(assignment: Assignment) -> tuple[int, Verdict]:
    """Let four processes write, and stop and wake them; returns how often, and what must be said of it."""
    assignment.directory.mkdir(parents=True)
    _begin_threads(assignment)
    with ExitStack() as stack:
        children = [stack.enter_context(Child(write_on, assignment, who)) for who in range(PROCESSES)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell("go")
        stops = _disturb(children, Random(assignment.seed))
        for child in children:
            child.tell("leave")
            assert child.end() == 0
    return stops, verdict_on(assignment)


def _begin_threads(assignment: Assignment) -> None:
    """Give each thread a first checkpoint: who has read nothing at all cannot be told later that it has moved."""
    saver = TurnCheckpointSaver(assignment.store, fsync=assignment.fsync)
    for thread in THREADS:
        at: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        saver.put(at, {**empty_checkpoint(), "id": FIRST}, {}, {})


def _disturb(children: list[Child], random: Random, *, clock: Callable[[], float] = monotonic) -> int:
    """Stop and wake children until all of them have said that they are done."""
    writing, stops = set(range(len(children))), 0
    stopped: list[tuple[float, int]] = []
    last_word = clock()
    while writing:
        now = clock()
        assert now < last_word + 10 * PATIENCE_SECONDS, "nobody comes to an end"
        while stopped and stopped[0][0] <= now:
            children[heapq.heappop(stopped)[1]].wake()
        asleep = {number for _, number in stopped}
        if len(asleep) < ASLEEP and writing - asleep:
            victim = random.choice(sorted(writing - asleep))
            children[victim].stop()
            seconds = random.uniform(0, STOPPED) * (10 if random.random() < 0.02 else 1)
            heapq.heappush(stopped, (now + seconds, victim))
            stops += 1
        numbers = {children[number].fileno(): number for number in writing}
        for number in [numbers[fd] for fd in wait(list(numbers), random.uniform(0, GAP)) if isinstance(fd, int)]:
            assert children[number].hear() == "done"
            writing.discard(number)
            last_word = clock()
    for _, number in stopped:
        children[number].wake()
    return stops
