"""Runs are kept and read back, their ratios are compared, and drift is said in words."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.baseline import drift, ratios, read_baseline, write_baseline
from tests.benchmarks.kept import Run, read_run, write_run
from tests.benchmarks.report import Setting
from tests.benchmarks.results import Floor, beside_peer

SETTING = Setting(
    python="3.11.7",
    packages={"langgraph": "1.2.0"},
    contenders={"ours": "ours with fsync on", "sqlite": ""},
    missing={"postgres": "no initdb"},
    cpus=2,
    file_system="ext4",
    floor_seconds={"a durable append": 0.0002},
    load=(0.1, 0.5),
    quick=False,
    seconds=3.0,
)


def run_of(ours: float, *, floor: float = 0.001) -> Run:
    row = beside_peer("fan-out", "a run", {"ours": ours, "sqlite": 0.004}, floor=Floor(floor, "a durable append"))
    return Run([row], SETTING, {"step-seconds": {"ours": [(5, 0.1), (50, 0.2)]}})


def test_a_kept_run_is_read_back_as_it_was(tmp_path):
    run = run_of(0.002)
    write_run(tmp_path / "run.json", run)
    assert read_run(tmp_path / "run.json") == run


@pytest.mark.parametrize("text", ["{}", '{"rows": [{"key": "x"}], "setting": {}, "curves": {}}', "[]"])
def test_a_file_that_is_no_run_is_refused(tmp_path, text, capsys):
    (tmp_path / "run.json").write_text(text)
    assert main(["--from", str(tmp_path / "run.json")]) == 2
    assert "no run that `--json` wrote" in capsys.readouterr().err


def test_ratios_are_ours_through_each_peer_and_through_the_floor():
    assert ratios(run_of(0.002).results) == {"fan-out": {"sqlite": 0.5, "floor": 2.0}}


def test_a_difference_below_zero_has_no_ratio():
    assert ratios(run_of(-0.002).results) == {}


def test_drift_is_the_new_ratio_through_the_old(tmp_path):
    write_baseline(tmp_path / "baseline.json", run_of(0.002))

    shown = drift(read_baseline(tmp_path / "baseline.json"), ratios(run_of(0.003).results)).splitlines()

    assert shown[2].split() == ["fan-out", "SqliteSaver", "0.50", "x", "0.75", "x", "1.50", "x", "dearer"]
    assert shown[3].split() == ["fan-out", "floor", "2.00", "x", "3.00", "x", "1.50", "x", "dearer"]
    assert "ours costs 1.50 x of the baseline" in shown[5]


def test_a_small_drift_is_shown_without_a_word_and_what_is_missing_is_named():
    before = {"fan-out": {"sqlite": 0.5}, "gone": {"sqlite": 1.0}}

    shown = drift(before, ratios(run_of(0.0021).results)).splitlines()

    assert shown[2].endswith("1.05 x")
    assert shown[3].split()[-1] == "new"
    assert shown[-1] == "Not in this run: gone."


def test_comparing_a_kept_run_with_its_own_baseline_shows_no_drift_and_gates_nothing(tmp_path, capsys):
    run, baseline = tmp_path / "run.json", tmp_path / "baseline.json"
    write_run(run, run_of(0.002))
    assert main(["--from", str(run), "--baseline", str(baseline)]) == 0
    capsys.readouterr()
    kept = json.loads(baseline.read_text())
    kept["ratios"]["fan-out"]["sqlite"] = 0.001
    baseline.write_text(json.dumps(kept))

    assert main(["--from", str(run), "--compare", str(baseline)]) == 0

    printed = capsys.readouterr().out
    assert "500 x  dearer" in printed
    assert "PostgresSaver is left out: no initdb." in printed
