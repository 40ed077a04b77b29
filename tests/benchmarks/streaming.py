"""Rows that time what recording a streamed reply adds to its delivery. Real callbacks, a model that streams at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final
from unittest.mock import patch

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from langgraph_turncheckpoint import _guard_core
from langgraph_turncheckpoint._journal import read_journal
from langgraph_turncheckpoint._running import FLUSH_SECONDS, RunningTurn
from tests.benchmarks.agents import StreamingModel, Way, guarded_agent, journals
from tests.benchmarks.bench import Bench
from tests.benchmarks.contenders import Saver
from tests.benchmarks.lane import Call
from tests.benchmarks.results import Result, against_bound
from tests.benchmarks.timing import Prepare, medians

#: The pace at which a model delivers: seconds per token.
TOKEN_SECONDS: Final = 0.01

_SHARE_OF_DELIVERY: Final = 0.02


class Delivery:
    """The time of a model that delivers at an even pace, however fast its tokens are taken."""

    def __init__(self) -> None:
        self.number = 0
        self.at_last_token: Callable[[], None] | None = None

    def now(self) -> float:
        """Seconds since the first token."""
        return self.number * TOKEN_SECONDS


def streamed_inside(bench: Bench) -> list[Result]:
    """Tokens that the model streams and nobody but callbacks sees: the run is invoked."""
    return _streamed(bench, "stream", "invoke", None)


def streamed_to_caller(bench: Bench) -> list[Result]:
    """Tokens that reach the caller, too, with LangGraph's own callback handler beside the guard's."""
    return _streamed(bench, "stream-messages", 'stream_mode="messages"', "messages")


def _streamed(bench: Bench, key: str, how: str, stream_mode: str | None) -> list[Result]:
    """The same stream with and without the guard, as fast as it goes; the difference is the guard's.

    The guard writes streamed text so many times a second. Its clock therefore shows the time of delivery: it writes as
    often, and starts as many timers, as it would if the tokens really came at their pace.
    """
    tokens = [f"token{number} " for number in range(bench.sizes.tokens)]
    ways: tuple[Way, ...] = ("attach",) if bench.stopwatch.profiling else ("attach", "bare")
    delivery = Delivery()
    taken: dict[str, list[float]] = {}
    for contender in bench.contenders:
        if contender.name != "ours":
            continue
        with ExitStack() as stack:
            paced = partial(RunningTurn, clock=delivery.now)
            stack.enter_context(patch.object(_guard_core, "RunningTurn", paced))
            prepared: dict[str, Prepare] = {}
            for way in ways:
                root = bench.directory(f"{contender.name}-stream")
                saver = contender.open(root)
                stack.callback(contender.close, saver)
                prepared[way] = _stream_rounds(saver, way, tokens, delivery, stream_mode)
                _check_records(root, way, prepared[way], delivery, tokens=len(tokens))
            taken = bench.interleave(prepared, rounds=bench.sizes.stream_rounds)
    if len(taken) < len(ways) or len(ways) == 1:
        return []
    added = median((guarded - bare) / len(tokens) for guarded, bare in zip(taken["attach"], taken["bare"], strict=True))
    per_token = {way: seconds / len(tokens) for way, seconds in medians(taken).items()}
    return [
        against_bound(
            key,
            f"guard.attach, streaming {len(tokens):,} tokens, {how}",
            {"ours": added / TOKEN_SECONDS},
            bound=_SHARE_OF_DELIVERY,
            target="under 2 % of delivery",
            unit="share",
            note=f"added time, at {1 / TOKEN_SECONDS:g} tokens/s: {added * 1e6:.1f} us per token; "
            f"a token takes {per_token['attach'] * 1e6:.1f} us with guard.attach, "
            f"{per_token['bare'] * 1e6:.1f} us without",
        )
    ]


def _stream_rounds(saver: Saver, way: Way, tokens: list[str], delivery: Delivery, stream_mode: str | None) -> Prepare:
    def on_token(number: int) -> None:
        delivery.number = number
        if delivery.at_last_token is not None and number == len(tokens) - 1:
            delivery.at_last_token()

    _, graph = guarded_agent(StreamingModel(streaming=True, tokens=tokens, on_token=on_token), [], saver, way)
    whole = "".join(tokens)

    @contextmanager
    def prepare(number: int) -> Iterator[Call]:
        config: RunnableConfig = {"configurable": {"thread_id": f"stream{number}"}}
        given = {"messages": [HumanMessage("go on")]}
        received: list[str] = []
        delivery.number = 0

        def call() -> None:
            if stream_mode is None:
                received.append(graph.invoke(given, config)["messages"][-1].content)
            else:
                received.extend(chunk.content for chunk, _ in graph.stream(given, config, stream_mode=stream_mode))

        yield call
        if "".join(received) != whole:
            raise RuntimeError(f"the {way} agent did not stream what its model said")

    return prepare


def _check_records(root: Path, way: Way, prepared: Prepare, delivery: Delivery, *, tokens: int) -> None:
    """See that the recorder writes as often as it may, and that nobody writes where there is none."""
    counted: list[int] = []

    def count() -> None:
        contents = [read_journal(str(path)) for path in journals(root)]
        counted.append(sum(len(content.payloads) for content in contents if content is not None))

    delivery.at_last_token = count
    with prepared(-1) as call:
        call()
    delivery.at_last_token = None
    least = int(tokens * TOKEN_SECONDS / (FLUSH_SECONDS + TOKEN_SECONDS))
    if (counted[0] > 0) is (way == "bare") or (way != "bare" and counted[0] < least):
        raise RuntimeError(f"{counted[0]} records in journals of the {way} agent, and {least} flushes were due")
