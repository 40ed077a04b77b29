"""What a guard does with wrong arguments, damaged or newer files, full disks, and threads that are not to be run."""

from __future__ import annotations

import asyncio
import errno
import itertools
import operator
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from typing_extensions import TypedDict

from langgraph_turncheckpoint import (
    DamageWarning,
    InvalidIdError,
    StorageError,
    ThreadBusyError,
    ThreadClosedError,
    TurnCheckpointSaver,
    UnknownFormatError,
)
from langgraph_turncheckpoint._frames import split_frames
from langgraph_turncheckpoint._journal import journal_path, journal_tokens
from langgraph_turncheckpoint._policies import Policies
from langgraph_turncheckpoint._turns import JOURNAL_VERSION
from langgraph_turncheckpoint.errors import (
    JournalWarning,
    MissingExtraError,
    PolicyWarning,
    UnknownPolicyError,
    UnsupportedGraphError,
    UnsupportedSaverError,
)
from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.stopped_agents import (
    WAYS,
    Effects,
    Speaker,
    asked,
    broken_rule,
    by_hand,
    by_prompt,
    calling,
    guarded,
    history,
    outcomes,
    run,
    thread,
)
from tests.system_calls import GROWING, SystemCalls, substituted

ALL_WAYS = (*WAYS, "attach-by-hand")


@pytest.fixture
def effects(tmp_path):
    return Effects(tmp_path / "effects")


def plain(saver: Any, effects: Effects) -> Any:
    return create_agent(Speaker(script=by_prompt()), [effects.tool("fast")], checkpointer=saver)


# --- policies ---


@pytest.mark.parametrize("policy", ["retry", "", "Report", None, 3])
def test_an_unknown_policy_is_refused_at_once(saver, policy):
    with pytest.raises(UnknownPolicyError, match="'report', 'rerun', 'ask'") as caught:
        TurnGuard(saver, on_restart={"deploy": policy})
    assert "on_restart['deploy']" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(UnknownPolicyError, match="default_on_restart"):
        TurnGuard(saver, default_on_restart=policy)


@pytest.mark.parametrize("policies", ["rerun", ["search"], 3])
def test_policies_that_are_not_by_name_are_refused_at_once(saver, policies):
    with pytest.raises(TypeError, match="default_on_restart"):
        TurnGuard(saver, on_restart=policies)


@pytest.mark.parametrize("way", ALL_WAYS)
def test_an_unknown_policy_in_the_metadata_of_a_tool_is_refused_before_the_tool_runs(saver, way, effects):
    tools = [effects.tool("fast", metadata={"on_restart": "sometimes"})]
    with pytest.raises(UnknownPolicyError, match="metadata of tool 'fast'"):
        run(guarded(way, saver, Speaker(script=by_prompt(first=[calling("fast")])), tools), asked("first"))
    assert effects.names == []


def test_an_unknown_policy_of_one_tool_is_refused_before_its_siblings_run(saver, effects):
    tools = [effects.tool("fast"), effects.tool("slow", metadata={"on_restart": "Rerun"})]
    graph = guarded("middleware", saver, Speaker(script=by_prompt(first=[calling("fast", "slow")])), tools)
    with pytest.raises(UnknownPolicyError, match="metadata of tool 'slow'"):
        run(graph, asked("first"))
    assert effects.names == []


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_policy_for_a_tool_that_there_is_not_is_warned_of_once(saver, way, effects):
    options: dict[str, Any] = {"on_restart": {"fats": "rerun", "fast": "ask"}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = guarded(
            way, saver, Speaker(script=by_prompt(first=[calling("fast")])), [effects.tool("fast")], **options
        )
        run(graph, asked("first"))
        run(graph, asked("again"))
    found = [str(warning.message) for warning in caught if issubclass(warning.category, PolicyWarning)]
    assert len(found) == 1
    assert "'fats'" in found[0]
    assert "fast" in found[0]
    assert effects.names == ["fast"]


def test_a_policy_for_every_tool_that_there_is_is_not_warned_of(saver, effects):
    tools = [effects.tool("one"), effects.tool("two")]
    guarded("attach", saver, Speaker(script=by_prompt()), tools, on_restart={"one": "rerun", "two": "ask"})


def test_a_policy_for_a_tool_of_another_tool_node_is_not_warned_of(saver, effects):
    """C44: each tool node knows its own tools."""
    guard = TurnGuard(saver, on_restart={"pay": "ask", "fast": "rerun"})
    wraps: Any = {"wrap_tool_call": guard.wrap_tool_call}
    builder = StateGraph(MessagesState)
    builder.add_node("model", guard.node(lambda _: {"messages": [AIMessage("", tool_calls=[named("fast")])]}))
    builder.add_node("first", ToolNode([effects.tool("fast")], **wraps))
    builder.add_node("again", guard.node(lambda _: {"messages": [AIMessage("", tool_calls=[named("pay")])]}))
    builder.add_node("second", ToolNode([effects.tool("pay")], **wraps))
    for one, other in itertools.pairwise((START, "model", "first", "again", "second")):
        builder.add_edge(one, other)
    run(builder.compile(checkpointer=saver), asked("go"))
    assert effects.names == ["fast", "pay"]


def test_a_slip_in_a_policy_for_a_second_tool_node_is_warned_of_when_its_tools_are_known(saver, effects):
    policies = Policies({"pay": "ask", "fats": "rerun"}, "report")
    policies.check_tools([effects.tool("pay")], are_all=False)
    assert not policies.has_seen("fast")
    with pytest.warns(PolicyWarning, match="'fats'"):
        policies.check_tools([effects.tool("fast")], are_all=False)
    policies.check_tools([effects.tool("fast")], are_all=False)
    assert policies.has_seen("fast")


@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_a_policy_that_a_guard_further_out_overrules_is_warned_of(saver, effects, colour):
    tools = [effects.tool("fast"), effects.tool("slow")]
    model = Speaker(script=by_prompt(first=[calling("fast", "slow")]))
    inner = TurnGuard(saver, on_restart={"slow": "ask"}).middleware()
    graph = TurnGuard(saver).attach(create_agent(model, tools, middleware=[inner], checkpointer=saver))
    with pytest.warns(PolicyWarning, match="two guards are around tool 'slow': .*'report' counts.*'ask' does not"):
        run(graph, asked("first"), colour)
    assert sorted(effects.names) == ["fast", "slow"]
    assert outcomes(history(graph)) == {"c0": "real", "c1": "real"}


def named(tool: str) -> Any:
    """A call of a tool, with its name as the id."""
    return {"name": tool, "args": {}, "id": tool, "type": "tool_call"}


# --- texts ---


@pytest.mark.parametrize("text", [3, None, ["unknown"], {"unknown": "text"}])
def test_a_text_that_is_neither_a_string_nor_a_function_is_refused_at_once(saver, text):
    with pytest.raises(TypeError, match=r"texts\['fast'\]"):
        TurnGuard(saver, texts={"fast": text})


@pytest.mark.parametrize("text", [lambda outcome: outcome, lambda outcome, cause, call: 1 / 0, lambda *told: None])
def test_a_function_for_texts_that_fails_holds_up_no_thread(saver, text, effects):
    model = Speaker(script=by_prompt())
    graph = guarded("attach", saver, model, [effects.tool("fast")], texts={"*": text})
    plain(saver, effects).update_state(thread(), {"messages": [("user", "first"), calling("fast")]}, as_node="model")
    with pytest.warns(PolicyWarning, match="the function for 'fast' failed"):
        run(graph, asked("again"))
    assert set(outcomes(history(graph)).values()) == {"unknown"}
    assert broken_rule(history(graph)) is None
    assert "was interrupted" in next(m for m in history(graph) if isinstance(m, ToolMessage)).text


# --- savers and graphs ---


class Elsewhere(TypedDict):
    """A history under a name of its own."""

    talk: Annotated[list[Any], add_messages]


def talking(saver: Any, **tools: Any) -> Any:
    builder = StateGraph(Elsewhere)
    builder.add_node("speak", lambda state: {"talk": [("ai", "so it is")]})
    builder.add_edge(START, "speak")
    return builder.compile(checkpointer=saver)


def test_a_graph_that_keeps_its_history_in_another_channel_is_refused_with_the_name_to_give(saver):
    graph = talking(saver)
    for way in ("attach", "recover"):
        with pytest.raises(UnsupportedGraphError, match="TurnGuard\\(..., messages_key='talk'\\)"):
            getattr(TurnGuard(saver), way)(graph, *([thread()] if way == "recover" else []))
    assert history(talking(saver)) == []
    guarded_graph = TurnGuard(saver, messages_key="talk").attach(graph)
    assert guarded_graph.invoke({"talk": [("user", "is it so?")]}, thread())["talk"][-1].text == "so it is"


def test_a_tool_node_tells_where_a_history_without_the_usual_reducer_is(saver, effects):
    class Added(TypedDict):
        talk: Annotated[list[Any], operator.add]

    builder = StateGraph(Added)
    builder.add_node("tools", ToolNode([effects.tool("fast")], messages_key="talk"))
    builder.add_edge(START, "tools")
    with pytest.raises(UnsupportedGraphError, match="messages_key='talk'"):
        TurnGuard(saver).attach(builder.compile(checkpointer=saver))


def test_a_graph_without_a_history_may_be_attached_for_its_turns(saver):
    class Count(TypedDict):
        n: int

    builder = StateGraph(Count)
    builder.add_node("add", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "add")
    graph = TurnGuard(saver).attach(builder.compile(checkpointer=saver))
    assert graph.invoke({"n": 1}, thread()) == {"n": 2}
    assert [turn.state for turn in saver.turns("t")] == ["completed"]


@pytest.mark.parametrize("nothing", [None, "saver", {}, TurnCheckpointSaver, object()])
def test_a_guard_over_something_that_is_no_saver_is_refused(nothing):
    with pytest.raises(UnsupportedSaverError, match="checkpointer"):
        TurnGuard(nothing)


@pytest.mark.parametrize("way", ["middleware", "node"])
@pytest.mark.parametrize("colour", ["invoke", "ainvoke"])
def test_a_graph_that_saves_elsewhere_than_its_guard_is_refused(saver, way, colour, effects):
    """What its runs leave would never be found, and a payment would be made twice."""
    guard = TurnGuard(InMemorySaver())
    model = Speaker(script=by_prompt(first=[calling("fast")]))
    graph = guarded(way, saver, model, [effects.tool("fast")], guard=guard)
    with pytest.raises(UnsupportedSaverError, match="give both the same saver"):
        run(graph, asked("first"), colour)
    assert effects.names == []


@pytest.mark.parametrize("way", ["middleware", "node", "attach"])
def test_a_guard_takes_another_instance_on_the_same_directory(saver, way, effects):
    guard = TurnGuard(TurnCheckpointSaver(saver.path))
    model = Speaker(script=by_prompt(first=[calling("fast")]))
    run(guarded(way, saver, model, [effects.tool("fast")], guard=guard), asked("first"))
    assert effects.names == ["fast"]


async def test_a_saver_without_a_directory_needs_a_path(tmp_path, effects):
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        with pytest.raises(UnsupportedSaverError, match="path="):
            TurnGuard(saver)
        guard = TurnGuard(saver, path=tmp_path / "turns")
        model = Speaker(script=by_prompt(first=[calling("fast")]))
        graph = guarded("attach", saver, model, [effects.tool("fast")], guard=guard)
        await graph.ainvoke(asked("first"), thread())
        stored = (await graph.aget_state(thread())).values["messages"]
        assert [m.type for m in stored] == ["human", "ai", "tool", "ai"]
        assert (tmp_path / "turns").is_dir()


def test_a_path_for_a_saver_that_needs_none_is_refused(saver, tmp_path):
    with pytest.raises(ValueError, match="path"):
        TurnGuard(saver, path=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_sqlite_saver_has_its_turns_beside_its_database(tmp_path, effects):
    connection = sqlite3.connect(tmp_path / "db", check_same_thread=False)
    saver = SqliteSaver(connection)
    run(guarded("attach", saver, Speaker(script=by_prompt()), [effects.tool("fast")]), asked("first"))
    connection.close()
    assert (tmp_path / "db.turns").is_dir()


@pytest.mark.parametrize("checkpointer", [None, True, False])
def test_attach_refuses_a_graph_that_saves_nothing(saver, checkpointer, effects):
    graph = by_hand(checkpointer, Speaker(script=by_prompt()), [effects.tool("fast")])
    with pytest.raises(UnsupportedGraphError, match="checkpointer"):
        TurnGuard(saver).attach(graph)
    with pytest.raises(UnsupportedGraphError, match="checkpointer"):
        TurnGuard(saver).recover(graph, thread())


def test_attach_refuses_a_graph_with_another_saver(saver, tmp_path, effects):
    other = TurnCheckpointSaver(tmp_path / "other")
    for stranger in (other, InMemorySaver()):
        with pytest.raises(UnsupportedSaverError, match="same saver"):
            TurnGuard(saver).attach(plain(stranger, effects))
        with pytest.raises(UnsupportedSaverError):
            TurnGuard(stranger).attach(plain(saver, effects))
    with pytest.raises(UnsupportedSaverError):
        TurnGuard(InMemorySaver()).attach(plain(InMemorySaver(), effects))


def test_attach_takes_another_instance_on_the_same_directory(saver, effects):
    again = TurnCheckpointSaver(saver.path)
    values = run(TurnGuard(again).attach(plain(saver, effects)), asked("first"))
    assert [m.type for m in values["messages"]] == ["human", "ai"]


def test_attaching_twice_gives_the_same_graph_and_two_guards_are_refused(saver, effects):
    guard = TurnGuard(saver)
    graph = guard.attach(plain(saver, effects))
    assert guard.attach(graph) is graph
    with pytest.raises(UnsupportedGraphError, match="attached"):
        TurnGuard(saver).attach(graph)


@pytest.mark.parametrize("nothing", [None, "graph", 7, lambda state: state])
def test_attach_refuses_what_is_no_compiled_graph(saver, nothing):
    with pytest.raises(UnsupportedGraphError, match="compile"):
        TurnGuard(saver).attach(nothing)
    with pytest.raises(UnsupportedGraphError):
        TurnGuard(saver).recover(nothing, thread())


def test_attach_refuses_a_builder(saver):
    builder: Any = StateGraph(MessagesState).add_node("x", lambda state: state).add_edge(START, "x")
    with pytest.raises(UnsupportedGraphError, match=r"compile\(\)"):
        TurnGuard(saver).attach(builder)


@pytest.mark.parametrize("nothing", [None, 3, "node"])
def test_what_is_no_node_is_refused(saver, nothing):
    with pytest.raises(TypeError, match="node"):
        TurnGuard(saver).node(nothing)


@pytest.mark.parametrize("way", ["attach", "attach-by-hand"])
def test_a_guarded_graph_without_a_thread_says_what_langgraph_says(saver, way, effects):
    guard = TurnGuard(saver)
    graph = guarded(way, saver, Speaker(script=by_prompt()), [effects.tool("fast")], guard=guard)
    with pytest.raises(ValueError, match="thread_id"):
        graph.invoke(asked("first"))
    with pytest.raises(InvalidIdError, match="thread_id"):
        guard.recover(graph, {})
    with pytest.raises(InvalidIdError, match="thread_id"):
        asyncio.run(guard.arecover(graph, {"configurable": {}}))


# --- turns and threads ---


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_config_with_the_turn_of_another_thread_is_refused(saver, way, effects):
    graph = guarded(way, saver, Speaker(script=by_prompt(first=[calling("fast")])), [effects.tool("fast")])
    with saver.turn(thread("other")) as config:
        stray = {"configurable": {**config["configurable"], "thread_id": "t"}}
        if way.startswith("attach"):
            with pytest.raises(InvalidIdError, match="another thread"):
                graph.invoke(asked("first"), stray)
            assert history(graph) == []
            assert effects.names == []
        else:
            graph.invoke(asked("first"), stray)  # as an unguarded graph: the run opens a turn of its own
            assert effects.names == ["fast"]
    assert saver.turns("other")[0].state == "completed"


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_closed_thread_is_not_run_nor_recovered(saver, way, effects):
    graph = guarded(way, saver, Speaker(script=by_prompt()), [effects.tool("fast")])
    stored = run(graph, asked("first"))["messages"]
    saver.close_thread("t")
    for how in ("invoke", "stream", "ainvoke", "astream_events"):
        with pytest.raises(ThreadClosedError):
            run(graph, asked("again"), how)
    guard = TurnGuard(saver)
    with pytest.raises(ThreadClosedError):
        guard.recover(plain(saver, effects), thread())
    for report in (
        guard.close_thread(plain(saver, effects), thread()),  # as `saver.close_thread`, it may come twice
        asyncio.run(guard.aclose_thread(plain(saver, effects), thread())),
    ):
        assert (report.thread_id, report.changed, list(report.answers)) == ("t", False, [])
    assert history(graph) == stored
    with pytest.raises(ThreadClosedError):
        run(graph, asked("again"))
    saver.reopen_thread("t")
    assert run(graph, asked("again"))["messages"][:2] == stored


def recovered(guard: TurnGuard, graph: Any, colour: str) -> Any:
    if colour == "sync":
        return guard.recover(graph, thread())
    return asyncio.run(guard.arecover(graph, thread()))


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_busy_thread_is_not_recovered_against_its_strategy(saver, colour, effects):
    with saver.turn(thread()):
        for strategy, timeout in (("reject", None), ("enqueue", 0.02)):
            guard = TurnGuard(saver, multitask_strategy=strategy, timeout=timeout)
            with pytest.raises(ThreadBusyError):
                recovered(guard, plain(saver, effects), colour)
            with pytest.raises(ThreadBusyError):
                run(guard.attach(plain(saver, effects)), asked("first"), "invoke" if colour == "sync" else "ainvoke")
    assert saver.turns("t")[0].state == "completed"


def test_recovering_a_thread_that_was_never_written_to_changes_nothing(saver, effects):
    report = TurnGuard(saver).recover(plain(saver, effects), thread())
    assert not report.changed
    assert report.thread_id == "t"
    assert saver.get_tuple(thread()) is None
    assert list(saver.thread_ids()) == []


# --- damaged and newer journals ---


@pytest.fixture
def stopped(tmp_path, effects) -> Callable[[str], Path]:
    """A thread whose run was stopped in its second tool; gives the path of the journal."""

    def stop(way: str) -> Path:
        def leave() -> None:
            raise KeyboardInterrupt

        saver = TurnCheckpointSaver(tmp_path / "s")
        tools = [effects.tool("fast"), effects.tool("slow", leave)]

        def script(messages: Any) -> Any:
            if len(messages) == 1:
                return [calling("fast")]
            return [calling("slow", first=1)]

        with pytest.raises(KeyboardInterrupt):
            run(guarded(way, saver, Speaker(script=script), tools), asked("first"), durability="sync")
        directory = saver.store.generation_dir("t")
        (token,) = journal_tokens(directory)
        return Path(journal_path(directory, token))

    return stop


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def frame_starts(data: bytes) -> list[int]:
    """Where each frame of a sound file begins."""
    starts, position = [], 0
    for payload in split_frames(data).payloads:
        starts.append(position)
        position += 16 + len(payload)
    return starts


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("which", ["header", "first", "middle", "last but one"])
@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_what_a_damaged_journal_still_says_is_used(tmp_path, stopped, way, which, goes_on, effects):
    path = stopped(way)
    starts = frame_starts(path.read_bytes())
    place = {"header": 0, "first": 1, "middle": len(starts) // 2, "last but one": len(starts) - 2}[which]
    flip(path, starts[place] + 17)
    tools = [effects.tool("fast"), effects.tool("slow")]
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()), tools)
    with pytest.warns(DamageWarning, match="j-1.journal"):
        stored = run(graph, None if goes_on else asked("again"))["messages"]
    assert broken_rule(stored) is None
    assert outcomes(stored)["c0"] == "real"
    assert effects.names[:2] == ["fast", "slow"]
    # Nothing claims that the tool did not run, for a record of its start may be what is missing.
    slow = next(m for m in stored if isinstance(m, ToolMessage) and m.tool_call_id == "c1")
    assert "not run" not in slow.text
    assert effects.names.count("fast") == 1


@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_a_journal_that_is_noise_is_passed_over(tmp_path, stopped, way, effects):
    path = stopped(way)
    path.write_bytes(b"\x00noise" * 100)
    tools = [effects.tool("fast"), effects.tool("slow")]
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()), tools)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        stored = run(graph, asked("again"))["messages"]
    assert broken_rule(stored) is None
    assert outcomes(stored) == {"c0": "real", "c1": "unknown"}
    assert effects.names == ["fast", "slow"]


@pytest.mark.parametrize("way", ["middleware", "attach"])
def test_a_torn_last_record_is_dropped_without_a_word(tmp_path, stopped, way, effects):
    path = stopped(way)
    path.write_bytes(path.read_bytes()[:-3])
    tools = [effects.tool("fast"), effects.tool("slow")]
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()), tools)
    stored = run(graph, asked("again"))["messages"]
    assert outcomes(stored) == {"c0": "real", "c1": "unknown"}


@pytest.mark.parametrize("how", ["invoke", "astream"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_journal_of_a_newer_version_is_an_error_and_stays(tmp_path, stopped, way, how, monkeypatch, effects):
    monkeypatch.setattr("langgraph_turncheckpoint._turns.JOURNAL_VERSION", JOURNAL_VERSION + 1)
    path = stopped(way)
    monkeypatch.undo()
    before = path.read_bytes()
    tools = [effects.tool("fast"), effects.tool("slow")]
    graph = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()), tools)
    for given in (None, asked("again")):
        with pytest.raises(UnknownFormatError, match="newer") as caught:
            run(graph, given, how)
        assert caught.value.path == str(path)
    assert path.read_bytes() == before
    assert effects.names == ["fast", "slow"]
    assert not TurnCheckpointSaver(tmp_path / "s").is_busy("t")


# --- a disk that is full for the journal ---


class FullForJournals(SystemCalls):
    """Every write to a journal that `is_full` fails; checkpoints are stored as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.failed = 0

    def note(self, name: str, args: tuple[Any, ...]) -> int | None:
        super().note(name, args)
        if not (self.is_full and name in GROWING and args and isinstance(args[0], int)):
            return None
        try:
            target = str(Path(f"/proc/self/fd/{args[0]}").readlink())
        except OSError:
            return None
        if not target.endswith(".journal"):
            return None
        self.failed += 1
        return errno.ENOSPC


@contextmanager
def journal_disk() -> Iterator[FullForJournals]:
    calls = FullForJournals()
    with substituted(calls):
        yield calls


linux = pytest.mark.skipif(sys.platform != "linux", reason="tells files from their descriptors through /proc")


@linux
@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke", "astream"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_turn_goes_on_without_its_journal_and_warns_once(saver, way, how, effects):
    model = Speaker(script=by_prompt(first=["Let ", "me ", "see", calling("fast")]))
    graph = guarded(way, saver, model, [effects.tool("fast")], default_on_restart="rerun")
    run(graph, asked("zero"))
    with journal_disk() as disk, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.script = with_first(model.script, lambda: setattr(disk, "is_full", True))
        stored = run(graph, asked("first"), how)["messages"]
        assert disk.failed > 0
    assert [m.type for m in stored] == ["human", "ai", "human", "ai", "tool", "ai"]
    assert effects.names == ["fast"]
    found = [str(warning.message) for warning in caught if issubclass(warning.category, JournalWarning)]
    assert len(found) == 1
    assert "'t'" in found[0]
    assert not saver.is_busy("t")
    assert run(graph, asked("again"))["messages"][: len(stored)] == stored


def with_first(script: Any, work: Callable[[], None]) -> Any:
    def replaced(messages: Any) -> Any:
        return [work, *script(messages)]

    return replaced


@linux
@pytest.mark.parametrize("policy", ["report", "ask"])
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_tool_that_must_not_run_twice_does_not_run_unrecorded(tmp_path, way, how, policy, effects):
    saver = TurnCheckpointSaver(tmp_path / "s")
    model = Speaker(script=by_prompt(first=[calling("fast")]))
    graph = guarded(way, saver, model, [effects.tool("fast")], default_on_restart=policy)
    with journal_disk() as disk, warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalWarning)
        model.script = with_first(model.script, lambda: setattr(disk, "is_full", True))
        with pytest.raises(StorageError) as caught:
            run(graph, asked("first"), how)
    assert caught.value.errno == errno.ENOSPC
    assert effects.names == []
    # There is space again.
    again = guarded(way, TurnCheckpointSaver(tmp_path / "s"), Speaker(script=by_prompt()), [effects.tool("fast")])
    stored = run(again, None, how)["messages"]
    assert broken_rule(stored) is None
    assert effects.names == ["fast"]
    assert outcomes(stored) == {"c0": "real"}


@linux
@pytest.mark.parametrize("way", ALL_WAYS)
def test_only_tools_that_may_run_twice_run_while_the_disk_is_full(saver, way, effects):
    tools = [effects.tool("safe", metadata={"on_restart": "rerun"}), effects.tool("unsafe")]
    model = Speaker(script=by_prompt(first=[calling("safe", "unsafe")]))
    graph = guarded(way, saver, model, tools)
    with journal_disk() as disk, warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalWarning)
        model.script = with_first(model.script, lambda: setattr(disk, "is_full", True))
        with pytest.raises(StorageError):
            run(graph, asked("first"))
    assert "unsafe" not in effects.names
    assert effects.names in ([], ["safe"])  # a sibling that raised first may keep it from starting
    stored = run(graph, asked("again"))["messages"]
    assert broken_rule(stored) is None
    assert "not run" not in next(m.text for m in stored if isinstance(m, ToolMessage) and m.tool_call_id == "c0")


# --- an extra that is not installed ---


def test_a_middleware_without_langchain_says_which_extra_is_missing(saver, monkeypatch):
    for name in [name for name in sys.modules if name == "langchain" or name.startswith("langchain.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "langgraph_turncheckpoint._middleware", raising=False)
    with pytest.raises(MissingExtraError, match=r"langgraph-turncheckpoint\[agents\]") as caught:
        TurnGuard(saver).middleware()
    assert isinstance(caught.value, ImportError)


def test_the_other_ways_need_no_langchain(tmp_path):
    program = f"""
import sys
sys.modules["langchain"] = None
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from typing_extensions import TypedDict
from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint.guard import TurnGuard
from langchain_core.messages import AIMessage
saver = TurnCheckpointSaver({str(tmp_path / "s")!r})
guard = TurnGuard(saver)
node = guard.node(lambda state: {{"messages": [AIMessage("done")]}})
graph = StateGraph(MessagesState).add_node("model", node).add_edge(START, "model").compile(checkpointer=saver)
config = {{"configurable": {{"thread_id": "t"}}}}
print(len(graph.invoke({{"messages": ["hi"]}}, config)["messages"]))
print(len(guard.attach(graph).invoke({{"messages": ["hi"]}}, config)["messages"]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["2", "4"], ended.stderr
