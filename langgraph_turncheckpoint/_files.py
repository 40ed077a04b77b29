"""Durable files: replace, append, lock, list. Bytes only; what they mean is decided elsewhere.

Every system call goes through this module's `os`, `fcntl` and `msvcrt`, so that tests can make each
of them fail and can run the macOS and Windows branches anywhere. Whatever the system refuses surfaces
as `StorageError` with the errno and the path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final, NamedTuple, TypeVar

from .errors import StorageError

fcntl: ModuleType | None
msvcrt: ModuleType | None
try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None
try:
    import msvcrt
except ImportError:
    msvcrt = None

platform: str = sys.platform

T = TypeVar("T")

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
#: On Windows another process that has a file open makes renames and opens fail for a moment.
SHARING_RETRIES: Final = 50
SHARING_PAUSE: Final = 0.01
_BINARY: Final = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class _reported:  # noqa: N801 - used like a function; a generator would cost three times as much
    """Turns what the system refuses into a `StorageError` that names the path."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise storage_error(error, self._path) from error


def storage_error(error: OSError, path: str) -> StorageError:
    """The typed error for what the system refused."""
    code = error.errno if error.errno is not None else errno.EIO
    return StorageError(code, error.strerror or str(error), path)


def read_file(path: str) -> bytes | None:
    """All bytes of a file, or `None` if there is none."""
    try:
        fd = _open(path, os.O_RDONLY | _BINARY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, path) from error
    with _reported(path):
        try:
            return _read_all(fd)
        finally:
            os.close(fd)


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    chunks = [data]
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


class Ends(NamedTuple):
    """How long a file is, and its first and last bytes."""

    size: int
    head: bytes
    tail: bytes


def read_ends(path: str, *, head: int, tail: int) -> Ends | None:
    """The first `head` and the last `tail` bytes of a file, or all there are; `None` if there is no file."""
    try:
        fd = _open(path, os.O_RDONLY | _BINARY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, path) from error
    with _reported(path):
        try:
            size = os.fstat(fd).st_size
            first = os.read(fd, head)
            os.lseek(fd, max(0, size - tail), os.SEEK_SET)
            return Ends(size, first, os.read(fd, tail))
        finally:
            os.close(fd)


def list_directory(path: str) -> list[str]:
    """The names in a directory; empty if there is no such directory."""
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_error(error, path) from error


def exists(path: str) -> bool:
    """Whether there is anything at a path.

    Raises:
        StorageError: The system does not tell. `os.path.exists` and `os.access` would say no, and what is there would
            be written over.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return True


def is_directory(path: str) -> bool:
    """Whether there is a directory at a path.

    Raises:
        StorageError: The system does not tell.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path) from error


def file_sizes(path: str) -> Iterator[int]:
    """The length of every file below a directory. Links are not followed; what goes meanwhile is passed over."""
    for name in list_directory(path):
        entry = os.path.join(path, name)
        try:
            status = os.lstat(entry)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise storage_error(error, entry) from error
        if stat.S_ISDIR(status.st_mode):
            yield from file_sizes(entry)
        else:
            yield status.st_size


def check_directory(path: str) -> None:
    """Fail where a path is something else than a directory; it need not exist."""
    with _reported(path):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "is a file, not a directory", path)


def make_directory(path: str, *, fsync: bool) -> None:
    """Make a directory and its missing parents; durable on return if `fsync`."""
    with _reported(path):
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            make_directory(parent, fsync=fsync)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, "is a file, not a directory", path) from None
            return
        if fsync:
            try:
                sync_directory(parent or os.curdir)
            except BaseException:
                # Left in place it would be taken for durable by whoever needs it next.
                with contextlib.suppress(OSError):
                    os.rmdir(path)
                raise


def replace_file(path: str, data: bytes, *, temporary: str, fsync: bool) -> None:
    """Put `data` at `path` in one step: a reader sees the old bytes or the new, never a mixture.

    With `fsync` the new bytes and their name survive power loss on return. If a step fails, the temporary
    file is gone, and a file that was not there before is not there; only where the sync of the directory
    fails may an old file have given way to the new one.

    Args:
        path: The file.
        data: All its bytes.
        temporary: A name, in the same directory, that no other writer uses.
        fsync: Whether to wait for the disk.
    """
    with _reported(path), contextlib.ExitStack() as undo:
        # Opened first: once the file has its name, as little as possible may fail.
        directory = _open_directory(os.path.dirname(path)) if fsync else None
        if directory is not None:
            undo.callback(_close_quietly, directory)
        fd = _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, FILE_MODE)
        try:
            _fill(fd, data, fsync=fsync)
            is_new = not exists(path)
            _retried(lambda: os.replace(temporary, path))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if directory is not None:
            try:
                _sync_fully(directory)
            except BaseException:
                if is_new:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                raise


def make_empty_file(path: str, *, fsync: bool) -> None:
    """Make a file whose name says all; with `fsync` that survives power loss on return. One that is there stays."""
    with _reported(path):
        os.close(_open(path, os.O_WRONLY | os.O_CREAT | _BINARY, FILE_MODE))
    if fsync:
        sync_directory(os.path.dirname(path))


def append_file(path: str, data: bytes, *, at: int, fsync: bool) -> None:
    """Write `data` at offset `at`, which becomes the end of what the file held before.

    What lay behind `at` is a torn tail and goes. With `fsync` the bytes survive power loss on return.
    If a step fails, the file is cut back to `at`.
    """
    with _reported(path):
        fd = _open(path, os.O_RDWR | _BINARY)
        try:
            if os.fstat(fd).st_size > at:
                os.ftruncate(fd, at)
            try:
                os.lseek(fd, at, os.SEEK_SET)
                _write_all(fd, data)
                if fsync:
                    sync_file(fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, at)
                raise
        except BaseException:
            _close_quietly(fd)
            raise
        # Once the bytes are on the disk, nothing that closing says can change that.
        (_close_quietly if fsync else os.close)(fd)


def sync_existing(path: str) -> None:
    """Wait until what somebody has written to a file is on the disk: a writer who was killed may not have."""
    with _reported(path):
        fd = _open(path, os.O_RDWR | _BINARY)
        try:
            sync_file(fd)
        finally:
            _close_quietly(fd)


def copy_file(source: str, target: str, *, fsync: bool) -> None:
    """Copy a file's bytes as they are now; a source that is gone meanwhile is passed over.

    The caller syncs the directory.
    """
    data = read_file(source)
    if data is None:
        return
    with _reported(target):
        _fill(_open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY, FILE_MODE), data, fsync=fsync)


def move_file(source: str, target: str) -> None:
    """Give a file another name in its directory, in place of whatever had that; the caller syncs the directory."""
    with _reported(source):
        _retried(lambda: os.replace(source, target))


def remove_file(path: str) -> None:
    """Remove a file; it is fine if it is gone already."""
    with _reported(path):
        try:
            _retried(lambda: os.unlink(path))
        except FileNotFoundError:
            return


def remove_tree(path: str) -> None:
    """Remove a directory with everything in it; it is fine if it is gone already."""
    with _reported(path):
        try:
            entries = list(os.scandir(path))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                remove_file(entry.path)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)


def remove_empty_directory(path: str) -> None:
    """Remove a directory if nothing is in it."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def sync_file(fd: int) -> None:
    """Wait until a file's bytes and length are on the disk."""
    if getattr(fcntl, "F_FULLFSYNC", None) is None and hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        _sync_fully(fd)


def _sync_fully(fd: int) -> None:
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None and fcntl is not None:
        # On macOS fsync only reaches the drive's cache. Not every file system knows the full one.
        try:
            fcntl.fcntl(fd, full_sync)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        else:
            return
    os.fsync(fd)


#: What a file system says that cannot sync past the drive's cache. Anything else is a lost write.
_UNSUPPORTED: Final = frozenset(
    getattr(errno, name) for name in ("EINVAL", "ENOTSUP", "EOPNOTSUPP", "ENOTTY", "ENOSYS")
)


def sync_directory(path: str) -> None:
    """Wait until a directory's entries are on the disk. Windows does that with the rename."""
    with _reported(path):
        fd = _open_directory(path)
        if fd is not None:
            try:
                _sync_fully(fd)
            finally:
                _close_quietly(fd)


def _open_directory(path: str) -> int | None:
    return None if platform == "win32" else os.open(path, os.O_RDONLY | _BINARY)


def _close_quietly(fd: int) -> None:
    # All that was to be synced has been; a directory that is only read loses nothing by a failing close.
    with contextlib.suppress(OSError):
        os.close(fd)


class LockedFile:
    """A small file that is locked against other threads and processes while this is entered.

    The lock belongs to the open file, so it excludes threads of this process like any other process, and
    vanishes with the process that holds it, however that ends.
    """

    def __init__(self, path: str, *, create: bool) -> None:
        self._path = path
        self._flags = os.O_RDWR | _BINARY | (os.O_CREAT if create else 0)
        self.fd = -1

    def __enter__(self) -> LockedFile:
        with _reported(self._path):
            self.fd = _open(self._path, self._flags, FILE_MODE)
            _locked.add(self.fd)
            try:
                _lock(self.fd)
            except BaseException:
                self._close()
                raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        # What was done under the lock is done: failing now would report it as not done. A lock that could not
        # be given back goes when the file is closed.
        with contextlib.suppress(OSError):
            _unlock(self.fd)
        with contextlib.suppress(OSError):
            self._close()

    def _close(self) -> None:
        _locked.discard(self.fd)
        os.close(self.fd)

    def read(self) -> bytes:
        """All bytes of the file."""
        with _reported(self._path):
            os.lseek(self.fd, 0, os.SEEK_SET)
            return _read_all(self.fd)

    def truncate(self) -> None:
        """Empty the file again."""
        with _reported(self._path):
            os.ftruncate(self.fd, 0)

    def write(self, data: bytes, *, at: int) -> None:
        """Write in place. Not durable before `sync`."""
        with _reported(self._path):
            os.lseek(self.fd, at, os.SEEK_SET)
            _write_all(self.fd, data)

    def sync(self) -> None:
        """Wait until the bytes are on the disk."""
        with _reported(self._path):
            sync_file(self.fd)


class HeldFile:
    """A new append-only file that stays open and locked until it is closed.

    The lock says that its holder lives: whoever wants to know asks `is_locked`. It goes with the process, however
    that ends, and a forked child does not keep it.
    """

    __slots__ = ("__weakref__", "_end", "_fd", "_guard", "_is_torn", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._end, self._is_torn = 0, False
        self._fd = -1

    @classmethod
    def create(cls, path: str) -> HeldFile:
        """Make the file and lock it.

        Raises:
            StorageError: It is there already (`EEXIST`), or the system refused; no new file is left.
        """
        held = cls(path)
        _held.add(held)
        with _reported(path):
            held._fd = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, FILE_MODE)
            _locked.add(held._fd)
            try:
                _lock(held._fd)
            except BaseException:
                held.close()
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
        return held

    @property
    def is_open(self) -> bool:
        """Whether the lock is held here."""
        return self._fd >= 0

    def append(self, data: bytes, *, fsync: bool) -> bool:
        """Write behind what was appended before; `False`, and nothing written, once the file is closed.

        With `fsync` all that was appended so far survives power loss on return, if the file's name does. If a
        step fails, the file is cut back to where it was.
        """
        with _reported(self.path), self._guard:
            if self._fd < 0:
                return False
            if self._is_torn:
                os.ftruncate(self._fd, self._end)
                self._is_torn = False
            try:
                os.lseek(self._fd, self._end, os.SEEK_SET)
                _write_all(self._fd, data)
                if fsync:
                    sync_file(self._fd)
            except BaseException:
                self._is_torn = True
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._end)
                    self._is_torn = False
                raise
            self._end += len(data)
            return True

    def close(self) -> None:
        """Give the lock back. Never fails, and does nothing the second time."""
        with self._guard:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            with contextlib.suppress(OSError):
                _unlock(fd)
            _locked.discard(fd)
            _close_quietly(fd)

    def __del__(self) -> None:
        # Nobody can write to it any more, so nobody shall take it for a sign of life.
        with contextlib.suppress(Exception):
            self.close()

    def forget(self) -> None:
        """In a forked child: the file is the parent's."""
        self._guard = threading.Lock()
        self._fd = -1


def is_locked(path: str) -> bool:
    """Whether somebody alive holds the file locked; `False` if there is none. Disturbs neither holder nor askers.

    On Windows, where no lock can be shared between askers, two at the same instant may see each other.
    """
    try:
        fd = _open(path, os.O_RDONLY | _BINARY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    with _reported(path):
        _locked.add(fd)
        try:
            return not _is_free(fd)
        finally:
            _locked.discard(fd)
            _close_quietly(fd)


def _is_free(fd: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(fd, _LOCK_BYTE, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        taken = (errno.EACCES, errno.EDEADLK) if fcntl is None else (errno.EWOULDBLOCK, errno.EAGAIN)
        if error.errno not in taken:
            raise
        return False
    _unlock(fd)
    return True


def _open(path: str, flags: int, mode: int = FILE_MODE) -> int:
    if platform == "win32":
        return _retried(lambda: os.open(path, flags, mode))
    return os.open(path, flags, mode)


def _fill(fd: int, data: bytes, *, fsync: bool) -> None:
    """Write all of a new file, and close it whatever happens."""
    try:
        _write_all(fd, data)
        if fsync:
            sync_file(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        step = os.write(fd, data[written:])
        if step == 0:
            raise OSError(errno.ENOSPC, "the system wrote nothing")
        written += step


def _retried(call: Callable[[], T]) -> T:
    """Run `call`; on Windows wait out another process that has the file open."""
    for _ in range(SHARING_RETRIES if platform == "win32" else 0):
        try:
            return call()
        except PermissionError:
            time.sleep(SHARING_PAUSE)
    return call()


def _lock(fd: int) -> None:
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return
    assert msvcrt is not None
    while True:
        os.lseek(fd, _LOCK_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_LOCK, 1)  # gives up after ten seconds
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise


def _unlock(fd: int) -> None:
    # Closing is not enough: a child that was forked meanwhile has the same open file.
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_UN)
    elif msvcrt is not None:
        os.lseek(fd, _LOCK_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)


#: Windows locks bytes, and a locked byte cannot be read by others: this one is never used.
_LOCK_BYTE: Final = 0x7FFF0000


#: Descriptors of locked files, so that a forked child does not keep its parent's locks alive.
_locked: set[int] = set()
#: Files that stay locked, so that a forked child does not write into its parent's.
_held: weakref.WeakSet[HeldFile] = weakref.WeakSet()


def _drop_inherited_locks() -> None:
    for held in list(_held):
        held.forget()
    for fd in _locked:
        with contextlib.suppress(OSError):
            os.close(fd)
    _locked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited_locks)
