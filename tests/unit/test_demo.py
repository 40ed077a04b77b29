"""The demo's choices and counts, on small inputs; `tests/crash/test_demo.py` runs the whole of it."""

from __future__ import annotations

import json
import sys

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState

from langgraph_turncheckpoint import _demo
from langgraph_turncheckpoint._demo import (
    DemoFailedError,
    DemoUsageError,
    count_effects,
    find_missing_sections,
    find_sources,
    make_directory,
    prepare_demo,
    recorded_calls,
    run_demo,
)
from langgraph_turncheckpoint._demo_agent import (
    FILES,
    TASK,
    TURNS,
    ScriptedModel,
    build_graph,
    build_tools,
    load_model,
    report_file,
)
from langgraph_turncheckpoint._demo_worker import THREAD


@pytest.fixture
def sources(tmp_path):
    """A directory with just enough files to read."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number:02d}.py").write_text(f'"""Module {number}. More."""\n\n\ndef f{number}(): ...\n')
    return folder


def run_agent(plan, saver, *, run_tool=lambda _call_id, _label, work: work()):
    tools = build_tools(plan.files, run_tool)
    graph = build_graph(ScriptedModel(), tools, saver, on_turn=lambda _turn, _calls: None)
    config: RunnableConfig = {**THREAD, "recursion_limit": 4 * TURNS}
    return graph.invoke(MessagesState(messages=[HumanMessage(TASK)]), config)["messages"]


# The agent


def test_the_script_reads_every_file_and_writes_a_whole_summary_in_thirty_turns(tmp_path, sources):
    plan = prepare_demo(directory=tmp_path / "out", sources=sources)
    history = run_agent(plan, InMemorySaver())
    answers = [message for message in history if isinstance(message, AIMessage)]
    calls = [call["name"] for answer in answers for call in answer.tool_calls]
    assert len(answers) == TURNS
    assert sorted(calls) == sorted(
        ["list_files", *["read_file"] * FILES, *["write_section"] * FILES, "assemble_summary"]
    )
    assert find_missing_sections(plan.files.summary, root=plan.root, listed=plan.listed, scripted=True) == ()
    assert "Module 7." in plan.files.summary.read_text()


def test_a_tool_that_is_asked_for_something_else_says_so_and_touches_nothing(tmp_path, sources):
    plan = prepare_demo(directory=tmp_path / "out", sources=sources)
    tools = {tool.name: tool for tool in build_tools(plan.files, lambda _call_id, _label, work: work())}

    def call(name, **arguments):
        return tools[name].invoke({"name": name, "args": arguments, "id": "c", "type": "tool_call"}).content

    assert "not one of the listed files" in call("read_file", path="../../etc/passwd")
    assert "no file number" in call("write_section", number=0, text="x")
    assert list(plan.files.sections.iterdir()) == []


def test_a_real_model_is_made_by_its_name_and_knows_the_tools(tmp_path, sources, monkeypatch):
    chat_models = pytest.importorskip("langchain.chat_models", reason="real models come with the extra `agents`")
    made = []

    class Chat:
        def bind_tools(self, tools):
            made.append([tool.name for tool in tools])
            return ScriptedModel()

    def make(name):
        made.append(name)
        return Chat()

    monkeypatch.setattr(chat_models, "init_chat_model", make)
    plan = prepare_demo(directory=tmp_path / "out", sources=sources, model="some:model")
    tools = build_tools(plan.files, lambda _call_id, _label, work: work())
    assert isinstance(load_model("some:model", tools), ScriptedModel)
    assert made[-2:] == ["some:model", ["list_files", "read_file", "write_section", "assemble_summary"]]
    assert plan.model == "some:model"


@pytest.mark.parametrize(
    ("path", "text", "purpose"),
    [
        ("a.py", '"""What it does. More of it."""\n', "purpose: What it does\n"),
        (
            "a.py",
            "def _f():\n    '''Hidden.'''\ndef g():\n    '''Shown.'''\n",
            "purpose: defines `g`: Shown\n",
        ),
        ("a.py", "x = 1\n", "purpose: code without a docstring\n"),
        ("a.py", "no python !\n", "purpose: no python !\n"),
        ("a.md", "\n# Title\n\ntext\n", "purpose: Title\n"),
        ("a.txt", "\n", "purpose: an empty file\n"),
    ],
)
def test_a_file_is_reported_with_its_purpose(path, text, purpose):
    assert purpose in report_file(path, text)


# Choosing files


def test_the_largest_text_files_are_chosen_in_the_order_of_their_names(sources):
    (sources / "small.txt").write_text("x")
    (sources / "sub").mkdir()
    (sources / "sub" / "large.txt").write_text("x" * 10_000)
    (sources / "binary.txt").write_bytes(b"\0" * 20_000)
    (sources / "latin.txt").write_bytes(b"\xe9" * 20_000)
    (sources / ".hidden.txt").write_text("x" * 20_000)
    (sources / "__pycache__").mkdir()
    (sources / "__pycache__" / "x.txt").write_text("x" * 20_000)
    (sources / "line\nbreak.txt").write_text("x" * 20_000)
    root, listed = find_sources(sources)
    assert root == sources.resolve()
    assert listed == sorted(listed)
    assert len(listed) == FILES
    assert "sub/large.txt" in listed
    assert not {"small.txt", "binary.txt", "latin.txt", ".hidden.txt"} & set(listed)


def test_without_a_path_the_sources_of_langgraph_are_read():
    root, listed = find_sources(None)
    assert len(listed) == FILES
    assert all(path.startswith("langgraph/") and (root / path).is_file() for path in listed)


def test_a_directory_that_cannot_be_made_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DemoUsageError, match="cannot be used"):
        make_directory(tmp_path / "file" / "out", root=tmp_path, listed=[])


# Counting


def effects_of(path, *records):
    lines = [{"call": call, "what": "tool", "event": event, "pid": pid} for pid, call, event in records]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_effects_are_counted_per_process_and_repetitions_apart(tmp_path):
    path = effects_of(
        tmp_path / "effects",
        (1, "a", "started"),
        (1, "a", "finished"),
        (1, "b", "started"),
        (2, "b", "started"),
        (2, "b", "finished"),
        (2, "a", "started"),
        (2, "a", "finished"),
    )
    assert count_effects(path) == ({1: 1, 2: 2}, 1, 1)


def test_a_section_with_a_wrong_count_or_no_text_is_missing(tmp_path):
    (tmp_path / "a.py").write_text("1\n2\n")
    (tmp_path / "b.py").write_text("1\n")
    (tmp_path / "c.py").write_text("1\n")
    summary = tmp_path / "summary.md"
    summary.write_text(
        "# S\n\n## 1. `a.py`\n\nA.\n\n- lines: 3\n- x\n\n## 2. `b.py`\n\n\n## 3. `c.py`\n\nC.\n\n- lines: 1\n- x\n"
    )

    def missing(*, scripted):
        return find_missing_sections(summary, root=tmp_path, listed=["a.py", "b.py", "c.py"], scripted=scripted)

    assert missing(scripted=True) == ("a.py", "b.py")
    assert missing(scripted=False) == ("b.py",)


def test_without_a_summary_every_section_is_missing(tmp_path, sources):
    root, listed = find_sources(sources)
    assert find_missing_sections(tmp_path / "none", root=root, listed=listed, scripted=True) == tuple(listed)


def test_a_call_counts_as_recorded_in_the_history_and_as_a_pending_write(tmp_path, sources):
    class Died(BaseException):
        pass

    def run_tool(call_id, _label, work):
        if call_id == "turn-22-call-3":
            raise Died
        return work()

    plan = prepare_demo(directory=tmp_path / "out", sources=sources)
    saver = InMemorySaver()
    assert recorded_calls(saver) == set()
    with pytest.raises(Died):
        run_agent(plan, saver, run_tool=run_tool)
    recorded = recorded_calls(saver)
    assert {"turn-1-call-1", "turn-21-call-1"} <= recorded
    assert "turn-22-call-3" not in recorded
    found = saver.get_tuple(THREAD)
    assert found is not None
    history = found.checkpoint["channel_values"]["messages"]
    in_history = {message.tool_call_id for message in history if isinstance(message, ToolMessage)}
    assert "turn-21-call-1" in in_history
    assert "turn-22-call-1" not in in_history


# Processes that do not do what the demo expects


@pytest.fixture
def worker_is(monkeypatch, tmp_path):
    """Replaces the agent's process by a script."""

    def replace(script):
        path = tmp_path / "worker.py"
        path.write_text(script)
        interpreter = tmp_path / "interpreter"
        interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{path}"\n')
        interpreter.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(interpreter))

    return replace


def run_quietly(plan):
    return run_demo(plan, on_event=lambda _event: None)


def test_a_process_that_fails_ends_the_demo_with_its_last_words(tmp_path, sources, worker_is):
    worker_is("raise SystemExit('no such model')")
    plan = prepare_demo(directory=tmp_path / "out", sources=sources)
    with pytest.raises(DemoFailedError, match=r"process 1 failed with status 1(?s:.*)no such model"):
        run_quietly(plan)


def test_an_agent_that_finishes_before_the_kill_is_no_success(tmp_path, sources, worker_is):
    worker_is("""print('{"event": "done"}')""")
    plan = prepare_demo(directory=tmp_path / "out", sources=sources)
    with pytest.raises(DemoFailedError, match="before it could be killed"):
        run_quietly(plan)


def test_a_result_that_never_reaches_the_store_ends_the_demo(tmp_path, sources, worker_is, monkeypatch):
    monkeypatch.setattr(_demo, "RECORDING_SECONDS", 0.0)
    worker_is(
        "import sys\n"
        """print('{"event": "turn", "turn": 25, "calls": ["a", "b"], "labels": ["x", "y"]}')\n"""
        """print('{"event": "holding", "label": "y"}', flush=True)\n"""
        "sys.stdin.read()\n"
    )
    plan = prepare_demo(directory=tmp_path / "out", sources=sources)
    with pytest.raises(DemoFailedError, match=r"did not reach the store: a$"):
        run_quietly(plan)
