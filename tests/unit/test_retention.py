"""The decisions of `_retention`, enumerated: what stays stays for a stated reason, and all else goes."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_turncheckpoint._retention import (
    PUTS_BETWEEN,
    Retention,
    absorbed_upto,
    check_age,
    check_retention,
    doomed,
    expired_upto,
    is_due,
    is_spent,
    is_untouched,
)

TASK = "0a1b2c3d-0000-5000-8000-00000000000f"


def test_without_bounds_everything_is_kept():
    assert check_retention(None, None) is None


def test_an_age_is_seconds_or_a_timedelta():
    assert check_retention(None, timedelta(minutes=2)) == Retention(None, 120.0) == check_retention(None, 120)
    assert check_retention(3, None) == Retention(3, None)


@pytest.mark.parametrize("keep_last", [0, -1, True, 1.5, "3"])
def test_a_number_that_keeps_nothing_is_refused(keep_last):
    with pytest.raises(ValueError, match="keep_last="):
        check_retention(keep_last, None)


@pytest.mark.parametrize("max_age", [0, -1, True, float("nan"), float("inf"), "1d", timedelta(0)])
def test_what_is_no_positive_time_is_refused(max_age):
    with pytest.raises(ValueError, match="max_age="):
        check_age(max_age)


@pytest.mark.parametrize(
    ("puts", "looked", "is_between_turns", "due"),
    [
        (1, False, False, True),  # what earlier processes have left
        (1, True, False, False),
        (PUTS_BETWEEN - 1, True, False, False),
        (PUTS_BETWEEN, True, False, True),
        (0, False, True, True),
        (0, True, True, False),  # nothing can have changed
        (1, True, True, True),
    ],
)
def test_when_a_thread_is_looked_at(puts, looked, is_between_turns, due):
    assert is_due(puts=puts, looked=looked, is_between_turns=is_between_turns) is due


AGES = {"a": 40.0, "b": 30.0, "c": None, "d": 20.0, "e": 10.0}


@pytest.mark.parametrize(
    ("max_age", "found"),
    [(5, "e"), (10, "d"), (15, "d"), (20, "b"), (25, "b"), (30, "a"), (35, "a"), (40, ""), (50, "")],
)
def test_the_newest_that_is_too_old_is_found_from_the_old_end(max_age, found):
    assert expired_upto(list("edcba"), AGES.get, max_age) == found


def test_the_young_end_is_not_read_to_find_out():
    asked = []

    def age_of(checkpoint_id):
        asked.append(checkpoint_id)
        return AGES[checkpoint_id]

    expired_upto(list("edcba"), age_of, 35)
    assert asked == ["a", "b"]


def going(ids="fedcba", keep_last=None, expired="", protected="", at_least=1, ancestors=None):
    ancestors_of = (ancestors or {}).get
    return "".join(
        doomed(
            list(ids),
            keep_last,
            expired=expired,
            protected=protected,
            at_least=at_least,
            ancestors_of=lambda checkpoint_id: ancestors_of(checkpoint_id, ()),
        )
    )


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({}, ""),
        ({"keep_last": 6}, ""),
        ({"keep_last": 2}, "dcba"),
        ({"expired": "c"}, "cba"),
        ({"keep_last": 2, "expired": "b"}, "dcba"),
        ({"keep_last": 5, "expired": "c"}, "cba"),
        ({"expired": "f"}, "edcba"),  # the newest stays, however old it is
        ({"keep_last": 1, "at_least": 4}, "ba"),
        ({"expired": "f", "at_least": 4}, "ba"),
        ({"keep_last": 1, "protected": "fb"}, "edca"),
        ({"keep_last": 1, "ancestors": {"f": "dc"}}, "eba"),
        ({"keep_last": 1, "protected": "b", "ancestors": {"b": "a"}}, "edc"),
        ({"keep_last": 1, "ids": ""}, ""),
    ],
)
def test_which_checkpoints_go(options, gone):
    assert going(**options) == gone


@given(
    ids=st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True).map(lambda i: sorted(i, reverse=True)),
    keep_last=st.none() | st.integers(1, 8),
    at_least=st.integers(1, 4),
    data=st.data(),
)
def test_what_stays_stays_readable_and_what_goes_was_neither_new_nor_needed(ids, keep_last, at_least, data):
    """Also if the removal is cut short: in its order no checkpoint outlives one that it needs."""
    expired = data.draw(st.sampled_from([*ids, ""]))
    protected = data.draw(st.sets(st.sampled_from(ids))) if ids else set()
    chain = {newer: set(ids[place + 1 : place + 3]) for place, newer in enumerate(ids)}
    needs = {i: chain[i] if data.draw(st.booleans()) else set() for i in ids}
    bounds = {"expired": expired, "protected": protected, "at_least": at_least}
    gone = doomed(ids, keep_last, **bounds, ancestors_of=needs.__getitem__)
    assert not set(gone) & (protected | set(ids[:at_least]))
    for cut in range(len(gone) + 1):
        there = set(ids) - set(gone[:cut])
        assert not set(gone[:cut]) & set().union(*(needs[i] for i in there))
    for i in set(ids) - set(gone) - protected - set(ids[:at_least]):
        is_within = (keep_last is None or ids.index(i) < max(keep_last, at_least)) and i > expired
        assert is_within or any(i in needs[other] for other in set(ids) - set(gone))


@pytest.mark.parametrize(
    ("checkpoint_ns", "spent"),
    [
        (f"agent:{TASK}", True),
        (f"agent:{TASK}|tools:{TASK}", True),
        (f"agent:{TASK}|kept", True),
        (f"agent:{TASK}|1", True),
        ("", False),
        ("agent", False),
        ("agent|tools", False),
        ("user:42", False),
        (f"agent:{TASK}x", False),
    ],
)
def test_only_the_namespace_of_one_call_is_ever_spent(checkpoint_ns, spent):
    assert is_spent(checkpoint_ns, "b", "c") is spent
    assert not is_spent(checkpoint_ns, "c", "c")
    assert not is_spent(checkpoint_ns, "d", "c")
    assert not is_spent(checkpoint_ns, "b", "")


def test_a_thread_that_nothing_is_known_of_is_not_old():
    assert not is_untouched(None, 10**19, 1.0)


@pytest.mark.parametrize(("touched", "old"), [(0, True), (4 * 10**9, True), (5 * 10**9, False), (10**12, False)])
def test_a_thread_is_old_once_it_was_touched_longer_ago(touched, old):
    assert is_untouched(touched, 10_000_000_000, 5.0) is old


def test_the_newest_complete_journal_speaks_for_all_before_it():
    for flags in itertools.product([False, True], repeat=4):
        told = [(token, is_complete) for token, is_complete in enumerate(flags, start=1)]
        upto = absorbed_upto(told)
        assert all(token <= upto for token, is_complete in told if is_complete)
        assert upto == 0 or dict(told)[upto]
