"""What a checkpoint store must hold after any sequence of calls: LangGraph's `InMemorySaver`, and on top of it
the little that it lacks. No file and no saver under test is known here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from tests.contract.observation import Naming, plain, unordered


class Place(NamedTuple):
    """Where a checkpoint is."""

    thread: str
    namespace: str
    checkpoint_id: str

    @classmethod
    def of(cls, config: RunnableConfig) -> Place:
        """The place a config addresses."""
        configurable = config["configurable"]
        return cls(*(str(configurable[key]) for key in ("thread_id", "checkpoint_ns", "checkpoint_id")))

    def before(self, other: Place) -> bool:
        """Whether it is older, in the same thread and namespace."""
        return self[:2] == other[:2] and self.checkpoint_id < other.checkpoint_id

    def config(self) -> RunnableConfig:
        return {
            "configurable": {
                "thread_id": self.thread,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": self.checkpoint_id,
            }
        }


class Verbatim(Naming):
    """Leaves every text as it is: both savers are given the same ids."""

    def __call__(self, text: str) -> str:
        return str(text)


_VERBATIM = Verbatim()


def described(found: CheckpointTuple | None) -> Any:
    """All that a checkpoint tuple says, in a form in which `==` confuses nothing."""
    if found is None:
        return None
    body: dict[str, Any] = {**found.checkpoint}
    return {
        "place": Place.of(found.config),
        "parent": None if found.parent_config is None else Place.of(found.parent_config),
        "values": unordered(body.pop("channel_values"), _VERBATIM),
        "body": unordered(body, _VERBATIM),
        "metadata": unordered(found.metadata, _VERBATIM),
        "writes": [plain(tuple(write), _VERBATIM) for write in found.pending_writes or ()],
    }


class Model:
    """The store as it should be. `saver` takes the puts.

    Attributes:
        calls: Per checkpoint, the calls that added or replaced writes. A copy tells by them which of two
            checkpoints of one id has only had more writes than the other.
    """

    def __init__(self) -> None:
        self.saver = InMemorySaver()
        self.calls: dict[Place, list[str]] = {}
        self.deleted_upto: dict[str, str] = {}

    def put_writes(self, place: Place, entries: list[tuple[str, Any]], task_id: str, task_path: str) -> None:
        there = self.saver.writes.get(place, {})
        keys = [(task_id, WRITES_IDX_MAP.get(channel, number)) for number, (channel, _) in enumerate(entries)]
        fresh = [entry for key, entry in zip(keys, entries, strict=True) if key[1] < 0 or key not in there]
        if fresh:
            self.calls.setdefault(place, []).append(repr((plain(fresh, _VERBATIM), task_id, task_path)))
        self.saver.put_writes(place.config(), entries, task_id, task_path)

    def places(self, thread: str | None = None, namespace: str | None = None) -> list[Place]:
        """Every checkpoint that is there, oldest first."""
        found = [
            Place(name, ns, checkpoint_id)
            for name, namespaces in self.saver.storage.items()
            for ns, checkpoints in namespaces.items()
            for checkpoint_id in checkpoints
            if thread in (None, name) and namespace in (None, ns)
        ]
        return sorted(found, key=lambda place: (place.checkpoint_id, place))

    def latest(self, thread: str, namespace: str) -> Place | None:
        found = self.places(thread, namespace)
        return found[-1] if found else None

    def get(self, place: Place | None) -> CheckpointTuple | None:
        """The checkpoint with its writes in the order that newer versions of LangGraph demand."""
        found = None if place is None else self.saver.get_tuple(place.config())
        if place is None or found is None:
            return None
        stored = self.saver.writes.get(place, {})
        order = sorted(stored, key=lambda key: (stored[key][3], *key))
        writes = [(stored[key][0], stored[key][1], self.saver.serde.loads_typed(stored[key][2])) for key in order]
        return found._replace(pending_writes=writes)

    def find(
        self,
        config: RunnableConfig | None,
        *,
        wanted: dict[str, Any] | None = None,
        before: str | None = None,
    ) -> Iterator[CheckpointTuple]:
        """What `list` must give without a limit, newest first."""
        configurable = {} if config is None else config["configurable"]
        for place in reversed(self.places(configurable.get("thread_id"), configurable.get("checkpoint_ns"))):
            found = self.get(place)
            assert found is not None
            if (
                configurable.get("checkpoint_id") in (None, place.checkpoint_id)
                and (before is None or place.checkpoint_id < before)
                and all(found.metadata.get(key) == value for key, value in (wanted or {}).items())
            ):
                yield found

    def delete_thread(self, thread: str) -> None:
        ids = [place.checkpoint_id for place in self.places(thread)]
        self.deleted_upto[thread] = max([self.deleted_upto.get(thread, ""), *ids])
        self.saver.delete_thread(thread)
        self.calls = {place: calls for place, calls in self.calls.items() if place.thread != thread}

    def remove(self, places: Iterable[Place]) -> None:
        """Removes checkpoints with their writes."""
        for place in places:
            del self.saver.storage[place.thread][place.namespace][place.checkpoint_id]
            self.forget_writes(place)

    def forget_writes(self, place: Place) -> None:
        self.saver.writes.pop(place, None)
        self.calls.pop(place, None)

    def of_runs(self, run_ids: Iterable[str]) -> list[Place]:
        wanted = set(run_ids)
        return [place for place in self.places() if self._metadata(place).get("run_id") in wanted]

    def conflicts(self, source: str, target: str) -> bool:
        """Whether both have had different writes on the same checkpoint."""
        for place, calls in self.calls.items():
            theirs = self.calls.get(place._replace(thread=target), [])
            shorter = min(len(calls), len(theirs))
            if place.thread == source and calls[:shorter] != theirs[:shorter]:
                return True
        return False

    def copy_thread(self, source: str, target: str) -> None:
        """A union; of a checkpoint that both have, the one with more writes."""
        for namespace, checkpoints in list(self.saver.storage[source].items()):
            self.saver.storage[target][namespace].update(copy.deepcopy(checkpoints))
        for place in [place for place in self.calls if place.thread == source]:
            there = place._replace(thread=target)
            if len(self.calls[place]) > len(self.calls.get(there, [])):
                self.calls[there] = list(self.calls[place])
                self.saver.writes[there] = dict(self.saver.writes[place])
        for (thread, namespace, channel, version), blob in list(self.saver.blobs.items()):
            if thread == source:
                self.saver.blobs[target, namespace, channel, version] = blob

    def _metadata(self, place: Place) -> dict[str, Any]:
        metadata: dict[str, Any] = self.saver.serde.loads_typed(
            self.saver.storage[place.thread][place.namespace][place.checkpoint_id][1]
        )
        return metadata
