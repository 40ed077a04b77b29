"""The processes of the load: workers that visit threads in several lanes at once. What they are told to do next,
and what their reports add up to, is the lab's.

A lane is an OS thread or an asyncio task. Its story is written once, as a coroutine; in an OS thread every call blocks
and the coroutine never waits.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import traceback
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any, Final, Literal, NamedTuple, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_turncheckpoint import StaleTurnError, TurnCheckpointSaver, errors
from tests.crash.load_guarded import Guarded
from tests.crash.load_measures import (
    OpenFiles,
    Spread,
    Timed,
    open_files,
    peak_bytes,
    resident_bytes,
    timed_saver,
)
from tests.crash.load_threads import (
    CONTENDED,
    Plan,
    Standing,
    WrongReadError,
    built,
    check_falling,
    check_standing,
    configured,
    message,
    standing_of,
)
from tests.crash.processes import Line

T = TypeVar("T")

Colour = Literal["sync", "async"]

#: Jobs that a worker has at once.
LANES: Final = 4
#: After how many visits a lane looks at somebody else's thread, and writes to one that others write to, too.
LOOK_EVERY: Final = 4
CONTEND_EVERY: Final = 10
#: Of how many errors a report tells the text.
TOLD_LIMIT: Final = 20


class Setup(NamedTuple):
    """What a process of the load is told at its start."""

    store: Path
    plan: Plan
    colour: Colour
    seed: int
    fsync: bool
    kills: bool = False


class Job(NamedTuple):
    """Some threads to be visited once each, or, with no threads, one round of upkeep.

    Attributes:
        kind: "visits"; "guarded", agents under a guard; "contended", only threads that everybody writes to; "upkeep";
            "verify".
        first: The first thread.
        threads: How many.
        visit: Which of their visits this is.
        all_visited: How many visits every thread has had.
        again: Whether somebody died on this job.
        is_last: Whether it is the threads' last visit.
    """

    kind: Literal["visits", "guarded", "contended", "upkeep", "verify"]
    first: int = 0
    threads: int = 0
    visit: int = 0
    all_visited: int = 0
    again: bool = False
    is_last: bool = False


@dataclass
class Report:
    """What has come of a job.

    Attributes:
        job: The job.
        runs: Graph runs that ended.
        reads: States that were read and checked.
        refused: Runs on contended threads that a newer one, or a delete, has ended, as it must be.
        told: How many upkeep operations there were, by name.
        errors: How many things went wrong, by kind: "wrong read", "lock", or the error's name.
        findings: The first of them in words.
        spreads: How long calls took, by name.
        resident: Memory at the end of the job.
        files: Open files then; `None` but for the first job and the last word.
        peak: The most memory that the process ever held.
        cpu: Seconds of processor time that it has used, the system's on its behalf included.
    """

    job: Job | None = None
    runs: int = 0
    reads: int = 0
    refused: int = 0
    told: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    spreads: dict[str, Spread] = field(default_factory=dict)
    resident: int = 0
    files: OpenFiles | None = None
    peak: int = 0
    cpu: float = 0.0

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Whatever goes wrong inside is noted, and the load goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the lab counts them all
            kind = _kind(error)
            self.errors[kind] = self.errors.get(kind, 0) + 1
            if len(self.findings) < TOLD_LIMIT:
                last = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{os.path.basename(last.filename)}:{last.lineno}"
                self.findings.append(f"{what}: {type(error).__name__} at {place}: {error}"[:600])

    def did(self, name: str, count: int = 1) -> None:
        """Count operations of upkeep."""
        self.told[name] = self.told.get(name, 0) + count


def _kind(error: Exception) -> str:
    if isinstance(error, WrongReadError):
        return "wrong read"
    if isinstance(error, (errors.ThreadBusyError, TimeoutError)) or "lock" in str(error).lower():
        return "lock"
    return type(error).__name__


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("a coroutine of blocking calls waits")


class Calls:
    """The saver and a graph on it, in one colour."""

    def __init__(self, saver: TurnCheckpointSaver, colour: Colour) -> None:
        self.saver, self.is_async = saver, colour == "async"
        self._graph = built().compile(checkpointer=saver)
        self.guarded = Guarded(saver)

    async def invoke(self, given: Any, config: RunnableConfig, durability: Any) -> dict[str, Any]:
        """One run."""
        if self.is_async:
            return await self._graph.ainvoke(given, config, durability=durability)
        return self._graph.invoke(given, config, durability=durability)

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`."""
        return await self.saver.aget_tuple(config) if self.is_async else self.saver.get_tuple(config)

    async def listed(self, config: RunnableConfig, limit: int) -> list[CheckpointTuple]:
        """`list`."""
        if self.is_async:
            return [each async for each in self.saver.alist(config, limit=limit)]
        return [*self.saver.list(config, limit=limit)]

    async def history(self, config: RunnableConfig, limit: int) -> list[Any]:
        """The graph's view of the same."""
        if self.is_async:
            return [each async for each in self._graph.aget_state_history(config, limit=limit)]
        return [*self._graph.get_state_history(config, limit=limit)]

    async def delete(self, thread_id: str) -> None:
        """`delete_thread`."""
        await self.saver.adelete_thread(thread_id) if self.is_async else self.saver.delete_thread(thread_id)

    async def prune(self, thread_id: str) -> None:
        """`prune`."""
        await self.saver.aprune([thread_id]) if self.is_async else self.saver.prune([thread_id])


def tuple_standing(thread_id: str, found: CheckpointTuple | None) -> Standing:
    """How far a thread had come at a checkpoint; nowhere if there is none."""
    values = {} if found is None else found.checkpoint["channel_values"]
    return standing_of(thread_id, values.get("messages", ()))


class Lane:
    """Does one job."""

    def __init__(self, calls: Calls, setup: Setup, job: Job) -> None:
        self._calls, self._plan, self._job = calls, setup.plan, job
        self._rng = random.Random(repr((setup.seed, job.kind, job.first, job.visit)))
        self._where = f"seed {setup.seed}, {setup.colour}, visit {job.visit}"
        self.report = Report(job)

    async def run(self) -> Report:
        """Visit every thread of the job."""
        job, report = self._job, self.report
        if job.kind == "contended":
            for number in range(CONTENDED):
                await self._contend(number)
        for number in range(job.first, job.first + job.threads):
            with report.noting(f"{self._where}, {job.kind} thread {number}"):
                if job.kind == "guarded":
                    await self._calls.guarded.visit(number, job.visit, is_async=self._calls.is_async, again=job.again)
                    report.runs += 1
                else:
                    await self._visit(number)
            if number % LOOK_EVERY == 0:
                await self._look()
            if number % CONTEND_EVERY == 0:
                await self._contend(self._rng.randrange(CONTENDED))
        report.resident = resident_bytes()
        return report

    async def _visit(self, number: int) -> None:
        plan, visit = self._plan, self._job.visit
        thread_id, begin = plan.name(number), plan.standing(number, visit)
        target = plan.reached(number, visit + 1)
        config, durability = configured(thread_id), "async" if (number + visit) % 3 == 0 else "sync"
        given: Any = {"messages": [message(thread_id, *begin)]}
        held = None
        if self._job.again:
            held = tuple_standing(thread_id, await self._calls.get(config))
            if begin < held < target:
                given = None  # whoever died here has stored the input
        if plan.begins_anew(number, visit) and (held is None or held < begin):
            await self._calls.delete(thread_id)
            held = Standing(0, 0) if held is not None else None
        if held != target:
            result = await self._calls.invoke(given, config, durability)
            found = standing_of(thread_id, result["messages"])
            self.report.runs += 1
            if found != target:
                raise WrongReadError(f"{thread_id!r} is at {found} after a run that must end at {target}")
        if plan.is_pruned_by_its_writer(number):
            await self._calls.prune(thread_id)
        if self._job.is_last and plan.ends(number):
            await self._calls.delete(thread_id)
        elif number % LOOK_EVERY == 1:
            self._check(thread_id, tuple_standing(thread_id, await self._calls.get(config)), target)
            self.report.reads += 1

    @staticmethod
    def _check(thread_id: str, found: Standing, exactly: Standing) -> None:
        if found != exactly:
            raise WrongReadError(f"{thread_id!r} is read at {found}, and stands at {exactly}")

    async def _look(self) -> None:
        """Read a thread that somebody else may be writing to."""
        number, way = self._rng.randrange(self._plan.threads), self._rng.choice(("get", "list", "history", "by id"))
        thread_id, all_visited = self._plan.name(number), self._job.all_visited
        with self.report.noting(f"{self._where}, {way} of thread {number}"):
            config = configured(thread_id)
            if way in ("get", "by id"):
                newest = await self._calls.get(config)
                listed = [] if newest is None else [newest]
                if newest is not None and way == "by id" and newest.parent_config is not None:
                    older = await self._calls.get(newest.parent_config)
                    listed += [] if older is None else [older]
                states = [(t.config["configurable"]["checkpoint_id"], tuple_standing(thread_id, t)) for t in listed]
            elif way == "list":
                listed = await self._calls.listed(config, 4)
                states = [(t.config["configurable"]["checkpoint_id"], tuple_standing(thread_id, t)) for t in listed]
            else:
                snapshots = await self._calls.history(config, 4)
                states = [
                    (s.config["configurable"]["checkpoint_id"], standing_of(thread_id, s.values.get("messages", ())))
                    for s in snapshots
                ]
            self.report.reads += len(states)
            check_falling(thread_id, states)
            if not (self._plan.may_be_gone(number) and (not states or states[0][1].messages == 0)):
                newest_standing = states[0][1] if states else Standing(0, 0)
                check_standing(thread_id, newest_standing, least=self._plan.reached(number, all_visited))

    async def _contend(self, number: int) -> None:
        """A run on a thread that others write to and delete at the same time."""
        thread_id = f"contended-{number}"
        with self.report.noting(f"{self._where}, {thread_id}"):
            try:
                result = await self._calls.invoke({"knock": thread_id}, configured(thread_id), "sync")
            except StaleTurnError:
                self.report.refused += 1
            else:
                standing_of(thread_id, result["messages"])
                self.report.runs += 1


class Told:
    """The line to the lab, used by many lanes."""

    def __init__(self, line: Line, saver: Timed, store: Path) -> None:
        self._line, self._saver, self._store = line, saver, store
        self._guard = threading.Lock()
        self._is_first = True

    def tell(self, report: Report) -> None:
        with self._guard:
            report.spreads = self._saver.drain()
            if self._is_first:
                report.files = open_files(self._store)
                self._is_first = False
            self._line.tell(report)

    def last_word(self) -> None:
        files = open_files(self._store)
        report = Report(resident=resident_bytes(), files=files, peak=peak_bytes(), cpu=process_time())
        self.tell(report)


def work(line: Line, setup: Setup) -> None:
    """A process that does the jobs it is told, several at once, until it is told `None`."""
    saver = timed_saver(setup.store, is_async=setup.colour == "async", fsync=setup.fsync)
    calls, told = Calls(saver, setup.colour), Told(line, saver, setup.store)
    if setup.colour == "async":
        asyncio.run(_tasks(line, calls, setup, told))
        return
    with ThreadPoolExecutor(LANES) as lanes:
        while (job := line._connection.recv()) is not None:
            lanes.submit(lambda job: told.tell(finished(Lane(calls, setup, job).run())), job)
    told.last_word()


async def _tasks(line: Line, calls: Calls, setup: Setup, told: Told) -> None:
    loop, running = asyncio.get_running_loop(), set()

    async def do(job: Job) -> None:
        told.tell(await Lane(calls, setup, job).run())

    while (job := await loop.run_in_executor(None, line._connection.recv)) is not None:
        task = asyncio.create_task(do(job))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    told.last_word()
