"""What keeps a store small: pruning, deleting what runs wrote, counting. Reading and writing checkpoints is
`_store`'s; how pages survive the checkpoints they came with is `_collect`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from . import _files
from ._checkpoint_files import NamespaceFiles
from ._collect import remove_checkpoints
from ._loading import LoadedFile
from ._store import Store
from ._thread_files import ThreadFiles
from ._turn import LedgerEvent, LedgerState, advance
from .errors import DamagedCheckpointError, RefusedValueError, UnknownFormatError

Choice: TypeAlias = Callable[[LedgerState, NamespaceFiles], set[str]]


class Stats(NamedTuple):
    """What a store holds.

    Attributes:
        threads: Threads that hold at least one checkpoint.
        checkpoints: Checkpoints over all threads and namespaces.
        files: All files, ledgers and tombstones included.
        size_bytes: Their length together.
    """

    threads: int
    checkpoints: int
    files: int
    size_bytes: int


def delete_for_runs(store: Store, run_ids: Collection[str]) -> None:
    """Delete what runs wrote; see `TurnCheckpointSaver.delete_for_runs`."""
    wanted = set(run_ids)
    for thread_id in [*store.thread_ids()] if wanted else []:
        thread = store.thread(thread_id)
        state = thread.ledger.read()
        for files in thread.unnamed_namespaces(state) if state is not None else ():
            doomed = {i for i in files.ids() if _run_id(store, files, i) in wanted}
            if doomed or files.has_set_apart():
                _remove(store, thread, files, _fixed(doomed))


def _run_id(store: Store, files: NamespaceFiles, checkpoint_id: str) -> Any:
    try:
        file = store.file(files, checkpoint_id)
        return None if file is None else file.head().metadata.get("run_id")
    except (DamagedCheckpointError, UnknownFormatError, RefusedValueError) as error:
        if store.strict:
            raise
        store.warn(error, "; whose run it is cannot be told, so it stays")
        return None


def _fixed(doomed: set[str]) -> Choice:
    return lambda _state, _files: doomed


def prune(store: Store, thread_id: str) -> None:
    """Keep the newest checkpoint of each namespace, and what it cannot be read without."""
    thread = store.thread(thread_id)
    state = thread.ledger.read()
    for files in thread.unnamed_namespaces(state) if state is not None else ():
        _remove(store, thread, files, lambda state, files: _prunable(store, state, files), upto_doomed=True)


def _prunable(store: Store, state: LedgerState, files: NamespaceFiles) -> set[str]:
    ids = [*files.ids()]
    keep = _newest_whole(store, files, ids)
    if state.base:
        # The newest turn was pointed at an old checkpoint. It goes on from there, and each of its subgraphs
        # from what that one's namespace held then.
        keep |= _newest_whole(store, files, [i for i in ids if i <= state.base])
    return set(ids) - keep


def _newest_whole(store: Store, files: NamespaceFiles, ids: list[str]) -> set[str]:
    """The newest whole checkpoint, what it is rebuilt from, and the damaged ones before it."""
    keep: set[str] = set()
    for checkpoint_id in ids:
        keep.add(checkpoint_id)  # a damaged head stays where it is, for whoever wants to look
        try:
            file = store.file(files, checkpoint_id)
            if file is not None:
                # Whole means that it can be loaded, with all the pages that other files hold for it.
                file.values(file.head())
                file.writes()
                return keep | _delta_ancestors(store, files, file)
        except DamagedCheckpointError:
            continue
    return keep


def _delta_ancestors(store: Store, files: NamespaceFiles, file: LoadedFile) -> set[str]:
    """The ancestors whose writes rebuild the delta channels that the checkpoint does not hold."""
    head = file.head()
    missing = set(head.metadata.get("counters_since_delta_snapshot") or {}) - head.channels.keys()
    ancestors: set[str] = set()
    walk: LoadedFile | None = file
    while missing and walk is not None:
        walk = store.file(files, walk.parent_id)
        if walk is not None:
            ancestors.add(walk.checkpoint_id)
            missing -= walk.head().channels.keys()
    return ancestors


def _remove(
    store: Store,
    thread: ThreadFiles,
    files: NamespaceFiles,
    choose: Choice,
    *,
    upto_doomed: bool = False,
) -> None:
    with thread.ledger.hold() as held:
        if files.path not in {present.path for present in thread.unnamed_namespaces(held.state)}:
            return  # the thread was deleted meanwhile
        doomed = choose(held.state, files)
        if not doomed and not files.has_set_apart():
            return
        store.sweep(thread, held)
        newest = max(doomed, default="")
        held.write(advance(held.state, LedgerEvent.COLLECT, thread_id=thread.thread_id))
        if store.fsync:
            held.sync()
        with held.committing():
            remove_checkpoints(files, doomed)
            # Writes for a checkpoint that never came are obsolete once the thread has been pruned past it.
            files.remove_early(lambda i: i <= newest if upto_doomed else i in doomed)


def stats(store: Store) -> Stats:
    """Counts and sizes, from names and lengths alone."""
    threads = checkpoints = files = size_bytes = 0
    for thread_id in store.thread_ids():
        thread = store.thread(thread_id)
        threads += 1
        for namespace in thread.unnamed_namespaces(thread.ledger.read() or LedgerState()):
            checkpoints += sum(1 for _ in namespace.ids())
    for size in _files.file_sizes(store.root):
        files += 1
        size_bytes += size
    return Stats(threads, checkpoints, files, size_bytes)
