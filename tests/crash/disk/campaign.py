"""Histories of operations, and for each the states that a crash may leave: recorded, laid out, opened, judged. Which
states there are is the file system's to say, and what must hold in them the invariants'.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from langgraph.checkpoint.base import WRITES_IDX_MAP

from langgraph_turncheckpoint import TurnCheckpointSaver, _checkpoint_files, _turn_log
from tests.crash.disk.aftermath import the_store_works
from tests.crash.disk.contents import Contents, Journal, Key, Place, Writes
from tests.crash.disk.filesystem import Crash, Disk, Tree, killed_states, states_of
from tests.crash.disk.invariants import INVARIANTS, Asked, name_of
from tests.crash.disk.looks import Look, look_at
from tests.crash.disk.operations import OPERATIONS, Operation, put_the_checkpoint_that_writes_wait_for
from tests.crash.disk.recording import Recorder, directory, lay_out, recorded
from tests.crash.disk.world import AFTER_A_FAILURE, AFTER_A_KILL, THREADS, World

#: Whose tokens a look cannot tell.
_ALL: Final = frozenset(THREADS)

#: Where in an operation the last crash was: what is asked there is the same all through it.
_LAST_POINT: Final = re.compile(r"(, call \d+)?, state \d+$")

#: What comes after a killed process, and is acknowledged before the power goes.
SECOND_OPERATIONS: Final = tuple(
    operation
    for operation in OPERATIONS
    if operation.is_atomic and not operation.name.startswith(("forget", "record", "settle"))
)


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes:
        invariant: Which promise is broken.
        place: Seed, operation, crash point and state, to see it again.
        wrong: What is wrong.
        lost: What the crash has lost.
    """

    invariant: str
    place: str
    wrong: str
    lost: str

    def __str__(self) -> str:
        return f"{self.place}: {self.invariant}: {self.wrong} [{self.lost}]"


class Tally:
    """What a campaign has done."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.operations: Counter[str] = Counter()
        self.histories = self.points = self.states = self.opened = self.warned = self.second = 0

    def broken(self) -> Counter[str]:
        """How often each promise was broken."""
        return Counter(finding.invariant for finding in self.findings)


class Size(NamedTuple):
    """How much of everything.

    Attributes:
        states: Crash states at each crash point.
        every: Each how many-th crash point is enumerated; the last one of an operation always is.
        second: A crash during what follows a crash: at one of this many states.
        successors: After a kill at one of this many points another process goes on, and then the power fails.
    """

    states: int = 40
    every: int = 1
    second: int = 200
    successors: int = 4


class Done(NamedTuple):
    """An operation that was recorded.

    Attributes:
        operation: Which.
        begin: The position of its first call.
        end: The position behind its last.
        before: What was acknowledged before.
        after: What was when it had returned.
        dice: The state of the dice before, to do it once more in the same way.
        number: The first number that it used.
    """

    operation: Operation
    begin: int
    end: int
    before: Contents
    after: Contents
    dice: Any
    number: int


@contextmanager
def small_limits() -> Iterator[None]:
    """Buckets of a few checkpoints and logs of a few turns, so that what is rare in a large store is common here."""
    patched: list[tuple[Any, str, int]] = [(_checkpoint_files, "BUCKET_SIZE", 4), (_turn_log, "LOG_LIMIT_BYTES", 500)]
    real = [getattr(module, name) for module, name, _ in patched]
    for module, name, value in patched:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(patched, real, strict=True):
            setattr(module, name, value)


class Campaign:
    """One run of the lab.

    Args:
        size: How much of everything.
        fsync: Whether the store waits for the disk. If not, only killed processes are asked about.
        stop_at: The number of findings that is enough.
        wanted: Promises of which one broken is enough.
    """

    def __init__(
        self, size: Size, *, fsync: bool = True, stop_at: int = 50, wanted: frozenset[str] = frozenset()
    ) -> None:
        self.size, self.fsync, self.stop_at, self._wanted = size, fsync, stop_at, wanted
        self.tally = Tally()
        self._seen: set[bytes] = set()

    @property
    def is_enough(self) -> bool:
        """Whether there are enough findings."""
        findings = self.tally.findings
        return len(findings) >= self.stop_at or any(finding.invariant in self._wanted for finding in findings)

    def history(self, seed: int, length: int, script: Sequence[Operation] | None = None, *, skipped: int = 0) -> None:
        """Record a history of operations, and judge what a crash may leave of it.

        Args:
            seed: Chooses everything.
            length: How many operations.
            script: These operations instead of random ones.
            skipped: So many operations are done, and nothing is asked about a crash in them.
        """
        dice = random.Random(seed)
        with ExitStack() as stack:
            if seed % 2:
                stack.enter_context(small_limits())
            root = stack.enter_context(directory())
            operations = _drawn(dice) if script is None else script
            disk, done = self._record(root, Disk(), Contents(), dice, operations, limit=length)
            self.tally.histories += 1
            label = f"seed {seed}{'' if self.fsync else ' without fsync'}"
            for number, step in enumerate(done):
                self.tally.operations[step.operation.name] += 1
                if self.is_enough:
                    return
                if number < skipped:
                    continue
                place = f"{label}, operation {number} ({step.operation.name})"
                if self.fsync:
                    self._power_failures(disk, step, place)
                    if not self.is_enough:
                        self._successors(disk, step, place)
                else:
                    self._kills(disk, step, place)

    def _record(
        self,
        root: str,
        disk: Disk,
        contents: Contents,
        dice: random.Random,
        script: Iterable[Operation],
        *,
        first: int = 1,
        limit: int = 1000,
    ) -> tuple[Disk, list[Done]]:
        recorder, done = Recorder(root, disk), []
        with recorded(recorder):
            world = World(root, contents, fsync=self.fsync, dice=dice, first=first)
            try:
                for operation in script:
                    begin, before = len(disk.events), world.contents
                    state, number = dice.getstate(), world.last + 1
                    after = operation.step(world)
                    if after is not None:
                        world.contents = after
                        done.append(Done(operation, begin, len(disk.events), before, after, state, number))
                        if len(done) == limit:
                            break
            finally:
                world.close()
        return disk, done

    # --- the three kinds of crash ---

    def _power_failures(self, disk: Disk, step: Done, place: str, other: Asked | None = None) -> None:
        for position, certain, pending in disk.upto(step.end).points(step.begin + (step.begin > 0)):
            is_last = position == step.end
            if not is_last and (position % self.size.every):
                continue
            self.tally.points += 1
            if is_last:
                asked = other or Asked(step.after)
            else:
                asked = Asked(step.before, (step.after,), step.operation.is_atomic)
            where = f"{place}, {'acknowledged' if is_last else f'call {position - step.begin}'}"
            for number, crash in enumerate(states_of(certain, pending, bound=self.size.states, seed=where)):
                self._judge(crash, asked, f"{where}, state {number}")
                if self.is_enough:
                    return

    def _kills(self, disk: Disk, step: Done, place: str) -> None:
        for position in range(step.begin, step.end + 1):
            self.tally.points += 1
            is_last = position == step.end
            asked = Asked(step.before, (step.after,), step.operation.is_atomic, keeps_all=True)
            if is_last:
                asked = Asked(step.after, keeps_all=True)
            where = f"{place}, {'acknowledged' if is_last else f'killed before call {position - step.begin}'}"
            crashes = [Crash(disk.upto(position).live.paths(), is_torn=False, fates=(), pending=())]
            if not is_last:
                crashes = [*killed_states(disk, position, cuts=self.size.states // 4, seed=where)]
            for number, crash in enumerate(crashes):
                self._judge(crash, asked, f"{where}, state {number}")
            if self.is_enough:
                return

    def _successors(self, disk: Disk, step: Done, place: str) -> None:
        """A process is killed, another one goes on with what the system still knows, and then the power fails."""
        dice = random.Random(place)
        for position in range(step.begin + 1, step.end):
            if dice.randrange(self.size.successors):
                continue
            where = f"{place}, killed before call {position - step.begin}"
            again = disk.upto(position)
            with directory() as root:
                lay_out(again.live.paths(), root)
                look = look_at(TurnCheckpointSaver(root, fsync=self.fsync))
            with directory() as root:  # anew: whoever looks may mend a ledger
                lay_out(again.live.paths(), root)
                asked = Asked(step.before, (step.after,), step.operation.is_atomic, keeps_all=True)
                self._report(look, asked, where, "")
                found = _found(look, asked)
                script, other, first = dice.choices(SECOND_OPERATIONS, k=6), dice, AFTER_A_KILL
                limit = dice.choice((1, 1, 2))
                if step.operation in SECOND_OPERATIONS and dice.random() < 0.4:
                    # The same once more, as by a client that got no answer.
                    script, other, first, limit = [step.operation], random.Random(), step.number, 1
                    other.setstate(step.dice)
                again, done = self._record(root, again, found, other, script, first=first, limit=limit)
            for one in done:
                now, then = one.after.visible(), found.visible()
                fixed = frozenset(key for key in now.keys() | then.keys() if now.get(key) != then.get(key))
                maybe = (_merged(step.before, found, one.after, fixed), _merged(step.after, found, one.after, fixed))
                self._power_failures(
                    again,
                    one._replace(begin=one.end),
                    f"{where}, then {one.operation.name}",
                    Asked(one.after, maybe, is_atomic=False, fixed=fixed),
                )

    # --- judging ---

    def _judge(self, crash: Crash, asked: Asked, place: str, *, is_second: bool = False) -> None:
        self.tally.states += 1
        key = hashlib.blake2b(crash.digest(), digest_size=16)
        key.update(repr((_LAST_POINT.sub("", place), len(asked.maybe))).encode())
        if key.digest() in self._seen:
            return
        self._seen.add(key.digest())
        self.tally.opened += 1
        asked = replace(asked, is_torn=crash.is_torn)
        with directory() as root:
            lay_out(crash.paths, root)
            look = look_at(TurnCheckpointSaver(root, fsync=self.fsync))
            self.tally.warned += bool(look.warnings)
            self._report(look, asked, place, crash.told())
            thread = THREADS[int(crash.digest()[0] < 60)]
            for invariant, wrong in the_store_works(root, look, asked, thread, fsync=self.fsync):
                self.tally.findings.append(Finding(invariant, place, wrong, crash.told()))
        if not is_second and self.fsync and not self.tally.opened % self.size.second and not asked.is_torn:
            self._crash_again(crash, look, asked, place)

    def _report(self, look: Look, asked: Asked, place: str, lost: str) -> None:
        for invariant in INVARIANTS:
            for wrong in invariant(look, asked):
                self.tally.findings.append(Finding(name_of(invariant), place, wrong, lost))

    def _crash_again(self, crash: Crash, look: Look, asked: Asked, place: str) -> None:
        """The power fails again, while the next process uses what the first failure has left."""
        self.tally.second += 1
        dice = random.Random(place)
        with directory() as root:
            lay_out(crash.paths, root)
            tree = _as_tree(crash.paths)
            script, found = [OPERATIONS[0], *dice.choices(OPERATIONS, k=4)], _found(look, asked)
            if found.early() and dice.random() < 0.5:
                script.insert(0, Operation(put_the_checkpoint_that_writes_wait_for))
            disk, done = self._record(root, Disk(tree), found, dice, script, first=AFTER_A_FAILURE, limit=2)
        for one in done:
            for position, certain, pending in disk.upto(one.end).points(one.begin):
                is_last = position == one.end
                then = Asked(one.after) if is_last else Asked(one.before, (one.after,), one.operation.is_atomic)
                where = f"{place}, then {one.operation.name}, call {position - one.begin}"
                for number, again in enumerate(states_of(certain, pending, bound=6, seed=where)):
                    self._judge(again, then, f"{where}, state {number}", is_second=True)


def _drawn(dice: random.Random) -> Iterator[Operation]:
    weights = [operation.weight for operation in OPERATIONS]
    for _ in range(1000):
        yield from dice.choices(OPERATIONS, weights)


def _as_tree(paths: dict[str, bytes | None]) -> Tree:
    tree = Tree()
    places = {"": 1}
    for number, path in enumerate(sorted(paths), 2):
        parent, _, name = path.rpartition("/")
        data = paths[path]
        tree.directories[places[parent]][name] = places[path] = number
        if data is None:
            tree.directories[number] = {}
        else:
            tree.files[number] = data
    return tree


def _found(look: Look, asked: Asked) -> Contents:
    """What a process finds that comes after a crash.

    Args:
        look: What is seen. All of it is on the disk, unless only a process was killed.
        asked: What the crash had to leave. Writes that wait for their checkpoint cannot be seen: they are known only
            where they were acknowledged, and what was under way would not have touched them.
    """
    before = asked.now
    writes: dict[Place, Writes] = {
        place: before.writes[place]
        for place in before.early()
        if all(before.writes[place] == other.writes.get(place) for other in asked.maybe)
    }
    for key, found in look.items.items():
        if key[0] == "writes":
            counts: Counter[str] = Counter()
            entries = {}
            for task, channel, value in found:
                index = WRITES_IDX_MAP.get(channel, counts[task])
                counts[task] += index >= 0
                entries[task, index] = (f"~{task}", channel, value)
            writes[cast(Place, key[1:])] = entries
    items = {key: value for key, value in look.items.items() if key[0] != "writes"}
    journals = {key: Journal(records, len(records)) for key, records in look.journals.items()}
    if not asked.keeps_all:
        return Contents(items, writes, look.tokens, look.tokens, before.deleted, journals, _ALL)
    known = {key: before.journals.get(key, journal._replace(certain=0)) for key, journal in journals.items()}
    return Contents(items, writes, before.certain, look.tokens, before.deleted, {**before.journals, **known}, _ALL)


def _merged(base: Contents, found: Contents, after: Contents, fixed: frozenset[Key]) -> Contents:
    """What a killed process may have left, under what one that came after it was acknowledged."""
    items = {key: value for key, value in base.items.items() if key not in fixed}
    items.update({key: after.items[key] for key in fixed if key in after.items})
    writes = {place: each for place, each in base.writes.items() if after.writes.get(place) == found.writes.get(place)}
    writes.update({p: w for p, w in after.writes.items() if w != found.writes.get(p) or ("checkpoint", *p) in fixed})
    return replace(after, items=items, writes=writes, journals={**after.journals, **base.journals})
