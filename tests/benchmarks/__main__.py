"""The command `python -m tests.benchmarks`: chooses rows, runs them, prints the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.benchmarks import report
from tests.benchmarks.bench import QUICK, Bench, Sizes
from tests.benchmarks.contenders import CONTENDERS
from tests.benchmarks.results import Result
from tests.benchmarks.rows import KEYS, SECTIONS, Group, groups_for
from tests.benchmarks.timing import DiskFloor, Stopwatch

_PACKAGES = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langchain-core")
_FLOOR_ROUNDS = 50
_PROFILE_LINES = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen rows. The status says whether the run worked, not whether a target was met."""
    options = _parser().parse_args(arguments)
    wanted = _wanted(options)
    try:
        groups = groups_for([options.profile] if options.profile else wanted or KEYS)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.profile:
        return _profile(groups[0], options)
    results, setting = _run(groups, options)
    if wanted:
        results = [result for result in results if result.key in wanted]
    if options.json:
        options.json.write_text(json.dumps(report.as_json(results, setting), indent=2) + "\n")
    sys.stdout.write((report.markdown if options.markdown else report.plain)(results, setting) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Times and weighs TurnCheckpointSaver, SqliteSaver and InMemorySaver side by side.",
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"only these parts of the table: {', '.join(SECTIONS)}"
    )
    parser.add_argument("--rows", type=_comma_separated, help=f"only these: {','.join(KEYS)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE as well")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
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


def _run(groups: Iterable[Group], options: argparse.Namespace) -> tuple[list[Result], report.Setting]:
    begun, load = perf_counter(), os.getloadavg()[0]
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-", dir=options.dir) as name,
        DiskFloor(Path(name)) as floor,
    ):
        root = Path(name)
        files, appends = _sample_floor(floor)
        bench = Bench(root, CONTENDERS, QUICK if options.quick else Sizes(), Stopwatch(), floor)
        for group in groups:
            _progress(", ".join(group.keys))
            results += group.measure(bench)
        more_files, more_appends = _sample_floor(floor)
        setting = report.Setting(
            python=platform.python_version(),
            packages={package: version(package) for package in _PACKAGES},
            cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            file_system=_file_system(root),
            floor_seconds={
                "durable atomic file": median(files + more_files),
                "durable append": median(appends + more_appends),
            },
            load=(load, os.getloadavg()[0]),
            quick=options.quick,
            seconds=perf_counter() - begun,
        )
    _progress("")
    return results, setting


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
    sys.exit(main())
