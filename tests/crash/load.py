"""Lab `load`: many threads visited by many processes in one directory, with readers, prune, delete, list, verify and
counting at the same time.

Each visit is a real LangGraph run of five super-steps that starts where some other process left the thread. All that is
read meanwhile is checked, and at the end each thread must hold exactly its messages. Memory and open files are those
of the workers, LangGraph included.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.crash.figures import Figure, zero
from tests.crash.load_guarded import GUARDED
from tests.crash.load_measures import Spread, disk
from tests.crash.load_threads import (
    CONTENDED,
    STEPS_A_VISIT,
    Plan,
    WrongReadError,
    check_falling,
    configured,
)
from tests.crash.load_upkeep import look_after
from tests.crash.load_worker import LANES, Job, Report, Setup, tuple_standing, work
from tests.crash.processes import Child

#: Threads in a job, at most: a hundred super-steps, so that handing out jobs costs nothing.
THREADS_A_JOB: Final = 20
#: Findings that are printed.
FINDINGS_LIMIT: Final = 40


@dataclass
class Total:
    """What all reports add up to."""

    runs: int = 0
    reads: int = 0
    refused: int = 0
    told: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    spreads: dict[str, Spread] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Checkpoints stored."""
        return self.spreads["put"].count if "put" in self.spreads else 0

    def add(self, report: Report) -> None:
        """Count what a process has told."""
        self.runs, self.reads = self.runs + report.runs, self.reads + report.reads
        self.refused += report.refused
        self.told.update(report.told)
        self.errors.update(report.errors)
        self.findings += report.findings
        for name, spread in report.spreads.items():
            self.spreads.setdefault(name, Spread()).merge(spread)

    @contextlib.contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """What goes wrong inside is counted like the workers' own errors."""
        report = Report()
        with report.noting(what):
            yield
        self.add(report)


class Hand(Child):
    """A process of the load, and what it told of itself.

    Attributes:
        target: What it runs.
        setup: What it was told at its start.
        jobs: What it is doing.
        last: What it did last.
        memory: How many super-steps all of them had stored, and its memory then.
        files: Its open files after its first job, and at its end.
        peak: The most memory it ever held.
        cpu: Seconds of processor time it has used, once it has ended.
        has_ended: Whether it has ended in order.
    """

    def __init__(self, target: Any, setup: Setup) -> None:
        super().__init__(target, setup)
        self.target, self.setup = target, setup
        self.jobs: list[Job] = []
        self.memory: list[tuple[int, int]] = []
        self.files: list[Any] = []
        self.last: Job | None = None
        self.peak, self.cpu = 0, 0.0
        self.has_ended = False

    def give(self, job: Job | None) -> None:
        """Let it do a job; `None` lets it end."""
        if job is not None:
            self.jobs.append(job)
        self.tell(job)

    def take(self, total: Total) -> Report:
        """Wait for a report, and count it."""
        report: Report = self.hear()
        if report.job is not None:
            self.jobs.remove(report.job)
            self.last = report.job
        total.add(report)
        self.memory.append((total.steps, report.resident))
        self.peak = max(self.peak, report.peak, report.resident)
        self.cpu, self.has_ended = report.cpu, report.job is None
        if report.files is not None:
            self.files.append(report.files)
        return report

    def dismiss(self, total: Total) -> None:
        """Take its last word, however long what it does takes."""
        self.give(None)
        while not self.has_ended:
            wait([self.connection])
            self.take(total)
        self.end()

    @property
    def connection(self) -> Any:
        """What can be waited for."""
        return self._connection

    @property
    def growth(self) -> tuple[int, float]:
        """Bytes it has grown from the second quarter of the run to the end, and in which ratio."""
        last = self.memory[-1][0]
        early = [size for steps, size in self.memory if last / 4 <= steps <= last / 2]
        late = [size for steps, size in self.memory if steps >= last * 7 / 8]
        if not early or not late:
            return 0, 1.0
        before, after = statistics.median(early), statistics.median(late)
        return int(after - before), after / before


class Schedule:
    """Which job is next: a thread's next visit is given out once the one before is over."""

    def __init__(self, plan: Plan, workers: int, *, guarded: int = 0) -> None:
        self._plan = plan
        self._size = max(1, min(THREADS_A_JOB, plan.threads // (workers * LANES * 4)))
        self._visited: dict[tuple[Any, int], int] = {}
        self.ready: deque[Job] = deque()
        for kind, threads in (("visits", plan.threads), ("guarded", guarded)):
            for first in range(0, threads, self._size):
                self._visited[kind, first] = 0
                count = min(self._size, threads - first)
                self.ready.append(Job(kind, first, count, is_last=plan.visits == 1))  # type: ignore[arg-type]

    @property
    def all_visited(self) -> int:
        """How many visits every thread has had."""
        return min(count for (kind, _), count in self._visited.items() if kind == "visits")

    def visited(self, number: int) -> int:
        """How many visits of a thread are over."""
        return self._visited["visits", number - number % self._size]

    @property
    def jobs(self) -> int:
        """How many jobs there are in all, if the number of visits is known."""
        return len(self._visited) * self._plan.visits

    def next(self) -> Job:
        """The next job."""
        return self.ready.popleft()._replace(all_visited=self.all_visited)

    def done(self, job: Job) -> None:
        """A job is done; its threads may be visited again."""
        visit = self._visited[job.kind, job.first] = job.visit + 1
        if not self._plan.visits or visit < self._plan.visits:
            is_last = visit + 1 == self._plan.visits
            self.ready.append(job._replace(visit=visit, again=False, is_last=is_last))


def setups(store: Path, plan: Plan, workers: int, *, seed: int, fsync: bool) -> list[Setup]:
    """What each worker is told: every other one is of OS threads, the others are of asyncio tasks."""
    return [Setup(store, plan, "async" if n % 2 else "sync", seed, fsync) for n in range(workers)]


def visit_all(plan: Plan, given: list[Setup], total: Total) -> list[Hand]:
    """Let workers make every visit of a plan, with upkeep beside them; returns them when they have ended."""
    schedule = Schedule(plan, len(given))
    jobs = schedule.jobs
    with contextlib.ExitStack() as stack:
        hands = [stack.enter_context(Hand(work, setup)) for setup in given]
        upkeep = stack.enter_context(Hand(look_after, given[0]))
        upkeep.give(Job("upkeep"))
        done, looked_after = 0, set[str]()
        while done < jobs or looked_after != {"upkeep", "verify"}:
            for hand in sorted(hands, key=lambda hand: len(hand.jobs)):
                while schedule.ready and len(hand.jobs) < LANES:
                    hand.give(schedule.next())
            heard = wait([hand.connection for hand in (*hands, upkeep)])
            for hand in hands:
                if hand.connection in heard:
                    schedule.done(hand.take(total).job)  # type: ignore[arg-type]
                    done += 1
            if upkeep.connection in heard:
                kind = upkeep.take(total).job.kind  # type: ignore[union-attr]
                looked_after.add(kind)
                # Once at any rate; later not so late that everybody would wait for it.
                is_time = kind == "upkeep" and (done < jobs * 0.7 or "verify" not in looked_after)
                upkeep.give(Job("verify" if is_time else "upkeep", all_visited=schedule.all_visited))
        for hand in (*hands, upkeep):
            hand.dismiss(total)
    return [*hands, upkeep]


def check_end(store: Path, plan: Plan, total: Total) -> int:
    """Look at all that is left, with a saver that has seen nothing of it; returns how many threads are lost."""
    saver, lost = TurnCheckpointSaver(store, strict=True), 0
    there = set(saver.thread_ids())
    for number in range(plan.threads):
        thread_id, must_be = plan.name(number), plan.reached(number, plan.visits)
        with total.noting(f"end, thread {number}"):
            found = saver.get_tuple(configured(thread_id))
            if plan.ends(number):
                if found is not None or thread_id in there:
                    raise WrongReadError(f"{thread_id!r} is there, and was deleted")
                continue
            lost += found is None or thread_id not in there
            total.reads += 1
            if tuple_standing(thread_id, found) != must_be:
                raise WrongReadError(f"{thread_id!r} ends at {tuple_standing(thread_id, found)}, and must at {must_be}")
            if number % 10 in (0, 3, 4, 7):
                _check_history(saver, plan, number)
    for number in range(CONTENDED):
        with total.noting(f"end, contended-{number}"):
            tuple_standing(f"contended-{number}", saver.get_tuple(configured(f"contended-{number}")))
    for thread_id in there - {plan.name(n) for n in range(plan.threads)}:
        with total.noting(f"end, {thread_id}"):
            if not thread_id.startswith(("contended-", GUARDED)):
                raise WrongReadError(f"{thread_id!r} is there, and was never written")
    return lost


def _check_history(saver: TurnCheckpointSaver, plan: Plan, number: int) -> None:
    thread_id, must_be = plan.name(number), plan.checkpoints(number)
    listed = [
        (each.config["configurable"]["checkpoint_id"], tuple_standing(thread_id, each))
        for each in saver.list(configured(thread_id))
    ]
    check_falling(thread_id, listed)
    if must_be is not None and len(listed) != must_be:
        raise WrongReadError(f"{thread_id!r} has {len(listed)} checkpoints, and must have {must_be}")


def common_figures(total: Total, hands: list[Hand], store: Path) -> list[Figure]:
    """What is asked of every load, long or short."""
    left, errors = disk(store), total.errors
    with total.noting("end, verify"):
        for finding in TurnCheckpointSaver(store).verify():
            total.findings.append(f"verify at the end: {finding}")
            errors["verify"] += 1
    ended = [hand for hand in hands if hand.has_ended]
    ends = [hand.files[-1] for hand in ended]
    for hand in ended:
        more = Counter(hand.files[-1].outside) - Counter(hand.files[0].outside)
        if hand.files[-1].others > hand.files[0].others:
            total.findings.append(f"a worker has more open at its end than after its start: {dict(more)}")
    leaked = [max(0, hand.files[-1].others - hand.files[0].others) for hand in ended]
    total.findings += [f"open at the end: {path}" for files in ends for path in files.in_store]
    total.findings += [f"left over: {path}" for path in left.temporaries]
    return [
        zero("errors of any kind", sum(errors.values())),
        zero("lock errors", errors["lock"]),
        zero("wrong reads", errors["wrong read"]),
        zero("temporaries left", len(left.temporaries)),
        zero("findings of verify at the end", errors["verify"]),
        zero("open files of the store at the end", sum(len(files.in_store) for files in ends)),
        zero("descriptors leaked by a worker, at most", max(leaked, default=0)),
        Figure("disk: files", left.files),
        Figure("disk: bytes in them", left.size_bytes / 1e6, unit="MB"),
        Figure("disk: blocks", left.block_bytes / 1e6, unit="MB"),
        *_memory(ended),
        *_times(total),
        Figure("reads that were checked", total.reads),
        Figure("runs overtaken by another on one thread", total.refused),
        *(Figure(f"{name}, meanwhile", count) for name, count in sorted(total.told.items())),
    ]


def _memory(hands: list[Hand]) -> Iterator[Figure]:
    workers = [hand for hand in hands if len(hand.files) > 1]
    if workers:
        yield Figure("memory of a worker, peak", max(hand.peak for hand in workers) / 1e6, unit="MB")
        yield Figure("memory of a worker, end", max(hand.memory[-1][1] for hand in workers) / 1e6, unit="MB")
        yield Figure("memory of a worker, second quarter to end", max(h.growth[0] for h in workers) / 1e6, unit="MB")
        yield Figure("the same as a ratio", max(hand.growth[1] for hand in workers))


def _times(total: Total) -> Iterator[Figure]:
    for name in ("put", "put_writes", "get_tuple"):
        spread = total.spreads.get(name, Spread())
        for share, seconds in (("p50", spread.quantile(0.5)), ("p99", spread.quantile(0.99)), ("max", spread.longest)):
            yield Figure(f"{name}, {share}", seconds * 1e3, unit="ms")


@contextlib.contextmanager
def directory(given: Path | None) -> Iterator[Path]:
    """A fresh directory that is gone afterwards, below the given one."""
    made = Path(tempfile.mkdtemp(prefix="turncheckpoint-load-", dir=given))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sizes of the load."""
    parser.add_argument("--threads", type=int, default=10_000, help="LangGraph threads")
    parser.add_argument("--steps", type=int, default=20, help=f"super-steps of each, in visits of {STEPS_A_VISIT}")
    parser.add_argument("--workers", type=int, default=8, help=f"processes, each with {LANES} OS threads or tasks")
    parser.add_argument("--seed", type=int, default=0, help="chooses who is read, pruned and deleted when")
    parser.add_argument("--no-fsync", action="store_true", help="do not wait for the disk")
    parser.add_argument("--directory", type=Path, help="work below this directory, to choose the disk")


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Make the load; see the module."""
    plan, total = Plan(options.threads, max(1, options.steps // STEPS_A_VISIT)), Total()
    with directory(options.directory) as work_directory:
        store = work_directory / "store"
        given = setups(store, plan, options.workers, seed=options.seed, fsync=not options.no_fsync)
        begun = perf_counter()
        hands = visit_all(plan, given, total)
        seconds = perf_counter() - begun
        steps = total.steps
        lost = check_end(store, plan, total)
        figures = common_figures(total, hands, store)
    cpu = sum(hand.cpu for hand in hands if hand.target is work)
    how = "fsync=False" if options.no_fsync else "fsync=True"
    own = [
        Figure(f"super-steps stored, {how}", steps),
        Figure("super-steps a second, all workers together", steps / seconds),
        Figure("processor time of the workers for a super-step", cpu / steps * 1e3, unit="ms"),
        zero("threads lost", lost),
    ]
    return own + figures, total.findings[:FINDINGS_LIMIT]
