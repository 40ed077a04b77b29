"""The commands that look after a store: they do what they say, and stop between two threads."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from langgraph_turncheckpoint import TurnCheckpointSaver, _cli_mending, cli
from langgraph_turncheckpoint._cli_mending import seconds_of
from langgraph_turncheckpoint._cli_stores import UsageError
from langgraph_turncheckpoint._repair import WHERE_MODULES_ARE
from langgraph_turncheckpoint._upkeep import retain
from langgraph_turncheckpoint.errors import StorageError
from tests.contract import cut_off_threads as cut
from tests.contract.stopped_agents import broken_rule
from tests.crash.processes import PATIENCE_SECONDS
from tests.system_calls import substituted
from tests.unit.test_cli_reading import ReadOnly, contents, save


def damage_newest(store, thread="t-whole"):
    path = max((store / "threads" / thread).rglob("*.ckpt"), key=lambda path: path.name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def checkpoint_of(saver, thread_id):
    found = saver.get_tuple(cut.config(thread_id))
    assert found is not None
    return found.checkpoint


# --- all of them ---


@pytest.mark.parametrize("command", ["repair", "prune --all", "sweep", "delete 1 --yes", "import FILE"])
def test_what_belongs_to_another_program_is_not_touched(invoke, tmp_path, command):
    place = tmp_path / "place"
    place.mkdir()
    (place / "mail").write_text("x")
    (tmp_path / "FILE").write_text("")
    name, *more = command.split()
    result = invoke(name, place, *(str(tmp_path / each) if each == "FILE" else each for each in more))
    assert result.exit_code == 2
    assert contents(place) == {place / "mail": b"x"}


@pytest.mark.parametrize("command", ["repair", "prune", "delete"])
def test_a_thread_that_does_not_exist_is_a_problem_and_nothing_is_done(invoke, store, command):
    before = contents(store)
    result = invoke(command, store, cut.WHOLE, "nobody", *(["--yes"] if command == "delete" else []))
    assert result.exit_code == 1
    assert "there is no thread nobody" in result.stderr
    assert contents(store) == before


@pytest.mark.parametrize(
    "command",
    ["repair STORE plain --apply --idle 0", "prune STORE --all", "delete STORE whole -y", "import STORE FILE --as new"],
)
def test_a_directory_that_may_only_be_read_is_a_problem_and_stays_as_it_is(invoke, store, tmp_path, command):
    assert invoke("export", store, cut.WHOLE, tmp_path / "FILE").exit_code == 0
    before = contents(store)
    places = {"STORE": store, "FILE": tmp_path / "FILE"}
    with substituted(ReadOnly()):
        result = invoke(*(str(places.get(each, each)) for each in command.split()))
    assert result.exit_code == 1
    assert "Read-only file system" in result.stderr
    assert contents(store) == before


@pytest.mark.parametrize(
    ("command", "method"),
    [
        ("repair STORE plain --apply --idle 0", "repair"),
        ("sweep STORE", "sweep"),
        ("delete STORE whole -y", "delete_thread"),
    ],
)
def test_what_the_system_refuses_is_told_in_one_sentence(invoke, store, monkeypatch, command, method):
    def refuse(*_args, **_kwargs):
        raise StorageError(30, "Read-only file system", str(store))

    monkeypatch.setattr(TurnCheckpointSaver, method, refuse)
    result = invoke(*(str(store) if each == "STORE" else each for each in command.split()))
    assert result.exit_code == 1
    assert "Read-only file system" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- verify ---


def test_verify_of_a_whole_store_succeeds(invoke, store):
    result = invoke("verify", store)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "0 problems found" in result.stderr


def test_verify_names_a_damaged_file_and_fails(invoke, store):
    path = damage_newest(store)
    before = contents(store)
    result = invoke("verify", store)
    assert result.exit_code == 1
    assert f"damaged: {path}" in result.stdout
    facts = json.loads(invoke("verify", store, "--json").stdout)
    assert facts["ok"] is False
    assert [(found["path"], found["kind"]) for found in facts["findings"]] == [(str(path), "damaged")]
    assert contents(store) == before


def test_verify_names_a_damaged_file_once_and_says_that_others_need_it(invoke, store):
    path = sorted((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)[3]
    path.write_bytes(path.read_bytes()[:50])
    findings = json.loads(invoke("verify", store, "--json").stdout)["findings"]
    assert [(each["path"], each["kind"]) for each in findings] == [(str(path), "damaged")]
    assert "other checkpoints need it" in findings[0]["reason"]


def test_verify_says_of_whole_files_that_were_moved_along_that_they_are_whole(invoke, store):
    files = sorted((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)
    files[3].write_bytes(files[3].read_bytes()[:50])
    invoke("repair", store, cut.WHOLE, "--idle", "0", "--apply")
    result = invoke("verify", store, "--json")
    found = {Path(each["path"]).name.partition(".ckpt")[0]: each for each in json.loads(result.stdout)["findings"]}
    assert {each["kind"] for each in found.values()} == {"aside"}
    assert [found[path.name.removesuffix(".ckpt")]["reason"] for path in files[3:]] == [
        "was damaged, and was moved aside",
        f"is whole; it was moved aside with {files[3].name}, which was damaged and which it needs",
    ]


def test_verify_does_not_fail_for_litter(invoke, store):
    folder = max((store / "threads/t-whole").rglob("*.ckpt")).parent
    (folder / "c-1.ckpt.0123456789abcdef.tmp").write_text("x")
    (folder / "notes").write_text("x")
    result = invoke("verify", store)
    assert result.exit_code == 0
    assert "temporary: " in result.stdout
    assert "2 harmless" in result.stderr


# --- repair ---


def test_repair_only_tells_unless_it_is_told_to_apply(invoke, store):
    damage_newest(store)
    before = contents(store)
    told = invoke("repair", store, "--idle", "0")
    assert told.exit_code == 1
    assert "nothing was changed, add --apply" in told.stderr
    assert contents(store) == before
    done = invoke("repair", store, "--idle", "0", "--apply")
    assert done.stdout.count("\n") == told.stdout.count("\n")
    assert ("would" in told.stdout, "would" in done.stdout) == (True, False)
    assert (done.exit_code, "pending: " in done.stdout) == (0, True)  # that one waits for a person is no problem
    saver = TurnCheckpointSaver(store)
    for thread_id in (*cut.CUT_OFF, cut.WHOLE):
        found = saver.get_tuple(cut.config(thread_id))
        assert found is not None
        assert broken_rule(found.checkpoint["channel_values"]["messages"]) is None
    assert invoke("verify", store).exit_code == 0


def test_repair_of_chosen_threads_leaves_the_others(invoke, store):
    result = invoke("repair", store, cut.SENDS, "--idle", "0", "--apply", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["applied"]) == (0, True)
    assert [(each["thread_id"], each["kind"]) for each in facts["repairs"]] == [(cut.SENDS, "finalized")]


def test_what_a_thread_loses_comes_before_the_files_that_cost_it(invoke, store):
    path = damage_newest(store)
    for options, words in (((), "would go back"), (("--apply",), "went back")):
        lost, aside, *_ = invoke("repair", store, cut.WHOLE, *options).stdout.splitlines()
        assert lost.startswith(f"lost: thread whole (damaged): {words} from its newest checkpoint")
        assert aside.startswith(f"aside: thread whole: {path}: {'was' if options else 'would be'} moved aside")


def test_a_repair_warns_of_threads_that_are_to_go_on_in_the_middle(invoke, store):
    told = invoke("repair", store, "--idle", "0").stderr
    assert "do not repair a thread that is to go on in the middle" in told
    assert all(thread_id in told for thread_id in cut.CUT_OFF)
    done = invoke("repair", store, cut.SENDS, "--idle", "0", "--apply").stderr
    assert "nothing is left to run now in 1 thread: sends" in done
    assert "in the middle" not in invoke("repair", store, cut.WHOLE).stderr


@pytest.mark.parametrize("options", [(), ("--apply",)], ids=["dry run", "apply"])
def test_a_healthy_thread_that_waits_for_a_person_or_is_at_work_is_no_problem(invoke, store, options):
    result = invoke("repair", store, cut.WAITING, cut.WHOLE, *options)
    assert result.exit_code == 0
    assert result.stdout.startswith("pending: thread waiting (paused): its history has open tool calls")
    assert "1 in order with calls open" in result.stderr
    with TurnCheckpointSaver(store).turn(cut.config(cut.PLAIN)):
        assert invoke("repair", store, cut.PLAIN, *options).exit_code == 0


@pytest.mark.parametrize("why", ["closed", "may be at work", "damaged"])
def test_what_needs_somebody_is_a_problem(invoke, store, why):
    if why == "closed":
        TurnCheckpointSaver(store).close_thread(cut.PLAIN)
    if why == "damaged":
        for path in (store / "threads/t-plain").rglob("*.ckpt"):
            path.write_bytes(b"")
    result = invoke("repair", store, cut.PLAIN, "--apply", *(["--idle", "0"] if why == "damaged" else []))
    assert (result.exit_code, "left: thread plain" in result.stdout) == (1, True)


def test_a_class_that_cannot_be_imported_leads_to_app_dir(invoke, store, monkeypatch):
    repair = TurnCheckpointSaver.repair

    def foreign(self, *args, **options):
        (found,) = repair(self, *args, **options)
        return [
            found._replace(kind="left", reason=f"it holds a x.Y, which cannot be imported here; {WHERE_MODULES_ARE}")
        ]

    monkeypatch.setattr(TurnCheckpointSaver, "repair", foreign)
    out = invoke("repair", store, cut.OWN_CUT_OFF).stdout
    assert "--app-dir" in out
    assert WHERE_MODULES_ARE not in out


def test_nothing_to_repair_is_well(invoke, store):
    result = invoke("repair", store, cut.WHOLE)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "0 repairs to be made" in result.stderr


# --- prune ---


def test_prune_takes_threads_or_all(invoke, store):
    assert invoke("prune", store).exit_code == 2
    assert invoke("prune", store, cut.WHOLE, "--all").exit_code == 2


@pytest.mark.parametrize(("keep", "left"), [(1, 1), (3, 3), (9, 5)])
def test_prune_keeps_the_newest_and_a_dry_run_tells_before(invoke, store, keep, left):
    before = contents(store)
    options = ["prune", store, cut.WHOLE, "--keep-last", keep, "--json"]
    (told,) = json.loads(invoke(*options, "--dry-run").stdout)["threads"]
    assert contents(store) == before
    saver = TurnCheckpointSaver(store)
    newest = checkpoint_of(saver, cut.WHOLE)
    (done,) = json.loads(invoke(*options).stdout)["threads"]
    assert told["removed"] == done["removed"] == 5 - left
    assert len(list(saver.list(cut.config(cut.WHOLE)))) == left
    assert checkpoint_of(saver, cut.WHOLE) == newest
    assert (done["freed_bytes"] > 0) == (left < 5)


def test_prune_by_age_alone_goes_by_age(invoke, store):
    """Nobody who says how old means how many as well."""
    assert "0 checkpoints would go" in invoke("prune", store, cut.WHOLE, "--max-age", "30d", "--dry-run").stderr
    both = invoke("prune", store, cut.WHOLE, "--max-age", "30d", "--keep-last", "1", "--dry-run")
    assert "0 checkpoints would go" not in both.stderr
    time.sleep(0.002)  # so that all are older
    assert "0 checkpoints would go" not in invoke("prune", store, cut.WHOLE, "--max-age", "0.001s", "--dry-run").stderr


def test_prune_needs_no_class_of_the_app(invoke, store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(cut, "Order")
        assert invoke("prune", store, cut.OWN_CLASS).exit_code == 0
    found = checkpoint_of(TurnCheckpointSaver(store), cut.OWN_CLASS)
    assert found["channel_values"]["order"] == cut.Order("pen", 3)


# --- sweep ---


def test_sweep_removes_litter_and_old_threads(invoke, store):
    folder = max((store / "threads/t-whole").rglob("*.ckpt")).parent
    litter = folder / "c-1.ckpt.0123456789abcdef.tmp"
    litter.write_text("x")
    told = json.loads(invoke("sweep", store, "--dry-run", "--json").stdout)
    assert (told["temporaries"], litter.exists()) == (1, True)
    done = json.loads(invoke("sweep", store, "--json").stdout)
    assert (done["temporaries"], litter.exists()) == (1, False)
    assert invoke("sweep", store, "--delete-older-than", "30d").exit_code == 0
    assert invoke("verify", store).exit_code == 0
    assert len(TurnCheckpointSaver(store).thread_ids()) == 8


def test_sweep_asks_before_it_deletes_threads(invoke, store):
    """A length of time that is wrong by its unit would delete them all."""
    before = TurnCheckpointSaver(store).thread_ids()
    old = ("sweep", store, "--delete-older-than", "0.001s")
    assert invoke(*old).exit_code == 2  # nobody answers
    assert invoke(*old, "--json").exit_code == 2
    assert TurnCheckpointSaver(store).thread_ids() == before
    told = invoke(*old, "--dry-run").stdout.splitlines()[-1]
    assert "threads" in told
    assert "would be removed" in told
    done = invoke(*old, "--yes")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == told.replace("would be removed", "removed")
    assert invoke("sweep", store).stdout == "nothing removed\n"
    assert len(TurnCheckpointSaver(store).thread_ids()) < len(before)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("0.5s", 0.5), ("15min", 900), ("15m", 900), ("1.5h", 5400), ("30d", 2592000), (" 2 W ", 1209600)],
)
def test_lengths_of_time(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "0", "30", "0s", "-1d", "1y", "1d2h", "soon"])
def test_what_is_no_length_of_time_is_a_usage_error(invoke, store, text):
    with pytest.raises(UsageError):
        seconds_of(text)
    assert invoke("sweep", store, f"--delete-older-than={text}").exit_code == 2


# --- delete ---


def test_delete_asks_first(invoke, store):
    before = contents(store)
    result = invoke("delete", store, cut.WHOLE, input="n\n")
    assert (result.exit_code, "nothing was deleted" in result.stderr) == (1, True)
    assert contents(store) == before
    assert invoke("delete", store, cut.WHOLE, input="y\n").exit_code == 0
    assert cut.WHOLE not in TurnCheckpointSaver(store).thread_ids()
    assert invoke("show", store, cut.WHOLE).exit_code == 1


def test_where_nobody_can_be_asked_nothing_is_deleted(invoke, store):
    before = contents(store)
    result = invoke("delete", store, cut.WHOLE, input="")
    assert (result.exit_code, "add --yes" in result.stderr) == (2, True)
    assert invoke("delete", store, cut.WHOLE, "--json").exit_code == 2
    assert invoke("delete", store).exit_code == 2
    assert contents(store) == before


def test_delete_of_several_leaves_the_others_alone(invoke, store):
    odd = json.dumps(cut.ODD)
    result = invoke("delete", store, odd, cut.WHOLE, cut.WHOLE, "--yes", "--json")
    assert json.loads(result.stdout)["deleted"] == [cut.ODD, cut.WHOLE]
    assert set(TurnCheckpointSaver(store).thread_ids()) == {*cut.CUT_OFF, cut.WAITING, cut.OWN_CLASS}


# --- Ctrl-C ---


@pytest.mark.parametrize("command", ["prune STORE --all", "repair STORE --apply --idle 0", "delete STORE a b c --yes"])
def test_ctrl_c_ends_long_work_behind_the_thread_that_is_being_worked_on(invoke, tmp_path, monkeypatch, command):
    saver = TurnCheckpointSaver(tmp_path)
    for thread_id, number in itertools.product("abc", (1, 2)):
        save(saver, thread_id, number)
    done: list[object] = []
    handler = signal.getsignal(signal.SIGINT)

    def interrupting(call):
        def wrapped(*args, **kwargs):
            if not done:
                os.kill(os.getpid(), signal.SIGINT)
            done.append(args)
            return call(*args, **kwargs)

        return wrapped

    if command.startswith("prune"):
        monkeypatch.setattr(_cli_mending, "retain", interrupting(retain))
    else:
        name = "repair" if command.startswith("repair") else "delete_thread"
        monkeypatch.setattr(TurnCheckpointSaver, name, interrupting(getattr(TurnCheckpointSaver, name)))
    result = invoke(*(str(tmp_path) if each == "STORE" else each for each in command.split()))
    assert result.exit_code == 130
    assert len(done) == 1
    assert "stopped: 1 of 3 threads" in result.stderr
    assert "nothing is half done" in result.stderr
    assert signal.getsignal(signal.SIGINT) is handler
    assert invoke("verify", tmp_path).exit_code == 0


def test_a_second_ctrl_c_ends_it_at_once(invoke, store, monkeypatch):
    def twice(*_args, **_kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on")

    monkeypatch.setattr(_cli_mending, "retain", twice)
    result = invoke("prune", store, "--all")
    assert result.exit_code == 130
    assert "stopped: 0 of 8 threads pruned" in result.stderr


def test_ctrl_c_while_reading_is_a_sentence_and_no_traceback(invoke, store, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(TurnCheckpointSaver, "turns", interrupted)
    result = invoke("turns", store, cut.WHOLE)
    assert result.exit_code == 130
    assert result.stderr.startswith("turncheckpoint: stopped")


def test_a_process_that_gets_sigint_in_the_middle_leaves_a_whole_store(tmp_path):
    saver = TurnCheckpointSaver(tmp_path / "store", fsync=False)
    for thread_id, number in itertools.product(map(str, range(40)), range(1, 40)):
        save(saver, thread_id, number, text="x" * number)
    command = [sys.executable, "-m", "langgraph_turncheckpoint", "prune", str(tmp_path / "store"), "--all"]
    root = str(Path(cli.__file__).parents[1])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as process:
        first = saver.path + "/threads/t-0/g-1/n-/b-"
        wait_until_fewer(Path(first), 39)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in {0, 130}
    assert "Traceback" not in err
    if process.returncode == 130:
        assert "of 40 threads pruned" in err
        assert out == ""
    kept = [len(list(saver.list(cut.config(thread_id)))) for thread_id in sorted(map(str, range(40)))]
    assert set(kept) <= {1, 39}
    assert kept == sorted(kept)
    assert CliRunner().invoke(cli.app, ["verify", saver.path]).exit_code == 0


def wait_until_fewer(folder: Path, number: int) -> None:
    """Until a directory has lost a file."""
    import threading

    pause = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 1000)):
        if len(list(folder.iterdir())) < number:
            return
        pause.wait(0.001)
    raise AssertionError("nothing was removed")
