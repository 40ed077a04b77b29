"""How a value stands in a thread's file: as JSON where JSON can say it exactly, or else in LangGraph's msgpack. What
would come back as something else, or asks for code to run, is refused. No file is read or written here.
"""

from __future__ import annotations

import base64
import importlib
import math
from typing import Any, Final, cast

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ._serde import ValueCodec, check_payload
from .errors import MigrationError, RefusedValueError

#: What callers of the library may do; commands say it in their own words.
WHERE_CLASSES_ARE: Final = "(PYTHONPATH=...)"

_LARGEST: Final = 1 << 63
_CONSTRUCTOR_CODES: Final = frozenset({0, 1, 2, 3, 4, 5})


class PortableSerializer(JsonPlusSerializer):
    """LangGraph's serializer, which refuses what it would otherwise give back as something else.

    By default a class that cannot be imported comes back as plain data, without a word. A copy of that would have lost
    it for good.
    """

    def __init__(self) -> None:
        super().__init__(allowed_msgpack_modules=True)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value.

        Raises:
            MigrationError: It is of a class that cannot be imported here.
            RefusedValueError: It names something that is no class of data.
        """
        if data[0] == "msgpack":
            _check_resolvable(data[1])
            check_payload(data[1])
        return super().loads_typed(data)


def unresolved_error(name: str) -> MigrationError:
    """The error for a class that cannot be imported."""
    where = name.rpartition(".")[0] or name
    return MigrationError(
        f"a value is a {name}, which cannot be imported here, and the copy would hold plain data in its place. Run it "
        f"where the app runs, so that {where} can be imported {WHERE_CLASSES_ARE}"
    )


def _check_resolvable(data: bytes) -> None:
    names: set[tuple[str, str]] = set()

    def hook(code: int, packed: bytes) -> None:
        found = ormsgpack.unpackb(packed, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        if code in _CONSTRUCTOR_CODES and type(found) is list and len(found) > 1 and type(found[0]) is str:
            names.add((found[0], str(found[1])))

    ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
    for module, name in sorted(names - SAFE_MSGPACK_TYPES):
        try:
            getattr(importlib.import_module(module), name)
        except Exception:  # noqa: BLE001 - importing a module may fail in any way
            raise unresolved_error(f"{module}.{name}") from None


def encode_value(name: str, value: Any) -> dict[str, Any]:
    """A value, tagged with how it is written.

    Raises:
        UnserializableValueError: LangGraph's serializer cannot write it; names channel and path.
    """
    if _is_json(value):
        return {"json": value}
    try:
        tag, data = _SERDE.dumps_typed(value)
    except Exception:  # noqa: BLE001 - it says what in the value is to blame
        raise ValueCodec(JsonPlusSerializer()).explain(name, value) from None
    return {tag: base64.b64encode(data).decode("ascii")}


def decode_value(tagged: Any) -> Any:
    """The value again.

    Raises:
        RefusedValueError: It is tagged with what is never loaded, or names something that is no class of data.
        MigrationError: It is of a class that cannot be imported here.
        ValueError: It is no value.
    """
    if not isinstance(tagged, dict) or len(tagged) != 1:
        raise ValueError("a value without its tag")
    ((tag, text),) = tagged.items()
    if tag == "json":
        return text
    if tag not in ("msgpack", "bytes", "bytearray", "null") or not isinstance(text, str):
        raise RefusedValueError(f"a value tagged {tag!r:.40}", "only JSON and msgpack are ever loaded")
    return _SERDE.loads_typed((tag, base64.b64decode(text, validate=True)))


_SERDE: Final = PortableSerializer()


def _is_json(value: Any) -> bool:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return True
    if kind is int:
        return bool(-_LARGEST <= value < _LARGEST)
    if kind is float:
        return bool(math.isfinite(value))
    if kind is list:
        return all(map(_is_json, cast("list[Any]", value)))
    return kind is dict and all(type(key) is str for key in value) and all(map(_is_json, value.values()))
