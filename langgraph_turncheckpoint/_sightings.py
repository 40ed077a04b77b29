"""What the files of a thread tell about its turns, for a picture: its log, the newest checkpoints with what was written
on them, and the journals that are still there. Reads without a lock and changes nothing; what follows from it is
decided in `_timeline`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_messages
from langgraph.types import Overwrite

from ._checkpoint_files import NamespaceFiles
from ._fields import id_time_ns, written_at
from ._finalize import Facts
from ._histories import METADATA_KEY
from ._journal import journal_path, read_journal
from ._loading import Head, LoadedFile
from ._records import WRITES
from ._standing import ERROR, INTERRUPT, NEXT, UNREADABLE, ending, left_of, nodes_between
from ._store import READING_ATTEMPTS, Store
from ._story import CallResult, Seen, SeenAnswer, SeenCall, SeenCheckpoint, SeenTask
from ._transcript import Transcript, decode_records, keys_of, messages_in
from ._turn import LedgerState, TurnState
from ._turn_store import Written
from ._turns import logged_turns
from .errors import DamagedCheckpointError, RefusedValueError, StorageError

#: At most so many checkpoints of a thread are read, and so many namespaces of subgraphs counted.
CHECKPOINTS_READ: Final = 5000
NAMESPACES_COUNTED: Final = 500

_HISTORY: Final = "messages"
_RETURN: Final = "__return__"


class _Unannounced:
    """The turns that have announced no end; those that are in no log are among them."""

    def __init__(self, told: Mapping[int, TurnState]) -> None:
        self._told = told

    def __contains__(self, token: object) -> bool:
        return isinstance(token, int) and token > 0 and self._told.get(token, "unknown") == "unknown"


class _Read(NamedTuple):
    """A checkpoint's file, and its head."""

    file: LoadedFile
    head: Head


def look_at(store: Store, thread_id: str, *, turns: int, texts: bool) -> Seen:
    """What is to be seen of a thread.

    Args:
        store: The store.
        thread_id: The thread; it need not exist.
        turns: How many of the newest turns are looked at closely.
        texts: Whether what was said is read, too.

    Raises:
        DamagedCheckpointError: The thread's ledger is damaged.
        UnknownFormatError: The ledger or the log of the turns is of a newer format. It was not touched.
    """
    thread, seen = store.thread(thread_id), Seen(thread_id)
    for _ in range(READING_ATTEMPTS):
        state = thread.ledger.read()
        if state is None:
            break
        seen = _looked_at(store, thread_id, state, turns=turns, texts=texts)
        now = thread.ledger.read()
        if now is not None and (now.generation, now.epoch) == (state.generation, state.epoch):
            break  # else a prune, a delete or a copy has taken away what was read
    return seen


def _looked_at(store: Store, thread_id: str, state: LedgerState, *, turns: int, texts: bool) -> Seen:
    thread = store.thread(thread_id)
    logged, gaps = logged_turns(thread, state)
    damaged = [f"the log of the turns is damaged in {gaps} places"] if gaps else []
    files = thread.namespace(state, "")
    wanted = [turn.opened.token for turn in logged[:turns]]
    enough = min(wanted) if len(wanted) == turns else 0
    told = {turn.opened.token: turn.state for turn in logged}
    written = Written(plain=_Unannounced(told))
    imported = {token for token, state in told.items() if state == "imported"}
    found = _Looker(store, files, damaged, texts=texts).checkpoints(enough, written, imported)
    if logged:
        written.end(logged[0].opened.token)
    inner = _inner_ids(store, thread_id, state, oldest=found[0].checkpoint_id) if found else []
    return Seen(
        thread_id=thread_id,
        turns=logged,
        checkpoints=[one._replace(inner=_between(inner, one.parent_id, one.checkpoint_id)) for one in found],
        ends=written.ends,
        journals=_journals(store, thread_id, wanted, damaged),
        is_closed=state.closed,
        damaged=damaged,
    )


class _Looker:
    """Reads the checkpoints of one namespace."""

    def __init__(self, store: Store, files: NamespaceFiles, damaged: list[str], *, texts: bool) -> None:
        self._store, self._files, self._damaged, self._texts = store, files, damaged, texts

    def checkpoints(self, enough: int, written: Written, imported: Collection[int]) -> list[SeenCheckpoint]:
        """The newest, oldest first.

        Args:
            enough: They are read down to the first of a turn older than this token.
            written: Meets what is read.
            imported: The turns that have brought checkpoints from elsewhere.
        """
        read: dict[str, _Read] = {}
        for checkpoint_id in islice(self._files.ids(), CHECKPOINTS_READ):
            one = self._read(checkpoint_id, written)
            if one is not None:
                read[checkpoint_id] = one
                if 0 < one.file.token < enough:
                    break
        else:
            if len(read) == CHECKPOINTS_READ:
                self._damaged.append(f"only the newest {CHECKPOINTS_READ} checkpoints were looked at")
        channels = {_HISTORY, ERROR, INTERRUPT, _RETURN}
        for one in read.values():
            versions = one.head.checkpoint.get("channel_versions") or {}
            channels.update(name for name in versions if not name.startswith(("__", NEXT)))
        carried_on = {
            (one.file.parent_id, one.file.token) for one in read.values() if one.head.metadata.get("source") == "loop"
        }
        seen = {}
        for checkpoint_id, one in reversed(read.items()):
            seen[checkpoint_id] = found = self._seen(checkpoint_id, one, read, channels)
            if (checkpoint_id, one.file.token) not in carried_on:
                end: TurnState = ending(one.file, one.file.token) if one.file.token in imported else "unknown"
                seen[checkpoint_id] = found._replace(pending=self._pending(one.file), end=end)
        for one in read.values():
            parent = seen.get(one.file.parent_id or "")
            if parent is not None and (given := self._given(one, read[parent.checkpoint_id], parent, channels)):
                seen[parent.checkpoint_id] = parent._replace(tasks=(*parent.tasks, given))
        return [*seen.values()]

    def _read(self, checkpoint_id: str, written: Written) -> _Read | None:
        file = None
        try:
            file = self._store.file(self._files, checkpoint_id)
            if file is None:
                return None
            written.meet(file)
            return _Read(file, file.head())
        except UNREADABLE as error:
            if self._files.exists(checkpoint_id):  # else it was removed under our eyes
                self._damaged.append(str(error))
            if file is None:
                written.miss()
            return None

    def _seen(
        self, checkpoint_id: str, one: _Read, read: Mapping[str, _Read], channels: Collection[str]
    ) -> SeenCheckpoint:
        parent_id = one.file.parent_id or ""
        parent = read.get(parent_id)
        checkpoint, metadata = one.head.checkpoint, one.head.metadata
        source = str(metadata.get("source") or "")
        return SeenCheckpoint(
            checkpoint_id=checkpoint_id,
            parent_id=parent_id,
            token=one.file.token,
            at=_seconds(checkpoint.get("ts"), checkpoint_id),
            source=source,
            ran=self._ran(one, parent) if source == "loop" else (),
            tasks=self._tasks(one.file, channels, is_input=source == "input"),
            gathered=self._gathered(one, parent, channels) if source == "loop" else None,
        )

    @staticmethod
    def _ran(one: _Read, parent: _Read | None) -> tuple[str, ...]:
        """The nodes between two checkpoints."""
        if parent is None and one.file.parent_id:
            return ("step",)  # what came before is gone
        return tuple(nodes_between(parent, one.head))

    def _gathered(self, one: _Read, parent: _Read | None, channels: Collection[str]) -> SeenTask | None:
        """What a checkpoint holds that its parent does not, where the steps between them were not stored."""
        before = -2 if parent is None else _step_of(parent)  # the first input of a thread is step -1
        if _step_of(one) <= before + 1 or (parent is None and one.file.parent_id):
            return None
        told = [] if parent is None else self._messages(parent, channels)
        known = {message.id for message in told if message.id}
        new = [message for message in self._messages(one, channels) if message.id not in known]
        answers = [self._answer(message) for message in new if isinstance(message, ToolMessage)]
        calls = [call for message in new if isinstance(message, AIMessage) for call in self._calls(message)]
        asked = [
            message for message in new if isinstance(message, HumanMessage) and METADATA_KEY not in _metadata(message)
        ]
        prompt = _text(asked[0]) if asked and self._texts else ""
        return SeenTask(one.file.token, tuple(calls), tuple(answers), prompt)

    def _given(self, one: _Read, parent: _Read, seen: SeenCheckpoint, channels: Collection[str]) -> SeenTask | None:
        """The answers that a checkpoint holds and its parent does not, where no write brought them: those of a repair
        without the graph, which stores the history in order and nothing else.
        """
        token = one.file.token
        if one.head.metadata.get("source") != "update" or any(task.token == token for task in seen.tasks):
            return None
        told = [m for m in self._messages(parent, channels) if isinstance(m, ToolMessage)]
        known = {(m.tool_call_id, m.id) for m in told}
        answers = [
            self._answer(m)._replace(is_given=True)
            for m in self._messages(one, channels)
            if isinstance(m, ToolMessage) and (m.tool_call_id, m.id) not in known
        ]
        return SeenTask(token, answers=tuple(answers)) if answers else None

    def _messages(self, one: _Read, channels: Collection[str]) -> list[BaseMessage]:
        try:
            names = [name for name in one.head.channels if name in channels]
            return [message for name in names for message in messages_in(one.file.value(one.head, name))]
        except (DamagedCheckpointError, RefusedValueError) as error:
            self._damaged.append(str(error))
            return []

    def _pending(self, file: LoadedFile) -> tuple[str, ...]:
        """The nodes that are to run."""
        try:
            return tuple(left_of(file).nodes)
        except UNREADABLE as error:
            self._damaged.append(str(error))
            return ()

    def _tasks(self, file: LoadedFile, channels: Collection[str], *, is_input: bool) -> tuple[SeenTask, ...]:
        tasks = []
        for kind, section in file.image.records:
            if kind != WRITES:
                continue
            # One record at a time: it says which turn wrote it.
            alone = file.image._replace(records=[(kind, section)])
            try:
                writes = LoadedFile(self._store.codec, self._files, file.checkpoint_id, alone).writes(set(channels))
            except (DamagedCheckpointError, RefusedValueError) as error:
                if self._files.exists(file.checkpoint_id):
                    self._damaged.append(str(error))
                continue
            task = self._task(int(section.fields[2]), [(channel, value) for _, channel, value in writes])
            if is_input and self._texts and not task.prompt:
                said = (_said(value, is_history=channel == _HISTORY) for _, channel, value in writes)
                task = task._replace(prompt=next(filter(None, said), ""))
            tasks.append(task._replace(at=written_at(file.checkpoint_id, section.fields)))
        return tuple(tasks)

    def _task(self, token: int, writes: Iterable[tuple[str, Any]]) -> SeenTask:
        calls: dict[str, SeenCall] = {}
        answers: dict[str, SeenAnswer] = {}
        prompt = error = ""
        is_paused = False
        for channel, value in writes:
            if channel == ERROR:
                error = str(value) if self._texts else str(value).partition("(")[0]
            elif channel == INTERRUPT:
                is_paused = True
            is_whole = isinstance(value, Overwrite)
            for message in messages_in(value.value if is_whole else value):
                if isinstance(message, ToolMessage):
                    answers[str(message.tool_call_id)] = self._answer(message)._replace(is_given=is_whole)
                    calls.pop(str(message.tool_call_id), None)
                elif isinstance(message, AIMessage) and not is_whole:
                    calls.update((call.call_id, call) for call in self._calls(message))
                elif isinstance(message, HumanMessage) and not is_whole and METADATA_KEY not in _metadata(message):
                    prompt = _text(message) if self._texts else ""
        return SeenTask(token, tuple(calls.values()), tuple(answers.values()), prompt, error, is_paused)

    def _calls(self, message: AIMessage) -> list[SeenCall]:
        try:
            args = {
                str(call.get("id")): call.get("args") for call in [*message.tool_calls, *message.invalid_tool_calls]
            }
            keys = keys_of(message)
        except (AttributeError, KeyError, TypeError):
            return []  # built without validation
        return [SeenCall(k.call_id, k.tool, _shown(args.get(k.call_id)) if self._texts else "") for k in keys]

    def _answer(self, message: ToolMessage) -> SeenAnswer:
        note = _metadata(message).get(METADATA_KEY)
        known: Mapping[str, Any] = note if isinstance(note, Mapping) else {}
        return SeenAnswer(
            call_id=str(message.tool_call_id),
            is_error=message.status == "error",
            outcome=str(known.get("outcome") or ""),
            text=_text(message) if self._texts else "",
        )


def _metadata(message: BaseMessage) -> Mapping[str, Any]:
    found = getattr(message, "response_metadata", None)
    return found if isinstance(found, Mapping) else {}


def _text(message: BaseMessage) -> str:
    try:
        return str(message.text)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""  # built without validation


def _said(given: Any, *, is_history: bool) -> str:
    """What a person says in an input that is not made of messages yet: pairs of a role and a text, dicts, or texts."""
    is_pair = len(given) == 2 and _is_person(given[0]) if isinstance(given, (list, tuple)) else False
    several = given if isinstance(given, (list, tuple)) and not is_pair else [given]
    said = ""
    for one in several:
        if isinstance(one, (list, tuple, dict)) or (isinstance(one, str) and is_history):
            try:
                (message,) = convert_to_messages([one])
            except (ValueError, TypeError, KeyError, NotImplementedError):
                continue
            said = _text(message) if isinstance(message, HumanMessage) else said
    return said


def _is_person(role: object) -> bool:
    return isinstance(role, str) and role in {"user", "human"}


def _shown(args: object) -> str:
    return f"({', '.join(f'{k}={v!r:.80}' for k, v in args.items())})" if isinstance(args, Mapping) else ""


def _step_of(one: _Read) -> int:
    step = one.head.metadata.get("step")
    return step if type(step) is int else -1


def _seconds(timestamp: object, checkpoint_id: str) -> float:
    try:
        moment = datetime.fromisoformat(str(timestamp).replace("Z", "+00:00"))
    except ValueError:
        return (id_time_ns(checkpoint_id) or 0) / 1e9
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _inner_ids(store: Store, thread_id: str, state: LedgerState, *, oldest: str) -> list[str]:
    """The ids of checkpoints of subgraphs from a checkpoint on, in order."""
    found = []
    root = store.thread(thread_id).namespace(state, "").path
    for files in store.thread(thread_id).unnamed_namespaces(state)[: NAMESPACES_COUNTED + 1]:
        if files.path != root:
            for checkpoint_id in files.ids():
                if checkpoint_id < oldest:
                    break
                found.append(checkpoint_id)
    return sorted(found)


def _between(ids: list[str], after: str, upto: str) -> int:
    return max(0, bisect_left(ids, upto) - bisect_left(ids, after)) if after else 0


def _journals(
    store: Store, thread_id: str, tokens: Iterable[int], damaged: list[str]
) -> dict[int, dict[str, CallResult]]:
    """What the journals of turns say of their calls, by id of the call."""
    directory, found = store.generation_dir(thread_id), {}
    for token in tokens:
        try:
            content = read_journal(journal_path(directory, token))
            if content is None:
                continue
            records, unreadable = decode_records(store.codec, content.payloads)
        except (StorageError, RefusedValueError) as error:
            damaged.append(str(error))
            continue
        damaged += [f"the journal of turn {token}: {reason}" for reason in unreadable[:3]]
        transcript = Transcript()
        transcript.has_gap = bool(content.damaged or unreadable)
        transcript.add(token, records)
        found[token] = _results(transcript)
    return found


def _results(transcript: Transcript) -> dict[str, CallResult]:
    return {
        call_id: _result(found.facts, is_asked=_is_asked(transcript, call_id))
        for (_, call_id), found in transcript.call_evidence().items()
    }


def _is_asked(transcript: Transcript, call_id: str) -> bool:
    """Whether a person is asked what became of a call."""
    key = transcript.newest(call_id)
    return key is not None and transcript.asked(key) is not None


def _result(facts: Facts, *, is_asked: bool) -> CallResult:
    if facts.result:
        return "ok" if facts.started else "kept"  # else it was given on without running
    if facts.error is not None:
        return "error"
    if facts.paused or (is_asked and not facts.started):
        return "paused"
    return "not run" if facts.known and not facts.started else "unknown"
