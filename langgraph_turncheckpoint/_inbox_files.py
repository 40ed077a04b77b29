"""The inbox of one thread as files: an atomic one per message, numbered in the order of posting. What a message
says is not understood here, and when it may go is decided elsewhere.

    <root>/threads/<thread>/g-<n>/inbox/i-<number>.msg     one frame: format version, message id, tag, sealed message

Items belong to one life of the thread: a delete takes them along, and a copy of the thread leaves them behind.
Writers hold the thread's ledger lock; readers hold nothing and see each item whole or not at all.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import ormsgpack

from . import _files
from ._frames import encode_frame, split_frames
from ._layout import TEMPORARY_SUFFIX
from ._records import MalformedError, NewerFormatError, Sealed
from ._thread_files import ThreadFiles
from ._turn import LedgerState
from .errors import DamagedCheckpointError, StorageError, ThreadClosedError, UnknownFormatError

INBOX_NAME: Final = "inbox"
ITEM_FORMAT_VERSION: Final = 1

_ITEM = re.compile(r"i-([0-9]{16,})\.msg")

#: How often a read is repeated while the thread is deleted or copied into.
READING_ATTEMPTS: Final = 8


class Item(NamedTuple):
    """A message in the inbox.

    Attributes:
        path: Its file.
        message_id: The id it was posted under.
        sealed: The message as the serializer stored it.
    """

    path: str
    message_id: str
    sealed: Sealed


def encode_item(message_id: str, sealed: Sealed) -> bytes:
    """All bytes of an item's file."""
    return encode_frame(ormsgpack.packb([ITEM_FORMAT_VERSION, message_id, sealed.tag, bytes(sealed.data)]))


def parse_item(data: bytes) -> tuple[str, Sealed]:
    """The message id and the sealed message of an item's file.

    Raises:
        MalformedError: The bytes are not one whole item.
        NewerFormatError: They are whole, and of a newer format.
    """
    frames = split_frames(data)
    if len(frames.payloads) != 1 or frames.damaged or frames.end != len(data):
        raise MalformedError("is not one whole inbox item")
    try:
        fields = ormsgpack.unpackb(frames.payloads[0])
    except ValueError:
        raise MalformedError("the inbox item cannot be unpacked") from None
    if type(fields) is list and fields and type(fields[0]) is int and fields[0] > ITEM_FORMAT_VERSION:
        raise NewerFormatError(fields[0])
    match fields:
        case [1, str(message_id), str(tag), bytes(sealed)]:
            return message_id, Sealed(tag, sealed)
    raise MalformedError("the inbox item has other fields than it should have")


def item_number(name: str) -> int | None:
    """The number of the item that a file name stands for, or `None` for any other file."""
    found = _ITEM.fullmatch(name)
    return None if found is None else int(found[1])


def load_item(path: str) -> Item | None:
    """Read and check an item; `None` if there is none.

    Raises:
        DamagedCheckpointError: It does not check.
        UnknownFormatError: It is of a newer format.
    """
    data = _files.read_file(path)
    if data is None:
        return None
    try:
        return Item(path, *parse_item(data))
    except MalformedError as error:
        raise DamagedCheckpointError(path, str(error)) from None
    except NewerFormatError as error:
        raise UnknownFormatError(path, error.version, ITEM_FORMAT_VERSION) from None


class InboxFiles:
    """The inbox of one thread.

    Args:
        thread: The thread.
        fsync: Whether posting and removing wait for the disk.
        clock_ns: Nanoseconds since 1970.
    """

    def __init__(self, thread: ThreadFiles, *, fsync: bool, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._thread, self._fsync, self._clock_ns = thread, fsync, clock_ns

    def post(self, message_id: str, sealed: Sealed, *, may_be_there: bool) -> bool:
        """Add an item behind all others, in one step; durable on return with `fsync`.

        The turn token stays as it is, so a running turn is not disturbed.

        Args:
            message_id: The message's id.
            sealed: The message.
            may_be_there: Whether to look for an item of this id first, which means reading all of them.

        Returns:
            Whether it was added; `False` if an item of this id was there, which is kept.

        Raises:
            ThreadClosedError: The thread is closed.
            StorageError: The system refused. In both cases nothing was stored.
        """
        data = encode_item(message_id, sealed)
        with self._thread.ledger.hold() as held:
            if held.state.closed:
                raise ThreadClosedError(self._thread.thread_id)
            directory = self._directory(held.state)
            if may_be_there and any(item.message_id == message_id for item in _readable(directory)):
                return False
            if self._fsync:
                held.sync()  # an item in a life of the thread that the ledger forgets would be lost
            with held.committing():
                _files.make_directory(directory, fsync=self._fsync)
                _sweep(directory)
                path = os.path.join(directory, f"i-{self._next_number(directory):016}.msg")
                temporary = f"{path}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
                _files.replace_file(path, data, temporary=temporary, fsync=self._fsync)
            return True

    def items(self, on_damage: Callable[[DamagedCheckpointError], None]) -> list[Item]:
        """All items in the order of posting; a damaged one is passed to `on_damage` and left out.

        Raises:
            UnknownFormatError: An item is of a newer format. It was not touched.
        """
        for attempt in range(READING_ATTEMPTS):
            state = self._thread.ledger.read()
            if state is None:
                return []
            found, damaged = [], []
            for path in _paths(self._directory(state)):
                try:
                    item = load_item(path)
                except DamagedCheckpointError as error:
                    damaged.append(error)
                    continue
                if item is not None:  # else removed under our eyes
                    found.append(item)
            # A delete or a copy into the thread removes what it leaves behind file by file.
            now = self._thread.ledger.read()
            if now is None or now.generation == state.generation or attempt == READING_ATTEMPTS - 1:
                for damage in damaged:
                    on_damage(damage)
                return found
        raise AssertionError  # pragma: no cover

    def remove(self, message_ids: Collection[str]) -> int:
        """Remove the items of these ids; durable on return with `fsync`. What cannot be read stays.

        A crash on the way leaves each item wholly there or gone.

        Returns:
            How many there were.

        Raises:
            StorageError: The system refused. Some of the items may be gone.
        """
        wanted = frozenset(message_ids)
        return self._remove(lambda directory: [i.path for i in _readable(directory) if i.message_id in wanted])

    def clear(self) -> int:
        """Remove every item, unread: damaged ones and those of a newer format go, too.

        Returns:
            How many there were.

        Raises:
            StorageError: The system refused. Some of the items may be gone.
        """
        return self._remove(_paths)

    def _remove(self, choose: Callable[[str], list[str]]) -> int:
        if self._thread.ledger.read() is None:
            return 0
        with self._thread.ledger.hold() as held:
            directory = self._directory(held.state)
            doomed = choose(directory)
            if doomed:
                with held.committing():
                    for path in doomed:
                        _files.remove_file(path)
                    if self._fsync:
                        _files.sync_directory(directory)
            return len(doomed)

    def _directory(self, state: LedgerState) -> str:
        return os.path.join(self._thread.generation(state), INBOX_NAME)

    def _next_number(self, directory: str) -> int:
        # Counting alone would use the numbers of removed items again, and a reader that has listed the directory
        # could then find a later message without an earlier one. Microseconds since 1970 have 16 digits.
        taken = [number for name in _files.list_directory(directory) if (number := item_number(name)) is not None]
        return max(max(taken, default=0) + 1, self._clock_ns() // 1000)


def _paths(directory: str) -> list[str]:
    """The files of all items, in the order of posting."""
    names = [name for name in _files.list_directory(directory) if item_number(name) is not None]
    return [os.path.join(directory, name) for name in sorted(names, key=lambda name: item_number(name) or 0)]


def _readable(directory: str) -> Iterator[Item]:
    """The items that can be read; reading them tells of the others."""
    for path in _paths(directory):
        with suppress(DamagedCheckpointError, UnknownFormatError):
            item = load_item(path)
            if item is not None:
                yield item


def _sweep(directory: str) -> None:
    """Remove what a poster left behind that died: under the lock nobody else is at it."""
    for name in _files.list_directory(directory):
        if name.startswith("i-") and name.endswith(TEMPORARY_SUFFIX):
            with suppress(StorageError):  # litter is no reason to refuse a message
                _files.remove_file(os.path.join(directory, name))
