"""A guarded turn that is killed, wherever that is, and the processes that take up what it has left.

Each boundary is a SIGKILL of a real process. What must hold is in `guarded_turns.wrong_with`; all boundaries of all
ways into the guard are run by `python -m tests.crash turns --every-boundary --stride 1`, and by full runs of the tests.
"""

from __future__ import annotations

import sys

import pytest

from tests.crash.guarded_agent import DURABILITIES, WAYS, Case
from tests.crash.guarded_turns import TELLING, Enumeration, records_in
from tests.crash.processes import FULL

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and killed by signals"),
    pytest.mark.timeout(3600),
]

MODES = ("continue", "new")
#: The one that is run wholly here.
MAIN_CASE = Case("attach", "sync")
OTHERS = [
    Case(way, durability, used, "async" if (place + number) % 3 == 0 else "sync")
    for place, way in enumerate(WAYS)
    for number, durability in enumerate(DURABILITIES)
    for used in (True, False)
    if Case(way, durability, used) != MAIN_CASE
]


def telling(position: int, name: str) -> bool:
    """Whether a killed process leaves there what it does not leave at the boundary before."""
    return FULL or bool(TELLING.match(name))


def some(case: Case, *, every: int) -> set[int]:
    """Which of a turn's telling boundaries are tried: each n-th, others for each case."""
    start = sum(map(ord, str(case))) % every
    return set(range(start, 10_000, every))


def test_what_a_killed_turn_leaves_is_true_and_whole_at_each_of_its_boundaries(tmp_path):
    """G2 to G7, C2, C16: `create_agent` under `attach`; the thread goes on, or a new message comes."""
    tally = Enumeration(MAIN_CASE, tmp_path / "work", choose=telling).run()
    assert [str(finding) for finding in tally.findings] == []
    assert tally.kills > 100


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_and_for_each_way_into_the_guard_durability_and_thread(tmp_path, case):
    # Under "exit" a turn has half as many boundaries.
    every, counted = 1 if FULL else 11 if case.durability == "exit" else 23, iter(range(10_000))
    places = some(case, every=every)

    def choose(position: int, name: str) -> bool:
        return telling(position, name) and next(counted) in places

    tally = Enumeration(case, tmp_path / "work", choose=choose).run()
    assert [str(finding) for finding in tally.findings] == []
    assert tally.kills > 2


@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_second_kill_in_the_process_that_takes_up_leaves_one_whole_copy(tmp_path, way, first):
    """G6: killed behind a record of the turn, and again at a boundary of the recovery."""
    case = Case(way, "sync")
    every, counted = 1 if FULL else 17, iter(range(10_000))

    def choose(position: int, name: str) -> bool:
        return telling(position, name) and next(counted) % every == 0

    enumeration = Enumeration(case, tmp_path / "work", choose=choose)
    # Behind the first effects, where calls are finished, started and not started.
    effect = enumeration.names.index("after the effect of slow")
    points = records_in(enumeration.names, 8) if FULL else [effect]
    for point in points:
        tally = enumeration.run_again(point, first)
        assert [str(finding) for finding in tally.findings] == []
        assert tally.kills > 2
