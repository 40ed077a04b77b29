"""Looking after a whole directory, when its owner asks for it: what dead processes have left is removed, and threads
that nobody has touched for long are deleted. How the checkpoints of a thread are thinned out is `_upkeep`'s business.

Everything is looked for without a lock first, so that a clean thread costs a look, and again under the thread's lock
before anything goes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from . import _files
from ._checkpoint_files import DAMAGED_NAME, NamespaceFiles
from ._events import UPKEEP
from ._inbox_files import INBOX_NAME, InboxFiles, item_number
from ._journal import is_live, journal_path, journal_tokens, read_journal
from ._layout import TEMPORARY_SUFFIX, generation_of
from ._ledger import HeldLedger
from ._records import MalformedError, NewerFormatError
from ._retention import absorbed_upto, is_untouched
from ._store import Store
from ._thread_files import ThreadFiles, thread_ids
from ._transcript import ENDED, Transcript, decode_records
from ._turn import LedgerState
from ._turn_log import LOG_TEMPORARY
from ._turns import logged_turns, parse_journal_header
from ._upkeep import finish_removals, made_at
from ._waiting import ticket_numbers, ticket_path
from .errors import DamagedCheckpointError, StorageError, TurnCheckpointError


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep has removed, or would remove.

    Attributes:
        dry_run: Whether nothing was changed.
        threads: The threads that were deleted because nobody had touched them for long.
        temporaries: Temporary files of writers that died.
        remains: What was left of removals and deletes that were cut short: files, and directories of earlier lives.
        tickets: Places in line of waiters that died.
        journals: Journals of ended turns that told nothing which the checkpoints do not hold.
        inbox_items: Messages that had been delivered, and that the newest checkpoint holds.
        size_bytes: The length of all these files together.
        problems: What could not be read or removed, one sentence each that begins with the path. It was left.
    """

    dry_run: bool
    threads: tuple[str, ...] = ()
    temporaries: int = 0
    remains: int = 0
    tickets: int = 0
    journals: int = 0
    inbox_items: int = 0
    size_bytes: int = 0
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tally:
    """A report that is being written."""

    dry_run: bool
    threads: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def count(self, kind: str, number: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + number

    def report(self) -> SweepReport:
        return SweepReport(
            self.dry_run,
            threads=tuple(self.threads),
            size_bytes=self.size_bytes,
            problems=tuple(self.problems),
            **self.counts,
        )


class _Litter(NamedTuple):
    """What of one thread's files nobody needs.

    Attributes:
        temporaries: Of writers that died.
        remains: Files that a commit or removal has left behind.
        generations: Directories of earlier lives.
        tickets: Of waiters that died.
        older_journals: Those that a later journal speaks for; they must be gone for good before that one goes.
        journals: Those that speak for themselves.
    """

    temporaries: list[str]
    remains: list[str]
    generations: list[str]
    tickets: list[str]
    older_journals: list[str]
    journals: list[str]


def sweep(
    store: Store, *, max_age: float | None, dry_run: bool, clock_ns: Callable[[], int] = time.time_ns
) -> SweepReport:
    """See `TurnCheckpointSaver.sweep`; `max_age` is in seconds, the clock in nanoseconds since 1970."""
    tally = _Tally(dry_run)

    def on_damage(error: DamagedCheckpointError) -> None:
        tally.problems.append(str(error))

    for thread_id in thread_ids(store.root, fsync=store.fsync, on_damage=on_damage):
        thread = store.thread(thread_id)
        try:
            if max_age is not None and _delete_if_untouched(store, thread, max_age, tally, clock_ns):
                continue
            _sweep_thread(store, thread, tally)
            _sweep_inbox(store, thread, tally)
        except (TurnCheckpointError, OSError) as error:
            named = str(error).startswith(store.root)
            tally.problems.append(str(error) if named else f"{thread.path}: {error}")
    report = tally.report()
    UPKEEP.info(
        "%s: %s: %d threads, %d temporaries, %d remains, %d tickets, %d journals, %d inbox items, %d bytes; "
        "%d problems",
        store.root,
        "would be swept" if dry_run else "swept",
        len(report.threads),
        report.temporaries,
        report.remains,
        report.tickets,
        report.journals,
        report.inbox_items,
        report.size_bytes,
        len(report.problems),
    )
    return report


# --- threads that nobody has touched for long ---


def _delete_if_untouched(
    store: Store, thread: ThreadFiles, max_age: float, tally: _Tally, clock_ns: Callable[[], int]
) -> bool:
    def is_in_use(state: LedgerState) -> bool:
        if is_live(journal_path(thread.generation(state), state.token)):
            return True
        return not is_untouched(touched_ns(store, thread, state), clock_ns(), max_age)

    state = thread.ledger.read()
    if state is None or is_in_use(state):
        return False
    size = sum(_files.file_sizes(thread.generation(state)))
    if not (tally.dry_run or store.delete_thread(thread.thread_id, unless=is_in_use)):
        return False
    tally.threads.append(thread.thread_id)
    tally.size_bytes += size
    return True


def touched_ns(store: Store, thread: ThreadFiles, state: LedgerState) -> int | None:
    """When a thread was last touched, in nanoseconds since 1970; `None` if there is nothing in it that tells.

    The newest checkpoint of each namespace says when it was made, the log of the turns when they began and ended, and
    the number of a message when it was posted. A newest checkpoint that cannot be read counts from its file.
    """
    moments = [_newest_ns(store, files) for files in thread.unnamed_namespaces(state)]
    turns, _ = logged_turns(thread, state)
    for turn in turns:
        moments += [turn.opened.at_ns, turn.settled_at_ns]
    for name in _files.list_directory(os.path.join(thread.generation(state), INBOX_NAME)):
        number = item_number(name)
        moments.append(None if number is None else number * 1000)
    return max((moment for moment in moments if moment is not None), default=None)


def _newest_ns(store: Store, files: NamespaceFiles) -> int | None:
    checkpoint_id = files.head_id()
    if checkpoint_id is None:
        return None
    made = made_at(store, files, checkpoint_id)
    if made is not None:
        return int(made * 1e9)
    with suppress(OSError):
        return os.stat(files.file(checkpoint_id)).st_mtime_ns
    return None


# --- what the dead have left ---


def _sweep_thread(store: Store, thread: ThreadFiles, tally: _Tally) -> None:
    state = thread.ledger.read()
    if state is None:
        return
    litter = _litter(store, thread, state)
    if any(litter):
        if tally.dry_run:
            _count(litter, tally)
        else:
            with thread.ledger.hold() as held:
                _remove_litter(store, held, _litter(store, thread, held.state), tally)
    if tally.dry_run:
        tally.count("remains", sum(1 for files in thread.unnamed_namespaces(state) if files.has_set_apart()))
    else:
        tally.count("remains", finish_removals(store, thread, state))


def _remove_litter(store: Store, held: HeldLedger, litter: _Litter, tally: _Tally) -> None:
    if not any(litter):
        return
    with held.committing():
        for path in litter.older_journals:
            size = _size_of(path)
            _files.remove_file(path)  # if one stays, so does what speaks for it
            tally.size_bytes += size
        if litter.older_journals and store.fsync:
            _files.sync_directory(os.path.dirname(litter.older_journals[0]))
        tally.count("journals", len(litter.older_journals))
        for kind, paths in _kinds(litter._replace(older_journals=[])):
            for path in paths:
                size = _size_of(path)
                try:
                    _files.remove_tree(path) if path in litter.generations else _files.remove_file(path)
                except StorageError as error:
                    tally.problems.append(f"{path}: could not be removed: {error.strerror}")
                else:
                    tally.count(kind)
                    tally.size_bytes += size


def _count(litter: _Litter, tally: _Tally) -> None:
    for kind, paths in _kinds(litter):
        tally.count(kind, len(paths))
        tally.size_bytes += sum(map(_size_of, paths))


def _kinds(litter: _Litter) -> Iterable[tuple[str, list[str]]]:
    yield "temporaries", litter.temporaries
    yield "remains", [*litter.remains, *litter.generations]
    yield "tickets", litter.tickets
    yield "journals", [*litter.older_journals, *litter.journals]


def _size_of(path: str) -> int:
    with suppress(StorageError, OSError):
        return sum(_files.file_sizes(path)) if os.path.isdir(path) else os.lstat(path).st_size
    return 0


def _litter(store: Store, thread: ThreadFiles, state: LedgerState) -> _Litter:
    generation = thread.generation(state)
    temporaries: list[str] = []
    remains: list[str] = []
    if LOG_TEMPORARY in _files.list_directory(generation):
        temporaries.append(os.path.join(generation, LOG_TEMPORARY))
    temporaries += _temporaries(os.path.join(generation, INBOX_NAME))
    for files in thread.unnamed_namespaces(state):
        temporaries += _temporaries(os.path.join(files.path, DAMAGED_NAME))
        for path in files.litter():
            (temporaries if path.endswith(TEMPORARY_SUFFIX) else remains).append(path)
    names = _files.list_directory(thread.path)
    older = [name for name in names if generation_of(name) not in (None, state.generation)]
    tickets = [ticket_path(generation, number) for number in ticket_numbers(generation)]
    older_journals, journals = _told_journals(store, generation, state)
    return _Litter(
        temporaries,
        remains,
        [os.path.join(thread.path, name) for name in sorted(older)],
        [path for path in tickets if not _files.is_locked(path)],
        older_journals,
        journals,
    )


def _temporaries(directory: str) -> list[str]:
    names = _files.list_directory(directory)
    return [os.path.join(directory, name) for name in sorted(names) if name.endswith(TEMPORARY_SUFFIX)]


def _told_journals(store: Store, generation: str, state: LedgerState) -> tuple[list[str], list[str]]:
    """Journals that a later one speaks for, and those that speak for themselves; none while a turn runs."""
    if is_live(journal_path(generation, state.token)):
        return [], []
    blank, complete = [], []
    for token in journal_tokens(generation):
        path = journal_path(generation, token)
        if is_live(path):
            continue
        content = read_journal(path)
        if content is None or _is_newer(content.header):
            continue
        if not content.payloads and not content.damaged:
            blank.append(token)
        else:
            is_sound = content.header is not None and not content.damaged
            complete.append((token, is_sound and _is_complete(store, token, content.payloads)))
    upto = absorbed_upto(complete)
    older = [token for token, is_complete in complete if token < upto and not is_complete]
    own = [*blank, *(token for token, is_complete in complete if is_complete)]
    return [journal_path(generation, t) for t in older], [journal_path(generation, t) for t in sorted(own)]


def _is_newer(header: bytes | None) -> bool:
    try:
        parse_journal_header(header or b"")
    except NewerFormatError:
        return True
    except MalformedError:
        return False
    return False


def _is_complete(store: Store, token: int, payloads: list[bytes]) -> bool:
    """Whether a journal says that its runs were complete, and nothing since."""
    records, unreadable = decode_records(store.codec, payloads)
    transcript = Transcript()
    transcript.add(token, records)
    has_ended_well = any(record.kind == ENDED and record.fields[0] == "completed" for record in records)
    return has_ended_well and not unreadable and not transcript.tokens


# --- messages that were delivered ---


def _sweep_inbox(store: Store, thread: ThreadFiles, tally: _Tally) -> None:
    """Acknowledge what the newest checkpoint holds, for a run that died before it could."""
    state = thread.ledger.read()
    if state is None or is_live(journal_path(thread.generation(state), state.token)):
        return
    inbox = InboxFiles(thread, fsync=store.fsync)
    items = inbox.items(lambda error: tally.problems.append(str(error)))
    loaded = store.latest(thread.thread_id, "") if items else None
    if loaded is None:
        return
    held = _message_ids(loaded.checkpoint["channel_values"].values())
    delivered = [item for item in items if item.message_id in held]
    if not delivered:
        return
    size = sum(_size_of(item.path) for item in delivered)
    if not tally.dry_run:
        inbox.remove([item.message_id for item in delivered])
    tally.count("inbox_items", len(delivered))
    tally.size_bytes += size


def _message_ids(values: Iterable[Any]) -> set[str]:
    several = (value if isinstance(value, (list, tuple)) else (value,) for value in values)
    return {m.id for m in chain.from_iterable(several) if isinstance(m, BaseMessage) and m.id}
