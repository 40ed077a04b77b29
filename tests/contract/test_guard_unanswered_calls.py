"""Calls that a run has left open: stopped, failed or paused in the middle, case by case, whichever way the guard is in.

What the model sees next, what a fresh saver without the guard reads, and what the tools really did must agree.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import Command

from tests.contract.guarded_agents import (
    FEW_WAYS,
    GUARDED_WAYS,
    HANG_SECONDS,
    SOME_WAYS,
    WAYS,
    Agent,
    Ending,
    Way,
    assert_settled,
    calls,
    over,
)
from tests.contract.guarded_places import Place, opened
from tests.contract.true_histories import answers, assert_honest, assert_valid, cause, outcome, shape

pytest.importorskip("langchain")
pytest.importorskip("langgraph.checkpoint.sqlite")

EVERY_WAY = over(list(WAYS.values()))


@pytest.fixture
def place(kind: str, colour: Any, tmp_path: Path) -> Iterator[Place]:
    with opened(kind, colour, tmp_path) as found:
        yield found


def stopped_cause(place: Place, way: Way) -> str:
    """Ctrl-C comes from a person; who cancels a task does not say why. Without a journal nothing is known."""
    return "user" if place.colour == "sync" and way.has_journal else "unknown"


def stopped(place: Place, way: Way, *names: str, **options: Any) -> Agent:
    """An agent whose run over these tools was stopped in "slow", when all before it had given and were stored."""
    reached = threading.Event()
    before = names[: names.index("slow")]
    holds = place.journals_hold if way.has_journal else place.writes_hold

    def all_stored() -> bool:
        return all(holds(f"{name} gave") for name in before)

    ending = Ending("stop", all_stored, reached)
    agent = Agent(place, way, {"go": calls(*names)}, endings={"slow": ending}, **options)
    if way.is_by_hand and way.guard == "recover":
        agent.guarded = agent.graph
    agent.stop_in("go", reached)
    return agent


# --- C1, C3, C10: stopped in a tool ---


@EVERY_WAY
def test_a_call_that_was_stopped_gets_one_error_answer(place, way):
    """C1: the model sees a valid history in which the outcome is left open, and nothing runs again."""
    stopped(place, way, "slow")
    agent = Agent(place, way)
    history = agent.say("next")
    assert shape(agent.seen) == ["human", "ai", "c0=unknown", "human"]
    assert shape(history) == shape(agent.stored()) == ["human", "ai", "c0=unknown", "human", "ai"]
    answer = answers(history)["c0"]
    assert_honest(answer, ran=True)
    assert cause(answer) == stopped_cause(place, way)
    assert place.effects.counts() == {"slow": 1}
    assert_settled(agent)


@EVERY_WAY
def test_a_finished_call_keeps_its_result_when_its_sibling_was_stopped(place, way):
    """C3: c0 keeps its real text, c1 is left open."""
    stopped(place, way, "fast", "slow")
    agent = Agent(place, way)
    history = agent.say("next")
    wanted = ["human", "ai", "c0=fast gave", "c1=unknown", "human"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert_honest(answers(history)["c1"], ran=True)
    assert place.effects.counts() == {"fast": 1, "slow": 1}
    assert_settled(agent, gave=["fast"])


@over(list(WAYS.values()), few=[WAYS["attach-agent"], WAYS["node"]])
def test_a_repair_by_hand_never_loses_a_result(place, way):
    """C3, C10: the repair alone, before any run, keeps what was finished; doing it again changes nothing."""
    stopped(place, way, "fast", "slow")
    agent = Agent(place, way)
    report = agent.recover()
    assert report.changed
    assert shape(agent.stored()) == ["human", "ai", "c0=fast gave", "c1=unknown"]
    assert not agent.state().next
    assert_settled(agent, gave=["fast"])
    other = Agent(place, way)
    assert not other.recover().changed
    assert shape(other.say("next")) == ["human", "ai", "c0=fast gave", "c1=unknown", "human", "ai"]


@over([*SOME_WAYS, WAYS["recover"]], few=[WAYS["attach-agent"]])
def test_a_repaired_history_is_stored_once_and_left_alone(place, way):
    """C10: later turns find what the first one has repaired, message for message."""
    stopped(place, way, "fast", "slow")
    first = Agent(place, way).say("next")
    agent = Agent(place, way)
    second = agent.say("and then")
    assert second[: len(first)] == first
    assert agent.seen[: len(first)] == first
    assert shape(second[len(first) :]) == ["human", "ai"]
    assert_settled(agent, gave=["fast"])


# --- C9: finished siblings ---


@pytest.mark.parametrize("finished", [2, 3])
@over(list(WAYS.values()), few=[])
def test_finished_siblings_keep_their_results_when_a_message_comes(place, way, finished):
    """C9, first half; none and one are above."""
    names = [f"f{n}" for n in range(finished)]
    stopped(place, way, *names, "slow")
    agent = Agent(place, way)
    history = agent.say("next")
    real = [f"c{n}=f{n} gave" for n in range(finished)]
    assert shape(agent.seen) == ["human", "ai", *real, f"c{finished}=unknown", "human"]
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    assert place.effects.counts() == {**dict.fromkeys(names, 1), "slow": 1}
    assert_settled(agent, gave=names)


@pytest.mark.parametrize("finished", range(4))
@over(GUARDED_WAYS, few=[])
def test_finished_siblings_keep_their_results_when_the_run_goes_on(place, way, finished):
    """C9, second half: the started one is reported and does not run again."""
    names = [f"f{n}" for n in range(finished)]
    stopped(place, way, *names, "slow")
    agent = Agent(place, way)
    history = agent.go_on(None)
    real = [f"c{n}=f{n} gave" for n in range(finished)]
    assert shape(agent.seen) == ["human", "ai", *real, f"c{finished}=unknown"]
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    assert_honest(answers(history)[f"c{finished}"], ran=True)
    assert place.effects.counts() == {**dict.fromkeys(names, 1), "slow": 1}
    assert_settled(agent, gave=names)


@over(SOME_WAYS, few=[WAYS["attach-agent"]])
def test_a_tool_that_may_run_again_does_when_the_run_goes_on(place, way):
    """The policy "rerun": its result is real, and that of its sibling is not made twice."""
    stopped(place, way, "fast", "slow", on_restart={"slow": "rerun"})
    agent = Agent(place, way, on_restart={"slow": "rerun"})
    history = agent.go_on(None)
    assert shape(history) == ["human", "ai", "c0=fast gave", "c1=slow gave", "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": 2}
    assert_settled(agent, gave=["fast", "slow"])


@over(SOME_WAYS, few=[])
@pytest.mark.parametrize(
    ("reply", "answer", "runs"),
    [
        ("rerun", "slow gave", 2),
        ("report", "answered_by_person", 1),
        ({"action": "result", "content": "it is there"}, "it is there", 1),
    ],
    ids=["rerun", "report", "result"],
)
def test_a_person_decides_about_a_started_tool(place, way, reply, answer, runs):
    """The policy "ask": the run pauses, and the person's word counts."""
    stopped(place, way, "fast", "slow", on_restart={"slow": "ask"})
    agent = Agent(place, way, on_restart={"slow": "ask"})
    agent.go_on(None)
    (question,) = agent.state().interrupts
    assert question.value["type"] == "turncheckpoint.unknown_outcome"
    assert question.value["tool_call_id"] == "c1"
    other = Agent(place, way, on_restart={"slow": "ask"})
    history = other.go_on(Command(resume=reply))
    assert shape(history) == ["human", "ai", "c0=fast gave", f"c1={answer}", "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": runs}
    assert_settled(other, gave=["fast"])


# --- C7: a person rejects ---


@over(list(WAYS.values()), few=[WAYS["attach-agent"]])
def test_a_rejected_call_never_runs_and_its_sibling_keeps_its_result(place, way):
    """C7, with a tool that asks before it acts."""
    agent = Agent(place, way, {"go": calls("fast", "ask")})
    graph = agent.graph if way.guard == "recover" else agent.guarded
    place.call(graph, "invoke", {"messages": [("human", "go")]}, agent.config)
    (question,) = agent.state().interrupts
    assert question.value == {"may": "ask"}
    other = Agent(place, way)
    graph = other.graph if way.guard == "recover" else other.guarded
    history = place.call(graph, "invoke", Command(resume="no"), other.config)["messages"]
    assert shape(history) == shape(other.stored()) == ["human", "ai", "c0=fast gave", "c1=ask rejected", "ai"]
    runs = place.effects.counts()
    assert "ask" not in runs
    if way.has_journal:
        assert runs == {"fast": 1}
    assert_settled(other, gave=["fast"])


@pytest.mark.parametrize("guard", ["middleware", "attach"])
@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", ["turn"])
def test_a_call_that_a_reviewer_rejects_never_runs(place, guard):
    """C7, with LangChain's middleware for reviews."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    review = HumanInTheLoopMiddleware(interrupt_on={"slow": True})

    def make(way: Way, model: Any, tools: Any, guard: Any, colour: Any) -> Any:
        own = [guard.middleware()] if guard is not None and way.guard == "middleware" else []
        return lambda saver: create_agent(model, tools, middleware=[*own, review], checkpointer=saver)

    way = Way(guard, "create_agent", guard)
    agent = Agent(place, way, {"go": calls("fast", "slow")}, make=make)
    agent.run({"messages": [("human", "go")]})
    other = Agent(place, way, make=make)
    decision = {"decisions": [{"type": "reject", "message": "not now"}]}
    history = other.go_on(Command(resume=decision))
    found = answers(history)
    assert_valid(history)
    assert (found["c0"].text, found["c1"].status) == ("fast gave", "error")
    assert "not now" in found["c1"].text
    assert place.effects.counts() == {"fast": 1}
    assert_settled(other, gave=["fast"])


@EVERY_WAY
def test_a_call_that_waits_for_a_person_is_superseded_by_a_message(place, way):
    """A new message instead of an answer: the tool never runs, the finished sibling keeps its result."""
    agent = Agent(place, way, {"go": calls("fast", "ask")})
    graph = agent.graph if way.guard == "recover" else agent.guarded
    place.call(graph, "invoke", {"messages": [("human", "go")]}, agent.config)
    other = Agent(place, way)
    history = other.say("never mind")
    wanted = ["human", "ai", "c0=fast gave", "c1=superseded", "human"]
    if not way.has_journal and not way.fan_out:
        wanted[2] = "c0=unknown"
    assert shape(other.seen) == wanted
    assert shape(history) == shape(other.stored()) == [*wanted, "ai"]
    # A recovery by hand comes before the message, and does not know of it.
    assert cause(answers(history)["c1"]) == ("unknown" if way.is_by_hand else "superseded")
    assert_honest(answers(history)["c1"], ran=False)
    assert place.effects.counts() == {"fast": 1}
    assert_settled(other)


@over(list(WAYS.values()), few=[WAYS["attach-agent"], WAYS["recover"]])
def test_a_call_that_waits_for_a_person_and_is_closed_by_hand_was_overtaken_by_nothing(place, way):
    """C5: nothing newer is claimed where nothing newer came, neither for programs nor in words."""
    agent = Agent(place, way, {"go": calls("ask")})
    graph = agent.graph if way.guard == "recover" else agent.guarded
    place.call(graph, "invoke", {"messages": [("human", "go")]}, agent.config)
    other = Agent(place, way)
    (given,) = other.recover().answers
    assert (given.outcome, given.cause) == ("superseded", "unknown")
    assert given.message.text == (
        "The call to `ask` was not run any further: the run waited for a person's decision that was never given. "
        "Make the call again if it is still wanted."
    )
    assert answers(other.stored())["c0"].text == given.message.text
    assert_settled(other)


# --- C8: one raises ---


def failed(place: Place, way: Way) -> Agent:
    """An agent whose run over "fast" and "boom" failed, when the result of the first was stored."""
    holds = place.journals_hold if way.has_journal else place.writes_hold
    ending = Ending("error", lambda: holds("fast gave"))
    agent = Agent(place, way, {"go": calls("fast", "boom")}, endings={"boom": ending})
    if way.guard == "recover":
        agent.guarded = agent.graph
    with pytest.raises(ValueError, match="boom broke"):
        agent.run({"messages": [("human", "go")]})
    return agent


@EVERY_WAY
def test_a_call_that_raised_gets_its_error(place, way):
    """C8: c0 real, c1 failed with what it raised."""
    failed(place, way)
    agent = Agent(place, way)
    history = agent.say("next")
    assert shape(agent.seen) == ["human", "ai", "c0=fast gave", "c1=failed", "human"]
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    answer = answers(history)["c1"]
    assert "boom broke" in answer.text
    assert cause(answer) == "error"
    assert_honest(answer, ran=True)
    assert place.effects.counts() == {"boom": 1, "fast": 1}
    assert_settled(agent, gave=["fast"])


@over(GUARDED_WAYS, few=[WAYS["attach-agent"]])
def test_a_call_that_raised_is_tried_again_when_the_run_goes_on(place, way):
    """G2: LangGraph retries as ever, and only the one that failed."""
    failed(place, way)
    agent = Agent(place, way)
    history = agent.go_on(None)
    assert shape(history) == shape(agent.stored()) == ["human", "ai", "c0=fast gave", "c1=boom gave", "ai"]
    assert place.effects.counts() == {"boom": 2, "fast": 1}
    assert_settled(agent, gave=["fast", "boom"])


# --- C5: causes ---


CAUSE_WAYS = pytest.mark.parametrize("way", FEW_WAYS, ids=[way.name for way in FEW_WAYS])
OURS = pytest.mark.parametrize(("kind", "colour"), [("turn", "sync"), ("turn", "async")], ids=["sync", "async"])


@CAUSE_WAYS
@OURS
def test_a_limit_between_model_and_tools_is_named(place, way):
    """C5, F7: the call is known not to have started."""
    agent = Agent(place, way, {"go": calls("fast")})
    with pytest.raises(Exception, match="[Rr]ecursion limit"):
        agent.run({"messages": [("human", "go")]}, recursion_limit=1)
    other = Agent(place, way)
    history = other.say("next")
    assert shape(history) == ["human", "ai", "c0=not_run", "human", "ai"]
    assert cause(answers(history)["c0"]) == "limit"
    assert_honest(answers(history)["c0"], ran=False)
    assert place.effects.counts() == {}
    assert_settled(other)


@pytest.mark.parametrize("reason", ["user", "superseded", "limit", "error", "unknown", "restart"])
@CAUSE_WAYS
@OURS
def test_the_reason_of_a_cancelled_turn_is_named(place, way, reason):
    """C5: whoever cancels the turn says why, and the answer repeats that and nothing else."""
    reached, resumed = threading.Event(), threading.Event()
    ending = Ending("block", reached=reached, resumed=resumed)
    agent = Agent(place, way, {"go": calls("slow")}, endings={"slow": ending})
    errors: list[BaseException] = []

    def run() -> None:
        try:
            agent.run({"messages": [("human", "go")]})
        except BaseException as error:  # noqa: BLE001 - which one is asserted below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(HANG_SECONDS)
    canceller: Any = agent.saver
    canceller.cancel_turn("t", reason=reason)
    resumed.set()
    thread.join(HANG_SECONDS)
    assert [type(error).__name__ for error in errors] == ["StaleTurnError"]
    other = Agent(place, way)
    history = other.say("next")
    answer = answers(history)["c0"]
    # What the tool gave after all may be known by now; it is never a second answer.
    assert shape(history) == ["human", "ai", f"c0={outcome(answer) or 'slow gave'}", "human", "ai"]
    if outcome(answer):
        assert (outcome(answer), cause(answer)) == ("unknown", reason)
        assert_honest(answer, ran=True)
    assert place.effects.counts() == {"slow": 1}
    assert_settled(other)


@CAUSE_WAYS
@OURS
def test_a_message_that_takes_over_is_named(place, way):
    """C5: the older run is superseded while its tool runs; what it gives late is no second answer."""
    reached, resumed = threading.Event(), threading.Event()
    ending = Ending("block", reached=reached, resumed=resumed)
    agent = Agent(place, way, {"go": calls("slow")}, endings={"slow": ending})
    errors: list[BaseException] = []

    def run() -> None:
        try:
            agent.run({"messages": [("human", "go")]})
        except BaseException as error:  # noqa: BLE001 - which one is asserted below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(HANG_SECONDS)
    with opened(place.kind, place.colour, place.path) as elsewhere:
        other = Agent(elsewhere, way)
        history = other.say("next")
        resumed.set()
        thread.join(HANG_SECONDS)
        assert shape(history) == ["human", "ai", "c0=unknown", "human", "ai"]
        assert cause(answers(history)["c0"]) == "superseded"
        assert_honest(answers(history)["c0"], ran=True)
        assert [type(error).__name__ for error in errors] == ["StaleTurnError"]
        assert other.stored() == history
        assert place.effects.counts() == {"slow": 1}
        assert_settled(other)


def test_each_cause_has_a_text_of_its_own():
    """C5: a started call is never said not to have run, and nothing is ever said to have succeeded."""
    from langgraph_turncheckpoint._finalize import wording
    from langgraph_turncheckpoint._turn import CAUSES

    texts = {each: wording("unknown", each, "slow") for each in CAUSES}
    assert len(set(texts.values())) == len(CAUSES) == 6
    for each, text in texts.items():
        note = {"turncheckpoint": {"outcome": "unknown", "cause": each}}
        message = ToolMessage(text, tool_call_id="c0", status="error", response_metadata=note)
        assert_honest(message, ran=True)


# --- C13: late results ---


@over(list(WAYS.values()), few=[WAYS["attach-agent"]])
def test_a_late_result_is_no_second_answer(place, way):
    """C13: somebody writes the real result into the state after the call was closed."""
    stopped(place, way, "slow")
    Agent(place, way).say("next")
    agent = Agent(place, way)
    late = ToolMessage("slow gave", tool_call_id="c0", id="late")
    place.call(agent.plain(place.open()), "update_state", agent.config, {"messages": [late]}, as_node="tools")
    history = agent.say("and now")
    assert_valid(agent.seen)
    assert len([m for m in history if isinstance(m, ToolMessage)]) == 1
    assert isinstance(history[-1], AIMessage)
    assert_settled(agent)


@over(GUARDED_WAYS, few=[WAYS["attach-agent"]])
def test_a_late_result_in_the_input_is_no_second_answer(place, way):
    """C13: the real result comes with the next message, after the call was closed."""
    stopped(place, way, "slow")
    Agent(place, way).say("next")
    agent = Agent(place, way)
    late = ToolMessage("slow gave", tool_call_id="c0", id="late")
    history = agent.go_on({"messages": [late, ("human", "and now")]})
    assert_valid(agent.seen)
    assert len([m for m in history if isinstance(m, ToolMessage)]) == 1
    assert isinstance(history[-1], AIMessage)
    assert_settled(agent)


@over(GUARDED_WAYS, few=[WAYS["attach-agent"]])
@pytest.mark.parametrize("follower", [[], [("human", "and now")]], ids=["alone", "with-a-message"])
def test_an_answer_that_comes_as_input_is_the_answer(place, way, follower):
    """A call whose answer is brought by whoever continues the thread is not closed in front of it."""
    stopped(place, way, "slow")
    agent = Agent(place, way)
    brought = ToolMessage("done elsewhere", tool_call_id="c0", id="brought")
    history = agent.go_on({"messages": [brought, *follower]})
    wanted = ["human", "ai", "c0=done elsewhere", *("human" for _ in follower)]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert place.effects.counts() == {"slow": 1}
    assert_settled(agent)
