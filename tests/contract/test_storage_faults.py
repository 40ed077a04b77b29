"""C51: whichever system call fails, nothing is lost, nothing half-written stays, and the next attempt works."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from langgraph_turncheckpoint import DamageWarning, StorageError, TurnCheckpointSaver
from tests.contract.storing import Thread, addressed, files_below, fresh, latest, named, noticed, packed
from tests.system_calls import CODES, GROWING, SystemCalls, calls_of, lasting, once, substituted

VALUES = [{"messages": [f"message {n}" * 20 for n in range(count)], "step": count} for count in (3, 4, 5, 6)]


def in_no_run(config):
    return config


def in_a_run(config):
    """The config of a LangGraph run that has not touched the thread yet."""
    runtime = SimpleNamespace(control=object())
    return {"configurable": {**config["configurable"], "__pregel_runtime": runtime}}


class Scenario:
    """A store in some state, copied afresh for every fault, and the operation that is to suffer it."""

    def __init__(self, root: Path, *, in_run: bool = False) -> None:
        self.saver = TurnCheckpointSaver(root)
        self.thread = Thread(self.saver)
        self.wrap = in_a_run if in_run else in_no_run

    def prepare(self):
        self.thread.put(VALUES[0])
        self.thread.put(VALUES[1])
        self.thread.write("pending")

    def act(self):
        self.thread.config = self.wrap(self.thread.config)
        self.thread.put(VALUES[2])

    def done(self, saver):
        """Whether the whole operation is visible."""
        return self.newest(saver) == packed(VALUES[2])

    def may_be_done(self, saver):
        """Whether a failure may leave the operation done, because undoing it could fail just the same."""
        return False

    def newest(self, saver):
        found = fresh(saver).get_tuple(addressed("thread"))
        return found and packed(found.checkpoint["channel_values"])

    def observed(self, saver):
        """All that can be read."""
        return [
            (t.checkpoint["id"], packed(t.checkpoint["channel_values"]), t.metadata["step"], t.pending_writes)
            for t in fresh(saver).list(addressed("thread"))
        ]


class FirstPut(Scenario):
    def prepare(self):
        pass


class PutAfterEarlyWrites(Scenario):
    def prepare(self):
        super().prepare()
        early = addressed("thread", "", self.thread.next({}, 3)["id"])
        self.saver.put_writes(early, [("messages", "early" * 100)], "task")


class PutAgain(Scenario):
    def act(self):
        self.thread.config = self.wrap(addressed("thread", "", self.thread.ids[0]))
        self.thread.put(VALUES[2], number=2)

    def may_be_done(self, saver):
        return self.done(saver)


class PutAmongLitter(Scenario):
    def prepare(self):
        super().prepare()
        (path,) = {file.parent for file in named(self.saver.path, ".ckpt")}
        (path / "c-dead.ckpt.0123456789abcdef.tmp").write_bytes(b"half")


class PutWrites(Scenario):
    def act(self):
        self.thread.config = self.wrap(self.thread.config)
        self.thread.write("a", "b" * 2_000, task_id="second")

    def done(self, saver):
        (newest, *_) = self.observed(saver)
        return ("second", "messages", "b" * 2_000) in newest[-1]


class PutEarlyWrites(Scenario):
    """Nothing of them can be read before their checkpoint comes."""

    def act(self):
        config = self.wrap(addressed("thread", "", self.thread.next({}, 3)["id"]))
        self.saver.put_writes(config, [("messages", "early")], "task")

    def done(self, saver):
        return bool(named(saver.path, ".early"))


SCENARIOS = {
    "put": Scenario,
    "first put": FirstPut,
    "put after early writes": PutAfterEarlyWrites,
    "put of the same id": PutAgain,
    "put among litter": PutAmongLitter,
    "writes": PutWrites,
    "early writes": PutEarlyWrites,
}


def staged(name, root, *, in_run, warm):
    """A scenario ready to act, by a saver that remembers what it has put, or by one that remembers nothing."""
    scenario = SCENARIOS[name](root, in_run=in_run)
    scenario.prepare()
    if not warm:
        scenario.saver = scenario.thread.saver = TurnCheckpointSaver(root)
    return scenario


@pytest.mark.parametrize(
    ("fault", "in_run", "warm"),
    [
        pytest.param(once, False, False, id="one call fails"),
        pytest.param(once, True, True, id="one call fails in a run"),
        pytest.param(lasting, False, True, id="the disk stays full"),
        pytest.param(lasting, True, False, id="the disk stays full in a run"),
    ],
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_put_that_fails_at_any_system_call_changes_nothing_and_can_be_repeated(name, fault, in_run, warm, tmp_path):
    names = calls_of(staged(name, tmp_path / "rehearsal", in_run=in_run, warm=warm).act)
    wrong = []
    for position, call in enumerate(names):
        if fault is lasting and call not in GROWING:
            continue
        code = CODES[position % len(CODES)] if fault is once else errno.ENOSPC
        where = f"{call} (call {position} of {len(names)}, {errno.errorcode[code]})"
        scenario = staged(name, tmp_path / f"{position}", in_run=in_run, warm=warm)
        with noticed() as warned:
            wrong += [f"{where}: {problem}" for problem in problems(scenario, fault(position, code), code)]
        if warned:
            wrong.append(f"{where}: warned with {set(warned)}")
    assert not wrong, "\n".join(wrong)


def problems(scenario, fault, code):
    """Let the operation suffer the fault, repeat it, and tell what is not as it should be."""
    config, ids, last = scenario.thread.config, list(scenario.thread.ids), scenario.thread.last
    before, failed = scenario.observed(scenario.saver), False
    with substituted(SystemCalls(fault)):
        try:
            scenario.act()
        except StorageError as error:
            failed = True
            if error.errno != code or not error.filename:
                yield f"{error!r} does not tell errno and file"
        except OSError as error:
            failed = True
            yield f"raised a bare {error!r}"
    if litter := [file.name for file in named(scenario.saver.path, ".tmp") if "dead" not in file.name]:
        yield f"left {litter}"
    if not failed and not scenario.done(scenario.saver):
        yield "was acknowledged and is not there"
    if failed and scenario.observed(scenario.saver) != before and not scenario.may_be_done(scenario.saver):
        yield "raised, and what can be read has changed"
    if failed:
        scenario.thread.config, scenario.thread.ids, scenario.thread.last = config, ids, last
        scenario.act()
        if not scenario.done(scenario.saver):
            yield "the repeated operation is not there"
    # Early writes that were merged may stay behind where removing them failed; nothing reads them any more.
    tolerated = {"temporary"} if failed else {"temporary", "orphan"}
    if findings := [found for found in scenario.saver.verify() if found.kind not in tolerated]:
        yield str(findings)


def test_after_a_failure_another_saver_and_another_thread_go_on(tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    first, second = Thread(saver), Thread(saver, "other")
    first.put(VALUES[0])
    failing = SystemCalls(lambda at, name: errno.ENOSPC if name == "write" else None)
    with substituted(failing), pytest.raises(StorageError):
        first.put(VALUES[1])
    second.put(VALUES[1])
    other = Thread(fresh(saver), "thread")
    other.config, other.last, other.ids = first.config, first.last, list(first.ids)
    other.put(VALUES[2])
    assert packed(latest(saver).checkpoint["channel_values"]) == packed(VALUES[2])
    assert packed(latest(saver, "other").checkpoint["channel_values"]) == packed(VALUES[1])


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_read_that_fails_is_a_storage_error_and_never_an_older_state(code, tmp_path):
    """Falling back is for damage; a system that refuses for a moment has damaged nothing."""
    saver = TurnCheckpointSaver(tmp_path)
    thread = Thread(saver)
    for values in VALUES:
        thread.put(values)
    for read in (
        lambda: fresh(saver).get_tuple(addressed("thread")),
        lambda: fresh(saver).get_tuple(thread.at(-1)),
        lambda: list(fresh(saver).list(addressed("thread"))),
    ):
        for position, call in enumerate(calls_of(read)):
            with substituted(SystemCalls(once(position, code))), pytest.raises(StorageError) as caught:
                read()
            assert caught.value.errno == code, call


@pytest.mark.parametrize("operation", ["delete", "prune", "copy", "delete_for_runs"])
def test_upkeep_that_fails_at_any_system_call_is_finished_by_repeating_it(operation, tmp_path):
    """C45, and its relatives: in between, what can be read is whole."""

    def made(root):
        saver = TurnCheckpointSaver(root, fsync=False)
        thread = Thread(saver)
        for n in range(4):
            thread.put({"messages": [f"{m} " * 50 for m in range(40 + n)]}, metadata={"run_id": f"run-{n}"})
        thread.write("pending")
        return saver, thread

    actions = {
        "delete": lambda saver: saver.delete_thread("thread"),
        "prune": lambda saver: saver.prune(["thread"]),
        "copy": lambda saver: saver.copy_thread("thread", "target"),
        "delete_for_runs": lambda saver: saver.delete_for_runs(["run-0", "run-3"]),
    }
    template, thread = made(tmp_path / "template")
    rehearsal, _ = made(tmp_path / "rehearsal")
    names = calls_of(lambda: actions[operation](fresh(rehearsal, fsync=True)))
    expected = [t.checkpoint["id"] for t in fresh(rehearsal).list(None)]
    wrong = []
    for position, call in enumerate(names):
        code = CODES[position % len(CODES)]
        root = tmp_path / f"{position}"
        shutil.copytree(template.path, root)
        saver = TurnCheckpointSaver(root)
        where = f"{call} (call {position} of {len(names)}, {errno.errorcode[code]})"
        with substituted(SystemCalls(once(position, code))), noticed() as warned:
            try:
                actions[operation](saver)
            except StorageError:
                pass
            except OSError as error:
                wrong.append(f"{where}: raised a bare {error!r}")
        if warned:
            wrong.append(f"{where}: warned with {set(warned)}")
        found = {t.checkpoint["id"]: packed(t.checkpoint["channel_values"]) for t in fresh(saver).list(None)}
        if not found.items() <= thread.values.items():
            wrong.append(f"{where}: other values")
        if operation == "delete" and len(list(fresh(saver).list(None))) not in {0, 4}:
            wrong.append(f"{where}: half a thread can be read")
        actions[operation](saver)
        if [t.checkpoint["id"] for t in fresh(saver).list(None)] != expected:
            wrong.append(f"{where}: repeating did not finish it")
        if findings := saver.verify():
            wrong.append(f"{where}: {findings}")
    assert not wrong, "\n".join(wrong)


def test_a_delete_whose_unlink_fails_raises_and_the_second_one_finishes(tmp_path):
    """C45."""
    saver = TurnCheckpointSaver(tmp_path)
    thread, neighbour = Thread(saver), Thread(saver, "neighbour")
    for values in VALUES:
        thread.put(values)
        neighbour.put(values)
    unlinks = [0]

    def second_unlink(_, name):
        unlinks[0] += name == "unlink"
        return errno.EACCES if name == "unlink" and unlinks[0] == 2 else None

    with substituted(SystemCalls(second_unlink)), pytest.raises(StorageError):
        saver.delete_thread("thread")
    assert fresh(saver).get_tuple(addressed("thread")) is None
    assert list(fresh(saver).list(addressed("thread"))) == []
    assert named(tmp_path, ".ckpt") != named(tmp_path / "threads" / "t-neighbour", ".ckpt")
    saver.delete_thread("thread")
    assert named(tmp_path, ".ckpt") == named(tmp_path / "threads" / "t-neighbour", ".ckpt")
    neighbour.assert_whole(fresh(saver))


def test_a_directory_without_permission_is_a_storage_error_and_reading_goes_on(tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    thread = Thread(saver)
    thread.put(VALUES[0])
    before = files_below(tmp_path)

    def denied(position, name):
        return errno.EACCES if name in {"mkdir", "replace", "unlink"} else None

    class ReadOnly(SystemCalls):
        def __getattr__(self, name):
            if name == "open":
                return self._open
            return super().__getattr__(name)

        def _open(self, path, flags, *mode):
            if flags & os.O_CREAT and not os.path.exists(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return os.open(path, flags, *mode)

    for operation in (
        lambda: thread.put(VALUES[1]),
        lambda: Thread(saver, "new").put(VALUES[0]),
        lambda: saver.copy_thread("thread", "copy"),
    ):
        with substituted(ReadOnly(denied)), pytest.raises(StorageError) as caught:
            operation()
        assert caught.value.errno == errno.EACCES
    assert {k: v for k, v in files_below(tmp_path).items() if k.endswith(".ckpt")} == {
        k: v for k, v in before.items() if k.endswith(".ckpt")
    }
    with substituted(ReadOnly(denied)):
        assert packed(latest(saver).checkpoint["channel_values"]) == packed(VALUES[0])


def test_a_read_only_directory_is_a_storage_error(tmp_path):
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("the administrator may write into any directory; the test above covers it by injection")
    root = tmp_path / "root"
    saver = TurnCheckpointSaver(root)
    root.mkdir()
    root.chmod(0o500)
    try:
        with pytest.raises(StorageError) as caught:
            Thread(saver).put(VALUES[0])
        assert caught.value.errno == errno.EACCES
    finally:
        root.chmod(0o700)


def test_a_serde_that_is_none_is_refused_at_once(tmp_path):
    with pytest.raises(TypeError, match="serde='json'"):
        TurnCheckpointSaver(tmp_path, serde=cast(Any, "json"))


def test_a_root_that_is_a_file_is_a_storage_error_at_once(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(StorageError, match="is a file"):
        TurnCheckpointSaver(path)
    with pytest.raises(StorageError):
        TurnCheckpointSaver(path / "below")
    assert path.read_bytes() == b"mine"


def test_a_root_that_becomes_a_file_is_a_storage_error(tmp_path):
    saver = TurnCheckpointSaver(tmp_path / "root")
    (tmp_path / "root").write_bytes(b"mine")
    with pytest.raises(StorageError):
        Thread(saver).put(VALUES[0])
    assert (tmp_path / "root").read_bytes() == b"mine"


@pytest.mark.parametrize("damage", [b"", b"\x00" * 2000, b"junk" * 200])
def test_a_damaged_ledger_costs_no_checkpoint(damage, tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    thread = Thread(saver)
    thread.put(VALUES[0])
    (ledger,) = named(tmp_path, "turn")
    ledger.write_bytes(damage)
    with pytest.warns(DamageWarning, match="tokens jump ahead"):
        assert packed(latest(saver).checkpoint["channel_values"]) == packed(VALUES[0])
    thread.put(VALUES[1])
    thread.assert_whole(fresh(saver))
    assert saver.thread_ids() == ["thread"]
