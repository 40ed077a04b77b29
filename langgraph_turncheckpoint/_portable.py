"""A thread as one file that any saver can take in: `export_thread` and `import_thread`.

The file is JSON Lines: a header, one line per checkpoint with parents first, and a trailer with their number and a
checksum. A value stands there as JSON where JSON can say it exactly, or else in LangGraph's msgpack, in base64. Nothing
in it is ever unpickled, and it may name no class but one of data.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from . import _files
from ._blocking import blocking, check_outside_loop
from ._copy_plan import ANOTHER_ID, named, parents_first
from ._offload import offload
from ._portable_values import decode_value, encode_value
from ._same_values import Key, Seen, key_of, look_alike, parent_of, seen
from ._saver_views import view_of
from ._thread_copy import Rules, ThreadCopy, ThreadReport, scan
from ._unreadable import Unreadable, check_readable, described, goes_back
from ._write_calls import WriteKey
from .errors import (
    DamagedCheckpointError,
    ForeignFileError,
    MigrationError,
    RefusedValueError,
    SourceChangedError,
    StorageError,
    UnknownFormatError,
)

FORMAT: Final = "turncheckpoint-thread"
VERSION: Final = 1

#: What callers of the library may do; commands say it in their own words.
OVERWRITE: Final = "pass overwrite=True"
OTHER_FILES: Final = "import_homemade takes in a JSON file with a list of messages"

_CREATED_BY: Final = "langgraph-turncheckpoint"
_BEGINNING: Final = b'{"format":"' + FORMAT.encode() + b'"'


# --- out ---


class ExportReport(NamedTuple):
    """What was written to a file.

    Attributes:
        thread_id: The thread.
        checkpoints: How many of its checkpoints are in the file.
        unreadable: Those that could not be read, and what is wrong with them.
        goes_back: Whether the newest is among them, so that the file goes on from an older one.
    """

    thread_id: str
    checkpoints: int
    unreadable: tuple[Unreadable, ...] = ()
    goes_back: bool = False

    @property
    def damage(self) -> str:
        """What could not be read, in one line; empty if everything could."""
        return described(self.unreadable, self.checkpoints, back=self.goes_back) if self.unreadable else ""


def export_thread(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    strict: bool = False,
) -> ExportReport:
    """Write a thread to a file. The file is there wholly or not at all, and durable on return.

    Values are written as they are read: with an encrypting serde the file holds them in the clear, for its owner only
    (mode 0600). What did not change since the parent checkpoint is not repeated.

    Args:
        saver: Any saver; it is only read.
        thread_id: The thread.
        path: The file.
        overwrite: Whether it may take the place of another one.
        strict: Whether to write nothing if any checkpoint is damaged. Otherwise the others are written.

    Returns:
        How many checkpoints were written, and which could not be read.

    Raises:
        MigrationError: There is no such thread, it cannot be read, or not all of it, and `strict`. No file was written.
        SourceChangedError: It was written to meanwhile. No file was written.
        UnserializableValueError: LangGraph's serializer cannot write a value. No file was written.
        StorageError: The file is there already, or the system refused. No file was written.
    """
    check_outside_loop(saver)
    target = os.path.abspath(os.fspath(path))
    if not overwrite and _files.exists(target):
        raise StorageError(errno.EEXIST, f"there is such a file already; {OVERWRITE} to replace it", target)
    view = view_of(saver)
    thread = scan(view, thread_id)
    lost = tuple(view.unreadable(thread_id, thread))
    if not thread and not lost:
        raise MigrationError("there is no such thread", thread_id)
    check_readable(thread_id, thread, lost, strict=strict)
    temporary = f"{target}.{secrets.token_hex(4)}.tmp"
    try:
        with _created(temporary) as file:
            digest = hashlib.sha256()
            lines = _lines(view, thread_id, thread)
            for line in lines:
                data = _packed(line)
                digest.update(data)
                file.write(data)
            file.write(_packed({"checkpoints": len(thread), "sha256": digest.hexdigest()}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        _files.sync_directory(os.path.dirname(target))
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise _files.storage_error(error, target) from error
        raise
    return ExportReport(thread_id, len(thread), lost, goes_back(thread, lost))


async def aexport_thread(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    strict: bool = False,
) -> ExportReport:
    """Async twin of `export_thread`."""
    saver = blocking(saver, asyncio.get_running_loop())
    return await offload(export_thread, saver, thread_id, path, overwrite=overwrite, strict=strict)


def _created(path: str) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, _files.FILE_MODE), "wb")


def _packed(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _lines(view: Any, thread_id: str, thread: Mapping[Key, Seen]) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "version": VERSION, "thread_id": thread_id, "created_by": _CREATED_BY}
    for key in parents_first(thread, thread):
        found = view.tuple_at(thread_id, key)
        if found is None or not look_alike(thread[key], seen(found)):
            raise SourceChangedError(f"checkpoint {named(key)} changed while it was exported; try again", thread_id)
        yield _line(found, thread, view.write_keys(thread_id, key))


def _line(found: CheckpointTuple, thread: Mapping[Key, Seen], keys: Sequence[WriteKey] | None) -> dict[str, Any]:
    key, parent_id = key_of(found), parent_of(found)
    this, parent = thread[key], thread.get((key[0], parent_id or ""))
    values = found.checkpoint["channel_values"]
    unchanged = [
        channel
        for channel in values
        if parent is not None and this.values[channel] and parent.values.get(channel) == this.values[channel]
    ]
    rest = {name: value for name, value in found.checkpoint.items() if name != "channel_values"}
    return {
        "checkpoint_ns": key[0],
        "checkpoint_id": key[1],
        "parent_id": parent_id,
        "checkpoint": encode_value("checkpoint", rest),
        "metadata": encode_value("metadata", dict(found.metadata)),
        "values": {name: encode_value(name, value) for name, value in values.items() if name not in unchanged},
        "unchanged": unchanged,
        "writes": [[task, name, encode_value(name, value)] for task, name, value in found.pending_writes or ()],
        "write_keys": None if keys is None else [list(each) for each in sorted(keys)],
    }


# --- in ---


def import_thread(
    path: str | os.PathLike[str],
    saver: BaseCheckpointSaver[Any],
    *,
    thread_id: str | None = None,
    verify: bool = True,
    restore_deleted: bool = False,
    restore_pruned: bool = False,
) -> ThreadReport:
    """Take in a thread that `export_thread` wrote. Once it is there, a second call changes nothing.

    The whole file is checked before anything is stored.

    Args:
        path: The file.
        saver: Where it goes.
        thread_id: Another id for it.
        verify: Whether to read everything again and to compare it.
        restore_deleted: Whether a thread that the destination has deleted may come back.
        restore_pruned: Whether checkpoints that the destination has pruned may come back.

    Raises:
        ForeignFileError: The file is cut short, changed, or of another kind. Nothing was stored.
        UnknownFormatError: It is of a newer format. Nothing was stored.
        RefusedValueError: A value asks for what loading must never do.
        MigrationError: It could not be stored; see `migrate`.
        StorageError: The file cannot be read.
    """
    rules = Rules(verify=verify, restore_deleted=restore_deleted, restore_pruned=restore_pruned)
    return take_in(path, saver, thread_id=thread_id, rules=rules)


def take_in(
    path: str | os.PathLike[str],
    saver: BaseCheckpointSaver[Any],
    *,
    thread_id: str | None = None,
    rules: Rules,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> ThreadReport:
    """As `import_thread`; `tell` hears how many checkpoints are there, and how many there will be."""
    check_outside_loop(saver)
    file = PortableFile(os.path.abspath(os.fspath(path)))
    new_id = file.thread_id if thread_id is None else thread_id
    stop = threading.Event()
    copy = ThreadCopy(file, file.thread_id, view_of(saver), new_id, stop=stop, instead=ANOTHER_ID)
    return copy.run(tell, rules)


async def aimport_thread(
    path: str | os.PathLike[str],
    saver: BaseCheckpointSaver[Any],
    *,
    thread_id: str | None = None,
    verify: bool = True,
    restore_deleted: bool = False,
    restore_pruned: bool = False,
) -> ThreadReport:
    """Async twin of `import_thread`."""
    saver = blocking(saver, asyncio.get_running_loop())
    options = {"verify": verify, "restore_deleted": restore_deleted, "restore_pruned": restore_pruned}
    return await offload(import_thread, path, saver, thread_id=thread_id, **options)


def is_exported(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as one that `export_thread` has written, whole or not.

    Raises:
        StorageError: It cannot be read.
    """
    ends = _files.read_ends(os.fspath(path), head=len(_BEGINNING), tail=0)
    return ends is not None and ends.head.startswith(_BEGINNING[: max(1, len(ends.head))])


class PortableFile:
    """An exported thread, checked, in the part of a source.

    Raises:
        ForeignFileError: See `import_thread`.
        UnknownFormatError: See `import_thread`.
    """

    counts_threads = True

    def __init__(self, path: str) -> None:
        self._path = path
        data = _files.read_file(path)
        if data is None:
            raise StorageError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        lines = data.splitlines(keepends=True)
        self.thread_id = self._header(lines)
        self._check_trailer(lines)
        self._lines: dict[Key, tuple[int, dict[str, Any]]] = {}
        for number, line in enumerate(lines[1:-1], 2):
            self._add(number, self._parsed(number, line))

    def _error(self, number: int, reason: str) -> ForeignFileError:
        return ForeignFileError(self._path, f"line {number}", reason)

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            raise self._error(number, "is no JSON; the file is cut short or was changed") from None
        if not isinstance(parsed, dict):
            raise self._error(number, "is no JSON object")
        return parsed

    def _header(self, lines: list[bytes]) -> str:
        if not lines:
            raise ForeignFileError(self._path, "", "the file is empty")
        try:
            header = json.loads(lines[0])
            is_ours = header["format"] == FORMAT
            version, thread_id = int(header["version"]), header["thread_id"]
        except (ValueError, TypeError, KeyError, RecursionError):
            is_ours, version, thread_id = False, 0, ""
        if not is_ours or not isinstance(thread_id, str):
            hint = "" if is_ours else f"; {OTHER_FILES}"
            raise self._error(1, f"is not the header of an exported thread{hint}")
        if version > VERSION:
            raise UnknownFormatError(self._path, version, VERSION)
        return thread_id

    def _check_trailer(self, lines: list[bytes]) -> None:
        trailer = self._parsed(len(lines), lines[-1]) if len(lines) > 1 else {}
        if "sha256" not in trailer or not lines[-1].endswith(b"\n"):
            raise ForeignFileError(self._path, "", "the file is cut short: its last line is not the trailer")
        digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
        if trailer["sha256"] != digest or trailer.get("checkpoints") != len(lines) - 2:
            raise ForeignFileError(self._path, "", "the checksum does not fit: the file was changed")

    def _add(self, number: int, line: dict[str, Any]) -> None:
        try:
            key = line["checkpoint_ns"], line["checkpoint_id"]
            parent = self._lines.get((key[0], line["parent_id"] or ""))
            values = dict(line["values"])
            inherited = parent[1]["values"] if parent is not None else {}
            values |= {channel: inherited[channel] for channel in line["unchanged"]}  # one object for both
            writes = [(str(task), str(channel), value) for task, channel, value in line["writes"]]
            keys = None if line["write_keys"] is None else [WriteKey(*each) for each in line["write_keys"]]
        except (KeyError, TypeError, ValueError):
            raise self._error(number, "is no checkpoint") from None
        if key in self._lines or not all(isinstance(part, str) for part in key):
            raise self._error(number, "is no checkpoint of its own")
        self._lines[key] = number, {**line, "values": values, "writes": writes, "write_keys": keys}

    def thread_counts(self) -> Mapping[Any, int]:
        """See `Origin`."""
        return {self.thread_id: len(self._lines)}

    def tuples(self, thread_id: Any) -> Iterator[CheckpointTuple]:
        """See `Origin`."""
        for key in sorted(self._lines, key=lambda key: key[1], reverse=True):
            found = self.tuple_at(thread_id, key)
            if found is not None:
                yield found

    def tuple_at(self, thread_id: Any, key: Key) -> CheckpointTuple | None:
        """See `Origin`."""
        if key not in self._lines:
            return None
        number, line = self._lines[key]
        try:
            values = {channel: decode_value(value) for channel, value in line["values"].items()}
            checkpoint = {**decode_value(line["checkpoint"]), "channel_values": values}
            writes = [(task, channel, decode_value(value)) for task, channel, value in line["writes"]]
            metadata = dict(decode_value(line["metadata"]))
        except (ValueError, TypeError) as error:
            if isinstance(error, RefusedValueError | MigrationError):
                raise
            raise self._error(number, f"is no checkpoint: {error}") from error
        if checkpoint.get("id") != key[1]:
            raise self._error(number, "is no checkpoint: its ids do not fit together")
        parent_id = line["parent_id"]
        return CheckpointTuple(
            _addressed(thread_id, key),
            cast(Any, checkpoint),
            cast(Any, metadata),
            _addressed(thread_id, (key[0], parent_id)) if parent_id else None,
            writes,
        )

    def write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:  # noqa: ARG002 - there is one
        """See `Origin`."""
        return cast("Sequence[WriteKey] | None", self._lines[key][1]["write_keys"])

    def unreadable(self, thread_id: Any, found: Collection[Key]) -> Sequence[Unreadable]:  # noqa: ARG002
        """See `Origin`: a file is whole."""
        return ()

    def lost_threads(self) -> Sequence[DamagedCheckpointError]:
        """See `Origin`."""
        return ()


def _addressed(thread_id: Any, key: Key) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": key[0], "checkpoint_id": key[1]}}
