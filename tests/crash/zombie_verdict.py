"""What must hold of a batch of writers: judged from what each wrote down, the order of the holds, and the store.
Nothing is run here.

The order of the holds is the order of the commits. So each accepted write can be held against what the ledger said when
it was let in, and against the head that the writes before it had made.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._store import Loaded
from tests.crash.zombie_writers import CHANNEL, FIRST, PROCESSES, THREADS, Assignment

STALE: Final = "stale writes accepted"
FORKED: Final = "forks that nobody asked for"
REUSED: Final = "tokens used twice, or lower than one before"
MISSING: Final = "accepted writes that are missing"
PRESENT: Final = "refused writes that are there"
REFUSED: Final = "writes refused although no newer turn had come"
LOCKS: Final = "errors of the lock, and any others"
KINDS: Final = (STALE, FORKED, REUSED, MISSING, PRESENT, REFUSED, LOCKS)


class Wrong(NamedTuple):
    """One thing that is wrong: what kind of thing, and which."""

    kind: str
    text: str


class Hold(NamedTuple):
    """A hold of a thread's lock.

    Attributes:
        rank: Its place in the order of all holds.
        before: The ledger's token at its beginning.
        after: And at its end.
    """

    rank: int
    before: int
    after: int


class Attempt(NamedTuple):
    """What a process has written down of one thing it did."""

    who: int
    hold: Hold
    fields: dict[str, Any]

    def __str__(self) -> str:
        return f"process {self.who}, hold {self.hold.rank} (token {self.hold.before}): {json.dumps(self.fields)}"


class Verdict(NamedTuple):
    """What came of a batch."""

    counts: Counter[str]
    wrong: list[Wrong]


def verdict_on(assignment: Assignment) -> Verdict:
    """Read everything that a batch has left, and judge it."""
    wrong: list[Wrong] = []
    holds = {}
    for key, hold, complaint in _holds(assignment):
        holds[key] = hold
        if complaint is not None:
            wrong.append(complaint)
    attempts = sorted(_attempts(assignment, holds), key=lambda attempt: attempt.hold.rank)
    counts: Counter[str] = Counter()
    for attempt in attempts:
        kind, ok = attempt.fields["kind"], attempt.fields.get("ok")
        counts.update(["tried", "accepted" if ok else "refused"] if ok is not None else [kind])
        if kind == "error":
            wrong.append(Wrong(LOCKS, str(attempt)))
    saver = TurnCheckpointSaver(assignment.store, fsync=False)
    for thread in THREADS:
        own = [attempt for attempt in attempts if attempt.fields["thread"] == thread]
        wrong += _replayed(own)
        stored = {loaded.checkpoint_id: loaded for _, loaded in saver.store.scan(thread, "", accepts=lambda _: True)}
        wrong += _held_against(own, stored)
    wrong += [Wrong(LOCKS, f"verify finds {finding}") for finding in saver.verify() if finding.kind != "orphan"]
    return Verdict(counts, wrong)


def _holds(assignment: Assignment) -> Iterator[tuple[tuple[int, int], Hold, Wrong | None]]:
    """Each hold by process and number, and what is wrong with it."""
    inside: dict[str, tuple[int, int]] = {}
    newest: Counter[str] = Counter()
    begun: dict[tuple[int, int], int] = {}
    for rank, text in enumerate(assignment.order.read_text().splitlines()):
        sign, who, number, thread, token = text.split()
        key, complaint = (int(who), int(number)), None
        if int(token) < newest[thread]:
            complaint = Wrong(REUSED, f"line {rank} of the order, {text}: the token was {newest[thread]} before")
        newest[thread] = max(newest[thread], int(token))
        if sign == "+":
            begun[key] = int(token)
            if thread in inside:
                complaint = Wrong(LOCKS, f"line {rank} of the order, {text}: {inside[thread]} holds it already")
            inside[thread] = key
        elif inside.get(thread) == key:
            del inside[thread]
        yield key, Hold(rank, begun[key], int(token)), complaint


def _attempts(assignment: Assignment, holds: dict[tuple[int, int], Hold]) -> Iterator[Attempt]:
    for who in range(PROCESSES):
        for text in assignment.log(who).read_text().splitlines():
            fields = json.loads(text)
            yield Attempt(who, holds.get((who, fields["hold"]), Hold(-1, 0, 0)), fields)


class _Opened(NamedTuple):
    who: int
    start: str
    base: str | None


def _replayed(attempts: list[Attempt]) -> Iterator[Wrong]:
    """Hold each attempt on one thread against what those before it have made of the thread."""
    head = FIRST
    opened: dict[int, _Opened] = {}
    has_put: set[int] = set()
    for attempt in attempts:
        fields, token = attempt.fields, attempt.fields["token"]
        kind, is_stale = fields["kind"], token != 0 and token < attempt.hold.before
        if kind == "opened":
            if token in opened:
                yield Wrong(REUSED, f"{attempt}: process {opened[token].who} has opened it before")
            if token != attempt.hold.after:
                yield Wrong(REUSED, f"{attempt}: the ledger said {attempt.hold.after}")
            base = fields["base"]
            if base is not None and opened[attempt.hold.before].start != base:
                yield Wrong(FORKED, f"{attempt}: rolled back to another checkpoint than {opened[attempt.hold.before]}")
            opened[token] = _Opened(attempt.who, head if base is None else base, base)
        elif kind in ("put", "writes") and fields["ok"]:
            if is_stale:
                yield Wrong(STALE, str(attempt))
            if kind == "writes":
                continue
            is_rolled_back = token in opened and opened[token].base is not None and token not in has_put
            expected = opened[token].start if is_rolled_back else head
            if fields["parent"] != expected and not fields["fork"]:
                yield Wrong(FORKED, f"{attempt}: the head was {expected}")
            has_put.add(token)
            head = max(head, fields["id"])
        elif kind in ("put", "writes") and not is_stale and (token != 0 or fields["head"] == head):
            yield Wrong(REFUSED, f"{attempt}: the head was {head}")


def _held_against(attempts: list[Attempt], stored: dict[str, Loaded]) -> Iterator[Wrong]:
    """Hold what was accepted and refused on one thread against what is stored."""
    tasks = {checkpoint_id: {write[0] for write in loaded.writes} for checkpoint_id, loaded in stored.items()}
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    writers: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    asked = {a.fields["id"] for a in attempts if a.fields["kind"] == "put" and a.fields["fork"]}
    asked |= _first_of_rollbacks(attempts)
    for checkpoint_id, loaded in stored.items():
        if checkpoint_id not in asked:
            children[loaded.parent_id].append(checkpoint_id)
        if loaded.token:
            who, turn, _ = loaded.checkpoint["channel_values"][CHANNEL]
            writers[loaded.token].add((who, turn))
        parent = stored.get(loaded.parent_id or "")
        if parent is not None and loaded.token and loaded.token < parent.token:
            yield Wrong(STALE, f"{checkpoint_id}, of turn {loaded.token}, stands on one of turn {parent.token}")
    yield from (Wrong(FORKED, f"{parent} has the children {ids}") for parent, ids in children.items() if len(ids) > 1)
    yield from (Wrong(REUSED, f"{t} is the token of {of}") for t, of in writers.items() if len(of) > 1)
    for attempt in attempts:
        fields = attempt.fields
        if fields["kind"] == "put":
            is_there = fields["id"] in stored
            if is_there and fields["ok"]:
                loaded = stored[fields["id"]]
                is_same = (loaded.token, loaded.parent_id) == (fields["token"], fields["parent"])
                if not is_same or loaded.checkpoint["channel_values"][CHANNEL][:2] != [attempt.who, fields["turn"]]:
                    yield Wrong(MISSING, f"{attempt}: {loaded} is there in its place")
        elif fields["kind"] == "writes":
            is_there = fields["task"] in tasks.get(fields["id"], ())
        else:
            continue
        if is_there != fields["ok"]:
            yield Wrong(MISSING if fields["ok"] else PRESENT, str(attempt))


def _first_of_rollbacks(attempts: list[Attempt]) -> set[str]:
    """The checkpoints with which rolled back turns start: they share their parent with what was rolled back."""
    bases = {a.fields["token"] for a in attempts if a.fields["kind"] == "opened" and a.fields["base"] is not None}
    found = set()
    for attempt in attempts:
        if attempt.fields["kind"] == "put" and attempt.fields["ok"] and attempt.fields["token"] in bases:
            bases.discard(attempt.fields["token"])
            found.add(attempt.fields["id"])
    return found
