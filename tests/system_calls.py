"""Stand-ins for the modules through which `_files` speaks to the system: they record calls and make chosen ones fail.

Everything that is not told to fail really happens. Which outcome is right is for the tests to say.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from langgraph_turncheckpoint import _files as files_module

#: What can go wrong in practice with a directory that was fine a moment ago.
CODES: Final = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.EACCES)

RECORDED: Final = frozenset(
    {"close", "fdatasync", "fstat", "fsync", "ftruncate", "listdir", "lseek", "mkdir", "open", "read"}
    | {"replace", "rmdir", "scandir", "stat", "unlink", "write"}
)
#: Calls that a full disk refuses for as long as it is full.
GROWING: Final = frozenset({"write", "fsync", "fdatasync", "mkdir"})

#: The module as it is patched: typed loosely, because its imports are no part of what it offers.
_files: Any = files_module

Fault = Callable[[int, str], int | None]


class SystemCalls:
    """`os` with a record of its calls.

    Args:
        fault: Tells from a call's position and name whether it fails, and with which errno.
        write_at_most: Bytes that one `write` takes.
        without: Names that this system does not have.
    """

    def __init__(
        self, fault: Fault | None = None, *, write_at_most: int | None = None, without: frozenset[str] = frozenset()
    ) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._fault = fault or (lambda position, name: None)
        self._write_at_most, self._without = write_at_most, without

    @property
    def names(self) -> list[str]:
        """The names of the calls so far, in order."""
        return [name for name, _ in self.calls]

    def __getattr__(self, name: str) -> Any:
        if name in self._without:
            raise AttributeError(name)
        if name not in RECORDED:
            return getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            code = self.note(name, args)
            if code is not None:
                if name == "close":
                    os.close(*args)  # a close that reports an error has closed all the same
                raise OSError(code, os.strerror(code))
            if name == "write" and self._write_at_most is not None:
                return os.write(args[0], args[1][: self._write_at_most])
            return getattr(os, name)(*args, **kwargs)

        return call

    def note(self, name: str, args: tuple[Any, ...]) -> int | None:
        """Record a call and tell the errno it shall fail with."""
        position = len(self.calls)
        self.calls.append((name, args[0] if args else None))
        return self._fault(position, name)


def once(position: int, code: int) -> Fault:
    """The call at `position` fails, those after it work again."""
    return lambda at, name: code if at == position else None


def lasting(position: int, code: int) -> Fault:
    """From `position` on, everything that needs space fails."""
    return lambda at, name: code if at >= position and name in GROWING else None


@contextmanager
def substituted(calls: SystemCalls) -> Iterator[SystemCalls]:
    """`_files` uses `calls` meanwhile; locking is one of the recorded calls."""
    real_os, real_fcntl = _files.os, _files.fcntl

    assert real_fcntl is not None

    def flock(fd: int, operation: int) -> None:
        # Giving a lock back does not fail on a descriptor that is open.
        code = calls.note("flock", (fd,)) if operation != real_fcntl.LOCK_UN else None
        if code is not None:
            raise OSError(code, os.strerror(code))
        real_fcntl.flock(fd, operation)

    _files.os = calls
    modes = {name: getattr(real_fcntl, name) for name in ("LOCK_EX", "LOCK_NB", "LOCK_SH", "LOCK_UN")}
    _files.fcntl = SimpleNamespace(flock=flock, **modes)
    try:
        yield calls
    finally:
        _files.os, _files.fcntl = real_os, real_fcntl


def calls_of(operation: Callable[[], object]) -> list[str]:
    """The names of the system calls that an operation makes."""
    with substituted(SystemCalls()) as calls:
        operation()
    return calls.names
