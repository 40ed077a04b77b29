"""Frames: what was appended whole is read whole, a torn tail is dropped in silence, damage is told and stays local."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_turncheckpoint import _frames
from langgraph_turncheckpoint._frames import MAGIC, Frames, encode_frame, split_frames

HEADER = 16
PAYLOADS = [b"one", b"", b"three" * 100, MAGIC, b"\x00" * 40]


def joined(payloads: list[bytes]) -> bytes:
    return b"".join(map(encode_frame, payloads))


def bounds(payloads: list[bytes]) -> list[tuple[int, int]]:
    """Start and end of each frame."""
    found, start = [], 0
    for payload in payloads:
        end = start + HEADER + len(payload)
        found.append((start, end))
        start = end
    return found


def test_an_empty_file_has_no_frames():
    assert split_frames(b"") == Frames([], 0, [])


def test_what_was_appended_is_read():
    data = joined(PAYLOADS)
    assert split_frames(data) == Frames(PAYLOADS, len(data), [])


def test_the_layout_is_as_described():
    frame = encode_frame(b"abc")
    magic, length, checksum = struct.unpack_from("<4sIQ", frame)
    assert (magic, length, frame[HEADER:]) == (MAGIC, 3, b"abc")
    from xxhash import xxh3_64_intdigest

    assert checksum == xxh3_64_intdigest(struct.pack("<I", 3) + b"abc")


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_any_payloads_come_back(payloads):
    assert split_frames(joined(payloads)).payloads == payloads


@given(st.lists(st.binary(max_size=32), min_size=1, max_size=4), st.data())
def test_a_file_cut_anywhere_keeps_what_was_whole_and_is_not_damaged(payloads, data):
    whole = joined(payloads)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [end for _, end in bounds(payloads)]
    kept = sum(end <= cut for end in ends)
    found = split_frames(whole[:cut])
    assert found.payloads[:kept] == payloads[:kept]
    if not any(MAGIC in payload for payload in payloads):
        assert found == Frames(payloads[:kept], ends[kept - 1] if kept else 0, [])


@pytest.mark.parametrize("place", range(len(PAYLOADS)))
def test_one_changed_byte_costs_one_frame(place):
    payloads = [b"one", b"two", b"three" * 100, b"four", b"five"]
    start, end = bounds(payloads)[place]
    for position in range(start, end):
        data = bytearray(joined(payloads))
        data[position] ^= 0x01
        found = split_frames(bytes(data))
        assert found.payloads == payloads[:place] + payloads[place + 1 :], position
        assert found.damaged == [(start, end)]
        assert found.end == len(data)


def test_several_damaged_stretches_are_told_apart():
    payloads = [b"one", b"two", b"three", b"four", b"five"]
    places = bounds(payloads)
    data = bytearray(joined(payloads))
    data[places[1][0] + 3] ^= 0xFF
    data[places[3][1] - 1] ^= 0xFF
    found = split_frames(bytes(data))
    assert found.payloads == [b"one", b"three", b"five"]
    assert found.damaged == [places[1], places[3]]


def test_bytes_that_are_no_frame_between_frames_are_damage():
    one, two = encode_frame(b"one"), encode_frame(b"two")
    found = split_frames(one + b"noise" + two)
    assert found == Frames([b"one", b"two"], len(one) + 5 + len(two), [(len(one), len(one) + 5)])


def test_what_follows_the_last_frame_is_a_torn_tail():
    one = encode_frame(b"one")
    for tail in (MAGIC, MAGIC[:2], encode_frame(b"two")[:-1], encode_frame(b"two")[:16] + bytes(3), bytes(4096)):
        assert split_frames(one + tail) == Frames([b"one"], len(one), [])


def test_what_no_crash_leaves_behind_the_last_frame_is_damage():
    """A torn append is the beginning of a frame, or blocks that were never written."""
    one, two = encode_frame(b"one"), encode_frame(b"two")
    longer = two[:4] + struct.pack("<I", 99) + two[8:]
    for tail in (b"n", b"\x00" + two[:-1], two[:-1] + b"?", longer, MAGIC + b"\xff" * 40):
        whole = len(one + tail)
        assert split_frames(one + tail) == Frames([b"one"], whole, [(len(one), whole)])


def test_a_frame_inside_a_damaged_payload_is_no_reason_to_lose_those_behind():
    """The search goes on byte by byte, so a payload that holds a whole frame of its own gives that one."""
    inner = encode_frame(b"inner")
    data = bytearray(joined([b"one", b"x" + inner, b"three"]))
    data[bounds([b"one"])[0][1] + HEADER] ^= 0xFF
    found = split_frames(bytes(data))
    assert found.payloads == [b"one", b"inner", b"three"]
    assert len(found.damaged) in {1, 2}


def test_a_length_beyond_the_limit_is_damage_and_not_waited_for(monkeypatch):
    monkeypatch.setattr(_frames, "PAYLOAD_LIMIT", 8)
    long, short = encode_frame(b"123456789"), encode_frame(b"12345678")
    found = split_frames(long + short)
    assert found == Frames([b"12345678"], len(long) + len(short), [(0, len(long))])


def test_a_wild_length_does_not_swallow_the_frames_behind_it():
    data = bytearray(joined([b"one", b"two", b"three"]))
    start, end = bounds([b"one", b"two"])[1]
    struct.pack_into("<I", data, start + 4, 0xFFFFFFFF)
    found = split_frames(bytes(data))
    assert found.payloads == [b"one", b"three"]
    assert found.damaged == [(start, end)]


def test_many_magics_without_frames_are_passed_over():
    data = encode_frame(b"one") + MAGIC * 2_000 + encode_frame(b"two")
    assert split_frames(data).payloads == [b"one", b"two"]
