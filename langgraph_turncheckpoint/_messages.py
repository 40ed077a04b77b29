"""Packing and rebuilding LangChain messages without a serializer. Only the four classes that fill
histories live here; any other message goes through the serde.

A message is packed as its `__dict__`. On load, one whose fields are exactly what validation would leave
alone is rebuilt directly; anything else runs through the class's constructor, as the serde would do.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel

#: A type that msgpack would silently turn into another one makes `packb` fail instead.
STRICT: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
)

_CLASSES: Final[tuple[type[BaseMessage], ...]] = (
    HumanMessage,
    AIMessage,
    ToolMessage,
    SystemMessage,
)
_CODES: Final = {cls: code for code, cls in enumerate(_CLASSES)}
_KNOWN_CODES: Final = frozenset(_CODES.values())
_FIELDS: Final = tuple(frozenset(cls.model_fields) for cls in _CLASSES)
_ORDERS: Final = tuple(tuple(cls(content="", tool_call_id="").__dict__) for cls in _CLASSES)
_TYPES: Final = tuple(cls.model_fields["type"].default for cls in _CLASSES)

_code_of: Final = _CODES.__getitem__
_dict_of: Final = attrgetter("__dict__")
_extra_of: Final = attrgetter("__pydantic_extra__")
_pack: Final = ormsgpack.packb

_new: Final = object.__new__
_set_dict: Final[Callable[[Any, Any], None]] = BaseModel.__dict__["__dict__"].__set__
_set_fields: Final[Callable[[Any, Any], None]] = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra: Final[Callable[[Any, Any], None]] = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private: Final[Callable[[Any, Any], None]] = BaseModel.__dict__["__pydantic_private__"].__set__

_TOOL_CALL_ORDER: Final = ("name", "args", "id", "type")
_TOOL_CALL_KEYS: Final = frozenset(_TOOL_CALL_ORDER)
_USAGE_KEYS: Final = {"input_tokens", "output_tokens", "total_tokens"}
_USAGE_DETAILS: Final = {
    "input_token_details": {"audio", "cache_creation", "cache_read"},
    "output_token_details": {"audio", "reasoning"},
}


def pack_messages(items: list[Any], options: int = STRICT) -> tuple[bytes, bytes] | None:
    """The class codes and packed fields of messages; `None` if any item is not a plain one.

    Packing a whole page in one call takes 2.2 ms for 5,000 messages of 550 bytes, joining single ones 2.6.
    """
    try:
        codes = bytes(map(_code_of, map(type, items)))
        if any(map(_extra_of, items)):
            return None
        return codes, _pack(list(map(_dict_of, items)), None, options)
    except (KeyError, TypeError, ValueError):
        return None


def join_messages(codes: bytes, packed: bytes) -> bytes:
    """One msgpack value, `[codes, [fields, ...]]`."""
    return b"\x92\xc5" + len(codes).to_bytes(2, "big") + codes + packed


def split_messages(data: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """The two halves that `join_messages` joined."""
    end = 4 + int.from_bytes(data[2:4], "big")
    return bytes(data[4:end]), data[end:]


def unpack_messages(data: bytes | memoryview) -> list[BaseMessage]:
    """The messages that `join_messages` joined.

    Raises:
        ValueError: The bytes are not a page of messages.
    """
    codes, packed = split_messages(data)
    fields = ormsgpack.unpackb(packed)
    if type(fields) is not list or len(fields) != len(codes) or not set(codes) <= _KNOWN_CODES:
        raise ValueError("not a page of messages")
    if not all(type(values) is dict for values in fields):
        raise ValueError("not a page of messages")
    return [_build(code, values) for code, values in zip(codes, fields, strict=True)]


def _build(code: int, values: dict[str, Any]) -> BaseMessage:
    cls = _CLASSES[code]
    if not _is_valid(code, values):
        try:
            return cls(**values)
        except Exception:  # noqa: BLE001 - as the serde does: what validation refuses is kept as it is
            return cls.model_construct(**values)
    message: BaseMessage = _new(cls)
    _set_dict(message, values)
    _set_fields(message, set(values))
    _set_extra(message, {})
    _set_private(message, None)
    return message


def _is_valid(code: int, values: dict[str, Any]) -> bool:
    """Whether validation would return exactly these values."""
    # Keys nearly always come in the order of the class, and comparing tuples takes a third of comparing sets.
    if tuple(values) != _ORDERS[code] and values.keys() != _FIELDS[code]:
        return False
    if values["type"] != _TYPES[code]:
        return False
    content = values["content"]
    if type(content) is not str and not (
        type(content) is list and all(type(block) in (str, dict) for block in content)
    ):
        return False
    name, message_id = values["name"], values["id"]
    if not (name is None or type(name) is str) or not (message_id is None or type(message_id) is str):
        return False
    if type(values["additional_kwargs"]) is not dict or type(values["response_metadata"]) is not dict:
        return False
    if code == 1:
        return _is_valid_ai(values)
    if code == 2:
        return type(values["tool_call_id"]) is str and values["status"] in ("success", "error")
    return "example" not in values or type(values["example"]) is bool


def _is_valid_ai(values: dict[str, Any]) -> bool:
    if values["invalid_tool_calls"] != [] or type(values["tool_calls"]) is not list:
        return False
    if not values["tool_calls"] and values["additional_kwargs"].get("tool_calls"):
        return False  # the constructor parses calls from there
    for call in values["tool_calls"]:
        if (
            type(call) is not dict
            or (tuple(call) != _TOOL_CALL_ORDER and call.keys() != _TOOL_CALL_KEYS)
            or call["type"] != "tool_call"
            or type(call["name"]) is not str
            or type(call["args"]) is not dict
            or not (call["id"] is None or type(call["id"]) is str)
        ):
            return False
    usage = values["usage_metadata"]
    return usage is None or (type(usage) is dict and _is_valid_usage(usage))


def _is_valid_usage(usage: dict[str, Any]) -> bool:
    if not usage.keys() >= _USAGE_KEYS or not usage.keys() <= _USAGE_KEYS | _USAGE_DETAILS.keys():
        return False
    for key, value in usage.items():
        if key in _USAGE_KEYS:
            if type(value) is not int:
                return False
        elif (
            type(value) is not dict
            or not value.keys() <= _USAGE_DETAILS[key]
            or any(type(count) is not int for count in value.values())
        ):
            return False
    return True
