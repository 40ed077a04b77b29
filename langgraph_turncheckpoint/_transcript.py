"""What a journal says: its records, how they are stored through the saver's serde, and what a row of them adds up
to. Which file they are in, and what is done about them, is decided elsewhere.

A record is `[kind, tag, data]`, where data is a page of the record's fields. With an encrypting serde only the
kind, the order and the sizes can be read without the key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import Command

from ._finalize import Facts, Reason
from ._histories import CallEvidence
from ._records import Sealed
from ._serde import ValueCodec
from ._turn import Cause, TurnState, call_mark
from .errors import RefusedValueError, UnserializableValueError

#: Fields of each kind of record, in order. A call is named by its AI message, its id and its tool.
PROMPT: Final = "prompt"  # after, messages: the messages a run was started with, and what they stand behind
MODEL: Final = "model"  # model run, anchor, node, task: a model is called
TEXT: Final = "text"  # model run, delta
REASONING: Final = "reasoning"  # model run, delta
REPLY: Final = "reply"  # model run, message, call ids: the whole reply; silence about these calls means "not started"
RETURNED: Final = "returned"  # task, messages as [id, call ids]: a node has ended, and this is what it gave
CALLS: Final = "calls"  # AI message, calls as [id, tool]: from here on silence about them means "not started"
START: Final = "start"  # call
RESULT: Final = "result"  # call, output: a ToolMessage, a Command or a list of them
FAILED: Final = "error"  # call, error
PAUSED: Final = "paused"  # call: it waits for a person
ASKED: Final = "asked"  # call, values: a person is asked, after `interrupt` gave so many answers to other questions
ALLOWED: Final = "allowed"  # call, values: a person lets it run, which took so many answers
NODE: Final = "node"  # task, calls: a node begins that may run them, and nobody would see it
RESTED: Final = "rested"  # task: that node waits for a person
FROM: Final = "from"  # checkpoint: what the run started from, where the store of the turns does not know it
STORED: Final = "stored"  # message ids: a checkpoint holds them
REMOVED: Final = "removed"  # message ids: they were taken out of the history
DELIVERED: Final = "delivered"  # message ids: from the inbox
ENDED: Final = "ended"  # state, cause: one of the turn's runs is over
GAP: Final = "gap"  # records could not be written: silence means nothing any more

#: At most so many calls of a journal are told when it is gone.
GAVE_LIMIT: Final = 100

_ANSWERS: Final = UUID("5d0c3f0e-6a5b-4c0f-8a57-2f3d7b8e9c41")


class CallKey(NamedTuple):
    """One tool call: the id of the AI message it is in, its own, and the name of its tool.

    Ids of calls repeat: in later messages, in parallel agents, and with careless models in one message.
    """

    ai_id: str | None
    call_id: str
    tool: str


def encode_record(codec: ValueCodec, kind: str, fields: Sequence[Any]) -> bytes:
    """The payload of one record.

    Raises:
        UnserializableValueError: The serde cannot write a field.
    """
    items = list(fields)
    try:
        sealed = codec.seal_page(codec.page(items), items)
    except UnserializableValueError:
        raise codec.explain("journal", items) from None
    return ormsgpack.packb([kind, sealed.tag, bytes(sealed.data)])


class Record(NamedTuple):
    """One record of a journal."""

    kind: str
    fields: list[Any]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_id(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_number(value: object) -> bool:
    return type(value) is int


def _is_anything(_value: object) -> bool:
    return True


def _is_reply(value: object) -> bool:
    if not isinstance(value, AIMessage):
        return False
    try:
        return all(map(_is_text, [part for key in keys_of(value) for part in key[1:]])) and _is_id(value.id)
    except (AttributeError, KeyError, TypeError):
        return False  # built without validation


def _list_of(*items: Callable[[object], bool]) -> Callable[[object], bool]:
    """Lists of single things, or of lists with these."""

    def check(value: object) -> bool:
        if not isinstance(value, list):
            return False
        if len(items) == 1:
            return all(map(items[0], value))
        return all(isinstance(row, list) and _fits(row, items) for row in value)

    return check


def _fits(fields: Sequence[object], checks: Sequence[Callable[[object], bool]]) -> bool:
    return len(fields) == len(checks) and all(check(field) for check, field in zip(checks, fields, strict=True))


def _is_message(value: object) -> bool:
    return isinstance(value, BaseMessage)


_CALL: Final = (_is_id, _is_text, _is_text)
#: What the fields of each kind of record are; what is in a tool's output is looked at when it is used.
_SHAPES: Final[Mapping[str, tuple[Callable[[object], bool], ...]]] = {
    PROMPT: (_is_id, _list_of(_is_message)),
    MODEL: (_is_text, _is_id, _is_text, _is_text),
    TEXT: (_is_text, _is_text),
    REASONING: (_is_text, _is_text),
    REPLY: (_is_text, _is_reply, _list_of(_is_text)),
    RETURNED: (_is_text, _list_of(_is_id, _list_of(_is_text))),
    CALLS: (_is_id, _list_of(_is_text, _is_text)),
    START: _CALL,
    RESULT: (*_CALL, _is_anything),
    FAILED: (*_CALL, _is_text),
    PAUSED: _CALL,
    ASKED: (*_CALL, _is_number),
    ALLOWED: (*_CALL, _is_number),
    NODE: (_is_text, _list_of(*_CALL)),
    RESTED: (_is_text,),
    FROM: (_is_text,),
    STORED: (_list_of(_is_text),),
    REMOVED: (_list_of(_is_text),),
    DELIVERED: (_list_of(_is_text),),
    ENDED: (_is_text, _is_id),
    GAP: (),
}


def _makes_sense(kind: str, fields: Sequence[object]) -> bool:
    """Whether a record of a kind that is known has the fields it must have."""
    return kind not in _SHAPES or _fits(fields, _SHAPES[kind])


def decode_records(codec: ValueCodec, payloads: Iterable[bytes]) -> tuple[list[Record], list[str]]:
    """The records that can be read, and a sentence about each that cannot.

    Raises:
        RefusedValueError: A record is not sealed as this saver seals, or names what must not be loaded.
    """
    records, unreadable = [], []
    for position, payload in enumerate(payloads):
        try:
            records.append(_decoded(codec, payload))
        except RefusedValueError:
            raise
        except (ValueError, TypeError) as error:
            unreadable.append(f"record {position}: {error}")
    return records, unreadable


def _decoded(codec: ValueCodec, payload: bytes) -> Record:
    kind, tag, data = ormsgpack.unpackb(payload)
    if not (type(kind) is type(tag) is str and type(data) is bytes):
        raise ValueError("is no record")
    fields, _ = codec.open_page(Sealed(tag, data), learn=False)
    if not _makes_sense(kind, fields):
        raise ValueError(f"is no record of kind {kind!r:.40}")
    return Record(kind, fields)


class Reply(NamedTuple):
    """What a model was about to say, or said.

    Attributes:
        run: Which model call it was, in which turn.
        anchor: The id of the last message of the history it answers that is from a person or a model.
        node: The node it was called in.
        task: The checkpoint namespace of that node's task.
        message: The whole reply, or `None` if it was cut off.
        text: What was streamed of it.
        reasoning: What was streamed of its reasoning; never replayed.
        is_internal: Whether its node has ended and kept it to itself.
    """

    run: str
    anchor: str | None
    node: str
    task: str
    message: AIMessage | None
    text: str
    reasoning: str
    is_internal: bool

    @property
    def checkpoint_ns(self) -> str:
        """The namespace of the graph."""
        return self.task.rpartition("|")[0]


class Prompt(NamedTuple):
    """Messages that a run was started with, and the id of the one they stand behind."""

    after: str | None
    messages: list[BaseMessage]


class Transcript:
    """What happened in one or several turns, oldest first, as far as their journals tell.

    Attributes:
        covered: Calls whose start would have been recorded.
        has_gap: Records are missing.
        stored: Ids of messages that a checkpoint had.
        removed: Ids of messages that were taken out of the history.
        tokens: The turns the records are from.
        started_from: The checkpoint that a turn's first run started from, where it is recorded.
        last_end: State and cause of the last run that is known to have ended.
    """

    def __init__(self) -> None:
        self.covered: set[tuple[str | None, str]] = set()
        self.has_gap = False
        self.stored: set[str] = set()
        self.removed: set[str] = set()
        self.tokens: list[int] = []
        self.started_from: dict[int, str] = {}
        self.last_end: tuple[TurnState, Cause | None] | None = None
        self._timeline: list[Prompt | tuple[int, str]] = []
        self._replies: dict[tuple[int, str], dict[str, Any]] = {}
        # By task its model runs; by id of a whole reply the turn it was last given in.
        self._runs: dict[tuple[int, str], list[str]] = {}
        self._said_in: dict[str | None, int] = {}
        self._calls: dict[CallKey, dict[str, Any]] = {}
        self._without_message: dict[str, list[CallKey]] = {}
        self._newest: dict[str, CallKey] = {}
        self._opaque: dict[str, list[CallKey]] = {}
        self._serial = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded at all."""
        return not (self._timeline or self._calls or self.covered or self._opaque or self.has_gap)

    @property
    def timeline(self) -> list[Prompt | Reply]:
        """What runs were started with, and each model call, in order."""
        return [entry if isinstance(entry, Prompt) else self._reply(*entry) for entry in self._timeline]

    @property
    def replies(self) -> list[Reply]:
        """Each model call, in order."""
        return [entry for entry in self.timeline if isinstance(entry, Reply)]

    def _reply(self, token: int, run: str) -> Reply:
        found = self._replies[token, run]
        text, reasoning = "".join(found["text"]), "".join(found["reasoning"])
        return Reply(
            f"{token}-{run}",
            found["anchor"],
            found["node"],
            found["task"],
            found["message"],
            text,
            reasoning,
            is_internal=found["internal"],
        )

    def add(self, token: int, records: Iterable[Record]) -> None:
        """Take the records of one turn's journal along."""
        several = list(records)
        # What a complete run has recorded is in the checkpoints, and if it has been removed since, must not come back.
        ends = [place for place, record in enumerate(several) if record.kind == ENDED]
        complete = [place for place in ends if several[place].fields[0] == "completed"]
        several = several[complete[-1] + 1 :] if complete else several
        if all(record.kind == ENDED for record in several):
            return
        self.tokens.append(token)
        self.last_end = None
        for kind, fields in several:
            self._serial += 1
            handle = getattr(self, f"_on_{kind}", None)
            if handle is not None:  # a later version may know more
                handle(token, *fields)

    # --- calls ---

    def facts(self, key: CallKey) -> Facts:
        """What is known about one call; about the last of that id, where its message is not known."""
        found = self._find(key)
        known = not self.has_gap and (bool(found) or key[:2] in self.covered)
        started = found.get("started", False) or any(self._same(key, other) for other in self._in_opaque_nodes())
        return Facts(
            result=found.get("result", False),
            started=started,
            error=found.get("error"),
            paused=found.get("paused", False),
            known=known,
        )

    def output(self, key: CallKey) -> Any:
        """What the tool gave, whole."""
        return self._find(key).get("output")

    def asked(self, key: CallKey) -> int | None:
        """How many answers to other questions come before that to the guard's; `None` if it was not put."""
        found = self._find(key).get("asked")
        return None if found is None else int(found)

    def consumed(self, key: CallKey) -> int:
        """How many answers it took until a person let the call run."""
        return int(self._find(key).get("consumed", 0))

    def newest(self, call_id: str) -> CallKey | None:
        """The last call of an id."""
        return self._newest.get(call_id)

    def was_touched(self, message: AIMessage) -> bool:
        """Whether any call of a message was started."""
        return any(self.facts(key).started or self.facts(key).result for key in keys_of(message))

    def token_of(self, key: CallKey) -> int | None:
        """The turn in which a call was last heard of."""
        found = self._find(key).get("token")
        if found is not None:
            return int(found)
        return None if key.ai_id is None else self._said_in.get(key.ai_id)

    def gave(self) -> tuple[bytes, ...]:
        """The calls that ran and have their result, by `call_mark`; of very many the first."""
        evidence = self.call_evidence().items()
        found = (call_id for (_, call_id), one in evidence if one.facts.result and one.facts.started)
        return tuple(map(call_mark, islice(found, GAVE_LIMIT)))

    def call_evidence(
        self, causes: Mapping[int, Reason] = MappingProxyType({})
    ) -> dict[tuple[str | None, str], CallEvidence]:
        """What is known about each call, for finalizing; `causes` says why each turn has ended."""
        keys = {*self._calls, *self._in_opaque_nodes()}
        for reply in self.replies:
            if reply.message is not None:
                keys.update(keys_of(reply.message))
        evidence: dict[tuple[str | None, str], CallEvidence] = {}
        for covered in self.covered:
            evidence[covered] = CallEvidence(Facts(known=not self.has_gap))
        first: dict[tuple[str | None, str], CallKey] = {}
        for reply in self.replies:
            for key in [] if reply.message is None or reply.message.id is None else keys_of(reply.message):
                first.setdefault(key[:2], key)
        tools = Counter(key[:2] for key in self._calls)
        for key in sorted(keys, key=lambda key: self._calls.get(key, {}).get("serial", 0)):
            if first.get(key[:2], key) != key:
                continue  # of two calls with one id in a message, an answer is for the first
            facts = self.facts(key)
            if tools[key[:2]] > 1 and key[:2] not in first and key.ai_id is not None:
                facts = Facts(started=True, known=facts.known)  # nobody can tell whose result there is
            message = tool_message(self.output(key), key.call_id) if facts.result else None
            if facts.result and message is None:
                facts = facts._replace(result=False, started=True)
            if message is not None and message.id is None:
                # The same id each time: two nodes may put the same history in order at once.
                message = message.model_copy(update={"id": answer_id(key)})
            if key[:2] not in evidence or facts != Facts(known=facts.known) or evidence[key[:2]].cause is None:
                token = self.token_of(key)
                evidence[key[:2]] = CallEvidence(facts, message, None if token is None else causes.get(token))
        return evidence

    def _find(self, key: CallKey) -> Mapping[str, Any]:
        exact = self._calls.get(key)
        if exact is not None:
            return exact
        newest = self._newest.get(key.call_id)
        if newest is None or newest.tool != key.tool or not self._same(key, newest):
            return {}
        return self._calls.get(newest, {})

    def _same(self, key: CallKey, other: CallKey) -> bool:
        """Whether two keys can name one call: a node may give a model's reply another id, or none."""
        if key == other:
            return True
        if key[1:] != other[1:]:
            return False
        return key.ai_id is None or other.ai_id not in self._said_in

    def _in_opaque_nodes(self) -> list[CallKey]:
        return [key for keys in self._opaque.values() for key in keys]

    # --- records ---

    def _call(self, token: int, ai_id: str | None, call_id: str, tool: str) -> dict[str, Any]:
        key = CallKey(ai_id, call_id, tool)
        self._newest[call_id] = key
        entry = self._entry(key, {})
        entry.update(serial=self._serial, token=token)
        return entry

    def _entry(self, key: CallKey, new: dict[str, Any]) -> dict[str, Any]:
        if key not in self._calls:
            self._calls[key] = new
            if key.ai_id is None:
                self._without_message.setdefault(key.call_id, []).append(key)
        return self._calls[key]

    def _on_prompt(self, token: int, after: str | None, messages: list[BaseMessage]) -> None:
        self._timeline.append(Prompt(after, messages))

    def _on_model(self, token: int, run: str, anchor: str | None, node: str, task: str) -> None:
        self._timeline.append((token, run))
        place = {"anchor": anchor, "node": node, "task": task}
        self._replies[token, run] = {**place, "message": None, "text": [], "reasoning": [], "internal": False}
        self._runs.setdefault((token, task), []).append(run)

    def _on_text(self, token: int, run: str, delta: str) -> None:
        if (entry := self._replies.get((token, run))) is not None:
            entry["text"].append(delta)

    def _on_reasoning(self, token: int, run: str, delta: str) -> None:
        if (entry := self._replies.get((token, run))) is not None:
            entry["reasoning"].append(delta)

    def _on_reply(self, token: int, run: str, message: AIMessage, covered: list[str]) -> None:
        if (entry := self._replies.get((token, run))) is not None:
            entry["message"] = message
            self._said_in[message.id] = token
            self.covered.update((message.id, call_id) for call_id in covered)
            for key in keys_of(message):
                # What is known of a call of this id in a message without one is of an older message.
                for older in self._without_message.pop(key.call_id, ()):
                    del self._calls[older]
                self._newest[key.call_id] = key

    def _on_returned(self, token: int, task: str, messages: list[list[Any]]) -> None:
        self._opaque.pop(task, None)
        waiting = [(message_id, frozenset(call_ids)) for message_id, call_ids in messages]
        of_task = [self._replies[token, run] for run in dict.fromkeys(self._runs.get((token, task), ()))]
        entries = [entry for entry in of_task if entry["task"] == task and entry["message"] is not None]
        for entry in entries:
            said: AIMessage = entry["message"]
            call_ids = frozenset(key.call_id for key in keys_of(said))
            # By its id; or under another one, by its calls; or as the one thing that the one reply became.
            ways = [
                [w for w in waiting if w[0] == said.id],
                [w for w in waiting if call_ids and w[1] == call_ids],
                waiting if len(entries) == len(waiting) == 1 and waiting[0][1] == call_ids else [],
            ]
            match = next((way[0] for way in ways if way), None)
            entry["internal"] = match is None
            if match is not None:
                waiting.remove(match)
                if match[0] != said.id:
                    self._rename(entry, match[0], token)

    def _rename(self, entry: dict[str, Any], message_id: str | None, token: int) -> None:
        """A node has given a reply another id."""
        said: AIMessage = entry["message"]
        entry["message"] = said.model_copy(update={"id": message_id})
        self._said_in.pop(said.id, None)
        self._said_in[message_id] = token
        for key in keys_of(said):
            if key[:2] in self.covered:
                self.covered.add((message_id, key.call_id))
            if self._newest.get(key.call_id) == key:
                self._newest[key.call_id] = key._replace(ai_id=message_id)
            if key in self._calls:
                self._entry(key._replace(ai_id=message_id), self._calls[key])

    def _on_calls(self, token: int, ai_id: str | None, calls: list[list[str]]) -> None:
        self.covered.update((ai_id, call_id) for call_id, _ in calls)

    def _on_start(self, token: int, ai_id: str | None, call_id: str, tool: str) -> None:
        # What an earlier try has left says nothing of this one.
        entry = self._call(token, ai_id, call_id, tool)
        consumed = entry.get("consumed", 0)
        entry.clear()
        entry.update(started=True, serial=self._serial, token=token, consumed=consumed)

    def _on_result(self, token: int, ai_id: str | None, call_id: str, tool: str, output: Any) -> None:
        self._call(token, ai_id, call_id, tool).update(result=True, output=output)

    def _on_error(self, token: int, ai_id: str | None, call_id: str, tool: str, error: str) -> None:
        self._call(token, ai_id, call_id, tool)["error"] = error

    def _on_paused(self, token: int, ai_id: str | None, call_id: str, tool: str) -> None:
        self._call(token, ai_id, call_id, tool)["paused"] = True

    def _on_asked(self, token: int, ai_id: str | None, call_id: str, tool: str, values: int) -> None:
        # Why the call was cut off is told by the turn that it ran in, not by those in which somebody was asked.
        self._call(self.token_of(CallKey(ai_id, call_id, tool)) or token, ai_id, call_id, tool)["asked"] = values

    def _on_allowed(self, token: int, ai_id: str | None, call_id: str, tool: str, values: int) -> None:
        self._call(token, ai_id, call_id, tool)["consumed"] = values

    def _on_node(self, token: int, task: str, calls: list[list[Any]]) -> None:
        self._opaque[task] = [CallKey(*call) for call in calls]

    def _on_rested(self, token: int, task: str) -> None:
        self._opaque.pop(task, None)

    def _on_from(self, token: int, checkpoint_id: str) -> None:
        self.started_from.setdefault(token, checkpoint_id)

    def _on_stored(self, token: int, message_ids: list[str]) -> None:
        self.stored.update(message_ids)

    def _on_removed(self, token: int, message_ids: list[str]) -> None:
        self.removed.update(message_ids)

    def _on_ended(self, token: int, state: TurnState, cause: Cause | None) -> None:
        self.last_end = state, cause

    def _on_gap(self, token: int) -> None:
        self.has_gap = True


def keys_of(message: AIMessage) -> list[CallKey]:
    """The calls of a message that have an id, also those that could not be parsed."""
    calls = [*message.tool_calls, *message.invalid_tool_calls]
    return [CallKey(message.id, str(call["id"]), str(call["name"])) for call in calls if call["id"]]


def answer_id(key: CallKey) -> str:
    """The same id for the answer to a call each time."""
    return str(uuid5(_ANSWERS, "\n".join(str(part) for part in key)))


def tool_message(output: Any, call_id: str) -> ToolMessage | None:
    """The answer to a call in what its tool gave."""
    for message in messages_in(output):
        if isinstance(message, ToolMessage) and getattr(message, "tool_call_id", None) == call_id:
            return message
    return None


def messages_in(output: Any) -> list[BaseMessage]:
    """Every message in what a tool or a node gave."""
    if isinstance(output, BaseMessage):
        return [output]
    if isinstance(output, Command):
        return messages_in(output.update)
    if isinstance(output, Mapping):
        return [message for value in output.values() for message in messages_in(value)]
    if isinstance(output, (list, tuple)):
        return [message for value in output for message in messages_in(value)]
    return []
