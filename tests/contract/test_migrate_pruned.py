"""A destination that has been pruned: what went there stays away, unless somebody asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langgraph_turncheckpoint import MigrationError, ThreadConflictError, TurnCheckpointSaver
from langgraph_turncheckpoint._housekeeping import drain
from langgraph_turncheckpoint.migration import amigrate, migrate
from tests.contract.migrating import GRAPHS, KINDS, config_of, listed, sqlite_saver, talk
from tests.langgraph_versions import needs_savers_that_sort_writes

pytestmark = needs_savers_that_sort_writes


@pytest.fixture
def ours(tmp_path: Path) -> TurnCheckpointSaver:
    return TurnCheckpointSaver(tmp_path / "ours", fsync=False)


@pytest.fixture
def source() -> InMemorySaver:
    saver = InMemorySaver()
    talk(saver, "talk-0", turns=3)
    return saver


def turns_by_checkpoint(saver: TurnCheckpointSaver, thread_id: str) -> dict[str, int]:
    """Which turn wrote each checkpoint."""
    store = saver.store
    found = store.scan(thread_id, None, accepts=lambda _: True)
    return {loaded.checkpoint_id: loaded.token for _, loaded in found}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_pruned_stays_away_and_the_turns_of_the_rest_are_theirs(tmp_path, ours, kind):
    source, thread_id = InMemorySaver(), f"{kind}-0"
    KINDS[kind](source, thread_id)
    first = migrate(source, ours)
    ours.prune([thread_id])
    left, turns = listed(ours, thread_id), turns_by_checkpoint(ours, thread_id)
    report = migrate(source, ours)
    (thread,) = report.threads
    assert (thread.state, thread.copied, thread.older) == ("unchanged", 0, 0)
    assert thread.pruned == first.checkpoints - len(left)
    assert report.verified
    if thread.pruned:
        assert f"; {thread.pruned} checkpoint" in str(report)
        assert "pruned there left out" in str(report)
    assert listed(ours, thread_id) == left
    assert turns_by_checkpoint(ours, thread_id) == turns


def test_it_comes_back_if_that_is_asked_for_under_a_turn_of_its_own(source, ours):
    total = migrate(source, ours).checkpoints
    ours.prune(["talk-0"])
    turns = turns_by_checkpoint(ours, "talk-0")
    report = migrate(source, ours, restore_pruned=True)
    (thread,) = report.threads
    assert (thread.state, thread.copied, thread.older, thread.pruned) == ("continued", total - 1, total - 1, total - 1)
    assert f"; {total - 1} of them older than what was there, as after a prune" in str(report)
    assert listed(ours, "talk-0") == listed(source, "talk-0")
    now = turns_by_checkpoint(ours, "talk-0")
    assert {key: now[key] for key in turns} == turns
    assert {record.state for record in ours.turns("talk-0")} == {"imported"}


def test_what_is_new_in_the_source_comes_and_what_was_pruned_does_not(source, ours):
    total = migrate(source, ours).checkpoints
    ours.prune(["talk-0"])
    GRAPHS["talk"](source).invoke(Command(resume="yes"), config_of("talk-0"))
    talk(source, "talk-0", turns=1)
    (thread,) = migrate(source, ours).threads
    assert (thread.state, thread.pruned, thread.older) == ("continued", total - 1, 0)
    assert thread.copied == thread.checkpoints - total > 0
    assert listed(ours, "talk-0").items() <= listed(source, "talk-0").items()
    assert migrate(source, ours).copied == 0


def test_a_destination_that_went_on_and_was_pruned_is_ahead_while_it_has_anything_of_the_source(source, ours):
    migrate(source, ours)
    GRAPHS["talk"](ours).invoke(Command(resume="yes"), config_of("talk-0"))
    for keep in range(len(listed(ours, "talk-0")), 1, -1):
        keeping = TurnCheckpointSaver(ours.path, fsync=False, keep_last=keep)
        with keeping.turn(config_of("talk-0")):
            pass  # its end prunes
        assert drain(60.0)
        common = listed(ours, "talk-0").keys() & listed(source, "talk-0").keys()
        if not common:
            break
        (thread,) = migrate(source, ours).threads
        assert (thread.state, thread.pruned) == ("ahead", thread.checkpoints - len(common))
    ours.prune(["talk-0"])
    with pytest.raises(MigrationError) as caught:
        migrate(source, ours)  # nothing tells any more that it is the same thread
    assert isinstance(caught.value.errors[0], ThreadConflictError)


def test_a_destination_that_prunes_by_itself_can_be_migrated_to(tmp_path, source):
    keeping = TurnCheckpointSaver(tmp_path / "keeping", fsync=False, keep_last=2)
    migrate(source, keeping)
    assert drain(60.0)
    (thread,) = migrate(source, keeping).threads
    assert (thread.state, thread.copied) == ("unchanged", 0)
    assert 0 < len(listed(keeping, "talk-0")) < thread.checkpoints


def test_what_was_damaged_and_set_aside_is_not_taken_for_pruned(source, ours):
    total = migrate(source, ours).checkpoints
    oldest = min(Path(ours.path).rglob("*.ckpt"))
    oldest.write_bytes(b"\0" * 200)
    ours.repair(["talk-0"], dry_run=False, idle=0.0)
    assert any(Path(ours.path).rglob("damaged/*"))
    (thread,) = migrate(source, ours).threads
    assert thread.pruned == 0
    assert len(listed(ours, "talk-0")) == total


def test_a_copy_that_was_cut_short_is_not_taken_for_a_pruned_one(source, ours):
    migrate(source, ours)
    ours.delete_thread("talk-0")

    def stop(at: Any) -> None:
        if at.checkpoints_done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate(source, ours, restore_deleted=True, progress=stop)
    (thread,) = migrate(source, ours, restore_deleted=True).threads
    assert (thread.pruned, thread.older) == (0, 0)
    assert listed(ours, "talk-0") == listed(source, "talk-0")


def test_where_it_cannot_be_told_the_report_says_that_old_ones_come_back(tmp_path, source):
    with sqlite_saver(tmp_path / "app.db") as database:
        total = migrate(source, database).checkpoints
        newest = max(key[1] for key in listed(source, "talk-0"))
        database.conn.execute("DELETE FROM checkpoints WHERE checkpoint_id < ?", (newest,))
        database.conn.execute("DELETE FROM writes WHERE checkpoint_id < ?", (newest,))
        report = migrate(source, database)
        assert (report.threads[0].older, report.threads[0].pruned) == (total - 1, 0)
        assert f"; {total - 1} of them older than what was there" in str(report)


async def test_the_async_twin_leaves_them_out_too(source, ours):
    total = migrate(source, ours).checkpoints
    ours.prune(["talk-0"])
    assert (await amigrate(source, ours)).threads[0].pruned == total - 1
    assert (await amigrate(source, ours, restore_pruned=True)).copied == total - 1
