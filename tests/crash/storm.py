"""A kill storm: an agent is killed at random instants, over and over, in one directory, and goes on each time. How it
is made is in `storm_agent`, what must hold in `storm_truth`.

There are two directories, one whose saver waits for the disk and one whose saver does not, and one process at a time in
each. Kills are spread evenly over the time that a round was measured to take.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final, NamedTuple

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.crash.figures import Figure, zero
from tests.crash.processes import PATIENCE_SECONDS, Child
from tests.crash.storm_agent import DURABILITIES, EXTRAS, WAYS, Looked, Round, Way, play
from tests.crash.storm_truth import DAMAGE, KINDS, STUCK, Truth, Wrong

#: After so many rounds another thread takes the place of one, since each look at a history goes through all of it.
ROUNDS_PER_THREAD: Final = 30
#: The share of rounds that nobody cuts off, and that end with a look at everything.
WHOLE: Final = 0.1
#: The share of rounds with each of the things that are done to a thread before it goes on.
EXTRA: Final = 0.12
#: The share of threads that go on behind a turn that was cut off; the others get a new message.
GOES_ON: Final = 0.6
#: Seconds that a round is taken for until one was measured.
FIRST_GUESS: Final = 0.1
#: How much the last measured round counts against all before it.
WEIGHT: Final = 0.2
#: Findings of one kind that are told.
TOLD: Final = 3

#: `multiprocessing` must not start one process while it looks after another one in another thread.
_processes: Final = threading.Lock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How many rounds, and which."""
    parser.add_argument("--rounds", type=int, default=4000, help="over both directories")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, help="a directory for everything that is written, to look at it afterwards"
    )


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Both directories at once."""
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
        directories = [(options.keep or Path(temporary)) / name for name in ("synced", "unsynced")]
        storms = [
            Storm(directory, f"{options.seed}, {directory.name}", fsync=directory.name == "synced")
            for directory in directories
        ]
        for done in [pool.submit(storm.run, options.rounds // 2) for storm in storms]:
            done.result()
    counts = sum((storm.counts for storm in storms), Counter())
    wrong = sum((storm.wrong for storm in storms), Counter())
    figures = [
        Figure("rounds", counts["rounds"]),
        Figure("processes killed", counts["kills"]),
        Figure("of these in a turn", counts["kills in a turn"]),
        Figure("rounds that came to their end", counts["ends"]),
        Figure("threads", counts["threads"]),
        Figure("usual round", sum(storm.usual_seconds for storm in storms) / len(storms) * 1000, unit="ms"),
        *(zero(kind, wrong[kind]) for kind in KINDS),
    ]
    return figures, [f"--seed {options.seed}, {finding}" for storm in storms for finding in storm.findings]


class _Thread(NamedTuple):
    name: str
    way: Way
    truth: Truth
    last_round: int


class Storm:
    """Rounds in one directory.

    Args:
        directory: Where everything is written.
        seed: What is drawn from; only the instants of the kills depend on the machine, too.
        fsync: The saver's.
        ways: The ways into the guard that threads take.
        sabotage: What breaks each process first.
    """

    def __init__(
        self,
        directory: Path,
        seed: str,
        *,
        fsync: bool,
        ways: Iterable[Way] = WAYS,
        sabotage: Callable[[], object] | None = None,
    ) -> None:
        directory.mkdir(parents=True)
        self.counts: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.findings: list[str] = []
        #: How long a round takes that nobody cuts off.
        self.usual_seconds = FIRST_GUESS
        self._measured = 0
        self._directory, self._fsync, self._sabotage = directory, fsync, sabotage
        self._random = Random(seed)
        self._numbers = count(1)
        self._threads = [self._new_thread(way) for way in ways]

    def run(self, rounds: int) -> None:
        """So many rounds, and a last one of each thread that nobody cuts off; then the whole store must be in order."""
        for _ in range(rounds):
            self._one_of(self._random.randrange(len(self._threads)))
        for thread in self._threads:
            self._play(thread, self._drawn(thread, is_whole=True))
        for found in TurnCheckpointSaver(self._directory / "store").verify():
            if found.kind != "orphan":
                self._blame(str(self._directory), [Wrong(DAMAGE, str(found))])

    def _one_of(self, place: int) -> None:
        thread = self._threads[place]
        is_old = self.counts["rounds"] >= thread.last_round
        is_whole = is_old or not self._measured or self._random.random() < WHOLE
        goes_on = self._play(thread, self._drawn(thread, is_whole=is_whole))
        if is_old or not goes_on:
            self._threads[place] = self._new_thread(thread.way)

    def _new_thread(self, way: Way) -> _Thread:
        self.counts["threads"] += 1
        lives = self._random.randint(ROUNDS_PER_THREAD // 2, ROUNDS_PER_THREAD) * len(WAYS)
        return _Thread(f"{way}-{self.counts['threads']}", way, Truth(), self.counts["rounds"] + lives)

    def _drawn(self, thread: _Thread, *, is_whole: bool) -> Round:
        draw = self._random
        return Round(
            self._directory,
            thread.name,
            thread.way,
            durability=draw.choice(DURABILITIES),
            colour=draw.choice(("sync", "async")),
            fsync=self._fsync,
            number=next(self._numbers),
            goes_on=draw.random() < (GOES_ON if thread.truth.was_in_turn else EXTRA),
            extras=tuple(extra for extra in EXTRAS if draw.random() < EXTRA),
            is_whole=is_whole,
            sabotage=self._sabotage,
        )

    def _play(self, thread: _Thread, given: Round) -> bool:
        """A round, and what must hold after it; returns whether the thread is of further use."""
        self.counts["rounds"] += 1
        truth, seconds = thread.truth, self._random.random() * self.usual_seconds
        try:
            was_killed, looked = self._fate_of(given, None if given.is_whole else seconds)
        except AssertionError as error:
            self._blame(str(given), [Wrong(STUCK, str(error).strip())])
            return False
        wrong = list(truth.learn(given))
        self.counts["kills" if was_killed else "ends"] += 1
        if was_killed and truth.was_in_turn:
            self.counts["kills in a turn"] += 1
        wrong += truth.stored(given)
        truth.forget_checkpoints()
        if looked is not None:
            wrong += truth.look(given, looked)
        self._blame(f"{given}, {f'killed after {seconds * 1000:.1f} ms' if was_killed else 'not killed'}", wrong)
        return not wrong

    def _fate_of(self, given: Round, seconds: float | None) -> tuple[bool, Looked | None]:
        """Whether the process was killed, after so many seconds of its round, and what it has said in the end.

        Raises:
            AssertionError: It failed, or it hangs.
        """
        with _processes:
            child = Child(play, given)
        try:
            assert child.hear() == "ready"
            begun = perf_counter()
            if not child.speaks_within(PATIENCE_SECONDS if seconds is None else seconds):
                assert seconds is not None, "the process hangs"
                with _processes:
                    child.kill()
                return True, None
            assert child.hear() == "acted"
            looked = None
            if given.is_whole:
                # Only of these are the slow ones measured, too: none of them is cut off.
                self._took(perf_counter() - begun)
                looked = child.hear()
            child.tell("leave")
            return False, looked
        finally:
            with _processes:
                child.__exit__()

    def _took(self, seconds: float) -> None:
        if not self._measured:
            self.usual_seconds = seconds
        self._measured += 1
        self.usual_seconds += WEIGHT * (seconds - self.usual_seconds)

    def _blame(self, where: str, wrong: Iterable[Wrong]) -> None:
        for each in wrong:
            self.wrong[each.kind] += 1
            if self.wrong[each.kind] <= TOLD:
                self.findings.append(f"{where}: {each.kind}: {each.text}")
