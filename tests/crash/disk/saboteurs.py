"""Versions of the store that break a promise, each in one place: the lab must catch every one of them. What is broken
is named; nothing here says how it is noticed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from langgraph_turncheckpoint import (
    _checkpoint_files,
    _commits,
    _inbox_files,
    _ledger,
    _records,
    _running,
    _thread_files,
)
from langgraph_turncheckpoint import _files as files_module
from langgraph_turncheckpoint import _transcript as kinds
from langgraph_turncheckpoint._layout import CHECKPOINT_SUFFIX, EARLY_SUFFIX
from tests.crash.disk import operations as o
from tests.crash.disk.operations import OPERATIONS, Operation

_files: Any = files_module


@contextmanager
def _patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    real = [vars(owner)[name] for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(changes, real, strict=True):
            setattr(owner, name, value)


@contextmanager
def no_file_sync() -> Iterator[None]:
    """Files are written and renamed, but never synced."""
    with _patched((_files, "sync_file", lambda fd: None)):
        yield


@contextmanager
def no_directory_sync() -> Iterator[None]:
    """No directory is synced, as on Windows, where it is not needed."""
    with _patched((_files, "_open_directory", lambda path: None)):
        yield


@contextmanager
def fixed_temporary_name() -> Iterator[None]:
    """All writers of a file use one temporary name, and do not mind if it is there."""

    def replace_file(path: str, data: bytes, *, temporary: str, fsync: bool) -> None:
        calls = _files.os
        fixed = f"{path}.tmp"
        _files._fill(calls.open(fixed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), data, fsync=fsync)
        try:
            calls.replace(fixed, path)
        except FileNotFoundError as error:
            raise files_module.storage_error(error, path) from error
        _files.sync_directory(os.path.dirname(path))

    with _patched((_files, "replace_file", replace_file)):
        yield


@contextmanager
def acknowledged_before_the_sync() -> Iterator[None]:
    """What is to be synced is synced soon: when the next file is written."""
    waiting: list[str] = []

    def sync_what_waits() -> None:
        for path in waiting:
            calls = _files.os
            try:
                fd = calls.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            calls.fsync(fd)
            calls.close(fd)
        waiting.clear()

    real_replace, real_append = _files.replace_file, _files.append_file

    def replace_file(path: str, data: bytes, *, temporary: str, fsync: bool) -> None:
        sync_what_waits()
        real_replace(path, data, temporary=temporary, fsync=False)
        waiting.extend([path, os.path.dirname(path)])

    def append_file(path: str, data: bytes, *, at: int, fsync: bool) -> None:
        sync_what_waits()
        real_append(path, data, at=at, fsync=False)
        waiting.append(path)

    with _patched((_files, "replace_file", replace_file), (_files, "append_file", append_file)):
        yield


@contextmanager
def renamed_before_the_sync() -> Iterator[None]:
    """A new file gets its name first and is synced then."""

    def replace_file(path: str, data: bytes, *, temporary: str, fsync: bool) -> None:
        calls = _files.os
        fd = calls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _files._write_all(fd, data)
        calls.replace(temporary, path)
        if fsync:
            _files.sync_file(fd)
            _files.sync_directory(os.path.dirname(path))
        calls.close(fd)

    with _patched((_files, "replace_file", replace_file)):
        yield


@contextmanager
def written_in_place() -> Iterator[None]:
    """A file is overwritten where it is."""

    def replace_file(path: str, data: bytes, *, temporary: str, fsync: bool) -> None:
        fd = _files.os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        _files._fill(fd, data, fsync=fsync)
        if fsync:
            _files.sync_directory(os.path.dirname(path))

    with _patched((_files, "replace_file", replace_file)):
        yield


@contextmanager
def token_not_synced() -> Iterator[None]:
    """The first write of a run does not wait for the run's token (T9)."""
    real = _commits.Commits._admit

    def admit(held: Any, thread: Any, turn: Any, operation: str, *, fsync: bool) -> None:
        real(held, thread, turn, operation, fsync=False)

    with _patched((_commits.Commits, "_admit", staticmethod(admit))):
        yield


@contextmanager
def start_of_a_tool_not_synced() -> Iterator[None]:
    """The start of a tool is recorded, and the tool runs before the record is durable (G1)."""
    real = _running.RunningTurn._append_record

    def append_record(self: Any, kind: str, fields: list[Any], *, sync: bool) -> bool:
        return real(self, kind, fields, sync=sync and kind != kinds.START)

    with _patched((_running.RunningTurn, "_append_record", append_record)):
        yield


@contextmanager
def tombstone_not_synced() -> Iterator[None]:
    """The files of a deleted thread go before its tombstone is durable."""

    def start_generation(self: Any, held: Any, state: Any) -> None:
        held._fsync = False
        held.write_twice(state)

    with _patched((_thread_files.ThreadFiles, "_start_generation", start_generation)):
        yield


@contextmanager
def ledger_in_one_slot() -> Iterator[None]:
    """A ledger is always overwritten in the same place, so that a torn write takes all that was there since."""

    def write(self: Any, state: Any) -> None:
        slot = _records.Slot(self._slot.serial + 1, state)
        self._file.write(_records.encode_slot(slot)[:-1], at=0)
        self._slot = slot

    with _patched((_ledger.HeldLedger, "write", write)):
        yield


@contextmanager
def removed_message_not_synced() -> Iterator[None]:
    """A message is acknowledged, and its removal may be lost."""
    real = _inbox_files.InboxFiles._remove

    def remove(self: Any, choose: Any) -> int:
        fsync, self._fsync = self._fsync, False
        try:
            return real(self, choose)
        finally:
            self._fsync = fsync

    with _patched((_inbox_files.InboxFiles, "_remove", remove)):
        yield


@contextmanager
def names_of_killed_ones_not_synced() -> Iterator[None]:
    """A directory that is there is taken for durable, although whoever made it was killed before its sync."""

    def nothing(self: Any) -> None:
        return

    with _patched((_ledger.Ledger, "_sync_names", nothing)):
        yield


@contextmanager
def removals_not_synced() -> Iterator[None]:
    """A pruned checkpoint may come back, with or without its pages."""
    real = _checkpoint_files.NamespaceFiles.set_apart

    def set_apart(self: Any, checkpoint_ids: Any) -> None:
        fsync, self._fsync = self._fsync, False
        try:
            real(self, checkpoint_ids)
        finally:
            self._fsync = fsync

    with _patched((_checkpoint_files.NamespaceFiles, "set_apart", set_apart)):
        yield


@contextmanager
def early_writes_removed_first() -> Iterator[None]:
    """Writes that came before their checkpoint lose their file before the checkpoint that takes them in is there."""
    real = _checkpoint_files.NamespaceFiles._replace

    def replace(self: Any, path: str, data: bytes) -> None:
        stem, _, suffix = path.rpartition(".")
        if f".{suffix}" == CHECKPOINT_SUFFIX:
            _files.remove_file(stem + EARLY_SUFFIX)
        real(self, path, data)

    with _patched((_checkpoint_files.NamespaceFiles, "_replace", replace)):
        yield


_BY_STEP: Final = {operation.step: operation for operation in OPERATIONS}


class Saboteur(NamedTuple):
    """A broken version.

    Attributes:
        sabotage: Breaks it while a block lasts.
        steps: Operations in which it shows.
        invariants: The promises of which one must be named.
        skipped: The first of them only lead there; no crash is asked about.
        in_races: Whether it takes two writers.
        in_successors: Whether it takes a killed process and another one that goes on.
        fsync: Whether it takes a loss of power.
    """

    sabotage: Callable[[], Any]
    steps: tuple[o.Step, ...]
    invariants: frozenset[str]
    skipped: int = 0
    in_races: bool = False
    in_successors: bool = False
    fsync: bool = True

    @property
    def name(self) -> str:
        """In words."""
        return self.sabotage.__name__.replace("_", " ")

    @property
    def script(self) -> list[Operation]:
        """The operations."""
        return [_BY_STEP[step] for step in self.steps]


_THERE: Final = "what was acknowledged is there"
_READABLE: Final = "everything is readable"
_TOKEN: Final = "a token never goes back"
_PUTS: Final = (o.put_a_checkpoint, o.put_a_checkpoint, o.put_writes_on_a_checkpoint)

SABOTEURS: Final = (
    Saboteur(no_file_sync, _PUTS, frozenset({_THERE, _READABLE})),
    Saboteur(no_directory_sync, _PUTS, frozenset({_THERE})),
    Saboteur(fixed_temporary_name, (), frozenset({"two writers do not mix"}), in_races=True),
    Saboteur(acknowledged_before_the_sync, _PUTS, frozenset({_THERE})),
    Saboteur(renamed_before_the_sync, (*_PUTS, o.put_a_checkpoint_again), frozenset({_THERE, _READABLE})),
    Saboteur(written_in_place, (*_PUTS, o.put_a_checkpoint_again), frozenset({_THERE, _READABLE}), fsync=False),
    Saboteur(token_not_synced, (o.put_a_checkpoint, o.start_a_run, o.put_a_checkpoint), frozenset({_TOKEN}), skipped=2),
    Saboteur(
        start_of_a_tool_not_synced,
        (o.open_a_turn, o.record_a_prompt, o.record_the_start_of_a_tool),
        frozenset({"a journal keeps what it promised"}),
        skipped=2,
    ),
    Saboteur(
        tombstone_not_synced,
        (o.put_a_checkpoint, o.put_a_checkpoint, o.delete_a_thread),
        frozenset({"nothing comes back or from nowhere", "an operation is done or not", _TOKEN}),
        skipped=2,
    ),
    Saboteur(
        ledger_in_one_slot,
        (o.open_a_turn, o.open_a_turn, o.open_a_turn, o.open_a_turn),
        frozenset({_TOKEN}),
    ),
    Saboteur(
        removed_message_not_synced,
        (o.post_a_message, o.post_a_message, o.acknowledge_a_message),
        frozenset({"nothing comes back or from nowhere"}),
        skipped=2,
    ),
    Saboteur(names_of_killed_ones_not_synced, (o.put_a_checkpoint,), frozenset({_THERE}), in_successors=True),
    Saboteur(
        removals_not_synced,
        (o.put_a_checkpoint, o.put_a_checkpoint, o.delete_what_a_run_wrote),
        frozenset({"nothing comes back or from nowhere"}),
        skipped=2,
    ),
    Saboteur(
        early_writes_removed_first,
        (o.put_writes_before_their_checkpoint, o.put_the_checkpoint_that_writes_wait_for),
        frozenset({"writes before their checkpoint are there"}),
        skipped=1,
    ),
)
