"""The line for a busy thread: first come, first served, and the dead do not count."""

from __future__ import annotations

import os

import pytest

from langgraph_turncheckpoint._waiting import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Patience,
    Ticket,
    predecessor,
    ticket_number,
    ticket_numbers,
    ticket_path,
)


def test_tickets_are_served_in_the_order_in_which_they_were_taken(tmp_path):
    line = str(tmp_path)
    tickets = [Ticket.take(line) for _ in range(3)]
    assert [predecessor(line, ticket, remove_dead=True) for ticket in tickets] == [None, 1, 2]
    assert predecessor(line, None, remove_dead=True) == 3
    tickets[0].leave()
    tickets[0].leave()
    assert [predecessor(line, ticket, remove_dead=True) for ticket in tickets[1:]] == [None, 2]
    tickets.append(Ticket.take(line))
    assert predecessor(line, tickets[-1], remove_dead=True) == 3
    tickets[2].leave()
    assert predecessor(line, tickets[-1], remove_dead=True) == 2


def test_nobody_who_left_keeps_a_file(tmp_path):
    Ticket.take(str(tmp_path)).leave()
    assert os.listdir(tmp_path) == []


def test_a_dead_waiter_does_not_count_and_is_removed_by_who_holds_the_lock(tmp_path):
    line = str(tmp_path)
    (tmp_path / "q-1").touch()
    ticket = Ticket.take(line)
    assert ticket.number == 2
    assert predecessor(line, ticket, remove_dead=False) is None
    assert ticket_numbers(line) == [1, 2]
    assert predecessor(line, ticket, remove_dead=True) is None
    assert ticket_numbers(line) == [2]
    ticket.leave()


def test_a_ticket_of_a_generation_that_is_gone_can_be_given_back(tmp_path):
    ticket = Ticket.take(str(tmp_path))
    os.unlink(ticket_path(str(tmp_path), ticket.number))
    ticket.leave()


@pytest.mark.parametrize("name", ["q-", "q-01", "q--1", "1", "q-x", "q-1.tmp", "n-"])
def test_other_files_are_no_tickets(name):
    assert ticket_number(name) is None


class Clock:
    """Seconds that a test moves on."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_pauses_grow_while_nothing_changes_and_start_again_when_something_does():
    patience = Patience(None, clock=Clock())
    pauses = [patience.pause("busy") or 0.0 for _ in range(20)]
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert patience.pause("another turn") == FIRST_PAUSE
    assert (patience.pause("another turn") or 0.0) > FIRST_PAUSE


def test_a_waiter_looks_once_more_when_its_time_is_over():
    clock = Clock()
    patience = Patience(0.02, clock=clock)
    waited = 0.0
    while (pause := patience.pause("busy")) is not None:
        clock.now += pause
        waited += pause
    assert waited == pytest.approx(0.02)
    assert patience.waited == pytest.approx(0.02)


def test_who_has_no_time_does_not_wait():
    assert Patience(0, clock=Clock()).pause("busy") is None
