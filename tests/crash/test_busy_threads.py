"""Busy threads over processes: a holder or a waiter that dies, stops or forks, and who may go on then."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_turncheckpoint import StaleTurnError, ThreadBusyError, TurnCheckpointSaver, _turns
from langgraph_turncheckpoint._waiting import ticket_numbers
from tests.crash.processes import PATIENCE_SECONDS, Child, Line, answers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and stopped by signals")

MAIN: Any = {"configurable": {"thread_id": "main"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def answering(saver: Any) -> Any:
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("node", lambda state: {"log": ["done"]})
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def log_of(saver: Any) -> list[Any]:
    return list(answering(saver).get_state(MAIN).values.get("log", []))


def states(saver: TurnCheckpointSaver) -> list[tuple[str, str | None]]:
    """State and cause of each turn, newest first."""
    return [(record.state, record.cause) for record in saver.turns("main")]


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does and tells nobody."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + PATIENCE_SECONDS, "it never came to that"


def hold(line: Line, directory: Path, colour: str = "sync") -> None:
    """Runs a graph in a block, says so, and stays in the block until it is told to leave."""
    saver = TurnCheckpointSaver(directory)

    def in_the_block(config: Any) -> None:
        line.tell(config["configurable"]["__turncheckpoint_turn"]["token"])
        line.hear()

    if colour == "sync":
        with saver.turn(MAIN) as config:
            answering(saver).invoke({"log": ["held"]}, config)
            in_the_block(config)
    else:

        async def scenario() -> None:
            async with saver.turn(MAIN) as config:
                await answering(saver).ainvoke({"log": ["held"]}, config)
                in_the_block(config)

        asyncio.run(scenario())
    line.tell("left")


def wait_in_line(line: Line, directory: Path, word: str) -> None:
    """Says when its turn has come, and adds a word."""
    saver = TurnCheckpointSaver(directory)
    line.tell("waiting")
    with saver.turn(MAIN, multitask_strategy="enqueue", timeout=PATIENCE_SECONDS) as config:
        answering(saver).invoke({"log": [word]}, config)
        line.tell("open")
        line.hear()
    line.tell("left")


def tickets(saver: TurnCheckpointSaver) -> int:
    return len(ticket_numbers(saver._store.generation_dir("main")))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_killed_holder_is_busy_no_more(tmp_path, colour):
    """C18, C33: nobody is blocked, and the record says what happened."""
    saver = TurnCheckpointSaver(tmp_path)
    with Child(hold, tmp_path, colour) as holder:
        assert holder.hear() == 1
        assert saver.is_busy("main")
        assert states(saver) == [("running", None)]
        holder.kill()
    assert not saver.is_busy("main")
    assert states(saver) == [("interrupted", "restart")]
    with saver.turn(MAIN, multitask_strategy="reject") as config:
        answering(saver).invoke({"log": ["next"]}, config)
    assert log_of(saver) == ["held", "done", "next", "done"]
    assert states(saver) == [("completed", None), ("interrupted", "restart")]
    assert saver.verify() == []


def test_a_killed_holder_is_not_rolled_back(tmp_path):
    """What a dead turn has stored is for a repair, and not to be undone."""
    saver = TurnCheckpointSaver(tmp_path)
    with Child(hold, tmp_path) as holder:
        holder.hear()
        holder.kill()
    with saver.turn(MAIN, multitask_strategy="rollback") as config:
        answering(saver).invoke({"log": ["next"]}, config)
    assert log_of(saver) == ["held", "done", "next", "done"]


def test_a_stopped_holder_keeps_the_thread_until_it_is_taken_over(tmp_path):
    """C25, C33: it is alive, and is refused when it wakes."""
    saver = TurnCheckpointSaver(tmp_path)
    with Child(hold, tmp_path) as holder:
        holder.hear()
        holder.stop()
        assert saver.is_busy("main")
        with pytest.raises(ThreadBusyError):
            saver.turn(MAIN, multitask_strategy="reject").__enter__()
        with pytest.raises(ThreadBusyError):
            saver.turn(MAIN, multitask_strategy="enqueue", timeout=0.01).__enter__()
        with saver.turn(MAIN) as config:
            answering(saver).invoke({"log": ["next"]}, config)
        assert not saver.is_busy("main")
        holder.tell("leave")
        holder.wake()
        assert holder.hear() == "left"
        assert holder.end() == 0
    assert states(saver) == [("completed", None), ("superseded", "superseded")]


def test_a_killed_holder_frees_the_line(tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    with ExitStack() as stack:
        holder = stack.enter_context(Child(hold, tmp_path))
        holder.hear()
        waiter = stack.enter_context(Child(wait_in_line, tmp_path, "next"))
        assert waiter.hear() == "waiting"
        until(lambda: tickets(saver) == 1)
        holder.kill()
        assert waiter.hear() == "open"
        waiter.tell("leave")
        assert waiter.hear() == "left"
        assert waiter.end() == 0
    assert log_of(saver) == ["held", "done", "next", "done"]
    assert tickets(saver) == 0


def test_a_killed_waiter_holds_up_nobody_behind_it(tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    with ExitStack() as stack:
        holder = stack.enter_context(Child(hold, tmp_path))
        holder.hear()
        first = stack.enter_context(Child(wait_in_line, tmp_path, "dies"))
        until(lambda: tickets(saver) == 1)
        second = stack.enter_context(Child(wait_in_line, tmp_path, "next"))
        until(lambda: tickets(saver) == 2)
        first.kill()
        holder.tell("leave")
        assert second.hear() == "waiting"
        assert second.hear() == "open"
        second.tell("leave")
        assert second.hear() == "left"
        assert second.end() == 0
    assert log_of(saver) == ["held", "done", "next", "done"]
    assert tickets(saver) == 0


def add_in_line(line: Line, directory: Path, first: int, count: int) -> None:
    saver = TurnCheckpointSaver(directory)
    graph = answering(saver)
    line.tell("ready")
    line.hear()
    for number in range(first, first + count):
        with saver.turn(MAIN, multitask_strategy="enqueue", timeout=PATIENCE_SECONDS) as config:
            graph.invoke({"log": [number]}, config)
    line.tell("done")


def test_of_twenty_runs_of_four_processes_in_line_none_is_lost(tmp_path):
    """C32: all twenty inputs are in the final state."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(add_in_line, tmp_path, 5 * number, 5)) for number in range(4)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell("go")
        for child in children:
            assert child.hear() == "done"
            assert child.end() == 0
    saver = TurnCheckpointSaver(tmp_path)
    assert sorted(log_of(saver)[::2]) == list(range(20))
    assert states(saver) == [("completed", None)] * 20
    assert saver.verify() == []


def rejected(line: Line, directory: Path) -> None:
    saver = TurnCheckpointSaver(directory)
    line.tell("ready")
    line.hear()
    try:
        with saver.turn(MAIN, multitask_strategy="reject") as config:
            line.tell("open")
            line.hear()
            answering(saver).invoke({"log": ["x"]}, config)
    except ThreadBusyError:
        line.tell("busy")


def test_of_processes_that_reject_at_the_same_moment_one_succeeds(tmp_path):
    """C32: whoever comes first; the others hear that the thread is busy."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(rejected, tmp_path)) for _ in range(6)]
        for child in children:
            child.hear()
        for child in children:
            child.tell("go")
        outcomes = [child.hear() for child in children]
        assert sorted(outcomes) == ["busy"] * 5 + ["open"]
        children[outcomes.index("open")].tell("go on")
        for child in children:
            assert child.end() == 0
    assert log_of(TurnCheckpointSaver(tmp_path)) == ["x", "done"]


def die_while_opening(line: Line, directory: Path, step: str) -> None:
    """Dies right after it has marked its turn, or right after it has raised the token."""

    def die(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "marked":
        real = _turns._new_journal

        def mark_and_die(*args: Any, **kwargs: Any) -> Any:
            real(*args, **kwargs)
            die()

        _turns._new_journal = mark_and_die
    else:
        _turns._log = die
    TurnCheckpointSaver(directory).turn(MAIN).__enter__()


@pytest.mark.parametrize("step", ["marked", "token"])
def test_a_process_that_dies_while_it_opens_a_turn_blocks_nobody(tmp_path, step):
    saver = TurnCheckpointSaver(tmp_path)
    with saver.turn(MAIN) as config:
        answering(saver).invoke({"log": ["before"]}, config)
    with Child(die_while_opening, tmp_path, step) as child:
        assert child.end() == -signal.SIGKILL
    assert not saver.is_busy("main")
    with saver.turn(MAIN, multitask_strategy="reject") as config:
        answering(saver).invoke({"log": ["next"]}, config)
    tokens = [record.token for record in saver.turns("main")]
    assert len(tokens) == len(set(tokens)) == 2
    assert log_of(saver) == ["before", "done", "next", "done"]


def fork_in_the_block(line: Line, directory: Path, ending: str) -> None:
    """Forks a child in a block; the parent then leaves it, or is killed in it."""
    saver = TurnCheckpointSaver(directory)
    with saver.turn(MAIN) as config:
        answering(saver).invoke({"log": ["x"]}, config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads about
            child = os.fork()
        if child == 0:
            line.tell(("child", os.getpid()))
            line.hear()  # only ends when the test is over
            os._exit(0)
        if ending == "killed":
            line.tell("in the block")
            os.kill(os.getpid(), signal.SIGSTOP)
    line.tell("left")
    os._exit(0)


@pytest.mark.parametrize("ending", ["left", "killed"])
def test_a_forked_child_keeps_no_thread_busy(tmp_path, ending):
    saver = TurnCheckpointSaver(tmp_path)
    pid = 0
    with Child(fork_in_the_block, tmp_path, ending) as parent:
        try:
            heard = [parent.hear(), parent.hear()]
            ((_, pid),) = [word for word in heard if isinstance(word, tuple)]
            if ending == "killed":
                assert "in the block" in heard
                assert saver.is_busy("main")
                parent.kill()
            else:
                assert "left" in heard
            os.kill(pid, 0)  # the child is there
            assert not saver.is_busy("main")
            saver.turn(MAIN, multitask_strategy="reject").__enter__()
        finally:
            if pid:
                os.kill(pid, signal.SIGKILL)


def leave_a_block_in_a_child(line: Line, directory: Path) -> None:
    saver = TurnCheckpointSaver(directory)
    with saver.turn(MAIN) as config:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child:
            os.waitpid(child, 0)
            line.tell(saver.is_busy("main"))
            answering(saver).invoke({"log": ["x"]}, config)
    if child == 0:
        os._exit(0)
    line.tell("left")


def test_a_child_that_leaves_its_parents_block_ends_nothing(tmp_path):
    with Child(leave_a_block_in_a_child, tmp_path) as parent:
        assert parent.hear() is True
        assert parent.hear() == "left"
        assert parent.end() == 0
    saver = TurnCheckpointSaver(tmp_path)
    assert log_of(saver) == ["x", "done"]
    assert states(saver) == [("completed", None)]


def write_in_the_turn_of_another(line: Line, directory: Path, config: Any) -> None:
    saver = TurnCheckpointSaver(directory)
    answering(saver).invoke({"log": ["elsewhere"]}, config)
    line.tell(saver.is_busy("main"))


def test_a_turn_can_be_used_in_another_process_and_lives_with_its_opener(tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    with saver.turn(MAIN) as config:
        assert answers(write_in_the_turn_of_another, tmp_path, config) is True
        answering(saver).invoke({"log": ["here"]}, config)
    with pytest.raises(StaleTurnError):
        answering(saver).invoke({"log": ["late"]}, config)
    assert log_of(saver) == ["elsewhere", "done", "here", "done"]
