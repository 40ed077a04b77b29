"""The demo's scenario "race": a process is stopped in its work, another one finishes it, and the first wakes. Run as a
module, it is either process. It draws nothing: `_demo_screen` shows its report.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import HumanMessage

from ._demo import DemoFailedError, DemoUsageError, last_lines, read_events, start_worker
from ._demo_trip import THREAD, THREAD_ID, Effects, HistoryLine, build_trip_graph, guarded, read_history
from ._demo_worker import ORPHANED, Narrator
from .errors import StaleTurnError
from .saver import TurnCheckpointSaver

#: The first process is stopped in the first tool, which may run twice; the second charges a card.
REPLIES: Final = (("find_room",), ("charge_card",))
CALLED: Final = ("find_room", "charge_card")
REQUEST: Final = "Find a room, and pay it with my card."


@dataclass(frozen=True, slots=True)
class RaceTurn:
    """One turn, as `TurnCheckpointSaver.turns` tells it.

    Attributes:
        token: Its token.
        process: Whose it was: "A" or "B".
        state: How it stands.
        cause: Why it ended early, if it did.
    """

    token: int
    process: str
    state: str
    cause: str | None


@dataclass(frozen=True, slots=True)
class RaceReport:
    """What became of the two processes.

    Attributes:
        thread_id: The thread that both worked on.
        ok: The late process was refused, the card was charged once, and the history is that of process B.
        pid_a: The process that was stopped and woke late.
        pid_b: The process that finished the turn.
        refused: What the late process was told; `None` if it was allowed to go on.
        held: The turn token that it held.
        current: The token that was needed.
        history: What the store holds at the end.
        turns: The thread's turns, oldest first.
        effects: How often each tool has run, in both processes.
        directory: Where everything is kept.
    """

    ok: bool
    thread_id: str
    pid_a: int
    pid_b: int
    refused: str | None
    held: int | None
    current: int | None
    history: tuple[HistoryLine, ...]
    turns: tuple[RaceTurn, ...]
    effects: dict[str, int]
    directory: str


def check_race() -> None:
    """Find out before anything starts whether this system can stop a process.

    Raises:
        DemoUsageError: It cannot.
    """
    if sys.platform == "win32":
        raise DemoUsageError("the scenario 'race' stops a process with SIGSTOP, which Windows does not have")


def run_race_demo(directory: Path) -> RaceReport:
    """Stop one process in a tool, let another finish its turn, and wake the first.

    Args:
        directory: An empty directory.

    Raises:
        DemoFailedError: A process ended by itself where it should not have.
    """
    log_a, log_b = directory / "process-A.log", directory / "process-B.log"
    with start_worker("_demo_race", [str(directory), "A"], log=log_a) as late:
        told = _told(late)
        _expect(next(told, None), "holding", log=log_a)
        _stop(late)
        with start_worker("_demo_race", [str(directory), "B", "--resume"], log=log_b) as newer:
            _expect(next(_told(newer), None), "finished", log=log_b)
            newer.wait()
        _wake(late)
        ending = next(told, None)
        _expect(ending, "refused", "finished", log=log_a)
        late.wait()
    assert ending is not None
    with TurnCheckpointSaver(directory / "checkpoints") as saver:
        found = saver.get_tuple(THREAD)
        records = sorted(saver.turns(THREAD_ID), key=lambda record: record.token)
    assert found is not None
    history = tuple(read_history(found.checkpoint["channel_values"]["messages"]))
    effects = Effects(directory / "effects.txt").count(CALLED)
    turns = tuple(
        RaceTurn(record.token, "A" if record is records[0] else "B", record.state, record.cause) for record in records
    )
    answers = [line.text for line in history if line.who in CALLED]
    is_of_b = len(answers) == len(CALLED) and all(text.endswith(sign("B")) for text in answers)
    return RaceReport(
        ok=ending["event"] == "refused" and effects["charge_card"] == 1 and is_of_b,
        thread_id=THREAD_ID,
        pid_a=late.pid,
        pid_b=newer.pid,
        refused=ending.get("message"),
        held=ending.get("held"),
        current=ending.get("current"),
        history=history,
        turns=turns,
        effects=effects,
        directory=str(directory),
    )


def sign(process: str) -> str:
    """The end of each tool's result, which says who ran it."""
    return f"(by process {process})"


def _told(worker: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert worker.stdout is not None
    return read_events(worker.stdout)


def _expect(event: dict[str, Any] | None, *kinds: str, log: Path) -> None:
    if event is None or event["event"] not in kinds:
        msg = f"a process ended where it should not have; the end of {log}:\n{last_lines(log)}"
        raise DemoFailedError(msg)


def _stop(worker: subprocess.Popen[str]) -> None:
    """SIGSTOP; returns when the system says that the process has stopped."""
    if sys.platform != "win32":
        worker.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise DemoFailedError(f"process {worker.pid} ended before it could be stopped")


def _wake(worker: subprocess.Popen[str]) -> None:
    """SIGCONT, and whatever the process waited for in its tool."""
    if sys.platform != "win32":
        worker.send_signal(signal.SIGCONT)
    assert worker.stdin is not None
    worker.stdin.write("go on\n")
    worker.stdin.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent from the request, waiting in its first tool, or (`--resume`) on from what the directory holds."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}._demo_race", description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("name")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(arguments)
    effects, narrator = Effects(options.directory / "effects.txt"), Narrator()

    def perform(name: str) -> str:
        result = effects.perform(name)
        if name == "find_room" and not options.resume:
            narrator.tell("holding")
            # The parent has the other end of this pipe: should it die first, nobody is left behind.
            if not sys.stdin.readline():
                os._exit(ORPHANED)
        return f"{result} {sign(options.name)}"

    with TurnCheckpointSaver(options.directory / "checkpoints") as saver:
        graph = guarded(build_trip_graph(REPLIES, perform, saver), saver, on_restart={"find_room": "rerun"})
        given: Any = None if options.resume else {"messages": [HumanMessage(REQUEST)]}
        try:
            graph.invoke(given, THREAD, durability="sync")
        except StaleTurnError as error:
            narrator.tell("refused", held=error.held, current=error.current, message=str(error))
        else:
            narrator.tell("finished")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
