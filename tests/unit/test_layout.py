"""Ids and file names: no two ids share a name, whatever the file system folds, and no name leaves its directory."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from langgraph_turncheckpoint import InvalidIdError
from langgraph_turncheckpoint import _layout as layout

IDS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.text("aAbBsSéÉe\u0301ıIiſßẞΣσςＡ.:_-/\\ \x00", max_size=12),
    st.text(max_size=300),
)
ODD_IDS = [
    "", ".", "..", "../x", "a/b", "a\\b", "/abs", "\x00", "C:x", "con", "CON", "nul.txt", "lpt1", "com1.log",
    "room", "Room", "ROOM", "a.b", "a:b", "a_b", "a.2eb", ".61", "x" * 5_000, "X" * 5_000, "👩‍👩‍👧", "a ", "a.", "a\n",
    "\ud800", "\udfff", "t-a", "é", "e\u0301", "K", "\u212a", "ſ", "s", "ß", "ss", "ﬁ", "fi", "İ", "i̇",
]  # fmt: skip
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}

COMPONENTS = {
    "thread": layout.thread_component,
    "namespace": layout.namespace_component,
    "bucket": lambda text: layout.bucket_component(text[:30]),
    "checkpoint": lambda text: layout.checkpoint_stem(text[:30] or "-") + layout.CHECKPOINT_SUFFIX,
}


def folded(name):
    """A name as the most forgetful file system sees it."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", name).casefold()).casefold()


@pytest.mark.parametrize("component", [layout.thread_component, layout.namespace_component])
@given(first=IDS, second=IDS)
@example(first="room", second="Room")
@example(first="é", second="e\u0301")
@example(first="a.b", second="a:b")
@example(first=".61", second="a")
@example(first="\ud800", second="?")
def test_two_ids_never_share_a_component_even_folded(component, first, second):
    assert (folded(component(first)) == folded(component(second))) == (first == second)


@pytest.mark.parametrize("component", [layout.thread_component, layout.namespace_component])
def test_odd_ids_are_told_apart_even_folded(component):
    assert len({folded(component(text)) for text in ODD_IDS}) == len(ODD_IDS)


@pytest.mark.parametrize("kind", COMPONENTS)
@given(text=IDS)
@example(text="con")
@example(text="..")
@example(text="x" * 5_000)
def test_every_component_is_a_plain_short_name(kind, text):
    name = COMPONENTS[kind](text)
    assert re.fullmatch(r"[a-z0-9._-]+", name)
    assert len(name) <= 255
    assert name not in {".", ".."}
    assert name.split(".")[0] not in RESERVED


@pytest.mark.parametrize("text", ODD_IDS)
def test_every_component_of_an_odd_id_is_a_plain_short_name(text):
    for component in COMPONENTS.values():
        name = component(text)
        assert re.fullmatch(r"[a-z0-9._-]+", name)
        assert len(name) <= 255
        assert name.split(".")[0] not in RESERVED


@given(text=IDS)
@example(text="x" * 5_000)
def test_a_component_is_recognized_and_spells_its_id_unless_hashed(text):
    for kind, component in (("t", layout.thread_component), ("n", layout.namespace_component)):
        name = component(text)
        assert layout.is_component(kind, name)
        assert layout.literal_id(kind, name) in {text, None}
        assert (layout.literal_id(kind, name) is None) == name.startswith(f"{kind}_")


@given(text=st.text(st.characters(exclude_categories=()), min_size=1, max_size=30))
def test_names_of_checkpoints_and_buckets_give_back_their_id(text):
    stem = layout.checkpoint_stem(text)
    for suffix in (layout.CHECKPOINT_SUFFIX, layout.PAGES_SUFFIX, layout.EARLY_SUFFIX):
        assert layout.checkpoint_id_of(stem + suffix, suffix) == text
    assert layout.bucket_bound(layout.bucket_component(text)) == text


@given(name=st.text(".-_abtn0123456789ABCÉ", max_size=20))
def test_a_name_that_would_not_be_made_is_not_taken_for_one(name):
    """Else two different names could stand for one id."""
    if (literal := layout.literal_id("t", name)) is not None and len(name) <= layout.LITERAL_LIMIT:
        assert layout.thread_component(literal) == name
    if (bound := layout.bucket_bound(name)) is not None:
        assert layout.bucket_component(bound) == name
    if (found := layout.checkpoint_id_of(name + ".ckpt")) is not None and found:
        assert layout.checkpoint_stem(found) + ".ckpt" == name + ".ckpt"


@pytest.mark.parametrize(
    "junk", ["", "t", "t-A", "t-.zz", "t-.4", "t-a.", "t-.61", "T-a", "n-a", "t_abc", "t_" + "g" * 64, "t-.ff", "t-a b"]
)
def test_foreign_names_are_no_thread_components(junk):
    assert not layout.is_component("t", junk)


def test_generations_are_numbers_only():
    assert layout.generation_of(layout.generation_component(12)) == 12
    assert [layout.generation_of(name) for name in ("g-", "g-x", "12", "g-١", "g--1", "n-1")] == [None] * 6


def test_a_checkpoint_id_that_is_no_file_name_is_an_error_that_says_so():
    with pytest.raises(InvalidIdError, match="checkpoint_id .* is empty"):
        layout.checkpoint_stem("")
    with pytest.raises(InvalidIdError, match="longer than 200"):
        layout.checkpoint_stem("É" * 40)
    assert layout.checkpoint_stem("x" * layout.CHECKPOINT_ID_LIMIT)
