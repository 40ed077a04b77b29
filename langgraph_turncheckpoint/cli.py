"""The `turncheckpoint` command: options, words and tables. What it shows is decided elsewhere.

Needs the extra `cli`; only `__main__` imports it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from . import __version__
from ._demo import DemoEvent, DemoFailedError, DemoReport, DemoUsageError, prepare_demo, run_demo
from ._demo_agent import FILES, TURNS
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


@app.command(epilog=_STATUS.format(problem="work was done twice, is incomplete, or the demo broke off"))
def demo(
    path: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            metavar="DIR",
            help=f"Let the agent read the {FILES} largest text files of DIR, "
            "instead of the installed langgraph's own sources.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Use a real chat model, by `provider:model`, instead of the scripted fake. Needs "
            "the extra `agents`, the provider's package and its key. The provider is sent the beginning "
            "of each file, and may charge for it.",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Keep the store, the summary and the record of tool calls in DIR, which must be new or "
            "empty. Without it they stay in a temporary directory, whose name is printed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Kill an agent in its work, and watch a second process finish it.

    An agent reads 20 files, one per turn, and writes a Markdown summary, 30 turns in all. In turn 25 its process
    is killed with SIGKILL while a tool runs, as soon as the results of the turn's other tool calls are in the
    store. A second process opens the same directory, resumes the same thread and finishes. Then a table shows
    what was done, and what was done twice: no finished tool call should be.
    """
    try:
        plan = prepare_demo(directory=directory, sources=path, model=model)
        with _progress(quiet=as_json, model=model) as on_event:
            report = run_demo(plan, on_event=on_event)
    except (DemoUsageError, DemoFailedError, TurnCheckpointError) as error:
        _fail(str(error), status=USAGE if isinstance(error, DemoUsageError) else PROBLEM)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        _show_report(Console(), report)
    if not report.ok:
        raise typer.Exit(PROBLEM)


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


@contextmanager
def _progress(*, quiet: bool, model: str | None) -> Iterator[Callable[[DemoEvent], None]]:
    """Show events as they come: a bar on a terminal, a line per turn elsewhere, nothing for `--json`."""
    if quiet:
        yield lambda _event: None
        return
    console = Console()
    console.print(_introduction(model))

    def print_event(event: DemoEvent) -> None:
        line = _event_line(event)
        if line is not None:
            console.print(line, soft_wrap=True)

    if not console.is_terminal:
        yield print_event
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("turns"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("", total=TURNS)

        def show(event: DemoEvent) -> None:
            if event.kind != "turn":
                print_event(event)
            if event.kind == "turn":
                progress.update(task, completed=event.turn)
            progress.update(task, description=f"process {event.process} {', '.join(event.calls):<18.18}")

        yield show


def _introduction(model: str | None) -> Text:
    who = (
        "The model is a scripted fake, so this costs nothing; the graph, the tools, the files, the "
        "processes and the kill are real."
        if model is None
        else f"The model is {model}."
    )
    return Text(
        f"An agent reads {FILES} files and writes a summary. Its process is killed on the way; a "
        f"second one finishes. {who}\n"
    )


def _event_line(event: DemoEvent) -> Text | None:
    process = f"process {event.process} (pid {event.pid})"
    match event.kind:
        case "start":
            what = "starts the work" if event.process == 1 else "resumes the thread from the directory"
            return Text(f"{process} {what}", style="bold")
        case "kill":
            return Text(
                f"{process} was killed by SIGKILL in turn {event.turn}, during `{event.calls[0]}`",
                style="bold red",
            )
        case "end":
            return Text(f"{process} has finished the work", style="bold green")
        case "turn":
            return Text(f"  turn {event.turn:>2}  {', '.join(event.calls) or 'final answer'}")
        case "tool" if event.turn == 0:
            # No turn of this process asked for it: it is left over from the killed one.
            return Text(f"  resumed  {event.calls[0]}")
        case _:
            return None


def _show_report(console: Console, report: DemoReport) -> None:
    console.print()
    console.print(_count_table(report))
    console.print()
    for label, value, good in _facts(report):
        style = {True: "green", False: "bold red", None: ""}[good]
        console.print(Text.assemble(f"{label:<36}", (value, style)), soft_wrap=True)
    console.print()
    for label, place in (
        ("the agent's summary", report.summary),
        ("the store", report.checkpoints),
        ("what the tools recorded", report.effects),
    ):
        console.print(Text(f"{label:<24}{place}"), soft_wrap=True)
    if not report.ok:
        console.print(Text("\nThe demo failed: see the lines in red.", style="bold red"))
        for path in report.missing_sections:
            console.print(Text(f"no right section about {path}"), soft_wrap=True)


def _count_table(report: DemoReport) -> Table:
    before, after = report.before_kill, report.after_kill
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("")
    for heading in ("before the kill", "after", "total"):
        table.add_column(heading, justify="right")
    table.add_row("process id", str(before.pid), str(after.pid), "")
    table.add_row("model turns", str(before.turns), str(after.turns), str(before.turns + after.turns))
    calls = (before.tool_calls_finished, after.tool_calls_finished)
    table.add_row("tool calls finished", str(calls[0]), str(calls[1]), str(sum(calls)))
    return table


def _facts(report: DemoReport) -> Iterator[tuple[str, str, bool | None]]:
    """Label, value, and whether the value is as promised; `None` where nothing is promised."""
    before, after = report.before_kill, report.after_kill
    again = report.finished_calls_run_again
    yield "finished tool calls that ran again", str(again), again == 0
    yield "model turns that were repeated", str(report.turns_repeated), report.turns_repeated == 0
    unfinished = f"{report.unfinished_calls_run_again} ({report.killed_call}, which the kill interrupted)"
    yield "unfinished tool call, run again", unfinished, None
    resume = f"{report.resume_seconds:.2f} s from the start of the process to its first tool call"
    yield "time to resume", resume, None
    yield "  of which to read the thread", f"{1000 * report.read_seconds:.1f} ms", None
    turns = before.turns + after.turns - report.turns_repeated
    lost = f"{before.turns} of {turns} model turns ({report.starting_over_percent} %)"
    yield "starting over would have repeated", f"{lost}, {before.tool_calls_finished} tool calls", None
    missing = len(report.missing_sections)
    yield "files in the summary", f"{FILES - missing} of {FILES}", missing == 0
