"""The ledger of one thread: a small file with its turn token and its tombstone, and the lock on it.

The file outlives everything else of the thread, so a token never repeats. Which change is allowed is
decided in `_turn`; here it is read, locked and written.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from . import _events, _files
from ._layout import generation_of
from ._records import (
    COMMITTING_OFFSET,
    LEDGER_ID_OFFSET,
    SLOT_SIZE,
    Slot,
    encode_ledger_id,
    encode_slot,
    parse_ledger_id,
    parse_slots,
)
from ._turn import LedgerState
from .errors import StorageError

LEDGER_NAME: Final = "turn"

#: What the mark of a commit says: none is under way; one is; its process has died, and all names are durable by now,
#: but what it left has not been swept.
_IDLE: Final = b"\x00"
_UNDER_WAY: Final = b"\x01"
_UNSWEPT: Final = b"\x02"

_NOT_TO_BE_WRITTEN: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

#: Stores whose own directory is known to have a durable name; this process has seen to that.
_named_roots: set[str] = set()


def _past(state: LedgerState) -> LedgerState:
    """A state beside which the other slot is damaged: writes take turns, so that one is a turn ahead at most."""
    return state._replace(token=state.token + 1, epoch=state.epoch + 1)


class HeldLedger:
    """The ledger of a thread while its lock is held."""

    def __init__(self, file: _files.LockedFile, slot: Slot, *, interrupted: bool, fsync: bool) -> None:
        self._file, self._slot, self._fsync = file, slot, fsync
        self._is_synced = False
        #: Whether a commit's process died in the middle of it, and what it may have left was not swept yet.
        self.was_interrupted = interrupted

    @property
    def state(self) -> LedgerState:
        """What the ledger says; nobody else can change it meanwhile."""
        return self._slot.state

    def write(self, state: LedgerState) -> None:
        """Replace the state. It survives a killed process now, and power loss after `sync`.

        The older of two slots is overwritten, so a crash in between leaves the newer one. Where that one may not be on
        the disk yet, a power loss could tear both: tokens would jump ahead, but a tombstone would be lost.
        """
        if self._fsync and not self._is_synced and self.state.deleted_upto:
            self.sync()
        slot = Slot(self._slot.serial + 1, state)
        # Without its last byte, which in the second slot is the mark of a commit.
        self._file.write(encode_slot(slot)[:-1], at=(slot.serial % 2) * SLOT_SIZE)
        self._slot, self._is_synced = slot, False

    def write_twice(self, state: LedgerState, *, fsync: bool = False) -> None:
        """Replace the state in both slots: a tombstone must outlive one damaged slot, too.

        With `fsync` it is on the disk on return, and at no instant is each slot one that a power loss may tear.
        """
        for _ in range(2):
            self.write(state)
            if fsync:
                self.sync()

    def initialize(self, state: LedgerState, identity: bytes) -> None:
        """Write a whole new ledger, with the mark of a commit; if that fails, the file is empty again."""
        first, self._slot = Slot(1, state), Slot(2, state)
        slots = encode_slot(self._slot) + encode_slot(first)[:-1]
        try:
            self._file.write(slots + _UNDER_WAY + identity, at=0)
        except BaseException:
            with suppress(OSError):
                self._file.truncate()
            raise

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Mark the ledger while names are made or removed, so that the next holder knows if this process dies."""
        self._file.write(_UNDER_WAY, at=COMMITTING_OFFSET)
        try:
            yield
        finally:
            self.unmark()

    def unmark(self) -> None:
        """The commit is over. Errors have cleaned up behind themselves; only a dead process leaves the mark."""
        with suppress(OSError):
            self._file.write(_UNSWEPT if self.was_interrupted else _IDLE, at=COMMITTING_OFFSET)

    def make_directory(self, path: str, *, fsync: bool) -> None:
        """Make a directory of the thread; durable on return if `fsync`, also if a dead process has made it."""
        if not _files.is_directory(path):
            with self.committing():
                _files.make_directory(path, fsync=fsync)

    def sync(self) -> None:
        """Wait until the state is on the disk."""
        self._file.sync()
        self._is_synced = True


class Ledger:
    """The ledger of one thread, by its directory."""

    def __init__(
        self,
        directory: str,
        thread_id: str | None,
        *,
        fsync: bool,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = os.path.join(directory, LEDGER_NAME)
        self._directory, self._thread_id, self._fsync = directory, thread_id, fsync
        self._clock_ns = clock_ns

    def read(self) -> LedgerState | None:
        """What the ledger says, without a lock; `None` where the thread was never written to.

        One that is damaged or gone is mended; where nothing can be written, what it would be mended to is told.
        """
        data = _files.read_file(self.path)
        if data is None and not self._generations():
            return None
        slot, doubtful = parse_slots(data or b"")
        if doubtful or slot is None or self._is_of_another(data or b""):
            # Another process may be in the middle of its write; nobody is, once we hold the lock.
            try:
                with self.hold() as held:
                    return held.state
            except StorageError as error:
                if error.errno not in _NOT_TO_BE_WRITTEN:
                    raise
                is_lost = slot is None or self._is_of_another(data or b"")
                return self._after_loss() if slot is None or is_lost else _past(slot.state)
        return slot.state

    def thread_id(self) -> str | None:
        """The thread id the ledger spells out, or `None` where it cannot be read."""
        data = _files.read_file(self.path)
        return None if data is None else parse_ledger_id(data)

    @contextmanager
    def hold(self) -> Iterator[HeldLedger]:
        """Lock the thread against every other process and thread; makes the ledger if needed."""
        with self._locked() as file:
            data = file.read()
            slot, doubtful = parse_slots(data)
            mark = data[COMMITTING_OFFSET : COMMITTING_OFFSET + 1]
            interrupted = mark in {_UNDER_WAY, _UNSWEPT}
            if mark == _UNDER_WAY and self._fsync:
                self._sync_names()
                file.write(_UNSWEPT, at=COMMITTING_OFFSET)
                file.sync()
            held = HeldLedger(file, slot or Slot(0, LedgerState()), interrupted=interrupted, fsync=self._fsync)
            if slot is None or self._is_of_another(data):
                self._initialize(held, lost=bool(data or self._generations()))
            elif doubtful:
                slot = slot._replace(state=_past(slot.state))
                held = HeldLedger(file, slot, interrupted=interrupted, fsync=self._fsync)
            elif self._thread_id is not None and parse_ledger_id(data) is None:
                file.write(encode_ledger_id(self._thread_id), at=LEDGER_ID_OFFSET)
            yield held

    def _is_of_another(self, data: bytes) -> bool:
        """Whether a ledger is that of another thread, as after a backup was put back in the wrong place."""
        return self._thread_id is not None and parse_ledger_id(data) not in (None, self._thread_id)

    def _locked(self) -> _files.LockedFile:
        if not os.access(self.path, os.F_OK):
            _files.make_directory(self._directory, fsync=self._fsync)
        return _files.LockedFile(self.path, create=True)

    def _initialize(self, held: HeldLedger, *, lost: bool) -> None:
        state = LedgerState()
        if lost:
            text = f"{self.path}: the ledger is damaged or gone; turn tokens jump ahead"
            _events.damaged(self.path, text, stacklevel=5)
            state = self._after_loss()
        held.initialize(state, encode_ledger_id(self._thread_id) if self._thread_id is not None else b"")
        if self._fsync:
            held.sync()
            _files.sync_directory(self._directory)
            self._sync_way()
        held.unmark()

    def _after_loss(self) -> LedgerState:
        # Nobody opens a turn each microsecond, so the time is above every token handed out before, were that by
        # counting or after an earlier loss.
        jump = self._clock_ns() // 1000
        return LedgerState(jump, max(self._generations(), default=1), jump)

    def _sync_names(self) -> None:
        """Make durable whatever name a process has made or removed that was killed before its sync.

        To this process it looks like any other name, and what is written below it would go with it.
        """
        for directory, _, _ in os.walk(self._directory):
            _files.sync_directory(directory)
        self._sync_way()

    def _sync_way(self) -> None:
        """The same for the directory itself, and for those that lead to it."""
        threads = os.path.dirname(self._directory)
        _files.sync_directory(threads)
        root = os.path.dirname(threads)
        if root not in _named_roots:
            _files.sync_directory(root)
            _files.sync_directory(os.path.dirname(root) or os.curdir)
            _named_roots.add(root)

    def _generations(self) -> list[int]:
        names = _files.list_directory(self._directory)
        found = [generation_of(name) for name in names]
        return [generation for generation in found if generation is not None]
