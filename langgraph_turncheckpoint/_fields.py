"""The clear fields of checkpoints and of writes, and the times that ids and they tell. Numbers and text only; how a
section carries its fields is `_records`' business.

A record of writes says how many milliseconds after its checkpoint it was made, so that a picture knows how long a task
took: LangGraph stores each task's writes as soon as it is done, for plain runs and guarded ones alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from ._records import pack_id

#: The field of a writes record that tells when it was made, and what it cannot tell: 49 days.
_SINCE: Final = 3
_SINCE_LIMIT_MS: Final = 1 << 32
#: From the epoch of UUIDs to 1970, in their unit, and how many nanoseconds that is.
_UUID_EPOCH: Final = 0x01B21DD213814000
_UUID_TICK_NS: Final = 100
_TIMED_ID: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-[0-9a-f]{4}-[0-9a-f]{12}")


def checkpoint_fields(checkpoint_id: str, checkpoint_ns: str, parent_id: str | None, token: int) -> list[Any]:
    """The clear fields of a checkpoint's body."""
    return [pack_id(checkpoint_id), pack_id(checkpoint_ns), pack_id(parent_id), token]


def writes_fields(task_id: str, indexes: list[int], token: int, since_ms: int | None = None) -> list[Any]:
    """The clear fields of a writes record; `since_ms` tells when it was made, if that is to be known."""
    fields = [pack_id(task_id), indexes, token]
    return fields if since_ms is None else [*fields, since_ms]


def id_time_ns(checkpoint_id: str) -> int | None:
    """When a checkpoint was made, in nanoseconds since 1970; `None` if its id is not one of LangGraph's, or of no time.

    A home-made import's ids are of the same form, but older than any.
    """
    found = _TIMED_ID.fullmatch(checkpoint_id)
    ticks = 0 if found is None else int("".join(found.groups()), 16)
    return (ticks - _UUID_EPOCH) * _UUID_TICK_NS if ticks > _UUID_EPOCH else None


def ms_since(checkpoint_id: str, at_ns: int) -> int | None:
    """Milliseconds from when a checkpoint was made to a time; `None` where its id does not tell, or much too many.

    Writes belong to a checkpoint that is a few seconds old, so the difference takes a byte to three where a time would
    take nine.
    """
    made = id_time_ns(checkpoint_id)
    since = -1 if made is None else (at_ns - made) // 1_000_000
    return since if 0 <= since < _SINCE_LIMIT_MS else None


def written_at(checkpoint_id: str, fields: Sequence[Any]) -> float | None:
    """When a writes record was made, in seconds since 1970; `None` if it does not say: one of a store that does not
    keep it, or of writes that a copy has brought from elsewhere.
    """
    made = id_time_ns(checkpoint_id)
    if made is None or len(fields) <= _SINCE or type(fields[_SINCE]) is not int:
        return None
    return made / 1e9 + fields[_SINCE] / 1e3
