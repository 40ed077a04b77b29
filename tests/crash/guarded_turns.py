"""Every boundary of a guarded turn: a process is killed there, others take up what it has left, and what must hold then
is checked. How the turn is run and killed is not said here.

A test runs the boundaries that matter most. `python -m tests.crash turns` runs all of them, for all ways into
the guard; with `--again` processes that take up are killed, too, at each of their boundaries.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._finalize import Facts
from langgraph_turncheckpoint._running import load_transcript
from tests.crash.figures import Figure, zero
from tests.crash.guarded_agent import (
    CONFIG,
    DURABILITIES,
    FIRST_PROMPT,
    POSTED,
    THREAD,
    TOOLS,
    WAYS,
    Case,
    TakenUp,
    die_at,
    in_files,
    outcome_of,
    say_hello,
    stored,
    take_up,
)
from tests.crash.processes import Child, answers

#: A killed process leaves its files and the effects of its tools, and only these change them: behind each of the other
#: boundaries it leaves what it does at the one before.
TELLING: Final = re.compile(r"after (write|replace|unlink|mkdir|rmdir|ftruncate|create|the effect)")
SECOND_PROMPT: Final = "prompt-2"
THIRD_PROMPT: Final = "prompt-3"


class Remains(NamedTuple):
    """What a killed process has left: what its files hold, and what its journals tell of unanswered calls."""

    prompts: set[str]
    results: set[str]
    said: set[str]
    posted: bool
    calls: dict[str, Facts]


class Finding(NamedTuple):
    """Something that should not have come.

    Attributes:
        case: How the turn was run.
        kills: Position and name of each boundary at which a process was killed.
        resumes: How each later process took the thread up: "continue" or "new".
        wrong: What was wrong.
    """

    case: Case
    kills: tuple[tuple[int, str], ...]
    resumes: tuple[str, ...]
    wrong: str

    def __str__(self) -> str:
        kills = ", then ".join(f"{position} ({name})" for position, name in self.kills)
        return f"{self.case}; killed at {kills}; {' and '.join(self.resumes)}: {self.wrong}"


class Tally(NamedTuple):
    """What an enumeration has done.

    Attributes:
        boundaries: How many there are.
        kills: How many processes died at one.
        resumes: How often a thread was taken up.
        findings: What was wrong.
    """

    boundaries: int
    kills: int
    resumes: int
    findings: list[Finding]


# --- what must hold ---


def remains_of(directory: Path, case: Case) -> Remains:
    """Look at what a killed process has left. Nothing is changed by that.

    An input that LangGraph has stored and not read yet is nothing that a guard in the nodes can know of; where a new
    message comes instead of the run going on, LangGraph drops it.
    """
    saver = TurnCheckpointSaver(directory / "store")
    transcript = load_transcript(saver.store, THREAD, sys.maxsize)
    head = saver.get_tuple(CONFIG)
    answered = {message.tool_call_id for message in stored(directory) if isinstance(message, ToolMessage)}
    evidence = transcript.call_evidence().items()
    calls = {call_id: each.facts for (_, call_id), each in evidence if call_id not in answered}
    # A checkpoint that is not the head yet has not come to be.
    is_unread = head is not None and head.metadata.get("source") == "input" and not case.way.startswith("attach")
    values = {} if head is None else head.checkpoint["channel_values"]
    kept = {name: value for name, value in values.items() if not (is_unread and name == "__start__")}
    in_head = "" if head is None else f"{kept} {[] if is_unread else head.pending_writes}"
    in_journals = " ".join(sorted(in_files(directory, r"prompt-\d|said-[0-9a-f]{8}|result-[0-9a-f]{8}", "*.journal")))
    known = f"{in_head} {in_journals}"
    return Remains(
        set(re.findall(r"prompt-\d", known)),
        set(re.findall(r"result-[0-9a-f]{8}", known)),
        set(re.findall(r"said-[0-9a-f]{8}", known)),
        bool(in_files(directory, POSTED, "*.msg")) or POSTED in known,
        calls,
    )


def invalid(history: Sequence[BaseMessage]) -> Iterator[str]:
    """Calls that are not answered exactly once, right behind their message, and answers to no call."""
    open_calls: list[str] = []
    for message in history:
        if isinstance(message, ToolMessage):
            if message.tool_call_id in open_calls:
                open_calls.remove(message.tool_call_id)
            else:
                yield f"an answer to no call before it: {message.tool_call_id}"
            continue
        if open_calls:
            yield f"not answered: {open_calls}"
        open_calls = [str(c["id"]) for c in message.tool_calls] if isinstance(message, AIMessage) else []
    if open_calls:
        yield f"not answered at the end: {open_calls}"


def refused(history: Sequence[BaseMessage]) -> Iterator[str]:
    """What providers would complain about."""
    # Loaded here, because each child loads what the main module does, and this takes seconds.
    from tests.contract.test_provider_histories import PROVIDERS, complaints

    for name, events in PROVIDERS.items():
        try:
            wrong = complaints(list(events(list(history))))  # type: ignore[arg-type]
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            wrong = [repr(error)]
        yield from (f"{name}: {each}" for each in wrong)


def lost(history: Sequence[BaseMessage], remains: Sequence[Remains], resumes: Sequence[str]) -> Iterator[str]:
    """What was there when a process was killed and is not in the history, or not once."""
    texts = Counter(str(m.content) for m in history if isinstance(m, HumanMessage))
    results = Counter(str(m.content) for m in history if isinstance(m, ToolMessage) and m.status == "success")
    said = " ".join(m.text for m in history if isinstance(m, AIMessage))
    for left in remains:
        yield from (f"{p} is there {texts[p]} times" for p in sorted(left.prompts) if texts[p] != 1)
        yield from (f"{r} is there {results[r]} times" for r in sorted(left.results) if results[r] != 1)
        if "continue" in resumes:
            continue  # the model may have been asked again, and what it says then takes the place of what it had said
        yield from (f"{each} is lost" for each in sorted(left.said) if each not in said)


def untrue(history: Sequence[BaseMessage], remains: Sequence[Remains], *, goes_on: bool) -> Iterator[str]:
    """Answers that say of a call what is not true of it."""
    for message in history:
        if not isinstance(message, ToolMessage) or message.tool_call_id not in remains[-1].calls:
            continue
        facts, outcome = remains[-1].calls[message.tool_call_id], outcome_of(message)
        before = [left.calls[message.tool_call_id] for left in remains[:-1] if message.tool_call_id in left.calls]
        right: tuple[str | None, ...]
        if any(each.started and not each.result for each in before):
            right = ("unknown",)  # it was said once that nobody knows, and this is what is recorded now
        elif facts.result:
            right = (None,)
        elif facts.started:
            right = ("unknown",)
        else:
            right = (None, "not_run") if goes_on else ("not_run",)
        if outcome not in right:
            yield f"{message.name}, of which is known {facts}, is answered {outcome}: {message.content!r}"
        note = message.response_metadata.get("turncheckpoint")
        if note and note["cause"] != "restart":
            yield f"{message.name} is answered with the cause {note['cause']}"


def doubled(directory: Path, history: Sequence[BaseMessage]) -> Iterator[str]:
    """Effects that happened twice, or not although nothing says that this is not known."""
    path = directory / "effects"
    lines = path.read_text().splitlines() if path.exists() else []
    effects = Counter(line.split()[0] for line in lines)
    unknown = {m.name for m in history if isinstance(m, ToolMessage) and outcome_of(m) == "unknown"}
    was_asked = any(isinstance(m, HumanMessage) and str(m.content).startswith("prompt-") for m in history)
    for name in TOOLS:
        if effects[name] > 1:
            yield f"{name} took effect {effects[name]} times"
        if was_asked and not effects[name] and name not in unknown:
            yield f"{name} did not take effect, and nothing says so"


def left_over(directory: Path) -> Iterator[str]:
    """What should not be in the store when all is done."""
    names = sorted(path.name for path in (directory / "store").rglob("*") if path.is_file())
    yield from (f"{name} is left" for name in names if name.endswith((".tmp", ".journal")))
    # An orphan is what a merge has left that was cut off before it had cleaned up; it is in nobody's way.
    found = TurnCheckpointSaver(directory / "store").verify()
    yield from (f"verify finds {each}" for each in found if each.kind != "orphan")


def wrong_with(directory: Path, taken: TakenUp, remains: Sequence[Remains], resumes: Sequence[str]) -> Iterator[str]:
    """Everything that is not as it must be, once a thread was taken up and had one more turn."""
    last_goes_on = resumes[-1] == "continue"
    if any(taken.was_busy):
        yield f"busy: {taken.was_busy}"
    for name, history in [("stored", taken.after_resume), ("stored at the end", taken.after_next)]:
        yield from (f"{name}: {each}" for each in (*invalid(history), *refused(history)))
    for number, history in enumerate(taken.seen):
        yield from (f"asked the {number}th time: {each}" for each in invalid(history))
    yield from (f"asked the last time: {each}" for each in refused(taken.seen[-1]))
    yield from (f"at the end: {each}" for each in lost(taken.after_next, remains, resumes))
    yield from (f"asked the last time: {each}" for each in lost(taken.seen[-1], remains, resumes))
    if not last_goes_on:
        yield from (f"asked first: {each}" for each in lost(taken.seen[0], remains, resumes))
    yield from untrue(taken.after_next, remains, goes_on=last_goes_on)
    yield from doubled(directory, taken.after_next)
    prompts = [str(m.content) for m in taken.after_next if isinstance(m, HumanMessage)]
    own = [text for text in prompts if text.startswith(("hello", "prompt-", "next"))]
    if own != sorted(own, key=["hello", FIRST_PROMPT, SECOND_PROMPT, THIRD_PROMPT, "next"].index):
        yield f"out of order: {prompts}"
    ids = [message.id for message in taken.after_next]
    yield from (f"the id {each} is there twice" for each, count in Counter(ids).items() if count > 1)
    if any(left.posted for left in remains) and prompts.count(POSTED) != 1:
        yield f"what was posted is there {prompts.count(POSTED)} times"
    if taken.waiting:
        yield f"still in the inbox: {taken.waiting}"
    yield from left_over(directory)


# --- enumerating ---

#: `multiprocessing` must not start one process while it looks after another one in another thread.
_processes: Final = threading.Lock()


def fate_of(target: Callable[..., object], *args: Any) -> tuple[int, Any]:
    """Exit status of a process that runs `target(line, *args)`, and what it has said, if it came to that.

    Raises:
        AssertionError: It failed, or it hangs.
    """
    with _processes:
        child = Child(target, *args)
    said = None
    try:
        with contextlib.suppress(EOFError, ConnectionResetError):
            said = child.hear()
    finally:
        with _processes, child:
            status = child.end()
    return status, said


class Enumeration:
    """Kills a turn at boundary after boundary.

    Args:
        case: How the turn is run.
        workplace: A directory for all its files.
        choose: Which boundaries, by position and name.
        jobs: How many processes at once.
        report: Is told each finding at once.
    """

    def __init__(
        self,
        case: Case,
        workplace: Path,
        *,
        choose: Callable[[int, str], bool] = lambda position, name: True,
        jobs: int = 2,
        report: Callable[[Finding], object] = lambda finding: None,
    ) -> None:
        self.case = case
        self._workplace, self._choose, self._jobs, self._report = workplace, choose, jobs, report
        self._template = workplace / "template"
        self._template.mkdir(parents=True)
        if case.used:
            answers(say_hello, self._template)
        probe = self._copy(self._template, "probe")
        #: The name of each boundary of a turn that nobody kills.
        self.names: list[str] = answers(die_at, probe, case, FIRST_PROMPT, False, None)

    def run(self, modes: Sequence[str] = ("continue", "new")) -> Tally:
        """Kill the turn at each boundary, and take each up in each of the ways."""
        chosen = [position for position, name in enumerate(self.names) if self._choose(position, name)]

        def one(position: int) -> tuple[int, int, list[Finding]]:
            killed = self._copy(self._template, f"at-{position}")
            status = self._kill(killed, FIRST_PROMPT, position, goes_on=False)
            if not status:
                shutil.rmtree(killed)
                return 0, 0, []
            kills = ((position, self.names[position]),)
            found = [each for mode in modes for each in self._take_up(killed, kills, (), mode, [])]
            shutil.rmtree(killed)
            return 1, len(modes), found

        return self._sum(len(self.names), one, chosen)

    def run_again(self, position: int, first: str, modes: Sequence[str] = ("continue", "new")) -> Tally:
        """Kill the turn at one boundary, and the process that takes it up, by `first`, at each of its own."""
        killed = self._copy(self._template, f"again-{position}-{first}")
        if not self._kill(killed, FIRST_PROMPT, position, goes_on=False):
            return Tally(0, 0, 0, [])
        before, goes_on = [remains_of(killed, self.case)], first == "continue"
        probe = self._copy(killed, f"again-{position}-{first}-probe")
        names: list[str] = answers(die_at, probe, self.case, SECOND_PROMPT, goes_on, None)
        shutil.rmtree(probe)

        def one(second: int) -> tuple[int, int, list[Finding]]:
            twice = self._copy(killed, f"{killed.name}-{second}")
            status = self._kill(twice, SECOND_PROMPT, second, goes_on=goes_on)
            kills = ((position, self.names[position]), (second, names[second]))
            found = []
            for mode in modes if status else ():
                found += self._take_up(twice, kills, (first,), mode, before)
            shutil.rmtree(twice)
            return (1, len(modes), found) if status else (0, 0, [])

        chosen = [second for second, name in enumerate(names) if self._choose(second, name)]
        tally = self._sum(len(names), one, chosen)
        shutil.rmtree(killed)
        return tally

    def _sum(self, boundaries: int, one: Callable[[int], tuple[int, int, list[Finding]]], chosen: list[int]) -> Tally:
        with ThreadPoolExecutor(self._jobs) as pool:
            done = list(pool.map(one, chosen))
        findings = [finding for *_, found in done for finding in found]
        return Tally(boundaries, sum(d[0] for d in done), sum(d[1] for d in done), findings)

    def _kill(self, directory: Path, text: str, position: int, *, goes_on: bool) -> bool:
        """Whether a process died there; threads are not always equally fast, and one may have fewer boundaries."""
        status, _ = fate_of(die_at, directory, self.case, text, goes_on, position)
        assert status in (0, -signal.SIGKILL)
        return status != 0

    def _take_up(
        self,
        killed: Path,
        kills: tuple[tuple[int, str], ...],
        earlier: tuple[str, ...],
        mode: str,
        before: list[Remains],
    ) -> list[Finding]:
        directory = self._copy(killed, f"{killed.name}-{mode}")
        remains = [*before, remains_of(directory, self.case)]
        text = SECOND_PROMPT if len(kills) == 1 else THIRD_PROMPT
        try:
            _, taken = fate_of(take_up, directory, self.case, text, mode == "continue")
        except AssertionError as error:
            wrong = [f"failed: {error}".strip()]
        else:
            wrong = list(wrong_with(directory, taken, remains, (*earlier, mode)))
        shutil.rmtree(directory)
        findings = [Finding(self.case, kills, (*earlier, mode), each) for each in wrong]
        for finding in findings:
            self._report(finding)
        return findings

    def _copy(self, source: Path, name: str) -> Path:
        target = self._workplace / name
        shutil.copytree(source, target)
        return target


def records_in(names: Sequence[str], count: int) -> list[int]:
    """Up to `count` boundaries right behind a write, evenly spread over a turn."""
    found = [position for position, name in enumerate(names) if name == "after write"]
    return [found[index * len(found) // count] for index in range(min(count, len(found)))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which cases, and how many of their boundaries; all of all would take hours."""
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--durability", choices=DURABILITIES, action="append")
    parser.add_argument("--colour", choices=["sync", "async"], action="append")
    parser.add_argument("--thread", choices=["used", "fresh"], action="append")
    parser.add_argument("--every-boundary", action="store_true", help="also those that leave what the one before does")
    parser.add_argument("--stride", type=int, default=20, help="only each n-th boundary")
    parser.add_argument("--again", type=int, default=0, help="kill those who take up, too, behind so many kills")
    parser.add_argument("--jobs", type=int, default=2)


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """The chosen boundaries of the chosen cases."""

    def chooser() -> Callable[[int, str], bool]:
        counted = iter(range(sys.maxsize))
        return lambda _, name: (
            (options.every_boundary or bool(TELLING.match(name))) and not (next(counted) % options.stride)
        )

    total: Counter[str] = Counter()
    findings: list[str] = []
    for case in [
        Case(way, durability, thread == "used", colour)
        for way in options.way or WAYS
        for durability in options.durability or DURABILITIES
        for thread in options.thread or ["used", "fresh"]
        for colour in options.colour or ["sync", "async"]
    ]:
        with tempfile.TemporaryDirectory() as workplace:
            enumeration = Enumeration(case, Path(workplace) / "w", choose=chooser(), jobs=options.jobs)
            if options.again:
                points = records_in(enumeration.names, options.again)
                tallies = [enumeration.run_again(p, first) for p in points for first in ("continue", "new")]
            else:
                tallies = [enumeration.run()]
        total.update({field: sum(getattr(t, field) for t in tallies) for field in ("kills", "resumes")}, cases=1)
        findings += [str(finding) for tally in tallies for finding in tally.findings]
    figures = [
        Figure("ways into the guard, durabilities, threads, colours", total["cases"]),
        Figure("kills", total["kills"]),
        Figure("resumes", total["resumes"]),
        zero("histories, results, prompts or effects that are wrong", len(findings)),
    ]
    return figures, findings
