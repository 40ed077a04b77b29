"""Walking a store to find every damaged or orphaned file. It reads and reports; it repairs nothing.

The walk holds no lock, so in a store that is in use it meets files in the middle of a write, and removals half-way. A
thread where anything was found is therefore walked once more while its writers are held off, and only that is told.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from . import _files
from ._checkpoint_files import DAMAGED_NAME, NamespaceFiles, load_file
from ._collect import PRUNED_NAME
from ._inbox_files import INBOX_NAME, item_number, load_item
from ._journal import journal_token, read_journal
from ._layout import (
    CHECKPOINT_SUFFIX,
    EARLY_SUFFIX,
    PAGES_SUFFIX,
    TEMPORARY_SUFFIX,
    bucket_bound,
    checkpoint_id_of,
    generation_of,
    is_component,
    literal_id,
    thread_component,
)
from ._ledger import LEDGER_NAME
from ._records import (
    INDEX_TAG,
    BlobRef,
    FileKind,
    Image,
    MalformedError,
    parse_index,
    parse_ledger_id,
    parse_slots,
    unpack_id,
)
from ._thread_files import THREADS_NAME
from ._turn_log import LOG_NAME, LOG_TEMPORARY, TurnLog
from ._turns import is_misplaced
from ._waiting import ticket_number
from .errors import DamagedCheckpointError, StorageError, UnknownFormatError


class Finding(NamedTuple):
    """Something in a store that is not as it should be.

    Attributes:
        path: The file or directory.
        kind: `damaged`, `missing` (others refer to what is not there), `newer` (a format this version
            does not know), `temporary` (a writer died, or is writing now), `orphan` (nothing refers to
            it any more), `aside` (a damaged file, or one that needs it, that was moved out of the way) or `foreign`.
        reason: One sentence.
    """

    path: str
    kind: Literal["damaged", "missing", "newer", "temporary", "orphan", "aside", "foreign"]
    reason: str


def verify_store(root: str, *, fsync: bool, on_thread: Callable[[], None] | None = None) -> Iterator[Finding]:
    """Every finding below `root`, thread by thread; `on_thread` is called behind each."""
    for name in _files.list_directory(root):
        if name != THREADS_NAME:
            yield Finding(os.path.join(root, name), "foreign", "is not part of the store")
    threads = os.path.join(root, THREADS_NAME)
    for name in sorted(_files.list_directory(threads)):
        path = os.path.join(threads, name)
        if is_component("t", name) and os.path.isdir(path):
            yield from verify_thread(path, fsync=fsync)
            if on_thread is not None:
                on_thread()
        else:
            yield Finding(path, "foreign", "is no thread")


def verify_thread(path: str, *, fsync: bool) -> list[Finding]:
    """The findings of a thread that are no writer's work in progress."""
    found = list(verify_held_thread(path, fsync=fsync))
    if not found:
        return found
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(StorageError):  # nobody writes where there is no ledger, or where we may not
            stack.enter_context(_files.LockedFile(os.path.join(path, LEDGER_NAME), create=False))
        return list(verify_held_thread(path, fsync=fsync))


def verify_held_thread(path: str, *, fsync: bool) -> Iterator[Finding]:
    """What is to be said of a thread whose lock is held, or that nobody writes to."""
    ledger_path = os.path.join(path, LEDGER_NAME)
    data = _files.read_file(ledger_path)
    if not data and not any(generation_of(name) is not None for name in _files.list_directory(path)):
        pass  # who began the thread has written nothing to it yet, or died before
    elif data is None:
        yield Finding(ledger_path, "missing", "the thread has no ledger")
    elif reason := _ledger_damage(data, os.path.basename(path)):
        yield Finding(ledger_path, "damaged", reason)
    slot = parse_slots(data or b"")[0]
    generations = [g for name in _files.list_directory(path) if (g := generation_of(name)) is not None]
    present = max(generations, default=1) if slot is None else slot.state.generation
    for name in sorted(_files.list_directory(path)):
        entry = os.path.join(path, name)
        generation = generation_of(name)
        if generation is None:
            if name != LEDGER_NAME:
                yield Finding(entry, "foreign", "is not part of a thread")
        elif generation != present:
            yield Finding(entry, "orphan", "belongs to a deleted life of the thread")
        else:
            for namespace in sorted(_files.list_directory(entry)):
                directory = os.path.join(entry, namespace)
                if is_component("n", namespace):
                    yield from _verify_namespace(NamespaceFiles(directory, fsync=fsync))
                elif namespace == INBOX_NAME:
                    yield from _verify_inbox(directory)
                elif namespace == DAMAGED_NAME:
                    yield from _set_aside(directory)
                else:
                    thread_id = literal_id("t", os.path.basename(path)) or parse_ledger_id(data or b"")
                    yield from _verify_turns(directory, namespace, thread_id)


def _ledger_damage(data: bytes, name: str) -> str | None:
    """What is wrong with the ledger in a thread's directory of this name."""
    slot, is_doubtful = parse_slots(data)
    if slot is None or is_doubtful:
        return "a slot of the ledger does not check"
    thread_id = parse_ledger_id(data)
    if thread_id is None:
        return "the thread's id cannot be read any more" if literal_id("t", name) is None else None
    return None if thread_component(thread_id) == name else "is the ledger of another thread"


def _verify_namespace(files: NamespaceFiles) -> Iterator[Finding]:
    needed: dict[str, set[int]] = {}
    found: list[Finding] = []
    for name in sorted(_files.list_directory(files.path)):
        directory = os.path.join(files.path, name)
        if name == DAMAGED_NAME:
            found += _set_aside(directory)
        elif bucket_bound(name) is None:
            found.append(Finding(directory, "foreign", "is no bucket"))
        else:
            for entry in sorted(_files.list_directory(directory)):
                found += _verify_file(os.path.join(directory, entry), entry, needed)
    # A damaged file that others need is one finding, and says both.
    missing = {each.path: each for each in _unresolved(files, needed)}
    for each in found:
        is_needed = each.kind == "damaged" and missing.pop(each.path, None) is not None
        yield each._replace(reason=f"{each.reason}; other checkpoints need it") if is_needed else each
    yield from missing.values()


def _set_aside(directory: str) -> Iterator[Finding]:
    """The files that a repair has moved out of the way. Not all of them are damaged: some need one that is."""
    names = sorted(_files.list_directory(directory))
    needs: dict[str, set[str]] = {}
    broken: dict[str, str] = {}
    for name in names:
        checkpoint_id = _id_aside(name)
        if checkpoint_id is None:
            continue
        image = _whole(os.path.join(directory, name), checkpoint_id)
        if image is None:
            broken[checkpoint_id] = name.rpartition(".")[0]
            continue
        needed: dict[str, set[int]] = {}
        _collect_refs(checkpoint_id, image, needed)
        needs[name] = needed.keys() - {checkpoint_id}
    for name in names:
        path = os.path.join(directory, name)
        if name not in needs:
            yield Finding(path, "aside", "was damaged, and was moved aside")
            continue
        shared = sorted(broken[other] for other in needs[name] & broken.keys())
        which = f"{shared[0]}, which was damaged and which it needs" if shared else "a damaged file that it needs"
        yield Finding(path, "aside", f"is whole; it was moved aside with {which}")


def _whole(path: str, checkpoint_id: str) -> Image | None:
    """The file of this checkpoint, if nothing is wrong with it."""
    try:
        image = load_file(path)
    except (DamagedCheckpointError, UnknownFormatError, StorageError):
        return None
    is_whole = image is not None and not image.damage and unpack_id(image.body.fields[0]) == checkpoint_id
    return image if is_whole else None


def _id_aside(name: str) -> str | None:
    """The checkpoint whose file lies aside under this name, with an ending of its own."""
    stem = name.rpartition(".")[0]
    found = [checkpoint_id_of(stem, suffix) for suffix in (CHECKPOINT_SUFFIX, PAGES_SUFFIX, EARLY_SUFFIX)]
    return next((each for each in found if each is not None), None)


def _verify_turns(path: str, name: str, thread_id: str | None) -> Iterator[Finding]:
    """The file of turns by this name: their log, a journal or a ticket; a journal of a dead turn is no orphan.

    And the mark of a thread that was pruned, which holds nothing.
    """
    if name == LOG_NAME:
        try:
            damaged = TurnLog(os.path.dirname(path), fsync=False).read().damaged
        except UnknownFormatError as error:
            yield Finding(path, "newer", f"has format version {error.version}")
        else:
            if damaged:
                yield Finding(path, "damaged", f"the log of the turns does not check in {damaged} places")
    elif name in {LOG_TEMPORARY, PRUNED_NAME + TEMPORARY_SUFFIX}:
        yield Finding(path, "temporary", "a writer died before it was done, or is at it now")
    elif journal_token(name) is not None:
        content = read_journal(path)
        if content is not None and content.damaged:
            yield Finding(path, "damaged", f"the journal does not check in {len(content.damaged)} places")
        header = content and content.header
        if header and is_misplaced(header, token=journal_token(name), thread_id=thread_id):
            yield Finding(path, "damaged", "is the journal of another turn")
    elif ticket_number(name) is not None:
        if not _files.is_locked(path) and os.path.exists(path):
            yield Finding(path, "temporary", "who waited for the thread died")
    elif name != PRUNED_NAME:
        yield Finding(path, "foreign", "is no namespace")


def _verify_inbox(directory: str) -> Iterator[Finding]:
    for name in sorted(_files.list_directory(directory)):
        path = os.path.join(directory, name)
        if name.endswith(TEMPORARY_SUFFIX):
            yield Finding(path, "temporary", "a poster died before it was done, or is at it now")
        elif item_number(name) is None:
            yield Finding(path, "foreign", "is no item of an inbox")
        else:
            try:
                load_item(path)
            except UnknownFormatError as error:
                yield Finding(path, "newer", f"has format version {error.version}")
            except DamagedCheckpointError as error:
                yield Finding(path, "damaged", error.reason)
            except StorageError as error:
                yield Finding(path, "damaged", f"cannot be read: {error}")


def _verify_file(path: str, name: str, needed: dict[str, set[int]]) -> Iterator[Finding]:
    if name.endswith(TEMPORARY_SUFFIX):
        yield Finding(path, "temporary", "a writer died before it was done, or is at it now")
        return
    suffixes = (CHECKPOINT_SUFFIX, PAGES_SUFFIX, EARLY_SUFFIX)
    found = [(i, s) for s in suffixes if (i := checkpoint_id_of(name, s)) is not None]
    if not found:
        yield Finding(path, "foreign", "is no file of the store")
        return
    checkpoint_id, suffix = found[0]
    try:
        image = load_file(path)
    except UnknownFormatError as error:
        yield Finding(path, "newer", f"has format version {error.version}")
        return
    except DamagedCheckpointError as error:
        yield Finding(path, "damaged", error.reason)
        return
    except StorageError as error:
        yield Finding(path, "damaged", f"cannot be read: {error}")
        return
    if image is None:
        return
    if image.damage:
        yield Finding(path, "damaged", image.damage)
    if unpack_id(image.body.fields[0]) != checkpoint_id:
        yield Finding(path, "damaged", "holds another checkpoint than its name says")
        return
    if suffix != CHECKPOINT_SUFFIX and os.path.exists(path.removesuffix(suffix) + CHECKPOINT_SUFFIX):
        yield Finding(path, "orphan", "was merged into the checkpoint's file")
    if suffix == PAGES_SUFFIX and image.kind is not FileKind.PAGES:
        yield Finding(path, "orphan", "is the rest of a removal that was cut short; the next one finishes it")
        return
    _collect_refs(checkpoint_id, image, needed)


def _collect_refs(checkpoint_id: str, image: Image, needed: dict[str, set[int]]) -> None:
    for section in (image.body, *(section for _, section in image.records)):
        try:
            for ref in section.refs.unpacked():
                needed.setdefault(ref.checkpoint_id, set()).add(ref.number)
        except MalformedError:
            needed.setdefault(checkpoint_id, set()).add(-1)
    for number, blob in image.blobs.items():
        if blob.tag == INDEX_TAG:
            try:
                for part, _ in parse_index(blob.data, BlobRef(checkpoint_id, number)):
                    needed.setdefault(part.checkpoint_id, set()).add(part.number)
            except MalformedError:
                needed.setdefault(checkpoint_id, set()).add(-1)


def _unresolved(files: NamespaceFiles, needed: dict[str, set[int]]) -> Iterator[Finding]:
    for checkpoint_id, numbers in sorted(needed.items()):
        try:
            image = files.read_pages(checkpoint_id)
        except UnknownFormatError:
            continue
        except DamagedCheckpointError as error:
            yield Finding(error.path, "missing", f"other checkpoints need it: {error.reason}")
            continue
        except StorageError:
            continue  # a file that cannot be read has a finding of its own
        missing = sorted(numbers - image.blobs.keys())
        if missing:
            path = files.file(checkpoint_id)
            if not os.path.exists(path):
                path = files.file(checkpoint_id, PAGES_SUFFIX)
            yield Finding(path, "missing", f"other checkpoints need its pages {missing}")
