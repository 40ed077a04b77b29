"""Rows of real graphs with many super-steps: a long thread of small states, a channel stored as deltas.

Each super-step is taken out of a running graph's stream, so that the steps of all savers interleave. The time is that
of LangGraph and the saver together, under `durability="sync"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from typing_extensions import TypedDict

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import Contender, Saver
from tests.benchmarks.floors import Reading
from tests.benchmarks.lane import Call
from tests.benchmarks.messages import conversation
from tests.benchmarks.results import Floor, Result, against_itself, beside_peer
from tests.benchmarks.timing import Prepare, medians

_CONFIG: Final[RunnableConfig] = {"configurable": {"thread_id": "steps"}}
_LISTED: Final = 10

#: Without a saver; what the graph itself takes.
_NONE: Final = "none"


class Counted(TypedDict, total=False):
    """A state that stays small."""

    count: int
    note: str


class Told(TypedDict, total=False):
    """A state that grows by a message with each super-step; stored as what was added, with a snapshot now and then."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def counting_graph(saver: Saver | None) -> Any:
    """A graph that goes round and round; whoever takes its stream says when it is enough."""

    def count(state: Counted) -> Counted:
        number = state.get("count", 0) + 1
        return {"count": number, "note": f"item {number} of the list was looked at"}

    builder = StateGraph(Counted)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    builder.add_edge("count", "count")
    return builder.compile(checkpointer=saver)


def telling_graph(saver: Saver | None, messages: Iterator[AnyMessage]) -> Any:
    """The same, adding one message after the other."""

    def tell(state: Told) -> Told:
        return {"messages": [next(messages)]}

    builder = StateGraph(Told)
    builder.add_node("tell", tell)
    builder.add_edge(START, "tell")
    builder.add_edge("tell", "tell")
    return builder.compile(checkpointer=saver)


@contextmanager
def stepping(graph: Any, given: Any, config: RunnableConfig) -> Iterator[Callable[[], Any]]:
    """A run whose every call makes the next super-step; it ends with the block."""
    options: dict[str, Any] = {} if graph.checkpointer is None else {"durability": "sync"}
    with closing(
        graph.stream(given, {**config, "recursion_limit": 10_000_000}, stream_mode="updates", **options)
    ) as run:
        yield lambda: next(run)


# --- a long thread ---


def long_thread(bench: Bench) -> list[Result]:
    """The last super-steps of a thread of thousands against the first of a new one, then reads of the long one."""
    sizes = bench.sizes
    with ExitStack() as stack:
        roots: dict[str, Path] = {}
        kept: dict[str, Saver] = {}
        prepared: dict[str, Prepare] = {}
        for contender in bench.contenders:
            root = roots[contender.name] = bench.directory(f"{contender.name}-steps")
            saver = _grown(contender, root, counting_graph, {"count": 0}, sizes.steps - sizes.step_rounds)
            if saver is None:
                saver = contender.open(root)
            stack.callback(contender.close, saver)
            kept[contender.name] = saver
            prepared[f"{contender.name} late"] = _steps_of(stack, counting_graph(saver), _CONFIG)
            new = contender.open(bench.directory(f"{contender.name}-first-steps"))
            stack.callback(contender.close, new)
            prepared[f"{contender.name} early"] = _steps_of(stack, counting_graph(new), _CONFIG)
        prepared[_NONE] = _steps_of(stack, counting_graph(None), _CONFIG)
        p50 = medians(bench.interleave(prepared, rounds=sizes.step_rounds, floor=bench.floor.super_step))
        reads = _reads(bench, roots, kept)
    floor = _step_floor(p50)
    late, early = ({one.name: p50[f"{one.name} {when}"] for one in bench.contenders} for when in ("late", "early"))
    first = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in early.items())
    return [
        against_itself(
            "steps-10000",
            f"one of the last {sizes.step_rounds} of {sizes.steps:,} super-steps of a graph",
            late,
            early=early,
            within=1.5,
            target=f"within 1.5 x of the first {sizes.step_rounds}",
            floor=floor,
            note=f"of the first {sizes.step_rounds}: {first}; the ratio is ours late to ours early",
        ),
        *reads,
    ]


def _grown(contender: Contender, root: Path, graph_of: Callable[[Saver], Any], given: Any, steps: int) -> Saver | None:
    """Take the first steps, without waiting for the disk; gives the saver if it cannot be opened again."""
    saver = contender.open(root, durable=False)
    try:
        with stepping(graph_of(saver), given, _CONFIG) as step:
            for _ in range(steps):
                step()
    finally:
        if contender.reopens:
            contender.close(saver)
    return None if contender.reopens else saver


def _steps_of(stack: ExitStack, graph: Any, config: RunnableConfig, given: Any = None) -> Prepare:
    """Rounds of one super-step each; the first is not timed, since a run begins with reading and its input."""
    step = stack.enter_context(stepping(graph, given or {"count": 0}, config))
    step()

    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        yield step

    return prepare


def _step_floor(p50: dict[str, float]) -> Floor:
    least = p50.pop("floor") + p50.pop(_NONE)
    return Floor(least, "the graph without a saver, a durable append, a durable file")


def _reads(bench: Bench, roots: dict[str, Path], kept: dict[str, Saver]) -> list[Result]:
    """`get_tuple` and the first page of `list` by an instance that is at work, as an app's is."""
    sizes = bench.sizes
    results = []
    for key, what, read in (
        ("latest-10000", "get_tuple", _latest),
        ("list-10000", f"list(limit={_LISTED})", _first_page),
    ):
        prepared: dict[str, Prepare] = {name: _reading(read, saver) for name, saver in kept.items()}
        floor = Reading(bench.directory("floor-reading"), read(next(iter(kept.values()))))
        p50 = medians(bench.interleave(prepared, rounds=sizes.step_read_rounds, floor=floor))
        asked = Floor.timed(p50.pop("floor", None), "files of packed values opened, read and unpacked")
        work = f"{what} after {sizes.steps:,} super-steps, saver in use"
        results.append(beside_peer(key, work, p50, floor=asked))
    return results


def _latest(saver: Saver) -> list[Any]:
    found = saver.get_tuple(_CONFIG)
    return [] if found is None else [found]


def _first_page(saver: Saver) -> list[Any]:
    return list(saver.list(_CONFIG, limit=_LISTED))


def _reading(read: Callable[[Saver], Any], saver: Saver) -> Prepare:
    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        yield lambda: read(saver)

    return prepare


# --- a channel stored as deltas ---


def delta_channel(bench: Bench) -> list[Result]:
    """Super-steps of a graph whose messages are a `DeltaChannel`, and loading it in a new instance."""
    sizes = bench.sizes
    with ExitStack() as stack:
        loads: dict[str, Prepare] = {}
        stored: dict[str, tuple[Path, Saver | None, Iterator[AnyMessage]]] = {}
        for contender in bench.contenders:
            root, messages = bench.directory(f"{contender.name}-delta"), conversation("delta")
            graph_of = partial(telling_graph, messages=messages)
            saver = _grown(contender, root, graph_of, {"messages": [next(messages)]}, sizes.delta_steps - 1)
            stored[contender.name] = root, saver, messages
            loads[contender.name] = _loading(contender, root, saver, sizes.delta_steps)
        loaded = medians(bench.interleave(loads, rounds=sizes.delta_read_rounds))
        prepared: dict[str, Prepare] = {}
        for contender in bench.contenders:
            root, saver, messages = stored[contender.name]
            if saver is None:
                saver = contender.open(root)
            stack.callback(contender.close, saver)
            given = {"messages": [next(messages)]}
            prepared[contender.name] = _steps_of(stack, telling_graph(saver, messages), _CONFIG, given)
        messages = conversation("delta")
        given = {"messages": [next(messages) for _ in range(sizes.delta_steps)]}
        prepared[_NONE] = _steps_of(stack, telling_graph(None, messages), _CONFIG, given)
        p50 = medians(bench.interleave(prepared, rounds=sizes.delta_rounds, floor=bench.floor.super_step))
    floor = _step_floor(p50)
    state = f"DeltaChannel of {sizes.delta_steps:,} messages"
    return [
        beside_peer("delta-step", f"super-step of a graph, {state}", p50, floor=floor),
        beside_peer("delta-cold", f"get_state, fresh instance, {state}", loaded),
    ]


def _loading(contender: Contender, root: Path, kept: Saver | None, steps: int) -> Prepare:
    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        saver = kept if kept is not None else contender.open(root)
        graph = telling_graph(saver, iter(()))
        found: list[Any] = []
        yield lambda: found.append(graph.get_state(_CONFIG))
        if kept is None:
            contender.close(saver)
        # The run was cut off between a step's update and its checkpoint; the update is a pending write then.
        count = len(found[0].values["messages"])
        if count not in (steps - 1, steps):
            raise RuntimeError(f"{contender.name} loaded {count} of {steps} messages")

    return prepare
