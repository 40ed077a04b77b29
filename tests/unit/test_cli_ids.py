"""Ids on a command line: what is shown can be given back, and nothing of it moves the cursor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_turncheckpoint._cli_ids import clean, given_ids, resolve, shown_id

ANY_TEXT = st.text(st.characters(codec=None, categories=None))


@pytest.mark.parametrize("plain", ["1", "user-7", "a b", "[bold]x[/bold]", "naïve ☃", "it's", "a\\b"])
def test_an_ordinary_id_is_shown_as_it_is(plain):
    assert shown_id(plain) == plain


@pytest.mark.parametrize("odd", ["", " a", "a ", "-x", "--all", '"a"', "a\nb", "\x1b[2J", "\udc80", "\u202e"])
def test_any_other_id_is_shown_as_a_json_string(odd):
    shown = shown_id(odd)
    assert shown[0] == shown[-1] == '"'
    assert shown.isprintable()


@given(ANY_TEXT)
def test_what_is_shown_is_found_again(text):
    assert given_ids(shown_id(text))[0] == text


@given(ANY_TEXT)
def test_what_is_shown_fits_a_line_and_can_be_written(text):
    assert shown_id(text).isprintable()
    shown = clean(text)
    assert all(each.isprintable() or each in "\n\t" for each in shown)
    shown.encode()


def test_a_quoted_id_may_also_be_meant_as_it_stands():
    assert given_ids('"a"') == ["a", '"a"']
    assert given_ids('"a') == ['"a']
    assert given_ids('"7 up"x"') == ['"7 up"x"']


IDS = ["1f3-cc", "1f2-bb", "1f1-ab"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1f2-bb", "1f2-bb"),
        ("1f2", "1f2-bb"),
        ("cc", "1f3-cc"),
        ("latest", "1f3-cc"),
        ("latest~1", "1f2-bb"),
        ("1f2~1", "1f1-ab"),
        ("latest~0", "1f3-cc"),
        ("latest~3", None),
        ("1f", None),
        ("b", "1f1-ab,1f2-bb"),
        ("", None),
        ("~1", None),
        ("nobody", None),
    ],
)
def test_a_checkpoint_is_named_by_its_id_its_beginning_its_end_or_its_distance(text, found):
    parents = dict(zip(IDS, [*IDS[1:], None], strict=True))
    expected = None if found is None or "," in found else found
    assert resolve(text, IDS, parent=parents.get) == expected
