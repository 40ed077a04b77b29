"""One super-step as it is drawn: a pill for each node, its tool calls below, and how long it took. What stands where in
the whole picture is decided in `_picture`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from ._markup import clean, fitting, width_of
from ._shapes import ICON, RESULTS, SMALL, Box, Icon, Line, Mark, Shape, Text, counted, duration, moment
from ._story import Call, CallResult, Step, TurnBand

#: Steps of one turn, and calls of one step, beyond which some are folded into one mark.
STEPS_SHOWN: Final = 24
CALLS_SHOWN: Final = 8
#: How many of a long turn's first steps are shown.
FIRST_STEPS: Final = 3

PILL: Final = 22.0
_CHIP: Final = 20.0
_LABEL_MAX: Final = 150.0
_END_MAX: Final = 540.0
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
#: Results that nobody has to look at.
_FINE: Final = ("ok", "kept")


class Column(NamedTuple):
    """A step's marks as they would stand at the origin."""

    width: float
    height: float
    marks: tuple[Mark, ...]


def few_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps; of very many the first and the last, and of those between them what did not go well."""
    if len(steps) <= STEPS_SHOWN:
        return list(steps)
    last = len(steps) - (STEPS_SHOWN - FIRST_STEPS - 1)
    hidden = steps[FIRST_STEPS:last]
    seconds = [step.seconds for step in hidden if step.seconds is not None]
    odd = Counter(call.result for step in hidden for call in step.calls if call.result not in _FINE)
    calls = tuple(
        Call(counted(number, "call"), result, f"{RESULTS[result]}, in the steps that are not shown")
        for result, number in odd.items()
    )
    fold = Step("update", (f"{_ELLIPSIS} {len(hidden)} steps",), sum(seconds) if seconds else None, calls)
    return [*steps[:FIRST_STEPS], fold, *steps[last:]]


def column_of(step: Step) -> Column:
    """A step: a pill for each node, the tool calls below, and how long it took."""
    kind = {"input": "pill input", "update": "pill update"}.get(step.kind, "pill")
    style = kind if step.is_finished else f"{kind} begun"
    tally = Counter(step.names)
    names = [name if number == 1 else f"{number} \N{MULTIPLICATION SIGN} {name}" for name, number in tally.items()]
    if len(names) > CALLS_SHOWN:
        names = [*names[: CALLS_SHOWN - 1], f"+{len(names) - CALLS_SHOWN + 1} nodes"]
    calls = _few_calls(step.calls)
    took = "" if step.seconds is None else duration(step.seconds)
    inner = f"+{step.inner} inner" if step.inner else ""
    texts = [fitting(clean(name), _LABEL_MAX, 11.5, mono=True) for name in names]
    widths = [width_of(text, 11.5, mono=True) + 18 for text in texts]
    labels = [fitting(clean(call.name), _LABEL_MAX, 11, mono=True) for call in calls]
    times = ["" if call.seconds is None else duration(call.seconds) for call in calls]
    for label, time in zip(labels, times, strict=True):
        widths.append(width_of(label, 11, mono=True) + 31 + (width_of(time, SMALL) + 8 if time else 0))
    known = [call.seconds for call in calls if call.seconds is not None]
    longest = (max(known) or 1.0) if len(known) > 1 else None  # one alone has nothing to be compared with
    widths += [width_of(text, SMALL) + 4 for text in (took, inner)]
    width = round(max(40.0, *widths), 1)
    marks, y = [], 0.0
    about = _about(step)
    for name, text in zip(names, texts, strict=True):
        middle = round((width - width_of(text, 11.5, mono=True)) / 2, 1)
        shown = Text(middle, y + 15, text, "ink", 11.5, mono=True)
        marks.append(Mark(clean(name), about, (Box(0, y, width, PILL, style, PILL / 2), shown)))
        y += PILL + 4
    for call, label, time in zip(calls, labels, times, strict=True):
        share = None if longest is None or call.seconds is None else call.seconds / longest
        marks.append(_chip(call, (label, time), (width, share), y))
        y += _CHIP + 4
    for text in filter(None, (took, inner)):
        x = round((width - width_of(text, SMALL)) / 2, 1)
        marks.append(Mark("", "", (Text(x, y + 8, text, "soft", SMALL),)))
        y += 13
    return Column(width, y, tuple(marks))


def _about(step: Step) -> str:
    told = [{"input": "input", "update": "written by hand or by a guard"}.get(step.kind, "super-step")]
    if not step.is_finished:
        told.append("not finished: there is no checkpoint of it")
    if step.seconds is not None:
        told.append(f"took {duration(step.seconds)}")
    if step.at is not None:
        told.append(f"stored {moment(step.at):%H:%M:%S.%f} UTC")
    if step.is_several:
        told.append("several super-steps, stored as one")
    if step.inner:
        told.append(f"{counted(step.inner, 'checkpoint')} of subgraphs in it")
    if step.checkpoint_id:
        told.append(f"checkpoint {step.checkpoint_id}")
    return "; ".join(told)


def _few_calls(calls: Sequence[Call]) -> list[Call]:
    """The calls; of very many those first of all that did not go well."""
    if len(calls) <= CALLS_SHOWN:
        return list(calls)
    order = sorted(range(len(calls)), key=lambda place: calls[place].result in _FINE)
    shown = sorted(order[: CALLS_SHOWN - 1])
    rest = [calls[place].result for place in order[CALLS_SHOWN - 1 :]]
    note = ", ".join(f"{number} {RESULTS[result]}" for result, number in Counter(rest).items())
    return [*(calls[place] for place in shown), Call(f"+{len(rest)} more", rest[0], note)]


def _chip(call: Call, texts: tuple[str, str], size: tuple[float, float | None], y: float) -> Mark:
    """A call: its name and how long it took, on ground that is tinted for its share of the longest beside it."""
    (label, time), (width, share), tone = texts, size, tone_of(call.result)
    shapes: list[Shape] = [
        Box(0, y, width, _CHIP, f"chip {tone}", 5.0),
        Icon(call.result, 6, y + 4, tone),
        Text(23, y + 14, label, "ink", 11, mono=True),
    ]
    if share is not None:
        shapes.insert(1, Box(1, y + 1, round(max(2.0, share * (width - 2)), 1), _CHIP - 2, f"bar {tone}", 4.0))
    if time:
        shapes.append(Text(round(width - width_of(time, SMALL) - 6, 1), y + 14, time, "soft", SMALL))
    note = call.note if not time else f"{call.note}, in {time}"
    description = f"{note}. {clean(call.detail)}" if call.detail else note
    return Mark(f"{clean(call.name)}: {RESULTS[call.result]}", description, tuple(shapes))


def tone_of(result: CallResult) -> str:
    """The style of a result."""
    return {
        "ok": "completed",
        "error": "failed",
        "unknown": "unknown",
        "not run": "cancelled",
        "paused": "paused",
        "running": "running",
        "kept": "completed",
        "told": "unknown",
    }[result]


def end_columns(band: TurnBand) -> list[Column]:
    """What stands behind the last step of a turn: how it ended, and what it tried afterwards."""
    late = "it was over by then, so nothing of this was stored"
    ends = [(band.end, band.left_as or band.outcome, band.reason), (band.refused, "refused", late)]
    return [_end_column(clean(text), style, about) for text, style, about in ends if text]


def _end_column(words: str, style: str, about: str) -> Column:
    text = fitting(words, _END_MAX, 11)
    width = round(8 + ICON + 5 + width_of(text, 11) + 10, 1)
    shapes: tuple[Shape, ...] = (
        Box(0, 0, width, PILL, f"end {style}", 4.0),
        Icon(style, 8, 5, style),
        Text(8 + ICON + 5, 15, text, "ink", 11),
    )
    return Column(width, PILL, (Mark(words, about, shapes),))


def moved(mark: Mark, x: float, y: float) -> Mark:
    """A mark somewhere else."""
    return mark._replace(shapes=tuple(_moved_shape(shape, x, y) for shape in mark.shapes))


def _moved_shape(shape: Shape, x: float, y: float) -> Shape:
    if isinstance(shape, Line):
        return shape  # columns have none
    return shape._replace(x=round(shape.x + x, 1), y=round(shape.y + y, 1))
