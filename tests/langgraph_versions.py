"""What differs between the LangGraph versions that are allowed, found by asking rather than by number."""

from __future__ import annotations

import inspect
from typing import Any, Final

import ormsgpack
import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint import base
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command, Overwrite, interrupt


def _keeps_data_of_lost_classes() -> bool:
    named = ormsgpack.Ext(2, ormsgpack.packb(("no_such_module", "Gone", {"x": 1})))
    return JsonPlusSerializer().loads_typed(("msgpack", ormsgpack.packb(named))) is not None


needs_data_of_lost_classes = pytest.mark.skipif(
    not _keeps_data_of_lost_classes(),
    reason="this LangGraph's own serializer gives None for a class it cannot find, where later ones give its data",
)


def _overwrites_delta_channels_alone() -> bool:
    reducer: Any = _messages_delta_reducer
    channel: Any = DeltaChannel(reducer).from_checkpoint(None)
    channel.update([[AIMessage("beside")], Overwrite([AIMessage("all")])])
    return len(channel.get()) == 1


needs_overwrites_that_stand_alone = pytest.mark.skipif(
    not _overwrites_delta_channels_alone(),
    reason="this LangGraph's DeltaChannel adds to an Overwrite what was written before it in the same step",
)

needs_savers_that_sort_writes = pytest.mark.skipif(
    not hasattr(base, "writes_sort_key"),
    reason="savers of this LangGraph list the writes of a checkpoint each in an order of its own, so that what a graph "
    "makes of the same thread differs between them; moving threads is tested with later ones",
)


def _tells_answered_questions() -> bool:
    builder: Any = StateGraph(dict)
    for name in ("x", "y"):
        builder.add_node(name, lambda _, name=name: interrupt(name) and None).add_edge(START, name)
    graph, config = builder.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "1"}}
    asked = graph.invoke({}, config)["__interrupt__"]
    graph.invoke(Command(resume={asked[0].id: "yes"}), config)
    return len(graph.get_state(config).interrupts) == 1


needs_answered_questions_to_be_gone = pytest.mark.skipif(
    not _tells_answered_questions(),
    reason="with this LangGraph a question that was answered is still shown while another of the same step is open",
)

#: How LangChain's agents can ask a person: about all calls of a reply at once, or each on its own.
ASKS_PER_CALL: Final = "interrupt_mode" in inspect.signature(HumanInTheLoopMiddleware.__init__).parameters
REVIEW_MODES: Final = [
    "batched",
    pytest.param(
        "per_call", marks=pytest.mark.skipif(not ASKS_PER_CALL, reason="this LangChain asks about all calls at once")
    ),
]


def reviewing(tools: dict[str, Any], mode: str) -> HumanInTheLoopMiddleware[Any, Any, Any]:
    """The middleware that asks, in one of those modes."""
    options: Any = {"interrupt_mode": mode} if ASKS_PER_CALL else {}
    return HumanInTheLoopMiddleware(tools, **options)
