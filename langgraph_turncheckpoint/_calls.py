"""What became of each tool call, as each turn has it, from what was read of a thread. Decisions only.

How long a tool took that ran beside others is told by the time in its record of writes; a journal would know it of
guarded turns only, and is removed once what it records is in the history. Where a task gave several answers at once,
nobody knows how long each call took, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ._story import Call, CallResult, Seen, SeenAnswer, SeenCall, SeenCheckpoint, SeenTask
from ._turn import LoggedTurn, call_mark

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


class _View(NamedTuple):
    """Which turn's view of a checkpoint's calls is told.

    Attributes:
        token: The turn.
        asked_by: By id of a call, the turn that asked for it.
        is_finished: Whether the checkpoint after it is there.
        is_live: Whether the turn is running.
        is_paused: Whether it waits for a person there.
    """

    token: int
    asked_by: Mapping[str, int]
    is_finished: bool
    is_live: bool
    is_paused: bool


class Calls:
    """The tool calls of a thread.

    Args:
        seen: What was read of it.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._logged = {turn.opened.token: turn for turn in seen.turns}
        self._by_id = {found.checkpoint_id: found for found in seen.checkpoints}
        self._open: dict[str, tuple[SeenCall, ...]] = {}
        #: By checkpoint and id of an open call, the turn that asked for it.
        self._asked_by: dict[str, dict[str, int]] = {}
        #: By checkpoint, the calls that were still open when the input came that it builds on.
        self._passed: dict[str, frozenset[str]] = {}
        for found in seen.checkpoints:  # parents come before their children
            self._open[found.checkpoint_id] = self._open_calls(found)
            self._asked_by[found.checkpoint_id] = self._askers(found)
            self._passed[found.checkpoint_id] = self._passed_calls(found)
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

    def _askers(self, found: SeenCheckpoint) -> dict[str, int]:
        """The turns that have asked for the calls that are open at a checkpoint."""
        parent = self._by_id.get(found.parent_id)
        made = [] if parent is None else [(call.call_id, task.token) for task in parent.tasks for call in task.calls]
        return {**self._asked_by.get(found.parent_id, {}), **dict(made)}

    def _passed_calls(self, found: SeenCheckpoint) -> frozenset[str]:
        """The calls that were open when something new was said, and that nobody has made again since."""
        if found.source == "input":
            return frozenset(call.call_id for call in self._open[found.checkpoint_id])
        parent = self._by_id.get(found.parent_id)
        made = {call.call_id for task in parent.tasks for call in task.calls} if parent is not None else set()
        return self._passed.get(found.parent_id, frozenset()) - made

    def on(self, ground: SeenCheckpoint, token: int, *, is_finished: bool = True) -> tuple[Call, ...]:
        """The calls that were open at a checkpoint and that a turn that worked on it had to do with.

        Args:
            ground: The checkpoint.
            token: The turn.
            is_finished: Whether the checkpoint after it is there.
        """
        answers: dict[str, tuple[int, SeenAnswer]] = {}
        took: dict[str, float | None] = {}
        turn = self._logged.get(token)
        for task in ground.tasks:
            for answer in task.answers:
                answers.setdefault(answer.call_id, (task.token, answer))
            if task.token == token and len(task.answers) == 1:
                took.setdefault(task.answers[0].call_id, _took(task, ground, turn))
        has_asked = any(task.is_paused for task in ground.tasks if task.token == token)
        view = _View(
            token,
            self._asked_by[ground.checkpoint_id],
            is_finished=is_finished,
            is_live=turn is not None and turn.state == "running",
            is_paused=has_asked and not self._has_gone_on(ground, token),
        )
        known = self._seen.journals.get(token, {})
        passed = {
            call_id
            for call_id in self._passed[ground.checkpoint_id]
            if call_id not in answers and known.get(call_id, "not run") == "not run"
        }
        asked = [call for call in self._open[ground.checkpoint_id] if call.call_id not in passed]
        found = [(one, self._call(one, answers.get(one.call_id), view)) for one in asked]
        return tuple(
            call._replace(seconds=took.get(one.call_id)) if call.result in ("ok", "error") else call
            for one, call in found
            if call is not None
        )

    def _has_gone_on(self, ground: SeenCheckpoint, token: int) -> bool:
        """Whether a run that asked a person has its answer, as far as that is known."""
        end = self._seen.ends.get(token, ground.end if ground.token == token else "unknown")
        return end in ("unfinished", "completed")

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
        mark, journals, since = call_mark(call.call_id), self._seen.journals, view.asked_by.get(call.call_id, 0)
        for turn in self._seen.turns:
            token = turn.opened.token
            if since <= token < view.token and (mark in turn.gave or journals.get(token, {}).get(call.call_id) == "ok"):
                return token
        return 0


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
    if task.at is None or is_imported(turn):
        return None
    began = ground.at if ground.token == task.token or turn is None else max(ground.at, turn.opened.at_ns / 1e9)
    return max(0.0, task.at - began) if task.at > began - _GRAIN else None


def gathered_calls(said: SeenTask) -> tuple[Call, ...]:
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


def is_imported(turn: LoggedTurn | None) -> bool:
    """Whether a turn only brought checkpoints from elsewhere."""
    return turn is not None and turn.state == "imported"
