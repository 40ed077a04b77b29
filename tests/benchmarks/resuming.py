"""Rows of a process that starts anew and goes on with a thread: what its saver adds to the import and to the load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from tests.benchmarks.bench import Bench, Grown
from tests.benchmarks.results import Floor, Result, beside_peer

_REPOSITORY: Final = Path(__file__).absolute().parents[2]

#: A process without any saver.
_NONE: Final = ""


def fresh_process(bench: Bench) -> list[Result]:
    """From the start of Python to the first model call, what of it is the import and what is opening and loading.

    Only savers that reopen take part. Parent and child read the same clock: that of the system since its start.
    """
    size = bench.sizes.resume_messages
    grown = {one.name: bench.grown(one, size) for one in bench.contenders if one.reopens}
    known = {one.name: (one.module, str(one.server or "")) for one in bench.contenders}
    # An app keeps what Python has compiled, and so do these, whatever this process was told.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bench.directory("bytecode"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in (*grown, _NONE)}
    names = list(taken)
    # Before the first round nobody has compiled what it imports, nor has the page cache got it.
    warm_up = 1 if bench.sizes.resume_rounds > 1 else 0
    for number in range(bench.sizes.resume_rounds + warm_up):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            root = bench.directory(f"{name or 'none'}-resume")
            thread_id = _copied(bench, name, grown, root)
            module, server = known.get(name, ("", ""))
            has = size if name else 0
            times = _start([name, module, server, str(root), thread_id, str(has + 1)], environment)
            if number >= warm_up:
                taken[name].append(times)
    p50 = {
        name: {part: median(times[part] for times in starts) for part in starts[0]} for name, starts in taken.items()
    }
    alone = p50.pop(_NONE)
    parts = {part: {name: times[part] for name, times in p50.items()} for part in alone}
    return [
        beside_peer(
            "resume",
            f"new process to first model call, thread of {size:,} messages",
            parts["total"],
            floor=Floor(alone["total"], "a process whose graph has no saver and no messages"),
        ),
        beside_peer("resume-import", "of it, import of the saver after LangGraph's", parts["import"]),
        beside_peer(
            "resume-load",
            "of it, opening, loading, running up to the model",
            parts["load"],
            floor=Floor(alone["load"], "the same without a saver and without messages"),
        ),
    ]


def _copied(bench: Bench, name: str, grown: dict[str, Grown], root: Path) -> str:
    """Give the process a thread of its own, since it goes on with it; gives the thread's id."""
    if name == _NONE:
        return "none"
    contender = next(one for one in bench.contenders if one.name == name)
    contender.copy(grown[name].root, root)
    return str(grown[name].state.config["configurable"]["thread_id"])


def _start(arguments: list[str], environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.resume_process", *arguments]
    begun = perf_counter()
    done = subprocess.run(command, cwd=_REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout)
    return {"total": times["called"] - begun, "import": times["import"], "load": times["load"]}
