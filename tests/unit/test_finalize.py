"""The decisions and texts for unanswered tool calls, enumerated."""

from __future__ import annotations

import itertools
import re
from typing import Final

import pytest

from langgraph_turncheckpoint._finalize import (
    OUTCOMES,
    POLICIES,
    WORDING_LIMIT,
    Facts,
    Reason,
    cause_in,
    decide,
    decide_resume,
    marker_text,
    reason_of,
    shorten,
    wording,
)
from langgraph_turncheckpoint._turn import CAUSES, TURN_STATES

ALL_FACTS: Final = [
    Facts(result=result, started=started, error=error, paused=paused, known=known)
    for result, started, error, paused, known in itertools.product(
        (False, True), (False, True), (None, "", "ValueError: no"), (False, True), (False, True)
    )
]
REASONS: Final[tuple[Reason, ...]] = (*CAUSES, "cancelled", "paused")
COMBINATIONS: Final = list(itertools.product(OUTCOMES, REASONS))
TOLD_NOT_RUN: Final = {"not_run", "superseded", "invalid"}

#: G2, a new message arrives instead: facts, whether the arguments were unreadable -> outcome; cause, `None` for the
#: turn's.
TABLE: Final = {
    "result recorded": (Facts(result=True, started=True, known=True), False, "recorded", None),
    "result recorded, nothing else": (Facts(result=True), False, "recorded", None),
    "result after an error": (Facts(result=True, error="x"), False, "recorded", None),
    "started": (Facts(started=True, known=True), False, "unknown", None),
    "started, with unreadable arguments": (Facts(started=True), True, "unknown", None),
    "never started": (Facts(known=True), False, "not_run", None),
    "no journal": (Facts(), False, "unknown", None),
    "paused": (Facts(paused=True, known=True), False, "superseded", "superseded"),
    "paused inside the tool": (Facts(started=True, paused=True, known=True), False, "superseded", "superseded"),
    "raised": (Facts(started=True, error="x", known=True), False, "failed", "error"),
    "raised without a text": (Facts(started=True, error=""), False, "failed", "error"),
    "raised after a pause": (Facts(started=True, paused=True, error="x"), False, "failed", "error"),
    "unreadable arguments": (Facts(known=True), True, "invalid", "error"),
    "unreadable arguments, no journal": (Facts(), True, "invalid", "error"),
}


@pytest.mark.parametrize("cause", REASONS)
@pytest.mark.parametrize(("facts", "invalid", "outcome", "named"), TABLE.values(), ids=TABLE)
def test_a_new_message_gives_each_call_what_is_true_of_it(facts, invalid, outcome, named, cause):
    assert decide(facts, cause=cause, invalid=invalid) == (outcome, named or cause)


@pytest.mark.parametrize("cause", REASONS)
@pytest.mark.parametrize(("facts", "invalid", "outcome", "named"), TABLE.values(), ids=TABLE)
def test_where_nothing_newer_comes_each_call_gets_the_same_but_nothing_newer_is_named(
    facts, invalid, outcome, named, cause
):
    found = decide(facts, cause=cause, invalid=invalid, is_overtaken=False)
    assert found == (outcome, cause if named == "superseded" else named or cause)


@pytest.mark.parametrize("cause", REASONS)
def test_a_call_is_only_called_not_run_when_that_is_known(cause):
    for facts, invalid in itertools.product(ALL_FACTS, (False, True)):
        outcome, _ = decide(facts, cause=cause, invalid=invalid)
        if outcome == "not_run":
            assert facts == Facts(known=True)
        if outcome == "invalid":
            assert invalid
            assert not facts.started
        if facts.started and not facts.paused:
            assert outcome not in TOLD_NOT_RUN


def test_the_user_is_only_named_as_cause_when_the_turn_ended_so():
    for facts, invalid, cause in itertools.product(ALL_FACTS, (False, True), REASONS):
        _, named = decide(facts, cause=cause, invalid=invalid)
        assert named in {cause, "error", "superseded"}


@pytest.mark.parametrize("facts", ALL_FACTS, ids=str)
def test_a_run_that_goes_on_never_runs_a_started_tool_again_unless_told_to(facts):
    answers = {policy: decide_resume(facts, policy) for policy in POLICIES}
    if facts.result:
        assert set(answers.values()) == {"give"}
    elif facts.started and facts.error is None and not facts.paused:
        assert answers == {"report": "report", "rerun": "run", "ask": "ask"}
    else:
        assert set(answers.values()) == {"run"}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_texts_differ_by_cause(outcome):
    # That a run which waited for a person was paused is no news.
    told = [cause for cause in REASONS if (outcome, cause) != ("superseded", "paused")]
    assert len({wording(outcome, cause, "search") for cause in told}) == len(told)


@pytest.mark.parametrize("cause", REASONS)
def test_texts_differ_by_outcome(cause):
    assert len({wording(outcome, cause, "search") for outcome in OUTCOMES}) == len(OUTCOMES)


@pytest.mark.parametrize(("outcome", "cause"), COMBINATIONS)
@pytest.mark.parametrize("error", ["", "ValueError('boom')", "x" * 5_000, "a\nb " * 900])
def test_texts_claim_no_more_than_is_known(outcome, cause, error):
    text = wording(outcome, cause, "search_web", error=error)
    lower = text.lower()
    assert "search_web" in text
    assert "\n" not in text
    assert len(text) < WORDING_LIMIT
    assert not re.search(r"succe(ss|ed)", lower)
    if cause != "user":
        assert not re.search(r"user|cancel", lower)
    if cause != "restart":
        assert "restart" not in lower
    if outcome not in TOLD_NOT_RUN:
        assert not re.search(
            r"(did|was|were|has|had) ?(not|n't) (been )?(run|start|execut)|never (ran|run|start)", lower
        )
    if outcome in {"unknown", "failed"}:
        assert "may have taken effect" in lower
        assert "check" in lower


@pytest.mark.parametrize("cause", REASONS)
def test_a_failure_is_told_with_its_error(cause):
    assert "ValueError('boom')" in wording("failed", cause, "search", error="ValueError('boom')")


@pytest.mark.parametrize(("outcome", "cause"), COMBINATIONS)
def test_very_long_names_and_errors_are_shortened(outcome, cause):
    text = wording(outcome, cause, "n" * 3_000, error="e" * 3_000)
    assert "n" * 60 in text
    assert len(text) < WORDING_LIMIT


def test_braces_in_names_and_errors_stay():
    text = wording("failed", "error", "{name}", error="KeyError({'because'})")
    assert "`{name}`" in text
    assert "KeyError({'because'})" in text


def test_markers_differ_by_cause_and_blame_the_user_only_when_it_was_them():
    markers = {cause: marker_text(cause) for cause in REASONS}
    assert len(set(markers.values())) == len(REASONS)
    assert [cause for cause, text in markers.items() if "user" in text] == ["user"]
    assert all(text.startswith("[") and text.endswith("]") and len(text) < 120 for text in markers.values())


@pytest.mark.parametrize(
    ("text", "short"), [("", ""), ("abc", "abc"), ("a\n b\tc", "a b c"), ("abcdefghijk", "abcdefg..."), (" " * 99, "")]
)
def test_shortened_text_is_one_line_within_its_limit(text, short):
    assert shorten(text, 10) == short


@pytest.mark.parametrize("state", TURN_STATES)
@pytest.mark.parametrize("cause", [*CAUSES, None])
def test_how_a_turn_ended_is_its_reason_where_no_cause_is_known_and_programs_see_causes_alone(state, cause):
    reason = reason_of(state, cause)
    if cause in {None, "unknown"}:
        assert reason == (state if state in {"cancelled", "paused"} else "unknown")
    else:
        assert reason == cause
    assert cause_in(reason) == (cause or "unknown")
