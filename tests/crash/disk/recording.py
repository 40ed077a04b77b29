"""Stand-ins for the modules through which the file layer speaks to the system: every call really happens in one
directory, and is noted on a simulated disk. What a crash makes of it is not said here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from langgraph_turncheckpoint import _files as files_module
from tests.crash.disk.filesystem import ROOT, Create, Disk, Event, Remove, Rename, Resize, Sync, Write

#: The module as it is patched: typed loosely, because its imports are no part of what it offers.
_files: Any = files_module

_IN_MEMORY: Final = Path("/dev/shm")


class Recorder:
    """`os` with a simulated disk behind one directory.

    Args:
        root: The real directory; it holds what nothing was lost of.
        disk: The disk, in the same state.
        before: Called before each change and each sync.
    """

    def __init__(self, root: str, disk: Disk, *, before: Callable[[], None] | None = None) -> None:
        self._root, self.disk, self.before = os.path.realpath(root), disk, before
        self._inodes: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open a file, and maybe make or empty it."""
        inode = self._inode(path)
        if (flags & os.O_CREAT and inode is None) or flags & os.O_TRUNC:
            self._announce()
            inode = self._inode(path)
        fd = os.open(path, flags, mode)
        if inode is None and flags & os.O_CREAT and (place := self._place(path)) is not None:
            inode = self.disk.new_inode()
            self.disk.note(Create(*place, inode, is_directory=False))
        elif inode is not None and flags & os.O_TRUNC:
            self.disk.note(Resize(inode, 0))
        if inode is not None:
            self._inodes[fd] = inode
        return fd

    def close(self, fd: int) -> None:
        """Close it."""
        self._inodes.pop(fd, None)
        os.close(fd)

    def mkdir(self, path: str, mode: int) -> None:
        """Make a directory."""
        self._announce()
        os.mkdir(path, mode)
        if (place := self._place(path)) is not None:
            self.disk.note(Create(*place, self.disk.new_inode(), is_directory=True))

    def write(self, fd: int, data: bytes) -> int:
        """Write where the file stands."""
        self._announce()
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        written = os.write(fd, data)
        self._note_of(fd, lambda inode: Write(inode, offset, bytes(data[:written])))
        return written

    def ftruncate(self, fd: int, size: int) -> None:
        """Give a file another length."""
        self._announce()
        os.ftruncate(fd, size)
        self._note_of(fd, lambda inode: Resize(inode, size))

    def fsync(self, fd: int) -> None:
        """Note the sync. The real directory is thrown away; only the simulated disk has to know."""
        self._announce()
        self._note_of(fd, Sync)

    fdatasync = fsync

    def replace(self, source: str, target: str) -> None:
        """Rename within a directory."""
        self._announce()
        os.replace(source, target)
        here, there = self._place(source), self._place(target)
        if here is not None and there is not None:
            assert here[0] == there[0], "a rename from one directory to another is not modelled"
            self.disk.note(Rename(*here, there[1]))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._announce()
        os.unlink(path)
        if (place := self._place(path)) is not None:
            self.disk.note(Remove(*place))

    def rmdir(self, path: str) -> None:
        """Remove a directory."""
        self._announce()
        os.rmdir(path)
        if (place := self._place(path)) is not None:
            self.disk.note(Remove(*place))

    def _announce(self) -> None:
        if self.before is not None:
            self.before()

    def _note_of(self, fd: int, made: Callable[[int], Event]) -> None:
        if (inode := self._inodes.get(fd)) is not None:
            self.disk.note(made(inode))

    def _place(self, path: str) -> tuple[int, str] | None:
        """The directory and the name a path leads to; `None` outside the disk."""
        if not path.startswith(self._root + os.sep):
            return None
        *parents, name = path[len(self._root) + 1 :].split(os.sep)
        at = ROOT
        for parent in parents:
            at = self.disk.live.directories[at][parent]
        return at, name

    def _inode(self, path: str) -> int | None:
        if path == self._root:
            return ROOT
        try:
            place = self._place(path)
        except KeyError:  # in a directory that is not there
            return None
        return None if place is None else self.disk.live.directories[place[0]].get(place[1])


@contextmanager
def recorded(recorder: Recorder, *, locks: bool = True) -> Iterator[Recorder]:
    """`_files` uses the recorder meanwhile.

    Args:
        recorder: The recorder.
        locks: Whether this system locks files; some network file systems do not.
    """
    real_os, real_fcntl = _files.os, _files.fcntl
    assert real_fcntl is not None
    _files.os = recorder
    if not locks:
        modes = {name: getattr(real_fcntl, name) for name in ("LOCK_EX", "LOCK_NB", "LOCK_SH", "LOCK_UN")}
        _files.fcntl = SimpleNamespace(flock=lambda fd, operation: None, **modes)
    try:
        yield recorder
    finally:
        _files.os, _files.fcntl = real_os, real_fcntl


@contextmanager
def directory() -> Iterator[str]:
    """An empty directory, in memory where the system has such; it goes with the block."""
    path = os.path.realpath(tempfile.mkdtemp(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def lay_out(paths: dict[str, bytes | None], root: str) -> None:
    """Make these files and directories real, in a directory that is there and empty."""
    for path in sorted(paths):
        data = paths[path]
        if data is None:
            os.mkdir(f"{root}/{path}", 0o700)
        else:
            fd = os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
