"""Rows that time agents: their turns with a guard, what each saver adds, the guard's look at a long healthy history.

A guarded agent is compared with the same agent without a guard, over our saver and over those of the others. What the
guard does inside a run is timed where it does it, in real runs: the difference of two runs would be mostly noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from statistics import median
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from langgraph_turncheckpoint._attached import GuardedRun
from langgraph_turncheckpoint._middleware import GuardMiddleware
from langgraph_turncheckpoint._watched_saver import Look
from tests.benchmarks.agents import (
    DEFAULT_DURABILITY,
    AgentLane,
    Durability,
    Way,
    saves_of_a_turn,
)
from tests.benchmarks.bench import Bench, floor_round
from tests.benchmarks.contenders import Contender
from tests.benchmarks.floors import pairing, together
from tests.benchmarks.messages import tool_using_turns
from tests.benchmarks.results import Floor, Result, against_bound, against_peer, beside_peer
from tests.benchmarks.timing import Stopwatch, medians

_LOOK_SECONDS: Final = 0.005

#: Model calls of one turn of the agent.
_CALLS_PER_TURN: Final = 2

#: What the guard waits for in a turn with one tool call: its token, the prompt, the start of the tool.
GUARD_APPENDS: Final = 3

_BARE: Final = "bare ours"
_NONE: Final = "none"
_GUARDED_FLOOR: Final = "floor of a guarded turn"


# --- agents ---


def attached_agent_sync(bench: Bench) -> list[Result]:
    """An agent behind `guard.attach`, each checkpoint stored before the next node runs."""
    return [_agent(bench, "attach-sync", "attach", durability="sync")]


def attached_agent(bench: Bench) -> list[Result]:
    """An agent behind `guard.attach`, as LangGraph runs it by default."""
    return [_agent(bench, "attach", "attach", durability=DEFAULT_DURABILITY)]


def agent_with_middleware_sync(bench: Bench) -> list[Result]:
    """An agent with `guard.middleware()`, each checkpoint stored before the next node runs."""
    return [_agent(bench, "middleware-sync", "middleware", durability="sync")]


def agent_with_middleware(bench: Bench) -> list[Result]:
    """An agent with `guard.middleware()`, as LangGraph runs it by default."""
    return [_agent(bench, "middleware", "middleware", durability=DEFAULT_DURABILITY)]


def _agent(bench: Bench, key: str, way: Way, *, durability: Durability) -> Result:
    """Turns of a guarded agent over our saver, and of the same agent without a guard over all savers."""
    turns, threads = bench.sizes.agent_turns, bench.sizes.agent_threads
    lanes: dict[str, AgentLane] = {}
    saves = saves_of_a_turn()
    with ExitStack() as stack:

        def lane(contender: Contender, lane_way: Way) -> AgentLane:
            root = bench.directory(f"{contender.name}-{lane_way}")
            saver = contender.open(root)
            stack.callback(contender.close, saver)
            made = AgentLane(saver, lane_way, durability=durability)
            made.check_journal(root)
            return made

        for contender in bench.contenders:
            is_ours = contender.name == "ours"
            lanes[contender.name] = lane(contender, way if is_ours else "bare")
            if is_ours and not bench.stopwatch.profiling:
                lanes[_BARE] = lane(contender, "bare")
        if not bench.stopwatch.profiling:
            lanes[_NONE] = AgentLane(None, "bare")
        prepared = {name: lane.threads_of(turns) for name, lane in lanes.items()}
        disk = saves.on(bench.floor, appends=GUARD_APPENDS)
        p50 = medians(bench.interleave(prepared, rounds=turns * threads, floor=disk))
        for made in lanes.values():
            made.check()
    bare, alone, written = p50.pop(_BARE, None), p50.pop(_NONE, None), p50.pop("floor", None)
    floor = None
    if alone is not None and written is not None:
        floor = Floor(alone + written, f"the agent without a saver, {saves.text(appends=GUARD_APPENDS)}")
    note = "" if bare is None else f"the same agent on our saver without the guard: {bare * 1e3:.2f} ms"
    named = f"durability {durability}" if durability != DEFAULT_DURABILITY else "default durability"
    return against_peer(
        key,
        f"turn of a {turns}-turn agent, {_way_in(way)}, {named}",
        p50,
        times=1,
        target="not slower",
        floor=floor,
        note=note,
    )


def _way_in(way: Way) -> str:
    return {"attach": "guard.attach", "middleware": "guard.middleware()", "bare": "no guard"}[way]


def added_by_turn(bench: Bench) -> list[Result]:
    """What each saver adds to a turn of an agent, over the same turn without a saver; ours also with its guard.

    Each turn is compared with the same turn of the same conversation, and the median is that of the differences.
    """
    turns, threads = bench.sizes.agent_turns, bench.sizes.agent_threads
    lanes: dict[str, AgentLane] = {_NONE: AgentLane(None, "bare")}
    saves = saves_of_a_turn()
    ways: tuple[Way, ...] = ("bare", "attach", "middleware")
    with ExitStack() as stack:
        for contender in bench.contenders:
            for way in ways if contender.name == "ours" else ways[:1]:
                saver = contender.open(bench.directory(f"{contender.name}-added"))
                stack.callback(contender.close, saver)
                lanes[contender.name if way == "bare" else way] = AgentLane(saver, way)
        prepared = {name: lane.threads_of(turns) for name, lane in lanes.items()}
        prepared[_GUARDED_FLOOR] = floor_round(saves.on(bench.floor, appends=GUARD_APPENDS))
        taken = bench.interleave(prepared, rounds=turns * threads, floor=saves.on(bench.floor))
        for lane in lanes.values():
            lane.check()
    disk, guarded_disk, alone = taken.pop("floor"), taken.pop(_GUARDED_FLOOR), taken.pop(_NONE)
    added = {name: _median_difference(times, alone) for name, times in taken.items()}
    by_way = {"bare": added.get("ours"), **{way: added.pop(way, None) for way in ways[1:]}}
    results = []
    for way, key in zip(ways, ("added", "added-attach", "added-middleware"), strict=True):
        ours, appends = by_way[way], 0 if way == "bare" else GUARD_APPENDS
        waits = disk if way == "bare" else guarded_disk
        results.append(
            beside_peer(
                key,
                f"added to a turn of a {turns}-turn agent, {_way_in(way)}",
                added if ours is None else {**added, "ours": ours},
                floor=Floor(median(waits), saves.text(appends=appends)),
                note=f"a turn without a saver: {median(alone) * 1e3:.2f} ms" if way == "bare" else "",
            )
        )
    return results


def _median_difference(times: Sequence[float], without: Sequence[float]) -> float:
    return median(one - other for one, other in zip(times, without, strict=True))


# --- a long healthy history ---


class Looks(NamedTuple):
    """What was seen of one method, call by call.

    Attributes:
        seconds: How long each call took.
        results: What each gave back.
    """

    seconds: list[float]
    results: list[Any]


@contextmanager
def clocked(owner: type, name: str, stopwatch: Stopwatch) -> Iterator[Looks]:
    """Time a method wherever it is called, while the block lasts."""
    looks, original = Looks([], []), getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        def call() -> None:
            looks.results.append(original(*args, **kwargs))

        looks.seconds.append(stopwatch.time(call))
        return looks.results[-1]

    with patch.object(owner, name, timed):
        yield looks


def healthy_history(bench: Bench) -> list[Result]:
    """What the guard adds where nothing is wrong: its look at a history of thousands of messages.

    With `attach` that is all between a run's first checkpoint and its first node; with the middleware, all between
    the agent's decision to call the model and that call. Of the latter the first of a run is the dearest.
    """
    size, rounds = bench.sizes.large, bench.sizes.healthy_rounds
    ours = [contender for contender in bench.contenders if contender.name == "ours"]
    ways: tuple[Way, ...] = ("attach", "middleware", "bare")
    attached, prepared = Looks([], []), Looks([], [])
    messages = list(chain.from_iterable(islice(tool_using_turns("healthy"), size // 4)))
    least = together(bench.floor.append, lambda: pairing(messages))
    waits: list[float] = []
    for contender in ours:
        with ExitStack() as stack:
            lanes = {}
            for way in ways:
                saver = contender.open(bench.directory(f"{contender.name}-healthy"))
                stack.callback(contender.close, saver)
                lanes[way] = AgentLane(saver, way)
                lanes[way].enter("healthy", history=size)
            attached = stack.enter_context(clocked(GuardedRun, "_recover", bench.stopwatch))
            prepared = stack.enter_context(clocked(GuardMiddleware, "_prepare", bench.stopwatch))
            for number in range(rounds):
                shift = number % len(ways)
                for way in ways[shift:] + ways[:shift]:
                    with lanes[way].turn(number) as call:
                        call()
                if not bench.stopwatch.profiling:
                    waits.append(bench.stopwatch.time(least))
            _check_looks(lanes, attached, prepared, rounds=rounds)
    first, later = prepared.seconds[::_CALLS_PER_TURN], prepared.seconds[1::_CALLS_PER_TURN]
    floor = Floor(median(waits), f"a durable append, a pass over {size:,} messages") if waits else None
    return [
        against_bound(
            "healthy-attach",
            f"guard.attach's look at {size:,} healthy messages",
            {"ours": median(attached.seconds)} if attached.seconds else {},
            bound=_LOOK_SECONDS,
            target="under 5 ms, no update",
            unit="seconds",
            floor=floor,
            note="once per run, with the durable record of the prompt",
        ),
        against_bound(
            "healthy-middleware",
            f"guard.middleware()'s look at {size:,} healthy messages",
            {"ours": median(first)} if first else {},
            bound=_LOOK_SECONDS,
            target="under 5 ms, no update",
            unit="seconds",
            floor=floor,
            note="first model call of a run, with the start of the journal and the durable record of the prompt; "
            f"later ones: {median(later) * 1e3:.2f} ms"
            if later
            else "",
        ),
    ]


def _check_looks(lanes: dict[Way, AgentLane], attached: Looks, prepared: Looks, *, rounds: int) -> None:
    """See that each look was taken and changed nothing: no look says so, and no thread has a checkpoint too many."""
    if len(attached.results) != rounds or len(prepared.results) != _CALLS_PER_TURN * rounds:
        raise RuntimeError(f"{len(attached.results)} and {len(prepared.results)} looks in {rounds} runs")
    if any(look != Look() for look in attached.results) or any(
        look is None or look.changed for look in prepared.results
    ):
        raise RuntimeError("a healthy history was changed")
    steps = {}
    for way, lane in lanes.items():
        lane.check()
        assert lane.saver is not None
        found = lane.saver.get_tuple(lane.config)
        steps[way] = None if found is None else found.metadata["step"]
    if len(set(steps.values())) != 1:
        raise RuntimeError(f"a healthy history was updated: the last steps are {steps}")
