"""A destination that has been pruned: what went there stays away, unless somebody asks for it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langgraph_turncheckpoint import (
    DamageWarning,
    MigrationError,
    StorageError,
    ThreadConflictError,
    TurnCheckpointSaver,
)
from langgraph_turncheckpoint._collect import remove_checkpoints
from langgraph_turncheckpoint._housekeeping import drain
from langgraph_turncheckpoint._retention import Retention
from langgraph_turncheckpoint._turn import LedgerState
from langgraph_turncheckpoint._upkeep import retain
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
    assert (thread.state, thread.copied, thread.older, thread.pruned) == ("continued", total - 1, total - 1, 0)
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


@pytest.fixture
def nested() -> InMemorySaver:
    """Each of its turns has called subgraphs, which have namespaces of their own."""
    saver = InMemorySaver()
    for number in range(3):
        graph = GRAPHS["nest"](saver)
        graph.invoke({"items": [str(number)]}, config_of("nest-0"))
        graph.invoke(Command(resume="answered"), config_of("nest-0"))
    return saver


def retained(saver: TurnCheckpointSaver, keep: int) -> int:
    return retain(saver.store, "nest-0", Retention(keep_last=keep))


def test_calls_of_subgraphs_that_a_destination_thins_out_stay_away(nested, ours):
    total = migrate(nested, ours).checkpoints
    namespaces = {key[0] for key in listed(ours, "nest-0")}
    gone = retained(ours, 3)
    assert {key[0] for key in listed(ours, "nest-0")} < namespaces
    (thread,) = migrate(nested, ours).threads
    assert (thread.state, thread.copied, thread.pruned, thread.older) == ("unchanged", 0, gone, 0)
    GRAPHS["nest"](ours).invoke({"items": ["on"]}, config_of("nest-0"))
    retained(ours, 4)
    assert {key[1] for key in listed(ours, "nest-0") if not key[0]} & {key[1] for key in listed(nested, "nest-0")}
    (thread,) = migrate(nested, ours).threads
    assert (thread.state, thread.copied, thread.checkpoints) == ("ahead", 0, total)


@pytest.mark.parametrize("limits", [{"keep_last": 3}, {"max_age": 1e-6}])
def test_threads_with_subgraphs_can_be_migrated_to_a_destination_that_thins_out(tmp_path, nested, limits):
    thinning = TurnCheckpointSaver(tmp_path / "thinning", fsync=False, **limits)
    assert migrate(nested, thinning).threads[0].state == "copied"
    assert drain(60.0)
    (thread,) = migrate(nested, thinning).threads
    assert (thread.state, thread.copied) == ("unchanged", 0)
    assert 0 < len(listed(thinning, "nest-0")) < thread.checkpoints


def test_what_goes_while_it_is_copied_is_not_told_as_left_out(tmp_path, source):
    thinning = TurnCheckpointSaver(tmp_path / "thinning", fsync=False)

    def prune(at: Any) -> None:
        if at.checkpoints_done == at.checkpoints_total and not at.threads_done:
            thinning.prune(["talk-0"])

    report = migrate(source, thinning, progress=prune)
    assert (report.copied, report.threads[0].pruned) == (report.checkpoints, 0)
    assert "left out" not in str(report)
    assert 0 < len(listed(thinning, "talk-0")) < report.checkpoints


def removals(saver: TurnCheckpointSaver, how: str) -> None:
    """What changes a thread without removing any checkpoint of its present life."""
    if how == "deleted once":
        talk(saver, "talk-0")
        saver.delete_thread("talk-0")
    elif how == "copied onto":
        saver.copy_thread("nobody", "talk-0")
        talk(saver, "other", turns=1)
        saver.copy_thread("other", "talk-0")
        saver.delete_thread("talk-0")


@pytest.mark.parametrize("how", ["never", "deleted once", "copied onto"])
def test_what_was_never_copied_is_not_taken_for_pruned(tmp_path, ours, how):
    source = TurnCheckpointSaver(tmp_path / "source", fsync=False)
    talk(source, "talk-0", turns=3)
    removals(ours, how)
    oldest = min(Path(source.path).rglob("*.ckpt"))
    whole = oldest.read_bytes()
    oldest.write_bytes(b"\0" * len(whole))
    with pytest.warns(DamageWarning):
        lost = migrate(source, ours, restore_deleted=True).unreadable
    assert 0 < lost < len([*Path(source.path).rglob("*.ckpt")])  # others may share values with it
    oldest.write_bytes(whole)  # a backup was found
    again = TurnCheckpointSaver(source.path, fsync=False)
    report = migrate(again, ours, restore_deleted=True)
    assert (report.copied, report.threads[0].pruned, report.verified) == (lost, 0, True)
    assert listed(ours, "talk-0") == listed(again, "talk-0")


def test_that_a_thread_was_pruned_is_on_the_disk_before_the_first_checkpoint_goes(source, ours, monkeypatch):
    migrate(source, ours)
    monkeypatch.setattr("langgraph_turncheckpoint._upkeep.remove_checkpoints", _die)
    with pytest.raises(KeyboardInterrupt):
        ours.prune(["talk-0"])
    monkeypatch.undo()
    store = ours.store
    files = store.thread("talk-0").namespace(store.thread("talk-0").ledger.read() or LedgerState(), "")
    oldest = min(files.ids())
    remove_checkpoints(files, [oldest])  # as a process that was killed may have got so far
    assert migrate(source, ours).threads[0].pruned == 1


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def _fill_up(path: str, *, fsync: bool) -> None:
    raise StorageError(errno.ENOSPC, "no space left", path)


def test_a_mark_that_cannot_be_written_keeps_no_prune_from_its_work(source, ours, monkeypatch):
    total = migrate(source, ours).checkpoints
    with monkeypatch.context() as full:
        full.setattr("langgraph_turncheckpoint._files.make_empty_file", _fill_up)
        ours.prune(["talk-0"])
    assert len(listed(ours, "talk-0")) == 1
    assert migrate(source, ours).threads[0].older == total - 1  # then it cannot be told, and they come back


def test_a_pruned_thread_is_sound(source, ours):
    migrate(source, ours)
    ours.prune(["talk-0"])
    assert [*ours.verify()] == []


def test_a_thread_that_went_on_gets_back_what_was_pruned(source, ours):
    total = migrate(source, ours).checkpoints
    GRAPHS["talk"](ours).invoke(Command(resume="yes"), config_of("talk-0"))
    whole = listed(ours, "talk-0")
    keeping = TurnCheckpointSaver(ours.path, fsync=False, keep_last=len(whole) - total + 1)
    with keeping.turn(config_of("talk-0")):
        pass  # its end prunes
    assert drain(60.0)
    assert migrate(source, ours).threads[0].state == "ahead"
    head = GRAPHS["talk"](ours).get_state(config_of("talk-0"))
    (thread,) = migrate(source, ours, restore_pruned=True).threads
    assert (thread.state, thread.copied, thread.older, thread.pruned) == ("ahead", total - 1, total - 1, 0)
    assert listed(ours, "talk-0").keys() == whole.keys()
    assert GRAPHS["talk"](ours).get_state(config_of("talk-0")) == head
    assert migrate(source, ours, restore_pruned=True).copied == 0


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
