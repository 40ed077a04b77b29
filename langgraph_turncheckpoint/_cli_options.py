"""What the commands have in common: arguments, exit statuses, and how an error or Ctrl-C ends a command. What a command
does is not here.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn, ParamSpec

import typer

from ._cli_ids import clean, shown_id
from ._cli_screen import Bar, progress_bar
from ._cli_stores import ProblemError, UsageError
from .errors import (
    PlaceError,
    RefusedValueError,
    TurnCheckpointError,
    TurnCheckpointWarning,
)
from .saver import TurnCheckpointSaver

P = ParamSpec("P")

PROBLEM: Final = 1
USAGE: Final = 2
STOPPED: Final = 128 + signal.SIGINT

STATUS: Final = (
    "Exit status: 0 all is well, 1 {problem}, 2 the command was not understood or its STORE is none, 130 stopped by "
    "Ctrl-C."
)

ENCRYPTED: Final = (
    "If the store is encrypted, give its serializer: --serde aes with the key in LANGGRAPH_AES_KEY, or "
    "--serde MODULE:FACTORY"
)


def _thread_ids(context: typer.Context, incomplete: str) -> list[str]:
    """For the completion of a thread's id in a shell."""
    store = context.params.get("store")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ids = [shown_id(each) for each in TurnCheckpointSaver(str(store)).thread_ids()]
    except (TurnCheckpointError, OSError):
        return []
    return [each for each in ids if each.startswith(incomplete)]


def _look_for_modules(directory: Path | None) -> Path | None:
    if directory is not None:
        sys.path.insert(0, str(directory.absolute()))
    return directory


StoreArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        show_default=False,
        help="The directory that the app gives to TurnCheckpointSaver.",
    ),
]
ThreadArgument = Annotated[
    str,
    typer.Argument(
        metavar="THREAD",
        show_default=False,
        autocompletion=_thread_ids,
        help="The thread's id, as `threads` shows it.",
    ),
]
ThreadsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[THREAD]...",
        show_default=False,
        autocompletion=_thread_ids,
        help="Only these threads, by the ids that `threads` shows.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for scripts, and nothing else.")]
SerdeOption = Annotated[
    str | None,
    typer.Option(
        "--serde",
        metavar="MODULE:FACTORY",
        envvar="TURNCHECKPOINT_SERDE",
        show_default=False,
        help="The serializer that the app gives to TurnCheckpointSaver, or what makes it: `myapp.store:make_serde`. "
        "`aes` is LangGraph's encryption with the key in LANGGRAPH_AES_KEY.",
    ),
]
AppDirectory = Annotated[
    Path | None,
    typer.Option(
        "--app-dir",
        metavar="DIR",
        exists=True,
        file_okay=False,
        show_default=False,
        callback=_look_for_modules,
        help="Where the app's modules are, for values of its own classes.",
    ),
]
MessagesKey = Annotated[
    str, typer.Option("--messages-key", metavar="CHANNEL", help="The channel that holds the conversation.")
]


# --- ends ---


def fail(message: str, *, status: int) -> NoReturn:
    """End with a sentence on stderr."""
    typer.echo(f"turncheckpoint: {clean(message)}", err=True)
    raise typer.Exit(status)


def guarded(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors become a sentence and an exit status, and whose warnings become lines on stderr."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            logging.getLogger("langgraph").setLevel(logging.ERROR)  # that an app's class is none of its own
            with _told_warnings():
                function(*args, **kwargs)
        except KeyboardInterrupt:
            fail("stopped; nothing is half done", status=STOPPED)
        except (UsageError, PlaceError) as error:
            fail(str(error), status=USAGE)
        except RefusedValueError as error:
            fail(f"{error}. {ENCRYPTED}", status=PROBLEM)
        except (ProblemError, TurnCheckpointError) as error:
            fail(str(error), status=PROBLEM)

    return command


@contextmanager
def _told_warnings() -> Iterator[None]:
    seen: set[str] = set()

    def tell(message: Warning | str, *_args: Any, **_kwargs: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            typer.echo(f"turncheckpoint: warning: {clean(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TurnCheckpointWarning)
        warnings.showwarning = tell
        yield


class Work:
    """Long work, one item after the other. Ctrl-C ends it behind the item that is being worked on; a second one at
    once.

    Attributes:
        done: How many items are done.
    """

    def __init__(self, verb: str, noun: str, total: int | None, bar: Bar, rest: str) -> None:
        self._verb, self._noun, self._total, self._bar, self._rest = verb, noun, total, bar, rest
        self._asked_to_stop = False
        self.done = 0

    def step(self) -> None:
        """One more item is done.

        Raises:
            KeyboardInterrupt: Somebody pressed Ctrl-C meanwhile.
        """
        self.reach(self.done + 1, self._total)

    def reach(self, done: int, total: int | None) -> None:
        """So many items are done.

        Raises:
            KeyboardInterrupt: Somebody pressed Ctrl-C meanwhile.
        """
        self.done, self._total = done, total
        self._bar(done, total)
        if self._asked_to_stop and done != total:
            raise KeyboardInterrupt

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """Ctrl-C was pressed."""
        if self._asked_to_stop:
            raise KeyboardInterrupt
        self._asked_to_stop = True
        if self._total != 1:
            text = f"turncheckpoint: stopping behind this {self._noun}; press Ctrl-C again to stop at once\n"
            os.write(2, text.encode())  # what is written with Python's own means must not be interrupted by itself

    @property
    def so_far(self) -> str:
        """What was done until now, in one sentence."""
        of = "" if self._total is None else f" of {self._total}"
        noun = self._noun if (self._total or self.done) == 1 else f"{self._noun}s"
        return f"stopped: {self.done}{of} {noun} {self._verb}; {self._rest}"


@contextmanager
def working(
    verb: str,
    *,
    noun: str = "thread",
    total: int | None = None,
    quiet: bool,
    rest: str = "the others are as they were, and nothing is half done",
) -> Iterator[Work]:
    """Show how far long work is, on a terminal, and end it well when somebody presses Ctrl-C.

    Args:
        verb: What has been done to an item: "pruned".
        noun: What an item is.
        total: How many there are, if that is known.
        quiet: Whether to show nothing.
        rest: What to say of the others when it is stopped.
    """
    with progress_bar(f"{noun}s {verb}", total=total, quiet=quiet) as bar:
        work = Work(verb, noun, total, bar, rest)
        in_main = threading.current_thread() is threading.main_thread()
        before: Any = signal.signal(signal.SIGINT, work.stop) if in_main else None
        try:
            yield work
            return
        except KeyboardInterrupt:
            sentence = work.so_far
        finally:
            if in_main:
                signal.signal(signal.SIGINT, before)
    fail(sentence, status=STOPPED)


def print_json(data: Any) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(data, indent=2))


def count(number: int, noun: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
