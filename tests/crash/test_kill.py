"""A process that dies, wherever it is, loses nothing that was acknowledged and blocks nobody who comes after it."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import TurnCheckpointSaver, _files
from tests.contract.scripted_model import ScriptedModel, call
from tests.crash.processes import Child, Line, answers, rounds

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and killed by signals")

MAIN: Any = {"configurable": {"thread_id": "main"}}
STEPS = 30
KILL_STEP = 25


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Announcing(TurnCheckpointSaver):
    """Sets an event when the result of the call beside the deadly one is durable, and the checkpoint it belongs to.

    Under durability `async` a fast agent is ahead of its saver, and writes may be stored before their checkpoint.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written = threading.Event()
        self._stored: set[str] = set()
        self._awaited = ""

    def put(self, *args: Any) -> Any:
        stored = super().put(*args)
        self._stored.add(stored["configurable"]["checkpoint_id"])
        self._announce()
        return stored

    def put_writes(self, config: Any, writes: Any, *args: Any) -> None:
        super().put_writes(config, writes, *args)
        results = [message for channel, value in writes if channel == "messages" for message in value]
        if any(getattr(message, "tool_call_id", None) == f"call-work-{KILL_STEP}" for message in results):
            self._awaited = config["configurable"]["checkpoint_id"]
            self._announce()

    def _announce(self) -> None:
        if self._awaited in self._stored:
            self.written.set()


def note(path: Path, line: str) -> None:
    """Appends to a file what has really happened."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def noted(path: Path, what: str) -> Counter[str]:
    """How often each thing happened, by name."""
    found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return Counter(name for event, name in found if event == what)


def scripted_steps() -> list[AIMessage]:
    """One call per step; in the step of the kill a second one beside it."""
    answers_ = []
    for number in range(1, STEPS + 1):
        calls = [call("work", number, step=number)]
        if number == KILL_STEP:
            calls.append(call("dangerous", number, step=number))
        answers_.append(AIMessage("", tool_calls=calls))
    return answers_


def run_agent(line: Line, directory: Path, graph_input: Any, colour: str, durability: Any, armed: bool) -> None:
    """Runs the agent; an armed one kills its own process in the step of the kill, beside a finished call."""
    effects, saver = directory / "effects", Announcing(directory / "store")

    def finish(name: str, number: int) -> str:
        note(effects, f"finished {name}-{number}")
        return f"{name} {number}"

    def die(number: int) -> str:
        note(effects, f"started dangerous-{number}")
        if armed:
            saver.written.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return finish("dangerous", number)

    if colour == "sync":

        @tool
        def work(step: int) -> str:
            """Works."""
            note(effects, f"started work-{step}")
            return finish("work", step)

        @tool
        def dangerous(step: int) -> str:
            """Works, if it is let."""
            return die(step)
    else:

        @tool
        async def work(step: int) -> str:
            """Works."""
            note(effects, f"started work-{step}")
            return finish("work", step)

        @tool
        async def dangerous(step: int) -> str:
            """Works, if it is let."""
            return await asyncio.to_thread(die, step)

    agent = create_agent(ScriptedModel(answers=scripted_steps()), [work, dangerous], checkpointer=saver)
    config: Any = {**MAIN, "recursion_limit": 4 * STEPS}
    if colour == "sync":
        result = agent.invoke(graph_input, config, durability=durability)
    else:
        result = asyncio.run(agent.ainvoke(graph_input, config, durability=durability))
    line.tell(result["messages"])


@pytest.mark.parametrize(("colour", "durability"), [("sync", "sync"), ("sync", "async"), ("async", "async")])
def test_no_finished_tool_call_of_an_agent_killed_in_step_25_runs_again(tmp_path, colour, durability):
    """C16: 30 steps, SIGKILL in step 25 while a sibling call has finished; the second process does the rest only."""
    prompt = {"messages": [HumanMessage("go", id="human")]}
    with Child(run_agent, tmp_path, prompt, colour, durability, True) as first:
        assert first.end() == -signal.SIGKILL
    before = noted(tmp_path / "effects", "finished")
    assert len(before) == KILL_STEP
    messages = answers(run_agent, tmp_path, None, colour, durability, False)

    assert set(noted(tmp_path / "effects", "finished").values()) == {1}
    started = noted(tmp_path / "effects", "started")
    assert [name for name, count in started.items() if count > 1] == [f"dangerous-{KILL_STEP}"]
    called = [c["id"] for message in messages if isinstance(message, AIMessage) for c in message.tool_calls]
    answered = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert len(called) == STEPS + 1
    assert answered == called


def put_and_exit(line: Line, directory: Path, parent_id: str, colour: str) -> None:
    """Puts a checkpoint and writes on it, says which, and is gone."""
    saver = TurnCheckpointSaver(directory)
    config: Any = {"configurable": {"thread_id": "main", "checkpoint_ns": "", "checkpoint_id": parent_id}}
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"pid": os.getpid(), "parent": parent_id}
    if colour == "sync":
        at = saver.put(config, checkpoint, {"source": "loop"}, {})
        saver.put_writes(at, [("log", os.getpid())], "task")
        line.tell((checkpoint["id"], os.getpid()))
        os._exit(1)

    async def aput() -> None:
        at = await saver.aput(config, checkpoint, {"source": "loop"}, {})
        await saver.aput_writes(at, [("log", os.getpid())], "task")
        line.tell((checkpoint["id"], os.getpid()))
        os._exit(1)

    asyncio.run(aput())


def test_a_put_survives_a_process_that_exits_at_once(tmp_path):
    """C17: `put`, then `os._exit(1)`; another process reads the checkpoint and its writes, every time."""
    parent_id = ""
    for number in range(rounds(30, full=200)):
        with Child(put_and_exit, tmp_path, parent_id, ("sync", "async")[number % 2]) as child:
            checkpoint_id, pid = child.hear()
            assert child.end() == 1
        found = TurnCheckpointSaver(tmp_path).get_tuple(MAIN)
        assert found is not None
        assert found.checkpoint["id"] == checkpoint_id
        assert found.checkpoint["channel_values"] == {"pid": pid, "parent": parent_id}
        assert found.pending_writes == [("task", "log", pid)]
        parent_id = checkpoint_id
    assert TurnCheckpointSaver(tmp_path).verify() == []


def two_nodes(saver: Any, first: Any) -> Any:
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("first", first)
    builder.add_node("second", lambda state: {"log": ["second"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=saver)


class Counting(TurnCheckpointSaver):
    """Counts the checkpoints that are durable."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.stored = threading.Semaphore(0)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        stored = super().put(*args, **kwargs)
        self.stored.release()
        return stored


def hang_in_the_first_node(line: Line, directory: Path, durability: Any, colour: str, wait_for_put: bool) -> None:
    saver = Counting(directory)

    def hang(state: Log) -> Log:
        # The input, and the state that the first node runs on.
        for _ in range(2 if wait_for_put else 0):
            saver.stored.acquire()
        line.tell("in the node")
        line.hear()
        raise AssertionError("not killed")

    async def ahang(state: Log) -> Log:
        return await asyncio.to_thread(hang, state)

    if colour == "sync":
        two_nodes(saver, hang).invoke({"log": ["input"]}, MAIN, durability=durability)
    else:
        asyncio.run(two_nodes(saver, ahang).ainvoke({"log": ["input"]}, MAIN, durability=durability))


def killed_in_the_first_node(directory: Path, durability: str, colour: str, *, wait_for_put: bool) -> Any:
    with Child(hang_in_the_first_node, directory, durability, colour, wait_for_put) as child:
        assert child.hear() == "in the node"
        child.kill()
    return two_nodes(TurnCheckpointSaver(directory), lambda state: {"log": ["first"]})


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_run_killed_in_its_first_node_goes_on_from_its_input(tmp_path, durability, colour):
    """C18: under `sync` the input is durable before the node; under `async` as soon as its put has returned."""
    graph = killed_in_the_first_node(tmp_path, durability, colour, wait_for_put=durability == "async")
    state = graph.get_state(MAIN)
    assert (state.values, state.next) == ({"log": ["input"]}, ("first",))
    assert graph.invoke(None, MAIN) == {"log": ["input", "first", "second"]}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_run_killed_in_its_first_node_under_exit_leaves_nothing(tmp_path, colour):
    """C18: under `exit` nothing is stored before the end; the thread is as it was."""
    graph = killed_in_the_first_node(tmp_path, "exit", colour, wait_for_put=False)
    assert graph.get_state(MAIN).values == {}
    assert TurnCheckpointSaver(tmp_path).thread_ids() == []
    assert graph.invoke({"log": ["again"]}, MAIN) == {"log": ["again", "first", "second"]}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_turn_whose_process_was_killed_blocks_no_new_message(tmp_path, durability):
    """C18: whatever the dead run had stored, a new message on its thread runs through."""
    graph = killed_in_the_first_node(tmp_path, durability, "sync", wait_for_put=False)
    log = graph.invoke({"log": ["new"]}, MAIN)["log"]
    assert log[-3:] == ["new", "first", "second"]
    assert log[:-3] in ([], ["input"])
    assert TurnCheckpointSaver(tmp_path).verify() == []


PAYLOAD: list[tuple[str, Any]] = [
    ("log", {"deep": [1, {"er": "two"}]}),
    ("messages", HumanMessage("hi", id="1")),
    ("log", "the same channel again"),
    ("__interrupt__", "a question"),
    ("log", b"\x00bytes"),
]


def write_payload(line: Line, directory: Path, config: Any, colour: str) -> None:
    saver = TurnCheckpointSaver(directory)
    if colour == "sync":
        saver.put_writes(config, PAYLOAD, "task", "~path")
    else:
        asyncio.run(saver.aput_writes(config, PAYLOAD, "task", "~path"))
    line.tell(saver.get_tuple(config).pending_writes)  # type: ignore[union-attr]


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("before_its_checkpoint", [False, True])
def test_the_same_writes_from_a_restarted_process_change_nothing(tmp_path, colour, before_its_checkpoint):
    """C19: the same payload after a reopen gives the same pending writes: count, order and values."""
    checkpoint = empty_checkpoint()
    root: Any = {"configurable": {"thread_id": "main", "checkpoint_ns": ""}}
    at: Any = {"configurable": {**root["configurable"], "checkpoint_id": checkpoint["id"]}}
    saver = TurnCheckpointSaver(tmp_path)
    if before_its_checkpoint:
        saver.put_writes(at, PAYLOAD, "task", "~path")
        saver.put(root, checkpoint, {}, {})
    else:
        saver.put(root, checkpoint, {}, {})
        saver.put_writes(at, PAYLOAD, "task", "~path")
    first = saver.get_tuple(at)
    assert first is not None
    assert first.pending_writes is not None
    assert sorted((channel for _, channel, _ in first.pending_writes)) == sorted(c for c, _ in PAYLOAD)
    for _ in range(3):
        assert answers(write_payload, tmp_path, at, colour) == first.pending_writes


def nested(saver: Any, effects: Path) -> Any:
    """Three levels; the innermost asks, between effects on every level."""

    def ask(state: Log) -> Log:
        note(effects, "did before-question")
        answer = interrupt("well?")
        note(effects, "did after-question")
        return {"log": [answer]}

    def effect(name: str) -> Any:
        def node(state: Log) -> Log:
            note(effects, f"did {name}")
            return {"log": [name]}

        return node

    below: Any = ask
    for level in (3, 2, 1):
        builder: StateGraph[Any] = StateGraph(Log)
        builder.add_node("before", effect(f"before-{level}"))
        builder.add_node("below", below)
        builder.add_node("after", effect(f"after-{level}"))
        builder.add_edge(START, "before")
        builder.add_edge("before", "below")
        builder.add_edge("below", "after")
        builder.add_edge("after", END)
        below = builder.compile(checkpointer=saver if level == 1 else None)
    return below


def run_nested(line: Line, directory: Path, graph_input: Any, durability: Any) -> None:
    graph = nested(TurnCheckpointSaver(directory / "store"), directory / "effects")
    line.tell(graph.invoke(graph_input, MAIN, durability=durability))
    os._exit(0)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_question_in_a_subgraph_answered_in_another_process_has_the_effects_it_has_in_memory(tmp_path, durability):
    """C23: interrupt three levels down, the process ends, another one resumes."""
    in_memory = tmp_path / "in-memory"
    reference = nested(InMemorySaver(), in_memory)
    reference.invoke({"log": ["go"]}, MAIN, durability=durability)
    expected = reference.invoke(Command(resume="fine"), MAIN, durability=durability)

    paused = answers(run_nested, tmp_path, {"log": ["go"]}, durability)
    assert [each.value for each in paused["__interrupt__"]] == ["well?"]
    assert answers(run_nested, tmp_path, Command(resume="fine"), durability) == expected
    assert noted(tmp_path / "effects", "did") == noted(in_memory, "did")


def put_many(line: Line, directory: Path, thread_id: str, count: int) -> None:
    """Puts a chain of checkpoints with writes on each, and says their ids."""
    saver = TurnCheckpointSaver(directory)
    line.tell("ready")
    line.hear()
    at: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    ids = []
    for number in range(count):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": [f"message {each}" for each in range(number + 1)]}
        at = saver.put(at, checkpoint, {"step": number}, {})
        saver.put_writes(at, [("log", number)], "task")
        ids.append(checkpoint["id"])
    line.tell(ids)


def test_four_processes_put_at_once_without_lock_errors_or_litter(tmp_path):
    """C35: one thread each; every file parses afterwards, every checkpoint is there, no temporary is left."""
    count = rounds(50, full=200)
    threads = [f"thread-{number}" for number in range(4)]
    children = [Child(put_many, tmp_path, thread, count) for thread in threads]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.tell("go")
    stored = [child.hear() for child in children]
    assert [child.end() for child in children] == [0] * 4
    saver = TurnCheckpointSaver(tmp_path)
    for thread, ids in zip(threads, stored, strict=True):
        found = list(saver.list({"configurable": {"thread_id": thread}}))
        assert [each.checkpoint["id"] for each in found] == ids[::-1]
        assert [len(each.checkpoint["channel_values"]["messages"]) for each in found] == list(range(count, 0, -1))
        assert [each.pending_writes for each in found] == [[("task", "log", n)] for n in range(count - 1, -1, -1)]
    assert saver.verify() == []
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")] == []


def test_four_processes_put_on_one_thread_and_nothing_is_lost(tmp_path):
    """C35 on a single thread: each process builds on its own checkpoints by id, and none gets in another's way."""
    children = [Child(put_many, tmp_path, "main", 20) for _ in range(4)]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.tell("go")
    stored = [child.hear() for child in children]
    assert [child.end() for child in children] == [0] * 4
    found = list(TurnCheckpointSaver(tmp_path).list(MAIN))
    assert sorted(each.checkpoint["id"] for each in found) == sorted(i for ids in stored for i in ids)
    assert all(len(each.pending_writes or []) == 1 for each in found)


def commit_and_hang(line: Line, directory: Path, when: str) -> None:
    """Does not die by itself: it stands still in the middle of a commit, with the thread's lock held."""
    real = getattr(_files, when)

    def standing_still(*args: Any, **kwargs: Any) -> Any:
        if "/g-" in str(args[0]):
            line.tell("inside")
            time.sleep(3600)
        return real(*args, **kwargs)

    setattr(_files, when, standing_still)
    saver = TurnCheckpointSaver(directory)
    at = saver.put({"configurable": {"thread_id": "main", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
    saver.put_writes(at, [("log", 1)], "task")


@pytest.mark.parametrize("when", ["replace_file", "append_file", "sync_directory"])
def test_a_lock_vanishes_with_the_process_that_was_killed_holding_it(tmp_path, when):
    """S9: SIGKILL in the middle of a commit; the next writer finds the lock free and the thread whole."""
    with Child(commit_and_hang, tmp_path, when) as child:
        assert child.hear() == "inside"
        child.kill()
    saver = TurnCheckpointSaver(tmp_path)
    checkpoint = empty_checkpoint()
    at = saver.put({"configurable": {"thread_id": "main", "checkpoint_ns": ""}}, checkpoint, {}, {})
    saver.put_writes(at, [("log", 2)], "task")
    found = saver.get_tuple(MAIN)
    assert found is not None
    assert found.checkpoint["id"] == checkpoint["id"]
    assert found.pending_writes == [("task", "log", 2)]
    assert saver.verify() == []
