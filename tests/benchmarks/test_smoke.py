"""The benchmark runs and its table has its rows. No figure is judged: figures belong to a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.rows import KEYS, SECTIONS, groups_for


def test_quick_run_of_two_rows_gives_these_two_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found.json"

    status = main(["--quick", "--rows", "step-20,writes-100", "--json", str(found), "--dir", str(tmp_path)])

    printed = capsys.readouterr().out
    assert status == 0
    rows = json.loads(found.read_text())["rows"]
    assert [row["key"] for row in rows] == ["step-20", "writes-100"]
    assert all(set(row["measured"]) == {"ours", "sqlite", "inmemory"} for row in rows)
    assert all(row["work"] in printed for row in rows)


def test_an_unknown_row_is_refused_with_the_rows_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "step-21"]) == 2
    assert "step-20" in capsys.readouterr().err


def test_every_row_has_exactly_one_group() -> None:
    assert len(set(KEYS)) == len(KEYS)
    assert [key for group in groups_for(KEYS) for key in group.keys] == list(KEYS)


def test_quick_run_of_the_guard_gives_all_rows_of_the_guard_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"

    status = main(["guard", "--quick", "--json", str(found), "--dir", str(tmp_path)])

    printed = capsys.readouterr().out
    assert status == 0
    rows = json.loads(found.read_text())["rows"]
    assert [row["key"] for row in rows] == list(SECTIONS["guard"])
    agents = {"attach-sync", "attach", "middleware-sync", "middleware"}
    for row in rows:
        assert set(row["measured"]) == ({"ours", "sqlite", "inmemory"} if row["key"] in agents else {"ours"})
        assert row["work"] in printed


def test_sections_have_all_rows_between_them() -> None:
    assert [key for keys in SECTIONS.values() for key in keys] == list(KEYS)
