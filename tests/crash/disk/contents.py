"""What a store must hold: plain values that operations change and a look at a store is compared with. No file and no
saver is known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

#: What kind of thing, thread, and whatever else names it.
Key: TypeAlias = tuple[str, ...]
#: Thread, namespace, checkpoint id.
Place: TypeAlias = tuple[str, str, str]
#: By task and index: task path, channel, value.
Writes: TypeAlias = Mapping[tuple[str, int], tuple[str, str, Any]]


class Journal(NamedTuple):
    """The journal of one turn.

    Attributes:
        records: Kind and fields of each record that was written.
        certain: How many of them survive a loss of power.
        may_be_gone: Whether somebody has removed it.
    """

    records: tuple[tuple[str, str], ...] = ()
    certain: int = 0
    may_be_gone: bool = False


@dataclass(frozen=True, slots=True)
class Contents:
    """What was acknowledged by some moment.

    Attributes:
        items: What can be read: checkpoints, messages in inboxes, which threads are closed.
        writes: The writes of each checkpoint, also of one that has not come yet.
        certain: By thread, the newest turn token that a loss of power must not take.
        handed: By thread, the newest token there was.
        deleted: By thread, the newest checkpoint that was deleted with it.
        journals: By thread and token.
        copied: Threads that hold checkpoints which the turns of another thread have written.
    """

    items: Mapping[Key, Any] = field(default_factory=dict)
    writes: Mapping[Place, Writes] = field(default_factory=dict)
    certain: Mapping[str, int] = field(default_factory=dict)
    handed: Mapping[str, int] = field(default_factory=dict)
    deleted: Mapping[str, str] = field(default_factory=dict)
    journals: Mapping[tuple[str, int], Journal] = field(default_factory=dict)
    copied: frozenset[str] = frozenset()

    def visible(self) -> dict[Key, Any]:
        """All that a look finds, by what it is: the items, and the writes of checkpoints that are there."""
        shown = {key: value for key, value in self.items.items() if key[0] != "closed" or value}
        for place, writes in self.writes.items():
            if ("checkpoint", *place) in self.items and writes:
                shown[key_of("writes", place)] = in_order(writes)
        return shown

    def early(self) -> dict[Place, list[Any]]:
        """The writes of checkpoints that have not come yet."""
        return {place: in_order(w) for place, w in self.writes.items() if ("checkpoint", *place) not in self.items}

    def ids(self, thread: str, checkpoint_ns: str) -> list[str]:
        """The checkpoints of a namespace, oldest first."""
        return sorted(key[3] for key in self.items if key[:3] == ("checkpoint", thread, checkpoint_ns))

    def namespaces(self, thread: str) -> list[str]:
        """The namespaces of a thread that hold a checkpoint."""
        return sorted({key[2] for key in self.items if key[:2] == ("checkpoint", thread)})

    def messages(self, thread: str) -> list[str]:
        """The ids of the messages in a thread's inbox, in order."""
        return [key[2] for key in self.items if key[:2] == ("message", thread)]

    def with_items(self, changed: Mapping[Key, Any]) -> Contents:
        """With these added or replaced."""
        return replace(self, items={**self.items, **changed})

    def without(self, keys: Iterable[Key]) -> Contents:
        """Without these."""
        gone = set(keys)
        return replace(self, items={key: value for key, value in self.items.items() if key not in gone})

    def with_writes(self, place: Place, more: Writes) -> Contents:
        """With writes added: a special one, of a negative index, replaces its predecessor; any other stays as it is."""
        kept = self.writes.get(place, {})
        merged = {**kept, **{key: write for key, write in more.items() if key[1] < 0 or key not in kept}}
        return replace(self, writes={**self.writes, place: merged})

    def without_writes(self, places: Iterable[Place]) -> Contents:
        """Without the writes of these checkpoints."""
        gone = set(places)
        return replace(self, writes={place: writes for place, writes in self.writes.items() if place not in gone})

    def with_token(self, thread: str, token: int, *, certain: bool) -> Contents:
        """With a token handed out, on the disk or not."""
        handed = {**self.handed, thread: token}
        return replace(self, handed=handed, certain={**self.certain, thread: token} if certain else self.certain)

    def with_journal(self, thread: str, token: int, journal: Journal) -> Contents:
        """With the journal of a turn."""
        return replace(self, journals={**self.journals, (thread, token): journal})


def key_of(kind: str, place: Place) -> Key:
    """What names a checkpoint, or the writes on it, among the items."""
    return (kind, *place)


def in_order(writes: Writes) -> list[tuple[str, str, Any]]:
    """Task, channel and value of each write, as LangGraph sorts them."""
    return [(key[0], *writes[key][1:]) for key in sorted(writes, key=lambda key: (writes[key][0], *key))]
