"""The journal of one turn: an append-only file that its owner keeps open and locked, so that it is at once the sign
that the turn lives. Bytes only; what a record means, and who may open a turn, is decided elsewhere.

    <generation>/j-<token>.journal      frames: a header, then the turn's records in order

The lock goes with the owner's process, however that ends. A record is written whole or not at all, and none after
the turn has ended.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from . import _files
from ._frames import encode_frame, split_frames

_PREFIX: Final = "j-"
_SUFFIX: Final = ".journal"


class JournalContent(NamedTuple):
    """What of a journal can be believed.

    Attributes:
        header: The header; `None` where it was never written or is damaged.
        payloads: Every sound record, in order.
        damaged: Start and end of each stretch that was passed over.
    """

    header: bytes | None
    payloads: list[bytes]
    damaged: list[tuple[int, int]]


class JournalFile:
    """The journal of a turn that is running here. Made by `create`; may be used from any thread.

    Attributes:
        path: The file.
        is_blank: Whether nothing but the header was ever appended.
    """

    def __init__(self, file: _files.HeldFile, *, fsync: bool) -> None:
        self._file, self._fsync = file, fsync
        self._is_named = False
        self.path = file.path
        self.is_blank = True

    @classmethod
    def create(cls, path: str, header: bytes, *, fsync: bool) -> JournalFile:
        """Make a journal in a directory that exists, lock it and write its header, unsynced.

        Raises:
            StorageError: There is one already (`EEXIST`), or the system refused. No new file is left.
        """
        file = _files.HeldFile.create(path)
        try:
            file.append(encode_frame(header), fsync=False)
        except BaseException:
            file.close()
            _files.remove_file(path)
            raise
        return cls(file, fsync=fsync)

    @property
    def is_open(self) -> bool:
        """Whether the turn lives here: neither ended, nor that of the process this one was forked from."""
        return self._file.is_open

    def append(self, payload: bytes, *, sync: bool) -> bool:
        """Append one record.

        It survives a killed process on return; with `sync`, where the store syncs at all, it and everything before
        it survive power loss.

        Returns:
            Whether it was written. A late record of a turn that has ended is dropped.

        Raises:
            StorageError: The system refused. The journal is as it was, and may be appended to again.
        """
        fsync = sync and self._fsync
        if fsync and not self._is_named and self._file.is_open:
            _files.sync_directory(os.path.dirname(self.path))  # before: once the record is there, nothing may fail
            self._is_named = True
        if not self._file.append(encode_frame(payload), fsync=fsync):
            return False
        self.is_blank = False
        return True

    def close(self) -> None:
        """End it: the sign of life goes, and nothing is written any more. Never fails; idempotent."""
        self._file.close()


def read_journal(path: str) -> JournalContent | None:
    """What a journal holds, also while its owner appends; `None` if there is none."""
    data = _files.read_file(path)
    if data is None:
        return None
    payloads, _, damaged = split_frames(data)
    if not payloads or (damaged and damaged[0][0] == 0):
        return JournalContent(None, payloads, damaged)
    return JournalContent(payloads[0], payloads[1:], damaged)


def is_live(path: str) -> bool:
    """Whether the journal's turn is running in some process."""
    return _files.is_locked(path)


def journal_path(generation_dir: str, token: int) -> str:
    """Where the journal of a turn is, or would be."""
    return f"{generation_dir}{os.sep}{_PREFIX}{token}{_SUFFIX}"


def journal_token(name: str) -> int | None:
    """The turn a file name stands for, or `None` for any other file."""
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return None
    digits = name[len(_PREFIX) : -len(_SUFFIX)]
    if not digits.isascii() or not digits.isdigit() or str(int(digits)) != digits:
        return None
    return int(digits)


def journal_tokens(generation_dir: str) -> list[int]:
    """The turns that have a journal, running or not; oldest first."""
    tokens = [journal_token(name) for name in _files.list_directory(generation_dir)]
    return sorted(token for token in tokens if token is not None)
