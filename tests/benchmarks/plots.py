"""Plots for the README, of what a run has found. Nothing is measured here.

They stand on no background of their own and use no black and no white, so that they can be read on a light page and
on a dark one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.benchmarks.curves import Curve
from tests.benchmarks.kept import Run
from tests.benchmarks.peers import LABELS
from tests.benchmarks.report import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK: Final = "#7f8791"
_GRID: Final = "#7f879140"
_SIZE_INCHES: Final = (7.4, 3.9)
_DPI: Final = 150
_COLORS: Final = 64

#: Bars of ours with its guard.
_GUARDED: Final = "#f0925a"

#: Who sees a plot has not read the text above the table.
_LABELS: Final = {**LABELS, "ours": "TurnCheckpointSaver"}

_NOT_DURABLE: Final = frozenset({"objectstorage", "inmemory"})
_MARKED_MEANS: Final = "* does not wait for the disk"

#: Nearest two labels at the ends of lines may come, as a share of the height.
_LABEL_DISTANCE: Final = 0.062


class Look(NamedTuple):
    """How a contender is drawn.

    Attributes:
        color: Of its line or bar; about as far from white as from black.
        style: Of its line.
        width: Of its line, in points.
    """

    color: str
    style: str = "-"
    width: float = 1.8


_LOOKS: Final[Mapping[str, Look]] = {
    "ours": Look("#e8590c", width=3.0),
    "sqlite": Look("#3b82c4"),
    "postgres": Look("#8a63d2"),
    "objectstorage": Look("#2f9e6e"),
    "inmemory": Look(_INK, "--", 1.4),
    "floor": Look("#e8590c", ":", 1.4),
}


class PlotsUnavailableError(RuntimeError):
    """Matplotlib is not installed."""


def draw(run: Run, directory: Path) -> list[Path]:
    """Draw every plot the run has the figures for; gives what was written.

    Raises:
        PlotsUnavailableError: There is no matplotlib.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotsUnavailableError('plots need matplotlib: pip install -e ".[bench]"') from error
    directory.mkdir(parents=True, exist_ok=True)
    plots: tuple[tuple[str, Callable[[Run, Path], bool]], ...] = (
        ("step-time.png", _draw_step_seconds),
        ("disk-use.png", _draw_stored_bytes),
        ("agent-turn.png", _draw_added),
    )
    return [directory / name for name, drawn in plots if drawn(run, directory / name)]


def _draw_step_seconds(run: Run, path: Path) -> bool:
    curve = run.curves.get("step-seconds")
    if not curve:
        return False
    with _axes(path, "Time of one super-step, by messages in the thread") as axes:
        _lines(axes, curve, {**_marked(), "floor": "what it asks of anybody"})
        axes.set_xlabel(f"messages in the thread ({_MARKED_MEANS})")
        axes.yaxis.set_major_formatter(lambda value, _: _short(value, "seconds"))
    return True


def _draw_stored_bytes(run: Run, path: Path) -> bool:
    curve = run.curves.get("stored-bytes")
    if not curve:
        return False
    with _axes(path, "Bytes on disk of one thread, by turns (two messages of 600 bytes each)") as axes:
        _lines(axes, curve, _LABELS)
        axes.set_xlabel("turns")
        axes.yaxis.set_major_formatter(lambda value, _: _short(value, "bytes"))
    return True


def _draw_added(run: Run, path: Path) -> bool:
    rows = {result.key: result for result in run.results}
    if "added" not in rows:
        return False
    added = rows["added"].measured
    bars = [(label, added[name], _LOOKS[name].color) for name, label in _marked().items() if name in added]
    guarded = (("with guard.attach", "added-attach"), ("with guard.middleware()", "added-middleware"))
    bars[1:1] = [
        (label, rows[key].measured["ours"], _GUARDED)
        for label, key in guarded
        if key in rows and "ours" in rows[key].measured
    ]
    with _axes(path, "Time a checkpointer adds to one turn of an agent with one tool call") as axes:
        axes.set_xlabel(_MARKED_MEANS)
        names, values, colors = zip(*reversed(bars), strict=True)
        drawn = axes.barh(names, values, color=colors, height=0.62)
        axes.bar_label(drawn, [quantity(value, "seconds") for value in values], padding=5, color=_INK, fontsize=9)
        axes.set_xlim(min(0.0, *values), max(values) * 1.16)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value, "seconds"))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0, labelsize=9.5)
    return True


@contextmanager
def _axes(path: Path, title: str) -> Iterator[Axes]:
    """Empty axes in the style of all plots, written to `path` at the end."""
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", color=_INK, fontsize=10.5, fontweight="bold")
    axes = figure.add_subplot()
    axes.xaxis.label.set_color(_INK)
    axes.tick_params(colors=_INK, which="both", labelsize=9)
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_INK)
    yield axes
    drawn = BytesIO()
    figure.savefig(drawn, format="png", transparent=True)
    with Image.open(drawn) as image:
        # Few colours, most of them edges of letters: a third of the bytes, and no difference to see.
        image.quantize(_COLORS, method=Image.Quantize.FASTOCTREE).save(path, optimize=True)


def _marked() -> dict[str, str]:
    """The headings, with a mark on those who do not wait for the disk."""
    return {name: f"{label}*" if name in _NOT_DURABLE else label for name, label in _LABELS.items()}


def _lines(axes: Axes, curve: Curve, labels: Mapping[str, str]) -> None:
    """A line for each that has a label, over two logarithmic scales, with the label at its end."""
    shown = [name for name in labels if curve.get(name)]
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name in shown:
        look = _LOOKS[name]
        xs, ys = zip(*curve[name], strict=True)
        marker: dict[str, Any] = {} if name == "floor" else {"marker": "o", "markersize": look.width + 1.5}
        axes.plot(
            xs, ys, look.style, color=look.color, linewidth=look.width, zorder=3 if name == "ours" else 2, **marker
        )
    values = [y for name in shown for _, y in curve[name]]
    axes.set_ylim(min(values) / 1.5, max(values) * 1.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    ends = _apart([_height(axes, curve[name][-1][1]) for name in shown])
    for name, height in zip(shown, ends, strict=True):
        axes.annotate(
            labels[name],
            (1.015, height),
            xycoords="axes fraction",
            color=_LOOKS[name].color,
            fontsize=9.5,
            fontweight="bold" if name == "ours" else "normal",
            va="center",
            annotation_clip=False,
        )


def _height(axes: Axes, value: float) -> float:
    """Where a value is on a logarithmic scale, as a share of the height."""
    low, high = axes.get_ylim()
    return log10(value / low) / log10(high / low)


def _apart(heights: Sequence[float]) -> list[float]:
    """The same heights, moved so far that no two labels overlap, their order kept."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    for _ in range(len(order) ** 2):
        for lower, upper in pairwise(order):
            missing = _LABEL_DISTANCE - (placed[upper] - placed[lower])
            if missing > 1e-9:
                placed[lower] -= missing / 2
                placed[upper] += missing / 2
    above = max(max(placed) - 1.0, 0.0)
    return [height - above for height in placed]


def _short(value: float, unit: str) -> str:
    """A round figure of an axis: `10 ms`, `1 MB`."""
    steps = ((1.0, "s"), (1e-3, "ms")) if unit == "seconds" else ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    for size, suffix in steps:
        if value >= size * 0.999:
            return f"{value / size:g} {suffix}"
    return "0" if value == 0 else f"{value / steps[-1][0]:g} {steps[-1][1]}"
