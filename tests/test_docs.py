"""The documentation's examples run, and what it says of commands and modules is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_turncheckpoint import TurnCheckpointSaver

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOVED: RunnableConfig = {"configurable": {"thread_id": "moved"}}
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@tool
def search(query: str) -> str:
    """Search."""
    return f"nothing about {query}"


class ScriptedModel(FakeListChatModel):
    """It says the same whatever it is asked, and calls no tool."""

    responses: list[str] = ["hello"]  # noqa: RUF012 - a pydantic field

    def bind_tools(self, tools, **kwargs):
        return self


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the examples take for granted, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    with SqliteSaver.from_conn_string("app.db") as old:
        speak = StateGraph(MessagesState)
        speak.add_node("model", lambda state: {"messages": [AIMessage("before")]})
        speak.add_edge(START, "model")
        said: Any = {"messages": [("user", "first")]}
        speak.compile(checkpointer=old).invoke(said, MOVED)
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    question = {"messages": [("user", "and then?")]}
    return {
        "builder": builder,
        "create_agent": create_agent,
        "model": ScriptedModel(),
        "tools": [search],
        "call_model": lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]},
        "ToolNode": ToolNode,
        "config": {"configurable": {"thread_id": "1"}},
        "first": question,
        "second": question,
        "key": b"0123456789abcdef",
    }


def test_the_examples_of_the_readme_run_in_their_order_and_leave_their_thread(names):
    assert len(EXAMPLES) >= 3
    builder = names["builder"]
    for example in EXAMPLES:
        if "saver" in example:
            names.setdefault("saver", names["graph"].checkpointer)
        # A graph that is built by hand, as far as its own example goes.
        names["builder"] = StateGraph(MessagesState) if "guard.node" in example else builder
        if "Encrypted" in example:
            pytest.importorskip("Crypto", reason="the `encrypt` extra is not installed")
        exec(example, names)
    with SqliteSaver.from_conn_string("app.db") as old:
        listed = [
            [(at.checkpoint, at.metadata, at.parent_config, at.pending_writes) for at in each.list(MOVED)]
            for each in (old, names["saver"])
        ]
    assert len(listed[0]) > 2
    assert listed[0] == listed[1]
    found = TurnCheckpointSaver("./checkpoints").get_tuple({"configurable": {"thread_id": "1"}})
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"][0].content == "hello"
    assert TurnCheckpointSaver("./checkpoints").verify() == []


def test_the_readme_names_the_two_commands_that_set_all_up():
    assert 'pip install ".[cli]" && turncheckpoint demo' in README
    assert 'pip install -e ".[dev]" && pytest' in README


def test_every_link_to_a_file_of_the_project_leads_somewhere():
    for path in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / path).exists(), path
    assert (ROOT / "CONTRIBUTING.md").exists()
