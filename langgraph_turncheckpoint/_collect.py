"""Removing checkpoints of a namespace without breaking those that share pages with them.

Mark: follow every reference of what stays. Sweep: a removed checkpoint's file shrinks to the pages that
are still needed, or goes. Which checkpoints are to go is the caller's decision; it holds the thread's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from ._checkpoint_files import NamespaceFiles
from ._records import INDEX_TAG, BlobRef, Image, MalformedError, parse_index
from .errors import DamagedCheckpointError

Needed = dict[str, set[int]]


def remove_checkpoints(files: NamespaceFiles, doomed: Iterable[str]) -> None:
    """Remove checkpoints; the values of all others stay exactly as they are.

    Survives a crash at any point: what stays is never rewritten, and what goes is first replaced by
    its needed pages. A second call finishes the work.

    Args:
        files: The namespace.
        doomed: Ids of the checkpoints to remove.

    Raises:
        StorageError: A file could not be read or removed; those before it are gone.
    """
    gone = set(doomed)
    needed = _mark(files, (i for i in files.ids() if i not in gone))
    # The newest first: what refers to a page goes before the page.
    for checkpoint_id in sorted(gone | set(files.carriers()), reverse=True):
        # What remained of an earlier removal is looked at again: it may not be needed any more.
        if checkpoint_id in gone or not files.exists(checkpoint_id):
            numbers = needed.get(checkpoint_id, set())
            try:
                image = files.read_pages(checkpoint_id)
            except DamagedCheckpointError:
                if not numbers:
                    files.discard(checkpoint_id)
                continue
            if checkpoint_id in gone or image.blobs.keys() - numbers:
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
