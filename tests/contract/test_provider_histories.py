"""Finalized histories, in the form in which LangChain's own integrations send them. Nothing is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langgraph_turncheckpoint._finalize import Facts
from langgraph_turncheckpoint._histories import (
    Addition,
    CallEvidence,
    Evidence,
    finalize_history,
    marked_partial,
    marker,
)
from langgraph_turncheckpoint._turn import CAUSES

OPENAI: Final = ChatOpenAI(model="gpt-4o", api_key=SecretStr("none"))
OPENAI_RESPONSES: Final = ChatOpenAI(model="gpt-4o", api_key=SecretStr("none"), use_responses_api=True)
ANTHROPIC: Final = ChatAnthropic(model_name="claude-sonnet-4-5", timeout=None, stop=None, api_key=SecretStr("none"))

#: Characters that every provider takes in the id of a call, and in the name of a tool.
SAFE: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Event(NamedTuple):
    """One thing a provider is told: `kind` is "call", "answer" or the role that speaks."""

    kind: str
    call_id: str = ""
    name: str = ""


def openai_events(messages: list[AnyMessage]) -> Iterator[Event]:
    for message in OPENAI._get_request_payload(messages)["messages"]:
        assert message["role"] in {"system", "user", "assistant", "tool"}
        if message["role"] == "tool":
            assert isinstance(message["content"], (str, list))
            yield Event("answer", message["tool_call_id"])
            continue
        assert message["content"] is not None or message.get("tool_calls")
        yield Event(message["role"])
        for call in message.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], str)
            yield Event("call", call["id"], call["function"]["name"])


def responses_events(messages: list[AnyMessage]) -> Iterator[Event]:
    for item in OPENAI_RESPONSES._get_request_payload(messages)["input"]:
        match item["type"]:
            case "function_call":
                assert isinstance(item["arguments"], str)
                yield Event("call", item["call_id"], item["name"])
            case "function_call_output":
                yield Event("answer", item["call_id"])
            case "message":
                assert item["role"] in {"system", "user", "assistant"}
                yield Event(item["role"])
            case other:
                pytest.fail(f"an item of type {other}")


def anthropic_events(messages: list[AnyMessage]) -> Iterator[Event]:
    for message in ANTHROPIC._get_request_payload(messages)["messages"]:
        assert message["role"] in {"user", "assistant"}
        assert message["content"]
        blocks = message["content"] if isinstance(message["content"], list) else [{"type": "text"}]
        for block in blocks:
            if block["type"] == "tool_use":
                assert message["role"] == "assistant"
                assert isinstance(block["input"], dict)
                yield Event("call", block["id"], block["name"])
            elif block["type"] == "tool_result":
                assert message["role"] == "user"
                yield Event("answer", block["tool_use_id"])
            else:
                assert "text" not in block or block["text"].strip()
                yield Event(message["role"])


PROVIDERS: Final[dict[str, Callable[[list[AnyMessage]], Iterator[Event]]]] = {
    "openai": openai_events,
    "openai-responses": responses_events,
    "anthropic": anthropic_events,
}


def complaints(events: list[Event]) -> list[str]:
    """What a provider would refuse."""
    found = []
    wanted: list[str] = []
    for event in events:
        if event.kind == "call":
            if event.call_id in wanted:
                found.append(f"{event.call_id!r} is called twice")
            if not SAFE.fullmatch(event.call_id or "") or not SAFE.fullmatch(event.name or ""):
                found.append(f"{event.call_id!r}, {event.name!r} is no legal call")
            wanted.append(event.call_id)
        elif event.kind == "answer":
            if event.call_id in wanted:
                wanted.remove(event.call_id)
            else:
                found.append(f"{event.call_id!r} answers nothing")
        elif wanted:
            found.append(f"{event.kind} speaks before {wanted} are answered")
            wanted.clear()
    return found + [f"{call_id!r} is never answered" for call_id in wanted]


def call(call_id: str | None, name: str = "search") -> Any:
    return {"name": name, "args": {"q": "x"}, "id": call_id}


def unreadable(call_id: str | None, name: str | None = "search", args: str | None = '{"q": "tr') -> Any:
    return {"name": name, "args": args, "id": call_id, "error": None, "type": "invalid_tool_call"}


def answer(call_id: str, text: str = "found") -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id)


HI: Final = HumanMessage("hi")
CUT_OFF: Final = tool_call_chunk(name="search", args="[", id="c0", index=0)
USE: Final = {"type": "tool_use", "id": "c0", "name": "search", "input": {"q": "x"}}

DAMAGED: Final[dict[str, list[AnyMessage]]] = {
    "one open call": [HI, AIMessage("", tool_calls=[call("c0")]), HI],
    "an open call at the end": [HI, AIMessage("hm", tool_calls=[call("c0")])],
    "one of three answered": [HI, AIMessage("", tool_calls=[call("c0"), call("c1"), call("c2")]), answer("c1"), HI],
    "in the middle": [HI, AIMessage("", tool_calls=[call("c0")]), HI, AIMessage("ok"), HI],
    "answer too far down": [HI, AIMessage("", tool_calls=[call("c0")]), HI, answer("c0"), answer("zz")],
    "answered twice": [HI, AIMessage("", tool_calls=[call("c0")]), answer("c0"), answer("c0", "late"), HI],
    "call trimmed away": [SystemMessage("s"), answer("c0"), HI],
    "one id in two messages": [
        HI, AIMessage("", tool_calls=[call("c0")]), HI, AIMessage("", tool_calls=[call("c0")]), answer("c0")
    ],
    "one id for two calls": [HI, AIMessage("", tool_calls=[call("c0"), call("c0")]), answer("c0"), answer("c0")],
    "answers crossed": [
        HI, AIMessage("", tool_calls=[call("c0")]), AIMessage("", tool_calls=[call("c1")]), answer("c0"), answer("c1")
    ],
    "unreadable arguments": [HI, AIMessage("", tool_calls=[call("c0")], invalid_tool_calls=[unreadable("c1")]), HI],
    "only unreadable arguments": [HI, AIMessage("hm", invalid_tool_calls=[unreadable("c0")]), HI],
    "unreadable, no name": [HI, AIMessage("", invalid_tool_calls=[unreadable("c0", None, None)]), answer("c0"), HI],
    "no ids": [HI, AIMessage("", tool_calls=[call(None), call("")], invalid_tool_calls=[unreadable(None)]), HI],
    "empty id, answered": [HI, AIMessage("", tool_calls=[call("")]), answer(""), HI],
    "blocks": [HI, AIMessage([{"type": "text", "text": "hm"}, USE], tool_calls=[call("c0")]), HI],
    "blocks without id": [HI, AIMessage([{**USE, "id": ""}], tool_calls=[call("")]), HI],
    "blocks with one id": [HI, AIMessage([USE, USE], tool_calls=[call("c0"), call("c0")]), answer("c0"), HI],
    "unreadable in blocks": [
        HI, AIMessage([{**USE, "input": {}, "partial_json": '{"q": "tr'}], invalid_tool_calls=[unreadable("c0")]), HI
    ],
    "a chunk": [HI, AIMessageChunk(content="", tool_calls=[call("c0")]), HI],
    "a chunk cut off in its arguments": [
        HI,
        AIMessageChunk(content="", tool_call_chunks=[CUT_OFF]),
        HI,
    ],
}  # fmt: skip


#: OpenAI's converter for the Responses API sends each id of a call once, whatever the history is.
REPEATED: Final = "one id in two messages"
TAKEN: Final = [
    (name, provider) for name in DAMAGED for provider in PROVIDERS if (name, provider) != (REPEATED, "openai-responses")
]
#: What some providers would have taken as it is.
HARMLESS: Final = {
    ("answers crossed", "openai-responses"),
    ("answers crossed", "anthropic"),
}


@pytest.mark.parametrize(("name", "provider"), TAKEN)
def test_providers_take_a_damaged_history_once_it_is_finalized(name, provider):
    assert complaints(list(PROVIDERS[provider](finalize_history(DAMAGED[name]).messages))) == []


@pytest.mark.parametrize(("name", "provider"), [pair for pair in TAKEN if pair not in HARMLESS])
def test_and_would_have_refused_it_before(name, provider):
    try:
        events = list(PROVIDERS[provider](DAMAGED[name]))
    except (AssertionError, KeyError, TypeError):
        return
    assert complaints(events)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("cause", CAUSES)
def test_providers_take_a_cut_off_reply_with_its_marker(cause, provider):
    reply = marked_partial("Half a sen", cause=cause, token=2, id="p")
    additions = [Addition("h", reply, required_follower=True), Addition("p", marker(cause, 2, id="m"))]
    history = [HumanMessage("hi", id="h"), HumanMessage("go on", id="h2")]
    done = finalize_history(history, Evidence(additions=additions, cause=cause))
    events = list(PROVIDERS[provider](done.messages))
    assert complaints(events) == []
    assert [event.kind for event in events] == ["user", "assistant", "user", "user"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_providers_take_every_kind_of_answer_that_is_made(provider):
    ids = [f"c{n}" for n in range(6)]
    facts = [
        Facts(),
        Facts(known=True),
        Facts(started=True),
        Facts(paused=True),
        Facts(error="boom"),
        Facts(result=True),
    ]
    evidence = Evidence({("a", i): CallEvidence(fact) for i, fact in zip(ids, facts, strict=True)}, cause="limit")
    history = [HI, AIMessage("", id="a", tool_calls=[call(i) for i in ids], invalid_tool_calls=[unreadable("c9")]), HI]
    assert complaints(list(PROVIDERS[provider](finalize_history(history, evidence).messages))) == []


def test_errors_are_told_to_anthropic_as_errors():
    done = finalize_history(DAMAGED["one open call"])
    sent = ANTHROPIC._get_request_payload(done.messages)["messages"]
    (result,) = [block for block in sent[-1]["content"] if block["type"] == "tool_result"]
    assert result["is_error"] is True


def test_what_is_only_ours_is_not_sent():
    done = finalize_history(DAMAGED["one open call"])
    for model in (OPENAI, OPENAI_RESPONSES, ANTHROPIC):
        assert "turncheckpoint" not in json.dumps(model._get_request_payload(done.messages))


def calls_of(message: AIMessage) -> list[Any]:
    return [*message.tool_calls, *message.invalid_tool_calls]


ids = st.sampled_from(["c0", "c1", "c2", "", None])
asking = st.builds(
    AIMessage,
    st.sampled_from(["", "hm"]),
    tool_calls=st.lists(st.builds(call, ids), max_size=3),
    invalid_tool_calls=st.lists(st.builds(unreadable, ids, st.sampled_from(["search", None])), max_size=1),
)
messages = st.lists(asking | st.builds(answer, st.sampled_from(["c0", "c1", "c2", "zz"])) | st.just(HI), max_size=8)


@pytest.mark.parametrize("provider", PROVIDERS)
@settings(max_examples=60)
@given(history=messages)
def test_providers_take_any_finalized_history(history, provider):
    done = finalize_history(history).messages
    stated = [stated["id"] for item in done if isinstance(item, AIMessage) for stated in calls_of(item)]
    assume(provider != "openai-responses" or len(set(stated)) == len(stated))
    events = list(PROVIDERS[provider]([HI, *done, HI]))
    assert complaints(events) == []
