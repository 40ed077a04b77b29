"""Runs a graph script over one saver in one colour and writes down all that can be seen of it.

The homes say where a saver lives and what a restart means for it. No graph and no assertion lives here.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Literal, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import StateSnapshot

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.contract.observation import Naming, plain, snapshot, stored

Colour = Literal["sync", "async"]
Durability = Literal["sync", "async", "exit"]
Recipe = Callable[[Any], Any]
Script = Callable[["Driver"], None]


class ReferenceSaver(InMemorySaver):
    """LangGraph's `InMemorySaver`, with a copy that duplicates everything and a prune that keeps everything.

    Both are all that a comparison of values needs: neither may change what a graph sees.
    """

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for namespace, checkpoints in copy.deepcopy(dict(self.storage[source_thread_id])).items():
            self.storage[target_thread_id][namespace].update(checkpoints)
        for (thread, namespace, checkpoint_id), writes in list(self.writes.items()):
            if thread == source_thread_id:
                self.writes[target_thread_id, namespace, checkpoint_id] = dict(writes)
        for (thread, namespace, channel, version), blob in list(self.blobs.items()):
            if thread == source_thread_id:
                self.blobs[target_thread_id, namespace, channel, version] = blob

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        pass

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        pass


class Home(Protocol):
    """Where a saver lives."""

    saver: BaseCheckpointSaver[Any]

    def restart(self) -> None:
        """Forgets the saver instance and opens what it left behind."""


class MemoryHome:
    """The reference: one process that never ends."""

    def __init__(self) -> None:
        self.saver: BaseCheckpointSaver[Any] = ReferenceSaver()

    def restart(self) -> None:
        pass


class DirectoryHome:
    """A directory that outlives the instances opened on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.saver: BaseCheckpointSaver[Any] = TurnCheckpointSaver(path)

    def restart(self) -> None:
        self.close()
        self.saver = TurnCheckpointSaver(self._path)

    def close(self) -> None:
        self.saver.close()  # type: ignore[attr-defined]


class Driver:
    """Hands a script its graphs and keeps the record of what happened.

    Args:
        home: Where the saver lives.
        colour: Whether graphs are called by their sync or their async methods.
        durability: LangGraph's durability mode of every run.
        restarts: Whether the saver is opened anew before every call.

    Attributes:
        delta_channels: Channels of the script's graphs that are rebuilt from writes; the script sets it.
    """

    def __init__(self, home: Home, *, colour: Colour, durability: Durability, restarts: bool = False) -> None:
        self.home, self.colour, self.durability, self.restarts = home, colour, durability, restarts
        self.naming = Naming()
        self.seen: list[tuple[str, Any]] = []
        self.delta_channels: frozenset[str] = frozenset()
        self._effects: Counter[str] = Counter()
        self._effects_lock = threading.Lock()
        self._subjects: list[Subject] = []

    def graph(self, recipe: Recipe) -> Subject:
        """A graph under test; `recipe` compiles it for the saver it is given."""
        subject = Subject(self, recipe)
        self._subjects.append(subject)
        return subject

    @property
    def unhurried(self) -> dict[str, Any]:
        """Arguments for runs of graphs that change, in place, values which LangGraph has given to a put.

        Under "async" the next nodes run while a put waits for the one before, so what it stores of such a value is
        decided by a race, over every saver; "sync" takes its place.
        """
        return {"durability": "sync" if self.durability == "async" else self.durability}

    def effect(self, name: str) -> int:
        """Counts something that a node did outside the state; returns how often it has now happened."""
        with self._effects_lock:
            self._effects[name] += 1
            return self._effects[name]

    def note(self, label: str, value: Any) -> None:
        """Adds to the record."""
        self.seen.append((label, plain(value, self.naming)))

    def before_call(self) -> None:
        if self.restarts:
            self.home.restart()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)

    def prune(self, *threads: str, strategy: str = "keep_latest") -> None:
        self._on_saver("prune", threads, strategy=strategy)

    def copy_thread(self, source: str, target: str) -> None:
        self._on_saver("copy_thread", source, target)

    def delete_thread(self, thread: str) -> None:
        self._on_saver("delete_thread", thread)

    def delta_history(self, channels: Sequence[str], *, at: RunnableConfig) -> None:
        """Notes what the saver itself says about the ancestors of a checkpoint."""
        self.note(
            "delta channel history",
            self._on_saver("get_delta_channel_history", config=at, channels=channels),
        )

    def stored(self, thread: str) -> list[CheckpointTuple]:
        """All checkpoints of a thread, straight from the saver."""
        config: RunnableConfig = {"configurable": {"thread_id": thread}}
        if self.colour == "sync":
            return list(self.home.saver.list(config))

        async def collect() -> list[CheckpointTuple]:
            return [each async for each in self.home.saver.alist(config)]

        found: list[CheckpointTuple] = self.run(collect())
        return found

    def observe(self) -> list[tuple[str, Any]]:
        """Describes all threads as they are now; changes nothing."""
        seen: list[tuple[str, Any]] = [("effects", sorted(self._effects.items()))]
        threads: set[str] = set()
        for number, subject in enumerate(self._subjects):
            for thread in sorted(subject.threads):
                threads.add(thread)
                label = f"graph {number} thread {thread}"
                seen.append((f"{label} state", snapshot(subject.read(thread), self.naming)))
                nested = subject.read(thread, subgraphs=True)
                seen.append((f"{label} nested state", snapshot(nested, self.naming)))
                for age, state in enumerate(subject.read_history(thread)):
                    seen.append((f"{label} history -{age}", snapshot(state, self.naming)))
        for thread in sorted(threads):
            for number, description in enumerate(stored(self.stored(thread), self.naming, rebuilt=self.delta_channels)):
                seen.append((f"thread {thread} stored {number}", description))
        return seen

    def values(self) -> list[tuple[str, Any]]:
        """Describes only the newest values of all threads, which pruning must not change."""
        return [
            (f"graph {number} thread {thread} values", plain(subject.read(thread).values, self.naming))
            for number, subject in enumerate(self._subjects)
            for thread in sorted(subject.threads)
        ]

    def _on_saver(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.before_call()
        if self.colour == "sync":
            return getattr(self.home.saver, method)(*args, **kwargs)
        return self.run(getattr(self.home.saver, f"a{method}")(*args, **kwargs))


class Subject:
    """One graph of a script, in the driver's colour; each method notes what it returns.

    `at` is a config as LangGraph returned it, to address a checkpoint by id; otherwise `thread` is used.
    """

    def __init__(self, driver: Driver, recipe: Recipe) -> None:
        self._driver, self._recipe = driver, recipe
        self._bound: tuple[BaseCheckpointSaver[Any], Any] | None = None
        self.threads: set[str] = set()

    @property
    def compiled(self) -> Any:
        """The graph, compiled for the saver instance that is open now."""
        saver = self._driver.home.saver
        if self._bound is None or self._bound[0] is not saver:
            self._bound = saver, self._recipe(saver)
        return self._bound[1]

    def invoke(
        self,
        graph_input: Any,
        *,
        thread: str = "main",
        at: RunnableConfig | None = None,
        config: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the graph to its end, its pause or its failure, which is noted and returned, not raised."""
        where = {**self._config(thread, at), **(config or {})}
        kwargs.setdefault("durability", self._driver.durability)
        try:
            result = self._call("invoke", graph_input, where, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other saver must give the same
            result = error
        self._driver.note("invoke", result)
        return result

    def stream(
        self,
        graph_input: Any,
        *,
        stop_after: int | None = None,
        thread: str = "main",
        at: RunnableConfig | None = None,
        mode: Any = "updates",
        **kwargs: Any,
    ) -> list[Any]:
        """Streams the graph; breaks out of the loop after `stop_after` chunks."""
        where = self._config(thread, at)
        kwargs.setdefault("durability", self._driver.durability)
        self._driver.before_call()
        graph = self.compiled
        chunks: list[Any] = []

        def take() -> None:
            stream: Iterator[Any] = graph.stream(graph_input, where, stream_mode=mode, **kwargs)
            with closing(stream):  # type: ignore[type-var]
                for chunk in stream:
                    chunks.append(chunk)
                    if len(chunks) == stop_after:
                        break

        async def atake() -> None:
            stream: AsyncIterator[Any] = graph.astream(graph_input, where, stream_mode=mode, **kwargs)
            async with aclosing(stream):  # type: ignore[type-var]
                async for chunk in stream:
                    chunks.append(chunk)
                    if len(chunks) == stop_after:
                        break

        if self._driver.colour == "sync":
            take()
        else:
            self._driver.run(atake())
        self._driver.note("stream", chunks)
        return chunks

    def state(
        self, *, thread: str = "main", at: RunnableConfig | None = None, subgraphs: bool = False
    ) -> StateSnapshot:
        state: StateSnapshot = self._call("get_state", self._config(thread, at), subgraphs=subgraphs)
        self._driver.seen.append(("state", snapshot(state, self._driver.naming)))
        return state

    def history(self, *, thread: str = "main", at: RunnableConfig | None = None, **kwargs: Any) -> list[StateSnapshot]:
        self._driver.before_call()
        found = self.read_history(thread, at, **kwargs)
        self._driver.seen.append(("history", [snapshot(each, self._driver.naming) for each in found]))
        return found

    def update(
        self, values: Any, *, thread: str = "main", at: RunnableConfig | None = None, **kwargs: Any
    ) -> RunnableConfig:
        config: RunnableConfig = self._call("update_state", self._config(thread, at), values, **kwargs)
        self._driver.note("update", {key: config["configurable"][key] for key in ("thread_id", "checkpoint_id")})
        return config

    def bulk_update(self, supersteps: Any, *, thread: str = "main", at: RunnableConfig | None = None) -> RunnableConfig:
        config: RunnableConfig = self._call("bulk_update_state", self._config(thread, at), supersteps)
        self._driver.note("bulk update", config["configurable"]["checkpoint_id"])
        return config

    def read(self, thread: str, *, subgraphs: bool = False) -> StateSnapshot:
        """The newest state, without a note and without a restart."""
        where = self._config(thread, None)
        if self._driver.colour == "sync":
            state: StateSnapshot = self.compiled.get_state(where, subgraphs=subgraphs)
        else:
            state = self._driver.run(self.compiled.aget_state(where, subgraphs=subgraphs))
        return state

    def read_history(self, thread: str, at: RunnableConfig | None = None, **kwargs: Any) -> list[StateSnapshot]:
        """The states of a thread, newest first, without a note and without a restart."""
        where, graph = self._config(thread, at), self.compiled
        if self._driver.colour == "sync":
            return list(graph.get_state_history(where, **kwargs))

        async def collect() -> list[StateSnapshot]:
            return [each async for each in graph.aget_state_history(where, **kwargs)]

        found: list[StateSnapshot] = self._driver.run(collect())
        return found

    def _config(self, thread: str, at: RunnableConfig | None) -> RunnableConfig:
        config: RunnableConfig = at or {"configurable": {"thread_id": thread}}
        self.threads.add(config["configurable"]["thread_id"])
        return config

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self._driver.before_call()
        if self._driver.colour == "sync":
            return getattr(self.compiled, method)(*args, **kwargs)
        return self._driver.run(getattr(self.compiled, f"a{method}")(*args, **kwargs))
