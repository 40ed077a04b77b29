"""What a migration will not do: overwrite, bring back, take over, or say that all is well when it is not."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Command

from langgraph_turncheckpoint import (
    CopyDiffersError,
    DeletedThreadError,
    ForeignFileError,
    MigrationError,
    PlaceError,
    SourceChangedError,
    StaleTurnError,
    StorageError,
    ThreadBusyError,
    ThreadClosedError,
    ThreadConflictError,
    TurnCheckpointSaver,
)
from langgraph_turncheckpoint.migration import MigrationReport, Progress, migrate
from tests.contract.migrating import GRAPHS, config_of, listed, populate, sqlite_saver, talk
from tests.langgraph_versions import needs_savers_that_sort_writes

pytestmark = needs_savers_that_sort_writes


@pytest.fixture
def source() -> InMemorySaver:
    saver = InMemorySaver()
    populate(saver)
    return saver


@pytest.fixture
def ours(tmp_path: Path) -> TurnCheckpointSaver:
    return TurnCheckpointSaver(tmp_path / "ours", fsync=False)


def refused(source: Any, destination: Any, **options: Any) -> MigrationError:
    with pytest.raises(MigrationError) as caught:
        migrate(source, destination, **options)
    return caught.value


def report_of(error: MigrationError) -> MigrationReport:
    assert isinstance(error.report, MigrationReport)
    return error.report


def test_another_thread_under_the_id_is_named_and_kept_and_the_others_come_over(source, ours):
    talk(ours, "fan-0")
    before = listed(ours, "fan-0")
    error = refused(source, ours)
    (conflict,) = error.errors
    assert isinstance(conflict, ThreadConflictError)
    assert conflict.thread_id == "fan-0"
    assert "'fan-0'" in str(error)
    assert "1 of 5 threads" in str(error)
    assert listed(ours, "fan-0") == before
    assert {thread.state for thread in report_of(error).threads} == {"copied"}
    assert len(report_of(error).threads) == 4


def test_a_checkpoint_with_another_value_is_named_without_showing_the_value(source, ours):
    migrate(source, ours)
    found = ours.get_tuple(config_of("talk-0"))
    assert found is not None
    found.checkpoint["channel_values"]["messages"][0].content = "a secret"
    parent = found.parent_config
    with ours.turn(config_of("talk-0")) as config:
        versions = found.checkpoint["channel_versions"]
        here = {**config["configurable"], "checkpoint_ns": "", "checkpoint_id": parent["configurable"]["checkpoint_id"]}
        ours.put({"configurable": here}, found.checkpoint, found.metadata, versions)
    (conflict,) = refused(source, ours).errors
    assert isinstance(conflict, ThreadConflictError)
    assert "channel 'messages'[0]['content'] differs" in str(conflict)
    assert found.checkpoint["id"] in str(conflict)
    assert "secret" not in str(conflict)


def test_a_closed_thread_is_not_written_to(source, ours):
    ours.close_thread("talk-0")
    (closed,) = refused(source, ours).errors
    assert isinstance(closed, ThreadClosedError)
    assert closed.thread_id == "talk-0"
    ours.reopen_thread("talk-0")
    migrate(source, ours)


def test_whoever_has_an_open_turn_on_the_thread_keeps_it(source, ours):
    with ours.turn(config_of("talk-0")) as config:
        (busy,) = refused(source, ours).errors
        assert isinstance(busy, ThreadBusyError)
        ours.put_writes(
            {"configurable": {**config["configurable"], "checkpoint_id": "1"}}, [("messages", 1)], "task"
        )  # the turn is still the newest
    migrate(source, ours)


def test_a_thread_that_is_there_already_fences_nobody_out(source, ours):
    migrate(source, ours)
    with ours.turn(config_of("talk-0")):
        assert {thread.state for thread in migrate(source, ours).threads} == {"unchanged"}


def test_a_deleted_thread_does_not_come_back_unless_that_is_asked_for(source, ours):
    migrate(source, ours)
    ours.delete_thread("nest-0")
    (deleted,) = refused(source, ours).errors
    assert isinstance(deleted, DeletedThreadError)
    assert deleted.thread_id == "nest-0"
    assert "nest-0" not in ours.thread_ids()
    migrate(source, ours, restore_deleted=True)
    assert listed(ours, "nest-0") == listed(source, "nest-0")


def test_a_thread_that_began_anew_in_the_source_may_follow_a_deleted_one(source, ours):
    migrate(source, ours)
    ours.delete_thread("talk-0")
    source.delete_thread("talk-0")
    talk(source, "talk-0")
    migrate(source, ours)
    assert listed(ours, "talk-0") == listed(source, "talk-0")


def test_a_source_that_goes_on_meanwhile_is_noticed_and_the_next_run_completes_it(source, ours):
    went_on: list[Progress] = []

    def go_on(at: Progress) -> None:
        if at.thread_id == "talk-0" and not went_on:
            went_on.append(at)
            GRAPHS["talk"](source).invoke(Command(resume="yes"), config_of("talk-0"))

    (changed,) = refused(source, ours, progress=go_on).errors
    assert isinstance(changed, SourceChangedError)
    assert changed.thread_id == "talk-0"
    migrate(source, ours)
    assert listed(ours, "talk-0") == listed(source, "talk-0")


def test_new_pending_writes_in_the_source_are_noticed(source, ours):
    newest = source.get_tuple(config_of("talk-0")).config

    def write(at: Progress) -> None:
        if at.thread_id == "talk-0":
            source.put_writes(newest, [("items", ["more"])], "late task", "~late")

    (changed,) = refused(source, ours, progress=write).errors
    assert isinstance(changed, SourceChangedError)
    migrate(source, ours)
    assert listed(ours, "talk-0") == listed(source, "talk-0")


def test_a_source_that_loses_checkpoints_meanwhile_is_noticed(tmp_path, source, ours):
    other = TurnCheckpointSaver(tmp_path / "other", fsync=False)
    migrate(source, other)

    def prune(at: Progress) -> None:
        if at.thread_id == "fork-0":
            other.prune(["fork-0"])

    (changed,) = refused(other, ours, progress=prune).errors
    assert isinstance(changed, SourceChangedError)
    assert "is gone" in str(changed)


def test_writes_that_a_killed_run_had_not_stored_yet_are_added(source, ours):
    migrate(source, ours)
    half = InMemorySaver()
    for thread_id in ("fan-0", "nest-0"):
        for found in reversed(list(source.list(config_of(thread_id)))):
            conf = dict(found.config["configurable"])
            conf["checkpoint_id"] = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
            half.put({"configurable": conf}, found.checkpoint, found.metadata, found.checkpoint["channel_versions"])
    report = migrate(source, half, thread_ids=["fan-0", "nest-0"])
    assert {(thread.state, thread.copied) for thread in report.threads} == {("continued", 0)}
    for thread_id in ("fan-0", "nest-0"):
        assert listed(half, thread_id) == listed(source, thread_id)


def test_pending_writes_that_the_source_never_had_are_a_conflict(source, ours):
    migrate(source, ours)
    newest = ours.get_tuple(config_of("fan-0"))
    ours.put_writes(newest.config, [("items", ["foreign"])], "foreign task")
    (conflict,) = refused(source, ours).errors
    assert isinstance(conflict, ThreadConflictError)
    assert "pending writes" in str(conflict)


class Forgetful(InMemorySaver):
    """Stores no writes, and only the newest values."""

    def put_writes(self, *args: Any) -> None:
        """Nothing."""


def test_what_does_not_come_back_as_it_was_put_is_named(source):
    error = refused(source, Forgetful())
    differing = [each for each in error.errors if isinstance(each, CopyDiffersError)]
    assert differing == list(error.errors)
    assert {each.thread_id for each in differing} >= {"talk-0", "fan-0", "nest-0"}
    assert "pending writes" in str(differing[0])
    assert "Forgetful" in str(differing[0])


class Grumpy(InMemorySaver):
    """Refuses whatever is put."""

    error: Exception = ValueError("no\nroom")

    def put(self, *args: Any) -> Any:
        """Refuse."""
        raise self.error


def test_what_the_destination_raises_is_told_with_thread_and_checkpoint(source):
    error = refused(source, Grumpy(), thread_ids=["talk-0"])
    oldest = min(key for _, key in listed(source, "talk-0"))
    assert f"thread 'talk-0': the destination refuses checkpoint {oldest}: ValueError: no room" in str(error)
    assert isinstance(error.errors[0].__cause__, ValueError)


def test_a_full_disk_ends_the_migration_at_once(source):
    grumpy = Grumpy()
    grumpy.error = StorageError(errno.ENOSPC, "full", "x")
    error = refused(source, grumpy)
    assert len(error.errors) == 1
    assert "5 of 5 threads" in str(error)


def test_one_damaged_thread_does_not_keep_the_others_from_coming(tmp_path, source, ours):
    strict = TurnCheckpointSaver(tmp_path / "strict", fsync=False, strict=True)
    migrate(source, strict)
    victim = min((tmp_path / "strict").rglob("*count-0*/**/*.ckpt"))
    victim.write_bytes(victim.read_bytes()[:100])
    error = refused(strict, ours)
    assert isinstance(error.errors[0], StorageError)
    assert len(report_of(error).threads) == 4


def test_a_wrong_key_is_told_as_such(tmp_path, ours):
    right, wrong = (EncryptedSerializer.from_pycryptodome_aes(key=key * 16) for key in (b"a", b"b"))
    with sqlite_saver(tmp_path / "app.db", serde=right) as written:
        talk(written, "talk-0")
    with sqlite_saver(tmp_path / "app.db", serde=wrong) as unreadable:
        assert "another key" in str(refused(unreadable, ours))
    with sqlite_saver(tmp_path / "app.db") as unreadable:
        assert "serde that it was written with" in str(refused(unreadable, ours))
    assert ours.thread_ids() == []


def test_source_and_destination_must_be_two_savers(source, ours, tmp_path):
    migrate(source, ours, thread_ids=["talk-0"])
    with pytest.raises(MigrationError, match="are the same"):
        migrate(ours.path, tmp_path / "x" / ".." / "ours")
    with pytest.raises(MigrationError, match="are the same"):
        migrate(source, source)
    with pytest.raises(TypeError, match="7 is no checkpoint saver"):
        migrate(7, source)  # type: ignore[arg-type]


def test_threads_may_be_left_out(source, ours):
    report = migrate(source, ours, exclude=["fan-0", "nest-0"])
    assert sorted(ours.thread_ids()) == ["count-0", "fork-0", "talk-0"] == [each.thread_id for each in report.threads]
    assert migrate(source, ours, thread_ids=["fan-0", "talk-0"], exclude="talk-0").copied > 0
    assert "nest-0" not in ours.thread_ids()
    assert "no thread 'nobody'; nothing was copied" in str(refused(source, ours, exclude=["nobody"]))
    assert "nest-0" not in ours.thread_ids()


def put_by_hand(saver: InMemorySaver, thread_id: Any, **metadata: Any) -> None:
    checkpoint: Any = {"v": 4, "id": "1", "ts": "2024", "channel_values": {"a": 1}, "versions_seen": {}}
    checkpoint["channel_versions"] = {"a": "1"}
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    saver.put(config, checkpoint, {"source": "loop", **metadata}, {"a": "1"})  # type: ignore[typeddict-item]


def test_ids_that_only_differ_in_their_type_cannot_both_come(ours):
    source = InMemorySaver()
    put_by_hand(source, "1")
    put_by_hand(source, 1)
    assert "two threads of this id" in str(refused(source, ours))
    source.delete_thread("1")
    assert [thread.thread_id for thread in migrate(source, ours).threads] == ["1"]
    assert migrate(source, ours).copied == 0


def test_metadata_that_the_destination_was_told_not_to_keep_is_no_difference(tmp_path):
    source = InMemorySaver()
    put_by_hand(source, "1", api_key="secret", other="kept")
    ours = TurnCheckpointSaver(tmp_path / "redacted", fsync=False, redact=["api_key"])
    assert migrate(source, ours).copied == 1
    assert migrate(source, ours).copied == 0
    (found,) = ours.list(None)
    assert (found.metadata["api_key"], found.metadata["other"]) == ("[redacted]", "kept")  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    "error",
    [
        MigrationError("why", "1", (StaleTurnError("1", 2, 3),)),
        ThreadConflictError("why", "1"),
        PlaceError("where"),
        ForeignFileError("a.jsonl", "line 3", "is no JSON"),
    ],
)
def test_errors_survive_pickling(error):
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (type(error), str(error))
    assert vars(copied).keys() == vars(error).keys()
