"""The `turncheckpoint` command, and the demo. The other commands are in `_cli_reading`, `_cli_mending` and
`_cli_moving`; what is shown of a demo is drawn in `_demo_screen`.

Needs the extra `cli`; only `__main__` imports it.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from . import __version__, _cli_mending, _cli_moving, _cli_reading
from ._cli_options import PROBLEM, STATUS, USAGE, AsJson, fail, guarded
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

app = typer.Typer(
    name="turncheckpoint",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Checkpoints of LangGraph agents in a directory. New here? Run `turncheckpoint demo`: it "
        "takes a few seconds, needs no key, and shows an agent that is killed in its work and loses "
        "nothing."
    ),
    epilog=STATUS.format(problem="a problem was found"),
)


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")


class Scenario(str, Enum):
    """What the demo shows."""

    RESUME = "resume"
    TOOLS = "tools"
    RACE = "race"


@app.command(epilog=STATUS.format(problem="something came out otherwise than promised, or the demo broke off"))
@guarded
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
            fail(f"--path and --model are for the scenario 'resume', not for {scenario.value!r}", status=USAGE)
        if scenario is Scenario.RESUME:
            report: DemoReport | ToolsReport | RaceReport = _resume(directory, path, model, as_json=as_json)
        elif scenario is Scenario.TOOLS:
            report = _tools(directory, as_json=as_json)
        else:
            report = _race(directory, as_json=as_json)
    except (DemoUsageError, DemoFailedError, TurnCheckpointError) as error:
        fail(str(error), status=USAGE if isinstance(error, DemoUsageError) else PROBLEM)
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


_cli_reading.add_to(app)
_cli_mending.add_to(app)
_cli_moving.add_to(app)
