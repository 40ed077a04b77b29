"""A run's view of its checkpointer. It looks at the checkpoint the run starts from, so that nothing is loaded twice;
sees when the run pauses and when messages are durable; and refuses the writes of a run that was superseded, also
for a saver that does not know turns. It stores nothing itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from ._offload import offload
from ._pending import INTERRUPT
from ._running import RunningTurn
from .errors import StorageError
from .inbox import Inbox


class Look(NamedTuple):
    """What a run's first look at its thread came to.

    Attributes:
        again: Something was written, so that the thread is to be read again.
        writes: Pending writes that this run alone finds with its checkpoint, as (task, channel, value). Nothing is
            written to a checkpoint that a run was pointed at: others may start from it, too.
    """

    again: bool = False
    writes: Sequence[tuple[str, str, Any]] = ()


Recover = Callable[[CheckpointTuple | None], Look]
Arecover = Callable[[CheckpointTuple | None], Awaitable[Look]]


class WatchedSaver(BaseCheckpointSaver[Any]):
    """The checkpointer of one run.

    Args:
        saver: The graph's own.
        running: The run's turn.
        messages_key: The channel of the history.
        inbox: Where messages for the thread wait.
        recover: Puts the thread in order before the run reads it; tells what the run is to find.
        arecover: The same for a run that awaits.
        checks: Whether writes must be checked here, because the saver knows no turns.
        starts_empty: Whether the run sees nothing of the thread before it has written: it was rolled back to before the
            thread's first checkpoint, and the saver knows no turns.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        running: RunningTurn,
        *,
        messages_key: str,
        inbox: Inbox,
        recover: Recover,
        arecover: Arecover,
        checks: bool,
        starts_empty: bool = False,
    ) -> None:
        self._saver, self._running, self._key, self._inbox = saver, running, messages_key, inbox
        self._recover, self._arecover, self._checks = recover, arecover, checks
        self._starts_empty = starts_empty
        super().__init__(serde=saver.serde)
        running.is_watched = True

    def __getattr__(self, name: str) -> Any:
        # Whatever else a saver offers, LangGraph finds.
        return getattr(self.__dict__["_saver"], name)

    @property
    def config_specs(self) -> list[Any]:
        """The wrapped saver's."""
        return list(self._saver.config_specs)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """The wrapped saver's next version."""
        return self._saver.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[Any]:
        """The same view of a saver that may load more classes."""
        self._saver = self._saver.with_allowlist(extra_allowlist)
        return self

    # --- reading ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint; the run's first look at its thread puts the thread in order."""
        saved = None if self._hides(config) else self._saver.get_tuple(config)
        look = self._recover(saved) if self._is_first(config) else Look()
        if look.again:
            saved = self._saver.get_tuple(config)
        return _with(saved, look.writes)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        saved = None if self._hides(config) else await self._saver.aget_tuple(config)
        look = await self._arecover(saved) if self._is_first(config) else Look()
        if look.again:
            saved = await self._saver.aget_tuple(config)
        return _with(saved, look.writes)

    def _hides(self, config: RunnableConfig) -> bool:
        conf = config["configurable"]
        is_ours = str(conf.get("thread_id")) == self._running.thread_id
        return self._starts_empty and is_ours and not conf.get("checkpoint_id")

    def _is_first(self, config: RunnableConfig) -> bool:
        conf = config["configurable"]
        if self._running.is_recovered or conf.get("checkpoint_ns") or conf.get("thread_id") is None:
            return False
        is_ours = str(conf["thread_id"]) == self._running.thread_id
        self._running.is_recovered = is_ours
        return is_ours

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The wrapped saver's."""
        return self._saver.list(config, filter=filter, before=before, limit=limit)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The wrapped saver's."""
        return self._saver.alist(config, filter=filter, before=before, limit=limit)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The wrapped saver's."""
        return self._saver.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The wrapped saver's."""
        return await self._saver.aget_delta_channel_history(config=config, channels=channels)

    # --- writing ---

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, unless the run was superseded."""
        self._check(config)
        self._starts_empty = False
        stored = self._saver.put(config, checkpoint, metadata, new_versions)
        if durable := self._stored(config, checkpoint):
            with suppress(StorageError):  # the checkpoint is stored all the same; the end of the run tries again
                self._inbox.acknowledge(durable)
                self._running.delivered -= durable
        return stored

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async twin of `put`."""
        if self._checks:
            await offload(self._check, config)
        self._starts_empty = False
        stored = await self._saver.aput(config, checkpoint, metadata, new_versions)
        if durable := self._stored(config, checkpoint):
            with suppress(StorageError):
                await self._inbox.aacknowledge(durable)
                self._running.delivered -= durable
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store writes, unless the run was superseded."""
        self._check(config)
        self._see(writes)
        self._saver.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Async twin of `put_writes`."""
        if self._checks:
            await offload(self._check, config)
        self._see(writes)
        await self._saver.aput_writes(config, writes, task_id, task_path)

    def _check(self, config: RunnableConfig) -> None:
        if self._checks and str(config["configurable"].get("thread_id")) == self._running.thread_id:
            self._running.check()

    def _see(self, writes: Sequence[tuple[str, Any]]) -> None:
        if any(channel == INTERRUPT for channel, _ in writes):
            self._running.is_paused = True

    def _stored(self, config: RunnableConfig, checkpoint: Checkpoint) -> set[str]:
        """Ids of messages from the inbox that a stored checkpoint of the thread holds."""
        if config["configurable"].get("checkpoint_ns"):
            return set()
        history = checkpoint["channel_values"].get(self._key)
        if not isinstance(history, (list, tuple)):
            self._running.stored_history = ()
            return set()
        self._running.history_stored(history)
        waiting = self._running.delivered
        if not waiting:
            return set()
        return {m.id for m in history if isinstance(m, BaseMessage) and m.id and m.id in waiting}

    # --- upkeep, which a run has no business with ---

    def delete_thread(self, thread_id: str) -> None:
        """The wrapped saver's."""
        self._saver.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """The wrapped saver's."""
        await self._saver.adelete_thread(thread_id)


def _with(saved: CheckpointTuple | None, writes: Sequence[tuple[str, str, Any]]) -> CheckpointTuple | None:
    if saved is None or not writes:
        return saved
    return saved._replace(pending_writes=[*(saved.pending_writes or ()), *writes])
