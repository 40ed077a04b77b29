"""What keeps a thread small: pruning, retention, deleting what runs wrote; and counting. What may go is decided in
`_retention`, how pages survive the checkpoints they came with in `_collect`; when retention runs is `_housekeeping`'s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple, TypeAlias

from . import _files
from ._checkpoint_files import NamespaceFiles
from ._collect import mark_pruned, remove_checkpoints
from ._inbox_files import INBOX_NAME, item_number
from ._journal import is_live, journal_path, journal_token, journal_tokens, read_journal
from ._loading import LoadedFile
from ._records import MalformedError, NewerFormatError
from ._retention import KEPT_FOR_RECOVERY, Retention, doomed, expired_upto, is_spent
from ._store import Store
from ._thread_files import ThreadFiles, thread_directories
from ._turn import LedgerEvent, LedgerState, advance
from ._turns import parse_journal_header
from .errors import DamagedCheckpointError, RefusedValueError, UnknownFormatError

Choice: TypeAlias = Callable[[LedgerState, NamespaceFiles], Collection[str]]

#: A retention gives the thread's lock back after so many checkpoints: a write waits for these, and no longer.
BATCH: Final = 16

#: How often a retention plans anew because a turn began meanwhile, before it leaves the rest to the next one.
PLANS: Final = 4


class Stats(NamedTuple):
    """What a store holds.

    Attributes:
        threads: Threads that hold at least one checkpoint.
        checkpoints: Checkpoints over all threads and namespaces.
        files: All files, ledgers and tombstones included.
        size_bytes: Their length together.
        journals: Journals of turns: those that run, and those that ended without being complete.
        inbox_items: Messages that wait in inboxes.
        busy: Threads on which some process still holds a turn whose end is known.
    """

    threads: int
    checkpoints: int
    files: int
    size_bytes: int
    journals: int = 0
    inbox_items: int = 0
    busy: int = 0


def delete_for_runs(store: Store, run_ids: Collection[str]) -> None:
    """Delete what runs wrote; see `TurnCheckpointSaver.delete_for_runs`."""
    wanted = set(run_ids)
    for thread_id in [*store.thread_ids()] if wanted else []:
        thread = store.thread(thread_id)
        state = thread.ledger.read()
        for files in thread.unnamed_namespaces(state) if state is not None else ():
            theirs = {i for i in files.ids() if _run_id(store, files, i) in wanted}
            if theirs or files.has_set_apart():
                _remove(store, thread, files, _fixed(theirs))


def _run_id(store: Store, files: NamespaceFiles, checkpoint_id: str) -> Any:
    try:
        file = store.file(files, checkpoint_id)
        return None if file is None else file.head().metadata.get("run_id")
    except (DamagedCheckpointError, UnknownFormatError, RefusedValueError) as error:
        if store.strict:
            raise
        store.warn(error, "; whose run it is cannot be told, so it stays")
        return None


def _fixed(chosen: Collection[str]) -> Choice:
    return lambda _state, _files: chosen


def prune(store: Store, thread_id: str) -> None:
    """Keep the newest checkpoint of each namespace, and what it cannot be read without."""
    thread = store.thread(thread_id)
    state = thread.ledger.read()

    def choose(state: LedgerState, files: NamespaceFiles) -> set[str]:
        ids = [*files.ids()]
        return set(ids) - _protected(store, files, ids, _bases(thread, state))

    for files in thread.unnamed_namespaces(state) if state is not None else ():
        _remove(store, thread, files, choose, upto_newest=True)


def _bases(thread: ThreadFiles, state: LedgerState) -> list[str]:
    """Old checkpoints that the newest turn, or one that rolls it back, starts from."""
    bases = [state.base] if state.base else []
    path = journal_path(thread.generation(state), state.token)
    if is_live(path):
        content = read_journal(path)
        with suppress(MalformedError, NewerFormatError):  # then nobody can roll back to it either
            bases.append(parse_journal_header((content and content.header) or b"").opened.start or "")
    return [base for base in bases if base]


def _protected(store: Store, files: NamespaceFiles, ids: list[str], bases: Collection[str]) -> set[str]:
    keep = _newest_whole(store, files, ids)
    for base in bases:
        # Each of its subgraphs goes on from what that one's namespace held then.
        keep |= _newest_whole(store, files, [i for i in ids if i <= base])
    return keep


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


# --- retention ---


class _Going(NamedTuple):
    """What is to go of one namespace, newest first; with `is_spent` it is all there is."""

    files: NamespaceFiles
    ids: list[str]
    is_spent: bool = False


def retain(
    store: Store,
    thread_id: str,
    retention: Retention,
    *,
    clock: Callable[[], float] = time.time,
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Remove what a retention does not keep of a thread. Every checkpoint that stays can be read at every instant.

    What goes is chosen without the thread's lock, which is then held for `BATCH` checkpoints at a time. Nothing goes
    if a turn has begun since the choice.

    Args:
        store: The store.
        thread_id: The thread.
        retention: What is kept.
        clock: Seconds since 1970.
        is_stopped: Asked between two batches: whether to leave the rest to the next time.

    Returns:
        How many checkpoints went.

    Raises:
        StorageError: The system refused, or a checkpoint is of a newer format. What has gone is gone, as it should be.
    """
    thread, count = store.thread(thread_id), 0
    for _ in range(PLANS):
        state = thread.ledger.read()
        if state is None:
            break
        try:
            for going in _plan(store, thread, state, retention, clock()):
                while going.ids:
                    if is_stopped():
                        return count
                    batch, rest = going.ids[:BATCH], going.ids[BATCH:]
                    is_spent = going.is_spent and not rest
                    choose = _if_still(state, batch)
                    state = _remove(store, thread, going.files, choose, upto_newest=True, is_spent=is_spent) or state
                    going, count = going._replace(ids=rest), count + len(batch)  # noqa: PLW2901 - what is left of it
        except _DisturbedError:
            continue
        break
    return count


def removable(store: Store, thread_id: str, retention: Retention, *, clock: Callable[[], float] = time.time) -> int:
    """How many checkpoints of a thread `retain` would remove now. Nothing is changed."""
    thread = store.thread(thread_id)
    state = thread.ledger.read()
    return 0 if state is None else sum(len(going.ids) for going in _plan(store, thread, state, retention, clock()))


class _DisturbedError(Exception):
    """A turn began between choosing and removing."""


def _if_still(planned: LedgerState, batch: list[str]) -> Choice:
    def choose(state: LedgerState, _: NamespaceFiles) -> list[str]:
        if state != planned:
            raise _DisturbedError
        return batch

    return choose


def _plan(store: Store, thread: ThreadFiles, state: LedgerState, retention: Retention, now: float) -> list[_Going]:
    namespaces = sorted(thread.namespaces(state), key=lambda named: named[0])  # the root comes first
    if retention.max_age is None and not _may_exceed(namespaces, retention):
        return []
    bases = _bases(thread, state)
    at_least = KEPT_FOR_RECOVERY if _has_left_journals(thread, state) else 1
    plan, oldest_kept = [], ""
    for checkpoint_ns, files in namespaces:
        ids = [*files.ids()]
        if ids and is_spent(checkpoint_ns, ids[0], oldest_kept):
            plan.append(_Going(files, ids, is_spent=True))
            continue
        going = _going(store, files, ids, retention, bases=bases, at_least=at_least, now=now)
        if not checkpoint_ns:
            oldest_kept = min(set(ids) - set(going), default="")
        if going:
            plan.append(_Going(files, going))
    return plan


def _may_exceed(namespaces: list[tuple[str, NamespaceFiles]], retention: Retention) -> bool:
    """Whether a look at names alone leaves anything to do; with a small state it is most of the work."""
    keep_last = retention.keep_last or 0
    oldest = ""
    for checkpoint_ns, files in namespaces:
        ids = [*files.ids()]
        if len(ids) > keep_last:
            return True
        if not checkpoint_ns:
            oldest = min(ids, default="")
        elif ids and is_spent(checkpoint_ns, ids[0], oldest):
            return True
    return False


def _going(
    store: Store,
    files: NamespaceFiles,
    ids: list[str],
    retention: Retention,
    *,
    bases: Collection[str],
    at_least: int,
    now: float,
) -> list[str]:
    expired = ""
    if retention.max_age is not None:
        expired = expired_upto(ids, lambda i: _age_of(store, files, i, now), retention.max_age)
    beyond = retention.keep_last is not None and len(ids) > max(retention.keep_last, at_least)
    if not (expired or beyond):
        return []
    return doomed(
        ids,
        retention.keep_last,
        expired=expired,
        protected=_protected(store, files, ids, bases),
        at_least=at_least,
        ancestors_of=lambda i: _ancestors_of(store, files, i),
    )


def _has_left_journals(thread: ThreadFiles, state: LedgerState) -> bool:
    """Whether a turn has died and left what its thread's next run will look for in the checkpoints."""
    generation = thread.generation(state)
    for token in journal_tokens(generation):
        path = journal_path(generation, token)
        content = None if is_live(path) else read_journal(path)
        if content is not None and (content.payloads or content.damaged):
            return True
    return False


def _age_of(store: Store, files: NamespaceFiles, checkpoint_id: str, now: float) -> float | None:
    made = made_at(store, files, checkpoint_id)
    return None if made is None else now - made


def made_at(store: Store, files: NamespaceFiles, checkpoint_id: str) -> float | None:
    """When a checkpoint was made, in seconds since 1970, by what it says itself; `None` where it does not tell."""
    try:
        file = store.file(files, checkpoint_id)
        text = None if file is None else file.head().checkpoint.get("ts")
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except (DamagedCheckpointError, RefusedValueError, ValueError):
        return None
    if moment is None:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)).timestamp()


def _ancestors_of(store: Store, files: NamespaceFiles, checkpoint_id: str) -> set[str]:
    try:
        file = store.file(files, checkpoint_id)
        return set() if file is None else _delta_ancestors(store, files, file)
    except DamagedCheckpointError:
        return set()  # it cannot be read anyway


# --- removing ---


def _remove(
    store: Store,
    thread: ThreadFiles,
    files: NamespaceFiles,
    choose: Choice,
    *,
    upto_newest: bool = False,
    is_spent: bool = False,
) -> LedgerState | None:
    """Remove what is chosen under the thread's lock; what the ledger says then, or `None` if there was nothing to do.

    Args:
        store: The store.
        thread: The thread.
        files: The namespace.
        choose: The checkpoints, by the thread's state.
        upto_newest: Whether writes for checkpoints that never came go, up to the newest of the chosen.
        is_spent: Whether nothing is left in the namespace, so that its directory may go, too.
    """
    with thread.ledger.hold() as held:
        if files.path not in {present.path for present in thread.unnamed_namespaces(held.state)}:
            return None  # the thread was deleted meanwhile
        chosen = choose(held.state, files)
        if not chosen and not files.has_set_apart():
            return None
        store.sweep(thread, held)
        newest = max(chosen, default="")
        held.write(advance(held.state, LedgerEvent.COLLECT, thread_id=thread.thread_id))
        if store.fsync:
            held.sync()
        with held.committing():
            if chosen:
                mark_pruned(thread.generation(held.state), fsync=store.fsync)
            remove_checkpoints(files, chosen)
            # Writes for a checkpoint that never came are obsolete once the thread has been pruned past it.
            files.remove_early(lambda i: i <= newest if upto_newest else i in chosen)
            if is_spent:
                for bound in files.bounds():
                    _files.remove_empty_directory(files.bucket(bound))
                _files.remove_empty_directory(files.path)
        return held.state


def finish_removals(store: Store, thread: ThreadFiles, state: LedgerState) -> int:
    """Finish what removals have begun that were cut short; in how many namespaces there was one."""
    unfinished = [files for files in thread.unnamed_namespaces(state) if files.has_set_apart()]
    return sum(1 for files in unfinished if _remove(store, thread, files, _fixed(())) is not None)


# --- counting ---


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
    journals, inbox_items, busy = _turn_stats(store)
    return Stats(threads, checkpoints, files, size_bytes, journals, inbox_items, busy)


def _turn_stats(store: Store) -> tuple[int, int, int]:
    journals = inbox_items = busy = 0
    for _, path in thread_directories(store.root):
        for generation in (os.path.join(path, name) for name in _files.list_directory(path) if name.startswith("g-")):
            found = [token for name in _files.list_directory(generation) if (token := journal_token(name)) is not None]
            journals += len(found)
            busy += any(is_live(journal_path(generation, token)) for token in found)
            names = _files.list_directory(os.path.join(generation, INBOX_NAME))
            inbox_items += sum(1 for name in names if item_number(name) is not None)
    return journals, inbox_items, busy
