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
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("ci", _UNTIMED, max_examples=250, stateful_step_count=40, derandomize=True)
settings.register_profile("long", _UNTIMED, max_examples=5_000, stateful_step_count=60, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[TurnCheckpointSaver]:
    """A saver with the default options on an empty directory."""
    with TurnCheckpointSaver(tmp_path / "checkpoints") as opened:
        yield opened
