"""A POSIX file system as far as a crash is concerned: which calls change what, what is durable, and every state that a
loss of power may leave. Pure data; no file is touched, and nothing of the store is known.

Only what was synced is certain. Of each call that was not, anything may have reached the disk:

- The bytes and the length of a file are certain once the file was synced. Until then each write may be there, missing,
  or there in part: cut at either side, or as a longer file with zeros or garbage in it; each in any order.
- A name is certain once its directory was synced, whether it was made, renamed or removed; syncing the file, or a
  directory below, does not help. Until then any of these changes may be there without the others, but for those to the
  same name, which come in order. A rename within one directory is one step.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

ROOT: Final = 1
BLOCK: Final = 512


class Create(NamedTuple):
    """A name for a new file or directory."""

    directory: int
    name: str
    inode: int
    is_directory: bool


class Remove(NamedTuple):
    """A name goes, and what it named with it."""

    directory: int
    name: str


class Rename(NamedTuple):
    """A name gives way to another one in the same directory, replacing what that named."""

    directory: int
    source: str
    target: str


class Write(NamedTuple):
    """Bytes in a file."""

    inode: int
    offset: int
    data: bytes


class Resize(NamedTuple):
    """A new length of a file."""

    inode: int
    size: int


class Sync(NamedTuple):
    """All so far of one file, or of one directory, is on the disk."""

    inode: int


NameChange: TypeAlias = Create | Remove | Rename
Event: TypeAlias = Create | Remove | Rename | Write | Resize | Sync


class Fate(NamedTuple):
    """What a loss of power makes of a call that was not synced.

    Attributes:
        kind: "kept", "lost", or for a write "head" or "tail" (only these bytes), "zeros" or "garbage" (the file has
            grown, the bytes are not there).
        cut: Where a head ends or a tail begins.
    """

    kind: str
    cut: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.cut}" if self.kind in {"head", "tail"} else self.kind


KEPT: Final = Fate("kept")
LOST: Final = Fate("lost")


class Tree:
    """Files and directories by number; nobody changes the bytes of a file in place."""

    __slots__ = ("directories", "files", "has_hole")

    def __init__(self) -> None:
        #: Whether a write came behind the end of its file, because one before it was lost.
        self.has_hole = False
        self.directories: dict[int, dict[str, int]] = {ROOT: {}}
        self.files: dict[int, bytes] = {}

    def copy(self) -> Tree:
        """An independent copy."""
        made = Tree()
        made.directories = {inode: dict(names) for inode, names in self.directories.items()}
        made.files = dict(self.files)
        return made

    def apply(self, event: Event, fate: Fate = KEPT) -> None:
        """Carry out a call as far as its fate lets it."""
        if fate is LOST:
            return
        match event:
            case Write():
                self._write(event, fate)
            case Resize(inode, size):
                data = self.files.get(inode, b"")
                self.files[inode] = data[:size].ljust(size, b"\0")
            case Create(directory, name, inode, is_directory):
                if is_directory:
                    self.directories.setdefault(inode, {})
                else:
                    self.files.setdefault(inode, b"")
                self.directories[directory][name] = inode
            case Remove(directory, name):
                self.directories[directory].pop(name, None)
            case Rename(directory, source, target):
                names = self.directories[directory]
                if source in names:
                    names[target] = names.pop(source)
            case Sync():
                pass

    def _write(self, event: Write, fate: Fate) -> None:
        old = self.files.get(event.inode, b"")
        offset, data = event.offset, event.data
        self.has_hole = self.has_hole or offset > len(old)
        end = offset + len(data)
        if fate.kind == "head":
            data = data[: fate.cut]
        elif fate.kind == "tail":
            offset, data = offset + fate.cut, data[fate.cut :]
            old = old.ljust(offset, b"\0")
        elif fate.kind in {"zeros", "garbage"}:
            grown = end - max(len(old), offset)
            if grown <= 0:
                return
            filling = b"\0" * grown if fate.kind == "zeros" else random.Random(end).randbytes(grown)
            self.files[event.inode] = old.ljust(offset, b"\0") + filling
            return
        old = old.ljust(offset, b"\0")
        self.files[event.inode] = old[:offset] + data + old[offset + len(data) :]

    def paths(self) -> dict[str, bytes | None]:
        """All that can be reached from the root: the bytes of each file, `None` for each directory."""
        found: dict[str, bytes | None] = {}
        waiting = [("", ROOT)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, inode in self.directories[directory].items():
                path = prefix + name
                if inode in self.directories:
                    found[path] = None
                    waiting.append((path + "/", inode))
                else:
                    found[path] = self.files[inode]
        return found


class Crash(NamedTuple):
    """One state that a crash may leave.

    Attributes:
        paths: What is on the disk.
        is_torn: Whether some write is there in part, or one behind it without it.
        fates: What became of each call that was not synced, in order.
        pending: These calls.
    """

    paths: dict[str, bytes | None]
    is_torn: bool
    fates: tuple[Fate, ...]
    pending: tuple[Event, ...]

    def digest(self) -> bytes:
        """The same for the same state of the disk, torn or not."""
        found = hashlib.blake2b(digest_size=16)
        for path in sorted(self.paths):
            data = self.paths[path]
            found.update(b"%d:%s:%d:" % (len(path), path.encode(), -1 if data is None else len(data)))
            found.update(data or b"")
        return found.digest()

    def told(self) -> str:
        """What was lost, in words."""
        lost = [
            f"{fate} {_told(event)}" for event, fate in zip(self.pending, self.fates, strict=True) if fate is not KEPT
        ]
        return "; ".join(lost) or "nothing lost"


def _told(event: Event) -> str:
    match event:
        case Create(_, name, _, is_directory):
            return f"{'mkdir' if is_directory else 'create'} {name}"
        case Remove(_, name):
            return f"unlink {name}"
        case Rename(_, source, target):
            return f"rename {source} to {target}"
        case Write(inode, offset, data):
            return f"write #{inode} {offset}+{len(data)}"
        case _:
            return f"truncate #{event[0]}"


class Disk:
    """A log of calls, the state in which nothing is lost, and from it what is certain at any point."""

    def __init__(self, base: Tree | None = None) -> None:
        self.base = base or Tree()
        self.live = self.base.copy()
        self.events: list[Event] = []
        self._last = itertools.count(1 + max([ROOT, *self.base.directories, *self.base.files]))

    def note(self, event: Event) -> None:
        """One more call."""
        self.events.append(event)
        self.live.apply(event)

    def new_inode(self) -> int:
        """A number that no file has."""
        return next(self._last)

    def upto(self, position: int) -> Disk:
        """The same disk before the call at a position: a killed process stops there, and others go on."""
        made = Disk(self.base)
        for event in self.events[:position]:
            made.note(event)
        made._last = self._last
        return made

    def points(self, first: int = 0) -> Iterator[tuple[int, Tree, list[Event]]]:
        """Before each call and at the end: the position, what is certain, and what is not. Do not change them.

        Args:
            first: The position to begin with.
        """
        certain, pending = self.base.copy(), list[Event]()
        for position, event in enumerate(self.events):
            if position >= first:
                yield position, certain, pending
            if isinstance(event, Sync):
                for waiting in pending:
                    if waiting[0] == event.inode:
                        certain.apply(waiting)
                pending = [waiting for waiting in pending if waiting[0] != event.inode]
            else:
                # A file that has no name yet on the disk is there all the same.
                if isinstance(event, Create):
                    (certain.directories if event.is_directory else certain.files).setdefault(
                        event.inode,
                        {} if event.is_directory else b"",  # type: ignore[arg-type]
                    )
                pending = [*pending, event]
        yield len(self.events), certain, pending


def states_of(certain: Tree, pending: Sequence[Event], *, bound: int, seed: str) -> Iterator[Crash]:
    """States that a loss of power may leave: all if there are no more than `bound`, else chosen ones and random ones.

    Chosen are: nothing lost, all lost; all after some point lost; each call the only one lost, torn, or kept; pairs.
    """
    dice = random.Random(seed)
    options = [_fates(event, certain, dice) for event in pending]
    total = 1
    for fates in options:
        total *= len(fates)
        if total > bound:
            break
    several: Iterator[tuple[Fate, ...]] = itertools.product(*options)
    for plan in several if total <= bound else _chosen(options, bound, dice):
        yield _crash(certain, pending, plan)


def killed_states(disk: Disk, position: int, *, cuts: int, seed: str) -> Iterator[Crash]:
    """What a process leaves that is killed at a call: all before it; if it is a write, also with a part of it."""
    tree = disk.upto(position).live
    yield Crash(tree.paths(), is_torn=False, fates=(), pending=())
    event = disk.events[position] if position < len(disk.events) else None
    if isinstance(event, Write):
        for cut in _cuts(event, tree, cuts, random.Random(seed)):
            torn = tree.copy()
            torn.apply(event, Fate("head", cut))
            yield Crash(torn.paths(), is_torn=True, fates=(Fate("head", cut),), pending=(event,))


def _fates(event: Event, certain: Tree, dice: random.Random) -> list[Fate]:
    fates = [KEPT, LOST]
    if isinstance(event, Write) and (cuts := _cuts(event, certain, 3, dice)):
        fates += [Fate("head", cut) for cut in cuts] + [Fate("tail", dice.choice(cuts)), Fate("zeros"), Fate("garbage")]
    return fates


def _cuts(event: Write, tree: Tree, count: int, dice: random.Random) -> list[int]:
    """Places to cut a write: anywhere, in the middle, at a block, next to the ends of what it changes."""
    old = tree.files.get(event.inode, b"")[event.offset : event.offset + len(event.data)]
    changed = [at for at, byte in enumerate(event.data) if at >= len(old) or old[at] != byte]
    if not changed:
        return []
    first, last = changed[0], changed[-1]
    places = {first + 1, (first + last) // 2, last, last // BLOCK * BLOCK, *(dice.randint(first, last) for _ in "ab")}
    found = sorted(place for place in places if 0 < place < len(event.data) and first < place <= last)
    return sorted(dice.sample(found, min(count, len(found))))


def _chosen(options: Sequence[Sequence[Fate]], bound: int, dice: random.Random) -> Iterator[tuple[Fate, ...]]:
    seen: set[tuple[Fate, ...]] = set()
    for plan in _plans(options, bound, dice):
        if plan not in seen:
            seen.add(plan)
            yield plan
            if len(seen) >= bound:
                return


def _plans(options: Sequence[Sequence[Fate]], bound: int, dice: random.Random) -> Iterator[tuple[Fate, ...]]:
    count = len(options)
    kept, lost = (KEPT,) * count, (LOST,) * count
    yield kept
    yield lost
    several: list[tuple[tuple[Fate, ...], dict[int, Fate]]] = []
    for at, fates in enumerate(options):
        until = (*kept[:at], *lost[at:])
        several += [(kept, {at: fate}) for fate in fates[1:]]
        several += [(base, {at: fate}) for base in (lost, until) for fate in (KEPT, *fates[2:])]
        for other in range(at):
            several.append((kept, {at: LOST, other: LOST}))
            if fates[2:] and options[other][2:]:
                several.append((kept, {at: dice.choice(fates[2:]), other: dice.choice(options[other][2:])}))
    dice.shuffle(several)
    # Random ones have their share, however many of these there are.
    yield from (_with(*each) for each in several[: max(1, bound * 2 // 3)])
    for _ in range(bound):
        is_sparse = dice.random() < 0.5
        yield tuple(
            dice.choice((KEPT, LOST)) if is_sparse and dice.random() < 0.7 else dice.choice(fates) for fates in options
        )


def _with(kept: tuple[Fate, ...], others: dict[int, Fate]) -> tuple[Fate, ...]:
    return tuple(others.get(at, fate) for at, fate in enumerate(kept))


def _crash(certain: Tree, pending: Sequence[Event], fates: Sequence[Fate]) -> Crash:
    tree = certain.copy()
    stuck: set[tuple[int, str]] = set()
    actual, is_torn = [], False
    for event, wanted in zip(pending, fates, strict=True):
        fate = wanted
        if isinstance(event, Create | Remove | Rename):
            names = {(event.directory, name) for name in event[1:3] if isinstance(name, str)}
            if fate is LOST or names & stuck:
                fate = LOST
                stuck |= names
        elif fate not in (KEPT, LOST):
            is_torn = True
        tree.apply(event, fate)
        actual.append(fate)
    return Crash(tree.paths(), is_torn or tree.has_hole, tuple(actual), tuple(pending))
