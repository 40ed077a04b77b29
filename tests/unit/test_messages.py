"""The fast path for messages is invisible: whatever goes through it comes back as the serializer would give it."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from datetime import datetime, timezone
from uuid import UUID

import ormsgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    ToolMessageChunk,
)
from langchain_core.messages.tool import tool_call_chunk
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from langgraph_turncheckpoint._messages import join_messages, pack_messages, split_messages, unpack_messages
from langgraph_turncheckpoint._records import Sealed
from langgraph_turncheckpoint._serde import ValueCodec

SERDE = JsonPlusSerializer()
CODEC = ValueCodec(SERDE)


class Subclassed(HumanMessage):
    """A message class of an app."""

    mood: str = "calm"


class Ticket(BaseModel):
    number: int


def typed(value):
    """A value with its types spelled out, so that `1`, `1.0` and `True` differ."""
    if isinstance(value, BaseModel):
        return (
            type(value).__qualname__,
            typed(vars(value)),
            sorted(value.model_fields_set),
            typed(value.__pydantic_extra__ or {}),
            typed(value.__pydantic_private__),
        )
    if isinstance(value, dict):
        entries = [(typed(key), typed(content)) for key, content in value.items()]
        return (type(value).__qualname__, sorted(entries, key=repr))
    if isinstance(value, (list, tuple)):
        return (type(value).__qualname__, [typed(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return (type(value).__qualname__, sorted(map(repr, value)))  # a copy may have another order
    return (type(value).__qualname__, repr(value))


def through_the_serde(messages):
    return SERDE.loads_typed(SERDE.dumps_typed(messages))


def through_the_codec(messages):
    return CODEC.open_page(CODEC.seal_page(CODEC.page(messages), messages), learn=False)[0]


def assert_invisible(messages):
    before = copy.deepcopy(messages)
    assert typed(through_the_codec(messages)) == typed(through_the_serde(messages))
    assert typed(messages) == typed(before), "packing must not change the message"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
#: What is not JSON, and what msgpack would quietly turn into something else.
ODD = st.sampled_from(
    [
        *((1, 2), b"bytes", bytearray(b"array"), {1: "integer key"}, {True: 1}, {(1, 2): 3}, {None: 0}, {"a", "b"}),
        *(datetime(2024, 1, 1, tzinfo=timezone.utc), UUID(int=7), OrderedDict(a=1), Ticket(number=1)),
        *({"nested": Ticket(number=2)}, HumanMessage("inside"), [AIMessage("inside a list")]),
        *(1.5, float("inf"), {"k": (1, [2])}),
    ]
)
ANYTHING = JSON | ODD
BLOCKS = st.one_of(
    st.text(max_size=8),
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": st.text(max_size=8)}, optional={"index": st.integers(0, 3)}
    ),
    st.fixed_dictionaries(
        {"type": st.just("image_url"), "image_url": st.dictionaries(st.just("url"), st.text(max_size=5))}
    ),
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": st.just("c"), "name": st.just("f"), "input": JSON}),
    st.dictionaries(st.text(max_size=4), JSON, max_size=3),
)
CONTENT = st.text(max_size=20) | st.lists(BLOCKS, max_size=3)
NAMES = st.none() | st.text(max_size=5)
KWARGS = st.dictionaries(st.sampled_from(["refusal", "function_call", "k", "é"]), ANYTHING, max_size=2)
COMMON = {
    "id": NAMES,
    "name": NAMES,
    "additional_kwargs": KWARGS,
    "response_metadata": st.dictionaries(st.sampled_from(["model_name", "logprobs", "k"]), ANYTHING, max_size=2)
    | st.just({"output_version": "v1", "model_provider": "openai"}),
}
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.text(max_size=5),
            "args": st.dictionaries(st.text(max_size=4), ANYTHING, max_size=3),
            "id": st.none() | st.text(max_size=4),
        },
        optional={"type": st.just("tool_call"), "index": st.integers(0, 2), "extras": st.just({"x": 1})},
    ),
    max_size=3,
)
INVALID_CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES, "args": NAMES, "id": NAMES, "error": NAMES}, optional={"type": st.just("invalid_tool_call")}
    ),
    max_size=2,
)
USAGE = st.none() | st.fixed_dictionaries(
    dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), st.integers(0, 9)),
    optional={
        "input_token_details": st.dictionaries(
            st.sampled_from(["audio", "cache_creation", "cache_read", "ephemeral_5m_input_tokens"]), st.integers(0, 9)
        ),
        "output_token_details": st.dictionaries(st.sampled_from(["audio", "reasoning", "thinking"]), st.integers(0, 9)),
        "service_tier": st.just("fast"),
    },
)
LEGACY_CALLS = [
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
    {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{broken"}},
]


def made(cls, /, **fields):
    """A strategy for messages; what the class itself refuses is no message."""

    def build(values):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return cls(**values)
        except (ValueError, TypeError, AttributeError, KeyError):
            return None

    return st.fixed_dictionaries({}, optional={**COMMON, **fields}).flatmap(
        lambda optional: CONTENT.map(lambda content: build({"content": content, **optional}))
    ).filter(lambda message: message is not None)  # fmt: skip


FAST = st.one_of(
    made(HumanMessage, example=st.booleans()),
    made(SystemMessage),
    made(AIMessage, tool_calls=CALLS, invalid_tool_calls=INVALID_CALLS, usage_metadata=USAGE),
    made(
        AIMessage,
        additional_kwargs=st.lists(st.sampled_from(LEGACY_CALLS), max_size=2).map(lambda c: {"tool_calls": c}),
    ),
    made(
        ToolMessage,
        tool_call_id=st.text(max_size=4) | st.integers(0, 5),
        status=st.sampled_from(["success", "error"]),
        artifact=ANYTHING,
    ),
)
OTHERS = st.one_of(
    made(AIMessageChunk, tool_calls=CALLS, usage_metadata=USAGE, chunk_position=st.none() | st.just("last")),
    made(ToolMessageChunk, tool_call_id=st.just("c")),
    made(ChatMessage, role=st.just("critic")),
    made(FunctionMessage),
    made(Subclassed, mood=st.text(max_size=4)),
    made(HumanMessage, unexpected=JSON).filter(lambda message: bool(message.__pydantic_extra__)),
    st.text(min_size=1, max_size=4).map(lambda removed: RemoveMessage(id=removed)),
)


CALL_CHUNK = tool_call_chunk(name="f", args='{"a"', id="c", index=0)


def serializable(messages):
    """Whether the serializer itself can write them; what it refuses is no question of the fast path."""
    try:
        SERDE.dumps_typed(messages)
    except Exception:  # noqa: BLE001
        return False
    return True


@given(messages=st.lists(FAST, max_size=4).filter(serializable))
@example(messages=[AIMessage("", additional_kwargs={"tool_calls": LEGACY_CALLS})])
@example(messages=[AIMessage("a", tool_calls=[{"name": "f", "args": {"1": {1: 2}}, "id": None}])])
@example(messages=[HumanMessage([{"type": "text", "text": "x"}, "plain"])])
@example(messages=[ToolMessage("x", tool_call_id="c", artifact={"rows": [(1, 2)]})])
@example(messages=[ToolMessage("x", tool_call_id="c", artifact=Ticket(number=3))])
@example(messages=[AIMessage("x", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})])
def test_messages_come_back_as_the_serializer_would_give_them(messages):
    assert_invisible(messages)


@given(messages=st.lists(OTHERS | FAST, min_size=1, max_size=4).filter(serializable))
@example(messages=[Subclassed(content="x", mood="glad"), HumanMessage("y")])
@example(messages=[AIMessageChunk(content="x", tool_call_chunks=[CALL_CHUNK])])
def test_other_message_classes_come_back_as_the_serializer_would_give_them(messages):
    assert_invisible(messages)


@given(item=OTHERS)
def test_other_message_classes_do_not_take_the_fast_path(item):
    assert pack_messages([item]) is None
    assert pack_messages([HumanMessage("x"), item]) is None


@given(value=ANYTHING)
def test_what_is_no_message_does_not_take_the_fast_path(value):
    assert pack_messages([value]) is None or isinstance(value, (HumanMessage, AIMessage))


MUTATIONS = {
    "content": lambda m: setattr(m, "content", ["a", {"type": "text", "text": "b"}]),
    "content to a tuple in a block": lambda m: setattr(m, "content", [{"type": "text", "spans": (1, 2)}]),
    "an integer id": lambda m: m.__dict__.__setitem__("id", 5),
    "a new kwarg": lambda m: m.additional_kwargs.__setitem__("k", {"deep": [1, True, 1.0]}),
    "metadata replaced": lambda m: m.__dict__.__setitem__("response_metadata", {"output_version": "v1"}),
    "a field taken away": lambda m: m.__dict__.pop("name"),
    "a name assigned": lambda m: setattr(m, "name", "n"),
    "an extra assigned": lambda m: setattr(m, "extra_field", [1]),
}
AI_MUTATIONS = {
    "a call without type": lambda m: m.tool_calls.append({"name": "g", "args": {}, "id": "d"}),
    "a call with more keys": lambda m: m.tool_calls[0].__setitem__("index", 1),
    "args with other types": lambda m: m.tool_calls[0]["args"].update(a=1, b=True, c=1.0, d=None),
    "calls taken away beside legacy ones": lambda m: (
        m.tool_calls.clear(),
        m.additional_kwargs.update(tool_calls=LEGACY_CALLS),
    ),
    "an invalid call": lambda m: m.invalid_tool_calls.append(
        {"name": "f", "args": "{", "id": "e", "error": None, "type": "invalid_tool_call"}
    ),
    "usage with more keys": lambda m: m.__dict__.__setitem__(
        "usage_metadata", {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "more": 1}
    ),
    "usage of booleans": lambda m: m.__dict__.__setitem__(
        "usage_metadata", {"input_tokens": True, "output_tokens": 1, "total_tokens": 2}
    ),
    "usage with too little": lambda m: m.__dict__.__setitem__("usage_metadata", {"input_tokens": 1}),
}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("mutation", [*MUTATIONS, *AI_MUTATIONS])
def test_a_message_changed_in_place_comes_back_as_the_serializer_would_give_it(mutation):
    for message in (
        AIMessage("x", id="i", tool_calls=[{"name": "f", "args": {"n": 1}, "id": "c"}]),
        HumanMessage("x", id="i"),
        SystemMessage("x"),
        ToolMessage("x", tool_call_id="c"),
    ):
        if mutation in AI_MUTATIONS and not isinstance(message, AIMessage):
            continue
        ({**MUTATIONS, **AI_MUTATIONS})[mutation](message)
        if serializable([message]):
            assert_invisible([message])


def test_a_message_made_without_validation_comes_back_as_the_serializer_would_give_it():
    assert_invisible([HumanMessage.model_construct(content="bare", additional_kwargs={}, response_metadata={})])
    assert_invisible([HumanMessage("x").model_copy(update={"id": "copied"})])


def test_loaded_messages_share_nothing():
    loaded = through_the_codec([HumanMessage("x"), HumanMessage("x")])
    loaded[0].additional_kwargs["k"] = 1
    assert loaded[1].additional_kwargs == {}


def test_a_loaded_message_is_a_full_message():
    (loaded,) = through_the_codec([AIMessage("x", id="i")])
    assert loaded == AIMessage("x", id="i")
    assert loaded.model_copy(update={"content": "y"}).content == "y"
    assert copy.deepcopy(loaded) == loaded
    assert loaded.model_dump() == AIMessage("x", id="i").model_dump()
    loaded.content = "z"
    assert loaded.text == "z"


def test_joined_messages_can_be_split_again():
    halves = pack_messages([HumanMessage("a"), AIMessage("b")])
    assert halves is not None
    codes, packed = halves
    joined = join_messages(codes, packed)
    assert split_messages(joined) == (codes, packed)
    assert split_messages(memoryview(joined)) == (codes, packed)


@given(data=st.binary(max_size=60))
def test_bytes_that_are_no_page_of_messages_are_a_value_error(data):
    for attempt in (data, join_messages(b"\x00", data), join_messages(b"\x07", ormsgpack.packb([{}]))):
        try:
            loaded = unpack_messages(attempt)
        except ValueError:
            continue
        assert all(isinstance(message, BaseMessage) for message in loaded)


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x", "type": "human"},
        {"content": 5, "type": "human"},
        {"type": "ai", "content": "x"},
        {},
        {"content": {"__class__": "os.system"}},
    ],
)
def test_fields_that_do_not_fit_still_make_a_message_of_that_class_and_nothing_else(fields):
    sealed = Sealed("m", join_messages(b"\x00", ormsgpack.packb([fields])))
    try:
        (loaded,) = CODEC.open_page(sealed, learn=False)[0]
    except ValueError:
        return
    assert type(loaded) is HumanMessage
