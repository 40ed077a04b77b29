"""A thread as a file: it comes back the same in any saver, and a file that is not whole or not ours is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_turncheckpoint import (
    ForeignFileError,
    MigrationError,
    RefusedValueError,
    SourceChangedError,
    StorageError,
    ThreadConflictError,
    TurnCheckpointSaver,
    UnknownFormatError,
    UnserializableValueError,
)
from langgraph_turncheckpoint._portable import (
    aexport_thread,
    aimport_thread,
    export_thread,
    import_thread,
)
from langgraph_turncheckpoint._portable_values import decode_value, encode_value
from tests.contract.migrating import KINDS, config_of, listed, places_of_writes, savers, sqlite_saver, states, talk
from tests.langgraph_versions import needs_savers_that_sort_writes

pytestmark = needs_savers_that_sort_writes


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_thread_comes_back_the_same_in_any_saver(tmp_path, kind):
    thread_id, file = f"{kind}-0", tmp_path / "thread.jsonl"
    with sqlite_saver(tmp_path / "app.db") as source, sqlite_saver(tmp_path / "other.db") as other:
        KINDS[kind](source, thread_id)
        assert export_thread(source, thread_id, file) == (thread_id, len(listed(source, thread_id)), (), False)
        for destination in (savers(tmp_path, "ours"), InMemorySaver(), other):
            assert import_thread(file, destination).state == "copied"
            assert import_thread(file, destination).state == "unchanged"
            assert listed(destination, thread_id) == listed(source, thread_id)
            assert states(destination, thread_id) == states(source, thread_id)
            assert places_of_writes(destination, thread_id) == places_of_writes(source, thread_id)
            export_thread(destination, thread_id, tmp_path / "again.jsonl", overwrite=True)
            import_thread(tmp_path / "again.jsonl", InMemorySaver())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    saver = InMemorySaver()
    KINDS["fork"](saver, "fork-0")
    export_thread(saver, "fork-0", tmp_path / "fork.jsonl")
    return tmp_path / "fork.jsonl"


def test_the_file_is_lines_of_json_with_parents_first(file):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    header, *checkpoints, trailer = lines
    assert header["format"] == "turncheckpoint-thread"
    assert header["version"] == 1
    assert header["thread_id"] == "fork-0"
    assert trailer["checkpoints"] == len(checkpoints)
    before: set[Any] = set()
    for checkpoint in checkpoints:
        assert checkpoint["parent_id"] is None or checkpoint["parent_id"] in before
        before.add(checkpoint["checkpoint_id"])
    assert any(checkpoint["unchanged"] for checkpoint in checkpoints)
    assert any("json" in value for checkpoint in checkpoints for value in checkpoint["values"].values())


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX file modes")
def test_only_the_owner_can_read_the_file(file):
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_another_id_may_be_given(tmp_path, file):
    ours = savers(tmp_path, "ours")
    assert import_thread(file, ours, thread_id="twin").thread_id == "twin"
    assert ours.thread_ids() == ["twin"]  # type: ignore[attr-defined]


def test_an_encrypted_thread_is_written_in_the_clear_and_encrypted_again_on_import(tmp_path):
    key = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    source = TurnCheckpointSaver(tmp_path / "private", fsync=False, serde=key)
    talk(source, "talk-0")
    export_thread(source, "talk-0", tmp_path / "thread.jsonl")
    assert "aes" not in (tmp_path / "thread.jsonl").read_text()
    other = TurnCheckpointSaver(tmp_path / "other", fsync=False, serde=key)
    import_thread(tmp_path / "thread.jsonl", other)
    assert listed(other, "talk-0") == listed(source, "talk-0")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "other").rglob("*") if path.is_file())
    assert b"hello" not in stored


def test_a_file_cut_short_anywhere_is_refused_and_nothing_is_stored(tmp_path, file):
    data, ours = file.read_bytes(), savers(tmp_path, "ours")
    cut = tmp_path / "cut.jsonl"
    ends = {0, 1, 10, len(data) - 1, len(data) // 2, *(position + 1 for position, c in enumerate(data) if c == 10)}
    for end in sorted(ends - {len(data)}):
        cut.write_bytes(data[:end])
        with pytest.raises(ForeignFileError, match="cut short|header|empty|no JSON"):
            import_thread(cut, ours)
    assert ours.thread_ids() == []  # type: ignore[attr-defined]


def test_a_changed_file_is_refused(tmp_path, file):
    lines = file.read_bytes().splitlines(keepends=True)
    changed = tmp_path / "changed.jsonl"
    for variant in (
        [*lines[:1], *lines[2:]],  # one line less
        [*lines[:2], lines[1], *lines[2:]],  # one twice
        [*lines[:1], lines[1].replace(b"fork-0", b"fork-1"), *lines[2:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines, lines[-1]],
    ):
        if variant == lines:
            continue
        changed.write_bytes(b"".join(variant))
        with pytest.raises(ForeignFileError):
            import_thread(changed, InMemorySaver())


def sealed(path: Path, lines: list[Any]) -> Path:
    """A file with a trailer that fits."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    trailer = {"checkpoints": len(lines) - 1, "sha256": hashlib.sha256(data).hexdigest()}
    path.write_bytes(data + json.dumps(trailer).encode() + b"\n")
    return path


def parsed(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()][:-1]


def test_a_file_of_a_newer_format_is_left_alone(tmp_path, file):
    header, *rest = parsed(file)
    with pytest.raises(UnknownFormatError):
        import_thread(sealed(tmp_path / "new.jsonl", [{**header, "version": 2}, *rest]), InMemorySaver())


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"{}\n", b"[]\n", b"hello", b'{"format": "other"}\n{}\n', b"\xff\xfe\n", b"[" * 9999]
)
def test_a_file_of_another_kind_is_told_as_such(tmp_path, text):
    path = tmp_path / "other.jsonl"
    path.write_bytes(text)
    with pytest.raises(ForeignFileError) as caught:
        import_thread(path, InMemorySaver())
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    "damage",
    [
        {"values": None},
        {"values": {"a": {"json": 1, "msgpack": ""}}},
        {"values": {"a": "text"}},
        {"unchanged": ["nothing"]},
        {"writes": [["task"]]},
        {"write_keys": [["too short"]]},
        {"checkpoint": {"json": {"id": "another"}}},
        {"checkpoint": {"json": 7}},
        {"metadata": {"json": 7}},
        {"checkpoint_id": 7},
        {"checkpoint_ns": None},
    ],
)
def test_a_line_that_is_no_checkpoint_is_named(tmp_path, file, damage):
    lines = parsed(file)
    lines[1] |= damage
    ours = savers(tmp_path, "ours")
    with pytest.raises(ForeignFileError, match=r"line 2: is no checkpoint"):
        import_thread(sealed(tmp_path / "bad.jsonl", lines), ours)
    assert ours.thread_ids() == []  # type: ignore[attr-defined]


HOSTILE = {
    "pickle": {"pickle": base64.b64encode(b"cos\nsystem\n(S'true'\ntR.").decode()},
    "function": {
        "msgpack": base64.b64encode(
            ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(["os", "system", "true"])))
        ).decode()
    },
    "class": {
        "msgpack": base64.b64encode(
            ormsgpack.packb(ormsgpack.Ext(1, ormsgpack.packb(["subprocess", "Popen", ["true"]])))
        ).decode()
    },
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_asks_for_code_to_run_is_refused(tmp_path, file, kind):
    lines = parsed(file)
    lines[1]["values"]["items"] = HOSTILE[kind]
    ours = savers(tmp_path, "ours")
    with pytest.raises(RefusedValueError):
        import_thread(sealed(tmp_path / "bad.jsonl", lines), ours)
    assert ours.thread_ids() == []  # type: ignore[attr-defined]


def test_a_class_that_is_not_here_is_refused():
    packed = ormsgpack.packb(ormsgpack.Ext(5, ormsgpack.packb(["no_such_module", "Order", {"number": 1}])))
    with pytest.raises(MigrationError, match=r"no_such_module\.Order"):
        decode_value({"msgpack": base64.b64encode(packed).decode()})


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, 2**63, -(2**63), 1.5, float("inf"), "", "text \N{SNOWMAN}", b"\x00\xff", bytearray(b"x"),
        [1, [2, {"a": None}]], {"a": {"b": [1.0]}}, {1: "not a string"}, {3, 4}, {"json": "looks like a tag"},
    ],
)  # fmt: skip
def test_values_come_back_as_they_were(value):
    found = decode_value(json.loads(json.dumps(encode_value("channel", value))))
    assert found == value
    assert type(found) is type(value)


def test_a_value_that_cannot_be_written_is_named_and_no_file_is_left(tmp_path):
    with pytest.raises(UnserializableValueError, match="channel"):
        encode_value("channel", {"a": [object()]})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_already_is_kept(tmp_path, file):
    before = file.read_bytes()
    saver = InMemorySaver()
    talk(saver, "talk-0")
    with pytest.raises(StorageError, match="overwrite=True"):
        export_thread(saver, "talk-0", file)
    assert file.read_bytes() == before
    export_thread(saver, "talk-0", file, overwrite=True)
    assert import_thread(file, InMemorySaver()).thread_id == "talk-0"


def test_no_thread_no_directory_no_file(tmp_path, file):
    with pytest.raises(MigrationError, match="no such thread"):
        export_thread(InMemorySaver(), "nobody", tmp_path / "x.jsonl")
    saver = InMemorySaver()
    talk(saver, "talk-0")
    with pytest.raises(StorageError):
        export_thread(saver, "talk-0", tmp_path / "no" / "x.jsonl")
    with pytest.raises(StorageError):
        import_thread(tmp_path / "x.jsonl", saver)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_thread_that_changes_while_it_is_exported_leaves_no_file(tmp_path):
    saver = Changing()
    talk(saver, "talk-0")
    saver.changes = True
    with pytest.raises(SourceChangedError):
        export_thread(saver, "talk-0", tmp_path / "x.jsonl")
    assert list(tmp_path.iterdir()) == []


class Changing(InMemorySaver):
    """Says something else when it is asked again."""

    changes = False

    def get_tuple(self, config):
        found = super().get_tuple(config)
        if self.changes and found is not None:
            found.metadata["step"] = 99
        return found


def test_an_import_does_not_overwrite_another_thread(tmp_path, file):
    ours = savers(tmp_path, "ours")
    talk(ours, "fork-0")
    before = listed(ours, "fork-0")
    with pytest.raises(ThreadConflictError):
        import_thread(file, ours)
    assert listed(ours, "fork-0") == before


def test_a_thread_that_was_pruned_gets_it_back_from_its_file_if_that_is_asked_for(tmp_path, file):
    ours = savers(tmp_path, "ours")
    total = import_thread(file, ours).checkpoints
    ours.prune(["fork-0"])
    left = listed(ours, "fork-0").keys()
    thread = import_thread(file, ours)
    assert (thread.state, thread.copied, thread.pruned) == ("unchanged", 0, total - len(left))
    assert listed(ours, "fork-0").keys() == left
    thread = import_thread(file, ours, restore_pruned=True)
    assert (thread.state, thread.copied) == ("continued", total - len(left))
    assert len(listed(ours, "fork-0")) == total


async def test_the_async_twins_do_the_same(tmp_path):
    ours = savers(tmp_path, "ours")
    talk(ours, "talk-0")
    await aexport_thread(ours, "talk-0", tmp_path / "x.jsonl")
    back = InMemorySaver()
    assert (await aimport_thread(tmp_path / "x.jsonl", back)).state == "copied"
    assert back.get_tuple(config_of("talk-0")) is not None
    ours.prune(["talk-0"])
    assert (await aimport_thread(tmp_path / "x.jsonl", ours)).copied == 0
    assert (await aimport_thread(tmp_path / "x.jsonl", ours, restore_pruned=True)).copied > 0
