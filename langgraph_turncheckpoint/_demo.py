"""Runs the demo: starts the agent's process, kills it, lets a second one finish, and counts.

What it says is measured from outside, in files and in the store. It draws nothing: `cli` shows its
events and report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Literal

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from ._demo_agent import FILES, DemoFiles, bind_chat_model, count_lines, section_heading
from ._demo_worker import THREAD
from .saver import TurnCheckpointSaver

#: Files above this size are not offered to the agent's `read_file`.
LARGEST_FILE_BYTES: Final = 2_000_000
#: A walk through `--path` stops here.
MOST_CANDIDATES: Final = 20_000
#: Directories that hold no text somebody wrote.
SKIPPED_DIRECTORIES: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
#: How long a finished call may take to reach the store before the demo gives up.
RECORDING_SECONDS: Final = 20.0


class DemoUsageError(Exception):
    """The demo cannot start with what it was given; the message says what to change. Nothing was run."""


class DemoFailedError(Exception):
    """A process ended so that the count would mean nothing; the message says where to look."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """A demo that can run: its own directory is there, and so are the files that it will read."""

    files: DemoFiles
    root: Path
    listed: list[str]
    model: str | None


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """One thing that happened, as it happens.

    `start`: a process began; `turn`: the model answered; `tool`: a tool call began; `kill`: the process
    was killed while `calls[0]` ran; `end`: the agent is done.
    """

    kind: Literal["start", "turn", "tool", "kill", "end"]
    process: Literal[1, 2]
    pid: int
    turn: int = 0
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessCount:
    """What one of the two processes did."""

    pid: int
    turns: int
    tool_calls_finished: int


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo counted.

    Attributes:
        ok: No finished call ran again, no model turn was repeated, and the summary is complete.
        model: Name of the real model, or `None` for the scripted fake.
        killed_by_signal: Signal that ended the first process; `None` where the system has no signals.
        kill_turn: Model turn whose tools were running then.
        killed_call: Tool call that was running then.
        finished_calls_run_again: Calls that had finished and started once more. A resume promises zero.
        unfinished_calls_run_again: Calls that the kill interrupted and that had to start once more.
        turns_repeated: Model turns that both processes took.
        resume_seconds: From the start of the second process to its first tool call, Python's own start
            included.
        read_seconds: The part of it that the saver needed to read the thread.
        starting_over_percent: Share of the model turns that starting over would have repeated.
        missing_sections: Files that have no right section in the summary.
        directory: Where everything is kept.
    """

    ok: bool
    model: str | None
    before_kill: ProcessCount
    after_kill: ProcessCount
    killed_by_signal: int | None
    kill_turn: int
    killed_call: str
    finished_calls_run_again: int
    unfinished_calls_run_again: int
    turns_repeated: int
    resume_seconds: float
    read_seconds: float
    starting_over_percent: int
    missing_sections: tuple[str, ...]
    directory: str
    checkpoints: str
    effects: str
    summary: str


@dataclass(slots=True)
class _Process:
    """What the parent hears from one worker."""

    number: Literal[1, 2]
    pid: int
    started: float
    turns: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    first_tool: float | None = None
    read_seconds: float = 0.0
    held_call: str | None = None
    status: int = 0


def prepare_demo(*, directory: Path | None = None, sources: Path | None = None, model: str | None = None) -> DemoPlan:
    """Check what the demo needs, choose the files to read, and make its directory.

    Args:
        directory: Where to keep the store and the agent's files: absent or empty. `None` makes a
            temporary directory, which is kept.
        sources: Directory whose files the agent reads; `None` takes the sources of the installed
            `langgraph`.
        model: A model name for `langchain.chat_models.init_chat_model`; `None` plays a script.

    Raises:
        DemoUsageError: The directory is in use, there are not enough files, or the model cannot be had.
            Nothing was run.
    """
    if model is not None:
        check_model(model)
    root, listed = find_sources(sources)
    return DemoPlan(make_directory(directory, root=root, listed=listed), root, listed, model)


def run_demo(plan: DemoPlan, *, on_event: Callable[[DemoEvent], None]) -> DemoReport:
    """Kill an agent in its work, resume it in another process, and count what was done twice.

    Args:
        plan: What `prepare_demo` made; it is good for one run.
        on_event: Is called in this thread with everything that happens.

    Raises:
        DemoFailedError: A process ended by itself where it should not have.
    """
    files, root, listed, model = plan.files, plan.root, plan.listed, plan.model
    first = run_process(files, number=1, model=model, on_event=on_event)
    if first.held_call is None:
        msg = (
            f"the agent finished in {len(first.turns)} turns, before it could be killed: there is "
            f"nothing to resume. Its files are in {files.directory}"
        )
        raise DemoFailedError(msg)
    second = run_process(files, number=2, model=model, on_event=on_event)

    finished, repeated_finished, repeated_unfinished = count_effects(files.effects)
    missing = find_missing_sections(files.summary, root=root, listed=listed, scripted=model is None)
    turns_repeated = len(set(first.turns) & set(second.turns))
    return DemoReport(
        ok=not (repeated_finished or turns_repeated or missing),
        model=model,
        before_kill=ProcessCount(first.pid, len(first.turns), finished.get(first.pid, 0)),
        after_kill=ProcessCount(second.pid, len(second.turns), finished.get(second.pid, 0)),
        killed_by_signal=-first.status if first.status < 0 else None,
        kill_turn=first.turns[-1],
        killed_call=first.held_call,
        finished_calls_run_again=repeated_finished,
        unfinished_calls_run_again=repeated_unfinished,
        turns_repeated=turns_repeated,
        resume_seconds=(second.first_tool or time.perf_counter()) - second.started,
        read_seconds=second.read_seconds,
        starting_over_percent=round(100 * len(first.turns) / len({*first.turns, *second.turns})),
        missing_sections=missing,
        directory=str(files.directory),
        checkpoints=str(files.checkpoints),
        effects=str(files.effects),
        summary=str(files.summary),
    )


def check_model(name: str) -> None:
    """Find out before anything starts whether a real model can be had by this name.

    Raises:
        DemoUsageError: It cannot.
    """
    if find_spec("langchain") is None:
        msg = '--model needs langchain: pip install "langgraph-turncheckpoint[agents]"'
        raise DemoUsageError(msg)
    try:
        bind_chat_model(name, [])
    except Exception as error:
        msg = f"the model {name!r} cannot be used: {error}"
        raise DemoUsageError(msg) from error


def find_sources(directory: Path | None) -> tuple[Path, list[str]]:
    """Choose the largest readable text files of a directory, or of the installed `langgraph`.

    Returns:
        A root, and the chosen paths relative to it, in a fixed order.
    """
    if directory is None:
        distribution = metadata.distribution("langgraph")
        root = Path(str(distribution.locate_file("")))
        candidates: Iterable[str] = (str(path) for path in distribution.files or () if path.suffix == ".py")
        place = "the installed langgraph package"
    else:
        root = directory.resolve()
        candidates = _walk(root)
        place = str(directory)
    by_size = sorted(((file_size(root / path), path) for path in candidates), reverse=True)
    texts = list(islice((path for size, path in by_size if size and is_text(root / path)), FILES))
    if len(texts) < FILES:
        msg = (
            f"{place} has {len(texts)} readable text files; the demo needs {FILES}. Name another directory with --path"
        )
        raise DemoUsageError(msg)
    return root, sorted(texts)


def _walk(root: Path) -> Iterator[str]:
    count = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_DIRECTORIES and not name.startswith("."))
        for name in sorted(names):
            # A line break in a name would split it in two in the list that the model gets.
            path = (Path(folder) / name).relative_to(root).as_posix()
            if not name.startswith(".") and path.isprintable():
                yield path
                count += 1
                if count == MOST_CANDIDATES:
                    return


def file_size(path: Path) -> int:
    """Size of a regular file that is not too large; 0 for anything else."""
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
    return size if size <= LARGEST_FILE_BYTES else 0


def is_text(path: Path) -> bool:
    """Whether a file can be read, and as UTF-8."""
    try:
        data = path.read_bytes()
        data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return b"\0" not in data


def make_directory(directory: Path | None, *, root: Path, listed: list[str]) -> DemoFiles:
    """Make the demo's directory and write down which files the agent is to read."""
    files = DemoFiles(make_empty_directory(directory))
    with _usable(files.directory):
        files.sections.mkdir(mode=0o700)
        files.sources.write_text(json.dumps({"root": str(root), "files": listed}), encoding="utf-8")
    return files


def make_empty_directory(directory: Path | None) -> Path:
    """Make a demo's directory, or check that it is empty; `None` makes a temporary one, which is kept.

    Raises:
        DemoUsageError: It is in use, or cannot be made.
    """
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="turncheckpoint-demo-"))
    with _usable(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            msg = f"{directory} is not empty; name a new directory for the demo"
            raise DemoUsageError(msg)
        return directory.resolve()


@contextmanager
def _usable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"{directory} cannot be used as the demo's directory: {error.strerror}"
        raise DemoUsageError(msg) from error


def run_process(
    files: DemoFiles,
    *,
    number: Literal[1, 2],
    model: str | None,
    on_event: Callable[[DemoEvent], None],
) -> _Process:
    """Run one worker to its end: the first is killed in the call that it holds, the second resumes.

    Raises:
        DemoFailedError: The worker ended by itself with an error.
    """
    log = files.directory / f"process-{number}.log"
    arguments = [str(files.directory), *(["--resume"] if number == 2 else []), *(["--model", model] if model else [])]
    with start_worker("_demo_worker", arguments, log=log) as worker:
        heard = _Process(number=number, pid=worker.pid, started=time.perf_counter())
        on_event(DemoEvent("start", number, worker.pid))
        assert worker.stdout is not None
        for event in read_events(worker.stdout):
            _hear(heard, event, on_event)
            if heard.held_call is not None:
                wait_until_recorded(files, calls=heard.calls[:-1])
                # SIGKILL where there is one: the process gets no chance to save, flush or say good-bye.
                worker.kill()
                break
        heard.status = worker.wait()
    if heard.held_call is not None:
        on_event(DemoEvent("kill", number, heard.pid, heard.turns[-1], (heard.held_call,)))
        if sys.platform != "win32" and heard.status >= 0:
            msg = f"process {number} ended with status {heard.status} before it was killed; see {log}"
            raise DemoFailedError(msg)
    elif heard.status != 0:
        msg = f"process {number} failed with status {heard.status}; the end of {log}:\n{last_lines(log)}"
        raise DemoFailedError(msg)
    return heard


@contextmanager
def start_worker(module: str, arguments: Sequence[str], *, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Start one of our modules as a process; whatever happens here, it does not outlive the block."""
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(  # noqa: S603 - this interpreter and our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8"
        ) as worker,
    ):
        try:
            yield worker
        finally:
            worker.kill()


def read_events(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """What a worker tells, as it tells it."""
    for line in stream:
        # A library may print something of its own.
        if line.startswith('{"event"'):
            yield json.loads(line)


def _hear(heard: _Process, event: dict[str, Any], on_event: Callable[[DemoEvent], None]) -> None:
    match event["event"]:
        case "opened":
            heard.read_seconds = event["read_seconds"]
        case "turn":
            heard.turns.append(event["turn"])
            heard.calls = event["calls"]
            on_event(DemoEvent("turn", heard.number, heard.pid, event["turn"], tuple(event["labels"])))
        case "tool":
            heard.first_tool = heard.first_tool or time.perf_counter()
            turn = heard.turns[-1] if heard.turns else 0
            on_event(DemoEvent("tool", heard.number, heard.pid, turn, (event["label"],)))
        case "holding":
            heard.held_call = event["label"]
        case "done":
            on_event(DemoEvent("end", heard.number, heard.pid))


def wait_until_recorded(files: DemoFiles, *, calls: Iterable[str]) -> None:
    """Return once another process than the one that ran these calls can read their results.

    A call counts as finished when its result is durable. Killing before that would measure luck.

    Raises:
        DemoFailedError: They did not get there.
    """
    deadline = time.monotonic() + RECORDING_SECONDS
    with TurnCheckpointSaver(files.checkpoints) as saver:
        while missing := set(calls) - recorded_calls(saver):
            if time.monotonic() > deadline:
                msg = f"finished tool calls did not reach the store: {', '.join(sorted(missing))}"
                raise DemoFailedError(msg)
            time.sleep(0.01)


def recorded_calls(saver: BaseCheckpointSaver[Any]) -> set[str]:
    """Tool calls whose result the store holds, in the history or as a pending write."""
    found = saver.get_tuple(THREAD)
    if found is None:
        return set()
    values = [found.checkpoint["channel_values"].get("messages", [])]
    values += [value for _, channel, value in found.pending_writes or () if channel == "messages"]
    return {message.tool_call_id for value in values for message in value if isinstance(message, ToolMessage)}


def count_effects(effects: Path) -> tuple[dict[int, int], int, int]:
    """Count from the tools' own records.

    Returns:
        Finished calls per process id, calls that started again after they had finished, and calls that
        started again after they had not.
    """
    finished_by: dict[int, int] = {}
    started: set[str] = set()
    finished: set[str] = set()
    again: dict[bool, int] = {True: 0, False: 0}
    for line in effects.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        call = record["call"]
        if record["event"] == "started":
            if call in started:
                again[call in finished] += 1
            started.add(call)
        else:
            finished.add(call)
            finished_by[record["pid"]] = finished_by.get(record["pid"], 0) + 1
    return finished_by, again[True], again[False]


def find_missing_sections(summary: Path, *, root: Path, listed: list[str], scripted: bool) -> tuple[str, ...]:
    """Files without a section in the summary; the script's must also have the true line count."""
    text = summary.read_text(encoding="utf-8") if summary.exists() else ""
    missing = []
    for number, path in enumerate(listed, start=1):
        _, heading, rest = text.partition(section_heading(number, path) + "\n")
        body = rest.partition("\n## ")[0].strip()
        lines = count_lines((root / path).read_text(encoding="utf-8"))
        if not heading or not body or (scripted and f"- lines: {lines}\n" not in body):
            missing.append(path)
    return tuple(missing)


def last_lines(log: Path, count: int = 8) -> str:
    """The end of what a worker wrote to its standard error."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
