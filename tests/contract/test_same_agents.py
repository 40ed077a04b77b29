"""Agents compiled with our saver behave as with LangGraph's own: `create_agent`, `create_react_agent`, plain graphs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.types import Command, interrupt

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script
from tests.contract.scripted_model import ScriptedModel, call

#: `langchain` is an extra of this project.
needs_langchain = pytest.mark.skipif(
    importlib.util.find_spec("langchain") is None, reason="create_agent comes with langchain, which is not installed"
)


def _tools(driver: Driver) -> list[BaseTool]:
    def result(text: str, call_id: str) -> ToolMessage:
        # A message without an id is given one in place, while a put of it may be under way.
        return ToolMessage(text, tool_call_id=call_id, id=f"result of {call_id}")

    @tool
    def look(place: str, call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Look somewhere."""
        driver.effect(f"look {place}")
        return result(f"{place} is quiet", call_id)

    @tool
    def confirm(what: str, call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Ask a person."""
        driver.effect(f"confirm {what} started")
        answer = interrupt({"confirm": what})
        driver.effect(f"confirm {what} answered")
        return result(f"{what}: {answer}", call_id)

    return [look, confirm]


def _model(*answers: list[dict[str, Any]] | str) -> ScriptedModel:
    return ScriptedModel(
        answers=[
            AIMessage(answer) if isinstance(answer, str) else AIMessage("let me see", tool_calls=answer)
            for answer in answers
        ]
    )


def _ask(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=f"human {text}")]}


LOOKING: tuple[Any, ...] = (
    [call("look", 1, place="kitchen"), call("look", 2, place="garden")],
    [call("look", 3, place="cellar")],
    "all is quiet",
    [call("look", 4, place="attic"), call("confirm", 5, what="open it"), call("confirm", 6, what="close it")],
    "the attic too",
)
#: Two questions inside one task would race for which is asked first.
LOOKING_WITH_ONE_QUESTION = (*LOOKING[:3], LOOKING[3][:2], LOOKING[4])


def _converse(driver: Driver, recipe: Any) -> None:
    """Two turns; the second pauses in two of three parallel tool calls."""
    graph = driver.graph(recipe)
    graph.invoke(_ask("is all quiet?"))
    graph.state()
    graph.invoke(_ask("and the attic?"))
    asked = graph.state().interrupts
    graph.invoke(Command(resume={each.id: f"yes, {each.value['confirm']}" for each in asked}))
    graph.invoke(_ask("thanks"))


def a_langchain_agent(driver: Driver) -> None:
    from langchain.agents import create_agent

    tools, model = _tools(driver), _model(*LOOKING)
    _converse(driver, lambda saver: create_agent(model, tools, system_prompt="be brief", checkpointer=saver))


def a_langchain_agent_whose_calls_a_person_reviews(driver: Driver) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    tools = _tools(driver)
    model = _model([call("look", 1, place="safe"), call("look", 2, place="desk")], "seen")
    review = HumanInTheLoopMiddleware(interrupt_on={"look": True})
    graph = driver.graph(lambda saver: create_agent(model, tools, middleware=[review], checkpointer=saver))
    graph.invoke(_ask("look around"))
    graph.state()
    graph.invoke(Command(resume={"decisions": [{"type": "approve"}, {"type": "reject", "message": "not the desk"}]}))
    graph.state()


def a_langchain_agent_with_state_of_its_own(driver: Driver) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware

    class Counting(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
            driver.effect("before model")
            return {}

    tools, model = _tools(driver), _model(*LOOKING)
    limit = ModelCallLimitMiddleware(thread_limit=2)
    graph = driver.graph(lambda saver: create_agent(model, tools, middleware=[Counting(), limit], checkpointer=saver))
    graph.invoke(_ask("is all quiet?"))
    graph.invoke(_ask("really?"))


def a_react_agent(driver: Driver) -> None:
    tools, model = _tools(driver), _model(*LOOKING)
    _converse(driver, lambda saver: create_react_agent(model, tools, prompt="be brief", checkpointer=saver))


def a_react_agent_with_one_task_for_all_calls(driver: Driver) -> None:
    tools = _tools(driver)
    model = _model([call("look", 1, place="kitchen"), call("confirm", 2, what="open it")], "opened")
    graph = driver.graph(lambda saver: create_react_agent(model, tools, version="v1", checkpointer=saver))
    graph.invoke(_ask("open the kitchen"))
    graph.state()
    graph.invoke(Command(resume="yes"))


def a_react_agent_paused_before_its_tools(driver: Driver) -> None:
    tools, model = _tools(driver), _model(*LOOKING[:3])
    graph = driver.graph(lambda saver: create_react_agent(model, tools, interrupt_before=["tools"], checkpointer=saver))
    graph.invoke(_ask("is all quiet?"))
    while graph.state().next:
        graph.invoke(None)


def an_agent_built_by_hand(driver: Driver) -> None:
    tools, model = _tools(driver), _model(*LOOKING_WITH_ONE_QUESTION)
    builder: StateGraph[Any] = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition, ["tools", END])
    builder.add_edge("tools", "model")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke(_ask("is all quiet?"))
    graph.state()
    graph.invoke(_ask("and the attic?"))
    graph.state()
    graph.invoke(Command(resume="yes"))
    graph.update({"messages": [AIMessage("said by hand", id="hand")]}, as_node="model")
    graph.state()


LANGCHAIN_AGENTS: tuple[Script, ...] = (
    a_langchain_agent,
    a_langchain_agent_whose_calls_a_person_reviews,
    a_langchain_agent_with_state_of_its_own,
)
LANGGRAPH_AGENTS: tuple[Script, ...] = (
    a_react_agent,
    a_react_agent_with_one_task_for_all_calls,
    a_react_agent_paused_before_its_tools,
    an_agent_built_by_hand,
)


@needs_langchain
@each_way(*LANGCHAIN_AGENTS)
def test_langchain_agents_are_the_same(
    script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool
) -> None:
    """`create_agent` keeps its history, its pauses and its middleware's state."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)


@pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10")
@each_way(*LANGGRAPH_AGENTS)
def test_langgraph_agents_are_the_same(
    script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool
) -> None:
    """`create_react_agent` and an agent built by hand keep their history and their pauses."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)
