"""What is told of a thread, from what was read of it."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_turncheckpoint._story import Seen, SeenAnswer, SeenCall, SeenCheckpoint, SeenTask
from langgraph_turncheckpoint._timeline import tell
from langgraph_turncheckpoint._turn import LoggedTurn, Opened

SECOND = 1_000_000_000
PAY, MAIL = SeenCall("c1", "pay"), SeenCall("c2", "mail")


def turn(token: int, state: Any = "completed", cause: Any = None, **fields: Any) -> LoggedTurn:
    opened = Opened(token, token * 10 * SECOND, fields.pop("continues", 0), fields.pop("start", ""), known_end=True)
    settled = None if state in ("unknown", "interrupted", "running") else (token * 10 + 5) * SECOND
    return LoggedTurn(opened, state, cause, settled)


def point(name: str, parent: str, token: int, source: str = "loop", **fields: Any) -> SeenCheckpoint:
    at = token * 10 + 0.5 * int(name[1:] or 0) if name[1:].isdigit() else 0.0
    return SeenCheckpoint(name, parent, token, at, source, **fields)


def chat(first: int, token: int, parent: str = "") -> list[SeenCheckpoint]:
    """One turn that asks a model; its checkpoints are named by number."""
    names = [f"k{first + n}" for n in range(3)]
    return [
        point(names[0], parent, token, "input", pending=("__start__",), tasks=(SeenTask(token, prompt="hi"),)),
        point(names[1], names[0], token, ran=("__start__",), pending=("model",)),
        point(names[2], names[1], token, ran=("model",)),
    ]


def cut_off(*tasks: SeenTask, pending: tuple[str, ...] = ("tools",)) -> list[SeenCheckpoint]:
    """Turn 1, which has asked for two tools and wrote these tasks while they ran."""
    return [
        point("k1", "", 1, "input", pending=("__start__",)),
        point("k2", "k1", 1, ran=("__start__",), pending=("model",), tasks=(SeenTask(1, calls=(PAY, MAIL)),)),
        point("k3", "k2", 1, ran=("model",), pending=pending, tasks=tasks),
    ]


def results(band: Any) -> dict[str, str]:
    return {call.name: call.result for step in band.steps for call in step.calls}


def names(band: Any) -> list[str]:
    return ["+".join(step.names) + ("" if step.is_finished else "?") for step in band.steps]


def told(turns: list[LoggedTurn], checkpoints: list[SeenCheckpoint], limit: int = 20, **fields: Any) -> Any:
    return tell(Seen("t", turns[::-1], checkpoints, **fields), turns=limit)


def test_nothing_read_is_nothing_told():
    story = tell(Seen("t"), turns=5)
    assert (story.bands, story.folded, story.damaged) == ((), None, ())


def test_each_turn_has_its_steps_in_order_and_its_prompt():
    story = told([turn(1), turn(2)], [*chat(1, 1), *chat(4, 2, "k3")])
    assert [band.token for band in story.bands] == [1, 2]
    assert [names(band) for band in story.bands] == [["input", "model"]] * 2
    assert [band.prompt for band in story.bands] == ["hi", "hi"]
    assert [band.seconds for band in story.bands] == [5.0, 5.0]
    assert story.bands[0].steps[1].seconds == 0.5


def test_earlier_turns_are_folded_and_counted():
    turns = [turn(1), turn(2, "failed", "error"), turn(3), turn(4)]
    checkpoints = [c for n in range(4) for c in chat(1 + 3 * n, n + 1, f"k{3 * n}" if n else "")]
    story = told(turns, checkpoints, limit=1)
    assert [band.token for band in story.bands] == [4]
    assert story.folded is not None
    assert story.folded.turns == 3
    assert dict(story.folded.outcomes) == {"completed": 2, "failed": 1}
    assert (story.folded.first_at, story.folded.last_at) == (10.0, 30.0)


@pytest.mark.parametrize(
    ("state", "cause", "outcome", "end"),
    [
        ("completed", None, "completed", ""),
        ("failed", "error", "failed", "error"),
        ("cancelled", "user", "cancelled", "stopped by the user"),
        ("cancelled", "limit", "cancelled", "limit reached"),
        ("cancelled", "unknown", "cancelled", "cancelled"),
        ("superseded", "superseded", "superseded", "taken over"),
        ("interrupted", "restart", "crashed", "process died"),
        ("paused", None, "paused", "waits for a person"),
        ("running", None, "running", ""),
    ],
)
def test_a_turn_ends_as_its_record_says(state, cause, outcome, end):
    (band,) = told([turn(1, state, cause)], chat(1, 1)).bands
    assert (band.outcome, band.end) == (outcome, end)
    assert band.reason


PLAIN = [
    pytest.param((), (), False, "completed", id="nothing-left"),
    pytest.param(("tools",), (), False, "open", id="work-left"),
    pytest.param(("tools",), (), True, "cut off", id="work-left-and-overtaken"),
    pytest.param(("tools",), (SeenTask(1, error="ValueError('x')"),), True, "failed", id="raised"),
    pytest.param(("tools",), (SeenTask(1, is_paused=True),), True, "paused", id="asks"),
]


@pytest.mark.parametrize(("pending", "tasks", "has_newer", "outcome"), PLAIN)
def test_of_a_plain_run_the_last_checkpoint_tells_the_end(pending, tasks, has_newer, outcome):
    turns = [turn(1, "unknown"), *([turn(2, "unknown")] if has_newer else [])]
    band = told(turns, cut_off(*tasks, pending=pending)).bands[0]
    assert band.outcome == outcome
    assert "announces no end" in band.reason


def test_a_crash_leaves_finished_calls_and_unknown_ones():
    story = told([turn(1, "interrupted", "restart")], cut_off(SeenTask(1, answers=(SeenAnswer("c1"),))))
    (band,) = story.bands
    assert names(band) == ["input", "model", "tools?"]
    assert results(band) == {"pay": "ok", "mail": "unknown"}
    assert band.seconds is None


@pytest.mark.parametrize("known", ["ok", "error", "not run", "paused", "unknown"])
def test_the_journal_says_what_became_of_a_call(known):
    journals = {1: {"c1": known, "c2": "not run"}}
    (band,) = told([turn(1, "interrupted", "restart")], cut_off(), journals=journals).bands
    assert results(band) == {"pay": known, "mail": "not run"}


def test_in_a_live_turn_a_started_call_is_running():
    (band,) = told([turn(1, "running")], cut_off(), journals={1: {"c1": "unknown", "c2": "not run"}}).bands
    assert results(band) == {"pay": "running", "mail": "not run"}
    (band,) = told([turn(1, "running")], cut_off()).bands
    assert results(band) == {"pay": "running", "mail": "running"}


def resumed(*answers: SeenAnswer) -> list[SeenCheckpoint]:
    tasks = (SeenTask(1, answers=(SeenAnswer("c2"),)), SeenTask(2, answers=answers))
    return [*cut_off(*tasks), point("k4", "k3", 2, ran=("tools",))]


def test_a_resumed_turn_keeps_results_and_runs_the_rest():
    turns = [turn(1, "interrupted", "restart"), turn(2, continues=1)]
    first, second = told(turns, resumed(SeenAnswer("c1"))).bands
    assert results(first) == {"pay": "unknown", "mail": "ok"}
    assert results(second) == {"pay": "ok", "mail": "kept"}
    assert (second.continues, names(second)) == (1, ["tools"])


@pytest.mark.parametrize(
    ("outcome", "before"),
    [("unknown", "unknown"), ("not_run", "not run"), ("failed", "error"), ("recorded", "ok"), ("news", "unknown")],
)
def test_what_a_guard_told_the_model_is_what_became_of_the_call_before(outcome, before):
    turns = [turn(1, "interrupted", "restart"), turn(2, continues=1)]
    first, second = told(turns, resumed(SeenAnswer("c1", is_error=True, outcome=outcome))).bands
    assert results(first)["pay"] == before
    assert results(second)["pay"] == "told"


def test_answers_given_by_hand_in_a_row_are_one_repair():
    checkpoints = [
        *cut_off(SeenTask(1, answers=(SeenAnswer("c1"),))),
        point("k4", "k3", 2, "update", tasks=(SeenTask(2, answers=(SeenAnswer("c2", outcome="not_run"),)),)),
        point("k5", "k4", 2, "update"),
        *chat(6, 2, "k5"),
    ]
    band = told([turn(1, "interrupted", "restart"), turn(2)], checkpoints).bands[1]
    assert names(band) == ["repair", "input", "model"]
    assert results(band) == {"pay": "kept", "mail": "told"}


def test_a_takeover_is_told_on_both_sides():
    turns = [turn(1, "superseded", "superseded"), turn(3)]
    first, second = told(turns, [*cut_off(), *chat(4, 3, "k3")]).bands
    assert first.end == "taken over by turn 3"
    assert "refused" in first.reason
    assert second.takes_over == 1


def test_a_branch_begins_where_a_turn_builds_on_no_tip():
    turns = [turn(n, "unknown") for n in (1, 2, 3, 4)]
    checkpoints = [*chat(1, 1), *chat(4, 2, "k3"), *chat(7, 3, "k3"), *chat(10, 4, "k6")]
    bands = told(turns, checkpoints).bands
    assert [(band.lane, band.forks_from) for band in bands] == [(0, None), (0, None), (1, 0), (0, None)]


def test_a_branch_of_what_is_folded_says_so():
    turns = [turn(n, "unknown") for n in (1, 2, 3)]
    bands = told(turns, [*chat(1, 1), *chat(4, 2, "k3"), *chat(7, 3, "k3")], limit=2).bands
    assert [(band.lane, band.forks_from) for band in bands] == [(0, None), (1, -1)]


def test_an_edit_outside_any_turn_stands_by_itself():
    edits = [point("k4", "k3", 0, "update"), point("k5", "k4", 0, "update")]
    story = told([turn(1), turn(2)], [*chat(1, 1), *edits, *chat(6, 2, "k5")])
    assert [(band.token, band.outcome) for band in story.bands] == [(1, "completed"), (0, "edit"), (2, "completed")]
    assert names(story.bands[1]) == ["update", "update"]


def test_a_turn_that_is_in_no_log_is_told_all_the_same():
    (band,) = told([], chat(1, 7)).bands
    assert (band.token, band.outcome, band.opened_at) == (7, "completed", 70.5)


def test_a_turn_that_wrote_nothing_has_no_steps():
    bands = told([turn(1), turn(2, "interrupted", "restart", start="k3")], chat(1, 1)).bands
    assert bands[1].steps == ()
    assert bands[1].lane == bands[0].lane


def test_a_turn_that_died_before_its_first_checkpoint_shows_what_it_had_begun():
    turns = [turn(1, "interrupted", "restart"), turn(2, "interrupted", "restart", start="k3", continues=1)]
    second = told(turns, cut_off(), journals={2: {"c1": "unknown", "c2": "not run"}}).bands[1]
    assert names(second) == ["tools?"]
    assert results(second) == {"pay": "unknown", "mail": "not run"}


def test_steps_that_were_stored_as_one_have_the_calls_of_all():
    said = SeenTask(1, calls=(PAY, MAIL), answers=(SeenAnswer("c1", is_error=True),), prompt="do it")
    (band,) = told([turn(1)], [point("k1", "", 1, ran=("model", "tools"), gathered=said)]).bands
    assert results(band) == {"pay": "error", "mail": "unknown"}
    assert (band.prompt, band.steps[0].is_several) == ("do it", True)
