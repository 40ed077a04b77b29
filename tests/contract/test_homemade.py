"""The JSON files of home-made agent loops become threads that a graph reads and goes on from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage, messages_to_dict
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_turncheckpoint import ForeignFileError, StorageError, ThreadConflictError, TurnCheckpointSaver
from langgraph_turncheckpoint._homemade import aimport_homemade, import_homemade, read_homemade
from tests.contract.migrating import sqlite_saver, talk

OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is in a.txt?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call-1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": "hello"},
    {"role": "assistant", "content": "it says hello"},
]
LANGCHAIN: list[AnyMessage] = [
    SystemMessage("be brief", id="0"),
    HumanMessage("what is in a.txt?", id="1"),
    AIMessage(
        "", id="2", tool_calls=[{"name": "read", "args": {"path": "a.txt"}, "id": "call-1", "type": "tool_call"}]
    ),
    ToolMessage("hello", tool_call_id="call-1", id="3"),
    AIMessage("it says hello", id="4"),
]


def graph(saver: BaseCheckpointSaver[Any]) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(f"answer to {len(state['messages'])}")]})
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def facts(messages: list[AnyMessage]) -> list[Any]:
    return [(type(m), m.content, getattr(m, "tool_calls", None), getattr(m, "tool_call_id", None)) for m in messages]


SHAPES = {
    "openai": OPENAI,
    "messages_to_dict": messages_to_dict(LANGCHAIN),
    "model_dump": [message.model_dump() for message in LANGCHAIN],
    "dumpd": [dumpd(message) for message in LANGCHAIN],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_of_message_is_understood(tmp_path, shape):
    path = written(tmp_path / "chat.json", {"messages": SHAPES[shape], "turn": 3})
    messages, turn, rest = read_homemade(path)
    assert facts(messages) == facts(LANGCHAIN)
    assert (turn, rest) == (3, {})
    assert all(message.id for message in messages)
    if shape != "openai":
        assert [message.id for message in messages] == [message.id for message in LANGCHAIN]


def test_pairs_and_a_bare_list_are_understood(tmp_path):
    messages, turn, _ = read_homemade(written(tmp_path / "a.json", [["user", "hi"], ["assistant", "hello"]]))
    assert facts(messages) == facts([HumanMessage("hi"), AIMessage("hello")])
    assert turn == 0


@pytest.mark.parametrize("kind", ["ours", "memory", "sqlite"])
def test_a_graph_reads_the_thread_and_goes_on_from_it(tmp_path, kind):
    path = written(tmp_path / "chat 1.json", {"messages": OPENAI, "turn": 3, "model": "x", "costs": [1, 2]})
    with sqlite_saver(tmp_path / "app.db") as database:
        saver = {"ours": TurnCheckpointSaver(tmp_path / "ours"), "memory": InMemorySaver(), "sqlite": database}[kind]
        report = import_homemade(path, saver)
        assert (report.thread_id, report.state) == ("chat 1", "copied")
        config: Any = {"configurable": {"thread_id": "chat 1"}}
        state = graph(saver).get_state(config)
        assert facts(state.values["messages"]) == facts(LANGCHAIN)
        assert state.next == ()
        assert state.created_at is not None
        assert state.metadata["step"] == 3
        assert state.metadata["homemade"] == {"model": "x", "costs": [1, 2]}

        assert import_homemade(path, saver).state == "unchanged"
        os.utime(path, (1, 1))
        assert import_homemade(path, saver).state == "unchanged"

        result = graph(saver).invoke({"messages": [("user", "thanks")]}, config)
        assert [m.content for m in result["messages"][-2:]] == ["thanks", "answer to 6"]
        assert import_homemade(path, saver).state == "ahead"
        assert len(graph(saver).get_state(config).values["messages"]) == 7


def test_thread_id_and_channel_may_be_named(tmp_path):
    saver = InMemorySaver()
    report = import_homemade(written(tmp_path / "a.json", OPENAI), saver, thread_id="mine", messages_key="history")
    assert report.thread_id == "mine"
    found = saver.get_tuple({"configurable": {"thread_id": "mine"}})
    assert found is not None
    assert list(found.checkpoint["channel_values"]) == ["history"]


def test_another_thread_under_the_id_is_kept(tmp_path):
    saver = TurnCheckpointSaver(tmp_path / "ours", fsync=False)
    path = written(tmp_path / "talk-0.json", OPENAI)
    talk(saver, "talk-0")
    with pytest.raises(ThreadConflictError):
        import_homemade(path, saver)
    import_homemade(path, saver, thread_id="other")
    written(path, [*OPENAI, {"role": "user", "content": "more"}])
    with pytest.raises(ThreadConflictError):
        import_homemade(path, saver, thread_id="other")


def test_arguments_that_are_no_json_are_kept_as_an_invalid_call(tmp_path):
    call = {"id": "call-1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.'}}
    good = OPENAI[2]["tool_calls"][0]
    raw = [{"role": "assistant", "content": "", "tool_calls": [call, good]}]
    (message,), _, _ = read_homemade(written(tmp_path / "a.json", raw))
    assert isinstance(message, AIMessage)
    assert [each["id"] for each in message.tool_calls] == ["call-1"]
    assert [(each["id"], each["args"]) for each in message.invalid_tool_calls] == [("call-1", '{"path": "a.')]


BROKEN = [
    ("", "line 1, column 1"),
    ('{"messages": [', "line 1, column 15"),
    ("7", "no list of messages"),
    ("{}", "no list of messages"),
    ('{"messages": {"role": "user"}}', "no list of messages"),
    ('{"messages": [], "turn": "three"}', "turn: is no whole number"),
    ('[{"role": "user", "content": "a"}, {"role": "nobody", "content": "b"}]', r"messages\[1\]: is no message"),
    ('[{"content": "a"}]', r"messages\[0\]: is no message"),
    ("[7]", r"messages\[0\]: is no message"),
    ("[null]", r"messages\[0\]: is no message"),
    ('[{"role": "tool", "content": "answers nothing"}]', r"messages\[0\]: is no message"),
    ('[{"role": "user", "content": {"odd": 1}}]', r"messages\[0\]: is no message"),
    ('[{"type": "human", "data": {"nothing": 1}}]', r"messages\[0\]: is no message"),
    ('[["user"]]', r"messages\[0\]: is no message"),
]


@pytest.mark.parametrize(("text", "complaint"), BROKEN)
def test_a_broken_file_is_named_with_the_place(tmp_path, text, complaint):
    path = tmp_path / "broken.json"
    path.write_text(text)
    saver = TurnCheckpointSaver(tmp_path / "ours", fsync=False)
    with pytest.raises(ForeignFileError, match=complaint) as caught:
        import_homemade(path, saver)
    assert str(caught.value).startswith(str(path))
    assert saver.thread_ids() == []


def test_files_that_are_no_text_or_not_there(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ForeignFileError):
        read_homemade(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ForeignFileError):
        read_homemade(path)
    with pytest.raises(StorageError):
        read_homemade(tmp_path / "no.json")


async def test_the_async_twin_does_the_same(tmp_path):
    saver = InMemorySaver()
    assert (await aimport_homemade(written(tmp_path / "a.json", OPENAI), saver)).state == "copied"
