"""Figures over a range of sizes, which only the plots show. Rows of the table are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tests.benchmarks.bench import Bench
from tests.benchmarks.footprint import uses_after
from tests.benchmarks.timing import medians
from tests.benchmarks.writing import steps_of_grown

#: For each contender, and the floor where there is one, what was found at each size.
Curve = Mapping[str, Sequence[tuple[float, float]]]


def step_seconds(bench: Bench) -> Curve:
    """Seconds of a super-step that adds a message, by the number of messages the thread holds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for size in bench.sizes.curve_messages:
        for name, seconds in medians(steps_of_grown(bench, size, bench.sizes.curve_rounds)).items():
            found.setdefault(name, []).append((size, seconds))
    return found


def stored_bytes(bench: Bench) -> Curve:
    """Bytes on disk by the number of two-message turns, of the contenders that keep any."""
    turns = bench.sizes.curve_turns
    found: dict[str, list[tuple[float, float]]] = {}
    for contender in (one for one in bench.contenders if one.reopens):
        root = bench.directory(f"{contender.name}-growth")
        uses = uses_after(contender, root, turns, durable=False)
        found[contender.name] = [(count, use.size_bytes) for count, use in zip(turns, uses, strict=True)]
    return found


CURVES: Final[Mapping[str, Callable[[Bench], Curve]]] = {"step-seconds": step_seconds, "stored-bytes": stored_bytes}
