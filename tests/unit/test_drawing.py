"""The picture of a thread: its geometry, its markup, and what strangers' text does to it."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_turncheckpoint import _columns, _drawing, _markup
from langgraph_turncheckpoint._columns import CALLS_SHOWN, STEPS_SHOWN
from langgraph_turncheckpoint._drawing import svg_of, table_of, text_of
from langgraph_turncheckpoint._markup import Cell, clean, escape, fitting, table, width_of
from langgraph_turncheckpoint._picture import WIDTH, lay_out
from langgraph_turncheckpoint._shapes import RESULTS, Box, Icon, Line, Text, duration
from langgraph_turncheckpoint._story import Call, Folded, Step, ThreadStory, TurnBand
from langgraph_turncheckpoint._turn import TURN_STATES
from langgraph_turncheckpoint.display import Timeline

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>\"'&]]>\u202e\x00\x1b\ud800\ufffe\n&#x6a;avascript:"
OUTCOMES = (*TURN_STATES, "edit")


def band(token: int = 1, **fields: Any) -> TurnBand:
    made = {"outcome": "completed", "reason": "it ended", "opened_at": 1e9 + token, "seconds": 1.5, "steps": ()}
    return TurnBand(token, **{**made, **fields})


def step(*names: str, **fields: Any) -> Step:
    return Step(fields.pop("kind", "nodes"), names, fields.pop("seconds", 0.2), **fields)


def all_calls() -> tuple[Call, ...]:
    return tuple(Call(f"tool_{result}", result, "a note", "a detail") for result in RESULTS)


FULL = ThreadStory(
    "thread 1",
    (
        band(1, prompt="book it", steps=(step("input", kind="input", seconds=None), step("model"))),
        band(2, outcome="superseded", end="taken over by turn 3", steps=(step("tools", calls=all_calls()),)),
        band(3, takes_over=2, continues=1, forks_from=0, lane=1, steps=(step("a", "b", is_finished=False),)),
        band(0, outcome="edit", seconds=None, lane=1, steps=(step("update", kind="update", seconds=None),)),
    ),
    Folded(7, (("completed", 6), ("failed", 1)), 9e8, 9.5e8),
    is_closed=True,
    damaged=("a file is damaged",),
)

words = st.text(max_size=40) | st.sampled_from([HOSTILE, "W" * 60, "漢字" * 30, "i" * 90, "model", ""])
took = st.none() | st.floats(0, 1e7)
calls = st.builds(Call, words, st.sampled_from(list(RESULTS)), words, words, took)
steps = st.builds(
    Step,
    st.sampled_from(["input", "nodes", "update"]),
    st.lists(words, min_size=1, max_size=10).map(tuple),
    took,
    st.lists(calls, max_size=9).map(tuple),
    st.booleans(),
    st.none() | st.floats(0, 4e9),
    words,
    st.integers(0, 9),
)
bands = st.builds(
    TurnBand,
    st.integers(0, 10**6),
    st.sampled_from(OUTCOMES),
    words,
    st.floats(0, 4e9),
    took,
    st.lists(steps, max_size=8).map(tuple),
    words,
    words,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.none() | st.just(-1),
    st.none() | st.sampled_from(TURN_STATES),
    words,
    st.integers(0, 10**4),
    st.booleans(),
)
stories = st.builds(
    ThreadStory,
    words,
    st.lists(bands, max_size=3).map(tuple),
    st.none() | st.just(FULL.folded),
    st.booleans(),
    st.lists(words, max_size=2).map(tuple),
)


def texts_of(story: ThreadStory) -> list[Text]:
    picture = lay_out(story)
    shapes = [*picture.background, *(shape for mark in picture.marks for shape in mark.shapes)]
    return [shape for shape in shapes if isinstance(shape, Text)]


def assert_apart(story: ThreadStory) -> None:
    """No text covers another, and none leaves the picture."""
    picture, found = lay_out(story), [text for text in texts_of(story) if text.text]
    for text in found:
        left, top, right, bottom = text.bounds
        assert left >= 0, text
        assert top >= 0, text
        assert right <= picture.width, text
        assert bottom <= picture.height, text
    for one, other in combinations(found, 2):
        a, b = one.bounds, other.bounds
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (one, other)


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def test_no_text_covers_another_in_a_full_picture():
    assert_apart(FULL)
    assert_apart(ThreadStory("empty"))


@settings(max_examples=60, deadline=None)
@given(stories)
def test_no_text_covers_another_whatever_is_told(story):
    assert_apart(story)


@settings(max_examples=60, deadline=None)
@given(stories)
def test_every_story_gives_markup_that_parses_and_can_be_stored(story):
    timeline = Timeline(story)
    for text in (timeline.svg, timeline.html, timeline.text, timeline._repr_html_()):
        text.encode("utf-8")
    root = parsed(timeline.svg)
    assert root.tag == f"{SVG}svg"
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "style", "g", "rect", "path", "text",
    }  # fmt: skip


def test_texts_of_pills_stay_in_their_pills():
    for mark in lay_out(FULL).marks:
        boxes = [shape for shape in mark.shapes if isinstance(shape, Box)]
        texts = [shape for shape in mark.shapes if isinstance(shape, Text)]
        for box, text in zip(boxes, texts, strict=False):
            if text.mono:
                left, top, right, bottom = text.bounds
                assert box.x <= left
                assert right <= box.x + box.width
                assert box.y <= top
                assert bottom <= box.y + box.height


def test_the_same_story_gives_the_same_text():
    assert svg_of(lay_out(FULL)) == svg_of(lay_out(FULL))
    assert table_of(FULL) == table_of(FULL)


def test_every_mark_has_a_name_a_title_and_can_be_reached():
    root = parsed(svg_of(lay_out(FULL)))
    assert root.get("role") == "graphics-document img"
    assert "thread 1" in root.get("aria-label", "")
    assert root.find(f"{SVG}title") is not None
    assert root.find(f"{SVG}desc") is not None
    marks = [group for group in root.iter(f"{SVG}g") if group.get("aria-hidden") is None]
    assert len(marks) > 20
    for mark in marks:
        assert mark.get("role") == "img"
        assert mark.get("tabindex") == "0"
        assert mark.get("aria-label")
        title = mark.find(f"{SVG}title")
        assert title is not None
        assert (title.text or "").startswith(mark.get("aria-label", "!"))


def test_each_result_and_outcome_has_a_sign_and_a_word():
    for outcome in OUTCOMES:
        story = ThreadStory("t", (band(1, outcome=outcome, end="end", steps=(step("n", calls=all_calls()),)),))
        assert parsed(svg_of(lay_out(story))) is not None
    signs = {shape.name for mark in lay_out(FULL).marks for shape in mark.shapes if isinstance(shape, Icon)}
    assert set(RESULTS) <= signs
    text = text_of(FULL)
    assert all(f"tool_{result}: {result}" in text for result in RESULTS)


def test_colours_are_there_without_a_style_sheet_and_for_a_dark_page():
    svg = svg_of(lay_out(FULL))
    bare = re.sub(r"<style>.*?</style>", "", svg)
    for element in parsed(bare).iter():
        if element.tag in (f"{SVG}rect", f"{SVG}text", f"{SVG}path"):
            assert element.get("fill") or element.get("stroke"), element.attrib
    assert "prefers-color-scheme:dark" in svg
    assert "data-jp-theme-light" not in svg
    assert 'body[data-jp-theme-light="false"] .tcp' in svg_of(lay_out(FULL), standalone=False)


HOSTS = ('body[data-jp-theme-light="false"]', "body.vscode-dark", '[data-color-mode="dark"]')


def sheets(svg: str) -> tuple[dict[str, str], dict[str, str]]:
    """The rules of a picture by selector: those that always hold, and those for a dark system."""
    found = re.search(r"<style>(.*?)</style>", svg)
    assert found is not None
    media = re.search(r"@media \(prefers-color-scheme:dark\)\{((?:[^{}]*\{[^{}]*\})*)\}", found.group(1))
    assert media is not None
    always = found.group(1).replace(media.group(0), "")
    assert "@" not in always
    return rules(always), rules(media.group(1))


def rules(sheet: str) -> dict[str, str]:
    made: dict[str, str] = {}
    for selectors, declarations in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet):
        for selector in selectors.split(","):
            assert selector not in made
            made[selector] = declarations
    return made


def test_every_dark_rule_holds_only_where_the_page_or_the_system_is_dark():
    always, dark = sheets(svg_of(lay_out(FULL)))
    assert list(always) == [".tcp .mark:focus"]
    wanted = {selector.removeprefix(".tcp "): declared for selector, declared in dark.items()}
    assert all(re.fullmatch(r"(\.[a-z-]+)+", selector) for selector in wanted)
    assert {".end.failed", ".icon.failed", ".chip.failed", ".bar.failed", ".dot.failed", ".ink"} <= set(wanted)
    always, dark = sheets(svg_of(lay_out(FULL), standalone=False))
    del always[".tcp .mark:focus"]
    assert always == {f"{host} .tcp {selector}": declared for host in HOSTS for selector, declared in wanted.items()}
    light = 'html:not([data-color-mode="light"]) body:not([data-jp-theme-light="true"]):not(.vscode-light)'
    assert dark == {f"{light} .tcp {selector}": declared for selector, declared in wanted.items()}


def test_words_are_not_cut_where_there_is_room():
    words = "refused: a checkpoint and a result, after turn 12345 took over"
    story = ThreadStory("t", (band(1, end="work left behind", refused=words, steps=(step("a"),)),))
    assert words in {text.text for text in texts_of(story)}
    assert_apart(story)


def test_what_forks_from_what_is_not_shown_says_so_in_whole_words():
    for folded in (None, FULL.folded):
        story = ThreadStory("t", (band(3), band(4, lane=1, forks_from=-1)), folded)
        assert "from an earlier turn" in {text.text for text in texts_of(story)}
        story = ThreadStory("t", (band(3), band(4, lane=1, starts_over=True)), folded)
        assert "starts from nothing" in {text.text for text in texts_of(story)}


@pytest.mark.parametrize("damaged", [(), ("a file is damaged",)])
@pytest.mark.parametrize("folded", [None, FULL.folded])
def test_no_branch_begins_above_what_is_shown(folded, damaged):
    bands = (band(3), band(4, lane=1, forks_from=-1), band(5, lane=2, starts_over=True), band(6, lane=1, forks_from=0))
    picture = lay_out(ThreadStory("t", bands, folded, damaged=damaged))
    top = min(s.y for s in picture.background if isinstance(s, Box) and s.style == "band")
    top = min([top, *(s.y for m in picture.marks for s in m.shapes if isinstance(s, Box) and s.style == "folded")])
    rails = [s.path for s in picture.background if isinstance(s, Line) and s.style.startswith("rail")]
    starts = [float(re.findall(r"[\d.]+", path)[1]) for path in rails]
    assert len(starts) == (3 if folded else 2)
    assert min(starts) >= top


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_contrasts_with_its_ground_in_both_schemes():
    paints = _drawing._PAINTS
    for text in ("ink", "soft"):
        for ground in ("card", "band"):
            assert contrast(paints[text].fill, paints[ground].fill) >= 4.5
            assert contrast(paints[text].dark_fill, paints[ground].dark_fill) >= 4.5
    for light, dark in _markup.TONES.values():
        assert contrast("#ffffff", light) >= 4.5  # a badge's word
        assert contrast(dark, paints["band"].dark_fill) >= 3.0  # an outline, a sign


def test_no_script_and_no_address_is_in_the_markup():
    story = ThreadStory(
        HOSTILE,
        (band(1, prompt=HOSTILE, end=HOSTILE, reason=HOSTILE, steps=(
            step(HOSTILE, checkpoint_id=HOSTILE, calls=(Call(HOSTILE, "error", HOSTILE, HOSTILE),)),
        )),),
        damaged=(HOSTILE,),
    )  # fmt: skip
    timeline = Timeline(story)
    for markup in (timeline.svg, timeline.html, timeline._repr_html_()):
        assert "<script" not in markup.lower()
        assert not re.search(r"\son\w+\s*=", markup)
        assert not re.search(r"(href|src)\s*=|url\(|@import|<foreignObject", markup)
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff\ufffe]", markup)
        for element in parsed(re.search(r"<svg.*</svg>", markup, re.DOTALL).group(0)).iter():  # type: ignore[union-attr]
            assert not any(name.lower().startswith("on") for name in element.attrib)
    assert "&lt;script&gt;" in timeline.svg


def test_cut_text_is_whole_in_the_title():
    name = "a_tool_with_a_name_that_is_much_longer_than_any_pill_of_the_picture"
    svg = svg_of(lay_out(ThreadStory("t", (band(1, steps=(step("n", calls=(Call(name, "ok", "note"),)),)),))))
    shown = [element.text for element in parsed(svg).iter(f"{SVG}text") if (element.text or "").startswith("a_tool")]
    assert shown[0] != name
    assert any(name in (element.text or "") for element in parsed(svg).iter(f"{SVG}title"))


def test_of_many_steps_the_first_and_last_are_shown_and_what_went_wrong():
    several = [step(f"n{n}", calls=(Call("x", "error" if n == 50 else "ok", ""),)) for n in range(100)]
    shown = _columns.few_steps(several)
    assert len(shown) == STEPS_SHOWN
    assert (shown[0], shown[-1]) == (several[0], several[-1])
    folded = shown[3]
    assert "77 steps" in folded.names[0]
    assert [(call.name, call.result) for call in folded.calls] == [("1 call", "error")]
    assert _columns.few_steps(several[:STEPS_SHOWN]) == several[:STEPS_SHOWN]


def test_of_many_calls_those_that_went_wrong_are_shown():
    many = [Call(f"t{n}", "unknown" if n == 40 else "ok", "") for n in range(50)]
    shown = _columns._few_calls(many)
    assert len(shown) == CALLS_SHOWN
    assert many[40] in shown
    assert (shown[-1].name, shown[-1].result) == ("+43 more", "ok")


def test_a_picture_is_as_wide_as_it_has_to_be():
    long = tuple(step(f"node_number_{n}") for n in range(12))
    assert (
        lay_out(ThreadStory("t", (band(1, steps=long[:1]),))).width
        < lay_out(ThreadStory("t", (band(1, steps=long),))).width
        <= WIDTH
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "<1 ms"),
        (0.0123, "12 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (4000, "1 h 6 min"),
        (300000, "3 d 11 h"),
    ],
)
def test_durations_come_in_the_unit_that_suits_them(seconds, words):
    assert duration(seconds) == words


def test_cleaned_text_is_one_printable_line():
    assert clean("  a\n\tb \x00\u202e ") == "a b \ufffd\ufffd"
    assert len(clean("x" * 10_000)) == _markup.TITLE_LIMIT
    assert clean("\ud800") == "\ufffd"


def test_escaped_text_is_text_again_when_parsed():
    for text in ("<&>\"'", "]]>", "&amp;", "漢字"):
        assert parsed(f'<a b="{escape(text)}">{escape(text)}</a>').text == text


@given(words, st.floats(20, 300), st.booleans())
def test_what_fits_is_no_wider_than_its_room(text, room, mono):
    shown = fitting(text, room, 12, mono=mono)
    assert width_of(shown, 12, mono=mono) <= room
    assert shown == text or shown.endswith("\N{HORIZONTAL ELLIPSIS}")


def test_a_table_names_its_columns_and_takes_its_colours_from_the_page():
    made = table(HOSTILE, ["a", "b"], [["1", Cell(HOSTILE, "#1a7f37", "why")]], note=HOSTILE)
    root = parsed(f"<div>{made}</div>")
    assert [cell.get("scope") for cell in root.iter("th")] == ["col", "col"]
    assert "script" not in {element.tag for element in root.iter()}
    assert "background:#" not in made
    assert "color:inherit" in made
