"""Spans and metrics of a saver for OpenTelemetry. It sits around the saver's own methods and listens to what happens
beside them; nothing in the saver depends on it.

Needs the extra `otel`. Names follow the manner of OpenTelemetry's semantic conventions, which have none for checkpoints
yet:

    span                              attributes
    langgraph.checkpoint.put          .size, .id, .ns, .source, .step
    langgraph.checkpoint.put_writes   .size, .id, .ns, .writes
    langgraph.checkpoint.get_tuple    .id, .ns, .found
    langgraph.checkpoint.list         .ns, .returned
    langgraph.turn.recover            .token, .cause, .changed, .answers, .moved, .set_aside, .restored

    metric                            unit      attributes
    langgraph.checkpoint.duration     s         operation, error.type
    langgraph.checkpoint.written      By        operation
    langgraph.checkpoint.refused      {write}   operation, error.type
    langgraph.checkpoint.damage       {file}
    langgraph.turn.repairs            {answer}  outcome, cause

The attributes of a span are below its kind: `langgraph.checkpoint.size`, `langgraph.turn.token`. Each span has
`langgraph.thread.id`, as `thread_ids` says, and `error.type` if it failed. No text of an error is recorded: it may
quote a value. Of pruning, retention and sweeping nothing is told; the log has what they did.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple

from . import _events
from .errors import MissingExtraError, StaleTurnError, ThreadClosedError
from .saver import TurnCheckpointSaver

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

#: How the ids of threads are told: hashed, as they are, not at all, or as a function makes them.
ThreadIds: TypeAlias = "Literal['hashed', 'plain', 'none'] | Callable[[str], str]"

SCOPE: Final = "langgraph_turncheckpoint"

_CHECKPOINT: Final = "langgraph.checkpoint"
_WRITES: Final = frozenset({"put", "put_writes"})
_TURN: Final = "langgraph.turn"


def instrument(
    saver: TurnCheckpointSaver,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    thread_ids: ThreadIds = "hashed",
) -> TurnCheckpointSaver:
    """Let a saver tell OpenTelemetry what it does, sync and async. It stays the same object and does the same.

    The saver gets a subclass of its own class, so copies that LangGraph makes of it tell, too. Do this before a graph
    is compiled with it. A second call replaces the first.

    Args:
        saver: The saver.
        tracer_provider: Where spans go; the global provider if `None`.
        meter_provider: Where metrics go; the global provider if `None`.
        thread_ids: What stands for a thread's id in spans: the beginning of its SHA-256 (`"hashed"`), the id
            (`"plain"`), nothing (`"none"`), or what a function makes of it. Short ids can be guessed from a plain
            hash; give a function with a key where that matters.

    Returns:
        The saver.

    Raises:
        MissingExtraError: The package `opentelemetry-api` is not installed. Nothing has changed.
        TypeError: It is no `TurnCheckpointSaver`. Nothing has changed.
        ValueError: There is no such choice of `thread_ids`. Nothing has changed.

    Example:
        ```python
        from langgraph_turncheckpoint.telemetry import instrument

        saver = instrument(TurnCheckpointSaver("./checkpoints"))
        graph = builder.compile(checkpointer=saver)
        ```
    """
    _check(saver)
    if not (callable(thread_ids) or thread_ids in ("hashed", "plain", "none")):
        raise ValueError(f"thread_ids={thread_ids!r} is not one of 'hashed', 'plain', 'none', and no function")
    told = _Telling(_instruments(tracer_provider, meter_provider), thread_ids)
    uninstrument(saver)
    saver.__class__ = _instrumented(type(saver))
    vars(saver)[_KEY] = told
    _events.listen(saver.store.root, told.hear)
    return saver


def uninstrument(saver: TurnCheckpointSaver) -> TurnCheckpointSaver:
    """Undo `instrument`; it does nothing to a saver that was not instrumented.

    Returns:
        The saver, of the class that it was of.

    Raises:
        TypeError: It is no `TurnCheckpointSaver`.
    """
    _check(saver)
    told = vars(saver).pop(_KEY, None)
    if told is not None:
        _events.unlisten(saver.store.root, told.hear)
        saver.__class__ = cast(Any, type(saver)).uninstrumented
    return saver


def is_instrumented(saver: object) -> bool:
    """Whether a saver tells OpenTelemetry what it does."""
    return isinstance(saver, TurnCheckpointSaver) and _KEY in vars(saver)


_KEY: Final = "_turncheckpoint_telemetry"


def _check(saver: object) -> None:
    if not isinstance(saver, TurnCheckpointSaver):
        raise TypeError(f"{type(saver).__name__} is no TurnCheckpointSaver; there is nothing to instrument")


# --- what is told ---


class _Instruments(NamedTuple):
    """What is created once for each pair of providers."""

    tracer: Tracer
    duration: Histogram
    written: Counter
    refused: Counter
    damage: Counter
    repairs: Counter


_made: Final[dict[tuple[int, int], tuple[object, object, _Instruments]]] = {}

#: Seconds. A save takes about one millisecond, and some where a disk is slow.
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def _instruments(tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> _Instruments:
    try:
        from opentelemetry import metrics, trace  # noqa: PLC0415 - comes with an extra
    except ImportError as error:
        text = "telemetry.instrument needs OpenTelemetry: pip install 'langgraph-turncheckpoint[otel]'"
        raise MissingExtraError(text) from error
    tracers, meters = tracer_provider or trace.get_tracer_provider(), meter_provider or metrics.get_meter_provider()
    key = id(tracers), id(meters)
    if key not in _made:
        meter = meters.get_meter(SCOPE)
        made = _Instruments(
            tracers.get_tracer(SCOPE),
            meter.create_histogram(
                f"{_CHECKPOINT}.duration",
                unit="s",
                description="How long an operation of the saver took.",
                explicit_bucket_boundaries_advisory=_BUCKETS,
            ),
            meter.create_counter(
                f"{_CHECKPOINT}.written", unit="By", description="Bytes of values that were written, shared ones not."
            ),
            meter.create_counter(
                f"{_CHECKPOINT}.refused", unit="{write}", description="Writes of superseded turns and closed threads."
            ),
            meter.create_counter(
                f"{_CHECKPOINT}.damage", unit="{file}", description="How often a damaged file was passed over."
            ),
            meter.create_counter(
                f"{_TURN}.repairs", unit="{answer}", description="Answers that a guard gave to tool calls."
            ),
        )
        # With the providers, so that no other one can have their ids.
        _made[key] = tracers, meters, made
    return _made[key][2]


class _Telling:
    """What one instrumented saver and its copies share."""

    def __init__(self, instruments: _Instruments, thread_ids: ThreadIds) -> None:
        self.instruments, self._thread_ids = instruments, thread_ids

    def thread(self, thread_id: object) -> dict[str, str]:
        """The attribute that stands for a thread's id."""
        if thread_id is None or self._thread_ids == "none":
            return {}
        if callable(self._thread_ids):
            return {"langgraph.thread.id": str(self._thread_ids(str(thread_id)))}
        if self._thread_ids == "plain":
            return {"langgraph.thread.id": str(thread_id)}
        digest = hashlib.sha256(str(thread_id).encode("utf-8", "surrogatepass")).hexdigest()
        return {"langgraph.thread.id": digest[:16]}

    @contextmanager
    def operation(self, name: str, config: object, **attributes: object) -> Iterator[Span]:
        """A span, current while this is entered, and what is measured of every operation."""
        tracer, began = self.instruments.tracer, time.perf_counter()
        sizes: list[int] = []
        token = _events.written.set(sizes)
        error_type = None
        with tracer.start_as_current_span(
            f"{_CHECKPOINT}.{name}",
            attributes=self._described(config, attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                error_type = self._failed(span, error)
                if name in _WRITES and isinstance(error, (StaleTurnError, ThreadClosedError)):
                    self.instruments.refused.add(1, {"operation": name, "error.type": error_type})
                raise
            finally:
                _events.written.reset(token)
                if sizes:
                    span.set_attribute(f"{_CHECKPOINT}.size", sum(sizes))
                    self.instruments.written.add(sum(sizes), {"operation": name})
                self._measured(name, began, error_type)

    def listed(self, config: object, found: Iterator[CheckpointTuple], parent: Any) -> Iterator[CheckpointTuple]:
        """The same checkpoints; a span lasts from the first to the last, or until the consumer has had enough.

        It is never the current one: the consumer does other things in between, maybe in other threads.
        """
        count, began, error_type = 0, time.perf_counter(), None
        described = self._described(config, {})
        span = self.instruments.tracer.start_span(f"{_CHECKPOINT}.list", context=parent, attributes=described)
        try:
            for item in found:
                count += 1
                yield item
        except GeneratorExit:
            raise
        except BaseException as error:
            error_type = self._failed(span, error)
            raise
        finally:
            span.set_attribute(f"{_CHECKPOINT}.returned", count)
            span.end()
            self._measured("list", began, error_type)

    def hear(self, event: _events.Event) -> None:
        """What happens beside the saver's own methods."""
        made = self.instruments
        if isinstance(event, _events.Damaged):
            if self._speaks_for(event.path):
                made.damage.add(1)
            return
        if not self._speaks_for(event.root):
            return
        for (outcome, cause), number in event.outcomes.items():
            made.repairs.add(number, {"outcome": outcome, "cause": cause})
        if isinstance(event, _events.Recovered):
            span = made.tracer.start_span(
                f"{_TURN}.recover",
                start_time=event.began_ns,
                attributes={
                    **self.thread(event.thread_id),
                    f"{_TURN}.token": event.token,
                    f"{_TURN}.cause": event.cause,
                    f"{_TURN}.changed": event.changed,
                    f"{_TURN}.answers": sum(event.outcomes.values()),
                    f"{_TURN}.moved": event.moved,
                    f"{_TURN}.set_aside": event.set_aside,
                    f"{_TURN}.restored": event.added,
                },
            )
            if event.error is not None:
                self._mark(span, event.error)
            span.end()

    def _speaks_for(self, place: str) -> bool:
        """Whether this is the first of those that tell the same providers of the same store: it is told once."""
        for root, listening in list(_events.listeners.items()):
            if place == root or place.startswith(root + os.sep):
                told = (getattr(listener, "__self__", None) for listener in listening)
                same = (each for each in told if isinstance(each, _Telling) and each.instruments is self.instruments)
                if (first := next(same, None)) is not None:
                    return first is self
        return False

    def _described(self, config: object, attributes: Mapping[str, object]) -> dict[str, Any]:
        conf = config.get("configurable") if isinstance(config, Mapping) else None
        conf = conf if isinstance(conf, Mapping) else {}
        described: dict[str, Any] = self.thread(conf.get("thread_id"))
        known = {"ns": conf.get("checkpoint_ns"), "id": conf.get("checkpoint_id"), **attributes}
        for key, value in known.items():
            if isinstance(value, (str, int, float)):  # what is wrong with any other is the saver's to say
                described[f"{_CHECKPOINT}.{key}"] = str.__str__(value) if isinstance(value, str) else value
        return described

    def _failed(self, span: Span, error: BaseException) -> str:
        error_type = type(error).__name__
        self._mark(span, error_type)
        return error_type

    @staticmethod
    def _mark(span: Span, error_type: str) -> None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - comes with an extra

        span.set_attribute("error.type", error_type)
        span.set_status(StatusCode.ERROR)

    def _measured(self, name: str, began: float, error_type: str | None) -> None:
        attributes = {"operation": name} if error_type is None else {"operation": name, "error.type": error_type}
        self.instruments.duration.record(time.perf_counter() - began, attributes)


# --- the saver ---


class _Told(TurnCheckpointSaver):
    """The methods of a saver that tell what they do. Their async twins call them in a thread, in the same context."""

    @property
    def _telling(self) -> _Telling:
        return cast(_Telling, vars(self)[_KEY])

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        found = {"source": metadata.get("source"), "step": metadata.get("step")} if metadata else {}
        with self._telling.operation("put", config, id=checkpoint.get("id"), **found):
            return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        with self._telling.operation("put_writes", config, writes=len(writes)):
            super().put_writes(config, writes, task_id, task_path)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        with self._telling.operation("get_tuple", config) as span:
            found = super().get_tuple(config)
            span.set_attribute(f"{_CHECKPOINT}.found", found is not None)
            return found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        from opentelemetry.context import get_current  # noqa: PLC0415 - comes with an extra

        found = super().list(config, filter=filter, before=before, limit=limit)
        return self._telling.listed(config, found, get_current())


_classes: Final[dict[type[TurnCheckpointSaver], type[TurnCheckpointSaver]]] = {}


def _instrumented(cls: type[TurnCheckpointSaver]) -> type[TurnCheckpointSaver]:
    """A subclass that tells what it does, under the same name."""
    if cls not in _classes:
        bases = (_Told,) if cls is TurnCheckpointSaver else (_Told, cls)
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        _classes[cls] = type(cls.__name__, bases, {**names, "uninstrumented": cls})
    return _classes[cls]
