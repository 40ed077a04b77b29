"""Every system call of every operation of the saver, and of whole guarded turns, fails in every way that it can, once
and for good. How calls fail is `failing_system`'s business, what a guarded turn must do then that of `faulted_turns`.

An operation that suffers must succeed or raise a typed error. What was acknowledged before is there, what was refused
is there wholly or not at all, no descriptor stays open, the same operation works once the fault is over, and nothing
is left that the next process does not sweep.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from langgraph_turncheckpoint import StorageError, TurnCheckpointError, TurnCheckpointSaver
from tests.contract.storing import addressed, noticed
from tests.crash.failing_system import Fault, Outcome, Platform, System, descriptors_below, failing, faults_at
from tests.crash.faulted_operations import CLOSED, OPERATIONS, THREADS, Operation, Scene, View, fill, put, view
from tests.crash.faulted_turns import CASES, TurnBench
from tests.crash.figures import Figure, zero

PLATFORMS: Final[tuple[Platform, ...]] = ("posix", "darwin", "win32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the lab takes; the defaults are what `all` runs with."""
    parser.add_argument("--operation", help="only operations whose names contain this")
    parser.add_argument("--call", type=int, help="only this call of each operation")
    parser.add_argument("--kind", help="only faults of this kind")
    parser.add_argument("--platform", choices=PLATFORMS, help="only this one's branches")
    parser.add_argument("--stride", type=int, default=1, help="inject every n-th fault only")
    parser.add_argument(
        "--turn-stride",
        type=int,
        default=10,
        help="the same for guarded turns, of which each takes as long as ten puts",
    )


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Let every operation suffer every fault."""
    total = _Total()
    with workplace() as place:
        template = place / "template"
        fill(TurnCheckpointSaver(template, fsync=False))
        for platform in PLATFORMS:
            if options.platform not in (None, platform):
                continue
            for operation in OPERATIONS:
                if options.operation is None or options.operation in operation.name:
                    bench = Bench(operation, template, place / "store", platform)
                    total.add(f"{operation.name} ({platform})", bench, options, options.stride)
        logging.getLogger("langchain_core.callbacks.manager").setLevel(logging.CRITICAL)
        for case in CASES if options.platform in (None, "posix") else ():
            if options.operation is None or options.operation in str(case):
                turn_bench = TurnBench(case, place / "turns", place / "store")
                total.add(str(case), turn_bench, options, options.turn_stride)
    figures = [
        Figure("operations", len({name.partition(" (")[0] for name in total.names})),
        Figure("system calls", total.calls),
        Figure("faults injected", total.injected),
        Figure("of these refused with a typed error", total.refused),
        zero("wrong outcomes", len(total.findings)),
    ]
    return figures, total.findings


class _Total:
    """What came of all faults."""

    def __init__(self) -> None:
        self.calls = self.injected = self.refused = 0
        self.findings: list[str] = []
        self.names: list[str] = []

    def add(self, name: str, bench: Bench | TurnBench, options: argparse.Namespace, stride: int) -> None:
        """Let an operation suffer its faults."""
        self.names.append(name)
        self.calls += len(bench.calls)
        chosen = [
            fault
            for fault in bench.faults()
            if options.call in (None, fault.position) and options.kind in (None, fault.kind)
        ]
        # Each operation begins elsewhere, so that strides do not meet the same calls in all of them.
        for fault in chosen[len(self.names) % stride :: stride]:
            outcome = bench.suffer(fault)
            self.injected += 1
            self.refused += outcome.was_refused
            self.findings += [f"{name}: {fault}: {each}" for each in outcome.problems]


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory to work in, in memory where that can be had: no fault of a disk is real here."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="turncheckpoint-", dir=memory) as path:
        yield Path(path)


class Bench:
    """One operation on one platform, to be run over and over.

    Args:
        operation: The operation.
        template: The store it works on; it is copied for each run.
        path: Where to.
        platform: Whose branches the package takes.

    Attributes:
        calls: The system calls of the operation, by name.
    """

    def __init__(self, operation: Operation, template: Path, path: Path, platform: Platform) -> None:
        self._operation, self._template, self._path, self._platform = operation, template, path, platform
        scene = self._staged()
        self._before = view(path)
        system = System(platform=platform)
        with failing(system):
            self._result = operation.act(scene)
        self.calls = [name for name, _ in system.calls]
        self._done = view(path)
        scene.close()

    def faults(self) -> list[Fault]:
        """Every fault there can be."""
        calls = enumerate(self.calls)
        return [fault for position, name in calls for fault in faults_at(position, name, self._platform)]

    def _staged(self) -> Scene:
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.copytree(self._template, self._path)
        return Scene(self._path, is_warm=self._operation.is_warm, is_busy=self._operation.is_busy)

    def suffer(self, fault: Fault) -> Outcome:
        """Let the operation suffer one fault, and repeat it if it was refused."""
        scene = self._staged()
        problems: list[str] = []
        open_before = descriptors_below(str(self._path))
        result, error = None, None
        with noticed() as warned:
            try:
                with failing(System(fault, platform=self._platform)):
                    result = self._operation.act(scene)
            except Exception as raised:  # noqa: BLE001 - which it may be is checked
                error = type(raised)
                problems += _wrong_error(raised, fault)
        if warned:
            problems.append(f"warned with {sorted(set(warned))}")
        if error is None and not self._is_right(result):
            problems.append(f"gave {result!r:.300}")
        if leaked := self._leaked(open_before):
            problems.append(f"left open: {leaked}")
        problems += self._wrong_state(fault, is_refused=error is not None)
        if error is not None:
            problems += self._wrong_repetition(scene)
        scene.close()
        problems += self._litter()
        return Outcome(error is not None, problems)

    def _leaked(self, open_before: list[str]) -> list[str]:
        leaked = set(descriptors_below(str(self._path))) - set(open_before)
        if leaked:
            gc.collect()  # what a traceback still held is no leak
            leaked &= set(descriptors_below(str(self._path)))
        return sorted(leaked)

    def _is_right(self, result: Any) -> bool:
        if self._operation.name == "verify":
            return True  # what cannot be looked at is a finding
        return self._operation.kind != "read" or result == self._result

    def _wrong_state(self, fault: Fault, *, is_refused: bool) -> Iterator[str]:
        """What can be read that should not be, or cannot be read that should be."""
        with noticed() as warned:
            try:
                after = view(self._path)
            except TurnCheckpointError as raised:
                yield f"reading afterwards raises {raised!r}"
                return
        if warned:
            yield f"reading afterwards warns with {sorted(set(warned))}"
        expected = self._before if is_refused else self._done
        for thread_id, token in expected.tokens.items():
            if after.tokens[thread_id] < token:
                yield f"the token of {thread_id!r} is {after.tokens[thread_id]}, not {token}"
        if not is_refused and after.items != expected.items:
            yield f"acknowledged, but {_difference(after, expected)}"
        if is_refused and not self._may_be_left(after, fault):
            yield f"refused, and {_difference(after, expected)}"

    def _may_be_left(self, after: View, fault: Fault) -> bool:
        """Whether a refused operation may leave this to be read."""
        if self._operation.kind == "pieces":
            return _is_part(self._done.items, after.items) and _is_part(after.items, self._before.items)
        if after.items == self._before.items:
            return True
        # What lasts strikes the undoing, too.
        return after.items == self._done.items and (self._operation.may_be_done or fault.lasts)

    def _wrong_repetition(self, scene: Scene) -> Iterator[str]:
        """What is wrong with the same operation once the fault is over."""
        with noticed() as warned:
            try:
                result = self._operation.act(scene)
            except TurnCheckpointError as raised:
                yield f"repeating it raises {raised!r}"
                return
        if warned:
            yield f"repeating it warns with {sorted(set(warned))}"
        if not self._is_right(result):
            yield f"repeating it gave {result!r:.300}"
        after = view(self._path)
        if after.items != self._done.items:
            yield f"repeated, but {_difference(after, self._done)}"

    def _litter(self) -> Iterator[str]:
        """What the next process does not sweep."""
        with noticed() as warned:
            if TurnCheckpointSaver(self._path).verify():
                moved = self._path.with_name("moved")
                shutil.rmtree(moved, ignore_errors=True)
                self._path.rename(moved)  # what this process remembers of the store does not hold for it
                work_on(TurnCheckpointSaver(moved, fsync=False))
                yield from (f"left {found}" for found in TurnCheckpointSaver(moved).verify())
        if warned:
            yield f"the next process warns with {sorted(set(warned))}"


def work_on(saver: TurnCheckpointSaver) -> None:
    """What a new process does in the end: it puts, opens turns and posts."""
    present = saver.thread_ids()
    for thread_id in THREADS:
        if thread_id == CLOSED:
            continue
        if thread_id in present:
            put(saver, addressed(thread_id), 90)
        with saver.turn(addressed(thread_id), multitask_strategy="enqueue"):
            saver.inbox(thread_id).post("posted later")
    if CLOSED in present:
        saver.reopen_thread(CLOSED)
        put(saver, addressed(CLOSED), 90)


def _wrong_error(raised: Exception, fault: Fault) -> Iterator[str]:
    if not isinstance(raised, TurnCheckpointError):
        yield f"raised a bare {raised!r}"
    elif fault.is_harmless:
        yield f"raised {raised!r} for what it could have got along with"
    elif not isinstance(raised, StorageError):
        yield f"raised {raised!r}, which is not what happened"
    elif raised.errno != fault.code or not raised.filename:
        yield f"{raised!r} does not tell errno and file"


def _is_part(smaller: dict[tuple[str, ...], Any], larger: dict[tuple[str, ...], Any]) -> bool:
    return all(key in larger and larger[key] == value for key, value in smaller.items())


def _difference(found: View, expected: View) -> str:
    """The entries in which two views differ."""
    missing = [key for key in expected.items if key not in found.items]
    added = [key for key in found.items if key not in expected.items]
    changed = [key for key, value in found.items.items() if key in expected.items and expected.items[key] != value]
    return f"missing {missing}, added {added}, changed {changed}"
