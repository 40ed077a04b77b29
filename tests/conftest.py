"""What tests of several folders share: a saver on a directory of its own, and how long Hypothesis searches.

Nothing here knows how the saver works.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from langgraph_turncheckpoint import TurnCheckpointSaver

# Durable writes make the time of one example vary by the disk's mood, so no example has a deadline.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("ci", _UNTIMED, max_examples=250, stateful_step_count=40, derandomize=True)
settings.register_profile("long", _UNTIMED, max_examples=5_000, stateful_step_count=60, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[TurnCheckpointSaver]:
    """A saver with the default options on an empty directory."""
    with TurnCheckpointSaver(tmp_path / "checkpoints") as opened:
        yield opened


def pytest_addoption(parser):
    parser.addoption(
        "--each",
        type=int,
        metavar="N",
        help="of each test's parameters only every N-th set; without it, all, but of the matrices a third",
    )


#: Modules that run their scenarios over all ways, savers, colours and shapes at once. Their combinations are many, and
#: a fault nearly always shows in a third of them; `--each 1` runs all.
MATRICES = frozenset(
    {f"test_guard_{name}" for name in ("stops", "together")}
    | {f"test_guard_unanswered_{name}" for name in ("calls", "histories", "states")}
    | {f"test_same_{name}" for name in ("agents", "delta_channel", "failures", "fan_out", "functional", "interrupts")}
    | {f"test_same_{name}" for name in ("state_edits", "subgraphs", "values")}
    | {"test_provider_histories"}
)
SAMPLE = 3


def pytest_collection_modifyitems(config, items):
    """Every test runs, the parametrized ones with each N-th of their parameters."""
    asked = config.getoption("--each")
    counts: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        name = item.nodeid.partition("[")[0]
        step = asked or (SAMPLE if item.path.stem in MATRICES else 1)
        (kept if counts[name] % step == 0 else left).append(item)
        counts[name] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept
