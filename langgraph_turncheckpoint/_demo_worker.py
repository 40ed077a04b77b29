"""The process that runs the demo's agent: what it tells its parent, what it records, where it dies.

It draws on no terminal: it speaks in JSON lines on standard output, and its parent (`_demo`) kills it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from langchain_core.messages import HumanMessage, ToolCall
from langchain_core.runnables import RunnableConfig

from ._demo_agent import TASK, TURNS, DemoFiles, build_graph, build_tools, label_call, load_model
from .saver import TurnCheckpointSaver

#: The script asks for three sections in this turn; the process dies while the last one is written.
KILL_TURN: Final = 25
#: The number of that section. A real model may get there in fewer turns: whichever comes first counts.
KILL_SECTION: Final = 12
#: The exit status of a process that lost its parent while it waited for the kill.
ORPHANED: Final = 3

THREAD: Final[RunnableConfig] = {"configurable": {"thread_id": "demo"}}


class Narrator:
    """Tells the parent process what happens, one JSON object per line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def tell(self, event: str, **facts: object) -> None:
        """Write one event; tools run in threads, and their lines must not mix."""
        with self._lock:
            sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
            sys.stdout.flush()


class ToolRun:
    """Runs tool calls: records their start and their end, and holds the one that the kill shall hit."""

    def __init__(self, effects: Path, narrator: Narrator, *, hold: bool) -> None:
        self._effects = effects
        self._narrator = narrator
        self._hold = hold
        self._held_call: str | None = None

    def see_turn(self, turn: int, calls: Sequence[ToolCall]) -> None:
        """Report the model's turn; of the turn that is to die, pick the last call before any runs."""
        due = turn >= KILL_TURN or any(
            call["name"] == "write_section" and call["args"].get("number") == KILL_SECTION for call in calls
        )
        if self._hold and self._held_call is None and due and calls:
            self._held_call = calls[-1]["id"]
        self._narrator.tell(
            "turn",
            turn=turn,
            calls=[call["id"] for call in calls],
            labels=[
                label_call(call["name"], call["args"].get("path", call["args"].get("number", ""))) for call in calls
            ],
        )

    def __call__(self, call_id: str, label: str, work: Callable[[], str]) -> str:
        """Run one tool call between two durable records."""
        self._record(call_id, label, "started")
        self._narrator.tell("tool", label=label)
        if call_id == self._held_call:
            self._narrator.tell("holding", label=label)
            # The parent has the other end of this pipe: should it die first, nobody is left behind.
            sys.stdin.read()
            os._exit(ORPHANED)
        result = work()
        self._record(call_id, label, "finished")
        return result

    def _record(self, call_id: str, label: str, event: Literal["started", "finished"]) -> None:
        record = {"call": call_id, "what": label, "event": event, "pid": os.getpid()}
        line = json.dumps(record) + "\n"
        descriptor = os.open(self._effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent from the start, or (`--resume`) on from what the directory holds."""
    parser = argparse.ArgumentParser(prog="python -m langgraph_turncheckpoint._demo_worker", description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--model")
    options = parser.parse_args(arguments)

    files = DemoFiles(options.directory)
    narrator = Narrator()
    tool_run = ToolRun(files.effects, narrator, hold=not options.resume)
    tools = build_tools(files, tool_run)
    model = load_model(options.model, tools)
    with TurnCheckpointSaver(files.checkpoints) as saver:
        started = time.perf_counter()
        saver.get_tuple(THREAD)
        narrator.tell("opened", read_seconds=time.perf_counter() - started)
        graph = build_graph(model, tools, saver, on_turn=tool_run.see_turn)
        # Two super-steps per turn, and a real model may need a few turns more than the script.
        config: RunnableConfig = {**THREAD, "recursion_limit": 4 * TURNS}
        graph.invoke(None if options.resume else {"messages": [HumanMessage(TASK)]}, config)
    narrator.tell("done")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
