"""A turn that is running here, as the guard knows it: what earlier turns left behind, and the one hand that writes
its journal. Which event is worth a record is decided by those who see the events.

No failure to write a record fails the turn, but for the start of a tool that must not run twice: what cannot be
recorded durably is not started.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage

from . import _files
from . import _transcript as kinds
from ._finalize import Facts
from ._journal import JournalFile, journal_path, journal_tokens, read_journal
from ._records import MalformedError, NewerFormatError
from ._store import Store
from ._transcript import Transcript, decode_records, encode_record
from ._turn import Cause, TurnState, check_current
from ._turns import JOURNAL_VERSION, Turn, parse_journal_header
from .errors import (
    DamageWarning,
    JournalWarning,
    StaleTurnError,
    StorageError,
    UnknownFormatError,
    UnserializableValueError,
)

#: Streamed text is written at most this often, in seconds.
FLUSH_SECONDS: Final = 0.15


class RunningTurn:
    """A live turn of one thread.

    Args:
        store: Where the turn and its journal are.
        thread_id: The thread.
        turn: The turn; its journal is open.
        clock: Seconds, for the pace of streamed text.
    """

    def __init__(
        self, store: Store, thread_id: str, turn: Turn, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store, self.thread_id, self.turn = store, thread_id, turn
        #: The run it is in the middle of; another one under the same turn starts afresh.
        self.control: object = None
        #: The callback handler of the run.
        self.recorder: Any = None
        self.earlier = Transcript()
        #: Whether the history was looked at since the run began.
        self.is_recovered = False
        #: Whether the run waits for a person.
        self.is_paused = False
        #: Ids of messages from the inbox that this run has handed on.
        self.delivered: set[str] = set()
        self.history_length = 0
        #: Whether the run's checkpoints pass through the guard; if so, the last history that was stored.
        self.is_watched = False
        #: Whether all that the run has recorded is in its checkpoints.
        self.is_absorbed = False
        #: Of a rollback, the checkpoint that the older turn started from, where only its journal knows.
        self.rolled_back_to: str | None = None
        self.stored_history: Sequence[Any] | None = None
        self._codec = store.codec
        self._clock = clock
        self._lock = threading.RLock()
        self._callers: dict[str, str | None] = {}
        self._covered: set[str | None] = set()
        self._fresh: set[str | None] = set()
        #: Calls that are running in an event loop, by AI message.
        self.in_flight: dict[str | None, dict[str, Any]] = {}
        self._allowed: set[str] = set()
        self._armed: set[str] = set()
        self._unwritten: dict[tuple[str, str], list[str]] = {}
        self._last_flush = 0.0
        self._timer: threading.Timer | None = None
        self._gap = self._has_warned = False

    @property
    def token(self) -> int:
        """The token it holds."""
        return self.turn.token

    @property
    def journal(self) -> JournalFile:
        """Its journal."""
        assert self.turn.journal is not None
        return self.turn.journal

    def begin_run(self, control: object) -> None:
        """A run begins: what its turn and earlier ones have recorded so far is what it finds."""
        with self._lock:
            self.control = control
            self.is_recovered = self.is_paused = self.is_absorbed = False
            self._allowed.clear()
            self._armed.clear()
            self._fresh.clear()
            self.history_length = 0
            self.stored_history = None
        if self.turn.base is not None:
            found = load_transcript(self.store, self.thread_id, self.token - 1).started_from
            self.rolled_back_to = self.rolled_back_to or (found[max(found)] if found else None)
            discard_journals_before(self.store, self.thread_id, self.token)
        self.earlier = load_transcript(self.store, self.thread_id, self.token)

    def end_cause(self) -> tuple[TurnState, Cause]:
        """How the newest turn that left something behind has ended."""
        tokens = self.earlier.tokens
        if not tokens:
            return "unknown", "unknown"
        if tokens[-1] != self.token:
            state, cause = self.store.settle_cause(self.thread_id, tokens[-1])
            return state, cause or "unknown"
        state, cause = self.earlier.last_end or ("unknown", "unknown")
        return state, cause or "unknown"

    # --- may it still act ---

    def check(self) -> None:
        """Refuse to go on once a newer turn has taken over.

        Raises:
            StaleTurnError: A newer turn, a cancel or a delete came first.
            ThreadClosedError: The thread was closed.
        """
        self.store.check_turn(self.thread_id, self.turn)

    def allow(self, call_id: str) -> None:
        """Let a call start again although it did before: the policy or a person says so."""
        with self._lock:
            self._allowed.add(call_id)

    def arm(self, call_id: str) -> None:
        """The start of a call is recorded; the tool itself has not begun."""
        with self._lock:
            self._armed.add(call_id)

    def disarm(self, call_id: str) -> bool:
        """A tool begins; whether its start is recorded already. Another try of it is another start."""
        with self._lock:
            was_armed = call_id in self._armed
            self._armed.discard(call_id)
            return was_armed

    def is_allowed(self, call_id: str) -> bool:
        """Whether a call that did start before may start again."""
        return call_id in self._allowed

    # --- what happens ---

    def started_from(self, checkpoint_id: str) -> None:
        """The checkpoint that the run starts from; empty for none."""
        self._write(kinds.FROM, [checkpoint_id])

    def prompt(self, after: str | None, messages: Sequence[BaseMessage]) -> None:
        """A run was started with messages that stand behind the message `after`. Durable on return."""
        if messages:
            self._write(kinds.PROMPT, [after, list(messages)], sync=True)

    def model_started(self, run: str, anchor: str | None, node: str, checkpoint_ns: str) -> None:
        """A model is called."""
        self._write(kinds.MODEL, [run, anchor, node, checkpoint_ns])

    def text(self, run: str, delta: str, *, kind: str = kinds.TEXT) -> None:
        """A piece of a reply was streamed; written at most every `FLUSH_SECONDS`."""
        with self._lock:
            self._unwritten.setdefault((kind, run), []).append(delta)
            elapsed = self._clock() - self._last_flush
            if elapsed >= FLUSH_SECONDS:
                self.flush()
            elif self._timer is None and self.journal.is_open:
                self._timer = threading.Timer(FLUSH_SECONDS - elapsed, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write what was streamed and not written yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            unwritten, self._unwritten = self._unwritten, {}
            for (kind, run), deltas in unwritten.items():
                self._append(kind, [run, "".join(deltas)])
            self._last_flush = self._clock()

    def replied(self, run: str, message: AIMessage) -> None:
        """A model's reply is whole."""
        with self._lock:
            for call in [*message.tool_calls, *message.invalid_tool_calls]:
                if call["id"]:
                    self._callers[call["id"]] = message.id
            self._covered.add(message.id)
            self._fresh.add(message.id)
        self._write(kinds.REPLY, [run, message])

    def know(self, message: AIMessage) -> None:
        """Calls of this message may be about to run."""
        with self._lock:
            self._callers.update((call["id"], message.id) for call in message.tool_calls if call["id"])

    def cover(self, message: AIMessage) -> None:
        """From here on the start of each of a message's calls is recorded."""
        with self._lock:
            call_ids = [call["id"] for call in message.tool_calls if call["id"]]
            self._callers.update((call_id, message.id) for call_id in call_ids)
            if message.id in self._covered:
                return
            self._covered.add(message.id)
        self._write(kinds.CALLS, [message.id, call_ids])

    def caller(self, call_id: str) -> str | None:
        """The id of the message that a call is in, as far as it is known."""
        return self._callers.get(call_id)

    def facts(self, call_id: str) -> Facts:
        """What earlier runs tell about a call; nothing, if it was only made in this one."""
        if self.caller(call_id) in self._fresh:
            return Facts()
        return self.earlier.facts(self.caller(call_id), call_id)

    def tool_started(self, call_id: str, tool: str, *, must_be_durable: bool) -> None:
        """A tool is about to run.

        The check of the token and the record are one step under the thread's lock: a newer turn finds the start
        in the journal, or this turn finds that it is over.

        Raises:
            StaleTurnError: The turn is over.
            StorageError: With `must_be_durable`, the start could not be recorded. The tool must not run.
        """
        self.flush()
        thread = self.store.thread(self.thread_id)
        with thread.ledger.hold() as held:
            check_current(held.state, self.token, thread_id=self.thread_id)
            try:
                written = self._append_record(kinds.START, [self.caller(call_id), call_id, tool], sync=True)
            except (StorageError, UnserializableValueError) as error:
                if must_be_durable:
                    raise
                self._lost(error)
                return
        if not written:
            reason = "the run it belongs to has ended"
            raise StaleTurnError(self.thread_id, self.token, self.token, reason)

    def tool_ended(self, call_id: str, output: Any) -> None:
        """A tool gave its result."""
        self._write(kinds.RESULT, [self.caller(call_id), call_id, output])

    def tool_failed(self, call_id: str, error: str) -> None:
        """A tool raised."""
        self._write(kinds.FAILED, [self.caller(call_id), call_id, error])

    def asked(self, call_id: str, values: int) -> None:
        """A person is asked about a call, after LangGraph has given `values` answers to other questions."""
        self.is_paused = True
        self._write(kinds.ASKED, [self.caller(call_id), call_id, values])

    def tool_paused(self, call_id: str) -> None:
        """A tool waits for a person."""
        self.is_paused = True
        self._write(kinds.PAUSED, [self.caller(call_id), call_id])

    def history_seen(self, length: int) -> None:
        """The history as it is now; if it got shorter, messages were removed or summarized."""
        if length < self.history_length:
            self._write(kinds.TRIMMED, [length])
        self.history_length = length

    def handed_on(self, message_ids: Iterable[str]) -> None:
        """Messages from the inbox were handed to the run."""
        fresh = [message_id for message_id in message_ids if message_id not in self.delivered]
        if fresh:
            self.delivered.update(fresh)
            self._write(kinds.DELIVERED, [fresh])

    def end_run(self, state: TurnState, cause: Cause | None) -> None:
        """The run is over; its turn may go on with another one."""
        if not self.journal.is_blank:
            self._write(kinds.ENDED, [state, cause])

    # --- writing ---

    def _write(self, kind: str, fields: list[Any], *, sync: bool = False) -> None:
        with self._lock:
            self.flush()
            self._append(kind, fields, sync=sync)

    def _append(self, kind: str, fields: list[Any], *, sync: bool = False) -> None:
        try:
            self._append_record(kind, fields, sync=sync)
        except (StorageError, UnserializableValueError) as error:
            self._lost(error)

    def _append_record(self, kind: str, fields: list[Any], *, sync: bool) -> bool:
        with self._lock:
            if self._gap:
                self.journal.append(encode_record(self._codec, kinds.GAP, []), sync=False)
                self._gap = False
            return self.journal.append(encode_record(self._codec, kind, fields), sync=sync)

    def _lost(self, error: Exception) -> None:
        with self._lock:
            self._gap, has_warned, self._has_warned = True, self._has_warned, True
        if not has_warned:
            warnings.warn(
                f"thread {self.thread_id!r}: the journal of turn {self.token} misses a record ({error}); "
                "after a crash less would be known about this turn",
                JournalWarning,
                stacklevel=4,
            )


def load_transcript(store: Store, thread_id: str, token: int) -> Transcript:
    """What the journals of a thread tell, up to a turn and with it.

    Damaged stretches are passed over with a `DamageWarning`; silence means nothing then.
    """
    transcript = Transcript()
    directory = store.generation_dir(thread_id)
    for found in journal_tokens(directory):
        if found > token:
            continue
        path = journal_path(directory, found)
        content = read_journal(path)
        if content is None or not content.payloads:
            continue
        payloads, unreadable = content.payloads, []
        if content.header is None:
            unreadable.append("its header is gone")
        else:
            try:
                parse_journal_header(content.header)
            except NewerFormatError as error:
                raise UnknownFormatError(path, error.args[0], JOURNAL_VERSION) from error
            except MalformedError:
                unreadable.append("its header cannot be read")
        records, more = decode_records(store.codec, payloads)
        unreadable += more
        for start, end in content.damaged:
            unreadable.append(f"bytes {start} to {end}")
        transcript.add(found, records)
        if unreadable:
            transcript.has_gap = True
            warnings.warn(
                f"{path}: the journal is damaged ({'; '.join(unreadable[:3])}); the rest of it is used",
                DamageWarning,
                stacklevel=2,
            )
    return transcript


def discard_journals_before(store: Store, thread_id: str, token: int) -> None:
    """Forget what turns older than one have recorded, as a rollback does."""
    directory = store.generation_dir(thread_id)
    for found in journal_tokens(directory):
        if found < token:
            _files.remove_file(journal_path(directory, found))


def new_id() -> str:
    """An id for a message that has none."""
    return str(uuid4())
