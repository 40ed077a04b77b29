"""A turn that is running here, as the guard knows it: what earlier turns left behind, and the one hand that writes
its journal. Which event is worth a record is decided by those who see the events.

No failure to write a record fails the turn, but for the start of a tool that must not run twice: what cannot be
recorded durably is not started.
"""

from __future__ import annotations

import operator
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from . import _events, _files, _turns
from . import _transcript as kinds
from ._finalize import Facts, Reason, reason_of
from ._journal import JournalFile, journal_path, journal_tokens, read_journal
from ._records import MalformedError, NewerFormatError
from ._store import Store
from ._thread_files import ThreadFiles
from ._tool_calls import anchor_of
from ._transcript import CallKey, Transcript, decode_records, encode_record, keys_of
from ._turn import Cause, LedgerState, TurnState, check_current
from ._turns import JOURNAL_VERSION, Turn, is_misplaced, parse_journal_header
from .errors import (
    JournalWarning,
    RefusedValueError,
    StaleTurnError,
    StorageError,
    UnknownFormatError,
    UnserializableValueError,
)

#: Streamed text is written at most this often, in seconds.
FLUSH_SECONDS: Final = 0.15

#: How far from its end a history is searched first for what was added lately.
NEAR: Final = 64


class Known(NamedTuple):
    """The messages of a graph as they were last seen, and the ids of those that have been added since."""

    history: Sequence[Any]
    added: set[str]

    def ids(self, *, near: bool = False) -> set[str]:
        """Their ids; `near`: only of the last."""
        messages = self.history[-NEAR:] if near else self.history
        return {message.id for message in messages if isinstance(message, BaseMessage) and message.id} | self.added


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
        #: Whether the history was looked at since the run began; and in which graphs, where nodes look at it.
        self.is_recovered = False
        self.recovered_graphs: set[str] = set()
        self._repaired: set[tuple[str, int]] = set()
        #: Whether the run waits for a person.
        self.is_paused = False
        #: Ids of messages from the inbox that this run has handed on.
        self.delivered: set[str] = set()
        #: Whether the run's checkpoints pass through the guard.
        self.is_watched = False
        #: Whether all that the run has recorded is in its checkpoints.
        self.is_absorbed = False
        #: Of a rollback, the checkpoint that the older turn started from, where only its journal knows.
        self.rolled_back_to: str | None = None
        #: Of a run that is watched, the last history that was stored.
        self.stored_history: Sequence[Any] | None = None
        self._codec = store.codec
        self._clock = clock
        self._lock = threading.RLock()
        self._calls: dict[CallKey, Any] = {}
        self._covered: set[tuple[str | None, str]] = set()
        self._fresh: set[str | None] = set()
        self._now: dict[CallKey, dict[str, Any]] = {}
        self._allowed: set[CallKey] = set()
        self._armed: set[CallKey] = set()
        self._consumed: dict[CallKey, int] = {}
        #: By graph: its messages, and the last of them that is from a person or a model.
        self._history: dict[str, Known] = {}
        self._last: dict[str, str] = {}
        self._unstored: set[str] = set()
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
            self.stored_history = None
            for known in (self._calls, self._now, self._consumed, self._history, self._last):
                known.clear()
            for names in (self._covered, self._fresh, self._allowed, self._armed):
                names.clear()
            self._unstored.clear()
            self.recovered_graphs.clear()
            self._repaired.clear()
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

    def end_reason(self) -> Reason:
        """Why the newest turn that left something behind has ended."""
        return reason_of(*self.end_cause())

    def causes(self) -> dict[int, Reason]:
        """Why each of the earlier turns that left something behind has ended."""
        earlier = [token for token in self.earlier.tokens if token != self.token]
        ends = self.store.settle_causes(self.thread_id) if earlier else {}
        found: dict[int, Reason] = {token: reason_of(*ends.get(token, ("unknown", None))) for token in earlier}
        if self.token in self.earlier.tokens:
            found[self.token] = self.end_reason()
        return found

    def cause_of(self, key: CallKey) -> Reason:
        """Why the turn has ended in which a call was last heard of."""
        token = self.earlier.token_of(key)
        return self.end_reason() if token is None else self.causes().get(token, "unknown")

    # --- may it still act ---

    def check(self) -> None:
        """Refuse to go on once a newer turn has taken over.

        Raises:
            StaleTurnError: A newer turn, a cancel or a delete came first.
            ThreadClosedError: The thread was closed.
        """
        self.store.check_turn(self.thread_id, self.turn)

    # --- calls ---

    def claim_repair(self, step: tuple[str, int]) -> bool:
        """Whether the caller is the one of its super-step that writes the history in order."""
        with self._lock:
            is_first = step not in self._repaired
            self._repaired.add(step)
            return is_first

    def know(self, message: AIMessage) -> None:
        """Calls of this message may be about to run."""
        with self._lock:
            for call in message.tool_calls:
                if call["id"]:
                    self._calls[CallKey(message.id, call["id"], call["name"])] = call["args"]

    def key_of(self, call_id: str, tool: str) -> CallKey:
        """The newest call of an id and a tool, for those who see no message."""
        with self._lock:
            for key in reversed(self._calls):
                if key[1:] == (call_id, tool):
                    return key
            return CallKey(None, call_id, tool)

    def call_for(self, tool: str, args: object) -> CallKey | None:
        """The open call that a tool is run for by code that has not said so."""
        with self._lock:
            candidates = [key for key in self._calls if key.tool == tool and key not in self._now]
            same = [key for key in candidates if self._calls[key] == args]
            return next(iter(same or candidates), None)

    def open_calls(self) -> list[CallKey]:
        """Calls of the last reply that have no result."""
        with self._lock:
            last = next(reversed(self._calls), None)
            if last is None:
                return []
            return [key for key in self._calls if key.ai_id == last.ai_id and not self._now.get(key, {}).get("result")]

    def unseen_calls(self) -> list[CallKey]:
        """Those of them whose start might not be seen."""
        return [key for key in self.open_calls() if key[:2] not in self._covered]

    def facts(self, key: CallKey) -> Facts:
        """What is known about a call, from this run if it was tried in it, or else from earlier ones."""
        now = self._now.get(key)
        if now is not None:
            return Facts(
                result=now.get("result", False),
                started=True,
                error=now.get("error"),
                paused=now.get("paused", False),
                known=True,
            )
        return Facts() if key.ai_id in self._fresh else self.earlier.facts(key)

    def consumed(self, key: CallKey) -> int:
        """How many answers it took until a person let the call run."""
        if key in self._consumed:
            return self._consumed[key]
        return 0 if key.ai_id in self._fresh else self.earlier.consumed(key)

    def output(self, key: CallKey) -> Any:
        """The recorded result of a call."""
        now = self._now.get(key)
        return now.get("output") if now is not None else self.earlier.output(key)

    def allow(self, key: CallKey) -> None:
        """Let a call start again although it did before: the policy or a person says so."""
        with self._lock:
            self._allowed.add(key)

    def is_allowed(self, key: CallKey) -> bool:
        """Whether a call that did start before may start again."""
        return key in self._allowed

    def arm(self, key: CallKey) -> None:
        """The start of a call is recorded; the tool itself has not begun."""
        with self._lock:
            self._armed.add(key)

    def disarm(self, call_id: str, tool: str) -> CallKey | None:
        """A tool begins; the call, if its start is recorded already. Another try of it is another start."""
        with self._lock:
            key = next((key for key in self._armed if key[1:] == (call_id, tool)), None)
            if key is not None:
                self._armed.discard(key)
            return key

    # --- the history ---

    def history_is(self, history: Sequence[Any], graph: str = "") -> None:
        """The messages in a graph's state as a node sees them; what was there and is not any more was removed."""
        with self._lock:
            known = self._history.get(graph)
            self._history[graph] = Known(history, set())
            self._ends_with(graph, history)
        # Messages are the same objects from step to step, so this look is a hundredth of one at their ids.
        if known is None or (len(known.history) <= len(history) and all(map(operator.is_, known.history, history))):
            return
        if removed := sorted(known.ids() - Known(history, set()).ids()):
            self._write(kinds.REMOVED, [removed])

    def history_begins(self, history: Sequence[Any]) -> None:
        """The messages that a run starts from, as they are stored."""
        with self._lock:
            self._history[""] = Known(history, set())
            self._ends_with("", history)

    def history_stored(self, history: Sequence[Any]) -> None:
        """A checkpoint holds these messages."""
        # What a step adds nearly always comes behind what was stored before.
        start = max(0, min(len(self.stored_history or ()), len(history)) - NEAR)
        self.stored_history = history
        with self._lock:
            new = history[start:] if self._unstored else ()
            found = [m.id for m in new if isinstance(m, BaseMessage) and m.id in self._unstored]
            self._unstored.difference_update(found)
        if found:
            self._write(kinds.STORED, [found])

    def anchor(self, prompt: Sequence[BaseMessage], graph: str) -> str | None:
        """The message that a reply stands behind: the last of its prompt that is in the history, too."""
        with self._lock:
            known = [self._history[graph]] if graph in self._history else list(self._history.values())
            # It nearly always is among the last of both.
            for is_near in (True, False):
                ids = set().union(*(each.ids(near=is_near) for each in known))
                for message in reversed(prompt[-NEAR:] if is_near else prompt):
                    if isinstance(message, (HumanMessage, AIMessage)) and message.id in ids:
                        return message.id
            return self._last.get(graph, self._last.get("")) if known else anchor_of(prompt)

    def _ends_with(self, graph: str, messages: Sequence[Any]) -> None:
        if (last := anchor_of(messages)) is not None:
            self._last[graph] = last

    # --- what happens ---

    def prompt(self, after: str | None, messages: Sequence[BaseMessage], graph: str = "") -> None:
        """A run was started with messages that stand behind the message `after`. Durable on return."""
        if messages:
            ids = [message.id for message in messages if message.id]
            with self._lock:
                self._history.setdefault(graph, Known((), set())).added.update(ids)
                self._unstored.update(ids)
                self._ends_with(graph, messages)
            self._write(kinds.PROMPT, [after, list(messages)], sync=True)

    def started_from(self, checkpoint_id: str) -> None:
        """The checkpoint that the run starts from; empty for none."""
        self._write(kinds.FROM, [checkpoint_id])

    def model_started(self, run: str, prompt: Sequence[BaseMessage], node: str, task: str) -> None:
        """A model is called."""
        self._write(kinds.MODEL, [run, self.anchor(prompt, task.rpartition("|")[0]), node, task])

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

    def replied(self, run: str, message: AIMessage, covers: Callable[[str], bool]) -> None:
        """A model's reply is whole; `covers` tells whether the start of a tool will be seen."""
        covered = [key.call_id for key in keys_of(message) if covers(key.tool)]
        with self._lock:
            self._covered.update((message.id, call_id) for call_id in covered)
            self._fresh.add(message.id)
        self.know(message)
        self._write(kinds.REPLY, [run, message, covered])

    def returned(self, task: str, messages: Sequence[BaseMessage], *, is_fresh: bool = True) -> None:
        """A node that has called a model, or may have run tools, is done, and gave these messages.

        Replies are fresh unless they were made in an earlier run.
        """
        replies, graph = [message for message in messages if isinstance(message, AIMessage)], task.rpartition("|")[0]
        with self._lock:
            for message in replies:
                if is_fresh:
                    self._fresh.add(message.id)
                if message.id:
                    self._history.setdefault(graph, Known((), set())).added.add(message.id)
                    self._unstored.add(message.id)
                    self._last[graph] = message.id
        for message in replies:
            self.know(message)
        self._write(kinds.RETURNED, [task, [[m.id, [key.call_id for key in keys_of(m)]] for m in replies]])

    def cover(self, message: AIMessage) -> None:
        """From here on the start of each of a message's calls is recorded."""
        self.know(message)
        fresh = [key for key in keys_of(message) if key[:2] not in self._covered]
        if fresh:
            with self._lock:
                self._covered.update(key[:2] for key in fresh)
            self._write(kinds.CALLS, [message.id, [[key.call_id, key.tool] for key in fresh]])

    def node_started(self, task: str, calls: Sequence[CallKey], *, sync: bool = True) -> None:
        """A node begins that may run these calls unseen. With `sync` that is durable on return."""
        self._write(kinds.NODE, [task, [list(key) for key in calls]], sync=sync)

    def node_rested(self, task: str) -> None:
        """That node waits for a person, or runs no call unseen."""
        self._write(kinds.RESTED, [task])

    def tool_started(self, key: CallKey, *, must_be_durable: bool) -> None:
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
                written = self._append_record(kinds.START, list(key), sync=True)
            except (StorageError, UnserializableValueError) as error:
                if must_be_durable:
                    raise
                self._lost(error)
                written = True
        if not written:
            reason = "the run it belongs to has ended"
            raise StaleTurnError(self.thread_id, self.token, self.token, reason)
        with self._lock:
            self._now[key] = {}

    def tool_ended(self, key: CallKey, output: Any) -> None:
        """A tool gave its result."""
        with self._lock:
            known = self._now.setdefault(key, {})
            if known.get("result") and known.get("output") is output:
                return
            known.update(result=True, output=output)
        self._write(kinds.RESULT, [*key, output])

    def tool_failed(self, key: CallKey, error: str) -> None:
        """A tool raised."""
        with self._lock:
            self._now.setdefault(key, {})["error"] = error
        self._write(kinds.FAILED, [*key, error])

    def tool_paused(self, key: CallKey) -> None:
        """A tool waits for a person."""
        self.is_paused = True
        with self._lock:
            self._now.setdefault(key, {})["paused"] = True
        self._write(kinds.PAUSED, list(key))

    def asked(self, key: CallKey, values: int) -> None:
        """A person is asked about a call, after LangGraph has given `values` answers to other questions."""
        self.is_paused = True
        self._write(kinds.ASKED, [*key, values])

    def allowed(self, key: CallKey, values: int) -> None:
        """A person lets a call run, which took `values` answers."""
        self.allow(key)
        self._consumed[key] = values
        self._write(kinds.ALLOWED, [*key, values])

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
            _events.GUARD.warning(
                "thread %r: the journal of turn %d misses a record: %s",
                self.thread_id,
                self.token,
                _events.described(error),
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
        if content is None or not (content.payloads or content.damaged):
            continue
        payloads, unreadable = content.payloads, []
        if content.header is None:
            unreadable.append("its header is gone")
        elif is_misplaced(content.header, token=found, thread_id=thread_id):
            unreadable.append("it is that of another turn")
            payloads = []
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
            text = f"{path}: the journal is damaged ({'; '.join(unreadable[:3])}); the rest of it is used"
            _events.damaged(path, text, stacklevel=2)
    return transcript


def note_results(store: Store, thread: ThreadFiles, state: LedgerState, journals: Mapping[int, str]) -> None:
    """Let the log of the turns tell which calls had their result in journals, by token, that are about to go.

    Who calls holds the thread's lock. It is for people who look back, so it never fails.
    """
    results = {}
    for token, path in journals.items():
        with suppress(StorageError, RefusedValueError):
            content = read_journal(path)
            if content is not None and content.payloads:
                transcript = Transcript()
                transcript.add(token, decode_records(store.codec, content.payloads)[0])
                results[token] = transcript.gave()
    _turns.note_results(thread, state, results)


def discard_journals_before(store: Store, thread_id: str, token: int) -> None:
    """Forget what turns older than one have recorded, as a rollback does."""
    directory = store.generation_dir(thread_id)
    for found in journal_tokens(directory):
        if found < token:
            _files.remove_file(journal_path(directory, found))


def new_id() -> str:
    """An id for a message that has none."""
    return str(uuid4())
