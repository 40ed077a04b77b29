"""Rows that time turns by hand and the inbox of a thread. No peer has either, and nothing is asked of their speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.benchmarks.bench import Bench
from tests.benchmarks.lane import Call
from tests.benchmarks.results import Floor, Result, without_target
from tests.benchmarks.timing import DiskFloor, Prepare, medians


def turn_by_hand(bench: Bench) -> list[Result]:
    """Opening and settling a turn on one thread, over and over."""
    config: RunnableConfig = {"configurable": {"thread_id": "turns"}}
    rounds = bench.sizes.turn_rounds
    with ExitStack() as stack:
        prepared: dict[str, Prepare] = {}
        for contender in bench.contenders:
            saver = contender.open(bench.directory(f"{contender.name}-turns"))
            stack.callback(contender.close, saver)
            if isinstance(saver, TurnCheckpointSaver):
                prepared["open"] = _opening(saver, config)
                prepared["settle"] = _settling(saver, config)
                stack.callback(_check_turns, saver, "turns", 2 * rounds)
        p50 = medians(bench.interleave(prepared, rounds=rounds, floor=bench.floor.append)) if prepared else {}
    floor = Floor.timed(p50.get("floor"), "a durable append")
    return [
        without_target("turn-open", "opening a turn", _as_ours(p50, "open"), floor=floor),
        without_target(
            "turn-settle", "settling a turn that has recorded nothing, no wait for the disk", _as_ours(p50, "settle")
        ),
    ]


def _opening(saver: TurnCheckpointSaver, config: RunnableConfig) -> Prepare:
    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        turn = saver.turn(config)
        yield turn.__enter__
        turn.settle("completed")

    return prepare


def _settling(saver: TurnCheckpointSaver, config: RunnableConfig) -> Prepare:
    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        turn = saver.turn(config)
        turn.__enter__()
        yield lambda: turn.settle("completed")

    return prepare


def _check_turns(saver: TurnCheckpointSaver, thread_id: str, count: int) -> None:
    states = [record.state for record in saver.turns(thread_id, limit=count)]
    if states != ["completed"] * count or saver.is_busy(thread_id):
        raise RuntimeError(f"{states.count('completed')} of {count} turns are complete")


def inbox(bench: Bench) -> list[Result]:
    """Posting a message to a thread's inbox, and taking it out as a run does."""
    rounds = bench.sizes.inbox_rounds
    with ExitStack() as stack:
        prepared: dict[str, Prepare] = {}
        for contender in bench.contenders:
            saver = contender.open(bench.directory(f"{contender.name}-inbox"))
            stack.callback(contender.close, saver)
            if isinstance(saver, TurnCheckpointSaver):
                prepared["post"] = _posting(saver)
                prepared["deliver"] = _delivering(saver)
        if prepared and not bench.stopwatch.profiling:
            prepared["removal"] = _removing(bench.floor)
        p50 = medians(bench.interleave(prepared, rounds=rounds, floor=bench.floor.file)) if prepared else {}
    floor = Floor.timed(p50.get("floor"), "a durable file")
    removal = Floor.timed(p50.get("removal"), "a durable removal of a file")
    return [
        without_target("inbox-post", "posting a message to an inbox", _as_ours(p50, "post"), floor=floor),
        without_target(
            "inbox-deliver",
            "reading a message from an inbox and acknowledging it",
            _as_ours(p50, "deliver"),
            floor=removal,
        ),
    ]


def _posting(saver: TurnCheckpointSaver) -> Prepare:
    box = saver.inbox("posted to")

    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        yield lambda: box.post(HumanMessage(f"and look at item {number}, too"))
        if len(box.pending()) != 1 or box.clear() != 1:
            raise RuntimeError("a message was posted and does not wait")

    return prepare


def _delivering(saver: TurnCheckpointSaver) -> Prepare:
    box = saver.inbox("taken from")

    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        posted = box.post(HumanMessage(f"and look at item {number}, too"))
        delivered: list[str] = []

        def call() -> None:
            delivered.extend(str(message.id) for message in box.pending())
            box.acknowledge(delivered)

        yield call
        if delivered != [posted] or box.pending():
            raise RuntimeError(f"delivered {delivered}, not {posted}, and {box.pending()} still wait")

    return prepare


def _removing(disk: DiskFloor) -> Prepare:
    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        disk.file()
        yield disk.removal

    return prepare


def _as_ours(p50: dict[str, float], name: str) -> dict[str, float]:
    return {"ours": p50[name]} if name in p50 else {}
