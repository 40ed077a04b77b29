"""Many threads, workers and readers in one directory: the load in a short form, and what its checks would notice.

The whole load is run by `python -m tests.crash load`, the long one by `python -m tests.crash soak`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langgraph_turncheckpoint import TurnCheckpointSaver, errors
from tests.crash import load, soak
from tests.crash.load_guarded import GUARDED, Guarded, wrong_with
from tests.crash.load_measures import Spread, disk, open_files
from tests.crash.load_threads import (
    MESSAGES_A_VISIT,
    STEPS_A_VISIT,
    Plan,
    Standing,
    WrongReadError,
    check_falling,
    check_standing,
    configured,
    message,
    standing_of,
)
from tests.crash.load_upkeep import Upkeep
from tests.crash.load_worker import Calls, Job, Lane, Report, Setup, finished

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and killed by signals")


def options(lab, *arguments):
    parser = argparse.ArgumentParser()
    lab.add_arguments(parser)
    return parser.parse_args(arguments)


def assert_met(figures, findings):
    assert findings == []
    assert [figure for figure in figures if not figure.is_met] == []
    return {figure.name: figure.value for figure in figures}


# --- the short forms ---


def test_nothing_is_lost_locked_leaked_or_left_under_load(tmp_path):
    """S1, S9, T2, C35, C47: threads of OS threads and of asyncio, upkeep beside them."""
    given = options(load, "--threads", "40", "--steps", "10", "--workers", "3", "--directory", str(tmp_path))
    measured = assert_met(*load.run(given))
    assert measured["super-steps stored, fsync=True"] >= 40 * 10
    assert measured["reads that were checked"] > 40
    assert {"verify, meanwhile", "stats, meanwhile", "prune under a writer, meanwhile"} <= measured.keys()


def test_a_soak_with_killed_workers_and_guarded_agents_loses_nothing(tmp_path):
    """C44, G6, G7, S3: kills, each followed by a worker that does the work again."""
    given = options(soak, "--threads", "40", "--guarded", "4", "--workers", "3", "--directory", str(tmp_path))
    given.hours, given.kill_every, given.interval = 4 / 3600, 1.5, 60.0
    measured = assert_met(*soak.run(given))
    assert measured["workers killed and replaced"] > 0
    assert measured["super-steps stored"] > 0


# --- what they would notice ---


@pytest.fixture
def plan():
    return Plan(threads=20, visits=2)


@pytest.fixture
def saver(tmp_path):
    return TurnCheckpointSaver(tmp_path / "store", fsync=False)


def run_job(saver, plan, job):
    return finished(Lane(Calls(saver, "sync"), Setup(Path(saver.path), plan, "sync", 0, fsync=False), job).run())


def visits(saver, plan, visit, *, is_last=False):
    return run_job(saver, plan, Job("visits", 0, plan.threads, visit, all_visited=visit, is_last=is_last))


def messages_of(thread_id, count, life=0):
    return [message(thread_id, life, number) for number in range(count)]


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda m: m[1:], id="the first is missing"),
        pytest.param(lambda m: [*m[:2], *m[3:]], id="one is missing"),
        pytest.param(lambda m: [*m, m[-1]], id="one is there twice"),
        pytest.param(lambda m: [m[1], m[0], *m[2:]], id="two are swapped"),
        pytest.param(lambda m: [*m[:-1], message("1", 1, len(m) - 1)], id="one is of another life"),
        pytest.param(lambda m: [*m[:-1], message("2", 0, len(m) - 1)], id="one is of another thread"),
        pytest.param(lambda m: [*m[:-1], m[-1].model_copy(update={"content": "?"})], id="one says something else"),
    ],
)
def test_messages_that_no_thread_can_have_held_are_a_wrong_read(damaged):
    whole = messages_of("1", 8)
    assert standing_of("1", whole) == Standing(0, 8)
    with pytest.raises(WrongReadError, match="in place"):
        standing_of("1", damaged(whole))


def test_a_read_behind_what_was_stored_before_is_a_wrong_read():
    check_standing("1", Standing(1, 0), least=Standing(0, 8))
    with pytest.raises(WrongReadError, match="was stored before"):
        check_standing("1", Standing(0, 4), least=Standing(0, 8))


@pytest.mark.parametrize(
    "listed",
    [
        [("b", Standing(0, 4)), ("a", Standing(0, 5))],
        [("a", Standing(0, 5)), ("b", Standing(0, 4))],
        [("a", Standing(0, 5)), ("a", Standing(0, 5))],
    ],
)
def test_a_listing_that_is_no_history_is_a_wrong_read(listed):
    with pytest.raises(WrongReadError, match="lists"):
        check_falling("1", listed)


def test_a_thread_that_lost_its_newest_checkpoint_is_found_by_the_next_visit_and_at_the_end(saver, plan):
    assert visits(saver, plan, 0).errors == {}
    for path in sorted(Path(saver.path, "threads", "t-thread-1").rglob("*.ckpt"))[-1:]:
        path.unlink()
    report = visits(saver, plan, 1, is_last=True)
    assert report.errors == {"wrong read": 1}
    assert "thread 1:" in report.findings[0]
    total = load.Total()
    assert load.check_end(Path(saver.path), plan, total) == 0
    assert set(total.errors) == {"wrong read"}


def test_a_thread_that_is_gone_is_lost(saver, plan):
    visits(saver, plan, 0)
    visits(saver, plan, 1, is_last=True)
    assert load.check_end(Path(saver.path), plan, load.Total()) == 0
    saver.delete_thread(plan.name(1))
    assert load.check_end(Path(saver.path), plan, load.Total()) == 1


def test_a_thread_that_came_back_after_its_delete_is_an_error(saver):
    plan = Plan(threads=12, visits=1)
    visits(saver, plan, 0, is_last=True)
    total = load.Total()
    load.check_end(Path(saver.path), plan, total)
    assert total.errors == {}
    run_job(saver, plan, Job("visits", 11, 1))
    load.check_end(Path(saver.path), plan, total)
    assert total.errors == {"wrong read": 1}
    assert "was deleted" in total.findings[0]


def test_a_job_that_somebody_died_on_is_done_again_from_where_it_was_left(saver, plan):
    calls = Calls(saver, "sync")
    thread_id = plan.name(1)
    stopped = calls._graph.copy(update={"interrupt_after_nodes": ["answer"]})
    stopped.invoke({"messages": [message(thread_id, 0, 0)]}, configured(thread_id), durability="sync")
    assert run_job(saver, plan, Job("visits", 1, 1, 0, again=True)).errors == {}
    for _ in range(2):
        found = saver.get_tuple(configured(thread_id))
        assert found is not None
        assert standing_of(thread_id, found.checkpoint["channel_values"]["messages"]) == Standing(0, MESSAGES_A_VISIT)
        assert run_job(saver, plan, Job("visits", 1, 1, 0, again=True)).errors == {}


def test_upkeep_tells_of_a_missing_thread_and_of_what_verify_finds(saver, plan):
    visits(saver, plan, 0)
    upkeep = Upkeep(saver, Setup(Path(saver.path), plan, "sync", 0, fsync=False))
    assert upkeep.run(Job("upkeep", all_visited=1)).errors == upkeep.run(Job("verify")).errors == {}
    saver.delete_thread(plan.name(2))
    Path(saver.path, "threads", "stranger").touch()
    assert upkeep.run(Job("upkeep", all_visited=1)).errors == {"wrong read": 1}
    assert "foreign" in upkeep.run(Job("verify")).findings[0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.ThreadBusyError("1", 1), "lock"),
        (errors.StorageError(11, "Resource deadlock: lock", "turn"), "lock"),
        (errors.StorageError(28, "No space left", "file"), "StorageError"),
        (errors.StaleTurnError("1", 1, 2), "StaleTurnError"),
        (WrongReadError("x"), "wrong read"),
    ],
)
def test_errors_are_counted_by_kind(error, kind):
    report = Report()

    def fail():
        raise error

    with report.noting("here"):
        fail()
    assert report.errors == {kind: 1}
    assert report.findings[0].startswith("here: ")


def test_open_files_and_temporaries_of_the_store_are_seen(tmp_path):
    before = open_files(tmp_path)
    assert before.in_store == disk(tmp_path).temporaries == []
    left = tmp_path / "c-1.ckpt.abc.tmp"
    with left.open("w"):
        now = open_files(tmp_path)
        if now.total:  # where the system tells
            assert (now.in_store, now.others) == ([os.fspath(left)], before.others)
    assert disk(tmp_path).temporaries == [os.fspath(left)]
    assert disk(tmp_path).files == 1


def test_a_spread_tells_quantiles_in_bounded_space():
    spread, other = Spread(), Spread()
    for number in range(1, 1001):
        (spread if number % 2 else other).add(number / 1000)
    spread.merge(other)
    assert (spread.count, spread.longest) == (1000, 1.0)
    assert spread.quantile(0.5) == pytest.approx(0.5, rel=0.03)
    assert spread.quantile(0.99) == pytest.approx(0.99, rel=0.03)
    assert Spread().quantile(0.5) == 0


def test_the_growth_of_memory_compares_the_end_with_the_second_quarter():
    hand = load.Hand.__new__(load.Hand)
    hand.memory = [(steps, 50 if steps < 25 else 100) for steps in range(100)]
    assert hand.growth == (0, 1.0)  # what is set up at the start does not count
    hand.memory = [(steps, 100 + steps) for steps in range(1, 101)]
    grown, ratio = hand.growth
    assert grown > 50
    assert ratio > 1.4


def test_a_plan_knows_how_many_checkpoints_a_thread_has_at_its_end():
    plan = Plan(threads=100, visits=4)
    assert (plan.checkpoints(0), plan.checkpoints(3), plan.checkpoints(4)) == (4 * STEPS_A_VISIT, 1, None)
    assert plan.checkpoints(7) == 2 * STEPS_A_VISIT
    assert [plan.standing(7, visit) for visit in range(4)] == [(0, 0), (0, 4), (1, 0), (1, 4)]
    assert [plan.reached(7, visits) for visits in range(5)] == [(0, 0), (0, 4), (0, 8), (1, 4), (1, 8)]


def test_threads_of_a_soak_begin_their_lives_at_different_times():
    plan = Plan(threads=8, visits=0, life_visits=4)
    for number in range(8):
        anew = [visit for visit in range(12) if plan.begins_anew(number, visit)]
        assert anew == [4 - number % 4 + life * 4 for life in range(len(anew))]
        assert all(plan.standing(number, visit + 1) >= plan.reached(number, visit + 1) for visit in range(12))


# --- the agent under the guard ---


def test_a_guarded_visit_delivers_what_was_posted_once(saver):
    guarded = Guarded(saver)
    for visit in range(2):
        finished(guarded.visit(0, visit, is_async=False, again=False))
    assert saver.inbox(f"{GUARDED}0").pending() == []
    finished(guarded.visit(0, 1, is_async=False, again=True))


def test_a_guarded_history_with_anything_lost_doubled_or_open_is_wrong():
    call = {"name": "work", "args": {}, "id": "call", "type": "tool_call"}
    history = [
        HumanMessage("", id="prompt-0"),
        AIMessage("", id="ask-prompt-0", tool_calls=[call]),
        ToolMessage("", id="result", tool_call_id="call"),
        HumanMessage("", id="posted-prompt-0"),
        AIMessage("", id="done-prompt-0"),
    ]
    assert wrong_with(history, [0]) == []
    for number, each in enumerate(history):
        assert wrong_with([*history[:number], *history[number + 1 :]], [0]), f"without {each.id}"
        assert wrong_with([*history[: number + 1], *history[number:]], [0]), f"with {each.id} twice"
    assert wrong_with(history, [0, 1])
