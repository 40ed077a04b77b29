"""The log of a thread's turns: an append-only file that says who began when and how it ended. What follows from its
entries is decided in `_turn`; who may write here holds the thread's lock.

    <generation>/turns      frames: a header, then one entry per beginning and end; and what else is to be told of a
                            turn: late writes that were refused, results that its journal had when it was removed

It is not synced: power loss may take the newest entries along, which costs information and nothing else. An entry of a
kind that is not known is a later version's: it is passed over, and kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import ormsgpack

from . import _files
from ._frames import MAGIC, encode_frame, split_frames
from ._markup import TONES, Cell, table
from ._records import pack_id, unpack_id
from ._turn import CAUSES, TURN_STATES, Cause, Entry, Gave, LoggedTurn, Marked, Opened, Refused, Settled, TurnState
from .errors import UnknownFormatError

LOG_NAME: Final = "turns"
LOG_VERSION: Final = 1
#: While a log is rewritten; the lock is held, so one name is enough.
LOG_TEMPORARY: Final = "turns.tmp"

#: A log beyond this is rewritten with the newest turns.
LOG_LIMIT_BYTES: Final = 256 << 10
TURNS_KEPT: Final = 1000

_KIND: Final = "turns"
_HEADER: Final = encode_frame(ormsgpack.packb([_KIND, LOG_VERSION]))
#: The last entry is in here, with the longest checkpoint id there can be. One with many results may be longer; then
#: the next writer reads the whole log to find its end.
_TAIL_BYTES: Final = 512

_KINDS: Final = frozenset({"opened", "marked", "settled", "refused", "gave"})

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """What is known of one turn.

    Attributes:
        token: Its number. Numbers grow and may jump: the end of a turn, a cancel, a close and a delete take one each,
            so that whoever comes too late can be told.
        state: "running"; "completed", "paused" (a person is asked), "failed", "cancelled" or "superseded" once it has
            settled; "interrupted" if its process died; "imported" if it brought checkpoints from elsewhere. The end of
            a plain LangGraph run is announced by nobody: it is what the last checkpoint tells that it wrote and that is
            still stored, "completed", "paused", "failed", or "unfinished" if nodes are left to run; "unknown" if there
            is none, or it cannot be read; and "superseded" if a write of it was refused once a newer turn had begun.
        cause: Why it ended before its work was done, if it did.
        opened_at: When it was opened, in UTC.
        settled_at: When it was settled, in UTC; `None` where nobody did.
        first_checkpoint_id: The first checkpoint of the root namespace that it wrote and that is still stored.
        last_checkpoint_id: The last one.
        continues: The token of the turn that it continues, or `None`.
        announced: Whether its end is, or will be, noticed when it comes; `False` for a plain run, whose `state` is
            inferred.
        refused_at: When it first tried to write though it was over, in UTC; `None` if nothing is known of the kind.
            Kept for information, without a sync: a crash or power loss may take it along.
    """

    token: int
    state: TurnState
    cause: Cause | None
    opened_at: datetime
    settled_at: datetime | None
    first_checkpoint_id: str | None = None
    last_checkpoint_id: str | None = None
    continues: int | None = None
    announced: bool = True
    refused_at: datetime | None = None

    def _repr_html_(self) -> str:
        return _table(f"Turn {self.token}", [self])


class TurnRecords(list[TurnRecord]):
    """Records of turns, newest first: a list, which a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _table("Turns, newest first" if self else "No turns", self)


def _table(caption: str, records: Sequence[TurnRecord]) -> str:
    rows: list[list[Cell | str]] = []
    for record in records:
        state = Cell(record.state, TONES[record.state][0])
        opened, settled = (f"{at:%Y-%m-%d %H:%M:%S}" if at else "-" for at in (record.opened_at, record.settled_at))
        token, continues = str(record.token), str(record.continues or "-")
        rows.append([token, state, record.cause or "-", opened, settled, continues, record.last_checkpoint_id or "-"])
    return table(caption, ["turn", "state", "cause", "opened (UTC)", "settled", "continues", "last checkpoint"], rows)


class LogContent(NamedTuple):
    """What of a log can be believed.

    Attributes:
        entries: The sound entries of known kinds, in order.
        end: Where the next entry goes.
        damaged: How many stretches were passed over.
    """

    entries: list[Entry]
    end: int
    damaged: int


class Kept(NamedTuple):
    """A sound entry as it is stored, whether its kind is known or not, and the token of its turn."""

    token: int
    frame: bytes


class TurnLog:
    """The log in one generation's directory, which exists.

    Args:
        generation_dir: The directory.
        fsync: Whether a log that is rewritten waits for the disk: else power loss may take it all.
    """

    def __init__(self, generation_dir: str, *, fsync: bool) -> None:
        self.path = os.path.join(generation_dir, LOG_NAME)
        self._temporary, self._fsync = os.path.join(generation_dir, LOG_TEMPORARY), fsync

    def append(self, entries: Sequence[Entry], *, create: bool = True) -> None:
        """Add entries with one write. They survive a killed process.

        Args:
            entries: The entries.
            create: Whether to start a log where there is none; else nothing is written there.

        Raises:
            StorageError: The system refused. The log is as it was.
            UnknownFormatError: The log is of a newer format. It was not touched.
        """
        data = b"".join(map(_encoded, entries))
        ends = _files.read_ends(self.path, head=len(_HEADER), tail=_TAIL_BYTES)
        if ends is None:
            if create:
                self._replace(data, fsync=False)
            return
        if ends.size + len(data) > LOG_LIMIT_BYTES:
            self._replace(b"".join(_newest(self.kept())) + data, fsync=self._fsync)
            return
        at = ends.size if ends.head == _HEADER and _ends_whole(ends.tail) else self.read().end
        _files.append_file(self.path, data, at=at, fsync=False)

    def restore(self, kept: Sequence[Kept]) -> None:
        """Put back what was sound in a log that was taken away.

        Raises:
            StorageError: The system refused.
        """
        self._replace(b"".join(each.frame for each in kept), fsync=self._fsync)

    def read(self) -> LogContent:
        """Everything sound in the log; empty if there is none.

        Raises:
            UnknownFormatError: It is of a newer format.
        """
        entries: list[Entry] = []
        found = self._look(entries, [])
        return LogContent(entries, *found)

    def kept(self) -> list[Kept]:
        """Everything sound in the log, as it is stored.

        Raises:
            UnknownFormatError: It is of a newer format.
        """
        kept: list[Kept] = []
        self._look([], kept)
        return kept

    def _look(self, entries: list[Entry], kept: list[Kept]) -> tuple[int, int]:
        """Where the next entry goes, and how many stretches were passed over."""
        frames = split_frames(_files.read_file(self.path) or b"")
        unreadable = 0
        for payload in frames.payloads:
            try:
                fields = ormsgpack.unpackb(payload)
                if fields[0] == _KIND:
                    self._check_version(fields[1])
                    continue
                token, entry = _token_of(fields), _decoded(fields)
            except (ValueError, TypeError, IndexError, KeyError):
                unreadable += 1
                continue
            kept.append(Kept(token, encode_frame(payload)))
            if entry is not None:
                entries.append(entry)
        return frames.end, len(frames.damaged) + unreadable

    def _check_version(self, version: int) -> None:
        if version > LOG_VERSION:
            raise UnknownFormatError(self.path, version, LOG_VERSION)

    def _replace(self, data: bytes, *, fsync: bool) -> None:
        _files.remove_file(self._temporary)  # of a process that died
        _files.replace_file(self.path, _HEADER + data, temporary=self._temporary, fsync=fsync)


def _ends_whole(tail: bytes) -> bool:
    last = tail.rfind(MAGIC)
    return last >= 0 and split_frames(tail[last:]).end == len(tail) - last


def _newest(entries: Sequence[Kept]) -> list[bytes]:
    """The entries of the newest turns, and no more than half of what a log may hold."""
    tokens = sorted({entry.token for entry in entries}, reverse=True)[:TURNS_KEPT]
    sizes = dict.fromkeys(tokens, 0)
    for token, frame in entries:
        if token in sizes:
            sizes[token] += len(frame)
    kept, room = set(), LOG_LIMIT_BYTES // 2
    for token in tokens:
        room -= sizes[token]
        if room < 0:
            break
        kept.add(token)
    return [entry.frame for entry in entries if entry.token in kept]


def _encoded(entry: Entry) -> bytes:
    fields: list[Any]
    if isinstance(entry, Opened):
        fields = ["opened", entry.token, entry.at_ns, entry.continues, pack_id(entry.start), entry.known_end]
    elif isinstance(entry, Marked):
        fields = ["marked", entry.token, entry.at_ns, entry.continues, pack_id(entry.start)]
    elif isinstance(entry, Refused):
        fields = ["refused", entry.token, entry.at_ns, entry.operation]
    elif isinstance(entry, Gave):
        fields = ["gave", entry.token, entry.at_ns, list(entry.calls)]
    else:
        fields = ["settled", entry.token, entry.at_ns, entry.state, entry.cause]
    return encode_frame(ormsgpack.packb(fields))


def _token_of(fields: Any) -> int:
    kind, token = fields[0], fields[1]
    if not isinstance(kind, str) or type(token) is not int:
        raise TypeError("no entry of a turn")
    return token


def _decoded(fields: Any) -> Entry | None:
    """The entry; `None` if its kind is not known."""
    if fields[0] not in _KINDS:
        return None
    kind, token, at_ns, *rest = fields
    if not isinstance(at_ns, int):
        raise TypeError("no time")
    if kind == "opened":
        continues, start, known_end = rest
        return Opened(token, at_ns, int(continues), unpack_id(start), bool(known_end))
    if kind == "marked":
        continues, start = rest
        return Marked(token, at_ns, int(continues), unpack_id(start) or "")
    if kind == "settled":
        state, cause = rest
        if state in TURN_STATES and (cause is None or cause in CAUSES):
            return Settled(token, at_ns, state, cause)
    if kind == "refused":
        (operation,) = rest
        if isinstance(operation, str):
            return Refused(token, at_ns, operation)
    if kind == "gave":
        (calls,) = rest
        if all(isinstance(call, bytes) for call in calls):
            return Gave(token, at_ns, tuple(calls))
    raise ValueError("an entry that makes no sense")


def record_of(turn: LoggedTurn, checkpoints: tuple[str, str] | None, inferred: TurnState = "unknown") -> TurnRecord:
    """The public record of a turn.

    Args:
        turn: What the log says of it.
        checkpoints: The first and the last that it wrote.
        inferred: How it ended as far as these tell, if nobody has announced it.
    """
    first, last = (None, None) if checkpoints is None else checkpoints
    return TurnRecord(
        token=turn.opened.token,
        state=inferred if turn.state == "unknown" else turn.state,
        cause=turn.cause,
        opened_at=_moment(turn.opened.at_ns),
        settled_at=None if turn.settled_at_ns is None else _moment(turn.settled_at_ns),
        first_checkpoint_id=first,
        last_checkpoint_id=last,
        continues=turn.opened.continues or None,
        announced=turn.state != "unknown",
        refused_at=_moment(min(each.at_ns for each in turn.refused)) if turn.refused else None,
    )


def _moment(at_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_ns // 1000)
