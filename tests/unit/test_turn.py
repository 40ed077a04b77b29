"""Every decision of `_turn`, pair by pair: what each event does to a ledger, and which write each state admits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_turncheckpoint import StaleTurnError, ThreadClosedError
from langgraph_turncheckpoint._turn import (
    CAUSES,
    STRATEGIES,
    Entry,
    LedgerEvent,
    LedgerState,
    Marked,
    Opened,
    Opening,
    Refused,
    Settled,
    advance,
    assemble_turns,
    check_cause,
    check_current,
    check_outside_turn,
    decide_opening,
)

OPEN = LedgerState(token=7, generation=3, epoch=5, closed=False, deleted_upto="d", base="b")
CLOSED = OPEN._replace(closed=True)

#: What each event makes of an open and of a closed ledger; `None` where it is refused.
TRANSITIONS = {
    (OPEN, LedgerEvent.OPEN): OPEN._replace(token=8, base="asked"),
    (OPEN, LedgerEvent.CANCEL): OPEN._replace(token=8, base=""),
    (OPEN, LedgerEvent.CLOSE): OPEN._replace(token=8, base="", closed=True),
    (OPEN, LedgerEvent.REOPEN): OPEN._replace(token=8, base=""),
    (OPEN, LedgerEvent.DELETE): LedgerState(8, 4, 6, False, "newest", ""),
    (OPEN, LedgerEvent.COLLECT): OPEN._replace(epoch=6),
    (CLOSED, LedgerEvent.OPEN): None,
    (CLOSED, LedgerEvent.CANCEL): CLOSED._replace(token=8, base=""),
    (CLOSED, LedgerEvent.CLOSE): CLOSED._replace(token=8, base=""),
    (CLOSED, LedgerEvent.REOPEN): CLOSED._replace(token=8, base="", closed=False),
    (CLOSED, LedgerEvent.DELETE): LedgerState(8, 4, 6, True, "newest", ""),
    (CLOSED, LedgerEvent.COLLECT): CLOSED._replace(epoch=6),
}


def after(state: LedgerState, event: LedgerEvent) -> LedgerState:
    """The ledger after an event, with the argument that the event takes."""
    newest_id = "newest" if event is LedgerEvent.DELETE else ""
    base = "asked" if event is LedgerEvent.OPEN else ""
    return advance(state, event, thread_id="main", newest_id=newest_id, base=base)


def test_the_table_has_every_pair():
    assert set(TRANSITIONS) == set(itertools.product((OPEN, CLOSED), LedgerEvent))


@pytest.mark.parametrize(
    ("state", "event"), TRANSITIONS, ids=lambda value: value.name if isinstance(value, LedgerEvent) else ""
)
def test_each_event_changes_the_ledger_as_the_table_says(state, event):
    expected = TRANSITIONS[state, event]
    if expected is not None:
        assert after(state, event) == expected
        return
    with pytest.raises(ThreadClosedError) as caught:
        after(state, event)
    assert caught.value.thread_id == "main"


@pytest.mark.parametrize(("before", "newest", "expected"), [("", "a", "a"), ("b", "a", "b"), ("a", "b", "b")])
def test_the_newest_deleted_id_never_goes_back(before, newest, expected):
    """A thread of a second life may hold older ids than the first: late writes of both stay refused."""
    state = advance(LedgerState(deleted_upto=before), LedgerEvent.DELETE, thread_id="main", newest_id=newest)
    assert state.deleted_upto == expected


@given(st.lists(st.sampled_from(LedgerEvent), max_size=40))
def test_no_order_of_events_makes_a_token_a_generation_or_an_epoch_go_back(events):
    """T6, T9: each event that fences raises the token by one; pages that may be gone raise the epoch."""
    state = LedgerState()
    for event in events:
        try:
            new = after(state, event)
        except ThreadClosedError:
            assert state.closed
            continue
        assert new.token == state.token + (event is not LedgerEvent.COLLECT)
        assert new.generation == state.generation + (event is LedgerEvent.DELETE)
        assert new.epoch == state.epoch + (event in (LedgerEvent.DELETE, LedgerEvent.COLLECT))
        state = new


#: The token a writer holds, against a ledger at 7; what a write under it gets.
CURRENT = [
    (0, OPEN, StaleTurnError),
    (6, OPEN, StaleTurnError),
    (7, OPEN, None),
    # A ledger that an older copy of it has replaced: the commit raises it to what the writer holds.
    (8, OPEN, None),
    (0, CLOSED, ThreadClosedError),
    (6, CLOSED, ThreadClosedError),
    (7, CLOSED, None),
    (8, CLOSED, None),
]


@pytest.mark.parametrize(("held", "state", "error"), CURRENT)
def test_a_write_under_a_token_is_admitted_if_the_token_is_current(held, state, error):
    """T1. Closing raises the token, so no turn of before it is current."""
    if error is None:
        check_current(state, held, thread_id="main")
        return
    with pytest.raises(error) as caught:
        check_current(state, held, thread_id="main")
    assert caught.value.thread_id == "main"
    if error is StaleTurnError:
        assert (caught.value.held, caught.value.current) == (held, 7)


@pytest.mark.parametrize("event", [event for event in LedgerEvent if event is not LedgerEvent.COLLECT])
def test_every_event_but_a_collection_fences_the_running_turn_out(event):
    running = after(OPEN, LedgerEvent.OPEN)
    with pytest.raises((StaleTurnError, ThreadClosedError)):
        check_current(after(running, event), running.token, thread_id="main")


def test_a_collection_leaves_the_running_turn_alone():
    running = after(OPEN, LedgerEvent.OPEN)
    check_current(after(running, LedgerEvent.COLLECT), running.token, thread_id="main")


def outside(
    state: LedgerState,
    *,
    named_id: str | None = None,
    named_exists: bool = False,
    read_head: str | None = None,
    head_id: str | None = None,
) -> str:
    """What a write outside any turn gets, as a word."""
    try:
        check_outside_turn(
            state,
            thread_id="main",
            named_id=named_id,
            named_exists=named_exists,
            read_head=read_head,
            head_id=head_id,
        )
    except ThreadClosedError:
        return "closed"
    except StaleTurnError as error:
        return "stale" if (error.thread_id, error.held, error.current) == ("main", 0, state.token) else str(error)
    return "admitted"


#: Named checkpoint (or none), whether it is there, the head when it was read as the latest (or none), and the head
#: now: the answer.
#: Ids up to `d` were deleted with the thread.
OUTSIDE = [
    # Nothing is named: a first checkpoint of its own.
    (None, False, None, None, "admitted"),
    (None, False, None, "e", "admitted"),
    # Named by id and there: a fork, wherever the head is.
    ("e", True, None, "e", "admitted"),
    ("e", True, None, "f", "admitted"),
    ("c", True, None, "f", "admitted"),
    # Named by id and not there: deleted with its thread, or not yet there.
    ("c", False, None, None, "stale"),
    ("d", False, None, "e", "stale"),
    ("e", False, None, "d", "admitted"),
    # Read as the latest: it must still be.
    ("e", True, "e", "e", "admitted"),
    ("e", True, "e", "f", "stale"),
    ("c", True, "c", "c", "admitted"),
    ("c", False, "c", None, "stale"),
    ("d", False, "d", "e", "stale"),
    ("e", False, "e", "f", "stale"),
    # A damaged head was passed over: it may still be there, but nothing newer.
    ("e", True, "g", "g", "admitted"),
    ("e", True, "g", "h", "stale"),
    ("e", True, "g", "e", "stale"),
    # Removed since, without a deletion of the thread: what was read as the latest is not the latest any more.
    ("e", False, "e", "b", "stale"),
    ("e", False, "e", None, "stale"),
]


@pytest.mark.parametrize(("named_id", "named_exists", "read_head", "head_id", "expected"), OUTSIDE)
def test_a_write_outside_a_turn_is_admitted_as_the_table_says(named_id, named_exists, read_head, head_id, expected):
    """T3: built on the latest, it is refused once the head has moved; built on an id, it is a fork."""
    row = {
        "named_id": named_id,
        "named_exists": named_exists,
        "read_head": read_head,
        "head_id": head_id,
    }
    assert outside(OPEN, **row) == expected
    assert outside(CLOSED, **row) == "closed"


def test_a_refusal_says_what_happened_and_what_to_do():
    with pytest.raises(StaleTurnError, match="main.*turn 6 was refused.*start a new run") as refused:
        check_current(OPEN, 6, thread_id="main")
    # There may be no turn of that number.
    assert "(the thread is at number 7; an end, a cancel or a delete takes one, too)" in str(refused.value)
    with pytest.raises(ThreadClosedError, match=r"reopen_thread\('main'\)"):
        check_current(CLOSED, 6, thread_id="main")


def test_a_refusal_names_no_number_that_explains_nothing():
    assert "number" not in str(StaleTurnError("main", 6, 6, "the run it belongs to has ended"))
    assert "number" not in str(StaleTurnError("main", 0, 6, "checkpoint c was deleted with its thread"))


# --- busy threads ---


#: What becomes of a wish to open a turn: strategy, busy, first in line.
OPENINGS = {
    ("interrupt", False, False): Opening.OPEN,
    ("interrupt", False, True): Opening.OPEN,
    ("interrupt", True, False): Opening.OPEN,
    ("interrupt", True, True): Opening.OPEN,
    ("reject", False, False): Opening.OPEN,
    ("reject", False, True): Opening.OPEN,
    ("reject", True, False): Opening.REFUSE,
    ("reject", True, True): Opening.REFUSE,
    ("enqueue", False, False): Opening.WAIT,
    ("enqueue", False, True): Opening.OPEN,
    ("enqueue", True, False): Opening.WAIT,
    ("enqueue", True, True): Opening.WAIT,
    ("rollback", False, False): Opening.OPEN,
    ("rollback", False, True): Opening.OPEN,
    ("rollback", True, False): Opening.OPEN,
    ("rollback", True, True): Opening.OPEN,
}


def test_the_table_of_openings_has_every_case():
    assert set(OPENINGS) == set(itertools.product(STRATEGIES, (False, True), (False, True)))


@pytest.mark.parametrize("case", OPENINGS, ids=str)
def test_each_strategy_opens_refuses_or_waits_as_the_table_says(case):
    strategy, busy, first = case
    assert decide_opening(strategy, busy=busy, is_first_in_line=first) is OPENINGS[case]


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_is_one(name):
    assert check_cause(name) == name


def test_a_cause_that_is_none_is_refused_with_the_names_of_all():
    with pytest.raises(ValueError, match=r"'boredom' is not one of 'restart', .*'unknown'"):
        check_cause("boredom")


# --- what a log says ---

PLAIN, KNOWN = Opened(1, 10), Opened(1, 10, 0, "start", known_end=True)
MARKED = Marked(1, 12, 7, "later")
DONE = Settled(1, 20, "completed", None)
CANCELLED = Settled(1, 15, "cancelled", "user")

#: Log, current token, whether the holder lives; and state and cause of the only turn.
ASSEMBLED = [
    ([PLAIN], 1, False, ("unknown", None)),
    ([PLAIN], 2, False, ("unknown", None)),
    ([PLAIN, CANCELLED], 2, False, ("cancelled", "user")),
    ([PLAIN, MARKED], 1, True, ("running", None)),
    ([PLAIN, MARKED], 1, False, ("interrupted", "restart")),
    ([PLAIN, MARKED, DONE], 1, False, ("completed", None)),
    ([KNOWN], 1, True, ("running", None)),
    ([KNOWN], 2, True, ("superseded", "superseded")),
    ([KNOWN], 1, False, ("interrupted", "restart")),
    ([KNOWN], 2, False, ("interrupted", "restart")),
    ([KNOWN, DONE], 2, True, ("completed", None)),
    ([KNOWN, CANCELLED, DONE], 2, False, ("cancelled", "user")),
    ([KNOWN, DONE, CANCELLED], 2, False, ("completed", None)),
    ([KNOWN, DONE, KNOWN], 1, True, ("running", None)),
]


@pytest.mark.parametrize(("log", "current", "lives", "expected"), ASSEMBLED, ids=range(len(ASSEMBLED)))
def test_a_log_is_read_as_the_table_says(log, current, lives, expected):
    (turn,) = assemble_turns(log, current=current, is_live=lambda token: lives)
    assert (turn.state, turn.cause) == expected
    assert (turn.settled_at_ns is None) == (not any(isinstance(entry, Settled) for entry in log) or log[-1] is KNOWN)


LATE, NEWER = Refused(1, 30, "put"), Opened(2, 20)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([PLAIN, NEWER], ("unknown", None)),
        ([PLAIN, NEWER, LATE], ("superseded", "superseded")),
        ([PLAIN, NEWER, LATE._replace(operation="put_writes")], ("superseded", "superseded")),
        ([PLAIN, CANCELLED, NEWER, LATE], ("cancelled", "user")),
        # The thread was closed then.
        ([PLAIN, LATE], ("unknown", None)),
        ([PLAIN, LATE, NEWER], ("unknown", None)),
        ([PLAIN, NEWER, LATE, PLAIN], ("unknown", None)),
        ([KNOWN, NEWER, LATE], ("interrupted", "restart")),
    ],
    ids=range(8),
)
def test_a_plain_run_that_was_refused_a_write_once_a_newer_turn_had_begun_was_superseded(log, expected):
    turn = assemble_turns(log, current=2, is_live=lambda token: False)[-1]
    assert (turn.state, turn.cause) == expected


def test_a_mark_adds_what_was_not_known_when_its_run_began():
    (turn,) = assemble_turns([PLAIN, MARKED], current=1, is_live=lambda token: True)
    assert turn.opened == Opened(1, 10, 7, "later", known_end=True)


def test_what_has_no_beginning_is_dropped_and_turns_come_newest_first():
    log: list[Entry] = [DONE, MARKED, Opened(3, 30), Opened(2, 20), Settled(9, 90, "failed", "error")]
    turns = assemble_turns(log, current=3, is_live=lambda token: True)
    assert [turn.opened.token for turn in turns] == [3, 2]
