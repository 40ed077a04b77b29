"""G5, C60-C64, C68: what a thread keeps of a run that was stopped, wherever that was, and how it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, ModelRetryMiddleware
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, Send

from langgraph_turncheckpoint import StaleTurnError, TurnCheckpointSaver, _running
from langgraph_turncheckpoint._running import load_transcript
from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.stopped_agents import (
    RUNS,
    WAYS,
    Effects,
    Piece,
    Speaker,
    arun,
    asked,
    broken_rule,
    by_hand,
    by_prompt,
    calling,
    guarded,
    history,
    notes,
    outcomes,
    run,
    texts,
    thread,
)
from tests.crash.processes import Child, Line

DURABILITIES = ("sync", "async", "exit")
ALL_WAYS = (*WAYS, "attach-by-hand")

unix = pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signals")


@pytest.fixture(autouse=True)
def every_piece_is_written(monkeypatch):
    """Streamed text waits for no timer, so what was said is in the journal."""
    monkeypatch.setattr(_running, "FLUSH_SECONDS", 0.0)


@pytest.fixture
def effects(tmp_path):
    return Effects(tmp_path / "effects")


def forever(said: asyncio.Event) -> Callable[[], Any]:
    """Something that only a cancellation ends."""

    async def wait() -> None:
        said.set()
        await asyncio.Event().wait()

    return wait


def elsewhere(work: Callable[[], Any]) -> Callable[[], None]:
    """The same work in a thread that is no part of the run around it."""

    def wait() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result(30)

    return wait


async def cancelled(graph: Any, given: Any, said: asyncio.Event, how: str = "ainvoke", **kwargs: Any) -> None:
    """Run a graph, and cancel its task once it has got as far as `said`."""
    task = asyncio.create_task(arun(graph, given, how, **kwargs))
    waiting = asyncio.create_task(said.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done(), task.exception()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def follow_up(way: str, directory: Path, script: Any = None, *, how: str = "invoke", **options: Any) -> Any:
    """A new message on the thread after a restart: what the model saw, and what is stored then."""
    saver = TurnCheckpointSaver(directory)
    model = Speaker(script=script or by_prompt())
    graph = guarded(way, saver, model, options.pop("tools", ()), **options)
    values = run(graph, asked("again"), how)
    (seen,) = model.seen
    assert broken_rule(seen) is None
    assert broken_rule(values["messages"]) is None
    return seen, values["messages"]


# --- G5, C63: text of a reply that was cut off ---


@pytest.mark.parametrize("how", ["ainvoke", "astream", "astream_events"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_what_a_cancelled_reply_had_said_stands_behind_its_prompt(tmp_path, way, how):
    async def stopped() -> None:
        said = asyncio.Event()
        model = Speaker(script=by_prompt(first=["Half ", "a reply", forever(said), " never said"]))
        graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model)
        await cancelled(graph, asked("first"), said, how)

    asyncio.run(stopped())
    seen, stored = follow_up(way, tmp_path / "s")
    assert texts(seen[:2]) == [("human", "first"), ("ai", "Half a reply")]
    assert [m.type for m in seen] == ["human", "ai", "human", "human"]
    assert [note.get("outcome") for note in notes(seen)] == ["interrupted", None]
    assert {note["cause"] for note in notes(seen)} == {"unknown"}
    assert notes(seen)[1]["marker"] is True
    assert texts(stored) == [*texts(seen), ("ai", "done")]
    assert [m.id for m in stored[:4]] == [m.id for m in seen]


@pytest.mark.parametrize(
    ("error", "cause"), [(ConnectionError("lost"), "error"), (KeyboardInterrupt(), "user"), (SystemExit(3), "unknown")]
)
@pytest.mark.parametrize("how", ["invoke", "stream"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_reply_that_breaks_off_is_kept_with_its_cause(tmp_path, way, how, error, cause):
    model = Speaker(script=by_prompt(first=["Half ", "a reply", error]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model)
    with pytest.raises(type(error)):
        run(graph, asked("first"), how)
    seen, stored = follow_up(way, tmp_path / "s", how=how)
    assert texts(seen[:2]) == [("human", "first"), ("ai", "Half a reply")]
    assert [m.type for m in stored] == ["human", "ai", "human", "human", "ai"]
    assert {note["cause"] for note in notes(stored)} == {cause}
    assert ("user" in seen[2].text) == (cause == "user")


def stream_until_killed(line: Line, directory: Path, way: str, how: str, durability: str) -> None:
    _running.FLUSH_SECONDS = 0.0  # type: ignore[misc]

    def wait() -> None:
        line.tell("said")
        signal.pause()

    model = Speaker(script=by_prompt(first=["Half ", "a reply", wait]))
    run(guarded(way, TurnCheckpointSaver(directory), model), asked("first"), how, durability=durability)


@unix
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_prompt_and_partial_reply_survive_a_killed_process(tmp_path, way, durability):
    how = {"sync": "invoke", "async": "astream", "exit": "stream"}[durability]
    with Child(stream_until_killed, tmp_path / "s", way, how, durability) as child:
        assert child.hear() == "said"
        child.kill()
    seen, stored = follow_up(way, tmp_path / "s")
    assert texts(seen[:2]) == [("human", "first"), ("ai", "Half a reply")]
    assert [m.type for m in stored] == ["human", "ai", "human", "human", "ai"]
    assert {note["cause"] for note in notes(stored)} == {"restart"}
    assert "user" not in seen[2].text


@unix
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_killed_reply_is_made_anew_when_the_run_goes_on(tmp_path, durability):
    """Nothing follows the prompt, so the model answers it, whole; also where only the journal has the prompt."""
    with Child(stream_until_killed, tmp_path / "s", "attach", "invoke", durability) as child:
        assert child.hear() == "said"
        child.kill()
    model = Speaker(script=by_prompt(first=["Whole"]))
    graph = guarded("attach", TurnCheckpointSaver(tmp_path / "s"), model)
    values = run(graph, None)
    assert texts(values["messages"]) == [("human", "first"), ("ai", "Whole")]
    assert texts(model.seen[0]) == [("human", "first")]


@pytest.mark.parametrize("how", ["invoke", "astream"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_reply_that_broke_off_is_made_anew_when_the_run_goes_on(tmp_path, way, how):
    """Its half is not kept then: it would stand between the prompt and its answer."""
    model = Speaker(script=by_prompt(first=["Half", ConnectionError("lost")]))
    with pytest.raises(ConnectionError):
        run(guarded(way, TurnCheckpointSaver(tmp_path / "s"), model), asked("first"), how)
    model = Speaker(script=by_prompt(first=["Whole"]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model)
    assert texts(run(graph, None, how)["messages"]) == [("human", "first"), ("ai", "Whole")]
    assert texts(model.seen[0]) == [("human", "first")]
    stored = run(graph, asked("again"), how)["messages"]
    assert texts(stored) == [("human", "first"), ("ai", "Whole"), ("human", "again"), ("ai", "done")]


def several_then_killed(line: Line, directory: Path, way: str, number: int) -> None:
    _running.FLUSH_SECONDS = 0.0  # type: ignore[misc]

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    model = Speaker(script=lambda _: [f"Half {number}", die])
    given = {"messages": [("user", f"first {number}"), {"role": "user", "content": f"second {number}"}]}
    run(guarded(way, TurnCheckpointSaver(directory), model), given, durability="exit")


@unix
@pytest.mark.parametrize("way", ALL_WAYS)
def test_prompts_of_several_killed_runs_survive_in_order(tmp_path, way):
    """Under "exit" none has reached a checkpoint when its process dies."""
    for number in (1, 2):
        with Child(several_then_killed, tmp_path / "s", way, number) as child:
            assert child.end() == -signal.SIGKILL
        if number == 1:
            assert TurnCheckpointSaver(tmp_path / "s").get_tuple(thread()) is None
    _, stored = follow_up(way, tmp_path / "s")
    assert [m.text for m in stored if not notes([m]) or m.type == "ai"] == [
        "first 1",
        "second 1",
        "Half 1",
        "first 2",
        "second 2",
        "Half 2",
        "again",
        "done",
    ]


@pytest.mark.parametrize("stop", [ConnectionError("lost"), KeyboardInterrupt()])
@pytest.mark.parametrize("inner", ["agent", "by hand"])
def test_the_half_of_a_reply_in_a_subgraph_is_kept(tmp_path, inner, stop):
    def team(script: Any) -> tuple[Any, Speaker]:
        saver, model = TurnCheckpointSaver(tmp_path / "s"), Speaker(script=script)
        part = create_agent(model, []) if inner == "agent" else by_hand(None, model, [])
        builder = StateGraph(MessagesState).add_node("part", part).add_edge(START, "part")
        return TurnGuard(saver).attach(builder.compile(checkpointer=saver)), model

    graph, _ = team(by_prompt(first=["Half", stop]))
    with pytest.raises(type(stop)):
        run(graph, asked("first"))
    graph, model = team(by_prompt())
    stored = run(graph, asked("again"))["messages"]
    assert [m.type for m in stored] == ["human", "ai", "human", "human", "ai"]
    assert [m.text for m in stored if m.type == "ai"] == ["Half", "done"]
    assert texts(model.seen[0]) == texts(stored[:-1])


@pytest.mark.parametrize("other", ["is cut off, too", "is whole"])
def test_of_two_models_that_answer_at_once_each_keeps_its_half(tmp_path, other):
    met, is_stored = threading.Barrier(2), threading.Event()

    class Watched(TurnCheckpointSaver):
        def put_writes(self, *args: Any, **kwargs: Any) -> None:
            super().put_writes(*args, **kwargs)
            is_stored.set()

    def meet() -> None:
        met.wait(30)

    def after_the_other() -> None:
        met.wait(30)
        assert other != "is whole" or is_stored.wait(30)

    def team(**scripts: Any) -> Any:
        saver = Watched(tmp_path / "s")
        builder: Any = StateGraph(MessagesState)
        for name, script in scripts.items():
            builder.add_node(name, speaking(Speaker(script=script))).add_edge(START, name)
        return TurnGuard(saver).attach(builder.compile(checkpointer=saver))

    a: list[Piece] = ["A half", after_the_other, LOST]
    b: list[Piece] = ["B half", meet, LOST] if other == "is cut off, too" else ["B whole", meet]
    with pytest.raises(ConnectionError):
        run(team(a=by_prompt(first=a), b=by_prompt(first=b)), asked("first"))
    stored = run(team(a=by_prompt(), b=by_prompt()), asked("again"))["messages"]
    said_before = {m.text for m in stored[:-3] if m.type == "ai"}
    assert said_before == {"A half", "B half" if other == "is cut off, too" else "B whole"}
    assert [m.text for m in stored if m.type == "human" and not notes([m])] == ["first", "again"]


def speaking(model: Any) -> Callable[[MessagesState], Any]:
    return lambda state: {"messages": [model.invoke(state["messages"])]}


@unix
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_kill_before_the_first_word_loses_no_prompt(tmp_path, way):
    with Child(wait_before_first_word, tmp_path / "s", way) as child:
        assert child.hear() == "called"
        child.kill()
    seen, stored = follow_up(way, tmp_path / "s")
    assert texts(seen) == [("human", "first"), ("human", "again")]
    assert notes(stored) == []


def wait_before_first_word(line: Line, directory: Path, way: str) -> None:
    def wait() -> None:
        line.tell("called")
        signal.pause()

    model = Speaker(script=by_prompt(first=[wait, "never"]))
    run(guarded(way, TurnCheckpointSaver(directory), model), asked("first"), durability="exit")


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_can_be_switched_off(tmp_path, way):
    for keep, mark, expected in [
        (False, True, ["human", "human"]),
        (False, False, ["human", "human"]),
        (True, False, ["human", "ai", "human"]),
    ]:
        directory = tmp_path / f"{keep}-{mark}"
        model = Speaker(script=by_prompt(first=["Half", ConnectionError("lost")]))
        with pytest.raises(ConnectionError):
            run(guarded(way, TurnCheckpointSaver(directory), model), asked("first"))
        seen, _ = follow_up(way, directory, keep_partial_text=keep, mark_interruptions=mark)
        assert [m.type for m in seen] == expected


@pytest.mark.parametrize("way", WAYS)
def test_each_of_several_cut_off_replies_stays_behind_its_own_prompt(tmp_path, way):
    saver = TurnCheckpointSaver(tmp_path / "s")
    lost = ConnectionError("lost")
    for text in ("one", "two", "three"):
        model = Speaker(script=by_prompt(one=["1st", lost], two=["2nd", lost], three=["3rd", lost]))
        with pytest.raises(ConnectionError):
            run(guarded(way, saver, model), asked(text))
    _, stored = follow_up(way, tmp_path / "s")
    said = [(m.type, m.text) for m in stored if not notes([m]) or m.type == "ai"]
    assert said == [
        ("human", "one"),
        ("ai", "1st"),
        ("human", "two"),
        ("ai", "2nd"),
        ("human", "three"),
        ("ai", "3rd"),
        ("human", "again"),
        ("ai", "done"),
    ]
    assert len({m.id for m in stored}) == len(stored)
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()))
    assert texts(run(graph, asked("more"))["messages"][: len(stored)]) == texts(stored)


@pytest.mark.parametrize("way", WAYS)
def test_a_reply_cut_off_after_tools_stands_behind_their_answers(tmp_path, way, effects):
    def script(messages: Any) -> list[Piece]:
        return ["So far", ConnectionError("lost")] if messages[-1].type == "tool" else [calling("fast")]

    tools = [effects.tool("fast")]
    with pytest.raises(ConnectionError):
        run(guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=script), tools), asked("first"))
    seen, stored = follow_up(way, tmp_path / "s", tools=tools)
    assert [m.type for m in seen] == ["human", "ai", "tool", "ai", "human", "human"]
    assert seen[3].text == "So far"
    assert [m.type for m in stored] == [*(m.type for m in seen), "ai"]
    assert effects.names == ["fast"]


@pytest.mark.parametrize("way", WAYS)
def test_text_of_a_reply_cut_off_in_a_tool_call_is_kept_without_the_call(tmp_path, way, effects):
    half_a_call = AIMessageChunk(
        content="", tool_call_chunks=[tool_call_chunk(name="fast", args='{"x', id="c0", index=0)]
    )
    model = Speaker(script=by_prompt(first=["Let me look", half_a_call, ConnectionError("lost")]))
    tools = [effects.tool("fast")]
    with pytest.raises(ConnectionError):
        run(guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools), asked("first"))
    seen, _ = follow_up(way, tmp_path / "s", tools=tools)
    assert texts(seen[:2]) == [("human", "first"), ("ai", "Let me look")]
    assert not any(getattr(m, "tool_calls", None) or getattr(m, "invalid_tool_calls", None) for m in seen)
    assert effects.names == []


@pytest.mark.parametrize("way", WAYS)
def test_reasoning_and_ids_of_the_provider_are_recorded_but_not_replayed(tmp_path, way):
    pieces: list[Piece] = [
        AIMessageChunk(content=[{"type": "reasoning", "reasoning": "secret thought"}], id="resp_opaque"),
        AIMessageChunk(content=[{"type": "thinking", "thinking": ", second thought", "index": 0}]),
        AIMessageChunk(content="", additional_kwargs={"reasoning_content": ", third thought"}),
        AIMessageChunk(
            content=[{"type": "text", "text": "Half"}], response_metadata={"previous_response_id": "resp_opaque"}
        ),
    ]
    saver = TurnCheckpointSaver(tmp_path / "s")
    with pytest.raises(ConnectionError):
        run(guarded(way, saver, Speaker(script=by_prompt(first=[*pieces, ConnectionError("lost")]))), asked("first"))
    token = saver.turns("t")[0].token
    (reply,) = load_transcript(saver.store, "t", token).replies
    assert reply.reasoning == "secret thought, second thought, third thought"
    assert reply.text == "Half"
    seen, stored = follow_up(way, tmp_path / "s")
    assert texts(seen[:2]) == [("human", "first"), ("ai", "Half")]
    told = json.dumps([m.model_dump() for m in [*seen, *stored]])
    assert "thought" not in told
    assert "opaque" not in told


@pytest.mark.parametrize("way", WAYS)
def test_reasoning_alone_leaves_no_message(tmp_path, way):
    thought = AIMessageChunk(content=[{"type": "reasoning", "reasoning": "hm"}])
    model = Speaker(script=by_prompt(first=[thought, "  ", ConnectionError("lost")]))
    with pytest.raises(ConnectionError):
        run(guarded(way, TurnCheckpointSaver(tmp_path / "s"), model), asked("first"))
    seen, _ = follow_up(way, tmp_path / "s")
    assert texts(seen) == [("human", "first"), ("human", "again")]


class Attempts:
    """A script whose pieces depend on how often it was asked."""

    def __init__(self, *attempts: list[Piece]) -> None:
        self._attempts = list(attempts)

    def __call__(self, messages: Any) -> list[Piece]:
        return self._attempts.pop(0)


LOST = ConnectionError("lost")
TRIES: dict[str, tuple[list[list[Piece]], str]] = {
    "the second has said nothing yet": ([["First try", LOST], [KeyboardInterrupt()]], "First try"),
    "the second has said something": ([["First try", LOST], ["Second", KeyboardInterrupt()]], "Second"),
    "both have failed": ([["First try", LOST], [LOST]], "First try"),
}


@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("retry", ["of the model", "of a fallback", "of the middleware", "of the node"])
def test_withdrawn_text_is_kept_until_another_try_has_said_something(tmp_path, tries, retry):
    attempts, kept = TRIES[tries]
    saver = TurnCheckpointSaver(tmp_path / "s")
    model: Any
    if retry == "of the middleware":
        script = Attempts(*attempts)
        again = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False, on_failure="error")
        graph, way = guarded("middleware", saver, Speaker(script=script), middleware=[again]), "middleware"
    elif retry == "of the node":
        guard = TurnGuard(saver)
        script = Attempts(*attempts)
        graph, way = retried_node(guard, saver, Speaker(script=script)), "attach"
    else:
        if retry == "of the model":
            model = Speaker(script=Attempts(*attempts)).with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
        else:
            one, other = (Speaker(script=Attempts(attempt)) for attempt in attempts)
            model = one.with_fallbacks([other])
        graph, way = by_hand_guarded(saver, model), "node"
    with pytest.raises((ConnectionError, KeyboardInterrupt)):
        run(graph, asked("first"))
    seen, _ = follow_up(way, tmp_path / "s")
    assert [(m.type, m.text) for m in seen if m.type == "ai"] == [("ai", kept)]


def by_hand_guarded(saver: Any, model: Any) -> Any:
    return by_hand(saver, model, [], guard=TurnGuard(saver))


def retried_node(guard: TurnGuard, saver: Any, model: Any) -> Any:
    builder = StateGraph(MessagesState)
    policy = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]}, retry_policy=policy)
    builder.add_edge(START, "model")
    return guard.attach(builder.compile(checkpointer=saver))


@pytest.mark.parametrize("retry", ["model", "middleware"])
def test_withdrawn_text_that_was_replaced_is_gone(tmp_path, retry):
    saver = TurnCheckpointSaver(tmp_path / "s")
    if retry == "model":
        model = Speaker(script=Attempts(["First try", LOST], ["Second try"])).with_retry(wait_exponential_jitter=False)
        graph, way = by_hand_guarded(saver, model), "node"
    else:
        fallback = ModelFallbackMiddleware(Speaker(script=Attempts(["Second try"])))
        first = Speaker(script=Attempts(["First try", LOST]))
        graph, way = guarded("middleware", saver, first, middleware=[fallback]), "middleware"
    run(graph, asked("first"))
    seen, _ = follow_up(way, tmp_path / "s")
    assert texts(seen) == [("human", "first"), ("ai", "Second try"), ("human", "again")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tag", ["nostream", "langsmith:hidden"])
def test_models_that_are_no_part_of_the_conversation_leave_nothing(tmp_path, way, tag):
    saver = TurnCheckpointSaver(tmp_path / "s")
    hidden = Speaker(script=lambda _: ["hidden text", LOST]).with_config(tags=[tag])
    guard = TurnGuard(saver)

    def speak(state: MessagesState) -> Any:
        return {"messages": [hidden.invoke(state["messages"])]}

    node = guard.node(speak) if way == "node" else speak
    builder = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model")
    graph = builder.compile(checkpointer=saver)
    if way == "middleware":
        graph = guarded(way, saver, Speaker(script=lambda _: [lambda: hidden.invoke("x")]))
    elif way == "attach":
        graph = guard.attach(graph)
    with pytest.raises(ConnectionError):
        run(graph, asked("first"))
    seen, _ = follow_up(way, tmp_path / "s")
    assert texts(seen) == [("human", "first"), ("human", "again")]


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_reply_that_its_reader_did_not_wait_for_is_kept(tmp_path, way):
    """C63: LangGraph waits for the node of a stream that is closed; the reply is whole then, and no effect."""
    read, model = threading.Event(), Speaker(script=by_prompt(first=["Half ", lambda: read.wait(30), "a reply"]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model)
    with contextlib.closing(graph.stream(asked("first"), thread(), stream_mode="messages")) as chunks:
        for chunk, _ in chunks:
            assert chunk.text == "Half "
            break
        read.set()
    seen, stored = follow_up(way, tmp_path / "s")
    assert seen[0].text == "first"
    assert seen[1].text in {"Half ", "Half a reply"}
    assert [m.text for m in stored if m.type == "human" and not notes([m])] == ["first", "again"]


@pytest.mark.parametrize("way", ALL_WAYS)
def test_an_async_reader_who_leaves_keeps_the_half_it_saw(tmp_path, way):
    async def left() -> None:
        model = Speaker(script=by_prompt(first=["Half ", "a reply", forever(asyncio.Event())]))
        graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model)
        async with contextlib.aclosing(graph.astream(asked("first"), thread(), stream_mode="messages")) as chunks:
            async for chunk, _ in chunks:
                if chunk.text == "a reply":
                    break

    asyncio.run(left())
    seen, stored = follow_up(way, tmp_path / "s", how="astream")
    assert texts(seen[:2]) == [("human", "first"), ("ai", "Half a reply")]
    assert [m.type for m in stored] == ["human", "ai", "human", "human", "ai"]


@pytest.mark.parametrize(("reason", "cause"), [("user", "user"), ("limit", "limit"), ("error", "error")])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_stop_button_is_named_as_such(tmp_path, way, reason, cause):
    """`cancel_turn` says who wanted it; the run finds that it is over at its next step."""
    saver = TurnCheckpointSaver(tmp_path / "s")
    model = Speaker(script=by_prompt(first=["Half", lambda: saver.cancel_turn("t", reason=reason), LOST]))
    with pytest.raises(ConnectionError):
        run(guarded(way, saver, model), asked("first"))
    seen, _ = follow_up(way, tmp_path / "s")
    assert {note["cause"] for note in notes(seen)} == {cause}
    assert ("the user stopped it" in seen[2].text) == (cause == "user")


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_newer_message_while_a_reply_streams_keeps_its_half(tmp_path, way):
    """C34: what the older run still says appears nowhere; what it had said does."""
    saver = TurnCheckpointSaver(tmp_path / "s")
    second: list[Any] = []

    def overtake() -> None:
        other = TurnCheckpointSaver(tmp_path / "s")
        model = Speaker(script=by_prompt())
        second.append(run(guarded(way, other, model), asked("second"))["messages"])
        second.append(model.seen)

    model = Speaker(script=by_prompt(first=["Half", elsewhere(overtake), " and the rest"]))
    graph = guarded(way, saver, model)
    with pytest.raises(StaleTurnError):
        run(graph, asked("first"))
    stored = history(graph)
    assert stored == second[0]
    assert "the rest" not in str(stored)
    assert [m.text for m in stored if m.type == "human" and not notes([m])] == ["first", "second"]
    assert [(m.type, m.text) for m in stored if m.type == "ai"] == [("ai", "Half"), ("ai", "done")]
    assert {note["cause"] for note in notes(stored)} == {"superseded"}
    assert broken_rule(stored) is None


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_run_that_was_overtaken_says_so_once(tmp_path, way, colour, caplog):
    """Whoever runs the graph gets the error; LangChain has no need to log what a callback handler raised."""
    saver, effects = TurnCheckpointSaver(tmp_path / "s"), Effects(tmp_path / "effects")

    def overtake() -> None:
        run(guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt())), asked("second"))

    model = Speaker(script=by_prompt(first=[calling("fast")]))
    graph = guarded(way, saver, model, [effects.tool("fast", elsewhere(overtake))])
    with pytest.raises(StaleTurnError):
        run(graph, asked("first"), colour)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("langchain")] == []


def test_the_half_of_a_reply_is_kept_in_a_channel_of_another_name_and_reducer(tmp_path):
    class State(MessagesState):
        talk: Annotated[list[AnyMessage], operator.add]

    saver = TurnCheckpointSaver(tmp_path / "s")
    guard = TurnGuard(saver, messages_key="talk")
    model = Speaker(script=by_prompt(first=["Half", LOST]))
    builder = (
        StateGraph(State).add_node("model", lambda s: {"talk": [model.invoke(s["talk"])]}).add_edge(START, "model")
    )
    graph: Any = guard.attach(builder.compile(checkpointer=saver))
    with pytest.raises(ConnectionError):
        graph.invoke({"talk": [HumanMessage("first", id="1")]}, thread())
    graph.invoke({"talk": [HumanMessage("second", id="2")]}, thread())
    stored = graph.get_state(thread()).values["talk"]
    assert [m.type for m in stored] == ["human", "ai", "human", "human", "ai"]
    assert [m.text for m in stored if m.type == "ai"] == ["Half", "done"]


# --- C60: a sync tool outlives the task that was cancelled ---


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_cancelled_sync_tool_may_have_completed_and_its_late_result_is_no_second_answer(tmp_path, way, effects):
    started, release, ended = asyncio.Event(), threading.Event(), threading.Event()
    saver = TurnCheckpointSaver(tmp_path / "s")
    seen: list[Any] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()

        def work() -> str:
            loop.call_soon_threadsafe(started.set)
            release.wait(30)
            ended.set()
            return "late result"

        tools = [effects.tool("slow", work)]
        model = Speaker(script=by_prompt(first=[calling("slow")]))
        graph = guarded(way, saver, model, tools)
        await cancelled(graph, asked("first"), started)
        await arun(graph, asked("second"))
        seen.append(history(graph))
        release.set()
        await asyncio.to_thread(ended.wait, 30)
        await arun(graph, asked("third"))
        seen.append(history(graph))

    asyncio.run(story())
    before, after = seen
    assert effects.names == ["slow"]
    assert outcomes(before) == {"c0": "unknown"}
    (answer,) = (m for m in before if isinstance(m, ToolMessage))
    assert answer.status == "error"
    assert "may have" in answer.text
    assert "not run" not in answer.text
    assert after[: len(before)] == before
    assert broken_rule(after) is None
    assert "late result" not in str(after)


# --- C61: stopped in or before a tool ---


class Recorded:
    """Tells when the journal has the result of a call, and waits for it where it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_id: str) -> None:
        self._event = threading.Event()
        record = _running.RunningTurn.tool_ended

        def recorded(running: Any, key: Any, output: Any) -> None:
            record(running, key, output)
            if key.call_id == call_id:
                self._event.set()

        monkeypatch.setattr(_running.RunningTurn, "tool_ended", recorded)

    def wait(self) -> None:
        assert self._event.wait(30)

    async def await_it(self) -> None:
        await asyncio.to_thread(self.wait)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_new_message_works_after_a_cancel_in_a_tool(tmp_path, monkeypatch, way, durability, effects):
    recorded = Recorded(monkeypatch, "c0")

    def tools(athen: Any = None) -> list[Any]:
        return [effects.tool("fast"), effects.tool("slow", athen=athen)]

    async def stopped() -> None:
        said = asyncio.Event()

        async def wait() -> None:
            await recorded.await_it()
            await forever(said)()

        model = Speaker(script=by_prompt(first=[calling("fast", "slow")]))
        graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools(wait))
        await cancelled(graph, asked("first"), said, durability=durability)

    asyncio.run(stopped())
    assert sorted(effects.names) == ["fast", "slow"]
    _, stored = follow_up(way, tmp_path / "s", tools=tools(), how="ainvoke")
    assert outcomes(stored) == {"c0": "real", "c1": "unknown"}, texts(stored)
    assert next(m for m in stored if isinstance(m, ToolMessage)).text == "fast done"
    assert sorted(effects.names) == ["fast", "slow"]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(("error", "cause"), [(KeyboardInterrupt(), "user"), (SystemExit(), "unknown")])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_new_message_works_after_an_interrupt_or_exit_in_a_tool(tmp_path, way, error, cause, durability, effects):
    def leave() -> None:
        raise error

    model = Speaker(script=by_prompt(first=[calling("leaver")]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, [effects.tool("leaver", leave)])
    with pytest.raises(type(error)):
        run(graph, asked("first"), durability=durability)
    _, stored = follow_up(way, tmp_path / "s", tools=[effects.tool("leaver")])
    assert outcomes(stored) == {"c0": "unknown"}
    assert [note["cause"] for note in notes(stored)] == [cause]
    assert [m.type for m in stored] == ["human", "ai", "tool", "human", "ai"]
    assert effects.names == ["leaver"]


@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_new_message_works_after_the_step_limit(tmp_path, way, how, effects):
    tools = [effects.tool("fast")]
    model = Speaker(script=by_prompt(first=["Let me see", calling("fast")]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools)
    with pytest.raises(GraphRecursionError):
        run(graph, asked("first"), how, {**thread(), "recursion_limit": 1})
    _, stored = follow_up(way, tmp_path / "s", tools=tools, how=how)
    assert outcomes(stored) == {"c0": "not_run"}
    assert [note["cause"] for note in notes(stored)] == ["limit"]
    (answer,) = (m for m in stored if isinstance(m, ToolMessage))
    assert "not run" in answer.text
    assert effects.names == []


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_new_message_works_after_a_reader_has_left_before_the_tool(tmp_path, way, durability, colour, effects):
    tools = [effects.tool("fast")]
    model = Speaker(script=by_prompt(first=[calling("fast")]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools)
    options: dict[str, Any] = {"stream_mode": "updates", "durability": durability}

    async def aleft() -> None:
        async with contextlib.aclosing(graph.astream(asked("first"), thread(), **options)) as updates:
            async for _ in updates:
                break

    if colour == "async":
        asyncio.run(aleft())
    else:
        with contextlib.closing(graph.stream(asked("first"), thread(), **options)) as updates:
            next(updates)
    _, stored = follow_up(way, tmp_path / "s", tools=tools)
    assert [m.text for m in stored if m.type == "human" and not notes([m])] == ["first", "again"]
    ran = effects.names == ["fast"]
    assert outcomes(stored).get("c0", "not_run") in ({"real", "recorded", "unknown"} if ran else {"not_run"})


# --- C64: what is still being written when the next turn starts ---


class HeldSaver(TurnCheckpointSaver):
    """A saver whose next put waits, once it is told to, until it is let go."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.is_armed = False
        self.error: StaleTurnError | None = None

    def hold(self) -> None:
        self.is_armed = True

    def put(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_armed:
            return super().put(*args, **kwargs)
        self.is_armed = False
        self.held.set()
        try:
            assert self.release.wait(30)
            return super().put(*args, **kwargs)
        except StaleTurnError as error:
            self.error = error
            raise
        finally:
            self.ended.set()


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_write_under_way_when_its_run_was_cancelled_is_refused_once_the_next_turn_runs(tmp_path, way, durability):
    saver, other = HeldSaver(tmp_path / "s"), TurnCheckpointSaver(tmp_path / "s")

    async def story() -> None:
        model = Speaker(script=by_prompt(first=["First reply", saver.hold]))
        task = asyncio.create_task(arun(guarded(way, saver, model), asked("first"), durability=durability))
        try:
            assert await asyncio.to_thread(saver.held.wait, 30)
            task.cancel()
            await asyncio.sleep(0.01)
            await arun(guarded(way, other, Speaker(script=by_prompt(second=["Second reply"]))), asked("second"))
        finally:
            saver.release.set()
        with contextlib.suppress(asyncio.CancelledError, StaleTurnError):
            await task
        assert await asyncio.to_thread(saver.ended.wait, 30)

    asyncio.run(story())
    assert isinstance(saver.error, StaleTurnError)
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()))
    stored = history(graph)
    assert stored[-1].text == "Second reply"
    assert [m.text for m in stored if m.type == "human" and not notes([m])] == ["first", "second"]
    assert broken_rule(stored) is None
    parents = [c.parent_config["configurable"]["checkpoint_id"] for c in other.list(thread()) if c.parent_config]
    assert len(parents) == len(set(parents))
    assert saver.verify() == []


# --- C68: a node that is not there any more ---


def fanned_out(saver: Any, tools: Any, *, tool_node: str, guard: TurnGuard, way: str, script: Any) -> Any:
    model = Speaker(script=script)

    def speak(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def fan(state: MessagesState) -> Any:
        last = state["messages"][-1]
        return [Send(tool_node, [call]) for call in last.tool_calls] if isinstance(last, AIMessage) else []

    wraps: dict[str, Any] = {"wrap_tool_call": guard.wrap_tool_call} if way == "node" else {}
    builder = StateGraph(MessagesState)
    builder.add_node("model", guard.node(speak) if way == "node" else speak)
    builder.add_node(tool_node, ToolNode(tools, **wraps))
    builder.add_edge(START, "model").add_conditional_edges("model", fan, [tool_node]).add_edge(tool_node, "model")
    graph = builder.compile(checkpointer=saver)
    return guard.attach(graph) if way == "attach" else graph


@pytest.mark.parametrize("stop", ["in a tool", "before the tools"])
@pytest.mark.parametrize("goes_on_first", [False, True])
@pytest.mark.parametrize("way", ["attach", "node"])
def test_calls_of_a_renamed_node_are_closed(tmp_path, monkeypatch, way, goes_on_first, stop, effects):
    recorded = Recorded(monkeypatch, "c0")

    def cut() -> None:
        recorded.wait()
        raise KeyboardInterrupt

    tools = [effects.tool("fast"), effects.tool("cut", cut)]
    script = by_prompt(first=[calling("fast", "cut")])
    saver = TurnCheckpointSaver(tmp_path / "s")
    old = fanned_out(saver, tools, tool_node="tools", guard=TurnGuard(saver), way=way, script=script)
    if stop == "in a tool":
        with pytest.raises(KeyboardInterrupt):
            run(old, asked("first"))
    else:
        with pytest.raises(GraphRecursionError):
            run(old, asked("first"), config={**thread(), "recursion_limit": 1})
    done = effects.names
    saver2 = TurnCheckpointSaver(tmp_path / "s")
    new = fanned_out(saver2, tools, tool_node="renamed", guard=TurnGuard(saver2), way=way, script=by_prompt())
    if goes_on_first:
        run(new, None)
    values = run(new, asked("again"))
    stored = values["messages"]
    assert broken_rule(stored) is None
    assert effects.names == done
    assert [m.text for m in stored if m.type == "human"] == ["first", "again"]
    if stop == "in a tool":
        assert outcomes(stored)["c1"] == "unknown", texts(stored)
        assert next(m.text for m in stored if isinstance(m, ToolMessage)) == "fast done"
    else:
        assert outcomes(stored) == {"c0": "not_run", "c1": "not_run"}
