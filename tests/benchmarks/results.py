"""What a row found and whether it meets its target: values and comparisons, no measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["seconds", "bytes", "share"]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table.

    Attributes:
        key: Short name of the row, as `--rows` takes it.
        work: What was measured, with its sizes.
        unit: Of `measured` and `floor`.
        measured: Value per contender; a contender that does not take part is absent.
        ratio: The figure that is held against the target, where the target is a ratio.
        target: The target in words.
        met: Whether the target was reached; `None` where nothing of ours was measured.
        floor: What the disk itself asked for the same durable writes in the same rounds.
        note: What a reader must know to judge the row.
    """

    key: str
    work: str
    unit: Unit
    measured: Mapping[str, float]
    ratio: float | None
    target: str
    met: bool | None
    floor: float | None = None
    note: str = ""

    @property
    def floor_factor(self) -> float | None:
        """How many times the floor ours took; at 1.0 a saver costs its disk writes and nothing else."""
        ours = self.measured.get("ours")
        return None if ours is None or not self.floor else ours / self.floor


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def against_peer(
    key: str,
    work: str,
    measured: Mapping[str, float],
    *,
    times: float,
    target: str,
    peer: str = "sqlite",
    unit: Unit = "seconds",
    floor: float | None = None,
    note: str = "",
) -> Result:
    """A row where `peer` must take at least `times` as much as ours."""
    ratio = _ratio(measured.get(peer), measured.get("ours"))
    return Result(
        key,
        work,
        unit,
        measured,
        ratio,
        target,
        None if ratio is None else ratio >= times,
        floor=floor,
        note=note,
    )


def against_itself(
    key: str,
    work: str,
    late: Mapping[str, float],
    *,
    early: Mapping[str, float],
    within: float,
    target: str,
    floor: float | None = None,
    note: str = "",
) -> Result:
    """A row where ours may take at most `within` times what it took `early`."""
    ratio = _ratio(late.get("ours"), early.get("ours"))
    return Result(
        key,
        work,
        "seconds",
        late,
        ratio,
        target,
        None if ratio is None else ratio <= within,
        floor=floor,
        note=note,
    )


def against_bound(
    key: str,
    work: str,
    measured: Mapping[str, float],
    *,
    bound: float,
    target: str,
    unit: Unit = "bytes",
    note: str = "",
) -> Result:
    """A row where ours must stay under an absolute figure, in `unit`."""
    ours = measured.get("ours")
    return Result(
        key,
        work,
        unit,
        measured,
        None,
        target,
        None if ours is None else ours < bound,
        note=note,
    )


def without_target(
    key: str, work: str, measured: Mapping[str, float], *, floor: float | None = None, note: str = ""
) -> Result:
    """A row that is there to be known; nothing is asked of it."""
    return Result(key, work, "seconds", measured, None, "-", None, floor=floor, note=note)
