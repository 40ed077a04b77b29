"""Lab `soak`: the load for as long as it is given, with agents under the guard and their inboxes, and with workers that
are killed now and then and replaced.

Each thread is deleted after some visits and begun again, so the directory stays as large as it is after the first
minutes. One half of the workers is never killed, so that their memory can be told. Memory, open files and disk are told
for each interval while it runs; what is asked at the end is what is asked of the load.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
from multiprocessing.connection import wait
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.crash.figures import Figure, zero
from tests.crash.load import FINDINGS_LIMIT, Hand, Schedule, Total, common_figures, directory, setups
from tests.crash.load_measures import disk
from tests.crash.load_threads import Plan, WrongReadError, configured
from tests.crash.load_upkeep import look_after
from tests.crash.load_worker import LANES, Job, Report, Setup, tuple_standing, work

#: Visits of one life of a thread.
LIFE_VISITS: Final = 8


class Interval(NamedTuple):
    """What was measured at the end of one."""

    seconds: float
    steps: int
    resident: int
    files: int
    blocks: int

    def __str__(self) -> str:
        return (
            f"{self.seconds:7.0f} s  {self.steps:10,} super-steps  largest worker {self.resident / 1e6:7.1f} MB  "
            f"{self.files:8,} files  {self.blocks / 1e6:8.1f} MB on disk"
        )


class Soak:
    """A load that goes on until it is told to stop."""

    def __init__(self, store: Path, options: argparse.Namespace, total: Total) -> None:
        self.plan = Plan(options.threads, 0, LIFE_VISITS)
        self._given = setups(store, self.plan, options.workers, seed=options.seed, fsync=not options.no_fsync)
        self._given = [setup._replace(kills=options.kill_every > 0) for setup in self._given]
        self._store, self._options, self.total = store, options, total
        self.schedule = Schedule(self.plan, options.workers, guarded=options.guarded)
        self._rng = random.Random(options.seed)
        self.kills = 0
        self.intervals: list[Interval] = []
        self.hands: list[Hand] = []  # all there ever were

    def run(self, seconds: float) -> None:
        """Go on for some time, and end every visit that has begun."""
        begun, options = perf_counter(), self._options
        due_kill, due_look = options.kill_every or float("inf"), options.interval
        with contextlib.ExitStack() as stack:
            self._stack = stack
            alive = [self._start(setup) for setup in self._given]
            upkeep = self._enter(Hand(look_after, self._given[0]))
            upkeep.give(Job("upkeep"))
            # On a busy machine a short soak is over before a worker has done anything: one kill there always is.
            while (elapsed := perf_counter() - begun) < seconds or (options.kill_every and not self.kills):
                self._give(alive)
                self._take([*alive, upkeep], timeout=0.5)
                if elapsed > due_kill and self.total.steps:
                    # The memory of the others, which live to the end, is what is told.
                    place = self._rng.randrange(len(alive) // 2, len(alive))
                    alive[place] = self._replaced(alive[place])
                    due_kill = elapsed + options.kill_every * self._rng.uniform(0.5, 1.5)
                if not upkeep.jobs:
                    last = upkeep.last.kind if upkeep.last is not None else "verify"
                    kind = "verify" if last == "upkeep" else "upkeep"
                    upkeep.give(Job(kind, all_visited=self.schedule.all_visited))  # type: ignore[arg-type]
                if elapsed > due_look:
                    self._look(alive[: max(1, len(alive) // 2)], elapsed)
                    due_look = elapsed + options.interval
            self._wind_up(alive)
            for hand in (*alive, upkeep):
                hand.dismiss(self.total)

    def _wind_up(self, alive: list[Hand]) -> None:
        """End what has begun, what a killed worker had begun, and what it may have left of contended threads."""
        unfinished = [job for job in self.schedule.ready if job.again]
        self.schedule.ready.clear()
        self.schedule.ready.extend([*unfinished, Job("contended")])
        while self.schedule.ready or any(hand.jobs for hand in alive):
            self._give(alive)
            self._take([hand for hand in alive if hand.jobs], timeout=0.5, go_on=False)

    def _start(self, setup: Setup) -> Hand:
        return self._enter(Hand(work, setup))

    def _enter(self, hand: Hand) -> Hand:
        self.hands.append(hand)
        return self._stack.enter_context(hand)

    def _replaced(self, hand: Hand) -> Hand:
        """Kill a worker; another one does again what it was doing."""
        hand.kill()
        self.kills += 1
        with contextlib.suppress(EOFError, OSError):  # the last word may have been cut off
            while hand.connection.poll():
                self._done(hand.take(self.total))  # said before it died
        self.schedule.ready.extendleft(job._replace(again=True) for job in hand.jobs)
        hand.jobs.clear()
        return self._start(hand.setup)

    def _give(self, alive: list[Hand]) -> None:
        for hand in sorted(alive, key=lambda hand: len(hand.jobs)):
            while self.schedule.ready and len(hand.jobs) < LANES:
                hand.give(self.schedule.next())

    def _take(self, hands: list[Hand], *, timeout: float, go_on: bool = True) -> None:
        heard = wait([hand.connection for hand in hands], timeout)
        for hand in hands:
            if hand.connection in heard:
                self._done(hand.take(self.total), go_on=go_on)

    def _done(self, report: Report, *, go_on: bool = True) -> None:
        job = report.job
        if job is not None and job.kind in ("visits", "guarded"):
            self.schedule.done(job)
            if not go_on:
                self.schedule.ready.pop()

    def _look(self, spared: list[Hand], elapsed: float) -> None:
        resident = max((hand.memory[-1][1] for hand in spared if hand.memory), default=0)
        left = disk(self._store)
        self.intervals.append(Interval(elapsed, self.total.steps, resident, left.files, left.block_bytes))
        sys.stdout.write(f"{self.intervals[-1]}\n")
        sys.stdout.flush()


def check_end(store: Path, soak: Soak) -> int:
    """Look at every thread with a saver that has seen nothing of it; returns how many are lost."""
    saver, lost = TurnCheckpointSaver(store, strict=True), 0
    for number in range(soak.plan.threads):
        thread_id, visit = soak.plan.name(number), soak.schedule.visited(number)
        if visit == 0:
            continue
        with soak.total.noting(f"end, thread {number}"):
            must_be = soak.plan.reached(number, visit)
            found = saver.get_tuple(configured(thread_id))
            lost += found is None
            soak.total.reads += 1
            if tuple_standing(thread_id, found) != must_be:
                raise WrongReadError(f"{thread_id!r} ends at {tuple_standing(thread_id, found)}, and must at {must_be}")
    return lost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long, how much at once."""
    parser.add_argument("--hours", type=float, default=1.0, help="how long")
    parser.add_argument("--threads", type=int, default=1_000, help="LangGraph threads, each deleted now and then")
    parser.add_argument("--guarded", type=int, default=40, help="threads of agents under the guard")
    parser.add_argument("--workers", type=int, default=4, help=f"processes, each with {LANES} OS threads or tasks")
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds from kill to kill; 0 for none")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds from line to line")
    parser.add_argument("--seed", type=int, default=0, help="chooses who is read, pruned, deleted and killed")
    parser.add_argument("--no-fsync", action="store_true", help="do not wait for the disk")
    parser.add_argument("--directory", type=Path, help="work below this directory, to choose the disk")


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Soak for the time that is given; see the module."""
    total, seconds = Total(), options.hours * 3600
    with directory(options.directory) as work_directory:
        store = work_directory / "store"
        soak = Soak(store, options, total)
        soak.run(seconds)
        steps = total.steps
        lost = check_end(store, soak)
        figures = common_figures(total, soak.hands, store)
    figures = [
        Figure("seconds", seconds),
        Figure("super-steps stored", steps),
        Figure("workers killed and replaced", soak.kills),
        zero("threads lost", lost),
        *_flatness(soak.intervals),
        *figures,
    ]
    return figures, total.findings[:FINDINGS_LIMIT]


def _flatness(intervals: list[Interval]) -> list[Figure]:
    """How much more there is in the last quarter of the run than in the second one."""
    quarter = len(intervals) // 4
    if not quarter:
        return []
    early, late = intervals[quarter : 2 * quarter], intervals[-quarter:]
    return [
        Figure(f"{name}, last quarter by second quarter", _median(late, key) / max(1.0, _median(early, key)))
        for name, key in (("files", "files"), ("disk blocks", "blocks"), ("memory of the largest worker", "resident"))
    ]


def _median(intervals: list[Interval], key: str) -> float:
    return float(statistics.median(getattr(interval, key) for interval in intervals))
