"""What an unanswered tool call gets, decided from what is known of it, and the words for it. Decisions and
texts only; no message class, no file, no clock.

Two tables: `decide` for a new message that arrives instead of the run going on, `decide_resume` for a run that
goes on.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, cast

from ._turn import Cause, TurnState

Outcome = Literal["recorded", "unknown", "not_run", "superseded", "failed", "invalid", "answered_by_person"]
#: Why a turn ended; where no cause of that is known, how it ended.
Reason = Cause | Literal["cancelled", "paused"]
Policy = Literal["report", "rerun", "ask"]
Resume = Literal["give", "run", "report", "ask"]

OUTCOMES: Final[tuple[Outcome, ...]] = (
    "recorded",
    "unknown",
    "not_run",
    "superseded",
    "failed",
    "invalid",
    "answered_by_person",
)
POLICIES: Final[tuple[Policy, ...]] = ("report", "rerun", "ask")

#: Longest text of `wording`, in characters.
WORDING_LIMIT: Final = 400
_NAME_LIMIT: Final = 80
_ERROR_LIMIT: Final = 120


class Facts(NamedTuple):
    """What is known of one tool call. Later events undo earlier ones: whoever folds a journal into this clears
    `error` and `paused` when the tool starts again.

    Attributes:
        result: Its result is recorded.
        started: It started at least once.
        error: What it raised, if that is the last that is known of it; `None` if it did not raise.
        paused: It waits for a person, and has not started again since.
        known: A journal covers the call, so silence means that it never started.
    """

    result: bool = False
    started: bool = False
    error: str | None = None
    paused: bool = False
    known: bool = False


def decide(facts: Facts, *, cause: Reason, invalid: bool = False, is_overtaken: bool = True) -> tuple[Outcome, Reason]:
    """What is true of a call that is closed instead of its run going on.

    Args:
        facts: What is known of the call.
        cause: Why its turn ended.
        invalid: Its arguments could not be parsed.
        is_overtaken: Whether something newer comes, a message as a rule; not where a thread is put in order by hand.

    Returns:
        The outcome, and the cause to name with it: a call that raised or could not be parsed ended by that,
        and one that waited for a person by what is newer, if anything is, however its turn ended.
    """
    if facts.result:
        return "recorded", cause
    if facts.error is not None:
        return "failed", "error"
    if facts.paused:
        return "superseded", passed_over_by(cause, is_overtaken=is_overtaken)
    if facts.started:
        return "unknown", cause
    if invalid:
        return "invalid", "error"
    return ("not_run" if facts.known else "unknown"), cause


def passed_over_by(cause: Reason, *, is_overtaken: bool) -> Reason:
    """The cause to name for a call that waited for a person; see `decide`."""
    return "superseded" if is_overtaken else cause


def decide_resume(facts: Facts, policy: Policy) -> Resume:
    """What happens to a call when its run goes on.

    Returns:
        "give" the recorded result, "run" the tool, "report" that the outcome is unknown, or "ask" a person.
        The policy matters only where the tool had started and left neither result nor error.
    """
    if facts.result:
        return "give"
    if facts.error is not None or facts.paused or not facts.started:
        return "run"
    return "run" if policy == "rerun" else policy


def reason_of(state: TurnState, cause: Cause | None) -> Reason:
    """Why a turn ended, as far as that is known."""
    if cause in {None, "unknown"} and state in {"cancelled", "paused"}:
        return "cancelled" if state == "cancelled" else "paused"
    return cause or "unknown"


def cause_in(reason: Reason) -> Cause:
    """The cause in a reason, for programs."""
    return "unknown" if reason in {"cancelled", "paused"} else cast(Cause, reason)


_BECAUSE: Final[dict[Reason, str]] = {
    "restart": "the process running it ended and was restarted",
    "user": "the user stopped the run",
    "superseded": "something newer took over the conversation",
    "limit": "the run reached its limit",
    "error": "the run ended with an error",
    "cancelled": "the run was stopped from outside",
    "paused": "the run was paused and did not go on",
    "unknown": "the run ended for a reason that was not recorded",
}

_WORDING: Final[dict[Outcome, str]] = {
    "recorded": (
        "The call to `{name}` returned a result, but the result itself was not kept: {because}. "
        "Check what the call changed before making it again."
    ),
    "unknown": (
        "The call to `{name}` was interrupted and left no result: {because}. Its outcome is unknown: it may have "
        "taken effect, fully or in part. Check the current state before trying again."
    ),
    "not_run": (
        "The call to `{name}` was not run: it had not started when {because}. It changed nothing. "
        "Make the call again if it is still needed."
    ),
    "superseded": (
        "The call to `{name}` was not run any further: the run waited for a person's decision that was never given"
        "{and_then}. Make the call again if it is still wanted."
    ),
    "failed": (
        "The call to `{name}` failed{error}. It may have taken effect in part. "
        "Check the current state before trying again.{then}"
    ),
    "invalid": (
        "The call to `{name}` was not run: its arguments could not be read. "
        "Make the call again with complete, valid arguments if it is still needed.{then}"
    ),
    "answered_by_person": (
        "The call to `{name}` was interrupted: {because}. A person was asked and settled it without another try; "
        "whether it took effect is known only from what they say. Check the current state before trying again."
    ),
}

_MARKERS: Final[dict[Reason, str]] = {
    "restart": "[The reply above was cut off: the process writing it ended and was restarted.]",
    "user": "[The reply above was cut off: the user stopped it.]",
    "superseded": "[The reply above was cut off: something newer took over.]",
    "limit": "[The reply above was cut off: the run reached its limit.]",
    "error": "[The reply above was cut off by an error.]",
    "cancelled": "[The reply above was cut off: the run was stopped from outside.]",
    "paused": "[The reply above was cut off: the run was paused and did not go on.]",
    "unknown": "[The reply above was cut off; the reason was not recorded.]",
}


def wording(outcome: Outcome, cause: Reason, tool_name: str, *, error: str = "") -> str:
    """The text of an answer that a tool did not give: what was attempted, what is known, what to check.

    It names the tool, claims no more than `outcome` and `cause` say, and has fewer than `WORDING_LIMIT`
    characters; a long `error` is shortened.
    """
    because = _BECAUSE[cause]
    reason = shorten(error, _ERROR_LIMIT)
    return _WORDING[outcome].format(
        name=shorten(tool_name, _NAME_LIMIT),
        because=because,
        error=f": {reason.rstrip('.')}" if reason else " with an error",
        then="" if cause == "error" else f" Afterwards {because}.",
        # Waiting is no end, so that nothing is known of one is not worth a word.
        and_then="" if cause in {"unknown", "paused"} else f", and {because}",
    )


def marker_text(cause: Reason) -> str:
    """The note behind a reply that was cut off."""
    return _MARKERS[cause]


def shorten(text: str, limit: int) -> str:
    """`text` on one line, at most `limit` characters long."""
    line = " ".join(text[: 8 * limit].split())
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."
