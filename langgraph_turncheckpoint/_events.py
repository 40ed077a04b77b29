"""What happens in a store that somebody may want to see: each event is logged here, and told to those who listen. What
a message says, a key or a value is never part of it; nothing is decided here.

Nothing is said of the writes and reads that go well: they must cost nothing. Listeners are for `telemetry`.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple, TypeAlias

from .errors import DamagedCheckpointError, DamageWarning, StorageError

_ROOT: Final = logging.getLogger("langgraph_turncheckpoint")
_ROOT.addHandler(logging.NullHandler())  # an app that sets up no logging hears nothing

TURNS: Final = logging.getLogger("langgraph_turncheckpoint.turns")
GUARD: Final = logging.getLogger("langgraph_turncheckpoint.guard")
UPKEEP: Final = logging.getLogger("langgraph_turncheckpoint.upkeep")
STORE: Final = logging.getLogger("langgraph_turncheckpoint.store")

#: Files whose faults have been logged as warnings; a thread may be read a thousand times a minute.
_TOLD_LIMIT: Final = 1024


class Answered(NamedTuple):
    """Tool calls were given answers that their tools did not give in this run.

    Attributes:
        root: The store.
        outcomes: How many, by outcome and cause.
    """

    root: str
    outcomes: Mapping[tuple[str, str], int]


class Recovered(NamedTuple):
    """A thread was put in order, or looked at and found in order.

    Attributes:
        root: The store.
        thread_id: The thread.
        token: The turn in which.
        cause: Why the turn before had ended.
        outcomes: How many answers were given, by outcome and cause.
        moved: Answers that were moved.
        set_aside: Messages that were taken out.
        added: Messages that were brought back.
        changed: Whether anything was written.
        began_ns: When it began, in nanoseconds since 1970.
        error: What class of error it ended with, if it did.
    """

    root: str
    thread_id: str
    token: int
    cause: str
    outcomes: Mapping[tuple[str, str], int]
    moved: int
    set_aside: int
    added: int
    changed: bool
    began_ns: int
    error: str | None = None


class Damaged(NamedTuple):
    """A damaged file was passed over."""

    path: str


Event: TypeAlias = Answered | Recovered | Damaged
Listener: TypeAlias = Callable[[Event], None]

#: Who listens, by store. Empty in nearly every process, and asked before an event is made.
listeners: Final[dict[str, list[Listener]]] = {}

#: Where the sizes of what is stored are wanted, in bytes; set by who measures, around one operation.
written: Final[ContextVar[list[int] | None]] = ContextVar("turncheckpoint_written", default=None)

_guard = threading.Lock()
_told: OrderedDict[str, None] = OrderedDict()


def listen(root: str, listener: Listener) -> None:
    """Let `listener` hear what happens in a store from now on, in whatever thread. It must not raise."""
    with _guard:
        listeners[root] = [*listeners.get(root, ()), listener]


def unlisten(root: str, listener: Listener) -> None:
    """The opposite of `listen`."""
    with _guard:
        remaining = list(listeners.get(root, ()))
        if listener in remaining:
            remaining.remove(listener)
        if remaining:
            listeners[root] = remaining
        else:
            listeners.pop(root, None)


def _tell(root: str, event: Event) -> None:
    for listener in listeners.get(root, ()):
        try:
            listener(event)
        except Exception:  # noqa: BLE001 - who only watches must not break what is watched
            _ROOT.debug("a listener failed", exc_info=True)


# --- turns ---


def refused(operation: str, thread_id: str, token: int, error: Exception) -> None:
    """A write was refused, because of its turn."""
    if TURNS.isEnabledFor(logging.WARNING):
        who = f"turn {token}" if token else "a writer outside any turn"
        current = getattr(error, "current", None)
        why = f"the thread is at turn {current}" if current else "the thread is closed"
        TURNS.warning("thread %r: %s by %s was refused: %s", thread_id, operation, who, why)


def taken_over(thread_id: str, older: int, token: int, strategy: str) -> None:
    """A turn has taken a thread over from one that was running."""
    TURNS.info("thread %r: turn %d took over from turn %d, which was running (%s)", thread_id, token, older, strategy)


def token_raised(thread_id: str, what: str, token: int, cause: str) -> None:
    """A turn was cancelled, or a thread closed, reopened or deleted."""
    TURNS.info("thread %r: %s (%s); turns up to %d are fenced out", thread_id, what, cause, token - 1)


def settled(thread_id: str, token: int, state: str, cause: str | None) -> None:
    """A turn has ended."""
    TURNS.debug("thread %r: turn %d is %s (%s)", thread_id, token, state, cause or "no cause")


def unlogged(thread_id: str, path: str, error: Exception) -> None:
    """The log of a thread's turns could not take an entry. No turn fails for that."""
    level = logging.WARNING if _is_news(path) else logging.DEBUG
    text = "thread %r: the log of its turns misses an entry, so `turns` will not tell all: %s"
    TURNS.log(level, text, thread_id, described(error))


# --- the guard ---


def answered(root: str, thread_id: str, token: int, outcomes: Iterable[tuple[str, str]]) -> None:
    """Calls were given answers inside a run."""
    counts = Counter(outcomes)
    if not counts:
        return
    if GUARD.isEnabledFor(logging.INFO):
        GUARD.info("thread %r: turn %d: answers given to tool calls: %s", thread_id, token, _counted(counts))
    if listeners:
        _tell(root, Answered(root, counts))


def recovered(event: Recovered) -> None:
    """A thread was looked at, and put in order if that was needed."""
    if event.error is not None:
        GUARD.warning("thread %r: turn %d: recovery broke off: %s", event.thread_id, event.token, event.error)
    elif GUARD.isEnabledFor(logging.INFO if event.changed else logging.DEBUG):
        GUARD.log(
            logging.INFO if event.changed else logging.DEBUG,
            "thread %r: turn %d: recovered after %s: %s; %d moved, %d set aside, %d brought back",
            event.thread_id,
            event.token,
            event.cause,
            _counted(event.outcomes) or "no answers",
            event.moved,
            event.set_aside,
            event.added,
        )
    if listeners:
        _tell(event.root, event)


def went_on(thread_id: str, token: int, error: Exception, *, with_input: bool) -> None:
    """A run goes on although putting its thread in order broke off: its state could not take what is pending."""
    if with_input:
        means = "what was pending is dropped, as LangGraph drops it, and open calls are answered in front of the input"
    else:
        means = "results that earlier runs recorded may be missing from its history; its tools still ask the guard"
    GUARD.warning("thread %r: turn %d goes on without recovery (%s): %s", thread_id, token, described(error), means)


def _counted(outcomes: Mapping[tuple[str, str], int]) -> str:
    return ", ".join(f"{count} {outcome} ({cause})" for (outcome, cause), count in sorted(outcomes.items()))


# --- damage ---


def damaged(path: str, text: str, *, stacklevel: int) -> None:
    """A damaged file was passed over: a `DamageWarning`, and beside it a line in the log.

    The log names the file; the reason may quote what is in it, and is left to the warning.

    Args:
        path: The file.
        text: The warning.
        stacklevel: Of the warning, as the caller would give it.
    """
    STORE.log(logging.WARNING if _is_news(path) else logging.DEBUG, "%s: damaged, and passed over", path)
    if listeners:
        for root in list(listeners):
            if path.startswith(root + os.sep):
                _tell(root, Damaged(path))
    warnings.warn(text, DamageWarning, stacklevel=stacklevel + 1)


def _is_news(path: str) -> bool:
    with _guard:
        is_known = path in _told
        _told[path] = None
        if len(_told) > _TOLD_LIMIT:
            _told.popitem(last=False)
    return not is_known


def described(error: BaseException) -> str:
    """An error in a log: what class, and which file the system refused for what reason; never what a value says."""
    name = type(error).__name__
    if isinstance(error, DamagedCheckpointError):
        return f"{name}: {error.path}"
    if isinstance(error, StorageError) and error.filename:
        return f"{name}: {error.filename}: {error.strerror}"
    return name


def _reset_lock() -> None:
    global _guard
    _guard = threading.Lock()  # whoever held it does not exist in a forked child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)
