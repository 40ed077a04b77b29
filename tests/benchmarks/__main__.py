"""The command `python -m tests.benchmarks`: chooses rows, runs them, prints the table."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.benchmarks import report
from tests.benchmarks.baseline import Ratios, drift, ratios, read_baseline, write_baseline
from tests.benchmarks.bench import QUICK, Bench, Sizes
from tests.benchmarks.contenders import CONTENDERS
from tests.benchmarks.curves import CURVES, Curve
from tests.benchmarks.kept import Run, read_run, write_run
from tests.benchmarks.peers import NAMES, contenders
from tests.benchmarks.plots import PlotsUnavailableError, draw
from tests.benchmarks.results import Result
from tests.benchmarks.rows import KEYS, SECTIONS, Group, groups_for
from tests.benchmarks.timing import DiskFloor, Stopwatch

_PACKAGES = (
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-objectstorage",
    "langchain-core",
)
_FLOOR_ROUNDS = 50
_PROFILE_LINES = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen rows. The status says whether the run worked, not whether a target was met."""
    options = _parser().parse_args(arguments)
    wanted = _wanted(options)
    try:
        groups = groups_for([options.profile] if options.profile else wanted or KEYS)
        before = read_baseline(options.compare) if options.compare else None
        run = read_run(options.read) if options.read else None
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with _terminated_orderly():
        if options.profile:
            return _profile(groups[0], options)
        run = (run or _run(groups, options)).only(wanted)
    return _report(run, before, options)


def _report(run: Run, before: Ratios | None, options: argparse.Namespace) -> int:
    if options.json:
        write_run(options.json, run)
    if options.baseline:
        write_baseline(options.baseline, run)
    sys.stdout.write((report.markdown if options.markdown else report.plain)(run.results, run.setting) + "\n")
    if before is not None:
        sys.stdout.write(f"\n{drift(before, ratios(run.results))}\n")
    if options.plots:
        try:
            drawn = draw(run, options.plots)
        except PlotsUnavailableError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        sys.stdout.write("".join(f"{path}\n" for path in drawn))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Times and weighs TurnCheckpointSaver and its peers side by side.",
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"only these parts of the table: {', '.join(SECTIONS)}"
    )
    parser.add_argument("--rows", type=_comma_separated, help=f"only these: {','.join(KEYS)}")
    parser.add_argument(
        "--peers",
        type=_peers,
        default=NAMES,
        help=f"only these beside ours (default: all that can be had): {','.join(NAMES[1:])}",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found to FILE as well")
    parser.add_argument(
        "--from", type=Path, metavar="FILE", dest="read", help="measure nothing: take what --json wrote"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="measure curves as well, and draw plots into DIR")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="write ratios to peers and floors to FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="show how the ratios have drifted since FILE")
    parser.add_argument("--profile", metavar="ROW", help="profile our side of one row instead of comparing")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="write below DIR and so measure its disk (default: temporary files)",
    )
    return parser


def _wanted(options: argparse.Namespace) -> list[str]:
    """The rows asked for; none for all. A section that does not exist is taken for a row, and refused as one."""
    keys = list(options.rows or ())
    for section in options.sections:
        keys += SECTIONS.get(section, (section,))
    return keys


def _comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _peers(text: str) -> list[str]:
    names = _comma_separated(text)
    if unknown := [name for name in names if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"no such peer: {', '.join(unknown)}")
    return ["ours", *names]


@contextmanager
def _terminated_orderly() -> Iterator[None]:
    """End as after an interrupt from the keyboard, temporary files removed, where a signal would just end us."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, end) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(groups: Iterable[Group], options: argparse.Namespace) -> Run:
    begun, load = perf_counter(), os.getloadavg()[0]
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-", dir=options.dir) as name,
        DiskFloor(Path(name)) as floor,
        contenders(options.peers, below=options.dir) as (found, missing),
    ):
        root = Path(name)
        files, appends = _sample_floor(floor)
        bench = Bench(root, found, QUICK if options.quick else Sizes(), Stopwatch(), floor)
        for group in groups:
            _progress(", ".join(group.keys))
            results += group.measure(bench)
        curves: dict[str, Curve] = {}
        for key, measure in CURVES.items() if options.plots else ():
            _progress(f"curve {key}")
            curves[key] = measure(bench)
        more_files, more_appends = _sample_floor(floor)
        setting = report.Setting(
            python=platform.python_version(),
            packages=dict(_versions()),
            contenders={one.name: one.setting for one in found},
            missing=missing,
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            file_system=_file_system(root),
            floor_seconds={
                "a durable atomic file": median(files + more_files),
                "a durable append": median(appends + more_appends),
            },
            load=(load, os.getloadavg()[0]),
            quick=options.quick,
            seconds=perf_counter() - begun,
        )
    _progress("")
    return Run(results, setting, curves)


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield package, version(package)


def _profile(group: Group, options: argparse.Namespace) -> int:
    if not group.profiled:
        sys.stderr.write(f"{options.profile} does not run where a profiler sees it\n")
        return 2
    stopwatch = Stopwatch(profile=True)
    ours = [contender for contender in CONTENDERS if contender.name == "ours"]
    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-", dir=options.dir) as name,
        DiskFloor(Path(name)) as floor,
    ):
        group.measure(Bench(Path(name), ours, QUICK if options.quick else Sizes(), stopwatch, floor))
    stopwatch.print_profile(top=_PROFILE_LINES)
    return 0


def _sample_floor(floor: DiskFloor) -> tuple[list[float], list[float]]:
    stopwatch = Stopwatch()
    files, appends = [], []
    for _ in range(_FLOOR_ROUNDS):
        files.append(stopwatch.time(floor.file))
        appends.append(stopwatch.time(floor.append))
    return files, appends


def _file_system(path: Path) -> str:
    """The kind of file system below `path`, from the longest mount point that leads to it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "file system unknown"
    leading = [(mount[1], mount[2]) for mount in mounts if path.resolve().is_relative_to(mount[1])]
    kind = max(leading, key=lambda mount: len(mount[0]), default=("", "file system unknown"))[1]
    return f"{kind} (in memory: its flushes cost nothing; choose a disk with --dir)" if kind == "tmpfs" else kind


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text and f'measuring {text} ...'}")
        sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
