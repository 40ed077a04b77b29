"""The turns of the threads of one store, by thread id: opened, marked, settled, and looked up in their log. How that is
done is `_turns`' business; checkpoints are read and written in `_store`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from langgraph.checkpoint.serde.base import SerializerProtocol

from . import _events, _turns
from ._journal import JournalFile
from ._loading import LoadedFile
from ._records import WRITES, Image
from ._serde import ValueCodec
from ._shared import shared_state
from ._standing import Standing, ending, ending_at_head, standing
from ._thread_files import ThreadFiles
from ._turn import Cause, LedgerEvent, LedgerState, LoggedTurn, Strategy, TurnState, check_current
from ._turn_log import TurnRecord, TurnRecords, record_of
from ._turns import PendingTurn, Turn, Wish
from .errors import DamagedCheckpointError, RefusedValueError, UnknownFormatError


class Caretaker(Protocol):
    """Who looks after a store beside the writes. What it is told it must take without failing or waiting."""

    def stored(self, store: Any, thread_id: str) -> None:
        """A checkpoint was put."""

    def between_turns(self, store: Any, thread_id: str) -> None:
        """A turn has ended, or the next one begun."""


class Written:
    """What turns have written to the root namespace; its checkpoints are met one by one, the newest first.

    Args:
        wanted: Their tokens.
        plain: Those whose end nobody has announced.

    Attributes:
        ids: The first and the last checkpoint of each.
        ends: How each of the plain ones ended, by the last checkpoint that it wrote, or wrote on.
    """

    def __init__(self, wanted: Collection[int] = (), plain: Container[int] = ()) -> None:
        self._wanted, self._plain = wanted, plain
        self.ids: dict[int, tuple[str, str]] = {}
        self.ends: dict[int, TurnState] = {}
        self._head: LoadedFile | None = None
        self._is_head = self._is_sure = True

    def miss(self) -> None:
        """Pass over one that cannot be read: it may be the last of the next turn that is met."""
        self._is_head = self._is_sure = False

    def meet(self, file: LoadedFile) -> None:
        """Take the next checkpoint into account."""
        is_sure, self._is_sure = self._is_sure, True
        self._head = file if self._is_head else self._head
        self._is_head = False
        token = file.token
        if token in self._wanted:
            self.ids[token] = (file.checkpoint_id, self.ids.get(token, (file.checkpoint_id,) * 2)[1])
        for other in (token, *_writers(file.image)):
            if other in self._plain and other not in self.ends:
                self.ends[other] = ending(file, other) if is_sure and not file.image.damage else "unknown"

    def end(self, newest: int) -> None:
        """All have been met. The newest turn works, or worked, on what it found, if it has left nothing of its own."""
        if self._head is not None and newest in self._plain and newest not in self.ends:
            with suppress(DamagedCheckpointError, RefusedValueError):
                ended = ending_at_head(self._head, newest)
                self.ends[newest] = "unknown" if ended == "completed" else ended


def _writers(image: Image) -> Iterator[int]:
    """The turns that wrote on a checkpoint."""
    return (int(section.fields[2]) for kind, section in image.records if kind == WRITES)


class TurnStore:
    """The turns in one directory.

    Args:
        root: The directory; it is made by the first write.
        serde: Serializes values; with an encrypting one no journal names its thread.
        fsync: Whether writes wait for the disk.
    """

    def __init__(self, root: str, serde: SerializerProtocol, *, fsync: bool) -> None:
        self.root, self.fsync, self._serde = root, fsync, serde
        self._codec = ValueCodec(serde)
        self._shared = shared_state(root)
        self.caretaker: Caretaker | None = None

    def thread(self, thread_id: str) -> ThreadFiles:
        """The files of a thread."""
        return ThreadFiles(self.root, thread_id, fsync=self.fsync)

    def run_turn(self, control: object, thread_id: str, *, base: str) -> Turn:
        """The turn of a LangGraph run; its first contact with the thread opens it."""
        run = self._shared.runs.turn_of(control, thread_id)
        with run.lock:
            if run.turn is not None:
                return run.turn
            run.turn = _turns.open_run(self.thread(thread_id), fsync=self.fsync, base=base)
        if self.caretaker is not None:
            self.caretaker.between_turns(self, thread_id)
        return run.turn

    def explicit_turn(self, thread_id: str, token: int) -> Turn:
        """The turn that an explicit token stands for."""
        return self._shared.runs.explicit(thread_id, token)

    def pending_turn(
        self,
        thread_id: str,
        *,
        base: str = "",
        strategy: Strategy = "interrupt",
        timeout: float | None = None,
        continues: int = 0,
    ) -> PendingTurn:
        """Attempts to open a turn by hand, for a caller who waits in its own colour; see `open_turn`.

        The turn that comes of them must be handed to `adopt_turn`.
        """
        wish = Wish(self.thread(thread_id), strategy, base=base, continues=continues, names_thread=self._names_threads)
        return PendingTurn(wish, fsync=self.fsync, timeout=timeout)

    def open_turn(
        self,
        thread_id: str,
        *,
        base: str = "",
        strategy: Strategy = "interrupt",
        timeout: float | None = None,
        continues: int = 0,
    ) -> Turn:
        """Open a turn by hand, waiting for it if the strategy says so. Its token is durable, its journal is open.

        Args:
            thread_id: The thread.
            base: The checkpoint that the turn is pointed at by id; empty if it starts from the latest.
            strategy: What to do if the thread is busy.
            timeout: With "enqueue", seconds to wait; `None` for as long as it takes.
            continues: The token of the turn it continues, or 0.

        Raises:
            ThreadBusyError: The thread is busy, or still is after waiting. Nothing has changed.
            ThreadClosedError: The thread is closed. Nothing has changed.
        """
        pending = self.pending_turn(thread_id, base=base, strategy=strategy, timeout=timeout, continues=continues)
        try:
            while (turn := pending.attempt()) is None:
                time.sleep(pending.pause())
            self.adopt_turn(thread_id, turn)
            return turn
        except BaseException:
            pending.abandon()
            raise

    def adopt_turn(self, thread_id: str, turn: Turn) -> None:
        """Let a turn opened here be the one that its token stands for in a config."""
        self._shared.runs.adopt(thread_id, turn)

    def mark_run(self, thread_id: str, turn: Turn, *, start: str | None = None, continues: int = 0) -> JournalFile:
        """Give the turn of a plain run a journal: from now on the thread is busy until it settles.

        Args:
            thread_id: The thread.
            turn: The turn, from `run_turn`.
            start: The newest checkpoint of the root namespace before the run's input; the newest there is, if `None`.
            continues: The token of the turn it continues, or 0.

        Raises:
            StaleTurnError, ThreadClosedError: It is not the newest turn any more. Nothing has changed.
            StorageError: The system refused. The turn has no journal.
        """
        return _turns.mark_run(
            self.thread(thread_id),
            turn,
            start=start,
            continues=continues,
            names_thread=self._names_threads,
            fsync=self.fsync,
        )

    @property
    def _names_threads(self) -> bool:
        # With an encrypting serializer nothing but ids of checkpoints, order, sizes and times is readable.
        return getattr(self._serde, "cipher", None) is None

    def check_turn(self, thread_id: str, turn: Turn) -> None:
        """Refuse a run whose explicit turn is over already."""
        state = self.thread(thread_id).ledger.read()
        if state is not None:
            check_current(state, turn.token, thread_id=thread_id)

    def point_turn(self, thread_id: str, turn: Turn, base: str) -> None:
        """Record that a turn starts over from an old checkpoint."""
        _turns.point_turn(self.thread(thread_id), turn, base)

    def settle_turn(
        self, thread_id: str, turn: Turn, state: TurnState, cause: Cause | None = None, *, raise_token: bool = True
    ) -> None:
        """End a turn, and say how; what was said of it first stays.

        Args:
            thread_id: The thread.
            turn: The turn.
            state: How it ended. One that is not the newest any more was superseded, whatever this says.
            cause: Why it ended before its work was done.
            raise_token: Whether to refuse what it has not written by now; not for a run that LangGraph still ends.
        """
        self._shared.runs.forget(thread_id, turn)
        _turns.settle(self.thread(thread_id), turn, state, cause, raise_token=raise_token)
        if self.caretaker is not None:
            self.caretaker.between_turns(self, thread_id)

    def is_busy(self, thread_id: str) -> bool:
        """Whether a turn whose end is known is running."""
        return _turns.is_busy(self.thread(thread_id))

    def generation_dir(self, thread_id: str) -> str:
        """The directory of the thread's present life, where its journals are; it need not exist."""
        thread = self.thread(thread_id)
        return thread.generation(thread.ledger.read() or LedgerState())

    def settle_cause(self, thread_id: str, token: int) -> tuple[TurnState, Cause | None]:
        """State and cause of a turn, as its record has them; both "unknown" where there is no record."""
        return self.settle_causes(thread_id).get(token, ("unknown", "unknown"))

    def settle_causes(self, thread_id: str) -> dict[int, tuple[TurnState, Cause | None]]:
        """State and cause of every turn that there is a record of, by token."""
        return {turn.opened.token: (turn.state, turn.cause) for turn in self._logged_turns(thread_id)[1]}

    def newest_turn(self, thread_id: str) -> int:
        """The token of the newest turn there is a record of, or 0."""
        _, turns = self._logged_turns(thread_id)
        return turns[0].opened.token if turns else 0

    def turns(self, thread_id: str, limit: int | None) -> list[TurnRecord]:
        """The records of a thread's turns, newest first; see `TurnCheckpointSaver.turns`."""
        state, turns = self._logged_turns(thread_id)
        chosen = turns if limit is None else turns[:limit]
        found = self._written_by(thread_id, state, chosen) if chosen else Written()
        return TurnRecords(
            record_of(turn, found.ids.get(turn.opened.token), found.ends.get(turn.opened.token, "unknown"))
            for turn in chosen
        )

    def standing(self, thread_id: str) -> Standing:
        """How a thread stands: its newest turn, and what its newest checkpoint leaves to do.

        Raises:
            DamagedCheckpointError: Its ledger is damaged.
            UnknownFormatError: Its ledger, or the log of its turns, is of a newer format.
        """
        thread = self.thread(thread_id)
        state = thread.ledger.read() or LedgerState()
        turns, _ = _turns.logged_turns(thread, state)
        return standing(self._codec, thread.namespace(state, ""), turns)

    def _logged_turns(self, thread_id: str) -> tuple[LedgerState, list[LoggedTurn]]:
        thread = self.thread(thread_id)
        state = thread.ledger.read()
        if state is None:
            return LedgerState(), []
        turns, damaged = _turns.logged_turns(thread, state)
        if damaged:
            path = thread.generation(state)
            text = f"{path}: the log of the turns is damaged in {damaged} places; the rest is used"
            _events.damaged(path, text, stacklevel=5)
        return state, turns

    def _written_by(self, thread_id: str, state: LedgerState, turns: Sequence[LoggedTurn]) -> Written:
        """What the newest turns of a thread wrote, and how those ended of which nobody has said it."""
        files = self.thread(thread_id).namespace(state, "")
        plain = {turn.opened.token for turn in turns if turn.state == "unknown"}
        found = Written(frozenset(turn.opened.token for turn in turns), plain)
        # Nothing that a turn wrote is older than what was the newest before it.
        oldest = min((turn.opened.start for turn in turns if turn.opened.start is not None), default=None)
        # Nobody looked what that was when a plain run began. Its token tells: tokens only grow.
        lowest = min((turn.opened.token for turn in turns if turn.opened.start is None), default=None)
        for checkpoint_id in files.ids():
            if lowest is None and (oldest is None or checkpoint_id <= oldest):
                break
            try:
                image = files.read(checkpoint_id)
            except (DamagedCheckpointError, UnknownFormatError) as error:
                _events.damaged(error.path, f"{error}; which turn wrote it cannot be told", stacklevel=4)
                found.miss()
                continue
            if image is None:
                continue
            file = LoadedFile(self._codec, files, checkpoint_id, image)
            found.meet(file)
            if lowest is not None and 0 < file.token < lowest:
                lowest = None
        found.end(turns[0].opened.token)
        return found

    def raise_token(self, thread_id: str, event: LedgerEvent, *, cause: Cause = "unknown") -> None:
        """Cancel the running turn, or close or reopen the thread."""
        _turns.raise_token(self.thread(thread_id), event, cause=cause, fsync=self.fsync)
