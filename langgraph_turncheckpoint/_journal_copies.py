"""What a copy of a thread knows of the runs that were cut off in it: their journals come along, and are those of dead
turns there. Checkpoints are copied elsewhere; what a record says is not understood here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from . import _events, _files
from ._frames import encode_frame, split_frames
from ._journal import journal_path, journal_tokens
from ._layout import TEMPORARY_SUFFIX
from ._records import MalformedError, NewerFormatError
from ._thread_files import ThreadFiles
from ._turn import Entry, LedgerState, LoggedTurn, Settled
from ._turn_log import TurnLog
from ._turns import JournalHeader, encode_journal_header, is_misplaced, logged_turns, parse_journal_header
from .errors import StorageError, UnknownFormatError


class _Found(NamedTuple):
    """A journal with records: the turn, its header if it has one, and the frames of the records."""

    token: int
    header: bytes | None
    records: bytes


def copy_thread(
    source: ThreadFiles, target: ThreadFiles, *, fsync: bool, clock_ns: Callable[[], int] = time.time_ns
) -> None:
    """Add everything of another thread, in one step, and what its journals tell of runs that were cut off.

    A reader of the target finds the journals with the checkpoints they belong to, or neither.

    Raises:
        InvalidIdError: Both threads hold a checkpoint of the same id that differs.
    """

    def bring(source_state: LedgerState, before: LedgerState, state: LedgerState) -> LedgerState:
        found = _journals(source, source_state)
        if not found or (_head(target, before) or "") > (_head(source, source_state) or ""):
            return state  # runs go on from what the target had itself
        # Copied checkpoints name the turns they were written in; where those are free, the journals keep their tokens.
        shift = max(0, before.token + 1 - found[0].token)
        known = _turns_by_token(source, source_state)
        directory, entries = target.generation(state), list[Entry]()
        for journal in found:
            token = journal.token + shift
            header, log = _carried(journal, known.get(journal.token), token, (source, target), now_ns=clock_ns())
            path = journal_path(directory, token)
            temporary = f"{path}{TEMPORARY_SUFFIX}"
            start = b"" if header is None else encode_frame(header)
            _files.replace_file(path, start + journal.records, temporary=temporary, fsync=fsync)
            entries += log
        _log(target, directory, entries, fsync=fsync)
        # The next turn there is newer than all of them.
        return state._replace(token=max(state.token, found[-1].token + shift + 1))

    target.copy_from(source, bring=bring)


def _journals(thread: ThreadFiles, state: LedgerState) -> list[_Found]:
    found = []
    directory = thread.generation(state)
    for token in journal_tokens(directory):
        data = _files.read_file(journal_path(directory, token)) or b""
        payloads, end, damaged = split_frames(data)
        if len(payloads) < 2 and not damaged:
            continue  # a turn that has recorded nothing
        has_header = bool(payloads) and not (damaged and damaged[0][0] == 0)
        # Damage comes along as it is: silence means nothing there.
        start = len(encode_frame(payloads[0])) if has_header else 0
        found.append(_Found(token, payloads[0] if has_header else None, data[start:end]))
    return found


def _carried(
    journal: _Found, turn: LoggedTurn | None, token: int, threads: tuple[ThreadFiles, ThreadFiles], *, now_ns: int
) -> tuple[bytes | None, list[Entry]]:
    """The header of a journal in the copy, and what the log there says of its turn."""
    source, target = threads
    try:
        header = parse_journal_header(journal.header or b"")
    except (MalformedError, NewerFormatError):
        return journal.header, []  # whoever reads it has the same to say of it
    if is_misplaced(journal.header or b"", token=journal.token, thread_id=source.thread_id):
        return journal.header, []
    opened = header.opened._replace(token=token, continues=0)
    log: list[Entry] = [opened]
    if turn is not None and turn.settled_at_ns is not None:
        log.append(Settled(token, turn.settled_at_ns, turn.state, turn.cause))
    elif turn is not None and turn.state == "running":
        # It goes on where it is, and nowhere else.
        log.append(Settled(token, now_ns, "cancelled", "unknown"))
    named = None if header.thread_id is None else target.thread_id
    return encode_journal_header(JournalHeader(named, opened)), log


def _turns_by_token(thread: ThreadFiles, state: LedgerState) -> dict[int, LoggedTurn]:
    try:
        turns, _ = logged_turns(thread, state)
    except UnknownFormatError:
        return {}
    return {turn.opened.token: turn for turn in turns}


def _head(thread: ThreadFiles, state: LedgerState) -> str | None:
    return thread.namespace(state, "").head_id()


def _log(target: ThreadFiles, directory: str, entries: list[Entry], *, fsync: bool) -> None:
    log = TurnLog(directory, fsync=fsync)
    try:
        log.append(entries)
    except StorageError as error:
        _events.unlogged(target.thread_id, log.path, error)
