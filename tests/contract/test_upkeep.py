"""Retention beside the writes, and sweeping a directory: what goes was not needed, and nobody who writes notices."""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import StaleTurnError, TurnCheckpointSaver, _housekeeping, _upkeep
from langgraph_turncheckpoint._journal import journal_path
from langgraph_turncheckpoint._retention import KEPT_FOR_RECOVERY, Retention
from langgraph_turncheckpoint._sweep import sweep
from langgraph_turncheckpoint._transcript import ENDED, GAP, encode_record
from langgraph_turncheckpoint._waiting import ticket_path
from tests.contract.guarded_agents import WAYS, Agent, Ending, calls
from tests.contract.guarded_places import Place
from tests.contract.storing import Thread, addressed, files_below, fresh, named
from tests.crash.processes import PATIENCE_SECONDS, Child, Line
from tests.system_calls import SystemCalls, calls_of, once, substituted

MESSAGES = [f"message {n}, long enough to be no inline value " * 4 for n in range(200)]
DAY = 86_400.0


def settled() -> None:
    """Whatever retention is due in this process is done."""
    assert _housekeeping.drain(PATIENCE_SECONDS)


def ids_of(saver, thread_id="thread", checkpoint_ns=""):
    return [found.checkpoint["id"] for found in fresh(saver).list(addressed(thread_id, checkpoint_ns))]


def filled(path: Path, count: int, thread_id: str = "thread", **options: Any) -> Thread:
    """A thread with so many checkpoints, each with two messages more than the one before it."""
    thread = Thread(TurnCheckpointSaver(path, **{"fsync": False, **options}), thread_id)
    for n in range(count):
        thread.put({"messages": MESSAGES[: 40 + 2 * n], "n": n})
        thread.write(f"write {n}", task_id=f"task-{n}")
    return thread


def looked_after(thread: Thread, saver: TurnCheckpointSaver | None = None, **retention: Any) -> int:
    store = (saver or thread.saver).store
    return _upkeep.retain(store, thread.thread_id, Retention(**retention))


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def logging_graph(saver, *nodes):
    """A graph that runs these nodes in a row."""
    builder: Any = StateGraph(Log)
    for before, (name, node) in zip([START, *(name for name, _ in nodes)], nodes, strict=False):
        builder.add_node(name, node)
        builder.add_edge(before, name)
    builder.add_edge(nodes[-1][0], END)
    return builder.compile(checkpointer=saver)


# --- what stays, what goes ---


def test_a_turn_that_has_settled_leaves_the_newest_checkpoints_with_their_values(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, keep_last=3)
    thread = Thread(saver)
    with saver.turn(thread.config) as config:
        thread.config = config
        for n in range(40):
            thread.put({"messages": MESSAGES[: 40 + n]})
            thread.config = {"configurable": {**config["configurable"], "checkpoint_id": thread.ids[-1]}}
    settled()
    thread.assert_whole(fresh(saver), thread.ids[-3:])
    assert saver.verify() == []


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_plain_runs_of_a_graph_leave_no_more_than_is_kept(tmp_path, colour):
    saver = TurnCheckpointSaver(tmp_path, keep_last=4, fsync=False)
    graph = logging_graph(saver, ("a", lambda _: {"log": ["a"]}), ("b", lambda _: {"log": ["b"]}))
    config = addressed("1")
    for n in range(12):
        if colour == "sync":
            graph.invoke({"log": [n]}, config)
        else:
            await graph.ainvoke({"log": [n]}, config)
    before = graph.get_state(config).values["log"]
    with saver.turn(config):
        pass
    settled()
    assert len(ids_of(saver, "1")) == 4
    assert graph.get_state(config).values["log"] == before == [each for n in range(12) for each in (n, "a", "b")]


def test_a_process_that_begins_finds_what_others_have_left(tmp_path):
    thread = filled(tmp_path, 30)
    thread.saver = TurnCheckpointSaver(tmp_path, keep_last=2, fsync=False)
    thread.put({"messages": MESSAGES[:3]})
    settled()
    thread.assert_whole(fresh(thread.saver), thread.ids[-2:])


def test_old_checkpoints_go_and_the_newest_stays_however_old_it_is(tmp_path):
    thread = Thread(TurnCheckpointSaver(tmp_path, fsync=False))
    now = datetime.now(timezone.utc)
    for days in (9, 8, 5, 4):
        checkpoint = thread.next({"messages": MESSAGES[:10]})
        checkpoint["ts"] = (now - timedelta(days=days)).isoformat()
        thread.put_checkpoint(checkpoint)
    assert looked_after(thread, max_age=6 * DAY) == 2
    thread.assert_whole(fresh(thread.saver), thread.ids[-2:])
    assert looked_after(thread, max_age=DAY) == 1
    assert looked_after(thread, max_age=DAY) == 0
    thread.assert_whole(fresh(thread.saver), thread.ids[-1:])


def test_a_checkpoint_that_tells_no_time_goes_with_those_that_come_after_it(tmp_path):
    thread = Thread(TurnCheckpointSaver(tmp_path, fsync=False))
    for ts in ("soon", "2020-01-01T00:00:00", "never", datetime.now(timezone.utc).isoformat()):
        thread.put_checkpoint({**thread.next({"n": 1}), "ts": ts})
    assert looked_after(thread, max_age=DAY) == 2
    assert ids_of(thread.saver) == thread.ids[:1:-1]


def extend(old: list[Any], writes: list[Any]) -> list[Any]:
    return [*old, *(item for write in writes for item in write)]


class DeltaState(TypedDict):
    items: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=1000)]


def test_every_checkpoint_that_stays_keeps_the_values_of_its_delta_channels(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    builder = StateGraph(DeltaState)
    builder.add_node("add", lambda state: {"items": [f"seen {len(state['items'])}"]})
    builder.add_edge(START, "add")
    builder.add_edge("add", END)
    graph, config = builder.compile(checkpointer=saver), addressed("thread")
    for n in range(8):
        graph.invoke({"items": [f"said {n}"]}, config)
    before = {state.config["configurable"]["checkpoint_id"]: state.values for state in graph.get_state_history(config)}
    _upkeep.retain(saver.store, "thread", Retention(keep_last=3))
    after = [*builder.compile(checkpointer=fresh(saver)).get_state_history(config)]
    assert len(after) >= 3
    assert all(state.values == before[state.config["configurable"]["checkpoint_id"]] for state in after)


def test_what_a_running_turn_would_be_rolled_back_to_stays(tmp_path):
    thread = filled(tmp_path, 10)
    start = thread.ids[-1]
    with thread.saver.turn(addressed("thread")) as config:
        for n in range(10):
            conf = {**config["configurable"], "checkpoint_id": thread.ids[-1]}
            thread.config = {"configurable": conf}
            thread.put({"messages": MESSAGES[:n], "n": 100 + n})
        looked_after(thread, keep_last=2)
        assert ids_of(thread.saver) == [thread.ids[-1], thread.ids[-2], start]
        fresh(thread.saver).prune(["thread"])
        assert ids_of(thread.saver) == [thread.ids[-1], start]
        with fresh(thread.saver).turn(addressed("thread"), multitask_strategy="rollback") as rolled:
            found = fresh(thread.saver).get_tuple(rolled)
            assert found is not None
            assert found.checkpoint["id"] == start


def test_what_the_newest_turn_was_pointed_at_stays_until_the_next_turn(tmp_path):
    thread = filled(tmp_path, 10)
    with thread.saver.turn(thread.at(2)):
        looked_after(thread, keep_last=1)
        assert ids_of(thread.saver) == [thread.ids[-1], thread.ids[2]]
    with thread.saver.turn(addressed("thread")):
        looked_after(thread, keep_last=1)
        assert ids_of(thread.saver) == [thread.ids[-1]]


def namespaces_of(saver, thread_id="1"):
    found = saver.list({"configurable": {"thread_id": thread_id}})
    return {each.config["configurable"]["checkpoint_ns"] for each in found}


def nested_graph(saver, effects, **inner_options):
    """A graph with a subgraph that asks a person in its second step."""

    def ask(state):
        answer = interrupt("may I?")
        effects.append(answer)
        return {"log": [answer]}

    inner: Any = StateGraph(Log)
    inner.add_node("first", lambda _: {"log": ["first"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    outer: Any = StateGraph(Log)
    outer.add_node("inner", inner.compile(**inner_options))
    outer.add_edge(START, "inner")
    outer.add_edge("inner", END)
    return outer.compile(checkpointer=saver)


def test_a_paused_subgraph_goes_on_and_the_namespaces_of_earlier_calls_go(tmp_path):
    saver, effects = TurnCheckpointSaver(tmp_path, fsync=False), list[str]()
    graph, config = nested_graph(saver, effects), addressed("1")
    for n in range(5):
        graph.invoke({"log": [n]}, config)
        _upkeep.retain(saver.store, "1", Retention(keep_last=2))
        nested_graph(fresh(saver), effects).invoke(Command(resume=f"yes {n}"), config)
    _upkeep.retain(saver.store, "1", Retention(keep_last=2))
    assert effects == [f"yes {n}" for n in range(5)]
    assert len(namespaces_of(saver)) == 2  # the root's, and that of its last call, whose checkpoint is still there
    assert saver.verify() == []
    assert len([*(Path(saver.path) / "threads" / "t-1" / "g-1").glob("n-*")]) == 2


def test_a_subgraph_that_keeps_its_state_keeps_its_namespace(tmp_path):
    saver, effects = TurnCheckpointSaver(tmp_path, fsync=False), list[str]()
    graph, config = nested_graph(saver, effects, checkpointer=True), addressed("1")
    graph.invoke({"log": [0]}, config)
    graph.invoke(Command(resume="yes"), config)
    kept = namespaces_of(saver)
    for _ in range(5):
        graph.update_state(config, {"log": ["more"]}, as_node="inner")
    _upkeep.retain(saver.store, "1", Retention(keep_last=1))
    assert namespaces_of(saver) == kept == {"", "inner"}


def left_journal(saver: TurnCheckpointSaver, thread_id: str = "thread", *records: tuple[str, list[Any]]) -> str:
    """A turn that has ended and left a journal with these records."""
    opened = saver.turn(addressed(thread_id))
    with opened:
        assert opened.journal is not None
        for kind, fields in records:
            opened.journal.append(encode_record(saver.store.codec, kind, fields), sync=False)
    return opened.journal.path


def test_after_a_crash_what_a_recovery_looks_at_stays(tmp_path):
    thread = filled(tmp_path, KEPT_FOR_RECOVERY + 20)
    journal = left_journal(thread.saver, "thread", (GAP, []))
    looked_after(thread, keep_last=1)
    assert len(ids_of(thread.saver)) == KEPT_FOR_RECOVERY
    os.remove(journal)
    looked_after(thread, keep_last=1)
    assert len(ids_of(thread.saver)) == 1


def test_a_thread_that_is_gone_or_was_never_there_is_passed_over(tmp_path):
    thread = filled(tmp_path, 5)
    assert _upkeep.retain(thread.saver.store, "nobody", Retention(keep_last=1)) == 0
    thread.saver.delete_thread("thread")
    assert looked_after(thread, keep_last=1) == 0
    assert ids_of(thread.saver) == []


def test_a_turn_that_begins_between_choosing_and_removing_keeps_what_it_starts_from(tmp_path, monkeypatch):
    thread = filled(tmp_path, 10)
    real, plans = _upkeep._plan, []

    def plan(*args):
        plans.append(real(*args))
        if len(plans) == 1:
            thread.saver.turn(thread.at(4)).__enter__()
        return plans[-1]

    monkeypatch.setattr(_upkeep, "_plan", plan)
    looked_after(thread, keep_last=1)
    assert len(plans) == 2
    assert ids_of(thread.saver) == [thread.ids[-1], thread.ids[4]]


def test_copies_that_langgraph_makes_keep_the_retention(tmp_path):
    thread = filled(tmp_path, 0, keep_last=2)
    thread.saver = thread.saver.with_allowlist([("tests", "Thing")])
    for n in range(20):
        thread.put({"n": n})
    with thread.saver.turn(addressed("thread")):
        pass
    settled()
    assert len(ids_of(thread.saver)) == 2


@pytest.mark.parametrize("options", [{"keep_last": 0}, {"max_age": -1}, {"max_age": timedelta(0)}])
def test_a_retention_that_makes_no_sense_is_refused_where_it_is_given(tmp_path, options):
    with pytest.raises(ValueError, match="keep_last|max_age"):
        TurnCheckpointSaver(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


# --- beside the writes ---


def test_a_write_waits_for_no_retention_that_is_choosing(tmp_path, monkeypatch):
    """The choice reads checkpoints, and takes no lock."""
    chosen, go_on = threading.Event(), threading.Event()
    real = _upkeep._plan

    def plan(*args):
        chosen.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return real(*args)

    monkeypatch.setattr(_upkeep, "_plan", plan)
    thread = filled(tmp_path, 20, keep_last=2)
    try:
        assert chosen.wait(PATIENCE_SECONDS)
        for n in range(20):
            thread.put({"n": n})
    finally:
        go_on.set()
    settled()
    thread.assert_whole(fresh(thread.saver), ids_of(thread.saver)[::-1])


def test_a_retention_that_fails_fails_no_write_and_is_logged_once(tmp_path, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "no", "somewhere")

    monkeypatch.setattr(_upkeep, "_plan", refuse)
    thread = filled(tmp_path, 40, keep_last=2)
    settled()
    thread.assert_whole(fresh(thread.saver))
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.name for record in told] == ["langgraph_turncheckpoint.upkeep"]
    assert "'thread'" in told[0].getMessage()


def test_a_retention_that_fails_at_any_system_call_is_finished_by_the_next(tmp_path):
    template = filled(tmp_path / "counted", 6)
    names = calls_of(lambda: looked_after(template, TurnCheckpointSaver(template.saver.path), keep_last=2))
    assert len(names) > 50
    for position in range(0, len(names), 7):
        thread = filled(tmp_path / str(position), 6)
        with substituted(SystemCalls(once(position, errno.EIO))), contextlib.suppress(OSError):
            looked_after(thread, TurnCheckpointSaver(thread.saver.path), keep_last=2)
        looked_after(thread, keep_last=2)
        thread.assert_whole(fresh(thread.saver), template.ids[-2:])


def _goes_on(line: Line, path: str, count: int) -> None:
    """A turn that puts one checkpoint whenever it is told to."""
    thread = filled(Path(path), 3)
    with thread.saver.turn(addressed("thread")) as config:
        for n in range(count):
            line.hear()
            conf = {**config["configurable"], "checkpoint_id": thread.ids[-1]}
            thread.config = {"configurable": conf}
            thread.put({"messages": MESSAGES[: 43 + n], "n": n})
            line.tell(thread.ids[-1])
        line.hear()
    thread.assert_whole(fresh(thread.saver), ids_of(thread.saver)[::-1])
    line.tell("done")


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
def test_while_another_process_runs_a_turn_it_loses_nothing_that_it_builds_on(tmp_path):
    with Child(_goes_on, str(tmp_path), 30) as child:
        saver, newest = TurnCheckpointSaver(tmp_path, fsync=False), []
        for n in range(30):
            child.tell("put")
            newest.append(child.hear())
            _upkeep.retain(saver.store, "thread", Retention(keep_last=1 + n % 3))
            assert ids_of(saver)[0] == newest[-1]
        assert len(ids_of(saver)) <= 4  # with what a rollback goes back to
        child.tell("end")
        assert child.hear() == "done"


def _killed_at(line: Line, path: str, position: int) -> None:
    """A retention whose process dies before the system call at this position."""

    def fault(at: int, _: str) -> int | None:
        if at == position:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    saver = TurnCheckpointSaver(path)
    with substituted(SystemCalls(fault)):
        _upkeep.retain(saver.store, "thread", Retention(keep_last=2))
    line.tell("survived")


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
def test_a_process_killed_in_its_retention_leaves_whole_checkpoints_and_the_next_one_finishes(tmp_path):
    counted = filled(tmp_path / "counted", 8)
    names = calls_of(lambda: looked_after(counted, TurnCheckpointSaver(counted.saver.path), keep_last=2))
    changing = [at for at, name in enumerate(names) if name in {"write", "replace", "unlink", "fsync", "rmdir"}]
    for position in changing[:: max(1, len(changing) // 12)]:
        thread = filled(tmp_path / str(position), 8)
        with Child(_killed_at, thread.saver.path, position) as child:
            assert child.end() == -signal.SIGKILL
        remaining = ids_of(thread.saver)
        assert remaining[:2] == thread.ids[:-3:-1]
        thread.assert_whole(fresh(thread.saver), remaining)
        assert {found.kind for found in thread.saver.verify()} <= {"temporary", "orphan"}
        report = thread.saver.sweep()
        assert report.problems == ()
        thread.assert_whole(fresh(thread.saver), remaining)
        thread.put({"messages": MESSAGES[:80], "n": 80})
        looked_after(thread, keep_last=2)
        thread.assert_whole(fresh(thread.saver), thread.ids[-2:])
        assert thread.saver.verify() == []


def program(body: str, tmp_path: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program of its own, in which `saver` keeps two checkpoints and `thread` puts some."""
    head = (
        "import os, sys, threading\n"
        "from langgraph_turncheckpoint import TurnCheckpointSaver, _housekeeping\n"
        "from tests.contract.storing import Thread, addressed\n"
        f"saver = TurnCheckpointSaver({str(tmp_path)!r}, keep_last=2, fsync=False)\n"
        "thread = Thread(saver)\n"
    )
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", head + body],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_SECONDS,
        check=False,
        **options,
    )


def test_a_program_ends_in_order_whatever_retention_is_due(tmp_path):
    done = program("for n in range(100): thread.put({'n': [n] * 1000})\n", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = [*TurnCheckpointSaver(tmp_path).list(addressed("thread"))]
    assert found[0].checkpoint["channel_values"] == {"n": [99] * 1000}
    assert TurnCheckpointSaver(tmp_path).verify() == []


def test_a_program_ends_although_its_retention_hangs(tmp_path):
    body = (
        "_housekeeping.EXIT_SECONDS = 0.1\n"
        "begun = threading.Event()\n"
        "def hang(*args, **kwargs):\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "saver.store.caretaker._retain = hang\n"
        "thread.put({'n': 1})\n"
        "assert begun.wait(30)\n"
    )
    done = program(body, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_begins_without_the_thread_of_its_parent(tmp_path):
    body = (
        "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"  # a fork with threads is the point
        "for n in range(30): thread.put({'n': n})\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    names = [t.name for t in threading.enumerate()]\n"
        "    for n in range(30): thread.put({'n': 100 + n})\n"
        "    with saver.turn(addressed('thread')): pass\n"
        "    is_done = _housekeeping.drain(30) and len([*saver.list(None)]) == 2 and len(names) == 1\n"
        "    os._exit(0 if is_done else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = program(body, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_thread_ends_when_it_has_nothing_to_do(tmp_path, monkeypatch):
    worker = _housekeeping._Worker()
    monkeypatch.setattr(_housekeeping, "IDLE_SECONDS", 0.001)
    monkeypatch.setattr(_housekeeping, "_worker", worker)
    for _ in range(2):
        thread = filled(tmp_path / str(_), 20, keep_last=2)
        working = worker._thread
        settled()
        if working is not None:
            working.join(PATIENCE_SECONDS)
        assert worker._thread is None
        assert len(ids_of(thread.saver)) < 20


# --- sweeping ---

KINDS = ("temporaries", "remains", "tickets", "journals", "inbox_items")


def counts(report: Any) -> dict[str, int]:
    return {kind: getattr(report, kind) for kind in KINDS if getattr(report, kind)}


def test_a_clean_directory_is_left_as_it_is(tmp_path):
    thread = filled(tmp_path, 5)
    thread.saver.inbox("thread").post("later")
    before = files_below(tmp_path)
    for dry_run in (True, False):
        report = thread.saver.sweep(max_age=DAY, dry_run=dry_run)
        assert (counts(report), report.threads, report.size_bytes, report.problems) == ({}, (), 0, ())
        assert files_below(tmp_path) == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_directory_that_is_not_there_is_clean(tmp_path, dry_run):
    report = TurnCheckpointSaver(tmp_path / "none").sweep(max_age=1, dry_run=dry_run)
    assert (counts(report), report.threads, report.problems) == ({}, (), ())
    assert not (tmp_path / "none").exists()


def littered(path: Path) -> Thread:
    """A thread with one of each kind of litter."""
    thread = filled(path, 5)
    saver = thread.saver
    left_journal(saver, "thread", (GAP, []))  # a later one speaks for it
    left_journal(saver, "thread", (GAP, []), (ENDED, ["completed", None]))
    Path(left_journal(saver, "thread", (GAP, []))).write_bytes(b"")  # blank
    saver.inbox("thread").post(HumanMessage("delivered", id="m1"))
    saver.inbox("thread").post(HumanMessage("waiting", id="m2"))
    thread.put({"messages": [HumanMessage("delivered", id="m1")]})
    generation, stored = Path(saver.store.generation_dir("thread")), named(path, ".ckpt")[0]
    stored.with_suffix(".early").write_bytes(stored.read_bytes())
    Path(f"{stored}.0123456789abcdef.tmp").write_bytes(b"half")
    (generation / "turns.tmp").write_bytes(b"half")
    (generation / "inbox" / "i-0000000000000001.msg.0.tmp").write_bytes(b"half")
    Path(ticket_path(str(generation), 7)).touch()
    (generation.parent / "g-99").mkdir()
    (generation.parent / "g-99" / "turns").write_bytes(b"of a copy that was killed")
    return thread


LITTER = {"temporaries": 3, "remains": 2, "tickets": 1, "journals": 3, "inbox_items": 1}


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_all_litter_goes_and_a_dry_run_tells_of_the_same(tmp_path, colour):
    thread = littered(tmp_path)
    saver = fresh(thread.saver)
    before = files_below(tmp_path)
    told = saver.sweep(dry_run=True) if colour == "sync" else await saver.asweep(dry_run=True)
    assert counts(told) == LITTER
    assert files_below(tmp_path) == before
    report = saver.sweep() if colour == "sync" else await saver.asweep()
    assert counts(report) == LITTER
    assert report.problems == ()
    assert report.size_bytes == told.size_bytes > 0
    after = files_below(tmp_path)
    assert after.items() <= before.items() | {(k, after[k]) for k in after if k.endswith("turn")}
    assert saver.verify() == []
    thread.assert_whole(fresh(saver))
    assert [message.id for message in saver.inbox("thread").pending()] == ["m2"]
    assert counts(saver.sweep()) == {}


def test_a_removal_that_was_cut_short_is_finished(tmp_path):
    thread = filled(tmp_path, 6)
    names = calls_of(lambda: fresh(thread.saver, fsync=True).sweep())
    assert "unlink" not in names
    last = named(tmp_path, ".ckpt")[0]
    last.rename(last.with_suffix(".pages"))
    assert [found.kind for found in thread.saver.verify()] == ["orphan"]
    assert counts(thread.saver.sweep(dry_run=True)) == {"remains": 1}
    assert counts(thread.saver.sweep()) == {"remains": 1}
    assert thread.saver.verify() == []
    thread.assert_whole(fresh(thread.saver), thread.ids[1:])


def test_journals_of_a_turn_that_left_something_behind_stay(tmp_path):
    thread = filled(tmp_path, 3)
    kept = [
        left_journal(thread.saver, "thread", (GAP, []), (ENDED, ["completed", None]), (GAP, [])),
        left_journal(thread.saver, "thread", (GAP, []), (ENDED, ["failed", "error"])),
    ]
    assert counts(thread.saver.sweep()) == {}
    assert all(map(os.path.exists, kept))


def test_nothing_of_a_running_turn_goes_however_old_its_thread(tmp_path):
    thread = filled(tmp_path, 3)
    older = left_journal(thread.saver, "thread", (GAP, []))
    opened = thread.saver.turn(addressed("thread"))
    thread.saver.inbox("thread").post(HumanMessage("x", id="m1"))
    with opened:
        assert opened.journal is not None
        opened.journal.append(encode_record(thread.saver.store.codec, ENDED, ["completed", None]), sync=False)
        later = time.time_ns() + int(2 * DAY * 1e9)
        report = sweep(fresh(thread.saver).store, max_age=DAY, dry_run=False, clock_ns=lambda: later)
        assert (report.threads, counts(report)) == ((), {})
        assert os.path.exists(older)
        assert thread.saver.is_busy("thread")
    assert fresh(thread.saver).sweep().journals == 2


def old_thread(path: Path, thread_id: str, days: float) -> Thread:
    """A thread whose only checkpoint, put outside any turn, was made so long ago."""
    thread = Thread(TurnCheckpointSaver(path, fsync=False), thread_id)
    checkpoint = thread.next({"messages": MESSAGES[:3]})
    checkpoint["ts"] = (datetime.now(timezone.utc) - timedelta(days=days)).isoformat()
    thread.put_checkpoint(checkpoint)
    return thread


def test_threads_that_nobody_has_touched_for_long_are_deleted_with_a_tombstone(tmp_path):
    old, young = old_thread(tmp_path, "old", 31), old_thread(tmp_path, "young", 29)
    saver = old.saver
    told = saver.sweep(max_age=timedelta(days=30), dry_run=True)
    assert (told.threads, saver.thread_ids()) == (("old",), ["old", "young"])
    report = saver.sweep(max_age=timedelta(days=30))
    assert report.threads == ("old",)
    assert report.size_bytes == told.size_bytes > 0
    assert saver.thread_ids() == ["young"]
    young.assert_whole(fresh(saver))
    with pytest.raises(StaleTurnError):
        old.put({"messages": []})  # it builds on what was deleted
    assert saver.sweep(max_age=timedelta(days=30)).threads == ()
    fresh_thread = Thread(saver, "old")
    fresh_thread.put({"messages": MESSAGES[:1]}, number=10**9)
    fresh_thread.assert_whole(fresh(saver))


@pytest.mark.parametrize("touch", ["turn", "message", "subgraph"])
def test_a_turn_a_message_and_a_subgraph_touch_a_thread(tmp_path, touch):
    thread = old_thread(tmp_path, "1", 31)
    if touch == "turn":
        with thread.saver.turn(addressed("1")):
            pass
    elif touch == "message":
        thread.saver.inbox("1").post("hello?")
    else:
        Thread(thread.saver, "1", "sub").put({"n": 1})
    assert thread.saver.sweep(max_age=DAY).threads == ()
    later = time.time_ns() + int(2 * DAY * 1e9)
    assert sweep(thread.saver.store, max_age=DAY, dry_run=False, clock_ns=lambda: later).threads == ("1",)


def test_a_turn_that_begins_between_the_look_and_the_lock_keeps_its_thread(tmp_path, monkeypatch):
    thread = old_thread(tmp_path, "1", 31)
    real = thread.saver.store.delete_thread

    def delete_thread(thread_id, **options):
        thread.saver.turn(addressed("1")).__enter__()
        return real(thread_id, **options)

    monkeypatch.setattr(thread.saver.store, "delete_thread", delete_thread)
    assert thread.saver.sweep(max_age=DAY).threads == ()
    thread.assert_whole(fresh(thread.saver))


def _holds_turn(line: Line, path: str) -> None:
    with TurnCheckpointSaver(path).turn(addressed("1")):
        line.tell("open")
        line.hear()


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
def test_a_turn_of_another_process_keeps_its_thread_until_that_process_dies(tmp_path):
    old_thread(tmp_path, "1", 31)
    store, later = TurnCheckpointSaver(tmp_path).store, time.time_ns() + int(2 * DAY * 1e9)

    def swept():
        return sweep(store, max_age=DAY, dry_run=False, clock_ns=lambda: later).threads

    with Child(_holds_turn, str(tmp_path)) as child:
        assert child.hear() == "open"
        assert swept() == ()
        child.kill()
        assert swept() == ("1",)


def test_a_store_without_its_key_is_not_swept_of_what_it_cannot_read(tmp_path):
    def opened(key: bytes) -> TurnCheckpointSaver:
        serde = EncryptedSerializer.from_pycryptodome_aes(key=key)
        return TurnCheckpointSaver(tmp_path, serde=serde, fsync=False)

    pytest.importorskip("Crypto")
    thread = Thread(opened(b"0" * 16), "1")
    thread.put({"messages": [HumanMessage("x", id="m")]})
    thread.saver.inbox("1").post(HumanMessage("x", id="m"))
    journal = left_journal(thread.saver, "1", (GAP, []), (ENDED, ["completed", None]))
    blind = opened(b"1" * 16).sweep()
    assert counts(blind) == {}
    assert os.path.exists(journal)
    assert counts(thread.saver.sweep()) == {"journals": 1, "inbox_items": 1}


def test_what_cannot_be_swept_is_told_and_the_rest_is_done(tmp_path):
    filled(tmp_path, 2, "a")
    thread = filled(tmp_path, 2, "b")
    for name in ("a", "b"):
        Path(ticket_path(thread.saver.store.generation_dir(name), 3)).touch()
    lost = Path(thread.saver.store.generation_dir("a")).parent
    lost.rename(lost.parent / f"t_{'0' * 64}")
    report = thread.saver.sweep()
    assert counts(report) == {"tickets": 1}
    assert len(report.problems) == 1
    assert report.problems[0].startswith(str(tmp_path))


def test_a_sweep_that_is_refused_at_any_system_call_tells_so_and_loses_nothing(tmp_path):
    names = calls_of(littered(tmp_path / "counted").saver.sweep)
    for position in range(0, len(names), 11):
        thread = littered(tmp_path / str(position))
        # Only the very first look at the directory raises.
        with substituted(SystemCalls(once(position, errno.EACCES))), contextlib.suppress(OSError):
            fresh(thread.saver).sweep(max_age=DAY)
        fresh(thread.saver).sweep()
        thread.assert_whole(fresh(thread.saver))
        assert [message.id for message in thread.saver.inbox("thread").pending()] == ["m2"]
        assert fresh(thread.saver).verify() == []


# --- counting ---


async def test_stats_count_journals_messages_and_busy_threads(tmp_path):
    thread = filled(tmp_path, 4)
    saver = thread.saver
    left_journal(saver, "thread", (GAP, []))
    saver.inbox("thread").post("one")
    saver.inbox("other").post("two")
    (Path(saver.store.generation_dir("thread")) / "inbox" / "i-0000000000000001.msg.0.tmp").write_bytes(b"half")
    with saver.turn(addressed("thread")):
        found = saver.stats()
        assert (found.threads, found.checkpoints, found.journals, found.inbox_items, found.busy) == (1, 4, 2, 2, 1)
    assert await saver.astats() == saver.stats()
    assert saver.stats().busy == 0
    assert saver.stats().files == len(files_below(tmp_path))


def test_a_journal_path_names_its_turn(tmp_path):
    saver = filled(tmp_path, 1).saver
    opened = saver.turn(addressed("thread"))
    with opened:
        assert opened.journal is not None
        assert opened.journal.path == journal_path(saver.store.generation_dir("thread"), opened.token)


def _dies_in_slow(line: Line, path: str) -> None:
    """Some turns, and one whose process dies in its second tool, after the first has given its result."""
    place = Place("turn", "sync", Path(path))
    ending = Ending("kill", after=lambda: place.journals_hold("fast gave"))
    agent = Agent(place, WAYS["attach"], {"go": calls("fast", "slow")}, endings={"slow": ending})
    for n in range(14):
        agent.say(f"hello {n}")
    line.tell("ready")
    agent.say("go")


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
@pytest.mark.parametrize("then", ["a new message", "going on"])
def test_a_guarded_run_that_died_recovers_the_same_after_retention_and_sweep(tmp_path, then):
    """G2, G6: nothing that a recovery goes by is taken away from it."""
    seen = []
    for is_looked_after in (False, True):
        path = tmp_path / str(is_looked_after)
        path.mkdir()
        with Child(_dies_in_slow, str(path)) as child:
            assert child.hear() == "ready"
            assert child.end() == -signal.SIGKILL
        place = Place("turn", "sync", path)
        agent = Agent(place, WAYS["attach"], {"go": calls("fast", "slow")})
        if is_looked_after:
            store = TurnCheckpointSaver(path / "store", fsync=False).store
            assert _upkeep.retain(store, "t", Retention(keep_last=1, max_age=1e-6)) > 0
            assert counts(TurnCheckpointSaver(path / "store", fsync=False).sweep(max_age=DAY)) == {}
        told = agent.say("and now?") if then == "a new message" else agent.go_on(None)
        seen.append([(message.type, message.text, getattr(message, "status", None)) for message in told])
        place.close()
    assert seen[0] == seen[1]
    assert ("tool", "fast gave", "success") in seen[0]
