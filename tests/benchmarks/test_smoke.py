"""The benchmark runs and its table has its rows. No figure is judged: figures belong to a machine.

Only what the tests of this project have anyway takes part, so that this holds wherever they run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import peers
from tests.benchmarks.__main__ import main
from tests.benchmarks.cluster import NoClusterError
from tests.benchmarks.rows import KEYS, SECTIONS, groups_for

ALWAYS = ("--quick", "--peers", "sqlite,inmemory")


def rows_of(found: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(found.read_text())["rows"]
    return rows


def test_quick_run_of_two_rows_gives_these_two_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found.json"

    status = main([*ALWAYS, "--rows", "step-20,writes-100", "--json", str(found), "--dir", str(tmp_path)])

    printed = capsys.readouterr().out
    assert status == 0
    rows = rows_of(found)
    assert [row["key"] for row in rows] == ["step-20", "writes-100"]
    assert all(set(row["measured"]) == {"ours", "sqlite", "inmemory"} for row in rows)
    assert all(row["work"] in printed and row["floor"]["value"] > 0 and row["floor"]["of"] in printed for row in rows)


def test_an_unknown_row_is_refused_with_the_rows_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "step-21"]) == 2
    assert "step-20" in capsys.readouterr().err


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "sqlit"])
    assert "no such peer: sqlit" in capsys.readouterr().err


def test_every_row_has_exactly_one_group() -> None:
    assert len(set(KEYS)) == len(KEYS)
    assert [key for group in groups_for(KEYS) for key in group.keys] == list(KEYS)


def test_quick_run_of_the_guard_gives_all_rows_of_the_guard_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"

    status = main(["guard", *ALWAYS, "--json", str(found), "--dir", str(tmp_path)])

    printed = capsys.readouterr().out
    assert status == 0
    rows = rows_of(found)
    assert [row["key"] for row in rows] == list(SECTIONS["guard"])
    agents = {"attach-sync", "attach", "middleware-sync", "middleware"}
    for row in rows:
        assert set(row["measured"]) == ({"ours", "sqlite", "inmemory"} if row["key"] in agents else {"ours"})
        assert row["work"] in printed


def test_quick_run_of_real_graphs_gives_all_their_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found.json"

    status = main(["runs", *ALWAYS, "--json", str(found), "--dir", str(tmp_path)])

    assert status == 0
    rows = rows_of(found)
    assert [row["key"] for row in rows] == list(SECTIONS["runs"])
    for row in rows:
        reopening = {"ours", "sqlite"}
        assert set(row["measured"]) == (reopening if row["key"].startswith("resume") else {*reopening, "inmemory"})


def test_sections_have_all_rows_between_them() -> None:
    assert [key for keys in SECTIONS.values() for key in keys] == list(KEYS)


def test_a_peer_that_cannot_be_had_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "langgraph_checkpoint_objectstorage", None)
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.postgres", None)

    assert main(["--quick", "--peers", "postgres,objectstorage", "--rows", "step-20", "--dir", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    assert "PostgresSaver is left out: import of langgraph.checkpoint.postgres halted" in printed
    assert "ObjectStorageSaver is left out: import of langgraph_checkpoint_objectstorage halted" in printed


def test_a_server_that_does_not_start_leaves_its_peer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langgraph.checkpoint.postgres")

    def no_cluster(below: Path | None) -> None:
        raise NoClusterError("PostgreSQL is not installed: there is no initdb")

    monkeypatch.setattr(peers, "cluster", no_cluster)

    with peers.contenders(["ours", "postgres"]) as (found, missing):
        assert [one.name for one in found] == ["ours"]
        assert missing == {"postgres": "PostgreSQL is not installed: there is no initdb"}


def test_a_file_store_of_others_takes_part_where_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("langgraph_checkpoint_objectstorage")
    found = tmp_path / "found.json"

    assert main(["--quick", "--peers", "objectstorage", "--rows", "step-20", "--json", str(found)]) == 0

    assert set(rows_of(found)[0]["measured"]) == {"ours", "objectstorage"}
