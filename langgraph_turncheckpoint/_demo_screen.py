"""What the demo's scenarios look like on a terminal: words, colours and tables. Nothing is run or counted here.

Needs the extra `cli`; only `cli` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ._demo import DemoEvent, DemoReport
from ._demo_agent import FILES, TURNS
from ._demo_race import RaceReport
from ._demo_tools import CALLED, ToolsCase, ToolsReport
from ._demo_trip import HistoryLine

# --- resume ---


@contextmanager
def watch_resume(*, quiet: bool, model: str | None) -> Iterator[Callable[[DemoEvent], None]]:
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


def show_resume(report: DemoReport) -> None:
    """What was done, and what was done twice."""
    console = Console()
    console.print()
    console.print(_count_table(report))
    console.print()
    for label, value, good in _facts(report):
        console.print(Text.assemble(f"{label:<36}", (value, _style(good))), soft_wrap=True)
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


# --- tools and race ---

#: Lines are no longer than this, on however wide a terminal.
WIDTH: Final = 80

_FAKE: Final = "The model is a scripted fake; the graph, the tools, the processes and the signals are real."

_INTRODUCTIONS: Final = {
    "tools": (
        "A model calls three tools in one reply: book_hotel, charge_card, send_mail. They run one by one, and the "
        "process dies at the worst moment: the card is charged, and nobody has noted it. Then the thread goes on: with "
        "LangGraph alone (same store, no guard), and with TurnGuard, which keeps a journal of what tools do. Is the "
        "card charged twice? What does the model get to know? "
    ),
    "race": (
        "Process A stops in the middle of its work, as in a suspended container or on a closed laptop. It is taken for "
        "dead, and process B finishes the work. Then A wakes up, knows of nothing, and wants to go on. A store that "
        "does not check would let it, and the card would be charged twice. "
    ),
}

#: Of each case: its title, and what the table calls it.
_TITLES: Final = {
    "alone-resume": ("LangGraph alone, resumed", "LangGraph alone, resumed"),
    "guard-report": ('TurnGuard, on_restart="report" (default): the model is told', 'TurnGuard, "report"'),
    "guard-rerun": ('TurnGuard, on_restart="rerun": for tools that may run twice', 'TurnGuard, "rerun"'),
    "guard-ask": ('TurnGuard, on_restart="ask": a person decides', 'TurnGuard, "ask"'),
    "alone-message": ("LangGraph alone, a new message comes instead", "LangGraph alone, new message"),
    "guard-message": ("TurnGuard, a new message comes instead", "TurnGuard, new message"),
}


def introduce(scenario: str) -> None:
    """Say what is going to happen, before it takes a few seconds."""
    console = _console()
    console.print(Text(_INTRODUCTIONS[scenario] + _FAKE))
    console.print()


def show_tools(report: ToolsReport) -> None:
    """What the model got to know in each case, and what the tools have done."""
    console = _console()
    killed = " and ".join(
        f"{crash.pid} ({'with TurnGuard' if crash.guarded else 'LangGraph alone'})" for crash in report.crashes
    )
    console.print(Text(f"SIGKILL for processes {killed}:", style="bold red"))
    console.print(Text("book_hotel had finished, charge_card had charged, send_mail had not started."))
    console.print(Text("What the model sees of it begins with these lines; each case shows the rest."))
    console.print(_history(report.cases[0].history[:2]))
    shown: set[str] = set()
    for case in report.cases:
        console.print(_title(case))
        console.print(_history(case.history[2:], shown=shown))
        for text in _remarks(case):
            console.print(text)
    console.print()
    console.print(_effects_table(report))
    _finish(console, report.directory, ok=report.ok)


def show_race(report: RaceReport) -> None:
    """What the late process was told, and what the store holds."""
    console = _console()
    console.print(Text(f"process A (pid {report.pid_a}) looks for a room; SIGSTOP in `find_room`", style="bold red"))
    console.print(Text(f"process B (pid {report.pid_b}) resumes the thread and finishes the work", style="bold"))
    console.print(Text("process A gets SIGCONT; its tool returns, and it wants to write:", style="bold"))
    if report.refused is None:
        console.print(Text("  nobody refused it", style="bold red"))
    else:
        console.print(_indented(Text(f"StaleTurnError: {report.refused}", style="green")))
    console.print(Text("\nThe history in the store:", style="bold"))
    console.print(_history(report.history))
    console.print(Text(f'\nThe turns, from saver.turns("{report.thread_id}"):', style="bold"))
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("token", "process", "state"):
        table.add_column(heading)
    for turn in report.turns:
        table.add_row(str(turn.token), turn.process, turn.state)
    console.print(table)
    console.print(Text("Tokens only grow, also when a turn ends. A write with an older one is refused.\n"))
    for label, name, wanted in (
        ("times the card was charged", "charge_card", 1),
        ('times a room was looked for (allowed: on_restart="rerun")', "find_room", None),
    ):
        count = report.effects[name]
        console.print(Text.assemble(f"{label:<60}", (str(count), _style(None if wanted is None else count == wanted))))
    _finish(console, report.directory, ok=report.ok)


def _console() -> Console:
    return Console(width=min(WIDTH, Console().width), highlight=False)


def _title(case: ToolsCase) -> Text:
    charges = case.effects["charge_card"]
    count = (f"card charged: {charges}", _count_style(charges, case))
    return Text.assemble((f"\n{_TITLES[case.name][0]:<64}", "bold"), count)


def _count_style(count: int, case: ToolsCase) -> str:
    """Twice is bad, unless the tool's policy allows it."""
    return "green" if count < 2 else "yellow" if case.guarded and case.ok else "bold red"


def _history(lines: Iterable[HistoryLine], *, shown: set[str] | None = None) -> Table:
    """The messages; the guard's own texts in full where they are not among the `shown`, which are added to."""
    shown = set() if shown is None else shown
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=13)
    table.add_column()
    for line in lines:
        text = "(the same text as above)" if line.text in shown else line.text
        if line.outcome:
            shown.add(line.text)
        table.add_row(Text(f"  {line.who}", style="cyan"), Text(text, style="yellow" if line.outcome else ""))
    return table


def _indented(text: Text) -> Table:
    table = Table.grid()
    table.add_column(width=2)
    table.add_column()
    table.add_row("", text)
    return table


def _remarks(case: ToolsCase) -> Iterator[Text]:
    """What the history does not show."""
    if case.effects["charge_card"] > 1 and not case.guarded:
        yield Text("  All three ran again, as one step, and nothing tells of the first charge.", style="bold red")
    if case.answer is not None:
        yield Text("  A person was asked, looked it up, and gave this result.", style="magenta")
    if case.refused is not None:
        yield Text("  Refused, as model providers do: tool calls without answers.", style="bold red")
    if not case.ok:
        yield Text("  This is not what was promised.", style="bold red")


def _effects_table(report: ToolsReport) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("how often each tool took effect")
    for name in CALLED:
        table.add_column(name, justify="right")
    for case in report.cases:
        counts = [case.effects[name] for name in CALLED]
        cells = (Text(str(count), style=_count_style(count, case)) for count in counts)
        table.add_row(_TITLES[case.name][1], *cells)
    return table


def _style(good: bool | None) -> str:
    return {True: "green", False: "bold red", None: ""}[good]


def _finish(console: Console, directory: str, *, ok: bool) -> None:
    console.print(Text(f"\nEverything is kept in {directory}"), soft_wrap=True)
    if not ok:
        console.print(Text("The demo failed: see the lines in red.", style="bold red"))
