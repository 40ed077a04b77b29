"""What readers and later saves see while, and after, something else was removed, copied, damaged or killed."""

from __future__ import annotations

import errno
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_turncheckpoint import (
    DamagedCheckpointError,
    DamageWarning,
    StorageError,
    TurnCheckpointSaver,
    UnknownFormatError,
    _offload,
)
from langgraph_turncheckpoint._checkpoint_files import NamespaceFiles
from langgraph_turncheckpoint._ledger import LEDGER_NAME
from langgraph_turncheckpoint._records import COMMITTING_OFFSET
from tests.contract.storing import Thread, addressed, file_of, files_below, fresh, latest, named
from tests.system_calls import SystemCalls, substituted

BIG = ["a page of its own, for certain " * 300]


def test_a_value_that_comes_back_after_its_pages_were_pruned_is_stored_again(saver):
    """S4: one cached saver sees the value leave, a prune, a save that refers to nothing, and the value return."""
    thread = Thread(saver)
    for value in (BIG, ["another"]):
        thread.put({"x": value})
    saver.prune(["thread"])
    for value in (["a third"], BIG):
        thread.put({"x": value})
    assert latest(fresh(saver)).checkpoint["channel_values"] == {"x": BIG}
    assert saver.verify() == []


def test_a_thread_deleted_after_a_killed_copy_onto_it_stays_deleted(saver):
    """C28: the copy had its generation ready, and died before the ledger named it."""
    thread = Thread(saver)
    thread.put({"x": BIG})
    generation = file_of(saver, thread.ids[0]).parents[2]
    shutil.copytree(generation, generation.with_name("g-2"))
    saver.delete_thread("thread")
    assert fresh(saver).get_tuple(addressed("thread")) is None
    assert list(fresh(saver).list(None)) == []
    Thread(saver).put({"x": 1}, number=9)
    assert len(list(fresh(saver).list(None))) == 1


def test_a_prune_keeps_the_newest_checkpoint_that_can_be_loaded(saver):
    """S6: the newest file is whole, but shares pages with a damaged one."""
    thread = Thread(saver)
    thread.put({"x": ["first"]})
    thread.put({"x": BIG})
    thread.put({"x": BIG, "y": 1})
    file_of(saver, thread.ids[1]).write_bytes(b"damaged")
    with pytest.warns(DamageWarning):
        before = latest(fresh(saver))
    assert before.checkpoint["channel_values"] == {"x": ["first"]}
    saver.prune(["thread"])
    with pytest.warns(DamageWarning):
        assert latest(fresh(saver)).checkpoint == before.checkpoint


def test_a_removal_that_stops_half_way_leaves_every_checkpoint_it_has_not_reached(saver):
    thread = Thread(saver, metadata={"run_id": "run"})
    for number in range(4):
        thread.put({"x": BIG, "n": number})
    removals = []

    def fail_after_the_first(at: int, name: str) -> int | None:
        if name == "unlink":
            removals.append(at)
        return errno.EIO if len(removals) > 2 else None

    with substituted(SystemCalls(fail_after_the_first)), pytest.raises(StorageError):
        saver.delete_for_runs(["run"])
    for found in fresh(saver, strict=True).list(None):
        assert found.checkpoint["channel_values"]["x"] == BIG
    saver.delete_for_runs(["run"])
    assert list(fresh(saver).list(None)) == []


@pytest.mark.parametrize("how", ["get_tuple", "list"])
@pytest.mark.parametrize("remove", ["prune", "copy"])
def test_a_reader_that_meets_a_removal_looks_again(saver, monkeypatch, remove, how):
    """S9: between its listing and its reading the newest checkpoint gets a successor, and everything else goes."""
    thread = Thread(saver)
    thread.put({"x": BIG})
    Thread(saver, "source").put({"y": BIG}, number=3)
    reader = fresh(saver, strict=True)
    read, done = NamespaceFiles.read, list[str]()

    def read_late(self, checkpoint_id):
        if not done:
            done.append(checkpoint_id)
            thread.put({"x": BIG, "n": 2}, number=2)
            saver.prune(["thread"]) if remove == "prune" else saver.copy_thread("source", "thread")
        return read(self, checkpoint_id)

    monkeypatch.setattr(NamespaceFiles, "read", read_late)
    found = reader.get_tuple(addressed("thread")) if how == "get_tuple" else next(reader.list(addressed("thread")))
    assert done
    assert found is not None
    # A listing gives what it began with where that is still there; a copy keeps it, in a new place.
    expected = {"x": BIG, "n": 2} if remove == "prune" else {"y": BIG} if how == "get_tuple" else {"x": BIG}
    assert found.checkpoint["channel_values"] == expected


def test_a_serde_that_is_set_later_is_the_one_that_writes(tmp_path):
    """S8: and what the old one wrote in clear is not referred to."""
    pytest.importorskip("Crypto", reason="the `encrypt` extra is not installed")
    saver = TurnCheckpointSaver(tmp_path)
    Thread(saver, "plain").put({"x": ["shared " * 900]})
    saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    Thread(saver).put({"x": ["secret " * 900]})
    assert not any(b"secret" in data for data in files_below(saver.path).values())
    assert latest(saver).checkpoint["channel_values"] == {"x": ["secret " * 900]}


@pytest.mark.parametrize("loss", ["missing", "junk"])
def test_verify_changes_nothing_even_where_the_ledger_is_lost(saver, loss):
    Thread(saver).put({"x": 1})
    (ledger,) = named(saver.path, LEDGER_NAME)
    ledger.unlink() if loss == "missing" else ledger.write_bytes(b"junk" * 400)
    before = files_below(saver.path)
    first = saver.verify()
    assert [finding.kind for finding in first] == ["missing" if loss == "missing" else "damaged"]
    assert saver.verify() == first
    assert files_below(saver.path) == before


def test_writes_of_a_resumed_turn_sweep_what_its_dead_predecessor_left(saver):
    """C44: they are often the first thing that a resumed run stores."""
    thread = Thread(saver)
    thread.put({"x": 1})
    litter = file_of(saver, thread.ids[0]).with_name("c-x.ckpt.0123456789abcdef.tmp")
    litter.write_bytes(b"half")
    (ledger,) = named(saver.path, LEDGER_NAME)
    with ledger.open("r+b") as file:
        file.seek(COMMITTING_OFFSET)
        file.write(b"\x01")
    thread.write("value")
    assert not litter.exists()


async def test_an_operation_runs_even_where_no_thread_can_be_had(saver, monkeypatch):
    """As at the end of the interpreter, when executors refuse new work: the last save is not lost."""
    Thread(saver).put({"x": 1})

    def refuse(*args: object) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    monkeypatch.setattr(_offload, "_executor", None)
    assert (await saver.aget_tuple(addressed("thread"))).checkpoint["channel_values"] == {"x": 1}


@pytest.mark.parametrize(
    "error", [DamagedCheckpointError("/store/file", "cut short"), UnknownFormatError("/store/file", 9, 1)], ids=repr
)
def test_errors_about_a_file_name_it_as_the_systems_errors_do(error):
    again = pickle.loads(pickle.dumps(error))
    for found in (error, again):
        assert isinstance(found.errno, int)
        assert found.filename == "/store/file"
        assert str(found) == str(error)
        assert Path(found.filename).name in str(found)


def test_writes_on_a_latest_that_has_moved_are_refused(saver):
    """T3."""
    thread = Thread(saver)
    thread.put({"x": 1})
    read = saver.get_tuple(addressed("thread")).config
    thread.put({"x": 2})
    with pytest.raises(Exception, match="the thread has moved since"):
        saver.put_writes(read, [("x", "late")], "task")
    first = fresh(saver).get_tuple(addressed("thread", "", thread.ids[0]))
    assert first is not None
    assert first.pending_writes == []
