"""The tool calls of one AIMessage: reading them, and giving an id and a name to those that have none. What
answers a call is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast
from uuid import UUID, uuid5

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, message_chunk_to_message

#: The name of a call that has none. Anthropic's converter drops such a call, but not its answer.
NAMELESS: Final = "unknown_tool"

#: Content blocks that repeat a tool call or are one, and the key of the call's id in them.
CALL_BLOCKS: Final[Mapping[object, str]] = {
    "tool_use": "id",
    "tool_call": "id",
    "invalid_tool_call": "id",
    "function_call": "call_id",
}
_ID_NAMESPACE: Final = UUID("8f7c1a52-0b0e-4f0e-9a43-6f1d3c2b5e97")


class Call(NamedTuple):
    """One tool call of a message.

    Attributes:
        id: Unique in its message; made from the message's id or place if the message states none, or one twice.
        stated_id: The id that the message states, "" for none.
        name: The tool's name.
        invalid: Its arguments could not be parsed.
        stated: The call as the message states it.
    """

    id: str
    stated_id: str
    name: str
    invalid: bool
    stated: Mapping[str, Any]

    @property
    def is_complete(self) -> bool:
        """Whether a provider accepts the call as it is stated."""
        if self.id != self.stated_id or self.name != self.stated.get("name"):
            return False
        return not self.invalid or self.stated.get("args") is not None


def calls_of(message: AIMessage, position: int) -> list[Call]:
    """The calls of a message that stands at `position`, invalid ones and those that only its content states too."""
    calls: list[Call] = []
    taken: set[str] = set()
    for stated, invalid in _stated_calls(message):
        stated_id = stated.get("id") or ""
        call_id = stated_id
        if not stated_id or stated_id in taken:
            call_id = f"call_{uuid5(_ID_NAMESPACE, f'{message.id or position!a} {len(calls)}').hex[:24]}"
        taken.add(call_id)
        calls.append(Call(call_id, stated_id, stated.get("name") or NAMELESS, invalid, stated))
    return calls


def _stated_calls(message: AIMessage) -> Iterator[tuple[Mapping[str, Any], bool]]:
    for call in message.tool_calls:
        yield cast("Mapping[str, Any]", call), False
    for invalid_call in message.invalid_tool_calls:
        yield cast("Mapping[str, Any]", invalid_call), True
    if type(message.content) is not list:
        return
    listed = {call.get("id") for call in (*message.tool_calls, *message.invalid_tool_calls)}
    for _, block, key in _call_blocks(message.content):
        if block.get(key) and block.get("name") and block[key] not in listed:
            listed.add(block[key])
            yield {"type": "tool_call", "id": block[key], "name": block["name"], "args": block.get("input", {})}, False


def _call_blocks(content: list[Any]) -> Iterator[tuple[int, dict[str, Any], str]]:
    for place, block in enumerate(content):
        if isinstance(block, dict) and (key := CALL_BLOCKS.get(block.get("type"))) is not None:
            yield place, block, key


def complete_calls(message: AIMessage, calls: list[Call]) -> AIMessage:
    """A copy of the message whose calls have the ids and names of `calls`, in its content too."""
    valid, invalid = len(message.tool_calls), len(message.invalid_tool_calls)
    update: dict[str, Any] = {
        "tool_calls": [{**call.stated, "id": call.id, "name": call.name} for call in calls[:valid]],
        "invalid_tool_calls": [
            {**call.stated, "id": call.id, "name": call.name, "args": call.stated.get("args") or ""}
            for call in calls[valid : valid + invalid]
        ],
    }
    if type(message.content) is list:
        update["content"] = _complete_content(message.content, calls)
    if isinstance(message, AIMessageChunk):  # its chunks of calls would bring the old ids back when it is loaded
        message = cast("AIMessage", message_chunk_to_message(message))
    return message.model_copy(update=update)


def _complete_content(content: list[Any], calls: list[Call]) -> list[Any]:
    by_stated_id: dict[str, list[Call]] = {}
    for call in reversed(calls):
        by_stated_id.setdefault(call.stated_id, []).append(call)
    complete = list(content)
    for place, block, key in _call_blocks(content):
        if waiting := by_stated_id.get(block.get(key) or ""):
            call = waiting.pop()
            complete[place] = {**block, key: call.id, "name": call.name}
    return complete


def last_caller(history: Sequence[Any], call_id: str) -> AIMessage | None:
    """The last message that makes a call."""
    for message in reversed(history):
        if isinstance(message, AIMessage) and any(call["id"] == call_id for call in message.tool_calls):
            return message
    return None


def anchor_of(history: Sequence[Any]) -> str | None:
    """The id of the last message that is from a person or a model; answers of tools belong to the latter."""
    for message in reversed(history):
        if isinstance(message, (HumanMessage, AIMessage)):
            return message.id
    return None


def end_of_replies(history: Sequence[Any]) -> int:
    """Where the messages begin that nobody has replied to yet."""
    cut = len(history)
    while cut and isinstance(history[cut - 1], BaseMessage) and history[cut - 1].type in ("human", "system"):
        cut -= 1
    return cut


def messages_of_state(state: Any, key: str) -> Sequence[Any]:
    """The messages in a state of any shape: a mapping, an object with fields, or the list itself."""
    if isinstance(state, list):
        return state
    found = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    return found if isinstance(found, (list, tuple)) else []
