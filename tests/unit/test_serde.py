"""Values as stored bytes: what may be loaded, what a key hides, what cannot be stored and where in the value it is."""

from __future__ import annotations

import collections
import copy
import dataclasses
import decimal
import hashlib
import importlib
import json
import pathlib
import pickle
import re
import sys
import types
import uuid
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any

import ormsgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Interrupt, Send
from pydantic import BaseModel

from langgraph_turncheckpoint import (
    LossyTextWarning,
    RefusedValueError,
    UnresolvedTypeWarning,
    UnserializableValueError,
)
from langgraph_turncheckpoint._records import Sealed
from langgraph_turncheckpoint._serde import ValueCodec, check_payload
from tests.langgraph_versions import needs_data_of_lost_classes


class KeyedCipher(CipherProtocol):
    """A toy cipher: its bytes say nothing without the key, and a wrong key is noticed."""

    def __init__(self, key: bytes) -> None:
        self.key = key

    def _stream(self, data: bytes) -> bytes:
        stream = hashlib.shake_256(self.key).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "keyed", hashlib.sha256(self.key + plaintext).digest() + self._stream(plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        plaintext = self._stream(ciphertext[32:])
        if ciphertext[:32] != hashlib.sha256(self.key + plaintext).digest():
            raise ValueError("wrong key")
        return plaintext


class JsonOnly(SerializerProtocol):
    """A serde that knows nothing but JSON, so no bytes."""

    def dumps_typed(self, obj):
        return "plain-json", json.dumps(obj).encode()

    def loads_typed(self, data):
        assert data[0] == "plain-json"
        return json.loads(data[1])


class Pickling(SerializerProtocol):
    """A serde that keeps every type, tuples included."""

    def dumps_typed(self, obj):
        return "mine", pickle.dumps(obj)

    def loads_typed(self, data):
        assert data[0] == "mine"
        return pickle.loads(data[1])


STOCK = JsonPlusSerializer()
ENCRYPTING = EncryptedSerializer(KeyedCipher(b"a key"))
SERDES = {"stock": STOCK, "encrypting": ENCRYPTING, "json only": JsonOnly(), "custom": Pickling()}


def through(serde, items, *, learn=False):
    codec = ValueCodec(serde)
    return codec.open_page(codec.seal_page(codec.page(items), items), learn=learn)


# --- round trips ---


@pytest.mark.parametrize("name", SERDES)
def test_plain_items_come_back_with_every_serde(name):
    items = [1, True, None, "text", {"k": [1.5]}]
    loaded, learned = through(SERDES[name], items, learn=True)
    assert loaded == items
    assert loaded[1] is True
    assert learned is not None
    assert learned.digest == ValueCodec(SERDES[name]).page(items).digest


@pytest.mark.parametrize("items", [[HumanMessage("a"), AIMessage("b")], ["text"], [1, {2}], [{1: 2}], [b"bytes"]])
@pytest.mark.parametrize("name", ["stock", "encrypting", "custom"])
def test_a_loaded_page_has_the_fingerprint_that_packing_it_again_gives(name, items):
    """Else everything would be written again by the first save after a restart."""
    loaded, learned = through(SERDES[name], items, learn=True)
    assert learned is not None
    assert learned.digest == ValueCodec(SERDES[name]).page(loaded).digest


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: object


class Slotted:
    __slots__ = ("x",)


class Box(BaseModel):
    content: object = None


VALUES = [
    datetime(2024, 5, 1, tzinfo=timezone.utc), timedelta(seconds=3), uuid.UUID(int=3), decimal.Decimal("1.10"),
    pathlib.Path("/a/b"), re.compile("x+"), collections.deque([1, 2]), frozenset({1}), {1, 2}, Point(1), Colour.RED,
    Send("node", {"k": 1}), Interrupt(value="why", id="i"), Box(content=[1]), {1: {2: 3}}, (1, (2,)), bytearray(b"x"),
    Command(goto="there"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["stock", "encrypting"])
def test_any_supported_value_comes_back_as_the_serializer_would_give_it(name, value):
    expected = STOCK.loads_typed(STOCK.dumps_typed([value]))
    loaded, _ = through(SERDES[name], [value])
    assert loaded == expected
    assert type(loaded[0]) is type(expected[0])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 2), [1, 2]),
        (bytearray(b"x"), b"x"),
        ({"a": (1,)}, {"a": [1]}),
        (memoryview(b"x").tobytes(), bytearray(b"x")),
    ],
)
def test_values_that_a_custom_serde_tells_apart_have_different_fingerprints(first, second):
    """A change between them must be stored: the serde would give back another type."""
    codec = ValueCodec(Pickling())
    assert codec.page([first]).digest != codec.page([second]).digest


@given(first=st.binary(max_size=8), second=st.binary(max_size=8))
@example(first=b"", second=b"\x00")
def test_equal_fingerprints_mean_equal_items(first, second):
    codec = ValueCodec(STOCK)
    assert (codec.page([first]).digest == codec.page([second]).digest) == (first == second)


def test_fingerprints_do_not_depend_on_ciphertext():
    assert ValueCodec(ENCRYPTING).page(["x"]).digest == ValueCodec(STOCK).page(["x"]).digest


# --- what must not be loaded ---


def calling(code, *named):
    return ormsgpack.packb([ormsgpack.Ext(code, ormsgpack.packb(list(named)))])


def attacks(target):
    command = f"touch {target}"
    nested = ormsgpack.Ext(0, ormsgpack.packb(["os", "system", command]))
    return {
        "one argument": calling(0, "os", "system", command),
        "positional": calling(1, "os", "system", [command]),
        "keywords": calling(2, "os", "system", {"command": command}),
        "method": calling(3, "os", "path", command, "exists"),
        "popen": calling(1, "subprocess", "Popen", [["touch", str(target)]]),
        "popen keywords": calling(2, "subprocess", "Popen", {"args": ["touch", str(target)]}),
        "getoutput": calling(0, "subprocess", "getoutput", command),
        "eval": calling(0, "builtins", "eval", f"open({str(target)!r}, 'w')"),
        "exec": calling(0, "builtins", "exec", f"open({str(target)!r}, 'w')"),
        "import": calling(0, "builtins", "__import__", "antigravity"),
        "open": calling(1, "builtins", "open", [str(target), "w"]),
        "pickle": calling(0, "pickle", "loads", pickle.dumps(Box(content=1))),
        "a bound class": calling(1, "io", "FileIO", [str(target), "w"]),
        "nested in an argument": ormsgpack.packb(
            [ormsgpack.Ext(2, ormsgpack.packb(["tests.unit.test_serde", "Point", {"x": nested}]))]
        ),
        "nested in a dict": ormsgpack.packb([{"a": {"b": nested}}]),
        "as pydantic": calling(5, "os", "system", {"command": command}, "model_validate"),
        "as old pydantic": calling(4, "os", "system", {"command": command}),
        "in a delta snapshot": ormsgpack.packb([ormsgpack.Ext(7, ormsgpack.packb([nested]))]),
        "dotted": calling(0, "os", "path.os.system", command),
        "a module with a side effect": calling(0, "this", "s", "x"),
    }


ATTACKS = sorted(attacks("x"))
#: LangGraph's own list of methods refuses these; what comes back is the argument, as plain data.
LEFT_TO_THE_SERDE = {"method", "dotted"}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["stock", "encrypting"])
@pytest.mark.filterwarnings("ignore::langgraph_turncheckpoint.UnresolvedTypeWarning")
def test_a_payload_that_names_code_is_refused_and_nothing_runs(name, attack, tmp_path):
    target = tmp_path / "made-by-the-attack"
    payload = attacks(target)[attack]
    codec = ValueCodec(SERDES[name])
    tag, data = "s:msgpack", payload
    if name == "encrypting":
        sealed_tag, data = ENCRYPTING.dumps_typed(payload)
        tag = f"{tag}|{sealed_tag}"
    try:
        loaded = codec.open_page(Sealed(tag, data), learn=False)[0]
    except RefusedValueError:
        loaded = None
    assert not target.exists()
    assert (loaded is not None) == (attack in LEFT_TO_THE_SERDE), loaded


@pytest.mark.parametrize(
    "tag", ["s:json", "s:pickle", "s:bytes", "json", "pickle", "", "s:", "c:msgpack", "x", "msgpack"]
)
@pytest.mark.parametrize("serde", [STOCK, JsonPlusSerializer(pickle_fallback=True)], ids=["default", "pickle_fallback"])
def test_only_msgpack_is_ever_loaded(serde, tag):
    data = pickle.dumps(["x"]) if "pickle" in tag else b'["x"]'
    with pytest.raises(RefusedValueError):
        ValueCodec(serde).open_page(Sealed(tag, data), learn=False)


def test_a_json_payload_that_names_a_constructor_is_refused(tmp_path):
    target = tmp_path / "made"
    payload = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [f"touch {target}"]}
    with pytest.raises(RefusedValueError):
        ValueCodec(JsonPlusSerializer(allowed_json_modules=True)).open_page(
            Sealed("s:json", json.dumps([payload]).encode()), learn=False
        )
    assert not target.exists()


def test_nothing_is_stored_as_pickle_even_where_the_serde_would():
    codec = ValueCodec(JsonPlusSerializer(pickle_fallback=True))
    with pytest.raises(UnserializableValueError, match="pickle"):
        codec.page([3 + 4j])


def test_classes_of_data_are_let_through():
    for value in VALUES:
        tag, data = STOCK.dumps_typed([value])
        assert tag == "msgpack"
        check_payload(data)


def test_bytes_that_are_no_msgpack_are_a_value_error():
    for tag in ("s:msgpack", "p", "m"):
        for data in (b"", b"\xc1", b"\x93\x01", b"\x81\x01"):
            with pytest.raises((ValueError, TypeError)):
                ValueCodec(STOCK).open_page(Sealed(tag, data), learn=False)


def test_an_allowlist_of_the_serde_is_respected():
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    tag, data = STOCK.dumps_typed([Point(1)])
    loaded, _ = ValueCodec(strict).open_page(Sealed(f"s:{tag}", data), learn=False)
    assert loaded == [{"x": 1}]
    widened = strict.with_msgpack_allowlist([(Point.__module__, Point.__name__)])
    loaded, _ = ValueCodec(widened).open_page(Sealed(f"s:{tag}", data), learn=False)
    assert loaded == [Point(1)]


# --- keys ---


@pytest.mark.parametrize(
    "items", [["secret"], [HumanMessage("secret")], [{"secret"}], [{1: "secret"}], [Box(content="secret")]]
)
def test_an_encrypted_page_shows_nothing(items):
    codec = ValueCodec(ENCRYPTING)
    sealed = codec.seal_page(codec.page(items), items)
    assert b"secret" not in sealed.data
    assert b"content" not in sealed.data
    assert "Box" not in sealed.tag
    assert b"secret" not in codec.seal(b"secret").data


@pytest.mark.parametrize("tag", ["p", "m", "s:msgpack", "c:msgpack"])
def test_a_plaintext_page_is_refused_by_an_encrypting_serde(tag):
    codec = ValueCodec(STOCK)
    sealed = codec.seal_page(codec.page(["x"]), ["x"])
    with pytest.raises(RefusedValueError):
        ValueCodec(ENCRYPTING).open_page(Sealed(tag, sealed.data), learn=False)


def test_plaintext_heads_are_refused_by_an_encrypting_serde():
    with pytest.raises(RefusedValueError, match="plaintext"):
        ValueCodec(ENCRYPTING).open(ValueCodec(STOCK).seal(b"head"))


@pytest.mark.parametrize("tag", ["p|", "p|bytes", "s:msgpack|msgpack", "p|json", "p|null"])
def test_a_page_that_only_claims_to_be_encrypted_is_refused(tag):
    with pytest.raises(RefusedValueError):
        ValueCodec(ENCRYPTING).open_page(Sealed(tag, ormsgpack.packb(["x"])), learn=False)


def test_encrypted_bytes_are_refused_without_a_key():
    codec = ValueCodec(ENCRYPTING)
    with pytest.raises(RefusedValueError, match="serde that it was written with"):
        ValueCodec(STOCK).open(codec.seal(b"head"))
    with pytest.raises(RefusedValueError):
        ValueCodec(STOCK).open_page(codec.seal_page(codec.page(["x"]), ["x"]), learn=False)


def test_a_wrong_key_is_refused():
    codec = ValueCodec(ENCRYPTING)
    other = ValueCodec(EncryptedSerializer(KeyedCipher(b"another key")))
    for learn in (False, True):
        with pytest.raises(RefusedValueError, match="wrong key"):
            other.open_page(codec.seal_page(codec.page(["x"]), ["x"]), learn=learn)
    with pytest.raises(RefusedValueError, match="wrong key"):
        other.open(codec.seal(b"head"))


def test_a_page_of_another_serde_is_refused_by_a_custom_one():
    codec = ValueCodec(STOCK)
    with pytest.raises(RefusedValueError):
        ValueCodec(JsonOnly()).open_page(codec.seal_page(codec.page(["x"]), ["x"]), learn=False)


def test_a_custom_serde_hides_heads_only_if_it_can_write_bytes():
    assert ValueCodec(Pickling()).seal(b"head").tag == "mine"
    assert ValueCodec(Pickling()).open(ValueCodec(Pickling()).seal(b"head")) == b"head"
    assert ValueCodec(JsonOnly()).seal(b"head") == Sealed("", b"head")
    assert ValueCodec(JsonOnly()).open(Sealed("", b"head")) == b"head"


@pytest.mark.parametrize("name", ["json only", "custom"])
def test_a_custom_serde_stores_even_plain_values_and_messages_itself(name):
    codec = ValueCodec(SERDES[name])
    page = codec.page(["plain"])
    assert not codec.is_plain(page)
    sealed = codec.seal_page(page, ["plain"])
    assert SERDES[name].loads_typed((sealed.tag.removeprefix("c:"), bytes(sealed.data))) == ["plain"]


# --- what cannot be stored ---


class Closed:
    def __init__(self, inside):
        self.inside = inside


UNSERIALIZABLE = {
    "lambda": lambda: 0,
    "generator": iter([1]),
    "complex": 1j,
    "a large integer": 1 << 70,
    "object": object(),
}


@pytest.mark.parametrize("kind", UNSERIALIZABLE)
def test_the_error_names_the_path_to_what_cannot_be_stored(kind):
    bad = UNSERIALIZABLE[kind]
    codec = ValueCodec(STOCK)
    for value, path in (
        (bad, ""),
        ([1, bad], "[1]"),
        ({"a": [1, {"b": bad}]}, "['a'][1]['b']"),
        ((1, [2, (3, bad)]), "[1][1][1]"),
        ({"a": Point(bad)}, "['a'].x"),
        ([Box(content={"deep": [bad]})], "[0].content['deep'][0]"),
        ([AIMessage("x", additional_kwargs={"raw": {"r": bad}})], "[0].additional_kwargs['raw']['r']"),
        ({1: {2: bad}}, "[1][2]"),
    ):
        with pytest.raises(UnserializableValueError):
            codec.page([value])
        error = codec.explain("channel", value)
        assert (error.channel, error.path) == ("channel", path)
        assert error.reason
        assert path in str(error)


def test_explaining_does_not_change_the_value():
    value = {"a": [1, {"b": object}]}
    before = copy.copy(value["a"])
    ValueCodec(STOCK).explain("channel", value)
    assert value["a"] == before


@pytest.mark.timeout(10)  # the search for the path must end
def test_a_value_that_contains_itself_is_an_error_with_a_path():
    value: list[object] = [1]
    value.append(value)
    codec = ValueCodec(STOCK)
    with pytest.raises(UnserializableValueError):
        codec.page([value])
    assert codec.explain("channel", value).channel == "channel"


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(ValueCodec(STOCK).explain("channel", [object])))
    assert (error.channel, error.path) == ("channel", "[0]")


# --- text ---


@pytest.mark.parametrize(
    "text", ["\x00", "a\x00b", "\u202eRTL \u05d0", "\U0001f600" * 100, "\ufeff", "\r\n\t", "e\u0301", "?"]
)
def test_odd_text_is_exact_and_silent(text):
    for items in ([text], [HumanMessage(text)], [{text: text}], [{1: text}]):
        assert through(STOCK, items)[0] == items


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_a_lone_surrogate_is_replaced_as_the_serializer_does_and_said_so(text):
    for items in ([text], [HumanMessage(text)], [{"k": [text]}], [Box(content=text)], [Point(text)]):
        with pytest.warns(LossyTextWarning):
            loaded, _ = through(STOCK, items)
        assert loaded == STOCK.loads_typed(STOCK.dumps_typed(items))


def test_a_question_mark_is_no_lossy_text():
    assert through(STOCK, [{1: "what?"}])[0] == [{1: "what?"}]


# --- classes that moved ---


@needs_data_of_lost_classes
def test_data_of_a_class_that_is_gone_is_returned_with_a_warning(monkeypatch):
    module: Any = types.ModuleType("moved_module")
    monkeypatch.setitem(sys.modules, "moved_module", module)
    for made in (
        dataclasses.make_dataclass("Gone", ["x"]),
        type("Model", (BaseModel,), {"__annotations__": {"x": int}}),
    ):
        made.__module__ = "moved_module"
        setattr(module, made.__name__, made)
        codec = ValueCodec(STOCK)
        value = made(x=1)
        sealed = codec.seal_page(codec.page([value]), [value])
        assert codec.open_page(sealed, learn=False)[0] == [value]
        delattr(module, made.__name__)
        with pytest.warns(UnresolvedTypeWarning, match=f"moved_module.{made.__name__}"):
            loaded, _ = codec.open_page(sealed, learn=False)
        assert loaded == [{"x": 1}]


@needs_data_of_lost_classes
def test_a_moved_class_inside_one_that_is_there_is_no_reason_to_refuse(monkeypatch):
    module: Any = types.ModuleType("moved_module")
    monkeypatch.setitem(sys.modules, "moved_module", module)
    made = dataclasses.make_dataclass("Gone", ["x"])
    made.__module__ = "moved_module"
    module.Gone = made
    codec = ValueCodec(STOCK)
    value = {"outer": Point(made(x=[1]))}
    sealed = codec.seal_page(codec.page([value]), [value])
    monkeypatch.delitem(sys.modules, "moved_module")
    importlib.invalidate_caches()
    with pytest.warns(UnresolvedTypeWarning):
        loaded, _ = codec.open_page(sealed, learn=False)
    assert loaded == [{"outer": Point({"x": [1]})}]
