"""From what was read of a thread to what a picture of it says: which turn did what, how it ended, what became of each
tool call. Decisions only; nothing is read here, and nothing is drawn.

How long a tool took that ran beside others is told by the time in its record of writes; a journal would know it of
guarded turns only, and is removed once what it records is in the history. Where a task gave several answers at once,
nobody knows how long each call took, and nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ._outcomes import end_words, ending_of, refused_words, unseen_outcome
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
from ._turn import LoggedTurn, call_mark

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
#: Times of writes are known to the millisecond.
_GRAIN: Final = 0.001
_RESULT_NOTES: Final[Mapping[CallResult, str]] = {
    "ok": "it returned a result",
    "error": "it raised an error",
    "unknown": "it may have started and has left no result; it may have taken effect",
    "not run": "it was not run",
    "paused": "it waits for a person",
    "running": "it has no result yet",
    "kept": "an earlier turn's result was used",
}


def tell(seen: Seen, *, turns: int) -> ThreadStory:
    """The story of a thread.

    Args:
        seen: What was read; the checkpoints of at least the newest `turns` turns.
        turns: How many of the newest turns to show one by one.
    """
    return _Teller(seen).tell(turns)


#: A turn with what it wrote; its token is 0 outside any turn.
_Run: TypeAlias = tuple[int, list[SeenCheckpoint]]


class _Work(NamedTuple):
    """A checkpoint as the ground on which a turn works."""

    checkpoint: SeenCheckpoint
    open: tuple[SeenCall, ...]


class _View(NamedTuple):
    """Which turn's view of a checkpoint's calls is told.

    Attributes:
        token: The turn.
        since: The turn that wrote the checkpoint.
        is_finished: Whether the checkpoint after it is there.
        is_live: Whether the turn is running.
        is_paused: Whether it waits for a person there.
    """

    token: int
    since: int
    is_finished: bool
    is_live: bool
    is_paused: bool


class _Teller:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._logged = {turn.opened.token: turn for turn in seen.turns}
        self._by_id = {found.checkpoint_id: found for found in seen.checkpoints}
        self._open: dict[str, tuple[SeenCall, ...]] = {}
        for found in seen.checkpoints:  # parents come before their children
            self._open[found.checkpoint_id] = self._open_calls(found)
        #: By id of a call, what guards have told of it, and in which turns; oldest first.
        self._told: dict[str, list[tuple[int, SeenAnswer]]] = {}
        for found in seen.checkpoints:
            open_calls = {call.call_id for call in self._open[found.checkpoint_id]}
            for task in found.tasks:
                for answer in task.answers:
                    is_first = answer.call_id in open_calls
                    open_calls.discard(answer.call_id)
                    if answer.outcome or (answer.is_given and is_first):
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
        logged = self._logged
        runs = self._runs(logged)
        first = max(0, len(runs) - limit)
        shown, earlier = runs[first:], runs[:first]
        bands = tuple(self._band(place, logged, runs) for place in range(first, len(runs)))
        return ThreadStory(
            thread_id=seen.thread_id,
            bands=_on_lanes(bands, [found for _, found in shown]),
            folded=self._fold(earlier, logged, {token for token, _ in shown if token}) if earlier else None,
            is_closed=seen.is_closed,
            damaged=tuple(seen.damaged),
        )

    def _runs(self, logged: Mapping[int, LoggedTurn]) -> list[tuple[int, list[SeenCheckpoint]]]:
        """Turns with their checkpoints, oldest first; an edit outside any turn stands by itself.

        What was imported in one turn is as many runs as it has inputs.
        """
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
        return [
            (token if isinstance(token, int) else 0, part)
            for token, found in ordered
            for part in (_parts(found) if _is_imported(logged.get(int(token))) and token else [found])
        ]

    def _fold(self, earlier: Sequence[_Run], logged: Mapping[int, LoggedTurn], shown: set[int]) -> Folded:
        hidden = dict.fromkeys(token for token, _ in earlier if token and token not in shown)
        edits = sum(not token for token, _ in earlier)
        outcomes = Counter(unseen_outcome(logged.get(token)) for token in hidden) + Counter(edit=edits)
        times = [t for token, found in earlier if (t := _began(logged.get(token), found)) is not None]
        common = tuple(sorted(outcomes.items(), key=lambda entry: (-entry[1], entry[0])))
        parts = sum(token in shown for token, _ in earlier)
        return Folded(len(hidden), common, min(times, default=0.0), max(times, default=0.0), parts)

    # --- a turn ---

    def _band(self, place: int, logged: Mapping[int, LoggedTurn], runs: Sequence[_Run]) -> TurnBand:
        token, found = runs[place]
        turn = logged.get(token)
        opened_at = _began(turn, found) or 0.0
        steps = [step for one in found if (step := self._step(one, opened_at)) is not None]
        rest = self._last_ground(token, found, turn)
        left = None if rest is None else self._unfinished(rest, token, turn)
        own = [task for task in (rest.checkpoint.tasks if rest else ()) if task.token == token]
        ending = ending_of(turn, rest.checkpoint if rest and (found or own) else None, is_edit=not token)
        if left is not None and ending.left not in ("completed", "edit"):
            steps.append(left)
        newer = next((other for other, _ in runs if other > token), 0) if token else 0
        before = max((other for other in logged if other < token), default=0)
        ended_at = _ended(turn, found, ending.left)
        parts = [where for where, (other, _) in enumerate(runs) if token and other == token]
        return TurnBand(
            token=token,
            outcome=ending.outcome,
            reason=ending.reason,
            opened_at=opened_at,
            seconds=None if ended_at is None or not token else max(0.0, ended_at - opened_at),
            steps=tuple(_merged(steps)),
            prompt=_prompt(token, found),
            end=end_words(
                ending,
                turn,
                newer=newer,
                is_last=place == len(runs) - 1,
                error=next((task.error for task in own if task.error), ""),
            ),
            continues=turn.opened.continues if turn else 0,
            takes_over=before if token and before and logged[before].state == "superseded" else 0,
            left_as=ending.left_as,
            refused=refused_words([each.operation for each in turn.refused], ending, newer=newer) if turn else "",
            part=1 + parts.index(place) if len(parts) > 1 else 0,
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
        took: dict[str, float | None] = {}
        turn = self._logged.get(token)
        for task in ground.tasks:
            for answer in task.answers:
                answers.setdefault(answer.call_id, (task.token, answer))
            if task.token == token and len(task.answers) == 1:
                took.setdefault(task.answers[0].call_id, _took(task, ground, turn))
        paused = any(task.is_paused for task in ground.tasks if task.token == token)
        view = _View(token, ground.token, is_finished=is_finished, is_live=is_live, is_paused=paused)
        found = [(one, self._call(one, answers.get(one.call_id), view)) for one in self._open[ground.checkpoint_id]]
        return tuple(
            call._replace(seconds=took.get(one.call_id)) if call.result in ("ok", "error") else call
            for one, call in found
            if call is not None
        )

    def _call(self, call: SeenCall, given: tuple[int, SeenAnswer] | None, view: _View) -> Call | None:
        by, answer = given or (0, None)
        detail = " ".join(part for part in (call.args, answer.text if answer else "") if part)
        if answer is not None and by == view.token:
            giver = 0 if answer.outcome or answer.is_given else self._giver(call, view)
            return _kept(call, giver, detail) if giver else _answered(call, answer, detail)
        if answer is not None and by < view.token:
            return _kept(call, by, detail)
        if view.is_finished:
            return None
        result, note = self._left(call, view)
        if answer is not None and not answer.outcome and not answer.is_given and result in ("unknown", "running"):
            note += f"; turn {by} has its result"
        return Call(call.name, result, note, call.args)

    def _left(self, call: SeenCall, view: _View) -> tuple[CallResult, str]:
        """What became of a call that its turn has stored no answer to, and how that is known."""
        known = self._seen.journals.get(view.token, {}).get(call.call_id)
        if known is not None:
            if known == "unknown" and view.is_live:
                return "running", "it has started"
            return known, f"{_RESULT_NOTES[known]}, says the journal"
        turn = self._logged.get(view.token)
        if turn is not None and call_mark(call.call_id) in turn.gave:
            return "ok", f"{_RESULT_NOTES['ok']}, as its journal said"
        told = next((answer for by, answer in self._told.get(call.call_id, ()) if by > view.token), None)
        if told is not None and not (view.is_live or view.is_paused):
            return _OUTCOME_NOTES.get(told.outcome or "recorded", ("unknown", told.outcome))
        result: CallResult = "running" if view.is_live else "paused" if view.is_paused else "unknown"
        return result, _RESULT_NOTES[result]

    def _giver(self, call: SeenCall, view: _View) -> int:
        """The earlier turn on the same ground whose recorded result of a call was used, or 0."""
        mark = call_mark(call.call_id)
        earlier = (turn for turn in self._seen.turns if view.since <= turn.opened.token < view.token)
        return next((turn.opened.token for turn in earlier if mark in turn.gave), 0)


def _kept(call: SeenCall, giver: int, detail: str) -> Call:
    return Call(call.name, "kept", f"the result of turn {giver} was used; it did not run again", detail)


def _answered(call: SeenCall, answer: SeenAnswer, detail: str) -> Call:
    """A call as the turn has it that gave its answer."""
    if answer.outcome:
        _, note = _OUTCOME_NOTES.get(answer.outcome, ("unknown", answer.outcome))
        return Call(call.name, "told", f"it did not run; the model is told what is known of it: {note}", detail)
    if answer.is_given:
        return Call(call.name, "kept", "its recorded result was used; it did not run again", detail)
    result: CallResult = "error" if answer.is_error else "ok"
    return Call(call.name, result, _RESULT_NOTES[result], detail)


def _took(task: SeenTask, ground: SeenCheckpoint, turn: LoggedTurn | None) -> float | None:
    """How long a task took: from when there was its ground, or the turn that went on from there, to its writes."""
    if task.at is None or _is_imported(turn):
        return None
    began = ground.at if ground.token == task.token or turn is None else max(ground.at, turn.opened.at_ns / 1e9)
    return max(0.0, task.at - began) if task.at > began - _GRAIN else None


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


def _is_imported(turn: LoggedTurn | None) -> bool:
    return turn is not None and turn.state == "imported"


def _parts(found: list[SeenCheckpoint]) -> list[list[SeenCheckpoint]]:
    """What was imported in one turn, by its runs: each begins with an input."""
    parts: list[list[SeenCheckpoint]] = []
    for one in found:
        if not parts or one.source == "input":
            parts.append([])
        parts[-1].append(one)
    return parts or [[]]


def _began(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint]) -> float | None:
    if found and _is_imported(turn):
        return found[0].at  # the turn says when it was brought here
    if turn is not None:
        return turn.opened.at_ns / 1e9
    return found[0].at if found else None


def _ended(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint], outcome: Outcome) -> float | None:
    if turn is not None and turn.settled_at_ns is not None and not _is_imported(turn):
        return turn.settled_at_ns / 1e9
    return found[-1].at if found and outcome == "completed" else None


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
