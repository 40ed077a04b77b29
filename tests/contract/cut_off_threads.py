"""A store as an app leaves it that was killed: threads that are whole, cut off in their tools in several ways, or
waiting for a person. `killed_store` makes it in a process that kills itself.

No assertion lives here; what may be done with such threads is for the tests to say.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from langchain.agents import AgentState, create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from langgraph_turncheckpoint import TurnCheckpointSaver, TurnGuard
from tests.contract.scripted_model import ScriptedModel
from tests.contract.stopped_agents import by_hand
from tests.crash.processes import Child, Line

#: One conversation that ended well, with a tool in it; the other ids say how a run was cut off.
WHOLE: Final = "whole"
PLAIN: Final = "plain"
SENDS: Final = "sends"
GUARDED: Final = "guarded"
WAITING: Final = "waiting"
OWN_CLASS: Final = "own class"
OWN_CUT_OFF: Final = "own class, cut off"
CUT_OFF: Final = (PLAIN, SENDS, GUARDED, OWN_CUT_OFF)
_holders: list[tempfile.TemporaryDirectory[str]] = []
ODD: Final = "two\nlines \x1b[31m☃"


class CountedState(AgentState[Any]):
    """A state with a channel beside the messages."""

    paid: Annotated[int, operator.add]
    order: Any


@dataclasses.dataclass
class Order:
    """A class of the app's own."""

    article: str
    pieces: int


def call(name: str, number: int, **args: Any) -> dict[str, Any]:
    """One tool call of a scripted reply."""
    return {"name": name, "args": args, "id": f"{name}-{number}", "type": "tool_call"}


def model(*calls: dict[str, Any]) -> ScriptedModel:
    """Makes these calls at once, and says that it is done afterwards."""
    return ScriptedModel(answers=[AIMessage("let me see", tool_calls=list(calls))])


def tools(block: Callable[[], None]) -> list[Any]:
    """Tools of which one gives its result, one comes to no end, and one asks a person."""

    @tool
    def pay(runtime: ToolRuntime, amount: int = 1) -> Command[Any]:
        """Pay, and count it."""
        answer = ToolMessage(f"paid {amount}", tool_call_id=runtime.tool_call_id)
        return Command(update={"paid": amount, "messages": [answer]})

    @tool
    def look() -> str:
        """Look something up."""
        return "found it"

    @tool
    def ship() -> str:
        """Take a long time."""
        block()
        return "shipped"

    @tool
    def ask() -> str:
        """Ask a person."""
        return str(interrupt("may I?"))

    return [pay, look, ship, ask]


def agent(saver: Any, *calls: dict[str, Any], block: Callable[[], None] = lambda: None) -> Any:
    """An agent in which each call is a task of its own."""
    return create_agent(model(*calls), tools(block), state_schema=CountedState, checkpointer=saver)


def one_task(saver: Any, *calls: dict[str, Any], block: Callable[[], None] = lambda: None) -> Any:
    """A graph of two nodes, in which all calls are one task."""
    return by_hand(saver, model(*calls), tools(block)[1:])


def graphs(saver: Any, block: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """By thread the graph that it was made with."""
    sends = agent(saver, call("pay", 1, amount=7), call("ship", 1), block=block)
    return {
        WHOLE: agent(saver, call("look", 1)),
        ODD: agent(saver, call("look", 1)),
        OWN_CLASS: agent(saver, call("look", 1)),
        PLAIN: one_task(saver, call("look", 1), call("ship", 1), block=block),
        SENDS: sends,
        OWN_CUT_OFF: agent(saver, call("look", 1), call("ship", 1), block=block),
        GUARDED: TurnGuard(saver).attach(one_task(saver, call("look", 1), call("ship", 1), block=block)),
        WAITING: agent(saver, call("ask", 1)),
    }


def unguarded(saver: Any, thread_id: str) -> Any:
    """The graph of a thread, for a guard of one's own."""
    return one_task(saver, call("look", 1), call("ship", 1)) if thread_id == GUARDED else graphs(saver)[thread_id]


def config(thread_id: str) -> Any:
    """The config of a thread."""
    return {"configurable": {"thread_id": thread_id}}


def given(thread_id: str, text: str = "hello") -> dict[str, Any]:
    """An input for the graph of a thread."""
    state: dict[str, Any] = {"messages": [("user", text)]}
    if thread_id in {OWN_CLASS, OWN_CUT_OFF}:
        state["order"] = Order("pen", 3)
    return state


def die(_line: Line, path: str) -> None:
    """Make the store, and kill this process once every run that comes to no end has begun its tool."""
    saver = TurnCheckpointSaver(path)
    reached = threading.Semaphore(0)

    def block() -> None:
        reached.release()
        threading.Event().wait()

    made = graphs(saver, block)
    for thread_id in (WHOLE, ODD, OWN_CLASS, WAITING):
        made[thread_id].invoke(given(thread_id), config(thread_id))
    for thread_id in CUT_OFF:
        start(made[thread_id], thread_id)
        reached.acquire()
        if thread_id == SENDS:
            wait_for_result(saver, thread_id, "paid 7")
        if thread_id == OWN_CUT_OFF:
            wait_for_result(saver, thread_id, "found it")
        if thread_id == GUARDED:
            wait_for_record(saver, thread_id, b"found it")
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_a_checkpoint(_line: Line, path: str) -> None:
    """Make a store with one thread, and kill this process in its first turn, of which only a journal is stored."""
    saver = TurnCheckpointSaver(path)
    reached = threading.Event()

    def block() -> None:
        reached.set()
        threading.Event().wait()

    start(graphs(saver, block)[GUARDED], GUARDED, durability="exit")
    reached.wait()
    wait_for_record(saver, GUARDED, b"found it")
    os.kill(os.getpid(), signal.SIGKILL)


def start(graph: Any, thread_id: str, *, durability: str = "sync") -> None:
    """Begin a run that nobody waits for; each of its steps is stored before the next begins, unless told otherwise."""
    args, kwargs = (given(thread_id), config(thread_id)), {"durability": durability}
    threading.Thread(target=graph.invoke, args=args, kwargs=kwargs, daemon=True).start()


def wait_for_result(saver: TurnCheckpointSaver, thread_id: str, text: str) -> None:
    """Until the result of a finished sibling is stored."""
    pause = threading.Event()
    while True:
        found = saver.get_tuple(config(thread_id))
        if found is not None and text in str(found.pending_writes):
            return
        pause.wait(0.01)


def wait_for_record(saver: TurnCheckpointSaver, thread_id: str, text: bytes) -> None:
    """Until the journal has a result."""
    pause = threading.Event()
    directory = Path(saver.store.generation_dir(thread_id))
    while not any(text in path.read_bytes() for path in directory.glob("*.journal")):
        pause.wait(0.01)


@functools.cache
def killed_store(how: Callable[[Line, str], None] = die) -> Path:
    """The store, made once per process by one that is killed. It is to be copied, not used."""
    holder = tempfile.TemporaryDirectory(prefix="killed-")
    _holders.append(holder)  # removed with this process
    path = Path(holder.name) / "store"
    with Child(how, str(path)) as child:
        assert child.end() == -signal.SIGKILL
    return path


def copy_of_store(directory: Path, how: Callable[[Line, str], None] = die) -> Path:
    """A copy of the store below a directory."""
    return Path(shutil.copytree(killed_store(how), directory / "store"))
