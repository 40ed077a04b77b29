"""What a copy of one thread has to put, and in what order: decisions over what was seen of both sides. Nothing is read
or written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ._retention import is_spent
from ._same_values import Key, Seen, missing_writes
from .errors import ThreadConflictError

#: What callers of the library may do; commands say it in their own words.
LEAVE_OUT: Final = "leave it out with exclude"
ANOTHER_ID: Final = "take it in under another thread_id"

Thread = Mapping[Key, Seen]
Same = Callable[[Key], "str | None"]


class Plan(NamedTuple):
    """What is to be done for a thread.

    Attributes:
        checkpoints: What is missing, parents first.
        writes: The checkpoints that are there and lack pending writes.
        is_ahead: Whether the destination has gone on from what the source has.
        older: How many of `checkpoints` were pruned there, or come before some that are there.
    """

    checkpoints: list[Key]
    writes: list[Key]
    is_ahead: bool
    older: int = 0


def make_plan(
    thread_id: str,
    source: Thread,
    there: Thread,
    same: Same,
    *,
    gone: Collection[Key] = frozenset(),
    restore: bool = False,
    half_read: Collection[Key] = frozenset(),
    instead: str = LEAVE_OUT,
) -> Plan:
    """What a destination lacks of a thread.

    Args:
        thread_id: For the error.
        source: The thread in the source.
        there: What the destination has under the id.
        same: Where the two versions of a checkpoint differ, `None` if they do not.
        gone: What it may lack: it was pruned there.
        restore: Whether that is to be put all the same.
        half_read: The checkpoints of which the source has lost pending writes. The destination may well have these.
        instead: For the error: what to do if the destination's thread is to stay.

    Raises:
        ThreadConflictError: The destination holds something else.
    """

    def conflict(what: str) -> ThreadConflictError:
        advice = f"Nothing of it was overwritten; delete the thread there first, or {instead}."
        return ThreadConflictError(f"the destination holds another thread under this id: {what}. {advice}", thread_id)

    common = source.keys() & there.keys()
    for key in oldest_first(common):
        if (difference := same(key)) is not None:
            raise conflict(f"checkpoint {named(key)} is another one there: {difference}")
    missing, extra = source.keys() - there.keys(), there.keys() - source.keys()
    is_ahead = bool(extra) and not missing - set(gone) and min(key[1] for key in extra) > max(key[1] for key in source)
    if extra and not is_ahead:
        raise conflict(f"it has checkpoint {named(oldest_first(extra)[0])}, which the source has not")
    put = missing if restore else missing - set(gone)
    writes = []
    for key in oldest_first(common) if not is_ahead else ():
        lacks, has_foreign = missing_writes(source[key], there[key])
        if has_foreign and key not in half_read:
            raise conflict(f"checkpoint {named(key)} has pending writes there that the source has not")
        if lacks:
            writes.append(key)
    older = 0
    for keys in _in_order(source):
        last = max((number for number, key in enumerate(keys) if key in there), default=0)
        older += sum(key in put and (number < last or key in gone) for number, key in enumerate(keys))
    return Plan(parents_first(source, put), writes, is_ahead, older)


def below(source: Thread, there: Thread) -> list[Key]:
    """What a prune may have taken from a copy of a thread, by namespace: all in front of the first that is there, or
    all of a call of a subgraph that no checkpoint which is there can come back to.

    A copy is made from the front. One that was killed has the first checkpoints of each namespace, and lacks the
    others. A destination without a single checkpoint of the source tells nothing.
    """
    if not source.keys() & there.keys():
        return []
    root = min((key[1] for key in there if not key[0]), default="")
    found = []
    for keys in _in_order(source):
        if is_spent(keys[0][0], max(key[1] for key in keys), root):
            found += [key for key in keys if key not in there]
            continue
        oldest = min((key[1] for key in there if key[0] == keys[0][0]), default="")
        first = next((number for number, key in enumerate(keys) if key in there), len(keys))
        found += [key for key in keys[:first] if key[1] < oldest]
    return found


def _in_order(thread: Thread) -> list[list[Key]]:
    """The checkpoints of each namespace in the order in which they are copied."""
    by_namespace: dict[str, list[Key]] = {}
    for key in parents_first(thread, thread):
        by_namespace.setdefault(key[0], []).append(key)
    return list(by_namespace.values())


def counted(number: int, noun: str) -> str:
    """`1 thread`, `2 threads`, for messages."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def named(key: Key) -> str:
    """A checkpoint, for messages."""
    return f"{key[1]} of namespace {key[0]!r}" if key[0] else key[1]


def oldest_first(keys: Iterable[Key]) -> list[Key]:
    """Checkpoints in the order of their ids."""
    return sorted(keys, key=lambda key: (key[1], key[0]))


def parents_first(thread: Thread, wanted: Iterable[Key]) -> list[Key]:
    """The checkpoints in the order of their ids, except that a parent always comes before its children.

    Ids grow with time only within one process, so a parent's may be greater than its child's.
    """
    waiting = dict.fromkeys(oldest_first(wanted))
    ordered: list[Key] = []
    while waiting:
        chain = [next(iter(waiting))]
        del waiting[chain[0]]
        while (parent := (chain[-1][0], thread[chain[-1]].parent_id or "")) in waiting:
            del waiting[parent]  # which also ends a circle
            chain.append(parent)
        ordered += reversed(chain)
    return ordered


def changed_versions(this: Seen, parent: Seen | None) -> Iterator[tuple[str, Any]]:
    """The versions of the channels whose values are not those of the parent.

    A channel without a value is left out: some savers would take that for the end of a value that an earlier
    checkpoint has under the same version.
    """
    for channel, value in this.values.items():
        version = this.versions.get(channel)
        is_parents = parent is not None and parent.versions.get(channel) == version and value
        if version is not None and not (is_parents and parent is not None and parent.values.get(channel) == value):
            yield channel, version
