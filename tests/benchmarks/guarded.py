"""Rows that time guarded agents: their turns, and what the guard adds where a long history is healthy.

A guarded agent is compared with the same agent without a guard, over our saver and over those of the others. What the
guard does inside a run is timed where it does it, in real runs: the difference of two runs would be mostly noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from langgraph_turncheckpoint._attached import GuardedRun
from langgraph_turncheckpoint._middleware import GuardMiddleware
from tests.benchmarks.agents import (
    DEFAULT_DURABILITY,
    AgentLane,
    Durability,
    Way,
)
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import Contender
from tests.benchmarks.results import Result, against_bound, against_peer
from tests.benchmarks.timing import Stopwatch, medians

_LOOK_SECONDS: Final = 0.005

#: Model calls of one turn of the agent.
_CALLS_PER_TURN: Final = 2

_BARE: Final = "bare ours"


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
        prepared = {name: lane.threads_of(turns) for name, lane in lanes.items()}
        p50 = medians(bench.interleave(prepared, rounds=turns * threads))
        for made in lanes.values():
            made.check()
    bare = p50.pop(_BARE, None)
    note = "" if bare is None else f"the same agent on our saver without the guard: {bare * 1e3:.2f} ms"
    named = f"durability {durability}" if durability != DEFAULT_DURABILITY else "default durability"
    return against_peer(
        key,
        f"turn of a {turns}-turn agent, {_way_in(way)}, {named}",
        p50,
        times=1,
        target="not slower",
        note=note,
    )


def _way_in(way: Way) -> str:
    return {"attach": "guard.attach", "middleware": "guard.middleware()", "bare": "no guard"}[way]


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
            _check_looks(lanes, attached, prepared, rounds=rounds)
    first, later = prepared.seconds[::_CALLS_PER_TURN], prepared.seconds[1::_CALLS_PER_TURN]
    return [
        against_bound(
            "healthy-attach",
            f"guard.attach's look at {size:,} healthy messages",
            {"ours": median(attached.seconds)} if attached.seconds else {},
            bound=_LOOK_SECONDS,
            target="under 5 ms, no update",
            unit="seconds",
            note="once per run, with the durable record of the prompt",
        ),
        against_bound(
            "healthy-middleware",
            f"guard.middleware()'s look at {size:,} healthy messages",
            {"ours": median(first)} if first else {},
            bound=_LOOK_SECONDS,
            target="under 5 ms, no update",
            unit="seconds",
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
    if any(attached.results) or any(look is None or look.changed for look in prepared.results):
        raise RuntimeError("a healthy history was changed")
    steps = {}
    for way, lane in lanes.items():
        lane.check()
        found = lane.saver.get_tuple(lane.config)
        steps[way] = None if found is None else found.metadata["step"]
    if len(set(steps.values())) != 1:
        raise RuntimeError(f"a healthy history was updated: the last steps are {steps}")
