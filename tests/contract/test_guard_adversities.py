"""Graphs, prompts and call ids nobody would plan: what is said of a call is true, and no effect happens twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._running import RunningTurn, load_transcript
from langgraph_turncheckpoint._transcript import CallKey
from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.stopped_agents import (
    Effects,
    Script,
    Speaker,
    asked,
    broken_rule,
    by_prompt,
    calling,
    guarded,
    history,
    outcomes,
    run,
    texts,
    thread,
)
from tests.crash.processes import PATIENCE_SECONDS, Child, Line

unix = pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signals")

Builder = Callable[..., Any]


def die() -> None:
    """The process ends here, with what it has done so far."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(builder: Builder, *args: Any, **kwargs: Any) -> None:
    """A process was killed in a tool of `builder(directory, ..., then=die)`, which it had asked to "go"."""
    with Child(run_until_killed, builder, args, kwargs) as child:
        assert child.end() == -signal.SIGKILL


def run_until_killed(line: Line, builder: Builder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    kwargs = dict(kwargs)
    durability = kwargs.pop("durability", "sync")
    builder(*args, **kwargs, then=die).invoke(asked("go"), thread(), durability=durability)
    raise AssertionError("a tool should have killed the process")


def loop(
    speak: Any, act: Any, *, guard: TurnGuard | None = None, checkpointer: Any = None, retry: RetryPolicy | None = None
) -> Any:
    """A graph of a model node and a tool node, whatever they do; a guard sits in them. All calls are one task."""
    wraps: Any = {}
    if guard is not None and not callable(act):
        wraps = {"wrap_tool_call": guard.wrap_tool_call, "awrap_tool_call": guard.awrap_tool_call}
    act = act if callable(act) else ToolNode(act, handle_tool_errors=False, **wraps)
    speak = speak if guard is None else guard.node(speak)
    builder = StateGraph(MessagesState).add_node("model", speak).add_node("tools", act, retry_policy=retry)
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    return builder.compile(checkpointer=checkpointer)


def hand_built(way: str, directory: Path, speak: Any, act: Any, **kwargs: Any) -> Any:
    """Such a graph, with a guard in its nodes or around it."""
    saver = TurnCheckpointSaver(directory / "s", fsync=False)
    guard = TurnGuard(saver)
    if way == "node":
        return loop(speak, act, guard=guard, checkpointer=saver, **kwargs)
    return guard.attach(loop(speak, act, checkpointer=saver, **kwargs))


def said_by(script: Script) -> Callable[[MessagesState], dict[str, Any]]:
    """A node that calls a model."""
    model = Speaker(script=script)
    return lambda state: {"messages": [model.invoke(state["messages"])]}


def once_recorded(directory: Path, text: str) -> None:
    """Wait until a journal tells of something another thread does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(text.encode() in journal.read_bytes() for journal in directory.rglob("*.journal")):
        assert time.monotonic() < deadline, "it is never recorded"
        time.sleep(0.002)


# --- nodes that do it their own way ---


def with_plain_tool_node(directory: Path, way: str, then: Callable[[], Any] | None = None) -> Any:
    """The tool node calls its tool with nothing but the arguments, so the tool does not know its call."""
    pay = Effects(directory / "effects").tool("pay", then)

    def act(state: MessagesState) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage(pay.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]}

    return hand_built(way, directory, said_by(by_prompt(go=[calling("pay")])), act)


@unix
@pytest.mark.parametrize("way", ["attach", "node"])
def test_a_tool_that_no_gate_and_no_call_id_tells_of_is_never_called_not_run(tmp_path, way):
    killed(with_plain_tool_node, tmp_path, way)
    found = run(with_plain_tool_node(tmp_path, way), asked("next"))["messages"]
    assert outcomes(found) == {"c0": "unknown"}
    assert Effects(tmp_path / "effects").names == ["pay"]


@unix
def test_an_attached_graph_whose_tool_node_has_no_gate_goes_on_without_a_second_effect(tmp_path):
    killed(with_plain_tool_node, tmp_path, "attach")
    found = run(with_plain_tool_node(tmp_path, "attach"), None)["messages"]
    assert outcomes(found) == {"c0": "unknown"}
    assert Effects(tmp_path / "effects").names == ["pay"]


def with_plain_tool_node_beside_a_gated_one(directory: Path, then: Callable[[], Any] | None = None) -> Any:
    """One guard for two graphs, one of which has a tool node that asks nobody."""
    pay = Effects(directory / "effects").tool("pay", then)
    saver = TurnCheckpointSaver(directory / "s", fsync=False)
    guard = TurnGuard(saver)
    loop(said_by(by_prompt()), [Effects(directory / "others").tool("other")], guard=guard)

    def act(state: MessagesState) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage(pay.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]}

    return loop(said_by(by_prompt(go=[calling("pay")])), act, guard=guard, checkpointer=saver)


@unix
def test_a_tool_beside_gated_ones_that_no_gate_tells_of_is_never_called_not_run(tmp_path):
    killed(with_plain_tool_node_beside_a_gated_one, tmp_path)
    found = run(with_plain_tool_node_beside_a_gated_one(tmp_path), asked("next"))["messages"]
    assert outcomes(found) == {"c0": "unknown"}


def test_the_calls_of_a_node_that_asks_nobody_count_as_begun_while_it_runs(tmp_path):
    graph = with_plain_tool_node_beside_a_gated_one(tmp_path)
    act, noted = graph.nodes["tools"].bound.func, []

    def watched(state: MessagesState) -> Any:
        key = CallKey(str(state["messages"][-1].id), "c0", "pay")
        noted.append(load_transcript(graph.checkpointer.store, "t", sys.maxsize).facts(key).started)
        return act(state)

    graph.nodes["tools"].bound.func = watched
    graph.invoke(asked("go"), thread())
    assert noted == [True]
    assert outcomes(history(graph)) == {"c0": "real"}


def test_a_node_whose_tools_ask_is_noted_only_until_the_first_has_asked(tmp_path, monkeypatch):
    noted, rested = [], []
    start, rest = RunningTurn.node_started, RunningTurn.node_rested

    def starts(running, task, *args, **kwargs):
        noted.append(task)
        return start(running, task, *args, **kwargs)

    def rests(running, task):
        rested.append(task)
        return rest(running, task)

    monkeypatch.setattr(RunningTurn, "node_started", starts)
    monkeypatch.setattr(RunningTurn, "node_rested", rests)
    graph = hand_built("node", tmp_path, said_by(by_prompt(go=[calling("pay")])), [Effects(tmp_path / "e").tool("pay")])
    for thread_id in ("t", "u"):
        graph.invoke(asked("go"), thread(thread_id))
    assert [task.partition(":")[0] for task in noted] == ["tools"]
    assert rested == noted


def with_own_prompt(directory: Path, way: str, kind: str, then: Callable[[], Any] | None = None) -> Any:
    """The node gives its model other messages than the state has, or the state another reply than the model gave."""
    model = Speaker(script=by_answers("pay"))

    def speak(state: MessagesState) -> dict[str, Any]:
        messages: list[Any] = list(state["messages"])
        if kind == "a reminder behind the history":
            messages = [*messages, HumanMessage("reminder")]
        if kind == "a prompt made anew":
            messages[-1] = messages[-1].model_copy(update={"id": None})
        reply = model.invoke(messages)
        if kind == "a reply made anew":
            reply = AIMessage(reply.content, tool_calls=reply.tool_calls, name="bob")
        return {"messages": [reply]}

    return hand_built(way, directory, speak, [Effects(directory / "effects").tool("pay", then)])


def by_answers(name: str) -> Script:
    """Calls a tool until there is an answer."""
    return lambda messages: ["done"] if any(isinstance(m, ToolMessage) for m in messages) else [calling(name)]


KINDS = ("a reminder behind the history", "a prompt made anew", "a reply made anew")


@unix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["attach", "node"])
def test_a_call_in_a_reply_to_other_messages_than_the_state_has_is_known(tmp_path, way, kind):
    """No checkpoint has the reply: the journal alone can tell."""
    killed(with_own_prompt, tmp_path, way, kind, durability="exit")
    found = run(with_own_prompt(tmp_path, way, kind), asked("next"))["messages"]
    assert [message.type for message in found] == ["human", "ai", "tool", "human", "ai"]
    assert outcomes(found) == {"c0": "unknown"}
    assert Effects(tmp_path / "effects").names == ["pay"]


@unix
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_from_a_reply_to_other_messages_than_the_state_has(tmp_path, kind):
    killed(with_own_prompt, tmp_path, "attach", kind, durability="exit")
    found = run(with_own_prompt(tmp_path, "attach", kind), None)["messages"]
    assert outcomes(found) == {"c0": "unknown"}
    assert Effects(tmp_path / "effects").names == ["pay"]


# --- models that nobody was meant to hear ---


@pytest.mark.parametrize("ending", ["pauses", "fails", "fails before the reply"])
@pytest.mark.parametrize("way", ["attach", "node"])
def test_a_model_call_over_the_history_whose_result_was_kept_out_of_it_leaves_nothing(tmp_path, way, ending):
    """Graders, routers and guardrails look at the history, too."""
    saver = TurnCheckpointSaver(tmp_path / "s", fsync=False)
    guard, judge, faults = TurnGuard(saver), Speaker(script=lambda _: ["score: 5"]), [ValueError("boom")]
    answer: Any = said_by(lambda _: ["the answer"])

    def grade(state: MessagesState) -> dict[str, Any]:
        judge.invoke([SystemMessage("grade this"), *state["messages"]])
        return {}

    def approve(state: MessagesState) -> dict[str, Any]:
        if ending == "pauses":
            interrupt("fine?")
        elif faults:
            raise faults.pop()
        return {}

    builder = StateGraph(MessagesState).add_node("grade", grade).add_node("approve", approve)
    builder.add_node("model", guard.node(answer) if way == "node" else answer)
    order = ["model", "grade", "approve"] if ending != "fails before the reply" else ["grade", "approve", "model"]
    for before, after in zip([START, *order], order, strict=False):
        builder.add_edge(before, after)
    graph: Any = builder.compile(checkpointer=saver)
    graph = guard.attach(graph) if way == "attach" else graph
    with contextlib.suppress(ValueError):
        graph.invoke(asked("go"), thread())
    graph.invoke(asked("next"), thread())
    assert judge.seen
    first = [("ai", "the answer")] if ending != "fails before the reply" else []
    assert texts(history(graph)) == [("human", "go"), *first, ("human", "next"), ("ai", "the answer")]


# --- what was removed stays away ---


FAILING = by_prompt(**{"a secret": [ConnectionError("no network")]})


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_thread_deleted_over_its_own_saver_brings_nothing_back(tmp_path, kind):
    """G6: that saver does not know that there are journals."""
    with contextlib.closing(sqlite3.connect(tmp_path / "db", check_same_thread=False)) as connection:
        saver: Any = InMemorySaver()
        if kind == "sqlite":
            saver = pytest.importorskip("langgraph.checkpoint.sqlite").SqliteSaver(connection)
        graph = guarded("attach", saver, Speaker(script=FAILING), path=tmp_path / "turns")
        with pytest.raises(ConnectionError):
            graph.invoke(asked("a secret"), thread())
        saver.delete_thread("t")
        graph.invoke(asked("next"), thread())
        assert texts(history(graph)) == [("human", "next"), ("ai", "done")]


def test_a_message_removed_by_hand_behind_a_failed_run_stays_removed(tmp_path):
    graph = guarded("attach-by-hand", TurnCheckpointSaver(tmp_path / "s"), Speaker(script=FAILING))
    graph.invoke(asked("first"), thread())
    with pytest.raises(ConnectionError):
        graph.invoke(asked("a secret"), thread())
    graph.update_state(thread(), {"messages": [RemoveMessage("a secret")]}, as_node="model")
    graph.invoke(asked("next"), thread())
    assert texts(history(graph)) == [("human", "first"), ("ai", "done"), ("human", "next"), ("ai", "done")]


# --- call ids that say too little ---


def with_two_subagents(directory: Path, way: str, then: Callable[[], Any] | None = None) -> Any:
    """Two agents run side by side, and both call their tool under the id "c0". The second dies; the first is done."""
    has_started, effects = threading.Event(), Effects(directory / "effects")

    def wait_for_second() -> str:
        has_started.wait(PATIENCE_SECONDS if then else 0)
        return "a paid"

    def wait_for_first() -> str:
        has_started.set()
        if then:
            once_recorded(directory, "a paid")
            then()
        return "b paid"

    saver = TurnCheckpointSaver(directory / "s", fsync=False)
    guard, builder = TurnGuard(saver), StateGraph(MessagesState)
    for pay in (effects.tool("pay_a", wait_for_second), effects.tool("pay_b", wait_for_first)):
        agent = loop(said_by(by_answers(pay.name)), [pay], guard=guard if way == "node" else None)
        builder.add_node(pay.name[-1], agent).add_edge(START, pay.name[-1])
    graph = builder.compile(checkpointer=saver)
    return guard.attach(graph) if way == "attach" else graph


@unix
@pytest.mark.parametrize("way", ["attach", "node"])
def test_call_ids_that_parallel_subagents_share_are_told_apart(tmp_path, way):
    killed(with_two_subagents, tmp_path, way)
    found = run(with_two_subagents(tmp_path, way), None)["messages"]
    assert broken_rule(found) is None
    given = {m.name: m for m in found if isinstance(m, ToolMessage)}
    assert given["pay_a"].text == "a paid"
    assert outcomes([given["pay_b"]]) == {"c0": "unknown"}
    assert sorted(Effects(tmp_path / "effects").names) == ["pay_a", "pay_b"]


@unix
@pytest.mark.parametrize("way", ["attach", "node"])
def test_a_new_message_tells_call_ids_that_parallel_subagents_share_apart(tmp_path, way):
    killed(with_two_subagents, tmp_path, way)
    found = run(with_two_subagents(tmp_path, way), asked("next"))["messages"]
    assert broken_rule(found) is None
    given = {m.name: m for m in found if isinstance(m, ToolMessage)}
    assert given["pay_a"].text == "a paid"
    assert outcomes([given["pay_b"]]) == {"c0": "unknown"}
    assert sorted(Effects(tmp_path / "effects").names) == ["pay_a", "pay_b"]


def with_agent_in_tool(directory: Path, way: str, then: Callable[[], Any] | None = None) -> Any:
    """A tool runs an agent of its own, whose call has the id of the call that runs it; its sibling dies behind it."""
    effects = Effects(directory / "effects")
    inner: Any = create_agent(Speaker(script=by_answers("look")), [effects.tool("look")])

    def delegate() -> str:
        inner.invoke(asked("inner"))
        return "delegated"

    def wait() -> None:
        if then:
            once_recorded(directory, "delegated")
            then()

    tools = [effects.tool("delegate", delegate), effects.tool("slow", wait)]
    return hand_built(way, directory, said_by(by_prompt(go=[calling("delegate", "slow")])), tools)


@unix
@pytest.mark.parametrize("given", [None, asked("next")], ids=["goes on", "next"])
@pytest.mark.parametrize("way", ["attach", "node"])
def test_the_result_of_a_tool_whose_inner_agent_repeats_its_call_id_is_kept(tmp_path, way, given):
    killed(with_agent_in_tool, tmp_path, way)
    found = run(with_agent_in_tool(tmp_path, way), given)["messages"]
    assert outcomes(found) == {"c0": "real", "c1": "unknown"}
    assert found[2].text == "delegated"
    assert sorted(Effects(tmp_path / "effects").names) == ["delegate", "look", "slow"]


def with_one_id_twice(directory: Path, way: str, then: Callable[[], Any] | None = None) -> Any:
    """A message calls two tools under one id; the second dies when the first is done."""
    effects = Effects(directory / "effects")

    def wait() -> None:
        if then:
            once_recorded(directory, "fast done")
            then()

    chunks = [tool_call_chunk(name=n, args="{}", id="c0", index=p) for p, n in enumerate(("fast", "slow"))]
    model = Speaker(script=by_prompt(go=[AIMessageChunk(content="", tool_call_chunks=chunks)]))
    tools = [effects.tool("fast"), effects.tool("slow", wait)]
    return guarded(way, TurnCheckpointSaver(directory / "s", fsync=False), model, tools)


@unix
@pytest.mark.parametrize("given", [None, asked("next")], ids=["goes on", "next"])
@pytest.mark.parametrize("way", ["middleware", "attach", "node", "attach-by-hand"])
def test_two_calls_of_one_id_in_one_message_do_not_share_a_result(tmp_path, way, given):
    killed(with_one_id_twice, tmp_path, way)
    found = run(with_one_id_twice(tmp_path, way), given)["messages"]
    fast, slow = (m for m in found if isinstance(m, ToolMessage))
    assert (fast.text, fast.name) == ("fast done", "fast")
    assert (slow.name, list(outcomes([slow]).values())) == ("slow", ["unknown"])
    assert sorted(Effects(tmp_path / "effects").names) == ["fast", "slow"]


@unix
@pytest.mark.parametrize("is_killed", [True, False], ids=["goes on", "at once"])
@pytest.mark.parametrize("way", ["attach", "attach-by-hand"])
def test_a_provider_sees_no_two_calls_of_one_id(tmp_path, way, is_killed):
    if is_killed:
        killed(with_one_id_twice, tmp_path, way)
    graph = with_one_id_twice(tmp_path, way)
    found = run(graph, None if is_killed else asked("go"))["messages"]
    ids = [call["id"] for m in found if m.type == "ai" for call in m.tool_calls]
    assert len(ids) == len(set(ids)) == 2
    assert broken_rule(found) is None
    assert sorted(Effects(tmp_path / "effects").names) == ["fast", "slow"]


# --- results that answer nothing, or say more ---


def with_talking_tool(directory: Path, way: str, then: Callable[[], Any] | None = None) -> Any:
    """A tool says something beside its answer, and its sibling dies when it is done."""

    @tool
    def fast(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Answers and says more."""
        answer = ToolMessage("fast done", tool_call_id=tool_call_id)
        return Command(update={"messages": [answer, HumanMessage("and more")]})

    def wait() -> None:
        if then:
            once_recorded(directory, "fast done")
            then()

    model = Speaker(script=by_prompt(go=[calling("fast", "slow")]))
    tools = [fast, Effects(directory / "effects").tool("slow", wait)]
    return guarded(way, TurnCheckpointSaver(directory / "s", fsync=False), model, tools)


@unix
@pytest.mark.parametrize("ending", ["goes on", "next", "at once"])
@pytest.mark.parametrize("way", ["attach", "attach-by-hand"])
def test_what_a_tool_says_beside_its_answer_stands_behind_the_answers_of_its_siblings(tmp_path, way, ending):
    if ending != "at once":
        killed(with_talking_tool, tmp_path, way)
    graph = with_talking_tool(tmp_path, way)
    given: Any = {"goes on": None, "next": asked("next"), "at once": asked("go")}
    found = run(graph, given[ending])["messages"]
    assert broken_rule(found) is None
    assert [m.tool_call_id for m in found if isinstance(m, ToolMessage)] == ["c0", "c1"]
    assert Effects(tmp_path / "effects").names == ["slow"]
    if ending != "next":
        assert [m.text for m in found if m.type == "human"] == ["go", "and more"]


def with_silent_tool(directory: Path, way: str, then: Callable[[], Any] | None = None) -> Any:
    """A tool gives a command without the answer to its call, which no tool node takes; it is recorded all the same."""
    tool_ended = RunningTurn.tool_ended

    def ended(running: RunningTurn, key: CallKey, output: Any) -> None:
        tool_ended(running, key, output)
        if then:
            then()

    if then:
        dying: Any = RunningTurn  # in a process that dies of it
        dying.tool_ended = ended

    def silent() -> Command[Any]:
        """Gives no answer."""
        return Command(update={"messages": []})

    model = Speaker(script=by_prompt(go=[calling("silent")]))
    return guarded(way, TurnCheckpointSaver(directory / "s", fsync=False), model, [tool(silent)])


@unix
@pytest.mark.parametrize("way", ["middleware", "attach", "node", "attach-by-hand"])
def test_a_recorded_command_that_answers_nothing_leaves_no_open_call(tmp_path, way):
    killed(with_silent_tool, tmp_path, way)
    found = run(with_silent_tool(tmp_path, way), None)["messages"]
    assert broken_rule(found) is None
    assert outcomes(found) == {"c0": "unknown"}


# --- a second try in one run ---


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("way", ["attach", "node"])
def test_a_finished_tool_does_not_run_again_when_its_task_is_retried_for_a_sibling(tmp_path, way, colour):
    effects, faults = Effects(tmp_path / "effects"), [ConnectionError("flaky")]

    def flaky() -> None:
        once_recorded(tmp_path, "pay done")
        if faults:
            raise faults.pop()

    retry = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False, retry_on=ConnectionError)
    tools = [effects.tool("pay"), effects.tool("flaky", flaky)]
    graph = hand_built(way, tmp_path, said_by(by_prompt(go=[calling("pay", "flaky")])), tools, retry=retry)
    if colour == "sync":
        graph.invoke(asked("go"), thread())
    else:
        asyncio.run(graph.ainvoke(asked("go"), thread()))
    assert outcomes(history(graph)) == {"c0": "real", "c1": "real"}
    assert sorted(effects.names) == ["flaky", "flaky", "pay"]
