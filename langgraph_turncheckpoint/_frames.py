"""Append-only files as a row of checksummed frames: how one is written, and how much of a file can be believed.
Pure bytes; what a payload means is decided elsewhere.

    magic      4 bytes
    length     4 bytes, little-endian, of the payload
    checksum   8 bytes, XXH3-64 over length and payload
    payload

A process that dies while it appends leaves a torn last frame, which is dropped without a word: the beginning of a
frame, or blocks that were never written. Any other bytes that are no frame are damage: they are passed over, and
reported.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

MAGIC: Final = b"\xf7TCf"
_HEADER: Final = struct.Struct("<4sIQ")
_LENGTH: Final = struct.Struct("<I")

#: A frame longer than this is taken for damage before its bytes are looked for.
PAYLOAD_LIMIT: Final = 1 << 30


class Frames(NamedTuple):
    """What of a file can be believed.

    Attributes:
        payloads: Every sound payload, in order.
        end: Where the next frame goes; what lies behind is a torn tail. Damage is left alone.
        damaged: Start and end of each stretch that was passed over.
    """

    payloads: list[bytes]
    end: int
    damaged: list[tuple[int, int]]


def encode_frame(payload: bytes) -> bytes:
    """One frame."""
    length = _LENGTH.pack(len(payload))
    return MAGIC + length + xxh3_64_intdigest(length + payload).to_bytes(8, "little") + payload


def split_frames(data: bytes) -> Frames:
    """Every sound frame of a file."""
    payloads: list[bytes] = []
    damaged: list[tuple[int, int]] = []
    end = position = 0
    while position < len(data):
        payload = _payload_at(data, position)
        if payload is None:
            position = data.find(MAGIC, position + 1)
            if position < 0:
                break
            continue
        if position > end:
            damaged.append((end, position))
        payloads.append(payload)
        end = position = position + _HEADER.size + len(payload)
    if end < len(data) and not _is_torn(data[end:]):
        damaged.append((end, len(data)))
        end = len(data)
    return Frames(payloads, end, damaged)


def _is_torn(tail: bytes) -> bool:
    """Whether bytes behind the last sound frame can be what a crash has left of an append."""
    if not any(tail):
        return True
    if tail[: len(MAGIC)] != MAGIC[: len(tail)]:
        return False
    if len(tail) < _HEADER.size:
        return True
    _, length, checksum = _HEADER.unpack_from(tail)
    rest = tail[_HEADER.size :]
    if length <= len(rest):
        return not any(rest)
    # A frame that is whole but for its length was appended to its end, and has been changed since.
    return bool(length <= PAYLOAD_LIMIT and xxh3_64_intdigest(_LENGTH.pack(len(rest)) + rest) != checksum)


def _payload_at(data: bytes, position: int) -> bytes | None:
    if len(data) - position < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack_from(data, position)
    start = position + _HEADER.size
    if magic != MAGIC or length > PAYLOAD_LIMIT or len(data) - start < length:
        return None
    payload = data[start : start + length]
    return payload if xxh3_64_intdigest(_LENGTH.pack(length) + payload) == checksum else None
