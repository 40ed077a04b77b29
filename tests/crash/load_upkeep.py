"""The process of the load that owns the directory: it counts, lists and verifies what is there, and prunes and deletes
what others are writing to. How its findings are counted is the lab's.
"""

from __future__ import annotations

import os
import random
from itertools import islice
from typing import Final

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.crash.load_guarded import GUARDED
from tests.crash.load_measures import resident_bytes, timed_saver
from tests.crash.load_threads import CONTENDED, WrongReadError
from tests.crash.load_worker import Job, Report, Setup, Told, tuple_standing
from tests.crash.processes import Line

#: What `verify` finds in a store of which a process has just been killed.
LEFT_BY_THE_KILLED: Final = frozenset({"temporary", "orphan"})


class Upkeep:
    """What whoever owns a directory does with it while it is in use."""

    def __init__(self, saver: TurnCheckpointSaver, setup: Setup) -> None:
        self._saver, self._plan, self._kills = saver, setup.plan, setup.kills
        self._rng = random.Random(repr((setup.seed, "upkeep")))

    def run(self, job: Job) -> Report:
        """One round of it."""
        report, saver, plan = Report(job), self._saver, self._plan
        if job.kind == "verify":
            with report.noting("upkeep, verify"):
                report.did("verify")
                for finding in saver.verify():
                    if not (self._kills and finding.kind in LEFT_BY_THE_KILLED):
                        raise WrongReadError(f"verify: {finding}")
            report.resident = resident_bytes()
            return report
        with report.noting("upkeep, thread_ids"):
            report.did("thread_ids")
            there = set(saver.thread_ids())
            wanted = {plan.name(n) for n in range(plan.threads if job.all_visited else 0) if not plan.may_be_gone(n)}
            if wanted - there:
                raise WrongReadError(f"thread_ids lacks {sorted(wanted - there)[:5]}")
        with report.noting("upkeep, stats"):
            report.did("stats")
            saver.stats()
        with report.noting("upkeep, list of all threads"):
            report.did("list of all threads")
            for found in islice(saver.list(None), 30):
                thread_id = found.config["configurable"]["thread_id"]
                if not thread_id.startswith(GUARDED):
                    tuple_standing(thread_id, found)
                report.reads += 1
        pruned = [n for n in range(plan.threads) if plan.is_pruned_at_any_time(n)]
        for number in self._rng.sample(pruned, min(20, len(pruned))):
            with report.noting(f"upkeep, prune of thread {number}"):
                report.did("prune under a writer")
                saver.prune([plan.name(number)])
        for number in self._rng.sample(range(CONTENDED), 2):
            with report.noting(f"upkeep, delete of contended-{number}"):
                report.did("delete under a writer")
                saver.delete_thread(f"contended-{number}")
        report.resident = resident_bytes()
        return report


def look_after(line: Line, setup: Setup) -> None:
    """A process that does rounds of upkeep until it is told `None`."""
    os.nice(10)  # it has no waits to speak of, and would take half of the processors from those that are measured
    saver = timed_saver(setup.store, is_async=False, fsync=setup.fsync)
    upkeep, told = Upkeep(saver, setup), Told(line, saver, setup.store)
    while (job := line._connection.recv()) is not None:
        told.tell(upkeep.run(job))
    told.last_word()
