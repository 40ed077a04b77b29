"""Shared pages: a decoded value is what the serializer would give back, and its cost is that of the change."""

from __future__ import annotations

import copy
import random
import struct
from typing import Any

import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_turncheckpoint._decoder import Decoder
from langgraph_turncheckpoint._encoder import Encoder
from langgraph_turncheckpoint._records import BlobRef, MalformedError
from langgraph_turncheckpoint._serde import ValueCodec
from langgraph_turncheckpoint._sharing import PAGE_BYTES, Known

SERDE = JsonPlusSerializer()


def same(first, second):
    """Equal in value, type and order, all the way down."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return struct.pack("<d", first) == struct.pack("<d", second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            type(a) is type(b) and same(first[a], second[b]) for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if hasattr(first, "model_fields_set"):
        return same(dict(sorted(vars(first).items())), dict(sorted(vars(second).items())))
    return bool(first == second)


def round_trip(value, serde=SERDE):
    return serde.loads_typed(serde.dumps_typed(value))


class Line:
    """One channel over the checkpoints of a thread, with the files in memory.

    Args:
        serde: The serializer.
        forgetful: Whether each save starts from what a fresh process would learn by loading.
    """

    def __init__(self, serde=SERDE, *, forgetful=False):
        self.codec, self.forgetful = ValueCodec(serde), forgetful
        self.files, self.known, self.steps = {}, Known(), 0
        self.saved = []

    def save(self, value):
        """Encode the value as the next checkpoint and give the bytes that this takes."""
        self.steps += 1
        name = f"step-{self.steps:06}"
        encoder = Encoder(self.codec, self.known)
        node, shape = encoder.encode(value, "channel")
        for number, blob in enumerate(encoder.blobs):
            self.files[BlobRef(name, number)] = blob
        encoder.resolve(name, 0)
        stored = ormsgpack.packb(node)
        self.saved.append((name, stored, encoder.refs))
        self.known = self.known.followed_by({"channel": shape}, encoder.own)
        if self.forgetful:
            self.known = Known()
            self.known.add("channel", self.decoder(name, encoder.refs, learn=True).decode(node)[1])
        return sum(len(blob.data) for blob in encoder.blobs) + len(stored) + 8 * len(encoder.refs)

    def decoder(self, name, refs, *, learn=False):
        return Decoder(self.codec, self.files.__getitem__, BlobRef(name, 0), refs, learn=learn)

    def load(self, position=-1):
        name, stored, refs = self.saved[position]
        return self.decoder(name, refs).decode(ormsgpack.unpackb(stored))[0]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.sampled_from([0, 1, -1])
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.binary(max_size=12)
    | st.sampled_from(["x" * 600, "é" * 3_000, b"\x00" * 5_000])
)
#: Long enough for several pages. Of scalars only: nested in each other they would take gigabytes.
REPEATED = st.lists(SCALARS, min_size=1, max_size=3).map(lambda items: items * 40)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=6), inner, max_size=5)
        | st.dictionaries(st.integers(-5, 5) | st.booleans(), inner, max_size=3)
        | REPEATED
    ),
    max_leaves=12,
)


@given(value=VALUES)
@example(value=bytearray(b"channel"))
@example(value=_DeltaSnapshot(["a"] * 700))
@example(value={1: "one", False: "x"})
@example(value={"a": {"b": {"c": ["d" * 5_000] * 40}}})
@example(value=[[["x" * 20_000]]])
@example(value=("x" * 5_000, 1))
@example(value={"": {}, "empty": [], "k": {"": [None] * 2_000}})
def test_a_value_comes_back_as_the_serializer_would_give_it(value):
    line = Line()
    line.save(value)
    expected = round_trip(value)
    if isinstance(value, _DeltaSnapshot):
        assert same(line.load().value, expected.value)
    else:
        assert same(line.load(), expected)


@given(values=st.lists(VALUES, min_size=2, max_size=4), forgetful=st.booleans())
def test_any_value_may_follow_any_other(values, forgetful):
    line = Line(forgetful=forgetful)
    for value in values:
        line.save(value)
    for position, value in enumerate(values):
        assert same(line.load(position), round_trip(value))


# --- edits ---

ITEMS = st.one_of(
    SCALARS,
    st.fixed_dictionaries({"id": st.integers(0, 9), "n": st.sampled_from([0, 1, True, False, 1.0, 0.0, -0.0, None])}),
    st.builds(HumanMessage, st.text(max_size=8), id=st.text("ab", max_size=1)),
    st.builds(
        AIMessage,
        st.text(max_size=8),
        tool_calls=st.just([{"name": "f", "args": {"n": 1}, "id": "c", "type": "tool_call"}]),
    ),
    st.builds(ToolMessage, st.sampled_from(["short", "y" * 9_000]), tool_call_id=st.just("c")),
)


def change_inside(item, rng):
    """Change something within an item, without touching the list that holds it; the smaller, the better."""
    if isinstance(item, dict):
        key = rng.choice([*item, "new"])
        old = item.get(key)
        item[key] = bool(old) if type(old) is int else int(old) if type(old) is bool else 1
    elif isinstance(item, AIMessage):
        args = item.tool_calls[0]["args"]
        args["n"] = True if type(args["n"]) is int else 1
    elif isinstance(item, (HumanMessage, ToolMessage)):
        item.content = f"{item.content}!"


def edit(items, rng, fresh):
    kind = rng.choice(["append", "append", "insert", "delete", "front", "inside", "inside", "swap", "type", "clear"])
    at = rng.randrange(len(items)) if items else 0
    if kind == "append" or not items:
        items += fresh
    elif kind == "insert":
        items[at:at] = fresh
    elif kind == "delete":
        del items[at : at + rng.randint(1, 4)]
    elif kind == "front":
        del items[: rng.choice([1, 1, 7, 40])]
    elif kind == "inside":
        change_inside(items[at], rng)
    elif kind == "swap":
        other = rng.randrange(len(items))
        items[at], items[other] = items[other], items[at]
    elif kind == "type" and type(items[at]) in {bool, int}:
        items[at] = bool(items[at]) if type(items[at]) is int else int(items[at])
    elif kind == "clear" and rng.random() < 0.2:
        items.clear()


@settings(max_examples=60)
@given(
    start=st.lists(ITEMS, max_size=5),
    copies=st.sampled_from([0, 1, 30, 60]),
    fresh=st.lists(st.lists(ITEMS, min_size=1, max_size=3), min_size=3, max_size=10),
    seed=st.integers(0, 1 << 30),
    forgetful=st.booleans(),
    wrapping=st.sampled_from(["list", "dict"]),
)
def test_each_step_of_any_sequence_of_edits_is_exact(start, copies, fresh, seed, forgetful, wrapping):
    rng = random.Random(seed)
    items = [copy.deepcopy(item) for _ in range(copies + 1) for item in start]
    line, expected = Line(forgetful=forgetful), []
    for added in fresh:
        value = items if wrapping == "list" else {f"k{n}": item for n, item in enumerate(items)}
        line.save(value)
        expected.append(round_trip(value))
        assert same(line.load(), expected[-1])
        edit(items, rng, [copy.deepcopy(item) for item in added])
    for position, value in enumerate(expected):
        assert same(line.load(position), value), "a later save must not change an earlier one"


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), forgetful=st.booleans())
def test_each_step_is_exact_in_a_nested_dict_of_files(seed, forgetful):
    rng = random.Random(seed)
    files: dict[str, Any] = {}
    line, expected = Line(forgetful=forgetful), []
    for step in range(12):
        branch = rng.choice([files, files.setdefault("dir", {}), files.setdefault("dir", {}).setdefault("sub", {})])
        name = f"f{rng.randrange(5)}"
        action = rng.randrange(5)
        if action == 0:
            branch.pop(name, None)
        elif action == 1:
            branch[name] = rng.choice([[], {}, "", None, True, 1])
        elif action == 2:
            branch[name] = {
                "lines": [f"line {n} {rng.randrange(3)}" for n in range(rng.choice([1, 50, 600]))],
                "v": step,
            }
        elif action == 3 and isinstance(branch.get(name), dict):
            branch[name]["lines"] = [*branch[name].get("lines", []), str(step)]
        else:
            branch[name] = str(step % 3) * rng.choice([10, 5_000])
        line.save({"files": files})
        expected.append(round_trip({"files": files}))
    for position, value in enumerate(expected):
        assert same(line.load(position), value)


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, True), (True, 1), (0, False), (1, 1.0), (0.0, -0.0), ("1", 1), ("", None), ("a", b"a"), ([], {}),
        (None, []), (float("nan"), 0.0), (1 << 63, -(1 << 63)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_change_that_python_calls_equal_is_seen(before, after, depth, forgetful):
    def nested(value):
        for _ in range(depth):
            value = {"inner": [value]}
        return value

    items = [{"n": n, "text": "t" * 50} for n in range(100)]
    items[50]["odd"] = nested(before)
    line = Line(forgetful=forgetful)
    line.save(items)
    items[50]["odd"] = nested(after)
    line.save(items)
    assert same(line.load(), round_trip(items))
    assert same(line.load(0)[50]["odd"], round_trip(nested(before)))


@pytest.mark.parametrize("forgetful", [False, True])
def test_an_old_message_changed_in_place_is_stored(forgetful):
    messages = [AIMessage("a" * 200, id=str(n), additional_kwargs={"deep": {"n": [1]}}) for n in range(200)]
    line = Line(forgetful=forgetful)
    line.save(messages)
    messages[3].additional_kwargs["deep"]["n"][0] = True
    messages[150].content = "changed"
    line.save(messages)
    loaded = line.load()
    assert loaded[3].additional_kwargs["deep"]["n"][0] is True
    assert loaded[150].content == "changed"
    assert line.load(0)[150].content == "a" * 200


# --- cost ---

LINE = "some text of a hundred bytes or so, so that five hundred items are fifty kilobytes of it, {:06}"


def big_list(count=2_000):
    return [{"n": n, "text": LINE.format(n)} for n in range(count)]


LIST_EDITS = {
    "nothing": lambda items: None,
    "append": lambda items: items.append({"n": -1, "text": "new"}),
    "insert in the middle": lambda items: items.insert(1_000, {"n": -1, "text": "new"}),
    "insert in front": lambda items: items.insert(0, {"n": -1, "text": "new"}),
    "delete in the middle": lambda items: items.pop(1_000),
    "trim the front": lambda items: items.__delitem__(slice(0, 700)),
    "trim the front by one": lambda items: items.pop(0),
    "trim the end": lambda items: items.__delitem__(slice(1_300, None)),
    "change one in place": lambda items: items[1_234].__setitem__("n", "changed"),
    "replace one": lambda items: items.__setitem__(17, {"n": -1, "text": "new"}),
    "cut out a range": lambda items: items.__delitem__(slice(500, 1_500)),
}


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("change", LIST_EDITS)
def test_the_cost_of_an_edit_is_not_that_of_the_list(change, forgetful):
    items = big_list()
    line = Line(forgetful=forgetful)
    whole = line.save(items)
    assert whole > 200_000
    LIST_EDITS[change](items)
    assert line.save(items) < 3 * PAGE_BYTES
    assert same(line.load(), items)


@pytest.mark.parametrize("forgetful", [False, True])
def test_many_small_appends_cost_about_what_they_add(forgetful):
    items, line = [], Line(forgetful=forgetful)
    for n in range(600):
        items.append({"n": n, "text": LINE.format(n)})
        line.save(items)
    assert same(line.load(), items)
    assert same(line.load(299), items[:300])
    written = sum(len(blob.data) for blob in line.files.values())
    assert written < 4 * len(repr(items))


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_step_of_a_sliding_window_costs_two_pages_at_most(forgetful):
    """The page that the window leaves is written again, and so is the one that gathers new items."""
    items, line = big_list(300), Line(forgetful=forgetful)
    whole = line.save(items)
    for n in range(300):
        items.append({"n": n, "text": LINE.format(n)})
        items.pop(0)
        assert line.save(items) < whole / 3
        assert same(line.load(), items)


@pytest.mark.parametrize("forgetful", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_large_value_beside_changing_ones_is_stored_once(depth, forgetful):
    line = Line(forgetful=forgetful)
    total = 0
    for step in range(30):
        value = {"big.bin": b"\x07" * 1_000_000, "notes": f"version {step}", f"new-{step}": step}
        for level in range(depth):
            value = {f"level-{level}": value, "step": step}
        total += line.save(value)
        assert same(line.load(), value)
    assert total < 1_200_000


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_file_of_lines_costs_its_changed_lines(forgetful):
    lines = [LINE.format(n) for n in range(5_000)]
    line = Line(forgetful=forgetful)
    first = line.save({"files": {"a.py": {"content": lines, "modified": 0}}})
    assert first > 400_000
    for step in range(1, 10):
        lines[step * 300] = f"edited {step}"
        files = {"files": {"a.py": {"content": lines, "modified": step}, "b.py": {"content": ["x"], "modified": step}}}
        assert line.save(files) < 3 * PAGE_BYTES
        assert same(line.load(), files)


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_list_that_is_taken_back_to_an_older_state_is_exact(forgetful):
    line = Line(forgetful=forgetful)
    old, new = big_list(200), [*big_list(200), *big_list(50)]
    for value in (old, new, old, [], new):
        line.save(value)
        assert same(line.load(), value)


def test_equal_items_in_any_number_are_not_mixed_up():
    line = Line()
    for count in (1, 40, 41, 80, 79, 300, 2):
        value = ["same " * 100] * count
        line.save(value)
        assert same(line.load(), value)


# --- stored nonsense ---


@given(node=st.recursive(st.none() | st.integers(-3, 9) | st.text(max_size=3), lambda n: st.lists(n, max_size=4)))
@example(node=[0])
@example(node=[2, 7])
@example(node=[3, [[0, 99]], None])
@example(node=[4, [["k", [9]]], None])
@example(node=[3, [], 0])
@example(node=[5, "x", [0, 1]])
@example(node=[4, [["k", [0, []]], [["k"], 1]], None])
def test_a_node_that_makes_no_sense_is_malformed_or_gives_a_value(node):
    line = Line()
    line.save(["item"] * 100)
    try:
        Decoder(line.codec, line.files.__getitem__, BlobRef("step-000001", 0), [], learn=True).decode(node)
    except MalformedError:
        return


def test_a_page_with_another_number_of_items_than_listed_is_malformed():
    line = Line()
    line.save(["some item"] * 100)
    name, stored, refs = line.saved[-1]
    node = ormsgpack.unpackb(stored)
    node[1][0][1] += 1
    with pytest.raises(MalformedError, match="items where"):
        line.decoder(name, refs).decode(node)
