"""A stand-in for the operating system that fails on demand, in every module of the package at once. Which call is to
fail, and how, is said by a `Fault`; whether what came of it is right is for the lab to say.

Every call that is not told to fail really happens, but for waiting for the disk: a test cannot lose its power.
"""

from __future__ import annotations

import errno
import fcntl as real_fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

PACKAGE: Final = "langgraph_turncheckpoint"

#: What a call can be refused with in practice. `create` is an `open` that makes a file, `open+` one that may write.
REFUSALS: Final[dict[str, tuple[str, ...]]] = {
    "access": ("EIO", "EACCES"),
    "close": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "create": ("ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EIO", "EINTR"),
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "flock": ("EINTR", "EIO", "ENOLCK"),
    "fstat": ("EIO",),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "ftruncate": ("EIO", "EROFS", "EINTR"),
    "fullfsync": ("ENOTSUP", "EINVAL", "EIO"),
    "listdir": ("EIO", "EMFILE", "EACCES"),
    "locking": ("EDEADLK", "EACCES", "EIO"),
    "lseek": ("EIO",),
    "lstat": ("EIO", "EACCES"),
    "mkdir": ("ENOSPC", "EDQUOT", "EROFS", "EIO"),
    "open": ("EIO", "EMFILE", "EACCES", "EINTR"),
    "open+": ("EIO", "EMFILE", "EROFS", "EINTR"),
    "read": ("EIO", "EINTR"),
    "replace": ("ENOSPC", "EDQUOT", "EROFS", "EIO"),
    "rmdir": ("EIO", "EROFS"),
    "scandir": ("EIO", "EMFILE"),
    "stat": ("EIO", "EACCES"),
    "unlink": ("EIO", "EROFS", "EACCES"),
    "write": ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EINTR"),
}
#: Where a refusal lasts, the calls that suffer it from then on.
LASTING: Final[dict[str, frozenset[str]]] = {
    "EACCES": frozenset({"create", "mkdir", "replace", "unlink", "rmdir"}),
    "EDQUOT": frozenset({"create", "write", "fsync", "fdatasync", "mkdir"}),
    "EIO": frozenset(REFUSALS) - {"close", "flock", "fullfsync", "locking", "lseek"},
    "EMFILE": frozenset({"create", "open", "open+", "listdir", "scandir"}),
    "ENOSPC": frozenset({"create", "write", "fsync", "fdatasync", "mkdir"}),
    "EROFS": frozenset({"create", "open+", "write", "ftruncate", "mkdir", "replace", "unlink", "rmdir"}),
}
#: Ways to fail that are no refusal, by the call they are for.
ODD: Final[dict[str, tuple[str, ...]]] = {
    # One byte is taken; half is; nothing is; half, and then the disk is full.
    "write": ("one byte", "half", "nothing", "torn"),
    # The bytes are lost, too, and the next sync succeeds: Linux keeps neither after an error.
    "fdatasync": ("dropped",),
    "fsync": ("dropped",),
}
#: Windows refuses these while another process has the file open; `delayed` ends before patience does.
SHARED: Final = frozenset({"create", "open", "open+", "replace", "unlink"})
SHARING: Final = ("delayed", "sharing")
#: How many tries a sharing violation that passes lasts.
DELAY_TRIES: Final = 3

Platform = Literal["posix", "darwin", "win32"]


class Fault(NamedTuple):
    """One way for one call of an operation to fail.

    Attributes:
        position: Which of the operation's calls.
        call: Its name, for messages.
        kind: An errno by name, or one of the odd ways.
        lasts: Whether it stays that way until the operation is over.
    """

    position: int
    call: str
    kind: str
    lasts: bool = False

    def __str__(self) -> str:
        lasting = " for good" if self.lasts and self.kind not in SHARING else ""
        return f"{self.kind}{lasting} at call {self.position} ({self.call})"

    @property
    def code(self) -> int:
        """The errno that the caller gets to see, if any."""
        odd = {"torn": errno.ENOSPC, "nothing": errno.ENOSPC, "dropped": errno.EIO}
        odd |= dict.fromkeys(SHARING, errno.EACCES)
        return odd[self.kind] if self.kind in odd else int(getattr(errno, self.kind, 0))

    @property
    def is_harmless(self) -> bool:
        """Whether the operation must get along with it."""
        if self.call == "fullfsync":
            return self.kind != "EIO"  # not every file system knows it
        return self.kind in {"one byte", "half", "delayed"} or (self.kind == "nothing" and not self.lasts)


class Outcome(NamedTuple):
    """What came of one fault."""

    was_refused: bool
    problems: list[str]


def faults_at(position: int, call: str, platform: Platform = "posix") -> Iterator[Fault]:
    """Every fault that a call can have, once and, where that differs from once at a later call, for good."""
    if platform == "win32":
        if call in SHARED:
            yield from (Fault(position, call, kind, lasts=True) for kind in SHARING)
        elif call == "locking":
            yield from (Fault(position, call, kind) for kind in REFUSALS[call])
        return
    if platform == "darwin":
        if call == "fullfsync":
            yield from (Fault(position, call, kind, lasts=lasts) for kind in REFUSALS[call] for lasts in (False, True))
        return
    for kind in REFUSALS[call]:
        yield Fault(position, call, kind)
        if call in LASTING.get(kind, ()):
            yield Fault(position, call, kind, lasts=True)
    for kind in ODD.get(call, ()):
        yield Fault(position, call, kind)
        if kind in {"half", "nothing", "dropped"}:
            yield Fault(position, call, kind, lasts=True)


class System:
    """The system with one fault, or none.

    Args:
        fault: The fault.
        platform: Whose branches the package takes.

    Attributes:
        platform: Whose branches the package takes.
        calls: Name and path of each call so far.
        hits: The positions of those that suffered the fault.
    """

    def __init__(self, fault: Fault | None = None, *, platform: Platform = "posix") -> None:
        self.calls: list[tuple[str, str]] = []
        self.hits: list[int] = []
        self._fault, self.platform = fault, platform
        self._paths: dict[int, str] = {}
        self._synced: dict[str, bytes] = {}
        self._guard = threading.Lock()

    def _suffers(self, name: str, path: str) -> bool:
        """Note a call; whether the fault strikes it."""
        with self._guard:
            at = len(self.calls)
            self.calls.append((name, path))
            if self._fault is None or not self._strikes(self._fault, at, name, path):
                return False
            self.hits.append(at)
            return True

    def _strikes(self, fault: Fault, at: int, name: str, path: str) -> bool:
        if not self.hits:
            # Where threads race, a call may come a little later than when it was counted.
            return at >= fault.position and name == fault.call
        if fault.kind in SHARING:
            tries = DELAY_TRIES if fault.kind == "delayed" else sys.maxsize
            return (name, path) == self.calls[self.hits[0]] and len(self.hits) < tries
        if fault.kind == "torn":
            return name in LASTING["ENOSPC"]
        return fault.lasts and name in LASTING.get(fault.kind, {fault.call})

    def _refuse(self) -> OSError:
        assert self._fault is not None
        return OSError(self._fault.code, os.strerror(self._fault.code))

    def _plain(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if isinstance(args[0], str) else self._paths.get(args[0], "")
            if self._suffers(name, path):
                if name == "access":
                    return False  # that is how it says so
                if name == "close":
                    os.close(args[0])  # a close that reports an error has closed all the same
                raise self._refuse()
            return real(*args, **kwargs)

        return call

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """`os.open`, known as `create`, `open+` or `open`."""
        is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        name = "create" if is_new else "open+" if flags & (os.O_RDWR | os.O_WRONLY) else "open"
        if self._suffers(name, path):
            raise self._refuse()
        fd = os.open(path, flags, mode)
        self._paths[fd] = path
        if name != "open" and path not in self._synced:
            self._synced[path] = b"" if is_new else _content(path)
        return fd

    def write(self, fd: int, data: bytes) -> int:
        """`os.write`, which may take less than it is given."""
        if not self._suffers("write", self._paths.get(fd, "")):
            return os.write(fd, data)
        fault = self._fault
        assert fault is not None
        if fault.kind == "nothing":
            return 0
        if fault.kind == "one byte":
            return os.write(fd, data[:1])
        if fault.kind == "half" or (fault.kind == "torn" and len(self.hits) == 1):
            return os.write(fd, data[: (len(data) + 1) // 2])
        raise self._refuse()

    def _synchronize(self, name: str, fd: int) -> None:
        path = self._paths.get(fd, "")
        if self._suffers(name, path):
            if self._fault is not None and self._fault.kind == "dropped" and path in self._synced:
                with open(path, "r+b") as file:
                    file.truncate(0)
                    file.write(self._synced[path])
            raise self._refuse()
        if path in self._synced:
            self._synced[path] = _content(path)

    def fsync(self, fd: int) -> None:
        """`os.fsync`, without the wait."""
        self._synchronize("fsync", fd)

    def replace(self, source: str, target: str) -> None:
        """`os.replace`."""
        if self._suffers("replace", target):
            raise self._refuse()
        os.replace(source, target)
        self._synced[target] = self._synced.pop(source, b"")

    def __getattr__(self, name: str) -> Any:
        if name == "fdatasync":
            if self.platform != "posix":
                raise AttributeError(name)
            return lambda fd: self._synchronize(name, fd)
        return self._plain(name) if name in REFUSALS else getattr(os, name)

    @property
    def path(self) -> Any:
        """`os.path`, whose questions are answered by `stat`."""
        calls = {name: getattr(os.path, name) for name in ("abspath", "basename", "dirname", "join", "realpath")}
        return SimpleNamespace(**calls, exists=self._exists, isdir=self._is_directory)

    def _exists(self, path: str) -> bool:
        return not self._suffers("stat", path) and os.path.exists(path)

    def _is_directory(self, path: str) -> bool:
        return not self._suffers("stat", path) and os.path.isdir(path)

    # --- locks ---

    def flock(self, fd: int, operation: int) -> None:
        """`fcntl.flock`. Giving a lock back does not fail on a descriptor that is open."""
        if operation != real_fcntl.LOCK_UN and self._suffers("flock", self._paths.get(fd, "")):
            raise self._refuse()
        real_fcntl.flock(fd, operation)

    def fcntl(self, fd: int, operation: int) -> None:
        """`fcntl.fcntl` as macOS has it: waits for the drive, too."""
        assert operation == _FULLFSYNC
        if self._suffers("fullfsync", self._paths.get(fd, "")):
            raise self._refuse()

    def locking(self, fd: int, mode: int, count: int) -> None:
        """`msvcrt.locking`, by a lock that is released and shared as on Windows."""
        assert count == 1
        if mode != _LK_UNLCK and self._suffers("locking", self._paths.get(fd, "")):
            raise self._refuse()
        try:
            real_fcntl.flock(fd, _LOCKING[mode])
        except BlockingIOError:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES)) from None


_FULLFSYNC: Final = 51
_LK_UNLCK, _LK_LOCK, _LK_NBLCK = 0, 1, 2
_LOCKING: Final = {
    _LK_UNLCK: real_fcntl.LOCK_UN,
    _LK_LOCK: real_fcntl.LOCK_EX,
    _LK_NBLCK: real_fcntl.LOCK_EX | real_fcntl.LOCK_NB,
}


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@contextmanager
def failing(system: System) -> Iterator[System]:
    """The whole package speaks to `system` meanwhile."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == PACKAGE]
    patched: list[tuple[ModuleType, str, Any]] = []

    def patch(module: ModuleType, name: str, value: object) -> None:
        patched.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    for module in modules:
        if getattr(module, "os", None) is os:
            patch(module, "os", system)
    files = sys.modules[f"{PACKAGE}._files"]
    modes = {name: getattr(real_fcntl, name) for name in ("LOCK_EX", "LOCK_NB", "LOCK_SH", "LOCK_UN")}
    if system.platform == "win32":
        locks = SimpleNamespace(locking=system.locking, LK_UNLCK=_LK_UNLCK, LK_LOCK=_LK_LOCK, LK_NBLCK=_LK_NBLCK)
        patch(files, "fcntl", None)
        patch(files, "msvcrt", locks)
        patch(files, "platform", "win32")
        patch(files, "time", SimpleNamespace(sleep=lambda seconds: None))
    elif system.platform == "darwin":
        patch(files, "fcntl", SimpleNamespace(flock=system.flock, fcntl=system.fcntl, F_FULLFSYNC=_FULLFSYNC, **modes))
        patch(files, "platform", "darwin")
    else:
        patch(files, "fcntl", SimpleNamespace(flock=system.flock, **modes))
    try:
        yield system
    finally:
        for module, name, value in reversed(patched):
            setattr(module, name, value)


def descriptors_below(path: str) -> list[str]:
    """The files below a directory that this process has open, where the system can tell."""
    found = []
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
        if target.startswith(path + os.sep):
            found.append(target)
    return found
