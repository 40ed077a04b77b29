"""Checkpoints as Pregel makes them: versions, versions seen, metadata, task ids. No saver is timed here.

The loop imitated is the usual agent: `__start__` hands a person's message to `model`, `model` calls
`tools`, `tools` goes back to `model`. Each super-step commits what one of these nodes wrote.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.base.id import uuid6

#: The format version LangGraph writes into its checkpoints.
_PREGEL_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class SuperStep:
    """Arguments of the two saver calls that make one super-step durable."""

    config: RunnableConfig
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions

    def put_writes(self, saver: BaseCheckpointSaver[Any]) -> None:
        """The first half: what the task wrote, kept with the checkpoint it started from."""
        saver.put_writes(self.config, self.writes, self.task_id, self.task_path)

    def put(self, saver: BaseCheckpointSaver[Any]) -> None:
        """The second half: the checkpoint that holds it."""
        saver.put(self.config, self.checkpoint, self.metadata, self.new_versions)

    def commit(self, saver: BaseCheckpointSaver[Any]) -> None:
        """Both halves, in the order of a run; the very first checkpoint of a thread has no writes."""
        if self.writes:
            self.put_writes(saver)
        self.put(saver)


class ThreadState:
    """What Pregel holds of a thread between super-steps. Each saver has its own; messages are shared."""

    def __init__(self, thread_id: str) -> None:
        self.config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self.values: dict[str, Any] = {}
        self.checkpoint_id: str | None = None
        self._versions: dict[str, Any] = {}
        self._seen: dict[str, dict[str, Any]] = {"__input__": {}}
        self._step = -1

    def clone(self) -> ThreadState:
        """A second state that goes on from here by itself."""
        twin = copy.copy(self)
        twin.values = dict(self.values)
        twin._versions = dict(self._versions)
        twin._seen = {node: dict(seen) for node, seen in self._seen.items()}
        return twin

    @contextmanager
    def run_under(self, config: RunnableConfig) -> Iterator[None]:
        """Address the super-steps made inside with `config`, which may carry the token of a turn."""
        before, self.config = self.config, config
        try:
            yield
        finally:
            self.config = before

    def parent_config(self) -> RunnableConfig:
        """Where the next super-step attaches, as Pregel passes it to `put` and `put_writes`."""
        configurable = {**self.config["configurable"]}
        configurable.setdefault("checkpoint_ns", "")
        if self.checkpoint_id is None:
            configurable.pop("checkpoint_id", None)
        else:
            configurable["checkpoint_id"] = self.checkpoint_id
        return {**self.config, "configurable": configurable}

    def start_with(self, saver: BaseCheckpointSaver[Any], messages: Sequence[AnyMessage]) -> SuperStep:
        """The first checkpoint, which holds `messages` at once and is waiting for `model`."""
        return self._commit(saver, "__input__", "branch:to:model", {"messages": list(messages)}, writes=())

    def add_message(self, saver: BaseCheckpointSaver[Any], message: AnyMessage) -> SuperStep:
        """A super-step that appends `message`, written by the node such a message comes from."""
        if isinstance(message, HumanMessage):
            node, following = "__start__", "branch:to:model"
        elif isinstance(message, AIMessage):
            node, following = "model", "branch:to:tools" if message.tool_calls else ""
        else:
            node, following = "tools", "branch:to:model"
        values = {"messages": [*self.values.get("messages", ()), message]}
        return self._commit(saver, node, following, values, writes=[("messages", [message])])

    def set_small(self, saver: BaseCheckpointSaver[Any], number: int) -> SuperStep:
        """A super-step of a state that stays small: a counter, a short text and a flag."""
        values = {
            "count": number,
            "note": f"item {number} of the list was looked at",
            "done": number % 7 == 0,
        }
        return self._commit(saver, "model", "branch:to:model", values, writes=list(values.items()))

    def _commit(
        self,
        saver: BaseCheckpointSaver[Any],
        node: str,
        following: str,
        values: dict[str, Any],
        *,
        writes: Sequence[tuple[str, Any]],
    ) -> SuperStep:
        trigger = "__start__" if node == "__start__" else f"branch:to:{node}"
        metadata: CheckpointMetadata = {
            "source": "input" if node == "__input__" else "loop",
            "step": self._step,
            "parents": {},
        }
        version = saver.get_next_version(max(self._versions.values(), default=None), None)
        seen = self._seen.setdefault(node, {})
        if trigger in self._versions:
            seen[trigger] = self._versions[trigger]
        new_versions: ChannelVersions = dict.fromkeys(values, version)
        self.values = {name: value for name, value in self.values.items() if name != trigger} | values
        if trigger in self._versions or node == "__start__":
            new_versions[trigger] = version
        if following:
            self.values[following] = None
            new_versions[following] = version
            writes = [*writes, (following, None)] if writes else writes
        self._versions |= new_versions
        checkpoint = Checkpoint(
            v=_PREGEL_VERSION,
            id=str(uuid6(clock_seq=self._step)),
            ts=datetime.now(timezone.utc).isoformat(),
            channel_values=dict(self.values),
            channel_versions=dict(self._versions),
            versions_seen={name: dict(versions) for name, versions in self._seen.items()},
            updated_channels=sorted(set(values) | ({following} if following else set())),
        )
        made = SuperStep(
            config=self.parent_config(),
            writes=() if self.checkpoint_id is None else writes,
            task_id=str(uuid.uuid4()),
            task_path=f"~__pregel_pull, {node}",
            checkpoint=checkpoint,
            metadata=metadata,
            new_versions=new_versions,
        )
        self.checkpoint_id = checkpoint["id"]
        self._step += 1
        return made
