"""Histories that were damaged before the guard came: whichever way it is in, the model sees them in order, and in order
they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import invalid_tool_call
from langgraph.graph import END, START, MessagesState, StateGraph

from tests.contract.guarded_agents import GUARDED_WAYS, WAYS, Agent, Way, assert_settled, calls, over
from tests.contract.guarded_places import Place, opened
from tests.contract.true_histories import answers, assert_honest, assert_valid, cause, outcome, shape

pytest.importorskip("langchain")
pytest.importorskip("langgraph.checkpoint.sqlite")

FEW = [WAYS["attach-agent"], WAYS["node"], WAYS["middleware"]]
EVERY_WAY = over(list(WAYS.values()), few=FEW)


@pytest.fixture
def place(kind: str, colour: Any, tmp_path: Path) -> Iterator[Place]:
    with opened(kind, colour, tmp_path) as found:
        yield found


def seed(place: Place, history: Sequence[AnyMessage]) -> None:
    """Store a history as a run without a guard would."""
    builder: StateGraph[Any] = StateGraph(MessagesState)
    builder.add_node("say", lambda _: {})
    builder.add_edge(START, "say")
    graph = builder.compile(checkpointer=place.open())
    place.call(graph, "invoke", {"messages": list(history)}, {"configurable": {"thread_id": "t"}})


def says(text: str) -> HumanMessage:
    return HumanMessage(text, id=f"human {text}")


def gave(call_id: str, text: str, id: str | None = None) -> ToolMessage:  # noqa: A002
    return ToolMessage(text, tool_call_id=call_id, id=id or f"{call_id}: {text}")


@EVERY_WAY
def test_a_dangling_call_in_the_middle_is_repaired_in_place(place, way):
    """C4: later turns are already behind it; they stay as they are."""
    seed(place, [says("1"), calls("fast", id="a1"), says("2"), AIMessage("x", id="a2"), says("3"), AIMessage("y")])
    agent = Agent(place, way)
    history = agent.say("next")
    wanted = ["human", "ai", "c0=unknown", "human", "ai", "human", "ai", "human"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert [m.text for m in history if m.type == "human"] == ["1", "2", "3", "next"]
    assert cause(answers(history)["c0"]) == "unknown"
    assert_honest(answers(history)["c0"], ran=True)
    assert place.effects.all() == []
    assert_settled(agent)


@EVERY_WAY
def test_a_real_answer_further_down_is_moved_and_a_foreign_one_set_aside(place, way):
    """C6: AI[c0], Human, Tool(c0), Tool(zz): one Tool(c0) behind its call, and no zz."""
    late = [gave("c0", "real"), gave("zz", "foreign")]
    seed(place, [says("1"), calls("fast", id="a1"), says("2"), *late, AIMessage("x", id="a2")])
    agent = Agent(place, way)
    history = agent.say("next")
    wanted = ["human", "ai", "c0=real", "human", "ai", "human"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert_settled(agent)


@EVERY_WAY
def test_two_answers_to_one_call_become_one(place, way):
    """C13: of a made and a later real answer, one stays."""
    made = ToolMessage("?", tool_call_id="c0", id="made", status="error")
    seed(place, [says("1"), calls("fast", id="a1"), made, AIMessage("x", id="a2"), gave("c0", "real")])
    agent = Agent(place, way)
    history = agent.say("next")
    assert_valid(agent.seen)
    assert len([m for m in history if isinstance(m, ToolMessage)]) == 1
    assert [m.type for m in history] == ["human", "ai", "tool", "ai", "human", "ai"]
    assert_settled(agent)


@EVERY_WAY
def test_an_answer_whose_call_was_trimmed_is_set_aside(place, way):
    """C15: no crash, and no call is invented."""
    seed(place, [gave("c0", "real"), AIMessage("x", id="a1"), says("1"), AIMessage("y", id="a2")])
    agent = Agent(place, way)
    history = agent.say("next")
    assert shape(agent.seen) == ["ai", "human", "ai", "human"]
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    assert not any(message.tool_calls for message in history if isinstance(message, AIMessage))
    assert_settled(agent)


@EVERY_WAY
def test_a_healthy_history_gets_no_update(place, way):
    """C12: 5,000 pairs cost a look; the run writes its own reply, and nothing else."""
    count = 5_000 if (place.kind, place.colour) == ("turn", "sync") and way in FEW else 50
    pairs = [m for n in range(count) for m in (calls("fast", first=n, id=f"a{n}"), gave(f"c{n}", "real"))]
    seed(place, [says("1"), *pairs, AIMessage("x", id="last")])
    agent = Agent(place, way)
    if way.is_by_hand:
        assert not agent.recover().changed
    graph = agent.graph if way.is_by_hand else agent.guarded
    given = {"messages": [says("next")]}
    updates = streamed(place, graph, given, agent.config)
    assert [len(update["messages"]) for step in updates for update in step.values()] == [1]
    stored = agent.stored()
    assert [m.id for m in stored[:-2]] == ["human 1", *(m.id for m in pairs), "last"]
    assert_settled(agent)


def streamed(place: Place, graph: Any, given: Any, config: Any) -> list[dict[str, Any]]:
    """What each node of a run has written."""
    if place.colour == "sync":
        return list(graph.stream(given, config, stream_mode="updates"))

    async def collect() -> list[dict[str, Any]]:
        return [step async for step in graph.astream(given, config, stream_mode="updates")]

    found: list[dict[str, Any]] = place.wait(collect())
    return found


BROKEN = invalid_tool_call(name="slow", args='{"n": 1, "te', id="c1", error="truncated")


@over(GUARDED_WAYS, few=FEW)
def test_a_call_with_unreadable_arguments_is_answered_in_its_own_run(place, way):
    """C11: the good call runs, and when the model is asked again, both are answered."""
    agent = Agent(place, way, {"go": calls("fast", invalid_tool_calls=[BROKEN])})
    history = agent.run({"messages": [says("go")]})["messages"]
    assert_valid(agent.seen)
    found = answers(agent.seen)
    # LangChain's own agents have an answer for such calls, too.
    assert (found["c0"].text, found["c1"].status) == ("fast gave", "error")
    assert outcome(found["c1"]) == "invalid" or way.graph == "create_agent"
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    assert_honest(found["c1"], ran=False)
    assert place.effects.counts() == {"fast": 1}
    assert_settled(agent, gave=["fast"])


@over(GUARDED_WAYS, few=FEW)
def test_a_call_with_unreadable_arguments_is_answered_where_an_older_one_had_its_id(place, way):
    seed(place, [says("old"), calls("slow", first=1, id="a0"), gave("c1", "slow gave"), AIMessage("done", id="a1")])
    agent = Agent(place, way, {"go": calls("fast", invalid_tool_calls=[BROKEN])})
    agent.run({"messages": [says("go")]})
    assert_valid(agent.seen)
    behind = [m for m in agent.seen[4:] if isinstance(m, ToolMessage)]
    assert sorted((m.tool_call_id, m.status) for m in behind) == [("c0", "success"), ("c1", "error")]


@EVERY_WAY
def test_calls_with_unreadable_arguments_are_answered_when_a_message_comes(place, way):
    """C11: also where the model made no other call, so that its run was over."""
    seed(place, [says("go"), AIMessage("", id="a1", invalid_tool_calls=[BROKEN])])
    agent = Agent(place, way)
    history = agent.say("next")
    found = answers(agent.seen)["c1"]
    assert [m.type for m in agent.seen] == ["human", "ai", "tool", "human"]
    assert found.status == "error"
    # LangChain's agents answer such a call themselves, which is as good.
    assert outcome(found) in ("invalid", "unknown", *([""] if way.guard == "middleware" else []))
    assert history[:-1] == agent.seen
    assert agent.stored() == history
    assert_settled(agent)


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not-allowed"])
@over([WAYS["node"], WAYS["attach"], WAYS["recover-attached"]], few=[])
def test_a_call_that_a_node_answers_two_steps_later_stays_open(place, way, allowed):
    """C14: no false "interrupted" for a tool on the list; the model is even asked while it is open."""

    def make(way: Way, model: Any, tools: Any, guard: Any, colour: Any) -> Any:
        def ask(state: Any) -> Any:
            return {"messages": [model.invoke(state["messages"])]}

        async def aask(state: Any) -> Any:
            return {"messages": [await model.ainvoke(state["messages"])]}

        def answer(state: Any) -> Any:
            open_ids = {"c0"} - {m.tool_call_id for m in state["messages"] if isinstance(m, ToolMessage)}
            return {"messages": [gave(call_id, "filled in") for call_id in open_ids]}

        node: Any = ask if colour == "sync" else aask
        if guard is not None and way.guard == "node":
            node = guard.node(node)
        builder: StateGraph[Any] = StateGraph(MessagesState)
        for name, part in (("model", node), ("between", node), ("answer", answer)):
            builder.add_node(name, part)
        for start, end in ((START, "model"), ("model", "between"), ("between", "answer"), ("answer", END)):
            builder.add_edge(start, end)
        return lambda saver: builder.compile(checkpointer=saver)

    agent = Agent(place, way, {"go": calls("form")}, make=make, unanswered=["form"] if allowed else [])
    history = agent.run({"messages": [says("go")]})["messages"]
    if allowed or way.guard != "node":
        assert "filled in" in [m.text for m in history]
        assert not any(outcome(m) for m in history)
    else:
        assert outcome(answers(history)["c0"]) in ("not_run", "unknown")
    other = Agent(place, way, make=make, unanswered=["form"] if allowed else [])
    history = other.say("next")
    (answer,) = [message for message in history if isinstance(message, ToolMessage)]
    assert (answer.text == "filled in") == (allowed or way.guard != "node")


@over([WAYS["node"], WAYS["attach"], WAYS["recover-attached"]], few=[])
def test_an_open_call_on_the_list_survives_a_new_message(place, way):
    """C14: a call that waits for its answer in the state is not closed by the next message."""
    seed(place, [says("go"), calls("form", id="a1")])
    agent = Agent(place, way, unanswered=["form"])
    assert shape(agent.say("next")) == ["human", "ai", "human", "ai"]
    assert shape(agent.go_on({"messages": [gave("c0", "filled in"), says("there")]}))[:2] == ["human", "ai"]
    assert not any(outcome(message) for message in agent.stored())
