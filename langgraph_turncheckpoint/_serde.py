"""How values become stored bytes, and which stored bytes may become values. All knowledge of LangGraph's
serializers is here; where the bytes go is not.

Plain data and messages are packed directly, anything else by the serde. With an encrypting serde both are
encrypted. A custom serde does all of it itself.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import importlib
import ipaddress
import pathlib
import secrets
import uuid
import warnings
import zoneinfo
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from xxhash import xxh3_128_digest

from ._messages import STRICT, join_messages, pack_messages, split_messages, unpack_messages
from ._records import Sealed
from ._sharing import Page
from .errors import LossyTextWarning, RefusedValueError, UnresolvedTypeWarning, UnserializableValueError

#: Fingerprints never leave the process; a random seed keeps anyone from preparing a collision.
_SEED: Final = secrets.randbits(60) << 2

MESSAGES, PLAIN, SERDE, CUSTOM = "m", "p", "s:", "c:"
#: Stands between how a page was packed and the tag under which the serde encrypted it.
SEALED: Final = "|"

#: A page of messages has its class codes behind the digest of their fields.
DIGEST_SIZE: Final = 16

PLAINTEXT_REASON: Final = "this saver encrypts everything it stores, and this was written without its serde"

#: How deep an error about a value looks for what is to blame.
EXPLAINED_LEVELS: Final = 64

_PROBE: Final = b"\x00turncheckpoint\xff"


class ValueCodec:
    """Packs pages of values for one serde.

    Args:
        serde: Any LangGraph serializer.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        inner = serde.serde if type(serde) is EncryptedSerializer else serde
        self._stock = inner if _is_stock(inner) else None
        # What msgpack cannot tell apart, a serde of somebody else may.
        self._options = STRICT if self._stock is not None else STRICT | ormsgpack.OPT_PASSTHROUGH_TUPLE
        self._encrypts = isinstance(serde, EncryptedSerializer)
        self._seals = self._encrypts or (self._stock is None and _keeps_bytes(serde))

    @property
    def may_show_keys(self) -> bool:
        """Whether a dict's keys may stand in the head of a file."""
        return self._stock is not None or self._seals

    # --- the head of a section ---

    def seal(self, data: bytes) -> Sealed:
        """The stored form of bytes that nobody without the key may read."""
        return Sealed(*self._serde.dumps_typed(data)) if self._seals else Sealed("", data)

    def open(self, sealed: Sealed) -> bytes | memoryview:
        """The bytes again.

        Raises:
            RefusedValueError: They are plain where the serde encrypts, or the other way round.
        """
        self._check_sealed(sealed.tag)
        if not self._seals:
            return sealed.data
        data = self._loaded(self._serde, sealed.tag, sealed.data)
        if not isinstance(data, (bytes, bytearray)):
            raise RefusedValueError("a section", "the serde did not give bytes")
        return bytes(data)

    def _check_sealed(self, tag: str) -> None:
        # Our own seals are of bytes; what a subclass makes of its tags is not known beyond the cipher's name.
        is_encrypted = tag.startswith("bytes+") if self._stock is not None else "+" in tag
        if self._encrypts and not is_encrypted:
            raise RefusedValueError("plaintext", PLAINTEXT_REASON)
        if not self._seals and tag:
            raise RefusedValueError("encrypted data", "pass the serde that it was written with")

    # --- pages ---

    def fast_page(self, items: list[Any]) -> Page | None:
        """Pack items that need no serializer; `None` for anything else."""
        if self._stock is None and any(map(_holds_buffer, items)):
            return None
        packed = pack_messages(items, self._options)
        if packed is not None:
            codes, plain = packed
            return Page(xxh3_128_digest(plain, _SEED) + codes, len(plain), plain, MESSAGES)
        try:
            plain = ormsgpack.packb(items, None, self._options)
        except (TypeError, ValueError, RecursionError):
            return None
        return Page(xxh3_128_digest(plain, _SEED + 1), len(plain), plain, PLAIN)

    def page(self, items: list[Any]) -> Page:
        """Pack any items.

        Raises:
            UnserializableValueError: The serde cannot; channel and path are filled in by `explain`.
        """
        return self.fast_page(items) or self._serde_page(items)

    def _serde_page(self, items: list[Any]) -> Page:
        tag, data = self._dumped(items)
        return Page(xxh3_128_digest(data, _SEED + 2), len(data), data, SERDE + tag)

    def _dumped(self, items: list[Any]) -> tuple[str, bytes]:
        serde = self._stock or self._serde
        try:
            tag, data = serde.dumps_typed(items)
        except Exception as error:
            raise UnserializableValueError("", "", _reason(error)) from error
        if self._stock is not None:
            if tag != "msgpack":
                raise UnserializableValueError("", "", f"the serde would store it as {tag}")
            if b"?" in data and any(map(_has_surrogate, _walk(items))):
                warnings.warn(
                    "a text holds a lone surrogate, which the serde replaces with '?'",
                    LossyTextWarning,
                    stacklevel=2,
                )
        return tag, data

    def seal_page(self, page: Page, items: list[Any]) -> Sealed:
        """What to store for a page."""
        if self._stock is None:
            tag, data = self._dumped(items)
            return Sealed(CUSTOM + tag, data)
        plain = page.plain
        if page.tag == MESSAGES:
            plain = join_messages(page.digest[DIGEST_SIZE:], plain)
        if not self._encrypts:
            return Sealed(page.tag, plain)
        tag, data = self._serde.dumps_typed(plain)
        return Sealed(page.tag + SEALED + tag, data)

    def open_page(self, sealed: Sealed, *, learn: bool) -> tuple[list[Any], Page | None]:
        """The items of a stored page; with `learn` also the page that packing them would give.

        Raises:
            RefusedValueError: The bytes ask for what loading must never do.
            ValueError: They are no page.
        """
        tag, data = sealed
        if self._stock is None:
            if not tag.startswith(CUSTOM):
                raise RefusedValueError(f"a page tagged {tag!r}", "the saver's serde did not write it")
            if self._encrypts and "+" not in tag:
                raise RefusedValueError("plaintext", PLAINTEXT_REASON)
            items = self._loaded(self._serde, tag.removeprefix(CUSTOM), data)
            return items, self.page(items) if learn else None
        tag, sealed_by, sealed_tag = tag.partition(SEALED)
        self._check_sealed(sealed_tag)
        if sealed_by:
            data = self.open(Sealed(sealed_tag, data))
        codes = b""
        if tag == MESSAGES:
            items, seed = list(unpack_messages(data)), _SEED
            codes, data = split_messages(data)
        elif tag == PLAIN:
            items, seed = ormsgpack.unpackb(data), _SEED + 1
        elif tag == SERDE + "msgpack":
            data = bytes(data)
            if getattr(self._stock, "_allowed_msgpack_modules", True) is True:
                check_payload(data)
            items, seed = self._loaded(self._stock, "msgpack", data), _SEED + 2
        else:
            raise RefusedValueError(f"a page tagged {tag!r}", "only msgpack is ever loaded")
        if type(items) is not list:
            raise ValueError("not a page")
        if not learn:
            return items, None
        return items, Page(xxh3_128_digest(data, seed) + codes, len(data), b"", tag)

    @staticmethod
    def _loaded(serde: SerializerProtocol, tag: str, data: bytes | memoryview) -> Any:
        try:
            return serde.loads_typed((tag, bytes(data)))
        except Exception as error:
            reason = f"{_reason(error)} (a wrong key, or another serde than it was written with)"
            raise RefusedValueError(f"a value tagged {tag!r}", reason) from error

    def is_plain(self, page: Page) -> bool:
        """Whether the items may be stored in the head as they are."""
        return page.tag == PLAIN and self._stock is not None

    def unwrap(self, value: object) -> tuple[str, Any] | None:
        """The name and the content of a wrapper whose content is worth sharing."""
        if type(value) is _DeltaSnapshot:
            return "delta_snapshot", value.value
        if type(value) is bytearray:
            return "bytearray", bytes(value)  # packed directly it would come back as bytes
        return None

    def wrap(self, name: str, value: Any) -> Any:
        """The wrapper again."""
        return _DeltaSnapshot(value) if name == "delta_snapshot" else bytearray(value)

    def explain(self, channel: str, value: Any) -> UnserializableValueError:
        """The error for a value that cannot be stored, with the path to what is to blame."""
        path, reason = "", "it cannot be serialized"
        for _ in range(EXPLAINED_LEVELS):
            for step, part in [("", value), *_parts(value)]:
                try:
                    self.page([part])
                except UnserializableValueError as error:
                    reason = error.reason
                    if step:
                        path, value = path + step, part
                        break
                    continue
                if not step:
                    return UnserializableValueError(channel, path, reason)
            else:
                break
        return UnserializableValueError(channel, path, reason)


def _is_stock(serde: SerializerProtocol) -> bool:
    return type(serde) is JsonPlusSerializer and not getattr(serde, "_custom_unpack_ext_hook", False)


def _keeps_bytes(serde: SerializerProtocol) -> bool:
    try:
        return bool(serde.loads_typed(serde.dumps_typed(_PROBE)) == _PROBE)
    except Exception:  # noqa: BLE001 - a custom serde may refuse bytes with any error
        return False


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, content in value.items():
            yield f"[{key!r}]", content
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for position, content in enumerate(value):
            yield f"[{position}]", content
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for key, content in vars(value).items():
            yield f".{key}", content
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name)


def _walk(value: Any) -> Iterator[Any]:
    """A value and everything in it, each object once, however deep."""
    waiting, seen = [value], set()
    while waiting:
        found = waiting.pop()
        yield found
        if isinstance(found, (str, bytes, int, float)) or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, dict):
            waiting += found
        waiting += [part for _, part in _parts(found)]


def _holds_buffer(value: Any) -> bool:
    return any(isinstance(part, (bytearray, memoryview)) for part in _walk(value))


def _has_surrogate(text: object) -> bool:
    if not isinstance(text, str) or text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


# --- what a payload may name ---

_CONSTRUCTOR_CODES: Final = frozenset({0, 1, 2, 4, 5})
#: What JsonPlusSerializer asks an object for before it stores its class.
_DATA_METHODS: Final = ("model_dump", "get_secret_value", "dict", "_asdict")
_DATA_CLASSES: Final = (
    Enum, set, frozenset, deque, Item, pathlib.PurePath, uuid.UUID, decimal.Decimal,
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, zoneinfo.ZoneInfo,
    ipaddress.IPv4Address, ipaddress.IPv4Network, ipaddress.IPv6Address, ipaddress.IPv6Network,
)  # fmt: skip


def check_payload(data: bytes) -> None:
    """Refuse a msgpack payload that names anything but a class of data.

    By default LangGraph's serializer calls whatever importable name a payload gives it. A payload it
    wrote itself only ever names classes it knows how to take apart, so nothing else is let through.

    Raises:
        RefusedValueError: The payload names a function, or a class that holds no data.
    """
    refused: list[RefusedValueError] = []

    def hook(code: int, packed: bytes) -> None:
        named = ormsgpack.unpackb(packed, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        if code in _CONSTRUCTOR_CODES:
            try:
                _check_named(named)
            except RefusedValueError as error:
                refused.append(error)  # raised from in here it would come out as a plain ValueError

    ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
    if refused:
        raise refused[0]


def _check_named(named: Any) -> None:
    if type(named) is not list or len(named) < 3 or not all(type(n) is str for n in named[:2]):
        raise RefusedValueError("a payload", "it names no class")
    module, name = named[:2]
    if (module, name) in SAFE_MSGPACK_TYPES:
        return
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception:  # noqa: BLE001 - importing a module may fail in any way
        warnings.warn(
            f"{module}.{name} cannot be found any more; its stored data is returned instead",
            UnresolvedTypeWarning,
            stacklevel=2,
        )
        return
    if not isinstance(found, type) or not _holds_data(found):
        raise RefusedValueError(f"{module}.{name}", "it is not a class of data")


def _holds_data(cls: type) -> bool:
    known = issubclass(cls, _DATA_CLASSES) or dataclasses.is_dataclass(cls)
    return known or any(callable(getattr(cls, method, None)) for method in _DATA_METHODS)
