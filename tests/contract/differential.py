"""The comparison itself: one script, LangGraph's own saver and ours, then a restart of ours.

Scripts live in the `test_same_*` modules; this module knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.driver import DirectoryHome, Driver, MemoryHome, Script

Observation = list[tuple[str, Any]]


#: Colour, durability and restarts. What a restart could lose does not depend much on the durability of runs that
#: are over by then, so one mode, LangGraph's default, is enough for it.
WAYS = [
    *((colour, durability, False) for durability in ("sync", "async", "exit") for colour in ("sync", "async")),
    *((colour, "async", True) for colour in ("sync", "async")),
]


def each_way(*scripts: Script) -> Callable[[Any], Any]:
    """Parametrizes a test over scripts, colours, durability modes and restarts between calls."""

    def decorate(test: Any) -> Any:
        ids = [f"{colour}-{durability}{'-reopened' if restarts else ''}" for colour, durability, restarts in WAYS]
        test = pytest.mark.parametrize(("colour", "durability", "restarts"), WAYS, ids=ids)(test)
        return pytest.mark.parametrize("script", scripts, ids=[script.__name__ for script in scripts])(test)

    return decorate


def assert_same(
    script: Script, path: Path, *, colour: Any, durability: Any, restarts: bool, values_only: bool = False
) -> None:
    """Runs a script over both savers and fails at the first thing that differs.

    With `values_only`, only what the script noted and the newest values count, not which checkpoints are kept.
    """
    expected = Driver(MemoryHome(), colour=colour, durability=durability)
    script(expected)
    home = DirectoryHome(path)
    try:
        ours = Driver(home, colour=colour, durability=durability, restarts=restarts)
        script(ours)
        assert_equal(ours.seen, expected.seen, "while the script ran")
        look = Driver.values if values_only else Driver.observe
        wanted = look(expected)
        assert_equal(look(ours), wanted, "at the end")
        home.restart()
        assert_equal(look(ours), wanted, "after a restart")
    finally:
        home.close()


def assert_equal(ours: Observation, expected: Observation, when: str) -> None:
    """Compares record by record, so that a failure names the first place that differs."""
    for number, ((label, mine), (_, theirs)) in enumerate(zip(ours, expected, strict=False)):
        if mine != theirs:
            pytest.fail(f"{when}, record {number} ({label}){_difference(mine, theirs)}", pytrace=False)
    labels, wanted = [label for label, _ in ours], [label for label, _ in expected]
    if labels != wanted:
        pytest.fail(f"{when}, the records are not the same ones: {labels}, expected {wanted}", pytrace=False)


def _difference(mine: Any, theirs: Any) -> str:
    """The path to the first leaf that differs, and both leaves."""
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        return next(f".{key}{_difference(mine[key], theirs[key])}" for key in mine if mine[key] != theirs[key])
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple) and len(mine) == len(theirs):
        return next(
            f"[{index}]{_difference(one, other)}"
            for index, (one, other) in enumerate(zip(mine, theirs, strict=True))
            if one != other
        )
    return f"\n  got      {mine!r}\n  expected {theirs!r}"
