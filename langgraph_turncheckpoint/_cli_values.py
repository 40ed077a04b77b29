"""Stored values as plain data, for people who do not have the app's code: no class of the app is ever imported, and
what is of such a class is shown with its name and its fields. Nothing is written.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_METHOD_SINGLE_ARG,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)

from ._serde import ValueCodec
from ._store import Store
from .saver import TurnCheckpointSaver

#: Values nested deeper than this are cut off.
_DEEPEST: Final = 60
#: Bytes up to this length are shown.
_SHOWN_BYTES: Final = 256

_NAMED: Final = frozenset(
    {
        EXT_CONSTRUCTOR_KW_ARGS,
        EXT_CONSTRUCTOR_POS_ARGS,
        EXT_CONSTRUCTOR_SINGLE_ARG,
        EXT_METHOD_SINGLE_ARG,
        EXT_PYDANTIC_V1,
        EXT_PYDANTIC_V2,
    }
)
_FIELDS: Final = frozenset({EXT_CONSTRUCTOR_KW_ARGS, EXT_PYDANTIC_V1, EXT_PYDANTIC_V2})


class Unfamiliar(NamedTuple):
    """A value of a class that is not LangGraph's, LangChain's or Python's.

    Attributes:
        name: The class, with its module.
        content: Its fields by name, or what it is made from.
    """

    name: str
    content: Any


class _Inert:
    """Reads what LangGraph's serializer has written, and makes nothing but data of it."""

    #: The codec need not look for classes that are not to be loaded: none is.
    _allowed_msgpack_modules: Final = None

    def __init__(self) -> None:
        self._stock = JsonPlusSerializer(allowed_msgpack_modules=None)
        self._made_by_stock = self._stock._unpack_ext_hook  # noqa: SLF001 - there is no other way to its rules

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value."""
        return ormsgpack.unpackb(data[1], ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        """As LangGraph's serializer; only what is compared, and never stored, is written with it."""
        return self._stock.dumps_typed(value)

    def _hook(self, code: int, data: bytes) -> Any:
        if code not in _NAMED:
            return self._made_by_stock(code, data)
        parts = ormsgpack.unpackb(data, ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)
        module, name, content, *method = parts
        if code == EXT_METHOD_SINGLE_ARG:
            if (module, name, method[0]) in SAFE_MSGPACK_METHODS:
                return self._made_by_stock(code, data)
            return Unfamiliar(f"{module}.{name}", content)
        if (module, name) not in SAFE_MSGPACK_TYPES:
            return Unfamiliar(f"{module}.{name}", content)
        if code in _FIELDS and module.startswith("langchain_core.messages"):
            # Built from the parts that are data already, so that what is in them keeps its name.
            cls = getattr(importlib.import_module(module), name)
            return cls.model_construct(**content)
        return self._made_by_stock(code, data)


class InertCodec(ValueCodec):
    """Reads values as data. What a custom serde has written is read by that serde."""

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__(serde)
        if self._stock is not None:
            self._stock = _Inert()


class _LookingStore(Store):
    def __init__(self, root: str, serde: SerializerProtocol, *, fsync: bool) -> None:
        super().__init__(root, serde, fsync=fsync, strict=False)
        self._codec = InertCodec(serde)


class LookingSaver(TurnCheckpointSaver):
    """A saver that reads without the app's code. It may remove, and must not put what it has read."""

    def __init__(self, path: str, *, serde: SerializerProtocol | None = None, fsync: bool = False) -> None:
        super().__init__(path, serde=serde, fsync=fsync)
        self._store = _LookingStore(self.path, self._serde, fsync=fsync)


def as_data(value: Any, depth: int = 0) -> Any:
    """A value as what JSON can say; what is of a class is a dict of `class` and its `fields`, or its `value`."""
    if depth > _DEEPEST:
        return "..."
    if value is None or type(value) in {bool, int, str}:
        return value
    if isinstance(value, (bool, int, str, float, bytes, bytearray, memoryview)):
        return _scalar(value)
    if isinstance(value, BaseMessage):
        return message_data(value, depth)
    if isinstance(value, Mapping):
        return {str(key): as_data(content, depth + 1) for key, content in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        return [as_data(content, depth + 1) for content in value]
    if isinstance(value, (set, frozenset)):
        return sorted((as_data(content, depth + 1) for content in value), key=json.dumps)
    name, content = (value.name, value.content) if isinstance(value, Unfamiliar) else _taken_apart(value)
    return {"class": name, "fields" if isinstance(content, Mapping) else "value": as_data(content, depth + 1)}


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes(bytes(value))
    # A string or a number of a class of its own, such as a member of an enumeration.
    plain = getattr(value, "value", None)
    return {"class": _name_of(value), "value": plain if type(plain) in {int, str} else str(value)}


def message_data(message: BaseMessage, depth: int = 0) -> dict[str, Any]:
    """A message without what is empty in it."""
    fields = {name: content for name, content in vars(message).items() if content not in (None, "", [], {}, ())}
    fields |= {name: content for name, content in (message.__pydantic_extra__ or {}).items() if content}
    data = {"type": message.type, "content": as_data(message.content, depth + 1)}
    return data | {str(k): as_data(v, depth + 1) for k, v in fields.items() if k not in {"type", "content"}}


def _taken_apart(value: Any) -> tuple[str, Any]:
    """The class of a value, and its fields, or how it is spelled."""
    name = _name_of(value)
    if isinstance(value, tuple):
        return name, value._asdict()  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return name, {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(value, "model_fields_set") and not isinstance(value, type):
        return name, vars(value)
    return name, str(value)


def _name_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _bytes(value: bytes) -> dict[str, Any]:
    data: dict[str, Any] = {"class": "bytes", "length": len(value)}
    if len(value) <= _SHOWN_BYTES:
        data["base64"] = base64.b64encode(value).decode("ascii")
    return data
