"""Coverage-guided fuzzing of every decoder of stored bytes. What is fuzzed, and what must hold, is in `fuzz_targets`;
this starts the fuzzer, one process for each target, and reads what it says.

It needs atheris, which is an optional extra. What it found in earlier runs is in `corpus/`, and is replayed without it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.crash.figures import Figure, zero

CORPUS: Final = Path(__file__).parent / "corpus"
NEEDED: Final = "fuzzing needs atheris: pip install 'langgraph-turncheckpoint[fuzz]'"
#: No stored thing that is worth fuzzing is longer.
LENGTH_LIMIT: Final = 4096
#: One input that takes longer, in seconds, is a finding.
SLOW_SECONDS: Final = 20

TARGET_NAMES: Final = (
    "records", "checkpoint", "frames", "ledger", "log", "journal", "inbox", "messages", "values", "names",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the lab takes."""
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--target", choices=TARGET_NAMES, help="only this one")
    parser.add_argument("--seed", type=int, default=1, help="of the fuzzer")
    parser.add_argument("--keep", type=Path, help="where to keep new inputs of the corpus")


def run(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Fuzz for as long as was asked for."""
    if importlib.util.find_spec("atheris") is None:
        return [], [NEEDED]
    figures, findings = [], []
    for name in TARGET_NAMES:
        if options.target in (None, name):
            executed, found = _fuzz(name, options)
            figures.append(Figure(f"{name}, executions", executed))
            findings += found
    return [*figures, zero("inputs that break a decoder", len(findings))], findings


def _fuzz(name: str, options: argparse.Namespace) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="turncheckpoint-fuzz-") as scratch:
        grown = options.keep / name if options.keep else Path(scratch, "corpus")
        grown.mkdir(parents=True, exist_ok=True)
        broken = Path(scratch, "broken")
        broken.mkdir()
        # Its own process: the fuzzer ends the one it runs in.
        command = [sys.executable, "-m", "tests.crash.fuzz", name, str(grown), *_known(name)]
        command += [f"-max_total_time={options.seconds}", f"-seed={options.seed}", f"-max_len={LENGTH_LIMIT}"]
        command += [f"-timeout={SLOW_SECONDS}", f"-artifact_prefix={broken}{os.sep}", "-print_final_stats=1"]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        counted = re.search(r"stat::number_of_executed_units:\s*(\d+)", ended.stderr)
        findings = [f"{name}: {path.read_bytes().hex()}: {_reason(ended.stderr)}" for path in broken.iterdir()]
        if ended.returncode and not findings:
            findings.append(f"{name}: the fuzzer ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return int(counted[1]) if counted else 0, findings


def _known(name: str) -> list[str]:
    known = CORPUS / name
    return [str(known)] if known.is_dir() else []


def _reason(said: str) -> str:
    """The last lines of the traceback."""
    _, _, traceback = said.partition("Uncaught Python exception")
    lines = [line.strip() for line in traceback.partition("==")[0].splitlines() if line.strip()]
    return " | ".join([*lines[1:2], *lines[-4:]])


def main(arguments: list[str]) -> None:
    """The process of one target: its name, then what libFuzzer takes."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["langgraph_turncheckpoint"]):
        from tests.crash.fuzz_targets import TARGETS
    target = TARGETS[arguments[0]]
    grown = Path(arguments[1])
    for number, seed in enumerate(target.seeds()):
        (grown / f"seed-{number}").write_bytes(seed)

    def mutated(data: bytes, limit: int, seed: int) -> bytes:
        changed: bytes = atheris.Mutate(data, limit)
        # Now and then the checksums stay wrong: the fuzzer must see that, too.
        return changed if seed % 16 == 0 else target.mend(changed)[:limit]

    options: Any = {"custom_mutator": mutated}
    atheris.Setup([sys.argv[0], *arguments[1:]], target.check, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
