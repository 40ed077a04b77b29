"""Unanswered calls in states of every shape, in subgraphs, with tools that give more than a text, and encrypted."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import pytest
from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.contract.guarded_agents import (
    TOOLS,
    WAYS,
    Agent,
    Ending,
    Way,
    assert_settled,
    built,
    calls,
    hand_built,
    over,
    toolbox,
)
from tests.contract.guarded_places import Place, opened
from tests.contract.true_histories import answers, assert_valid, outcome, shape
from tests.langgraph_versions import needs_overwrites_that_stand_alone

pytest.importorskip("langchain")


class Custom(TypedDict):
    chat: Annotated[list[AnyMessage], add_messages]


class Pydantic(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    other: int = 1


@dataclass
class Dataclass:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    other: int = 1


class Added(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


class Replaced(TypedDict):
    messages: list[AnyMessage]


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class DeltaOften(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=2)]


class Shape(NamedTuple):
    """A state, and how the nodes of a graph built by hand use it."""

    name: str
    state: Any
    key: str = "messages"
    replaces: bool = False
    has_ids: bool = True


SHAPES: Final = (
    Shape("add_messages", MessagesState),
    Shape("without-ids", MessagesState, has_ids=False),
    Shape("custom-key", Custom, key="chat"),
    Shape("pydantic", Pydantic),
    Shape("dataclass", Dataclass),
    Shape("operator-add", Added),
    Shape("operator-add-without-ids", Added, has_ids=False),
    Shape("no-reducer", Replaced, replaces=True),
    Shape("no-reducer-without-ids", Replaced, replaces=True, has_ids=False),
    Shape("delta", Delta),
    Shape("delta-often", DeltaOften),
    Shape("delta-without-ids", Delta, has_ids=False),
)

HAND_WAYS: Final = [way for way in WAYS.values() if way.graph == "hand"]


def marks_of(each: Shape, way: Way) -> list[pytest.MarkDecorator]:
    is_overwritten = each.name == "delta-without-ids" and way.guard == "node"
    return [needs_overwrites_that_stand_alone] if is_overwritten else []


def each_shape(ways: list[Way]) -> Any:
    """Parametrizes a test over shapes and ways; those that await differ least, so there are fewer."""
    found = [
        pytest.param(each, way, colour, id=f"{colour}-{each.name}-{way.name}", marks=marks_of(each, way))
        for colour in ("sync", "async")
        for each in SHAPES
        for way in ways
        if not (each.replaces and way.fan_out)
        if colour == "sync" or way.name in ("node-one-task", "attach-one-task")
    ]
    return pytest.mark.parametrize(("each", "way", "colour"), found)


@pytest.fixture
def place(colour: Any, tmp_path: Path) -> Iterator[Place]:
    with opened("turn", colour, tmp_path) as found:
        yield found


def maker(each: Shape) -> Callable[..., Any]:
    """Graphs over a state."""

    def make(way: Way, model: Any, tools: Any, guard: Any, colour: Any) -> Any:
        own = guard if way.guard == "node" else None
        options: Any = each._asdict()
        del options["name"]
        builder = hand_built(model, tools, colour=colour, fan_out=way.fan_out, guard=own, **options)
        return lambda saver: builder.compile(checkpointer=saver)

    return make


def agents(place: Place, way: Way, each: Shape) -> Callable[..., Agent]:
    """Makes agents over a state."""

    def agent(script: Any = None, **options: Any) -> Agent:
        return Agent(place, way, script, make=maker(each), messages_key=each.key, replaces=each.replaces, **options)

    return agent


def stop(make: Callable[..., Agent], script: Any, *, after: str = "", **options: Any) -> None:
    """Run into "slow", which stops the run once a text is in the journal."""
    reached = threading.Event()
    found: list[Agent] = []
    ending = Ending("stop", lambda: not after or found[0].place.journals_hold(after), reached)
    found.append(make(script, endings={"slow": ending}, **options))
    found[0].stop_in("go", reached)


# --- shapes of states ---


@each_shape(HAND_WAYS)
def test_a_stopped_run_is_finalized_in_every_state(place, way, each):
    """C1, C3: the real result and the open outcome reach the model and the store, behind their call."""
    make = agents(place, way, each)
    stop(make, {"go": calls("fast", "slow")}, after="fast gave")
    agent = make()
    history = agent.say("next")
    wanted = ["human", "ai", "c0=fast gave", "c1=unknown", "human"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": 1}
    assert_settled(agent, gave=["fast"])
    assert shape(make().say("and")) == [*wanted, "ai", "human", "ai"]


@each_shape([way for way in HAND_WAYS if not way.is_by_hand])
def test_a_stopped_run_goes_on_in_every_state(place, way, each):
    """G2: nothing that gave a result or had started runs again."""
    make = agents(place, way, each)
    stop(make, {"go": calls("fast", "slow")}, after="fast gave")
    agent = make()
    history = agent.go_on(None)
    wanted = ["human", "ai", "c0=fast gave", "c1=unknown"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": 1}
    assert_settled(agent, gave=["fast"])


@each_shape(HAND_WAYS)
def test_call_ids_that_every_step_repeats_are_told_apart_when_a_message_comes(place, way, each):
    """The call c0 of the last step is not answered with what c0 of the step before gave."""
    make = agents(place, way, each)
    stop(make, {"go": calls("fast"), "fast gave": calls("slow")})
    agent = make()
    history = agent.say("next")
    wanted = ["human", "ai", "c0=fast gave", "ai", "c0=unknown", "human"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": 1}
    assert_settled(agent, gave=["fast"])


@each_shape([way for way in HAND_WAYS if not way.is_by_hand])
def test_call_ids_that_every_step_repeats_are_told_apart_when_the_run_goes_on(place, way, each):
    """The same for a run that goes on."""
    make = agents(place, way, each)
    stop(make, {"go": calls("fast"), "fast gave": calls("slow")})
    agent = make()
    history = agent.go_on(None)
    wanted = ["human", "ai", "c0=fast gave", "ai", "c0=unknown"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": 1}
    assert_settled(agent, gave=["fast"])


@each_shape([way for way in HAND_WAYS if not way.is_by_hand])
def test_a_run_that_is_not_stopped_is_the_same_as_without_a_guard(place, way, each):
    """Ids that repeat in every step and every turn do not confuse a guard to whom nothing happened."""
    make = agents(place, way, each)
    script = {"go": calls("fast"), "fast gave": calls("third"), "again": calls("f0", "fast")}
    make(script).say("go")
    history = make(script | {"fast gave": calls("third")}).say("again")
    assert shape(history) == [
        *("human", "ai", "c0=fast gave", "ai", "c0=third gave", "ai"),
        *("human", "ai", "c0=f0 gave", "c1=fast gave", "ai", "c0=third gave", "ai"),
    ]
    assert place.effects.counts() == {"f0": 1, "fast": 2, "third": 2}
    assert_settled(make())


# --- subgraphs ---


def nested(way: Way, model: Any, tools: Any, guard: Any, colour: Any) -> Any:
    """The agent as a node of a graph that shares its history."""
    inner = built(way, model, tools, guard, colour)(None)
    builder: StateGraph[Any] = StateGraph(MessagesState)
    builder.add_node("agent", inner)
    builder.add_edge(START, "agent")
    return lambda saver: builder.compile(checkpointer=saver)


SUBGRAPH_WAYS: Final = [way for way in WAYS.values() if way.has_journal]


def over_ways(ways: list[Way]) -> Any:
    return over(ways, few=[], places=[("turn", "sync"), ("turn", "async")])


@over_ways(SUBGRAPH_WAYS)
def test_a_stopped_agent_in_a_subgraph_is_finalized_in_the_shared_history(place, way, kind):
    """The history of the whole has the reply, the real result and the open outcome."""

    def make(script: Any = None, **options: Any) -> Agent:
        return Agent(place, way, script, make=nested, **options)

    stop(make, {"go": calls("fast", "slow")}, after="fast gave")
    agent = make()
    history = agent.say("next")
    wanted = ["human", "ai", "c0=fast gave", "c1=unknown", "human"]
    assert shape(agent.seen) == wanted
    if way.guard in ("middleware", "node"):
        # What the subgraph gives back comes behind what the graph around it has by then.
        wanted = ["human", "human", "ai", "c0=fast gave", "c1=unknown"]
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": 1}
    assert_settled(agent, gave=["fast"])


@over_ways([way for way in SUBGRAPH_WAYS if not way.is_by_hand])
def test_a_stopped_agent_in_a_subgraph_goes_on(place, way, kind):
    """A resumed subgraph finds what happened in it."""

    def make(script: Any = None, **options: Any) -> Agent:
        return Agent(place, way, script, make=nested, **options)

    stop(make, {"go": calls("fast", "slow")}, after="fast gave")
    agent = make()
    history = agent.go_on(None)
    wanted = ["human", "ai", "c0=fast gave", "c1=unknown"]
    assert shape(agent.seen) == wanted
    assert shape(history) == shape(agent.stored()) == [*wanted, "ai"]
    assert place.effects.counts() == {"fast": 1, "slow": 1}
    assert_settled(agent, gave=["fast"])


# --- tools that give more than a text ---


class WithNotes(MessagesState, total=False):
    notes: Annotated[list[str], operator.add]


def rich_tools(place: Place) -> list[BaseTool]:
    """A tool that gives a command, and one that gives an artifact."""

    @tool
    def command(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Update the state."""
        place.effects.add("command")
        return Command(update={"messages": [ToolMessage("command gave", tool_call_id=call_id)], "notes": ["noted"]})

    @tool(response_format="content_and_artifact")
    def artifact() -> tuple[str, Any]:
        """Make something."""
        place.effects.add("artifact")
        return "artifact gave", {"made": [1, 2]}

    return [command, artifact]


def rich(way: Way, model: Any, tools: Any, guard: Any, colour: Any) -> Any:
    own = guard if way.guard == "node" else None
    builder = hand_built(model, tools, colour=colour, fan_out=way.fan_out, guard=own, state=WithNotes)
    return lambda saver: builder.compile(checkpointer=saver)


def stop_behind_rich_tools(place: Place, way: Way) -> Agent:
    """A run stopped in "slow" when the other two had given; the agent that comes next."""
    reached = threading.Event()
    ending = Ending("stop", lambda: all(place.journals_hold(f"{n} gave") for n in ("command", "artifact")), reached)
    script = {"go": calls("command", "artifact", "slow")}
    tools = [*rich_tools(place), *toolbox(place.effects, ["slow"], {"slow": ending}, place.colour)]
    Agent(place, way, script, make=rich, tools=tools).stop_in("go", reached)
    return Agent(place, way, make=rich, tools=[*rich_tools(place), *toolbox(place.effects, TOOLS, {}, place.colour)])


RICH_WAYS: Final = over_ways([way for way in HAND_WAYS if not way.is_by_hand])


@pytest.mark.parametrize("goes_on", [True, False], ids=["goes-on", "message"])
@RICH_WAYS
def test_commands_and_artifacts_of_finished_tools_are_kept(place, way, kind, goes_on):
    """A recorded result is the whole of what the tool gave."""
    agent = stop_behind_rich_tools(place, way)
    history = agent.go_on(None) if goes_on else agent.say("next")
    assert_valid(history)
    found = answers(history)
    assert [found[c].text for c in ("c0", "c1")] == ["command gave", "artifact gave"]
    assert found["c1"].artifact == {"made": [1, 2]}
    assert outcome(found["c2"]) == "unknown"
    assert history[: len(agent.seen)] == agent.seen
    assert agent.stored() == history
    if goes_on:
        assert agent.state().values["notes"] == ["noted"]
    assert place.effects.counts() == {"artifact": 1, "command": 1, "slow": 1}
    assert_settled(agent, gave=["command", "artifact"])


@RICH_WAYS
def test_the_update_of_a_finished_command_is_kept_when_a_message_comes(place, way, kind):
    """What a finished tool wrote beside its answer is part of its result."""
    agent = stop_behind_rich_tools(place, way)
    agent.say("next")
    assert agent.state().values["notes"] == ["noted"]


# --- encrypted ---


@over_ways(list(WAYS.values()))
def test_an_encrypted_thread_is_finalized_and_tells_nothing(way, kind, colour, tmp_path):
    """S8: what the tools gave is in no file in clear, and yet known after a stop."""
    pytest.importorskip("Crypto")
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    with opened("turn", colour, tmp_path, serde=serde) as place:
        reached = threading.Event()
        ending = Ending("stop", lambda: not way.fan_out or place.writes_hold("fast gave"), reached)
        agent = Agent(place, way, {"go": calls("fast", "slow")}, endings={"slow": ending})
        if way.guard == "recover":
            agent.guarded = agent.graph
        config: RunnableConfig = {} if way.fan_out else {"max_concurrency": 1}
        agent.stop_in("go", reached, **config)
        other = Agent(place, way)
        history = other.say("next")
        assert outcome(answers(history)["c1"]) == "unknown"
        assert_valid(history)
        if way.fan_out or colour == "sync":
            assert shape(history) == ["human", "ai", "c0=fast gave", "c1=unknown", "human", "ai"]
        # One task that awaits both calls may be stopped before the other one has begun.
        effects = place.effects.counts()
        assert effects == {"fast": 1, "slow": 1} or (colour == "async" and not way.fan_out and effects["slow"] == 1)
        assert_settled(other)
        stored = b"".join(file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file())
        for secret in (b"fast gave", b"interrupted and left no result", b"next"):
            assert secret not in stored
