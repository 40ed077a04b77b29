"""What a row found and whether it meets its target: values and comparisons, no measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["seconds", "bytes", "share"]


@dataclass(frozen=True, slots=True)
class Floor:
    """What a row asks of anybody.

    Attributes:
        value: In the unit of the row.
        of: What it is made of, in words.
    """

    value: float
    of: str

    @classmethod
    def timed(cls, seconds: float | None, of: str) -> Floor | None:
        """A floor that was measured; none if it was not, as under a profiler."""
        return None if seconds is None else cls(seconds, of)


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table.

    Attributes:
        key: Short name of the row, as `--rows` takes it.
        work: What was measured, with its sizes.
        unit: Of `measured` and of the floor.
        measured: Value per contender; a contender that does not take part is absent.
        ratio: The figure that is held against the target, where the target is a ratio.
        target: The target in words.
        met: Whether the target was reached; `None` where nothing of ours was measured.
        floor: What the same work asks of anybody, taken in the same rounds.
        note: What a reader must know to judge the row.
    """

    key: str
    work: str
    unit: Unit
    measured: Mapping[str, float]
    ratio: float | None
    target: str
    met: bool | None
    floor: Floor | None = None
    note: str = ""

    @property
    def floor_factor(self) -> float | None:
        """How many times the floor ours took; at 1.0 a saver costs what nobody can save and nothing else."""
        return None if self.floor is None else ratio_of(self.measured.get("ours"), self.floor.value)


def ratio_of(numerator: float | None, denominator: float | None) -> float | None:
    """One through the other; `None` where one of them is missing or there is nothing to divide by."""
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
    floor: Floor | None = None,
    note: str = "",
) -> Result:
    """A row where `peer` must take at least `times` as much as ours."""
    ratio = ratio_of(measured.get(peer), measured.get("ours"))
    met = None if ratio is None else ratio >= times
    return Result(key, work, unit, measured, ratio, target, met, floor, note)


def beside_peer(
    key: str,
    work: str,
    measured: Mapping[str, float],
    *,
    peer: str = "sqlite",
    floor: Floor | None = None,
    note: str = "",
) -> Result:
    """A row that is there to be known: how many times ours `peer` takes is shown, and nothing is asked of it."""
    ratio = ratio_of(measured.get(peer), measured.get("ours"))
    return Result(key, work, "seconds", measured, ratio, "-", None, floor, note)


def against_itself(
    key: str,
    work: str,
    late: Mapping[str, float],
    *,
    early: Mapping[str, float],
    within: float,
    target: str,
    floor: Floor | None = None,
    note: str = "",
) -> Result:
    """A row where ours may take at most `within` times what it took `early`."""
    ratio = ratio_of(late.get("ours"), early.get("ours"))
    met = None if ratio is None else ratio <= within
    return Result(key, work, "seconds", late, ratio, target, met, floor, note)


def against_bound(
    key: str,
    work: str,
    measured: Mapping[str, float],
    *,
    bound: float,
    target: str,
    unit: Unit = "bytes",
    floor: Floor | None = None,
    note: str = "",
) -> Result:
    """A row where ours must stay under an absolute figure, in `unit`."""
    ours = measured.get("ours")
    return Result(key, work, unit, measured, None, target, None if ours is None else ours < bound, floor, note)


def without_target(
    key: str, work: str, measured: Mapping[str, float], *, floor: Floor | None = None, note: str = ""
) -> Result:
    """A row that is there to be known; nothing is asked of it."""
    return Result(key, work, "seconds", measured, None, "-", None, floor, note)
