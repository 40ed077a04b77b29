"""The ledger of one thread: a small file with its turn token and its tombstone, and the lock on it.

The file outlives everything else of the thread, so a token never repeats. Which change is allowed is
decided in `_turn`; here it is read, locked and written.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from . import _files
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
from .errors import DamageWarning

LEDGER_NAME: Final = "turn"


class HeldLedger:
    """The ledger of a thread while its lock is held."""

    def __init__(self, file: _files.LockedFile, slot: Slot, *, interrupted: bool) -> None:
        self._file, self._slot = file, slot
        #: Whether the last commit's process died in the middle of it, and may have left a temporary file.
        self.was_interrupted = interrupted

    @property
    def state(self) -> LedgerState:
        """What the ledger says; nobody else can change it meanwhile."""
        return self._slot.state

    def write(self, state: LedgerState) -> None:
        """Replace the state. It survives a killed process now, and power loss after `sync`.

        The older of two slots is overwritten, so a crash in between leaves the newer one.
        """
        slot = Slot(self._slot.serial + 1, state)
        # Without its last byte, which in the second slot is the mark of a commit.
        self._file.write(encode_slot(slot)[:-1], at=(slot.serial % 2) * SLOT_SIZE)
        self._slot = slot

    def write_twice(self, state: LedgerState) -> None:
        """Replace the state in both slots: a tombstone must outlive one damaged slot, too."""
        self.write(state)
        self.write(state)

    def initialize(self, state: LedgerState, identity: bytes) -> None:
        """Write a whole new ledger; if that fails, the file is empty again."""
        first, self._slot = Slot(1, state), Slot(2, state)
        try:
            self._file.write(encode_slot(self._slot) + encode_slot(first) + identity, at=0)
        except BaseException:
            with suppress(OSError):
                self._file.truncate()
            raise

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Mark the ledger while files are written, so that the next holder knows if this process dies."""
        self._file.write(b"\x01", at=COMMITTING_OFFSET)
        try:
            yield
        finally:
            # Errors have cleaned up behind themselves; only a dead process leaves the mark.
            with suppress(OSError):
                self._file.write(b"\x00", at=COMMITTING_OFFSET)

    def sync(self) -> None:
        """Wait until the state is on the disk."""
        self._file.sync()


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
        """What the ledger says, without a lock; `None` where the thread was never written to."""
        data = _files.read_file(self.path)
        if data is None and not self._generations():
            return None
        slot, doubtful = parse_slots(data or b"")
        if doubtful or slot is None:
            # Another process may be in the middle of its write; nobody is, once we hold the lock.
            with self.hold() as held:
                return held.state
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
            interrupted = data[COMMITTING_OFFSET : COMMITTING_OFFSET + 1] == b"\x01"
            held = HeldLedger(file, slot or Slot(0, LedgerState()), interrupted=interrupted)
            if slot is None:
                self._initialize(held, lost=bool(data or self._generations()))
            elif doubtful:
                # Each write goes to the other slot, so the damaged one is at most one turn ahead.
                state = slot.state
                state = state._replace(token=state.token + 1, epoch=state.epoch + 1)
                held = HeldLedger(file, slot._replace(state=state), interrupted=interrupted)
            elif self._thread_id is not None and parse_ledger_id(data) is None:
                file.write(encode_ledger_id(self._thread_id), at=LEDGER_ID_OFFSET)
            yield held

    def _locked(self) -> _files.LockedFile:
        if not os.access(self.path, os.F_OK):
            _files.make_directory(self._directory, fsync=self._fsync)
        return _files.LockedFile(self.path, create=True)

    def _initialize(self, held: HeldLedger, *, lost: bool) -> None:
        state = LedgerState()
        if lost:
            warnings.warn(
                f"{self.path}: the ledger is damaged or gone; turn tokens jump ahead",
                DamageWarning,
                stacklevel=5,
            )
            # Nobody opens a turn each microsecond, so the time is above every token handed out before, were
            # that by counting or after an earlier loss.
            jump = self._clock_ns() // 1000
            state = LedgerState(jump, max(self._generations(), default=1), jump)
        held.initialize(state, encode_ledger_id(self._thread_id) if self._thread_id is not None else b"")
        if self._fsync:
            held.sync()
            _files.sync_directory(self._directory)
            # Whoever has made the directory itself may not have come to that yet.
            _files.sync_directory(os.path.dirname(self._directory))

    def _generations(self) -> list[int]:
        names = _files.list_directory(self._directory)
        found = [generation_of(name) for name in names]
        return [generation for generation in found if generation is not None]
