"""What a picture is put together from: boxes, lines, signs and texts with their places, the marks that they make up,
and the words that several of them use. Nothing is placed here.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final, NamedTuple, TypeAlias

from ._markup import width_of
from ._story import CallResult, Folded

#: Font sizes, and the side of a sign.
TEXT: Final = 12.0
SMALL: Final = 10.0
ICON: Final = 12.0

#: The words for results, as they are shown; those for outcomes are their names.
RESULTS: Final[dict[CallResult, str]] = {
    "ok": "returned a result",
    "error": "error",
    "unknown": "outcome unknown",
    "not run": "not run",
    "paused": "waits for a person",
    "running": "running",
    "kept": "result kept, not run again",
    "told": "not run again, model is told",
}


class Box(NamedTuple):
    """A rectangle with round corners, drawn in a style."""

    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 6.0


class Line(NamedTuple):
    """A path, in SVG's words for one."""

    path: str
    style: str


class Icon(NamedTuple):
    """A little sign of 12 by 12; `x` and `y` are its upper left corner."""

    name: str
    x: float
    y: float
    style: str


class Text(NamedTuple):
    """A line of text on a baseline; `x` is its left edge."""

    x: float
    y: float
    text: str
    style: str = "ink"
    size: float = TEXT
    mono: bool = False
    bold: bool = False

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what it may cover."""
        width = width_of(self.text, self.size, mono=self.mono) * (1.06 if self.bold else 1.0)
        return self.x, self.y - 0.8 * self.size, self.x + width, self.y + 0.25 * self.size


Shape: TypeAlias = Box | Line | Icon | Text


class Mark(NamedTuple):
    """What belongs together and has a name; marks can be reached with the keyboard."""

    title: str
    description: str
    shapes: tuple[Shape, ...]


class Picture(NamedTuple):
    """A whole picture; what is not in a mark is decoration."""

    title: str
    description: str
    width: float
    height: float
    background: tuple[Shape, ...]
    marks: tuple[Mark, ...]


def moment(seconds: float) -> datetime:
    """A time in UTC."""
    return datetime.fromtimestamp(max(0.0, seconds), tz=timezone.utc)


def duration(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.00095 else "<1 ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 72 else f"{hours // 24} d {hours % 24} h"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def folded_title(folded: Folded) -> str:
    """What is not shown one by one."""
    told = [counted(folded.turns, "earlier turn")] if folded.turns else []
    told += [counted(folded.parts, "earlier part") + " of an imported turn"] if folded.parts else []
    return " and ".join(told) or "earlier edits"


def span(first: datetime, last: datetime) -> str:
    """From when to when, in UTC."""
    if first.date() == last.date():
        return f"{first:%Y-%m-%d}, {first:%H:%M:%S} to {last:%H:%M:%S} UTC"
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
