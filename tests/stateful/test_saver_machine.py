"""Hypothesis drives one directory through every call of the saver, in any order, against `model.Model`.

`HYPOTHESIS_PROFILE=long` searches for many minutes.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED

from langgraph_turncheckpoint import InvalidIdError, StaleTurnError, TurnCheckpointSaver
from tests.contract.observation import PENDING_WRITES_ARE_SORTED, plain
from tests.stateful.model import Model, Place, Verbatim, described

THREADS = ("a", "B", "b/../c")
NAMESPACES = ("", "child:1", "child:1|deep:2")
RUNS = tuple(f"run-{number}" for number in range(8))
TASKS = [str(uuid.UUID(int=number)) for number in (0, 1, 2, 3)]
PATHS = ("", "~__pregel_pull, a", "~__pregel_push, 0000000001, False", "~__pregel_push, 0000000010, False")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=6),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=5,
)
messages = st.one_of(
    st.builds(HumanMessage, st.text(max_size=6), id=st.text("ab", min_size=1, max_size=2)),
    st.builds(
        AIMessage, st.text(max_size=6), additional_kwargs=st.dictionaries(st.text(max_size=2), scalars, max_size=1)
    ),
    st.builds(ToolMessage, st.text(max_size=6), tool_call_id=st.just("c1"), artifact=values),
)
threads, namespaces = st.sampled_from(THREADS), st.sampled_from(NAMESPACES)
metadata_extras = st.fixed_dictionaries(
    {}, optional={"user": st.sampled_from(["x", "y", None]), "score": st.integers(0, 1), "nested": values}
)
writes = st.lists(
    st.tuples(st.sampled_from(["messages", "files", ERROR, INTERRUPT, RESUME, SCHEDULED]), st.one_of(values, messages)),
    min_size=1,
    max_size=3,
)
_VERBATIM = Verbatim()


class Remembered(NamedTuple):
    """A config as `get_tuple` gave it for the latest checkpoint, at some time."""

    place: Place
    config: RunnableConfig


def changed(value: Any, data: st.DataObject) -> Any:
    """A new value for a channel: like the old one but for some edits, or another one altogether."""
    if isinstance(value, list):
        return changed_list(value, data)
    if isinstance(value, dict):
        return changed_dict(value, data)
    return data.draw(values)


def changed_list(value: list[Any], data: st.DataObject) -> list[Any]:
    """A list with an edit; many items at a time, so that lists outgrow one page."""
    items = list(value)
    edit = data.draw(st.sampled_from(["append", "many", "replace", "cut", "insert", "new"]), label="edit")
    if edit == "append":
        items.append(data.draw(messages))
    elif edit == "many":
        items += [HumanMessage(str(number), id=f"m{number}") for number in range(len(items), len(items) + 40)]
    elif edit == "new":
        items = data.draw(st.lists(st.one_of(values, messages), max_size=3))
    elif edit == "insert":
        items.insert(data.draw(st.integers(0, len(items))), data.draw(values))
    elif items:
        position = data.draw(st.integers(0, len(items) - 1))
        if edit == "replace":
            items[position] = data.draw(messages)
        else:
            del items[position : position + data.draw(st.integers(1, 40))]
    return items


def changed_dict(value: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """A dict with an edit, which may be of its order alone."""
    items = dict(value)
    edit = data.draw(st.sampled_from(["set", "many", "drop", "turn"]), label="edit")
    if edit == "set":
        items[data.draw(st.sampled_from("abcd"))] = data.draw(values)
    elif edit == "many":
        items.update({f"file{number}": {"text": "x" * number} for number in range(40)})
    elif edit == "turn":
        items = dict(reversed(items.items()))
    elif items:
        del items[data.draw(st.sampled_from(sorted(items)))]
    return items


def vandalise(value: Any) -> None:
    """Changes in place all that can be changed, as careless code does with what it passed or was given."""
    if isinstance(value, list):
        for item in value:
            vandalise(item)
        value.append("vandal")
    elif isinstance(value, MutableMapping):
        for item in value.values():
            vandalise(item)
        value["vandal"] = 1
    elif isinstance(value, BaseMessage):
        vandalise(value.additional_kwargs)
        value.content = "vandal"
    elif isinstance(value, tuple):
        for item in value:
            vandalise(item)


class SaverMachine(RuleBasedStateMachine):
    """Calls the saver and the model alike and compares whatever can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mkdtemp(prefix="saver-machine-")
        self.saver = TurnCheckpointSaver(self.path, fsync=False)
        self.model = Model()
        self.ticks = 0
        self.reserved: list[Place] = []
        self.remembered: list[Remembered] = []

    @initialize(count=st.integers(1, 3))
    def begin_with_something_to_work_on(self, count: int) -> None:
        for thread in THREADS[:2]:
            parent = None
            for number in range(count):
                place = self._fresh(thread, "")
                held = {"messages": [HumanMessage("hi", id=f"m{number}")] * number, "files": {"a": {"b": number}}}
                self._put(place, parent, held, {"messages": None, "files": None}, {"run_id": RUNS[number]})
                parent = place

    # --- writing ---

    @rule(
        data=st.data(),
        thread=threads,
        namespace=namespaces,
        count=st.integers(1, 3),
        root=st.integers(0, 9).map(lambda number: number == 0),
        extras=metadata_extras,
    )
    def put(
        self, data: st.DataObject, thread: str, namespace: str, count: int, root: bool, extras: dict[str, Any]
    ) -> None:
        """Checkpoints on the latest one, on an older one, or on none; an id may have been written to before."""
        for _ in range(count):
            parents = self.model.places(thread, namespace)
            parent = None
            if parents and not root:
                parent = parents[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(parents))
            before = self.model.get(parent)
            held = {} if before is None else dict(before.checkpoint["channel_values"])
            channel = data.draw(st.sampled_from(["messages", "files", "other"]), label="channel")
            kinds: dict[str, Any] = {"messages": [], "files": {}, "other": None}
            held[channel] = changed(held.get(channel, kinds[channel]), data)
            touched = {channel: None}
            dropped = data.draw(st.sampled_from([None, None, "messages", "files", "other"]), label="dropped")
            if dropped is not None:
                held.pop(dropped, None)
                touched[dropped] = None
            waiting = [place for place in self.reserved if place[:2] == (thread, namespace)]
            come = bool(waiting) and data.draw(st.booleans(), label="come at last")
            place = waiting[0] if come else self._fresh(thread, namespace)
            if place in self.reserved:
                self.reserved.remove(place)
            self._put(place, parent, held, touched, {**extras, "run_id": data.draw(st.sampled_from(RUNS))})

    def _put(
        self,
        place: Place,
        parent: Place | None,
        held: dict[str, Any],
        touched: Mapping[str, None],
        extras: dict[str, Any],
        config: RunnableConfig | None = None,
    ) -> None:
        before = self.model.get(parent)
        versions: dict[str, Any] = {} if before is None else dict(before.checkpoint["channel_versions"])
        self.ticks += 1  # a put of a reserved id draws no new one, and two values must not share a version
        version = f"{self.ticks:032}.{0.5:016}"
        new = dict.fromkeys(touched if before is not None else held, version)
        versions.update(new)
        checkpoint = Checkpoint(
            v=4,
            id=place.checkpoint_id,
            ts=f"2024-01-01T00:00:{self.ticks % 60:02}+00:00",
            channel_values=held,
            channel_versions=versions,
            versions_seen={"node": dict(versions), "__input__": {}},
            updated_channels=sorted(new),
        )
        if self.ticks % 2:
            # A value that is newer than its version: "async" runs go on while a put waits for the one before.
            vandalise({name: value for name, value in held.items() if name not in new})
        metadata: Any = {"source": "loop", "step": self.ticks, "parents": {}, **extras}
        for saver in (self.model.saver, self.saver):
            configurable: dict[str, Any] = {"thread_id": place.thread, "checkpoint_ns": place.namespace, "plan": "gold"}
            if parent is not None:
                configurable["checkpoint_id"] = parent.checkpoint_id
            where: RunnableConfig = {"configurable": configurable, "metadata": {"tag": "t"}}
            if config is not None and saver is self.saver:
                where = {**where, "configurable": {**configurable, **config["configurable"]}}
            answer = saver.put(where, copy.deepcopy(checkpoint), metadata, new)  # type: ignore[arg-type]
            assert answer["configurable"] == place.config()["configurable"]
        vandalise(held)

    @rule(
        data=st.data(),
        thread=threads,
        namespace=namespaces,
        early=st.integers(0, 4).map(lambda number: number == 0),
        task=st.sampled_from(TASKS),
        path=st.sampled_from(PATHS),
        entries=writes,
        more=st.one_of(st.none(), writes, st.just(())),
    )
    def put_writes(
        self,
        data: st.DataObject,
        thread: str,
        namespace: str,
        early: bool,
        task: str,
        path: str,
        entries: list[tuple[str, Any]],
        more: list[tuple[str, Any]] | tuple[()] | None,
    ) -> None:
        """Writes on a checkpoint that is there or that will come; then the same ones again, or others."""
        there = self.model.places(thread, namespace)
        if early or not there:
            place = self._fresh(thread, namespace)
            self.reserved.append(place)
        else:
            place = there[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(there))
        for given in [entries] if more is None else [entries, more or entries]:
            passed = copy.deepcopy(list(given))
            self.model.put_writes(place, passed, task, path)
            self.saver.put_writes(place.config(), passed, task, path)
            vandalise([value for _, value in passed])

    # --- writing what was read ---

    @rule(thread=threads, namespace=namespaces)
    def remember_the_latest(self, thread: str, namespace: str) -> None:
        found = self.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": namespace}})
        latest = self.model.latest(thread, namespace)
        assert described(found) == described(self.model.get(latest))
        if found is not None and latest is not None:
            self.remembered.append(Remembered(latest, found.config))

    @precondition(lambda self: self.remembered)
    @rule(data=st.data())
    def put_on_what_was_the_latest(self, data: st.DataObject) -> None:
        """T3: a put outside runs, on what was read as the latest, is refused once that has moved on."""
        place, config = data.draw(st.sampled_from(self.remembered), label="remembered")
        latest = self.model.latest(place.thread, place.namespace)
        there = self.model.get(place)
        deleted = there is None and place.checkpoint_id <= self.model.deleted_upto.get(place.thread, "")
        fresh = self._fresh(place.thread, place.namespace)
        if deleted or (latest is not None and latest != place):
            checkpoint = Checkpoint(
                v=4, id=fresh.checkpoint_id, ts="", channel_values={}, channel_versions={}, versions_seen={}
            )  # type: ignore[typeddict-item]
            with pytest.raises(StaleTurnError):
                self.saver.put(config, checkpoint, {}, {})
        elif there is not None:
            self._put(fresh, place, dict(there.checkpoint["channel_values"]), {}, {}, config)

    # --- removing and copying ---

    @rule(thread=threads, by_prune=st.booleans(), sure=st.integers(0, 2))
    def delete_thread(self, thread: str, by_prune: bool, sure: int) -> None:
        if sure:
            return  # deleting as often as putting would leave little to look at
        self.model.delete_thread(thread)
        if by_prune:
            self.saver.prune([thread], strategy="delete")
        else:
            self.saver.delete_thread(thread)
        self._forget(lambda place: place.thread == thread)

    @rule(runs=st.lists(st.sampled_from((*RUNS, "run-unknown")), max_size=3))
    def delete_for_runs(self, runs: list[str]) -> None:
        doomed = self.model.of_runs(runs)
        self.model.remove(doomed)
        self.saver.delete_for_runs(runs)
        self._forget(lambda place: any(place.before(gone) for gone in doomed))

    @rule(chosen=st.lists(threads, max_size=3))
    def prune(self, chosen: list[str]) -> None:
        """Each namespace keeps its latest; what it keeps beyond that must be as it was."""
        latest = {self.model.latest(*place[:2]) for thread in chosen for place in self.model.places(thread)}
        self.saver.prune(chosen)
        for thread in chosen:
            kept = {Place.of(found.config) for found in self.saver.list({"configurable": {"thread_id": thread}})}
            assert kept == {place for place in latest if place is not None and place.thread == thread}
            self.model.remove(place for place in self.model.places(thread) if place not in kept)
        self._forget(lambda place: any(newest is not None and place.before(newest) for newest in latest))

    @rule(source=threads, into=threads)
    def copy_thread(self, source: str, into: str) -> None:
        """A union, unless both have written differently on one checkpoint: then an error, and nothing has changed."""
        if self.model.conflicts(source, into):
            with pytest.raises(InvalidIdError):
                self.saver.copy_thread(source, into)
        else:
            self.saver.copy_thread(source, into)
            if source != into:
                self.model.copy_thread(source, into)

    # --- reading ---

    @rule()
    def reopen(self) -> None:
        self.saver.close()
        self.saver = TurnCheckpointSaver(self.path, fsync=False)

    @rule(data=st.data())
    def get_by_id(self, data: st.DataObject) -> None:
        places = self.model.places()
        if places:
            place = data.draw(st.sampled_from(places))
            found = self.saver.get_tuple(place.config())
            assert described(found) == described(self.model.get(place))
            assert found is not None
            vandalise(found.checkpoint["channel_values"])
            vandalise(found.pending_writes)
        unknown = self._fresh("a", "")
        assert self.saver.get_tuple(unknown.config()) is None

    @rule(
        data=st.data(),
        thread=st.one_of(st.none(), threads),
        namespace=st.one_of(st.none(), namespaces),
        wanted=st.one_of(
            st.none(),
            st.fixed_dictionaries({}, optional={"run_id": st.sampled_from(RUNS), "user": st.sampled_from(["x", None])}),
            st.sampled_from([{"plan": "gold", "tag": "t"}, {"step": 1}, {"'; drop": 1}, {"nested.x": None}]),
        ),
        bounded=st.booleans(),
        limit=st.one_of(st.none(), st.integers(0, 4)),
    )
    def list_some(
        self,
        data: st.DataObject,
        thread: str | None,
        namespace: str | None,
        wanted: dict[str, Any] | None,
        bounded: bool,
        limit: int | None,
    ) -> None:
        """Newest first; between threads and namespaces LangGraph's savers differ, so equal ids may swap places."""
        config: RunnableConfig | None = None
        if thread is not None:
            config = {"configurable": {"thread_id": thread}}
            if namespace is not None:
                config["configurable"]["checkpoint_ns"] = namespace
        places = self.model.places()
        before = data.draw(st.sampled_from(places)) if bounded and places else None
        expected = list(self.model.find(config, wanted=wanted, before=None if before is None else before.checkpoint_id))
        found = list(
            self.saver.list(config, filter=wanted, before=None if before is None else before.config(), limit=limit)
        )
        ids = [each.checkpoint["id"] for each in expected]
        assert [each.checkpoint["id"] for each in found] == ids[:limit]
        allowed = Counter(repr(described(each)) for each in expected)
        assert Counter(repr(described(each)) for each in found) <= allowed

    @precondition(lambda self: PENDING_WRITES_ARE_SORTED)
    @rule(data=st.data())
    def follow_the_ancestors(self, data: st.DataObject) -> None:
        """The saver's own walk gives what LangGraph's walk over `get_tuple` gives."""
        places = self.model.places()
        if places:
            config = data.draw(st.sampled_from(places)).config()
            channels = ["messages", "files", "other", "unknown"]
            ours = self.saver.get_delta_channel_history(config=config, channels=channels)
            walked = BaseCheckpointSaver.get_delta_channel_history(self.saver, config=config, channels=channels)
            assert plain(dict(ours), _VERBATIM) == plain(dict(walked), _VERBATIM)

    def teardown(self) -> None:
        try:
            self._compare_everything()
            self.reopen()
            self._compare_everything()
            damage = [finding for finding in self.saver.verify() if finding.kind != "orphan"]
            assert damage == []
            assert {place.thread for place in self.model.places()} <= set(self.saver.thread_ids())
            assert self.saver.stats().checkpoints == len(self.model.places())
        finally:
            self.saver.close()
            shutil.rmtree(self.path)

    def _compare_everything(self) -> None:
        expected = sorted((described(found) for found in self.model.find(None)), key=repr)
        assert sorted((described(found) for found in self.saver.list(None)), key=repr) == expected
        for thread in THREADS:
            for namespace in NAMESPACES:
                self.remember_the_latest(thread, namespace)

    # --- ids ---

    def _fresh(self, thread: str, namespace: str) -> Place:
        """A place newer than every other; LangGraph's ids sort by time, too."""
        self.ticks += 1
        return Place(thread, namespace, f"1ef{self.ticks:05x}-0000-6000-8000-{self.ticks:012x}")

    def _forget(self, gone: Any) -> None:
        """No writes are made for, and no put is tried on, what was reserved before it was removed."""
        for place in [place for place in self.reserved if gone(place)]:
            self.reserved.remove(place)
            self.model.forget_writes(place)


TestSaverMachine = SaverMachine.TestCase
