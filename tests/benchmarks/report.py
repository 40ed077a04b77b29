"""Results as plain text for a terminal, Markdown for the README, JSON for a machine; nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.results import Result

_HEADINGS: Final = ("work", "ours", "SqliteSaver", "InMemorySaver", "ratio", "target", "met", "x floor")
_LEFT_ALIGNED: Final = frozenset({"work", "target", "met"})


@dataclass(frozen=True, slots=True)
class Setting:
    """Under what the figures were taken.

    Attributes:
        python: Version of the interpreter.
        packages: Version per package that matters.
        cpus: Processors this process may use.
        file_system: Kind of the file system that was written to.
        floor_seconds: p50 of a durable atomic file and of a durable append, over the whole run.
        load: Processes that waited for a CPU, on average over a minute, at the begin and the end.
        quick: Whether sizes were too small for the figures to mean anything.
        seconds: How long the whole run took.
    """

    python: str
    packages: Mapping[str, str]
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


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} x"


def _cells(result: Result) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: "-"}[result.met]
    return (
        result.work,
        *(quantity(result.measured.get(name), result.unit) for name in ("ours", "sqlite", "inmemory")),
        _factor(result.ratio),
        result.target,
        met,
        _factor(result.floor_factor),
    )


def _sentences(results: Sequence[Result], setting: Setting) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in setting.packages.items())
    floors = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in setting.floor_seconds.items())
    lines = [
        (
            "p50, contenders interleaved in one process; ours with fsync on, SqliteSaver in WAL mode"
            f" with synchronous=FULL. Python {setting.python}, {packages};"
            f" {setting.cpus} CPUs, {setting.file_system}."
        ),
        (
            f"Floor of this disk in the same run: {floors}. `x floor` is ours against the durable writes"
            " that a row needs at least, timed in the same rounds: for a super-step one append and one"
            " atomic file."
        ),
    ]
    lines += [f"{result.key}: {result.note}." for result in results if result.note]
    if setting.busy:
        begin, end = setting.load
        lines.append(f"The machine was busy (load {begin:.1f} to {end:.1f}): take these figures again.")
    if setting.quick:
        lines.append("Quick sizes: these figures mean nothing.")
    return lines


def plain(results: Sequence[Result], setting: Setting) -> str:
    """The table for a terminal, what to know about it below."""
    rows = [_HEADINGS, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if heading in _LEFT_ALIGNED else cell.rjust(width)
            for cell, width, heading in zip(row, widths, _HEADINGS, strict=True)
        ).rstrip()

    ruler = "  ".join("-" * width for width in widths)
    missed = [result.key for result in results if result.met is False]
    verdict = f"Not met: {', '.join(missed)}." if missed else "Every measured target is met."
    footer = [*_sentences(results, setting), verdict, f"Took {setting.seconds:.0f} s."]
    return "\n".join([line(rows[0]), ruler, *(line(row) for row in rows[1:]), "", *footer])


def markdown(results: Sequence[Result], setting: Setting) -> str:
    """The same table, ready for the README."""
    aligned = ["---" if heading in _LEFT_ALIGNED else "---:" for heading in _HEADINGS]
    rows = [_HEADINGS, aligned, *(_cells(result) for result in results)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{table}\n\n" + "\n\n".join(_sentences(results, setting))


def as_json(results: Sequence[Result], setting: Setting) -> dict[str, Any]:
    """Everything that was found, in base units, for comparing runs."""
    return {
        "setting": {
            "python": setting.python,
            "packages": dict(setting.packages),
            "cpus": setting.cpus,
            "file_system": setting.file_system,
            "floor_seconds": dict(setting.floor_seconds),
            "load": list(setting.load),
            "quick": setting.quick,
            "seconds": setting.seconds,
        },
        "rows": [
            {
                "key": result.key,
                "work": result.work,
                "unit": result.unit,
                "measured": dict(result.measured),
                "ratio": result.ratio,
                "target": result.target,
                "met": result.met,
                "floor": result.floor,
                "floor_factor": result.floor_factor,
                "note": result.note,
            }
            for result in results
        ],
    }
