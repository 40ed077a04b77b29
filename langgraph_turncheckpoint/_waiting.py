"""Waiting for a busy thread: tickets that keep the order over threads and processes, and how long to pause between two
looks. Whether a turn may be opened is decided in `_turn`.

    <generation>/q-<n>      the ticket of a waiter, locked for as long as it waits

A ticket goes with its waiter, however that ends: one that nobody holds locked counts for nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from . import _files

_PREFIX: Final = "q-"

#: Seconds between two looks at a busy thread: few at first, more while nothing changes.
FIRST_PAUSE: Final = 0.005
LONGEST_PAUSE: Final = 0.05
_GROWTH: Final = 1.5
#: Less than this is no time to wait.
_INSTANT: Final = 1e-6


class Ticket:
    """A place in the line for one thread."""

    def __init__(self, file: _files.HeldFile, generation_dir: str, number: int) -> None:
        self._file, self.generation_dir, self.number = file, generation_dir, number

    @classmethod
    def take(cls, generation_dir: str) -> Ticket:
        """Stand in line behind everybody. With the thread's lock held, in a directory that exists.

        Raises:
            StorageError: The system refused. No ticket was taken.
        """
        number = max(ticket_numbers(generation_dir), default=0) + 1
        return cls(_files.HeldFile.create(ticket_path(generation_dir, number)), generation_dir, number)

    def leave(self) -> None:
        """Leave the line; idempotent."""
        if self._file.is_open:
            self._file.close()
            _files.remove_file(self._file.path)


def ticket_path(generation_dir: str, number: int) -> str:
    """Where a ticket is, or would be."""
    return f"{generation_dir}{os.sep}{_PREFIX}{number}"


def ticket_number(name: str) -> int | None:
    """The ticket a file name stands for, or `None` for any other file."""
    digits = name.removeprefix(_PREFIX)
    if digits == name or not digits.isascii() or not digits.isdigit() or str(int(digits)) != digits:
        return None
    return int(digits)


def ticket_numbers(generation_dir: str) -> list[int]:
    """The tickets that are there, whether anybody holds them or not; lowest first."""
    numbers = [ticket_number(name) for name in _files.list_directory(generation_dir)]
    return sorted(number for number in numbers if number is not None)


def predecessor(generation_dir: str, ticket: Ticket | None, *, remove_dead: bool) -> int | None:
    """The ticket of the nearest who came before and still waits; `None` for the first in line.

    A waiter looks at that one alone: were it to count the whole line, a long line would cost the square of its length.

    Args:
        generation_dir: The thread's directory.
        ticket: The own ticket; without one, everybody came before.
        remove_dead: Whether to remove the tickets of dead waiters on the way. Only with the thread's lock held: else
            a ticket may be one that is being taken, and is not locked yet.
    """
    for number in reversed(ticket_numbers(generation_dir)):
        if ticket is not None and number >= ticket.number:
            continue
        path = ticket_path(generation_dir, number)
        if _files.is_locked(path):
            return number
        if remove_dead:
            _files.remove_file(path)
    return None


class Patience:
    """How long one waiter waits, and how often it looks.

    Args:
        timeout: Seconds; `None` for as long as it takes.
        clock: Seconds that only grow.
    """

    def __init__(self, timeout: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout, self._clock = timeout, clock
        self._began = clock()
        self._pause = FIRST_PAUSE
        self._sight: object = None

    @property
    def waited(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    def pause(self, sight: object) -> float | None:
        """Seconds until the next look, or `None` once the time is over.

        Args:
            sight: What was seen; as long as it stays the same, the pauses grow.
        """
        if sight == self._sight:
            self._pause = min(self._pause * _GROWTH, LONGEST_PAUSE)
        else:
            self._pause, self._sight = FIRST_PAUSE, sight
        if self._timeout is None:
            return self._pause
        remaining = self._timeout - self.waited
        return min(self._pause, remaining) if remaining > _INSTANT else None
