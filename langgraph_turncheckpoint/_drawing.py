"""A laid-out picture as SVG text, and its story as a table and in plain text. No script, nothing from elsewhere; every
colour is there twice, as an attribute for renderers that know no style sheet, and in a style sheet that follows the
reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ._markup import TITLE_LIMIT, TONES, Cell, clean, escape, table
from ._shapes import RESULTS, Box, Icon, Line, Mark, Picture, Shape, duration, folded_title, moment
from ._story import Call, Step, ThreadStory, TurnBand

_SANS: Final = "system-ui,-apple-system,'Segoe UI','Noto Sans','DejaVu Sans',Helvetica,Arial,sans-serif"
_MONO: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"


class _Paint(NamedTuple):
    """What a style looks like on light and on dark ground; empty is as it was."""

    fill: str = ""
    stroke: str = ""
    dark_fill: str = ""
    dark_stroke: str = ""
    more: str = ""


_PAINTS: Final = {
    "card": _Paint("#ffffff", "#d1d9e0", "#0d1117", "#30363d"),
    "band": _Paint("#f6f8fa", "none", "#161b22", "none"),
    "folded": _Paint("none", "#afb8c1", "none", "#484f58", 'stroke-dasharray="5 4"'),
    "ink": _Paint("#1f2328", "", "#e6edf3"),
    "soft": _Paint("#59636e", "", "#9198a1"),
    "on-solid": _Paint("#ffffff"),
    "pill": _Paint("#ffffff", "#8c959f", "#21262d", "#6e7681"),
    "input": _Paint("#ddf4ff", "#54aeff", "#0c2d4d", "#316dca"),
    "update": _Paint("#eff2f5", "#afb8c1", "#161b22", "#6e7681"),
    "begun": _Paint("none", "", "none", "", 'stroke-dasharray="4 3"'),
    "bar": _Paint(more='fill-opacity="0.16"'),
    "chip": _Paint("#ffffff", "", "#0d1117", ""),
    "end": _Paint("#ffffff", "", "#0d1117", ""),
    "rail": _Paint("none", "#afb8c1", "none", "#484f58", 'stroke-width="2"'),
    "wire": _Paint("none", "#8c959f", "none", "#6e7681"),
}
#: The styles in which a tone is a fill; everywhere else it is the colour of the outline.
_FILLED: Final = frozenset({"solid", "dot", "bar"})

_ICONS: Final = {
    "ok": "M2 6.5 5 9.5 10 3",
    "completed": "M2 6.5 5 9.5 10 3",
    "kept": "M9.5 4.5A4 4 0 1 0 10 7M10 2V4.7H7.3",
    "error": "M3 3 9 9M9 3 3 9",
    "failed": "M3 3 9 9M9 3 3 9",
    "interrupted": "M7 1 3 6.8H6L5 11 9 5H6Z",
    "superseded": "M2 3V6.5H9M6.5 4 9.2 6.5 6.5 9",
    "unknown": "M3.8 4.2A2.3 2.3 0 1 1 6 6.6V7.6M6 9.6V10",
    "told": "M1.5 2.5H10.5V8H6L3.5 10.5V8H1.5Z",
    "unfinished": "M2 6H4.5M7.5 6H10M5.2 9 6.8 3",
    "imported": "M6 1.5V7.5M3.2 5 6 7.8 8.8 5M2 10.5H10",
    "refused": "M6 1.5A4.5 4.5 0 1 1 6 10.5 4.5 4.5 0 1 1 6 1.5M2.9 9.1 9.1 2.9",
    "not run": "M2.5 6H9.5",
    "cancelled": "M2.5 6H9.5",
    "paused": "M4 3V9M8 3V9",
    "running": "M4 2.5 9.5 6 4 9.5Z",
    "edit": "M2.5 9.5 3 7.5 8 2.5 9.5 4 4.5 9Z",
}

#: Around an inline picture, what a dark notebook says about itself where the system does not say the same.
_DARK_PAGES: Final = ('body[data-jp-theme-light="false"]', "body.vscode-dark", '[data-color-mode="dark"]')
#: And what holds where no light one says so.
_NOT_LIGHT: Final = 'html:not([data-color-mode="light"]) body:not([data-jp-theme-light="true"]):not(.vscode-light)'


def svg_of(picture: Picture, *, standalone: bool = True) -> str:
    """The picture as one SVG element.

    Args:
        picture: The picture.
        standalone: Whether it is a file of its own; else it is to stand in a page, and follows the page's theme where
            the page tells of it.
    """
    label = escape(f"{picture.title}: {picture.description}")
    size = f'width="{picture.width:g}" height="{picture.height:g}" viewBox="0 0 {picture.width:g} {picture.height:g}"'
    look = f'font-family="{escape(_SANS)}" direction="ltr" style="max-width:100%;height:auto"'
    role = f'role="graphics-document img" aria-label="{label}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tcp" {size} {role} {look}>',
        f"<title>{escape(picture.title)}</title>",
        f"<desc>{escape(picture.description)}</desc>",
        f"<style>{_style_sheet(is_inline=not standalone)}</style>",
        _shape(Box(0.5, 0.5, picture.width - 1, picture.height - 1, "card", 8.0)),
        '<g aria-hidden="true">',
        *map(_shape, picture.background),
        "</g>",
    ]
    for mark in picture.marks:
        lines += _mark(mark)
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _mark(mark: Mark) -> list[str]:
    shapes = "".join(map(_shape, mark.shapes))
    if not mark.title:
        return [f'<g aria-hidden="true">{shapes}</g>'] if shapes else []
    told = clean(mark.description, 2 * TITLE_LIMIT)
    described = f"<desc>{escape(told)}</desc>" if told else ""
    tip = "\n".join(map(escape, [mark.title, *([told] if told else [])]))
    group = f'<g class="mark" role="img" tabindex="0" aria-label="{escape(mark.title)}">'
    return [f"{group}<title>{tip}</title>{described}{shapes}</g>"]


def _shape(shape: Shape) -> str:
    style = f'class="{shape.style}" {_attributes(shape.style)}'.rstrip()
    if isinstance(shape, Box):
        place = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"'
        return f'<rect {place} rx="{shape.radius:g}" {style}/>'
    if isinstance(shape, Line):
        return f'<path d="{shape.path}" {style}/>'
    if isinstance(shape, Icon):
        colour = "#ffffff" if shape.style == "on-solid" else TONES[shape.style][0]
        drawn = 'fill="none" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round"'
        where = f'transform="translate({shape.x:g} {shape.y:g})"'
        return f'<path class="icon {shape.style}" d="{_ICONS[shape.name]}" {where} stroke="{colour}" {drawn}/>'
    font = f' font-family="{escape(_MONO)}"' if shape.mono else ""
    font += ' font-weight="600"' if shape.bold else ""
    font += ' font-style="italic"' if "quote" in shape.style else ""
    return f'<text x="{shape.x:g}" y="{shape.y:g}" font-size="{shape.size:g}"{font} {style}>{escape(shape.text)}</text>'


def _attributes(style: str) -> str:
    """The colours of a style as attributes, for the light scheme."""
    names = style.split()
    paints = [_PAINTS[name] for name in names if name in _PAINTS]
    fill = next((paint.fill for paint in reversed(paints) if paint.fill), "")
    stroke = next((paint.stroke for paint in reversed(paints) if paint.stroke), "")
    tone = next((TONES[name][0] for name in names if name in TONES), "")
    if tone:
        fill, stroke = (tone, stroke) if _FILLED.intersection(names) else (fill, tone)
    more = " ".join(paint.more for paint in paints if paint.more)
    parts = [f'{key}="{value}"' for key, value in (("fill", fill), ("stroke", stroke)) if value]
    return " ".join([*parts, *([more] if more else [])])


def _style_sheet(*, is_inline: bool) -> str:
    focus = ".tcp .mark:focus{outline:2px solid #0969da;outline-offset:2px}"
    by_system = _dark_rules(f"{_NOT_LIGHT} .tcp" if is_inline else ".tcp")
    by_page = (_dark_rules(f"{page} .tcp") for page in (_DARK_PAGES if is_inline else ()))
    return "".join([focus, "@media (prefers-color-scheme:dark){", by_system, "}", *by_page])


def _dark_rules(where: str) -> str:
    """The dark colours; each selector of each rule holds below `where` only."""
    made = []
    for styles, declared in _dark_styles():
        selectors = ",".join(f"{where} {style}" for style in styles)
        made.append(f"{selectors}{{{declared}}}")
    return "".join(made)


def _dark_styles() -> Iterable[tuple[tuple[str, ...], str]]:
    for name, paint in _PAINTS.items():
        parts = [("fill", paint.dark_fill), ("stroke", paint.dark_stroke)]
        if declared := ";".join(f"{key}:{value}" for key, value in parts if value):
            yield (f".{name}",), declared
    for name, (tone, bright) in TONES.items():
        yield tuple(f".{kind}.{name}" for kind in ("chip", "end", "icon", "rail")), f"stroke:{bright}"
        yield tuple(f".{kind}.{name}" for kind in ("dot", "bar")), f"fill:{bright}"
        yield (f".solid.{name}",), f"fill:{tone}"


def table_of(story: ThreadStory) -> str:
    """The turns of a thread as an HTML table, for those who cannot or would not look at a picture."""
    rows: list[list[Cell | str]] = []
    for band in story.bands:
        steps = ", ".join(" + ".join(step.names) for step in band.steps) or "-"
        calls = ", ".join(
            f"{call.name}: {RESULTS[call.result]}{_in_time(call)}" for step in band.steps for call in step.calls
        )
        colour = TONES[band.outcome][0]
        took = "-" if band.seconds is None else duration(band.seconds)
        rows.append([_name(band) or "-", Cell(band.outcome, colour, band.reason), took, steps, calls or "-"])
    note = f"Not listed: {folded_title(story.folded)}." if story.folded else ""
    return table(
        f"Turns of thread {story.thread_id}", ["turn", "state", "took", "steps", "tool calls"], rows, note=note
    )


def text_of(story: ThreadStory) -> str:
    """The turns of a thread as plain text, a line each."""
    lines = [f"Thread {clean(story.thread_id)}" + (" (closed)" if story.is_closed else "")]
    if story.folded is not None:
        lines.append(f"  {folded_title(story.folded)}")
    for band in story.bands:
        name = f"turn {_name(band)}" if band.token else "edit"
        word = "" if band.outcome == "edit" else band.outcome
        took = "" if band.seconds is None else duration(band.seconds)
        ends = [clean(end) for end in (band.end, band.refused) if end]
        steps = " > ".join([*map(_step_text, band.steps), *ends]) or "wrote nothing"
        lines.append(f"  {name:<9} {word:<12} {moment(band.opened_at):%Y-%m-%d %H:%M:%S} {took:>8}  {steps}")
    if not story.bands:
        lines.append("  nothing is stored under this thread id")
    lines += [f"  not readable: {clean(reason)}" for reason in story.damaged]
    return "\n".join(lines) + "\n"


def _name(band: TurnBand) -> str:
    """The number of a turn, and of its part; empty outside any turn."""
    return f"{band.token or ''}" + (f".{band.part}" if band.part else "")


def _in_time(call: Call) -> str:
    return "" if call.seconds is None else f" ({duration(call.seconds)})"


def _step_text(step: Step) -> str:
    calls = ", ".join(f"{clean(call.name)}: {call.result}{_in_time(call)}" for call in step.calls)
    names = "+".join(map(clean, step.names)) + ("" if step.is_finished else "?")
    return f"{names} [{calls}]" if calls else names


def page_of(title: str, body: str) -> str:
    """A whole HTML page around something, light or dark as the reader has it."""
    style = "body{margin:1em;font-family:system-ui,sans-serif;background:#fff;color:#1f2328}"
    style += "@media (prefers-color-scheme:dark){body{background:#010409;color:#e6edf3}}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
