"""The command `python -m tests.crash`: runs a lab, or all of them, and prints its figures.

A lab is a module with `add_arguments(parser)` and `run(options)`, which returns its figures and its findings. The
defaults of a lab's arguments are the sizes that `all` runs with; tests run shorter forms of the same labs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from time import perf_counter
from types import ModuleType
from typing import Final

from tests.crash.figures import Report, markdown, plain

#: Name on the command line, module, what it shows; in the order of the reliability table.
LABS: Final = {
    "disk": ("tests.crash.disk", "every state that a crash can leave on a POSIX disk, for every operation"),
    "turns": ("tests.crash.guarded_turns", "a guarded turn killed at every change it makes to a file"),
    "storm": ("tests.crash.storm", "an agent killed at random instants, over and over, in one directory"),
    "zombies": ("tests.crash.zombies", "processes stopped and woken at random, writing to the same threads"),
    "faults": ("tests.crash.faults", "every system call of every operation failing in every way"),
    "damage": ("tests.crash.damage", "every byte of every kind of file flipped, every length cut"),
    "load": ("tests.crash.load", "many threads, writers, readers, prune and list at once"),
}
#: Run by name only: they take as long as they are given.
EXTRA: Final = {
    "fuzz": ("tests.crash.fuzz", "coverage-guided fuzzing of each decoder; needs atheris"),
    "soak": ("tests.crash.soak", "the load for an hour"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; the status is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description="Proof by crash. `LAB --help` tells what a lab takes.",
        epilog="\n".join(f"{name:8} {summary}" for name, (_, summary) in {**LABS, **EXTRA}.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lab", choices=["all", *LABS, *EXTRA], metavar="LAB", help="all, or one of those below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="what the lab takes")
    chosen = parser.parse_args(arguments)
    names = list(LABS) if chosen.lab == "all" else [chosen.lab]
    labs = {name: importlib.import_module({**LABS, **EXTRA}[name][0]) for name in names}
    own = argparse.ArgumentParser(prog=f"python -m tests.crash {chosen.lab}")
    own.add_argument("--markdown", action="store_true", help="end with a table for the README")
    if chosen.lab != "all":
        own.description = labs[chosen.lab].__doc__
        labs[chosen.lab].add_arguments(own)
    given = own.parse_args(chosen.rest)
    reports = []
    for name, lab in labs.items():
        reports.append(_run(name, lab, _defaults(lab) if chosen.lab == "all" else given))
        sys.stdout.write(plain(reports[-1]) + "\n")
        sys.stdout.flush()
    if given.markdown:
        sys.stdout.write("\n" + markdown(reports) + "\n")
    return 0 if all(report.is_met for report in reports) else 1


def _defaults(lab: ModuleType) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    lab.add_arguments(parser)
    return parser.parse_args([])


def _run(name: str, lab: ModuleType, options: argparse.Namespace) -> Report:
    begun = perf_counter()
    try:
        figures, findings = lab.run(options)
    except Exception:  # noqa: BLE001 - the other labs still have something to say
        figures, findings = [], [traceback.format_exc()]
    return Report(name, f"python -m tests.crash {name}", figures, findings, perf_counter() - begun)


if __name__ == "__main__":
    sys.exit(main())
