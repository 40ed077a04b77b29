"""A whole run as JSON, to compare it, to draw it, and to read it again. Nothing is measured or printed here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.curves import Curve
from tests.benchmarks.report import Setting
from tests.benchmarks.results import Floor, Result


@dataclass(frozen=True, slots=True)
class Run:
    """Everything one run has found.

    Attributes:
        results: The rows, in table order.
        setting: Under what they were taken.
        curves: What plots show beyond the rows; empty if nobody asked for plots.
    """

    results: Sequence[Result]
    setting: Setting
    curves: Mapping[str, Curve] = field(default_factory=dict)

    def only(self, keys: Sequence[str]) -> Run:
        """The same run with these rows alone; all of them if there are no keys."""
        chosen = [result for result in self.results if not keys or result.key in keys]
        return Run(chosen, self.setting, self.curves)


def write_run(path: Path, run: Run) -> None:
    """Keep a run: everything in base units, with the figures that follow from them."""
    rows = [{**asdict(result), "floor_factor": result.floor_factor} for result in run.results]
    kept = {"setting": asdict(run.setting), "rows": rows, "curves": run.curves}
    path.write_text(json.dumps(kept, indent=2) + "\n")


def read_run(path: Path) -> Run:
    """A run that was kept.

    Raises:
        ValueError: The file is none.
    """
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        results = []
        for row in kept["rows"]:
            fields = {name: value for name, value in row.items() if name != "floor_factor"}
            fields["floor"] = None if row["floor"] is None else Floor(**row["floor"])
            results.append(Result(**fields))
        setting = Setting(**{**kept["setting"], "load": tuple(kept["setting"]["load"])})
        curves = {
            name: {who: [(x, y) for x, y in points] for who, points in curve.items()}
            for name, curve in kept["curves"].items()
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no run that `--json` wrote: {error}") from error
    return Run(results, setting, curves)
