"""The bytes of files: what is written is read again, and nothing that was changed is taken for what was written."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from langgraph_turncheckpoint import _records as records
from langgraph_turncheckpoint._records import (
    HEADER_SIZE,
    KEPT_PAGES,
    RECORD_HEADER_SIZE,
    WRITES,
    BlobRef,
    FileKind,
    MalformedError,
    NewerFormatError,
    Sealed,
    Section,
    Slot,
)
from langgraph_turncheckpoint._turn import LedgerState

IDS = st.text(st.characters(exclude_categories=()), max_size=20) | st.uuids().map(str)

REFS = [BlobRef("older", 0), BlobRef("older", 7), BlobRef("1f0a4f3c-0000-6000-8000-000000000001", 2)]
BODY = Section(
    ["id", "ns", None, 3],
    0,
    records.pack_refs(REFS),
    Sealed("", b"head"),
    [Sealed("p", b"blob zero"), Sealed("m", b"")],
)
APPENDED = [
    (
        WRITES,
        Section(["task-a", [0, -1], 3], 2, records.NO_REFS, Sealed("", b"first"), [Sealed("p", b"WRIT inside a page")]),
    ),
    (KEPT_PAGES, Section([], 9, records.NO_REFS, Sealed("", b""), [Sealed("p", b"kept")])),
    (WRITES, Section(["task-b", [0], 3], 3, records.NO_REFS, Sealed("", b"third"), [])),
]


def encoded(upto=None):
    appended = b"".join(records.encode_record(*record) for record in APPENDED[:upto])
    return records.encode_file(FileKind.CHECKPOINT, BODY, appended)


ENDS = [len(encoded(count)) for count in range(len(APPENDED) + 1)]


def plain(section):
    """A section whose bytes are comparable."""
    return section._replace(
        head=Sealed(section.head.tag, bytes(section.head.data)),
        blobs=[Sealed(blob.tag, bytes(blob.data)) for blob in section.blobs],
    )


def plain_records(image):
    return [(kind, plain(section)) for kind, section in image.records]


def test_a_file_gives_back_what_it_was_made_of():
    image = records.parse_file(encoded())
    assert image.kind is FileKind.CHECKPOINT
    assert plain(image.body) == BODY
    assert plain_records(image) == APPENDED
    assert (image.end, image.damage) == (ENDS[-1], "")
    assert {number: bytes(blob.data) for number, blob in image.blobs.items()} == {
        0: b"blob zero", 1: b"", 2: b"WRIT inside a page", 9: b"kept",
    }  # fmt: skip
    assert image.next_blob == 10


def test_every_truncation_is_damage_or_drops_only_the_records_that_it_touches():
    data = encoded()
    for length in range(len(data)):
        if length < ENDS[0]:
            with pytest.raises(MalformedError):
                records.parse_file(data[:length])
            continue
        image = records.parse_file(data[:length])
        whole = sum(end <= length for end in ENDS) - 1
        assert plain_records(image) == APPENDED[:whole]
        assert (image.end, image.damage) == (ENDS[whole], ""), "a torn tail is no damage: it was never acknowledged"


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_noticed(flip):
    """In the header or the body the file is refused; in a record it is reported, and the other records are read."""
    data = encoded()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= flip
        if position < ENDS[0]:
            with pytest.raises(MalformedError):
                records.parse_file(bytes(changed))
            continue
        image = records.parse_file(bytes(changed))
        hit = sum(end <= position for end in ENDS) - 1
        assert image.damage
        assert plain_records(image) == APPENDED[:hit] + APPENDED[hit + 1 :]


def test_every_zeroed_byte_is_noticed():
    data = encoded()
    for position in range(len(data)):
        if data[position] == 0:
            continue
        changed = data[:position] + b"\x00" + data[position + 1 :]
        try:
            image = records.parse_file(changed)
        except MalformedError:
            continue
        assert image.damage or plain_records(image) != APPENDED
        assert all(record in APPENDED for record in plain_records(image))


@given(junk=st.binary(min_size=RECORD_HEADER_SIZE, max_size=60), between=st.booleans())
@example(junk=b"WRIT" * 12, between=True)
@example(junk=b"PAGE" + b"\xff" * 40, between=True)
def test_after_junk_reading_resumes_at_the_next_sound_record(junk, between):
    at = ENDS[1] if between else ENDS[0]
    data = encoded()
    image = records.parse_file(data[:at] + junk + data[at:])
    assert plain_records(image) == APPENDED
    assert image.damage
    assert image.end == len(data) + len(junk)


@pytest.mark.parametrize("junk", [b"\x01" * 30, b"WRIT", b"PAGE" * 9, encoded()])
def test_junk_behind_the_last_record_is_never_read_as_data(junk):
    image = records.parse_file(encoded() + junk)
    assert all(record in APPENDED for record in plain_records(image))
    assert plain_records(image)[: len(APPENDED)] == APPENDED


@pytest.mark.parametrize("length", [1, RECORD_HEADER_SIZE - 1, RECORD_HEADER_SIZE, 4096])
def test_zeros_behind_the_last_record_are_a_torn_tail(length):
    """A crash may leave the file grown, with the new blocks never written."""
    image = records.parse_file(encoded() + bytes(length))
    assert (plain_records(image), image.end, image.damage) == (APPENDED, ENDS[-1], "")


def test_a_record_whose_payload_never_reached_the_disk_is_a_torn_tail():
    data = encoded()
    start = ENDS[2] + RECORD_HEADER_SIZE
    image = records.parse_file(data[:start] + bytes(len(data) - start))
    assert (plain_records(image), image.end, image.damage) == (APPENDED[:2], ENDS[2], "")


@pytest.mark.parametrize("data", [b"", b"\x00" * 4096, b"x", b"{}" * 100, records.MAGIC, bytes(HEADER_SIZE)])
def test_foreign_bytes_are_malformed(data):
    with pytest.raises(MalformedError):
        records.parse_file(data)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_malformed_and_nothing_else(data):
    for attempt in (data, records.MAGIC + data):
        with pytest.raises(MalformedError):
            records.parse_file(attempt)


@given(data=st.binary(max_size=120))
def test_a_section_of_any_bytes_parses_or_is_malformed(data):
    """Behind a checksum that matches there may still be bytes of somebody who can compute checksums."""
    for attempt in (data, struct.pack("<I", len(data)) + data):
        try:
            section = records.parse_section(attempt)
        except MalformedError:
            continue
        assert len(section) == len(BODY)


def newer(version, checksum=True):
    data = bytearray(encoded())
    struct.pack_into("<H", data, len(records.MAGIC), version)
    if checksum:
        struct.pack_into("<I", data, 12, zlib.crc32(data[:12]))
    return bytes(data)


@pytest.mark.parametrize("version", [records.FORMAT_VERSION + 1, 0xFFFF])
def test_a_newer_format_is_told_apart_from_a_damaged_version(version):
    with pytest.raises(NewerFormatError) as caught:
        records.parse_file(newer(version))
    assert caught.value.version == version
    with pytest.raises(MalformedError):
        records.parse_file(newer(version, checksum=False))


def test_a_newer_format_is_known_from_its_header_alone():
    """What follows may have any shape."""
    data = newer(records.FORMAT_VERSION + 1)
    with pytest.raises(NewerFormatError):
        records.parse_file(data[:HEADER_SIZE] + b"anything")


@given(text=st.none() | IDS)
@example(text="1f0a4f3c-0000-6000-8000-000000000001")
@example(text="1F0A4F3C-0000-6000-8000-000000000001")
@example(text="1f0a4f3c00006000800000000000000001  ")
@example(text="-" * 36)
@example(text="x" * 16)
@example(text="\ud800" * 12)
@example(text="")
def test_any_id_survives_packing(text):
    assert records.unpack_id(records.pack_id(text)) == text


def test_a_uuid_takes_sixteen_bytes():
    packed = records.pack_id("1f0a4f3c-0000-6000-8000-000000000001")
    assert isinstance(packed, bytes)
    assert len(packed) == 16


@given(refs=st.lists(st.builds(BlobRef, IDS, st.integers(0, 1 << 40)), max_size=20))
def test_references_survive_packing(refs):
    assert records.pack_refs(refs).unpacked() == refs


@given(parts=st.lists(st.tuples(st.builds(BlobRef, IDS, st.integers(0, 1 << 20)), st.integers(1, 300)), max_size=20))
def test_an_index_resolves_its_own_references_from_where_it_is(parts):
    at = BlobRef("here", 40)
    resolved = [(ref if ref.checkpoint_id else BlobRef("here", 40 + ref.number), count) for ref, count in parts]
    assert records.parse_index(records.encode_index(parts), at) == resolved


@given(data=st.binary(max_size=40))
def test_an_index_of_any_bytes_parses_or_is_malformed(data):
    try:
        records.parse_index(data, BlobRef("here", 0))
    except MalformedError:
        return


STATES = st.builds(
    LedgerState,
    token=st.integers(0, (1 << 63) - 1),
    generation=st.integers(1, 1 << 40),
    epoch=st.integers(0, 1 << 60),
    closed=st.booleans(),
    deleted_upto=IDS,
    base=IDS,
)


@given(slot=st.builds(Slot, st.integers(0, (1 << 63) - 1), STATES))
def test_a_slot_gives_back_its_state(slot):
    data = records.encode_slot(slot)
    assert len(data) == records.SLOT_SIZE
    assert records.parse_slot(data) == slot


def test_a_slot_holds_the_longest_ids_there_can_be():
    longest = "x" * 200
    slot = Slot((1 << 63) - 1, LedgerState((1 << 63) - 1, 1 << 62, 1 << 62, True, longest, longest))
    assert len(records.encode_slot(slot)) == records.SLOT_SIZE
    assert records.parse_slot(records.encode_slot(slot)) == slot


def test_a_changed_or_cut_slot_is_none():
    slot = Slot(5, LedgerState(7, 2, 1, False, "deleted", "base"))
    data = records.encode_slot(slot)
    used = len(data.rstrip(b"\x00"))
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x10
        assert records.parse_slot(bytes(changed)) in ([None] if position < used else [None, slot])
        assert records.parse_slot(data[:position]) in ([None] if position < used else [None, slot])


def test_the_newer_sound_slot_counts_and_a_damaged_other_is_reported():
    old, new = Slot(4, LedgerState(token=4)), Slot(5, LedgerState(token=5))
    first, second = records.encode_slot(old), records.encode_slot(new)
    broken = b"\xff" + second[1:]
    zeroed = bytes(records.SLOT_SIZE)
    assert records.parse_slots(first + second) == (new, False)
    assert records.parse_slots(second + first) == (new, False)
    assert records.parse_slots(first + broken) == (old, True)
    assert records.parse_slots(first + zeroed) == (old, True)
    assert records.parse_slots(first) == (old, True)
    assert records.parse_slots(broken + broken) == (None, False)
    assert records.parse_slots(b"") == (None, False)


@given(thread_id=st.text(st.characters(exclude_categories=()), max_size=300))
def test_a_ledger_spells_out_its_thread(thread_id):
    slots = bytes(records.LEDGER_ID_OFFSET)
    data = slots + records.encode_ledger_id(thread_id)
    assert records.parse_ledger_id(data) == thread_id
    assert records.parse_ledger_id(data + b"\x00" * 9) == thread_id


def test_a_changed_or_cut_thread_name_in_a_ledger_is_none():
    data = bytes(records.LEDGER_ID_OFFSET) + records.encode_ledger_id("some thread")
    for position in range(records.LEDGER_ID_OFFSET, len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x01
        assert records.parse_ledger_id(bytes(changed)) is None
        assert records.parse_ledger_id(data[:position]) is None
