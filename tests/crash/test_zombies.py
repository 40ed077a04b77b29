"""The short form of the lab `zombies`; and that it notices each kind of broken fence, in processes that have one."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pytest

from langgraph_turncheckpoint import StaleTurnError, _commits, _files, _ledger, _turn
from tests.crash import zombies
from tests.crash.zombie_verdict import FORKED, LOCKS, MISSING, PRESENT, REFUSED, REUSED, STALE
from tests.crash.zombie_writers import PROCESSES, Assignment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and stopped by signals")

_commits_module: Any = _commits
_files_module: Any = _files
_held_ledger: Any = _ledger.HeldLedger


def test_of_processes_that_are_stopped_and_woken_none_writes_too_late_and_no_write_is_lost():
    """C25, C27, T1, T3, T5, T8; the first batch waits for the disk, the others do not."""
    parser = argparse.ArgumentParser()
    zombies.add_arguments(parser)
    figures, findings = zombies.run(parser.parse_args(["--writes", "3000", "--seed", "11"]))
    assert findings == []
    counted = {figure.name: figure.value for figure in figures}
    assert counted["writes tried"] >= 3000
    assert counted["writes refused"] > 50
    assert counted["processes stopped and woken"] > 50
    assert all(figure.is_met for figure in figures)


# --- broken versions ---


def check_no_token() -> None:
    """Whoever has a token may write."""
    _commits_module.check_current = lambda *args, **kwargs: None


def take_no_lock() -> None:
    """Nobody is alone with a thread."""
    _files_module._lock = lambda fd: None


def restore_old_tokens() -> None:
    """Now and then the ledger is put back from an older copy."""
    real = _held_ledger.write

    def write(self: Any, state: Any) -> None:
        real(self, state)
        if state.token % 10 == 0:
            real(self, state._replace(token=state.token - 5))

    _held_ledger.write = write


def compare_no_head() -> None:
    """An update does not look whether the thread has moved."""
    _commits_module.check_outside_turn = lambda *args, **kwargs: None


def acknowledge_without_writing() -> None:
    """Now and then a checkpoint is only said to be stored."""
    real, count = _files.replace_file, iter(range(1_000_000))

    def replace(*args: Any, **kwargs: Any) -> None:
        if next(count) % 20:
            real(*args, **kwargs)

    _files_module.replace_file = replace


def write_before_checking() -> None:
    """A refused checkpoint is there all the same."""
    real = _commits.Commits.put

    def put(self: Any, target: Any, parent_id: Any, section: Any, **kwargs: Any) -> Any:
        try:
            return real(self, target, parent_id, section, **kwargs)
        except StaleTurnError:
            with target.thread.ledger.hold() as held:
                target.thread.namespace(held.state, target.checkpoint_ns).commit(target.checkpoint_id, section)
            raise

    _commits_module.Commits.put = put


def refuse_at_random() -> None:
    """Whoever comes at the wrong moment is refused."""
    real, count = _turn.check_current, iter(range(1_000_000))

    def check(state: Any, held: int, *, thread_id: str) -> None:
        real(state, held, thread_id=thread_id)
        if next(count) % 20 == 19:
            raise StaleTurnError(thread_id, held, state.token)

    _commits_module.check_current = check


@pytest.mark.parametrize(
    ("sabotage", "kind"),
    [
        (check_no_token, STALE),
        (take_no_lock, LOCKS),
        (restore_old_tokens, REUSED),
        (compare_no_head, FORKED),
        (acknowledge_without_writing, MISSING),
        (write_before_checking, PRESENT),
        (refuse_at_random, REFUSED),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_version_is_noticed(tmp_path, sabotage, kind):
    assignment = Assignment(tmp_path / "batch", "5", 800 // PROCESSES, fsync=False, sabotage=sabotage)
    _, verdict = zombies.run_batch(assignment)
    assert kind in {each.kind for each in verdict.wrong}
