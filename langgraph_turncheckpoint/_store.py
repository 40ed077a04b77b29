"""Every operation of the saver, written once and blocking, by thread id and namespace. LangGraph's configs
stay in `saver`; how a run's turn is found is `_runs`' business.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol

from . import _events, _files
from ._checkpoint_files import NamespaceFiles
from ._commits import Target, WriteJob
from ._encoder import Encoder
from ._fields import checkpoint_fields, ms_since, writes_fields
from ._layout import checkpoint_stem
from ._ledger import HeldLedger
from ._loading import Head, LoadedFile, encode_checkpoint, encode_writes, stored_nodes
from ._records import NO_REFS, BlobRef, Image, Section
from ._serde import ValueCodec
from ._sharing import Known
from ._thread_files import ThreadFiles, thread_ids
from ._turn import LedgerState
from ._turn_store import TurnStore
from ._turns import Turn
from .errors import (
    DamagedCheckpointError,
    InvalidIdError,
    RefusedValueError,
    StaleTurnError,
    StorageError,
    ThreadClosedError,
    UnknownFormatError,
)

T = TypeVar("T")

#: Pages whose fingerprints are remembered between saves, over all threads of a saver; about 300 bytes each.
KNOWN_PAGES_LIMIT: Final = 50_000

#: Files that a listing keeps in memory, because neighbouring checkpoints share their pages.
SCAN_IMAGES_LIMIT: Final = 512

#: How often a read is repeated while removals go on.
READING_ATTEMPTS: Final = 8

#: How often a put is built anew when pages are removed under it, before it stops sharing any.
SHARING_ATTEMPTS: Final = 3


class Loaded(NamedTuple):
    """A checkpoint as it is read."""

    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[PendingWrite]
    token: int = 0  #: of the turn that wrote it; 0 outside any turn
    head_id: str = ""  #: the newest id there was, damaged or not, where the latest was asked for


class _KnownPages:
    """The pages of each namespace's last seen checkpoint, within a bound."""

    def __init__(self) -> None:
        _all_known_pages.add(self)
        self._guard = threading.Lock()
        self._entries: OrderedDict[str, tuple[str, tuple[int, int], Known]] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0

    def reset(self) -> None:
        """In a forked child: empty, since the fork may have come in the middle of a change."""
        self._guard = threading.Lock()
        self._entries.clear()
        self._weights.clear()
        self._weight = 0

    def get(self, path: str, checkpoint_id: str) -> tuple[tuple[int, int], Known] | None:
        with self._guard:
            entry = self._entries.get(path)
            if entry is None or entry[0] != checkpoint_id:
                return None
            self._entries.move_to_end(path)
            return entry[1], entry[2]

    def set(self, path: str, checkpoint_id: str, when: tuple[int, int], known: Known) -> None:
        with self._guard:
            self._pop(path)
            self._entries[path] = (checkpoint_id, when, known)
            weight = self._weights[path] = 1 + known.weight
            self._weight += weight
            while self._weight > KNOWN_PAGES_LIMIT and len(self._entries) > 1:
                self._pop(next(iter(self._entries)))

    def drop(self, thread_path: str) -> None:
        with self._guard:
            for path in [path for path in self._entries if path.startswith(thread_path + os.sep)]:
                self._pop(path)

    def _pop(self, path: str) -> None:
        if self._entries.pop(path, None) is not None:
            self._weight -= self._weights.pop(path)


_all_known_pages: weakref.WeakSet[_KnownPages] = weakref.WeakSet()


def _reset_locks() -> None:
    # Whoever held one of them does not exist in a forked child.
    for known in _all_known_pages:
        known.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_locks)


class Store(TurnStore):
    """The checkpoints in one directory.

    Args:
        root: The directory; it is made by the first write.
        serde: Serializes values.
        fsync: Whether writes wait for the disk.
        strict: Whether damage raises where it would otherwise be passed over with a warning.
    """

    def __init__(self, root: str, serde: SerializerProtocol, *, fsync: bool, strict: bool) -> None:
        super().__init__(root, serde, fsync=fsync)
        self.strict = strict
        self._known = _KnownPages()

    @property
    def codec(self) -> ValueCodec:
        """How values are stored."""
        return self._codec

    def with_serde(self, serde: SerializerProtocol) -> Store:
        """The same store with another serializer."""
        clone = Store(self.root, serde, fsync=self.fsync, strict=self.strict)
        clone.caretaker = self.caretaker
        old, new = self._serde, serde
        if type(old) is type(new) and getattr(old, "cipher", None) is getattr(new, "cipher", None):
            clone._known = self._known  # what one has written the other can refer to
        return clone

    def sweep(self, thread: ThreadFiles, held: HeldLedger) -> None:
        """Remove what dead writers left behind."""
        self._shared.commits.sweep(thread, held)

    # --- reading ---

    def latest(self, thread_id: str, checkpoint_ns: str, *, token: int = 0, base: str | None = None) -> Loaded | None:
        """The newest whole checkpoint.

        Args:
            thread_id: The thread.
            checkpoint_ns: The namespace.
            token: The reader's turn, if it rolls the thread back.
            base: What it goes back to. Until the turn has written, nothing newer is seen, and nothing at all if this
                is empty; `None` for any other reader.

        Raises:
            DamagedCheckpointError: The newest is damaged, and `strict` or no other one is whole.
            UnknownFormatError: The newest is of a newer format.
        """
        found = self._settled(thread_id, lambda state: self._latest(thread_id, checkpoint_ns, state, ""))
        if found is None or base is None or found.token == token or found.checkpoint_id <= base:
            return found
        if not base:
            return None
        return self._settled(thread_id, lambda state: self._latest(thread_id, checkpoint_ns, state, base))

    def _latest(self, thread_id: str, checkpoint_ns: str, state: LedgerState, upto: str) -> Loaded | None:
        """The newest whole checkpoint, or the newest that is not newer than `upto`."""
        files = self.thread(thread_id).namespace(state, checkpoint_ns)
        first_error: DamagedCheckpointError | None = None
        head_id = ""
        for checkpoint_id in files.ids():
            head_id = head_id or checkpoint_id
            if upto and checkpoint_id > upto:
                continue
            try:
                image = files.read(checkpoint_id)
                if image is not None:
                    loaded = self._load(state, files, checkpoint_ns, checkpoint_id, image)
                    return loaded._replace(head_id=head_id)
            except DamagedCheckpointError as error:
                if not files.exists(checkpoint_id):
                    continue  # removed under our eyes
                if self.strict or self._has_changed(thread_id, state):
                    raise
                first_error = first_error or error
                self.warn(error, "; falling back to the newest whole checkpoint before it")
        if first_error is not None:
            raise first_error
        return None

    def _settled(self, thread_id: str, read: Callable[[LedgerState], T | None]) -> T | None:
        """What `read` finds. Readers hold no lock: what looks missing or damaged while a prune, a delete or a
        copy goes on is looked at again.
        """
        for attempt in itertools.count():
            state = self.thread(thread_id).ledger.read()
            if state is None:
                return None
            is_last = attempt == READING_ATTEMPTS
            try:
                found = read(state)
            except DamagedCheckpointError:
                if is_last or not self._has_changed(thread_id, state):
                    raise
            else:
                if found is not None or is_last or not self._has_changed(thread_id, state):
                    return found
        raise AssertionError  # pragma: no cover

    def _has_changed(self, thread_id: str, state: LedgerState) -> bool:
        now = self.thread(thread_id).ledger.read()
        return now is not None and (now.generation, now.epoch) != (state.generation, state.epoch)

    def by_id(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> Loaded | None:
        """One checkpoint.

        Raises:
            DamagedCheckpointError: It is damaged.
            UnknownFormatError: It is of a newer format.
        """
        check_checkpoint_id(checkpoint_id)

        def read(state: LedgerState) -> Loaded | None:
            files = self.thread(thread_id).namespace(state, checkpoint_ns)
            image = files.read(checkpoint_id)
            if image is None:
                return None
            return self._load(state, files, checkpoint_ns, checkpoint_id, image)

        return self._settled(thread_id, read)

    def scan(
        self,
        thread_id: str | None,
        checkpoint_ns: str | None,
        *,
        checkpoint_id: str | None = None,
        before: str | None = None,
        accepts: Callable[[Mapping[str, Any]], bool],
    ) -> Iterator[tuple[str, Loaded]]:
        """Checkpoints with their threads' ids, newest first. Holds no lock between two of them."""
        for attempt in itertools.count():
            any_gone = False
            images: dict[str, dict[str, Image]] = {}
            streams = self._streams(thread_id, checkpoint_ns, checkpoint_id, before)
            for place in heapq.merge(*streams, key=lambda place: place.checkpoint_id, reverse=True):
                if sum(map(len, images.values())) > SCAN_IMAGES_LIMIT:
                    images.clear()
                loaded = self._scanned(place, accepts, images.setdefault(place.files.path, {}))
                if isinstance(loaded, Loaded):
                    yield place.thread_id, loaded
                    attempt = READING_ATTEMPTS  # noqa: PLW2901 - what was given cannot be taken back
                any_gone = any_gone or loaded == "gone"
            # A thread of which all that was listed went, as under a prune, may hold newer checkpoints.
            if not any_gone or attempt >= READING_ATTEMPTS:
                return

    def _streams(
        self, thread_id: str | None, checkpoint_ns: str | None, checkpoint_id: str | None, before: str | None
    ) -> list[Iterator[_Place]]:
        streams = []
        for name in list(self.thread_ids()) if thread_id is None else [thread_id]:
            thread = self.thread(name)
            state = thread.ledger.read()
            if state is None:
                continue
            if checkpoint_ns is None:
                namespaces = thread.namespaces(state)
            else:
                namespaces = [(checkpoint_ns, thread.namespace(state, checkpoint_ns))]
            for namespace, files in namespaces:
                ids = _matching(files, checkpoint_id, before)
                streams.append(_places(name, state, namespace, files.snapshot(), ids))
        return streams

    def _scanned(
        self,
        place: _Place,
        accepts: Callable[[Mapping[str, Any]], bool],
        images: dict[str, Image],
    ) -> Loaded | Literal["gone"] | None:
        """The checkpoint at a place; `None` if it is not wanted, or damaged."""
        try:
            found = self._loaded_place(place, place.files, accepts, images)
            if found != "gone":
                return found
        except (DamagedCheckpointError, UnknownFormatError, RefusedValueError) as error:
            # A removal that was under way before the listing began shows in nothing but the missing file.
            is_there = place.files.exists(place.checkpoint_id)
            if is_there and not self._has_changed(place.thread_id, place.state):
                self._leave_out(error)
                return None

        # Removed since the listing began, or moved by a copy: what is there now counts.
        def read_again(state: LedgerState) -> Loaded | Literal["gone"] | None:
            files = self.thread(place.thread_id).namespace(state, place.checkpoint_ns)
            try:
                return self._loaded_place(place, files, accepts, {})
            except DamagedCheckpointError:
                if files.exists(place.checkpoint_id):
                    raise
                return "gone"  # under our eyes

        try:
            return self._settled(place.thread_id, read_again)
        except (DamagedCheckpointError, UnknownFormatError, RefusedValueError) as error:
            self._leave_out(error)
            return None

    def _leave_out(self, error: Exception) -> None:
        if self.strict:
            raise error
        self.warn(error, "; it is left out of the list")

    def _loaded_place(
        self,
        place: _Place,
        files: NamespaceFiles,
        accepts: Callable[[Mapping[str, Any]], bool],
        images: dict[str, Image],
    ) -> Loaded | Literal["gone"] | None:
        """The checkpoint; `None` if it is not wanted."""
        image = files.read(place.checkpoint_id)
        if image is None:
            return "gone"
        file = LoadedFile(self._codec, files, place.checkpoint_id, image, images)
        head = file.head()
        if not accepts(head.metadata):
            return None
        self._check_records(files, place.checkpoint_id, image)
        return self._loaded(place.checkpoint_ns, file, head, file.values(head), file.writes())

    def _load(
        self,
        state: LedgerState,
        files: NamespaceFiles,
        checkpoint_ns: str,
        checkpoint_id: str,
        image: Image,
    ) -> Loaded:
        self._check_records(files, checkpoint_id, image)
        known = Known()
        file = LoadedFile(self._codec, files, checkpoint_id, image)
        head = file.head()
        values, writes = file.values(head, known), file.writes(known=known)
        self._known.set(files.path, checkpoint_id, (state.generation, state.epoch), known)
        return self._loaded(checkpoint_ns, file, head, values, writes)

    def _check_records(self, files: NamespaceFiles, checkpoint_id: str, image: Image) -> None:
        if image.damage:
            damage = DamagedCheckpointError(files.file(checkpoint_id), image.damage)
            if self.strict:
                raise damage
            self.warn(damage, "; the writes in its sound part are used")

    @staticmethod
    def _loaded(
        checkpoint_ns: str,
        file: LoadedFile,
        head: Head,
        values: dict[str, Any],
        writes: list[PendingWrite],
    ) -> Loaded:
        checkpoint = {**head.checkpoint, "channel_values": values}
        fields = checkpoint_ns, file.checkpoint_id, file.parent_id, checkpoint, head.metadata, writes
        return Loaded(*fields, token=file.token)

    def warn(self, error: Exception, consequence: str) -> None:
        """Tell that damage was passed over, and what follows."""
        path = getattr(error, "path", self.root)  # what must not be loaded tells no file
        _events.damaged(path, f"{error}{consequence}", stacklevel=4)

    def delta_history(
        self,
        thread_id: str,
        checkpoint_ns: str,
        checkpoint_id: str | None,
        channels: Sequence[str],
    ) -> dict[str, DeltaChannelHistory]:
        """The writes to each channel since its last stored value, walking up the parents once."""
        history = self._settled(
            thread_id,
            lambda state: self._delta_history(
                self.thread(thread_id).namespace(state, checkpoint_ns), checkpoint_id, channels
            ),
        )
        return history or {channel: {"writes": []} for channel in channels}

    def _delta_history(
        self, files: NamespaceFiles, checkpoint_id: str | None, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        collected: dict[str, list[list[PendingWrite]]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        remaining = set(channels)
        images: dict[str, Image] = {}
        file = self.file(files, checkpoint_id or files.head_id(), images)
        while file is not None and remaining:
            file = self.file(files, file.parent_id, images)
            if file is None:
                break
            writes = file.writes(remaining)
            for channel in remaining:
                collected[channel].append([w for w in writes if w[1] == channel])
            head = file.head()
            for channel in remaining & head.channels.keys():
                seeds[channel] = file.value(head, channel)
            remaining -= head.channels.keys()
        history: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            steps = reversed(collected[channel])
            history[channel] = {"writes": [write for step in steps for write in step]}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history

    def file(
        self, files: NamespaceFiles, checkpoint_id: str | None, images: dict[str, Image] | None = None
    ) -> LoadedFile | None:
        """A checkpoint's file, to be decoded on demand; `None` if there is none."""
        image = files.read(checkpoint_id) if checkpoint_id else None
        if image is None or checkpoint_id is None:
            return None
        return LoadedFile(self._codec, files, checkpoint_id, image, images)

    # --- writing ---

    def put(
        self,
        target: Target,
        parent_id: str | None,
        parts: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, object]],
        *,
        read_head: str | None,
    ) -> None:
        """Store a checkpoint; see `TurnCheckpointSaver.put`. Parts are checkpoint, metadata, new versions."""
        check_checkpoint_id(target.checkpoint_id)
        try:
            with self._shared.commits.arriving(target):
                self._put(target, parent_id, parts, read_head)
        except (StaleTurnError, ThreadClosedError) as error:
            _events.refused("put", target.thread.thread_id, target.turn.token if target.turn else 0, error)
            raise
        if self.caretaker is not None:
            self.caretaker.stored(self, target.thread.thread_id)

    def _put(
        self,
        target: Target,
        parent_id: str | None,
        parts: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, object]],
        read_head: str | None,
    ) -> None:
        versions = parts[0].get("channel_versions") or {}
        thread, checkpoint_ns, checkpoint_id, turn = target
        token = 0 if turn is None else turn.token
        fields = checkpoint_fields(checkpoint_id, checkpoint_ns, parent_id, token)
        for attempt in itertools.count():
            known_at = None
            if parent_id is not None and attempt < SHARING_ATTEMPTS:
                known_at = self._known_pages(thread, turn, checkpoint_ns, parent_id)
            when, known = known_at or (None, Known())
            encoder = Encoder(self._codec, known)
            body = encode_checkpoint(self._codec, encoder, fields, parts)
            committed = self._shared.commits.put(
                target,
                parent_id,
                body.section,
                built_on=when,
                read_head=read_head,
                fsync=self.fsync,
            )
            if committed is None:
                self._known.drop(thread.path)
                continue
            encoder.resolve(checkpoint_id, committed.first_blob)
            own = BlobRef(checkpoint_id, committed.first_blob)
            known = known.followed_by(body.shapes, encoder.own)
            known.stored = stored_nodes(body.nodes, versions, own, encoder.refs)
            path = thread.namespace(LedgerState(generation=committed.generation), checkpoint_ns).path
            self._known.set(path, checkpoint_id, (committed.generation, committed.epoch), known)
            if (sizes := _events.written.get()) is not None:
                sizes.append(_size_of(body.section))
            return

    def put_writes(
        self,
        target: Target,
        entries: list[list[Any]],
        task: tuple[str, str],
        *,
        read_head: str | None,
        dated: bool = True,
    ) -> None:
        """Store writes; see `TurnCheckpointSaver.put_writes`. Entries are `[index, channel, value]`.

        With `dated` they say that they were made now.
        """
        task_id, task_path = task
        check_checkpoint_id(target.checkpoint_id)
        encoder = Encoder(self._codec, None)
        head, shapes = encode_writes(self._codec, encoder, task_path, entries)
        token = 0 if target.turn is None else target.turn.token
        since = ms_since(target.checkpoint_id, time.time_ns()) if dated else None

        def section_of(positions: list[int]) -> Section:
            kept, blobs = head, encoder.blobs
            if len(positions) < len(entries):
                again = Encoder(self._codec, None)
                chosen = [entries[position] for position in positions]
                kept, _ = encode_writes(self._codec, again, task_path, chosen)
                blobs = again.blobs
            fields = writes_fields(task_id, [entries[position][0] for position in positions], token, since)
            return Section(fields, 0, NO_REFS, kept, blobs)

        indexes = [entry[0] for entry in entries]
        job = WriteJob(target, task_id, indexes, section_of, read_head=read_head)
        try:
            self._shared.commits.put_writes(job, fsync=self.fsync)
        except (StaleTurnError, ThreadClosedError) as error:
            _events.refused("put_writes", target.thread.thread_id, token, error)
            raise
        if (sizes := _events.written.get()) is not None and job.first_blob is not None:
            sizes.append(len(head.data) + sum(len(blob.data) for blob in encoder.blobs))
        if job.all_new and job.first_blob is not None:
            encoder.resolve(target.checkpoint_id, job.first_blob)
            known_at = self._known.get(job.namespace_path, target.checkpoint_id)
            if known_at is not None:
                for shape in shapes:
                    known_at[1].add_pages(shape)

    def delete_thread(self, thread_id: str, *, unless: Callable[[LedgerState], bool] = lambda _: False) -> bool:
        """Delete a thread; see `ThreadFiles.delete`."""
        thread = self.thread(thread_id)
        is_deleted = thread.delete(unless=unless)
        if is_deleted:
            self._known.drop(thread.path)  # pages of an ended life are never asked for again
            _events.UPKEEP.info("thread %r: deleted", thread_id)
        return is_deleted

    def _known_pages(
        self, thread: ThreadFiles, turn: Turn | None, checkpoint_ns: str, parent_id: str
    ) -> tuple[tuple[int, int], Known] | None:
        """The pages of the parent, and the generation and epoch at which they were there."""
        if turn is not None and turn.generation:
            last_seen = LedgerState(generation=turn.generation)
            path = thread.namespace(last_seen, checkpoint_ns).path
            if (known_at := self._known.get(path, parent_id)) is not None:
                return known_at
        state = thread.ledger.read()
        if state is None:
            return None
        files = thread.namespace(state, checkpoint_ns)
        known_at = self._known.get(files.path, parent_id)
        if known_at is not None:
            return known_at
        try:
            image = files.read(parent_id)
            if image is None:
                return None
            self._load(state, files, checkpoint_ns, parent_id, image)
        except (StorageError, RefusedValueError):
            return None  # a parent that cannot be read has nothing to share
        return self._known.get(files.path, parent_id)

    # --- overview ---

    def thread_ids(self) -> Iterator[str]:
        """Threads that hold at least one checkpoint."""

        def leave_out(error: DamagedCheckpointError) -> None:
            if self.strict:
                raise error
            self.warn(error, "; the thread is left out")

        for thread_id in thread_ids(self.root, fsync=self.fsync, on_damage=leave_out):
            thread = self.thread(thread_id)
            state = thread.ledger.read()
            if state is not None and any(files.head_id() is not None for files in thread.unnamed_namespaces(state)):
                yield thread_id

    def check_root(self) -> None:
        """Fail early where the directory can never be one.

        Raises:
            StorageError: The path is something else than a directory.
        """
        _files.check_directory(self.root)


def _size_of(section: Section) -> int:
    """The bytes of what a section says and brings; what it shares is not among them."""
    return len(section.head.data) + sum(len(blob.data) for blob in section.blobs)


def check_checkpoint_id(checkpoint_id: object) -> None:
    """Refuse a checkpoint id that cannot be a file name."""
    if not isinstance(checkpoint_id, str):
        raise InvalidIdError("checkpoint_id", checkpoint_id, "is not a string")
    checkpoint_stem(checkpoint_id)


class _Place(NamedTuple):
    """Where a checkpoint is."""

    thread_id: str
    state: LedgerState
    checkpoint_ns: str
    files: NamespaceFiles
    checkpoint_id: str


def _matching(files: NamespaceFiles, checkpoint_id: str | None, before: str | None) -> Iterator[str]:
    if checkpoint_id is None:
        return files.ids(before=before)
    found = files.exists(checkpoint_id) and (before is None or checkpoint_id < before)
    return iter([checkpoint_id] if found else [])


def _places(
    thread_id: str, state: LedgerState, checkpoint_ns: str, files: NamespaceFiles, ids: Iterator[str]
) -> Iterator[_Place]:
    return (_Place(thread_id, state, checkpoint_ns, files, checkpoint_id) for checkpoint_id in ids)
