"""C65: files of every format that was ever released still load, can be written on, and are not changed by reading."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from langgraph_turncheckpoint import StaleTurnError, ThreadClosedError, TurnCheckpointSaver
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


def test_the_script_makes_what_it_says_it_makes(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "HERE", Path(tmp_path))
    monkeypatch.setattr("sys.argv", ["make"])
    make.main()
    made = json.loads((tmp_path / f"format-{FORMAT_VERSION}" / "expected.json").read_text(encoding="utf-8"))
    kept = Path(make.__file__).parent / f"format-{FORMAT_VERSION}" / "expected.json"
    assert made == json.loads(kept.read_text(encoding="utf-8"))
    with pytest.raises(SystemExit, match="released files stay"):
        make.main()
