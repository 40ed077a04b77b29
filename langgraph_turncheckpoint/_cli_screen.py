"""What the commands print for people: tables, conversations, differences, progress. Nothing is read or decided here.

Needs the extra `cli`. Where the output is no terminal, lines are as long as they need to be and have no colours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, Final, TypeAlias

from langchain_core.messages import BaseMessage
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ._cli_conversation import CallLine, Conversation, MessageLine
from ._cli_facts import CheckpointLine, Difference, ThreadLine
from ._cli_ids import clean, shown_id
from ._cli_values import as_data
from ._standing import ThreadState
from ._turn_log import TurnRecord

#: Told how many items are done, and how many there are.
Bar: TypeAlias = Callable[[int, "int | None"], None]

#: Lines of a pipe are not broken.
_UNBROKEN: Final = 1_000_000
#: Longest text of a value in a list of differences.
_SHORT: Final = 300

_STYLES: Final = {
    "running": "cyan",
    "completed": "green",
    "paused": "yellow",
    "waiting": "yellow",
    "interrupted": "red",
    "unfinished": "red",
    "damaged": "red",
    "failed": "red",
    "error": "red",
    "open": "red",
    "ok": "green",
    "recorded": "green",
    "returned": "green",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
}


def console() -> Console:
    """Where people look."""
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made = Console(highlight=False, markup=False, emoji=False, width=_UNBROKEN, no_color=True)
    return made


@contextmanager
def progress_bar(title: str, *, total: int | None, quiet: bool) -> Iterator[Bar]:
    """Show on a terminal how far work is; gives what to call with the number of items that are done, and of all."""
    where = Console(stderr=True)
    if quiet or not where.is_terminal or total == 1:
        yield lambda _done, _total: None
        return
    named = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    with Progress(*named, MofNCompleteColumn(), TimeElapsedColumn(), console=where, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done, total: progress.update(task, completed=done, total=total)


# --- words ---


def size(size_bytes: int) -> str:
    """A size that people read."""
    amount = float(size_bytes)
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago something was."""
    if moment is None:
        return "?"
    seconds = ((now or datetime.now(timezone.utc)) - moment).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def short(value: Any, limit: int = _SHORT) -> str:
    """A value on one line."""
    data = as_data(value)
    line = clean(data if isinstance(data, str) else json.dumps(data, ensure_ascii=False))
    line = line.replace("\n", "\\n")
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _styled(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def _table(*headings: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(
            heading, justify="right" if heading in right else "left", no_wrap=heading not in {"THREAD", "CHANGED"}
        )
    return table


# --- tables ---


def state_word(state: ThreadState) -> str:
    """How a thread stands, in one word."""
    return "?" if state == "unknown" else state


def show_threads(lines: Sequence[ThreadLine]) -> None:
    """The threads, as they come."""
    table = _table("THREAD", "STATE", "NEXT", "AGE", "TURNS", "CHECKPOINTS", "SIZE", right=("SIZE", "AGE"))
    for line in lines:
        state = _styled(state_word(line.state))
        if line.closed:
            state.append(", closed")
        nodes = Text("" if line.next is None else ", ".join(map(clean, line.next)))
        if not line.checkpoints:
            nodes = Text("no checkpoint yet", style="dim")
        counts = (str(line.turns), str(line.checkpoints), size(line.size_bytes))
        table.add_row(Text(shown_id(line.thread_id)), state, nodes, age(line.updated_at), *counts)
    console().print(table)


def show_turns(records: Sequence[TurnRecord]) -> None:
    """The turns of a thread."""
    headings = ("TURN", "STATE", "CAUSE", "OPENED", "SECONDS", "CONTINUES", "FIRST CHECKPOINT", "LAST CHECKPOINT")
    table = _table(*headings, right=("TURN", "SECONDS"))
    for record in records:
        seconds = "" if record.settled_at is None else f"{(record.settled_at - record.opened_at).total_seconds():.1f}"
        table.add_row(
            str(record.token),
            _styled(record.state),
            record.cause or "",
            _moment(record.opened_at),
            seconds,
            "" if record.continues is None else str(record.continues),
            Text(clean(record.first_checkpoint_id or "")),
            Text(clean(record.last_checkpoint_id or "")),
        )
    console().print(table)


def show_history(lines: Iterable[CheckpointLine]) -> None:
    """The checkpoints of a thread."""
    headings = ("CHECKPOINT", "STEP", "SOURCE", "RAN", "CHANGED", "NEXT", "WRITES", "TURN", "SIZE", "PARENT")
    table = _table(*headings, right=("STEP", "WRITES", "TURN", "SIZE"))
    for line in lines:
        name = Text(clean(line.checkpoint_id))
        if line.namespace:
            name.append(f"  {clean(line.namespace)}", style="dim")
        if line.damage is not None:
            name.append(f"  {clean(line.damage)}", style="red")
        table.add_row(
            name,
            _word(line.step),
            _word(line.source),
            _names(line.ran),
            _names(line.changed),
            _names(line.next),
            _word(line.writes or None),
            _word(line.turn),
            size(line.size_bytes),
            Text(clean(line.parent_id or "")),
        )
    console().print(table)


def _word(value: object) -> str:
    return "" if value is None else clean(str(value))


def _names(names: Sequence[str] | None) -> Text:
    return Text("" if names is None else ", ".join(map(clean, names)))


# --- conversations ---


def show_conversation(found: Conversation, *, limit: int | None) -> None:
    """A thread as a model would see it."""
    out = console()
    records = {record.token: record for record in found.turns}
    read = f"  checkpoint {clean(found.checkpoint_id)}, {_moment(found.created_at)}".rstrip(", ")
    word = state_word(found.state)
    out.print(Text.assemble((f"thread {shown_id(found.thread_id)}", "bold"), ": ", _styled(word), (read, "dim")))
    turn: int | None = None
    lines = found.messages or []
    first = 0 if limit is None else max(0, len(lines) - limit)
    if first:
        out.print(Text(f"({first} messages before)", style="dim"))
    for line in lines[first:]:
        if line.turn != turn and line.turn is not None:
            turn = line.turn
            out.print(_turn_heading(turn, records.get(turn)))
        out.print(_message(line))
    if found.messages is None:
        out.print(Text("no list of messages is in the state", style="dim"))
    if found.values:
        out.print()
    for name, value in sorted(found.values.items()):
        out.print(Text.assemble((f"{clean(name)}: ", "bold"), short(value)))
    if found.left.nodes:
        asked = "waits for a person, then " if found.left.waiting else ""
        nodes = ", ".join(map(clean, found.left.nodes))
        out.print(Text(f"\nnot at its end: {asked}next comes {nodes}", style="yellow"))
    if found.inbox:
        out.print(Text(f"{found.inbox} waiting in the inbox", style="yellow"))
    if found.note:
        out.print(Text(clean(found.note), style="yellow"))


def _turn_heading(token: int, record: TurnRecord | None) -> Text:
    text = Text(f"── turn {token}", style="dim")
    if record is not None:
        text.append(f", {_moment(record.opened_at)}")
        text.append(f", {record.state}", style=_STYLES.get(record.state, ""))
        if record.cause is not None:
            text.append(f" ({record.cause})")
    return text


def _message(line: MessageLine) -> Text:
    message = line.message
    if not isinstance(message, BaseMessage):
        return Text(short(message))
    text = Text()
    role = {"human": "user", "ai": "model"}.get(message.type, message.type)
    text.append(f"{role}: ", style="bold")
    body = clean(str(message.text)).strip()
    text.append(body.replace("\n", "\n    "))
    if line.outcome is not None:
        name = getattr(message, "name", None) or ""
        text = Text.assemble(("tool", "bold"), f" {clean(name)} [", _styled(line.outcome), "]: ", body)
        if line.cause is not None:
            text.append(f" (cause: {line.cause})", style="dim")
    if not line.stored:
        text.append("  [not stored]", style="magenta")
    for call in line.calls:
        text.append("\n  → ")
        text.append_text(_call(call))
    return text


def _call(call: CallLine) -> Text:
    args = short(call.args) if call.args else ""
    return Text.assemble((clean(call.name), "bold"), f"({args}) {clean(call.id)}: ", _styled(call.outcome))


def show_data(data: Any) -> None:
    """A value as it is stored, as JSON."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    shown = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    console().print(Text(shown))


def show_differences(found: Sequence[Difference]) -> None:
    """What differs between two checkpoints."""
    out = console()
    marks = {"added": "+", "removed": "-", "changed": "~"}
    for each in found:
        out.print(Text.assemble((marks[each.kind], _STYLES[each.kind]), f" {clean(each.channel)}"))
        if each.messages is not None:
            for one in each.messages:
                shown = one.before if one.kind == "removed" else one.after
                line = Text.assemble("    ", (marks[one.kind], _STYLES[one.kind]), f" [{one.position}] ")
                if one.kind == "changed":
                    line.append(f"{_said(one.before)}  →  ")
                line.append(_said(shown))
                out.print(line)
            continue
        if each.kind != "added":
            out.print(Text(f"    - {short(each.before)}", style="red"))
        if each.kind != "removed":
            out.print(Text(f"    + {short(each.after)}", style="green"))
    if not found:
        out.print(Text("no channel differs", style="dim"))


def _said(message: BaseMessage) -> str:
    calls = [str(call.get("name")) for call in getattr(message, "tool_calls", None) or ()]
    text = f"{message.type}: {short(str(message.text), 120)}"
    return text + (f" → {', '.join(map(clean, calls))}" if calls else "")


def show_lines(rows: Iterable[tuple[str, str]]) -> None:
    """Lines that begin with a word."""
    out = console()
    for word, text in rows:
        out.print(Text.assemble(_styled(word), ": ", clean(text)))
