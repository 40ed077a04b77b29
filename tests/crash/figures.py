"""What a lab of the crash tests reports: figures, each with what is asked of it. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One number of a lab.

    Attributes:
        name: What was counted or measured.
        value: The number.
        asked: What it must be; `None` where it is only reported.
        unit: Behind the number in print.
    """

    name: str
    value: float
    asked: float | None = None
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether it is what was asked for; always so where nothing was."""
        return self.asked is None or self.value == self.asked

    @property
    def text(self) -> str:
        """The number as people write it."""
        number = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,.3g}"
        return f"{number} {self.unit}".rstrip()


def zero(name: str, count: int) -> Figure:
    """A count that must be zero."""
    return Figure(name, count, 0)


class Report(NamedTuple):
    """What one lab found.

    Attributes:
        lab: Its name on the command line.
        command: What measures it again.
        figures: In the order of print.
        findings: One line for each thing that is wrong, with what is needed to see it again.
        seconds: How long it took.
    """

    lab: str
    command: str
    figures: Sequence[Figure]
    findings: Sequence[str]
    seconds: float

    @property
    def is_met(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings and all(figure.is_met for figure in self.figures)


def plain(report: Report) -> str:
    """A report as text for a terminal."""
    width = max((len(figure.name) for figure in report.figures), default=0)
    lines = [f"{report.lab}: {report.seconds:.0f} s"]
    lines += [f"  {figure.name:{width}}  {figure.text}{_verdict(figure)}" for figure in report.figures]
    lines += [f"  wrong: {finding}" for finding in report.findings]
    return "\n".join(lines)


def markdown(reports: Iterable[Report]) -> str:
    """Reports as one table for the README."""
    lines = ["| lab | figure | measured | asked |", "|---|---|---:|---:|"]
    for report in reports:
        shown = f"`{report.command}`"
        for figure in report.figures:
            asked = "" if figure.asked is None else f"{figure.asked:g}"
            lines.append(f"| {shown} | {figure.name} | {figure.text} | {asked} |")
            shown = ""
    return "\n".join(lines)


def _verdict(figure: Figure) -> str:
    return "" if figure.is_met else f"  MISSED: asked is {figure.asked:g}"
