"""The damaged files of one thread: what becomes of each is a table, and it is carried out under the thread's lock.
No byte is thrown away: what is replaced or moved lies in a directory `damaged` beside it. Histories are `_repair`'s.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple

from . import _files
from ._checkpoint_files import DAMAGED_NAME, NamespaceFiles, load_file
from ._collect import remove_checkpoints
from ._inbox_files import INBOX_NAME
from ._journal import is_live, journal_token
from ._layout import (
    CHECKPOINT_SUFFIX,
    EARLY_SUFFIX,
    PAGES_SUFFIX,
    TEMPORARY_SUFFIX,
    checkpoint_id_of,
    generation_of,
    is_component,
)
from ._ledger import LEDGER_NAME, HeldLedger
from ._losses import Loss, loss_of
from ._records import encode_file, encode_record, parse_slots
from ._store import Store
from ._thread_files import ThreadFiles
from ._turn import LedgerEvent, LedgerState, advance
from ._turn_log import LOG_NAME, TurnLog
from ._verify import Finding, verify_held_thread, verify_thread
from .errors import DamagedCheckpointError, RefusedValueError, StorageError, UnknownFormatError


class Repair(NamedTuple):
    """One thing that a repair did, would do, or could not do.

    Attributes:
        kind: `lost` (what the damage costs the thread), `aside` (a damaged file, or one that cannot be read without
            it, was moved to a directory `damaged` beside it), `rewritten` (what was sound in a file was kept, and a
            copy of the whole put aside), `finalized` (a history's open calls were answered), `left` (nothing was done,
            and somebody should see to it: the reason says why) or `pending` (calls are open, and nothing is wrong: a
            person is asked, or a turn is at work).
        thread_id: The thread.
        path: The file; empty for a thread as a whole.
        reason: One sentence; of a dry run it says what would be done.
        not_run: Of what was finalized, the nodes that came next and will not run.
    """

    kind: Literal["lost", "aside", "rewritten", "finalized", "left", "pending"]
    thread_id: str
    path: str
    reason: str
    not_run: tuple[str, ...] = ()


class Remedy(Enum):
    """What is done about a damaged file."""

    ASIDE = "move it aside"
    TRIM = "keep what is sound in it"
    LEDGER = "write the ledger anew"
    LOG = "write the log anew"
    UNLOAD = "move aside what cannot be read without it"
    EVIDENCE = "keep it for as long as it may be needed"
    LEAVE = "nothing"


class Step(NamedTuple):
    """A finding and what is done about it."""

    finding: Finding
    remedy: Remedy
    reason: str


_CHECKPOINT_SUFFIXES: Final = (CHECKPOINT_SUFFIX, PAGES_SUFFIX, EARLY_SUFFIX)


def remedy_for(kind: str, name: str, parent: str, *, is_partial: bool) -> Remedy | None:
    """What is done about one finding; `None` if it is none of a repair's business.

    Args:
        kind: That of the finding.
        name: The file's name.
        parent: That of its directory.
        is_partial: Whether the file is sound up to some of its records.
    """
    if kind == "newer":
        return Remedy.LEAVE
    if name == LEDGER_NAME:
        return Remedy.LEDGER if kind in {"damaged", "missing"} else None
    if kind != "damaged":
        return None  # what is missing shows in those that cannot be read without it; litter is swept
    if name == LOG_NAME:
        return Remedy.LOG
    if journal_token(name) is not None:
        return Remedy.EVIDENCE
    if parent == INBOX_NAME:
        return Remedy.ASIDE
    if any(checkpoint_id_of(name, suffix) is not None for suffix in _CHECKPOINT_SUFFIXES):
        return Remedy.TRIM if is_partial else Remedy.ASIDE
    return Remedy.LEAVE


def repair_files(store: Store, thread: ThreadFiles, *, messages_key: str, dry_run: bool) -> list[Repair]:
    """Move the damaged files of a thread aside, and what cannot be read without them.

    What was done is told in the report, and nowhere else: the caller silences the warnings about it.

    A crash at any point leaves each file where it was or aside, or in both places; another call finishes the work.

    Args:
        store: The store.
        thread: The thread.
        messages_key: The channel whose messages are counted.
        dry_run: Whether only to tell what would be done.

    Raises:
        StorageError: The system refused. What was moved until then is aside.
    """
    if not _relevant(verify_thread(thread.path, fsync=store.fsync)):
        return []
    if dry_run:
        state = state_of(thread)
        steps = _steps(store, thread, state)
        lost = _lost(store, thread, state, steps, messages_key=messages_key)
        return [*_losses(thread, lost, dry_run=True), *(_told(thread, step, dry_run=True) for step in steps)]
    was_sound = not any(os.path.basename(f.path) == LEDGER_NAME for f in verify_thread(thread.path, fsync=False))
    with thread.ledger.hold() as held:
        steps = _steps(store, thread, held.state)
        lost = _lost(store, thread, held.state, steps, messages_key=messages_key)
        done = [*_losses(thread, lost, dry_run=False), *(_told(thread, step, dry_run=False) for step in steps)]
        if not was_sound:
            held.write_twice(held.state, fsync=store.fsync)
            if not any(step.remedy is Remedy.LEDGER for step in steps):
                path = os.path.join(thread.path, LEDGER_NAME)
                reason = "was written anew: the ledger was damaged or gone"
                done.append(Repair("rewritten", thread.thread_id, path, reason))
        _carry_out(store, thread, held, steps)
    return done


def set_aside(path: str, *, keep: bool, fsync: bool) -> str:
    """Copy a file into the directory `damaged` beside it and, unless `keep`, remove it; returns where it lies now.

    For what is directly in a life of a thread, or in its inbox, whose directory nobody else looks into.
    """
    directory = os.path.dirname(path)
    if os.path.basename(directory) == INBOX_NAME:
        directory = os.path.dirname(directory)
    directory = os.path.join(directory, DAMAGED_NAME)
    _files.make_directory(directory, fsync=fsync)
    aside = os.path.join(directory, f"{os.path.basename(path)}.{secrets.token_hex(4)}")
    data = _files.read_file(path)
    if data is not None:
        _files.replace_file(aside, data, temporary=aside + TEMPORARY_SUFFIX, fsync=fsync)
    if not keep:
        _files.remove_file(path)
        if fsync:
            _files.sync_directory(os.path.dirname(path))
    return aside


# --- the plan ---


def state_of(thread: ThreadFiles) -> LedgerState:
    """What the ledger says, as far as it can be told without writing to it."""
    slot, _ = parse_slots(_files.read_file(thread.ledger.path) or b"")
    if slot is not None:
        return slot.state
    found = [generation_of(name) for name in _files.list_directory(thread.path)]
    return LedgerState(generation=max((number for number in found if number is not None), default=1))


def _relevant(findings: Sequence[Finding]) -> bool:
    return any(found.kind in {"damaged", "missing", "newer"} for found in findings)


def _steps(store: Store, thread: ThreadFiles, state: LedgerState) -> list[Step]:
    findings = [f for f in verify_held_thread(thread.path, fsync=store.fsync) if _relevant([f])]
    steps: list[Step] = []
    for found in findings:
        name, parent = os.path.basename(found.path), os.path.basename(os.path.dirname(found.path))
        remedy = remedy_for(found.kind, name, parent, is_partial=_is_partial(found.path))
        if remedy is not None and not any(step.finding.path == found.path for step in steps):
            steps.append(Step(found, remedy, found.reason))
    known = {step.finding.path for step in steps}
    affected = {found.path.split(thread.generation(state) + os.sep)[-1].split(os.sep)[0] for found in findings}
    for files in thread.unnamed_namespaces(state):
        if os.path.basename(files.path) in affected:
            for path, error in _unreadable(store, files):
                if path not in known:
                    reason = f"cannot be read without {os.path.basename(error.path)}: {error.reason}"
                    steps.append(Step(Finding(path, "missing", reason), Remedy.UNLOAD, reason))
            steps = _spared(files, steps)
    return steps


def _spared(files: NamespaceFiles, steps: list[Step]) -> list[Step]:
    """The steps, but for those that would leave nothing to read: then the damage is to stay loud.

    A thread without any checkpoint would begin anew with the next message, and nobody would be told.
    """
    there = {files.file(checkpoint_id) for checkpoint_id in files.ids()}
    doomed = {step.finding.path for step in steps if step.remedy in {Remedy.ASIDE, Remedy.UNLOAD}}
    if not there or there - doomed:
        return steps
    more = "; no other checkpoint can be read, so it stays: put a backup in its place, or delete the thread"
    return [
        Step(step.finding, Remedy.LEAVE, step.reason + more)
        if step.finding.path.startswith(files.path + os.sep)
        else step
        for step in steps
    ]


def _is_partial(path: str) -> bool:
    try:
        image = load_file(path)
    except (StorageError, DamagedCheckpointError):
        return False
    if image is None or not image.damage:
        return False
    name = os.path.basename(path)
    ids = [checkpoint_id_of(name, suffix) for suffix in _CHECKPOINT_SUFFIXES]
    return any(found is not None for found in ids)


def _unreadable(store: Store, files: NamespaceFiles) -> Iterator[tuple[str, DamagedCheckpointError]]:
    """The checkpoints that cannot be loaded, though nothing may be wrong with their own files."""
    for checkpoint_id in files.ids():
        try:
            file = store.file(files, checkpoint_id)
            if file is not None:
                file.values(file.head())
                file.writes()
        except DamagedCheckpointError as error:
            yield files.file(checkpoint_id), error
        except (UnknownFormatError, RefusedValueError):
            continue


_KINDS: Final[dict[Remedy, Literal["aside", "rewritten", "left"]]] = {
    Remedy.ASIDE: "aside",
    Remedy.UNLOAD: "aside",
    Remedy.TRIM: "rewritten",
    Remedy.LEDGER: "rewritten",
    Remedy.LOG: "rewritten",
    Remedy.EVIDENCE: "left",
    Remedy.LEAVE: "left",
}


_DOING: Final[dict[Literal["aside", "rewritten", "left"], tuple[str, str]]] = {
    "aside": ("would be moved aside: ", "was moved aside: "),
    "rewritten": ("what is sound in it would be kept: ", "what was sound in it was kept: "),
    "left": ("", ""),
}


def _told(thread: ThreadFiles, step: Step, *, dry_run: bool) -> Repair:
    kind = _KINDS[step.remedy]
    would, was = _DOING[kind]
    reason = (would if dry_run else was) + step.reason
    if step.remedy is Remedy.EVIDENCE:
        reason += "; the rest of it is evidence for the next run"
    elif step.finding.kind == "newer":
        reason += "; upgrade langgraph-turncheckpoint"
    return Repair(kind, thread.thread_id, step.finding.path, reason)


def _lost(
    store: Store, thread: ThreadFiles, state: LedgerState, steps: Sequence[Step], *, messages_key: str
) -> Loss | None:
    """What the thread loses by the steps, or `None`."""
    gone: dict[str, list[str]] = {}
    for step in steps:
        name = os.path.basename(step.finding.path)
        checkpoint_id = checkpoint_id_of(name) if step.remedy in {Remedy.ASIDE, Remedy.UNLOAD} else None
        if checkpoint_id is not None and is_component("n", os.path.basename(_namespace_of(step))):
            gone.setdefault(_namespace_of(step), []).append(checkpoint_id)
    return loss_of(store, thread.namespace(state, ""), gone, messages_key=messages_key) if gone else None


def _losses(thread: ThreadFiles, lost: Loss | None, *, dry_run: bool) -> list[Repair]:
    return [] if lost is None else [Repair("lost", thread.thread_id, "", lost.told(dry_run=dry_run))]


# --- carrying it out, with the thread's lock held ---


def _carry_out(store: Store, thread: ThreadFiles, held: HeldLedger, steps: Sequence[Step]) -> None:
    moving = [step for step in steps if step.remedy in {Remedy.ASIDE, Remedy.TRIM, Remedy.UNLOAD, Remedy.LOG}]
    if not moving:
        return
    store.sweep(thread, held)
    # From here on no save shares pages that it has seen before, and readers look again.
    held.write(advance(held.state, LedgerEvent.COLLECT, thread_id=thread.thread_id))
    if store.fsync:
        held.sync()
    with held.committing():
        for step in moving:
            _apply(store, step)
        for files in thread.unnamed_namespaces(held.state):
            doomed = [_id_of(s) for s in moving if s.remedy is Remedy.UNLOAD and _namespace_of(s) == files.path]
            if doomed:
                remove_checkpoints(files, doomed)


def _apply(store: Store, step: Step) -> None:
    path = step.finding.path
    if not is_component("n", os.path.basename(_namespace_of(step))):
        if step.remedy is Remedy.LOG:
            log = TurnLog(os.path.dirname(path), fsync=store.fsync)
            kept = log.kept()
            set_aside(path, keep=False, fsync=store.fsync)
            log.restore(kept)
        elif not is_live(path):
            set_aside(path, keep=False, fsync=store.fsync)
        return
    files = NamespaceFiles(_namespace_of(step), fsync=store.fsync)
    image = load_file(path) if step.remedy is Remedy.TRIM else None
    files.set_aside(path, keep=step.remedy is not Remedy.ASIDE)
    if image is not None:
        records = b"".join(encode_record(kind, section) for kind, section in image.records)
        temporary = f"{path}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        data = encode_file(image.kind, image.body, records)
        _files.replace_file(path, data, temporary=temporary, fsync=store.fsync)


def _namespace_of(step: Step) -> str:
    return os.path.dirname(os.path.dirname(step.finding.path))


def _id_of(step: Step) -> str:
    found = checkpoint_id_of(os.path.basename(step.finding.path))
    assert found is not None
    return found
