"""What tests of several folders share: a saver on a directory of its own, and how long Hypothesis searches.

Nothing here knows how the saver works.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from langgraph_turncheckpoint import TurnCheckpointSaver

# Durable writes make the time of one example vary by the disk's mood, so no example has a deadline.
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=100, stateful_step_count=30, derandomize=True, **_UNTIMED)
settings.register_profile("long", max_examples=2_000, stateful_step_count=60, print_blob=True, **_UNTIMED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[TurnCheckpointSaver]:
    """A saver with the default options on an empty directory."""
    with TurnCheckpointSaver(tmp_path / "checkpoints") as opened:
        yield opened
