"""C51, and its relatives: the fault lab in short, and that it sees what it is there for."""

from __future__ import annotations

import errno
import os
from argparse import ArgumentParser
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="the injected calls are those of POSIX systems")

from langgraph_turncheckpoint import TurnCheckpointSaver, _inbox_files
from langgraph_turncheckpoint import _files as files_module
from langgraph_turncheckpoint._running import RunningTurn
from tests.contract.storing import addressed
from tests.crash import faults
from tests.crash.failing_system import Fault, System, failing
from tests.crash.faulted_operations import at, fill

#: Typed loosely, because its imports are no part of what it offers.
_files: Any = files_module

#: Together the strides take about half a minute on one core.
STRIDE, TURN_STRIDE = 41, 400


def found(*arguments):
    parser = ArgumentParser()
    faults.add_arguments(parser)
    return faults.run(parser.parse_args(arguments))


@pytest.mark.parametrize("platform", faults.PLATFORMS)
def test_no_system_call_that_fails_costs_more_than_its_operation(platform):
    figures, findings = found("--platform", platform, "--stride", str(STRIDE), "--turn-stride", str(TURN_STRIDE))
    assert findings == []
    assert all(figure.is_met for figure in figures)
    assert {figure.name: figure.value for figure in figures}["faults injected"] > 10


def test_a_torn_append_that_stays_is_noticed(monkeypatch):
    def unchecked(path, data, *, at, fsync):
        fd = _files.os.open(path, os.O_RDWR)
        try:
            _files.os.lseek(fd, at, os.SEEK_SET)
            _files._write_all(fd, data)
        except OSError:
            pass
        finally:
            _files.os.close(fd)

    monkeypatch.setattr(_files, "append_file", unchecked)
    assert any("acknowledged, but" in each for each in found("--operation", "put_writes", "--kind", "torn")[1])


def test_a_refusal_that_is_taken_for_a_no_is_noticed(monkeypatch):
    monkeypatch.setattr(_files, "exists", lambda path: _files.os.access(path, os.F_OK))
    findings = found("--operation", "put of the same id", "--kind", "EIO", "--platform", "posix")[1]
    assert any("acknowledged, but" in each and "access" in each for each in findings)


def test_a_bare_error_is_noticed(monkeypatch):
    monkeypatch.setattr(_files, "storage_error", lambda error, path: error)
    assert any("bare" in each for each in found("--operation", "inbox.post", "--kind", "ENOSPC")[1])


def test_litter_that_nobody_sweeps_is_noticed(monkeypatch):
    monkeypatch.setattr(_inbox_files, "_sweep", lambda directory: None)
    findings = found("--operation", "inbox.post", "--kind", "EROFS", "--platform", "posix")[1]
    assert any("left Finding" in each for each in findings)


def test_a_descriptor_that_stays_open_is_noticed(monkeypatch):
    monkeypatch.setattr(_files, "_close_quietly", lambda fd: None)
    assert any("left open" in each for each in found("--operation", "inbox.post, first", "--kind", "half")[1])


def _write_once(fd, data):
    _files.os.write(fd, data)


def test_an_error_that_is_swallowed_is_noticed(monkeypatch):
    monkeypatch.setattr(_files, "sync_file", lambda fd: None)
    monkeypatch.setattr(_files, "_write_all", _write_once)
    findings = found("--operation", "inbox.post", "--kind", "half", "--platform", "posix")[1]
    assert any("warns" in each or "acknowledged" in each for each in findings)


def test_a_tool_that_runs_although_its_start_could_not_be_recorded_is_noticed(monkeypatch):
    def reckless(self, key, *, must_be_durable):
        real(self, key, must_be_durable=False)

    real = RunningTurn.tool_started
    monkeypatch.setattr(RunningTurn, "tool_started", reckless)
    findings = found("--operation", "attach, report", "--kind", "ENOSPC", "--turn-stride", "1")[1]
    assert any("could not be recorded" in each for each in findings)


def test_where_a_sync_fails_and_its_bytes_are_lost_the_next_attempt_writes_them_again(tmp_path):
    """Linux drops dirty pages after a failed sync, and the next one succeeds without them."""
    saver = TurnCheckpointSaver(tmp_path)
    fill(saver)
    system = System(Fault(0, "fdatasync", "dropped"))
    with failing(system), pytest.raises(OSError, match="put_writes|Input/output") as caught:
        saver.put_writes(at(3), [("step", 1)], "task-9")
    assert caught.value.errno == errno.EIO
    saver.put_writes(at(3), [("step", 1)], "task-9")
    read = TurnCheckpointSaver(tmp_path).get_tuple(addressed("main"))
    assert read is not None
    assert ("task-9", "step", 1) in (read.pending_writes or ())
