"""The end of a history that a step has added to: answers behind their calls, and each id once in a message."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.graph.message import add_messages

from langgraph_turncheckpoint._guarded_node import adds_messages
from langgraph_turncheckpoint._history_channel import in_order, ordered_end


def said(*calls: str, name: str = "pay") -> AIMessage:
    stated: Any = [{"name": name, "args": {}, "id": each, "type": "tool_call"} for each in calls]
    return AIMessage("", tool_calls=stated, id="-".join(calls) or "plain")


def answer(call_id: str) -> ToolMessage:
    return ToolMessage(call_id, tool_call_id=call_id, id=f"t-{call_id}")


def human(text: str) -> HumanMessage:
    return HumanMessage(text, id=text)


HEALTHY = [
    [],
    [human("go")],
    [human("go"), said("a", "b"), answer("a"), answer("b")],
    [human("go"), said("a"), answer("a"), human("more"), said()],
]


@pytest.mark.parametrize("history", HEALTHY)
@pytest.mark.parametrize("added", [0, 1, 3, 9])
def test_what_is_in_order_stays_the_same_list(history, added):
    assert ordered_end(history, added) is history


def test_an_answer_goes_behind_its_call_and_the_answers_that_are_there():
    moved = ordered_end([human("go"), said("a", "b"), answer("a"), human("and more"), answer("b")], 2)
    assert [m.id for m in moved] == ["go", "a-b", "t-a", "t-b", "and more"]


def test_every_answer_behind_the_first_that_is_astray_goes_to_its_place():
    history = [said("a", "b", "c"), answer("a"), human("1"), answer("b"), human("2"), answer("c")]
    assert [m.id for m in ordered_end(history, 5)] == ["a-b-c", "t-a", "t-b", "t-c", "1", "2"]


def test_what_was_there_before_is_not_looked_at():
    history = [said("a"), human("1"), answer("a"), human("2")]
    assert ordered_end(history, 1) is history


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([human("go"), answer("x")], id="of no call"),
        pytest.param([said("a"), answer("a"), human("1"), answer("a")], id="a second one"),
        pytest.param([said("a", name="later"), human("1"), answer("a")], id="of a call that is answered later"),
        pytest.param([answer("a")], id="nothing before it"),
    ],
)
def test_an_answer_that_belongs_nowhere_stays(history):
    assert ordered_end(history, 1, {"later"}) == history


def test_of_calls_with_one_id_all_but_the_first_get_their_own():
    (message,) = ordered_end([said("a", "a", "b")], 1)
    ids = [call["id"] for call in message.tool_calls]
    assert ids[0::2] == ["a", "b"]
    assert len(set(ids)) == 3
    assert ordered_end([said("a", "a", "b")], 1)[0].tool_calls == message.tool_calls


def channel(reducer: Any) -> Any:
    made = BinaryOperatorAggregate(list, reducer)
    made.key = "messages"
    return made


def test_a_channel_that_takes_messages_by_id_is_kept_in_order_and_still_known_as_one():
    channels = {"messages": channel(add_messages), "other": channel(operator.add)}
    ordered = in_order(channels, "messages", ())
    assert ordered["other"] is channels["other"]
    assert ordered["messages"].key == "messages"
    assert adds_messages(ordered["messages"])
    live = ordered["messages"].from_checkpoint([said("a", "b"), answer("a")])
    live.update([[human("and more")], [answer("b")]])
    assert [m.id for m in live.get()] == ["a-b", "t-a", "t-b", "and more"]


@pytest.mark.parametrize("channels", [{}, {"messages": channel(operator.add)}])
def test_other_channels_are_left_alone(channels):
    assert in_order(channels, "messages", ()) == channels
