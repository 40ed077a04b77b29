"""The process whose resident memory is weighed: writes threads, prints how much it grew."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from tests.benchmarks.contenders import Contender, Saver
from tests.benchmarks.messages import conversation
from tests.benchmarks.peers import named
from tests.benchmarks.state import ThreadState

#: Super-steps a thread gets before the next thread has its turn: all threads stay in use to the end.
_STEPS_PER_VISIT: Final = 4


def resident_bytes() -> int:
    """`VmRSS` of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS line")


def write_threads(contender: Contender, saver: Saver, states: Sequence[ThreadState], *, steps: int) -> None:
    """Give every thread of `states` its messages, visit by visit.

    Between visits only versions and ids of a thread are held here, never its messages: they are made
    again from their seed, so that what grows is what the saver holds.
    """
    for begin in range(0, steps, _STEPS_PER_VISIT):
        end = min(begin + _STEPS_PER_VISIT, steps)
        for state in states:
            thread_id = state.config["configurable"]["thread_id"]
            messages = list(islice(conversation(thread_id), end))
            with contender.turn(saver, state.config) as config, state.run_under(config):
                state.values = {**state.values, "messages": messages[:begin]}
                for message in messages[begin:end]:
                    state.add_message(saver, message).commit(saver)
                state.values = {}


def main(arguments: Sequence[str]) -> None:
    """Arguments: name of the contender, its server or nothing, directory, number of threads, super-steps per thread."""
    name, server, root = arguments[0], arguments[1], Path(arguments[2])
    threads, steps = int(arguments[3]), int(arguments[4])
    contender = named(name, server=Path(server) if server else None)
    saver = contender.open(root)
    # What the interpreter, the allocator and the saver set up once belongs to the start.
    write_threads(contender, saver, [ThreadState("warm-up")], steps=_STEPS_PER_VISIT)
    states = [ThreadState(f"thread-{number}") for number in range(threads)]
    gc.collect()
    before = resident_bytes()
    write_threads(contender, saver, states, steps=steps)
    gc.collect()
    grown = resident_bytes() - before
    contender.close(saver)
    sys.stdout.write(json.dumps({"grown_bytes": grown}))


if __name__ == "__main__":
    main(sys.argv[1:])
