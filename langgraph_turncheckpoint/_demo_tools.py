"""The demo's scenario "tools": a process is killed in a payment, and its thread goes on in each way there is. Run as
a module, it is the process that is killed. It draws nothing: `_demo_screen` shows its report.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from langchain_core.messages import HumanMessage
from langgraph.types import Command

from ._demo import DemoFailedError, last_lines, read_events, start_worker
from ._demo_trip import (
    THREAD,
    Effects,
    Graph,
    HistoryLine,
    HistoryRefusedError,
    Perform,
    build_trip_graph,
    guarded,
)
from ._demo_worker import ORPHANED, Narrator
from .saver import TurnCheckpointSaver

#: The finished call, the one that the kill hits, and the one that never starts.
CALLED: Final = ("book_hotel", "charge_card", "send_mail")
REQUEST: Final = "Book the hotel, charge my card, and mail me."
NEW_MESSAGE: Final = "Wait: has my card been charged?"


class Plan(NamedTuple):
    """One way for the thread to go on, and what is promised of it.

    Attributes:
        name: For scripts.
        guarded: With the guard, or LangGraph alone.
        on_restart: The payment's policy; `None` where a new message comes, or nobody reads it.
        then: Whether the run is resumed, or a new message comes instead.
        effects: How often each of `CALLED` takes effect, the killed process's effects included.
        outcomes: Of each call, the outcome that the guard's answer carries; `None` for a tool's own answer.
    """

    name: str
    guarded: bool
    then: Literal["resume", "message"]
    on_restart: str | None = None
    effects: tuple[int, int, int] = (1, 1, 1)
    outcomes: tuple[str | None, str | None, str | None] = (None, None, None)


#: Nothing is promised of LangGraph alone: what is seen there is reported, and cannot fail.
PLANS: Final = (
    Plan("alone-resume", guarded=False, then="resume"),
    Plan("guard-report", guarded=True, then="resume", on_restart="report", outcomes=(None, "unknown", None)),
    Plan("guard-rerun", guarded=True, then="resume", on_restart="rerun", effects=(1, 2, 1)),
    Plan("guard-ask", guarded=True, then="resume", on_restart="ask"),
    Plan("alone-message", guarded=False, then="message"),
    Plan("guard-message", guarded=True, then="message", effects=(1, 1, 0), outcomes=(None, "unknown", "not_run")),
)


@dataclass(frozen=True, slots=True)
class Crash:
    """One killed process.

    Attributes:
        guarded: Whether its graph had the guard.
        pid: Its process id.
        killed_by_signal: The signal that ended it; `None` where the system has no signals.
        effects: What its tools had done.
    """

    guarded: bool
    pid: int
    killed_by_signal: int | None
    effects: dict[str, int]


@dataclass(frozen=True, slots=True)
class ToolsCase:
    """What came of one way to go on.

    Attributes:
        name: As in `PLANS`.
        guarded: With the guard, or LangGraph alone.
        then: "resume" or "message".
        on_restart: The payment's policy, if it matters.
        history: The history that the model got.
        refused: Why the model refused that history; `None` if it took it.
        question: What a person was asked.
        answer: What that person said.
        effects: How often each tool has taken effect, before and after the kill.
        ok: Whether it is as promised.
    """

    name: str
    guarded: bool
    then: Literal["resume", "message"]
    on_restart: str | None
    history: tuple[HistoryLine, ...]
    refused: str | None
    question: str | None
    answer: str | None
    effects: dict[str, int]
    ok: bool


@dataclass(frozen=True, slots=True)
class ToolsReport:
    """What the scenario counted.

    Attributes:
        ok: Each guarded case is as promised.
        crashes: The two killed processes; every case goes on from a copy of what one of them left.
        cases: In the order of `PLANS`.
        directory: Where everything is kept.
    """

    ok: bool
    crashes: tuple[Crash, ...]
    cases: tuple[ToolsCase, ...]
    directory: str


def run_tools_demo(directory: Path) -> ToolsReport:
    """Kill a process in its payment, once with and once without the guard, and go on from there in each way.

    Args:
        directory: An empty directory.

    Raises:
        DemoFailedError: A process ended by itself where it should not have.
    """
    crashes = tuple(_crash(_crashed(directory, guard), guard=guard) for guard in (True, False))
    cases = tuple(_go_on(directory, plan) for plan in PLANS)
    return ToolsReport(all(case.ok for case in cases), crashes, cases, str(directory))


def _crashed(directory: Path, guard: bool) -> Path:
    return directory / ("killed-guarded" if guard else "killed-alone")


def _crash(directory: Path, *, guard: bool) -> Crash:
    directory.mkdir(mode=0o700)
    log = directory / "process.log"
    with start_worker("_demo_tools", [str(directory), *(["--guard"] if guard else [])], log=log) as worker:
        assert worker.stdout is not None
        is_held = any(event["event"] == "holding" for event in read_events(worker.stdout))
        # SIGKILL where there is one: the process gets no chance to save, flush or say good-bye.
        worker.kill()
        status = worker.wait()
    if not is_held:
        msg = f"the process ended with status {status} before it was killed; the end of {log}:\n{last_lines(log)}"
        raise DemoFailedError(msg)
    effects = Effects(directory / "effects.txt").count(CALLED)
    return Crash(guard, worker.pid, -status if status < 0 else None, effects)


def _go_on(directory: Path, plan: Plan) -> ToolsCase:
    """Let the thread go on from a copy of what the killed process left, in this process."""
    copy = directory / plan.name
    shutil.copytree(_crashed(directory, plan.guarded), copy)
    effects = Effects(copy / "effects.txt")
    seen: list[list[HistoryLine]] = []
    question = answer = refused = None
    with TurnCheckpointSaver(copy / "checkpoints") as saver:
        policies = {"charge_card": plan.on_restart} if plan.on_restart else {}
        graph = _build(saver, effects.perform, seen=seen.append, guard=plan.guarded, on_restart=policies)
        try:
            given: Any = {"messages": [HumanMessage(NEW_MESSAGE)]} if plan.then == "message" else None
            result = graph.invoke(given, THREAD, durability="sync")
            if "__interrupt__" in result:
                question = result["__interrupt__"][0].value["description"]
                answer = f"charges found at the bank: {effects.count(['charge_card'])['charge_card']}"
                graph.invoke(Command(resume={"action": "result", "content": answer}), THREAD, durability="sync")
        except HistoryRefusedError as error:
            refused = str(error)
    history, done = tuple(seen[-1] if seen else ()), effects.count(CALLED)
    ok = not plan.guarded or (refused is None and _is_as_promised(plan, history, tuple(done.values())))
    return ToolsCase(
        plan.name, plan.guarded, plan.then, plan.on_restart, history, refused, question, answer, done, ok=ok
    )


def _is_as_promised(plan: Plan, history: Sequence[HistoryLine], effects: tuple[int, ...]) -> bool:
    outcomes = tuple(line.outcome for line in history if line.who in CALLED)
    return outcomes == plan.outcomes and effects == plan.effects


def _build(
    saver: TurnCheckpointSaver,
    perform: Perform,
    *,
    guard: bool,
    seen: Callable[[list[HistoryLine]], None] = lambda _lines: None,
    on_restart: Mapping[str, str] | None = None,
) -> Graph:
    graph = build_trip_graph([CALLED], perform, saver, seen=seen)
    return guarded(graph, saver, on_restart=on_restart) if guard else graph


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent until it is killed in its payment: the card is charged, and the tool does not return."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}._demo_tools", description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--guard", action="store_true")
    options = parser.parse_args(arguments)
    effects, narrator = Effects(options.directory / "effects.txt"), Narrator()

    def perform(name: str) -> str:
        result = effects.perform(name)
        if name == "charge_card":
            narrator.tell("holding")
            # The parent has the other end of this pipe: should it die first, nobody is left behind.
            sys.stdin.read()
            os._exit(ORPHANED)
        return result

    with TurnCheckpointSaver(options.directory / "checkpoints") as saver:
        graph = _build(saver, perform, guard=options.guard)
        # "sync", the safest that LangGraph has: the model's reply is on the disk before a tool runs.
        graph.invoke({"messages": [HumanMessage(REQUEST)]}, THREAD, durability="sync")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
