"""The bytes of every file: how they are laid out, checked and parsed. Pure; no file is opened here.

A store file is a header, one body section, and then records that were appended later:

    header   magic, format version, kind, checksum of those, body length, checksum of all
    body     a section: clear fields, a sealed head, numbered blobs
    record   tag, length, checksum of those, checksum of the payload, payload (a section)

The body is written once and renamed into place; a record is appended and synced. A record cut short
by a crash is a *torn tail*: it was never acknowledged, so it is dropped. Anything else that does not
check is damage. What is sealed, and how, is the serializer's business: a section keeps tags and bytes.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import ormsgpack
from xxhash import xxh3_64_digest, xxh3_128, xxh3_128_digest

from ._turn import LedgerState

MAGIC: Final = b"\x89TURNC\r\n"
FORMAT_VERSION: Final = 1

_HEADER: Final = struct.Struct("<8sHBB")  # magic, version, kind, flags (0)
_HEADER_REST: Final = struct.Struct("<IQ16s")  # crc of the above, body length, checksum
HEADER_SIZE: Final = _HEADER.size + _HEADER_REST.size

_RECORD: Final = struct.Struct("<4sII8s")  # tag, payload length, crc of both, checksum
RECORD_HEADER_SIZE: Final = _RECORD.size

_LENGTH: Final = struct.Struct("<I")


class FileKind(IntEnum):
    """What a store file is."""

    CHECKPOINT = 1
    PAGES = 2  #: what other checkpoints still need of a removed one
    EARLY = 3  #: writes that arrived before their checkpoint


class RecordKind(bytes):
    """The tag of an appended record."""


WRITES: Final = RecordKind(b"WRIT")
KEPT_PAGES: Final = RecordKind(b"PAGE")


class MalformedError(Exception):
    """Bytes that do not check; the message says why. Never leaves this package."""


class NewerFormatError(Exception):
    """A sound header of a format version this package does not know."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class Sealed(NamedTuple):
    """Bytes as the serializer stored them, with the tag it needs to load them."""

    tag: str
    data: bytes | memoryview


class BlobRef(NamedTuple):
    """A blob by the checkpoint whose file holds it and its number in there."""

    checkpoint_id: str
    number: int


class PackedRefs(NamedTuple):
    """References as a table of packed ids and a flat list of (position in the table, number).

    Most sections are read for their blobs alone, so references are unpacked only when they are asked for.
    """

    ids: list[str | bytes | None]
    flat: list[int]

    def unpacked(self) -> list[BlobRef]:
        """The references.

        Raises:
            MalformedError: They make no sense.
        """
        if not self.flat:
            return []
        try:
            return unpack_refs(self.ids, self.flat)
        except (ValueError, TypeError, IndexError) as error:
            raise MalformedError(f"unreadable references: {error}") from None


NO_REFS: Final = PackedRefs([], [])


#: The tag of a blob that is itself a list of references, in clear.
INDEX_TAG: Final = "x"


class Section(NamedTuple):
    """One unit of a file: clear fields, a head, and blobs numbered from `first_blob`.

    The head speaks of blobs by number: first the section's own, then those of `refs`. What is
    referred to stays in clear, so that a prune needs no key.

    Attributes:
        fields: Ids and numbers that stay readable without a key.
        first_blob: The number, within the file, of the first blob.
        refs: The blobs of other checkpoints' files that the section needs.
        head: What the section says.
        blobs: The pages that the section brings.
    """

    fields: list[Any]
    first_blob: int
    refs: PackedRefs
    head: Sealed
    blobs: list[Sealed]


class Image(NamedTuple):
    """A parsed file.

    Attributes:
        kind: What the file is.
        body: Its body section.
        records: The appended records in order.
        blobs: Every blob of the file by its number.
        end: Where the next record goes; what lies behind it is a torn tail.
        damage: What is wrong with a record, or empty. Sound records behind it were still read.
    """

    kind: FileKind
    body: Section
    records: list[tuple[RecordKind, Section]]
    blobs: dict[int, Sealed]
    end: int
    damage: str

    @property
    def next_blob(self) -> int:
        """The number of the next blob to be added."""
        return 1 + max(self.blobs, default=-1)


_TORN: Final = "torn"


@lru_cache(maxsize=4096)
def pack_id(text: str | None) -> str | bytes | None:
    """An id for the clear fields; a UUID in its usual form takes 16 bytes."""
    if text is not None and len(text) == 36:
        try:
            raw = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            return _surrogates_to_bytes(text)
        if len(raw) == 16 and unpack_id(raw) == text:
            return raw
    return _surrogates_to_bytes(text)


def _surrogates_to_bytes(text: str | None) -> str | bytes | None:
    # A length of 16 would read as a UUID, so a marker byte keeps the two apart.
    if text is None or text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return b"\x00" + text.encode("utf-8", "surrogatepass") + b"\x00" * 16
    return text


@lru_cache(maxsize=4096)
def unpack_id(packed: str | bytes | None) -> str | None:
    """The id that `pack_id` packed."""
    if packed is None or isinstance(packed, str):
        return packed
    if len(packed) == 16:
        text = packed.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return packed[1:-16].decode("utf-8", "surrogatepass")


def pack_refs(refs: list[BlobRef]) -> PackedRefs:
    """References in the form in which a file holds them."""
    positions: dict[str, int] = {}
    flat = []
    for checkpoint_id, number in refs:
        flat.append(positions.setdefault(checkpoint_id, len(positions)))
        flat.append(number)
    return PackedRefs([pack_id(checkpoint_id) for checkpoint_id in positions], flat)


def unpack_refs(ids: list[str | bytes | None], flat: list[int]) -> list[BlobRef]:
    """The references that `pack_refs` packed."""
    table = [unpack_id(packed) or "" for packed in ids]
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [BlobRef(table[position], number) for position, number in pairs]


def encode_index(parts: list[tuple[BlobRef, int]]) -> bytes:
    """An index blob: references with the number of items behind each.

    A reference without a checkpoint id means the index's own file, and counts from the index blob.
    """
    ids, flat = pack_refs([ref for ref, _ in parts])
    return ormsgpack.packb([ids, flat, [count for _, count in parts]])


def parse_index(data: bytes | memoryview, at: BlobRef) -> list[tuple[BlobRef, int]]:
    """The references in the index blob that is at `at`.

    Raises:
        MalformedError: It is none.
    """
    try:
        ids, flat, counts = ormsgpack.unpackb(data)
        refs = [
            ref if ref.checkpoint_id else BlobRef(at.checkpoint_id, at.number + ref.number)
            for ref in unpack_refs(ids, flat)
        ]
        return list(zip(refs, counts, strict=True))
    except (ValueError, TypeError, IndexError) as error:
        raise MalformedError(f"unreadable index: {error}") from None


def encode_section(section: Section) -> bytes:
    """The bytes of a section."""
    clear = ormsgpack.packb(
        [
            section.fields,
            section.first_blob,
            section.refs.ids,
            section.refs.flat,
            section.head.tag,
            len(section.head.data),
            [blob.tag for blob in section.blobs],
            [len(blob.data) for blob in section.blobs],
        ]
    )
    return b"".join([_LENGTH.pack(len(clear)), clear, section.head.data, *(blob.data for blob in section.blobs)])


def parse_section(data: bytes | memoryview) -> Section:
    """The section in `data`, which must hold exactly one.

    Raises:
        MalformedError: It does not.
    """
    view = memoryview(data)
    try:
        (length,) = _LENGTH.unpack_from(view)
        at = _LENGTH.size + length
        fields, first_blob, ids, numbers, head_tag, head_length, tags, lengths = ormsgpack.unpackb(
            view[_LENGTH.size : at]
        )
        _check_clear(fields, first_blob, ids, numbers, head_tag, head_length, tags, lengths)
        head = Sealed(head_tag, view[at : at + head_length])
        at += head_length
        blobs = []
        for tag, size in zip(tags, lengths, strict=True):
            blobs.append(Sealed(tag, view[at : at + size]))
            at += size
        refs = PackedRefs(ids, numbers)
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise MalformedError(f"unreadable section: {error}") from None
    if at != len(view):
        raise MalformedError("a section's lengths do not add up")
    return Section(fields, first_blob, refs, head, blobs)


def _check_clear(*clear: Any) -> None:
    fields, first_blob, ids, numbers, head_tag, head_length, tags, lengths = clear
    if not (type(fields) is type(ids) is type(numbers) is list and type(first_blob) is int and type(head_tag) is str):
        raise MalformedError("a section's fields have other types than they should have")
    if not all(type(tag) is str for tag in tags) or any(size < 0 for size in [head_length, *lengths]):
        raise MalformedError("a section's blobs make no sense")


def encode_file(kind: FileKind, body: Section, records: bytes = b"") -> bytes:
    """A whole file: `records` are records that are already encoded."""
    section = encode_section(body)
    start = _HEADER.pack(MAGIC, FORMAT_VERSION, kind, 0)
    start += struct.pack("<IQ", zlib.crc32(start), len(section))
    return b"".join([start, xxh3_128_digest(start + section), section, records])


def encode_record(kind: RecordKind, section: Section) -> bytes:
    """One record to be appended."""
    payload = encode_section(section)
    start = kind + _LENGTH.pack(len(payload))
    return b"".join([start, _LENGTH.pack(zlib.crc32(start)), xxh3_64_digest(payload), payload])


#: What the clear fields are: "i" an id, "n" a number, "l" a list of numbers.
_BODY_FIELDS: Final = {FileKind.CHECKPOINT: "iiin", FileKind.PAGES: "i", FileKind.EARLY: "i"}
_RECORD_FIELDS: Final = {bytes(WRITES): "iln", bytes(KEPT_PAGES): ""}


def _check_fields(fields: list[Any], kinds: str) -> None:
    # More of them than are known may be a later version's.
    if len(fields) < len(kinds):
        raise MalformedError("fields are missing")
    for field, kind in zip(fields, kinds, strict=False):
        if kind == "i":
            try:
                unpack_id(field)
            except (TypeError, ValueError) as error:
                raise MalformedError(f"an id that is none: {error}") from None
        elif kind == "n":
            if type(field) is not int:
                raise MalformedError("a number that is none")
        elif type(field) is not list or not all(type(number) is int for number in field):
            raise MalformedError("numbers that are none")


def parse_file(data: bytes) -> Image:
    """Check and parse a file.

    Raises:
        NewerFormatError: The header is sound and of a newer format version.
        MalformedError: The header or the body does not check.
    """
    kind, body_end = _check_header(data)
    view = memoryview(data)
    body = parse_section(view[HEADER_SIZE:body_end])
    _check_fields(body.fields, _BODY_FIELDS[kind])
    blobs = dict(enumerate(body.blobs, body.first_blob))
    records = []
    at, damage = body_end, ""
    while at < len(view):
        found = _parse_record(view, at)
        if found == _TORN:
            break
        if isinstance(found, str):
            damage = damage or found
            at = _next_record(data, at + 1)
            continue
        tag, section, at = found
        records.append((tag, section))
        blobs.update(enumerate(section.blobs, section.first_blob))
    return Image(kind, body, records, blobs, at, damage)


def is_kind(head: bytes, kind: FileKind) -> bool:
    """Whether the first bytes of a file say that it is of a kind. They are not checked."""
    return len(head) >= _HEADER.size and _HEADER.unpack_from(head)[2] == kind.value


def _check_header(data: bytes) -> tuple[FileKind, int]:
    if len(data) < HEADER_SIZE:
        raise MalformedError(f"only {len(data)} bytes long")
    magic, version, kind, _flags = _HEADER.unpack_from(data)
    crc, body_length, checksum = _HEADER_REST.unpack_from(data, _HEADER.size)
    if magic != MAGIC:
        raise MalformedError("not a file of this store (wrong magic)")
    # The crc comes before everything a later format may change, so that a flipped bit in the
    # version is told apart from a real newer file.
    if crc != zlib.crc32(data[: _HEADER.size]):
        raise MalformedError("the header is damaged")
    if version > FORMAT_VERSION:
        raise NewerFormatError(version)
    end = HEADER_SIZE + body_length
    if end > len(data):
        raise MalformedError(f"cut short: {len(data)} bytes where at least {end} belong")
    body = memoryview(data)[HEADER_SIZE:end]
    digest = xxh3_128(data[: HEADER_SIZE - 16])
    digest.update(body)
    if checksum != digest.digest():
        raise MalformedError("the checksum does not match")
    try:
        return FileKind(kind), end
    except ValueError:
        raise MalformedError(f"unknown kind {kind}") from None


def _parse_record(view: memoryview, at: int) -> tuple[RecordKind, Section, int] | str:
    if at + RECORD_HEADER_SIZE > len(view):
        return _TORN
    tag, length, crc, checksum = _RECORD.unpack_from(view, at)
    if crc != zlib.crc32(view[at : at + 8]):
        # A crash can leave a grown file whose new blocks were never written.
        return "a record's header is damaged" if any(view[at:]) else _TORN
    start = at + RECORD_HEADER_SIZE
    end = start + length
    if end > len(view):
        return _TORN
    payload = view[start:end]
    if checksum != xxh3_64_digest(payload):
        return "a record's checksum does not match" if any(payload) else _TORN
    try:
        section = parse_section(payload)
        _check_fields(section.fields, _RECORD_FIELDS.get(tag, ""))
        return RecordKind(tag), section, end
    except MalformedError as error:
        return str(error)


def _next_record(data: bytes, at: int) -> int:
    """Where the next sound record header starts, or the end of the file."""
    while True:
        found = [p for p in (data.find(WRITES, at), data.find(KEPT_PAGES, at)) if p >= 0]
        if not found:
            return len(data)
        at = min(found)
        header = data[at : at + RECORD_HEADER_SIZE]
        if len(header) == RECORD_HEADER_SIZE and _RECORD.unpack(header)[2] == zlib.crc32(header[:8]):
            return at
        at += 1


# --- the ledger: two slots, written in turn, each whole or ignored ---

LEDGER_MAGIC: Final = b"\x89TL1"
SLOT_SIZE: Final = 512
LEDGER_ID_OFFSET: Final = 2 * SLOT_SIZE
#: The last byte of the second slot, which no slot uses: 1 while a commit is under way.
COMMITTING_OFFSET: Final = LEDGER_ID_OFFSET - 1
_SLOT: Final = struct.Struct("<4sQH")  # magic, serial, payload length
_SLOT_CHECKSUM: Final = 8


class Slot(NamedTuple):
    """A ledger state with the number of its writing."""

    serial: int
    state: LedgerState


def encode_slot(slot: Slot) -> bytes:
    """One slot, `SLOT_SIZE` bytes."""
    *numbers, deleted_upto, base = slot.state
    ids = [text.encode("utf-8", "surrogatepass") for text in (deleted_upto, base)]
    payload = ormsgpack.packb([*numbers, *ids])
    if len(payload) > SLOT_SIZE - _SLOT.size - _SLOT_CHECKSUM - 1:
        raise ValueError("an id in the ledger is too long for its slot")
    start = _SLOT.pack(LEDGER_MAGIC, slot.serial, len(payload)) + payload
    return (start + xxh3_64_digest(start)).ljust(SLOT_SIZE, b"\x00")


def parse_slot(data: bytes) -> Slot | None:
    """The slot, or `None` where it does not check."""
    try:
        magic, serial, length = _SLOT.unpack_from(data)
        end = _SLOT.size + length
        if magic != LEDGER_MAGIC or data[end : end + _SLOT_CHECKSUM] != xxh3_64_digest(data[:end]):
            return None
        token, generation, epoch, closed, deleted, base = ormsgpack.unpackb(data[_SLOT.size : end])
        if not (type(token) is type(generation) is type(epoch) is int and type(closed) is bool):
            return None
        if not type(deleted) is type(base) is bytes:
            return None
        ids = [raw.decode("utf-8", "surrogatepass") for raw in (deleted, base)]
        return Slot(serial, LedgerState(token, generation, epoch, closed, *ids))
    except (struct.error, ValueError, TypeError):
        return None


@lru_cache(maxsize=1024)
def parse_slots(data: bytes) -> tuple[Slot | None, bool]:
    """The newest sound slot, and whether the other one is damaged: both are written from the beginning."""
    slots = [parse_slot(data[:SLOT_SIZE]), parse_slot(data[SLOT_SIZE:COMMITTING_OFFSET])]
    sound = [slot for slot in slots if slot is not None]
    return max(sound, default=None, key=lambda slot: slot.serial), len(sound) == 1


def encode_ledger_id(thread_id: str) -> bytes:
    """The part of a ledger that spells out its thread's id."""
    raw = thread_id.encode("utf-8", "surrogatepass")
    start = LEDGER_MAGIC + _LENGTH.pack(len(raw)) + raw
    return start + xxh3_64_digest(start)


@lru_cache(maxsize=1024)
def parse_ledger_id(data: bytes) -> str | None:
    """The thread id in a whole ledger file, or `None` where it does not check."""
    part = data[LEDGER_ID_OFFSET:]
    try:
        (length,) = _LENGTH.unpack_from(part, len(LEDGER_MAGIC))
        end = len(LEDGER_MAGIC) + _LENGTH.size + length
        if part[:4] != LEDGER_MAGIC or part[end : end + 8] != xxh3_64_digest(part[:end]):
            return None
        return part[len(LEDGER_MAGIC) + _LENGTH.size : end].decode("utf-8", "surrogatepass")
    except (struct.error, UnicodeDecodeError):
        return None
