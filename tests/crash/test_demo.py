"""The demo as a person runs it: two real processes, one real SIGKILL, and a count from outside."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._demo import DemoFailedError, prepare_demo, run_demo
from langgraph_turncheckpoint._demo_agent import FILES, TURNS
from langgraph_turncheckpoint._demo_worker import KILL_TURN, ORPHANED, THREAD


@pytest.fixture(scope="module")
def finished_demo(tmp_path_factory):
    """The command's status, its report and its directory, from one run without a terminal."""
    directory = tmp_path_factory.mktemp("demo")
    command = [
        sys.executable,
        "-m",
        "langgraph_turncheckpoint",
        "demo",
        "--json",
        "--dir",
        str(directory),
    ]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout), directory


def read_effects(directory):
    return [json.loads(line) for line in (directory / "effects.jsonl").read_text().splitlines()]


def test_the_report_says_what_was_done_before_and_after_the_kill(finished_demo):
    report, _ = finished_demo
    before, after = report["before_kill"], report["after_kill"]
    assert report["ok"] is True
    assert (before["turns"], after["turns"]) == (KILL_TURN, TURNS - KILL_TURN)
    assert (before["tool_calls_finished"], after["tool_calls_finished"]) == (32, 10)
    assert (report["kill_turn"], report["killed_call"]) == (KILL_TURN, "write_section 12")
    assert report["starting_over_percent"] == 83
    assert before["pid"] != after["pid"]
    assert 0 < report["read_seconds"] < report["resume_seconds"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without a signal")
def test_the_first_process_died_of_sigkill(finished_demo):
    report, _ = finished_demo
    assert report["killed_by_signal"] == signal.SIGKILL


def test_no_finished_tool_call_ran_again(finished_demo):
    """C16, counted from the tools' own records and not from the report."""
    report, directory = finished_demo
    finished = Counter(record["call"] for record in read_effects(directory) if record["event"] == "finished")
    assert set(finished.values()) == {1}
    assert len(finished) == 2 * FILES + 2
    assert report["finished_calls_run_again"] == 0


def test_only_the_interrupted_call_started_twice(finished_demo):
    report, directory = finished_demo
    started = Counter(record["call"] for record in read_effects(directory) if record["event"] == "started")
    assert [call for call, count in started.items() if count > 1] == [f"turn-{KILL_TURN}-call-3"]
    assert report["unfinished_calls_run_again"] == 1


def test_the_kill_came_after_the_other_calls_of_its_turn_had_finished(finished_demo):
    report, directory = finished_demo
    finished_first = {
        record["call"]
        for record in read_effects(directory)
        if record["event"] == "finished" and record["pid"] == report["before_kill"]["pid"]
    }
    assert {f"turn-{KILL_TURN}-call-1", f"turn-{KILL_TURN}-call-2"} <= finished_first
    assert f"turn-{KILL_TURN}-call-3" not in finished_first


def test_the_summary_has_a_section_about_each_file(finished_demo):
    report, directory = finished_demo
    assert Path(report["summary"]) == (directory / "summary.md").resolve()
    assert (directory / "summary.md").read_text().count("\n## ") == FILES


def test_the_store_holds_one_whole_history_and_no_damage(finished_demo):
    _, directory = finished_demo
    with TurnCheckpointSaver(directory / "checkpoints") as saver:
        assert saver.verify() == []
        found = saver.get_tuple(THREAD)
    assert found is not None
    history = found.checkpoint["channel_values"]["messages"]
    asked = [call["id"] for message in history if isinstance(message, AIMessage) for call in message.tool_calls]
    answered = [message.tool_call_id for message in history if isinstance(message, ToolMessage)]
    assert sum(isinstance(message, AIMessage) for message in history) == TURNS
    assert answered == asked


def test_a_store_that_is_lost_with_the_process_makes_the_demo_fail(tmp_path):
    plan = prepare_demo(directory=tmp_path / "demo")

    def lose_the_store(event):
        if event.kind == "kill":
            shutil.rmtree(plan.files.checkpoints)

    with pytest.raises(DemoFailedError, match="process 2 failed"):
        run_demo(plan, on_event=lose_the_store)


def test_a_worker_that_loses_its_parent_ends_itself(tmp_path):
    plan = prepare_demo(directory=tmp_path / "demo")
    command = [sys.executable, "-m", "langgraph_turncheckpoint._demo_worker", str(plan.files.directory)]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert result.returncode == ORPHANED
