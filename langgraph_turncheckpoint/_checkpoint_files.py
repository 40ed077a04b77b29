"""The files of one checkpoint namespace: find, read, commit and append. No ids are made up here, no
turn is checked, and no value is understood.

A namespace is a directory of buckets, each with the checkpoints from its lowest id to the next bucket's.
Names spell the ids, so the newest checkpoint is found from two short listings, however long the history.
Writers hold the thread's ledger lock; readers hold nothing and see each file whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from . import _events, _files
from ._layout import (
    CHECKPOINT_SUFFIX,
    EARLY_SUFFIX,
    PAGES_SUFFIX,
    TEMPORARY_SUFFIX,
    bucket_bound,
    bucket_component,
    checkpoint_id_of,
    checkpoint_ids_of,
    checkpoint_stem,
)
from ._records import (
    FORMAT_VERSION,
    HEADER_SIZE,
    KEPT_PAGES,
    NO_REFS,
    WRITES,
    FileKind,
    Image,
    MalformedError,
    NewerFormatError,
    Sealed,
    Section,
    encode_file,
    encode_record,
    is_kind,
    pack_id,
    parse_file,
    unpack_id,
)
from .errors import DamagedCheckpointError, StorageError, UnknownFormatError

#: Checkpoints in a bucket, on average. Listing that many names takes about 0.1 ms; more would make reading
#: the latest depend on the history.
BUCKET_SIZE: Final = 128

DAMAGED_NAME: Final = "damaged"

EMPTY: Final = Sealed("", b"")


class Tail(NamedTuple):
    """Where the next record of a file goes, and which writes the file already has."""

    end: int
    next_blob: int
    seen: dict[str, set[int]]


def load_file(path: str) -> Image | None:
    """Read and check a store file; `None` if there is none.

    Raises:
        DamagedCheckpointError: It does not check.
        UnknownFormatError: It is of a newer format.
    """
    data = _files.read_file(path)
    return None if data is None else checked(path, data)


def checked(path: str, data: bytes) -> Image:
    """The parsed bytes of a store file, with errors that name it."""
    try:
        return parse_file(data)
    except MalformedError as error:
        raise DamagedCheckpointError(path, str(error)) from None
    except NewerFormatError as error:
        raise UnknownFormatError(path, error.version, FORMAT_VERSION) from None


def _owned(image: Image, checkpoint_id: str, path: str) -> Image:
    if unpack_id(image.body.fields[0]) != checkpoint_id:
        raise DamagedCheckpointError(path, "holds another checkpoint than its name says")
    return image


class NamespaceFiles:
    """One namespace directory.

    Args:
        path: The directory; it need not exist.
        fsync: Whether commits and appends wait for the disk.
    """

    def __init__(self, path: str, *, fsync: bool) -> None:
        self.path, self._fsync = path, fsync
        self._bounds: list[str] | None = None

    # --- finding ---

    def snapshot(self) -> NamespaceFiles:
        """The same namespace with its buckets listed once, for a read that opens many files.

        A bucket never takes over what another one holds, so the list may only be too short: a file that is
        not found by it is looked for again.
        """
        files = NamespaceFiles(self.path, fsync=self._fsync)
        files._bounds = files.bounds()
        return files

    def bounds(self) -> list[str]:
        """The lowest id of each bucket, in order."""
        if self._bounds is not None:
            return self._bounds
        bounds = [bucket_bound(name) for name in _files.list_directory(self.path)]
        return sorted(bound for bound in bounds if bound is not None)

    def bucket(self, bound: str) -> str:
        """The directory of the bucket that starts at `bound`."""
        return f"{self.path}{os.sep}{bucket_component(bound)}"

    def ids(self, *, before: str | None = None) -> Iterator[str]:
        """Checkpoint ids, newest first, one bucket's listing at a time."""
        for bound in reversed(self.bounds()):
            if before is not None and bound >= before:
                continue
            found = checkpoint_ids_of(_files.list_directory(self.bucket(bound)))
            yield from sorted(found if before is None else [i for i in found if i < before], reverse=True)

    def head_id(self) -> str | None:
        """The newest checkpoint id."""
        return next(self.ids(), None)

    def file(self, checkpoint_id: str, suffix: str = CHECKPOINT_SUFFIX) -> str:
        """Where the file of a checkpoint is, or would be."""
        name = checkpoint_stem(checkpoint_id) + suffix
        bounds = self.bounds()
        at = bisect_right(bounds, checkpoint_id) - 1
        return f"{self.bucket(bounds[at] if at >= 0 else '')}{os.sep}{name}"

    def exists(self, checkpoint_id: str) -> bool:
        """Whether the checkpoint is in the store."""
        return _files.exists(self.file(checkpoint_id))

    # --- reading ---

    def read(self, checkpoint_id: str) -> Image | None:
        """The file of a checkpoint; `None` if there is none.

        Raises:
            DamagedCheckpointError: The file does not check, or is not of this checkpoint.
            UnknownFormatError: It is of a newer format.
        """
        path = self.file(checkpoint_id)
        image = load_file(path)
        if image is not None and image.damage:
            # A record may be half-written this instant. Its writer does not need long.
            image = load_file(path)
        return None if image is None else _owned(image, checkpoint_id, path)

    def read_pages(self, checkpoint_id: str) -> Image:
        """The file that holds the blobs of a checkpoint, even if the checkpoint was removed.

        Raises:
            DamagedCheckpointError: There is none, or it does not check.
        """
        for suffix in (CHECKPOINT_SUFFIX, PAGES_SUFFIX, CHECKPOINT_SUFFIX):
            # A prune renames between the first look and the second, a repeated put back again.
            path = self.file(checkpoint_id, suffix)
            if (image := load_file(path)) is not None:
                return _owned(image, checkpoint_id, path)
            self._bounds = None
        raise DamagedCheckpointError(self.file(checkpoint_id), "the file is missing, and others refer to it")

    # --- writing, with the thread's lock held ---

    def commit(self, checkpoint_id: str, section: Section) -> tuple[str, int, Tail]:
        """Write the file of a checkpoint in one atomic step; durable on return with `fsync`.

        Writes that came before it are taken along. Where the checkpoint was put before, its writes
        and the pages that others may refer to stay.

        Returns:
            The path, the number of the section's first blob, and the new file's tail.
        """
        path = self._place(checkpoint_id)
        pages_path = path.removesuffix(CHECKPOINT_SUFFIX) + PAGES_SUFFIX
        early_path = path.removesuffix(CHECKPOINT_SUFFIX) + EARLY_SUFFIX
        records, next_blob = b"", 0
        replaced, pages, early = map(self._old_image, (path, pages_path, early_path))
        for old in (replaced, pages):
            if old is not None:
                records += _retained(old, writes=old is replaced)
                next_blob = max(next_blob, old.next_blob)
        section = section._replace(first_blob=next_blob)
        number = next_blob + len(section.blobs)
        # Where both exist, a crash came between merging the early writes and removing their file.
        if early is not None and replaced is None:
            merged_writes, number = _encoded([writes for _, writes in early.records], number)
            records += merged_writes
        data = encode_file(FileKind.CHECKPOINT, section, records)
        self._replace(path, data)
        for merged, image in ((pages_path, pages), (early_path, early)):
            if image is not None:
                with contextlib.suppress(StorageError):  # the checkpoint is there; left behind it is ignored
                    _files.remove_file(merged)
        seen = {} if not records else seen_writes(checked(path, data))
        return path, section.first_blob, Tail(len(data), number, seen)

    def tail(self, checkpoint_id: str) -> tuple[str, Tail | None]:
        """The file that takes the writes of a checkpoint, and its tail; `None` where there is no such file yet."""
        path = self.file(checkpoint_id)
        image = self._old_image(path)
        if image is None:
            path = path.removesuffix(CHECKPOINT_SUFFIX) + EARLY_SUFFIX
            image = self._old_image(path)
        return path, None if image is None else Tail(image.end, image.next_blob, seen_writes(image))

    def start(self, checkpoint_id: str, sections: list[Section]) -> None:
        """Keep writes that come before their checkpoint, in a file of their own; durable on return with `fsync`."""
        path = self._place(checkpoint_id).removesuffix(CHECKPOINT_SUFFIX) + EARLY_SUFFIX
        body = Section([pack_id(checkpoint_id)], 0, NO_REFS, EMPTY, [])
        self._replace(path, encode_file(FileKind.EARLY, body, _encoded(sections, 0)[0]))

    def settle(self, path: str) -> None:
        """Make durable what a file holds, with `fsync`."""
        if self._fsync:
            _files.sync_existing(path)

    def append(self, path: str, tail: Tail, sections: list[Section]) -> Tail:
        """Append writes to a file in one sync; durable on return with `fsync`.

        If that fails, the file is as it was.

        Returns:
            The new tail.
        """
        data, number = _encoded(sections, tail.next_blob)
        _files.append_file(path, data, at=tail.end, fsync=self._fsync)
        for section in sections:
            _note(tail.seen, section.fields)
        return Tail(tail.end + len(data), number, tail.seen)

    def adopt(self, name: str, source: str) -> bool:
        """Take over a file of another thread under the same name, in the bucket it belongs to here.

        Returns:
            Whether that was possible: a file that is here already must be the same one, or one of the
            two must only have more writes.
        """
        for suffix in (CHECKPOINT_SUFFIX, PAGES_SUFFIX, EARLY_SUFFIX):
            checkpoint_id = checkpoint_id_of(name, suffix)
            if checkpoint_id is None:
                continue
            path = self._place(checkpoint_id).removesuffix(CHECKPOINT_SUFFIX) + suffix
            if suffix == PAGES_SUFFIX and self.exists(checkpoint_id):
                continue
            here, there = _files.read_file(path) or b"", _files.read_file(source) or b""
            if not here.startswith(there):
                if not there.startswith(here):
                    return False
                _files.copy_file(source, path, fsync=self._fsync)
                if self._fsync:
                    _files.sync_directory(os.path.dirname(path))
            if suffix == CHECKPOINT_SUFFIX:
                # It brings all of its pages, and more than what a removal has left of them here.
                _files.remove_file(path.removesuffix(CHECKPOINT_SUFFIX) + PAGES_SUFFIX)
        return True

    def set_apart(self, checkpoint_ids: Iterable[str]) -> None:
        """Let these be checkpoints no more, while every page of theirs stays; durable on return with `fsync`."""
        directories = set()
        for checkpoint_id in checkpoint_ids:
            path = self.file(checkpoint_id)
            if _files.exists(path):
                _files.move_file(path, path.removesuffix(CHECKPOINT_SUFFIX) + PAGES_SUFFIX)
                directories.add(os.path.dirname(path))
        for directory in sorted(directories) if self._fsync else ():
            _files.sync_directory(directory)

    def keep_pages(self, checkpoint_id: str, image: Image, numbers: set[int]) -> None:
        """Keep of a checkpoint that was set apart only the blobs that others refer to."""
        records = b"".join(
            encode_record(KEPT_PAGES, Section([], number, NO_REFS, EMPTY, [image.blobs[number]]))
            for number in sorted(numbers & image.blobs.keys())
        )
        body = Section([pack_id(checkpoint_id)], 0, NO_REFS, EMPTY, [])
        pages_path = self.file(checkpoint_id).removesuffix(CHECKPOINT_SUFFIX) + PAGES_SUFFIX
        self._replace(pages_path, encode_file(FileKind.PAGES, body, records))

    def discard(self, checkpoint_id: str) -> None:
        """Remove the files of a checkpoint, readable or not."""
        path = self.file(checkpoint_id)
        for suffix in (PAGES_SUFFIX, CHECKPOINT_SUFFIX):
            _files.remove_file(path.removesuffix(CHECKPOINT_SUFFIX) + suffix)

    def remove_early(self, is_obsolete: Callable[[str], bool]) -> None:
        """Drop early writes by the id of their checkpoint, and buckets that have become empty."""
        for bound in self.bounds():
            directory = self.bucket(bound)
            for name in _files.list_directory(directory):
                checkpoint_id = checkpoint_id_of(name, EARLY_SUFFIX)
                if checkpoint_id is not None and is_obsolete(checkpoint_id):
                    _files.remove_file(os.path.join(directory, name))
            if bound:
                _files.remove_empty_directory(directory)

    def carriers(self) -> list[str]:
        """Ids of removed checkpoints of which pages were kept."""
        names = [n for bound in self.bounds() for n in _files.list_directory(self.bucket(bound))]
        found = [checkpoint_id_of(name, PAGES_SUFFIX) for name in names]
        return [checkpoint_id for checkpoint_id in found if checkpoint_id is not None]

    def has_set_apart(self) -> bool:
        """Whether a removal was cut short behind `set_apart`."""
        for checkpoint_id in self.carriers():
            path = self.file(checkpoint_id).removesuffix(CHECKPOINT_SUFFIX) + PAGES_SUFFIX
            ends = _files.read_ends(path, head=HEADER_SIZE, tail=0)
            if ends is not None and is_kind(ends.head, FileKind.CHECKPOINT):
                return True
        return False

    def sweep(self) -> None:
        """Remove what writers that died have left. Commits happen under the lock we hold, so nobody alive owns any."""
        for path in self.litter():
            _files.remove_file(path)

    def litter(self) -> list[str]:
        """Temporaries, and what is in its checkpoint's file already.

        One is no litter while the file that it was to replace, or that it is in, is damaged: it may be the only good
        copy.
        """
        found = []
        for bound in self.bounds():
            directory = self.bucket(bound)
            names = set(_files.list_directory(directory))
            for name in names:
                if name.endswith(TEMPORARY_SUFFIX):
                    target = name.removesuffix(TEMPORARY_SUFFIX).rpartition(".")[0]
                elif name.endswith((EARLY_SUFFIX, PAGES_SUFFIX)):
                    target = name.rpartition(".")[0] + CHECKPOINT_SUFFIX
                    if target not in names:
                        continue
                else:
                    continue
                if not _is_damaged(os.path.join(directory, target)):
                    found.append(os.path.join(directory, name))
        return found

    def _place(self, checkpoint_id: str) -> str:
        """The path for a checkpoint's file, in a bucket that exists."""
        name = checkpoint_stem(checkpoint_id) + CHECKPOINT_SUFFIX
        bounds = self.bounds()
        at = bisect_right(bounds, checkpoint_id) - 1
        bound = bounds[at] if at >= 0 else ""
        directory = self.bucket(bound)
        if at < 0:
            _files.make_directory(directory, fsync=self._fsync)
        elif at == len(bounds) - 1 and zlib.crc32(name.encode()) % BUCKET_SIZE == 0:
            # Chance decides, so that a put needs no count of what the bucket holds.
            names = _files.list_directory(directory)
            found = [
                i
                for n in names
                for suffix in (CHECKPOINT_SUFFIX, PAGES_SUFFIX, EARLY_SUFFIX)
                if (i := checkpoint_id_of(n, suffix)) is not None
            ]
            if len(found) >= BUCKET_SIZE // 4 and max(found) < checkpoint_id:
                directory = self.bucket(checkpoint_id)
                _files.make_directory(directory, fsync=self._fsync)
        return os.path.join(directory, name)

    def _replace(self, path: str, data: bytes) -> None:
        temporary = f"{path}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        _files.replace_file(path, data, temporary=temporary, fsync=self._fsync)

    def _old_image(self, path: str) -> Image | None:
        """What a file to be replaced or appended to holds; a damaged one is set aside first."""
        if not _files.exists(path):
            return None
        try:
            image = load_file(path)
        except DamagedCheckpointError:
            self.set_aside(path, keep=False)
            return None
        if image is not None and image.damage:
            self.set_aside(path, keep=True)
        return image

    def set_aside(self, path: str, *, keep: bool) -> None:
        """Move, or copy with `keep`, a damaged file to where nothing overwrites it."""
        directory = os.path.join(self.path, DAMAGED_NAME)
        _files.make_directory(directory, fsync=self._fsync)
        aside = os.path.join(directory, f"{os.path.basename(path)}.{secrets.token_hex(4)}")
        data = _files.read_file(path)
        if data is not None:
            _files.replace_file(aside, data, temporary=aside + TEMPORARY_SUFFIX, fsync=self._fsync)
        if not keep:
            _files.remove_file(path)
        lost = "what was sound in it is kept" if keep else "what it held is not used any more"
        text = f"{path}: damaged; its bytes were put aside in {aside}, and {lost}"
        _events.damaged(path, text, stacklevel=2)


def _is_damaged(path: str) -> bool:
    """Whether anything in a file does not check; one that is not there is not damaged."""
    try:
        image = load_file(path)
    except (DamagedCheckpointError, UnknownFormatError):
        return True
    return image is not None and bool(image.damage)


def seen_writes(image: Image) -> dict[str, set[int]]:
    """Which (task, index) a file holds."""
    seen: dict[str, set[int]] = {}
    for kind, section in image.records:
        if kind == WRITES:
            _note(seen, section.fields)
    return seen


def _encoded(sections: list[Section], number: int) -> tuple[bytes, int]:
    """Records of writes with their blobs numbered from `number`, and the number behind the last."""
    records = b""
    for section in sections:
        records += encode_record(WRITES, section._replace(first_blob=number))
        number += len(section.blobs)
    return records, number


def _note(seen: dict[str, set[int]], fields: list[Any]) -> None:
    packed_task_id, indexes = fields[0], fields[1]
    seen.setdefault(unpack_id(packed_task_id) or "", set()).update(indexes)


def _retained(old: Image, *, writes: bool) -> bytes:
    """What a file keeps of the one it replaces: pages under their numbers, and its writes, if it was no removed one."""
    records = b""
    if old.body.blobs:
        section = Section([], old.body.first_blob, NO_REFS, EMPTY, old.body.blobs)
        records += encode_record(KEPT_PAGES, section)
    for kind, section in old.records:
        if kind == WRITES and not writes:
            records += encode_record(KEPT_PAGES, Section([], section.first_blob, NO_REFS, EMPTY, section.blobs))
        else:
            records += encode_record(kind, section)
    return records
