"""The commands that take threads elsewhere: `export`, `import`, `migrate`, `timeline`. How that is done is in
`_portable`, `_homemade`, `migrate` and `display`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from langgraph.checkpoint.base import BaseCheckpointSaver

from ._cli_facts import unstored_threads
from ._cli_ids import clean, given_ids, shown_id
from ._cli_options import (
    ENCRYPTED,
    PROBLEM,
    STATUS,
    AppDirectory,
    AsJson,
    MessagesKey,
    SerdeOption,
    StoreArgument,
    ThreadArgument,
    count,
    fail,
    guarded,
    print_json,
    working,
)
from ._cli_stores import ProblemError, UsageError, existing_thread, load_serde, look_into
from ._copy_plan import ANOTHER_ID, LEAVE_OUT
from ._homemade import import_homemade
from ._migrate_places import MAKE_TABLES, open_place
from ._portable import OVERWRITE, export_thread, is_exported, take_in
from ._portable_values import WHERE_CLASSES_ARE
from ._saver_views import OTHER_SERDE, view_of
from ._thread_copy import RESTORE_DELETED, Rules, ThreadReport
from ._unreadable import Unreadable
from .errors import (
    ForeignFileError,
    MigrationError,
    PlaceError,
    StaleTurnError,
    StorageError,
    ThreadBusyError,
    ThreadClosedError,
    TurnCheckpointError,
)
from .migration import MigrationReport, Progress
from .migration import migrate as migrate_threads
from .saver import TurnCheckpointSaver

File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, dir_okay=False, help="The file.")]
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        show_default=False,
        dir_okay=False,
        help="What `export` wrote, or JSON with a list of messages.",
    ),
]
RestoreDeleted = Annotated[
    bool, typer.Option("--restore-deleted", help="Let threads come back that were deleted where they go.")
]
RestorePruned = Annotated[
    bool, typer.Option("--restore-pruned", help="Let checkpoints come back that were pruned where they go.")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    missing = "there is no such thread, or it cannot be read or written"
    app.command(epilog=STATUS.format(problem=missing))(export)
    app.command("import", epilog=STATUS.format(problem="the file is damaged or cannot be taken in"))(import_)
    app.command(epilog=STATUS.format(problem="a thread could not be copied"))(migrate)
    app.command(epilog=STATUS.format(problem=missing))(timeline)


# --- errors, for who has options and no arguments ---

SOURCE_ENCRYPTED: Final = (
    "If the source is encrypted, give its serializer: --source-serde aes with the key in LANGGRAPH_AES_KEY, or "
    "--source-serde MODULE:FACTORY"
)

_SPELLED: Final = {
    LEAVE_OUT: "leave it out with --exclude",
    ANOTHER_ID: "take it in under another id with --as",
    RESTORE_DELETED: "pass --restore-deleted",
    OVERWRITE: "pass --overwrite",
    MAKE_TABLES: "pass --create-tables",
    WHERE_CLASSES_ARE: "(--app-dir DIR)",
    OTHER_SERDE: "Give the serializer that it was written with (--source-serde)",
}


@contextmanager
def in_words_of_options(hint: str = "") -> Iterator[None]:
    """Errors of the library as sentences for a command line; `hint` goes with values that must not be loaded."""
    try:
        yield
    except PlaceError as error:
        raise UsageError(_told(error)) from error
    except TurnCheckpointError as error:
        raise ProblemError(_told(error, hint)) from error


def _told(error: Exception, hint: str = "") -> str:
    if isinstance(error, ThreadBusyError):
        return f"thread {error.thread_id!r} is busy with turn {error.token}; repeat the command once that has ended"
    if isinstance(error, ThreadClosedError):
        return f"thread {error.thread_id!r} is closed, and takes nothing in; TurnCheckpointSaver.reopen_thread opens it"
    if isinstance(error, StaleTurnError):
        return f"thread {error.thread_id!r} was taken over by another turn meanwhile; repeat the command"
    text = str(error)
    if type(error) is StorageError and error.filename:
        text = f"{error.filename}: {error.strerror}"
    for theirs, ours in _SPELLED.items():
        text = text.replace(theirs, ours)
    return f"{text.removesuffix('.')}. {hint}" if hint and "refused to load" in text else text


@guarded
def export(
    store: StoreArgument,
    thread: ThreadArgument,
    file: File,
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    _app_directory: AppDirectory = None,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Write a thread to a file: all its checkpoints, their history and what waits on them, as lines of JSON.

    The file is there wholly or not at all. **What was encrypted is in the clear in it**; only its owner may read it.
    Values of the app's own classes need the app's modules: see --app-dir. Checkpoints that are damaged are left out and
    named, and the exit status is 1.

    With --json: `store`, `thread_id`, `file`, `checkpoints`, `goes_back` (whether the newest cannot be read), and
    `unreadable`, each with `checkpoint_ns` (null: it cannot be told), `checkpoint_id`, `reason`, `part` (`checkpoint`,
    or `writes` where only some of those that wait on it are lost).
    """
    saver = look_into(store, serde)
    thread_id = existing_thread(saver, thread)
    with (
        in_words_of_options(ENCRYPTED),
        open_place(saver.path, role="source", serde=load_serde(serde)) as source,
    ):
        report = export_thread(source, thread_id, file, overwrite=overwrite)
    if as_json:
        facts: dict[str, Any] = {"store": saver.path, "thread_id": thread_id, "file": str(file.absolute())}
        facts |= {"checkpoints": report.checkpoints, "goes_back": report.goes_back}
        print_json({**facts, "unreadable": _unreadable(report.unreadable)})
    else:
        typer.echo(f"{shown_id(thread_id)}: {count(report.checkpoints, 'checkpoint')} in {clean(str(file))}")
    if report.unreadable:
        fail(f"thread {shown_id(thread_id)}: {report.damage}", status=PROBLEM)


@guarded
def import_(
    store: StoreArgument,
    files: Files,
    *,
    thread_id: Annotated[
        str | None,
        typer.Option("--as", metavar="THREAD", help="Another id for the thread, than that of the file. For one file."),
    ] = None,
    messages_key: MessagesKey = "messages",
    restore_deleted: RestoreDeleted = False,
    restore_pruned: RestorePruned = False,
    _app_directory: AppDirectory = None,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Take in threads from files; the store may be new. Nothing that is there is overwritten.

    A FILE is what `export` wrote; or a conversation of a home-made agent, `{"messages": [...], "turn": n}`, or the
    list alone, which becomes a thread with the name of the file. The whole file is checked first. Once it is there, a
    second import changes nothing. A file that cannot be taken in does not keep the others from it.

    With --json: `store`, `errors`, and `threads`, each with `file`, `thread_id`, `state` (`copied`, `continued`,
    `unchanged`, `ahead`), `checkpoints`, `copied`, `pruned` and `older` (as in `migrate`).
    """
    if thread_id is not None and len(files) > 1:
        raise UsageError(f"--as is for one file, and {len(files)} were named")
    if str(store).startswith(("sqlite:", "postgres:", "postgresql:")) and not store.is_dir():
        raise UsageError(f"{store} is no directory; take the files into a store, and `migrate` that")
    found: list[tuple[Path, ThreadReport]] = []
    errors: list[str] = []
    rest = "repeat the command to go on from there"
    place = str(store.absolute())
    with (
        in_words_of_options(),
        open_place(place, role="destination", serde=load_serde(serde)) as destination,
        working("put", noun="checkpoint", quiet=as_json, rest=rest) as work,
    ):
        for file in files:
            before, is_last = work.done, file is files[-1]

            def tell(done: int, total: int, before: int = before, *, is_last: bool = is_last) -> None:
                work.reach(before + done, before + total if is_last else None)

            try:
                if is_exported(file):
                    rules = Rules(restore_deleted=restore_deleted, restore_pruned=restore_pruned)
                    report = take_in(file, destination, thread_id=thread_id, rules=rules, tell=tell)
                else:
                    options: dict[str, Any] = {"messages_key": messages_key, "restore_deleted": restore_deleted}
                    report = _homemade(file, destination, thread_id=thread_id, **options)
                    tell(report.checkpoints, report.checkpoints)
            except TurnCheckpointError as error:
                errors.append(_told(error))
            else:
                found.append((file, report))
    if as_json:
        threads = [{"file": str(file.absolute()), **_facts(report)} for file, report in found]
        print_json({"store": place, "errors": errors, "threads": threads})
    else:
        for _, report in found:
            copied = f"{report.copied} of {count(report.checkpoints, 'checkpoint')} put now"
            pruned = f"; {report.pruned} pruned there left out" if report.pruned else ""
            typer.echo(f"{shown_id(report.thread_id)}: {copied}{pruned}")
        _tell_pruned(report for _, report in found)
        _tell_errors(errors)
    if errors:
        raise typer.Exit(PROBLEM)


def _homemade(file: Path, destination: Any, **options: Any) -> ThreadReport:
    """A file that `export` did not write.

    Raises:
        ForeignFileError: It is of neither kind.
    """
    try:
        return import_homemade(file, destination, **options)
    except ForeignFileError as error:
        if error.place.startswith(("messages", "turn")):
            raise  # of this kind, then, and it says where it is broken
        where = f"{error.place}: " if error.place else ""
        reason = f"was not written by `export`, and is no JSON file with a list of messages ({where}{error.reason})"
        raise ForeignFileError(error.path, "", reason) from error


@guarded
def migrate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            show_default=False,
            help="Where the threads are: `sqlite:app.db`, `postgresql://...`, or DIR.",
        ),
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", show_default=False, help="Where they go; it may be new.")
    ],
    *,
    threads: Annotated[
        list[str] | None,
        typer.Option("--thread", metavar="ID", help="Only this thread. Can be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="ID", help="Not this thread. Can be repeated."),
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read each thread again from both places and compare.")] = True,
    restore_deleted: RestoreDeleted = False,
    restore_pruned: RestorePruned = False,
    create_tables: Annotated[
        bool,
        typer.Option("--create-tables", help="Let DESTINATION be an SQLite database that another program uses, too."),
    ] = False,
    source_serde: Annotated[
        str | None, typer.Option("--source-serde", metavar="MODULE:FACTORY", help="The serializer of SOURCE.")
    ] = None,
    destination_serde: Annotated[
        str | None, typer.Option("--destination-serde", metavar="MODULE:FACTORY", help="The serializer of DESTINATION.")
    ] = None,
    _app_directory: AppDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Copy threads from one checkpointer to another: SQLite, PostgreSQL, or a store of this package, either way.

    The source is only read, and nothing in the destination is overwritten, so the command may be repeated: after
    Ctrl-C, or a crash, it goes on where it was. Values of the app's own classes need the app's modules: see --app-dir.
    Checkpoints of a store that are damaged are left out and named, and the exit status is 1.

    With --json: `verified`, `errors`, and `threads`, each with `thread_id`, `state` (`copied`, `continued`,
    `unchanged`, `ahead`), `checkpoints`, `copied`, `unreadable` and `goes_back` (as in `export`), `pruned` (left out,
    because the destination has pruned them), `older` (copied ones that come before what was there). And
    `without_checkpoint`, the threads of a store whose first turn has stored none yet: there is nothing to copy of them.
    """
    serdes = load_serde(source_serde), load_serde(destination_serde)
    rest = "repeat the command to go on from there"
    errors, without = list[str](), list[str]()
    with in_words_of_options(SOURCE_ENCRYPTED):
        try:
            with (
                open_place(_place(source), role="source", serde=serdes[0]) as old,
                open_place(
                    _place(destination), role="destination", serde=serdes[1], create_tables=create_tables
                ) as new,
                working("copied", noun="checkpoint", quiet=as_json, rest=rest) as work,
            ):

                def tell(at: Progress) -> None:
                    work.reach(at.checkpoints_done, at.checkpoints_total)

                if isinstance(old, TurnCheckpointSaver):
                    without = [each for each in unstored_threads(old.store) if not threads]
                options: dict[str, Any] = {"thread_ids": _meant(old, threads) or None, "exclude": _meant(old, exclude)}
                options |= {"restore_deleted": restore_deleted, "restore_pruned": restore_pruned}
                report = migrate_threads(old, new, progress=tell, verify=verify, **options)
        except MigrationError as error:
            if not isinstance(error.report, MigrationReport):
                raise
            report, errors = error.report, [_told(each, SOURCE_ENCRYPTED) for each in error.errors]
    if as_json:
        facts = {"verified": report.verified, "errors": errors, "without_checkpoint": without}
        print_json({**facts, "threads": [_facts(thread) for thread in report.threads]})
    else:
        if report.threads or not errors:
            typer.echo(str(report))
        _tell_pruned(report.threads)
        if without:
            what = f"{count(len(without), 'thread')} without a checkpoint yet, left where it is"
            typer.echo(f"{what}: {', '.join(map(shown_id, without))}", err=True)
        damages = [f"thread {thread.thread_id!r}: {thread.damage}" for thread in report.threads if thread.unreadable]
        _tell_errors([*damages, *errors])
    if errors or report.unreadable:
        raise typer.Exit(PROBLEM)


def _meant(saver: BaseCheckpointSaver[Any], given: list[str] | None) -> list[str]:
    """The ids of threads that were named, some perhaps as the commands show them."""
    several = [given_ids(each) for each in given or ()]
    if all(len(each) == 1 for each in several):
        return [each[0] for each in several]
    known = {str(thread_id) for thread_id in view_of(saver).thread_counts()}
    return [next((each for each in ids if each in known), ids[0]) for ids in several]


def _facts(report: ThreadReport) -> dict[str, Any]:
    return {**report._asdict(), "unreadable": _unreadable(report.unreadable)}


def _unreadable(lost: Iterable[Unreadable]) -> list[dict[str, Any]]:
    return [each._asdict() for each in lost]


def _tell_pruned(reports: Iterable[ThreadReport]) -> None:
    if any(report.pruned for report in reports):
        typer.echo("--restore-pruned brings back what was pruned")


def _tell_errors(errors: Iterable[str]) -> None:
    for each in errors:
        typer.echo(f"turncheckpoint: {clean(each)}", err=True)


def _place(given: str) -> str:
    """A place, where a directory cannot be taken for an address."""
    return given if not Path(given).is_dir() else str(Path(given).absolute())


@guarded
def timeline(
    store: StoreArgument,
    thread: ThreadArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", dir_okay=False, help="A file that ends in .svg, .html or .txt."),
    ] = None,
    turns: Annotated[int, typer.Option("--turns", min=1, metavar="N", help="How many of the newest turns.")] = 20,
    texts: Annotated[
        bool, typer.Option(help="Whether prompts, arguments, results and errors are in the picture.")
    ] = True,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Draw a thread: what its turns did, how each ended, what became of each tool call.

    Without -o the turns are printed as text. A file that is there is replaced; only its owner can read it.

    With --json: `store`, `thread_id`, `closed`, `earlier` (the turns not listed), `damaged`, and `turns`, the oldest
    first, each with `token`, `part`, `state`, `left_as`, `reason`, `opened_at`, `seconds`, `prompt`, `end`, `refused`,
    `continues`, `takes_over`, `branch`, `steps` (`kind`, `nodes`, `finished`, `seconds`, `at`, `checkpoint_id`,
    `inner`, `calls`, each with `name`, `result`, `note`, `detail`, `seconds`). With -o there is `file`, too.
    """
    saver = look_into(store, serde)
    thread_id = existing_thread(saver, thread)
    picture = saver.timeline(thread_id, turns=turns, texts=texts)
    saved: dict[str, str] = {}
    if output is not None:
        try:
            saved["file"] = picture.save(output)
        except ValueError as error:
            raise UsageError(str(error)) from error
    if as_json:
        print_json({"store": saver.path, **saved, **picture.to_dict()})
    else:
        typer.echo(clean(saved.get("file", picture.text)))
