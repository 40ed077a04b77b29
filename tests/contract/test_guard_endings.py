"""What a guard keeps for a run goes when the run does, and nothing that fails then, or that another thread waits for,
harms a run.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._running import RunningTurn
from langgraph_turncheckpoint._turn_log import TurnLog
from langgraph_turncheckpoint.errors import JournalWarning, PolicyWarning
from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.stopped_agents import (
    WAYS,
    Effects,
    Piece,
    Speaker,
    asked,
    by_prompt,
    calling,
    guarded,
    history,
    run,
    texts,
    thread,
)
from tests.crash.processes import PATIENCE_SECONDS
from tests.system_calls import SystemCalls, substituted

ALL_WAYS = (*WAYS, "attach-by-hand")
ATTACHED = ("attach", "attach-by-hand")


@pytest.fixture
def effects(tmp_path):
    return Effects(tmp_path / "effects")


@pytest.fixture
def saver(tmp_path):
    with TurnCheckpointSaver(tmp_path / "s", fsync=False) as opened:
        yield opened


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def journals(saver: TurnCheckpointSaver) -> list[str]:
    return [name for _, _, names in os.walk(saver.path) for name in names if name.endswith(".journal")]


# --- the end ---


class NothingGoes(SystemCalls):
    """Neither journals nor messages of the inbox can be removed."""

    def note(self, name: str, args: tuple[Any, ...]) -> int | None:
        super().note(name, args)
        return errno.EACCES if name == "unlink" and str(args[0]).endswith((".journal", ".msg")) else None


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_run_is_no_worse_for_what_cannot_be_removed_at_its_end(saver, way, how, effects):
    model = Speaker(script=by_prompt(first=[calling("fast")], bad=[ConnectionError("no network")]))
    graph = guarded(way, saver, model, [effects.tool("fast")])
    with pytest.raises(ConnectionError):
        run(graph, asked("bad"))
    saver.inbox("t").post(HumanMessage("posted", id="posted"))
    with substituted(NothingGoes()), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stored = run(graph, asked("first"), how)["messages"]
        assert not saver.is_busy("t")
    assert [m.id for m in stored if m.type == "human" and not m.response_metadata].count("posted") == 1
    assert [turn.state for turn in saver.turns("t")] == ["completed", "failed"]
    assert [warning.category for warning in caught if issubclass(warning.category, JournalWarning)] == [JournalWarning]
    assert len(journals(saver)) == 2
    # As soon as it can be, it is.
    more = run(graph, asked("again"))["messages"]
    assert more[: len(stored)] == stored
    assert [m.id for m in more].count("posted") == 1
    assert saver.inbox("t").pending() == []
    assert journals(saver) == []


@pytest.mark.parametrize("way", ALL_WAYS)
def test_turns_by_hand_that_have_ended_are_not_remembered(saver, way):
    guard = TurnGuard(saver)
    graph = guarded(way, saver, Speaker(script=by_prompt()), guard=guard)
    for number in range(4):
        with saver.turn(thread(f"t{number}")) as config:
            graph.invoke(asked("first"), config)
    assert len(guard._core._live) == 1


def test_the_end_of_a_run_is_seen_where_a_coroutine_does_not_see_its_config(saver, monkeypatch, effects):
    """That is so before Python 3.11."""
    _middleware = pytest.importorskip("langgraph_turncheckpoint._middleware")
    monkeypatch.setattr(_middleware, "get_config", Mock(side_effect=RuntimeError))
    model = Speaker(script=by_prompt(first=[calling("fast")], bad=[ConnectionError("no network")]))
    graph = guarded("middleware", saver, model, [effects.tool("fast", athen=lambda: None)])
    for given in (asked("zero"), asked("first")):
        run(graph, given, "ainvoke")
        assert not saver.is_busy("t")
    with pytest.raises(ConnectionError):
        run(graph, asked("bad"), "ainvoke")
    assert not saver.is_busy("t")
    assert [turn.state for turn in saver.turns("t")] == ["failed", "completed", "completed"]
    assert effects.names == ["fast"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_directory_in_memorys_stead_goes_with_its_own_process_alone():
    program = """
import os, sys
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_turncheckpoint.guard import TurnGuard
guard = TurnGuard(InMemorySaver())
guard.inbox("t").post("hello")
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(len(guard.inbox("t").pending()), guard._core.home.path)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    waiting, _, path = ended.stdout.strip().partition(" ")
    assert (waiting, ended.stderr) == ("1", "")
    assert path
    assert not os.path.exists(path)


# --- the beginning ---


def test_a_thread_that_takes_long_to_begin_holds_up_no_other(saver, monkeypatch, pool):
    """Its journals are read, and another process may be in the middle of a save."""
    graph = guarded("node", saver, Speaker(script=by_prompt()))
    entered, leave = threading.Event(), threading.Event()
    begin = RunningTurn.begin_run

    def held(running: RunningTurn, control: object) -> None:
        if running.thread_id == "slow":
            entered.set()
            assert leave.wait(PATIENCE_SECONDS)
        begin(running, control)

    monkeypatch.setattr(RunningTurn, "begin_run", held)
    slow = pool.submit(graph.invoke, asked("first"), thread("slow"))
    try:
        assert entered.wait(PATIENCE_SECONDS)
        other = pool.submit(graph.invoke, asked("first"), thread("other"))
        assert len(other.result(PATIENCE_SECONDS)["messages"]) == 2
    finally:
        leave.set()
    assert len(slow.result(PATIENCE_SECONDS)["messages"]) == 2


@pytest.mark.parametrize("way", ATTACHED)
def test_no_event_loop_waits_while_the_turns_of_a_thread_are_read(saver, way, monkeypatch, effects):
    model = Speaker(script=by_prompt(first=["half ", ConnectionError("no network")]))
    graph = guarded(way, saver, model, [effects.tool("fast")])
    read, in_loop = TurnLog.read, []

    def watched(log: TurnLog) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            in_loop.append(False)
        else:
            in_loop.append(True)
        return read(log)

    monkeypatch.setattr(TurnLog, "read", watched)
    for given in (asked("first"), asked("first", id="2")):
        with pytest.raises(ConnectionError):
            asyncio.run(graph.ainvoke(given, thread()))
    asyncio.run(graph.ainvoke(asked("next"), thread()))
    asyncio.run(graph.ainvoke(None, thread()))
    asyncio.run(TurnGuard(saver).arecover(graph.unguarded, thread()))
    assert in_loop
    assert not any(in_loop)


def test_a_graph_in_which_only_the_tools_are_guarded_runs(tmp_path):
    """Also the first one of a process: the guard must have joined its callbacks before it began."""
    program = f"""
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint.guard import TurnGuard

def pay() -> str:
    "Pay."
    return "paid"

saver = TurnCheckpointSaver({str(tmp_path / "s")!r})
guard = TurnGuard(saver)
call = {{"name": "pay", "args": {{}}, "id": "c0"}}
builder = StateGraph(MessagesState).add_node("model", lambda _: {{"messages": [AIMessage("", tool_calls=[call])]}})
builder.add_node("tools", ToolNode([pay], wrap_tool_call=guard.wrap_tool_call))
builder.add_edge(START, "model").add_edge("model", "tools").add_edge("tools", END)
graph = builder.compile(checkpointer=saver)
print(graph.invoke({{"messages": ["go"]}}, {{"configurable": {{"thread_id": "t"}}}})["messages"][-1].content)
print(saver.is_busy("t"))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["paid", "False"], ended.stderr


def test_policies_for_tools_of_several_nodes_are_not_warned_of(saver, effects):
    builder = StateGraph(MessagesState).add_node("a", ToolNode([effects.tool("one")])).add_edge(START, "a")
    builder.add_node("b", ToolNode([effects.tool("two")])).add_edge("a", "b").add_edge("b", END)
    graph = builder.compile(checkpointer=saver)
    TurnGuard(saver, on_restart={"one": "ask", "two": "rerun"}).attach(graph)
    with pytest.warns(PolicyWarning, match="'three'.*one, two"):
        TurnGuard(saver, on_restart={"two": "ask", "three": "rerun"}).attach(graph)


# --- what was taken out ---


CUT_OFF: list[Piece] = ["half ", "a reply", ConnectionError("no network")]


def without_recovered(graph: Any) -> int:
    """Take out by hand what the guard has brought back; how much that was."""
    doomed = [m.id for m in history(graph) if m.id.startswith("interrupted-")]
    graph.update_state(thread(), {"messages": [RemoveMessage(name) for name in doomed]}, as_node="model")
    return len(doomed)


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_text_recovered_by_hand_and_then_removed_stays_removed(saver, way):
    guard = TurnGuard(saver)
    graph = guarded(way, saver, Speaker(script=by_prompt(first=CUT_OFF)), guard=guard)
    with pytest.raises(ConnectionError):
        graph.invoke(asked("first"), thread())
    assert guard.recover(graph, thread()).changed
    assert without_recovered(graph) == 2
    graph.invoke(asked("next"), thread())
    assert [text for _, text in texts(history(graph))] == ["first", "next", "done"]


@pytest.mark.parametrize("way", ATTACHED)
def test_a_text_that_a_failed_run_recovered_and_that_was_then_removed_stays_removed(saver, way):
    graph = guarded(way, saver, Speaker(script=by_prompt(first=CUT_OFF, second=[ConnectionError("no network")])))
    for prompt in ("first", "second"):
        with pytest.raises(ConnectionError):
            graph.invoke(asked(prompt), thread())
    assert without_recovered(graph) == 2
    graph.invoke(asked("next"), thread())
    assert [text for _, text in texts(history(graph))] == ["first", "second", "next", "done"]
