"""What is told of a thread, from what was read of it."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_turncheckpoint._story import Seen, SeenAnswer, SeenCall, SeenCheckpoint, SeenTask
from langgraph_turncheckpoint._timeline import tell
from langgraph_turncheckpoint._turn import LoggedTurn, Opened, Refused, call_mark

SECOND = 1_000_000_000
PAY, MAIL = SeenCall("c1", "pay"), SeenCall("c2", "mail")


def turn(token: int, state: Any = "completed", cause: Any = None, **fields: Any) -> LoggedTurn:
    opened = Opened(token, token * 10 * SECOND, fields.pop("continues", 0), fields.pop("start", ""), known_end=True)
    settled = None if state in ("unknown", "interrupted", "running") else (token * 10 + 5) * SECOND
    return LoggedTurn(opened, state, cause, settled, fields.pop("refused", ()), fields.pop("gave", frozenset()))


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
        ("interrupted", "restart", "interrupted", "process died"),
        ("paused", None, "paused", "waits for a person"),
        ("running", None, "running", ""),
    ],
)
def test_a_turn_ends_as_its_record_says(state, cause, outcome, end):
    (band,) = told([turn(1, state, cause)], chat(1, 1)).bands
    assert (band.outcome, band.end) == (outcome, end)
    assert band.reason


@pytest.mark.parametrize("has_newer", [False, True])
@pytest.mark.parametrize("outcome", ["completed", "unfinished", "failed", "paused", "unknown"])
def test_a_plain_run_ended_as_what_was_read_tells(has_newer, outcome):
    turns = [turn(1, "unknown"), *([turn(2, "unknown")] if has_newer else [])]
    band = told(turns, cut_off(), ends={1: outcome}).bands[0]
    assert band.outcome == outcome
    assert "announces no end" in band.reason


@pytest.mark.parametrize(("outcome", "result"), [("paused", "paused"), ("failed", "paused"), ("unfinished", "unknown")])
def test_a_call_waits_for_a_person_as_long_as_nobody_has_answered(outcome, result):
    (band,) = told([turn(1, "unknown")], cut_off(SeenTask(1, is_paused=True)), ends={1: outcome}).bands
    assert results(band) == {"pay": result, "mail": result}


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
    (band,) = told([], chat(1, 7), ends={7: "completed"}).bands
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


# --- what was imported ---


def imported(*tasks: SeenTask, end: Any = "completed", pending: tuple[str, ...] = ()) -> list[SeenCheckpoint]:
    """Two runs that turn 5 has brought along, made long before it."""
    long_ago = [*chat(1, 5), *chat(4, 5, "k3")]
    long_ago[2] = long_ago[2]._replace(end="completed")
    last = long_ago[-1]._replace(tasks=tasks, end=end, pending=pending)
    return [one._replace(at=1.0 + place) for place, one in enumerate([*long_ago[:-1], last])]


def test_what_was_imported_is_a_band_for_each_of_its_runs_with_their_own_times():
    first, second = told([turn(5, "imported")], imported()).bands
    assert [(band.token, band.part, band.outcome, band.left_as) for band in (first, second)] == [
        (5, 1, "imported", "completed"),
        (5, 2, "imported", "completed"),
    ]
    assert [(band.opened_at, band.seconds) for band in (first, second)] == [(1.0, 2.0), (4.0, 2.0)]
    assert (first.lane, second.lane) == (0, 0)


@pytest.mark.parametrize(
    ("tasks", "left_as", "end"),
    [
        ((), "unfinished", "work left behind"),
        ((SeenTask(5, is_paused=True),), "paused", "waits for a person"),
        ((SeenTask(5, error="ValueError('x')"),), "failed", "ValueError('x')"),
    ],
)
def test_what_an_imported_run_has_left_is_told_by_its_last_checkpoint(tasks, left_as, end):
    band = told([turn(5, "imported")], imported(*tasks, end=left_as, pending=("tools",))).bands[-1]
    assert (band.outcome, band.left_as, band.end, band.seconds) == ("imported", left_as, end, None)
    assert names(band)[-1] == "tools?"


def test_an_imported_run_of_one_input_is_a_whole_turn_and_durations_of_its_calls_are_not_those_of_the_copy():
    checkpoints = [one._replace(token=5) for one in cut_off(SeenTask(5, answers=(SeenAnswer("c1"),), at=900.0))]
    checkpoints[1] = checkpoints[1]._replace(tasks=(SeenTask(5, calls=(PAY, MAIL)),))
    (band,) = told([turn(5, "imported")], checkpoints).bands
    assert band.part == 0
    assert [(call.name, call.result, call.seconds) for call in band.steps[-1].calls] == [
        ("pay", "ok", None),
        ("mail", "unknown", None),
    ]


def test_earlier_parts_of_an_imported_turn_are_folded_and_counted_as_parts():
    story = told([turn(1), turn(5, "imported")], [*chat(7, 1), *imported()], limit=1)
    assert story.folded is not None
    assert (story.folded.turns, story.folded.parts) == (1, 1)
    assert dict(story.folded.outcomes) == {"completed": 1}


def test_a_turn_of_an_import_that_is_gone_is_still_told():
    (band,) = told([turn(5, "imported")], []).bands
    assert (band.outcome, band.left_as, band.steps) == ("imported", "unknown", ())


# --- how long calls took, and who was late ---


def test_a_call_took_from_its_ground_to_its_own_writes():
    ground_at = 11.5
    (band,) = told([turn(1)], [
        *cut_off(SeenTask(1, answers=(SeenAnswer("c1"),), at=ground_at + 0.2),
                 SeenTask(1, answers=(SeenAnswer("c2", is_error=True),), at=ground_at + 3)),
        point("k4", "k3", 1, ran=("tools",)),
    ]).bands  # fmt: skip
    assert [round(call.seconds or 0, 3) for call in band.steps[-1].calls] == [0.2, 3.0]


def test_a_call_of_a_resumed_turn_took_from_the_opening_of_that_turn():
    tasks = (SeenTask(1, answers=(SeenAnswer("c2"),), at=11.7), SeenTask(2, answers=(SeenAnswer("c1"),), at=21.0))
    turns = [turn(1, "interrupted", "restart"), turn(2, continues=1)]
    _, second = told(turns, [*cut_off(*tasks), point("k4", "k3", 2, ran=("tools",))]).bands
    assert [(call.result, call.seconds) for call in second.steps[0].calls] == [("ok", 1.0), ("kept", None)]


@pytest.mark.parametrize(
    "task",
    [
        SeenTask(1, answers=(SeenAnswer("c1"),)),
        SeenTask(1, answers=(SeenAnswer("c1"),), at=1.0),
        SeenTask(1, answers=(SeenAnswer("c1"), SeenAnswer("c2")), at=12.0),
    ],
    ids=["no time", "before its ground", "several at once"],
)
def test_where_nobody_knows_how_long_a_call_took_nothing_is_said(task):
    (band,) = told([turn(1)], [*cut_off(task), point("k4", "k3", 1, ran=("tools",))]).bands
    assert all(call.seconds is None for call in band.steps[-1].calls)


def test_a_late_write_is_told_with_what_it_was():
    late = (Refused(1, 1, "put_writes"), Refused(1, 2, "put"))
    first, _ = told(
        [turn(1, "superseded", "superseded", refused=late), turn(3)], [*chat(1, 1), *chat(4, 3, "k3")]
    ).bands
    assert (first.end, first.refused) == ("taken over by turn 3", "refused: a checkpoint and a result")
    first, _ = told([turn(1, "unknown", refused=late[:1]), turn(3)], [*chat(1, 1), *chat(4, 3, "k3")]).bands
    assert first.refused == "refused: a result, after turn 3 took over"


# --- what a turn that was cut off had done, when its journal is gone ---


def test_a_history_that_was_put_in_order_tells_of_recorded_results_and_of_unknown_ones():
    given = SeenTask(2, answers=(SeenAnswer("c1", is_given=True), SeenAnswer("c2", outcome="unknown", is_given=True)))
    checkpoints = [*cut_off(given), point("k4", "k3", 2, "update")]
    first, second = told([turn(1, "interrupted", "restart"), turn(2)], checkpoints).bands
    assert results(first) == {"pay": "ok", "mail": "unknown"}
    assert (names(second), results(second)) == (["repair"], {"pay": "kept", "mail": "told"})


def test_a_later_repair_that_holds_an_answer_says_nothing_of_who_gave_it():
    whole = SeenTask(3, answers=(SeenAnswer("c1", is_given=True), SeenAnswer("c2", is_given=True)))
    checkpoints = [*resumed(SeenAnswer("c1")), point("k5", "k4", 3, "update")]
    checkpoints[3] = checkpoints[3]._replace(tasks=(whole,))
    turns = [turn(1, "interrupted", "restart"), turn(2, continues=1), turn(3)]
    assert results(told(turns, checkpoints).bands[0]) == {"pay": "unknown", "mail": "ok"}


def test_what_a_journal_had_recorded_is_known_from_the_log_when_it_is_gone():
    turns = [turn(1, "interrupted", "restart", gave=frozenset([call_mark("c1")])), turn(2, continues=1)]
    answers = (SeenAnswer("c1"), SeenAnswer("c2", outcome="unknown"))
    first, second = told(turns, [*cut_off(SeenTask(2, answers=answers)), point("k4", "k3", 2, ran=("tools",))]).bands
    assert results(first) == {"pay": "ok", "mail": "unknown"}
    assert results(second) == {"pay": "kept", "mail": "told"}


def test_what_a_journal_that_is_still_there_has_recorded_did_not_run_again():
    turns = [turn(1, "interrupted", "restart"), turn(2, "paused", continues=1)]
    journals = {1: {"c1": "ok", "c2": "unknown"}, 2: {"c2": "paused"}}
    checkpoints = cut_off(SeenTask(2, answers=(SeenAnswer("c1"),)), SeenTask(2, is_paused=True))
    first, second = told(turns, checkpoints, journals=journals).bands
    assert results(first) == {"pay": "ok", "mail": "unknown"}
    assert results(second) == {"pay": "kept", "mail": "paused"}


def test_a_recorded_result_that_is_given_after_a_new_message_did_not_run_again():
    turns = [turn(1, "superseded", "superseded", gave=frozenset([call_mark("c1")])), turn(2)]
    given = SeenTask(2, answers=(SeenAnswer("c1"), SeenAnswer("c2", outcome="unknown")))
    checkpoints = [*cut_off(), *chat(4, 2, "k3")]
    checkpoints[-2] = checkpoints[-2]._replace(tasks=(given,))
    first, second = told(turns, checkpoints).bands
    assert results(first) == {"pay": "ok", "mail": "unknown"}
    assert results(second) == {"pay": "kept", "mail": "told"}


def test_a_call_of_the_same_id_in_a_later_message_is_another_call():
    turns = [turn(1, "interrupted", "restart", gave=frozenset([call_mark("c1")])), turn(2)]
    checkpoints = [
        *cut_off(),
        point("k4", "k3", 2, "update", tasks=(SeenTask(2, calls=(PAY,)),)),
        point("k5", "k4", 2, ran=("model",), tasks=(SeenTask(2, answers=(SeenAnswer("c1"),)),)),
        point("k6", "k5", 2, ran=("tools",)),
    ]
    assert told(turns, checkpoints).bands[1].steps[-1].calls[0].result == "ok"


# --- whose calls, whose work ---


def test_calls_that_an_earlier_turn_left_open_are_no_business_of_a_step_that_failed():
    """A message came in between: what the model is given is a history with a hole."""
    failed = SeenTask(2, error="ValueError('400')")
    checkpoints = [*cut_off(), *chat(4, 2, "k3")[:2]]
    checkpoints[-1] = checkpoints[-1]._replace(tasks=(failed,))
    turns = [turn(1, "superseded", "superseded"), turn(2, "failed", "error")]
    second = told(turns, checkpoints).bands[1]
    assert (names(second), results(second)) == (["input", "model?"], {})
    journals = {2: {"c1": "not run", "c2": "ok"}}
    assert results(told(turns, checkpoints, journals=journals).bands[1]) == {"mail": "ok"}


def test_a_call_that_is_made_again_after_a_message_is_the_business_of_who_made_it():
    checkpoints = [*cut_off(), *chat(4, 2, "k3")[:2]]
    checkpoints[-1] = checkpoints[-1]._replace(tasks=(SeenTask(2, calls=(PAY,)),))
    checkpoints.append(point("k6", "k5", 2, ran=("model",), pending=("tools",)))
    turns = [turn(1, "superseded", "superseded"), turn(2, "interrupted", "restart")]
    assert results(told(turns, checkpoints).bands[1]) == {"pay": "unknown"}


@pytest.mark.parametrize("state", ["unknown", "interrupted", "completed"])
def test_a_turn_without_an_input_that_works_on_what_another_left_continues_it(state):
    _, second = told([turn(1, "unknown"), turn(2, state)], resumed(SeenAnswer("c1"))).bands
    assert second.continues == 1
    only_tried = cut_off(SeenTask(2, error="ValueError('x')"))
    _, second = told([turn(1, "unknown"), turn(2, "failed", "error")], only_tried).bands
    assert second.continues == 1
    turns = [turn(1, "unknown"), turn(2, "failed", "error"), turn(4, "unknown")]
    later = [*cut_off(SeenTask(2, error="ValueError('x')")), point("k4", "k3", 4, ran=("tools",))]
    assert [band.continues for band in told(turns, later).bands] == [0, 1, 2]


def test_a_turn_with_an_input_or_an_update_continues_nothing():
    turns = [turn(1, "unknown"), turn(2, "unknown")]
    assert told(turns, [*cut_off(), *chat(4, 2, "k3")]).bands[1].continues == 0
    assert told(turns, [*cut_off(), point("k4", "k3", 2, "update")]).bands[1].continues == 0
    at_its_end = point("k4", "k3", 2, ran=("a", "b"), gathered=SeenTask(2, prompt="hi"))
    assert told(turns, [*chat(1, 1), at_its_end]).bands[1].continues == 0


def test_a_turn_that_starts_from_nothing_forks_from_nothing():
    """As a rollback of a first turn does."""
    turns = [turn(1, "superseded", "superseded"), turn(2)]
    first, second = told(turns, [*chat(1, 1), *chat(4, 2)]).bands
    assert (first.lane, first.starts_over) == (0, False)
    assert (second.lane, second.forks_from, second.starts_over) == (1, None, True)


def test_an_edit_leaves_nothing_behind_that_was_never_begun():
    edit = point("k4", "k3", 0, "update", pending=("model",))
    assert names(told([turn(1)], [*chat(1, 1), edit]).bands[1]) == ["update"]


def test_steps_that_were_stored_as_one_have_the_calls_of_all():
    said = SeenTask(1, calls=(PAY, MAIL), answers=(SeenAnswer("c1", is_error=True),), prompt="do it")
    (band,) = told([turn(1)], [point("k1", "", 1, ran=("model", "tools"), gathered=said)]).bands
    assert results(band) == {"pay": "error", "mail": "unknown"}
    assert (band.prompt, band.steps[0].is_several) == ("do it", True)
