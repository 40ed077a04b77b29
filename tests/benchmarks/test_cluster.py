"""The private PostgreSQL server is there for the length of a run, and gone afterwards, however the run ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from tests.benchmarks import cluster as cluster_module
from tests.benchmarks.cluster import NoClusterError, cluster, find_programs
from tests.benchmarks.peers import contenders
from tests.benchmarks.state import ThreadState

REPOSITORY = Path(__file__).absolute().parents[2]


@pytest.fixture
def installed():
    try:
        find_programs()
        cluster_module._account()
    except NoClusterError as reason:
        pytest.skip(str(reason))


def test_a_saver_stores_and_copies_and_the_server_is_gone_at_the_end(installed, tmp_path):
    pytest.importorskip("langgraph.checkpoint.postgres")
    with contenders(["postgres"]) as (found, missing):
        assert missing == {}
        (postgres,) = found
        directory, state = postgres.server, ThreadState("1")
        saver = postgres.open(tmp_path / "one")
        state.start_with(saver, [HumanMessage("hello")]).commit(saver)
        postgres.close(saver)
        postgres.copy(tmp_path / "one", tmp_path / "two")
        for root in ("one", "two"):
            saver = postgres.open(tmp_path / root)
            stored = saver.get_tuple(state.config)
            assert stored is not None
            assert stored.checkpoint["channel_values"] == state.values
            postgres.close(saver)
        assert 0 < postgres.disk_use(tmp_path / "one").size_bytes < 2_000_000
    assert directory is not None
    assert not directory.exists()


def test_a_killed_run_leaves_no_server_and_no_directory(installed):
    script = (
        "import os, signal\n"
        "from tests.benchmarks.cluster import cluster\n"
        "with cluster() as directory:\n"
        "    print(directory, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # The keeper has our pipe for errors as well: it reaches its end when the keeper has ended.
    run = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert run.returncode != 0
    assert run.stderr == ""
    directory = Path(run.stdout.strip())
    assert directory.name.startswith("benchmarks-postgres-")
    assert not directory.exists()


def test_without_programs_there_is_a_reason_and_no_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cluster_module, "_PROGRAMS", str(tmp_path))

    with pytest.raises(NoClusterError, match="there is no initdb"), cluster(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_programs_that_fail_give_their_reason_and_leave_no_directory(tmp_path, monkeypatch):
    programs, below = tmp_path / "bin", tmp_path / "below"
    programs.mkdir()
    below.mkdir()
    for name in ("initdb", "postgres"):
        (programs / name).write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(cluster_module, "find_programs", lambda: programs)
    monkeypatch.setattr(cluster_module, "_account", lambda: "")
    monkeypatch.setattr(cluster_module, "_DIRECTORY_LIMIT", 1000)

    with pytest.raises(NoClusterError, match="initdb: no room"), cluster(below):
        pass
    assert list(below.iterdir()) == []
