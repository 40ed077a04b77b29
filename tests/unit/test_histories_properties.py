"""What finalizing promises, for histories that Hypothesis makes up: repeated ids, missing ids, unreadable calls,
answers anywhere, items that are no messages.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_turncheckpoint._finalize import Facts
from langgraph_turncheckpoint._histories import Addition, CallEvidence, Evidence, finalize_history, is_healthy
from langgraph_turncheckpoint._turn import CAUSES

IDS: Final = st.sampled_from(["c0", "c1", "c2", "", None])
NAMES: Final = st.sampled_from(["search", "buy", "later", ""])
MESSAGE_IDS: Final = [None, "m0", "m1", "m2", "m3"]

calls = st.builds(lambda name, call_id: {"name": name, "args": {"n": 1}, "id": call_id}, NAMES, IDS)
invalid_calls = st.builds(
    lambda name, args, call_id: {
        "name": name, "args": args, "id": call_id, "error": None, "type": "invalid_tool_call"
    },
    NAMES | st.none(),
    st.sampled_from(["{", "", None]),
    IDS,
)  # fmt: skip
blocks = st.one_of(
    st.just({"type": "text", "text": "let me see"}),
    st.just("plain"),
    st.builds(lambda call_id: {"type": "tool_use", "id": call_id, "name": "search", "input": {}}, IDS),
    st.builds(lambda call_id: {"type": "function_call", "call_id": call_id, "name": "buy", "arguments": "{}"}, IDS),
    st.just({"type": "server_tool_use", "id": "s0", "name": "web", "input": {}}),
    st.just({"text": "without a type"}),
)
contents = st.just("") | st.just("text") | st.lists(blocks, max_size=3)
message_ids = st.sampled_from(MESSAGE_IDS)

classes: Final[list[type[AIMessage]]] = [AIMessage, AIMessage, AIMessage, AIMessageChunk]
message_classes = st.sampled_from(classes)


@st.composite
def asking(draw: st.DrawFn) -> AIMessage:
    return draw(message_classes)(
        content=draw(contents),
        tool_calls=draw(st.lists(calls, max_size=3)),
        invalid_tool_calls=draw(st.lists(invalid_calls, max_size=1)),
        id=draw(message_ids),
    )


answering = st.builds(
    lambda call_id, text, message_id: ToolMessage(text, tool_call_id=call_id, id=message_id),
    st.sampled_from(["c0", "c1", "c2", "", "zz"]),
    st.sampled_from(["one", "two"]),
    st.none() | st.uuids().map(str),
)
other = st.one_of(
    st.builds(lambda message_id: HumanMessage("hi", id=message_id), message_ids),
    st.just(SystemMessage("s")),
    st.just({"role": "user", "content": "hi"}),
    st.just(("user", "hi")),
)


@st.composite
def healthy_steps(draw: st.DrawFn) -> list[Any]:
    ids = draw(st.lists(st.sampled_from(["c0", "c1", "c2"]), unique=True, max_size=3))
    message = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": call_id} for call_id in ids])
    return [message, *(ToolMessage("ok", tool_call_id=call_id) for call_id in draw(st.permutations(ids)))]


steps = healthy_steps() | st.lists(asking() | answering | other, min_size=1, max_size=1)
histories = st.lists(steps, max_size=8).map(lambda parts: [item for part in parts for item in part])

facts = st.builds(
    Facts, st.booleans(), st.booleans(), st.sampled_from([None, "", "boom"]), st.booleans(), st.booleans()
)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    known = {}
    for key in draw(st.lists(st.tuples(message_ids, st.sampled_from(["c0", "c1", "c2"])), max_size=4, unique=True)):
        result = ToolMessage("recorded", tool_call_id=key[1], id=draw(st.uuids().map(str)))
        known[key] = CallEvidence(draw(facts), draw(st.sampled_from([None, result])))
    messages = draw(st.lists(asking() | st.just(HumanMessage("new")), max_size=4))
    anchors = st.sampled_from([*MESSAGE_IDS, "n0", "n1"])
    additions = [
        Addition(draw(anchors), message.model_copy(update={"id": f"n{n}"}), draw(st.booleans()))
        for n, message in enumerate(messages)
    ]
    return Evidence(known, draw(st.sampled_from(CAUSES)), 3, additions, draw(st.booleans()))


def calls_of(message: AIMessage) -> list[dict[str, Any]]:
    """The calls a provider sees, found on another way than the code under test finds them."""
    found = [dict(call) for call in (*message.tool_calls, *message.invalid_tool_calls)]
    listed = {call["id"] for call in found}
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, dict) and block.get("type") in {"tool_use", "function_call"}:
            call_id = block["id"] if block["type"] == "tool_use" else block["call_id"]
            if call_id and call_id not in listed:
                listed.add(call_id)
                found.append({"name": block["name"], "id": call_id})
    return found


def assert_valid(history: Sequence[Any]) -> None:
    """Every call is answered exactly once, right behind its message; no answer lacks a call."""
    wanted: Counter[Any] = Counter()
    for item in history:
        if isinstance(item, ToolMessage):
            assert wanted[item.tool_call_id] == 1
            del wanted[item.tool_call_id]
            continue
        assert not wanted
        if isinstance(item, AIMessage):
            wanted = Counter(call["id"] for call in calls_of(item))
            assert all(call["name"] and call["id"] for call in calls_of(item))
            assert set(wanted.values()) <= {1}
    assert not wanted


def without_calls(item: Any) -> Any:
    """What of a message must survive whatever its calls are named."""
    if not isinstance(item, AIMessage):
        return item
    return item.id, item.text, [(call.get("args"), call["type"]) for call in item.tool_calls], len(item.content)


@given(histories)
def test_every_call_ends_up_answered_once_right_behind_its_message(history):
    assert_valid(finalize_history(history).messages)


@given(histories, evidences(), st.booleans())
def test_so_it_does_with_evidence_and_additions(history, evidence, follower_comes):
    done = finalize_history(history, evidence, follower_comes=follower_comes)
    assert_valid(done.messages)
    assert len(done.messages) == len(history) + len(done.added) + len(done.answers) - len(done.set_aside)


@given(histories, evidences(), st.booleans(), st.sets(NAMES))
def test_a_second_pass_changes_nothing(history, evidence, follower_comes, unanswered):
    options: dict[str, Any] = {"follower_comes": follower_comes, "unanswered": unanswered}
    once = finalize_history(history, evidence, **options).messages
    for again in (finalize_history(once, evidence, **options), finalize_history(once, unanswered=unanswered)):
        assert not again.changed
        assert again.messages is once


plain_histories = st.lists(st.sampled_from(["h0", "h1", "a0", "a1", "t0", "t1"]), unique=True, max_size=5)
addition_lists = st.lists(
    st.builds(
        lambda anchor, name, required: Addition(anchor, HumanMessage("new", id=name), required),
        st.sampled_from([None, "h0", "h1", "a0", "t0", "t1", "n0", "n1", "n2", "n3", "gone"]),
        st.sampled_from(["n0", "n1", "n2", "n3", "h0", "h1"]),
        st.booleans(),
    ),
    max_size=6,
)


def plain(name: str) -> BaseMessage:
    if name.startswith("a"):
        return AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": name}], id=name)
    return (
        ToolMessage("ok", tool_call_id=f"a{name[1]}", id=name) if name.startswith("t") else HumanMessage("x", id=name)
    )


@given(plain_histories, addition_lists, st.booleans())
def test_additions_are_made_once_and_behind_their_anchors(names, additions, follower_comes):
    history = [plain(name) for name in names]
    evidence = Evidence(additions=additions)
    done = finalize_history(history, evidence, follower_comes=follower_comes)
    again = finalize_history(done.messages, evidence, follower_comes=follower_comes)
    assert again.messages is done.messages
    ids = [message.id for message in done.messages]
    assert len(set(ids)) == len(ids)
    first: dict[Any, Addition] = {}
    for addition in additions:
        first.setdefault(addition.message.id, addition)
    for message in done.added:
        addition = first[message.id]
        assert message is addition.message
        if addition.after is None:
            if not first.keys() & set(names):  # else one goes behind those before it, wherever they stand
                assert set(ids[: ids.index(message.id)]) <= first.keys()
        elif addition.after in ids:
            assert ids.index(addition.after) < ids.index(message.id)
        else:
            assert addition.after in {m.id for m in done.set_aside}


@given(histories, st.sets(NAMES))
def test_healthy_means_that_nothing_would_change(history, unanswered):
    done = finalize_history(history, unanswered=unanswered)
    assert is_healthy(history, unanswered=unanswered) == (not done.changed)
    assert is_healthy(done.messages, unanswered=unanswered)
    if not done.changed:
        assert done.messages is history
        assert done[1:] == ([], [], [], [], False)


@given(st.lists(healthy_steps() | other.map(lambda item: [item]), max_size=6))
def test_whole_histories_are_healthy(parts):
    history = [item for part in parts for item in part]
    assert is_healthy(history)


@given(histories, evidences(), st.sets(NAMES))
def test_nothing_that_was_passed_in_is_changed(history, evidence, unanswered):
    before = copy.deepcopy((history, evidence))
    finalize_history(history, evidence, unanswered=unanswered)
    assert (history, evidence) == before


@given(histories, evidences(), st.sets(NAMES))
def test_everything_but_answers_stays_in_its_order_and_is_the_same_object_where_it_can_be(
    history, evidence, unanswered
):
    done = finalize_history(history, evidence, unanswered=unanswered)
    new = {id(message) for message in done.added}
    before = [item for item in history if not isinstance(item, ToolMessage)]
    after = [item for item in done.messages if not isinstance(item, ToolMessage)]
    kept = [item for item in after if id(item) not in new and not _is_copy_of_any(item, done.added)]
    assert list(map(without_calls, kept)) == list(map(without_calls, before))
    for old, item in zip(before, kept, strict=True):
        complete = isinstance(old, AIMessage) and all(call["id"] and call["name"] for call in calls_of(old))
        if not isinstance(old, AIMessage):
            assert item is old
        elif complete and len({call["id"] for call in calls_of(old)}) == len(calls_of(old)):
            assert item is old or any(call["args"] is None for call in old.invalid_tool_calls)


def _is_copy_of_any(item: Any, messages: list[BaseMessage]) -> bool:
    return isinstance(item, BaseMessage) and item.id is not None and item.id in {message.id for message in messages}


@given(histories, evidences(), st.sets(NAMES))
def test_no_answer_is_lost_or_doubled(history, evidence, unanswered):
    done = finalize_history(history, evidence, unanswered=unanswered)
    given_ids = {id(answer.message) for answer in done.answers}
    before = [item.text for item in history if isinstance(item, ToolMessage)]
    after = [item for item in (*done.messages, *done.set_aside) if isinstance(item, ToolMessage)]
    assert sorted(item.text for item in after if id(item) not in given_ids) == sorted(before)
    assert len({id(item) for item in after}) == len(after)
    assert {id(message) for message in done.moved} <= {id(item) for item in history}


@given(histories, st.sets(NAMES))
def test_calls_that_may_stay_open_get_no_made_up_answer(history, unanswered):
    done = finalize_history(history, unanswered=unanswered)
    assert not {answer.tool_name for answer in done.answers} & unanswered


@given(histories, st.integers(0, 8))
def test_calls_behind_the_limit_get_no_made_up_answer(history, until):
    done = finalize_history(history, until=until)
    assert_valid(finalize_history(done.messages).messages)
    if until == 0:
        assert done.answers == []
    if until >= len(history):
        assert shape_of(done.messages) == shape_of(finalize_history(history).messages)


def shape_of(history: list[Any]) -> list[str]:
    return [f"{item.type} {item.text}" if isinstance(item, BaseMessage) else str(item) for item in history]


@settings(max_examples=30)
@given(histories, evidences())
def test_what_is_finalized_survives_being_stored_in_json(history, evidence):
    """A repaired history loads as a healthy one: no class brings back what was repaired."""
    done = finalize_history([item for item in history if isinstance(item, BaseMessage)], evidence)
    loaded = [type(message).model_validate_json(message.model_dump_json()) for message in done.messages]
    assert is_healthy(loaded)
