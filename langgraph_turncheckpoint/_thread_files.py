"""The directory of one thread: its ledger, its generations and their namespaces. What a checkpoint holds
is not understood here.

    <root>/threads/<thread>/turn            the ledger: token, generation, tombstone
    <root>/threads/<thread>/g-<n>/          everything of the thread's n-th life
        <namespace>/<bucket>/<id>.ckpt      a checkpoint and the writes made on it
                             <id>.pages     what others still need of a removed checkpoint
                             <id>.early     writes that came before their checkpoint
        turns                               the log of its turns
        pruned                              empty; checkpoints of this life were removed
        j-<token>.journal                   the journal of a turn
        q-<n>                               the ticket of one who waits for the thread

Deleting a thread starts a new generation in the ledger first. From then on the old one is invisible to
everybody, however much of it could be removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Final

from . import _files
from ._checkpoint_files import NamespaceFiles
from ._layout import (
    TEMPORARY_SUFFIX,
    generation_component,
    generation_of,
    is_component,
    literal_id,
    namespace_component,
    thread_component,
)
from ._ledger import LEDGER_NAME, HeldLedger, Ledger
from ._records import unpack_id
from ._turn import LedgerEvent, LedgerState, advance
from ._waiting import ticket_number
from .errors import DamagedCheckpointError, InvalidIdError, StorageError, UnknownFormatError

THREADS_NAME: Final = "threads"

#: Gets the state of a copy's source, what its target's was and what it becomes; gives what it becomes all in all.
Bring = Callable[[LedgerState, LedgerState, LedgerState], LedgerState]


class ThreadFiles:
    """The files of one thread.

    Args:
        root: The store's directory.
        thread_id: Any string.
        fsync: Whether writes wait for the disk.
    """

    def __init__(self, root: str, thread_id: str, *, fsync: bool) -> None:
        self.thread_id, self.fsync = thread_id, fsync
        self.path = os.path.join(root, THREADS_NAME, thread_component(thread_id))
        self.ledger = Ledger(self.path, thread_id, fsync=fsync)

    def namespace(self, state: LedgerState, checkpoint_ns: str) -> NamespaceFiles:
        """One namespace of the thread's present life."""
        directory = f"{self.generation(state)}{os.sep}{namespace_component(checkpoint_ns)}"
        return NamespaceFiles(directory, fsync=self.fsync)

    def namespaces(self, state: LedgerState) -> list[tuple[str, NamespaceFiles]]:
        """Every namespace of the thread's present life, by name."""
        found = []
        for files in self.unnamed_namespaces(state):
            checkpoint_ns = literal_id("n", os.path.basename(files.path))
            if checkpoint_ns is None:
                checkpoint_ns = _spelled_out(files)
            if checkpoint_ns is not None:
                found.append((checkpoint_ns, files))
        return found

    def unnamed_namespaces(self, state: LedgerState) -> list[NamespaceFiles]:
        """Every namespace of the thread's present life; no file is opened."""
        generation = self.generation(state)
        names = sorted(_files.list_directory(generation))
        paths = [os.path.join(generation, name) for name in names if is_component("n", name)]
        return [NamespaceFiles(path, fsync=self.fsync) for path in paths]

    def generation(self, state: LedgerState) -> str:
        """The directory of the thread's present life."""
        return f"{self.path}{os.sep}{generation_component(state.generation)}"

    def delete(self, *, unless: Callable[[LedgerState], bool] = lambda _: False) -> bool:
        """Forget everything, fence every turn out, and leave a tombstone.

        The tombstone is durable before the first file goes. If removing a file fails, the thread is
        unreadable all the same, and a second delete removes the rest.

        Args:
            unless: Asked under the thread's lock: whether to leave the thread as it is after all.

        Returns:
            Whether there was a thread to delete, and it was deleted.
        """
        if self.ledger.read() is None:
            return False
        with self.ledger.hold() as held:
            if unless(held.state):
                return False
            heads = [files.head_id() or "" for files in self.unnamed_namespaces(held.state)]
            newest = max(heads, default="")
            state = advance(held.state, LedgerEvent.DELETE, thread_id=self.thread_id, newest_id=newest)
            # A copy that was killed may have left a later generation behind, whole or half.
            state = state._replace(generation=max(state.generation, self._unused_generation()))
            # Empty as it is, it tells a ledger that was lost from one that was never written.
            _files.make_directory(self.generation(state), fsync=self.fsync)
            self._start_generation(held, state)
            self.remove_old_generations(held)
            return True

    def copy_from(self, source: ThreadFiles, *, bring: Bring = lambda _source, _before, state: state) -> None:
        """Add everything of another thread, in one step: a reader sees all of it or none.

        The copies go into a new generation, together with what the thread has already.

        Args:
            source: The other thread.
            bring: Adds to the new generation before anybody sees it, with both locks held.

        Raises:
            InvalidIdError: Both threads hold a checkpoint of the same id that differs.
        """
        if source.path == self.path or source.ledger.read() is None:
            return
        with ExitStack() as locks:
            # Both locks, always in the same order: two copies in opposite directions must not wait
            # for each other, and a prune of the source must not pull pages away from under the copy.
            helds = {
                thread.path: locks.enter_context(thread.ledger.hold())
                for thread in sorted((source, self), key=lambda thread: thread.path)
            }
            held, source_state = helds[self.path], helds[source.path].state
            if not source.unnamed_namespaces(source_state):
                return
            state = advance(held.state, LedgerEvent.OPEN, thread_id=self.thread_id)
            state = advance(state, LedgerEvent.COLLECT, thread_id=self.thread_id)
            state = state._replace(generation=max(state.generation + 1, self._unused_generation()))
            target = self.generation(state)
            try:
                self._copy_tree(self.generation(held.state), target)
                self._merge(source.unnamed_namespaces(source_state), state)
                state = bring(source_state, held.state, state)
            except BaseException:
                with suppress(StorageError):  # the next copy or delete removes what stays
                    _files.remove_tree(target)
                raise
            if self.fsync:
                _files.sync_directory(self.path)
            self._start_generation(held, state)
            self.remove_old_generations(held)

    def remove_old_generations(self, held: HeldLedger) -> None:
        """Remove what earlier lives left behind."""
        for name in _files.list_directory(self.path):
            generation = generation_of(name)
            if generation is not None and generation != held.state.generation:
                _files.remove_tree(os.path.join(self.path, name))

    def _start_generation(self, held: HeldLedger, state: LedgerState) -> None:
        held.write_twice(state, fsync=self.fsync)

    def _unused_generation(self) -> int:
        """A generation above every directory that is there."""
        found = [generation_of(name) for name in _files.list_directory(self.path)]
        return 1 + max((generation for generation in found if generation is not None), default=0)

    def _merge(self, namespaces: list[NamespaceFiles], state: LedgerState) -> None:
        for files in namespaces:
            path = os.path.join(self.generation(state), os.path.basename(files.path))
            target = NamespaceFiles(path, fsync=self.fsync)
            if not target.bounds():
                self._copy_tree(files.path, target.path)
                continue
            for bound in files.bounds():
                for name in _files.list_directory(files.bucket(bound)):
                    if not target.adopt(name, os.path.join(files.bucket(bound), name)):
                        reason = f"holds another version of what is in {name}; copy to a fresh id"
                        raise InvalidIdError("target_thread_id", self.thread_id, reason)

    def _copy_tree(self, source: str, target: str) -> None:
        if not _files.is_directory(source):
            return
        _files.make_directory(target, fsync=False)
        for name in _files.list_directory(source):
            path, copy = os.path.join(source, name), os.path.join(target, name)
            if _files.is_directory(path):
                self._copy_tree(path, copy)
            elif not name.endswith(TEMPORARY_SUFFIX) and ticket_number(name) is None:
                _files.copy_file(path, copy, fsync=self.fsync)
        if self.fsync:
            _files.sync_directory(target)
            _files.sync_directory(os.path.dirname(target))


def _spelled_out(files: NamespaceFiles) -> str | None:
    """The name of a namespace whose directory only has its hash."""
    for checkpoint_id in files.ids():
        try:
            image = files.read(checkpoint_id)
        except (DamagedCheckpointError, UnknownFormatError):
            continue
        if image is not None:
            return unpack_id(image.body.fields[1])
    return None


def thread_directories(root: str) -> Iterator[tuple[str, str]]:
    """The name and path of every thread's directory; anything else there is ignored."""
    threads = os.path.join(root, THREADS_NAME)
    for name in sorted(_files.list_directory(threads)):
        path = os.path.join(threads, name)
        if is_component("t", name) and _files.is_directory(path):
            yield name, path


def thread_ids(root: str, *, fsync: bool, on_damage: Callable[[DamagedCheckpointError], None]) -> Iterator[str]:
    """The ids of all threads that were ever written to, deleted ones included; `on_damage` hears of one without."""
    for name, path in thread_directories(root):
        thread_id = literal_id("t", name)
        if thread_id is None:
            thread_id = Ledger(path, None, fsync=fsync).thread_id()
        if thread_id is not None and thread_component(thread_id) == name:
            yield thread_id
        elif any(generation_of(each) is not None for each in _files.list_directory(path)):
            on_damage(
                DamagedCheckpointError(os.path.join(path, LEDGER_NAME), "does not tell whose thread it is any more")
            )
