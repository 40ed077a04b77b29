"""Removing checkpoints of a namespace without breaking those that share pages with them.

Mark: follow every reference of what stays. Sweep: a removed checkpoint's file shrinks to the pages that
are still needed, or goes. Which checkpoints are to go is the caller's decision; it holds the thread's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from . import _files
from ._checkpoint_files import NamespaceFiles
from ._records import INDEX_TAG, BlobRef, FileKind, Image, MalformedError, parse_index
from .errors import DamagedCheckpointError, StorageError

#: An empty file in a generation that has lost checkpoints to a prune, a retention or a deletion of runs.
PRUNED_NAME: Final = "pruned"

Needed = dict[str, set[int]]


def mark_pruned(generation: str, *, fsync: bool) -> None:
    """Say of a thread's present life that checkpoints were removed; to be called before the first of them goes.

    What a copy misses there later has gone for good, then. Where the mark cannot be written, as on a full disk, it
    will come back with a copy, which is no reason to keep it from going.
    """
    path = os.path.join(generation, PRUNED_NAME)
    with suppress(StorageError):
        if not _files.exists(path):
            _files.make_empty_file(path, fsync=fsync)


def was_pruned(generation: str) -> bool:
    """Whether checkpoints were removed from a thread's present life."""
    return _files.exists(os.path.join(generation, PRUNED_NAME))


def remove_checkpoints(files: NamespaceFiles, doomed: Iterable[str]) -> None:
    """Remove checkpoints; the values of all others stay exactly as they are. Durable on return, see `NamespaceFiles`.

    Survives a crash at any point: what stays is never rewritten, and all that goes has gone as a checkpoint, for good,
    before the first of its pages does. A second call finishes the work.

    Args:
        files: The namespace.
        doomed: Ids of the checkpoints to remove.

    Raises:
        StorageError: A file could not be read or removed; those before it are gone.
    """
    gone = set(doomed)
    needed = _mark(files, (i for i in files.ids() if i not in gone))
    sound = set()
    for checkpoint_id in sorted(gone, reverse=True):
        try:
            files.read_pages(checkpoint_id)
        except DamagedCheckpointError:
            if not needed.get(checkpoint_id):
                files.discard(checkpoint_id)
        else:
            sound.add(checkpoint_id)
    # In whatever order the disk forgets or keeps what follows, no checkpoint can be left without its pages.
    files.set_apart(sound)
    # What remained of an earlier removal is looked at again: it may not be needed any more.
    for checkpoint_id in sorted(sound | set(files.carriers()), reverse=True):
        if files.exists(checkpoint_id):
            continue
        numbers = needed.get(checkpoint_id, set())
        if not numbers:
            files.discard(checkpoint_id)
            continue
        with suppress(DamagedCheckpointError):
            image = files.read_pages(checkpoint_id)
            if image.kind is not FileKind.PAGES or image.blobs.keys() - numbers:
                files.keep_pages(checkpoint_id, image, numbers)


def _mark(files: NamespaceFiles, kept: Iterable[str]) -> Needed:
    needed: Needed = {}
    waiting: list[BlobRef] = []
    images: dict[str, Image] = {}
    for checkpoint_id in kept:
        try:
            image = files.read_pages(checkpoint_id)
        except DamagedCheckpointError:
            continue  # it cannot be loaded, so it needs nothing; it stays where it is
        for section in (image.body, *(section for _, section in image.records)):
            with suppress(MalformedError):  # what cannot be read needs nothing
                waiting += section.refs.unpacked()
        for number, blob in image.blobs.items():
            if blob.tag == INDEX_TAG:
                waiting.append(BlobRef(checkpoint_id, number))
        while waiting:
            ref = waiting.pop()
            numbers = needed.setdefault(ref.checkpoint_id, set())
            if ref.number in numbers:
                continue
            numbers.add(ref.number)
            if ref.checkpoint_id not in images:
                try:
                    images[ref.checkpoint_id] = files.read_pages(ref.checkpoint_id)
                except DamagedCheckpointError:
                    continue
            found = images[ref.checkpoint_id].blobs.get(ref.number)
            if found is not None and found.tag == INDEX_TAG:
                with suppress(MalformedError):
                    waiting += [part for part, _ in parse_index(found.data, ref)]
    return needed
