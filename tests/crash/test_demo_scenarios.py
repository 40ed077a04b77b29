"""The demo's scenarios "tools" and "race" as a person runs them: real processes and signals, counted from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_turncheckpoint import TurnCheckpointSaver, _demo_race, _demo_tools
from langgraph_turncheckpoint._demo import DemoFailedError, start_worker
from langgraph_turncheckpoint._demo_tools import CALLED, NEW_MESSAGE, PLANS, REQUEST
from langgraph_turncheckpoint._demo_trip import THREAD, THREAD_ID, Effects, build_trip_graph
from langgraph_turncheckpoint._demo_worker import ORPHANED

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to end or stop a process")


def run_demo_command(*options, **environment):
    command = [sys.executable, "-m", "langgraph_turncheckpoint", "demo", *map(str, options)]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "120", **environment},
    )


def report_of(scenario, directory):
    result = run_demo_command("--scenario", scenario, "--json", "--dir", directory)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def tools_report(tmp_path_factory):
    """The report of "tools" and its directory."""
    directory = tmp_path_factory.mktemp("tools")
    return report_of("tools", directory), directory


@pytest.fixture(scope="module")
def race_report(tmp_path_factory):
    """The report of "race" and its directory."""
    directory = tmp_path_factory.mktemp("race")
    return report_of("race", directory), directory


def count_lines(path):
    return Counter(path.read_text(encoding="utf-8").split())


# tools


def cases_of(report):
    return {case["name"]: case for case in report["cases"]}


def answers_in(case):
    """What stands behind the calls, as (who, outcome)."""
    return [(line["who"], line["outcome"]) for line in case["history"][2:]]


def test_both_processes_died_of_sigkill_right_behind_the_charge(tools_report):
    report, _ = tools_report
    assert (report["scenario"], report["ok"]) == ("tools", True)
    assert [crash["guarded"] for crash in report["crashes"]] == [True, False]
    for crash in report["crashes"]:
        assert crash["killed_by_signal"] == signal.SIGKILL
        assert crash["effects"] == {"book_hotel": 1, "charge_card": 1, "send_mail": 0}


@pytest.mark.parametrize(
    ("name", "effects"),
    [
        ("alone-resume", (2, 2, 1)),
        ("guard-report", (1, 1, 1)),
        ("guard-rerun", (1, 2, 1)),
        ("guard-ask", (1, 1, 1)),
        ("alone-message", (1, 1, 0)),
        ("guard-message", (1, 1, 0)),
    ],
)
def test_each_way_to_go_on_has_these_effects(tools_report, name, effects):
    """G2, counted from what the tools wrote and not from the report."""
    report, directory = tools_report
    written = count_lines(directory / name / "effects.txt")
    assert tuple(written[tool] for tool in CALLED) == effects
    assert tuple(cases_of(report)[name]["effects"].values()) == effects


def test_every_case_is_reported_in_order(tools_report):
    report, _ = tools_report
    assert [case["name"] for case in report["cases"]] == [plan.name for plan in PLANS]
    assert all(case["history"][0] == {"who": "user", "text": REQUEST, "outcome": None} for case in report["cases"])


def test_langgraph_alone_gives_the_model_no_sign_of_the_first_charge(tools_report):
    """What the guard is compared with: should LangGraph change it, the demo's words are to be changed."""
    case = cases_of(tools_report[0])["alone-resume"]
    assert answers_in(case) == [(tool, None) for tool in CALLED]
    assert case["history"][3]["text"] == "120 EUR were charged"


def test_under_report_the_model_learns_that_the_outcome_is_unknown(tools_report):
    case = cases_of(tools_report[0])["guard-report"]
    assert answers_in(case) == [("book_hotel", None), ("charge_card", "unknown"), ("send_mail", None)]
    assert "may have taken effect" in case["history"][3]["text"]


def test_under_rerun_the_tool_answers_for_itself(tools_report):
    case = cases_of(tools_report[0])["guard-rerun"]
    assert answers_in(case) == [(tool, None) for tool in CALLED]
    assert (case["question"], case["answer"]) == (None, None)


def test_under_ask_the_model_gets_what_the_person_found_out(tools_report):
    case = cases_of(tools_report[0])["guard-ask"]
    assert "Its outcome is unknown" in case["question"]
    assert case["answer"] == "charges found at the bank: 1"
    assert case["history"][3] == {"who": "charge_card", "text": case["answer"], "outcome": None}


def test_langgraph_alone_leaves_a_history_that_the_model_refuses(tools_report):
    case = cases_of(tools_report[0])["alone-message"]
    assert case["refused"] == "no answer to the tool calls book_hotel, charge_card, send_mail"
    assert answers_in(case) == [("user", None)]


def test_before_a_new_message_each_call_gets_what_is_true_of_it(tools_report):
    case = cases_of(tools_report[0])["guard-message"]
    assert case["refused"] is None
    assert answers_in(case) == [
        ("book_hotel", None),
        ("charge_card", "unknown"),
        ("send_mail", "not_run"),
        ("user", None),
    ]
    assert case["history"][2]["text"] == "room 12 is booked"
    assert case["history"][-1]["text"] == NEW_MESSAGE


@pytest.mark.parametrize("plan", PLANS, ids=[plan.name for plan in PLANS])
def test_no_store_of_the_demo_is_damaged(tools_report, plan):
    with TurnCheckpointSaver(tools_report[1] / plan.name / "checkpoints") as saver:
        assert saver.verify() == []
        assert saver.turns(THREAD_ID)[-1].state == ("interrupted" if plan.guarded else "unfinished")


def test_a_broken_promise_is_noticed(tmp_path, monkeypatch):
    others = [plan._replace(effects=(9, 9, 9)) for plan in PLANS[:2]]
    monkeypatch.setattr(_demo_tools, "PLANS", others)
    report = _demo_tools.run_tools_demo(tmp_path)
    assert [case.ok for case in report.cases] == [True, False], "nothing is promised of LangGraph alone"
    assert report.ok is False


# race


def test_the_late_process_is_refused_and_told_why(race_report):
    """C25, C34."""
    report, _ = race_report
    assert (report["scenario"], report["ok"]) == ("race", True)
    assert report["pid_a"] != report["pid_b"]
    assert report["held"] < report["current"]
    assert f"turn {report['held']} was refused" in report["refused"]


def test_the_card_is_charged_once_although_both_processes_wake(race_report):
    """T7: the late process does not get as far as the payment."""
    report, directory = race_report
    assert count_lines(directory / "effects.txt") == {"find_room": 2, "charge_card": 1}
    assert report["effects"] == {"find_room": 2, "charge_card": 1}


def test_the_history_is_that_of_the_newer_process(race_report):
    report, directory = race_report
    answers = [line["text"] for line in report["history"] if line["who"] in _demo_race.CALLED]
    assert answers == ["room 12 is free (by process B)", "120 EUR were charged (by process B)"]
    with TurnCheckpointSaver(directory / "checkpoints") as saver:
        assert saver.verify() == []
        found = saver.get_tuple(THREAD)
    assert found is not None
    assert [message.text for message in found.checkpoint["channel_values"]["messages"] if message.type == "tool"] == (
        answers
    )


def test_the_turns_tell_who_took_over_from_whom(race_report):
    report, _ = race_report
    told = [(turn["process"], turn["state"], turn["cause"]) for turn in report["turns"]]
    assert told == [("A", "superseded", "superseded"), ("B", "completed", None)]
    assert report["turns"][0]["token"] == report["held"]
    assert report["turns"][1]["token"] < report["current"], "the end of a turn raises the token, too"


def test_a_saver_that_does_not_check_lets_the_late_run_charge_again():
    """What the scenario says of other stores, with one of LangGraph's own."""
    saver, charged = InMemorySaver(), []
    is_held, may_go_on = threading.Event(), threading.Event()

    def graph_of(name, *, waits):
        def perform(tool):
            if tool == "charge_card":
                charged.append(name)
            elif waits:
                is_held.set()
                may_go_on.wait()
            return name

        return build_trip_graph(_demo_race.REPLIES, perform, saver)

    late = threading.Thread(
        target=lambda: graph_of("A", waits=True).invoke({"messages": [HumanMessage(REQUEST)]}, THREAD)
    )
    late.start()
    is_held.wait()
    graph_of("B", waits=False).invoke(None, THREAD)
    may_go_on.set()
    late.join()
    assert charged == ["B", "A"]


# The command


@pytest.fixture(scope="module", params=["tools", "race"])
def printed(request, tmp_path_factory):
    """What a scenario prints where there is no terminal, without its last line, which has a path of any length."""
    result = run_demo_command("--scenario", request.param, TMPDIR=str(tmp_path_factory.mktemp("printed")))
    assert result.returncode == 0, result.stdout + result.stderr
    *lines, last = result.stdout.splitlines()
    assert last.startswith("Everything is kept in /")
    return request.param, lines


def test_a_scenario_fits_a_screen(printed):
    _, lines = printed
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80


def test_a_scenario_tells_its_story_in_words(printed):
    scenario, lines = printed
    text = " ".join(" ".join(lines).split())
    assert "The model is a scripted fake" in text
    wanted = {
        "tools": [
            "Its outcome is unknown: it may have taken effect",
            "was not run: it had not started",
            "Refused, as model providers do: tool calls without answers.",
            "LangGraph alone, resumed card charged: 2",
            'TurnGuard, on_restart="report" (default): the model is told card charged: 1',
        ],
        "race": [
            "StaleTurnError: thread 'trip': turn 1 was refused",
            "120 EUR were charged (by process B)",
            "1 │ A │ superseded 2 │ B │ completed",
            "times the card was charged 1",
        ],
    }
    for phrase in wanted[scenario]:
        assert phrase in text


def test_an_unknown_scenario_is_a_usage_error_that_lists_them():
    result = run_demo_command("--scenario", "explode")
    assert result.returncode == 2
    assert result.stdout == ""
    text = " ".join(result.stderr.replace("│", " ").split())
    assert "'explode' is not one of 'resume', 'tools', 'race'" in text


@pytest.mark.parametrize("scenario", ["tools", "race"])
def test_a_directory_in_use_is_left_alone_by_every_scenario(tmp_path, scenario):
    (tmp_path / "thesis.md").write_text("precious")
    result = run_demo_command("--scenario", scenario, "--dir", tmp_path)
    assert result.returncode == 2
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]


# When something goes wrong


@pytest.mark.parametrize("arguments", [["_demo_tools"], ["_demo_tools", "--guard"], ["_demo_race", "A"]])
def test_a_worker_of_a_scenario_that_loses_its_parent_ends_itself(tmp_path, arguments):
    module, *rest = arguments
    command = [sys.executable, "-m", f"langgraph_turncheckpoint.{module}", str(tmp_path), *rest]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert result.returncode == ORPHANED


@pytest.mark.parametrize(
    ("module", "run"), [(_demo_tools, _demo_tools.run_tools_demo), (_demo_race, _demo_race.run_race_demo)]
)
def test_a_worker_that_fails_by_itself_ends_the_demo_with_its_last_words(tmp_path, monkeypatch, module, run):
    @contextmanager
    def start_wrongly(name, arguments, *, log):
        with start_worker(name, [*arguments, "--nonsense"], log=log) as worker:
            yield worker

    monkeypatch.setattr(module, "start_worker", start_wrongly)
    with pytest.raises(DemoFailedError, match="unrecognized arguments: --nonsense"):
        run(tmp_path)


def test_effects_that_never_happened_count_as_none(tmp_path):
    assert Effects(tmp_path / "effects.txt").count(CALLED) == dict.fromkeys(CALLED, 0)
