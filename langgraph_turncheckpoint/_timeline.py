"""What a picture of a thread says: turns, super-steps and tool calls, put together from what was read of the store. Pure
data and decisions; nothing is read here, and nothing is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from ._turn import LoggedTurn

#: What became of a tool call in a turn. "kept": an earlier turn's result was used, and the tool did not run again.
CallResult = Literal["ok", "error", "unknown", "not run", "paused", "running", "kept", "told"]
#: How a turn ended, as far as it is known. "cut off" and "open" are plain runs that have left work behind, with and
#: without a newer turn after them.
Outcome = Literal[
    "completed", "failed", "cancelled", "superseded", "crashed", "paused", "running", "cut off", "open", "edit"
]
StepKind = Literal["input", "nodes", "update"]

#: Nodes of LangGraph's own, which are no work of anybody's.
_OWN_NODES: Final = frozenset({"__input__", "__start__", "__interrupt__"})


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
        turn: The turn that a guard's answer is about, or 0.
        text: What it says.
    """

    call_id: str
    is_error: bool = False
    outcome: str = ""
    turn: int = 0
    text: str = ""


class SeenTask(NamedTuple):
    """What one task wrote on a checkpoint.

    Attributes:
        token: The turn that wrote it.
        calls: Tool calls in its messages.
        answers: Answers in its messages.
        prompt: What a person says in them.
        error: What it raised, or empty.
        is_paused: Whether it waits for a person.
    """

    token: int
    calls: tuple[SeenCall, ...] = ()
    answers: tuple[SeenAnswer, ...] = ()
    prompt: str = ""
    error: str = ""
    is_paused: bool = False


class SeenCheckpoint(NamedTuple):
    """A checkpoint of the root namespace.

    Attributes:
        checkpoint_id: Its id.
        parent_id: Its parent's, or empty.
        token: The turn that wrote it; 0 outside any turn.
        at: When, in seconds since 1970.
        source: LangGraph's word for what made it: "input", "loop", "update" or "fork".
        ran: The nodes that made it.
        pending: The nodes that are to run next.
        tasks: What was written on it.
        inner: How many checkpoints of subgraphs came between its parent and it.
    """

    checkpoint_id: str
    parent_id: str
    token: int
    at: float
    source: str
    ran: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    tasks: tuple[SeenTask, ...] = ()
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of a thread.

    Attributes:
        thread_id: Its id.
        turns: The turns in its log, newest first.
        checkpoints: The checkpoints of the newest turns, oldest first.
        journals: By turn and id of a call, what its journal says of it.
        is_closed: Whether new turns are refused.
        damaged: What could not be read, a sentence each.
    """

    thread_id: str
    turns: Sequence[LoggedTurn] = ()
    checkpoints: Sequence[SeenCheckpoint] = ()
    journals: Mapping[int, Mapping[str, CallResult]] = field(default_factory=dict)
    is_closed: bool = False
    damaged: Sequence[str] = ()


# --- what is shown ---


class Call(NamedTuple):
    """A tool call in a super-step; `note` says in words what became of it, `detail` what was said."""

    name: str
    result: CallResult
    note: str
    detail: str = ""


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
    """

    kind: StepKind
    names: tuple[str, ...]
    seconds: float | None
    calls: tuple[Call, ...] = ()
    is_finished: bool = True
    at: float | None = None
    checkpoint_id: str = ""
    inner: int = 0


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
        continues: The turn that it continues, or 0.
        takes_over: The turn that it fenced out, or 0.
        lane: The branch of the history that it is on.
        forks_from: If it begins a branch, the position of the band that it leaves, or -1 for one that is not shown.
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


class Folded(NamedTuple):
    """Earlier turns that are not shown one by one: how many, how often each outcome, and when they began."""

    count: int
    outcomes: tuple[tuple[str, int], ...]
    first_at: float
    last_at: float


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


# --- from one to the other ---

_OUTCOME_NOTES: Final[Mapping[str, tuple[CallResult, str]]] = {
    "recorded": ("ok", "it had returned a result"),
    "unknown": ("unknown", "it had started and left no result; it may have taken effect"),
    "not_run": ("not run", "it had not started"),
    "superseded": ("not run", "it waited for a person's decision, which never came"),
    "failed": ("error", "it raised an error"),
    "invalid": ("not run", "its arguments could not be read"),
    "answered_by_person": ("unknown", "it had started and left no result; a person settled it"),
}
_RESULT_NOTES: Final[Mapping[CallResult, str]] = {
    "ok": "it returned a result",
    "error": "it raised an error",
    "unknown": "it may have started and has left no result; it may have taken effect",
    "not run": "it was not run",
    "paused": "it waits for a person",
    "running": "it has no result yet",
}
_CAUSES: Final = {
    "restart": "its process died",
    "user": "a user stopped it",
    "superseded": "a newer turn took over",
    "limit": "it reached its limit",
    "error": "it raised an error",
}


def tell(seen: Seen, *, turns: int) -> ThreadStory:
    """The story of a thread.

    Args:
        seen: What was read; the checkpoints of at least the newest `turns` turns.
        turns: How many of the newest turns to show one by one.
    """
    return _Teller(seen).tell(turns)


class _Work(NamedTuple):
    """A checkpoint as the ground on which a turn works."""

    checkpoint: SeenCheckpoint
    open: tuple[SeenCall, ...]


class _Teller:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._by_id = {found.checkpoint_id: found for found in seen.checkpoints}
        self._open: dict[str, tuple[SeenCall, ...]] = {}
        for found in seen.checkpoints:  # parents come before their children
            self._open[found.checkpoint_id] = self._open_calls(found)
        #: By id of a call and the turn it was cut off in, what a guard has told of it.
        self._told = {
            (answer.call_id, answer.turn): answer
            for found in seen.checkpoints
            for task in found.tasks
            for answer in task.answers
            if answer.outcome
        }

    def _open_calls(self, found: SeenCheckpoint) -> tuple[SeenCall, ...]:
        """The calls that nobody had answered when a checkpoint was made."""
        parent = self._by_id.get(found.parent_id)
        if parent is None:
            return ()
        asked = dict.fromkeys(self._open.get(found.parent_id, ()))
        for task in parent.tasks:
            asked.update(dict.fromkeys(task.calls))
        answered = {answer.call_id for task in parent.tasks for answer in task.answers}
        return tuple(call for call in asked if call.call_id not in answered)

    def tell(self, limit: int) -> ThreadStory:
        seen = self._seen
        logged = {turn.opened.token: turn for turn in seen.turns}
        runs = self._runs(logged)
        first = max(0, len(runs) - limit)
        shown, earlier = runs[first:], runs[:first]
        bands = tuple(self._band(token, found, logged, runs) for token, found in shown)
        return ThreadStory(
            thread_id=seen.thread_id,
            bands=_on_lanes(bands, [found for _, found in shown]),
            folded=self._fold(earlier, logged) if earlier else None,
            is_closed=seen.is_closed,
            damaged=tuple(seen.damaged),
        )

    def _runs(self, logged: Mapping[int, LoggedTurn]) -> list[tuple[int, list[SeenCheckpoint]]]:
        """Turns with their checkpoints, oldest first; an edit outside any turn stands by itself."""
        written: dict[int, list[SeenCheckpoint]] = {token: [] for token in logged}
        edits: list[tuple[float, list[SeenCheckpoint]]] = []
        newest_turn = 0
        for found in self._seen.checkpoints:
            if found.token:
                newest_turn = found.token
                written.setdefault(found.token, []).append(found)
            elif edits and edits[-1][1][-1].checkpoint_id == found.parent_id and edits[-1][0] == newest_turn + 0.5:
                edits[-1][1].append(found)
            else:
                edits.append((newest_turn + 0.5, [found]))
        ordered = sorted([*written.items(), *edits], key=lambda entry: entry[0])  # sorting is stable
        return [(token if isinstance(token, int) else 0, found) for token, found in ordered]

    def _fold(
        self, earlier: Sequence[tuple[int, list[SeenCheckpoint]]], logged: Mapping[int, LoggedTurn]
    ) -> Folded:
        outcomes = Counter(_plain_outcome(logged.get(token)) for token, _ in earlier)
        times = [t for token, found in earlier if (t := _began(logged.get(token), found)) is not None]
        common = tuple(sorted(outcomes.items(), key=lambda entry: (-entry[1], entry[0])))
        return Folded(len(earlier), common, min(times, default=0.0), max(times, default=0.0))

    # --- a turn ---

    def _band(
        self,
        token: int,
        found: list[SeenCheckpoint],
        logged: Mapping[int, LoggedTurn],
        runs: Sequence[tuple[int, list[SeenCheckpoint]]],
    ) -> TurnBand:
        turn = logged.get(token)
        opened_at = _began(turn, found) or 0.0
        steps = [step for one in found if (step := self._step(one, opened_at)) is not None]
        rest = self._last_ground(token, found, turn)
        left = None if rest is None else self._unfinished(rest, token, turn)
        newer = next((other for other, _ in runs if other > token), 0) if token else 0
        outcome, reason = _outcome(turn, rest if found else None, left, has_newer=bool(newer), is_edit=not token)
        if left is not None and outcome != "completed":
            steps.append(left)
        tasks = [task for one in ([rest.checkpoint] if rest else []) for task in one.tasks if task.token == token]
        error = next((task.error for task in tasks if task.error), "")
        before = max((other for other in logged if other < token), default=0)
        ended_at = _ended(turn, found)
        return TurnBand(
            token=token,
            outcome=outcome,
            reason=reason,
            opened_at=opened_at,
            seconds=None if ended_at is None or not token else max(0.0, ended_at - opened_at),
            steps=tuple(steps),
            prompt=next((task.prompt for one in found for task in one.tasks if task.token == token and task.prompt), ""),
            end=_end_words(outcome, turn, newer, error),
            continues=turn.opened.continues if turn else 0,
            takes_over=before if token and before and _is_superseded(logged[before]) else 0,
        )

    def _step(self, made: SeenCheckpoint, opened_at: float) -> Step | None:
        """What made a checkpoint."""
        if made.source == "input":
            calls = self._calls(made, made.token, is_finished=True)
            return Step("input", ("input",), None, calls, at=made.at, checkpoint_id=made.checkpoint_id)
        names = tuple(name for name in made.ran if name not in _OWN_NODES)
        parent = self._by_id.get(made.parent_id)
        calls = () if parent is None else self._calls(parent, made.token, is_finished=True)
        if made.source == "loop":
            if not names:
                return None  # LangGraph has taken the input in
            began = parent.at if parent is not None and parent.token == made.token else opened_at
            seconds = max(0.0, made.at - began)
            kind: StepKind = "nodes"
        else:
            names, seconds, kind = ("fork" if made.source == "fork" else "update",), None, "update"
        return Step(kind, names, seconds, calls, at=made.at, checkpoint_id=made.checkpoint_id, inner=made.inner)

    def _last_ground(self, token: int, found: list[SeenCheckpoint], turn: LoggedTurn | None) -> _Work | None:
        """The checkpoint on which a turn worked last, and may have left something unfinished."""
        if found:
            last = found[-1]
        else:
            before = [one for one in self._seen.checkpoints if one.token < token]
            start = turn.opened.start if turn is not None else None
            ground = self._by_id.get(start or "") or (before[-1] if before else None)
            if ground is None:
                return None
            last = ground
        return _Work(last, self._open[last.checkpoint_id])

    def _unfinished(self, ground: _Work, token: int, turn: LoggedTurn | None) -> Step | None:
        """The super-step that a turn had begun and whose checkpoint it did not write."""
        found = ground.checkpoint
        own = [task for task in found.tasks if task.token == token]
        names = tuple(name for name in found.pending if name not in _OWN_NODES)
        if found.token != token and not own and token not in self._seen.journals:
            return None  # it has not come so far
        if not names and not own:
            return None
        if found.source == "input" and not names:
            return None
        is_live = turn is not None and turn.state == "running"
        calls = self._calls(found, token, is_finished=False, is_live=is_live)
        after = next((one for one in self._seen.checkpoints if one.parent_id == found.checkpoint_id), None)
        if after is not None and after.source == "loop":
            names = tuple(name for name in after.ran if name not in _OWN_NODES) or names
        if not names and not calls and not any(task.error or task.is_paused for task in own):
            return None
        return Step("nodes", names or ("next step",), None, calls, is_finished=False)

    # --- calls ---

    def _calls(
        self, ground: SeenCheckpoint, token: int, *, is_finished: bool, is_live: bool = False
    ) -> tuple[Call, ...]:
        answers: dict[str, tuple[int, SeenAnswer]] = {}
        for task in ground.tasks:
            for answer in task.answers:
                answers.setdefault(answer.call_id, (task.token, answer))
        paused = any(task.is_paused for task in ground.tasks if task.token == token)
        asked = self._open[ground.checkpoint_id]
        return tuple(
            call
            for one in asked
            if (call := self._call(one, answers.get(one.call_id), token, (is_finished, is_live, paused))) is not None
        )

    def _call(
        self, call: SeenCall, given: tuple[int, SeenAnswer] | None, token: int, how: tuple[bool, bool, bool]
    ) -> Call | None:
        is_finished, is_live, is_paused = how
        by, answer = given or (0, None)
        detail = " ".join(part for part in (call.args, answer.text if answer else "") if part)
        if answer is not None and by == token:
            if not answer.outcome:
                result: CallResult = "error" if answer.is_error else "ok"
                return Call(call.name, result, _RESULT_NOTES[result], detail)
            _, note = _OUTCOME_NOTES.get(answer.outcome, ("unknown", answer.outcome))
            about = f"turn {answer.turn}" if answer.turn not in (0, token) else "the turn"
            if answer.turn != token:
                return Call(call.name, "told", f"the model is told what is known of {about}: {note}", detail)
            result, note = _OUTCOME_NOTES.get(answer.outcome, ("unknown", note))
            return Call(call.name, result, note, detail)
        if answer is not None and by < token:
            return Call(call.name, "kept", f"the result of turn {by} was used; it did not run again", detail)
        if is_finished:
            return None
        known = self._seen.journals.get(token, {}).get(call.call_id)
        if known is not None:
            if known == "unknown" and is_live:
                return Call(call.name, "running", "it has started", call.args)
            return Call(call.name, known, f"{_RESULT_NOTES[known]}, says the journal", call.args)
        told = self._told.get((call.call_id, token))
        if told is not None:
            result, note = _OUTCOME_NOTES.get(told.outcome, ("unknown", told.outcome))
            return Call(call.name, result, note, call.args)
        result = "running" if is_live else "paused" if is_paused else "unknown"
        note = _RESULT_NOTES[result]
        if answer is not None and not answer.outcome:
            note += f"; turn {by} has its result"
        return Call(call.name, result, note, call.args)


# --- ends ---


def _began(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint]) -> float | None:
    if turn is not None:
        return turn.opened.at_ns / 1e9
    return found[0].at if found else None


def _ended(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint]) -> float | None:
    if turn is not None and turn.settled_at_ns is not None:
        return turn.settled_at_ns / 1e9
    return found[-1].at if found else None


def _is_superseded(turn: LoggedTurn) -> bool:
    return turn.state == "superseded"


def _plain_outcome(turn: LoggedTurn | None) -> str:
    """The outcome of a turn whose checkpoints were not looked at."""
    if turn is None:
        return "edit"
    return {"interrupted": "crashed", "unknown": "plain"}.get(turn.state, turn.state)


def _outcome(
    turn: LoggedTurn | None, rest: _Work | None, left: Step | None, *, has_newer: bool, is_edit: bool
) -> tuple[Outcome, str]:
    if is_edit:
        return "edit", "written outside any turn, as update_state does"
    if turn is not None and turn.state != "unknown":
        cause = _CAUSES.get(turn.cause or "", "")
        if turn.state == "interrupted":
            return "crashed", "its process died before it ended"
        return turn.state, f"it ended as {turn.state}" + (f": {cause}" if cause else "")
    announced = "a plain run announces no end"
    tasks = [] if rest is None else [task for task in rest.checkpoint.tasks if turn is None or task.token in _own(turn)]
    if any(task.error for task in tasks):
        return "failed", f"{announced}, but an error is recorded on its last checkpoint"
    if any(task.is_paused for task in tasks):
        return "paused", f"{announced}, but its last checkpoint waits for a person"
    if rest is not None and not rest.checkpoint.pending:
        return "completed", f"{announced}, but its last checkpoint has nothing left to do"
    if has_newer:
        return "cut off", f"{announced}; it has left work behind, and a newer turn came"
    return "open", f"{announced}; it has left work behind, or is still running"


def _own(turn: LoggedTurn) -> tuple[int]:
    return (turn.opened.token,)


def _end_words(outcome: Outcome, turn: LoggedTurn | None, newer: int, error: str) -> str:
    cause = turn.cause if turn is not None else None
    if outcome == "crashed":
        return "process died"
    if outcome == "superseded":
        return f"taken over by turn {newer}" if newer else "taken over"
    if outcome == "failed":
        return error or "error"
    if outcome == "cancelled":
        return {"user": "stopped by the user", "limit": "limit reached"}.get(cause or "", "cancelled")
    return {"paused": "waits for a person", "cut off": "work left behind", "open": "no end known"}.get(outcome, "")


def _on_lanes(bands: tuple[TurnBand, ...], written: Sequence[Sequence[SeenCheckpoint]]) -> tuple[TurnBand, ...]:
    """The bands with their branches: one that does not build on the tip of any branch begins one."""
    tips: dict[str, int] = {}
    owner: dict[str, int] = {}
    lanes = latest = 0
    placed = []
    for position, (band, found) in enumerate(zip(bands, written, strict=True)):
        lane, forks_from = latest, None
        if found:
            parent = found[0].parent_id
            if parent in tips:
                lane = tips.pop(parent)
            elif tips:
                lanes += 1
                lane, forks_from = lanes, owner.get(parent, -1)
            tips[found[-1].checkpoint_id] = latest = lane
            owner.update((one.checkpoint_id, position) for one in found)
        placed.append(band._replace(lane=lane, forks_from=forks_from))
    return tuple(placed)


def calls_of(story: ThreadStory) -> Iterator[Call]:
    """Every tool call that is shown."""
    for band in story.bands:
        for step in band.steps:
            yield from step.calls
