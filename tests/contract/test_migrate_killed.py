"""A migration whose process is killed goes on where it was, wherever that is, and the result is the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint.migration import migrate
from tests.contract.migrating import listed, places_of_writes, populate, sqlite_saver
from tests.langgraph_versions import needs_savers_that_sort_writes

pytestmark = needs_savers_that_sort_writes

ROOT = Path(__file__).parents[2]

#: Kills itself before or after the n-th call of a method of the destination.
CHILD = """
import os, signal, sys
from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint.migration import migrate
from tests.contract.migrating import sqlite_saver

where, kind, method, moment, number = sys.argv[1:]
calls = 0

def wrapped(call):
    def counting(*args, **kwargs):
        global calls
        calls += 1
        if moment == "before" and calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **kwargs)
        if moment == "after" and calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return counting

with sqlite_saver(f"{where}/app.db") as source:
    if kind == "ours":
        destination = TurnCheckpointSaver(f"{where}/other")
        setattr(destination, method, wrapped(getattr(destination, method)))
        migrate(source, destination)
    else:
        with sqlite_saver(f"{where}/other.db") as destination:
            setattr(destination, method, wrapped(getattr(destination, method)))
            migrate(source, destination)
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("source") / "app.db"
    with sqlite_saver(path) as source:
        populate(source)
        source.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("kind", ["ours", "sqlite"])
@pytest.mark.parametrize(
    ("method", "moment", "number"),
    [("put", "before", 1), ("put", "after", 9), ("put_writes", "before", 14), ("put_writes", "after", 30)],
)
def test_a_killed_migration_is_completed_by_the_next(tmp_path, database, kind, method, moment, number):
    (tmp_path / "app.db").write_bytes(database.read_bytes())
    arguments = [str(tmp_path), kind, method, moment, str(number)]
    killed = subprocess.run([sys.executable, "-c", CHILD, *arguments], cwd=ROOT, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()

    with sqlite_saver(tmp_path / "app.db") as source:
        if kind == "ours":
            _complete(source, TurnCheckpointSaver(tmp_path / "other"))
        else:
            with sqlite_saver(tmp_path / "other.db") as destination:
                _complete(source, destination)


def _complete(source: Any, destination: Any) -> None:
    report = migrate(source, destination)
    assert "copied" in {thread.state for thread in report.threads}
    for thread in report.threads:
        assert listed(destination, thread.thread_id) == listed(source, thread.thread_id)
        assert places_of_writes(destination, thread.thread_id) == places_of_writes(source, thread.thread_id)
    assert migrate(source, destination).copied == 0
    if isinstance(destination, TurnCheckpointSaver):
        assert [finding for finding in destination.verify() if finding.kind != "temporary"] == []
