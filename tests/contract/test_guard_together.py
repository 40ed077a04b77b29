"""C24, C26, C31, C34, C62, T5, T7, G2, G7: the guard among other writers and middleware, retries, people, inboxes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt

from langgraph_turncheckpoint import (
    StaleTurnError,
    StorageError,
    ThreadBusyError,
    ThreadClosedError,
    TurnCheckpointSaver,
    _running,
)
from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.stopped_agents import (
    WAYS,
    Effects,
    Speaker,
    arun,
    asked,
    broken_rule,
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
from tests.langgraph_versions import REVIEW_MODES, reviewing
from tests.system_calls import GROWING, SystemCalls, substituted

ALL_WAYS = (*WAYS, "attach-by-hand")

unix = pytest.mark.skipif(sys.platform == "win32", reason="processes are killed and stopped by signals")


@pytest.fixture
def effects(tmp_path):
    return Effects(tmp_path / "effects")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that are no part of a run."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


class Blocked:
    """A tool's work that waits until it is let go."""

    def __init__(self) -> None:
        self.started, self.release = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.started.set()
        assert self.release.wait(30)

    def __enter__(self) -> Blocked:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release.set()


def humans(messages: Any) -> list[str]:
    return [m.text for m in messages if m.type == "human" and not notes([m])]


def answers(messages: Any) -> dict[str, str]:
    return {m.tool_call_id: m.text for m in messages if isinstance(m, ToolMessage)}


# --- C24: the disk is full between a result and its checkpoint ---


class FullSaver(TurnCheckpointSaver):
    """A saver on a disk that has no room for another checkpoint once `is_full` says so."""

    is_full: Callable[[], bool] = staticmethod(lambda: False)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_full():
            return super().put(*args, **kwargs)
        with substituted(SystemCalls(lambda _, name: errno.ENOSPC if name in GROWING else None)):
            return super().put(*args, **kwargs)


@pytest.mark.filterwarnings("ignore::langgraph_turncheckpoint.errors.JournalWarning")
@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_result_whose_checkpoint_found_no_room_is_used_once_there_is_room(tmp_path, way, goes_on, colour, effects):
    saver = FullSaver(tmp_path / "s")
    saver.is_full = lambda: len(effects.names) == 2
    tools = [effects.tool("one"), effects.tool("two")]
    script = by_prompt(first=[calling("one", "two")])
    with pytest.raises(StorageError, match="space"):
        # No save lags behind, which would find no room while the results are being recorded.
        run(guarded(way, saver, Speaker(script=script), tools), asked("first"), colour, durability="sync")
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=script), tools)
    stored = run(graph, None if goes_on else asked("again"), colour)["messages"]
    assert sorted(effects.names) == ["one", "two"]
    assert answers(stored) == {"c0": "one done", "c1": "two done"}
    assert humans(stored) == (["first"] if goes_on else ["first", "again"])
    assert stored[-1].text == "done"
    assert broken_rule(stored) is None


# --- C26: a run is dispatched a second time ---


@pytest.mark.parametrize("policy", ["report", "rerun"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_run_dispatched_again_reports_or_reruns_and_the_late_result_is_refused(tmp_path, way, policy, effects, pool):
    script = by_prompt(first=[calling("fast", "slow")])

    def agent(then: Any = None) -> Any:
        tools = [effects.tool("fast"), effects.tool("slow", then)]
        saver = TurnCheckpointSaver(tmp_path / "s")
        return guarded(way, saver, Speaker(script=script), tools, default_on_restart=policy)

    with Blocked() as blocked:
        first: Future[Any] = pool.submit(run, agent(blocked), asked("first"))
        assert blocked.started.wait(30)
        stored = run(agent(), None)["messages"]
        blocked.release.set()
        with pytest.raises(StaleTurnError):
            first.result(30)
    assert effects.names.count("slow") == (1 if policy == "report" else 2)
    if policy == "report":
        assert outcomes(stored)["c1"] == "unknown"
        assert {note["cause"] for note in notes(stored)} == {"superseded"}
    else:
        assert outcomes(stored)["c1"] == "real"
    assert broken_rule(stored) is None
    assert stored[-1].text == "done"
    assert history(agent()) == stored
    assert run(agent(), asked("again"))["messages"][: len(stored)] == stored


def stop_outside_the_lock(child: Child, directory: Path) -> None:
    """SIGSTOP while we have the lock of the thread: a process that is stopped with it is in everybody's way."""
    with TurnCheckpointSaver(directory).store.thread("t").ledger.hold():
        child.stop()
        while any(state != "T" for state in states(child.pid)):
            pass


def states(pid: int) -> list[str]:
    """The state of each thread of a process, where the system tells."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            found.append(status.read_text().rpartition(")")[2].split()[0])
    return found


def work_until_stopped(line: Line, directory: Path, way: str) -> None:
    effects = Effects(directory / "effects")

    def stop() -> None:
        line.tell("working")
        line.hear()

    model = Speaker(script=by_prompt(first=[calling("slow")]))
    graph = guarded(way, TurnCheckpointSaver(directory / "s"), model, [effects.tool("slow", stop), effects.tool("x")])
    try:
        run(graph, asked("first"))
    except StaleTurnError:
        line.tell("refused")
    else:
        line.tell("went through")


@unix
@pytest.mark.parametrize("way", WAYS)
def test_a_process_stopped_in_a_tool_is_refused_when_it_wakes(tmp_path, way, effects):
    with Child(work_until_stopped, tmp_path, way) as child:
        assert child.hear() == "working"
        stop_outside_the_lock(child, tmp_path / "s")
        model = Speaker(script=by_prompt(first=[calling("slow")]))
        graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, [effects.tool("slow"), effects.tool("x")])
        stored = run(graph, None)["messages"]
        child.wake()
        child.tell("go on")
        assert child.hear() == "refused"
        assert child.end() == 0
    assert effects.names == ["slow"]
    assert outcomes(stored) == {"c0": "unknown"}
    assert history(graph) == stored


# --- T7: a stale worker's tool is refused before it runs ---


def think_until_stopped(line: Line, directory: Path, way: str, durability: str) -> None:
    effects = Effects(directory / "effects")

    def stop() -> None:
        line.tell("thinking")
        line.hear()

    model = Speaker(script=by_prompt(first=["Let me see", stop, calling("slow", "x")]))
    graph = guarded(way, TurnCheckpointSaver(directory / "s"), model, [effects.tool("slow"), effects.tool("x")])
    try:
        run(graph, asked("first"), durability=durability)
    except StaleTurnError:
        line.tell("refused")
    else:
        line.tell("went through")


@unix
@pytest.mark.parametrize("durability", ["async", "exit"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_stale_worker_runs_no_tool(tmp_path, way, durability, effects):
    """Under "async" and "exit" LangGraph itself would run the tools before it hears of the refused write."""
    with Child(think_until_stopped, tmp_path, way, durability) as child:
        assert child.hear() == "thinking"
        stop_outside_the_lock(child, tmp_path / "s")
        tools = [effects.tool("slow"), effects.tool("x")]
        graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()), tools)
        stored = run(graph, asked("second"))["messages"]
        child.wake()
        child.tell("go on")
        assert child.hear() == "refused"
        assert child.end() == 0
    assert effects.names == []
    assert history(graph) == stored
    assert broken_rule(stored) is None
    assert humans(stored) == ["first", "second"]


@pytest.mark.parametrize("how", ["ainvoke", "astream", "astream_events"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_stale_task_runs_no_tool(tmp_path, monkeypatch, way, how, effects):
    """The same in one event loop: the older run wakes after the newer one is done."""
    monkeypatch.setattr(_running, "FLUSH_SECONDS", 0.0)

    async def story() -> list[Any]:
        thinking, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            thinking.set()
            await go_on.wait()

        saver, tools = TurnCheckpointSaver(tmp_path / "s"), [effects.tool("slow"), effects.tool("x")]
        model = Speaker(script=by_prompt(first=["Let me see", wait, calling("slow", "x")]))
        older = asyncio.create_task(arun(guarded(way, saver, model, tools), asked("first"), how))
        await asyncio.wait_for(thinking.wait(), 30)
        newer = guarded(way, saver, Speaker(script=by_prompt()), tools)
        await arun(newer, asked("second"), how)
        stored: list[Any] = (await newer.aget_state(thread())).values["messages"]
        go_on.set()
        with pytest.raises(StaleTurnError):
            await older
        assert (await newer.aget_state(thread())).values["messages"] == stored
        return stored

    stored = asyncio.run(story())
    assert effects.names == []
    assert broken_rule(stored) is None
    assert humans(stored) == ["first", "second"]
    assert [m.text for m in stored if m.type == "ai"] == ["Let me see", "done"]


# --- C31: other writers during a run ---


def change_state(line: Line, directory: Path) -> None:
    saver = TurnCheckpointSaver(directory / "s")
    graph = guarded("attach", saver, Speaker(script=by_prompt()))
    try:
        graph.update_state(thread(), {"messages": [HumanMessage("from outside", id="outside")]}, as_node="model")
    except Exception as error:  # noqa: BLE001 - the parent decides whether it was right
        line.tell(type(error).__name__)
    else:
        line.tell("written")


def prune(line: Line, directory: Path) -> None:
    TurnCheckpointSaver(directory / "s").prune(["t"], strategy="keep_latest")
    line.tell("pruned")


@pytest.mark.parametrize("way", WAYS)
def test_a_state_update_from_another_process_takes_the_thread_over(tmp_path, way, effects, pool):
    """T3: such an update is a turn of its own; the run it fences out hears of it, and nothing is lost."""
    saver = TurnCheckpointSaver(tmp_path / "s")
    with Blocked() as blocked:
        model = Speaker(script=by_prompt(first=[calling("slow")]))
        graph = guarded(way, saver, model, [effects.tool("slow", blocked)])
        running = pool.submit(run, graph, asked("first"))
        assert blocked.started.wait(30)
        with Child(change_state, tmp_path) as child:
            assert child.hear() == "written"
            assert child.end() == 0
        blocked.release.set()
        with pytest.raises(StaleTurnError):
            running.result(30)
    stored = run(guarded(way, saver, Speaker(script=by_prompt()), [effects.tool("slow")]), asked("again"))["messages"]
    assert humans(stored) == ["first", "from outside", "again"]
    assert broken_rule(stored) is None
    assert outcomes(stored).keys() == {"c0"}
    assert effects.names == ["slow"]


@pytest.mark.parametrize("way", WAYS)
def test_a_prune_from_another_process_leaves_the_run_alone(tmp_path, way, effects, pool):
    saver = TurnCheckpointSaver(tmp_path / "s")
    with Blocked() as blocked:
        model = Speaker(script=by_prompt(first=[calling("slow")]))
        graph = guarded(way, saver, model, [effects.tool("slow", blocked)])
        run(graph, asked("zero"))
        running = pool.submit(run, graph, asked("first"))
        assert blocked.started.wait(30)
        with Child(prune, tmp_path) as child:
            assert child.hear() == "pruned"
            assert child.end() == 0
        blocked.release.set()
        stored = running.result(30)["messages"]
    assert texts(stored)[-2:] == [("tool", "slow done"), ("ai", "done")]
    assert effects.names == ["slow"]
    assert saver.verify() == []


# --- policies ---


def work_until_killed(line: Line, directory: Path, way: str) -> None:
    effects = Effects(directory / "effects")

    def die() -> None:
        line.hear()
        os.kill(os.getpid(), signal.SIGKILL)

    class Fast:
        def __call__(self) -> None:
            line.tell("fast")

    tools = [effects.tool("fast", Fast()), effects.tool("slow", die)]
    model = Speaker(script=by_prompt(first=[calling("fast", "slow")]))
    run(guarded(way, TurnCheckpointSaver(directory / "s"), model, tools), asked("first"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Callable[[str, Path], None]:
    """Copies what a process left that was killed in "slow", after "fast" was done; each way dies once."""
    dead: dict[str, Path] = {}

    def copy(way: str, target: Path) -> None:
        if way not in dead:
            source = tmp_path_factory.mktemp("killed") / way
            source.mkdir()
            with Child(work_until_killed, source, way) as child:
                assert child.hear() == "fast"
                probe = TurnCheckpointSaver(source / "s")
                wait_for_result(probe)
                child.tell("die")
                assert child.end() == -signal.SIGKILL
            dead[way] = source
        shutil.copytree(dead[way], target, dirs_exist_ok=True)

    return copy


def wait_for_result(saver: TurnCheckpointSaver) -> None:
    """Until the journal of the other process has the result of `c0`. Nobody there can tell us."""
    from langgraph_turncheckpoint._running import load_transcript

    for _ in range(30_000):
        if load_transcript(saver.store, "t", saver.turns("t")[0].token).call_evidence():
            found = load_transcript(saver.store, "t", saver.turns("t")[0].token)
            if any(entry.facts.result for entry in found.call_evidence().values()):
                return
        threading.Event().wait(0.001)
    raise AssertionError("no result was recorded")


def resumed(way: str, directory: Path, effects: Effects, **options: Any) -> Any:
    metadata = options.pop("metadata", None)
    tools = [effects.tool("fast"), effects.tool("slow", metadata=metadata)]
    model = Speaker(script=by_prompt(first=[calling("fast", "slow")]))
    return guarded(way, TurnCheckpointSaver(directory / "s"), model, tools, **options)


@unix
@pytest.mark.parametrize("colour", ["invoke", "astream"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"default_on_restart": "rerun"},
        {"on_restart": {"slow": "rerun"}},
        {"on_restart": {"fast": "rerun"}},
        {"metadata": {"on_restart": "rerun"}},
        {"metadata": {"on_restart": "rerun"}, "on_restart": {"slow": "report"}},
        {"metadata": {"on_restart": "report"}, "default_on_restart": "rerun"},
    ],
    ids=str,
)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_policies_decide_about_a_tool_that_had_started(tmp_path, way, options, colour, effects, killed):
    killed(way, tmp_path)
    stored = run(resumed(way, tmp_path, effects, **options), None, colour)["messages"]
    by_name = options.get("on_restart", {}).get("slow")
    policy = by_name or options.get("metadata", {}).get("on_restart") or options.get("default_on_restart", "report")
    assert effects.names.count("fast") == 1
    assert effects.names.count("slow") == (2 if policy == "rerun" else 1)
    assert answers(stored)["c0"] == "fast done"
    if policy == "rerun":
        assert answers(stored)["c1"] == "slow done"
        assert notes(stored) == []
    else:
        assert outcomes(stored)["c1"] == "unknown"
        assert [note["cause"] for note in notes(stored)] == ["restart"]
    assert broken_rule(stored) is None
    assert stored[-1].text == "done"


ANSWERS = {
    "rerun": ("rerun", 2, "slow done"),
    "rerun in a dict": ({"action": "rerun"}, 2, "slow done"),
    "report": ("report", 1, None),
    "report in a dict": ({"action": "report"}, 1, None),
    "result": ({"action": "result", "content": "42"}, 1, "42"),
    "empty result": ({"action": "result", "content": ""}, 1, ""),
}


@unix
@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_person_decides_about_a_tool_that_had_started(tmp_path, way, answer, colour, effects, killed):
    killed(way, tmp_path)
    given, runs, text = ANSWERS[answer]
    graph = resumed(way, tmp_path, effects, on_restart={"slow": "ask"})
    run(graph, None, colour)
    (asked_for,) = graph.get_state(thread()).interrupts
    assert asked_for.value["type"] == "turncheckpoint.unknown_outcome"
    assert asked_for.value["tool_call_id"] == "c1"
    assert asked_for.value["name"] == "slow"
    assert set(asked_for.value["choices"]) == {"rerun", "report", "result"}
    assert effects.names.count("slow") == 1
    graph = resumed(way, tmp_path, effects, on_restart={"slow": "ask"})  # the answer comes another day
    stored = run(graph, Command(resume=given), colour)["messages"]
    assert effects.names.count("slow") == runs
    assert effects.names.count("fast") == 1
    assert answers(stored)["c0"] == "fast done"
    if text is None:
        assert outcomes(stored)["c1"] == "answered_by_person"
    else:
        assert answers(stored)["c1"] == text
    assert broken_rule(stored) is None
    assert stored[-1].text == "done"
    assert graph.get_state(thread()).interrupts == ()


@pytest.mark.parametrize("attached", ["inner", "both", "outer", "both, two guards"])
@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_an_agent_in_a_graph_runs_its_tools_once_whichever_of_the_two_is_attached(tmp_path, attached, colour, effects):
    saver = TurnCheckpointSaver(tmp_path / "s")
    guard = TurnGuard(saver)
    model = Speaker(script=by_prompt(first=[calling("fast", "slow")]))
    agent = create_agent(model, [effects.tool("fast"), effects.tool("slow")], checkpointer=saver)
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent if attached == "outer" else guard.attach(agent))
    builder.add_edge(START, "agent")
    graph = builder.compile(checkpointer=saver)
    if attached != "inner":
        graph = (TurnGuard(saver) if "two" in attached else guard).attach(graph)
    stored = run(graph, asked("first"), colour)["messages"]
    assert answers(stored) == {"c0": "fast done", "c1": "slow done"}
    assert sorted(effects.names) == ["fast", "slow"]


def test_all_of_a_long_input_is_known_to_be_stored(tmp_path, effects):
    """What is not would be brought back for the rest of the turn, also where somebody has removed it since."""
    from langgraph_turncheckpoint._running import load_transcript

    saver = TurnCheckpointSaver(tmp_path / "s")
    graph = guarded("attach", saver, Speaker(script=lambda messages: 1 / 0), [effects.tool("fast")])
    prompts = [HumanMessage(f"prompt {number}", id=f"p{number}") for number in range(150)]
    with pytest.raises(ZeroDivisionError):
        run(graph, {"messages": prompts}, durability="sync")
    assert load_transcript(saver.store, "t", sys.maxsize).stored >= {prompt.id for prompt in prompts}


@unix
@pytest.mark.parametrize("way", ALL_WAYS)
def test_why_a_call_was_cut_off_is_known_after_a_person_was_asked_about_it(tmp_path, way, effects, killed):
    """G3: the run that asked ended otherwise than the one that was killed."""
    killed(way, tmp_path)
    graph = resumed(way, tmp_path, effects, default_on_restart="ask")
    run(graph, None)
    (first,) = graph.get_state(thread()).interrupts
    graph = resumed(way, tmp_path, effects, default_on_restart="ask")
    run(graph, Command(resume="perhaps"))
    (again,) = graph.get_state(thread()).interrupts
    assert again.value["description"] == first.value["description"]
    stored = run(graph, Command(resume="report"))["messages"]
    assert [note["cause"] for note in notes(stored) if note["outcome"] == "answered_by_person"] == ["restart"]


def middleware_in_an_attached_agent(directory: Path, effects: Effects, *, apart: bool) -> Any:
    saver = TurnCheckpointSaver(directory / "s")
    guard = TurnGuard(saver)
    model = Speaker(script=by_prompt(first=[calling("fast", "slow")]))
    inner = TurnGuard(saver) if apart else guard
    tools = [effects.tool("fast"), effects.tool("slow")]
    return guard.attach(create_agent(model, tools, middleware=[inner.middleware()], checkpointer=saver))


@pytest.mark.parametrize("apart", [False, True], ids=["one guard", "two guards"])
@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_an_attached_agent_may_have_the_middleware_too(tmp_path, apart, colour, effects):
    graph = middleware_in_an_attached_agent(tmp_path, effects, apart=apart)
    stored = run(graph, asked("first"), colour)["messages"]
    assert answers(stored) == {"c0": "fast done", "c1": "slow done"}
    assert effects.names.count("fast") == effects.names.count("slow") == 1
    assert outcomes(stored) == {"c0": "real", "c1": "real"}


@unix
@pytest.mark.parametrize("apart", [False, True], ids=["one guard", "two guards"])
@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_an_attached_agent_that_has_the_middleware_too_goes_on_after_a_kill(tmp_path, apart, colour, effects, killed):
    killed("attach", tmp_path)
    stored = run(middleware_in_an_attached_agent(tmp_path, effects, apart=apart), None, colour)["messages"]
    assert answers(stored)["c0"] == "fast done"
    assert outcomes(stored) == {"c0": "real", "c1": "unknown"}
    assert effects.names.count("fast") == effects.names.count("slow") == 1
    assert broken_rule(stored) is None


@unix
@pytest.mark.parametrize(
    "bad",
    [
        *("maybe", "", 17, True, False, ["rerun"]),
        *({"action": "result"}, {"action": "result", "content": None}, {"action": True}, {"act": "rerun"}),
    ],
)
@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_what_is_no_answer_is_asked_again(tmp_path, way, bad, effects, killed):
    killed(way, tmp_path)
    graph = resumed(way, tmp_path, effects, default_on_restart="ask")
    run(graph, None)
    run(graph, Command(resume=bad))
    (again,) = graph.get_state(thread()).interrupts
    assert "is no answer" in again.value["error"]
    assert effects.names.count("slow") == 1
    stored = run(graph, Command(resume="report"))["messages"]
    assert outcomes(stored)["c1"] == "answered_by_person"
    assert effects.names.count("slow") == 1


@unix
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_question_nobody_answered_is_closed_by_a_new_message(tmp_path, way, effects, killed):
    """The tool may have taken effect in the run that was killed; the question does not make that untrue."""
    killed(way, tmp_path)
    graph = resumed(way, tmp_path, effects, default_on_restart="ask")
    run(graph, None)
    stored = run(graph, asked("again"))["messages"]
    assert broken_rule(stored) is None
    assert effects.names.count("slow") == 1
    assert answers(stored)["c0"] == "fast done"
    assert outcomes(stored)["c1"] in {"unknown", "superseded"}
    assert "not run" not in answers(stored)["c1"].replace("not run any further", "")
    assert humans(stored) == ["first", "again"]


@unix
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_rerun_that_is_killed_again_is_reported_or_rerun_again(tmp_path, way, effects, killed):
    killed(way, tmp_path)

    def leave() -> None:
        raise KeyboardInterrupt

    tools = [effects.tool("fast"), effects.tool("slow", leave)]
    model = Speaker(script=by_prompt(first=[calling("fast", "slow")]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools, default_on_restart="rerun")
    with pytest.raises(KeyboardInterrupt):
        run(graph, None)
    stored = run(resumed(way, tmp_path, effects), None)["messages"]
    assert effects.names.count("slow") == 2
    assert effects.names.count("fast") == 1
    assert outcomes(stored) == {"c0": "real", "c1": "unknown"}
    assert [note["cause"] for note in notes(stored)] == ["user"]


# --- T5: multitask strategies through attach ---


SAVERS: dict[str, Callable[[Path], Any]] = {
    "ours": lambda path: TurnCheckpointSaver(path / "s"),
    "memory": lambda path: InMemorySaver(),
}


@pytest.fixture(params=SAVERS)
def any_saver(request, tmp_path):
    return SAVERS[request.param](tmp_path)


@pytest.fixture
def busy(any_saver, effects, pool) -> Iterator[Any]:
    """A thread on which a guarded run waits in a tool: the saver, the run's future, and what lets it go."""
    with Blocked() as blocked:
        guard = TurnGuard(any_saver)
        model = Speaker(script=by_prompt(first=[calling("slow")], zero=["zero reply"]))
        graph = guarded("attach", any_saver, model, [effects.tool("slow", blocked)], guard=guard)
        run(graph, asked("zero"))
        running = pool.submit(run, graph, asked("first"))
        assert blocked.started.wait(30)
        yield any_saver, guard, running, blocked


def second_agent(saver: Any, guard: TurnGuard, strategy: str, effects: Effects, **options: Any) -> Any:
    """Another process' agent, as far as a saver can be shared."""
    path = None if isinstance(saver, TurnCheckpointSaver) else guard._core.home.path
    other = TurnGuard(saver, multitask_strategy=strategy, path=path, **options)
    model = Speaker(script=by_prompt(second=["second reply"]))
    return guarded("attach", saver, model, [effects.tool("slow")], guard=other)


@pytest.mark.parametrize("colour", ["invoke", "astream"])
def test_reject_leaves_the_running_turn_alone(busy, effects, colour):
    saver, guard, running, blocked = busy
    graph = second_agent(saver, guard, "reject", effects)
    with pytest.raises(ThreadBusyError):
        run(graph, asked("second"), colour)
    blocked.release.set()
    stored = running.result(30)["messages"]
    assert humans(stored) == ["zero", "first"]
    assert outcomes(stored) == {"c0": "real"}
    assert humans(run(graph, asked("second"), colour)["messages"]) == ["zero", "first", "second"]


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_enqueue_waits_for_the_running_turn(busy, effects, pool, colour):
    saver, guard, running, blocked = busy
    with pytest.raises(ThreadBusyError):
        run(second_agent(saver, guard, "enqueue", effects, timeout=0.05), asked("second"), colour)
    waiting = pool.submit(run, second_agent(saver, guard, "enqueue", effects, timeout=30.0), asked("second"), colour)
    blocked.release.set()
    running.result(30)
    stored = waiting.result(30)["messages"]
    assert humans(stored) == ["zero", "first", "second"]
    assert outcomes(stored) == {"c0": "real"}
    assert broken_rule(stored) is None


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_interrupt_takes_over_and_closes_what_was_open(busy, effects, colour):
    """C34."""
    saver, guard, running, blocked = busy
    stored = run(second_agent(saver, guard, "interrupt", effects), asked("second"), colour)["messages"]
    blocked.release.set()
    with pytest.raises(StaleTurnError):
        running.result(30)
    assert humans(stored) == ["zero", "first", "second"]
    assert outcomes(stored) == {"c0": "unknown"}
    assert [note["cause"] for note in notes(stored)] == ["superseded"]
    assert stored[-1].text == "second reply"
    assert history(second_agent(saver, guard, "interrupt", effects)) == stored


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_rollback_starts_before_the_input_of_the_running_turn(busy, effects, colour):
    saver, guard, running, blocked = busy
    graph = second_agent(saver, guard, "rollback", effects)
    stored = run(graph, asked("second"), colour)["messages"]
    blocked.release.set()
    with pytest.raises(StaleTurnError):
        running.result(30)
    expected = [("human", "zero"), ("ai", "zero reply"), ("human", "second"), ("ai", "second reply")]
    assert texts(stored) == expected
    assert texts(history(graph)) == expected
    assert texts(run(graph, asked("third"))["messages"])[:4] == expected


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_rollback_of_a_threads_first_run_starts_from_nothing(any_saver, effects, pool, colour):
    with Blocked() as blocked:
        guard = TurnGuard(any_saver)
        model = Speaker(script=by_prompt(first=[calling("slow")]))
        running = pool.submit(
            run, guarded("attach", any_saver, model, [effects.tool("slow", blocked)], guard=guard), asked("first")
        )
        assert blocked.started.wait(30)
        graph = second_agent(any_saver, guard, "rollback", effects)
        stored = run(graph, asked("second"), colour)["messages"]
        blocked.release.set()
        with pytest.raises(StaleTurnError):
            running.result(30)
    expected = [("human", "second"), ("ai", "second reply")]
    assert texts(stored) == texts(history(graph)) == expected
    assert texts(run(graph, asked("third"))["messages"])[:2] == expected
    assert effects.names.count("slow") == 1


def test_strategies_that_come_too_late_in_a_node_are_refused_there(saver):
    for strategy in ("reject", "enqueue", "rollback"):
        guard = TurnGuard(saver, multitask_strategy=strategy)
        with pytest.raises(ValueError, match="attach"):
            guard.middleware()
        with pytest.raises(ValueError, match="attach"):
            guard.node(lambda state: state)
    with pytest.raises(ValueError, match="multitask_strategy"):
        TurnGuard(saver, multitask_strategy="wait")
    with pytest.raises(ValueError, match="timeout"):
        TurnGuard(saver, multitask_strategy="reject", timeout=1.0)


# --- closing a thread ---


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_closing_a_thread_finalizes_its_history_first(busy, effects, colour):
    saver, guard, running, blocked = busy
    graph = second_agent(saver, guard, "interrupt", effects)
    closing = TurnGuard(saver, path=None if isinstance(saver, TurnCheckpointSaver) else guard._core.home.path)
    plain = create_agent(Speaker(script=by_prompt()), [effects.tool("slow")], checkpointer=saver)
    if colour == "sync":
        report = closing.close_thread(plain, thread())
    else:
        report = asyncio.run(closing.aclose_thread(plain, thread()))
    blocked.release.set()
    with pytest.raises((StaleTurnError, ThreadClosedError)):
        running.result(30)
    assert [(answer.call_id, answer.outcome) for answer in report.answers] == [("c0", "unknown")]
    stored = history(plain)
    assert broken_rule(stored) is None
    assert humans(stored) == ["zero", "first"]
    assert "slow done" not in str(stored)
    with pytest.raises(ThreadClosedError):
        run(graph, asked("second"))
    with pytest.raises(ThreadClosedError):
        closing.inbox("t").post("hello?")
    with pytest.raises(ThreadClosedError):
        closing.recover(plain, thread())
    guard._core.home.reopen_thread("t")
    assert humans(run(graph, asked("second"))["messages"]) == ["zero", "first", "second"]


# --- C62, C7: people ---


def paused_agent(directory: Path, way: str, mode: str, effects: Effects) -> Any:
    tools = [effects.tool("free"), effects.tool("gated")]
    hitl = reviewing({"gated": True}, mode)
    model = Speaker(script=by_prompt(first=[calling("free", "gated")]))
    return guarded(way, TurnCheckpointSaver(directory / "s"), model, tools, middleware=[hitl])


def decision(graph: Any, mode: str, kind: str) -> Command[Any]:
    (pause,) = graph.get_state(thread()).interrupts
    one = {"type": kind}
    return Command(resume={pause.id: {"decisions": [one]} if mode == "batched" else one})


@pytest.mark.parametrize("colour", ["invoke", "ainvoke", "stream", "astream_events"])
@pytest.mark.parametrize("kind", ["approve", "reject"])
@pytest.mark.parametrize("mode", REVIEW_MODES)
@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_a_genuine_decision_reaches_the_tool_after_a_restart(tmp_path, way, mode, kind, colour, effects):
    run(paused_agent(tmp_path, way, mode, effects), asked("first"), colour)
    assert "gated" not in effects.names
    graph = paused_agent(tmp_path, way, mode, effects)
    stored = run(graph, decision(graph, mode, kind), colour)["messages"]
    assert effects.names.count("free") == 1
    assert effects.names.count("gated") == (1 if kind == "approve" else 0)
    assert answers(stored)["c0"] == "free done"
    if kind == "approve":
        assert answers(stored)["c1"] == "gated done"
    assert notes(stored) == []
    assert broken_rule(stored) is None
    assert stored[-1].text == "done"


@pytest.mark.parametrize("colour", ["invoke", "astream"])
@pytest.mark.parametrize("mode", REVIEW_MODES)
@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_a_new_message_instead_of_a_decision_supersedes_the_call(tmp_path, way, mode, colour, effects):
    run(paused_agent(tmp_path, way, mode, effects), asked("first"), colour)
    graph = paused_agent(tmp_path, way, mode, effects)
    stored = run(graph, asked("again"), colour)["messages"]
    assert broken_rule(stored) is None
    assert "gated" not in effects.names
    assert outcomes(stored)["c1"] == "superseded"
    if mode == "per_call":  # the free call was not held up by the question
        assert effects.names == ["free"]
        assert answers(stored)["c0"] == "free done"
    else:
        assert effects.names == []
        assert outcomes(stored)["c0"] in {"superseded", "not_run"}
    assert humans(stored) == ["first", "again"]
    assert graph.get_state(thread()).interrupts == ()
    assert [turn.state for turn in TurnCheckpointSaver(tmp_path / "s").turns("t")][1] == "paused"
    more = run(graph, asked("more"), colour)["messages"]
    assert more[: len(stored)] == stored


@pytest.mark.parametrize("policy", ["report", "rerun", "ask"])
@pytest.mark.parametrize("mode", REVIEW_MODES)
@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_an_approved_tool_that_was_stopped_follows_its_policy(tmp_path, way, mode, policy, effects):
    flaky = Flaky(1, KeyboardInterrupt())

    def agent() -> Any:
        tools = [effects.tool("free"), effects.tool("gated", flaky)]
        hitl = reviewing({"gated": True}, mode)
        model = Speaker(script=by_prompt(first=[calling("free", "gated")]))
        saver = TurnCheckpointSaver(tmp_path / "s")
        return guarded(way, saver, model, tools, middleware=[hitl], default_on_restart=policy)

    run(agent(), asked("first"))
    graph = agent()
    with pytest.raises(KeyboardInterrupt):
        run(graph, decision(graph, mode, "approve"))
    assert effects.names.count("gated") == 1
    graph = agent()
    run(graph, None)
    if policy == "ask":
        assert effects.names.count("gated") == 1
        (question,) = graph.get_state(thread()).interrupts
        assert question.value["type"] == "turncheckpoint.unknown_outcome"
        assert "error" not in question.value, "the approval is no answer to this question"
        run(graph, Command(resume="report"))
    elif policy == "rerun" and mode == "per_call":
        run(graph, decision(graph, mode, "approve"))  # LangGraph itself asks again after a run that was stopped
    stored = history(graph)
    assert broken_rule(stored) is None
    assert effects.names.count("gated") == (2 if policy == "rerun" else 1)
    expected = {"report": "unknown", "rerun": "real", "ask": "answered_by_person"}
    assert outcomes(stored)["c1"] == expected[policy]
    assert answers(stored)["c0"] == "free done"
    assert effects.names.count("free") == 1


@pytest.mark.parametrize("given", [True, "rerun", "report", {"action": "rerun"}])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_an_answer_to_the_tools_own_question_is_none_to_the_guards(tmp_path, way, given, effects):
    """LangGraph hands the answers of a task out in order; what the tool was told must not let it run again."""
    flaky = Flaky(1, KeyboardInterrupt())

    def work() -> None:
        interrupt("Really?")
        effects.add("really")
        flaky()

    def agent() -> Any:
        model = Speaker(script=by_prompt(first=[calling("careful")]))
        tools = [effects.tool("careful", work)]
        return guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools, default_on_restart="ask")

    run(agent(), asked("first"))
    with pytest.raises(KeyboardInterrupt):
        run(agent(), Command(resume=given))
    assert effects.names.count("really") == 1
    graph = agent()
    run(graph, None)
    assert effects.names.count("really") == 1
    (question,) = graph.get_state(thread()).interrupts
    assert question.value["type"] == "turncheckpoint.unknown_outcome"
    stored = run(graph, Command(resume="report"))["messages"]
    assert effects.names.count("really") == 1
    assert outcomes(stored) == {"c0": "answered_by_person"}


# --- retries ---


class Flaky:
    """Fails so often, then works."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self._failures, self._error = failures, error or ConnectionError("flaky")

    def __call__(self) -> None:
        self._failures -= 1
        if self._failures >= 0:
            raise self._error


RETRY: dict[str, Any] = {"max_retries": 2, "initial_delay": 0.0, "jitter": False, "on_failure": "error"}


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_a_retry_middleware_retries_within_a_run(tmp_path, way, colour, effects):
    tools = [effects.tool("fast"), effects.tool("flaky", Flaky(2))]
    model = Speaker(script=by_prompt(first=[calling("fast", "flaky")]))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools, middleware=[ToolRetryMiddleware(**RETRY)])
    stored = run(graph, asked("first"), colour)["messages"]
    assert answers(stored) == {"c0": "fast done", "c1": "flaky done"}
    assert (effects.names.count("fast"), effects.names.count("flaky")) == (1, 3)
    assert notes(stored) == []


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_a_call_whose_retries_failed_is_failed_or_tried_again(tmp_path, way, goes_on, effects):
    def agent(then: Any = None) -> Any:
        tools = [effects.tool("fast"), effects.tool("flaky", then)]
        model = Speaker(script=by_prompt(first=[calling("fast", "flaky")]))
        retry = ToolRetryMiddleware(**RETRY)
        return guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, tools, middleware=[retry])

    with pytest.raises(ConnectionError):
        run(agent(Flaky(3)), asked("first"))
    stored = run(agent(), None if goes_on else asked("again"))["messages"]
    assert broken_rule(stored) is None
    assert effects.names.count("flaky") == (4 if goes_on else 3)
    assert outcomes(stored)["c1"] == ("real" if goes_on else "failed")
    if not goes_on:
        assert "flaky" in answers(stored)["c1"]


@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_a_run_stopped_between_two_tries_leaves_an_unknown_outcome(tmp_path, way, effects):
    tries = [ConnectionError("once"), KeyboardInterrupt()]

    def work() -> None:
        raise tries.pop(0)

    model = Speaker(script=by_prompt(first=[calling("flaky")]))
    saver, retry = TurnCheckpointSaver(tmp_path / "s"), ToolRetryMiddleware(**RETRY)
    with pytest.raises(KeyboardInterrupt):
        run(guarded(way, saver, model, [effects.tool("flaky", work)], middleware=[retry]), asked("first"))
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), model, [effects.tool("flaky")], middleware=[retry])
    stored = run(graph, asked("again"))["messages"]
    assert effects.names == ["flaky", "flaky"]
    assert outcomes(stored) == {"c0": "unknown"}


@pytest.mark.parametrize("way", ["node", "attach"])
def test_a_retry_policy_of_the_graph_works_as_ever(tmp_path, way, effects):
    saver = TurnCheckpointSaver(tmp_path / "s")
    guard = TurnGuard(saver)
    model = Speaker(script=by_prompt(first=[calling("flaky")]))
    wraps: dict[str, Any] = {"wrap_tool_call": guard.wrap_tool_call} if way == "node" else {}
    tools = ToolNode([effects.tool("flaky", Flaky(2))], handle_tool_errors=False, **wraps)

    def speak(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("model", guard.node(speak) if way == "node" else speak)
    policy = RetryPolicy(max_attempts=3, initial_interval=0.0, jitter=False)
    builder.add_node("tools", tools, retry_policy=policy)
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    graph = builder.compile(checkpointer=saver)
    graph = guard.attach(graph) if way == "attach" else graph
    stored = run(graph, asked("first"))["messages"]
    assert effects.names == ["flaky"] * 3
    assert answers(stored) == {"c0": "flaky done"}
    assert notes(stored) == []


# --- G7: the inbox ---


@pytest.mark.parametrize("colour", ["invoke", "astream"])
@pytest.mark.parametrize("way", ["middleware", "node"])
def test_a_message_posted_during_a_tool_is_delivered_to_the_next_model_call(tmp_path, way, colour, effects):
    saver = TurnCheckpointSaver(tmp_path / "s")
    inbox = TurnCheckpointSaver(tmp_path / "s").inbox("t")
    model = Speaker(script=by_prompt(first=[calling("fast")]))
    graph = guarded(
        way, saver, model, [effects.tool("fast", lambda: inbox.post(HumanMessage("hurry", id="m")) and None)]
    )
    stored = run(graph, asked("first"), colour)["messages"]
    assert texts(model.seen[1]) == [("human", "first"), ("ai", ""), ("tool", "fast done"), ("human", "hurry")]
    assert texts(stored) == [*texts(model.seen[1]), ("ai", "done")]
    assert inbox.pending() == []
    assert run(graph, asked("again"), colour)["messages"][: len(stored)] == stored


@pytest.mark.parametrize("colour", ["invoke", "astream"])
def test_a_message_posted_during_a_run_is_the_next_input_of_an_attached_graph(tmp_path, colour, effects):
    saver = TurnCheckpointSaver(tmp_path / "s")
    inbox = saver.inbox("t")
    model = Speaker(script=by_prompt(first=[calling("fast")]))
    graph = guarded("attach", saver, model, [effects.tool("fast", lambda: inbox.post("hurry") and None)])
    first = run(graph, asked("first"), colour)["messages"]
    assert humans(first) == ["first"]
    assert [m.text for m in inbox.pending()] == ["hurry"]
    second = run(graph, asked("again"), colour)["messages"]
    assert humans(second) == ["first", "hurry", "again"]
    assert second[: len(first)] == first
    assert inbox.pending() == []


@pytest.mark.parametrize("way", ALL_WAYS)
def test_several_messages_are_delivered_in_order_and_each_once(tmp_path, way):
    saver = TurnCheckpointSaver(tmp_path / "s")
    for name in "abc":
        saver.inbox("t").post(HumanMessage(name, id=name))
    graph = guarded(way, saver, Speaker(script=by_prompt()))
    stored = run(graph, asked("first"))["messages"]
    assert sorted(humans(stored)) == ["a", "b", "c", "first"]
    assert [text for text in humans(stored) if text != "first"] == ["a", "b", "c"]
    assert saver.inbox("t").pending() == []
    assert humans(run(graph, asked("again"))["messages"]) == [*humans(stored), "again"]


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_message_that_is_in_the_history_already_is_acknowledged_and_not_doubled(tmp_path, way):
    """A process that died after its checkpoint and before it acknowledged leaves exactly this."""
    saver = TurnCheckpointSaver(tmp_path / "s")
    graph = guarded(way, saver, Speaker(script=by_prompt()))
    saver.inbox("t").post(HumanMessage("hurry", id="m"))
    stored = run(graph, asked("first"))["messages"]
    saver.inbox("t").post(HumanMessage("hurry", id="m"))
    again = run(graph, asked("again"))["messages"]
    assert again[: len(stored)] == stored
    assert humans(again) == [*humans(stored), "again"]
    assert saver.inbox("t").pending() == []


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_failed_turn_releases_what_it_was_given_or_has_stored_it(tmp_path, way):
    saver = TurnCheckpointSaver(tmp_path / "s")
    saver.inbox("t").post(HumanMessage("hurry", id="m"))
    model = Speaker(script=lambda _: [ConnectionError("lost")])
    with pytest.raises(ConnectionError):
        run(guarded(way, saver, model), asked("first"))
    graph = guarded(way, saver, Speaker(script=by_prompt()))
    is_stored = any(m.id == "m" for m in history(graph))
    assert [m.id for m in saver.inbox("t").pending()] == ([] if is_stored else ["m"])
    stored = run(graph, asked("again"))["messages"]
    assert sorted(humans(stored)) == ["again", "first", "hurry"]
    assert saver.inbox("t").pending() == []


def take_and_die(line: Line, directory: Path, way: str, durability: str) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    model = Speaker(script=lambda _: [die])
    run(guarded(way, TurnCheckpointSaver(directory), model), asked("first"), durability=durability)


@unix
@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_process_loses_no_message_and_doubles_none(tmp_path, way, durability):
    saver = TurnCheckpointSaver(tmp_path / "s")
    saver.inbox("t").post(HumanMessage("hurry", id="m"))
    with Child(take_and_die, tmp_path / "s", way, durability) as child:
        assert child.end() == -signal.SIGKILL
    graph = guarded(way, saver, Speaker(script=by_prompt()))
    stored = run(graph, asked("again"))["messages"]
    assert sorted(humans(stored)) == ["again", "first", "hurry"]
    assert len({m.id for m in stored}) == len(stored)
    assert saver.inbox("t").pending() == []


# --- an agent that is a tool of another one, on a thread of its own ---


@pytest.mark.parametrize("inner_way", WAYS)
@pytest.mark.parametrize("outer_way", WAYS)
def test_an_agent_called_by_a_tool_keeps_a_journal_of_its_own(tmp_path, outer_way, inner_way, effects):
    saver = TurnCheckpointSaver(tmp_path / "s")

    def leave() -> None:
        raise KeyboardInterrupt

    def inner(then: Any = None, said: str = "Inner half") -> Any:
        tools = [effects.tool("deep-fast"), effects.tool("deep", then)]
        return guarded(inner_way, saver, Speaker(script=by_prompt(inner=[said, calling("deep-fast", "deep")])), tools)

    @tool
    def delegate() -> str:
        """Ask another agent."""
        return str(run(inner(leave), asked("inner"), config=thread("inner")))

    model = Speaker(script=by_prompt(first=[calling("delegate")]))
    with pytest.raises(KeyboardInterrupt):
        run(guarded(outer_way, saver, model, [delegate]), asked("first"))
    deep = run(inner(), asked("again"), config=thread("inner"))["messages"]
    assert broken_rule(deep) is None
    assert outcomes(deep)["c1"] == "unknown"
    assert {note["cause"] for note in notes(deep)} == {"user"}
    outer = run(guarded(outer_way, saver, Speaker(script=by_prompt()), [delegate]), asked("more"))["messages"]
    assert broken_rule(outer) is None
    assert outcomes(outer) == {"c0": "unknown"}
    assert humans(outer) == ["first", "more"]
    assert "Inner" not in str(outer)


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
@pytest.mark.parametrize("inner_way", WAYS)
@pytest.mark.parametrize("outer_way", WAYS)
def test_an_agent_called_by_a_tool_is_not_busy_once_it_is_done(tmp_path, outer_way, inner_way, colour, effects):
    saver, busy = TurnCheckpointSaver(tmp_path / "s"), []
    inner = guarded(inner_way, saver, Speaker(script=by_prompt(inner=[calling("deep")])), [effects.tool("deep")])

    @tool
    def delegate() -> str:
        """Ask another agent, twice."""
        run(inner, asked("inner"), config=thread("inner"))
        busy.append(saver.is_busy("inner"))
        found = run(inner, asked("more"), config=thread("inner"))
        busy.append(saver.is_busy("inner"))
        return str(found["messages"][-1].text)

    model = Speaker(script=by_prompt(first=[calling("delegate")]))
    stored = run(guarded(outer_way, saver, model, [delegate]), asked("first"), colour)["messages"]
    assert answers(stored) == {"c0": "done"}
    assert busy == [False, False]
    assert not saver.is_busy("inner")
    assert {turn.state for turn in saver.turns("inner")} == {"completed"}
    deep = history(inner, thread("inner"))
    assert humans(deep) == ["inner", "more"]
    assert notes(deep) == []


# --- several runs in one turn by hand ---


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("policy", ["report", "rerun"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_the_runs_of_one_turn_know_of_each_other(tmp_path, way, policy, goes_on, effects):
    saver = TurnCheckpointSaver(tmp_path / "s")
    tools = [effects.tool("fast"), effects.tool("slow", Flaky(1, KeyboardInterrupt()))]
    model = Speaker(script=by_prompt(first=["Let me see", calling("slow")]))
    graph = guarded(way, saver, model, tools, default_on_restart=policy)
    with saver.turn(thread()) as config:
        with pytest.raises(KeyboardInterrupt):
            graph.invoke(asked("first"), config)
        assert saver.is_busy("t")
        graph.invoke(None if goes_on else asked("again"), config)
        graph.invoke(asked("more"), config)
        assert saver.is_busy("t")
    assert not saver.is_busy("t")
    stored = history(graph)
    assert broken_rule(stored) is None
    assert effects.names.count("slow") == (2 if goes_on and policy == "rerun" else 1)
    assert outcomes(stored)["c0"] == ("real" if goes_on and policy == "rerun" else "unknown")
    assert humans(stored) == (["first", "more"] if goes_on else ["first", "again", "more"])
    assert [turn.state for turn in saver.turns("t")] == ["completed"]


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_stopped_run_goes_on_in_the_same_process(tmp_path, way, goes_on, effects):
    """The same saver, guard and graph: nothing that they remember stands in the way."""
    saver = TurnCheckpointSaver(tmp_path / "s")
    tools = [effects.tool("fast"), effects.tool("slow", Flaky(1, KeyboardInterrupt()))]
    model = Speaker(script=by_prompt(first=[calling("slow")], again=[calling("fast", first=1)]))
    graph = guarded(way, saver, model, tools)
    with pytest.raises(KeyboardInterrupt):
        run(graph, asked("first"))
    stored = run(graph, None if goes_on else asked("again"))["messages"]
    assert broken_rule(stored) is None
    assert outcomes(stored)["c0"] == "unknown"
    assert effects.names == (["slow"] if goes_on else ["slow", "fast"])
    assert stored[-1].text == "done"
    more = run(graph, asked("more"))["messages"]
    assert more[: len(stored)] == stored
    assert [turn.state for turn in saver.turns("t")] == ["completed", "completed", "cancelled"]


# --- one guard, several loops and threads ---


def test_one_guard_serves_several_threads_and_event_loops(tmp_path, effects, pool):
    saver = TurnCheckpointSaver(tmp_path / "s")
    model = Speaker(script=by_prompt(first=[calling("fast")]))
    graph = guarded("attach", saver, model, [effects.tool("fast")])

    def one(number: int) -> Any:
        config = thread(f"t{number}")
        if number % 2:
            return run(graph, asked("first"), "invoke", config)
        asyncio.run(arun(graph, asked("first"), "ainvoke", config))
        return graph.get_state(config).values

    for values in pool.map(one, range(8)):
        assert [m.type for m in values["messages"]] == ["human", "ai", "tool", "ai"]
    assert effects.names == ["fast"] * 8
    with contextlib.suppress(KeyError):
        assert not any(saver.is_busy(f"t{number}") for number in range(8))
