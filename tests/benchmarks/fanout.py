"""The row of a wide fan-out, in a real graph: one node sends hundreds of tasks, each of which writes."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, Final

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import Saver
from tests.benchmarks.counting import CountingSaver
from tests.benchmarks.lane import Call
from tests.benchmarks.messages import conversation
from tests.benchmarks.results import Floor, Result, beside_peer
from tests.benchmarks.timing import Prepare, medians

#: Without a saver; what the graph itself takes.
_NONE: Final = "none"


class Spread(TypedDict):
    """Numbers to look up, and what was found for them."""

    numbers: list[int]
    found: Annotated[list[AnyMessage], operator.add]


class Task(TypedDict):
    """The number that one task looks up."""

    number: int


def fan_out_graph(saver: Saver | None, results: list[AnyMessage]) -> Any:
    """Sends each number to a task of its own; a last node sees all that was found."""

    def look_up(state: Task) -> dict[str, Any]:
        return {"found": [results[state["number"]]]}

    def send(state: Spread) -> list[Send]:
        return [Send("look_up", {"number": number}) for number in state["numbers"]]

    def conclude(state: Spread) -> dict[str, Any]:
        return {"numbers": []}

    builder = StateGraph(Spread)
    builder.add_node("look_up", look_up, input_schema=Task)
    builder.add_node("conclude", conclude)
    builder.add_conditional_edges(START, send, ["look_up"])
    builder.add_edge("look_up", "conclude")
    builder.add_edge("conclude", END)
    return builder.compile(checkpointer=saver)


def wide_fan_out(bench: Bench) -> list[Result]:
    """A whole run, from its input to its end, each checkpoint stored before the next node runs."""
    width = bench.sizes.fan_out
    messages = conversation("fan-out")
    results = [next(messages) for _ in range(3 * width)][2::3]
    with ExitStack() as stack:
        prepared: dict[str, Prepare] = {}
        for contender in bench.contenders:
            saver = contender.open(bench.directory(f"{contender.name}-fan-out"))
            stack.callback(contender.close, saver)
            prepared[contender.name] = _runs(fan_out_graph(saver, results), width)
        prepared[_NONE] = _runs(fan_out_graph(None, results), width)
        counted = CountingSaver()
        with _runs(fan_out_graph(counted, results), width)(0) as run:
            run()
        disk = counted.saves.on(bench.floor)
        p50 = medians(bench.interleave(prepared, rounds=bench.sizes.fan_out_rounds, floor=disk))
    least = p50.pop("floor") + p50.pop(_NONE)
    floor = Floor(least, f"the graph without a saver, {counted.saves.text()}, one after the other")
    work = f"run of a graph that sends {width} tasks"
    return [beside_peer("fan-out", work, p50, floor=floor)]


def _runs(graph: Any, width: int) -> Prepare:
    options: dict[str, Any] = {} if graph.checkpointer is None else {"durability": "sync"}

    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        config: RunnableConfig = {"configurable": {"thread_id": f"fan-out-{number}"}}
        given = {"numbers": list(range(width)), "found": []}
        found: list[Any] = []
        yield lambda: found.append(graph.invoke(given, config, **options))
        if len(found[0]["found"]) != width:
            raise RuntimeError(f"{len(found[0]['found'])} of {width} tasks gave a result")

    return prepare
