"""The simulated disk in its short form: every state it opens is as it should be, every broken version is caught."""

from __future__ import annotations

import pytest

from tests.crash.disk import caught_by
from tests.crash.disk.campaign import Campaign, Size
from tests.crash.disk.filesystem import (
    KEPT,
    LOST,
    ROOT,
    Create,
    Disk,
    Event,
    Fate,
    Remove,
    Rename,
    Resize,
    Sync,
    Write,
    killed_states,
    states_of,
)
from tests.crash.disk.operations import (
    OPERATIONS,
    Operation,
    Step,
    acknowledge_a_message,
    cancel_the_turn,
    close_a_thread,
    copy_a_thread,
    delete_a_thread,
    delete_what_a_run_wrote,
    forget_older_journals,
    open_a_turn,
    post_a_message,
    prune_a_thread,
    put_a_checkpoint,
    put_a_checkpoint_again,
    put_the_checkpoint_that_writes_wait_for,
    put_writes_before_their_checkpoint,
    put_writes_on_a_checkpoint,
    record_a_model_call,
    record_a_prompt,
    record_the_result_of_a_tool,
    record_the_start_of_a_tool,
    reopen_a_thread,
    settle_the_turn,
    start_a_run,
)
from tests.crash.disk.races import races
from tests.crash.disk.saboteurs import SABOTEURS

#: Few states at each point, and each operation at least once.
SHORT = Size(states=5, every=3, second=150, successors=10)
STORIES: dict[str, tuple[Step, ...]] = {
    "checkpoints": (put_a_checkpoint, put_a_checkpoint, put_a_checkpoint_again, put_writes_on_a_checkpoint),
    "early writes": (put_writes_before_their_checkpoint, put_the_checkpoint_that_writes_wait_for),
    "a run": (put_a_checkpoint, start_a_run, put_a_checkpoint, put_writes_on_a_checkpoint, cancel_the_turn),
    "a guarded turn": (
        open_a_turn,
        record_a_prompt,
        record_a_model_call,
        record_the_start_of_a_tool,
        record_the_result_of_a_tool,
        settle_the_turn,
        open_a_turn,
        forget_older_journals,
    ),
    "an inbox": (post_a_message, post_a_message, acknowledge_a_message),
    "closing": (put_a_checkpoint, close_a_thread, reopen_a_thread, put_a_checkpoint),
    "deleting": (put_a_checkpoint, put_a_checkpoint, delete_a_thread, put_a_checkpoint),
    "removing": (*(put_a_checkpoint,) * 5, delete_what_a_run_wrote, prune_a_thread, put_a_checkpoint),
    "copying": (put_a_checkpoint, put_a_checkpoint, copy_a_thread),
}


def script(steps: tuple[Step, ...]) -> list[Operation]:
    by_step = {operation.step: operation for operation in OPERATIONS}
    return [by_step[step] for step in steps]


# --- the file system ---


def states(*events: Event, bound: int = 1000) -> list[dict[str, bytes | None]]:
    """The distinct states that a loss of power may leave behind these calls."""
    disk = Disk()
    for event in events:
        disk.note(event)
    *_, (_, certain, pending) = disk.points()
    found: list[dict[str, bytes | None]] = []
    for crash in states_of(certain, pending, bound=bound, seed="0"):
        if crash.paths not in found:
            found.append(crash.paths)
    return found


NEW = (Create(ROOT, "f", 2, is_directory=False), Write(2, 0, b"abcd"))


def test_a_file_that_is_synced_keeps_its_bytes_and_may_lose_its_name():
    assert states(*NEW, Sync(2)) == [{"f": b"abcd"}, {}]


def test_a_name_that_is_synced_stays_and_its_file_may_be_empty_cut_or_filled_with_anything():
    found = [each["f"] for each in states(*NEW, Sync(ROOT))]
    assert {b"abcd", b"", b"a", b"ab", b"abc", b"\0\0\0\0"} <= set(found)
    assert len(found) > 6


def test_what_is_synced_in_both_ways_is_certain():
    assert states(*NEW, Sync(2), Sync(ROOT)) == [{"f": b"abcd"}]


def test_a_rename_is_there_or_not():
    done = (*NEW, Sync(2), Sync(ROOT), Rename(ROOT, "f", "g"))
    assert states(*done) == [{"g": b"abcd"}, {"f": b"abcd"}]


def test_changes_of_one_name_come_in_order_and_those_of_others_do_not():
    found = states(*NEW, Sync(2), Create(ROOT, "g", 3, is_directory=False), Remove(ROOT, "f"))
    assert {frozenset(each) for each in found} == {frozenset(names) for names in ("g", "", "f", "fg")}


def test_a_directory_takes_all_below_it_along():
    below = (Create(ROOT, "d", 2, is_directory=True), Create(2, "f", 3, is_directory=False), Sync(2))
    assert states(*below) == [{"d": None, "d/f": b""}, {}]


def test_a_new_length_may_be_lost():
    assert {each["f"] for each in states(*NEW, Sync(2), Sync(ROOT), Resize(2, 1))} == {b"a", b"abcd"}


def test_where_there_are_too_many_states_the_bound_holds_and_the_extremes_are_among_them():
    events = [Create(ROOT, f"f{n}", 2 + n, is_directory=False) for n in range(30)]
    found = states(*events, bound=20)
    assert len(found) <= 20
    assert {} in found
    assert any(len(each) == 30 for each in found)


def test_a_killed_process_loses_only_what_it_has_not_written():
    disk = Disk()
    for event in NEW:
        disk.note(event)
    found = [crash.paths["f"] for crash in killed_states(disk, 1, cuts=9, seed="0")]
    assert found == [b"", b"a", b"ab", b"abc"]


def test_a_fate_says_what_is_left_of_a_write():
    disk = Disk()
    for event in NEW:
        disk.note(event)
    found = {}
    for fate in (KEPT, LOST, Fate("head", 1), Fate("tail", 3), Fate("zeros")):
        tree = Disk().live
        for event in NEW:
            tree.apply(event, fate if isinstance(event, Write) else KEPT)
        found[str(fate)] = tree.paths()["f"]
    assert found == {"kept": b"abcd", "lost": b"", "head 1": b"a", "tail 3": b"\0\0\0d", "zeros": b"\0\0\0\0"}


# --- the store ---


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("story", STORIES)
def test_whatever_a_crash_leaves_keeps_every_promise(story, fsync):
    """S2, S3, S6, T6, T9, G1, G7; without fsync for a killed process."""
    campaign = Campaign(SHORT, fsync=fsync, stop_at=5)
    campaign.history(0, len(STORIES[story]), script(STORIES[story]))
    assert [str(finding) for finding in campaign.tally.findings] == []
    assert campaign.tally.opened > 5


def test_the_stories_have_every_operation():
    assert {step for steps in STORIES.values() for step in steps} == {operation.step for operation in OPERATIONS}


@pytest.mark.parametrize("fsync", [True, False])
def test_a_random_history_keeps_every_promise(fsync):
    campaign = Campaign(SHORT, fsync=fsync, stop_at=5)
    campaign.history(3, 8)
    assert [str(finding) for finding in campaign.tally.findings] == []


@pytest.mark.parametrize("step", [post_a_message, put_a_checkpoint, put_writes_before_their_checkpoint, open_a_turn])
def test_what_is_acknowledged_after_a_kill_survives_a_loss_of_power(step):
    """S2: whatever name the killed process had made and not synced, what lies below it must not go with it."""
    campaign = Campaign(Size(states=3, every=1_000_000, second=1_000_000, successors=1), stop_at=5)
    campaign.history(0, 1, script((step,)))
    assert [str(finding) for finding in campaign.tally.findings] == []


def test_writes_that_wait_for_their_checkpoint_survive_a_kill_and_two_losses_of_power():
    """S2: nobody can see them meanwhile, and whoever comes next takes them in or leaves them alone."""
    campaign = Campaign(Size(states=3, every=1_000_000, second=2, successors=3), stop_at=5)
    campaign.history(1, 1, script((put_writes_before_their_checkpoint,)))
    assert [str(finding) for finding in campaign.tally.findings] == []
    assert campaign.tally.second > 5


def test_two_writers_of_one_file_leave_it_as_one_of_them_has_written_it():
    """S2: temporary names are unique."""
    meetings = [*races()]
    assert len(meetings) > 4
    assert [wrong for race in meetings for wrong in race.wrong] == []


@pytest.mark.parametrize("saboteur", SABOTEURS, ids=lambda saboteur: saboteur.name)
def test_a_broken_version_is_caught_and_the_promise_is_named(saboteur):
    found = {finding.invariant for finding in caught_by(saboteur)}
    assert found & saboteur.invariants, found
