"""Text of strangers in markup: cleaned, shortened, measured, escaped; and the small tables that notebooks show. What is
in them is decided elsewhere; no file, no LangGraph.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

#: Longest text of a hover title or a description, in characters.
TITLE_LIMIT: Final = 300

#: A colour for each outcome that carries white text, and one of the same hue that reads on a dark ground.
TONES: Final = {
    "completed": ("#1a7f37", "#3fb950"),
    "failed": ("#cf222e", "#f85149"),
    "interrupted": ("#a40e26", "#ff7b72"),
    "superseded": ("#8250df", "#a371f7"),
    "cancelled": ("#656d76", "#9198a1"),
    "paused": ("#9a6700", "#d29922"),
    "running": ("#0969da", "#58a6ff"),
    "unfinished": ("#bc4c00", "#f0883e"),
    "unknown": ("#bc4c00", "#f0883e"),
    "imported": ("#1b7c83", "#39c5cf"),
    "refused": ("#a40e26", "#ff7b72"),
    "edit": ("#656d76", "#9198a1"),
}

_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
#: It makes one sign of several, as in many emoji.
_JOINER: Final = "\N{ZERO WIDTH JOINER}"
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
#: Controls, surrogates, private and unassigned characters, and what changes the direction of the text around it.
_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Co", "Cn", "Cf"})

_NARROW: Final = frozenset("ijlt.,:;'|!I()[]{} `-/\\")
_BROAD: Final = frozenset("mwMW@%&<>+=~#")


def clean(text: str, limit: int = TITLE_LIMIT) -> str:
    """`text` on one line, at most `limit` characters long, with nothing in it that cannot be seen or stored."""
    line = _printable(" ".join(text[: 8 * limit].split()))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + _ELLIPSIS


def _printable(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _REPLACED if char != _JOINER and unicodedata.category(char) in _UNPRINTABLE else char for char in text
    )


def escape(text: str) -> str:
    """`text` as it may stand in markup, between tags and in quotes; nothing that XML forbids is left in it."""
    return html.escape(_printable(text), quote=True)


def width_of(text: str, size: float, *, mono: bool = False) -> float:
    """How wide a text can get at a font size, in the same unit. Rather too wide than too narrow, whatever the font."""
    return size * sum(map(_mono_width if mono else _sans_width, text))


def _mono_width(char: str) -> float:
    return 0.62 if char < "\u0250" else _foreign_width(char)


def _sans_width(char: str) -> float:
    if char >= "\u0250":
        return _foreign_width(char)
    if char in _NARROW:
        return 0.4
    if char in _BROAD:
        return 1.0
    return 0.78 if char.isupper() else 0.65


def _foreign_width(char: str) -> float:
    if unicodedata.combining(char):
        return 0.0
    if unicodedata.east_asian_width(char) in "WF":
        return 1.3
    return 0.9 if char < "\u1e00" or char == _ELLIPSIS else 1.1


def fitting(text: str, width: float, size: float, *, mono: bool = False) -> str:
    """As much of a text as fits into a width, with an ellipsis for what does not."""
    if width_of(text, size, mono=mono) <= width:
        return text
    room, kept = width - width_of(_ELLIPSIS, size, mono=mono), 0
    for char in text:
        room -= width_of(char, size, mono=mono)
        if room < 0:
            break
        kept += 1
    return text[:kept].rstrip() + _ELLIPSIS


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: What it says.
        colour: Of the dot in front of it, if it has one.
        title: What is shown on hovering.
    """

    text: str
    colour: str = ""
    title: str = ""


_TABLE: Final = "border-collapse:collapse;font-size:.9em;margin:.3em 0;color:inherit;background:transparent"
_CAPTION: Final = "text-align:left;font-weight:600;padding:.2em 0;caption-side:top;color:inherit"
_CELL: Final = "text-align:left;padding:.2em .9em .2em 0;border-bottom:1px solid rgba(128,128,128,.35);color:inherit"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell | str]], *, note: str = "") -> str:
    """An HTML table that takes its colours from the page, so that it is readable on a light and on a dark one."""
    lines = [f'<table style="{_TABLE}"><caption style="{_CAPTION}">{escape(clean(caption))}</caption>', "<thead><tr>"]
    lines += [f'<th scope="col" style="{_CELL}">{escape(head)}</th>' for head in heads]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        cells = [_cell(cell if isinstance(cell, Cell) else Cell(cell)) for cell in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines.append("</tbody></table>")
    if note:
        lines.append(f'<div style="font-size:.85em;opacity:.8">{escape(clean(note))}</div>')
    return "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = clean(cell.text, 80)
    title = clean(cell.title or (cell.text if text != cell.text else ""))
    dot = f'<span aria-hidden="true" style="color:{cell.colour}">&#9679;</span> ' if cell.colour else ""
    told = f' title="{escape(title)}"' if title else ""
    return f'<td style="{_CELL}"{told}>{dot}{escape(text)}</td>'
