"""Two writes turn one history into another, through LangGraph's own reducer and beside what other nodes add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command
from typing_extensions import TypedDict

from langgraph_turncheckpoint._history_edits import edits_of

ASK = HumanMessage("ask", id="h")
CALLS = AIMessage("", id="ai", tool_calls=[{"name": "a", "args": {}, "id": "c0"}])
DONE = ToolMessage("done", tool_call_id="c0", id="t")
MORE = HumanMessage("more", id="h2")


def written(old: Sequence[Any], edits: tuple[Any, Any]) -> Any:
    """What `add_messages` makes of both writes, one after the other."""
    held: Any = list(old)
    for write in edits:
        held = add_messages(held, write)
    return held


def edited(old: Sequence[Any], new: Sequence[Any]) -> tuple[list[BaseMessage], list[Any]]:
    edits = edits_of(old, new)
    assert edits is not None
    return edits


def test_a_history_that_stays_as_it_is_needs_no_edits():
    assert edited([ASK, CALLS, DONE], [ASK, CALLS, DONE]) == ([], [])
    assert edited([], []) == ([], [])


def test_what_only_grows_at_the_end_is_appended():
    assert edited([ASK], [ASK, CALLS]) == ([], [CALLS])
    assert edited([], [ASK]) == ([], [ASK])


def test_from_the_first_difference_on_everything_is_taken_out_and_appended_again():
    removed, appended = edited([ASK, CALLS, MORE], [ASK, CALLS, DONE, MORE])
    assert removed == [RemoveMessage(id="h2")]
    assert appended == [DONE, MORE]


def test_what_is_dropped_is_removed():
    assert edited([ASK, MORE], [ASK]) == ([RemoveMessage(id="h2")], [])
    assert edited([ASK, MORE], []) == ([RemoveMessage(id="h"), RemoveMessage(id="h2")], [])


def test_a_message_with_the_same_id_and_another_content_is_another_message():
    other = HumanMessage("changed", id="h")
    removed, appended = edited([ASK, MORE], [other, MORE])
    assert removed == [RemoveMessage(id="h"), RemoveMessage(id="h2")]
    assert appended == [other, MORE]


@pytest.mark.parametrize("unknown", [HumanMessage("no id"), HumanMessage("", id=""), "raw", {"role": "user"}])
def test_what_cannot_be_addressed_by_an_id_cannot_be_edited(unknown):
    assert edits_of([ASK, unknown, MORE], [ASK, MORE]) is None
    assert edits_of([unknown], []) is None


@pytest.mark.parametrize("unknown", [HumanMessage("no id"), "raw"])
def test_it_may_stand_in_front_of_what_changes_or_be_appended(unknown):
    assert edits_of([unknown, ASK], [unknown, ASK, CALLS]) == ([], [CALLS])
    assert edits_of([unknown, ASK], [unknown, MORE]) == ([RemoveMessage(id="h")], [MORE])
    assert edits_of([ASK], [ASK, unknown]) == ([], [unknown])


def test_neither_history_is_changed():
    old, new = [ASK, CALLS, MORE], [ASK, CALLS, DONE, MORE]
    _, appended = edited(old, new)
    appended.clear()
    assert (old, new) == ([ASK, CALLS, MORE], [ASK, CALLS, DONE, MORE])


@given(st.permutations(range(6)), st.permutations(range(6)), st.integers(0, 6), st.integers(0, 6))
def test_both_writes_make_the_reducer_hold_the_new_history(first, second, kept, left):
    messages = [HumanMessage(str(number), id=f"m{number}") for number in range(6)]
    old, new = [messages[n] for n in first[:kept]], [messages[n] for n in second[:left]]
    assert written(old, edited(old, new)) == new


def test_in_one_write_a_message_that_is_to_move_would_keep_its_place():
    """Why there are two: LangGraph's reducer takes the removal back."""
    old: list[Any] = [ASK, CALLS, MORE]
    new = [ASK, CALLS, DONE, MORE]
    removed, appended = edited(old, new)
    assert add_messages(old, [*removed, *appended]) == [ASK, CALLS, MORE, DONE]
    assert written(old, (removed, appended)) == new


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


@pytest.mark.parametrize("other", ["another", "zebra"])
def test_what_another_node_of_the_same_step_appends_is_kept(other):
    beside = HumanMessage("beside", id="b")
    new = [ASK, CALLS, DONE, MORE]

    def edit(state: State) -> Any:
        removed, appended = edited(state["messages"], new)
        return Command(update=[("messages", removed), ("messages", appended)])

    def add(state: State) -> State:
        return {"messages": [beside]}

    graph = StateGraph(State).add_node("edit", edit).add_node(other, add)
    compiled: Any = graph.add_edge(START, "edit").add_edge(START, other).compile()
    found = compiled.invoke({"messages": [ASK, CALLS, MORE]})["messages"]
    assert [m for m in found if m.id != "b"] == new
    assert [m for m in found if m.id == "b"] == [beside]
