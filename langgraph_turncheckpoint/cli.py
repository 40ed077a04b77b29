"""The `turncheckpoint` command: its options and exit statuses. What it shows of a demo is drawn in `_demo_screen`.

Needs the extra `cli`; only `__main__` imports it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from . import __version__
from ._demo import (
    DemoFailedError,
    DemoReport,
    DemoUsageError,
    make_empty_directory,
    prepare_demo,
    run_demo,
)
from ._demo_agent import FILES
from ._demo_race import RaceReport, check_race, run_race_demo
from ._demo_screen import introduce, show_race, show_resume, show_tools, watch_resume
from ._demo_tools import ToolsReport, run_tools_demo
from .errors import TurnCheckpointError
from .saver import TurnCheckpointSaver

PROBLEM: Final = 1
USAGE: Final = 2

_STATUS = "Exit status: 0 all is well, 1 {problem}, 2 the command was not understood."

app = typer.Typer(
    name="turncheckpoint",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Checkpoints of LangGraph agents in a directory. New here? Run `turncheckpoint demo`: it "
        "takes a few seconds, needs no key, and shows an agent that is killed in its work and loses "
        "nothing."
    ),
    epilog=_STATUS.format(problem="a problem was found"),
)

Store = Annotated[
    Path,
    typer.Argument(
        exists=True,
        file_okay=False,
        show_default=False,
        metavar="STORE",
        help="The directory that the app gave to TurnCheckpointSaver.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts, and nothing else.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options that come before a command; the help text stands above."""


class Scenario(str, Enum):
    """What the demo shows."""

    RESUME = "resume"
    TOOLS = "tools"
    RACE = "race"


@app.command(epilog=_STATUS.format(problem="something came out otherwise than promised, or the demo broke off"))
def demo(
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="`resume`: an agent is killed in its work, and another process finishes it. `tools`: it is killed in "
            "a payment, and goes on in each way there is. `race`: it is stopped, overtaken, and wakes."
        ),
    ] = Scenario.RESUME,
    path: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            metavar="DIR",
            help=f"Only for `resume`. Let the agent read the {FILES} largest text files of DIR, "
            "instead of the installed langgraph's own sources.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only for `resume`. Use a real chat model, by `provider:model`, instead of the scripted fake. Needs "
            "the extra `agents`, the provider's package and its key. The provider is sent the beginning "
            "of each file, and may charge for it.",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Keep the store and whatever the agent's tools wrote in DIR, which must be new or "
            "empty. Without it they stay in a temporary directory, whose name is printed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Kill or stop an agent in its work, and watch what becomes of it. The processes and signals are real.

    **resume**: An agent reads 20 files, one per turn, and writes a Markdown summary, 30 turns in all. In turn 25 its
    process is killed with SIGKILL while a tool runs. A second process opens the same directory, resumes the same
    thread and finishes. No finished tool call should run again.

    **tools**: The process is killed after a card was charged and before anybody noted it, between a call that
    had finished and one that had not started. The thread is resumed under each policy, and once gets a new
    message instead, beside what LangGraph does alone.

    **race**: The process is stopped with SIGSTOP in a tool and taken for dead; another one finishes its turn. Then it
    wakes, and must not write any more.
    """
    try:
        if scenario is not Scenario.RESUME and (path or model):
            _fail(f"--path and --model are for the scenario 'resume', not for {scenario.value!r}", status=USAGE)
        if scenario is Scenario.RESUME:
            report: DemoReport | ToolsReport | RaceReport = _resume(directory, path, model, as_json=as_json)
        elif scenario is Scenario.TOOLS:
            report = _tools(directory, as_json=as_json)
        else:
            report = _race(directory, as_json=as_json)
    except (DemoUsageError, DemoFailedError, TurnCheckpointError) as error:
        _fail(str(error), status=USAGE if isinstance(error, DemoUsageError) else PROBLEM)
    if as_json:
        typer.echo(json.dumps({"scenario": scenario.value, **asdict(report)}, indent=2))
    if not report.ok:
        raise typer.Exit(PROBLEM)


def _resume(directory: Path | None, sources: Path | None, model: str | None, *, as_json: bool) -> DemoReport:
    plan = prepare_demo(directory=directory, sources=sources, model=model)
    with watch_resume(quiet=as_json, model=model) as on_event:
        report = run_demo(plan, on_event=on_event)
    if not as_json:
        show_resume(report)
    return report


def _tools(directory: Path | None, *, as_json: bool) -> ToolsReport:
    place = make_empty_directory(directory)
    if as_json:
        return run_tools_demo(place)
    introduce("tools")
    report = run_tools_demo(place)
    show_tools(report)
    return report


def _race(directory: Path | None, *, as_json: bool) -> RaceReport:
    check_race()
    place = make_empty_directory(directory)
    if as_json:
        return run_race_demo(place)
    introduce("race")
    report = run_race_demo(place)
    show_race(report)
    return report


@app.command(epilog=_STATUS.format(problem="the directory cannot be read"))
def threads(store: Store, as_json: AsJson = False) -> None:
    """List the threads in a store, one id per line.

    No checkpoint is loaded. An id with characters that a terminal would not print is shown as a JSON
    string.
    """
    try:
        with TurnCheckpointSaver(store) as saver:
            ids = sorted(saver.thread_ids())
            stats = saver.stats()
    except TurnCheckpointError as error:
        _fail(str(error), status=PROBLEM)
    if as_json:
        facts = {name: getattr(stats, name) for name in ("threads", "checkpoints", "files", "size_bytes")}
        typer.echo(json.dumps({"store": str(store), "thread_ids": ids, "stats": facts}, indent=2))
        return
    for thread_id in ids:
        typer.echo(_printable(thread_id))
    counts = (_count(stats.threads, "thread"), _count(stats.checkpoints, "checkpoint"), _count(stats.files, "file"))
    typer.echo(f"{', '.join(counts)}, {stats.size_bytes:,} bytes", err=True)


@app.command(epilog=_STATUS.format(problem="a file is damaged or belongs to nothing"))
def verify(store: Store, as_json: AsJson = False) -> None:
    """Check every file in a store, byte by byte, and change nothing.

    Each line names a file and what is wrong with it. `damaged`, `missing` and `newer` concern stored
    checkpoints: a thread whose newest one is damaged goes on from the newest whole one, and other threads are
    not affected. `aside` is a damaged file that was kept for you; `temporary` and `orphan` are left over from
    killed processes and cost only space, and in a store that is in use a `temporary` may belong to a writer at
    work. `foreign` files belong to something else and are ignored.

    The exit status is 1 only where a stored checkpoint is concerned.
    """
    try:
        with TurnCheckpointSaver(store) as saver:
            findings = saver.verify()
            stats = saver.stats()
    except TurnCheckpointError as error:
        _fail(str(error), status=PROBLEM)
    problems = [found for found in findings if found.kind in ("damaged", "missing", "newer")]
    if as_json:
        listed = [{"path": str(found.path), "kind": found.kind, "reason": found.reason} for found in findings]
        typer.echo(json.dumps({"store": str(store), "ok": not problems, "findings": listed}, indent=2))
    else:
        for found in findings:
            typer.echo(f"{found.kind}: {_printable(str(found.path))}: {_printable(found.reason)}")
        others = len(findings) - len(problems)
        noticed = f", {others} harmless" if others else ""
        typer.echo(
            f"{_count(stats.files, 'file')} checked, {_count(len(problems), 'problem')} found{noticed}", err=True
        )
    if problems:
        raise typer.Exit(PROBLEM)


def _fail(message: str, *, status: int) -> NoReturn:
    typer.echo(f"turncheckpoint: {message}", err=True)
    raise typer.Exit(status)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _printable(text: str) -> str:
    # Ids come from users: they must neither move the cursor nor break the line, nor fail to encode.
    return text if text.isprintable() else json.dumps(text)
