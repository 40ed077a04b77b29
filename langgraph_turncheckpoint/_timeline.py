"""From what was read of a thread to what a picture of it says: which turn did what, how it ended, what it built on.
Decisions only; nothing is read here, and nothing is drawn. What became of each tool call is decided in `_calls`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from ._calls import Calls, gathered_calls, is_imported
from ._outcomes import end_words, ending_of, refused_words, unseen_outcome
from ._story import (
    Folded,
    Outcome,
    Seen,
    SeenCheckpoint,
    Step,
    StepKind,
    ThreadStory,
    TurnBand,
)
from ._turn import LoggedTurn, TurnState

#: Nodes of LangGraph's own, which are no work of anybody's.
_OWN_NODES: Final = frozenset({"__input__", "__start__", "__interrupt__"})


def tell(seen: Seen, *, turns: int) -> ThreadStory:
    """The story of a thread.

    Args:
        seen: What was read; the checkpoints of at least the newest `turns` turns.
        turns: How many of the newest turns to show one by one.
    """
    return _Teller(seen).tell(turns)


#: A turn with what it wrote; its token is 0 outside any turn.
_Run: TypeAlias = tuple[int, list[SeenCheckpoint]]


class _Teller:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._logged = {turn.opened.token: turn for turn in seen.turns}
        self._by_id = {found.checkpoint_id: found for found in seen.checkpoints}
        self._calls = Calls(seen)

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
            for part in (_parts(found) if is_imported(logged.get(int(token))) and token else [found])
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
        left = None if rest is None else self._unfinished(rest, token)
        own = [task for task in (rest.tasks if rest else ()) if task.token == token]
        ending = ending_of(turn, self._told_end(token, found), is_edit=not token)
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
            continues=(turn.opened.continues if turn else 0) or self._continued(token, found, rest if own else None),
            takes_over=before if token and before and logged[before].state == "superseded" else 0,
            left_as=ending.left_as,
            refused=refused_words([each.operation for each in turn.refused], ending, newer=newer) if turn else "",
            part=1 + parts.index(place) if len(parts) > 1 else 0,
        )

    def _step(self, made: SeenCheckpoint, opened_at: float) -> Step | None:
        """What made a checkpoint."""
        if made.source == "input":
            calls = self._calls.on(made, made.token)
            return Step("input", ("input",), None, calls, at=made.at, checkpoint_id=made.checkpoint_id)
        names = tuple(name for name in made.ran if name not in _OWN_NODES)
        parent = self._by_id.get(made.parent_id)
        calls = () if parent is None else self._calls.on(parent, made.token)
        if made.source == "loop":
            if not names:
                return None  # LangGraph has taken the input in
            began = parent.at if parent is not None and parent.token == made.token else opened_at
            seconds = max(0.0, made.at - began)
            if made.gathered is not None:
                calls = gathered_calls(made.gathered)
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

    def _last_ground(self, token: int, found: list[SeenCheckpoint], turn: LoggedTurn | None) -> SeenCheckpoint | None:
        """The checkpoint on which a turn worked last, and may have left something unfinished."""
        if found:
            return found[-1]
        if on := [one for one in self._seen.checkpoints if any(task.token == token for task in one.tasks)]:
            return on[-1]
        before = [one for one in self._seen.checkpoints if one.token < token]
        start = turn.opened.start if turn is not None else None
        return self._by_id.get(start or "") or (before[-1] if before else None)

    def _continued(self, token: int, found: list[SeenCheckpoint], tried: SeenCheckpoint | None) -> int:
        """The turn that had left the work on which one goes on that has no input of its own, or 0.

        Args:
            token: The turn.
            found: What it wrote.
            tried: Where it wrote results, if anywhere.
        """
        if found and found[0].source == "loop" and found[0].gathered is None:
            ground = self._by_id.get(found[0].parent_id)
        else:
            ground = None if found else tried
        if ground is None or not token:
            return 0
        return max((by for by in (ground.token, *(task.token for task in ground.tasks)) if by < token), default=0)

    def _told_end(self, token: int, found: list[SeenCheckpoint]) -> TurnState:
        """How a turn, or a part of one, ended as far as its checkpoints tell."""
        if is_imported(self._logged.get(token)):
            return found[-1].end if found else "unknown"
        return self._seen.ends.get(token, "unknown")

    def _unfinished(self, found: SeenCheckpoint, token: int) -> Step | None:
        """The super-step that a turn had begun and whose checkpoint it did not write."""
        own = [task for task in found.tasks if task.token == token]
        names = tuple(name for name in found.pending if name not in _OWN_NODES)
        if found.token != token and not own and token not in self._seen.journals:
            return None  # it has not come so far
        if not names and not own:
            return None
        if found.source == "input" and not names:
            return None
        calls = self._calls.on(found, token, is_finished=False)
        after = next((one for one in self._seen.checkpoints if one.parent_id == found.checkpoint_id), None)
        if after is not None and after.source == "loop":
            names = tuple(name for name in after.ran if name not in _OWN_NODES) or names
        if not names and not calls and not any(task.error or task.is_paused for task in own):
            return None
        return Step("nodes", names or ("next step",), None, calls, is_finished=False)


def _prompt(token: int, found: Sequence[SeenCheckpoint]) -> str:
    """What a turn was asked first."""
    said = [task for one in found for task in (*one.tasks, one.gathered) if task is not None and task.token == token]
    return next((task.prompt for task in said if task.prompt), "")


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


def _parts(found: list[SeenCheckpoint]) -> list[list[SeenCheckpoint]]:
    """What was imported in one turn, by its runs: each begins with an input."""
    parts: list[list[SeenCheckpoint]] = []
    for one in found:
        if not parts or one.source == "input":
            parts.append([])
        parts[-1].append(one)
    return parts or [[]]


def _began(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint]) -> float | None:
    if found and is_imported(turn):
        return found[0].at  # the turn says when it was brought here
    if turn is not None:
        return turn.opened.at_ns / 1e9
    return found[0].at if found else None


def _ended(turn: LoggedTurn | None, found: Sequence[SeenCheckpoint], outcome: Outcome) -> float | None:
    if turn is not None and turn.settled_at_ns is not None and not is_imported(turn):
        return turn.settled_at_ns / 1e9
    return found[-1].at if found and outcome == "completed" else None


def _on_lanes(bands: tuple[TurnBand, ...], written: Sequence[Sequence[SeenCheckpoint]]) -> tuple[TurnBand, ...]:
    """The bands with their branches: one that does not build on the tip of any branch begins one."""
    tips: dict[str, int] = {}
    owner: dict[str, int] = {}
    lanes = latest = 0
    placed = []
    for position, (band, found) in enumerate(zip(bands, written, strict=True)):
        lane, forks_from, starts_over = latest, None, False
        if found:
            parent = found[0].parent_id
            if parent in tips:
                lane = tips.pop(parent)
            elif tips:
                lanes += 1
                lane, starts_over = lanes, not parent
                forks_from = owner.get(parent, -1) if parent else None
            tips[found[-1].checkpoint_id] = latest = lane
            owner.update((one.checkpoint_id, position) for one in found)
        placed.append(band._replace(lane=lane, forks_from=forks_from, starts_over=starts_over))
    return tuple(placed)
