"""Inputs, edits and graphs nobody would plan: the model sees a history in order, and the thread lives on."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from langgraph_turncheckpoint import StaleTurnError, ThreadBusyError, TurnCheckpointSaver
from langgraph_turncheckpoint._guard_core import GuardCore
from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.stopped_agents import (
    WAYS,
    Effects,
    Script,
    Speaker,
    asked,
    broken_rule,
    by_prompt,
    calling,
    guarded,
    history,
    notes,
    outcomes,
    run,
    texts,
    thread,
)
from tests.crash.processes import PATIENCE_SECONDS, Child, Line

ALL_WAYS = (*WAYS, "attach-by-hand")
ATTACHED = ("attach", "attach-by-hand")

unix = pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signals")


@pytest.fixture
def effects(tmp_path):
    return Effects(tmp_path / "effects")


@pytest.fixture
def saver(tmp_path):
    with TurnCheckpointSaver(tmp_path / "s", fsync=False) as opened:
        yield opened


def stopping_once() -> Callable[[], None]:
    """Ctrl-C the first time."""
    left: list[BaseException] = [KeyboardInterrupt()]

    def stop() -> None:
        if left:
            raise left.pop()

    return stop


def stopping_always() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def until_answered(name: str) -> Script:
    """Calls a tool until there is an answer, wherever."""
    return lambda messages: ["done"] if any(isinstance(m, ToolMessage) for m in messages) else [calling(name)]


def in_order(model: Speaker, graph: Any) -> bool:
    """Whether a provider would have taken all that the model saw, and would take what is stored."""
    return all(broken_rule(seen) is None for seen in model.seen) and broken_rule(history(graph)) is None


# --- threads that were stuck before they had a guard ---


@pytest.mark.parametrize("way", ALL_WAYS)
def test_what_a_provider_said_of_an_open_call_is_not_taken_for_the_error_of_its_tool(saver, way, effects):
    """C5: it was cut off before there was a guard, and the next message was refused because of it."""

    def speak(state: MessagesState) -> Any:
        if broken_rule(state["messages"]) is not None:
            raise RuntimeError("400: a call has no answer")
        return {"messages": [AIMessage("", id="a1", tool_calls=[{"name": "fast", "args": {}, "id": "c0"}])]}

    def stop(state: MessagesState) -> Any:
        raise KeyboardInterrupt

    builder = StateGraph(MessagesState)
    builder.add_node("model", speak)
    builder.add_node("tools", stop)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    stuck: Any = builder.compile(checkpointer=saver)
    for text, error in (("first", KeyboardInterrupt), ("second", RuntimeError)):
        with pytest.raises(error):
            stuck.invoke(asked(text), thread())
    graph = guarded(way, saver, Speaker(script=by_prompt()), [effects.tool("fast")])
    run(graph, asked("third"))
    assert outcomes(history(graph)) == {"c0": "unknown"}
    assert broken_rule(history(graph)) is None


# --- inputs other than a message ---


@pytest.mark.parametrize(
    "command",
    [Command(update=asked("next"), goto="model"), Command(goto="model")],
    ids=["update and goto", "goto"],
)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_command_that_goes_elsewhere_finds_no_open_call(saver, way, command, effects):
    model = Speaker(script=until_answered("pay"))
    graph = guarded(way, saver, model, [effects.tool("pay", stopping_once())])
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    graph.invoke(command, thread())
    assert len(model.seen) > 1
    assert in_order(model, graph)
    assert outcomes(history(graph)) == {"c0": "unknown"}
    graph.invoke(asked("later"), thread())
    assert in_order(model, graph)
    assert effects.names == ["pay"]


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_message_sent_to_an_earlier_checkpoint_finds_no_open_call(saver, way, effects):
    """The checkpoint is that between the model's reply and its tools, of a run that ended well."""
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay")])
    graph.invoke(asked("go"), thread())
    states = list(graph.get_state_history(thread()))
    earlier = next(state for state in states if state.next == ("tools",))
    graph.invoke(asked("instead"), earlier.config)
    assert in_order(model, graph)
    assert [m.type for m in history(graph)] == ["human", "ai", "tool", "human", "ai"]
    graph.invoke(asked("later"), thread())
    assert in_order(model, graph)


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_an_open_call_that_comes_as_input_is_answered_behind_it(saver, way, is_first, effects):
    """An imported conversation, or an example."""
    model = Speaker(script=by_prompt())
    graph = guarded(way, saver, model, [effects.tool("pay")])
    if not is_first:
        graph.invoke(asked("before"), thread())
    call: Any = {"name": "pay", "args": {}, "id": "x0", "type": "tool_call"}
    given = [AIMessage("", tool_calls=[call]), HumanMessage("next")]
    graph.invoke({"messages": given}, thread())
    assert in_order(model, graph)
    assert "x0" in outcomes(history(graph))
    graph.invoke(asked("later"), thread())
    assert in_order(model, graph)
    assert effects.names == []


BAD_INPUTS = {
    "no message": {"messages": 5},
    "none": {"messages": None},
    "removal of nothing": {"messages": [RemoveMessage(id="nobody")]},
}


@pytest.mark.parametrize("kind", ["turn", "memory"])
@pytest.mark.parametrize("bad", BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_an_input_that_the_state_refuses_harms_no_later_run(tmp_path, saver, bad, kind):
    options: Any = {} if kind == "turn" else {"path": tmp_path / "turns"}
    over: Any = saver if kind == "turn" else InMemorySaver()
    graph = guarded("attach-by-hand", over, Speaker(script=by_prompt()), **options)
    graph.invoke(asked("before"), thread())
    with pytest.raises((ValueError, NotImplementedError)):
        graph.invoke(bad, thread())
    graph.invoke(asked("next"), thread())
    graph.invoke(asked("later"), thread())
    assert [m.text for m in history(graph)] == ["before", "done", "next", "done", "later", "done"]


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", ["turn", "memory"])
@pytest.mark.parametrize("bad", BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_a_thread_whose_last_input_was_refused_can_be_recovered_by_hand(saver, bad, kind, colour, effects):
    checkpointer: Any = saver if kind == "turn" else InMemorySaver()
    guard = TurnGuard(checkpointer)
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded("attach-by-hand", checkpointer, model, [effects.tool("pay", stopping_once())], guard=guard)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    plain: Any = graph.unguarded  # a guarded run would have closed the call before it stored the input
    with pytest.raises((ValueError, NotImplementedError)):
        plain.invoke(bad, thread())

    def recover() -> Any:
        return asyncio.run(guard.arecover(graph, thread())) if colour == "async" else guard.recover(graph, thread())

    report = recover()
    assert [(given.outcome, given.cause) for given in report.answers] == [("unknown", "user")]
    again = recover()
    assert (again.changed, list(again.answers)) == (False, [])
    graph.invoke(asked("next"), thread())
    assert in_order(model, graph)
    assert outcomes(history(graph)) == {"c0": "unknown"}


class WithTopic(MessagesState):
    """A channel that takes one value in each step."""

    topic: str


@pytest.mark.parametrize("way", ["attach", "node"])
def test_two_writes_to_a_channel_that_takes_one_harm_no_later_run(saver, way):
    """A fault of the program, which is then mended."""
    guard, model, second = TurnGuard(saver), Speaker(script=by_prompt()), [{"topic": "two"}]

    def speak(state: WithTopic) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(WithTopic).add_node("model", guard.node(speak) if way == "node" else speak)
    builder.add_node("x", lambda _: {"topic": "one"}).add_node("y", lambda _: second.pop() if second else {})
    builder.add_edge(START, "model").add_edge("model", "x").add_edge("model", "y")
    graph: Any = builder.compile(checkpointer=saver)
    graph = guard.attach(graph) if way == "attach" else graph
    with pytest.raises(InvalidUpdateError):
        graph.invoke(asked("go"), thread())
    for text in ("next", "later"):
        graph.invoke(asked(text), thread())
    assert [m.text for m in history(graph)] == ["go", "done", "next", "done", "later", "done"]


# --- edits by hand, breakpoints ---


def test_a_run_goes_on_where_one_of_two_answers_was_given_by_hand(saver, effects):
    """As without the guard: it does not fail, and the next message finds a history in order."""
    model = Speaker(script=by_prompt(go=[calling("fast", "pay")]))
    graph = guarded("attach", saver, model, [effects.tool("fast"), effects.tool("pay", stopping_once())])
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    answer = ToolMessage("by hand", tool_call_id="c1", name="pay")
    graph.update_state(thread(), {"messages": [answer]}, as_node="tools")
    graph.invoke(None, thread())
    graph.invoke(asked("next"), thread())
    assert broken_rule(model.seen[-1]) is None
    assert broken_rule(history(graph)) is None
    given = {m.tool_call_id: m.text for m in history(graph) if isinstance(m, ToolMessage)}
    assert given["c1"] == "by hand"


@pytest.mark.parametrize("where", [{"interrupt_before": ["tools"]}, {"interrupt_after": ["model"]}], ids=str)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_call_behind_a_breakpoint_was_not_run(saver, way, where, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay")])
    graph.invoke(asked("go"), thread(), **where)
    assert not saver.is_busy("t")
    assert [turn.state for turn in saver.turns("t")] == ["paused"]
    graph.invoke(asked("next"), thread())
    assert outcomes(history(graph)) == {"c0": "not_run"}
    (answer,) = [m for m in history(graph) if isinstance(m, ToolMessage)]
    assert "had not started when the run was paused and did not go on" in answer.text
    assert in_order(model, graph)
    assert effects.names == []


@pytest.mark.parametrize("way", WAYS)
def test_a_breakpoint_that_a_run_goes_on_from_leaves_it_completed(saver, way, effects):
    graph = guarded(way, saver, Speaker(script=by_prompt(go=[calling("pay")])), [effects.tool("pay")])
    graph.invoke(asked("go"), thread(), interrupt_before=["tools"])
    graph.invoke(None, thread())
    assert [turn.state for turn in saver.turns("t")] == ["completed", "paused"]
    assert outcomes(history(graph)) == {"c0": "real"}


@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_task_is_told_of_as_stopped_from_outside(tmp_path, way, effects):
    reached = asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    with TurnCheckpointSaver(tmp_path / "s", fsync=False) as saver:
        graph = guarded(way, saver, Speaker(script=by_prompt(go=[calling("pay")])), [effects.tool("pay", athen=wait)])
        task = asyncio.create_task(graph.ainvoke(asked("go"), thread()))
        await asyncio.wait_for(reached.wait(), PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        found = (await graph.ainvoke(asked("next"), thread()))["messages"]
    (answer,) = [m for m in found if isinstance(m, ToolMessage)]
    assert "left no result: the run was stopped from outside. Its outcome is unknown" in answer.text
    assert [note["cause"] for note in notes(found)] == ["unknown"]


@pytest.mark.parametrize("has_journal", [True, False], ids=["journal", "no journal"])
@pytest.mark.parametrize("way", ["middleware", "attach", "by hand"])
def test_only_a_call_that_a_person_was_asked_about_was_waiting_for_one(saver, way, has_journal, effects):
    model = Speaker(script=by_prompt(go=[calling("fast", "pay")]))
    reviews: Any = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    tools, guard = [effects.tool("fast"), effects.tool("pay")], TurnGuard(saver)
    plain: Any = create_agent(model, tools, middleware=[reviews], checkpointer=saver)
    there: Any = {"middleware": [reviews]} if way != "by hand" else {}
    graph: Any = plain if way == "by hand" else guarded(way, saver, model, tools, guard=guard, **there)
    (graph if has_journal else plain).invoke(asked("go"), thread())
    if way == "by hand":
        guard.recover(plain, thread())
    graph.invoke(asked("next"), thread())
    said = {m.tool_call_id: m.text for m in history(graph) if m.type == "tool"}
    assert "person's decision" in said["c1"]
    assert "decision" not in said["c0"]
    assert outcomes(history(graph)) == {"c0": "not_run", "c1": "superseded"}
    assert effects.names == []


@pytest.mark.parametrize("way", ["middleware", *ATTACHED])
def test_a_message_added_by_hand_behind_an_open_call_finds_it_answered(saver, way, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay", stopping_once())])
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    graph.update_state(thread(), asked("by the way"))
    graph.invoke(None, thread())
    assert in_order(model, graph)
    assert effects.names == ["pay"]


def test_a_message_added_by_hand_behind_an_open_call_finds_it_answered_by_the_next_model_call_of_a_guarded_node(
    saver, effects
):
    """Nothing is due after it, so no node runs in which the guard could see it."""
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded("node", saver, model, [effects.tool("pay", stopping_once())])
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    graph.update_state(thread(), asked("by the way"))
    graph.invoke(None, thread())
    assert len(model.seen) == 1
    graph.invoke(asked("next"), thread())
    assert in_order(model, graph)
    assert outcomes(history(graph)) == {"c0": "unknown"}
    assert effects.names == ["pay"]


@pytest.mark.parametrize("given", [None, asked("next")], ids=["goes on", "next"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_fork_with_a_message_behind_an_open_call_finds_it_answered(tmp_path, saver, way, given, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay", stopping_once())])
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    fork = graph.update_state(graph.get_state(thread()).config, asked("instead"), as_node="__start__")
    graph.invoke(given, fork)
    assert in_order(model, graph)
    assert outcomes(history(graph)) == {"c0": "unknown"}
    assert effects.names == ["pay"]
    with TurnCheckpointSaver(tmp_path / "s", fsync=False) as reopened:  # as it is stored
        stored = guarded(way, reopened, model, [effects.tool("pay")])
        assert texts(history(stored)) == texts(history(graph))


@pytest.mark.parametrize("way", ATTACHED)
def test_what_is_closed_for_a_run_at_an_old_checkpoint_stays_open_for_others_that_start_there(saver, way, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay", stopping_once())])
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    fork = graph.update_state(graph.get_state(thread()).config, asked("instead"), as_node="__start__")
    before = saver.get_tuple(fork)
    graph.invoke(asked("next"), fork)
    after = saver.get_tuple(fork)
    assert before is not None
    assert after is not None
    assert after.checkpoint == before.checkpoint
    assert after.pending_writes == before.pending_writes


@pytest.mark.parametrize("at_head", [True, False], ids=["head", "addressed"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_call_that_its_run_passes_over_is_closed_before_the_model_speaks(saver, way, at_head, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay")])
    graph.invoke(asked("go"), thread(), interrupt_before=["tools"])
    there = graph.update_state(thread(), {"messages": []}, as_node="tools")
    assert graph.get_state(thread()).next == ("model",)
    graph.invoke(None, thread() if at_head else there)
    assert in_order(model, graph)
    assert outcomes(history(graph)) == {"c0": "not_run"}
    assert effects.names == []


# --- copies ---


@pytest.mark.parametrize("given", [None, asked("next")], ids=["goes on", "next"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_copied_thread_goes_on_from_what_really_happened(saver, way, given, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay", stopping_once())])
    with pytest.raises(KeyboardInterrupt):
        graph.invoke(asked("go"), thread(), durability="sync")
    saver.copy_thread("t", "copy")
    for thread_id in ("copy", "t"):
        graph.invoke(given, thread(thread_id))
        assert effects.names == ["pay"]
        assert outcomes(history(graph, thread(thread_id))) == {"c0": "unknown"}
        assert [note["cause"] for note in notes(history(graph, thread(thread_id)))] == ["user"]
    assert saver.verify() == []


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_copied_in_the_middle_of_a_tool_does_not_run_it_again(saver, way, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")]))
    graph = guarded(way, saver, model, [effects.tool("pay", lambda: saver.copy_thread("t", "copy"))])
    graph.invoke(asked("go"), thread(), durability="sync")
    assert not saver.is_busy("copy")
    graph.invoke(None, thread("copy"))
    assert effects.names == ["pay"]
    assert outcomes(history(graph)) == {"c0": "real"}
    assert outcomes(history(graph, thread("copy"))) == {"c0": "unknown"}


def test_a_copy_into_a_thread_with_a_past_of_its_own_goes_on_from_the_newer_one(saver, effects):
    model = Speaker(script=by_prompt(go=[calling("pay")], also=[calling("pay", first=5)]))
    graph = guarded("attach", saver, model, [effects.tool("pay", stopping_always)])
    for thread_id, prompt in (("older", "also"), ("t", "go"), ("newer", "also")):
        with pytest.raises(KeyboardInterrupt):
            graph.invoke(asked(prompt), thread(thread_id), durability="sync")
    for target, prompt, call in (("older", "go", "c0"), ("newer", "also", "c5")):
        saver.copy_thread("t", target)
        graph.invoke(None, thread(target))
        assert outcomes(history(graph, thread(target))) == {call: "unknown"}
        assert [m.text for m in history(graph, thread(target)) if m.type == "human"] == [prompt]
    assert effects.names == ["pay"] * 3
    assert saver.verify() == []


# --- several at once ---


class Added(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


@pytest.mark.parametrize("schema", [Added, MessagesState], ids=["operator.add", "add_messages"])
@pytest.mark.parametrize("way", ["attach", "node"])
def test_two_models_in_one_step_over_an_open_call_both_see_it_answered(saver, way, schema):
    guard, builder = TurnGuard(saver), StateGraph(schema)
    models = {name: Speaker(script=lambda _, name=name: [f"{name} here"]) for name in ("x", "y")}
    for name, model in models.items():

        def speak(state: Any, model: Speaker = model) -> dict[str, Any]:
            return {"messages": [model.invoke(state["messages"])]}

        builder.add_node(name, guard.node(speak) if way == "node" else speak).add_edge(START, name)
    plain: Any = builder.compile(checkpointer=saver)
    call: Any = {"name": "pay", "args": {}, "id": "c0", "type": "tool_call"}
    open_call = AIMessage("", tool_calls=[call], id="a0")
    plain.update_state(thread(), {"messages": [HumanMessage("old", id="h0"), open_call]}, as_node="x")
    graph = guard.attach(plain) if way == "attach" else plain
    for text in ("next", "later"):
        graph.invoke(asked(text), thread())
    assert [broken_rule(seen) for model in models.values() for seen in model.seen] == [None] * 4
    assert [outcomes(model.seen[-1]) for model in models.values()] == [{"c0": "unknown"}] * 2
    assert sorted(m.text for m in history(graph) if m.type == "ai") == ["", *["x here"] * 2, *["y here"] * 2]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_two_guarded_models_in_one_step_leave_the_prompt_before_their_replies(saver, colour):
    """Whichever of the two looks first."""
    guard, builder = TurnGuard(saver), StateGraph(MessagesState)
    looks: list[str] = []

    def speak(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        name = config["metadata"]["langgraph_node"]
        looks.append(name)
        return {"messages": [AIMessage(f"{name} here")]}

    async def aspeak(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return speak(state, config)

    for name in ("x", "y"):
        builder.add_node(name, guard.node(speak if colour == "sync" else aspeak)).add_edge(START, name)
    graph = builder.compile(checkpointer=saver)
    call: Any = {"name": "pay", "args": {}, "id": "c0", "type": "tool_call"}
    open_call = AIMessage("", tool_calls=[call], id="a0")
    for n in range(10):
        there = thread(f"t{n}")
        graph.update_state(there, {"messages": [HumanMessage("old", id="h0"), open_call]}, as_node="x")
        run(graph, asked("next"), "invoke" if colour == "sync" else "ainvoke", there)
        assert [m.text for m in history(graph, there)][3:] == ["next", "x here", "y here"]
        assert broken_rule(history(graph, there)) is None
    assert set(looks) == {"x", "y"}


def test_a_guarded_model_beside_a_node_that_is_not_puts_the_history_in_order(saver):
    """The other one's name comes first, and it would never do so."""
    guard, builder = TurnGuard(saver), StateGraph(MessagesState)
    builder.add_node("a", lambda _: {"messages": []}).add_edge(START, "a")
    builder.add_node("x", guard.node(lambda _: {"messages": [AIMessage("x here")]})).add_edge(START, "x")
    builder.add_node("z", guard.node(lambda _: {"messages": [AIMessage("z here")]})).add_edge(["a", "x"], "z")
    graph = builder.compile(checkpointer=saver)
    call: Any = {"name": "pay", "args": {}, "id": "c0", "type": "tool_call"}
    for n in range(2):
        prompts = [HumanMessage("old"), AIMessage("", tool_calls=[call]), HumanMessage("next")]
        graph.update_state(thread(f"t{n}"), {"messages": prompts}, as_node="z")
        run(graph, asked("later"), config=thread(f"t{n}"))
        found = history(graph, thread(f"t{n}"))
        assert [m.text for m in found][-3:] == ["later", "x here", "z here"]
        assert broken_rule(found) is None


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_a_tool_starts_on_its_own_thread_takes_over(saver, way, effects):
    """The newest run wins, also over the run that it is started in."""
    found: list[Any] = []

    def start() -> None:
        found[0].invoke(asked("inner"), thread())

    model = Speaker(script=by_prompt(go=[calling("pay")]))
    found.append(guarded(way, saver, model, [effects.tool("pay", start)]))
    with pytest.raises(StaleTurnError):
        found[0].invoke(asked("go"), thread())
    assert not saver.is_busy("t")
    assert texts(history(found[0]))[-2:] == [("human", "inner"), ("ai", "done")]
    assert in_order(model, found[0])
    assert outcomes(history(found[0])) == {"c0": "unknown"}


@pytest.mark.parametrize("strategy", ["reject", "enqueue"])
def test_a_run_that_a_tool_starts_on_its_own_thread_does_not_wait_for_itself(saver, strategy, effects):
    """With no timeout it would wait for ever."""
    found: list[Any] = []

    def start() -> None:
        found[0].invoke(asked("inner"), thread())

    model = Speaker(script=by_prompt(go=[calling("pay")]))
    found.append(guarded("attach", saver, model, [effects.tool("pay", start)], multitask_strategy=strategy))
    errors: list[BaseException] = []

    def go() -> None:
        try:
            found[0].invoke(asked("go"), thread())
        except ThreadBusyError as error:
            errors.append(error)

    going = threading.Thread(target=go, daemon=True)
    going.start()
    going.join(PATIENCE_SECONDS)
    assert len(errors) == 1
    assert not saver.is_busy("t")
    found[0].invoke(asked("next"), thread())
    assert in_order(model, found[0])


async def test_a_run_cancelled_while_its_turn_is_being_opened_leaves_no_busy_thread(tmp_path, monkeypatch):
    """Nobody waits for a node without a coroutine once its run is cancelled: it opens a turn for a run that is over."""
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite.aio")
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()
    model = Speaker(script=by_prompt())
    contact = GuardCore.contact

    def held(core: GuardCore, *args: Any, **kwargs: Any) -> Any:
        if not entered.is_set():
            entered.set()
            assert leave.wait(PATIENCE_SECONDS)
        try:
            return contact(core, *args, **kwargs)
        finally:
            left.set()

    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def wait_until(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.002)

    monkeypatch.setattr(GuardCore, "contact", held)
    async with sqlite.AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as over:
        guard = TurnGuard(over, path=tmp_path / "turns")
        builder = StateGraph(MessagesState).add_node("model", guard.node(speak)).add_edge(START, "model")
        graph: Any = builder.compile(checkpointer=over)
        going = asyncio.ensure_future(graph.ainvoke(asked("go"), thread()))
        await wait_until(entered.is_set)
        going.cancel()
        await asyncio.wait([going])
        leave.set()
        await wait_until(left.is_set)
        await wait_until(lambda: not guard._core.home.is_busy("t"))
        await graph.ainvoke(asked("next"), thread())
        assert texts((await graph.aget_state(thread())).values["messages"])[-2:] == [("human", "next"), ("ai", "done")]
    assert len(model.seen) == 1


# --- what earlier turns have left ---


def ask_until_killed(line: Line, directory: Path, way: str) -> None:
    tool = Effects(directory / "effects").tool("pay", lambda: os.kill(os.getpid(), signal.SIGKILL))
    saver = TurnCheckpointSaver(directory / "s", fsync=False)
    guarded(way, saver, Speaker(script=by_prompt(go=[calling("pay")])), [tool]).invoke(asked("go"), thread())


@unix
@pytest.mark.parametrize("way", ALL_WAYS)
def test_each_turn_has_its_own_cause(tmp_path, saver, way, effects):
    """C9: a person stopped the second run, not the first, which a kill has ended."""
    with Child(ask_until_killed, tmp_path, way) as child:
        assert child.end() == -signal.SIGKILL
    model = Speaker(script=by_prompt(second=["Half", KeyboardInterrupt()]))
    graph = guarded(way, saver, model, [effects.tool("pay")])
    with pytest.raises(KeyboardInterrupt):
        run(graph, asked("second"), "stream")
    graph.invoke(asked("third"), thread())
    assert {note["outcome"]: note["cause"] for note in notes(history(graph)) if "outcome" in note} == {
        "unknown": "restart",
        "interrupted": "user",
    }
    assert in_order(model, graph)


def summarize_until_killed(line: Line, directory: Path, way: str, durability: Any) -> None:
    """Summarized away before each call of the model, and dead in "pay"."""
    with_summaries(directory, way, lambda: os.kill(os.getpid(), signal.SIGKILL)).invoke(
        asked("go"), thread(), durability=durability
    )


def with_summaries(directory: Path, way: str, then: Callable[[], Any] | None = None) -> Any:
    effects = Effects(directory / "effects")

    def script(messages: Any) -> Any:
        """Three times "look", then "pay", then done."""
        said = messages[-1]
        if isinstance(said, HumanMessage) and said.text == "next":
            return ["done"]
        looks = effects.names.count("look")
        if looks < 3:
            return [calling("look", first=looks)]
        return ["done"] if any(m.name == "pay" for m in messages) else [calling("pay", first=3)]

    summarizer = Speaker(script=lambda _: ["the summary"])
    summaries = SummarizationMiddleware(summarizer, trigger=("messages", 4), keep=("messages", 2))
    tools = [effects.tool("look"), effects.tool("pay", then)]
    saver = TurnCheckpointSaver(directory / "s", fsync=False)
    return guarded(way, saver, Speaker(script=script), tools, middleware=[summaries])


@unix
@pytest.mark.parametrize(
    ("way", "durability", "given"),
    [
        ("attach", "sync", None),
        ("attach", "exit", None),
        ("middleware", "sync", None),
        *((way, durability, asked("next")) for way in ("attach", "middleware") for durability in ("sync", "exit")),
    ],
    ids=lambda value: "next" if isinstance(value, dict) else str(value),
)
def test_what_was_summarized_stays_so_and_a_started_call_is_not_forgotten(tmp_path, way, durability, given):
    with Child(summarize_until_killed, tmp_path, way, durability) as child:
        assert child.end() == -signal.SIGKILL
    graph = with_summaries(tmp_path, way)
    graph.invoke(given, thread())
    found = history(graph)
    assert broken_rule(found) is None
    assert Effects(tmp_path / "effects").names == ["look"] * 3 + ["pay"]
    assert outcomes(found).get("c3") == "unknown"
    assert list(outcomes(found))[-1] == "c3"
    assert "go" not in [m.text for m in found]
