"""Processes that are stopped, late, forked or at the same place at the same time: who may write, and who is refused."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from langgraph_turncheckpoint import StaleTurnError, TurnCheckpointSaver, _commits, _files
from tests.crash.processes import PATIENCE_SECONDS, Child, Line, answers, rounds

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and stopped by signals")

MAIN: Any = {"configurable": {"thread_id": "main"}}
#: What takes longer hangs; measured on an idle machine, each such operation takes some milliseconds.
HANG_SECONDS = 5.0
ROOT: Any = {"configurable": {"thread_id": "main", "checkpoint_ns": ""}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Watched(TurnCheckpointSaver):
    """Remembers the outcome of each put and put_writes: the name of what it raised, or `ok`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.outcomes: list[tuple[str, str]] = []
        self._ended = threading.Condition()

    def put(self, *args: Any) -> Any:
        return self._watch("put", super().put, *args)

    def put_writes(self, *args: Any) -> None:
        self._watch("put_writes", super().put_writes, *args)

    def wait_for_writes(self, count: int) -> None:
        """Wait until so many have ended, and forget them."""
        with self._ended:
            assert self._ended.wait_for(lambda: len(self.outcomes) >= count, PATIENCE_SECONDS)
            self.outcomes.clear()

    def _watch(self, name: str, operation: Any, *args: Any) -> Any:
        outcome = "ok"
        try:
            return operation(*args)
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            with self._ended:
                self.outcomes.append((name, outcome))
                self._ended.notify_all()


def idle(state: Log) -> Log:
    """A node that does nothing."""
    return {}


def one_node(saver: Any, node: Any, *, nested: bool = False) -> Any:
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("node", one_node(None, node) if nested else node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=saver)


def assert_no_fork(directory: Path) -> None:
    """No checkpoint has two children, and each namespace has one root."""
    found = list(TurnCheckpointSaver(directory).list(MAIN))
    parents: Counter[tuple[str, str | None]] = Counter()
    for each in found:
        namespace = each.config["configurable"]["checkpoint_ns"]
        parent = each.parent_config["configurable"]["checkpoint_id"] if each.parent_config else None
        parents[namespace, parent] += 1
    assert set(parents.values()) <= {1}, parents


def run_and_wait_in_the_node(
    line: Line,
    directory: Path,
    name: str,
    *,
    colour: str = "sync",
    durability: Any = "async",
    nested: bool = False,
    at: Any = None,
    settled: bool = True,
) -> None:
    """Runs a graph whose node says that it is reached and waits; then says how the run and its writes ended.

    A settled one says so when all earlier writes have ended: under durability `async` they may still be going on.
    """
    saver = Watched(directory)
    # Of the graph and of each subgraph: the input, the writes of its start, and the state its node runs on.
    writes_before_the_node = 0 if durability == "exit" else 6 if nested else 3

    def wait(state: Log) -> Log:
        if settled:
            saver.wait_for_writes(writes_before_the_node)
        line.tell("in the node")
        line.hear()
        return {"log": [f"{name} finished"]}

    async def await_(state: Log) -> Log:
        return await asyncio.to_thread(wait, state)

    try:
        if colour == "sync":
            graph = one_node(saver, wait, nested=nested)
            graph.invoke({"log": [name]} if at is None else None, at or MAIN, durability=durability)
        else:
            graph = one_node(saver, await_, nested=nested)
            run = graph.ainvoke({"log": [name]} if at is None else None, at or MAIN, durability=durability)
            asyncio.run(run)
        ending = "finished"
    except StaleTurnError as error:
        ending = "refused" if error.held < error.current else str(error)
    line.tell((ending, saver.outcomes))


def finish_a_turn(line: Line, directory: Path, name: str) -> None:
    graph = one_node(TurnCheckpointSaver(directory), lambda state: {"log": [f"{name} finished"]})
    line.tell(graph.invoke({"log": [name]}, MAIN)["log"])


@pytest.mark.parametrize("nested", [False, True], ids=["root", "subgraph"])
@pytest.mark.parametrize(
    ("colour", "durability"),
    [("sync", "sync"), ("sync", "async"), ("sync", "exit"), ("async", "async"), ("async", "exit")],
)
def test_a_stopped_process_that_wakes_after_another_finished_a_turn_is_refused(tmp_path, colour, durability, nested):
    """C25: SIGSTOP A in a node, B finishes a turn, SIGCONT A: its put and put_writes raise, the head is B's."""
    answers(finish_a_turn, tmp_path, "earlier")
    with Child(run_and_wait_in_the_node, tmp_path, "A", colour=colour, durability=durability, nested=nested) as a:
        assert a.hear() == "in the node"
        a.stop()
        log = answers(finish_a_turn, tmp_path, "B")
        a.tell("go on")
        a.wake()
        ending, outcomes = a.hear()
        assert a.end() == 0
    assert ending == "refused"
    assert {outcome for _, outcome in outcomes} == {"StaleTurnError"}
    assert {name for name, _ in outcomes} >= ({"put"} if durability == "exit" else {"put_writes", "put"})
    state = one_node(TurnCheckpointSaver(tmp_path), idle).get_state(MAIN)
    assert state.values["log"] == log
    assert log[-2:] == ["B", "B finished"]
    assert "A finished" not in log
    assert state.next == ()
    assert_no_fork(tmp_path)


def start_together(children: list[Child]) -> list[tuple[str, Any]]:
    """Lets children run that first wait to be told; returns the ending of each, in their order.

    A child says that it is in its node, or that it was refused before. Only when each has said one of the two
    may the nodes finish, so the runs overlap whatever the scheduler does.
    """
    for child in children:
        child.tell("start")
    said = [child.hear() for child in children]
    for child, word in zip(children, said, strict=True):
        if word == "in the node":
            child.tell("go on")
    endings = [child.hear() if word == "in the node" else word for child, word in zip(children, said, strict=True)]
    assert [child.end() for child in children] == [0] * len(children)
    return endings


def wait_and_run(line: Line, directory: Path, name: str, durability: Any, at: Any = None) -> None:
    assert line.hear() == "start"
    run_and_wait_in_the_node(line, directory, name, durability=durability, at=at, settled=False)


def test_of_two_runs_started_from_one_head_at_once_exactly_one_finishes(tmp_path):
    """C27: two processes, the same moment, each durability mode; the other is refused and there is no fork."""
    answers(finish_a_turn, tmp_path, "earlier")
    for number in range(rounds(24, full=200)):
        durability = ("sync", "async", "exit")[number % 3]
        names = [f"left-{number}", f"right-{number}"]
        endings = start_together([Child(wait_and_run, tmp_path, name, durability) for name in names])
        assert sorted(ending for ending, _ in endings) == ["finished", "refused"], (number, durability, endings)
        log = one_node(TurnCheckpointSaver(tmp_path), idle).get_state(MAIN).values["log"]
        winner = names[[ending for ending, _ in endings].index("finished")]
        assert log[-1] == f"{winner} finished"
        assert len([entry for entry in log if entry.endswith(" finished")]) == number + 2
    assert_no_fork(tmp_path)


def test_a_run_that_addresses_a_checkpoint_by_id_forks_it(tmp_path):
    """C27, by id: two processes run from the same checkpoint, one after the other; both finish."""
    answers(finish_a_turn, tmp_path, "earlier")
    saver = TurnCheckpointSaver(tmp_path)
    fork_at = next(each.config for each in saver.list(MAIN) if (each.metadata or {}).get("step") == 0)
    for name in ("one", "two"):
        with Child(wait_and_run, tmp_path, name, "sync", fork_at) as child:
            assert start_together([child])[0][0] == "finished"
    children = [
        each
        for each in saver.list(MAIN)
        if each.parent_config
        and each.parent_config["configurable"]["checkpoint_id"] == fork_at["configurable"]["checkpoint_id"]
    ]
    assert len(children) == 3


def update_state(line: Line, directory: Path, name: str, at: Any) -> None:
    """Updates the state, reading and putting only when told, so that two of these do so at the same moment."""
    paused: list[str] = []

    class Pausing(TurnCheckpointSaver):
        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            if not paused:
                paused.append("here")
                line.tell("read")
                line.hear()
            return found

    line.hear()
    graph = one_node(Pausing(directory), idle)
    try:
        graph.update_state(at, {"log": [name]}, as_node="node")
        line.tell("finished")
    except StaleTurnError as error:
        line.tell(str(error) if error.held else "refused")


def update_together(directory: Path, at: Any, names: list[str]) -> list[str]:
    children = [Child(update_state, directory, name, at) for name in names]
    for said in (None, "read"):
        for child in children:
            assert said is None or child.hear() == said
        for child in children:
            child.tell("go on")
    endings = [child.hear() for child in children]
    assert [child.end() for child in children] == [0] * len(children)
    return endings


def test_of_two_update_states_on_one_head_at_once_exactly_one_succeeds(tmp_path):
    """C27: both have read the same head before either puts."""
    answers(finish_a_turn, tmp_path, "earlier")
    for number in range(rounds(24, full=200)):
        names = [f"left-{number}", f"right-{number}"]
        endings = update_together(tmp_path, MAIN, names)
        assert sorted(endings) == ["finished", "refused"]
        log = one_node(TurnCheckpointSaver(tmp_path), idle).get_state(MAIN).values["log"]
        assert log[-1] == names[endings.index("finished")]
        assert len(log) == number + 3
    assert_no_fork(tmp_path)


def test_two_update_states_that_address_a_checkpoint_by_id_both_succeed(tmp_path):
    """C27: a fork that was asked for is allowed."""
    answers(finish_a_turn, tmp_path, "earlier")
    head = TurnCheckpointSaver(tmp_path).get_tuple(MAIN)
    assert head is not None
    at = {"configurable": {**ROOT["configurable"], "checkpoint_id": head.checkpoint["id"]}}
    assert update_together(tmp_path, at, ["left", "right"]) == ["finished", "finished"]
    found = [each.checkpoint["channel_values"]["log"][-1] for each in TurnCheckpointSaver(tmp_path).list(MAIN, limit=2)]
    assert sorted(found) == ["left", "right"]


def write_late(line: Line, directory: Path, at: Any, method: str) -> None:
    """A put or a put_writes on a checkpoint that this process was told about."""
    saver = TurnCheckpointSaver(directory)
    try:
        if method == "put":
            saver.put(at, empty_checkpoint(), {}, {})
        else:
            saver.put_writes(at, [("log", "late")], "task")
    except StaleTurnError:
        line.tell("refused")
    else:
        line.tell("stored")


@pytest.mark.parametrize("method", ["put", "put_writes"])
def test_a_late_write_of_another_process_does_not_bring_a_deleted_thread_back(tmp_path, method):
    """C28: put, delete, then the old put or put_writes from elsewhere: it stays deleted; a new turn works."""
    saver = TurnCheckpointSaver(tmp_path)
    at = saver.put(ROOT, empty_checkpoint(), {}, {})
    assert answers(write_late, tmp_path, at, method) == "stored"
    saver.delete_thread("main")
    assert answers(write_late, tmp_path, at, method) == "refused"
    assert saver.thread_ids() == []
    assert list(saver.list(MAIN)) == []
    assert answers(finish_a_turn, tmp_path, "new") == ["new", "new finished"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_whose_thread_is_deleted_by_another_process_leaves_nothing_and_a_new_one_works(tmp_path, durability):
    """C28 with a run: deleted while its node runs; the run is refused, the thread stays gone until a new turn."""
    with Child(run_and_wait_in_the_node, tmp_path, "A", durability=durability) as a:
        assert a.hear() == "in the node"
        saver = TurnCheckpointSaver(tmp_path)
        saver.delete_thread("main")
        a.tell("go on")
        ending, outcomes = a.hear()
        assert a.end() == 0
    assert ending == "refused"
    assert {outcome for _, outcome in outcomes} == {"StaleTurnError"}
    assert saver.thread_ids() == []
    assert answers(finish_a_turn, tmp_path, "new") == ["new", "new finished"]


def test_a_run_survives_a_prune_by_another_process(tmp_path):
    """C31: `prune` while a node runs takes nothing that the run builds on, and the run finishes."""
    for number in range(4):
        answers(finish_a_turn, tmp_path, f"earlier-{number}")
    with Child(run_and_wait_in_the_node, tmp_path, "A") as a:
        assert a.hear() == "in the node"
        saver = TurnCheckpointSaver(tmp_path)
        saver.prune(["main"])
        a.tell("go on")
        ending, outcomes = a.hear()
        assert a.end() == 0
    assert ending == "finished"
    assert {outcome for _, outcome in outcomes} == {"ok"}
    log = one_node(saver, idle).get_state(MAIN).values["log"]
    assert log == [w for n in range(4) for w in (f"earlier-{n}", f"earlier-{n} finished")] + ["A", "A finished"]
    assert saver.verify() == []


@pytest.mark.parametrize("by_id", [False, True])
def test_an_update_of_another_process_during_a_run_takes_over(tmp_path, by_id):
    """C31: `update_state` opens a turn of its own, so the run is refused and the update is the head."""
    answers(finish_a_turn, tmp_path, "earlier")
    head = TurnCheckpointSaver(tmp_path).get_tuple(MAIN)
    assert head is not None
    with Child(run_and_wait_in_the_node, tmp_path, "A") as a:
        assert a.hear() == "in the node"
        graph = one_node(TurnCheckpointSaver(tmp_path), idle)
        at: Any = {"configurable": {**ROOT["configurable"], "checkpoint_id": head.checkpoint["id"]}} if by_id else MAIN
        graph.update_state(at, {"log": ["edited"]}, as_node="node")
        a.tell("go on")
        assert a.hear()[0] == "refused"
        assert a.end() == 0
    expected = ["earlier", "earlier finished", *([] if by_id else ["A"]), "edited"]
    assert graph.get_state(MAIN).values["log"] == expected


def write_for_tasks(line: Line, directory: Path, at: Any, tasks: list[str]) -> None:
    saver = TurnCheckpointSaver(directory)
    line.tell("ready")
    line.hear()
    with ThreadPoolExecutor(len(tasks)) as pool:
        list(pool.map(lambda task: saver.put_writes(at, [("log", task), ("log", "too")], task), tasks))
    line.tell("done")


@pytest.mark.parametrize("before_its_checkpoint", [False, True])
def test_four_processes_with_four_threads_write_for_sixteen_tasks_of_one_checkpoint(tmp_path, before_its_checkpoint):
    """C22 in four processes: all sixteen task ids are readable, each with its writes."""
    saver, checkpoint = TurnCheckpointSaver(tmp_path), empty_checkpoint()
    at: Any = {"configurable": {**ROOT["configurable"], "checkpoint_id": checkpoint["id"]}}
    if not before_its_checkpoint:
        saver.put(ROOT, checkpoint, {}, {})
    tasks = [f"task-{number:02}" for number in range(16)]
    children = [Child(write_for_tasks, tmp_path, at, tasks[start::4]) for start in range(4)]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.tell("go")
    assert [child.hear() for child in children] == ["done"] * 4
    assert [child.end() for child in children] == [0] * 4
    if before_its_checkpoint:
        assert saver.get_tuple(at) is None
        saver.put(ROOT, checkpoint, {}, {})
    found = saver.get_tuple(MAIN)
    assert found is not None
    assert found.pending_writes == [(task, "log", value) for task in tasks for value in (task, "too")]
    assert saver.verify() == []


def attempt(operation: Callable[[], str]) -> str:
    """What the operation returns, or `hangs`. Only what hangs is waited for."""
    try:
        return ThreadPoolExecutor(1).submit(operation).result(HANG_SECONDS)
    except TimeoutError:
        return "hangs"


def fork_while(enter: Any, line: Line, in_child: Callable[[], str], in_parent: Callable[[], str]) -> None:
    """Forks while another thread is inside `enter(reached, leave)`; tells how the child and then the parent fared.

    The child lives on while the parent works.
    """
    reached, leave = threading.Event(), threading.Event()
    other = threading.Thread(target=enter, args=(reached, leave), daemon=True)
    other.start()
    assert reached.wait(PATIENCE_SECONDS)
    said, says = os.pipe()
    with warnings.catch_warnings():
        # An app forks with threads when it uses `multiprocessing`; Python 3.12 and later warn of it.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.write(says, attempt(in_child).encode())
        signal.pause()
    leave.set()
    other.join(HANG_SECONDS)
    line.tell((os.read(said, 100).decode(), attempt(in_parent)))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os._exit(0)


def put_one(saver: TurnCheckpointSaver, thread_id: str) -> str:
    checkpoint = empty_checkpoint()
    at = saver.put({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}, checkpoint, {}, {})
    saver.put_writes(at, [("log", 1)], "task")
    asyncio.run(saver.aput_writes(at, [("log", 2)], "other task"))
    found = saver.get_tuple({"configurable": {"thread_id": thread_id}})
    assert found is not None
    assert found.checkpoint["id"] == checkpoint["id"]
    assert len(found.pending_writes or []) == 2
    return "works"


def fork_during_a_commit(line: Line, directory: Path, child_thread: str) -> None:
    saver, real = TurnCheckpointSaver(directory), _files.replace_file

    def enter(reached: threading.Event, leave: threading.Event) -> None:
        def slow(*args: Any, **kwargs: Any) -> None:
            if threading.current_thread() is other:
                reached.set()
                leave.wait()
            real(*args, **kwargs)

        other = threading.current_thread()
        _files.replace_file = slow
        saver.put(ROOT, empty_checkpoint(), {}, {})

    fork_while(enter, line, lambda: put_one(saver, child_thread), lambda: put_one(saver, "main"))


def test_a_fork_in_the_middle_of_a_commit_leaves_both_processes_able_to_write(tmp_path):
    """S9: another thread commits while the process forks; the child writes elsewhere, the parent goes on.

    The child has a copy of the lock's descriptor. The lock must be given up all the same when the commit ends,
    and not only when the child does.
    """
    assert answers(fork_during_a_commit, tmp_path, "other") == ("works", "works")


def fork_while_pages_are_remembered(line: Line, directory: Path) -> None:
    saver = TurnCheckpointSaver(directory)
    put_one(saver, "main")

    def enter(reached: threading.Event, leave: threading.Event) -> None:
        # Where a thread is for a moment of every put: it looks up what the parent checkpoint has stored.
        with saver._store._known._guard:
            reached.set()
            leave.wait()

    fork_while(enter, line, lambda: put_one(saver, "main"), lambda: put_one(saver, "main"))


def test_a_fork_in_the_middle_of_a_look_up_leaves_both_processes_able_to_write(tmp_path):
    """S9: no lock of a thread that does not exist in the child is waited for there."""
    assert answers(fork_while_pages_are_remembered, tmp_path) == ("works", "works")


def fork_after_use(line: Line, directory: Path) -> None:
    saver = TurnCheckpointSaver(directory)
    put_one(saver, "main")

    def enter(reached: threading.Event, leave: threading.Event) -> None:
        reached.set()

    fork_while(enter, line, lambda: put_one(saver, "main"), lambda: put_one(saver, "main"))


def test_a_saver_works_on_in_a_forked_child_and_in_its_parent(tmp_path):
    """S9: built and used before the fork, async methods included."""
    assert answers(fork_after_use, tmp_path) == ("works", "works")
    assert TurnCheckpointSaver(tmp_path).verify() == []


def waits_in(frame: FrameType | None, file: str) -> bool:
    """Whether a thread with this frame is in a function of the file, or in what that has called."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame is not None


def interrupt_a_waiting_writer(line: Line, directory: Path) -> None:
    """One thread commits, the main thread waits in line behind it and gets Ctrl-C; then everybody else goes on."""
    saver = TurnCheckpointSaver(directory)
    at = saver.put(ROOT, empty_checkpoint(), {}, {})
    real, main = _files.append_file, threading.main_thread().ident
    reached, leave = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread() is leader:
            reached.set()
            leave.wait()
        real(*args, **kwargs)

    def interrupt() -> None:
        while not waits_in(sys._current_frames()[main], _commits.__file__):  # type: ignore[index]
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    _files.append_file = slow
    leader = threading.Thread(target=saver.put_writes, args=(at, [("log", "leader")], "leader"), daemon=True)
    leader.start()
    assert reached.wait(PATIENCE_SECONDS)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        saver.put_writes(at, [("log", "main")], "main")
    except KeyboardInterrupt:
        line.tell("interrupted")
    leave.set()
    leader.join(PATIENCE_SECONDS)

    def write_later() -> str:
        saver.put_writes(at, [("log", "later")], "later")
        return ",".join(task for task, _, _ in saver.get_tuple(MAIN).pending_writes)  # type: ignore[union-attr]

    line.tell(attempt(write_later))
    os._exit(0)


def test_a_writer_interrupted_while_it_waits_in_line_holds_up_nobody_behind_it(tmp_path):
    """Ctrl-C in a `put_writes` that waits for another thread's commit: later writes to the thread still return."""
    with Child(interrupt_a_waiting_writer, tmp_path) as child:
        assert child.hear() == "interrupted"
        found = child.hear()
    assert {"leader", "later"} <= set(found.split(",")), found
