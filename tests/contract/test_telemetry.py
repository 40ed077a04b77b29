"""What an instrumented saver tells OpenTelemetry, and that it does the same as one that is not."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from typing_extensions import TypedDict

from langgraph_turncheckpoint import (
    DamageWarning,
    InvalidIdError,
    StaleTurnError,
    TurnCheckpointSaver,
    UnserializableValueError,
    _events,
    telemetry,
)
from langgraph_turncheckpoint.telemetry import instrument, is_instrumented, uninstrument
from tests.contract.guarded_agents import WAYS, Agent, Ending, calls
from tests.contract.guarded_places import Place
from tests.contract.storing import Thread, addressed, fresh, named

SECRET = "the-password-is-swordfish"


class Told:
    """Providers that keep everything, and what they were told."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider(metric_readers=[self._reader])

    @property
    def options(self) -> dict[str, Any]:
        return {"tracer_provider": self.tracers, "meter_provider": self.meters}

    def spans(self, name: str = "") -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name.endswith(name)]

    def points(self, name: str) -> list[tuple[Mapping[str, Any], Any]]:
        data = self._reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), getattr(point, "value", None) or getattr(point, "count", 0))
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def total(self, name: str, **attributes: str) -> Any:
        return sum(value for found, value in self.points(name) if attributes.items() <= found.items())

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def otel():
    told = Told()
    yield told
    told.close()
    _events.listeners.clear()


@pytest.fixture
def thread(tmp_path, otel):
    return Thread(instrument(TurnCheckpointSaver(tmp_path / "store", fsync=False), **otel.options), "1")


class State(TypedDict, total=False):
    messages: Annotated[list[BaseMessage], add_messages]


def graph_with(saver):
    builder: Any = StateGraph(State)
    builder.add_node("say", lambda _: {"messages": [("ai", "well")]})
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    return builder.compile(checkpointer=saver)


# --- the same saver ---


def test_it_is_the_same_object_of_a_subclass_and_can_be_undone(tmp_path, otel):
    saver = TurnCheckpointSaver(tmp_path)
    assert instrument(saver, **otel.options) is saver
    assert isinstance(saver, TurnCheckpointSaver)
    assert repr(saver) == repr(TurnCheckpointSaver(tmp_path))
    assert is_instrumented(saver)
    assert uninstrument(saver) is saver
    assert type(saver) is TurnCheckpointSaver
    assert not is_instrumented(saver)
    assert _events.listeners == {}
    uninstrument(saver)
    saver.put(addressed("1"), Thread(saver).next({"n": 1}), {}, {"n": "1"})
    assert otel.spans() == []


def test_a_subclass_keeps_its_own_methods(tmp_path, otel):
    class Counting(TurnCheckpointSaver):
        puts = 0

        def put(self, *args: Any) -> Any:
            self.puts += 1
            return super().put(*args)

    saver = instrument(Counting(tmp_path, fsync=False), **otel.options)
    assert isinstance(saver, Counting)
    thread = Thread(saver)
    thread.put({"n": 1})
    assert (saver.puts, len(otel.spans(".put"))) == (1, 1)
    assert type(uninstrument(saver)) is Counting


def test_copies_that_langgraph_makes_tell_too(thread, otel):
    thread.saver = thread.saver.with_allowlist([("tests", "Thing")])
    assert is_instrumented(thread.saver)
    thread.put({"n": 1})
    assert len(otel.spans(".put")) == 1


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_graph_gives_the_same_with_it_as_in_memory(tmp_path, otel, colour):
    savers = [InMemorySaver(), instrument(TurnCheckpointSaver(tmp_path), **otel.options)]
    seen = []
    for saver in savers:
        graph = graph_with(saver)
        config: Any = {"configurable": {"thread_id": "1"}}
        for text in ("hello", "again"):
            given: Any = {"messages": [("user", text)]}
            await graph.ainvoke(given, config) if colour == "async" else graph.invoke(given, config)
        history = [[m.text for m in s.values.get("messages", ())] for s in graph.get_state_history(config)]
        seen.append(history)
    assert seen[0] == seen[1]
    names = {span.name for span in otel.spans()}
    assert {f"langgraph.checkpoint.{name}" for name in ("put", "put_writes", "get_tuple", "list")} <= names


def test_what_is_no_saver_of_ours_is_not_instrumented():
    assert not is_instrumented(InMemorySaver())
    assert not is_instrumented(None)


def test_what_is_no_saver_of_ours_is_refused():
    for function in (instrument, uninstrument):
        with pytest.raises(TypeError, match="InMemorySaver is no TurnCheckpointSaver"):
            function(InMemorySaver())  # type: ignore[arg-type]


def test_an_unknown_way_to_tell_ids_is_refused(tmp_path, otel):
    saver = TurnCheckpointSaver(tmp_path)
    with pytest.raises(ValueError, match="thread_ids='md5'"):
        instrument(saver, **otel.options, thread_ids="md5")  # type: ignore[arg-type]
    assert not is_instrumented(saver)


def test_without_the_package_the_error_names_the_extra(tmp_path):
    body = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from langgraph_turncheckpoint import MissingExtraError, TurnCheckpointSaver\n"
        "from langgraph_turncheckpoint.telemetry import instrument, is_instrumented\n"
        f"saver = TurnCheckpointSaver({str(tmp_path)!r})\n"
        "try: instrument(saver)\n"
        "except MissingExtraError as error: print('[otel]' in str(error), is_instrumented(saver))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", body], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


# --- spans ---


def test_a_put_tells_what_was_put_and_how_large_it_was(thread, otel):
    thread.put({"messages": [SECRET * 100]}, metadata={"secret": SECRET})
    (span,) = otel.spans("langgraph.checkpoint.put")
    attributes = dict(span.attributes)
    assert attributes.pop("langgraph.checkpoint.size") > 0
    assert attributes == {
        "langgraph.thread.id": hashlib.sha256(b"1").hexdigest()[:16],
        "langgraph.checkpoint.ns": "",
        "langgraph.checkpoint.id": thread.ids[0],
        "langgraph.checkpoint.source": "loop",
        "langgraph.checkpoint.step": 0,
    }
    assert span.status.status_code is StatusCode.UNSET


def test_what_is_shared_with_the_parent_is_not_counted_as_written(thread, otel):
    big = [f"message {n} " * 40 for n in range(500)]
    thread.put({"messages": big})
    thread.put({"messages": [*big, "one more"]})
    first, second = (span.attributes["langgraph.checkpoint.size"] for span in otel.spans(".put"))
    assert second < first / 5
    assert otel.total("langgraph.checkpoint.written", operation="put") == first + second


def test_writes_tell_how_many_and_repeated_ones_write_nothing(thread, otel):
    thread.put({"n": 1})
    thread.write("a", "b")
    thread.write("a", "b")
    first, second = otel.spans(".put_writes")
    assert first.attributes["langgraph.checkpoint.writes"] == 2
    assert first.attributes["langgraph.checkpoint.size"] > 0
    assert "langgraph.checkpoint.size" not in second.attributes


def test_reading_tells_what_was_found(thread, otel):
    thread.put({"n": 1})
    thread.saver.get_tuple(addressed("1"))
    thread.saver.get_tuple(addressed("none"))
    assert [span.attributes["langgraph.checkpoint.found"] for span in otel.spans(".get_tuple")] == [True, False]


def test_a_list_tells_how_many_were_taken_also_if_the_consumer_had_enough(thread, otel):
    for n in range(5):
        thread.put({"n": n})
    assert len([*thread.saver.list(addressed("1"))]) == 5
    some = thread.saver.list(addressed("1"))
    next(some)
    some.close()
    spans = otel.spans(".list")
    assert [span.attributes["langgraph.checkpoint.returned"] for span in spans] == [5, 1]
    assert all(span.status.status_code is StatusCode.UNSET for span in spans)


@pytest.mark.parametrize(
    ("thread_ids", "told"),
    [("plain", "1"), ("none", None), (lambda thread_id: f"<{thread_id}>", "<1>")],
)
def test_how_thread_ids_are_told_is_a_choice(tmp_path, otel, thread_ids, told):
    saver = instrument(TurnCheckpointSaver(tmp_path, fsync=False), **otel.options, thread_ids=thread_ids)
    Thread(saver, "1").put({"n": 1})
    (span,) = otel.spans(".put")
    assert span.attributes.get("langgraph.thread.id") == told


async def test_spans_of_both_colours_have_the_callers_span_as_their_parent(thread, otel):
    tracer = otel.tracers.get_tracer("app")
    with tracer.start_as_current_span("app") as app:
        thread.put({"n": 1})
        await thread.saver.aget_tuple(addressed("1"))
        assert [found async for found in thread.saver.alist(addressed("1"))]
        await thread.saver.aput_writes(thread.config, [("n", 1)], "task")
    spans = otel.spans("")
    ours = [span for span in spans if span.name.startswith("langgraph.")]
    assert len(ours) == 4
    assert {span.parent.span_id for span in ours} == {app.get_span_context().span_id}


async def test_concurrent_operations_do_not_mix_their_sizes(thread, otel):
    thread.put({"n": 1})
    writes = [thread.saver.aput_writes(thread.config, [("n", "x" * 1000 * n)], f"task-{n}") for n in range(1, 9)]
    await asyncio.gather(*writes)
    sizes = sorted(span.attributes["langgraph.checkpoint.size"] for span in otel.spans(".put_writes"))
    assert len(set(sizes)) == 8
    assert otel.total("langgraph.checkpoint.written", operation="put_writes") == sum(sizes)


# --- what goes wrong ---


def test_a_refused_write_is_a_failed_span_and_is_counted(thread, otel):
    with thread.saver.turn(addressed("1")) as config:
        thread.saver.cancel_turn("1")
        with pytest.raises(StaleTurnError):
            thread.saver.put(config, thread.next({"messages": [SECRET]}), {}, {})
    (span,) = otel.spans(".put")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "StaleTurnError"
    expected = {"operation": "put", "error.type": "StaleTurnError"}
    assert otel.points("langgraph.checkpoint.refused") == [(expected, 1)]


def test_an_error_is_told_by_its_class_alone(thread, otel):
    with pytest.raises(UnserializableValueError):
        thread.saver.put(addressed("1"), {**thread.next({"n": 1}), "channel_values": {"n": open}}, {}, {"n": "9"})
    (span,) = otel.spans(".put")
    assert span.attributes["error.type"] == "UnserializableValueError"
    assert (span.events, span.status.description) == ((), None)
    assert otel.points("langgraph.checkpoint.refused") == []


@pytest.mark.parametrize("config", [{}, {"configurable": None}, {"configurable": {"thread_id": None}}])
def test_bad_input_gets_the_same_error_as_without(thread, otel, config):
    with pytest.raises(InvalidIdError):
        thread.saver.get_tuple(config)
    with pytest.raises(InvalidIdError):
        thread.saver.put(config, thread.next({}), {}, {})
    with pytest.raises(InvalidIdError):
        next(iter(thread.saver.list(config)))
    assert {span.attributes.get("error.type") for span in otel.spans()} == {"InvalidIdError"}


def test_damage_is_counted_each_time_it_is_passed_over(thread, otel):
    for n in range(2):
        thread.put({"messages": [SECRET] * n})
    file = named(thread.saver.path, ".ckpt")[-1]
    file.write_bytes(file.read_bytes()[:-9])
    for _ in range(2):
        with pytest.warns(DamageWarning):
            thread.saver.get_tuple(addressed("1"))
    assert otel.total("langgraph.checkpoint.damage") == 2


def test_two_instrumented_savers_of_one_directory_count_damage_once(thread, otel):
    second = instrument(fresh(thread.saver), **otel.options)
    for n in range(2):
        thread.put({"n": n})
    file = named(thread.saver.path, ".ckpt")[-1]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(DamageWarning):
        second.get_tuple(addressed("1"))
    uninstrument(thread.saver)
    with pytest.warns(DamageWarning):
        second.get_tuple(addressed("1"))
    assert otel.total("langgraph.checkpoint.damage") == 2


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_recovery_is_a_span_and_its_answers_are_counted(tmp_path, otel, colour):
    place, reached = Place("turn", colour, tmp_path), threading.Event()
    script = {SECRET: calls("fast", "slow")}
    way = WAYS["attach-one-task"]
    ending = Ending("stop", reached=reached, after=lambda: place.journals_hold("fast gave"))
    Agent(place, way, script, endings={"slow": ending}).stop_in(SECRET, reached)
    agent = Agent(place, way, script)
    instrument(agent.saver, **otel.options)  # type: ignore[arg-type]
    agent.say("and now?")
    (span,) = otel.spans("langgraph.turn.recover")
    told = {key.rpartition(".")[2]: value for key, value in span.attributes.items()}
    assert (told["answers"], told["changed"]) == (2, True)
    assert span.start_time < span.end_time
    outcomes = {found["outcome"]: value for found, value in otel.points("langgraph.turn.repairs")}
    assert outcomes == {"recorded": 1, "unknown": 1}
    assert SECRET not in repr([dict(each.attributes) for each in otel.spans()])
    place.close()


def documented() -> tuple[dict[str, set[str]], set[str]]:
    """Spans with their attributes, and metrics, as the module's docstring lists them."""
    rows = [row.split() for row in (telemetry.__doc__ or "").splitlines() if row.startswith("    langgraph.")]
    kinds = {row[0]: row[0].rpartition(".")[0] for row in rows}
    spans = {row[0]: {kinds[row[0]] + each.strip(",") for each in row[1:]} for row in rows if row[1].startswith(".")}
    return spans, kinds.keys() - spans.keys()


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("way", [WAYS["attach-agent"], WAYS["middleware"]], ids=lambda way: way.name)
def test_an_agent_that_is_stopped_recovered_refused_and_pruned_tells_what_is_documented_and_no_more(
    tmp_path, otel, way, colour
):
    place, reached = Place("turn", colour, tmp_path), threading.Event()
    ending = Ending("stop", reached=reached)
    first = Agent(place, way, {SECRET: calls("slow")}, endings={"slow": ending})
    instrument(first.saver, **otel.options)  # type: ignore[arg-type]
    first.stop_in(SECRET, reached)
    agent = Agent(place, way)
    saver: Any = instrument(agent.saver, **otel.options)  # type: ignore[arg-type]
    assert len(agent.recover().answers) == 1
    agent.say("hello")
    assert len([*saver.list(addressed("t"))]) > 1
    with saver.turn(agent.config) as config:
        saver.cancel_turn("t")
        with pytest.raises(StaleTurnError):
            saver.put(config, Thread(saver).next({"n": 1}), {"source": "loop", "step": 1}, {})
        with pytest.raises(StaleTurnError):
            place.call(agent.graph, "invoke", {"messages": [("human", "x")]}, config)  # it is refused as it reads
    saver.prune(["t"])
    agent.say("again")
    newest = named(saver.path, ".ckpt")[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.warns(DamageWarning):
        saver.get_tuple(agent.config)

    spans, metrics = documented()
    common = {"langgraph.thread.id", "error.type"}
    seen: dict[str, set[str]] = {}
    for span in otel.spans():
        if span.name.startswith("langgraph."):
            seen.setdefault(span.name, set()).update(span.attributes.keys() - common)
    assert seen == spans
    assert {name for name in metrics if otel.points(name)} == metrics
    assert otel.points("langgraph.checkpoint.refused") == [({"operation": "put", "error.type": "StaleTurnError"}, 1)]
    assert otel.total("langgraph.turn.repairs", outcome="unknown") == 1
    sizes = [s.attributes.get("langgraph.checkpoint.size", 0) for s in otel.spans(".put") + otel.spans(".put_writes")]
    assert otel.total("langgraph.checkpoint.written") == sum(sizes) > 0
    assert SECRET not in repr([dict(each.attributes) for each in otel.spans()])
    place.close()


def test_every_operation_is_measured(thread, otel):
    thread.put({"n": 1})
    thread.write("x")
    thread.saver.get_tuple(addressed("1"))
    assert [*thread.saver.list(addressed("1"))]
    counted = {found["operation"]: value for found, value in otel.points("langgraph.checkpoint.duration")}
    assert counted == dict.fromkeys(("put", "put_writes", "get_tuple", "list"), 1)


def test_instrumenting_again_replaces_what_was_told(thread):
    second = Told()
    instrument(thread.saver, **second.options)
    thread.put({"n": 1})
    assert len(second.spans(".put")) == 1
    assert len(_events.listeners[thread.saver.store.root]) == 1
    second.close()
