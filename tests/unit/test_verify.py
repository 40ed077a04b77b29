"""`verify` in a store that is in use: what a writer is in the middle of is no finding."""

from __future__ import annotations

from pathlib import Path

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_turncheckpoint import TurnCheckpointSaver, _files
from langgraph_turncheckpoint._verify import verify_store


@pytest.fixture
def saver(tmp_path):
    saver = TurnCheckpointSaver(tmp_path / "store", fsync=False)
    put(saver, "first")
    return saver


def put(saver, thread_id):
    config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    stored = saver.put(config, empty_checkpoint(), {}, {})
    saver.put_writes(stored, [("channel", "value")], "task")


@pytest.mark.parametrize("suffix", ["turn", ".ckpt"])
def test_a_file_that_was_read_in_the_middle_of_a_write_is_looked_at_again(saver, monkeypatch, suffix):
    read, torn = _files.read_file, set()

    def read_in_the_middle(path):
        data = read(path) or b""
        if path.endswith(suffix) and path not in torn:
            torn.add(path)
            return data[: len(data) // 2] if suffix == "turn" else data[:-3]
        return data

    monkeypatch.setattr(_files, "read_file", read_in_the_middle)
    assert list(verify_store(saver.path, fsync=False)) == []
    assert len(torn) == 1


def test_the_second_look_waits_for_the_writer(saver, monkeypatch):
    ledger = Path(saver.store.thread("first").ledger.path)
    whole, locked = ledger.read_bytes(), _files.LockedFile.__enter__
    ledger.write_bytes(bytes(len(whole)))

    def once_it_is_done(self):
        held = locked(self)
        ledger.write_bytes(whole)
        return held

    monkeypatch.setattr(_files.LockedFile, "__enter__", once_it_is_done)
    assert list(verify_store(saver.path, fsync=False)) == []


def test_a_thread_that_begins_during_the_walk_is_not_foreign(saver, monkeypatch):
    names_of = _files.list_directory

    def while_another_begins(path):
        names = names_of(path)
        if path.endswith("threads"):
            monkeypatch.setattr(_files, "list_directory", names_of)
            put(saver, "second")
        return names

    monkeypatch.setattr(_files, "list_directory", while_another_begins)
    assert list(verify_store(saver.path, fsync=False)) == []
    assert sorted(saver.thread_ids()) == ["first", "second"]


@pytest.mark.parametrize("has_ledger", [False, True])
def test_a_thread_of_which_only_the_beginning_was_made_lacks_nothing(saver, has_ledger):
    thread = saver.store.thread("dead before its first write")
    Path(thread.path).mkdir()
    if has_ledger:
        Path(thread.ledger.path).touch()
    assert list(verify_store(saver.path, fsync=False)) == []


def test_real_damage_is_told_and_changes_nothing(saver):
    (path,) = Path(saver.path).rglob("*.ckpt")
    path.write_bytes(path.read_bytes()[:40])
    before = path.read_bytes()
    for _ in range(2):
        assert {(found.path, found.kind) for found in verify_store(saver.path, fsync=False)} == {(str(path), "damaged")}
    assert path.read_bytes() == before


def test_a_thread_without_a_ledger_is_told_of(saver):
    ledger = Path(saver.store.thread("first").ledger.path)
    ledger.unlink()
    assert [(found.path, found.kind) for found in verify_store(saver.path, fsync=False)] == [(str(ledger), "missing")]
    assert not ledger.exists()
