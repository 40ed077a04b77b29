"""Which turn a LangGraph run holds. The look-up of LangGraph's per-run object is here and nowhere else.

LangGraph gives every run a `RunControl` of its own, unless the caller passes one, and hands it on with each call
to the checkpointer, in the run's configurable. Subgraphs share it; calls outside runs have none. A run takes a turn
at its first contact with a thread, and keeps it whatever saver instance of this process it speaks to.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from ._turns import Turn

#: Where LangGraph puts the runtime of a run. A test fails when this is no longer so.
RUNTIME_KEY: Final = "__pregel_runtime"
#: Where an explicit turn travels. Keys with two underscores are never stored in metadata.
TURN_KEY: Final = "__turncheckpoint_turn"
#: Set where writes are put that were made elsewhere, at a time that nobody knows.
UNDATED_KEY: Final = "__turncheckpoint_undated"

#: Beyond this many runs, those that have ended are forgotten.
RUNS_KEPT: Final = 1024


def control_of(configurable: Mapping[str, Any]) -> object | None:
    """The object that is the same in every checkpointer call of one run, or `None` outside runs."""
    return getattr(configurable.get(RUNTIME_KEY), "control", None)


def explicit_token(configurable: Mapping[str, Any], thread_id: str) -> int | None:
    """The token of a turn opened by hand for this thread, if the configurable carries one.

    A graph called inside another one inherits its configurable, so a turn of another thread is no error.
    """
    carried = configurable.get(TURN_KEY)
    if isinstance(carried, Mapping) and carried.get("thread_id") == thread_id:
        return int(carried["token"])
    return None


def explicit_base(configurable: Mapping[str, Any], thread_id: str) -> str | None:
    """Of a turn opened by hand that rolls the thread back, the checkpoint it starts from; empty for none.

    `None` for any other turn, and outside turns.
    """
    carried = configurable.get(TURN_KEY)
    if isinstance(carried, Mapping) and carried.get("thread_id") == thread_id:
        base = carried.get("base")
        return None if base is None else str(base)
    return None


class RunTurn:
    """The turn of one run on one thread; `turn` is `None` until its first contact."""

    __slots__ = ("lock", "turn")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turn: Turn | None = None


class Runs:
    """The turns of the runs of one store in this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs: dict[int, tuple[object, dict[str, RunTurn]]] = {}
        self._explicit: OrderedDict[tuple[str, int], Turn] = OrderedDict()
        self._limit = RUNS_KEPT

    def turn_of(self, control: object, thread_id: str) -> RunTurn:
        """The run's turn on a thread, the same object for every caller."""
        with self._guard:
            # The entry holds the control, so its id cannot be given to another one meanwhile.
            entry = self._runs.get(id(control))
            if entry is None:
                if len(self._runs) >= self._limit:
                    self._forget_ended()
                entry = self._runs[id(control)] = (control, {})
            return entry[1].setdefault(thread_id, RunTurn())

    def explicit(self, thread_id: str, token: int) -> Turn:
        """The turn that an explicit token stands for, opened by this process or another one."""
        with self._guard:
            turn = self._explicit.get((thread_id, token))
            if turn is None:
                turn = self._explicit[thread_id, token] = Turn(token, durable=False)
                while len(self._explicit) > RUNS_KEPT:
                    self._explicit.popitem(last=False)
            return turn

    def adopt(self, thread_id: str, turn: Turn) -> None:
        """Let a turn opened here be the one that its token stands for."""
        with self._guard:
            self._explicit[thread_id, turn.token] = turn

    def forget(self, thread_id: str, turn: Turn) -> None:
        """A turn opened here has ended."""
        with self._guard:
            if self._explicit.get((thread_id, turn.token)) is turn:
                del self._explicit[thread_id, turn.token]

    def reset_lock(self) -> None:
        """In a forked child: whoever held a lock does not exist there."""
        self._guard = threading.Lock()
        for _, turns in self._runs.values():
            for run in turns.values():
                run.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def _forget_ended(self) -> None:
        """Forget runs whose control nobody else holds.

        Only those: a run that were forgotten while alive would be taken for a new one, and come back
        with a fresh token.
        """
        ended = [key for key, entry in self._runs.items() if _references(entry) <= _REFERENCES_OF_AN_ENDED_RUN]
        for key in ended:
            del self._runs[key]
        self._limit = max(RUNS_KEPT, 2 * len(self._runs))


def _references(entry: tuple[object, dict[str, RunTurn]]) -> int:
    count = getattr(sys, "getrefcount", None)
    return sys.maxsize if count is None else int(count(entry[0]))


#: Measured rather than known: interpreters differ in what a count includes.
_REFERENCES_OF_AN_ENDED_RUN: Final = _references((object(), {}))
