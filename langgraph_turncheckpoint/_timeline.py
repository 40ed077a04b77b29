"""From what was read of a thread to what a picture of it says: which turn did what, how it ended, what became of each
tool call. Decisions only; nothing is read here, and nothing is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ._story import (
    Call,
    CallResult,
    Folded,
    Outcome,
    Seen,
    SeenAnswer,
    SeenCall,
    SeenCheckpoint,
    SeenTask,
    Step,
    StepKind,
    ThreadStory,
    TurnBand,
)
from ._turn import LoggedTurn

#: Nodes of LangGraph's own, which are no work of anybody's.
_OWN_NODES: Final = frozenset({"__input__", "__start__", "__interrupt__"})


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
        #: By id of a call, what guards have told of it, and in which turns; oldest first.
        self._told: dict[str, list[tuple[int, SeenAnswer]]] = {}
        for found in seen.checkpoints:
            for task in found.tasks:
                for answer in task.answers:
                    if answer.outcome:
                        self._told.setdefault(answer.call_id, []).append((task.token, answer))

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

    def _fold(self, earlier: Sequence[tuple[int, list[SeenCheckpoint]]], logged: Mapping[int, LoggedTurn]) -> Folded:
        outcomes = Counter(_plain_outcome(logged.get(token)) for token, _ in earlier)
        times = [t for token, found in earlier if (t := _began(logged.get(token), found)) is not None]
        common = tuple(sorted(outcomes.items(), key=lambda entry: (-entry[1], entry[0])))
        turns = sum(token > 0 for token, _ in earlier)
        return Folded(turns, common, min(times, default=0.0), max(times, default=0.0))

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
        outcome, reason = _outcome(turn, rest if found else None, has_newer=bool(newer), is_edit=not token)
        if left is not None and outcome != "completed":
            steps.append(left)
        tasks = [task for one in ([rest.checkpoint] if rest else []) for task in one.tasks if task.token == token]
        error = next((task.error for task in tasks if task.error), "")
        before = max((other for other in logged if other < token), default=0)
        ended_at = _ended(turn, found, outcome)
        return TurnBand(
            token=token,
            outcome=outcome,
            reason=reason,
            opened_at=opened_at,
            seconds=None if ended_at is None or not token else max(0.0, ended_at - opened_at),
            steps=tuple(_merged(steps)),
            prompt=_prompt(token, found),
            end=_end_words(outcome, turn, newer, error),
            continues=turn.opened.continues if turn else 0,
            takes_over=before if token and before and logged[before].state == "superseded" else 0,
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
            if made.gathered is not None:
                calls = _gathered_calls(made.gathered)
            kind: StepKind = "nodes"
        else:
            names, seconds, kind = ("fork" if made.source == "fork" else "update",), None, "update"
        return Step(
            kind,
            names,
            seconds,
            calls,
            at=made.at,
            checkpoint_id=made.checkpoint_id,
            inner=made.inner,
            is_several=made.gathered is not None,
        )

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
            return Call(call.name, "told", f"it did not run; the model is told what is known of it: {note}", detail)
        if answer is not None and by < token:
            return Call(call.name, "kept", f"the result of turn {by} was used; it did not run again", detail)
        if is_finished:
            return None
        known = self._seen.journals.get(token, {}).get(call.call_id)
        if known is not None:
            if known == "unknown" and is_live:
                return Call(call.name, "running", "it has started", call.args)
            return Call(call.name, known, f"{_RESULT_NOTES[known]}, says the journal", call.args)
        told = next((answer for by, answer in self._told.get(call.call_id, ()) if by > token), None)
        if told is not None and not (is_live or is_paused):
            result, note = _OUTCOME_NOTES.get(told.outcome, ("unknown", told.outcome))
            return Call(call.name, result, note, call.args)
        result = "running" if is_live else "paused" if is_paused else "unknown"
        note = _RESULT_NOTES[result]
        if answer is not None and not answer.outcome:
            note += f"; turn {by} has its result"
        return Call(call.name, result, note, call.args)


def _prompt(token: int, found: Sequence[SeenCheckpoint]) -> str:
    """What a turn was asked first."""
    said = [task for one in found for task in (*one.tasks, one.gathered) if task is not None and task.token == token]
    return next((task.prompt for task in said if task.prompt), "")


def _gathered_calls(said: SeenTask) -> tuple[Call, ...]:
    """The calls of several super-steps that were stored as one."""
    answers = {answer.call_id: answer for answer in said.answers}
    calls = []
    for call in said.calls:
        answer = answers.get(call.call_id)
        if answer is None:
            calls.append(Call(call.name, "unknown", "there is no answer to it", call.args))
        else:
            result: CallResult = "error" if answer.is_error else "ok"
            calls.append(Call(call.name, result, _RESULT_NOTES[result], f"{call.args} {answer.text}".strip()))
    return tuple(calls)


def _merged(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps; updates in a row that give calls their answers are one repair."""
    repair: Step | None = None
    for step in steps:
        if step.kind == "update" and step.calls:
            calls = (*(repair.calls if repair is not None else ()), *step.calls)
            repair = step._replace(names=("repair",), calls=calls)
            continue
        if repair is not None:
            yield repair
            repair = None
        yield step
    if repair is not None:
        yield repair


# --- ends ---


def _began(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint]) -> float | None:
    if turn is not None:
        return turn.opened.at_ns / 1e9
    return found[0].at if found else None


def _ended(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint], outcome: Outcome) -> float | None:
    if turn is not None and turn.settled_at_ns is not None:
        return turn.settled_at_ns / 1e9
    return found[-1].at if found and outcome == "completed" else None


def _plain_outcome(turn: LoggedTurn | None) -> str:
    """The outcome of a turn whose checkpoints were not looked at."""
    if turn is None:
        return "edit"
    return {"interrupted": "crashed", "unknown": "plain"}.get(turn.state, turn.state)


def _outcome(turn: LoggedTurn | None, rest: _Work | None, *, has_newer: bool, is_edit: bool) -> tuple[Outcome, str]:
    """How a turn ended, and how that is known."""
    if is_edit:
        return "edit", "written outside any turn, as update_state does"
    if turn is None or turn.state == "unknown":
        return _guessed(turn, rest, has_newer=has_newer)
    cause = _CAUSES.get(turn.cause or "", "")
    if turn.state == "interrupted":
        return "crashed", "its process died before it ended"
    if turn.state == "superseded":
        return "superseded", f"{cause or _CAUSES['superseded']}; what it tried to write afterwards was refused"
    return turn.state, f"it ended as {turn.state}" + (f": {cause}" if cause else "")


def _guessed(turn: LoggedTurn | None, rest: _Work | None, *, has_newer: bool) -> tuple[Outcome, str]:
    """How a plain run ended, as far as its last checkpoint tells."""
    announced = "a plain run announces no end"
    tasks = (
        []
        if rest is None
        else [task for task in rest.checkpoint.tasks if turn is None or task.token == turn.opened.token]
    )
    if any(task.error for task in tasks):
        return "failed", f"{announced}, but an error is recorded on its last checkpoint"
    if any(task.is_paused for task in tasks):
        return "paused", f"{announced}, but its last checkpoint waits for a person"
    if rest is not None and not rest.checkpoint.pending:
        return "completed", f"{announced}, but its last checkpoint has nothing left to do"
    if has_newer:
        return "cut off", f"{announced}; it has left work behind, and a newer turn came"
    return "open", f"{announced}; it has left work behind, or is still running"


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
    if outcome == "paused":
        return "waited for a person" if newer else "waits for a person"
    return {"cut off": "work left behind", "open": "no end known"}.get(outcome, "")


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
