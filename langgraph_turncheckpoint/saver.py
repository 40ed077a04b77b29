"""`TurnCheckpointSaver`: LangGraph's checkpointer interface. Configs are read and tuples are made here; every
operation itself is in `_store`, written once, and its async twin runs it in a thread.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from typing_extensions import Self

from . import _upkeep
from ._commits import Target
from ._housekeeping import Housekeeping
from ._inbox_files import InboxFiles
from ._journal_copies import copy_thread
from ._offload import offload
from ._open_turn import OpenTurn
from ._repair import IDLE_SECONDS, RepairRules, repair_thread, repairable
from ._repair_files import Repair
from ._retention import check_age, check_retention
from ._runs import TURN_KEY, UNDATED_KEY, control_of, explicit_base, explicit_token
from ._serde import ValueCodec
from ._store import Loaded, Store, check_checkpoint_id
from ._sweep import SweepReport, sweep
from ._turn import LedgerEvent, check_cause, check_strategy
from ._turn_log import TurnRecord
from ._turns import Turn
from ._upkeep import Stats
from ._verify import Finding, verify_store
from .display import Timeline, threads_table, timeline
from .errors import InvalidIdError
from .inbox import Inbox

#: What a redacted metadata value is stored as.
REDACTED: Final = "[redacted]"

_END: Final = object()


class LatestId(str):
    """The id of a checkpoint that was read as the latest, outside any run.

    It equals the plain id. A put outside a run that builds on it is refused once the thread has moved; on a
    plain id it is a fork. Copied or pickled, it becomes a plain id.
    """

    __slots__ = ("head_id",)
    head_id: str

    def __new__(cls, checkpoint_id: str, head_id: str) -> Self:
        """An id, and the newest id that there was when it was read."""
        made = super().__new__(cls, checkpoint_id)
        made.head_id = head_id
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class TurnCheckpointSaver(BaseCheckpointSaver[str]):
    """A checkpointer that keeps every super-step in an atomic file below one directory.

    A checkpoint is on the disk, whole, when `put` returns; so are writes when `put_writes` returns. What
    did not change since the parent checkpoint is shared with it. Each LangGraph run holds a *turn*: when
    a newer run reads the thread, an older one can no longer write to it and gets `StaleTurnError`.

    The saver needs no set-up and no closing, may be built outside an event loop, and may be used from any
    number of loops, threads and processes at once. Threads are named by strings; `1` and `"1"` are the same
    thread, as everywhere in LangGraph, so is a `UUID` and its text, and any other kind of id is an `InvalidIdError`,
    whatever the method.

    Args:
        path: The directory. It is made, with mode 0700, by the first write.
        serde: Any LangGraph serializer; LangGraph's default if `None`. With an `EncryptedSerializer` only
            ids, order, sizes and times are readable without the key, and plaintext files are refused.
        fsync: With `True` an acknowledged write survives a killed process, a crash of the system and
            power loss. With `False` it survives a killed process only; a checkpoint is still there
            wholly or not at all.
        strict: With `True` damage raises. With `False` the newest whole checkpoint is used in place of a
            damaged one, with a `DamageWarning` that names the file.
        redact: Names of metadata keys whose values are stored as `"[redacted]"`. LangGraph copies scalars
            of a run's `configurable`, API keys included, into the metadata of its checkpoints.
        keep_last: How many of the newest checkpoints of each namespace stay; all by default. Older ones go soon
            after a turn has ended, the next one has begun, or a number of puts: in a thread of its own, which no
            write waits for longer than for a handful of files. What fails there fails no write; it is logged, and
            tried again. Whatever these two say, the newest whole checkpoint stays, and what `DeltaChannel`s need,
            what the newest turn started from, what rolling it back needs, and after a crash what a recovery needs.
        max_age: Checkpoints older than this go, too, in seconds or as a `timedelta`; none by default. Whole threads
            go with `sweep`.

    Raises:
        StorageError: `path` is a file.
        TypeError: `serde` is no serializer.
        ValueError: `keep_last` is no number from 1 on, or `max_age` no positive time.

    Example:
        ```python
        saver = TurnCheckpointSaver("./checkpoints")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "1"}})
        ```
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        fsync: bool = True,
        strict: bool = False,
        redact: Collection[str] = (),
        keep_last: int | None = None,
        max_age: float | timedelta | None = None,
    ) -> None:
        retention = check_retention(keep_last, max_age)
        self.path: Final = os.path.abspath(os.fspath(path))
        self._redact = frozenset([redact] if isinstance(redact, str) else redact)
        self._store = Store(self.path, JsonPlusSerializer(), fsync=fsync, strict=strict)
        self._store.check_root()
        if serde is not None and not (hasattr(serde, "dumps_typed") or hasattr(serde, "dumps")):
            raise TypeError(f"serde={serde!r} is no serializer of LangGraph's; it has no dumps_typed")
        if retention is not None:
            self._store.caretaker = Housekeeping(retention)
        super().__init__(serde=serde or BaseCheckpointSaver.serde)

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer. Another one may be set, before anything is stored that it could not read."""
        return self._serde

    @serde.setter
    def serde(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._store = self._store.with_serde(serde)

    @property
    def store(self) -> Store:
        """What this saver stands on; for other parts of this package."""
        return self._store

    @property
    def redacted_keys(self) -> frozenset[str]:
        """The metadata keys whose values are not stored; see `redact`."""
        return self._redact

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def _repr_html_(self) -> str | None:
        return threads_table(self._store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open between calls, so there is nothing to lose by not calling this."""

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> TurnCheckpointSaver:
        """A saver on the same directory whose serde may also load the given classes.

        It shares turns with this one. LangGraph calls it at `compile` in strict msgpack mode.
        """
        return cast(TurnCheckpointSaver, super().with_allowlist(extra_allowlist))

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """The next version of a channel, in the form LangGraph's own savers use.

        Versions sort as strings, and a thread can move between savers in either direction.
        """
        return InMemorySaver.get_next_version(cast(Any, self), cast(Any, current), channel)

    # --- LangGraph's interface ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` addresses, or the newest one of the thread.

        The first call of a LangGraph run opens its turn: from then on older runs are refused. The cost
        does not depend on the length of the history.

        Args:
            config: With `thread_id`, and optionally `checkpoint_ns` and `checkpoint_id`.

        Returns:
            The checkpoint with its pending writes in `writes_sort_key` order, or `None`.

        Raises:
            InvalidIdError: There is no thread id, or an id cannot be used.
            StaleTurnError: A run started with the config of a `turn` block that has ended.
            ThreadClosedError: A run started on a closed thread.
            DamagedCheckpointError: The addressed checkpoint is damaged; or the newest one is, and
                `strict` or no older one is whole.
            UnknownFormatError: The file is of a newer format. It was not touched.
            RefusedValueError: The file asks for something that must not be loaded.
        """
        conf = _configurable(config)
        thread_id, checkpoint_ns = _thread_id(conf), _namespace(conf)
        checkpoint_id = _checkpoint_id(conf)
        turn = self._turn(conf, thread_id, base=checkpoint_id or "")
        if turn is not None and explicit_token(conf, thread_id) is not None:
            if control_of(conf) is not None:
                self._store.check_turn(thread_id, turn)  # a run that could not save is not worth starting
            if checkpoint_id is not None:
                self._store.point_turn(thread_id, turn, checkpoint_id)
        if checkpoint_id is not None:
            loaded = self._store.by_id(thread_id, checkpoint_ns, checkpoint_id)
            if loaded is None:
                return None
            if type(conf["checkpoint_id"]) is not str:
                config = {**config, "configurable": {**conf, "checkpoint_id": checkpoint_id}}
            return _tuple(thread_id, loaded, config)
        loaded = self._latest(conf, thread_id, checkpoint_ns)
        if loaded is None:
            return None
        found_id = loaded.checkpoint_id if turn is not None else LatestId(loaded.checkpoint_id, loaded.head_id)
        return _tuple(thread_id, loaded, _config(thread_id, checkpoint_ns, found_id))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first.

        Only what is consumed is read, and no lock is held in between: a checkpoint that is removed
        meanwhile is left out. One that is damaged, is of a newer format or must not be loaded is left out with a
        `DamageWarning`, unless `strict`.

        Args:
            config: Which thread, and optionally which namespace or checkpoint; every thread if `None`.
            filter: Metadata that must be equal, key by key.
            before: Only checkpoints with an id lower than this config's.
            limit: At most this many.

        Raises:
            InvalidIdError: `config` has no thread id, or an id cannot be used.
            DamagedCheckpointError, UnknownFormatError, RefusedValueError: With `strict`, as the iterator comes to such
                a checkpoint.
        """
        if config is None:
            thread_id = checkpoint_ns = checkpoint_id = None
        else:
            conf = _configurable(config)
            thread_id, checkpoint_id = _thread_id(conf), _checkpoint_id(conf)
            checkpoint_ns = None if conf.get("checkpoint_ns") is None else _namespace(conf)
        before_id = None if before is None else _configurable(before).get("checkpoint_id") or None
        if before_id is not None and not isinstance(before_id, str):
            raise InvalidIdError("checkpoint_id", before_id, "is not a string")

        def accepts(metadata: Mapping[str, Any]) -> bool:
            return all(metadata.get(key) == value for key, value in (filter or {}).items())

        return self._listed(
            self._store.scan(
                thread_id,
                checkpoint_ns,
                checkpoint_id=checkpoint_id,
                before=before_id,
                accepts=accepts,
            ),
            limit,
        )

    @staticmethod
    def _listed(found: Iterator[tuple[str, Loaded]], limit: int | None) -> Iterator[CheckpointTuple]:
        remaining = limit
        while remaining is None or remaining > 0:
            entry = next(found, None)
            if entry is None:
                return
            thread_id, loaded = entry
            config = _config(thread_id, loaded.checkpoint_ns, loaded.checkpoint_id)
            yield _tuple(thread_id, loaded, config)
            remaining = None if remaining is None else remaining - 1

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint in one atomic file. It is durable on return; see `fsync`.

        The value of every channel with a new version is packed and compared with the parent's, so a change made
        in place to an old message is stored, too. A channel whose version is the parent's keeps what the parent
        has stored.

        Args:
            config: The thread, the namespace, and the parent as `checkpoint_id`.
            checkpoint: The checkpoint.
            metadata: Its metadata; scalars of the config are added, as LangGraph's savers do.
            new_versions: The versions of the channels that have changed since the parent.

        Returns:
            A config that addresses the stored checkpoint.

        Raises:
            StaleTurnError: A newer turn, a cancel or a delete fenced the writer out; or, outside a run,
                the parent was read as the latest and is not the latest any more.
            ThreadClosedError: The thread is closed.
            InvalidIdError: An id is missing or cannot be used.
            UnserializableValueError: The serde cannot write a value; names channel and path.
            StorageError: The system refused, for want of space or permission, say.
                In all cases nothing was stored, but two things may have happened: outside a run, whoever held
                the thread was fenced out; and where a checkpoint is put again and only the sync of its directory
                fails, the new version may be there.
        """
        conf = _configurable(config)
        thread_id, checkpoint_ns = _thread_id(conf), _namespace(conf)
        parent_id = _checkpoint_id(conf)
        stored = dict(get_checkpoint_metadata(config, metadata))
        for key in self._redact & stored.keys():
            stored[key] = REDACTED
        turn = self._turn(conf, thread_id, base=parent_id or "")
        self._store.put(
            Target(self._store.thread(thread_id), checkpoint_ns, checkpoint["id"], turn),
            parent_id,
            (checkpoint, stored, new_versions),
            read_head=getattr(conf.get("checkpoint_id"), "head_id", None),
        )
        return _config(thread_id, checkpoint_ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store writes of a task on a checkpoint, which may come later. Durable on return; see `fsync`.

        A write that is there already, by task and index, is kept; one to a special channel of
        `WRITES_IDX_MAP` replaces the earlier. Repeating a call changes nothing.

        Raises:
            StaleTurnError: A newer turn, a cancel or a delete fenced the writer out; or, outside a run, the
                checkpoint was read as the latest and is not the latest any more.
            ThreadClosedError: The thread is closed.
            InvalidIdError: An id is missing or cannot be used.
            UnserializableValueError: The serde cannot write a value; names channel and path.
            StorageError: The system refused. In all cases nothing was stored.
        """
        conf = _configurable(config)
        thread_id, checkpoint_ns = _thread_id(conf), _namespace(conf)
        checkpoint_id = _checkpoint_id(conf)
        if checkpoint_id is None:
            raise InvalidIdError("checkpoint_id", None, "is missing; writes belong to a checkpoint")
        entries = [
            [WRITES_IDX_MAP.get(channel, position), channel, value] for position, (channel, value) in enumerate(writes)
        ]
        if entries:
            turn = self._turn(conf, thread_id, base=checkpoint_id)
            target = Target(self._store.thread(thread_id), checkpoint_ns, checkpoint_id, turn)
            read_head = getattr(conf["checkpoint_id"], "head_id", None)
            dated = UNDATED_KEY not in conf
            self._store.put_writes(target, entries, (task_id, task_path), read_head=read_head, dated=dated)

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread and fence its running turn out.

        What stays is a tombstone: a late write of an older turn raises `StaleTurnError` instead of
        bringing the thread back, while a new run on the same id works, unless the thread was closed.

        Raises:
            StorageError: A file could not be removed. The thread cannot be read any more all the same;
                call again to remove the rest.
        """
        self._store.delete_thread(_thread_id({"thread_id": thread_id}))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints, with their writes, whose metadata name one of the runs.

        Looks at every thread. Pages that other checkpoints share stay.

        !!! warning "DeltaChannel"

            The writes of a deleted run go, too; a `DeltaChannel` of a later checkpoint that still needs
            them cannot be rebuilt.

        Raises:
            DamagedCheckpointError: With `strict`, a checkpoint's run cannot be told. Else it stays, with a
                `DamageWarning`.
            StorageError: The system refused. Some may be gone; call again.
        """
        several = [run_ids] if isinstance(run_ids, str) else run_ids
        _upkeep.delete_for_runs(self._store, [str(run_id) for run_id in several])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another, in one step.

        What the target holds already stays, and its running turn is fenced out. A source that does not
        exist copies nothing.

        Journals of a guard's runs that were cut off come along, so that a guarded run on the copy goes on from what
        really happened, as one on the source does. A run that is at work counts as cut off in the copy. Where the
        target's newest checkpoint is newer than the source's, its runs go on from that, and no journal comes along.

        Raises:
            InvalidIdError: Both threads hold a checkpoint of the same id that differs.
            ThreadClosedError: The target is closed. Nothing was copied.
            StorageError: The system refused. The target is as it was, or has everything already, if only what it held
                before could not be removed, or if the system cannot tell whether the copy is durable; call again.
        """
        source, target = (_thread_id({"thread_id": i}) for i in (source_thread_id, target_thread_id))
        copy_thread(self._store.thread(source), self._store.thread(target), fsync=self._store.fsync)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints of threads.

        With `"keep_latest"` the newest whole checkpoint of every namespace stays, with its writes, the ancestors
        that its `DeltaChannel`s are rebuilt from, the checkpoint that the newest turn was pointed at by id as long
        as that turn is the newest, and what a turn that is running would be rolled back to. `"delete"` is
        `delete_thread`. With `keep_last=` and `max_age=` the saver does something like it by itself.

        Raises:
            InvalidIdError: An id cannot name a thread. Nothing was removed.
            ValueError: The strategy is unknown. Nothing was removed.
            UnknownFormatError: A checkpoint is of a newer format, so what it needs cannot be told. It was not touched.
            StorageError: The system refused. What has gone is gone, and all that stays can be read; call again.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy {strategy!r} is not one of 'keep_latest', 'delete'")
        several = [thread_ids] if isinstance(thread_ids, str) else thread_ids
        for thread_id in [_thread_id({"thread_id": i}) for i in several]:
            if strategy == "delete":
                self._store.delete_thread(thread_id)
            else:
                _upkeep.prune(self._store, thread_id)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes to `DeltaChannel`s since their last stored value, and that value.

        Walks the parents of the addressed checkpoint once, reading only heads, the writes to these
        channels and the values that end the walk.
        """
        if not channels:
            return {}
        conf = _configurable(config)
        thread_id, checkpoint_ns, checkpoint_id = _thread_id(conf), _namespace(conf), _checkpoint_id(conf)
        if checkpoint_id is None and explicit_base(conf, thread_id) is not None:
            loaded = self._latest(conf, thread_id, checkpoint_ns)
            if loaded is None:
                return {channel: {"writes": []} for channel in channels}
            checkpoint_id = loaded.checkpoint_id
        return self._store.delta_history(thread_id, checkpoint_ns, checkpoint_id, channels)

    # --- turns by hand ---

    def turn(
        self, config: RunnableConfig, *, multitask_strategy: str = "interrupt", timeout: float | None = None
    ) -> OpenTurn:
        """Open a turn on a thread, for as long as a `with` or `async with` block lasts.

        Every run with the config that the block gets writes under this one turn, in whatever process;
        whoever held the thread before is fenced out. When the block ends, so does the turn: what has not
        been written by then is refused, and so is a new run with the block's config. How the turn ended is
        kept in `turns`.

        While the block lasts the thread is busy, for everybody and however many processes there are; a process
        that dies is busy no more. What a new turn does on a busy thread is said by one of four names:

        - `"interrupt"`: it takes over, and the older turn is fenced out.
        - `"reject"`: it is refused with `ThreadBusyError`.
        - `"enqueue"`: it waits until the thread is free, first come, first served.
        - `"rollback"`: it takes over and starts from the newest checkpoint before the older turn's input. Nothing
          is deleted, and what the new turn writes becomes the newest. A thread that is not busy is not rolled back.

        Plain runs, without a block, take over from whomever they find, and nobody waits for them: when they end is
        known to nobody.

        Args:
            config: With the `thread_id`. If it carries an open turn of the same thread, the new one continues that.
            multitask_strategy: What to do on a busy thread.
            timeout: With `"enqueue"`, how long to wait, in seconds; as long as it takes if `None`.

        Returns:
            A context manager that gives the config to run with.

        Raises:
            InvalidIdError: There is no thread id, or the config carries the turn of another thread.
            ValueError: There is no such strategy, or it has no use for a timeout.
            ThreadBusyError: On entry, the thread is busy, or still is after `timeout`. Nothing has changed.
            ThreadClosedError: On entry, the thread is closed, or was closed while waiting. Nothing has changed.

        Example:
            ```python
            with saver.turn(config, multitask_strategy="enqueue", timeout=30.0) as turn_config:
                graph.invoke(first, turn_config)
                graph.invoke(second, turn_config)
            ```
        """
        conf = _configurable(config)
        thread_id, carried = _thread_id(conf), conf.get(TURN_KEY)
        if isinstance(carried, Mapping) and carried.get("thread_id") != thread_id:
            reason = f"is that of another thread than {thread_id!r}; open it with a config from outside that turn"
            raise InvalidIdError("turn", carried, reason)
        return OpenTurn(
            self._store,
            config,
            thread_id,
            base=_checkpoint_id(conf) or "",
            strategy=check_strategy(multitask_strategy, timeout),
            timeout=timeout,
            continues=explicit_token(conf, thread_id) or 0,
        )

    def is_busy(self, thread_id: str) -> bool:
        """Whether a turn whose end is known is running on a thread, in whatever process.

        Such turns are those of `turn`. A turn that has settled is not running, nor is one whose process has died; a
        process that is only stopped keeps it.
        """
        return self._store.is_busy(_thread_id({"thread_id": thread_id}))

    def turns(self, thread_id: str, *, limit: int | None = None) -> builtins.list[TurnRecord]:
        """What is known of the turns of a thread, newest first.

        Plain runs are listed, too. When they end is announced by nobody (`TurnRecord.announced` is `False`), so how one
        ended is told by the last checkpoint that it wrote and that is still stored; "unfinished" has left nodes to run,
        or is at work. Writes outside runs are not listed. Numbers may jump: whatever fences a run out takes one. Power
        loss may take the newest records along, and of a long history only the newest thousand or so are kept.

        Args:
            thread_id: The thread.
            limit: At most this many.

        Raises:
            UnknownFormatError: The log of the turns is of a newer format. It was not touched.
        """
        return self._store.turns(_thread_id({"thread_id": thread_id}), None if limit is None else max(0, limit))

    def cancel_turn(self, thread_id: str, *, reason: str = "unknown") -> None:
        """Fence out whatever turn is running on a thread. Durable on return; new runs are welcome.

        Args:
            thread_id: The thread.
            reason: Why, for the turn's record: "restart", "user", "superseded", "limit", "error" or "unknown".

        Raises:
            ValueError: There is no such reason. Nothing has changed.
        """
        cause = check_cause(reason)
        self._store.raise_token(_thread_id({"thread_id": thread_id}), LedgerEvent.CANCEL, cause=cause)

    def close_thread(self, thread_id: str) -> None:
        """Fence out the running turn and refuse new ones until `reopen_thread`. Reading still works."""
        self._store.raise_token(_thread_id({"thread_id": thread_id}), LedgerEvent.CLOSE)

    def reopen_thread(self, thread_id: str) -> None:
        """Admit new turns to a closed thread."""
        self._store.raise_token(_thread_id({"thread_id": thread_id}), LedgerEvent.REOPEN)

    # --- messages for a busy thread ---

    def inbox(self, thread_id: str) -> Inbox:
        """The inbox of a thread: messages posted there wait, durably, until somebody delivers them.

        Nothing is read or written by this call, and the thread need not exist.

        Raises:
            InvalidIdError: The id cannot name a thread.

        Example:
            ```python
            message_id = saver.inbox("1").post("and bring milk")
            ```
        """
        thread_id, store = _thread_id({"thread_id": thread_id}), self._store
        files = InboxFiles(store.thread(thread_id), fsync=store.fsync)
        return Inbox(thread_id, files, ValueCodec(self._serde), strict=store.strict)

    # --- overview ---

    def thread_ids(self) -> builtins.list[str]:
        """The ids of all threads that hold a checkpoint. No checkpoint is read."""
        return [*self._store.thread_ids()]

    def timeline(self, thread_id: str, *, turns: int = 20, texts: bool = True) -> Timeline:
        """A picture of a thread: what its turns did, how each ended, what became of each tool call.

        It shows the thread as it is now, also while runs write to it, and changes nothing. Of calls that a crash cut
        off it says what their journal or a guard's answer says, also when the thread is in order again. How long each
        of several tools took that ran side by side is told by when their results were stored; of tools that ran in one
        task, nobody knows. What was imported is dated by its own checkpoints, a band for each of its runs. What an
        overtaken run tried to write afterwards is told by its first try of each kind. Parts that are damaged are left
        out, and the picture says so.

        Args:
            thread_id: The thread. One that is not there gives a picture that says so.
            turns: How many of the newest turns to show; those before them are one line.
            texts: Whether prompts, arguments, results and errors are in the picture.

        Raises:
            ValueError: `turns` is less than 1.
            DamagedCheckpointError: The ledger of the thread is damaged.
            UnknownFormatError: The ledger or the log of the turns is of a newer format. It was not touched.

        Example:
            ```python
            saver.timeline("1").save("thread.svg")
            ```
        """
        return timeline(self._store, _thread_id({"thread_id": thread_id}), turns=turns, texts=texts)

    def stats(self) -> Stats:
        """How many threads, checkpoints, journals, waiting messages, files and bytes there are, and busy threads.

        The names and lengths of files tell; no checkpoint is read.
        """
        return _upkeep.stats(self._store)

    def sweep(self, *, max_age: float | timedelta | None = None, dry_run: bool = False) -> SweepReport:
        """Remove what nobody needs any more from the whole directory. For whoever looks after it, now and then.

        Temporary files of dead writers go, and so does what removals that were cut short have left; tickets of dead
        waiters; journals that tell nothing the checkpoints do not hold; messages in inboxes that the newest
        checkpoint holds. With `max_age` so do whole threads that were not touched for so long, as by
        `delete_thread`: when a checkpoint was made, a turn opened or settled, or a message posted, a thread is
        touched. Stored checkpoints of other threads are not looked at.

        Nothing of a thread on which a turn is running is removed. When a plain run ends is known to nobody: it counts
        from its last checkpoint, so `max_age` must be longer than any run may work on one step.

        Any number of processes may use the directory meanwhile. A crash at any point loses nothing that should have
        stayed; sweep again. What cannot be read or removed is told in the report, and the rest is done.

        Args:
            max_age: The age of threads that are deleted, in seconds or as a `timedelta`; none is, by default.
            dry_run: Whether to change nothing, and only tell. What a writer is working on this instant may then be
                counted, too.

        Raises:
            ValueError: `max_age` is no positive time. Nothing was removed.
            StorageError: The directory itself, or whose thread something is, cannot be read. Sweep again.
        """
        return sweep(self._store, max_age=None if max_age is None else check_age(max_age), dry_run=dry_run)

    def verify(self) -> builtins.list[Finding]:
        """Every damaged, missing, orphaned or foreign file below the directory. Changes nothing."""
        return [*verify_store(self.path, fsync=self._store.fsync)]

    def repair(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        dry_run: bool = True,
        messages_key: str = "messages",
        unanswered: Collection[str] = (),
        idle: float = IDLE_SECONDS,
    ) -> builtins.list[Repair]:
        """Put damaged and broken threads in order, without their graphs. By default it only tells what it would do.

        Damaged files, and checkpoints that cannot be read without them, are moved into a directory `damaged` beside
        them; nothing is thrown away, and the thread goes on from its newest whole checkpoint. Where a run was cut off
        and has left tool calls without an answer, one more checkpoint is written in which each has the answer that is
        true of it, by what journals and pending writes tell, as `TurnGuard.recover` does. Nothing is left to run
        then: a thread that is to go on in the middle, with `invoke(None)`, should not be repaired. Threads are left
        alone that are closed, busy, or wait for a person; and those whose graph alone could tell what to write.

        A crash at any point leaves each thread as it was or repaired; another call finishes the work.

        Args:
            thread_ids: Which threads; all if `None`. One that does not exist needs no repair.
            dry_run: Whether only to tell. Nothing is changed then.
            messages_key: The channel of the history.
            unanswered: Names of tools whose calls may stay open.
            idle: The end of a plain run, outside a guard and a `turn` block, is announced by nobody: a thread whose
                last run was one is left alone until it has not been written to for so many seconds.

        Returns:
            What was done, or would be done, or could not be done, thread by thread; and what damage costs a thread: how
            far it goes back, and how many messages that takes. Only what is `left` needs somebody.

        Raises:
            StorageError: The system refused. The threads before this one are repaired.
        """
        several = [thread_ids] if isinstance(thread_ids, str) else thread_ids
        chosen = repairable(self._store) if several is None else [_thread_id({"thread_id": i}) for i in several]
        rules = RepairRules(messages_key, frozenset([unanswered] if isinstance(unanswered, str) else unanswered), idle)
        found: builtins.list[Repair] = []
        for thread_id in chosen:
            found += repair_thread(self, self._store, thread_id, rules=rules, dry_run=dry_run)
        return found

    # --- async twins ---

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        return await offload(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Async twin of `list`."""
        found = await offload(self.list, config, filter=filter, before=before, limit=limit)
        while (item := await offload(next, found, _END)) is not _END:
            yield cast(CheckpointTuple, item)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async twin of `put`."""
        return await offload(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Async twin of `put_writes`."""
        await offload(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Async twin of `delete_thread`."""
        await offload(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Async twin of `delete_for_runs`."""
        await offload(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Async twin of `copy_thread`."""
        await offload(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Async twin of `prune`."""
        await offload(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async twin of `get_delta_channel_history`."""
        return await offload(self.get_delta_channel_history, config=config, channels=channels)

    async def ais_busy(self, thread_id: str) -> bool:
        """Async twin of `is_busy`."""
        return await offload(self.is_busy, thread_id)

    async def aturns(self, thread_id: str, *, limit: int | None = None) -> builtins.list[TurnRecord]:
        """Async twin of `turns`."""
        return await offload(self.turns, thread_id, limit=limit)

    async def acancel_turn(self, thread_id: str, *, reason: str = "unknown") -> None:
        """Async twin of `cancel_turn`."""
        await offload(self.cancel_turn, thread_id, reason=reason)

    async def aclose_thread(self, thread_id: str) -> None:
        """Async twin of `close_thread`."""
        await offload(self.close_thread, thread_id)

    async def areopen_thread(self, thread_id: str) -> None:
        """Async twin of `reopen_thread`."""
        await offload(self.reopen_thread, thread_id)

    async def athread_ids(self) -> builtins.list[str]:
        """Async twin of `thread_ids`."""
        return await offload(self.thread_ids)

    async def atimeline(self, thread_id: str, *, turns: int = 20, texts: bool = True) -> Timeline:
        """Async twin of `timeline`."""
        return await offload(self.timeline, thread_id, turns=turns, texts=texts)

    async def astats(self) -> Stats:
        """Async twin of `stats`."""
        return await offload(self.stats)

    async def asweep(self, *, max_age: float | timedelta | None = None, dry_run: bool = False) -> SweepReport:
        """Async twin of `sweep`."""
        return await offload(self.sweep, max_age=max_age, dry_run=dry_run)

    async def averify(self) -> builtins.list[Finding]:
        """Async twin of `verify`."""
        return await offload(self.verify)

    async def arepair(
        self,
        thread_ids: Sequence[str] | None = None,
        *,
        dry_run: bool = True,
        messages_key: str = "messages",
        unanswered: Collection[str] = (),
        idle: float = IDLE_SECONDS,
    ) -> builtins.list[Repair]:
        """Async twin of `repair`."""
        return await offload(
            self.repair, thread_ids, dry_run=dry_run, messages_key=messages_key, unanswered=unanswered, idle=idle
        )

    def _latest(self, conf: Mapping[str, Any], thread_id: str, checkpoint_ns: str) -> Loaded | None:
        base = explicit_base(conf, thread_id)
        return self._store.latest(thread_id, checkpoint_ns, token=explicit_token(conf, thread_id) or 0, base=base)

    def _turn(self, conf: Mapping[str, Any], thread_id: str, *, base: str) -> Turn | None:
        token = explicit_token(conf, thread_id)
        if token is not None:
            return self._store.explicit_turn(thread_id, token)
        control = control_of(conf)
        return None if control is None else self._store.run_turn(control, thread_id, base=base)


def _configurable(config: RunnableConfig | object) -> Mapping[str, Any]:
    conf = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(conf, Mapping):
        raise InvalidIdError("config", config, "has no 'configurable' with a thread_id")
    return conf


def _thread_id(conf: Mapping[str, Any]) -> str:
    thread_id = conf.get("thread_id")
    if isinstance(thread_id, str):
        return str.__str__(thread_id)  # a string enumeration means its value, as it does as a dict key
    if isinstance(thread_id, int) and not isinstance(thread_id, bool):
        return int.__repr__(thread_id)
    if isinstance(thread_id, UUID):
        return str(thread_id)
    reason = "is missing" if thread_id is None else "is not a string, an int or a UUID"
    raise InvalidIdError("thread_id", thread_id, reason)


def _namespace(conf: Mapping[str, Any]) -> str:
    checkpoint_ns = conf.get("checkpoint_ns") or ""
    if not isinstance(checkpoint_ns, str):
        raise InvalidIdError("checkpoint_ns", checkpoint_ns, "is not a string")
    return str.__str__(checkpoint_ns)


def _checkpoint_id(conf: Mapping[str, Any]) -> str | None:
    # Every task's config carries the key with `None`: only a value addresses a checkpoint.
    checkpoint_id = conf.get("checkpoint_id")
    if not checkpoint_id:
        return None
    check_checkpoint_id(checkpoint_id)
    return str.__str__(checkpoint_id)


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def _tuple(thread_id: str, loaded: Loaded, config: RunnableConfig) -> CheckpointTuple:
    parent_id = loaded.parent_id
    return CheckpointTuple(
        config=config,
        checkpoint=cast(Checkpoint, loaded.checkpoint),
        metadata=cast(CheckpointMetadata, loaded.metadata),
        parent_config=_config(thread_id, loaded.checkpoint_ns, parent_id) if parent_id else None,
        pending_writes=loaded.writes,
    )
