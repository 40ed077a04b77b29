"""Results as plain text for a terminal and as Markdown for the README; nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.peers import LABELS
from tests.benchmarks.results import Result

_LEFT_ALIGNED: Final = frozenset({"work", "target", "met"})


@dataclass(frozen=True, slots=True)
class Setting:
    """Under what the figures were taken.

    Attributes:
        python: Version of the interpreter.
        packages: Version per package that matters.
        contenders: How each contender that took part ran.
        missing: Why each other one did not take part.
        cpus: Processors this process may use.
        file_system: Kind of the file system that was written to.
        floor_seconds: p50 of a durable atomic file and of a durable append, over the whole run.
        load: Processes that waited for a CPU, on average over a minute, at the begin and the end.
        quick: Whether sizes were too small for the figures to mean anything.
        seconds: How long the whole run took.
    """

    python: str
    packages: Mapping[str, str]
    contenders: Mapping[str, str]
    missing: Mapping[str, str]
    cpus: int
    file_system: str
    floor_seconds: Mapping[str, float]
    load: tuple[float, float]
    quick: bool
    seconds: float

    @property
    def busy(self) -> bool:
        """Whether other work was competing for the CPUs when the run began."""
        return self.load[0] > self.cpus / 2


def quantity(value: float | None, unit: str) -> str:
    """A figure with its unit and about three digits: `0.62 ms`, `1.84 MB`, `0.15 %`, `-` for none."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{value:.2%}".replace("%", " %")
    scaled, suffix = (value * 1e3, "ms") if unit == "seconds" else (value / 1e6, "MB")
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:,.{digits}f} {suffix}"


def times(value: float | None) -> str:
    """A ratio with about three digits: `0.62 x`, `12.4 x`, `-` for none."""
    return "-" if value is None else f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} x"


def _table(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Headings and rows; a column for each contender that has a figure in any row."""
    named = {name for result in results for name in result.measured}
    names = [name for name in LABELS if name in named]
    headings = ("work", *(LABELS[name] for name in names), "floor", "x floor", "ratio", "target", "met")
    return [headings, *(_cells(result, names) for result in results)]


def _cells(result: Result, names: Sequence[str]) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: "-"}[result.met]
    return (
        result.work,
        *(quantity(result.measured.get(name), result.unit) for name in names),
        quantity(None if result.floor is None else result.floor.value, result.unit),
        times(result.floor_factor),
        times(result.ratio),
        result.target,
        met,
    )


def _sentences(results: Sequence[Result], setting: Setting) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in setting.packages.items())
    disk = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in setting.floor_seconds.items())
    lines = [
        f"p50, contenders interleaved in one process; {'; '.join(filter(None, setting.contenders.values()))}.",
        f"Python {setting.python}, {packages}; {setting.cpus} CPUs, {setting.file_system}; in the same run {disk}.",
        (
            "`floor` is what the same work asks of anybody, taken in the same rounds; `x floor` is ours against it,"
            " `ratio` what is held against the target."
        ),
    ]
    lines += [f"{LABELS[name]} is left out: {reason}." for name, reason in setting.missing.items()]
    lines += [f"{result.key}: {_about(result)}." for result in results if _about(result)]
    if setting.busy:
        begin, end = setting.load
        lines.append(f"The machine was busy (load {begin:.1f} to {end:.1f}): take these figures again.")
    if setting.quick:
        lines.append("Quick sizes: these figures mean nothing.")
    return lines


def _about(result: Result) -> str:
    floor = "" if result.floor is None else f"floor: {result.floor.of}"
    return "; ".join(filter(None, (floor, result.note)))


def plain(results: Sequence[Result], setting: Setting) -> str:
    """The table for a terminal, what to know about it below."""
    missed = [result.key for result in results if result.met is False]
    verdict = f"Not met: {', '.join(missed)}." if missed else "Every measured target is met."
    above = [result.key for result in results if (result.floor_factor or 0.0) > 2.0]
    far = f"More than twice its floor: {', '.join(above)}." if above else "No row takes more than twice its floor."
    footer = [*_sentences(results, setting), verdict, far, f"Took {setting.seconds:.0f} s."]
    return "\n".join([aligned(_table(results), _LEFT_ALIGNED), "", *footer])


def markdown(results: Sequence[Result], setting: Setting) -> str:
    """The same table, ready for the README."""
    headings, *rows = _table(results)
    ruler = ["---" if heading in _LEFT_ALIGNED else "---:" for heading in headings]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (headings, ruler, *rows))
    return f"{table}\n\n" + "\n\n".join(_sentences(results, setting))


def aligned(table: Sequence[Sequence[str]], left: frozenset[str]) -> str:
    """Headings and rows in columns; those of `left` begin at the left."""
    headings = table[0]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if heading in left else cell.rjust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ).rstrip()

    return "\n".join([line(headings), "  ".join("-" * width for width in widths), *map(line, table[1:])])
