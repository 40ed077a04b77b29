"""Every byte of every kind of file is flipped, every length cut, files are swapped and replaced, in a plain store and
in an encrypted one. What the store holds, and how it is damaged, is `damaged_store`'s business.

Whatever reads it afterwards gives what was written, or less with a warning, or a typed error; `strict` raises, `verify`
names the file, readers change nothing, tokens only grow, and writing goes on with the damaged bytes kept. What cannot
be told from a crash is allowed to pass silently: an append that ends early.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import HumanMessage

from langgraph_turncheckpoint import RefusedValueError, StorageError, TurnCheckpointSaver
from tests.contract.storing import addressed
from tests.crash.damaged_store import (
    EARLY_NUMBER,
    MAIN,
    SERDES,
    STRICT_READS,
    Damage,
    Kind,
    Read,
    copied,
    damages,
    fill,
    kinds,
    put,
    read,
    tokens,
)
from tests.crash.faulted_operations import at, spelled
from tests.crash.faults import workplace
from tests.crash.figures import Figure, zero

NEW_NUMBER: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the lab takes; the defaults are what `all` runs with."""
    parser.add_argument("--kind", help="only kinds of files whose names contain this")
    parser.add_argument("--store", choices=[*SERDES], help="only this store")
    parser.add_argument("--seed", type=int, default=1, help="chooses the bits that are flipped, and the junk")
    parser.add_argument("--stride", type=int, default=1, help="do every n-th damage only")
    parser.add_argument("--write-stride", type=int, default=20, help="write to the store after every n-th damage")


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Damage one file of each kind in every way."""
    figures: list[Figure] = []
    findings: list[str] = []
    with workplace() as place:
        for store in SERDES:
            if options.store not in (None, store):
                continue
            bench = Bench(place / store, store)
            for kind in bench.kinds:
                # Ledgers hold numbers and ids, which are never encrypted.
                is_same = store != "plain" and kind.path.name == "turn"
                if is_same or (options.kind is not None and options.kind not in kind.name):
                    continue
                size, done = kind.path.stat().st_size, 0
                for number, damage in enumerate(damages(kind.path, kind.other, seed=options.seed)):
                    is_rare = damage.kind not in ("flip", "cut")
                    if not is_rare and number % options.stride:
                        continue
                    done += 1
                    writes = is_rare or number % (options.write_stride * options.stride) == 0
                    found = bench.suffer(kind, damage, writes=writes)
                    findings += [f"{store} store, {kind.name}: {damage.name}: {each}" for each in found]
                figures += [
                    Figure(f"{store}: {kind.name}, bytes", size),
                    Figure(f"{store}: {kind.name}, damages", done),
                ]
    figures.append(zero("wrong outcomes", len(findings)))
    return figures, findings


class Bench:
    """One store, to be damaged over and over.

    Args:
        path: Where to make it, and copies of it.
        store: Which one.

    Attributes:
        kinds: The kinds of files in it.
    """

    def __init__(self, path: Path, store: str) -> None:
        self._serde, self._path = SERDES[store](), path / "store"
        self._written = path / "written"
        fill(self._saver(self._path))
        self.kinds = kinds(self._path)
        self._bytes = {kind.path: kind.path.read_bytes() for kind in self.kinds}
        self._bytes |= {kind.other: kind.other.read_bytes() for kind in self.kinds if kind.other is not None}
        self._healthy = {name: read(self._saver(self._path), name).value for kind in self.kinds for name in kind.reads}
        self._tokens = tokens(self._saver(self._path))
        self._known = {found.path for found in self._saver(self._path).verify()}
        early = copied(self._path, self._written)
        put(self._saver(early), at(3), EARLY_NUMBER)
        self._with_early = spelled(self._saver(early).get_tuple(at(EARLY_NUMBER)))

    def _saver(self, path: Path, **options: Any) -> TurnCheckpointSaver:
        return TurnCheckpointSaver(path, serde=self._serde, fsync=False, **options)

    def suffer(self, kind: Kind, damage: Damage, *, writes: bool) -> list[str]:
        """What is wrong with the store with one damage, and with what is written to it then."""
        try:
            damage.do(kind.path)
            problems = [*self._wrong_reads(kind, damage)]
            if writes and damage.name != "a link to itself":
                self._restore(kind)
                damaged = copied(self._path, self._written) / kind.path.relative_to(self._path)
                damage.do(damaged) if damage.kind != "swap" else None
                problems += self._wrong_writes(kind, damage, damaged)
            return problems
        finally:
            self._restore(kind)

    def _restore(self, kind: Kind) -> None:
        if kind.path.is_symlink() or not kind.path.is_file():
            kind.path.rmdir() if kind.path.is_dir() and not kind.path.is_symlink() else kind.path.unlink()
        kind.path.write_bytes(self._bytes[kind.path])
        if kind.other is not None:
            kind.other.write_bytes(self._bytes[kind.other])

    # --- reading ---

    def _wrong_reads(self, kind: Kind, damage: Damage) -> Iterator[str]:
        is_suspect, found = False, self._verified()
        for name in kind.reads:
            got = read(self._saver(self._path), name)
            is_suspect = is_suspect or got.error is not None or bool(got.warned)
            if problem := self._wrong_read(name, got, kind, damage):
                yield f"{name} {problem}"
            if name in STRICT_READS and (got.warned or got.error is not None):
                strict = read(self._saver(self._path, strict=True), name)
                if strict.error is None and strict.value != self._healthy[name]:
                    yield f"{name} with strict gives {strict.value!r:.300}"
        if kind.path.name != "turn" and isinstance(damage.data, bytes) and kind.path.read_bytes() != damage.data:
            yield "reading has changed the file"
        now = tokens(self._saver(self._path))
        if back := {thread: token for thread, token in now.items() if token < self._tokens[thread]}:
            yield f"tokens went back: {back}, were {self._tokens}"
        at_place = [path for path in found if path == str(kind.path) or str(kind.path).startswith(path + os.sep)]
        if is_suspect and not at_place and damage.name != "itself appended":
            yield f"verify does not name the file, only {sorted(found)}"

    def _wrong_read(self, name: str, got: Read, kind: Kind, damage: Damage) -> str | None:
        healthy = self._healthy[name]
        if got.error is not None:
            is_typed = isinstance(got.error, (StorageError, RefusedValueError))
            return None if is_typed else f"raised {got.error!r:.300}"
        if got.value == healthy:
            return None
        may_be_torn = kind.grows and damage.kind == "cut"
        # A log whose blocks were never written is empty; messages that changed places tell nobody.
        may_pass = (
            may_be_torn
            or (kind.grows and damage.name == "all zeros")
            or (name == "inbox" and damage.kind in ("swap", "place"))
        )
        if not got.warned and not may_pass:
            return f"silently gives {got.value!r:.300}"
        if not _is_part(name, got.value, self._healthy, is_torn=may_be_torn and not got.warned):
            return f"gives {got.value!r:.400}"
        return None

    def _verified(self) -> set[str]:
        """What `verify` names that it did not name before."""
        try:
            return {finding.path for finding in self._saver(self._path).verify()} - self._known
        except StorageError as error:
            return {str(error.filename)}

    # --- writing ---

    def _wrong_writes(self, kind: Kind, damage: Damage, damaged: Path) -> Iterator[str]:
        path = self._written
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for write in (self._put, self._put_early, self._add_writes, self._post, self._open_turn):
                saver = self._saver(path)
                try:
                    yield from write(saver, kind, damage)
                except (StorageError, RefusedValueError):
                    continue
                except Exception as error:  # noqa: BLE001 - that is what is looked for
                    yield f"{write.__name__.strip('_')} raises {error!r:.300}"
        is_kept = damage.kind == "flip" and kind.path.name != "turn"  # a ledger is repaired in place
        if is_kept and isinstance(damage.data, bytes) and self._is_gone(damage.data, path):
            yield "the damaged bytes are gone after writing"

    @staticmethod
    def _is_gone(data: bytes, path: Path) -> bool:
        files = (Path(directory, name) for directory, _, names in os.walk(path) for name in names)
        return not any(file.is_file() and file.read_bytes().startswith(data) for file in files)

    def _put(self, saver: TurnCheckpointSaver, kind: Kind, damage: Damage) -> Iterator[str]:
        found = saver.get_tuple(addressed(MAIN))
        config = put(saver, addressed(MAIN) if found is None else found.config, NEW_NUMBER)
        again = self._saver(self._written).get_tuple(addressed(MAIN))
        if again is None or again.config != config or again.checkpoint["channel_values"]["step"] != NEW_NUMBER:
            yield f"put is not the latest, but {again!r:.300}"

    def _put_early(self, saver: TurnCheckpointSaver, kind: Kind, damage: Damage) -> Iterator[str]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            put(saver, at(3), EARLY_NUMBER)
        found = spelled(self._saver(self._written).get_tuple(at(EARLY_NUMBER)))
        if found is None or found[:4] != self._with_early[:4] or not _is_row(found[4], self._with_early[4]):
            yield f"put after early writes gives {found!r:.300}"
        elif found[4] != self._with_early[4] and not warned and not (kind.grows and damage.kind == "cut"):
            yield f"put after early writes silently gives {found[4]!r:.300}"

    def _add_writes(self, saver: TurnCheckpointSaver, kind: Kind, damage: Damage) -> Iterator[str]:
        saver.put_writes(at(3), [("step", "late")], "task-9")
        try:
            found = self._saver(self._written).get_tuple(at(3))
        except StorageError:
            return  # damaged it was before
        if found is not None and ("task-9", "step", "late") not in (found.pending_writes or ()):
            yield f"put_writes is not there: {found.pending_writes!r:.300}"

    def _post(self, saver: TurnCheckpointSaver, kind: Kind, damage: Damage) -> Iterator[str]:
        saver.inbox(MAIN).post(HumanMessage("late", id="late"))
        try:
            waiting = [message.id for message in self._saver(self._written).inbox(MAIN).pending()]
        except RefusedValueError:
            return
        if "late" not in waiting:
            yield f"what was posted is not there: {waiting}"

    def _open_turn(self, saver: TurnCheckpointSaver, kind: Kind, damage: Damage) -> Iterator[str]:
        for thread_id in self._tokens:
            if thread_id == "closed":
                saver.reopen_thread(thread_id)
            turn = saver.turn(addressed(thread_id))
            with turn:
                if turn.token <= self._tokens[thread_id]:
                    yield f"a new turn of {thread_id!r:.20} has token {turn.token}, after {self._tokens[thread_id]}"


def _is_part(name: str, got: Any, healthy: dict[str, Any], *, is_torn: bool) -> bool:
    """Whether what was read is true, if less than everything."""
    whole = healthy[name]
    if name in ("latest", "by id", "older by id", "latest of long"):
        ancestors = healthy.get("list", [whole]) if name == "latest" and not is_torn else [whole]
        return (got is None and name == "latest of long") or any(_is_less(got, each) for each in ancestors)
    if name in ("list", "list of all"):
        return all(any(_is_less(found, each) for each in whole) for found in got)
    if name.startswith("turns"):
        return all(any(_is_less_known(found, each) for each in whole) for found in got)
    if name.startswith("transcript"):
        return all(_is_less_evident(*pair, is_torn=is_torn) for pair in zip(got, whole, strict=True))
    if name == "stats":
        return all(count <= all_ for count, all_ in zip(got, whole, strict=True))
    if isinstance(whole, list):
        return all(found in whole for found in got)
    return False


def _is_less(found: Any, whole: Any) -> bool:
    """Whether a checkpoint is the same, with all or some of its writes."""
    return found is not None and found[:4] == whole[:4] and _is_row(found[4], whole[4])


def _is_row(found: Any, whole: Any) -> bool:
    rest = iter(whole)
    return all(write in rest for write in found)


def _is_less_known(found: Any, whole: Any) -> bool:
    """Whether a turn's record tells the truth, or less."""
    if (found.token, found.opened_at) != (whole.token, whole.opened_at):
        return False
    if found.state not in (whole.state, "unknown", "interrupted") or found.settled_at not in (whole.settled_at, None):
        return False
    ends = (whole.first_checkpoint_id, whole.last_checkpoint_id, None)
    return found.first_checkpoint_id in ends and found.last_checkpoint_id in ends


def _is_less_evident(found: Any, whole: Any, *, is_torn: bool) -> bool:
    """Whether what is said of a call is true: nothing that did not happen, and no silence that claims to know."""
    facts, output = found
    known, given = whole
    if (facts.result and not known.result) or (facts.started and not known.started):
        return False
    if facts.result and output != given:
        return False
    is_silent = facts.known and not facts.started and known.started
    return is_torn or not is_silent
