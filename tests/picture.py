"""Makes the picture of the README, `notebooks/timeline.svg`, from what an agent really did: `python -m tests.picture`.

The agent's process is killed in one of four tools that run side by side; the run goes on, and a message follows.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

from langgraph_turncheckpoint import TurnCheckpointSaver, TurnGuard
from tests.crash.processes import Child, Line

PICTURE: Final = Path(__file__).parent.parent / "notebooks" / "timeline.svg"
CONFIG: Final[Any] = {"configurable": {"thread_id": "trip"}}
#: How long each tool takes, in seconds; the process is killed in the one that takes longest.
TOOLS: Final = {"search_flights": 1.2, "book_hotel": 0.4, "pay_card": 3.0, "send_mail": 0.7}
DEADLY: Final = max(TOOLS, key=TOOLS.__getitem__)


def agent(path: Path, *, is_deadly: bool) -> Any:
    """The agent, on a store below `path`."""

    def tool(name: str, seconds: float) -> StructuredTool:
        def run() -> str:
            time.sleep(seconds)
            if is_deadly and name == DEADLY:
                os.kill(os.getpid(), signal.SIGKILL)
            return "done"

        return StructuredTool.from_function(run, name=name, description=name)

    def model(state: MessagesState) -> Any:
        time.sleep(0.5)
        last = state["messages"][-1]
        wanted: list[Any] = [{"name": name, "args": {}, "id": name} for name in TOOLS]
        is_wish = isinstance(last, HumanMessage) and "book" in last.text
        return {"messages": [AIMessage("", tool_calls=wanted) if is_wish else AIMessage("Your trip is booked.")]}

    def route(state: MessagesState) -> Any:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        return [
            Send("tools", {"__type": "tool_call_with_context", "tool_call": c, "state": state}) for c in calls
        ] or END

    saver = TurnCheckpointSaver(path / "store")
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode([tool(name, seconds) for name, seconds in TOOLS.items()]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools", END])
    builder.add_edge("tools", "model")
    return TurnGuard(saver).attach(builder.compile(checkpointer=saver))


def die(line: Line, path: Path) -> None:
    """Run into the tool that kills its process."""
    agent(path, is_deadly=True).invoke({"messages": [HumanMessage("book the trip")]}, CONFIG)


def main() -> int:
    """Make the picture."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        with Child(die, path) as child:
            child.end()
        graph = agent(path, is_deadly=False)
        graph.invoke(None, CONFIG)
        graph.invoke({"messages": [HumanMessage("what do I have to pay?")]}, CONFIG)
        answers = [m for m in graph.get_state(CONFIG).values["messages"] if isinstance(m, ToolMessage)]
        if [answer.name for answer in answers] != [*TOOLS]:
            raise AssertionError(answers)
        TurnCheckpointSaver(path / "store").timeline("trip").save(PICTURE)
        sys.stdout.write(TurnCheckpointSaver(path / "store").timeline("trip").text)
    PICTURE.chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main())
