"""G7: whatever process dies or system call fails, a posted message is there wholly or not at all, and in its place."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langgraph_turncheckpoint import Inbox, StorageError, TurnCheckpointSaver
from tests.crash.processes import Child, Line
from tests.system_calls import CODES, GROWING, SystemCalls, calls_of, lasting, once, substituted

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and killed by signals")

PROCESSES = 4
POSTS = 50
ODD_THREAD = "Gespräch \U0001f4bb"


def ids_in(directory: Path, thread_id: str = "t") -> list[Any]:
    return [message.id for message in TurnCheckpointSaver(directory).inbox(thread_id).pending()]


# --- several processes ---


def post_many(line: Line, directory: Path, name: str) -> None:
    inbox = TurnCheckpointSaver(directory).inbox("t")
    line.tell("ready")
    line.hear()
    for number in range(POSTS):
        inbox.post(HumanMessage(f"{number}", id=f"{name}-{number}"))
    line.tell("done")


def test_what_several_processes_post_at_once_is_all_there_each_in_its_order(tmp_path):
    children = [Child(post_many, tmp_path, name) for name in "abcd"[:PROCESSES]]
    try:
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell("go")
        for child in children:
            assert child.hear() == "done"
            assert child.end() == 0
    finally:
        for child in children:
            child.__exit__()
    found = ids_in(tmp_path)
    assert len(found) == PROCESSES * POSTS
    for name in "abcd"[:PROCESSES]:
        assert [i for i in found if i.startswith(name)] == [f"{name}-{number}" for number in range(POSTS)]
    assert TurnCheckpointSaver(tmp_path).verify() == []


def post_on_demand(line: Line, directory: Path) -> None:
    inbox = TurnCheckpointSaver(directory).inbox(ODD_THREAD)
    while (text := line.hear()) is not None:
        line.tell(inbox.post(HumanMessage(text, id=text)))


def test_processes_that_take_turns_are_read_in_that_order(tmp_path):
    ours = TurnCheckpointSaver(tmp_path).inbox(ODD_THREAD)
    with Child(post_on_demand, tmp_path) as first, Child(post_on_demand, tmp_path) as second:
        posted = []
        for number in range(8):
            for child in (second, first):
                child.tell(f"{number} {child.pid}")
                posted.append(child.hear())
            posted.append(ours.post(f"{number}"))
        first.tell(None)
        second.tell(None)
        assert first.end() == second.end() == 0
    assert ids_in(tmp_path, ODD_THREAD) == posted


def fork_after_use(line: Line, directory: Path) -> None:
    inbox = TurnCheckpointSaver(directory).inbox("t")
    inbox.post(HumanMessage("before", id="before"))
    pid = os.fork()
    if pid == 0:
        inbox.post(HumanMessage("child", id="child"))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    inbox.post(HumanMessage("parent", id="parent"))
    line.tell(status)


def test_an_inbox_works_on_in_a_forked_child_and_in_its_parent(tmp_path):
    with Child(fork_after_use, tmp_path) as child:
        assert child.hear() == 0
        assert child.end() == 0
    assert ids_in(tmp_path) == ["before", "child", "parent"]


# --- processes that die ---


def prepared(directory: Path, *, fresh: bool) -> Path:
    """A store whose thread was never written to, or one with two messages and a checkpoint's worth of neighbours."""
    if not fresh:
        inbox = TurnCheckpointSaver(directory).inbox("t")
        inbox.post(HumanMessage("a", id="a"))
        inbox.post(HumanMessage("b", id="b"))
        TurnCheckpointSaver(directory).inbox("other").post(HumanMessage("o", id="o"))
    return directory


def act(inbox: Inbox, operation: str) -> None:
    if operation == "post":
        inbox.post(HumanMessage("new" * 500, id="new"))
    elif operation == "acknowledge":
        inbox.acknowledge(["a", "b"])
    else:
        inbox.clear()


def die_at(line: Line, directory: Path, operation: str, position: int) -> None:
    """Is killed in place of the system call at `position`."""

    def fault(at: int, name: str) -> int | None:
        if at == position:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    inbox = TurnCheckpointSaver(directory).inbox("t")
    with substituted(SystemCalls(fault)):
        act(inbox, operation)
    line.tell("survived")


#: What each operation may leave when it is cut short: the ids that wait.
OUTCOMES = {
    ("post", True): ([], ["new"]),
    ("post", False): (["a", "b"], ["a", "b", "new"]),
    ("acknowledge", False): (["a", "b"], ["b"], []),
    ("clear", False): (["a", "b"], ["b"], []),
}


@pytest.mark.parametrize(("operation", "fresh"), OUTCOMES)
def test_a_process_killed_between_any_two_steps_leaves_each_message_there_or_not(tmp_path, operation, fresh):
    probe = prepared(tmp_path / "probe", fresh=fresh)
    probed = TurnCheckpointSaver(probe).inbox("t")
    count = len(calls_of(lambda: act(probed, operation)))
    seen = []
    for position in range(count + 1):
        directory = prepared(tmp_path / str(position), fresh=fresh)
        with Child(die_at, directory, operation, position) as child:
            if position >= count:
                assert child.hear() == "survived"
            status = child.end()
        assert status == (0 if position >= count else -signal.SIGKILL)
        found = ids_in(directory)
        assert found in OUTCOMES[operation, fresh]
        seen.append(found)
        saver = TurnCheckpointSaver(directory)
        saver.inbox("t").post(HumanMessage("next", id="next"))
        assert ids_in(directory) == [*found, "next"]
        assert saver.verify() == []
        if not fresh:
            assert ids_in(directory, "other") == ["o"]
        shutil.rmtree(directory)
    first, *_, last = OUTCOMES[operation, fresh]
    assert seen[0] == first
    assert seen[-1] == last


def stand_still_in_a_post(line: Line, directory: Path) -> None:
    """Stops with the thread's lock held and the message half written."""

    def fault(at: int, name: str) -> int | None:
        if name == "replace":
            line.tell("holding")
            line.hear()
        return None

    with substituted(SystemCalls(fault)):
        act(TurnCheckpointSaver(directory).inbox("t"), "post")


def test_a_poster_that_stands_still_keeps_no_reader_waiting_and_its_death_frees_the_thread(tmp_path):
    prepared(tmp_path, fresh=False)
    with Child(stand_still_in_a_post, tmp_path) as child:
        assert child.hear() == "holding"
        assert ids_in(tmp_path) == ["a", "b"]
        child.kill()
    saver = TurnCheckpointSaver(tmp_path)
    assert [finding.kind for finding in saver.verify()] == ["temporary"]
    saver.inbox("t").post(HumanMessage("next", id="next"))
    assert ids_in(tmp_path) == ["a", "b", "next"]
    assert saver.verify() == []


# --- system calls that fail ---


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", [once, lasting], ids=["once", "lasting"])
@pytest.mark.parametrize(("operation", "fresh"), OUTCOMES)
def test_whichever_system_call_fails_a_message_is_there_or_not_and_the_next_attempt_works(
    tmp_path, operation, fresh, kind, code
):
    """C51: a post that raised has stored nothing; one that returned has stored its message."""
    probe = prepared(tmp_path / "probe", fresh=fresh)
    probed = TurnCheckpointSaver(probe).inbox("t")
    names = calls_of(lambda: act(probed, operation))
    template = prepared(tmp_path / "template", fresh=fresh)
    for position, name in enumerate(names):
        if kind is lasting and name not in GROWING:
            continue
        directory = tmp_path / str(position)
        if template.exists():
            shutil.copytree(template, directory)
        inbox = TurnCheckpointSaver(directory).inbox("t")
        errors = []
        with substituted(SystemCalls(kind(position, code))):
            try:
                act(inbox, operation)
            except StorageError as error:
                errors.append(error.errno)
        assert errors in ([], [code])
        found, (before, *_, after) = ids_in(directory), OUTCOMES[operation, fresh]
        if not errors:
            assert found == after, name
        elif operation == "post":
            assert found == before, name
        else:
            assert found in OUTCOMES[operation, fresh], name
        act(inbox, operation)
        assert ids_in(directory) == after
        assert TurnCheckpointSaver(directory).verify() == []
        shutil.rmtree(directory)
