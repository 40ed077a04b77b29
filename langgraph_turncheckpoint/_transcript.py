"""What a journal says: its records, how they are stored through the saver's serde, and what a row of them adds up
to. Which file they are in, and what is done about them, is decided elsewhere.

A record is `[kind, tag, data]`, where data is a page of the record's fields. With an encrypting serde only the
kind, the order and the sizes can be read without the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import Command

from ._finalize import Facts
from ._histories import CallEvidence
from ._records import Sealed
from ._serde import ValueCodec
from ._turn import Cause, TurnState
from .errors import RefusedValueError, UnserializableValueError

#: Fields of each kind of record, in order.
PROMPT: Final = "prompt"  # after, messages: the messages a run was started with, and what they stand behind
MODEL: Final = "model"  # model run, anchor, node, namespace: a model is called
TEXT: Final = "text"  # model run, delta
REASONING: Final = "reasoning"  # model run, delta
REPLY: Final = "reply"  # model run, message: the whole reply
CALLS: Final = "calls"  # AI message, call ids: from here on silence about one of them means that it never started
START: Final = "start"  # AI message, call, tool
RESULT: Final = "result"  # AI message, call, output: a ToolMessage, a Command or a list of them
FAILED: Final = "error"  # AI message, call, error
PAUSED: Final = "paused"  # AI message, call: it waits for a person
FROM: Final = "from"  # checkpoint: what the run started from, where the store of the turns does not know it
ASKED: Final = (
    "asked"  # AI message, call, values: a person is asked, after `interrupt` gave that many answers to others
)
TRIMMED: Final = "trimmed"  # length: messages were taken out of the history; what was said before may be among them
DELIVERED: Final = "delivered"  # message ids: from the inbox
ENDED: Final = "ended"  # state, cause: one of the turn's runs is over
GAP: Final = "gap"  # records could not be written: silence means nothing any more

Key = tuple["str | None", str]

_ANSWERS: Final = UUID("5d0c3f0e-6a5b-4c0f-8a57-2f3d7b8e9c41")


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


def decode_records(codec: ValueCodec, payloads: Iterable[bytes]) -> tuple[list[Record], list[str]]:
    """The records that can be read, and a sentence about each that cannot.

    Raises:
        RefusedValueError: A record is not sealed as this saver seals, or names what must not be loaded.
    """
    records, unreadable = [], []
    for position, payload in enumerate(payloads):
        try:
            kind, tag, data = ormsgpack.unpackb(payload)
            fields, _ = codec.open_page(Sealed(tag, data), learn=False)
            records.append(Record(str(kind), fields))
        except RefusedValueError:
            raise
        except (ValueError, TypeError) as error:
            unreadable.append(f"record {position}: {error}")
    return records, unreadable


class Reply(NamedTuple):
    """What a model was about to say, or said.

    Attributes:
        run: Which model call it was, in which turn.
        anchor: The id of the last message of the prompt that is from a person or a model.
        node: The node it was called in.
        checkpoint_ns: The namespace of that node's graph.
        message: The whole reply, or `None` if it was cut off.
        text: What was streamed of it.
        reasoning: What was streamed of its reasoning; never replayed.
    """

    run: str
    anchor: str | None
    node: str
    checkpoint_ns: str
    message: AIMessage | None
    text: str
    reasoning: str


class Prompt(NamedTuple):
    """Messages that a run was started with, and the id of the one they stand behind."""

    after: str | None
    messages: list[BaseMessage]


class Transcript:
    """What happened in one or several turns, oldest first, as far as their journals tell.

    Attributes:
        outputs: What a tool gave, whole, by AI message and call.
        covered: AI messages of which each call's start would have been recorded.
        has_gap: Records are missing.
        delivered: Ids of messages that came from the inbox.
        tokens: The turns the records are from.
        started_from: The checkpoint that a turn's first run started from, where it is recorded.
        last_end: State and cause of the last run that is known to have ended.
    """

    def __init__(self) -> None:
        self.outputs: dict[Key, Any] = {}
        self.covered: set[str | None] = set()
        self.has_gap = False
        self.delivered: set[str] = set()
        self.tokens: list[int] = []
        self.started_from: dict[int, str] = {}
        self.last_end: tuple[TurnState, Cause | None] | None = None
        self._timeline: list[Prompt | tuple[int, str]] = []
        self._replies: dict[tuple[int, str], dict[str, Any]] = {}
        self._calls: dict[Key, dict[str, Any]] = {}
        self._covered_calls: set[Key] = set()
        self._last_key: dict[str, Key] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded at all."""
        return not (self._timeline or self._calls or self.covered or self.has_gap)

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
            f"{token}-{run}", found["anchor"], found["node"], found["checkpoint_ns"], found["message"], text, reasoning
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
            handle = getattr(self, f"_on_{kind}", None)
            if handle is not None:  # a later version may know more
                handle(token, *fields)

    def facts(self, ai_id: str | None, call_id: str) -> Facts:
        """What is known about one call; about the last of that id, where its message is not known."""
        found = self._calls.get(self._key(ai_id, call_id), {})
        known = not self.has_gap and (bool(found) or ai_id in self.covered)
        return Facts(
            result=found.get("result", False),
            started=found.get("started", False),
            error=found.get("error"),
            paused=found.get("paused", False),
            known=known,
        )

    def asked(self, ai_id: str | None, call_id: str) -> int | None:
        """How many answers to other questions come before that to the guard's; `None` if it was not put."""
        found = self._calls.get(self._key(ai_id, call_id), {}).get("asked")
        return None if found is None else int(found)

    def newest(self, call_id: str) -> Key | None:
        """The last call of an id."""
        return self._last_key.get(call_id)

    def output(self, ai_id: str | None, call_id: str) -> Any:
        """What the tool gave, whole."""
        return self.outputs.get(self._key(ai_id, call_id))

    def _key(self, ai_id: str | None, call_id: str) -> Key:
        if ai_id is None:
            return self._last_key.get(call_id, (None, call_id))
        return (ai_id, call_id) if (ai_id, call_id) in self._calls else (None, call_id)

    def was_touched(self, message: AIMessage) -> bool:
        """Whether any call of a message was started."""
        calls = [*message.tool_calls, *message.invalid_tool_calls]
        return any(self.facts(message.id, call["id"]).started for call in calls if call["id"])

    def call_evidence(self) -> dict[Key, CallEvidence]:
        """What is known about each call, for finalizing."""
        evidence = {}
        keys: set[Key] = set(self._calls)
        for reply in self.replies:
            if reply.message is not None:
                calls = [*reply.message.tool_calls, *reply.message.invalid_tool_calls]
                keys.update((reply.message.id, str(call["id"])) for call in calls if call.get("id"))
        keys.update(self._covered_calls)
        for ai_id, call_id in keys:
            message = tool_message(self.output(ai_id, call_id), call_id)
            facts = self.facts(ai_id, call_id)
            if facts.result and message is None:
                facts = facts._replace(result=False, started=True)
            if message is not None and message.id is None:
                # The same id each time: two nodes may put the same history in order at once.
                message = message.model_copy(update={"id": str(uuid5(_ANSWERS, f"{ai_id}\n{call_id}"))})
            evidence[ai_id, call_id] = CallEvidence(facts, message)
        return evidence

    # --- records ---

    def _call(self, ai_id: str | None, call_id: str) -> dict[str, Any]:
        self._last_key[call_id] = (ai_id, call_id)
        return self._calls.setdefault((ai_id, call_id), {})

    def _on_from(self, token: int, checkpoint_id: str) -> None:
        self.started_from.setdefault(token, checkpoint_id)

    def _on_prompt(self, token: int, after: str | None, messages: list[BaseMessage]) -> None:
        self._timeline.append(Prompt(after, messages))

    def _on_model(self, token: int, run: str, anchor: str | None, node: str, checkpoint_ns: str) -> None:
        self._timeline.append((token, run))
        self._replies[token, run] = {
            "anchor": anchor, "node": node, "checkpoint_ns": checkpoint_ns, "message": None, "text": [], "reasoning": []
        }  # fmt: skip

    def _on_text(self, token: int, run: str, delta: str) -> None:
        if (entry := self._replies.get((token, run))) is not None:
            entry["text"].append(delta)

    def _on_reasoning(self, token: int, run: str, delta: str) -> None:
        if (entry := self._replies.get((token, run))) is not None:
            entry["reasoning"].append(delta)

    def _on_reply(self, token: int, run: str, message: AIMessage) -> None:
        if (entry := self._replies.get((token, run))) is not None:
            entry["message"] = message
            self.covered.add(message.id)
            for call in [*message.tool_calls, *message.invalid_tool_calls]:
                # What is known of a call of this id in a message without one is of an older message.
                call_id = str(call["id"])
                self._calls.pop((None, call_id), None)
                self.outputs.pop((None, call_id), None)
                self._last_key[call_id] = (message.id, call_id)

    def _on_calls(self, token: int, ai_id: str | None, call_ids: list[str]) -> None:
        self.covered.add(ai_id)
        self._covered_calls.update((ai_id, call_id) for call_id in call_ids)

    def _on_start(self, token: int, ai_id: str | None, call_id: str, tool: str) -> None:
        # What an earlier try has left says nothing of this one.
        entry = self._call(ai_id, call_id)
        entry.clear()
        entry["started"] = True
        self.outputs.pop((ai_id, call_id), None)

    def _on_result(self, token: int, ai_id: str | None, call_id: str, output: Any) -> None:
        self._call(ai_id, call_id)["result"] = True
        self.outputs[ai_id, call_id] = output

    def _on_error(self, token: int, ai_id: str | None, call_id: str, error: str) -> None:
        self._call(ai_id, call_id)["error"] = error

    def _on_paused(self, token: int, ai_id: str | None, call_id: str) -> None:
        self._call(ai_id, call_id)["paused"] = True

    def _on_trimmed(self, token: int, length: int) -> None:
        # What is missing from the history now may have been removed on purpose: nothing of it is put back.
        self._timeline.clear()

    def _on_asked(self, token: int, ai_id: str | None, call_id: str, values: int) -> None:
        self._call(ai_id, call_id)["asked"] = values

    def _on_delivered(self, token: int, message_ids: list[str]) -> None:
        self.delivered.update(message_ids)

    def _on_ended(self, token: int, state: TurnState, cause: Cause | None) -> None:
        self.last_end = state, cause

    def _on_gap(self, token: int) -> None:
        self.has_gap = True


def tool_message(output: Any, call_id: str) -> ToolMessage | None:
    """The answer to a call in what its tool gave."""
    for message in messages_in(output):
        if isinstance(message, ToolMessage) and message.tool_call_id == call_id:
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
