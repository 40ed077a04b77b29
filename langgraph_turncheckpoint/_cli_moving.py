"""The commands that take threads elsewhere: `export`, `import`, `migrate`, `timeline`. How that is done is in
`_portable`, `migrate` and `display`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ._cli_ids import clean, shown_id
from ._cli_options import (
    PROBLEM,
    STATUS,
    AppDirectory,
    AsJson,
    SerdeOption,
    StoreArgument,
    ThreadArgument,
    count,
    guarded,
    print_json,
    working,
)
from ._cli_stores import UsageError, existing_thread, load_serde, look_into
from ._migrate_places import open_place
from ._portable import export_thread, import_thread
from .errors import MigrationError, PlaceError
from .migration import MigrationReport, Progress
from .migration import migrate as migrate_threads

File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, dir_okay=False, help="The file.")]
RestoreDeleted = Annotated[
    bool, typer.Option("--restore-deleted", help="Let threads come back that were deleted where they go.")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    missing = "there is no such thread, or it cannot be read or written"
    app.command(epilog=STATUS.format(problem=missing))(export)
    app.command("import", epilog=STATUS.format(problem="the file is damaged or cannot be taken in"))(import_)
    app.command(epilog=STATUS.format(problem="a thread could not be copied"))(migrate)
    app.command(epilog=STATUS.format(problem=missing))(timeline)


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
    Values of the app's own classes need the app's modules: see --app-dir.

    With --json: `store`, `thread_id`, `file`, `checkpoints`.
    """
    saver = look_into(store, serde)
    thread_id = existing_thread(saver, thread)
    with open_place(saver.path, role="source", serde=load_serde(serde)) as source:
        number = export_thread(source, thread_id, file, overwrite=overwrite)
    if as_json:
        print_json({"store": saver.path, "thread_id": thread_id, "file": str(file.absolute()), "checkpoints": number})
    else:
        typer.echo(f"{shown_id(thread_id)}: {count(number, 'checkpoint')} in {clean(str(file))}")


@guarded
def import_(
    store: StoreArgument,
    file: File,
    *,
    thread_id: Annotated[
        str | None, typer.Option("--as", metavar="THREAD", help="Another id for the thread, than the one in the file.")
    ] = None,
    restore_deleted: RestoreDeleted = False,
    _app_directory: AppDirectory = None,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Take in a thread that `export` wrote; the store may be new. Nothing that is there is overwritten.

    The whole file is checked first. Once it is there, a second import changes nothing.

    With --json: `store`, `thread_id`, `state` (`copied`, `continued`, `unchanged`, `ahead`), `checkpoints`, `copied`.
    """
    with open_place(str(store.absolute()), role="destination", serde=load_serde(serde)) as destination:
        report = import_thread(file, destination, thread_id=thread_id, restore_deleted=restore_deleted)
    found: dict[str, Any] = report._asdict()
    if as_json:
        print_json({"store": str(store.absolute()), **found})
    else:
        typer.echo(
            f"{shown_id(report.thread_id)}: {report.copied} of {count(report.checkpoints, 'checkpoint')} put now"
        )


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
    verify: Annotated[bool, typer.Option(help="Read each thread again from both places and compare.")] = True,
    restore_deleted: RestoreDeleted = False,
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

    With --json: `verified`, `errors`, and `threads`, each with `thread_id`, `state` (`copied`, `continued`,
    `unchanged`, `ahead`), `checkpoints`, `copied`.
    """
    serdes = load_serde(source_serde), load_serde(destination_serde)
    rest = "repeat the command to go on from there"
    errors: tuple[Exception, ...] = ()
    try:
        with (
            open_place(_place(source), role="source", serde=serdes[0]) as old,
            open_place(_place(destination), role="destination", serde=serdes[1]) as new,
            working("copied", noun="checkpoint", quiet=as_json, rest=rest) as work,
        ):

            def tell(at: Progress) -> None:
                work.reach(at.checkpoints_done, at.checkpoints_total)

            options: dict[str, Any] = {"verify": verify, "restore_deleted": restore_deleted}
            report = migrate_threads(old, new, thread_ids=threads or None, progress=tell, **options)
    except PlaceError:
        raise
    except MigrationError as error:
        if not isinstance(error.report, MigrationReport):
            raise
        report, errors = error.report, error.errors
    if as_json:
        facts = {"verified": report.verified, "errors": [str(each) for each in errors]}
        print_json({**facts, "threads": [thread._asdict() for thread in report.threads]})
    else:
        typer.echo(str(report))
        for each in errors:
            typer.echo(f"turncheckpoint: {clean(str(each))}", err=True)
    if errors:
        raise typer.Exit(PROBLEM)


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
) -> None:
    """Draw a thread: what its turns did, how each ended, what became of each tool call.

    Without -o the turns are printed as text. A file that is there is replaced; only its owner can read it.
    """
    saver = look_into(store, serde)
    thread_id = existing_thread(saver, thread)
    picture = saver.timeline(thread_id, turns=turns, texts=texts)
    if output is None:
        typer.echo(clean(picture.text))
        return
    try:
        typer.echo(clean(picture.save(output)))
    except ValueError as error:
        raise UsageError(str(error)) from error
