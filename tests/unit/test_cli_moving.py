"""The commands that take threads elsewhere, against real files and databases."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.contract import cut_off_threads as cut
from tests.unit.test_cli_reading import contents, save

ROOT = Path(__file__).parents[2]


def state(saver, thread_id):
    found = saver.get_tuple(cut.config(thread_id))
    return None if found is None else (found.checkpoint, found.metadata, found.pending_writes)


def threads(result):
    return json.loads(result.stdout)["threads"]


#: Words that only callers of the library can do something with.
LIBRARY_WORDS = ("=True", "thread_ids", "exclude=", "PYTHONPATH", "multitask_strategy", "import_homemade", "[Errno")


def assert_spoken_to_people(result):
    assert [word for word in LIBRARY_WORDS if word in result.stderr] == []
    assert "Traceback" not in result.stderr


# --- export and import ---


@pytest.mark.parametrize("thread_id", [cut.WHOLE, cut.SENDS])
def test_what_was_exported_is_imported_again(invoke, store, tmp_path, thread_id):
    result = invoke("export", store, thread_id, tmp_path / "t.jsonl", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["checkpoints"] >= 3) == (0, True)
    result = invoke("import", tmp_path / "new", tmp_path / "t.jsonl", "--json")
    assert (result.exit_code, threads(result)[0]["state"]) == (0, "copied")
    assert state(TurnCheckpointSaver(tmp_path / "new"), thread_id) == state(TurnCheckpointSaver(store), thread_id)
    again = invoke("import", tmp_path / "new", tmp_path / "t.jsonl", "--json")
    assert threads(again)[0]["state"] == "unchanged"


def test_a_thread_can_be_imported_under_another_id(invoke, store, tmp_path):
    invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl")
    assert invoke("import", store, tmp_path / "t.jsonl", "--as", "twin").exit_code == 0
    saver = TurnCheckpointSaver(store)
    assert state(saver, "twin")[0] == state(saver, cut.WHOLE)[0]


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(invoke, store, tmp_path):
    (tmp_path / "t.jsonl").write_text("precious")
    result = invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl")
    assert (result.exit_code, (tmp_path / "t.jsonl").read_text()) == (1, "precious")
    assert "t.jsonl: there is such a file already; pass --overwrite to replace it" in result.stderr
    assert_spoken_to_people(result)
    assert invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl", "--overwrite").exit_code == 0


def test_what_was_pruned_comes_from_an_exported_file_only_if_that_is_asked_for(invoke, store, tmp_path):
    invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl")
    before = len([*TurnCheckpointSaver(store).list(cut.config(cut.WHOLE))])
    TurnCheckpointSaver(store).prune([cut.WHOLE])
    result = invoke("import", store, tmp_path / "t.jsonl")
    assert result.exit_code == 0
    left_out = f"0 of {before} checkpoints put now; {before - 1} pruned there left out"
    assert result.stdout == f"{cut.WHOLE}: {left_out}\n--restore-pruned brings back what was pruned\n"
    facts = threads(invoke("import", store, tmp_path / "t.jsonl", "--json"))[0]
    assert (facts["pruned"], facts["copied"]) == (before - 1, 0)
    result = invoke("import", store, tmp_path / "t.jsonl", "--restore-pruned")
    assert (result.exit_code, "left out" in result.stdout) == (0, False)
    assert len([*TurnCheckpointSaver(store).list(cut.config(cut.WHOLE))]) == before


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
    assert_spoken_to_people(result)
    assert not (tmp_path / "new" / "threads").exists()


CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}], "turn": 1}


def test_files_of_home_made_agents_are_imported_with_the_same_command(invoke, store, tmp_path):
    (tmp_path / "anna.json").write_text(json.dumps(CHAT))
    (tmp_path / "bert.json").write_text(json.dumps(CHAT["messages"]))
    invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl")
    files = [tmp_path / name for name in ("anna.json", "bert.json", "t.jsonl")]
    result = invoke("import", tmp_path / "new", *files)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "anna: 1 of 1 checkpoint put now" in result.stdout
    saver = TurnCheckpointSaver(tmp_path / "new")
    assert sorted(saver.thread_ids()) == ["anna", "bert", cut.WHOLE]
    assert [m.content for m in state(saver, "anna")[0]["channel_values"]["messages"]] == ["hi", "hello"]
    again = invoke("import", tmp_path / "new", *files, "--json")
    facts = json.loads(again.stdout)
    assert (facts["errors"], [each["state"] for each in facts["threads"]]) == ([], ["unchanged"] * 3)
    assert [each["file"] for each in facts["threads"]] == [str(file) for file in files]
    invoke("import", tmp_path / "new", files[0], "--as", "carl", "--messages-key", "history")
    assert list(state(saver, "carl")[0]["channel_values"]) == ["history"]


def test_one_broken_file_does_not_keep_the_others_out(invoke, tmp_path):
    (tmp_path / "anna.json").write_text(json.dumps(CHAT))
    (tmp_path / "bert.json").write_text(json.dumps({"messages": [7]}))
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "other.json").write_text('{"a": 1}')
    files = [tmp_path / name for name in ("note.txt", "bert.json", "other.json", "anna.json", "missing.json")]
    result = invoke("import", tmp_path / "new", *files)
    assert result.exit_code == 1
    assert TurnCheckpointSaver(tmp_path / "new").thread_ids() == ["anna"]
    assert "bert.json: messages[0]: is no message" in result.stderr
    neither = "was not written by `export`, and is no JSON file with a list of messages"
    assert f"note.txt: {neither} (line 1, column 1: no JSON" in result.stderr
    assert f"other.json: {neither} (has no list of messages" in result.stderr
    assert "missing.json: No such file" in result.stderr
    assert_spoken_to_people(result)


def test_one_id_for_several_files_and_a_place_that_is_no_directory_are_usage_errors(invoke, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(CHAT))
    assert invoke("import", tmp_path / "new", tmp_path / "a.json", tmp_path / "a.json", "--as", "x").exit_code == 2
    assert invoke("import", "sqlite:app.db", tmp_path / "a.json").exit_code == 2
    assert not (tmp_path / "new").exists()


def test_an_import_that_is_in_the_way_of_another_thread_says_how_to_go_on(invoke, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(CHAT))
    save(TurnCheckpointSaver(tmp_path / "new"), "a")
    result = invoke("import", tmp_path / "new", tmp_path / "a.json")
    assert (result.exit_code, "--as" in result.stderr) == (1, True)
    assert_spoken_to_people(result)
    invoke("delete", tmp_path / "new", "a", "--yes")
    assert invoke("import", tmp_path / "new", tmp_path / "a.json").exit_code in {0, 1}
    assert invoke("import", tmp_path / "new", tmp_path / "a.json", "--restore-deleted").exit_code == 0


def test_ctrl_c_ends_an_import_and_the_next_one_goes_on(invoke, store, tmp_path, interrupting):
    invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl")
    with interrupting(3):
        result = invoke("import", tmp_path / "new", tmp_path / "t.jsonl")
    assert result.exit_code == 130
    assert "put; repeat the command to go on from there" in result.stderr
    saver = TurnCheckpointSaver(tmp_path / "new")
    assert [(each.state, each.cause) for each in saver.turns(cut.WHOLE)] == [("cancelled", "user")]
    assert invoke("import", tmp_path / "new", tmp_path / "t.jsonl").exit_code == 0
    assert state(saver, cut.WHOLE) == state(TurnCheckpointSaver(store), cut.WHOLE)


@pytest.mark.parametrize("module", ["langgraph_turncheckpoint.cli", "typer", "langgraph.checkpoint.base"])
def test_ctrl_c_while_the_command_is_imported_is_told_in_one_line(module):
    code = f"""
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from langgraph_turncheckpoint.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "turncheckpoint: stopped; nothing has begun\n"


def test_ctrl_c_in_an_export_leaves_no_file(invoke, store, tmp_path, monkeypatch):
    def stopped(fd):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", stopped)
    result = invoke("export", store, cut.WHOLE, tmp_path / "out" / ".." / "t.jsonl")
    assert result.exit_code == 130
    assert [path.name for path in tmp_path.iterdir() if "jsonl" in path.name] == []


# --- damage ---


def spoil(store, thread_id):
    """Damage the newest checkpoint."""
    path = max(path for path in store.rglob("*.ckpt") if f"t-{thread_id}" in str(path))
    data = bytearray(path.read_bytes())
    data[10:60] = b"\xff" * 50
    path.write_bytes(data)


def test_what_cannot_be_read_is_told_and_ends_with_1(invoke, store, tmp_path):
    spoil(store, cut.WHOLE)
    result = invoke("migrate", store, tmp_path / "new", "--thread", cut.WHOLE, "--thread", cut.PLAIN)
    assert result.exit_code == 1
    assert "; 1 checkpoint of 1 thread could not be read" in result.stdout
    assert "compared" not in result.stdout
    assert f"turncheckpoint: thread '{cut.WHOLE}': 1 of its " in result.stderr
    facts = json.loads(invoke("migrate", store, tmp_path / "new", "--json", "--thread", cut.WHOLE).stdout)
    (thread,) = facts["threads"]
    (lost,) = thread["unreadable"]
    assert (facts["verified"], lost["part"], lost["checkpoint_ns"]) == (False, "checkpoint", "")
    assert sorted(lost) == ["checkpoint_id", "checkpoint_ns", "part", "reason"]
    result = invoke("export", store, cut.WHOLE, tmp_path / "t.jsonl", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["unreadable"], facts["checkpoints"]) == (1, [lost], thread["checkpoints"] - 1)
    assert invoke("import", tmp_path / "other", tmp_path / "t.jsonl").exit_code == 0


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


@pytest.fixture
def interrupting(monkeypatch):
    """Ctrl-C in the n-th put, while a block lasts."""

    @contextlib.contextmanager
    def block(number):
        put, done = TurnCheckpointSaver.put, []

        def interrupted(*args, **kwargs):
            done.append(args)
            if len(done) == number:
                signal.raise_signal(signal.SIGINT)
            return put(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(TurnCheckpointSaver, "put", interrupted)
            yield

    return block


def test_ctrl_c_ends_a_migration_and_the_next_one_goes_on(invoke, database, tmp_path, interrupting):
    with interrupting(3):
        result = invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    assert result.exit_code == 130
    assert "checkpoints copied; repeat the command" in result.stderr
    saver = TurnCheckpointSaver(tmp_path / "new")
    assert [(each.state, each.cause) for each in saver.turns("a")] == [("cancelled", "user")]
    assert invoke("verify", tmp_path / "new").exit_code == 0
    assert invoke("migrate", f"sqlite:{database}", tmp_path / "new").exit_code == 0
    assert sorted(saver.thread_ids()) == ["a", "b", "c"]
    assert saver.turns("a")[0].state == "imported"


def test_threads_may_be_left_out(invoke, database, tmp_path):
    result = invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--exclude", "a", "--exclude", '"c"')
    assert result.exit_code == 0
    assert TurnCheckpointSaver(tmp_path / "new").thread_ids() == ["b"]
    result = invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--exclude", "nobody")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no thread 'nobody'" in result.stderr


def test_a_deleted_thread_names_the_options(invoke, database, tmp_path):
    invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    invoke("delete", tmp_path / "new", "b", "--yes")
    result = invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    assert result.exit_code == 1
    assert "leave it out with --exclude, or pass --restore-deleted" in result.stderr
    assert "2 threads (2 there already)" in result.stdout
    assert_spoken_to_people(result)
    assert invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--exclude", "b").exit_code == 0
    assert invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--restore-deleted").exit_code == 0


def test_busy_and_closed_threads_are_told_without_words_of_the_library(invoke, database, tmp_path):
    saver = TurnCheckpointSaver(tmp_path / "new")
    saver.close_thread("a")
    with saver.turn({"configurable": {"thread_id": "b"}}):
        result = invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    assert result.exit_code == 1
    assert "thread 'a' is closed" in result.stderr
    assert "thread 'b' is busy" in result.stderr
    assert_spoken_to_people(result)


def test_nothing_is_said_of_nothing_where_all_has_failed(invoke, database, tmp_path):
    save(TurnCheckpointSaver(tmp_path / "new"), "a")
    result = invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--thread", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "leave it out with --exclude" in result.stderr


def test_what_was_pruned_stays_away_unless_it_is_asked_for(invoke, database, tmp_path):
    invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    TurnCheckpointSaver(tmp_path / "new").prune(["a"])
    before = contents(tmp_path / "new")
    result = invoke("migrate", f"sqlite:{database}", tmp_path / "new")
    assert result.exit_code == 0
    assert "pruned there left out" in result.stdout
    assert "--restore-pruned" in result.stdout
    assert contents(tmp_path / "new") == before
    facts = json.loads(invoke("migrate", f"sqlite:{database}", tmp_path / "new", "--restore-pruned", "--json").stdout)
    assert facts["threads"][0]["older"] == facts["threads"][0]["copied"] > 0


def test_a_database_of_another_program_gets_tables_only_if_that_is_asked_for(invoke, store, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "mail.db")) as connection:
        connection.execute("CREATE TABLE mail (x)")
    place = f"sqlite:{tmp_path}/mail.db"
    result = invoke("migrate", store, place, "--thread", cut.WHOLE)
    assert (result.exit_code, "pass --create-tables" in result.stderr) == (2, True)
    assert_spoken_to_people(result)
    assert invoke("migrate", store, place, "--thread", cut.WHOLE, "--create-tables").exit_code == 0


def test_a_class_of_the_app_names_the_thread_and_the_option(invoke, store, tmp_path):
    code = f"""
import sys
sys.modules["tests.contract.cut_off_threads"] = None
from langgraph_turncheckpoint.cli import app
app(["migrate", {str(store)!r}, {str(tmp_path / "new")!r}, "--thread", {cut.OWN_CLASS!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"thread '{cut.OWN_CLASS}': a value is a tests.contract.cut_off_threads.Order" in done.stderr
    assert "--app-dir" in done.stderr
    assert "PYTHONPATH" not in done.stderr


def test_an_encrypted_source_without_its_key_names_the_option(invoke, tmp_path):
    key = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    save(TurnCheckpointSaver(tmp_path / "private", serde=key), "a")
    result = invoke("migrate", tmp_path / "private", tmp_path / "new")
    assert (result.exit_code, "--source-serde" in result.stderr) == (1, True)
    result = invoke("export", tmp_path / "private", "a", tmp_path / "t.jsonl")
    assert (result.exit_code, "--serde aes" in result.stderr) == (1, True)


@pytest.mark.parametrize("thread_id", [cut.WHOLE, cut.PLAIN, cut.SENDS, cut.WAITING])
def test_how_a_thread_stands_is_not_lost_on_the_way_to_another_store(invoke, store, tmp_path, thread_id):
    invoke("migrate", store, tmp_path / "new", "--thread", thread_id)
    invoke("export", store, thread_id, tmp_path / "t.jsonl")
    invoke("import", tmp_path / "third", tmp_path / "t.jsonl")
    lines = []
    for place in (store, tmp_path / "new", tmp_path / "third"):
        listed = json.loads(invoke("threads", place, "--json").stdout)["threads"]
        lines += [line for line in listed if line["thread_id"] == thread_id]
    same = ("next", "waiting", "checkpoints", "updated_at")
    facts = [{key: line.get(key) for key in same} for line in lines]
    assert facts[0] == facts[1] == facts[2]
    assert {line["state"] for line in lines[1:]} <= {"completed", "paused", "failed", "unfinished"}
    assert (lines[1]["state"] == "completed") is (thread_id == cut.WHOLE)
    assert (lines[1]["state"] == "paused") is (thread_id == cut.WAITING)


# --- timeline ---


def test_a_timeline_is_drawn_into_a_file_or_printed(invoke, store, tmp_path):
    result = invoke("timeline", store, cut.GUARDED, "-o", tmp_path / "t.svg")
    assert result.exit_code == 0
    assert ET.parse(tmp_path / "t.svg").getroot().tag.endswith("svg")
    assert "turn 1" in invoke("timeline", store, cut.GUARDED).stdout
    assert invoke("timeline", store, cut.GUARDED, "-o", tmp_path / "t.png").exit_code == 2


def test_a_timeline_is_there_as_data(invoke, store, tmp_path):
    data = json.loads(invoke("timeline", store, cut.GUARDED, "--json").stdout)
    assert data["store"] == str(store)
    assert data["thread_id"] == cut.GUARDED
    assert data["turns"][0]["state"] == "interrupted"
    assert "file" not in data
    data = json.loads(invoke("timeline", store, cut.GUARDED, "--json", "-o", tmp_path / "t.svg").stdout)
    assert data["file"] == str(tmp_path / "t.svg")
    assert (tmp_path / "t.svg").exists()
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
