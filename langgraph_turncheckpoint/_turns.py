"""Opening, marking and settling turns: what is done under a thread's lock, in which order and with which syncs.
Decisions are `_turn`'s; checkpoints and their writes are `_commits`'; no LangGraph.

A turn whose end is known has its journal, which is its sign of life, before anybody can see its token. The log comes
after the token, and what cannot be logged is not worth failing for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import ormsgpack

from . import _events, _files
from ._journal import JournalFile, is_live, journal_path, journal_tokens, read_journal
from ._ledger import HeldLedger
from ._records import MalformedError, NewerFormatError, pack_id, unpack_id
from ._thread_files import ThreadFiles
from ._turn import (
    Cause,
    Entry,
    Gave,
    LedgerEvent,
    LedgerState,
    LoggedTurn,
    Marked,
    Opened,
    Opening,
    Refused,
    Settled,
    Strategy,
    TurnState,
    advance,
    assemble_turns,
    check_current,
    decide_opening,
)
from ._turn_log import TurnLog
from ._waiting import Patience, Ticket, predecessor, ticket_path
from .errors import DamagedCheckpointError, StorageError, ThreadBusyError, ThreadClosedError

JOURNAL_VERSION: Final = 1
_JOURNAL_KIND: Final = "journal"

#: Beyond this many journals in a thread, blank ones of dead turns are removed when a turn is opened.
JOURNALS_KEPT: Final = 32


class Turn:
    """A turn as its holder knows it.

    Attributes:
        token: The token it holds.
        durable: Whether the token is known to be on the disk.
        generation: The thread's generation when it was last looked at; 0 before that.
        journal: Its journal and sign of life, if its end is known.
        base: Of a rollback, the checkpoint it starts from, empty for none; `None` for any other turn.
        refused: What it has tried to write when it was over, and the log was told of.
    """

    __slots__ = ("__weakref__", "base", "durable", "generation", "journal", "refused", "token")

    def __init__(self, token: int, *, durable: bool) -> None:
        self.token, self.durable, self.generation = token, durable, 0
        self.journal: JournalFile | None = None
        self.base: str | None = None
        self.refused: set[str] = set()


class JournalHeader(NamedTuple):
    """The first record of a journal.

    Attributes:
        thread_id: The thread; `None` where the store is encrypted.
        opened: The turn, as it was when it was marked.
    """

    thread_id: str | None
    opened: Opened


def encode_journal_header(header: JournalHeader) -> bytes:
    """The bytes of a journal's header."""
    opened = header.opened
    return ormsgpack.packb(
        {
            "v": JOURNAL_VERSION,
            "kind": _JOURNAL_KIND,
            "thread_id": pack_id(header.thread_id),
            "token": opened.token,
            "opened_at_ns": opened.at_ns,
            "continues": opened.continues,
            "start": pack_id(opened.start),
        }
    )


def parse_journal_header(data: bytes) -> JournalHeader:
    """What a journal's header says.

    Raises:
        NewerFormatError: It is of a newer format.
        MalformedError: It is none.
    """
    try:
        fields = ormsgpack.unpackb(data)
        if fields["v"] > JOURNAL_VERSION:
            raise NewerFormatError(fields["v"])
        opened = Opened(
            int(fields["token"]),
            int(fields["opened_at_ns"]),
            int(fields["continues"]),
            unpack_id(fields["start"]),
            known_end=True,
        )
        return JournalHeader(unpack_id(fields["thread_id"]), opened)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise MalformedError(f"no header of a journal: {error}") from None


class Wish(NamedTuple):
    """A turn that is to be opened by hand.

    Attributes:
        thread: The thread.
        strategy: What to do if it is busy.
        base: The checkpoint that the turn is pointed at by id; empty if it starts from the latest.
        continues: The token of the turn it continues, or 0.
        names_thread: Whether its journal may spell the thread's id.
    """

    thread: ThreadFiles
    strategy: Strategy = "interrupt"
    base: str = ""
    continues: int = 0
    names_thread: bool = True


def is_misplaced(header: bytes, *, token: int | None, thread_id: str | None = None) -> bool:
    """Whether a journal's header is that of another turn than it is taken for; one that cannot be read is not."""
    try:
        found = parse_journal_header(header)
    except (MalformedError, NewerFormatError):
        return False
    return found.opened.token != token or (None not in (thread_id, found.thread_id) and found.thread_id != thread_id)


class PendingTurn:
    """One caller's attempts to open a turn, from its first look to the open turn.

    The caller repeats `attempt` with a `pause` after each that was in vain, in whatever colour it waits, and calls
    `abandon` if anything goes wrong.

    Args:
        wish: The turn.
        fsync: Whether its token waits for the disk.
        timeout: Seconds to wait; `None` for as long as it takes.
    """

    def __init__(
        self,
        wish: Wish,
        *,
        fsync: bool,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._wish, self._fsync, self._clock_ns = wish, fsync, clock_ns
        self._patience = Patience(timeout, clock=clock)
        self._ticket: Ticket | None = None
        #: The token that is waited for, and the ticket of who comes before.
        self._sight: tuple[int, int | None] = (0, None)
        self._turn: Turn | None = None

    def attempt(self) -> Turn | None:
        """The turn, or `None` if it is not its time yet.

        Raises:
            ThreadBusyError: The thread is busy, and the turn is not to wait. Nothing has changed.
            ThreadClosedError: The thread is closed. Nothing has changed.
            StorageError: The system refused. No turn is open; whoever held the thread may be fenced out.
        """
        if self._ticket is not None and not self._seems_free(self._ticket):
            return None
        thread = self._wish.thread
        with thread.ledger.hold() as held:
            if held.state.closed:
                raise ThreadClosedError(thread.thread_id)
            generation = thread.generation(held.state)
            busy = is_live(journal_path(generation, held.state.token))
            ahead = None
            if self._wish.strategy == "enqueue":
                ahead = predecessor(generation, self._ticket, remove_dead=True)
            self._sight = (held.state.token, ahead)
            decision = decide_opening(self._wish.strategy, busy=busy, is_first_in_line=ahead is None)
            if decision is Opening.REFUSE:
                raise ThreadBusyError(thread.thread_id, held.state.token)
            if decision is Opening.WAIT:
                self._stand_in_line(held, generation)
                return None
            turn = self._turn = _open(held, self._wish, busy=busy, fsync=self._fsync, at_ns=self._clock_ns())
            with suppress(StorageError):  # a ticket that nobody holds is removed by the next waiter
                self._leave_line()
        if busy:
            _events.taken_over(thread.thread_id, self._sight[0], turn.token, self._wish.strategy)
        return turn

    def pause(self) -> float:
        """Seconds until the next attempt.

        Raises:
            ThreadBusyError: The time is over. Nothing has changed.
        """
        token, ahead = self._sight
        seconds = self._patience.pause(token if ahead is None else (ahead,))  # others' turns are no news further back
        if seconds is None:
            raise ThreadBusyError(self._wish.thread.thread_id, token, self._patience.waited)
        return seconds

    def abandon(self) -> None:
        """Leave the line; and end a turn that was opened for a caller who has gone. Never fails."""
        turn, self._turn = self._turn, None
        with suppress(StorageError):
            self._leave_line()
        if turn is not None:
            with suppress(StorageError):  # its journal is closed all the same
                settle(self._wish.thread, turn, "cancelled", "unknown", clock_ns=self._clock_ns)

    def _seems_free(self, ticket: Ticket) -> bool:
        """A look without the lock, which would be in the way of the writer who is waited for."""
        thread = self._wish.thread
        state = thread.ledger.read() or LedgerState()
        generation = thread.generation(state)
        if state.closed or generation != ticket.generation_dir:
            return True  # to be looked at with the lock
        ahead = self._sight[1]
        if ahead is not None and not _files.is_locked(ticket_path(generation, ahead)):
            ahead = predecessor(generation, ticket, remove_dead=False)
        self._sight = (state.token, ahead)
        return ahead is None and not is_live(journal_path(generation, state.token))

    def _stand_in_line(self, held: HeldLedger, generation: str) -> None:
        if self._ticket is not None:
            if self._ticket.generation_dir == generation:
                return
            self._leave_line()  # the thread was deleted or copied to meanwhile
        held.make_directory(generation, fsync=self._fsync)
        self._ticket = Ticket.take(generation)

    def _leave_line(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.leave()


def _open(held: HeldLedger, wish: Wish, *, busy: bool, fsync: bool, at_ns: int) -> Turn:
    thread, older = wish.thread, held.state
    generation = thread.generation(older)
    rollback = _start_of(thread, older) if busy and wish.strategy == "rollback" else None
    start = rollback if rollback is not None else thread.namespace(older, "").head_id() or ""
    state = advance(older, LedgerEvent.OPEN, thread_id=thread.thread_id, base=wish.base or rollback or "")
    while os.path.exists(journal_path(generation, state.token)):
        # Of a process that died before its token was there, or of a ledger replaced by an older copy.
        state = state._replace(token=state.token + 1)
    opened = Opened(state.token, at_ns, wish.continues, start, known_end=True)
    held.make_directory(generation, fsync=fsync)
    with suppress(StorageError):
        _remove_blank_journals(generation)
    turn = Turn(state.token, durable=fsync)
    turn.generation, turn.base = state.generation, rollback
    turn.journal = _new_journal(thread, generation, opened, names_thread=wish.names_thread, fsync=fsync)
    try:
        held.write(state)
        if fsync:
            held.sync()
    except BaseException:
        _discard(turn.journal)
        raise
    _log(thread, state, *_superseded(older, at_ns, busy=busy), opened)
    return turn


def _start_of(thread: ThreadFiles, state: LedgerState) -> str:
    """The newest checkpoint before the input of the turn that is running."""
    path = journal_path(thread.generation(state), state.token)
    content = read_journal(path)
    try:
        start = parse_journal_header((content and content.header) or b"").opened.start
    except (MalformedError, NewerFormatError) as error:
        raise DamagedCheckpointError(path, f"does not tell where the turn began: {error}") from None
    return start or ""


def _new_journal(
    thread: ThreadFiles, generation: str, opened: Opened, *, names_thread: bool, fsync: bool
) -> JournalFile:
    header = JournalHeader(thread.thread_id if names_thread else None, opened)
    return JournalFile.create(journal_path(generation, opened.token), encode_journal_header(header), fsync=fsync)


def _discard(journal: JournalFile) -> None:
    journal.close()
    with suppress(StorageError):
        _files.remove_file(journal.path)


def _superseded(older: LedgerState, at_ns: int, *, busy: bool) -> tuple[Settled, ...]:
    return (Settled(older.token, at_ns, "superseded", "superseded"),) if busy else ()


def _log(thread: ThreadFiles, state: LedgerState, *entries: Entry, create: bool = True) -> None:
    log = TurnLog(thread.generation(state), fsync=thread.fsync)
    try:
        log.append(entries, create=create)
    except StorageError as error:  # a newer log's format, too
        _events.unlogged(thread.thread_id, log.path, error)


def _remove_blank_journals(generation: str) -> None:
    tokens = journal_tokens(generation)
    for token in tokens[:-JOURNALS_KEPT]:
        _remove_if_blank(journal_path(generation, token))


def _remove_if_blank(path: str) -> None:
    content = read_journal(path)
    if content is not None and not content.payloads and not content.damaged and not is_live(path):
        _files.remove_file(path)


def open_run(thread: ThreadFiles, *, fsync: bool, base: str = "", clock_ns: Callable[[], int] = time.time_ns) -> Turn:
    """Raise the token for a plain run and hold it; `base` is the checkpoint it was pointed at by id.

    Raises:
        ThreadClosedError: The thread is closed. The token is unchanged.
    """
    with thread.ledger.hold() as held:
        older = held.state
        state = advance(older, LedgerEvent.OPEN, thread_id=thread.thread_id, base=base)
        held.write(state)
        busy = False
        with suppress(StorageError):
            generation, at_ns = thread.generation(state), clock_ns()
            held.make_directory(generation, fsync=fsync)
            busy = is_live(journal_path(generation, older.token))
            _log(thread, state, *_superseded(older, at_ns, busy=busy), Opened(state.token, at_ns))
    if busy:
        _events.taken_over(thread.thread_id, older.token, state.token, "interrupt")
    return Turn(state.token, durable=False)


def mark_run(
    thread: ThreadFiles,
    turn: Turn,
    *,
    start: str | None = None,
    continues: int = 0,
    names_thread: bool = True,
    fsync: bool,
    clock_ns: Callable[[], int] = time.time_ns,
) -> JournalFile:
    """Give a turn that is open a journal: from now on its end is known. One that has a journal keeps it.

    Its token is durable first, so that no record can come to belong to a later turn.

    Args:
        thread: The thread.
        turn: The turn.
        start: The newest checkpoint of the root namespace before its input; the newest there is, if `None`.
        continues: The token of the turn it continues, or 0.
        names_thread: Whether the journal may spell the thread's id.
        fsync: Whether the journal's synced records wait for the disk.
        clock_ns: The time.

    Raises:
        StaleTurnError, ThreadClosedError: It is not the newest turn any more. Nothing has changed.
        StorageError: The system refused; `EEXIST` if another process keeps the turn's journal. The turn has none here.
    """
    with thread.ledger.hold() as held:
        state = held.state
        check_current(state, turn.token, thread_id=thread.thread_id)
        if turn.journal is not None and turn.journal.is_open:
            return turn.journal
        generation = thread.generation(state)
        if start is None:
            start = thread.namespace(state, "").head_id() or ""
        opened = Opened(turn.token, clock_ns(), continues, start, known_end=True)
        held.make_directory(generation, fsync=fsync)
        with suppress(StorageError):
            # One of a process that died before it had raised the token.
            _remove_if_blank(journal_path(generation, turn.token))
        if fsync and not turn.durable:
            held.sync()
            turn.durable = True
        turn.journal = _new_journal(thread, generation, opened, names_thread=names_thread, fsync=fsync)
        _log(thread, state, Marked(opened.token, opened.at_ns, continues, start))
        return turn.journal


def point_turn(thread: ThreadFiles, turn: Turn, base: str) -> None:
    """Record that a turn starts over from an old checkpoint, which a prune must leave there."""
    with thread.ledger.hold() as held:
        if held.state.token == turn.token and held.state.base != base:
            held.write(held.state._replace(base=base))


def settle(
    thread: ThreadFiles,
    turn: Turn,
    state: TurnState,
    cause: Cause | None,
    *,
    raise_token: bool = True,
    clock_ns: Callable[[], int] = time.time_ns,
) -> None:
    """End a turn, and say how. One that is not the newest any more was superseded before.

    Its journal is closed whatever happens, and removed if it is blank.

    Args:
        thread: The thread.
        turn: The turn.
        state: How it ended.
        cause: Why it ended before its work was done.
        raise_token: Whether what it has not written by now is refused.
        clock_ns: The time.

    Raises:
        StorageError: The system refused. The turn counts as interrupted.
    """
    journal, paths = turn.journal, set()
    try:
        with thread.ledger.hold() as held:
            paths.add(journal_path(thread.generation(held.state), turn.token))  # a copy made into the thread moved it
            is_current = held.state.token == turn.token
            if not is_current:
                state, cause = "superseded", "superseded"
            elif raise_token:
                held.write(advance(held.state, LedgerEvent.CANCEL, thread_id=thread.thread_id))
            if turn.generation in (0, held.state.generation):
                _log(thread, held.state, Settled(turn.token, clock_ns(), state, cause), create=False)
            if journal is not None:
                # Still with the lock: whoever waits sees the end of the turn and of its life at once.
                journal.close()
    finally:
        if journal is not None:
            journal.close()
    if journal is not None and journal.is_blank and raise_token:
        for path in (journal.path, *paths):
            with suppress(StorageError):
                _files.remove_file(path)
    _events.settled(thread.thread_id, turn.token, state, cause)


def raise_token(
    thread: ThreadFiles,
    event: LedgerEvent,
    *,
    cause: Cause,
    fsync: bool,
    clock_ns: Callable[[], int] = time.time_ns,
) -> None:
    """Fence the running turn out, and say why; durable on return with `fsync`.

    A cancel is logged for a plain run, too, which may have ended long ago: who cancels it should know. Closing a
    thread says nothing of the kind.
    """
    with thread.ledger.hold() as held:
        older = held.state
        state = advance(older, event, thread_id=thread.thread_id)
        held.write_twice(state, fsync=fsync)
        path = journal_path(thread.generation(older), older.token)
        with suppress(StorageError):
            is_plain = event is LedgerEvent.CANCEL and not os.path.exists(path)
            if is_plain or is_live(path):
                _log(thread, state, Settled(older.token, clock_ns(), "cancelled", cause), create=False)
    _events.token_raised(thread.thread_id, event.value, state.token, cause)


def note_refusal(
    thread: ThreadFiles,
    state: LedgerState,
    turn: Turn,
    operation: str,
    *,
    clock_ns: Callable[[], int] = time.time_ns,
) -> None:
    """Log that a turn which is over tried to write; who calls holds the thread's lock. Never fails.

    Only the first try of a kind is logged, so that a writer who tries for ever costs nothing.
    """
    if operation in turn.refused or turn.generation not in (0, state.generation):
        return
    turn.refused.add(operation)
    _log(thread, state, Refused(turn.token, clock_ns(), operation), create=False)


def note_results(
    thread: ThreadFiles,
    state: LedgerState,
    results: Mapping[int, tuple[bytes, ...]],
    *,
    clock_ns: Callable[[], int] = time.time_ns,
) -> None:
    """Log which calls had their result in journals that are about to go; who calls holds the thread's lock. Never
    fails.

    Without it nobody could tell any more that the result a later turn has used was an earlier one's.
    """
    entries = [Gave(token, clock_ns(), calls) for token, calls in results.items() if calls]
    if entries:
        _log(thread, state, *entries, create=False)


def is_busy(thread: ThreadFiles) -> bool:
    """Whether a turn whose end is known is running."""
    state = thread.ledger.read()
    return state is not None and is_live(journal_path(thread.generation(state), state.token))


def logged_turns(thread: ThreadFiles, state: LedgerState) -> tuple[list[LoggedTurn], int]:
    """The turns of a thread, newest first, and how many stretches of the log were passed over.

    Raises:
        UnknownFormatError: The log is of a newer format.
    """
    generation = thread.generation(state)
    content = TurnLog(generation, fsync=False).read()
    turns = assemble_turns(
        content.entries,
        current=state.token,
        is_live=lambda token: is_live(journal_path(generation, token)),
    )
    return turns, content.damaged
