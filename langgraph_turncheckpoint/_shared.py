"""What all savers of one directory in this process have in common, found by the directory's real path.

Two savers on one directory, or a graph and its subgraph compiled with savers of their own, must agree on
which turn a run holds. What one saver remembers for speed alone stays with the saver.
"""

from __future__ import annotations

import os
import threading
import weakref

from ._commits import Commits
from ._runs import Runs


class SharedState:
    """Turns and commit queues of one directory."""

    def __init__(self) -> None:
        self.commits = Commits()
        self.runs = Runs()


_states: weakref.WeakValueDictionary[str, SharedState] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def shared_state(root: str) -> SharedState:
    """The state shared by every saver of `root` in this process."""
    path = os.path.realpath(root)
    with _guard:
        state = _states.get(path)
        if state is None:
            state = _states[path] = SharedState()
        return state


def _forget_states() -> None:
    global _guard
    _guard = threading.Lock()
    for state in list(_states.values()):
        # Queues and locks of threads that do not exist in a forked child; turns are still held.
        state.commits = Commits()
        state.runs.reset_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_states)
