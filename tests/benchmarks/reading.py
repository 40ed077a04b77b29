"""Rows that time reads by a fresh saver instance, as after a restart. The page cache stays warm.

Opening the saver is part of the time, closing it is not. The first connection to a SQLite file in WAL
mode also creates its log and shared memory; where another process keeps the file open it need not. The
table shows the former, which is what a restart costs, and a note below it the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from tests.benchmarks.bench import Bench, Grown
from tests.benchmarks.contenders import Contender, Saver
from tests.benchmarks.floors import Reading
from tests.benchmarks.lane import Call, Lane
from tests.benchmarks.results import Floor, Result, against_peer
from tests.benchmarks.state import ThreadState
from tests.benchmarks.timing import Prepare, medians

Read = Callable[[Saver, RunnableConfig], list[CheckpointTuple]]

_LISTED: Final = 10
_BESIDE: Final = "sqlite beside another"


def cold_hundreds(bench: Bench) -> list[Result]:
    """The first read of a thread with some hundred messages."""
    return [_cold_messages(bench, "cold-500", bench.sizes.middle, times=1.5)]


def cold_thousands(bench: Bench) -> list[Result]:
    """The first read of a thread with some thousand messages."""
    return [_cold_messages(bench, "cold-5000", bench.sizes.large, times=2)]


def after_long_history(bench: Bench) -> list[Result]:
    """The first read, and the first page of history, of a thread of thousands of small super-steps."""
    sizes = bench.sizes
    work = f"after {sizes.history:,} super-steps"
    with ExitStack() as stack:
        histories = {
            contender.name: stack.enter_context(_history(bench, contender, sizes.history))
            for contender in bench.contenders
        }
        return [
            _cold(
                bench,
                key,
                f"{what} {work}",
                histories,
                read,
                rounds=sizes.history_rounds,
                times=1,
                target="not slower",
            )
            for key, what, read in (
                ("latest-3000", "cold get_tuple", _latest),
                ("list-3000", f"cold list(limit={_LISTED})", _first_page),
            )
        ]


def _latest(saver: Saver, config: RunnableConfig) -> list[CheckpointTuple]:
    found = saver.get_tuple(config)
    return [] if found is None else [found]


def _first_page(saver: Saver, config: RunnableConfig) -> list[CheckpointTuple]:
    return list(saver.list(config, limit=_LISTED))


def _cold_messages(bench: Bench, key: str, size: int, *, times: float) -> Result:
    return _cold(
        bench,
        key,
        f"cold get_tuple, {size:,} messages",
        {contender.name: bench.grown(contender, size) for contender in bench.contenders},
        _latest,
        rounds=bench.sizes.cold_rounds,
        times=times,
        target=f"{times:g} x faster",
    )


def _cold(
    bench: Bench,
    key: str,
    work: str,
    grown: Mapping[str, Grown],
    read: Read,
    *,
    rounds: int,
    times: float,
    target: str,
) -> Result:
    floors: list[Reading] = []
    with ExitStack() as stack:
        prepared: dict[str, Prepare] = {}
        for contender in bench.contenders:
            stored = grown[contender.name]
            found = _check(contender, stored, read)
            if not floors:
                floors.append(Reading(bench.directory("floor-reading"), found))
            prepared[contender.name] = _cold_rounds(contender, stored, read)
            if contender.name == "sqlite":
                beside = stack.enter_context(_kept_open(bench, contender, stored))
                prepared[_BESIDE] = _cold_rounds(contender, beside, read)
        p50 = medians(bench.interleave(prepared, rounds=rounds, floor=floors[0]))
    floor = Floor.timed(
        p50.pop("floor", None), "files of packed values opened, read, unpacked, messages built unchecked"
    )
    beside_seconds = p50.pop(_BESIDE, None)
    note = (
        "" if beside_seconds is None else f"SqliteSaver where the file is open already: {beside_seconds * 1e3:.2f} ms"
    )
    return against_peer(key, work, p50, times=times, target=target, floor=floor, note=note)


def _check(contender: Contender, grown: Grown, read: Read) -> list[CheckpointTuple]:
    """See that a fresh saver reads what was stored, before its speed at it is taken; gives what it read."""
    saver = grown.saver if grown.saver is not None else contender.open(grown.root)
    try:
        found = read(saver, grown.state.config)
    finally:
        if grown.saver is None:
            contender.close(saver)
    newest = found[0].checkpoint
    if newest["id"] != grown.state.checkpoint_id or newest["channel_values"] != grown.state.values:
        raise RuntimeError(f"{contender.name} did not read back what it had stored")
    return found


def _cold_rounds(contender: Contender, grown: Grown, read: Read) -> Prepare:
    config = grown.state.config

    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        opened: list[Saver] = []

        def call() -> Any:
            saver = grown.saver
            if saver is None:
                saver = contender.open(grown.root)
                opened.append(saver)
            return read(saver, config)

        yield call
        for saver in opened:
            contender.close(saver)

    return prepare


@contextmanager
def _kept_open(bench: Bench, contender: Contender, grown: Grown) -> Iterator[Grown]:
    """A copy of what is stored, which another saver has read from and keeps open."""
    root = bench.directory(f"{contender.name}-beside")
    contender.copy(grown.root, root)
    keeper = contender.open(root)
    try:
        keeper.get_tuple(grown.state.config)
        yield Grown(root, grown.state, None)
    finally:
        contender.close(keeper)


@contextmanager
def _history(bench: Bench, contender: Contender, super_steps: int) -> Iterator[Grown]:
    """A thread of small super-steps, closed where a fresh saver can find it again."""
    root = bench.directory(f"{contender.name}-history")
    saver = contender.open(root, durable=False)
    lane = Lane(contender, saver)
    state = ThreadState("history")
    try:
        lane.enter(state)
        for number in range(super_steps):
            state.set_small(saver, number).commit(saver)
        lane.settle()
    except BaseException:
        contender.close(saver)
        raise
    if contender.reopens:
        contender.close(saver)
        yield Grown(root, state, None)
    else:
        yield Grown(root, state, saver)
        contender.close(saver)
