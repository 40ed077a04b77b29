"""The `turncheckpoint` command: what it prints, which exit status it gives, what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from langgraph_turncheckpoint import __version__, _demo, cli
from langgraph_turncheckpoint._demo import DemoEvent, DemoReport, ProcessCount
from langgraph_turncheckpoint._demo_race import RaceReport, RaceTurn
from langgraph_turncheckpoint._demo_tools import Crash, ToolsCase, ToolsReport
from langgraph_turncheckpoint._demo_trip import HistoryLine

GOOD = DemoReport(
    ok=True,
    model=None,
    before_kill=ProcessCount(pid=11, turns=25, tool_calls_finished=32),
    after_kill=ProcessCount(pid=12, turns=5, tool_calls_finished=10),
    killed_by_signal=9,
    kill_turn=25,
    killed_call="write_section 12",
    finished_calls_run_again=0,
    unfinished_calls_run_again=1,
    turns_repeated=0,
    resume_seconds=0.5,
    read_seconds=0.002,
    starting_over_percent=83,
    missing_sections=(),
    directory="/d",
    checkpoints="/d/checkpoints",
    effects="/d/effects.jsonl",
    summary="/d/summary.md",
)
EVENTS = [
    DemoEvent("start", 1, 11),
    DemoEvent("turn", 1, 11, 25, ("write_section 11", "write_section 12")),
    DemoEvent("tool", 1, 11, 25, ("write_section 11",)),
    DemoEvent("kill", 1, 11, 25, ("write_section 12",)),
    DemoEvent("start", 2, 12),
    DemoEvent("tool", 2, 12, 0, ("write_section 12",)),
    DemoEvent("turn", 2, 12, 30, ()),
    DemoEvent("end", 2, 12),
]


@pytest.fixture
def invoke():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def played_demo(monkeypatch):
    """Replaces the two processes by their events and a report."""

    def play(report):
        def run_demo(plan, *, on_event):
            for event in EVENTS:
                on_event(event)
            return report

        monkeypatch.setattr(cli, "prepare_demo", lambda **_options: None)
        monkeypatch.setattr(cli, "run_demo", run_demo)

    return play


# Help and installation


COMMANDS = [each.name or each.callback.__name__ for each in cli.app.registered_commands if each.callback]


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_names_every_exit_status(invoke, command):
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "Exit status: 0 all is well, 1" in text
    assert "2 the command was not understood" in text
    assert "130 stopped by Ctrl-C" in text


def test_help_tells_a_newcomer_where_to_begin(invoke):
    assert "turncheckpoint demo" in " ".join(invoke("--help").output.split())


def test_version_is_that_of_the_package(invoke):
    assert invoke("--version").output == f"{__version__}\n"


def test_an_unknown_command_is_a_usage_error(invoke):
    assert invoke("explode").exit_code == 2


def run_main_without(module):
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from langgraph_turncheckpoint.__main__ import main\n"
        "sys.argv = ['turncheckpoint', 'demo']; main()"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("toolkit", ["typer", "rich"])
def test_without_its_extra_the_command_names_what_to_install(toolkit):
    result = run_main_without(toolkit)
    assert result.returncode == 1
    assert 'pip install "langgraph-turncheckpoint[cli]"' in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_another_missing_package_is_not_mistaken_for_the_extra():
    result = run_main_without("langgraph.prebuilt")
    assert result.returncode == 1
    assert "langgraph.prebuilt" in result.stderr
    assert "[cli]" not in result.stderr


# demo


def test_the_demo_says_that_its_model_is_a_fake_and_shows_the_count(invoke, played_demo):
    played_demo(GOOD)
    result = invoke("demo")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "scripted fake" in text
    assert "killed by SIGKILL in turn 25, during `write_section 12`" in text
    assert "finished tool calls that ran again 0" in text
    assert "25 of 30 model turns (83 %), 32 tool calls" in text
    assert "/d/checkpoints" in text


def test_the_demo_names_the_real_model_that_it_uses(invoke, played_demo):
    played_demo(replace(GOOD, model="some:model"))
    output = invoke("demo", "--model", "some:model").output
    assert "some:model" in output
    assert "fake" not in output


def test_the_demo_draws_a_bar_on_a_terminal(invoke, played_demo, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    played_demo(GOOD)
    assert "30/30" in invoke("demo").output


@pytest.mark.parametrize(
    "spoiled",
    [
        {"finished_calls_run_again": 2},
        {"turns_repeated": 1},
        {"missing_sections": ("a.py",)},
    ],
    ids=["call-repeated", "turn-repeated", "section-missing"],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_the_demo_fails_when_a_promise_was_broken(invoke, played_demo, spoiled, options):
    played_demo(replace(GOOD, ok=False, **spoiled))
    assert invoke("demo", *options).exit_code == 1


def test_the_demo_as_json_prints_one_object_and_nothing_else(invoke, played_demo):
    played_demo(GOOD)
    result = invoke("demo", "--json")
    assert json.loads(result.stdout)["before_kill"]["turns"] == 25
    assert result.stderr == ""


def test_a_demo_that_breaks_off_fails_with_its_reason(invoke, monkeypatch):
    def break_off(plan, *, on_event):
        raise _demo.DemoFailedError("process 1 failed")

    monkeypatch.setattr(cli, "prepare_demo", lambda **_options: None)
    monkeypatch.setattr(cli, "run_demo", break_off)
    result = invoke("demo")
    assert result.exit_code == 1
    assert "process 1 failed" in result.stderr


def test_a_directory_in_use_is_a_usage_error_and_stays_as_it_was(invoke, tmp_path):
    (tmp_path / "thesis.md").write_text("precious")
    result = invoke("demo", "--dir", tmp_path)
    assert result.exit_code == 2
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]


def test_too_few_files_is_a_usage_error_that_says_how_many(invoke, tmp_path):
    (tmp_path / "one.txt").write_text("one")
    result = invoke("demo", "--path", tmp_path, "--dir", tmp_path / "out")
    assert result.exit_code == 2
    assert "has 1 readable text files; the demo needs 20" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_real_model_without_langchain_names_the_extra(invoke, monkeypatch, tmp_path):
    monkeypatch.setattr(_demo, "find_spec", lambda _name: None)
    result = invoke("demo", "--model", "some:model", "--dir", tmp_path / "out")
    assert result.exit_code == 2
    assert 'pip install "langgraph-turncheckpoint[agents]"' in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_had_is_a_usage_error_with_the_provider_s_words(invoke, tmp_path):
    pytest.importorskip("langchain", reason="real models come with the extra `agents`")
    result = invoke("demo", "--model", "nobody:nothing", "--dir", tmp_path / "out")
    assert result.exit_code == 2
    assert "nobody:nothing" in result.stderr
    assert not (tmp_path / "out").exists()


# demo --scenario

SPOILED_TOOLS = ToolsReport(
    ok=False,
    crashes=(Crash(True, 11, 9, {"book_hotel": 1, "charge_card": 1, "send_mail": 0}),),
    cases=(
        ToolsCase(
            name="guard-report",
            guarded=True,
            then="resume",
            on_restart="report",
            history=(HistoryLine("user", "Book."), HistoryLine("model", "calls charge_card")),
            refused=None,
            question=None,
            answer=None,
            effects={"book_hotel": 1, "charge_card": 2, "send_mail": 1},
            ok=False,
        ),
    ),
    directory="/d",
)
SPOILED_RACE = RaceReport(
    ok=False,
    thread_id="trip",
    pid_a=11,
    pid_b=12,
    refused=None,
    held=None,
    current=None,
    history=(HistoryLine("charge_card", "120 EUR were charged (by process A)"),),
    turns=(RaceTurn(1, "A", "completed", None),),
    effects={"find_room": 2, "charge_card": 2},
    directory="/d",
)


@pytest.mark.parametrize(
    ("scenario", "report", "words"),
    [
        ("tools", SPOILED_TOOLS, "This is not what was promised."),
        ("race", SPOILED_RACE, "nobody refused it"),
    ],
    ids=["tools", "race"],
)
def test_a_scenario_fails_when_a_promise_was_broken(invoke, monkeypatch, tmp_path, scenario, report, words):
    monkeypatch.setattr(cli, f"run_{scenario}_demo", lambda _directory: report)
    monkeypatch.setattr(sys, "platform", "linux")
    result = invoke("demo", "--scenario", scenario, "--dir", tmp_path)
    assert result.exit_code == 1
    assert words in result.stdout
    assert "The demo failed" in result.stdout
    as_json = invoke("demo", "--scenario", scenario, "--dir", tmp_path, "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["scenario"]) == (1, scenario)


@pytest.mark.parametrize("option", ["--path", "--model"])
@pytest.mark.parametrize("scenario", ["tools", "race"])
def test_options_of_another_scenario_are_a_usage_error(invoke, tmp_path, scenario, option):
    result = invoke("demo", "--scenario", scenario, option, tmp_path)
    assert result.exit_code == 2
    assert "are for the scenario 'resume'" in result.stderr


def test_where_no_process_can_be_stopped_the_race_says_so(invoke, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "win32")
    result = invoke("demo", "--scenario", "race", "--dir", tmp_path / "out")
    assert result.exit_code == 2
    assert "SIGSTOP" in result.stderr
    assert not (tmp_path / "out").exists()
