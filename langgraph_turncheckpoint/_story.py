"""What a picture of a thread is made of: what was read of the store, and what is shown of it. Data only; how one
comes from the other is decided in `_timeline`. `facts_of` spells it out for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple, TypeAlias

from ._turn import LoggedTurn, TurnState

#: What became of a tool call in a turn. "kept": an earlier turn's result was used, and the tool did not run again.
#: "told": it did not run either, and the model is told what is known of it.
CallResult = Literal["ok", "error", "unknown", "not run", "paused", "running", "kept", "told"]
#: How a turn ended, as far as it is known; "edit" is no turn, but what was written outside any.
Outcome: TypeAlias = TurnState | Literal["edit"]
StepKind = Literal["input", "nodes", "update"]

# --- what was read ---


class SeenCall(NamedTuple):
    """A tool call that a model asked for."""

    call_id: str
    name: str
    args: str = ""


class SeenAnswer(NamedTuple):
    """An answer to a tool call.

    Attributes:
        call_id: The call.
        is_error: Whether it says that something went wrong.
        outcome: What a guard knew, if it gave the answer; empty if the tool did.
        text: What it says.
        is_given: Whether it came with a whole history that was put in order, and not from a tool.
    """

    call_id: str
    is_error: bool = False
    outcome: str = ""
    text: str = ""
    is_given: bool = False


class SeenTask(NamedTuple):
    """What one task wrote on a checkpoint.

    Attributes:
        token: The turn that wrote it.
        calls: Tool calls in its messages.
        answers: Answers in its messages.
        prompt: What a person says in them.
        error: What it raised, or empty.
        is_paused: Whether it asked a person.
        at: When it was stored, in seconds since 1970; `None` if that is not known.
    """

    token: int
    calls: tuple[SeenCall, ...] = ()
    answers: tuple[SeenAnswer, ...] = ()
    prompt: str = ""
    error: str = ""
    is_paused: bool = False
    at: float | None = None


class SeenCheckpoint(NamedTuple):
    """A checkpoint of the root namespace.

    Attributes:
        checkpoint_id: Its id.
        parent_id: Its parent's, or empty.
        token: The turn that wrote it; 0 outside any turn.
        at: When, in seconds since 1970.
        source: LangGraph's word for what made it: "input", "loop", "update" or "fork".
        ran: The nodes that made it.
        pending: The nodes that are to run next, unless the turn that wrote it went on itself.
        end: How that turn, or a part of it, ended if this is the last that it wrote; "unknown" if that was not asked.
        tasks: What was written on it.
        inner: How many checkpoints of subgraphs came between its parent and it.
        gathered: Where several super-steps were stored as one, what they said: `durability="exit"` does that.
    """

    checkpoint_id: str
    parent_id: str
    token: int
    at: float
    source: str
    ran: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    end: TurnState = "unknown"
    tasks: tuple[SeenTask, ...] = ()
    inner: int = 0
    gathered: SeenTask | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of a thread.

    Attributes:
        thread_id: Its id.
        turns: The turns in its log, newest first.
        checkpoints: The checkpoints of the newest turns, oldest first.
        ends: How those turns ended of which nobody announced it, as far as what they wrote last tells.
        journals: By turn and id of a call, what its journal says of it.
        is_closed: Whether new turns are refused.
        damaged: What could not be read, a sentence each.
    """

    thread_id: str
    turns: Sequence[LoggedTurn] = ()
    checkpoints: Sequence[SeenCheckpoint] = ()
    ends: Mapping[int, TurnState] = field(default_factory=dict)
    journals: Mapping[int, Mapping[str, CallResult]] = field(default_factory=dict)
    is_closed: bool = False
    damaged: Sequence[str] = ()


# --- what is shown ---


class Call(NamedTuple):
    """A tool call in a super-step.

    Attributes:
        name: The tool.
        result: What became of it.
        note: The same in words.
        detail: What was said.
        seconds: From when its super-step could begin to when its result was stored; `None` if that is not known.
    """

    name: str
    result: CallResult
    note: str
    detail: str = ""
    seconds: float | None = None


class Step(NamedTuple):
    """A super-step, or what else made a checkpoint.

    Attributes:
        kind: What made it.
        names: The nodes that ran.
        seconds: How long it took, or `None` if that is not known.
        calls: The tool calls in it, in the order in which they were asked for.
        is_finished: Whether its checkpoint is there.
        at: When its checkpoint was made, in seconds since 1970.
        checkpoint_id: Its checkpoint, or empty.
        inner: How many checkpoints of subgraphs it made.
        is_several: Whether several super-steps were stored as this one.
    """

    kind: StepKind
    names: tuple[str, ...]
    seconds: float | None
    calls: tuple[Call, ...] = ()
    is_finished: bool = True
    at: float | None = None
    checkpoint_id: str = ""
    inner: int = 0
    is_several: bool = False


class TurnBand(NamedTuple):
    """A turn, or an edit outside any turn.

    Attributes:
        token: Its token; 0 outside any turn.
        outcome: How it ended.
        reason: How that is known, and why it ended, in words.
        opened_at: When it began, in seconds since 1970.
        seconds: How long it took, or `None` if that is not known.
        steps: What it did.
        prompt: What it was asked.
        end: What to say behind its last step; empty where it simply ended.
        continues: The turn on whose unfinished work it goes on, or 0.
        takes_over: The turn that it fenced out, or 0.
        lane: The branch of the history that it is on.
        forks_from: If it begins a branch, the position of the band that it leaves, or -1 for one that is not shown.
        left_as: Of what was imported, how its last run ended as far as its last checkpoint tells.
        refused: What it tried to write when it was over, in words; empty if nothing is known of the kind.
        part: Of what was imported in one turn, which of its runs this is, from 1 on; 0 if it is the whole turn.
        starts_over: Whether it begins a branch and builds on nothing.
    """

    token: int
    outcome: Outcome
    reason: str
    opened_at: float
    seconds: float | None
    steps: tuple[Step, ...]
    prompt: str = ""
    end: str = ""
    continues: int = 0
    takes_over: int = 0
    lane: int = 0
    forks_from: int | None = None
    left_as: TurnState | None = None
    refused: str = ""
    part: int = 0
    starts_over: bool = False


class Folded(NamedTuple):
    """What is not shown one by one: how many turns, how often each outcome, edits included, and when they began.

    `parts` are earlier runs of an imported turn of which later ones are shown.
    """

    turns: int
    outcomes: tuple[tuple[str, int], ...]
    first_at: float
    last_at: float
    parts: int = 0


@dataclass(frozen=True, slots=True)
class ThreadStory:
    """All that the picture of a thread says.

    Attributes:
        thread_id: Its id.
        bands: The newest turns, oldest first.
        folded: The turns before them.
        is_closed: Whether new turns are refused.
        damaged: What could not be read.
    """

    thread_id: str
    bands: tuple[TurnBand, ...] = ()
    folded: Folded | None = None
    is_closed: bool = False
    damaged: tuple[str, ...] = ()


def facts_of(story: ThreadStory) -> dict[str, Any]:
    """The story as data that JSON can carry; times in UTC, durations in seconds. See `Timeline.to_dict`."""
    folded = story.folded
    return {
        "thread_id": story.thread_id,
        "closed": story.is_closed,
        "turns": [_facts_of_band(band) for band in story.bands],
        "earlier": None
        if folded is None
        else {
            "turns": folded.turns,
            "parts": folded.parts,
            "states": dict(folded.outcomes),
            "first_at": _iso(folded.first_at),
            "last_at": _iso(folded.last_at),
        },
        "damaged": list(story.damaged),
    }


def _facts_of_band(band: TurnBand) -> dict[str, Any]:
    return {
        "token": band.token or None,
        "part": band.part or None,
        "state": band.outcome,
        "left_as": band.left_as,
        "reason": band.reason,
        "opened_at": _iso(band.opened_at),
        "seconds": band.seconds,
        "prompt": band.prompt,
        "end": band.end,
        "refused": band.refused,
        "continues": band.continues or None,
        "takes_over": band.takes_over or None,
        "branch": band.lane,
        "steps": [
            {
                "kind": step.kind,
                "nodes": list(step.names),
                "finished": step.is_finished,
                "seconds": step.seconds,
                "at": None if step.at is None else _iso(step.at),
                "checkpoint_id": step.checkpoint_id or None,
                "inner": step.inner,
                "calls": [call._asdict() for call in step.calls],
            }
            for step in band.steps
        ],
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(max(0.0, seconds), tz=timezone.utc).isoformat()
