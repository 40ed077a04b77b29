"""The words for how a turn ended, and for how that is known; how it ended is judged by its log and in `_standing`.
Decisions only, for the picture of a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ._story import Outcome
from ._turn import LoggedTurn, TurnState

_CAUSES: Final = {
    "restart": "its process died",
    "user": "a user stopped it",
    "superseded": "a newer turn took over",
    "limit": "it reached its limit",
    "error": "it raised an error",
}
#: What the last checkpoint of a run tells whose end nobody announced.
_INFERRED: Final[dict[TurnState, str]] = {
    "failed": "an error is recorded on its last checkpoint",
    "paused": "its last checkpoint waits for a person",
    "completed": "its last checkpoint has nothing left to do",
    "unfinished": "it has left work behind, or is still running",
    "unknown": "there is no checkpoint of it that can be read",
}
_KINDS: Final = {"put": "a checkpoint", "put_writes": "a result"}


class Ending(NamedTuple):
    """How a turn ended.

    Attributes:
        outcome: The word for it.
        reason: How that is known.
        left_as: How what was imported had ended where it came from.
    """

    outcome: Outcome
    reason: str
    left_as: TurnState | None = None

    @property
    def left(self) -> Outcome:
        """How its last run ended."""
        return self.left_as or self.outcome


def ending_of(turn: LoggedTurn | None, told: TurnState, *, is_edit: bool) -> Ending:
    """How a turn ended.

    Args:
        turn: Its log; `None` if there is none.
        told: How it ended as far as what it wrote last tells.
        is_edit: Whether it is no turn, but what was written outside any.
    """
    if is_edit:
        return Ending("edit", "written outside any turn, as update_state does")
    if turn is None or turn.state == "unknown":
        return Ending(told, f"a plain run announces no end, but {_INFERRED[told]}")
    if turn.state == "imported":
        return Ending("imported", f"brought from elsewhere; {_INFERRED[told]}", told)
    cause = _CAUSES.get(turn.cause or "", "")
    if turn.state == "interrupted":
        return Ending("interrupted", "its process died before it ended")
    if turn.state == "superseded":
        reason = f"{cause or _CAUSES['superseded']}; what it tried to write afterwards was refused"
        return Ending("superseded", reason)
    return Ending(turn.state, f"it ended as {turn.state}" + (f": {cause}" if cause else ""))


def unseen_outcome(turn: LoggedTurn | None) -> Outcome:
    """The outcome of a turn whose checkpoints were not looked at."""
    return "edit" if turn is None else turn.state


def end_words(ending: Ending, turn: LoggedTurn | None, *, newer: int, is_last: bool, error: str) -> str:
    """What to say behind the last step of a turn; empty where it simply ended.

    Args:
        ending: How it ended.
        turn: Its log, if there is one.
        newer: The token of the turn after it, or 0.
        is_last: Whether nothing came after it.
        error: What was raised, or empty.
    """
    cause = turn.cause if turn is not None else None
    outcome = ending.left
    if outcome == "interrupted":
        return "process died"
    if outcome == "superseded":
        return f"taken over by turn {newer}" if newer else "taken over"
    if outcome == "failed":
        return error or "error"
    if outcome == "cancelled":
        return {"user": "stopped by the user", "limit": "limit reached"}.get(cause or "", "cancelled")
    if outcome == "paused":
        return "waits for a person" if is_last else "waited for a person"
    if outcome == "unfinished":
        return "no end known" if is_last and ending.left_as is None else "work left behind"
    return ""


def refused_words(kinds: Sequence[str], ending: Ending, *, newer: int) -> str:
    """What a turn tried to write when it was over; empty if nothing.

    Args:
        kinds: Operations of the saver.
        ending: How it ended; that of one that was superseded names already who took over.
        newer: The token of the turn after it, or 0.
    """
    if not kinds:
        return ""
    what = "refused: " + " and ".join(sorted({_KINDS.get(kind, "a write") for kind in kinds}))
    return what if ending.outcome == "superseded" or not newer else f"{what}, after turn {newer} took over"
