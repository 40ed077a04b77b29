"""The commands that read: what they print, which exit status they give, and that they leave every file alone."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from typer.testing import CliRunner

from langgraph_turncheckpoint import StaleTurnError, TurnCheckpointSaver, TurnGuard, cli
from tests.contract import cut_off_threads as cut
from tests.contract.storing import addressed
from tests.crash import damaged_store
from tests.system_calls import SystemCalls, substituted

READING = ("threads", "show", "turns", "history", "diff", "verify", "timeline", "export")
KEY = b"0123456789abcdef"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def save(saver, thread_id, number=1, **values):
    values = values or {"text": "hello"}
    version = f"{number:08}.1"
    return saver.put(
        addressed(thread_id),
        {
            "v": 4,
            "id": f"1f000000-0000-6000-8000-{number:012x}",
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": values,
            "channel_versions": dict.fromkeys(values, version),
            "versions_seen": {},
            "updated_channels": None,
        },
        {"source": "input", "step": -1},
        dict.fromkeys(values, version),
    )


class ReadOnly(SystemCalls):
    """A file system that is mounted so that nothing on it can be changed."""

    def __init__(self) -> None:
        changing = {"replace", "mkdir", "rmdir", "unlink", "ftruncate", "write"}
        super().__init__(lambda _position, name: errno.EROFS if name in changing else None)

    def open(self, path, flags, *args):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return os.open(path, flags, *args)


def arguments(command, store, thread_id, tmp_path):
    """What a reading command takes."""
    more = {"diff": ["latest~1", "latest"], "export": [tmp_path / "out.jsonl"]}.get(command, [])
    return [command, store, *([] if command in {"threads", "verify"} else [thread_id]), *more]


# --- all of them ---


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("thread_id", [cut.WHOLE, cut.GUARDED, cut.SENDS, cut.OWN_CLASS])
def test_no_reading_command_changes_a_file(invoke, store, tmp_path, command, thread_id):
    before = contents(store)
    result = invoke(*arguments(command, store, thread_id, tmp_path))
    assert result.exit_code == 0, result.output
    assert result.stdout or command == "verify"
    assert contents(store) == before


@pytest.mark.parametrize("command", READING)
def test_as_json_one_object_is_printed_and_nothing_else(invoke, store, tmp_path, command):
    result = invoke(*arguments(command, store, cut.GUARDED, tmp_path), "--json")
    assert isinstance(json.loads(result.stdout), dict)
    assert result.stderr == ""


@pytest.mark.parametrize("command", [each for each in READING if each not in {"threads", "verify"}])
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_thread_that_does_not_exist_is_a_problem_and_is_not_made(invoke, store, tmp_path, command, options):
    before = contents(store)
    result = invoke(*arguments(command, store, "nobody", tmp_path), *options)
    assert result.exit_code == 1
    assert "there is no thread nobody" in result.stderr
    assert result.stdout == ""
    assert contents(store) == before


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("kind", ["missing", "file", "empty", "foreign", "other threads"])
def test_what_is_no_store_is_a_usage_error_with_a_reason_and_stays_as_it_is(invoke, tmp_path, command, kind):
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("x")
    elif kind != "missing":
        place.mkdir()
    if kind == "foreign":
        (place / "mail").write_text("x")
    if kind == "other threads":
        (place / "threads").mkdir()
        (place / "threads" / "needle.txt").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    result = invoke(*arguments(command, place, "1", tmp_path))
    assert result.exit_code == 2
    reasons = {"missing": "does not exist", "file": "is a file", "other threads": "of another program"}
    assert reasons.get(kind, "is no store") in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_with_a_store_in_it_leads_to_that(invoke, store):
    result = invoke("threads", store.parent)
    assert result.exit_code == 2
    assert f"did you mean {store}?" in result.stderr


def test_a_database_leads_to_migrate(invoke, tmp_path):
    (tmp_path / "app.db").write_bytes(b"SQLite format 3\0")
    assert "turncheckpoint migrate sqlite:" in invoke("threads", tmp_path / "app.db").stderr


def test_the_app_is_not_needed_and_its_classes_are_shown_as_data(store, tmp_path):
    """In a process that cannot import it."""
    script = "import sys; from langgraph_turncheckpoint.__main__ import main; main(); assert 'tests' not in sys.modules"
    root = str(Path(cli.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); sys.modules['tests'] = None\n{script}"
    for command in (
        ["show", store, cut.OWN_CLASS, "--json"],
        ["show", store, cut.OWN_CLASS],
        ["history", store, "whole"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, command)], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        if "--json" in command:
            values = json.loads(done.stdout)["values"]
            name = "tests.contract.cut_off_threads.Order"
            assert values["order"] == {"class": name, "fields": {"article": "pen", "pieces": 3}}


# --- encrypted ---


@pytest.fixture
def encrypted(tmp_path):
    saver = TurnCheckpointSaver(tmp_path / "enc", serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY))
    save(saver, "secret", 1, messages=[HumanMessage("psst", id="1")])
    save(saver, "secret", 2, messages=[HumanMessage("psst", id="1"), HumanMessage("again", id="2")])
    return tmp_path / "enc"


def test_without_the_key_an_encrypted_store_says_what_is_missing(invoke, encrypted, monkeypatch):
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    for command in ("show", "diff"):
        more = ["latest", "latest"] if command == "diff" else []
        result = invoke(command, encrypted, "secret", *more)
        assert result.exit_code == 1
        assert "--serde aes" in result.stderr
        assert "psst" not in result.output


def test_without_the_key_an_encrypted_store_can_still_be_listed_and_verified(invoke, encrypted):
    (line,) = json.loads(invoke("threads", encrypted, "--json").stdout)["threads"]
    assert (line["thread_id"], line["checkpoints"], line["next"]) == ("secret", 2, None)
    (first, _) = json.loads(invoke("history", encrypted, "secret", "--json").stdout)["checkpoints"]
    assert (first["step"], first["size_bytes"] > 0, bool(first["damage"])) == (None, True, True)
    assert invoke("verify", encrypted).exit_code == 0


@pytest.mark.parametrize("by", ["option", "environment"])
def test_with_the_key_an_encrypted_store_is_read(invoke, encrypted, monkeypatch, by):
    monkeypatch.setenv("LANGGRAPH_AES_KEY", KEY.decode())
    options = ["--serde", "aes"] if by == "option" else []
    env = {"TURNCHECKPOINT_SERDE": "aes"} if by == "environment" else {}
    result = invoke("show", encrypted, "secret", *options, env=env)
    assert (result.exit_code, "psst" in result.stdout) == (0, True)


def test_a_serializer_of_the_app_is_found_where_the_command_is_started(invoke, encrypted, tmp_path, monkeypatch):
    (tmp_path / "app_keys.py").write_text(
        "from langgraph.checkpoint.serde.encrypted import EncryptedSerializer\n"
        f"def make():\n    return EncryptedSerializer.from_pycryptodome_aes(key={KEY!r})\n"
        "made = make()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for name in ("app_keys:make", "app_keys:made"):
        assert "psst" in invoke("show", encrypted, "secret", "--serde", name).stdout


@pytest.mark.parametrize("given", ["nothing", "no.such.module:make", "json:nothing", "json:dumps", "json:JSONDecoder"])
def test_what_is_no_serializer_is_a_usage_error(invoke, store, given):
    result = invoke("show", store, cut.WHOLE, "--serde", given)
    assert result.exit_code == 2
    assert given in result.stderr


def test_aes_without_a_key_is_a_usage_error(invoke, store, monkeypatch):
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    assert invoke("show", store, cut.WHOLE, "--serde", "aes").exit_code == 2


# --- threads ---


def listed(result):
    return [line["thread_id"] for line in json.loads(result.stdout)["threads"]]


def test_threads_are_listed_newest_first(invoke, tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    for number, thread_id in ((2, "b"), (3, "c"), (1, "a")):
        save(saver, thread_id, number << 40)  # parts of the time
    result = invoke("threads", tmp_path, "--json")
    facts = json.loads(result.stdout)
    assert facts["total"] == 3
    assert facts["size_bytes"] > 0
    assert invoke("threads", tmp_path, "--ids").stdout.split() == listed(result)


def test_the_state_of_each_thread_is_told(invoke, store):
    lines = {line["thread_id"]: line for line in json.loads(invoke("threads", store, "--json").stdout)["threads"]}
    assert {thread_id: line["interrupted"] for thread_id, line in lines.items()} == {
        **dict.fromkeys(cut.CUT_OFF, True),
        **dict.fromkeys((cut.WHOLE, cut.ODD, cut.OWN_CLASS, cut.WAITING), False),
    }
    assert (lines[cut.GUARDED]["state"], lines[cut.GUARDED]["cause"]) == ("interrupted", "restart")
    assert (lines[cut.WAITING]["waiting"], lines[cut.WAITING]["next"]) == (True, ["tools"])
    assert (lines[cut.WHOLE]["next"], lines[cut.WHOLE]["turns"], lines[cut.WHOLE]["checkpoints"]) == ([], 1, 5)
    text = invoke("threads", store).stdout
    assert all(word in text for word in ("interrupted", "unfinished", "paused", "completed"))
    assert {thread_id: line["state"] for thread_id, line in lines.items()} == {
        **dict.fromkeys(cut.CUT_OFF, "unfinished"),
        **dict.fromkeys((cut.WHOLE, cut.ODD, cut.OWN_CLASS), "completed"),
        cut.GUARDED: "interrupted",
        cut.WAITING: "paused",
    }


@pytest.mark.parametrize("position", range(5))
def test_a_thread_whose_newest_checkpoint_cannot_be_read_is_damaged(invoke, store, position):
    """By damage of its own, or of a file that it shares pages with."""
    path = sorted((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)[position]
    path.write_bytes(path.read_bytes()[:50])
    lines = {line["thread_id"]: line for line in json.loads(invoke("threads", store, "--json").stdout)["threads"]}
    line = lines[cut.WHOLE]
    is_damaged = "falling back to" in invoke("show", store, cut.WHOLE).stderr
    assert (line["state"] == "damaged", line["next"] is None, path.name in str(line["damage"])) == (is_damaged,) * 3
    assert is_damaged or line["state"] == "completed"
    assert lines[cut.ODD]["state"] == "completed"
    if is_damaged:
        assert any(row.split()[:2] == ["whole", "damaged"] for row in invoke("threads", store).stdout.splitlines())
        found = listed(invoke("threads", store, "--interrupted", "--json"))
        assert found[len(cut.CUT_OFF)] == cut.WHOLE


def test_a_word_that_cannot_be_told_is_a_question_mark(invoke, encrypted, monkeypatch):
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    assert invoke("threads", encrypted).stdout.splitlines()[1].split()[:2] == ["secret", "?"]
    (line,) = json.loads(invoke("threads", encrypted, "--json").stdout)["threads"]
    assert line["state"] == "unknown"


@pytest.mark.parametrize("thread_id", [cut.WHOLE, *cut.CUT_OFF, cut.WAITING])
def test_threads_turns_and_show_have_one_word_for_a_thread(invoke, store, thread_id):
    word = {
        line["thread_id"]: line["state"] for line in json.loads(invoke("threads", store, "--json").stdout)["threads"]
    }
    shown = json.loads(invoke("show", store, thread_id, "--json").stdout)
    (turn,) = json.loads(invoke("turns", store, thread_id, "--json").stdout)["turns"]
    assert word[thread_id] == shown["state"] == turn["state"] == shown["turns"][-1]["state"]
    assert turn["announced"] == (thread_id == cut.GUARDED)
    text = invoke("show", store, thread_id).stdout
    assert text.startswith(f"thread {thread_id}: {word[thread_id]}")
    assert f"── turn 1, {word[thread_id]}" in re.sub(r", [-0-9]+ [:0-9]+", "", text)


@pytest.mark.parametrize(("given", "meant"), [("whol", "whole"), ("guard", "guarded"), ("sned", "sends")])
def test_a_misspelt_thread_leads_to_what_may_be_meant(invoke, store, given, meant):
    result = invoke("show", store, given)
    assert result.exit_code == 1
    assert f"did you mean {meant}?" in result.stderr
    assert f"turncheckpoint threads {store} lists all" in result.stderr


def test_a_thread_like_no_other_leads_to_the_list(invoke, store):
    told = invoke("turns", store, "zzz").stderr
    assert "did you mean" not in told
    assert f"turncheckpoint threads {store} lists all" in told


@pytest.mark.parametrize("place", ["sqlite:app.db", "SQLite:some/where.db", "postgresql://me:secret@host/db"])
def test_an_address_of_a_database_leads_to_migrate(invoke, place):
    result = invoke("threads", place)
    assert result.exit_code == 2
    assert "is a database, and a store is a directory" in result.stderr
    assert f"turncheckpoint migrate {place.partition(':')[0]}:" in result.stderr.replace("'", "")
    assert "secret" not in result.stderr


def test_that_numbers_of_turns_jump_is_explained(invoke):
    assert "Numbers may jump" in " ".join(invoke("turns", "--help").output.split())


def test_interrupted_threads_come_first_on_demand(invoke, store):
    found = listed(invoke("threads", store, "--interrupted", "--json"))
    assert set(found[: len(cut.CUT_OFF)]) == set(cut.CUT_OFF)
    assert listed(invoke("threads", store, "--interrupted", "--limit", "1", "--json")) == found[:1]


def test_a_limit_keeps_the_newest(invoke, store):
    found = listed(invoke("threads", store, "--json"))
    assert listed(invoke("threads", store, "--limit", "2", "--json")) == found[:2]


def test_an_id_cannot_break_the_line_or_move_the_cursor_and_can_be_given_back(invoke, store):
    lines = invoke("threads", store, "--ids").stdout.splitlines()
    (odd,) = (line for line in lines if line.startswith('"'))
    assert json.loads(odd) == cut.ODD
    result = invoke("show", store, odd, "--json")
    assert json.loads(result.stdout)["thread_id"] == cut.ODD


@pytest.mark.parametrize("odd", ["--all", "-n", '"quoted"', "", "..", "a/b", "☃", "\udcff"])
def test_any_id_that_is_shown_can_be_given_back(invoke, tmp_path, odd):
    save(TurnCheckpointSaver(tmp_path), odd)
    (shown,) = invoke("threads", tmp_path, "--ids").stdout.splitlines()
    result = invoke("show", tmp_path, shown, "--json")
    assert json.loads(result.stdout)["thread_id"] == odd


def test_ids_are_completed_in_the_shell(store):
    env = {
        "_TURNCHECKPOINT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"turncheckpoint show {store} who",
        "COMP_CWORD": "3",
    }
    result = CliRunner().invoke(cli.app, [], env=env, prog_name="turncheckpoint")
    assert result.stdout.split() == [cut.WHOLE]


# --- threads without a checkpoint ---


@pytest.fixture
def unstored(tmp_path):
    """A store with a thread whose first turn was killed under `durability="exit"`, and one that is whole."""
    store = cut.copy_of_store(tmp_path, cut.die_before_a_checkpoint)
    save(TurnCheckpointSaver(store), "1")
    return store


def test_a_thread_that_has_turns_and_no_checkpoint_is_listed(invoke, unstored):
    facts = json.loads(invoke("threads", unstored, "--json").stdout)
    found = {thread["thread_id"]: thread for thread in facts["threads"]}
    line = found[cut.GUARDED]
    assert (line["state"], line["interrupted"], line["turns"]) == ("interrupted", True, 1)
    assert (line["checkpoints"], line["next"], line["waiting"], line["damage"]) == (0, None, None, None)
    assert facts["total"] == len(facts["threads"])
    assert cut.GUARDED in invoke("threads", unstored, "--ids", "--interrupted", "--limit", "1").stdout.splitlines()
    (row,) = [row for row in invoke("threads", unstored).stdout.splitlines() if row.startswith(cut.GUARDED)]
    assert row.split()[1:5] == ["interrupted", "no", "checkpoint", "yet"]
    assert "1 thread without a checkpoint" in invoke("threads", unstored).stderr
    # Elsewhere a thread is one that holds a checkpoint, as it is for LangGraph.
    assert cut.GUARDED not in TurnCheckpointSaver(unstored).thread_ids()


def test_a_migration_names_a_thread_of_which_there_is_nothing_to_copy(invoke, unstored, tmp_path):
    done = invoke("migrate", unstored, tmp_path / "new")
    assert done.exit_code == 0
    assert f"1 thread without a checkpoint yet, left where it is: {cut.GUARDED}" in done.stderr
    told = json.loads(invoke("migrate", unstored, tmp_path / "new", "--json").stdout)
    assert told["without_checkpoint"] == [cut.GUARDED]
    assert [thread["thread_id"] for thread in told["threads"]] == ["1"]


def test_a_thread_that_never_had_a_turn_or_was_deleted_is_not_listed(invoke, store):
    saver = TurnCheckpointSaver(store)
    before = listed(invoke("threads", store, "--json"))
    saver.inbox("posted").post("hello")
    saver.delete_thread(cut.GUARDED)
    assert sorted(listed(invoke("threads", store, "--json"))) == sorted({*before} - {cut.GUARDED})


@pytest.mark.parametrize("command", ["show", "history"])
def test_what_brings_a_prompt_back_that_no_checkpoint_holds_is_told(invoke, unstored, command):
    result = invoke(command, unstored, cut.GUARDED)
    assert result.exit_code == (1 if command == "show" else 0)
    assert result.stdout == ""
    told = f"thread {cut.GUARDED} has no checkpoint yet; its last turn was interrupted"
    assert f"{told}: invoke(None) with the guard attached brings the prompt back" in result.stderr
    saver = TurnCheckpointSaver(unstored)
    guarded = cut.graphs(saver)[cut.GUARDED]
    guarded.invoke(None, cut.config(cut.GUARDED))
    assert "hello" in invoke("show", unstored, cut.GUARDED).stdout


def test_where_no_prompt_was_recorded_none_is_promised(invoke, tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    with saver.turn(addressed("1")):
        running = invoke("show", tmp_path, "1").stderr
    ended = invoke("show", tmp_path, "1").stderr
    assert "thread 1 has no checkpoint yet; a turn is running" in running
    assert "thread 1 has no checkpoint yet; its last turn completed\n" in ended
    assert json.loads(invoke("history", tmp_path, "1", "--json").stdout)["checkpoints"] == []


# --- show ---


def test_a_conversation_is_shown_as_the_model_would_see_it(invoke, store):
    facts = json.loads(invoke("show", store, cut.GUARDED, "--json").stdout)
    assert [(m["type"], m["stored"], m["outcome"]) for m in facts["messages"]] == [
        ("human", True, None),
        ("ai", True, None),
        ("tool", False, "ok"),
        ("tool", False, "unknown"),
    ]
    (call, ship) = facts["messages"][1]["calls"]
    assert (call["name"], call["outcome"], ship["outcome"]) == ("look", "ok", "unknown")
    assert {m["turn"] for m in facts["messages"]} == {1}
    assert facts["next"] == ["tools"]
    text = invoke("show", store, cut.GUARDED).stdout
    assert "turn 1" in text
    assert "[not stored]" in text
    assert "→ ship() ship-1: unknown" in text


def test_raw_shows_what_is_stored(invoke, store):
    facts = json.loads(invoke("show", store, cut.SENDS, "--raw", "--json").stdout)
    assert [m["type"] for m in facts["values"]["messages"]] == ["human", "ai"]
    assert json.loads(invoke("show", store, cut.SENDS, "--raw").stdout) == facts["values"]


def test_what_waits_for_a_person_is_shown_as_waiting(invoke, store):
    facts = json.loads(invoke("show", store, cut.WAITING, "--json").stdout)
    assert [m["type"] for m in facts["messages"]] == ["human", "ai"]
    assert facts["messages"][1]["calls"][0]["outcome"] == "waiting"
    assert (facts["waiting"], "waits for a person" in facts["note"]) == (True, True)


def shown_calls(invoke, store, thread_id):
    facts = json.loads(invoke("show", store, thread_id, "--json").stdout)
    (calls,) = [message["calls"] for message in facts["messages"] if message["calls"]]
    return {call["name"]: call["outcome"] for call in calls}


def test_of_calls_a_person_is_asked_about_those_that_returned_are_told(invoke, store):
    saver = TurnCheckpointSaver(store)
    guard = TurnGuard(saver, on_restart={"ship": "ask"})
    guard.attach(cut.unguarded(saver, cut.GUARDED)).invoke(None, cut.config(cut.GUARDED))
    assert shown_calls(invoke, store, cut.GUARDED) == {"look": "returned", "ship": "waiting"}
    assert "→ look() look-1: returned" in invoke("show", store, cut.GUARDED).stdout
    agent = cut.agent(saver, cut.call("look", 1), cut.call("ask", 1))
    agent.invoke(cut.given("1"), cut.config("1"))
    assert shown_calls(invoke, store, "1") == {"look": "returned", "ask": "waiting"}


def test_of_calls_in_a_turn_that_is_running_those_that_returned_are_told(invoke, store):
    with TurnCheckpointSaver(store).turn(cut.config(cut.GUARDED)):
        assert shown_calls(invoke, store, cut.GUARDED) == {"look": "returned", "ship": "running"}


def test_an_older_checkpoint_can_be_shown(invoke, store):
    facts = json.loads(invoke("show", store, cut.WHOLE, "--at", "latest~1", "--json").stdout)
    assert [m["type"] for m in facts["messages"]] == ["human", "ai", "tool"]
    assert invoke("show", store, cut.WHOLE, "--at", "ffff").exit_code == 1


def test_turns_are_told_apart(invoke, store):
    saver = TurnCheckpointSaver(store)
    cut.graphs(saver)[cut.WHOLE].invoke(cut.given(cut.WHOLE, "more"), cut.config(cut.WHOLE))
    facts = json.loads(invoke("show", store, cut.WHOLE, "--json").stdout)
    assert [m["turn"] for m in facts["messages"]] == [1, 1, 1, 1, 2, 2]
    assert len(json.loads(invoke("show", store, cut.WHOLE, "--json", "--limit", "2").stdout)["messages"]) == 2
    assert "(4 messages before)" in invoke("show", store, cut.WHOLE, "--limit", "2").stdout


def test_a_thread_without_messages_shows_its_values(invoke, tmp_path):
    save(TurnCheckpointSaver(tmp_path), "1", text="hello", data=b"\0\1", parts={"a": {1, 2}})
    facts = json.loads(invoke("show", tmp_path, "1", "--json").stdout)
    assert facts["messages"] is None
    assert facts["values"]["parts"] == {"a": [1, 2]}
    assert facts["values"]["data"]["length"] == 2
    assert "text: hello" in invoke("show", tmp_path, "1").stdout


def test_text_of_strangers_cannot_write_to_the_terminal(invoke, tmp_path):
    evil = "\x1b[2J\x1b]0;owned\x07 [red]no markup[/red] \u202e"
    save(TurnCheckpointSaver(tmp_path), "1", messages=[HumanMessage(evil, id=evil)], **{"\x1b[1m": evil})
    for command in (["show"], ["show", "--raw"], ["history"], ["timeline"]):
        output = invoke(command[0], tmp_path, "1", *command[1:]).output
        assert "\x1b" not in output
        assert "\u202e" not in output
        assert "\x07" not in output


def test_waiting_messages_are_counted(invoke, store):
    TurnCheckpointSaver(store).inbox(cut.WHOLE).post("one more thing")
    assert json.loads(invoke("show", store, cut.WHOLE, "--json").stdout)["inbox"] == 1


# --- turns, history, diff ---


def test_turns_tell_how_each_ended(invoke, store):
    (turn,) = json.loads(invoke("turns", store, cut.GUARDED, "--json").stdout)["turns"]
    assert (turn["token"], turn["state"], turn["cause"], turn["settled_at"]) == (1, "interrupted", "restart", None)
    assert "interrupted" in invoke("turns", store, cut.GUARDED).stdout


def test_when_a_late_write_was_refused_is_told(invoke, tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    with saver.turn(addressed("1")) as late:
        with saver.turn(addressed("1")) as newer:
            saver.put(newer, empty_checkpoint(), {}, {})
        with pytest.raises(StaleTurnError):
            saver.put(late, empty_checkpoint(), {}, {})
    newest, first = json.loads(invoke("turns", tmp_path, "1", "--json").stdout)["turns"]
    assert (first["state"], newest["state"]) == ("superseded", "completed")
    assert (first["refused_at"] is not None, newest["refused_at"]) == (True, None)


def test_a_history_names_nodes_channels_and_parents(invoke, store):
    lines = json.loads(invoke("history", store, cut.WHOLE, "--json").stdout)["checkpoints"]
    assert [line["source"] for line in lines] == ["loop", "loop", "loop", "loop", "input"]
    assert [line["ran"] for line in lines] == [["model"], ["tools"], ["model"], [], []]
    assert [line["next"] for line in lines] == [[], ["model"], ["tools"], ["model"], ["__start__"]]
    assert lines[0]["changed"] == ["messages"]
    assert [line["parent_id"] for line in lines[:-1]] == [line["checkpoint_id"] for line in lines[1:]]
    assert {line["turn"] for line in lines} == {1}
    assert len(json.loads(invoke("history", store, cut.WHOLE, "--limit", "2", "--json").stdout)["checkpoints"]) == 2


def test_a_damaged_checkpoint_is_listed_with_its_damage(invoke, store):
    path = max((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)
    path.write_bytes(path.read_bytes()[:50])
    lines = json.loads(invoke("history", store, cut.WHOLE, "--json").stdout)["checkpoints"]
    assert len(lines) == 5
    assert "cut short" in lines[0]["damage"]
    result = invoke("show", store, cut.WHOLE)
    assert result.exit_code == 0
    assert "warning" in result.stderr


def test_a_diff_is_message_by_message(invoke, store):
    facts = json.loads(invoke("diff", store, cut.WHOLE, "latest~3", "latest", "--json").stdout)
    (channel,) = facts["channels"]
    assert (channel["channel"], channel["kind"]) == ("messages", "changed")
    assert [(m["kind"], m["position"]) for m in channel["messages"]] == [("added", 1), ("added", 2), ("added", 3)]
    backwards = json.loads(invoke("diff", store, cut.WHOLE, "latest", "latest~3", "--json").stdout)
    assert {m["kind"] for m in backwards["channels"][0]["messages"]} == {"removed"}
    assert "+ [3] ai: done after 1" in invoke("diff", store, cut.WHOLE, "latest~3", "latest").stdout
    assert "no channel differs" in invoke("diff", store, cut.WHOLE, "latest", "latest").stdout


def test_a_diff_of_other_channels_shows_both_values(invoke, tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    save(saver, "1", 1, a=1, b=[1], gone="x")
    save(saver, "1", 2, a=2, b=[1], new={"k": "v"})
    first, second = (f"1f000000-0000-6000-8000-{number:012x}" for number in (1, 2))
    found = json.loads(invoke("diff", tmp_path, "1", first, second, "--json").stdout)["channels"]
    assert [(c["channel"], c["kind"], c["before"], c["after"]) for c in found] == [
        ("a", "changed", 1, 2),
        ("gone", "removed", "x", None),
        ("new", "added", None, {"k": "v"}),
    ]
    text = invoke("diff", tmp_path, "1", first, second).stdout
    assert "- 1" in text
    assert '+ {"k": "v"}' in text


def test_a_changed_message_is_shown_as_changed(invoke, tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    save(saver, "1", 1, messages=[HumanMessage("a", id="1")])
    save(saver, "1", 2, messages=[HumanMessage("b", id="1")])
    ids = [f"1f000000-0000-6000-8000-{number:012x}" for number in (1, 2)]
    (channel,) = json.loads(invoke("diff", tmp_path, "1", *ids, "--json").stdout)["channels"]
    assert [m["kind"] for m in channel["messages"]] == ["changed"]


# --- damage ---


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory):
    """A store with every kind of file."""
    path = tmp_path_factory.mktemp("filled") / "filled"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        damaged_store.fill(TurnCheckpointSaver(path, fsync=False))
    return path


@pytest.fixture
def filled(filled_once, tmp_path):
    return damaged_store.copied(filled_once, tmp_path / "filled")


@pytest.mark.parametrize("number", range(11))
@pytest.mark.parametrize("how", ["flip", "cut", "empty"])
def test_whatever_is_damaged_every_command_says_something_and_none_breaks(invoke, filled, tmp_path, number, how):
    kind = [each for each in damaged_store.kinds(filled) if each.name != "ticket"][number]
    data = kind.path.read_bytes()
    flipped = data[:9] + bytes([data[9] ^ 1]) + data[10:]
    kind.path.write_bytes({"flip": flipped, "cut": data[: len(data) // 2], "empty": b""}[how])
    for command in (*READING, "repair", "sweep", "prune"):
        if command in READING:
            several = arguments(command, filled, damaged_store.MAIN, tmp_path)
        else:
            several = [command, filled, *({"sweep": ["--dry-run"], "prune": ["--all", "--dry-run"]}.get(command, []))]
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        result = invoke(*several)
        assert result.exit_code in {0, 1}, (command, result.output)
        assert isinstance(result.exception, SystemExit | None), (command, result.exception)
        assert result.output


def test_a_store_that_may_only_be_read_can_be_looked_at(store, tmp_path, invoke):
    before = contents(store)
    with substituted(ReadOnly()):
        results = [
            invoke(*arguments(command, store, cut.GUARDED, tmp_path)) for command in READING if command != "export"
        ]
    assert [(result.exit_code, result.stderr) for result in results if result.exit_code] == []
    assert contents(store) == before
