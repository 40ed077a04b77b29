"""Durable files: whichever system call fails, the old bytes stay and the error is typed; each system has its way."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
import warnings
from types import SimpleNamespace

import pytest

from langgraph_turncheckpoint import StorageError, _files
from tests.system_calls import CODES, SystemCalls, calls_of, lasting, once, substituted

OLD, NEW = b"old bytes", b"new bytes, and more of them"


def replace(path, *, fsync=True):
    _files.replace_file(str(path), NEW, temporary=f"{path}.tmp", fsync=fsync)


def append(path):
    _files.append_file(str(path), NEW, at=len(OLD), fsync=True)


def lock_and_write(path):
    with _files.LockedFile(str(path), create=True) as file:
        file.read()
        file.write(NEW, at=0)
        file.sync()


def hold_and_append(path):
    path.unlink(missing_ok=True)
    held = _files.HeldFile.create(str(path))
    try:
        held.append(NEW, fsync=True)
    finally:
        held.close()


OPERATIONS = {
    "replace_file": replace,
    "append_file": append,
    "LockedFile": lock_and_write,
    "HeldFile": hold_and_append,
    "is_locked": lambda path: _files.is_locked(str(path)),
    "read_ends": lambda path: _files.read_ends(str(path), head=3, tail=3),
    "read_file": lambda path: _files.read_file(str(path)),
    "list_directory": lambda path: _files.list_directory(str(path.parent)),
    "check_directory": lambda path: _files.check_directory(str(path.parent)),
    "make_directory": lambda path: _files.make_directory(str(path.parent / "a" / "b"), fsync=True),
    "copy_file": lambda path: _files.copy_file(str(path), f"{path}.copy", fsync=True),
    "remove_file": lambda path: _files.remove_file(str(path)),
    "remove_tree": lambda path: _files.remove_tree(str(path.parent)),
    "sync_directory": lambda path: _files.sync_directory(str(path.parent)),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "directory" / "file"
    path.parent.mkdir()
    path.write_bytes(OLD)
    return path


def points(name, tmp_path):
    """Every system call of an operation, by position."""
    path = tmp_path / f"rehearsal-{name}" / "file"
    path.parent.mkdir()
    path.write_bytes(OLD)
    return calls_of(lambda: OPERATIONS[name](path))


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failing_system_call_is_a_storage_error_with_errno_and_path(name, code, tmp_path):
    names = points(name, tmp_path)
    assert names
    for position, call in enumerate(names):
        path = tmp_path / f"{position}" / "file"
        path.parent.mkdir()
        path.write_bytes(OLD)
        with substituted(SystemCalls(once(position, code))):
            try:
                OPERATIONS[name](path)
            except StorageError as error:
                told = (error.errno, str(error.filename).startswith(str(path.parent)))
            else:
                # Where everything was synced, or only read, a failing close says nothing.
                told = (code, call == "close")
        assert told == (code, True), call


@pytest.mark.parametrize("fault", [once, lasting])
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_replace_that_fails_anywhere_keeps_the_old_bytes_and_leaves_no_litter(code, fault, tmp_path):
    names = points("replace_file", tmp_path)
    for position, call in enumerate(names):
        path = tmp_path / f"{position}" / "file"
        path.parent.mkdir()
        path.write_bytes(OLD)
        failed = False
        with substituted(SystemCalls(fault(position, code))) as calls:
            try:
                replace(path)
            except StorageError:
                failed = True
        assert os.listdir(path.parent) == ["file"]
        if "fsync" in calls.names:  # the rename is done and cannot be undone without a second one
            assert path.read_bytes() in {OLD, NEW}
        else:
            assert path.read_bytes() == (OLD if failed else NEW), call
        assert failed or fault is lasting or call == "close"


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_first_write_that_fails_anywhere_leaves_nothing(code, tmp_path):
    for position, call in enumerate(points("replace_file", tmp_path)):
        path = tmp_path / f"{position}" / "file"
        path.parent.mkdir()
        with substituted(SystemCalls(once(position, code))):
            try:
                replace(path)
            except StorageError:
                assert os.listdir(path.parent) == [], call
            else:
                assert call == "close"


def test_a_written_file_that_cannot_be_closed_is_a_failed_write(path):
    """Some file systems report a lost write only then."""
    names = calls_of(lambda: replace(path))
    position = next(at for at, name in enumerate(names) if name == "close")
    path.write_bytes(OLD)
    with substituted(SystemCalls(once(position, errno.EIO))), pytest.raises(StorageError):
        replace(path)
    assert os.listdir(path.parent) == ["file"]
    assert path.read_bytes() == OLD


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_an_append_that_fails_anywhere_leaves_the_file_as_it_was(code, tmp_path):
    for position, call in enumerate(points("append_file", tmp_path)):
        path = tmp_path / f"{position}" / "file"
        path.parent.mkdir()
        path.write_bytes(OLD)
        failed = False
        with substituted(SystemCalls(once(position, code))):
            try:
                append(path)
            except StorageError:
                failed = True
        assert path.read_bytes() == (OLD if failed else OLD + NEW), call
        assert failed or call == "close"
        append(path)
        assert path.read_bytes() == OLD + NEW, call


@pytest.mark.parametrize("step", [1, 2, 7])
def test_short_writes_are_continued(step, path):
    with substituted(SystemCalls(write_at_most=step)):
        replace(path)
        assert path.read_bytes() == NEW
        _files.append_file(str(path), OLD, at=len(NEW), fsync=True)
        assert path.read_bytes() == NEW + OLD
        lock_and_write(path)
        assert path.read_bytes() == NEW + OLD
        _files.copy_file(str(path), f"{path}.copy", fsync=True)
    assert (path.parent / "file.copy").read_bytes() == NEW + OLD


def test_a_system_that_writes_nothing_is_a_full_disk_and_not_a_loop(path):
    with substituted(SystemCalls(write_at_most=0)), pytest.raises(StorageError) as caught:
        replace(path)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(path.parent) == ["file"]


def test_a_failed_second_half_of_a_write_leaves_nothing_of_the_first(path):
    failing = SystemCalls(lambda at, name: errno.ENOSPC if name == "write" and at > 4 else None, write_at_most=5)
    with substituted(failing), pytest.raises(StorageError):
        append(path)
    assert failing.names.count("write") >= 2
    assert path.read_bytes() == OLD


def test_a_replace_is_synced_before_its_rename_and_its_directory_after(path):
    names = calls_of(lambda: replace(path))
    assert [name for name in names if name in {"write", "fdatasync", "replace", "fsync"}] == [
        "write", "fdatasync", "replace", "fsync",
    ]  # fmt: skip


def test_without_fsync_nothing_waits_for_the_disk(path, tmp_path):
    def all_of_it():
        replace(path, fsync=False)
        _files.append_file(str(path), OLD, at=0, fsync=False)
        _files.make_directory(str(tmp_path / "x" / "y"), fsync=False)
        _files.copy_file(str(path), f"{path}.copy", fsync=False)

    assert not {"fsync", "fdatasync"} & set(calls_of(all_of_it))


def test_an_append_cuts_off_a_torn_tail(path):
    path.write_bytes(OLD + b"torn")
    append(path)
    assert path.read_bytes() == OLD + NEW


def test_a_new_directory_is_synced_into_each_new_parent(tmp_path):
    with substituted(SystemCalls()) as calls:
        _files.make_directory(str(tmp_path / "a" / "b"), fsync=True)
    assert [(name, what) for name, what in calls.calls if name in {"mkdir", "open"}] == [
        ("mkdir", str(tmp_path / "a")),
        ("open", str(tmp_path)),
        ("mkdir", str(tmp_path / "a" / "b")),
        ("open", str(tmp_path / "a")),
    ]
    assert calls.names.count("fsync") == 2
    assert "fsync" not in calls_of(lambda: _files.make_directory(str(tmp_path / "a" / "b"), fsync=True))


def test_a_directory_whose_sync_failed_is_not_taken_for_durable_by_the_next_call(tmp_path):
    """Else what is written into it later is acknowledged, and its name may not survive power loss."""
    wanted = str(tmp_path / "a")
    failing = SystemCalls(lambda at, name: errno.EIO if name == "fsync" else None)
    with substituted(failing), pytest.raises(StorageError):
        _files.make_directory(wanted, fsync=True)
    assert "fsync" in calls_of(lambda: _files.make_directory(wanted, fsync=True))


def test_directories_and_files_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        _files.make_directory(str(tmp_path / "a" / "b"), fsync=False)
        replace(tmp_path / "a" / "file")
        _files.copy_file(str(tmp_path / "a" / "file"), str(tmp_path / "a" / "copy"), fsync=False)
        with _files.LockedFile(str(tmp_path / "a" / "lock"), create=True):
            pass
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700] * 2
    assert [(tmp_path / "a" / name).stat().st_mode & 0o777 for name in ("file", "copy", "lock")] == [0o600] * 3


def test_a_file_where_a_directory_belongs_is_named(path):
    for attempt in (
        lambda: _files.make_directory(str(path), fsync=True),
        lambda: _files.make_directory(str(path / "below"), fsync=True),
        lambda: _files.check_directory(str(path)),
    ):
        with pytest.raises(StorageError) as caught:
            attempt()
        assert caught.value.errno in {errno.ENOTDIR, errno.EEXIST}
        assert str(path) in str(caught.value)


def test_what_is_gone_is_no_error_to_read_list_copy_or_remove(tmp_path):
    gone = str(tmp_path / "gone" / "file")
    assert _files.read_file(gone) is None
    assert _files.list_directory(gone) == []
    _files.copy_file(gone, str(tmp_path / "copy"), fsync=True)
    _files.remove_file(gone)
    _files.remove_tree(gone)
    _files.remove_empty_directory(gone)
    _files.check_directory(gone)
    assert os.listdir(tmp_path) == []


def test_a_removed_tree_does_not_follow_links_out(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(OLD)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "file-link").symlink_to(outside / "precious")
    _files.remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "precious").read_bytes() == OLD


def test_a_file_that_grows_while_it_is_read_is_read_whole(path):
    class Growing(SystemCalls):
        def __getattr__(self, name):
            if name == "fstat":
                return lambda fd: SimpleNamespace(st_size=3)
            return super().__getattr__(name)

    with substituted(Growing()):
        assert _files.read_file(str(path)) == OLD


# --- locks ---


def test_two_threads_never_hold_one_file_at_once(path):
    order = []
    entered, leave = threading.Event(), threading.Event()

    def first():
        with _files.LockedFile(str(path), create=False):
            entered.set()
            leave.wait(30)
            order.append("first")

    def second():
        with _files.LockedFile(str(path), create=False):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait(30)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first", "second"]


def test_a_lock_that_could_not_be_taken_or_was_left_by_an_error_is_free(path):
    names = calls_of(lambda: lock_and_write(path))
    for position in range(len(names)):
        with substituted(SystemCalls(once(position, errno.EIO))), contextlib.suppress(StorageError):
            lock_and_write(path)
        done = threading.Event()

        def take(done=done):
            with _files.LockedFile(str(path), create=False):
                done.set()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        assert done.wait(30), names[position]
        thread.join(30)


def test_no_descriptor_is_left_open_by_any_failure(tmp_path):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for name, operation in OPERATIONS.items():
        for position in range(len(points(name, tmp_path))):
            path = tmp_path / f"{name}-{position}" / "file"
            path.parent.mkdir()
            path.write_bytes(OLD)
            with substituted(SystemCalls(once(position, errno.EIO))), contextlib.suppress(StorageError):
                operation(path)
    if before is None:
        pytest.skip("this system does not list open descriptors")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_held_file_is_locked_until_it_is_closed(path):
    new = str(path.parent / "held")
    assert not _files.is_locked(new)
    held = _files.HeldFile.create(new)
    assert [_files.is_locked(new) for _ in range(3)] == [True] * 3
    held.close()
    assert not _files.is_locked(new)
    held.close()


def test_nobody_can_make_a_held_file_that_is_there(path):
    with pytest.raises(StorageError) as caught:
        _files.HeldFile.create(str(path))
    assert caught.value.errno == errno.EEXIST
    assert path.read_bytes() == OLD
    assert not _files.is_locked(str(path))


def test_a_held_file_that_nobody_refers_to_is_free(path):
    new = str(path.parent / "held")
    held = _files.HeldFile.create(new)
    del held
    gc.collect()
    assert not _files.is_locked(new)


def test_asking_disturbs_neither_the_holder_nor_others_who_ask(path):
    """Sixteen who ask at once never take each other for a holder."""
    new, start = str(path.parent / "held"), threading.Barrier(16)
    seen: list[bool] = []
    _files.HeldFile.create(new).close()

    def ask():
        start.wait(30)
        seen.extend(_files.is_locked(new) for _ in range(200))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(seen) == {False}
    assert len(seen) == 16 * 200


@pytest.mark.parametrize("fault", [once, lasting])
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_an_append_to_a_held_file_that_fails_anywhere_can_be_repeated(code, fault, tmp_path):
    names = calls_of(lambda: hold_and_append(tmp_path / "rehearsal"))
    for position in range(len(names)):
        path = tmp_path / f"{position}-{fault.__name__}-{code}"
        held = _files.HeldFile.create(str(path))
        held.append(OLD, fsync=False)
        failed, told = False, (code, str(path))
        with substituted(SystemCalls(fault(position, code), write_at_most=len(NEW) - 2)):
            try:
                held.append(NEW, fsync=True)
            except StorageError as error:
                failed, told = True, (error.errno, error.filename)
        assert told == (code, str(path))
        assert path.read_bytes() in {OLD if failed else OLD + NEW, OLD + NEW[: len(NEW) - 2]}
        if failed:
            assert held.append(NEW, fsync=True)
        assert path.read_bytes() == OLD + NEW
        held.close()
        assert not held.append(NEW, fsync=True)
        assert path.read_bytes() == OLD + NEW


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_neither_keeps_nor_writes_what_its_parent_holds(path):
    new = str(path.parent / "held")
    held = _files.HeldFile.create(new)
    forked, ended = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads about
        child = os.fork()
    if child == 0:
        wrote = held.is_open or held.append(NEW, fsync=False)
        held.close()
        os.write(forked[1], b"1" if wrote or not _files.is_locked(new) else b"0")
        os.read(ended[0], 1)
        os._exit(0)
    try:
        assert os.read(forked[0], 1) == b"0"
        assert held.append(OLD, fsync=False)
        held.close()
        assert not _files.is_locked(new)  # the child is still there
    finally:
        os.write(ended[1], b"x")
        os.waitpid(child, 0)
    with open(new, "rb") as file:
        assert file.read() == OLD


def test_the_ends_of_a_file_may_overlap(path):
    size = len(OLD)
    assert _files.read_ends(str(path), head=3, tail=4) == (size, OLD[:3], OLD[-4:])
    assert _files.read_ends(str(path), head=100, tail=100) == (size, OLD, OLD)
    assert _files.read_ends(str(path.parent / "gone"), head=1, tail=1) is None


# --- other systems, through their modules ---


@pytest.fixture
def macos(monkeypatch):
    """`fcntl` with macOS's full sync; `fault` makes it fail."""
    synced: list[object] = []
    system = SimpleNamespace(calls=SystemCalls(), synced=synced, fault=None)

    def full_sync(fd, operation):
        assert operation == 51
        if system.fault is not None:
            raise OSError(system.fault, os.strerror(system.fault))
        synced.append(os.readlink(f"/proc/self/fd/{fd}") if os.path.isdir("/proc/self/fd") else fd)

    locking = {name: getattr(_files.fcntl, name) for name in ("flock", "LOCK_EX", "LOCK_UN")}
    monkeypatch.setattr(_files, "fcntl", SimpleNamespace(fcntl=full_sync, F_FULLFSYNC=51, **locking))
    monkeypatch.setattr(_files, "os", system.calls)
    monkeypatch.setattr(_files, "platform", "darwin")
    return system


def test_macos_syncs_files_past_the_cache_of_the_drive(macos, path):
    replace(path)
    assert len(macos.synced) >= 1
    assert "fdatasync" not in macos.calls.names
    assert path.read_bytes() == NEW


def test_macos_syncs_the_rename_past_the_cache_of_the_drive(macos, path):
    """A plain fsync of the directory would leave the new name in the cache that the full sync exists for."""
    replace(path)
    assert macos.calls.names.index("replace") < len(macos.calls.names)
    assert len(macos.synced) == 2


def test_macos_falls_back_where_the_file_system_has_no_full_sync(macos, path):
    macos.fault = errno.ENOTSUP
    replace(path)
    assert macos.calls.names.count("fsync") == 2
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_macos_does_not_hide_that_a_full_sync_failed(macos, path, code):
    """The system reports a lost write once; a second, plain fsync would succeed over it."""
    macos.fault = code
    with pytest.raises(StorageError) as caught:
        replace(path)
    assert caught.value.errno == code
    assert path.read_bytes() == OLD


def test_a_system_without_fdatasync_uses_fsync(monkeypatch, path):
    calls = SystemCalls(without=frozenset({"fdatasync"}))
    monkeypatch.setattr(_files, "os", calls)
    replace(path)
    assert calls.names.count("fsync") == 2


class FakeMsvcrt:
    """`msvcrt.locking` with its byte locks, its ten-second patience cut to one attempt."""

    LK_LOCK, LK_NBLCK, LK_UNLCK = 1, 2, 0

    def __init__(self):
        self.held = {}
        self.refusals = 0
        self.calls = []

    def locking(self, fd, mode, nbytes):
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        self.calls.append((mode, offset, nbytes))
        if mode == self.LK_LOCK:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EDEADLK, "resource deadlock avoided")
            self.held[fd] = offset
        elif mode == self.LK_NBLCK:
            if self.held:  # the one file that these tests lock
                raise OSError(errno.EACCES, "permission denied")
            self.held[fd] = offset
        else:
            assert self.held.pop(fd) == offset


@pytest.fixture
def windows(monkeypatch):
    """A system without `fcntl` or directory descriptors, whose renames and opens can be refused for a while."""
    system = SimpleNamespace(msvcrt=FakeMsvcrt(), refusals=0, pauses=[])

    def fault(position, name):
        if name in {"replace", "open", "unlink"} and system.refusals:
            system.refusals -= 1
            return errno.EACCES
        return None

    system.calls = SystemCalls(fault, without=frozenset({"fdatasync"}))
    monkeypatch.setattr(_files, "os", system.calls)
    monkeypatch.setattr(_files, "fcntl", None)
    monkeypatch.setattr(_files, "msvcrt", system.msvcrt)
    monkeypatch.setattr(_files, "platform", "win32")
    monkeypatch.setattr(_files, "time", SimpleNamespace(sleep=system.pauses.append))
    return system


def test_windows_locks_one_byte_that_no_data_uses_and_unlocks_it(windows, path):
    lock_and_write(path)
    assert path.read_bytes() == NEW
    assert windows.msvcrt.held == {}
    (lock, unlock) = windows.msvcrt.calls
    assert lock[1:] == unlock[1:]
    assert lock[1] > 1 << 30
    assert lock[2] == 1


def test_windows_tells_a_held_file_from_a_free_one_and_leaves_both_as_they_are(windows, path):
    new = str(path.parent / "held")
    held = _files.HeldFile.create(new)
    held.append(NEW, fsync=True)
    before = dict(windows.msvcrt.held)
    assert _files.is_locked(new)
    assert windows.msvcrt.held == before
    held.close()
    assert windows.msvcrt.held == {}
    assert not _files.is_locked(new)
    assert windows.msvcrt.held == {}
    assert {offset for _, offset, _ in windows.msvcrt.calls} == {_files._LOCK_BYTE}


def test_windows_waits_on_for_a_lock_after_the_system_gave_up(windows, path):
    windows.msvcrt.refusals = 3
    lock_and_write(path)
    assert len(windows.msvcrt.calls) == 5


def test_windows_unlocks_when_the_block_raises(windows, path):
    with pytest.raises(KeyError), _files.LockedFile(str(path), create=False):
        raise KeyError
    assert windows.msvcrt.held == {}


def test_windows_waits_out_a_reader_that_has_the_file_open(windows, path):
    windows.refusals = 3
    replace(path)
    assert path.read_bytes() == NEW
    assert len(windows.pauses) == 3
    windows.refusals = 2
    assert _files.read_file(str(path)) == NEW
    windows.refusals = 2
    _files.remove_file(str(path))
    assert not path.exists()


def test_windows_gives_up_on_a_file_that_stays_open_with_the_old_bytes_intact(windows, path):
    windows.calls._fault = lambda position, name: errno.EACCES if name == "replace" else None
    with pytest.raises(StorageError) as caught:
        replace(path)
    assert caught.value.errno == errno.EACCES
    assert len(windows.pauses) == _files.SHARING_RETRIES
    assert os.listdir(path.parent) == ["file"]
    assert path.read_bytes() == OLD


def test_windows_does_not_sync_directories(windows, path, tmp_path):
    replace(path)
    _files.make_directory(str(tmp_path / "a"), fsync=True)
    assert windows.calls.names.count("fsync") == 1
    assert str(path.parent) not in [what for name, what in windows.calls.calls if name == "open"]
