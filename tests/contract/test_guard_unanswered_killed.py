"""Calls of processes that were killed in a tool. Another process takes the thread over: with a new message, or by
going on.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.guarded_agents import GUARDED_WAYS, SOME_WAYS, WAYS, Agent, Ending, Way, assert_settled, calls, over
from tests.contract.guarded_places import Place, opened
from tests.contract.true_histories import answers, assert_honest, assert_valid, cause, outcome, shape
from tests.crash.processes import Child, Line

pytest.importorskip("langchain")
pytest.importorskip("langgraph.checkpoint.sqlite")

#: A store in memory dies with its process.
DURABLE = (("turn", "sync"), ("turn", "async"), ("sqlite", "sync"), ("aiosqlite", "async"))
FEW = [WAYS["attach-agent"], WAYS["node"], WAYS["middleware"]]


@pytest.fixture
def place(kind: str, colour: Any, tmp_path: Path) -> Iterator[Place]:
    with opened(kind, colour, tmp_path) as found:
        yield found


def run_until_killed(
    line: Line, way: Way, kind: str, colour: Any, path: Path, names: list[str], turns: int, lost: str
) -> None:
    """A process that dies in "slow", in the last of its turns, once all before it had given and were stored.

    What of that turn's checkpoints is not stored: nothing, that with the model's "reply", also that with the "prompt",
    or "all" of them.
    """
    del line
    place = Place(kind, colour, path)
    script = {"go": calls(*names), **{f"turn {n}": calls("fast") for n in range(turns)}}
    holds = place.journals_hold if way.has_journal else place.writes_hold

    def all_stored() -> bool:
        is_prompt_stored = lost != "reply" or place.history_holds("go")
        return is_prompt_stored and all(holds(f"{name} gave") for name in names[: names.index("slow")])

    agent = Agent(place, way, script, endings={"slow": Ending("kill", all_stored)})
    if way.guard == "recover":
        agent.guarded = agent.graph
    for n in range(turns):
        agent.run({"messages": [("human", f"turn {n}")]})
    # One worker: what comes behind "slow" has not started when it dies, where LangGraph heeds that.
    config = {**agent.config, "max_concurrency": 1} if way.has_journal and not lost else agent.config
    durability = {"": "sync", "all": "exit"}.get(lost, "async")
    if durability == "async":
        lose(agent.saver, {"reply": "'slow'", "prompt": "'go'"}[lost])
    place.call(agent.guarded, "invoke", {"messages": [("human", "go")]}, config, durability=durability)
    raise AssertionError("slow should have killed the process")


def lose(saver: Any, text: str) -> None:
    """Let checkpoints whose history has a text never reach the disk, while the run goes on."""
    put, aput, held = saver.put, saver.aput, threading.Event()

    def is_lost(checkpoint: Any) -> bool:
        return text in repr(checkpoint["channel_values"].get("messages"))

    def late(config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if is_lost(checkpoint):
            held.wait()
        return put(config, checkpoint, metadata, versions)

    async def alate(config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if is_lost(checkpoint):
            await asyncio.Event().wait()
        return await aput(config, checkpoint, metadata, versions)

    saver.put, saver.aput = late, alate


def killed(place: Place, way: Way, *names: str, turns: int = 0, lost: str = "") -> None:
    """A process was killed by its tool."""
    arguments = (way, place.kind, place.colour, place.path, list(names), turns, lost)
    with Child(run_until_killed, *arguments) as child:
        assert child.end() == -signal.SIGKILL


@over(list(WAYS.values()), few=FEW, places=DURABLE)
def test_three_calls_are_answered_after_a_kill_in_the_second(place, way):
    """C2: effects unchanged, three answers, the finished one is real, the other two claim no more than is known."""
    killed(place, way, "fast", "slow", "third")
    effects = place.effects.counts()
    agent = Agent(place, way)
    history = agent.say("next")
    assert_valid(agent.seen)
    found = answers(agent.seen)
    assert list(found) == ["c0", "c1", "c2"]
    assert (found["c0"].text, outcome(found["c1"])) == ("fast gave", "unknown")
    assert cause(found["c1"]) == ("restart" if way.has_journal else "unknown")
    assert_honest(found["c1"], ran=True)
    assert_honest(found["c2"], ran="third" in effects)
    if way.has_journal and place.colour == "sync":
        assert outcome(found["c2"]) == "not_run"
        assert cause(found["c2"]) == "restart"
    assert history[:-1] == agent.seen
    assert agent.stored() == history
    assert place.effects.counts() == effects
    assert effects["fast"] == effects["slow"] == 1
    assert_settled(agent, gave=["fast"])


@over(GUARDED_WAYS, few=FEW, places=DURABLE)
def test_a_killed_run_goes_on_from_what_really_happened(place, way):
    """G2: the finished call does not run again, the started one is reported, the one that never started runs."""
    killed(place, way, "fast", "slow", "third")
    started = place.effects.counts()
    agent = Agent(place, way)
    history = agent.go_on(None)
    assert_valid(agent.seen)
    found = answers(history)
    assert (found["c0"].text, outcome(found["c1"])) == ("fast gave", "unknown")
    assert cause(found["c1"]) == "restart"
    assert_honest(found["c1"], ran=True)
    effects = place.effects.counts()
    if outcome(found["c2"]) == "":
        assert found["c2"].text == "third gave"
        assert effects == {"fast": 1, "slow": 1, "third": 1}
    else:
        # Its start was recorded; the process may have died before its effect or after.
        assert outcome(found["c2"]) == "unknown"
        assert effects == started
    assert agent.stored() == history
    assert_settled(agent, gave=["fast"])


@over([*SOME_WAYS, WAYS["recover"]], few=[], places=DURABLE)
def test_call_ids_that_every_turn_repeats_are_told_apart_after_a_kill(place, way):
    """c0 of the killed turn is not answered with what c0 of an earlier turn gave, nor the other way round."""
    killed(place, way, "slow", turns=2)
    agent = Agent(place, way)
    history = agent.say("next")
    once = ["human", "ai", "c0=fast gave", "ai"]
    assert shape(history) == [*once, *once, "human", "ai", "c0=unknown", "human", "ai"]
    assert place.effects.counts() == {"fast": 2, "slow": 1}
    assert agent.stored() == history
    assert not agent.recover().changed


@over(SOME_WAYS, few=[], places=DURABLE)
def test_call_ids_that_every_turn_repeats_are_told_apart_when_a_killed_run_goes_on(place, way):
    """The same when the run goes on."""
    killed(place, way, "slow", turns=2)
    agent = Agent(place, way)
    history = agent.go_on(None)
    once = ["human", "ai", "c0=fast gave", "ai"]
    assert shape(history) == [*once, *once, "human", "ai", "c0=unknown", "ai"]
    assert place.effects.counts() == {"fast": 2, "slow": 1}
    assert not agent.recover().changed


@over([*SOME_WAYS, WAYS["recover"]], few=[], places=DURABLE)
def test_a_second_kill_in_a_later_turn_leaves_the_first_repair_alone(place, way):
    """C10 over two crashes: what was repaired once keeps its cause and its words."""
    killed(place, way, "fast", "slow")
    first = Agent(place, way).say("next")
    killed(place, way, "f0", "slow")
    agent = Agent(place, way)
    history = agent.say("and next")
    assert history[: len(first)] == first
    assert shape(history[len(first) :]) == ["human", "ai", "c0=f0 gave", "c1=unknown", "human", "ai"]
    assert place.effects.counts() == {"f0": 1, "fast": 1, "slow": 2}
    assert agent.stored() == history
    assert not agent.recover().changed


LOST = pytest.mark.parametrize("lost", ["reply", "prompt", "all"])


@LOST
@over(SOME_WAYS, few=[WAYS["attach-agent"]], places=DURABLE)
def test_calls_that_no_checkpoint_knows_are_answered_after_a_kill(place, way, lost):
    """The journal alone tells of the prompt, the reply and what its calls gave."""
    killed(place, way, "fast", "slow", turns=1, lost=lost)
    agent = Agent(place, way)
    history = agent.say("next")
    once = ["human", "ai", "c0=fast gave", "ai"]
    assert shape(agent.seen) == [*once, "human", "ai", "c0=fast gave", "c1=unknown", "human"]
    assert [m.text for m in history if m.type == "human"] == ["turn 0", "go", "next"]
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    assert place.effects.counts() == {"fast": 2, "slow": 1}
    assert not agent.recover().changed


@pytest.mark.parametrize("lost", ["reply", "prompt"])
@over(SOME_WAYS, few=[WAYS["attach-agent"]], places=DURABLE)
def test_a_killed_run_goes_on_from_calls_that_no_checkpoint_knows(place, way, lost):
    """The reply is not asked for again: it would make its calls under other ids, and their effects twice."""
    killed(place, way, "fast", "slow", turns=1, lost=lost)
    agent = Agent(place, way)
    history = agent.go_on(None)
    once = ["human", "ai", "c0=fast gave", "ai"]
    assert shape(agent.seen) == [*once, "human", "ai", "c0=fast gave", "c1=unknown"]
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    assert place.effects.counts() == {"fast": 2, "slow": 1}
    assert not agent.recover().changed


@over([WAYS["attach-agent"], WAYS["attach-one-task"]], few=[WAYS["attach-agent"]], places=DURABLE)
def test_a_killed_run_goes_on_where_it_left_no_checkpoint_at_all(place, way):
    """Under `durability="exit"`. A guard that sits in nodes is not asked: LangGraph has nothing to go on with."""
    killed(place, way, "fast", "slow", turns=1, lost="all")
    agent = Agent(place, way)
    history = agent.go_on(None)
    once = ["human", "ai", "c0=fast gave", "ai"]
    assert shape(agent.seen) == [*once, "human", "ai", "c0=fast gave", "c1=unknown"]
    assert shape(history) == shape(agent.stored()) == [*shape(agent.seen), "ai"]
    assert place.effects.counts() == {"fast": 2, "slow": 1}
    assert not agent.recover().changed
