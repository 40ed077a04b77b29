"""Where everything in the picture of a thread stands: boxes, lines and texts with their places and sizes, and what each
mark is called. Geometry only; colours and markup are `_drawing`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ._columns import PILL, column_of, end_columns, few_steps, moved, tone_of
from ._markup import clean, fitting, width_of
from ._shapes import (
    ICON,
    RESULTS,
    SMALL,
    TEXT,
    Box,
    Icon,
    Line,
    Mark,
    Picture,
    Shape,
    Text,
    counted,
    duration,
    folded_title,
    moment,
    span,
)
from ._story import Folded, ThreadStory, TurnBand

#: Of the picture: at most, and at least.
WIDTH: Final = 880.0
NARROWEST: Final = 600.0
#: Branches beyond these share the last line.
LANES_SHOWN: Final = 6

_MARGIN: Final = 16.0
_LANE: Final = 14.0
_HEADER: Final = 58.0
_SIDE: Final = 132.0
_GAP: Final = 18.0
_PAD: Final = 12.0


def lay_out(story: ThreadStory) -> Picture:
    """The picture of a thread, no wider than it has to be. The same story gives the same picture."""
    wide = _laid_out(story, WIDTH)
    rights = [shape.bounds[2] for mark in wide.marks for shape in mark.shapes if isinstance(shape, Text)]
    rights += [s.x + s.width for mark in wide.marks for s in mark.shapes if isinstance(s, Box) and s.style != "folded"]
    width = max([NARROWEST, *(right + _PAD + _MARGIN for right in rights)])
    return wide if width >= WIDTH - 40 else _laid_out(story, float(math.ceil(width)))


def _laid_out(story: ThreadStory, width: float) -> Picture:
    lanes = min(LANES_SHOWN, 1 + max((band.lane for band in story.bands), default=0))
    layout = _Layout(_MARGIN + 8 + lanes * _LANE, width)
    marks = [_header(story, width)]
    y = _HEADER
    if story.damaged:
        marks.append(_damage(story.damaged, y, width))
        y += 28
    top = y
    if story.folded is not None:
        marks.append(_folded(story.folded, layout.left, y, width))
        y += 44
    tops: list[float] = []
    background: list[Shape] = []
    last_day = None
    for band in story.bands:
        tops.append(y)
        day = moment(band.opened_at).date()
        fork = _fork_words(story, band)
        height, box, made = layout.band(band, y, names_day=last_day is not None and day != last_day, fork=fork)
        last_day = day
        background.append(box)
        marks += made
        y += height + 8
    background += _rails(story.bands, tops, earlier=None if story.folded is None else top + 4)
    if not story.bands:
        text = "Nothing is stored under this thread id."
        marks.append(Mark(text, "", (Text(_MARGIN, y + 4, text, "soft"),)))
        y += 16
    legend, y = _legend(story, y + 2, width)
    background += legend
    shown = len({band.token for band in story.bands if band.token})
    description = f"{counted(shown, 'turn')} shown" + (f", {folded_title(story.folded)} folded" if story.folded else "")
    title = f"Thread {clean(story.thread_id, 120)}"
    return Picture(title, description, width, round(y + _PAD, 1), tuple(background), tuple(marks))


def _fork_words(story: ThreadStory, band: TurnBand) -> str:
    if band.starts_over:
        return "starts from nothing"
    if band.forks_from is None:
        return ""
    origin = story.bands[band.forks_from].token if band.forks_from >= 0 else 0
    return f"forks from turn {origin}" if origin else "from an earlier turn"


# --- what stands around the bands ---


def _header(story: ThreadStory, width: float) -> Mark:
    title = f"Thread {clean(story.thread_id, 200)}"
    shapes: list[Shape] = []
    room = width - 2 * _MARGIN - (110 if story.is_closed else 0)
    shapes.append(Text(_MARGIN, 28, fitting(title, room / 1.06, 16), "ink", 16, bold=True))
    facts = []
    if story.bands:
        turns = {band.token for band in story.bands if band.token}
        total = len(turns) + (story.folded.turns if story.folded else 0)
        steps = sum(step.kind == "nodes" and step.is_finished for band in story.bands for step in band.steps)
        facts += [counted(total, "turn"), counted(steps, "super-step") + (" shown" if story.folded else "")]
        times = [band.opened_at for band in story.bands]
        times += [band.opened_at + band.seconds for band in story.bands if band.seconds is not None]
        first = story.folded.first_at if story.folded else min(times)
        facts.append(span(moment(first), moment(max(times))))
    line = " \N{MIDDLE DOT} ".join(facts)
    if line:
        shapes.append(Text(_MARGIN, 46, line, "soft", 11))
    if story.is_closed:
        shapes += _badge("closed", "cancelled", width - _MARGIN - 74, 14)
    return Mark(
        title, line + (" The thread is closed: new turns are refused." if story.is_closed else ""), tuple(shapes)
    )


def _damage(damaged: Sequence[str], y: float, width: float) -> Mark:
    text = f"{counted(len(damaged), 'part')} of this thread could not be read: {clean(damaged[0], 200)}"
    shown = fitting(text, width - 2 * _MARGIN - 20, 11)
    icon = Icon("error", _MARGIN, y + 3, "failed")
    return Mark(text, clean("; ".join(damaged)), (icon, Text(_MARGIN + 18, y + 13, shown, "soft", 11)))


def _folded(folded: Folded, left: float, y: float, width: float) -> Mark:
    title = folded_title(folded)
    title = title[0].upper() + title[1:]
    kinds = ", ".join(f"{number:,} {name}" for name, number in folded.outcomes)
    if [name for name, _ in folded.outcomes] == ["unknown"]:
        kinds = "plain runs, which announce no end"
    line = " \N{MIDDLE DOT} ".join(filter(None, [kinds, span(moment(folded.first_at), moment(folded.last_at))]))
    name = Text(left + _PAD, y + 22, title, "ink", TEXT, bold=True)
    at = name.bounds[2] + 14
    rest = Text(round(at, 1), y + 22, fitting(line, width - _MARGIN - _PAD - at, 11), "soft", 11)
    return Mark(title, line, (Box(left, y, width - _MARGIN - left, 36, "folded"), name, rest))


def _legend(story: ThreadStory, y: float, page: float) -> tuple[list[Shape], float]:
    """What the signs of the tool calls mean, as far as there are any."""
    present = Counter(call.result for band in story.bands for step in band.steps for call in step.calls)
    x = _MARGIN
    shapes: list[Shape] = []
    if not present:
        return [], y
    for result, words in RESULTS.items():
        if result not in present:
            continue
        width = 20 + width_of(words, SMALL) + 14
        if x + width > page - _MARGIN:
            x, y = _MARGIN, y + 16
        shapes += [Icon(result, x, y, tone_of(result)), Text(x + 16, y + 10, words, "soft", SMALL)]
        x += width
    return shapes, y + 12


def _badge(word: str, style: str, x: float, y: float) -> list[Shape]:
    width = 10 + ICON + 5 + width_of(word, 10.5) + 8
    return [
        Box(x, y, round(width, 1), 18, f"solid {style}", 9.0),
        Icon(style, x + 8, y + 3, "on-solid"),
        Text(x + 8 + ICON + 5, y + 12.8, word, "on-solid", 10.5),
    ]


def _rails(bands: Sequence[TurnBand], tops: Sequence[float], *, earlier: float | None) -> list[Shape]:
    """The history's branches: a dot for each turn, and a line to what it builds on.

    Args:
        bands: The turns.
        tops: Where their bands begin.
        earlier: Where lines to earlier turns begin; `None` if there is nothing to be seen of them.
    """
    shapes: list[Shape] = []
    last_on: dict[int, int] = {}
    dots: list[Shape] = []
    for position, (band, top) in enumerate(zip(bands, tops, strict=True)):
        x, y = _lane_x(band.lane), top + 20
        before = last_on.get(band.lane)
        if band.forks_from is not None:
            start = tops[band.forks_from] + 20 if band.forks_from >= 0 else top if earlier is None else earlier
            from_x = _lane_x(bands[band.forks_from].lane) if band.forks_from >= 0 else x
            bend = f"Q{x:g} {start:g} {x:g} {start + 12:g}" if from_x != x else ""
            shapes.append(Line(f"M{from_x:g} {start:g}{bend}V{y:g}", "rail"))
        elif before is not None:
            style = "rail superseded" if band.takes_over else "rail"
            shapes.append(Line(f"M{x:g} {tops[before] + 20:g}V{y:g}", style))
        elif earlier is not None and position == 0:
            shapes.append(Line(f"M{x:g} {earlier:g}V{y:g}", "rail"))
        last_on[band.lane] = position
        dots.append(Box(x - 5, y - 5, 10, 10, f"dot {band.outcome}", 5.0))
    return shapes + dots


def _lane_x(lane: int) -> float:
    return _MARGIN + 6 + min(lane, LANES_SHOWN - 1) * _LANE


# --- a band ---


class _Layout:
    """Places bands to the right of the rails.

    Args:
        left: Where bands begin.
        width: Of the picture.
    """

    def __init__(self, left: float, width: float) -> None:
        self.left, self._width = left, width
        self._track = left + _PAD + _SIDE
        self._right = width - _MARGIN - _PAD

    def band(self, band: TurnBand, y: float, *, names_day: bool, fork: str) -> tuple[float, Box, list[Mark]]:
        """The height of a band, its ground, and its marks."""
        side, side_height = self._side(band, y, names_day=names_day, fork=fork)
        marks, track_y = [side], y + _PAD
        if band.prompt:
            room = self._right - self._track
            text = f"\N{LEFT DOUBLE QUOTATION MARK}{clean(band.prompt)}\N{RIGHT DOUBLE QUOTATION MARK}"
            line = Text(self._track, track_y + 9, fitting(text, room, 11), "soft quote", 11)
            marks.append(Mark(f"Turn {band.token} was asked", clean(band.prompt), (line,)))
            track_y += 20
        bottom = self._steps(band, track_y, marks)
        height = max(side_height, bottom - y + _PAD)
        return height, Box(self.left, y, self._width - _MARGIN - self.left, height, "band"), marks

    def _side(self, band: TurnBand, y: float, *, names_day: bool, fork: str) -> tuple[Mark, float]:
        """What a band is called, and how it ended."""
        x = self.left + _PAD
        name = f"Turn {band.token}" if band.token else "Edit"
        word = band.outcome
        opened = moment(band.opened_at)
        title = Text(x, y + 24, name, "ink", 13, bold=True)
        shapes: list[Shape] = [title]
        if band.part:
            after = round(title.bounds[2] + 6, 1)
            part = fitting(f"part {band.part}", x + _SIDE - 8 - after, SMALL)
            shapes.append(Text(after, y + 24, part, "soft", SMALL))
        if band.token:
            shapes += _badge(word, band.outcome, x, y + 32)
        at = y + 32 if not band.token else y + 54
        when = f"{opened:%m-%d %H:%M:%S}" if names_day else f"{opened:%H:%M:%S}"
        if band.seconds is not None:
            when += f" \N{MIDDLE DOT} {duration(band.seconds)}"
        lines = [when]
        if band.continues:
            lines.append(f"continues turn {band.continues}")
        if band.takes_over:
            lines.append(f"takes over turn {band.takes_over}")
        if fork:
            lines.append(fork)
        for line in lines:
            at += 13
            shapes.append(Text(x, at - 3, fitting(line, _SIDE - 8, SMALL), "soft", SMALL))
        told = [band.reason, f"opened {opened:%Y-%m-%d %H:%M:%S} UTC", *lines[1:]]
        if band.seconds is not None:
            told.append(f"took {duration(band.seconds)}")
        return Mark(f"{name}: {word}" if band.token else name, "; ".join(told), tuple(shapes)), at - y + 8

    def _steps(self, band: TurnBand, y: float, marks: list[Mark]) -> float:
        """Place the steps from left to right, in as many rows as it takes; gives where they end."""
        columns = [column_of(step) for step in few_steps(band.steps)]
        columns += end_columns(band)
        if not columns:
            text = "wrote nothing"
            marks.append(Mark(text, band.reason, (Text(self._track, y + 14, text, "soft", 11),)))
            return y + 20
        x, row = self._track, 0.0
        lines: list[Shape] = []
        for position, column in enumerate(columns):
            if position and x + column.width > self._right:
                x, y, row = self._track + _GAP, y + row + 10, 0.0
                lines.append(_hook(self._track + 4, y))
            elif position:
                lines.append(Line(f"M{x - _GAP:g} {y + PILL / 2:g}H{x:g}", "wire"))
            marks += [moved(mark, x, y) for mark in column.marks]
            x, row = round(x + column.width + _GAP, 1), max(row, column.height)
        marks.insert(0, Mark("", "", tuple(lines)))
        return y + row


def _hook(x: float, y: float) -> Line:
    middle = y + PILL / 2
    return Line(f"M{x:g} {y - 2:g}V{middle - 4:g}Q{x:g} {middle:g} {x + 4:g} {middle:g}H{x + _GAP - 4:g}", "wire")
