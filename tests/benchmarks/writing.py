"""Rows that time writes: super-steps, parallel pending writes, late puts. Reads are elsewhere."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from statistics import median
from typing import Final

from langchain_core.messages import AnyMessage

from tests.benchmarks.bench import Bench
from tests.benchmarks.floors import fingerprint, repeated, together
from tests.benchmarks.lane import Call, Lane, open_lane
from tests.benchmarks.messages import conversation
from tests.benchmarks.results import Floor, Result, against_itself, against_peer
from tests.benchmarks.state import ThreadState
from tests.benchmarks.timing import Prepare, Round, medians

#: Untimed super-steps before the timed ones: a run that has been going for a moment.
_WARM_UP: Final = 2

_NEW_DATABASE: Final = "sqlite new database"

#: The put that counts as early, and how far the window around it reaches to each side.
_EARLY: Final = 10
_EARLY_REACH: Final = 5


def step_with_few(bench: Bench) -> list[Result]:
    """Super-steps of threads of few messages; a new thread every few rounds keeps them few.

    SqliteSaver also runs with a new database for every thread. While its log still grows, each flush of it
    costs more than in the steady state, where the log is overwritten in place; the table shows the latter.
    """
    begin_with, per_thread = bench.sizes.small, bench.sizes.steps_per_thread

    def threads_of(lane: Lane, *, anew: bool = False) -> Prepare:
        messages: dict[str, Iterator[AnyMessage]] = {}

        def prepare(number: int) -> Round:
            if number % per_thread == 0:
                thread_id = f"thread-{number // per_thread}"
                messages["now"] = conversation(thread_id)
                if anew:
                    lane.reopen(bench.directory(f"{lane.contender.name}-anew"))
                lane.enter(ThreadState(thread_id))
                lane.add(islice(messages["now"], begin_with))
            return lane.super_step(next(messages["now"]))

        return prepare

    prepared: dict[str, Prepare] = {}
    with ExitStack() as stack:
        for contender in bench.contenders:
            prepared[contender.name] = threads_of(stack.enter_context(open_lane(bench, contender, "few")))
            if contender.name == "sqlite":
                lane = stack.enter_context(open_lane(bench, contender, "anew"))
                prepared[_NEW_DATABASE] = threads_of(lane, anew=True)
        taken = bench.interleave(prepared, rounds=bench.sizes.small_rounds, floor=step_floor(bench, begin_with))
    note = f"a new thread every {per_thread} super-steps"
    if _NEW_DATABASE in taken:
        note += f"; SqliteSaver with a new database for each: {median(taken.pop(_NEW_DATABASE)) * 1e3:.2f} ms"
    return [_step_result("step-20", begin_with, times=1.3, taken=taken, note=note)]


def step_with_hundreds(bench: Bench) -> list[Result]:
    """Super-steps of one thread that begins with some hundred messages."""
    taken = steps_of_grown(bench, bench.sizes.middle, bench.sizes.middle_rounds)
    return [_step_result("step-500", bench.sizes.middle, times=4, taken=taken)]


def step_with_thousands(bench: Bench) -> list[Result]:
    """Super-steps of one thread that begins with some thousand messages."""
    taken = steps_of_grown(bench, bench.sizes.large, bench.sizes.large_rounds)
    return [_step_result("step-5000", bench.sizes.large, times=12, taken=taken)]


def parallel_put_writes(bench: Bench) -> list[Result]:
    """The pending writes of a wide fan-out, all for one checkpoint, from a pool of threads."""
    sizes = bench.sizes
    stream = conversation("parallel")
    payload = [next(stream) for _ in range(sizes.parallel_writes * 3)][2::3]

    def batches_of(lane: Lane, pool: ThreadPoolExecutor) -> Prepare:
        messages = conversation("parallel-states")
        lane.enter(ThreadState("parallel"))
        lane.add(islice(messages, sizes.small))

        @contextmanager
        def prepare(number: int) -> Iterator[Call]:
            lane.add([next(messages)])
            config = lane.state.parent_config()
            tasks = [(str(uuid.uuid4()), result) for result in payload]

            def write(task: tuple[str, AnyMessage]) -> None:
                writes = [("messages", [task[1]]), ("branch:to:model", None)]
                lane.saver.put_writes(config, writes, task[0], "~__pregel_push, 0, False")

            # A profiler sees only the thread that enabled it.
            yield lambda: list(map(write, tasks) if bench.stopwatch.profiling else pool.map(write, tasks))

        return prepare

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(sizes.parallel_threads))
        lanes = [stack.enter_context(open_lane(bench, contender, "parallel")) for contender in bench.contenders]
        prepared = {lane.contender.name: batches_of(lane, pool) for lane in lanes}
        appends = repeated(sizes.parallel_writes, bench.floor.append)
        p50 = medians(bench.interleave(prepared, rounds=sizes.parallel_rounds, floor=appends))
    floor = Floor.timed(p50.pop("floor", None), f"{sizes.parallel_writes} durable appends, one after the other")
    return [
        against_peer(
            "writes-100",
            f"{sizes.parallel_writes} parallel put_writes, {sizes.parallel_threads} threads",
            p50,
            times=3,
            target="3 x faster",
            floor=floor,
        )
    ]


def late_put(bench: Bench) -> list[Result]:
    """A put far down a long thread against an early put of a new one, both of small states."""
    sizes = bench.sizes
    per_thread = 2 * _EARLY_REACH

    def early_of(lane: Lane) -> Prepare:
        def prepare(number: int) -> Round:
            if number % per_thread == 0:
                lane.enter(ThreadState(f"early-{number // per_thread}"))
                for index in range(_EARLY - _EARLY_REACH):
                    lane.state.set_small(lane.saver, index).put(lane.saver)
            return lane.small_put(number)

        return prepare

    def late_of(lane: Lane) -> Prepare:
        lane.enter(ThreadState("late"))
        for index in range(sizes.late_put - sizes.late_window // 2):
            lane.state.set_small(lane.saver, index).put(lane.saver)
        return lane.small_put

    prepared: dict[str, Prepare] = {}
    with ExitStack() as stack:
        for contender in bench.contenders:
            early = stack.enter_context(open_lane(bench, contender, "puts"))
            late = Lane(contender, early.saver)
            stack.callback(late.settle)
            prepared[f"{contender.name} late"] = late_of(late)
            prepared[f"{contender.name} early"] = early_of(early)
        taken = bench.interleave(prepared, rounds=sizes.late_window, floor=bench.floor.file)
    p50 = medians(taken)
    floor = Floor.timed(p50.pop("floor", None), "a durable file")
    late_p50, early_p50 = (
        {contender.name: p50[f"{contender.name} {which}"] for contender in bench.contenders}
        for which in ("late", "early")
    )
    early_text = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in early_p50.items())
    return [
        against_itself(
            "put-5000",
            f"put #{sizes.late_put:,} of small states",
            late_p50,
            early=early_p50,
            within=1.5,
            target=f"within 1.5 x of put #{_EARLY}",
            floor=floor,
            note=f"put #{_EARLY}: {early_text}; the ratio is ours late to ours early",
        )
    ]


def step_floor(bench: Bench, size: int) -> Callable[[], None]:
    """What a super-step asks of anybody: its two durable writes, and a look at all messages for changes in place."""
    messages = bench.following(0, size)
    return together(bench.floor.super_step, lambda: fingerprint(messages))


def steps_of_grown(bench: Bench, size: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each super-step that adds a message to a thread of `size`, for all contenders and the floor."""
    messages = bench.following(size, _WARM_UP + rounds)

    def rounds_of(lane: Lane) -> Prepare:
        lane.add(messages[:_WARM_UP])
        return lambda number: lane.super_step(messages[_WARM_UP + number])

    with ExitStack() as stack:
        lanes = [
            stack.enter_context(open_lane(bench, contender, "grown", grown=bench.grown(contender, size)))
            for contender in bench.contenders
        ]
        prepared = {lane.contender.name: rounds_of(lane) for lane in lanes}
        return bench.interleave(prepared, rounds=rounds, floor=step_floor(bench, size))


def _step_result(key: str, size: int, *, times: float, taken: dict[str, list[float]], note: str = "") -> Result:
    p50 = medians(taken)
    floor_of = f"a durable append, a durable file, fingerprint of {size:,} messages"
    floor = Floor.timed(p50.pop("floor", None), floor_of)
    work = f"super-step, {size:,} messages in state"
    return against_peer(key, work, p50, times=times, target=f"{times:g} x faster", floor=floor, note=note)
