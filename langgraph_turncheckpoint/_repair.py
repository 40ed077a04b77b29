"""Putting a thread in order without its graph: damaged files go aside, and a history with open calls is finalized by
what the journals and the pending writes tell. Whether a thread may be touched at all is a pure decision.

What is written is what LangGraph itself would: one more checkpoint, in a turn of its own, with the same channels, the
history in order, and nothing left to run.
"""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Final, Literal, NamedTuple

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6

from . import _files, _turns
from ._commits import Target
from ._evidence import Wishes, evidence_of, other_updates
from ._histories import FinalizedHistory, finalize_history, is_healthy
from ._journal import is_live, journal_path, journal_tokens, read_journal
from ._loading import LoadedFile
from ._pending import ERROR, pending_evidence, stored_ids
from ._repair_files import Repair, repair_files, set_aside, state_of
from ._running import load_transcript, note_results
from ._standing import NULL_TASK_ID, ending_at_head, left_of, newest_known
from ._store import Loaded, Store
from ._thread_files import ThreadFiles, thread_ids
from ._turn import LedgerState, TurnState
from ._turns import Turn
from .errors import (
    DamagedCheckpointError,
    DamageWarning,
    RefusedValueError,
    StaleTurnError,
    ThreadBusyError,
    ThreadClosedError,
    UnknownFormatError,
    UnresolvedTypeWarning,
    UnserializableValueError,
)

#: A plain run that has written within so many seconds may be running still.
IDLE_SECONDS: Final = 300.0

#: What callers of the library may do; commands say it in their own words.
WHERE_MODULES_ARE: Final = "run it where the app's modules are"

#: Checkpoints before this version have channels of other names.
_OLDEST_VERSION: Final = 4

#: What only says which node comes next.
_TRIGGERS: Final = ("branch:", "join:", "__pregel_", "__start__")


class RepairRules(NamedTuple):
    """How threads are repaired.

    Attributes:
        messages_key: The channel of the history.
        unanswered: Tools whose calls may stay open.
        idle: Seconds for which nobody must have written to a thread whose last run's end nobody announced.
    """

    messages_key: str = "messages"
    unanswered: Collection[str] = ()
    idle: float = IDLE_SECONDS


class ThreadFacts(NamedTuple):
    """What decides whether a thread's history may be finalized.

    Attributes:
        closed: The thread is closed.
        busy: A turn whose end will be announced is running.
        last_state: How the last turn ended; "unknown" for a plain run, and for one that the log does not tell of.
        waits: The newest checkpoint waits for a person.
        seconds_idle: For how long nobody has written to it.
    """

    closed: bool
    busy: bool
    last_state: TurnState
    waits: bool
    seconds_idle: float


class Hindrance(NamedTuple):
    """Why a history is left alone.

    Attributes:
        reason: In words that follow "and".
        is_well: Whether nobody need see to it.
    """

    reason: str
    is_well: bool = False


#: Whoever is asked decides, and nobody for them.
WAITS: Final = Hindrance("the thread waits for a person; resume it, or send it a message", is_well=True)


def why_not(facts: ThreadFacts, *, idle: float) -> Hindrance | None:
    """Why a history is left alone; `None` if it may be finalized."""
    if facts.closed:
        return Hindrance("the thread is closed; reopen it first")
    if facts.busy:
        return Hindrance("a turn is running on the thread", is_well=True)
    if facts.waits or facts.last_state == "paused":
        return WAITS
    if facts.last_state == "unknown" and facts.seconds_idle < idle:
        return Hindrance(
            f"the thread was written to {facts.seconds_idle:.0f} s ago, and its run may be at work still; "
            "repair it once it has rested"
        )
    return None


def repair_thread(
    saver: BaseCheckpointSaver[str], store: Store, thread_id: str, *, rules: RepairRules, dry_run: bool
) -> list[Repair]:
    """Repair one thread; see `TurnCheckpointSaver.repair`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)  # all of it is told in the report
        warnings.simplefilter("ignore", UnresolvedTypeWarning)  # what is of such a class stays as it is stored
        return _repaired(saver, store, store.thread(thread_id), rules, dry_run=dry_run)


def repairable(store: Store) -> list[str]:
    """All threads there are files of, deleted ones included."""
    return sorted(thread_ids(store.root, fsync=store.fsync, on_damage=lambda _damage: None))


def _repaired(
    saver: BaseCheckpointSaver[str], store: Store, thread: ThreadFiles, rules: RepairRules, *, dry_run: bool
) -> list[Repair]:
    thread_id = thread.thread_id
    rest = _Rest.of(thread)
    done = repair_files(store, thread, messages_key=rules.messages_key, dry_run=dry_run)
    if dry_run and any(repair.path == thread.ledger.path for repair in done):
        return done  # reading on would write the ledger anew
    try:
        finalized = _History(saver, store, thread, rules, rest).repaired(dry_run=dry_run)
    except (DamagedCheckpointError, UnknownFormatError, RefusedValueError) as error:
        return [*done, Repair("left", thread_id, "", f"its newest checkpoint cannot be read: {error}")]
    except (StaleTurnError, ThreadBusyError, ThreadClosedError, UnserializableValueError) as error:
        return [*done, Repair("left", thread_id, "", str(error))]
    if finalized is not None:
        done.append(finalized)
    return done


def planned_history(
    saver: BaseCheckpointSaver[str], store: Store, thread_id: str, loaded: Loaded, rules: RepairRules
) -> FinalizedHistory | None:
    """A history as a repair would leave it; `None` if there is nothing to do. Nothing is changed."""
    thread = store.thread(thread_id)
    state = thread.ledger.read() or LedgerState()
    plan = _History(saver, store, thread, rules).plan(loaded, state.token + 1)
    return None if plan is None else plan.done


def why_left(
    saver: BaseCheckpointSaver[str], store: Store, thread_id: str, loaded: Loaded, rules: RepairRules
) -> str | None:
    """Why a repair would leave a history as it is, or `None`."""
    thread = store.thread(thread_id)
    found = _History(saver, store, thread, rules).why_not(loaded, thread.ledger.read() or LedgerState())
    return None if found is None else found.reason


class _Rest(NamedTuple):
    """Since when nobody has written to a thread.

    Attributes:
        since: When that was, in seconds since 1970.
        token: The token then.
        heads: The newest checkpoint of each namespace.
    """

    since: float
    token: int
    heads: Mapping[str, str]

    @classmethod
    def of(cls, thread: ThreadFiles) -> _Rest:
        """As it is now, whatever is wrong with the thread."""
        state = state_of(thread)
        found = {files.path: (files, files.head_id()) for files in thread.unnamed_namespaces(state)}
        heads = {path: head_id for path, (_, head_id) in found.items() if head_id is not None}
        moments = []
        for path in (thread.ledger.path, *(found[path][0].file(head_id) for path, head_id in heads.items())):
            with suppress(OSError):
                moments.append(os.stat(path).st_mtime)
        return cls(max(moments, default=0.0), state.token, heads)

    def goes_on(self, before: _Rest) -> bool:
        """Whether nothing but a repair of files has come since then."""
        return self.token == before.token and all(id_ <= before.heads.get(path, "") for path, id_ in self.heads.items())


class _AsStored:
    """Stands for a value that is not to be written again; no serializer takes it."""

    __slots__ = ()

    def __reduce__(self) -> str:
        raise TypeError("it is to stay as it is stored")


class _Plan(NamedTuple):
    """A history in order, and what goes with it."""

    loaded: Loaded
    done: FinalizedHistory
    updates: list[tuple[str, Any]]


class _History:
    """The history of one thread."""

    def __init__(
        self,
        saver: BaseCheckpointSaver[str],
        store: Store,
        thread: ThreadFiles,
        rules: RepairRules,
        rest: _Rest | None = None,
    ) -> None:
        self._saver, self._store, self._thread, self._rules, self._rest = saver, store, thread, rules, rest

    def repaired(self, *, dry_run: bool) -> Repair | None:
        """Finalize it, or tell what would be done; `None` if nothing is wrong with it."""
        thread_id = self._thread.thread_id
        state = self._thread.ledger.read() or LedgerState()
        loaded, reason = self._loaded()
        plan = None if loaded is None else self.plan(loaded, state.token + 1)
        if loaded is None or plan is None:
            return None
        hindrance = self.why_not(loaded, state) or self._foreign_to(loaded, reason)
        if hindrance is not None:
            return self._left(hindrance)
        if dry_run:
            not_run = self._not_run(loaded, state)
            return Repair("finalized", thread_id, "", _summary(plan.done, not_run, dry_run=True), not_run)
        turn = self._store.open_turn(thread_id, strategy="reject")
        ended: TurnState = "failed"
        try:
            # From here on nobody else writes. What came between the look and now is looked at anew.
            state = self._thread.ledger.read() or LedgerState()
            loaded, reason = self._loaded()
            plan = None if loaded is None else self.plan(loaded, turn.token)
            if loaded is None or plan is None:
                ended = self._ending(loaded, state)
                return None
            hindrance = self._waits(loaded, state) or self._foreign_to(loaded, reason)
            if hindrance is not None:
                ended = self._ending(loaded, state)
                return self._left(hindrance)
            not_run = self._not_run(loaded, state)
            self._write(plan, turn)
            self._let_go(turn)
            ended = "completed"
        finally:
            self._store.settle_turn(thread_id, turn, ended, "error" if ended == "failed" else None)
        return Repair("finalized", thread_id, "", _summary(plan.done, not_run, dry_run=False), not_run)

    def _left(self, hindrance: Hindrance) -> Repair:
        kind: Literal["left", "pending"] = "pending" if hindrance.is_well else "left"
        reason = f"its history has open tool calls, and {hindrance.reason}"
        return Repair(kind, self._thread.thread_id, "", reason)

    def _loaded(self) -> tuple[Loaded | None, str | None]:
        """The newest checkpoint, and why its history cannot be written again, if so.

        What is of a class that is not installed here comes as plain data, which must not be stored in its place.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = self._store.latest(self._thread.thread_id, "")
        if loaded is None or not any(issubclass(each.category, UnresolvedTypeWarning) for each in caught):
            return loaded, None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", UnresolvedTypeWarning)
            try:
                self._read_again(loaded.checkpoint_id)
            except UnresolvedTypeWarning as warning:
                name = str(warning).partition(" ")[0]
                return loaded, f"it holds a {name}, which cannot be imported here; {WHERE_MODULES_ARE}"
        # All others keep what is stored. Should one of them have to be written again, that fails.
        kept = {
            name: value if name == self._rules.messages_key else _AsStored()
            for name, value in loaded.checkpoint["channel_values"].items()
        }
        return loaded._replace(checkpoint={**loaded.checkpoint, "channel_values": kept}), None

    def _read_again(self, checkpoint_id: str) -> None:
        """Read what would be written again: the messages, and what waits on the checkpoint."""
        files = self._thread.namespace(self._thread.ledger.read() or LedgerState(), "")
        file = self._store.file(files, checkpoint_id)
        if file is not None:
            head = file.head()
            if self._rules.messages_key in head.channels:
                file.value(head, self._rules.messages_key)
            file.writes()

    def _messages(self, loaded: Loaded) -> list[Any] | None:
        found = loaded.checkpoint["channel_values"].get(self._rules.messages_key)
        return list(found) if isinstance(found, (list, tuple)) else None

    def why_not(self, loaded: Loaded, state: LedgerState) -> Hindrance | None:
        """Why it is left alone, or `None`."""
        turns, _ = _turns.logged_turns(self._thread, state)
        file = self._file(loaded, state)
        last = newest_known(turns, file) if file is not None else None
        now = _Rest.of(self._thread)
        written_at = now.since if self._rest is None or not now.goes_on(self._rest) else self._rest.since
        facts = ThreadFacts(
            closed=state.closed,
            busy=_turns.is_busy(self._thread),
            last_state=last.state if last is not None else "unknown",
            waits=file is not None and left_of(file).waiting,
            seconds_idle=max(0.0, time.time() - written_at),
        )
        return why_not(facts, idle=self._rules.idle)

    def _waits(self, loaded: Loaded, state: LedgerState) -> Hindrance | None:
        file = self._file(loaded, state)
        return WAITS if file is not None and left_of(file).waiting else None

    def _foreign_to(self, loaded: Loaded, reason: str | None) -> Hindrance | None:
        reason = reason or _foreign_to(loaded, self._rules.messages_key)
        return None if reason is None else Hindrance(reason)

    def _not_run(self, loaded: Loaded, state: LedgerState) -> tuple[str, ...]:
        """The nodes that come next, and will not run once the history is finalized."""
        file = self._file(loaded, state)
        return () if file is None else tuple(left_of(file).nodes)

    def _ending(self, loaded: Loaded | None, state: LedgerState) -> TurnState:
        """How a turn ends that has found nothing to do: as it has found the thread."""
        file = None if loaded is None else self._file(loaded, state)
        return "completed" if file is None else ending_at_head(file, 0)

    def _file(self, loaded: Loaded, state: LedgerState) -> LoadedFile | None:
        return self._store.file(self._thread.namespace(state, ""), loaded.checkpoint_id)

    def plan(self, loaded: Loaded, token: int) -> _Plan | None:
        """How the history is put in order; `None` if every call that was made has its answer."""
        key, rules = self._rules.messages_key, self._rules
        history = self._messages(loaded)
        if history is None:
            return None
        config: Any = {"configurable": {"thread_id": self._thread.thread_id, "checkpoint_ns": ""}}
        transcript = load_transcript(self._store, self._thread.thread_id, token - 1)
        if transcript.is_empty and is_healthy(history, unanswered=rules.unanswered):
            return None
        ends = self._store.settle_causes(self._thread.thread_id)
        causes = {each: ends.get(each, ("unknown", None))[1] or "unknown" for each in transcript.tokens}
        evidence = evidence_of(
            transcript,
            history,
            cause=causes[transcript.tokens[-1]] if transcript.tokens else "unknown",
            causes=causes,
            turn_token=token,
            wishes=Wishes(),
            namespaces={""},
            stored=stored_ids(self._saver, config, messages_key=key),
        )
        done = finalize_history(history, evidence, unanswered=rules.unanswered, follower_comes=True)
        if not done.answers and not done.moved and not done.set_aside:
            return None  # a prompt or a text that is missing comes back with the next run, which may go on from there
        missing = [answer.call_id for answer in done.answers if answer.outcome != "recorded"]
        if missing:
            pending = pending_evidence(self._saver, config, missing, messages_key=key)
            found = {k: call for k, call in pending.calls.items() if k[0] is not None or k not in evidence.calls}
            evidence = dataclasses.replace(evidence, calls={**evidence.calls, **found})
            done = finalize_history(history, evidence, unanswered=rules.unanswered, follower_comes=True)
        updates = other_updates(transcript, done.answers, done.messages, key)
        return _Plan(loaded, done, [*_finished_writes(loaded, key), *updates])

    def _write(self, plan: _Plan, turn: Turn) -> None:
        loaded, key = plan.loaded, self._rules.messages_key
        old = loaded.checkpoint
        version: Any = self._saver.get_next_version(old["channel_versions"].get(key), None)
        checkpoint = {
            **old,
            "id": str(uuid6(clock_seq=-2)),
            "ts": datetime.now(timezone.utc).isoformat(),
            "channel_versions": {**old["channel_versions"], key: version},
            "channel_values": {
                **{name: value for name, value in old["channel_values"].items() if not name.startswith(_TRIGGERS)},
                key: plan.done.messages,
            },
            "updated_channels": [key],
        }
        target = Target(self._thread, "", checkpoint["id"], turn)
        if plan.updates:  # before their checkpoint, so that nobody can ever see it without them
            entries = [[index, channel, value] for index, (channel, value) in enumerate(plan.updates)]
            self._store.put_writes(target, entries, (NULL_TASK_ID, ""), read_head=None)
        metadata = {**loaded.metadata, "source": "update", "step": loaded.metadata.get("step", -1) + 1}
        parts = (checkpoint, metadata, {key: version})
        self._store.put(target, loaded.checkpoint_id, parts, read_head=None)

    def _let_go(self, turn: Turn) -> None:
        """What older turns have recorded is in the checkpoint now; damaged records are kept for whoever wants them."""
        with self._thread.ledger.hold() as held:
            if held.state.token != turn.token:
                return
            directory = self._thread.generation(held.state)
            paths = {token: journal_path(directory, token) for token in journal_tokens(directory)}
            dead = {token: path for token, path in paths.items() if token < turn.token and not is_live(path)}
            note_results(self._store, self._thread, held.state, dead)
            for path in dead.values():
                content = read_journal(path)
                if content is not None and content.damaged:
                    set_aside(path, keep=False, fsync=self._store.fsync)
                else:
                    _files.remove_file(path)


def _foreign_to(loaded: Loaded, key: str) -> str | None:
    """Why only the graph itself could go on from a checkpoint; `None` if nobody needs to ask it."""
    checkpoint = loaded.checkpoint
    versions: Mapping[str, Any] = checkpoint.get("channel_versions") or {}
    by_hand = "recover it with its graph: TurnGuard(saver).recover(graph, config)"
    if checkpoint.get("v", 0) < _OLDEST_VERSION or not any(name.startswith(_TRIGGERS) for name in versions):
        return f"it is not of a graph whose channels are known; {by_hand}"
    if loaded.metadata.get("counters_since_delta_snapshot"):
        return f"it has channels that are put together from the writes to them; {by_hand}"
    if str(uuid6(clock_seq=-2)) <= loaded.checkpoint_id:
        return "its newest checkpoint is of a later time than it is now; set the clock of one of the machines"
    for task_id, channel, value in loaded.writes:
        if channel == key and task_id not in _failed(loaded) and not _only_answers(value):
            return f"a finished task wrote more than answers, which only the graph can add to it; {by_hand}"
    return None


def _only_answers(value: Any) -> bool:
    several = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(message, ToolMessage) for message in several)


def _failed(loaded: Loaded) -> set[str]:
    return {task_id for task_id, channel, _ in loaded.writes if channel == ERROR}


def _finished_writes(loaded: Loaded, key: str) -> list[tuple[str, Any]]:
    """What tasks had written that were done when their run was cut off, beside messages."""
    failed = _failed(loaded)
    return [
        (channel, value)
        for task_id, channel, value in loaded.writes
        if task_id not in failed and channel != key and not channel.startswith(("__", *_TRIGGERS))
    ]


def _summary(done: FinalizedHistory, not_run: Collection[str], *, dry_run: bool) -> str:
    """What was done to a history, or would be, in one sentence."""
    parts: list[str] = []
    outcomes: dict[str, list[str]] = {}
    for answer in done.answers:
        outcomes.setdefault(answer.outcome, []).append(f"{answer.tool_name} ({answer.call_id})")
    for outcome, calls in outcomes.items():
        parts.append(f"{', '.join(calls)} {_was(len(calls), dry_run=dry_run)} answered {_WORDS[outcome]}")
    for count, which, what in (
        (len(done.moved), "", "moved up to their calls"),
        (len(done.set_aside), " without a call", "left out"),
        (len(done.added), " that had not been stored", "added"),
    ):
        if count:
            noun = "message" if count == 1 else "messages"
            parts.append(f"{count} {noun}{which} {_was(count, dry_run=dry_run)} {what}")
    if not parts:
        parts.append(f"the history {_was(1, dry_run=dry_run)} put in order")
    if not_run:
        comes, runs = ("comes", "would not run") if dry_run else ("came", "does not run")
        parts.append(f"{', '.join(not_run)}, which {comes} next, {runs} any more")
    return "; ".join(parts)


def _was(number: int, *, dry_run: bool) -> str:
    return "would be" if dry_run else "was" if number == 1 else "were"


_WORDS: Final[Mapping[str, str]] = {
    "recorded": "with the recorded result",
    "unknown": "with 'outcome unknown'",
    "not_run": "with 'was not run'",
    "superseded": "with 'passed over'",
    "failed": "with the error",
    "invalid": "with 'arguments could not be read'",
    "answered_by_person": "as a person said",
}
