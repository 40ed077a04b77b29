"""The commands that read: `threads`, `show`, `turns`, `history`, `diff`. None of them changes a file.

What they say is put together in `_cli_facts`, and drawn in `_cli_screen`.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from ._cli_conversation import Conversation, MessageLine, conversation, why_nothing
from ._cli_facts import (
    CheckpointLine,
    ThreadLine,
    checkpoint_lines,
    differences,
    namespace_files,
    newest_at,
    thread_line,
    unstored_threads,
)
from ._cli_ids import resolve, shown_id
from ._cli_options import (
    STATUS,
    AsJson,
    MessagesKey,
    SerdeOption,
    StoreArgument,
    ThreadArgument,
    count,
    guarded,
    print_json,
    working,
)
from ._cli_screen import show_conversation, show_data, show_differences, show_history, show_threads, show_turns
from ._cli_stores import ProblemError, existing_thread, look_into
from ._cli_values import LookingSaver, as_data
from ._repair import RepairRules
from ._turn_log import TurnRecord
from .errors import StorageError

Namespace = Annotated[
    str | None,
    typer.Option("--ns", metavar="NAMESPACE", help="A namespace of checkpoints; empty for the root graph."),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most N, the newest.")]

_NO_THREAD = "there is no such thread, or what was asked for cannot be read"


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=STATUS.format(problem="the threads cannot be read"))(threads)
    for function in (show, turns, history, diff):
        app.command(epilog=STATUS.format(problem=_NO_THREAD))(function)


@guarded
def threads(
    store: StoreArgument,
    *,
    interrupted: Annotated[
        bool,
        typer.Option(
            "--interrupted",
            help="Show those first that were cut off in their work (`interrupted`, `unfinished`), and then `damaged` "
            "ones.",
        ),
    ] = False,
    limit: Limit = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids alone, one per line.")] = False,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """List the threads in a store, the newest first.

    STATE says how the newest turn ended: `running`, `completed`, `paused` (a person is asked), `failed`, `cancelled`,
    `superseded`, `interrupted` (its process died). The end of a plain run, without a guard or a `turn` block, is
    announced by nobody, and a thread that was migrated or imported has none: there it is what the newest checkpoint
    tells, `completed`, `paused`, `failed`, or `unfinished` if it leaves nodes to run. A plain run that is at work reads
    `unfinished`, too. A thread whose newest checkpoint is damaged, or needs what is damaged, reads `damaged`; `?` is
    one that cannot be read without its key, or is of a newer format.

    A thread that has turns and no checkpoint yet, such as one that was killed in its first turn under
    `durability="exit"`, stands as its newest turn, `?` if that is a plain run, and NEXT says so.

    An id that does not print, or begins with a dash or a quotation mark, is shown as a JSON string, and every command
    takes it in this form.

    With --json: `store`, `total`, `size_bytes`, and `threads`, each with `thread_id`, `state`, `cause`, `interrupted`,
    `waiting`, `next`, `closed`, `turns`, `checkpoints`, `updated_at`, `size_bytes`, `damage`. `state` is the word
    above, `unknown` for `?`; `waiting` and `next` are `null` where the newest checkpoint cannot be read, or there is
    none yet.
    """
    saver = look_into(store, serde)
    unstored = unstored_threads(saver.store)
    found = [*saver.thread_ids(), *unstored]
    newest = sorted(found, key=lambda thread_id: newest_at(saver.store, thread_id), reverse=True)
    # Without its checkpoint nobody knows of a plain run whether it was cut off: all are looked at then.
    wanted = newest if interrupted or limit is None else newest[:limit]
    lines: list[ThreadLine] = []
    if not ids or interrupted:
        with working("read", total=len(wanted), quiet=as_json) as work:
            for thread_id in wanted:
                lines.append(thread_line(saver.store, thread_id))
                work.step()
    if interrupted:
        lines.sort(key=lambda line: 0 if line.interrupted else 1 if line.state == "damaged" else 2)
        lines = lines[:limit]
        wanted = [line.thread_id for line in lines]
    if ids and not as_json:
        for thread_id in wanted:
            typer.echo(shown_id(thread_id))
        return
    stats = saver.stats()
    if as_json:
        shown: list[Any] = wanted if ids else [_thread_data(line) for line in lines]
        print_json({"store": saver.path, "total": len(found), "size_bytes": stats.size_bytes, "threads": shown})
        return
    if lines:
        show_threads(lines)
    told = (count(stats.threads, "thread"), count(stats.checkpoints, "checkpoint"), count(stats.files, "file"))
    more = f"; {count(len(unstored), 'thread')} without a checkpoint" if unstored else ""
    typer.echo(f"{', '.join(told)}, {stats.size_bytes:,} bytes{more}", err=True)


@guarded
def show(
    store: StoreArgument,
    thread: ThreadArgument,
    *,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show the newest checkpoint's channels as they are stored.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="CHECKPOINT", help="As it was at this checkpoint: an id, or its beginning; `latest~1`."
        ),
    ] = None,
    limit: Limit = None,
    messages_key: MessagesKey = "messages",
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a thread as the model would see it, turn by turn.

    Each tool call is shown with what became of it. Calls that a crash cut off are shown with the answer that a guard,
    or `repair`, would give them, marked as not stored; with --raw, and for a thread that is running or waits for a
    person, everything is as it is stored. There a call that has a result, which the history gets once the run goes on,
    reads `returned`. Values of the app's own classes are shown as data.

    The first line says how the thread stands, in the words of `threads`.

    With --json: `store`, `thread_id`, `state`, `checkpoint_id`, `created_at`, `next`, `waiting`, `inbox`, `note`,
    `turns` (as `turns` has them, the newest 200, the oldest first), `values` (the other channels), and `messages`
    (`null` if there is no list of messages), each with `index`, `turn`, `stored`, `type`, `id`, `text`, `calls` (`id`,
    `name`, `args`, `outcome`), `answers`, `outcome`, `cause`. With --raw: `store`, `thread_id`, `checkpoint_id`,
    `created_at`, and `values`, all channels as they are.
    """
    saver = look_into(store, serde)
    thread_id = existing_thread(saver, thread)
    checkpoint_id = None if at is None else _checkpoint(saver, thread_id, "", at)
    rules = RepairRules(messages_key)
    found = conversation(saver, thread_id, checkpoint_id=checkpoint_id, rules=rules, as_stored=raw)
    if found is None:
        raise ProblemError(f"thread {shown_id(thread_id)} {why_nothing(saver, thread_id)}")
    if raw:
        _show_raw(saver, found, as_json=as_json)
    elif as_json:
        print_json(_conversation_data(saver, found, limit))
    else:
        show_conversation(found, limit=limit)


@guarded
def turns(
    store: StoreArgument,
    thread: ThreadArgument,
    *,
    limit: Limit = None,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """List the turns of a thread, the newest first: when each began and how it ended.

    STATE is `running`, `completed`, `paused` (a person is asked), `failed`, `cancelled`, `superseded`, `interrupted`
    (its process died) or `imported`. The end of a plain run, without a guard or a `turn` block, is announced by nobody:
    there it is what the last checkpoint tells that it wrote and that is still there, `completed`, `paused`, `failed`,
    or `unfinished` if that leaves nodes to run; `unknown` if there is none, or it cannot be read. It reads `superseded`
    if it tried to write after a newer turn had begun, and was refused.

    Numbers may jump, and none is missing: the end of a turn, a cancel, a close and a delete take a number as well, so
    that a run that comes too late can be told from the newest.

    With --json: `store`, `thread_id`, and `turns`, each with `token`, `state`, `cause`, `opened_at`, `settled_at`,
    `first_checkpoint_id`, `last_checkpoint_id`, `continues`, `announced` (`false` where `state` is inferred),
    `refused_at` (when it first tried to write though it was over).
    """
    saver = look_into(store, serde)
    thread_id = existing_thread(saver, thread)
    records = saver.turns(thread_id, limit=limit)
    if as_json:
        print_json({"store": saver.path, "thread_id": thread_id, "turns": [_turn_data(record) for record in records]})
    else:
        show_turns(records)


@guarded
def history(
    store: StoreArgument,
    thread: ThreadArgument,
    *,
    limit: Limit = None,
    namespace: Namespace = None,
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a thread, the newest first.

    RAN names the nodes that ran for it, CHANGED the channels that they wrote, NEXT the nodes that come next, WRITES how
    many writes wait on it. Damaged ones are listed with what is wrong.

    With --json: `store`, `thread_id`, and `checkpoints`, each with `checkpoint_id`, `namespace`, `parent_id`,
    `created_at`, `turn`, `step`, `source`, `ran`, `changed`, `next`, `writes`, `size_bytes`, `damage`.
    """
    saver = look_into(store, serde)
    thread_id = existing_thread(saver, thread)
    lines: list[CheckpointLine] = []
    with working("read", noun="checkpoint", quiet=as_json) as work:
        for line in itertools.islice(checkpoint_lines(saver.store, thread_id, namespace), limit):
            lines.append(line)
            work.step()
    if as_json:
        shown = [{**asdict(line), "created_at": _iso(line.created_at)} for line in lines]
        print_json({"store": saver.path, "thread_id": thread_id, "checkpoints": shown})
    elif not lines and namespace is None:
        typer.echo(f"thread {shown_id(thread_id)} {why_nothing(saver, thread_id)}", err=True)
    else:
        show_history(lines)


@guarded
def diff(
    store: StoreArgument,
    thread: ThreadArgument,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", show_default=False, help="A checkpoint: its id, the beginning of it, `latest`, `latest~1`."
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", show_default=False, help="The checkpoint to compare it with.")],
    *,
    namespace: Namespace = "",
    serde: SerdeOption = None,
    as_json: AsJson = False,
) -> None:
    """Show which channels differ between two checkpoints of a thread, and lists of messages message by message.

    With --json: `store`, `thread_id`, `a`, `b`, and `channels`, each with `channel`, `kind` (`added`, `removed`,
    `changed`), `before`, `after`; for lists of messages `messages` in their place, each with `kind`, `position`,
    `before`, `after`.
    """
    saver = look_into(store, serde)
    thread_id, ns = existing_thread(saver, thread), namespace or ""
    names = [_checkpoint(saver, thread_id, ns, each) for each in (a, b)]
    loaded = [saver.store.by_id(thread_id, ns, name) for name in names]
    before, after = [{} if each is None else each.checkpoint["channel_values"] for each in loaded]
    found = differences(before, after)
    if not as_json:
        show_differences(found)
        return
    channels: list[dict[str, Any]] = []
    for each in found:
        data: dict[str, Any] = {"channel": each.channel, "kind": each.kind}
        if each.messages is None:
            data |= {"before": as_data(each.before), "after": as_data(each.after)}
        else:
            data["messages"] = [{key: as_data(value) for key, value in m._asdict().items()} for m in each.messages]
        channels.append(data)
    print_json({"store": saver.path, "thread_id": thread_id, "a": names[0], "b": names[1], "channels": channels})


def _checkpoint(saver: LookingSaver, thread_id: str, namespace: str, given: str) -> str:
    (_, files), *_ = namespace_files(saver.store, thread_id, namespace)

    def parent(checkpoint_id: str) -> str | None:
        try:
            file = saver.store.file(files, checkpoint_id)
        except StorageError:
            return None
        return None if file is None else file.parent_id

    found = resolve(given, list(files.ids()), parent=parent)
    if found is None:
        raise ProblemError(
            f"thread {shown_id(thread_id)} has no checkpoint {given!r}, or several whose ids begin or end like that"
        )
    return found


# --- data ---


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _thread_data(line: ThreadLine) -> dict[str, Any]:
    return {**asdict(line), "updated_at": _iso(line.updated_at)}


def _turn_data(record: TurnRecord) -> dict[str, Any]:
    times = ("opened_at", "settled_at", "refused_at")
    return {**asdict(record), **{name: _iso(getattr(record, name)) for name in times}}


def _conversation_data(saver: LookingSaver, found: Conversation, limit: int | None) -> dict[str, Any]:
    messages = found.messages
    shown = None if messages is None else [_message_data(place, line) for place, line in enumerate(messages)]
    return {
        "store": saver.path,
        "thread_id": found.thread_id,
        "state": found.state,
        "checkpoint_id": found.checkpoint_id,
        "created_at": _iso(found.created_at),
        "next": found.left.nodes,
        "waiting": found.left.waiting,
        "inbox": found.inbox,
        "note": found.note,
        "turns": [_turn_data(record) for record in found.turns],
        "messages": shown if shown is None or limit is None else shown[-limit:],
        "values": as_data(found.values),
    }


def _message_data(place: int, line: MessageLine) -> dict[str, Any]:
    message = line.message
    return {
        "index": place,
        "turn": line.turn,
        "stored": line.stored,
        "type": getattr(message, "type", None),
        "id": getattr(message, "id", None),
        "text": getattr(message, "text", None) and str(message.text),
        "calls": [{**asdict(call), "args": as_data(call.args)} for call in line.calls],
        "answers": getattr(message, "tool_call_id", None),
        "outcome": line.outcome,
        "cause": line.cause,
    }


def _show_raw(saver: LookingSaver, found: Conversation, *, as_json: bool) -> None:
    loaded = saver.store.by_id(found.thread_id, "", found.checkpoint_id)
    values = {} if loaded is None else as_data(loaded.checkpoint["channel_values"])
    if as_json:
        facts = {"store": saver.path, "thread_id": found.thread_id, "checkpoint_id": found.checkpoint_id}
        print_json({**facts, "created_at": _iso(found.created_at), "values": values})
    else:
        show_data(values)
