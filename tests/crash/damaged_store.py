"""A small store with every kind of file, all that can be read from it, and the ways in which one of its files can be
damaged. Whether what is read from a damaged store is right is not decided here.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_turncheckpoint import TurnCheckpointError, TurnCheckpointSaver
from langgraph_turncheckpoint._running import RunningTurn, load_transcript
from langgraph_turncheckpoint._transcript import CallKey
from langgraph_turncheckpoint._waiting import Ticket
from tests.contract.storing import addressed, named, numbered
from tests.crash.faulted_operations import at, joined, spelled

MAIN: Final = "main"
#: Too long to be spelled out in the name of its directory.
LONG: Final = "long " * 30
CLOSED: Final = "closed"
DELETED: Final = "deleted"
EARLY_NUMBER: Final = 9
CALLS: Final = tuple(CallKey("ai-1", f"call-{n}", "pay") for n in range(3))


class _ToyCipher(CipherProtocol):
    """Hides its text from the eye, and notices each changed byte, as a real one does."""

    def _stream(self, data: bytes) -> bytes:
        key = hashlib.shake_256(b"key of the lab").digest(len(data))
        return bytes(a ^ b for a, b in zip(data, key, strict=True))

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "toy", hashlib.sha256(plaintext).digest()[:16] + self._stream(plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        plaintext = self._stream(ciphertext[16:])
        if ciphertext[:16] != hashlib.sha256(plaintext).digest()[:16]:
            raise ValueError("changed")
        return plaintext


SERDES: Final[dict[str, Callable[[], SerializerProtocol | None]]] = {
    "plain": lambda: None,
    "encrypted": lambda: EncryptedSerializer(_ToyCipher()),
}


def history(count: int) -> list[BaseMessage]:
    """Short messages, which make a page all the same."""
    return [HumanMessage(f"say word {n}", id=f"m{n}") for n in range(count)]


def put(saver: TurnCheckpointSaver, config: Any, number: int) -> Any:
    """Put the checkpoint of a number; the same bytes each time."""
    version = f"{number:08}.5"
    values = {"messages": history(3 + number), "step": number}
    checkpoint: Any = {
        "v": 4,
        "id": numbered(number),
        "ts": "2024-01-02T03:04:05+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, version),
        "versions_seen": {},
    }
    return saver.put(config, checkpoint, {"source": "loop", "step": number}, dict.fromkeys(values, version))


def fill(saver: TurnCheckpointSaver) -> None:
    """Every kind of file, and two of each kind where they can be confused."""
    for thread_id in (MAIN, LONG):
        place: Any = addressed(thread_id)
        for number in (1, 2, 3):
            with saver.turn(addressed(thread_id)) as held:
                place = put(saver, joined(place, dict(held["configurable"])), number)
        saver.put_writes(at(3, thread_id), [("messages", "pending"), ("step", 7)], "task-1")
        saver.put_writes(at(3, thread_id), [("step", 8)], "task-2")
        saver.put_writes(at(EARLY_NUMBER, thread_id), [("step", 9)], "task-early")
        for n in (1, 2):
            saver.inbox(thread_id).post(HumanMessage(f"posted {n}", id=f"posted-{n}"))
    saver.prune([LONG])
    for thread_id in (MAIN, LONG):
        _die_in_a_tool(saver, thread_id)
    put(saver, addressed(CLOSED), 1)
    saver.close_thread(CLOSED)
    put(saver, addressed(DELETED), 1)
    saver.delete_thread(DELETED)
    ticket = Ticket.take(saver.store.generation_dir(MAIN))
    ticket._file.close()


def _die_in_a_tool(saver: TurnCheckpointSaver, thread_id: str) -> None:
    """What a guarded turn leaves whose process dies: one call has a result, one has started, one has not."""
    turn = saver.store.open_turn(thread_id)
    running = RunningTurn(saver.store, thread_id, turn)
    wanted: Any = [{"name": key.tool, "args": {}, "id": key.call_id, "type": "tool_call"} for key in CALLS]
    running.replied("run-1", AIMessage("", id="ai-1", tool_calls=wanted), lambda tool: True)
    running.tool_started(CALLS[0], must_be_durable=True)
    running.tool_ended(CALLS[0], ToolMessage("paid", tool_call_id=CALLS[0].call_id, id="t0"))
    running.tool_started(CALLS[1], must_be_durable=True)
    running.journal.close()


# --- what can be read ---


class Read(NamedTuple):
    """What one reading operation came to: a value, or the error; and whether it warned."""

    value: Any
    error: Exception | None
    warned: tuple[str, ...]


def _facts(saver: TurnCheckpointSaver, thread_id: str) -> Any:
    transcript = load_transcript(saver.store, thread_id, 1 << 62)
    return [(transcript.facts(key), transcript.output(key)) for key in CALLS]


def _overview(saver: TurnCheckpointSaver) -> Any:
    stats = saver.stats()
    return stats.threads, stats.checkpoints


READS: Final[dict[str, Callable[[TurnCheckpointSaver], Any]]] = {
    "latest": lambda saver: spelled(saver.get_tuple(addressed(MAIN))),
    "latest of long": lambda saver: spelled(saver.get_tuple(addressed(LONG))),
    "by id": lambda saver: spelled(saver.get_tuple(at(3))),
    "older by id": lambda saver: spelled(saver.get_tuple(at(2))),
    "list": lambda saver: [spelled(found) for found in saver.list(addressed(MAIN))],
    "list of all": lambda saver: [spelled(found) for found in saver.list(None)],
    "turns": lambda saver: saver.turns(MAIN),
    "turns of long": lambda saver: saver.turns(LONG),
    "is_busy": lambda saver: saver.is_busy(MAIN),
    "inbox": lambda saver: [(message.id, message.content) for message in saver.inbox(MAIN).pending()],
    "inbox of long": lambda saver: [(message.id, message.content) for message in saver.inbox(LONG).pending()],
    "thread_ids": lambda saver: sorted(saver.thread_ids()),
    "stats": _overview,
    "transcript": lambda saver: _facts(saver, MAIN),
    "transcript of long": lambda saver: _facts(saver, LONG),
}
#: Those that `strict` is for.
STRICT_READS: Final = ("latest", "latest of long", "by id", "older by id", "list", "list of all", "inbox")


def read(saver: TurnCheckpointSaver, name: str) -> Read:
    """What one operation gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value, error = None, None
        try:
            value = READS[name](saver)
        except Exception as raised:  # noqa: BLE001 - which it may be is for the lab to say
            error = raised
    return Read(value, error, tuple(each.category.__name__ for each in caught))


def tokens(saver: TurnCheckpointSaver) -> dict[str, int]:
    """The token of each thread, where it can be told."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread_id in (MAIN, LONG, CLOSED, DELETED):
            try:
                state = saver.store.thread(thread_id).ledger.read()
            except TurnCheckpointError:
                continue
            found[thread_id] = 0 if state is None else state.token
    return found


# --- kinds of files ---


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        name: For messages.
        path: The file to be damaged.
        other: Another one of the kind, to be confused with.
        reads: The operations that look at it, or list it.
        grows: Whether it is appended to, so that a crash can cut it short without anybody being told.
    """

    name: str
    path: Path
    other: Path | None
    reads: tuple[str, ...]
    grows: bool = False


def kinds(path: Path) -> list[Kind]:
    """Every kind of file in a store that was filled."""
    threads = path / "threads"
    main = threads / "t-main"
    (long,) = threads.glob("t_*")
    (oldest, older, newest), (pages, more_pages) = named(main, ".ckpt"), named(long, ".pages")
    (early,), (journal,), (log,) = named(main, ".early"), named(main, ".journal"), named(main, "turns")
    (first, second), (ticket,) = named(main, ".msg"), named(main, "q-1")
    (long_journal,) = named(long, ".journal")
    states = ("latest", "by id", "older by id", "list", "turns", "stats")
    whole = ("thread_ids", "stats", "list of all")
    return [
        Kind("checkpoint with writes", newest, older, states, grows=True),
        Kind("checkpoint with pages of others", oldest, newest, states),
        Kind("pages of removed checkpoints", pages, more_pages, ("latest of long", "list of all")),
        Kind("early writes", early, None, ("latest",), grows=True),
        Kind(
            "ledger",
            main / "turn",
            long / "turn",
            ("latest", "by id", "turns", "is_busy", "inbox", "transcript", *whole),
        ),
        Kind("ledger that spells the id", long / "turn", main / "turn", ("latest of long", "inbox of long", *whole)),
        Kind("log of turns", log, None, ("turns",), grows=True),
        Kind("journal", journal, long_journal, ("turns", "is_busy", "transcript"), grows=True),
        Kind("inbox message", first, second, ("inbox",)),
        Kind("ticket", ticket, None, ("turns", "is_busy")),
        Kind("tombstone", threads / "t-deleted" / "turn", main / "turn", whole),
        Kind("ledger of a closed thread", threads / "t-closed" / "turn", main / "turn", whole),
    ]


# --- damages ---


class Damage(NamedTuple):
    """One damage.

    Attributes:
        name: For messages.
        data: The new bytes, or what stands in the file's place.
        kind: "flip", "cut", "more", "other" (other bytes), "swap", "place" (something that is no file).
        position: Of the byte, or the new length.
    """

    name: str
    data: bytes | Callable[[Path], None]
    kind: str
    position: int = 0

    def do(self, path: Path) -> None:
        """Damage the file."""
        if callable(self.data):
            path.unlink()
            self.data(path)
        else:
            path.write_bytes(self.data)


def damages(path: Path, other: Path | None, *, seed: int) -> Iterator[Damage]:
    """Every damage to a file; `other` is of the same kind."""
    data, rng = path.read_bytes(), random.Random(seed)
    for position, byte in enumerate(data):
        for name, new in (("a bit", byte ^ 1 << rng.randrange(8)), ("0x00", 0), ("0xff", 255)):
            if new != byte:
                flipped = data[:position] + bytes([new]) + data[position + 1 :]
                yield Damage(f"byte {position}: {name}", flipped, "flip", position)
    for length in range(len(data)):
        yield Damage(f"cut to {length}", data[:length], "cut", length)
    for name, more in (
        ("a byte", b"\x01"),
        ("zeros", bytes(64)),
        ("junk", rng.randbytes(200)),
        ("itself", data),
    ):
        if more:
            yield Damage(f"{name} appended", data + more, "more", len(data))
    if data:
        yield Damage("all zeros", bytes(len(data)), "other")
    if other is not None:
        theirs = other.read_bytes()

        def swap(place: Path) -> None:
            place.write_bytes(theirs)
            other.write_bytes(data)

        yield Damage(f"swapped with {other.parent.name}/{other.name}", swap, "swap")
    yield Damage("a directory", Path.mkdir, "place")
    if other is not None:
        yield Damage("a link to another", lambda place: place.symlink_to(other), "place")
    yield Damage("a link to itself", lambda place: place.symlink_to(place.name), "place")


def copied(source: Path, target: Path) -> Path:
    """A fresh copy of a store."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target
