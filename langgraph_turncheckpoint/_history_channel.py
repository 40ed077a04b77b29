"""The history's channel in an attached graph: as the graph has it, but what a step adds is in order when the next
one reads it. LangGraph adds what tools give task by task, so what one says beside its answer would stand in front of
the next one's answer. Calls of earlier runs are not closed here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.channels.binop import BinaryOperatorAggregate

from ._guarded_node import adds_messages
from ._tool_calls import calls_of, complete_calls


def in_order(channels: Mapping[str, Any], key: str, unanswered: Collection[str]) -> dict[str, Any]:
    """The channels of a graph, with the history's in order, if it takes messages by their ids."""
    channel = channels.get(key)
    if type(channel) is not BinaryOperatorAggregate or not adds_messages(channel):
        return dict(channels)
    ordered: BinaryOperatorAggregate[Any] = BinaryOperatorAggregate(
        channel.typ, _ordering(channel.operator, frozenset(unanswered))
    )
    ordered.key = channel.key
    return {**channels, key: ordered}


def _ordering(reducer: Callable[[Any, Any], Any], unanswered: frozenset[str]) -> Callable[[Any, Any], Any]:
    @functools.wraps(getattr(reducer, "func", reducer))
    def add(left: Any, right: Any) -> Any:
        merged = reducer(left, right)
        return ordered_end(merged, len(right) if isinstance(right, list) else 1, unanswered)

    return add


def ordered_end(history: Any, added: int, unanswered: Collection[str] = ()) -> Any:
    """A history whose last `added` messages are new: answers right behind their calls, ids once in a message.

    A look at those messages alone, as long as nothing is amiss.
    """
    if not isinstance(history, list):
        return history
    start = max(0, len(history) - added)
    for place in range(start, len(history)):
        message = history[place]
        if isinstance(message, AIMessage) and len(message.tool_calls) > 1 and _repeats_ids(message):
            history = [*history[:place], complete_calls(message, calls_of(message, place)), *history[place + 1 :]]
        elif (
            isinstance(message, ToolMessage) and place and not isinstance(history[place - 1], (AIMessage, ToolMessage))
        ):
            return _moved(history, place, unanswered)
    return history


def _repeats_ids(message: AIMessage) -> bool:
    ids = [call["id"] for call in message.tool_calls if call["id"]]
    return len(set(ids)) < len(ids)


def _moved(history: Sequence[Any], start: int, unanswered: Collection[str]) -> list[Any]:
    """The history with answers from a place on behind the calls that they answer."""
    out = list(history[:start])
    for message in history[start:]:
        place = _place_of(out, message, unanswered) if isinstance(message, ToolMessage) else len(out)
        out.insert(place, message)
    return out


def _place_of(history: Sequence[Any], answer: ToolMessage, unanswered: Collection[str]) -> int:
    """Where an answer belongs; the end, if its call is not there, is answered, or is one that is answered later."""
    end = len(history)
    for place in range(end - 1, -1, -1):
        message = history[place]
        if not isinstance(message, AIMessage):
            continue
        call = next((call for call in message.tool_calls if call["id"] == answer.tool_call_id), None)
        if call is None:
            continue
        behind = place + 1
        while behind < end and isinstance(history[behind], ToolMessage):
            if history[behind].tool_call_id == answer.tool_call_id:
                return end
            behind += 1
        return end if call["name"] in unanswered else behind
    return end
