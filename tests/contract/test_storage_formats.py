"""C65: files of every format that was ever released still load, can be written on, and are not changed by reading."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

import ormsgpack
import pytest

from langgraph_turncheckpoint import StaleTurnError, ThreadClosedError, TurnCheckpointSaver
from langgraph_turncheckpoint._fields import id_time_ns, ms_since, writes_fields, written_at
from langgraph_turncheckpoint._records import FORMAT_VERSION, INDEX_TAG, KEPT_PAGES, WRITES, FileKind, parse_file
from tests.contract.storing import Thread, addressed, files_below, named, numbered
from tests.golden import make
from tests.golden.reading import contents

FORMATS = sorted(path.name for path in make.HERE.glob("format-*"))
SERDES = {"plain": None, "encrypted": make.ENCRYPTING}


@pytest.fixture(params=[(name, kind) for name in FORMATS for kind in SERDES], ids="/".join)
def golden(request, tmp_path):
    """A saver on a copy of a golden store, and what it must hold."""
    name, kind = request.param
    shutil.copytree(make.HERE / name / kind, tmp_path / "store")
    expected = json.loads((make.HERE / name / "expected.json").read_text(encoding="utf-8"))[kind]
    return TurnCheckpointSaver(tmp_path / "store", serde=SERDES[kind], strict=True), expected


def test_there_are_golden_files_of_every_format():
    assert [f"format-{number}" for number in range(1, FORMAT_VERSION + 1)] == FORMATS


def test_a_golden_store_holds_what_was_put_into_it_and_reading_changes_nothing(golden):
    saver, expected = golden
    before = files_below(saver.path)
    assert json.loads(json.dumps(contents(saver))) == expected
    assert saver.verify() == []
    assert files_below(saver.path) == before


def test_a_golden_store_can_be_written_on(golden):
    saver, expected = golden
    thread = Thread(saver, "conversation")
    found = saver.get_tuple(addressed("conversation"))
    thread.config, thread.last, thread.ids = found.config, found.checkpoint, [numbered(n) for n in range(1, 5)]
    messages = found.checkpoint["channel_values"]["messages"]
    thread.put({"messages": [*messages, "new"], "step": 5})
    thread.write("more")
    newest = saver.get_tuple(addressed("conversation"))
    assert newest.checkpoint["channel_values"]["messages"] == [*messages, "new"]
    saver.put_writes(addressed("early", "", numbered(3)), [("n", "later")], "task-2")
    early = Thread(saver, "early")
    early.config = addressed("early", "", numbered(2))
    early.put({"n": 3}, number=3)
    assert [value for _, _, value in saver.get_tuple(addressed("early")).pending_writes] == ["still early", "later"]
    for thread_id in set(expected["threads"]) - {make.CLOSED}:
        saver.prune([thread_id])
        saver.copy_thread(thread_id, f"copy of {thread_id}")
    assert saver.verify() == []
    assert saver.get_tuple(addressed("copy of conversation")).checkpoint == newest.checkpoint


def test_tombstones_and_closed_threads_of_a_golden_store_still_hold(golden):
    saver, _ = golden
    late = Thread(saver, make.DELETED)
    late.config = addressed(make.DELETED, "", numbered(4))
    with pytest.raises(StaleTurnError):
        late.put({"n": 1}, number=5)
    with pytest.raises(ThreadClosedError):
        Thread(saver, make.CLOSED).put({"n": 2}, number=2)


@pytest.mark.parametrize("name", FORMATS)
def test_golden_files_have_every_kind_of_file_and_record(name):
    images = [
        parse_file(path.read_bytes())
        for ending in (".ckpt", ".pages", ".early")
        for path in named(make.HERE / name / "plain", ending)
    ]
    assert {image.kind for image in images} == set(FileKind)
    assert {kind for image in images for kind, _ in image.records} == {WRITES, KEPT_PAGES}
    tags = {blob.tag for image in images for blob in image.blobs.values()}
    assert {INDEX_TAG, "m", "p", "s:msgpack"} <= tags


# --- when writes were made, which only newer stores tell ---

MADE: Final = "1f0cd4ad-9b3e-6d10-8001-0242ac120002"


def test_a_record_of_writes_tells_when_it_was_made_in_five_bytes_at_most():
    made = id_time_ns(MADE)
    assert made is not None
    fields = writes_fields("task", [0], 7)
    for ms in (0, 90, 1_250, 70_000, (1 << 32) - 1):
        more = writes_fields("task", [0], 7, ms_since(MADE, made + ms * 1_000_000))
        assert len(ormsgpack.packb(more)) - len(ormsgpack.packb(fields)) <= 5
        assert written_at(MADE, more) == pytest.approx(made / 1e9 + ms / 1e3)


@pytest.mark.parametrize("late_ms", [-1, 1 << 32, 1 << 50])
def test_a_time_that_makes_no_sense_is_not_told(late_ms):
    made = id_time_ns(MADE)
    assert made is not None
    assert ms_since(MADE, made + late_ms * 1_000_000) is None


@pytest.mark.parametrize("checkpoint_id", ["", "7", "0001", numbered(3), "00000000-1234-6123-8123-123412341234"])
def test_ids_that_tell_no_time_give_none(checkpoint_id):
    assert id_time_ns(checkpoint_id) is None or ms_since(checkpoint_id, time.time_ns()) is None
    assert id_time_ns(checkpoint_id) is not None or written_at(checkpoint_id, writes_fields("task", [0], 7, 5)) is None


@pytest.mark.parametrize("extra", [[], [12], [12, "of a later version", {"x": 1}], ["no number"]])
def test_writes_are_read_whatever_is_told_of_them_beside(tmp_path, monkeypatch, extra):
    """Those of stores that do not tell when they were made, and of later ones that may tell more."""
    monkeypatch.setattr(
        "langgraph_turncheckpoint._store.writes_fields", lambda *args: [*writes_fields(*args[:3]), *extra]
    )
    saver = TurnCheckpointSaver(tmp_path / "store", strict=True)
    thread = Thread(saver)
    thread.put({"n": 1})
    thread.write("more")
    found: Any = TurnCheckpointSaver(tmp_path / "store", strict=True).get_tuple(thread.config)
    assert [value for _, _, value in found.pending_writes] == ["more"]
    assert saver.verify() == []
    assert "thread" in saver.timeline("thread").text
    thread.write("other", "task-2")
    found = saver.get_tuple(thread.config)
    assert len(found.pending_writes) == 2


def test_the_script_makes_what_it_says_it_makes(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "HERE", Path(tmp_path))
    monkeypatch.setattr("sys.argv", ["make"])
    make.main()
    made = json.loads((tmp_path / f"format-{FORMAT_VERSION}" / "expected.json").read_text(encoding="utf-8"))
    kept = Path(make.__file__).parent / f"format-{FORMAT_VERSION}" / "expected.json"
    assert made == json.loads(kept.read_text(encoding="utf-8"))
    with pytest.raises(SystemExit, match="released files stay"):
        make.main()
