"""What may go: which checkpoints of a namespace are kept, which namespaces have served their purpose, when a thread
counts as untouched. Decisions as pure functions; who reads checkpoints, takes locks and removes files is elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

#: A thread is looked at after so many puts of one process, if nothing else brought it up before.
PUTS_BETWEEN: Final = 16

#: What stays of a thread whose last turn died and has left a journal: a recovery looks as far back as this.
KEPT_FOR_RECOVERY: Final = 32

#: LangGraph gives each call of a subgraph a namespace with the id of the task that made the call.
_TASK_SEGMENT = re.compile(r":[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\||$)")


class Duration(Protocol):
    """What `datetime.timedelta` is to this module."""

    def total_seconds(self) -> float:
        """Its length in seconds."""


class Retention(NamedTuple):
    """How much of each namespace is kept. A checkpoint goes as soon as one of the two says so.

    Attributes:
        keep_last: So many of the newest stay; all, if `None`.
        max_age: Older ones go, in seconds; none, if `None`.
    """

    keep_last: int | None = None
    max_age: float | None = None


def check_retention(keep_last: int | None, max_age: float | Duration | None) -> Retention | None:
    """The retention that is asked for; `None` if everything is kept.

    Raises:
        ValueError: `keep_last` is no number from 1 on, or `max_age` no positive time. Nothing has happened.
    """
    if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
        raise ValueError(f"keep_last={keep_last!r} is not a number of checkpoints from 1 on")
    seconds = None if max_age is None else check_age(max_age)
    return None if keep_last is seconds is None else Retention(keep_last, seconds)


def check_age(max_age: float | Duration) -> float:
    """An age in seconds.

    Raises:
        ValueError: It is no positive time. Nothing has happened.
    """
    seconds = _seconds_of(max_age)
    if isinstance(max_age, bool) or not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"max_age={max_age!r:.40} is not a positive number of seconds or a timedelta")
    return seconds


def _seconds_of(max_age: float | Duration) -> float:
    try:
        return float(max_age if isinstance(max_age, (int, float)) else max_age.total_seconds())
    except (AttributeError, TypeError, ValueError, OverflowError):
        return math.nan


def is_due(*, puts: int, looked: bool, is_between_turns: bool) -> bool:
    """Whether a thread should be looked at now.

    Args:
        puts: Checkpoints that this process has put since it looked last.
        looked: Whether it ever has; what earlier processes have left is found at the first put.
        is_between_turns: Whether one turn has just ended or the next one begun.
    """
    if is_between_turns:
        return puts > 0 or not looked
    return not looked or puts >= PUTS_BETWEEN


def expired_upto(ids: Sequence[str], age_of: Callable[[str], float | None], max_age: float) -> str:
    """The newest id that is too old, or an empty text. Only the old end is looked at.

    Args:
        ids: Newest first; in this order they were made.
        age_of: The age of one in seconds; `None` where that cannot be told, which says nothing of its neighbours.
        max_age: In seconds.
    """
    found = ""
    for checkpoint_id in reversed(ids):
        age = age_of(checkpoint_id)
        if age is not None:
            if age <= max_age:
                break
            found = checkpoint_id
    return found


def doomed(
    ids: Sequence[str],
    keep_last: int | None,
    *,
    expired: str,
    protected: Collection[str],
    at_least: int,
    ancestors_of: Callable[[str], Collection[str]],
) -> list[str]:
    """The checkpoints of one namespace that go, newest first: in this order each that is still there can be read.

    Args:
        ids: All there are, newest first.
        keep_last: So many of the newest stay; `None` for all.
        expired: This one and everything older is too old.
        protected: These stay, whatever else is said.
        at_least: So many of the newest stay, however old they are.
        ancestors_of: The checkpoints that one cannot be read without.
    """
    kept_by_number = len(ids) if keep_last is None else keep_last
    going = {
        checkpoint_id
        for place, checkpoint_id in enumerate(ids)
        if place >= at_least and (place >= kept_by_number or checkpoint_id <= expired)
    }
    going -= set(protected)
    if going:
        for checkpoint_id in ids:
            if checkpoint_id not in going:
                going.difference_update(ancestors_of(checkpoint_id))
    return [checkpoint_id for checkpoint_id in ids if checkpoint_id in going]


def is_spent(checkpoint_ns: str, newest_id: str, oldest_kept: str) -> bool:
    """Whether a namespace is that of one call of a subgraph which no checkpoint can come back to any more.

    Such a call is resumed from the checkpoint of the root that it was made at, which is older than all of its own. A
    subgraph that keeps its state from call to call has a namespace without a task's id, and is never spent.

    Args:
        checkpoint_ns: The namespace.
        newest_id: The newest checkpoint in it.
        oldest_kept: The oldest checkpoint of the root namespace that stays; empty if there is none.
    """
    return newest_id < oldest_kept and _TASK_SEGMENT.search(checkpoint_ns) is not None


def is_untouched(touched_ns: int | None, now_ns: int, max_age: float) -> bool:
    """Whether a thread was last touched longer ago than `max_age` seconds; one that nothing is known of was not."""
    return touched_ns is not None and (now_ns - touched_ns) / 1e9 > max_age


def absorbed_upto(complete: Sequence[tuple[int, bool]]) -> int:
    """Journals up to this turn tell nothing that the checkpoints do not hold; 0 if there is none.

    Args:
        complete: Of each dead turn that has left a journal, its token, and whether it has recorded that all of its
            runs were complete. Such a record speaks for older journals, too.
    """
    return max((token for token, is_complete in complete if is_complete), default=0)
