"""The mapping from ids to path components and back: pure text, no file is touched here.

Every component matches `[a-z0-9._-]`, is no reserved Windows name (each starts with a lower-case
letter and a dash or underscore), fits 255 bytes, and differs from every other one even on a file
system that folds case or Unicode: characters outside `[a-z0-9_-]` become `.` and two hex digits per
UTF-8 byte, and an id too long for that becomes its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from .errors import InvalidIdError

#: An escaped id longer than this is hashed, so that the whole path stays short on every system.
LITERAL_LIMIT: Final = 100
#: Checkpoint ids order the store, so they must be readable from the name and cannot be hashed.
CHECKPOINT_ID_LIMIT: Final = 200

CHECKPOINT_SUFFIX: Final = ".ckpt"
PAGES_SUFFIX: Final = ".pages"
EARLY_SUFFIX: Final = ".early"
TEMPORARY_SUFFIX: Final = ".tmp"

_SAFE = re.compile(r"[a-z0-9_-]*")
_UNSAFE = re.compile(rb"[^a-z0-9_-]")
_ESCAPE = re.compile(rb"\.([0-9a-f]{2})")
_WELL_FORMED = re.compile(r"(?:[a-z0-9_-]|\.[0-9a-f]{2})*")


def _escape(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    raw = text.encode("utf-8", "surrogatepass")
    return _UNSAFE.sub(lambda found: b".%02x" % found[0][0], raw).decode("ascii")


def _unescape(escaped: str) -> str | None:
    if _SAFE.fullmatch(escaped):
        return escaped
    if not _WELL_FORMED.fullmatch(escaped):
        return None
    raw = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), escaped.encode("ascii"))
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return text if _escape(text) == escaped else None


def _component(kind: str, text: str) -> str:
    escaped = _escape(text)
    if len(escaped) <= LITERAL_LIMIT:
        return f"{kind}-{escaped}"
    return f"{kind}_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def thread_component(thread_id: str) -> str:
    """The directory name of a thread, for any string."""
    return _component("t", thread_id)


def namespace_component(checkpoint_ns: str) -> str:
    """The directory name of a checkpoint namespace, for any string."""
    return _component("n", checkpoint_ns)


def is_component(kind: str, name: str) -> bool:
    """Whether a directory entry can be one of ours; anything else is junk to be ignored."""
    if name.startswith(f"{kind}-"):
        return _unescape(name[2:]) is not None
    return re.fullmatch(rf"{kind}_[0-9a-f]{{64}}", name) is not None


def literal_id(kind: str, name: str) -> str | None:
    """The id a component spells out, or `None` where only a file inside can tell."""
    return _unescape(name[2:]) if name.startswith(f"{kind}-") else None


def generation_component(generation: int) -> str:
    """The directory of one life of a thread; deleting a thread starts the next."""
    return f"g-{generation}"


def generation_of(name: str) -> int | None:
    """The generation a directory stands for, or `None` for anything else."""
    digits = name.removeprefix("g-")
    if digits == name or not digits.isascii() or not digits.isdigit() or str(int(digits)) != digits:
        return None
    return int(digits)


def bucket_component(lowest_id: str) -> str:
    """The directory for checkpoints whose ids are not lower than `lowest_id`."""
    return f"b-{_escape(lowest_id)}"


def bucket_bound(name: str) -> str | None:
    """The lowest id of a bucket directory, or `None` for anything else."""
    return _unescape(name[2:]) if name.startswith("b-") else None


def checkpoint_stem(checkpoint_id: str) -> str:
    """The file name of a checkpoint without its suffix.

    Raises:
        InvalidIdError: The id is empty or too long to be a file name.
    """
    escaped = _escape(checkpoint_id)
    if not escaped:
        raise InvalidIdError("checkpoint_id", checkpoint_id, "is empty")
    if len(escaped) > CHECKPOINT_ID_LIMIT:
        limit = f"is longer than {CHECKPOINT_ID_LIMIT} bytes as a file name"
        raise InvalidIdError("checkpoint_id", checkpoint_id, limit)
    return f"c-{escaped}"


def checkpoint_ids_of(names: list[str]) -> list[str]:
    """The ids of all checkpoints among the names in a bucket."""
    end = -len(CHECKPOINT_SUFFIX)
    found = [name for name in names if name.endswith(CHECKPOINT_SUFFIX)]
    stems = [name[2:end] for name in found if name.startswith("c-")]
    usual = len(stems) == len(found) and all(stems) and max(map(len, stems), default=0) <= CHECKPOINT_ID_LIMIT
    if usual and _SAFE.fullmatch("".join(stems)):
        return stems  # spelled out in full, as UUIDs are: a tenth of the time
    ids = [checkpoint_id_of(name) for name in found]
    return [checkpoint_id for checkpoint_id in ids if checkpoint_id is not None]


def checkpoint_id_of(name: str, suffix: str = CHECKPOINT_SUFFIX) -> str | None:
    """The checkpoint id a file name stands for, or `None` for any other file."""
    if not (name.startswith("c-") and name.endswith(suffix)):
        return None
    escaped = name[2 : -len(suffix)]
    return _unescape(escaped) if 0 < len(escaped) <= CHECKPOINT_ID_LIMIT else None
