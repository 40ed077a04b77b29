"""Real child processes for tests that kill, stop and race them. No graph and no saver lives here.

A child is forked from a server that has done the imports and nothing else, so it starts in some 20 ms and yet shares
no state of the package with anybody. Parent and child only ever wait for what the other says, and each process is
ended by its id.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from typing_extensions import Self

#: Who says nothing for so long hangs. Only a failing test ever waits for it.
PATIENCE_SECONDS: Final = 30.0

#: Set it to run the cases in the numbers they are stated with.
FULL: Final = bool(os.environ.get("TURNCHECKPOINT_FULL_CASES"))

_PRELOADED: Final = ("langchain.agents", "langgraph.graph", "langgraph_turncheckpoint", "pytest")


def rounds(usual: int, *, full: int) -> int:
    """How often a case is repeated: `full` times, as it is stated, where `TURNCHECKPOINT_FULL_CASES` is set."""
    return full if FULL else usual


class Failure(NamedTuple):
    """What a child says in place of an answer when it failed; the text is its traceback."""

    text: str


class Line:
    """One end of the line between a child and its parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, message: Any) -> None:
        """Say something that can be pickled."""
        self._connection.send(message)

    def hear(self) -> Any:
        """Wait for what the other end says.

        Raises:
            EOFError: The other process is gone.
            AssertionError: It failed, or it hangs.
        """
        assert self._connection.poll(PATIENCE_SECONDS), "the other process hangs"
        message = self._connection.recv()
        assert not isinstance(message, Failure), f"the child failed:\n{message.text}"
        return message

    def speaks_within(self, seconds: float) -> bool:
        """Wait until the other end says something, or is gone; not longer than this."""
        return self._connection.poll(seconds)

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`, which tells who of several says something."""
        return self._connection.fileno()


def _work(target: Callable[..., object], line: Line, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    warnings.simplefilter("error")
    try:
        target(line, *args, **kwargs)
    except BaseException:  # noqa: BLE001 - whatever it was, the parent hears of it
        line.tell(Failure(traceback.format_exc()))
        raise SystemExit(1) from None


class Child(Line):
    """A process that runs `target(line, ...)`, a function at the top of a module; it ends with the `with` block."""

    def __init__(self, target: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        ours, theirs = context.Pipe()
        super().__init__(ours)
        self._process = context.Process(target=_work, args=(target, Line(theirs), args, kwargs), daemon=True)
        self._process.start()
        # The child has the other end for itself, so we notice when it dies.
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(PATIENCE_SECONDS)
        self._connection.close()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL; returns when the process is dead. A stopped process dies, too."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.end() == -signal.SIGKILL

    def stop(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> int:
        """Wait for the end of the process; returns its exit status, or minus the signal it died of.

        Raises:
            AssertionError: It failed, or it hangs.
        """
        self._process.join(PATIENCE_SECONDS)
        status = self._process.exitcode
        assert status is not None, "the child hangs"
        if status == 1:
            self._raise_what_it_said()
        return status

    def _raise_what_it_said(self) -> None:
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self.hear()


def answers(target: Callable[..., object], *args: Any) -> Any:
    """What `target(line, *args)` says first, in a process of its own that then ends in order."""
    with Child(target, *args) as child:
        answer = child.hear()
        assert child.end() == 0
        return answer
