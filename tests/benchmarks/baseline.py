"""Ratios to compare runs by: ours to each peer, ours to the floor. They travel between machines, times do not.

Drift is shown and never judged: what a ratio may be is the business of the targets, and noise is the reader's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Final

from tests.benchmarks.kept import Run
from tests.benchmarks.peers import LABELS
from tests.benchmarks.report import aligned, times
from tests.benchmarks.results import Result, ratio_of

#: What ours is held against beside the peers.
FLOOR: Final = "floor"

#: Drift that is worth a word; most rows repeat within it on a quiet machine.
_NOTABLE: Final = 1.25

Ratios = Mapping[str, Mapping[str, float]]


def ratios(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    """Ours through each peer and through the floor, by row; rows without a positive figure have none."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        ours = result.measured.get("ours")
        against = {name: value for name, value in result.measured.items() if name != "ours"}
        if result.floor is not None:
            against[FLOOR] = result.floor.value
        # A difference of two times can be below zero, and then its ratio says nothing.
        row = {
            name: ratio for name, value in against.items() if (ratio := ratio_of(ours, value)) is not None and ratio > 0
        }
        if row:
            found[result.key] = row
    return found


def write_baseline(path: Path, run: Run) -> None:
    """Keep the ratios of a run, and under what they were taken."""
    setting = run.setting
    taken = {
        "python": setting.python,
        "packages": dict(setting.packages),
        "cpus": setting.cpus,
        "file_system": setting.file_system,
        "quick": setting.quick,
    }
    rounded = {
        key: {name: float(f"{value:.3g}") for name, value in row.items()} for key, row in ratios(run.results).items()
    }
    path.write_text(json.dumps({"setting": taken, "ratios": rounded}, indent=2) + "\n")


def read_baseline(path: Path) -> Ratios:
    """Ratios that were kept.

    Raises:
        ValueError: The file is none.
    """
    try:
        kept: dict[str, dict[str, float]] = json.loads(path.read_text())["ratios"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no baseline that `--baseline` wrote: {error}") from error
    return kept


def drift(before: Ratios, now: Ratios) -> str:
    """A table of both ratios and of the new one through the old: above 1, ours has become dearer."""
    table: list[Sequence[str]] = [("row", "ours against", "baseline", "now", "drift", "")]
    shifts: dict[bool, list[float]] = {True: [], False: []}
    for key, row in now.items():
        for name, ratio in row.items():
            old = before.get(key, {}).get(name)
            shift = ratio_of(ratio, old)
            if shift is not None:
                shifts[name == FLOOR].append(shift)
            table.append((key, LABELS.get(name, name), times(old), times(ratio), times(shift), _word(shift)))
    lines = [aligned(table, frozenset({"row", "ours against", ""})), ""]
    for is_floor, what in ((False, "the peers"), (True, "the floors")):
        if shifts[is_floor]:
            mean = exp(sum(map(log, shifts[is_floor])) / len(shifts[is_floor]))
            lines.append(f"Against {what}, ours costs {times(mean)} of the baseline on the geometric mean.")
    if gone := [key for key in before if key not in now]:
        lines.append(f"Not in this run: {', '.join(gone)}.")
    return "\n".join(lines)


def _word(shift: float | None) -> str:
    if shift is None:
        return "new"
    return "dearer" if shift > _NOTABLE else "cheaper" if shift < 1 / _NOTABLE else ""
