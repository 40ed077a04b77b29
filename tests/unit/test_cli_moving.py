"""The commands that take threads elsewhere, against real files and databases."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import xml.etree.ElementTree as ET

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from typer.testing import CliRunner

from langgraph_turncheckpoint import TurnCheckpointSaver, cli
from tests.contract import cut_off_threads as cut
from tests.unit.test_cli_reading import contents, save


@pytest.fixture
def store(tmp_path):
    return cut.copy_of_store(tmp_path)


@pytest.fixture
def invoke():
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(cli.app, [str(a) for a in arguments], **options)


def state(saver, thread_id):
    found = saver.get_tuple(cut.config(thread_id))
    return None if found is None else (found.checkpoint, found.metadata, found.pending_writes)


# --- export and import ---


@pytest.mark.parametrize("thread_id", [cut.WHOLE, cut.SENDS])
def test_what_was_exported_is_imported_again(invoke, store, tmp_path, thread_id):
    result = invoke("export", store, thread_id, tmp_path / "t.jsonl", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["checkpoints"] >= 3) == (0, True)
    result = invoke("import", tmp_path / "new", tmp_path / "t.jsonl", "--json")
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (0, "copied")
    assert state(TurnCheckpointSaver(tmp_path / "new"), thread_id) == state(TurnCheckpointSaver(store), thread_id)
    again = invoke("import", tmp_path / "new", tmp_path / "t.jsonl", "--json")
    assert json.loads(again.stdout)["state"] == "unchanged"


def test_a_thread_can_be_imported_under_another_id(invoke, store, tmp_path):
    invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl")
    assert invoke("import", store, tmp_path / "t.jsonl", "--as", "twin").exit_code == 0
    saver = TurnCheckpointSaver(store)
    assert state(saver, "twin")[0] == state(saver, cut.WHOLE)[0]


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(invoke, store, tmp_path):
    (tmp_path / "t.jsonl").write_text("precious")
    result = invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl")
    assert (result.exit_code, (tmp_path / "t.jsonl").read_text()) == (1, "precious")
    assert invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl", "--overwrite").exit_code == 0


@pytest.mark.parametrize("spoiled", ["cut", "changed", "other", "missing"])
def test_a_file_that_is_not_what_was_exported_is_refused_and_nothing_is_made(invoke, store, tmp_path, spoiled):
    path = tmp_path / "t.jsonl"
    invoke("export", store, cut.WHOLE, path)
    data = path.read_bytes()
    if spoiled == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-9], "changed": data.replace(b"hello", b"hullo"), "other": b"x"}[spoiled])
    result = invoke("import", tmp_path / "new", path)
    assert result.exit_code == (1 if spoiled in {"cut", "changed", "other", "missing"} else 2)
    assert "t.jsonl" in result.stderr
    assert not (tmp_path / "new" / "threads").exists()


# --- migrate ---


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "app.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for thread_id in ("a", "b", "c"):
            for text in ("hello", "more"):
                cut.agent(saver, cut.call("look", 1)).invoke(cut.given(thread_id, text), cut.config(thread_id))
    return path


def test_a_database_is_migrated_and_a_second_time_changes_nothing(invoke, database, tmp_path):
    before = database.read_bytes()
    result = invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    assert (result.exit_code, database.read_bytes()) == (0, before)
    assert "3 threads (3 copied)" in result.stdout
    saver = TurnCheckpointSaver(tmp_path / "new")
    assert sorted(saver.thread_ids()) == ["a", "b", "c"]
    moved = contents(tmp_path / "new")
    again = json.loads(invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--json").stdout)
    assert {thread["state"] for thread in again["threads"]} == {"unchanged"}
    assert (again["verified"], again["errors"]) == (True, [])
    assert contents(tmp_path / "new") == moved


def test_only_chosen_threads_are_migrated(invoke, database, tmp_path):
    invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--thread", "b")
    assert TurnCheckpointSaver(tmp_path / "new").thread_ids() == ["b"]


def test_a_store_is_migrated_to_a_database(invoke, store, tmp_path):
    assert invoke("migrate", store, f"sqlite:{tmp_path}/out.db", "--thread", cut.WHOLE).exit_code == 0
    with SqliteSaver.from_conn_string(str(tmp_path / "out.db")) as saver:
        assert saver.get_tuple(cut.config(cut.WHOLE)) is not None


def test_a_thread_that_is_another_one_is_refused_and_the_others_are_copied(invoke, database, tmp_path):
    there = TurnCheckpointSaver(tmp_path / "new")
    save(there, "b")
    result = invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, len(facts["errors"])) == (1, 1)
    assert sorted(thread["thread_id"] for thread in facts["threads"]) == ["a", "c"]


@pytest.mark.parametrize("place", ["sqlite:", "sqlite:/no/such/file.db", "mysql://x", "/no/such/dir", ""])
def test_what_is_no_place_is_a_usage_error(invoke, tmp_path, place):
    result = invoke("migrate", place, tmp_path / "new")
    assert result.exit_code == 2
    assert not (tmp_path / "new").exists()


def test_a_database_of_another_program_is_a_usage_error(invoke, tmp_path):
    connection = sqlite3.connect(tmp_path / "mail.db")
    connection.execute("CREATE TABLE mail (x)")
    connection.close()
    assert invoke("migrate", f"sqlite:{tmp_path}/mail.db", tmp_path / "new").exit_code == 2


def test_ctrl_c_ends_a_migration_and_the_next_one_goes_on(invoke, database, tmp_path, monkeypatch):
    put, done = TurnCheckpointSaver.put, []

    def interrupting(*args, **kwargs):
        done.append(args)
        if len(done) == 3:
            signal.raise_signal(signal.SIGINT)
        return put(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TurnCheckpointSaver, "put", interrupting)
        result = invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    assert result.exit_code == 130
    assert "checkpoints copied; repeat the command" in result.stderr
    assert invoke("verify", tmp_path / "new").exit_code == 0
    assert invoke("migrate", f"sqlite:{database}", tmp_path / "new").exit_code == 0
    assert sorted(TurnCheckpointSaver(tmp_path / "new").thread_ids()) == ["a", "b", "c"]


# --- timeline ---


def test_a_timeline_is_drawn_into_a_file_or_printed(invoke, store, tmp_path):
    result = invoke("timeline", store, cut.GUARDED, "-o", tmp_path / "t.svg")
    assert result.exit_code == 0
    assert ET.parse(tmp_path / "t.svg").getroot().tag.endswith("svg")
    assert "turn 1" in invoke("timeline", store, cut.GUARDED).stdout
    assert invoke("timeline", store, cut.GUARDED, "-o", tmp_path / "t.png").exit_code == 2
    assert not (tmp_path / "t.png").exists()


def test_the_whole_way_of_a_broken_thread(invoke, store, tmp_path):
    """Looked at, taken elsewhere, repaired there, and gone on with."""
    invoke("migrate", store, tmp_path / "copy")
    shutil.rmtree(store)
    assert invoke("repair", tmp_path / "copy", cut.SENDS, "--apply", "--idle", "0").exit_code == 0
    saver = TurnCheckpointSaver(tmp_path / "copy")
    graph = cut.graphs(saver)[cut.SENDS]
    graph.invoke(cut.given(cut.SENDS, "go on"), cut.config(cut.SENDS))
    assert graph.get_state(cut.config(cut.SENDS)).values["paid"] == 7
