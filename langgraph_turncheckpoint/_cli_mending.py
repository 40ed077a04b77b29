"""The commands that look after a store: `verify`, `repair`, `prune`, `sweep`, `delete`. What each of them does is the
saver's; here it is asked for thread by thread, told, and stopped between two threads when somebody presses Ctrl-C.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from . import _files
from ._cli_ids import clean, shown_id
from ._cli_options import (
    PROBLEM,
    STATUS,
    STOPPED,
    AppDirectory,
    AsJson,
    MessagesKey,
    SerdeOption,
    StoreArgument,
    ThreadsArgument,
    count,
    fail,
    guarded,
    print_json,
    working,
)
from ._cli_screen import show_lines, size, state_word
from ._cli_stores import UsageError, chosen_threads, existing_thread, look_into, open_store
from ._repair import IDLE_SECONDS, WHERE_MODULES_ARE, repairable
from ._repair_files import Repair
from ._retention import Retention
from ._standing import ThreadState
from ._thread_files import thread_directories
from ._upkeep import removable, retain
from ._verify import Finding, verify_store
from .errors import DamagedCheckpointError, UnknownFormatError
from .saver import TurnCheckpointSaver

_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")

#: What a repair does to files and histories.
_REPAIRS: Final = frozenset({"aside", "rewritten", "finalized"})
_APP_DIR: Final = "name the directory of the app's modules with --app-dir"
#: What a sweep removes beside threads, one of it in words.
_SWEPT: Final = {
    "temporaries": "temporary file",
    "remains": "leftover",
    "tickets": "ticket",
    "journals": "journal",
    "inbox_items": "delivered message",
}
#: How many threads a sentence names.
_NAMED: Final = 5

#: What concerns stored data; the rest is litter, or belongs to others.
_PROBLEMS: Final = frozenset({"damaged", "missing", "newer"})

_REPAIR_PROBLEM: Final = (
    "somebody is needed: without --apply something is to be repaired, or something was left for a reason that is told "
    "(a thread that waits for a person, or on which a turn is at work, is no problem)"
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, and only tell what would be done.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=STATUS.format(problem="stored data is damaged or missing, or of a newer format"))(verify)
    app.command(epilog=STATUS.format(problem=_REPAIR_PROBLEM))(repair)
    app.command(epilog=STATUS.format(problem="there is no such thread, or the system refused"))(prune)
    app.command(epilog=STATUS.format(problem="something could not be read or removed"))(sweep)
    app.command(epilog=STATUS.format(problem="there is no such thread, or it was not deleted"))(delete)


def seconds_of(text: str) -> float:
    """A length of time: `90s`, `15min`, `12h`, `30d`, `2w`. A bare number might be meant as days, and delete too much.

    Raises:
        UsageError: It is none.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    unit = _UNITS.get(found[2]) if found else None
    if found is None or unit is None or float(found[1]) * unit <= 0:
        raise UsageError(f"{text!r} is no length of time; write 90s, 15min, 12h, 30d or 2w")
    return float(found[1]) * unit


@guarded
def verify(store: StoreArgument, as_json: AsJson = False) -> None:
    """Check every file in a store, byte by byte, and change nothing. It needs no key.

    Each line names a file and what is wrong with it. `damaged`, `missing` and `newer` concern stored data: a thread
    whose newest checkpoint is damaged goes on from the newest whole one, and other threads are not affected; `repair`
    puts it in order. `aside` is what `repair` moved out of the way and kept for you: a damaged file, or a whole one
    that cannot be read without it; `temporary` and `orphan` are left over from
    killed processes and cost only space, and `sweep` removes them. In a store that is in use a `temporary` may belong
    to a writer at work. `foreign` files belong to something else and are ignored.

    With --json: `store`, `ok`, `files`, and `findings`, each with `path`, `kind`, `reason`.
    """
    saver = look_into(store, None)
    total = sum(1 for _ in thread_directories(saver.path))
    findings: list[Finding] = []
    with working("checked", total=total, quiet=as_json) as work:
        findings += verify_store(saver.path, fsync=False, on_thread=work.step)
    problems = [found for found in findings if found.kind in _PROBLEMS]
    files = sum(1 for _ in _files.file_sizes(saver.path))
    if as_json:
        listed = [found._asdict() for found in findings]
        print_json({"store": saver.path, "ok": not problems, "files": files, "findings": listed})
    else:
        show_lines((found.kind, f"{found.path}: {found.reason}") for found in findings)
        harmless = len(findings) - len(problems)
        noticed = f", {harmless} harmless" if harmless else ""
        typer.echo(f"{count(files, 'file')} checked, {count(len(problems), 'problem')} found{noticed}", err=True)
    if problems:
        raise typer.Exit(PROBLEM)


@guarded
def repair(
    store: StoreArgument,
    threads: ThreadsArgument = None,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without this nothing is changed.")] = False,
    idle: Annotated[
        str,
        typer.Option(
            "--idle",
            metavar="TIME",
            help="Leave threads alone that were written to so lately: the end of a plain run is announced by nobody, "
            "and it may be at work still.",
        ),
    ] = f"{IDLE_SECONDS:.0f}s",
    unanswered: Annotated[
        list[str] | None,
        typer.Option("--unanswered", metavar="TOOL", help="A tool whose calls may stay open. Can be repeated."),
    ] = None,
    messages_key: MessagesKey = "messages",
    _app_directory: AppDirectory = None,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Put damaged and broken threads in order, without their graphs. By default it only tells what it would do.

    Damaged files are moved into a directory `damaged` beside them, with the checkpoints that cannot be read without
    them; nothing is thrown away, and what that costs a thread is told (`lost`): how far it goes back, and how many of
    its messages that takes. **If you have a backup of a damaged file, put it back instead.**

    Where a run was cut off in its tools, one more checkpoint is written in which each open call has the answer that is
    true of it: its recorded result if there is one, else an error that says what is known. Nothing is left to run then.
    **Do not repair a thread that is to go on in the middle: that is what invoke(None) is for.** Threads that are
    closed, running or waiting for a person are left alone. A stop at a static breakpoint (`interrupt_before`) is
    written down nowhere, unless a guard saw it: name the threads to repair if your graphs have any.

    With --json: `store`, `applied`, and `repairs`, each with `kind` (`lost`, `aside`, `rewritten`, `finalized`, `left`,
    or `pending`: no problem), `thread_id`, `path` (empty for a thread as a whole), `reason`, `not_run` (nodes that came
    next), `state` (of the thread before, in the words of `threads`).
    """
    seconds = 0.0 if idle.strip() in {"0", "0s"} else seconds_of(idle)
    saver = open_store(store, serde)
    found: list[Repair] = []
    states: dict[str, ThreadState] = {}
    chosen = chosen_threads(saver, threads) if threads else repairable(saver.store)
    with working("repaired" if apply else "looked at", total=len(chosen), quiet=as_json) as work:
        for thread_id in chosen:
            states[thread_id] = _state_of(saver, thread_id)
            found += saver.repair(
                [thread_id], dry_run=not apply, messages_key=messages_key, unanswered=unanswered or (), idle=seconds
            )
            work.step()
    if as_json:
        rows = [{**each._asdict(), "state": states[each.thread_id]} for each in found]
        print_json({"store": saver.path, "applied": apply, "repairs": rows})
    else:
        show_lines((each.kind, _repair_line(each, states[each.thread_id])) for each in found)
        _tell_repairs(found, looked_at=len(chosen), apply=apply)
    if any(each.kind == "left" or (not apply and each.kind != "pending") for each in found):
        raise typer.Exit(PROBLEM)


def _state_of(saver: TurnCheckpointSaver, thread_id: str) -> ThreadState:
    try:
        return saver.store.standing(thread_id).state
    except DamagedCheckpointError:
        return "damaged"  # its ledger
    except UnknownFormatError:
        return "unknown"


def _repair_line(each: Repair, state: ThreadState) -> str:
    place = f"{each.path}: " if each.path else ""
    named = shown_id(each.thread_id) + ("" if each.path else f" ({state_word(state)})")
    return f"thread {named}: {place}{each.reason.replace(WHERE_MODULES_ARE, _APP_DIR)}"


def _tell_repairs(found: Sequence[Repair], *, looked_at: int, apply: bool) -> None:
    done = sum(each.kind in _REPAIRS for each in found)
    counts = {kind: sum(each.kind == kind for each in found) for kind in ("left", "pending")}
    told = [count(looked_at, "thread") + " looked at", f"{count(done, 'repair')} {'made' if apply else 'to be made'}"]
    told += [f"{counts['left']} left"] if counts["left"] else []
    told += [f"{counts['pending']} in order with calls open"] if counts["pending"] else []
    more = "; nothing was changed, add --apply to do it" if done and not apply else ""
    ended = list(dict.fromkeys(each.thread_id for each in found if each.kind == "finalized" and each.not_run))
    if ended:
        names = ", ".join(map(shown_id, ended[:_NAMED])) + (", ..." if len(ended) > _NAMED else "")
        if apply:
            text = (
                f"nothing is left to run now in {count(len(ended), 'thread')}: {names}. The next message goes on there."
            )
        else:
            text = (
                "do not repair a thread that is to go on in the middle: that is what invoke(None) is for, and nothing "
                f"would be left to run in {count(len(ended), 'thread')}: {names}. If one of these is to go on, name "
                "the others."
            )
        typer.echo(f"turncheckpoint: {text}", err=True)
    typer.echo(f"{', '.join(told)}{more}", err=True)


@guarded
def prune(
    store: StoreArgument,
    threads: ThreadsArgument = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Prune all threads.")] = False,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            min=1,
            metavar="N",
            help="How many checkpoints of each namespace stay: 1, or any number with --max-age.",
        ),
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="TIME", help="Checkpoints older than this go.")
    ] = None,
    dry_run: DryRun = False,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove old checkpoints and give their space back. The newest stay, and whatever they need.

    The state of a thread does not change; what goes is the way back to earlier ones. What a running turn builds on,
    and what a recovery after a crash looks at, stays.

    With --json: `store`, `dry_run`, and `threads`, each with `thread_id`, `removed` (checkpoints), `freed_bytes` (0 in
    a dry run).
    """
    if bool(threads) == every:
        raise UsageError("name the threads to prune, or say --all")
    retention = Retention(keep_last or 1) if max_age is None else Retention(keep_last, seconds_of(max_age))
    saver = look_into(store, serde, fsync=True)
    chosen = chosen_threads(saver, threads)
    rows: list[dict[str, Any]] = []
    with working("looked at" if dry_run else "pruned", total=len(chosen), quiet=as_json) as work:
        for thread_id in chosen:
            rows.append(_prune(saver, thread_id, retention, dry_run=dry_run))
            work.step()
    if as_json:
        print_json({"store": saver.path, "dry_run": dry_run, "threads": rows})
        return
    verb = "would go" if dry_run else "removed"
    for row in rows:
        if row["removed"]:
            freed = "" if dry_run else f", {size(row['freed_bytes'])} freed"
            typer.echo(f"{shown_id(row['thread_id'])}: {count(row['removed'], 'checkpoint')} {verb}{freed}")
    total = sum(row["removed"] for row in rows)
    typer.echo(f"{count(len(rows), 'thread')} looked at, {count(total, 'checkpoint')} {verb}", err=True)


def _prune(saver: TurnCheckpointSaver, thread_id: str, retention: Retention, *, dry_run: bool) -> dict[str, Any]:
    store = saver.store
    if dry_run:
        return {"thread_id": thread_id, "removed": removable(store, thread_id, retention), "freed_bytes": 0}
    path = store.thread(thread_id).path
    before = sum(_files.file_sizes(path))
    removed = retain(store, thread_id, retention, clock=time.time)
    return {"thread_id": thread_id, "removed": removed, "freed_bytes": max(0, before - sum(_files.file_sizes(path)))}


@guarded
def sweep(
    store: StoreArgument,
    *,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--delete-older-than",
            metavar="TIME",
            help="Delete whole threads that nobody has touched for so long: 30d, 12h. It must be longer than any run "
            "may work on one step.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before threads are deleted.")] = False,
    dry_run: DryRun = False,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Remove what nobody needs any more: what dead processes have left, and what was delivered or told already.

    Temporary files of dead writers, the rest of removals that were cut short, tickets of dead waiters, journals that
    tell nothing the checkpoints do not hold, delivered messages of inboxes. Other processes may use the store
    meanwhile.

    With --json, which needs --yes where threads are deleted: `store`, `dry_run`, `threads` (ids that were deleted),
    `temporaries`, `remains`, `tickets`, `journals`, `inbox_items`, `size_bytes`, `problems`.
    """
    seconds = None if max_age is None else seconds_of(max_age)
    saver = look_into(store, serde, fsync=True)
    if seconds is not None and not dry_run and not yes:
        old = list(saver.sweep(max_age=seconds, dry_run=True).threads)
        if old and as_json:
            raise UsageError("--json asks nobody: add --yes")
        if old:
            _ask(saver, old)
    report = saver.sweep(max_age=seconds, dry_run=dry_run)
    counts = {kind: getattr(report, kind) for kind in _SWEPT}
    if as_json:
        lists = {"threads": list(report.threads), "problems": list(report.problems)}
        print_json({"store": saver.path, "dry_run": dry_run, **lists, **counts, "size_bytes": report.size_bytes})
    else:
        verb = "would be deleted" if dry_run else "deleted"
        for thread_id in report.threads:
            typer.echo(f"thread {shown_id(thread_id)}: {verb}")
        told = [count(len(report.threads), "thread")] if report.threads else []
        told += [count(counts[kind], noun) for kind, noun in _SWEPT.items() if counts[kind]]
        swept = "would be removed" if dry_run else "removed"
        typer.echo(f"{', '.join(told)} {swept}, {size(report.size_bytes)}" if told else f"nothing {swept}")
        for problem in report.problems:
            typer.echo(f"turncheckpoint: {clean(problem)}", err=True)
    if report.problems:
        raise typer.Exit(PROBLEM)


@guarded
def delete(
    store: StoreArgument,
    threads: ThreadsArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete threads with all that belongs to them. It cannot be undone; a run that is at work is fenced out.

    With --json (which needs --yes): `store`, and `deleted`, the ids.
    """
    if not threads:
        raise UsageError("name the threads to delete")
    if as_json and not yes:
        raise UsageError("--json asks nobody: add --yes")
    saver = open_store(store, None)
    chosen = list(dict.fromkeys(existing_thread(saver, each) for each in threads))
    if not yes:
        _ask(saver, chosen)
    with working("deleted", total=len(chosen), quiet=as_json) as work:
        for thread_id in chosen:
            saver.delete_thread(thread_id)
            work.step()
    if as_json:
        print_json({"store": saver.path, "deleted": chosen})
    else:
        for thread_id in chosen:
            typer.echo(f"{shown_id(thread_id)}: deleted")


def _ask(saver: TurnCheckpointSaver, chosen: list[str]) -> None:
    for thread_id in chosen:
        busy = ", and a turn is running on it" if saver.is_busy(thread_id) else ""
        size_bytes = sum(_files.file_sizes(saver.store.thread(thread_id).path))
        typer.echo(f"{shown_id(thread_id)}: {size(size_bytes)}{busy}", err=True)
    try:
        is_meant = typer.confirm(f"Delete {count(len(chosen), 'thread')}, for good?", err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            fail("stopped; nothing was deleted", status=STOPPED)
        raise UsageError("nobody has answered, and nothing was deleted; add --yes where nobody can be asked") from None
    if not is_meant:
        fail("nothing was deleted", status=PROBLEM)
