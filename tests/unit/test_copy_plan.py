"""What a migration decides about one thread, over all cases; nothing is read or written here."""

from __future__ import annotations

import pytest

from langgraph_turncheckpoint import ThreadConflictError
from langgraph_turncheckpoint._copy_plan import below, changed_versions, make_plan, parents_first
from langgraph_turncheckpoint._same_values import Key, Seen, SeenWrite


def checkpoint(key: str, parent: str | None = None, *, writes: tuple[SeenWrite, ...] = (), ns: str = "") -> Seen:
    return Seen((ns, key), parent, {"a": "1"}, b"rest", {"a": b"value"}, frozenset(), writes)


def thread(*checkpoints: Seen) -> dict[Key, Seen]:
    return {each.key: each for each in checkpoints}


def same(key):
    return None


def different(key):
    return "channel 'a' differs"


ONE, TWO, THREE = checkpoint("1"), checkpoint("2", "1"), checkpoint("3", "2")


def test_an_empty_destination_lacks_everything():
    assert make_plan("t", thread(THREE, TWO, ONE), {}, same) == ([("", "1"), ("", "2"), ("", "3")], [], False, 0)


def test_half_of_it_lacks_the_other_half():
    assert make_plan("t", thread(ONE, TWO, THREE), thread(ONE, THREE), same) == ([("", "2")], [], False, 1)


def test_all_of_it_lacks_nothing():
    assert make_plan("t", thread(ONE, TWO), thread(ONE, TWO), same) == ([], [], False, 0)


def test_newer_checkpoints_mean_that_it_has_gone_on():
    assert make_plan("t", thread(ONE, TWO), thread(ONE, TWO, THREE), same) == ([], [], True, 0)


@pytest.mark.parametrize(
    "there",
    [
        thread(THREE),
        thread(ONE, THREE),  # it lacks one, and has gone on
        thread(ONE, TWO, checkpoint("0")),  # older than what the source has
        thread(checkpoint("1", ns="other")),
    ],
)
def test_a_checkpoint_that_the_source_has_not_is_a_conflict(there):
    with pytest.raises(ThreadConflictError, match="which the source has not") as caught:
        make_plan("t", thread(ONE, TWO), there, same)
    assert caught.value.thread_id == "t"


def test_a_checkpoint_that_differs_is_a_conflict():
    with pytest.raises(ThreadConflictError, match="checkpoint 1 is another one there: channel 'a' differs"):
        make_plan("t", thread(ONE, TWO), thread(ONE), different)


INNER = checkpoint("2.5", ns="inner")


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (thread(), []),
        (thread(checkpoint("9")), []),  # nothing of the source is there: it may be another thread
        (thread(ONE), []),  # a copy that was cut short
        (thread(ONE, TWO), []),
        (thread(ONE, THREE), []),  # what is missing has an older one in front of it
        (thread(THREE), [("", "1"), ("", "2")]),
        (thread(TWO), [("", "1")]),
        (thread(THREE, checkpoint("4", "3")), [("", "1"), ("", "2")]),
        (thread(INNER), []),  # a namespace of which nothing is there
        (thread(INNER, checkpoint("4", "3")), [("", "1"), ("", "2"), ("", "3")]),
    ],
)
def test_a_prune_may_have_taken_what_is_in_front_of_all_that_is_there(there, expected):
    assert below(thread(ONE, TWO, THREE, INNER), there) == expected


CALL = "sub:11111111-2222-3333-4444-555555555555"
INSIDE, INSIDE_TOO = checkpoint("1.1", ns=CALL), checkpoint("1.2", "1.1", ns=CALL)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (thread(TWO), [("", "1"), (CALL, "1.1"), (CALL, "1.2")]),
        (thread(TWO, INSIDE), [("", "1"), (CALL, "1.2")]),  # a removal was cut short: it begins with the newest
        (thread(ONE), []),  # a copy that was cut short
        (thread(ONE, TWO), []),
        (thread(INSIDE), []),
    ],
)
def test_a_prune_may_have_taken_a_whole_call_of_a_subgraph_that_nothing_comes_back_to(there, expected):
    assert below(thread(ONE, TWO, INSIDE, INSIDE_TOO), there) == expected


def test_a_subgraph_that_keeps_its_state_is_never_taken_for_one():
    assert below(thread(ONE, TWO, checkpoint("1.1", ns="inner")), thread(TWO)) == [("", "1")]


def test_what_is_left_out_is_not_missing_and_a_destination_without_it_may_have_gone_on():
    source, gone = thread(ONE, TWO, THREE), [("", "1"), ("", "2")]
    assert make_plan("t", source, thread(THREE), same, gone=gone) == ([], [], False, 0)
    assert make_plan("t", source, thread(THREE), same) == (gone, [], False, 2)
    assert make_plan("t", source, thread(THREE, checkpoint("4", "3")), same, gone=gone) == ([], [], True, 0)
    gone_on = thread(THREE, checkpoint("4", "3"))
    assert make_plan("t", source, gone_on, same, gone=gone, restore=True) == (gone, [], True, 2)
    with pytest.raises(ThreadConflictError, match="or do as I say"):
        make_plan("t", source, thread(THREE, checkpoint("4", "3")), same, instead="do as I say")


WRITE, OTHER, ASK, ASKED = (
    SeenWrite("task", "a", b"1"),
    SeenWrite("task", "a", b"2"),
    SeenWrite("task", "__interrupt__", b"1"),
    SeenWrite("task", "__interrupt__", b"2"),
)


@pytest.mark.parametrize(
    ("source", "there", "lacks"),
    [((), (), False), ((WRITE,), (WRITE,), False), ((WRITE, OTHER), (WRITE,), True), ((ASK,), (ASKED,), True)],
)
def test_missing_writes_are_put_and_special_ones_replaced(source, there, lacks):
    plan = make_plan("t", thread(checkpoint("1", writes=source)), thread(checkpoint("1", writes=there)), same)
    assert plan == ([], [("", "1")] if lacks else [], False, 0)


@pytest.mark.parametrize(("source", "there"), [((), (WRITE,)), ((WRITE,), (OTHER,)), ((), (ASK,))])
def test_foreign_writes_are_a_conflict(source, there):
    with pytest.raises(ThreadConflictError, match="pending writes"):
        make_plan("t", thread(checkpoint("1", writes=source)), thread(checkpoint("1", writes=there)), same)


def test_writes_that_the_source_has_lost_are_no_conflict():
    source, there = thread(checkpoint("1", writes=(WRITE,))), thread(checkpoint("1", writes=(WRITE, ASK)))
    assert make_plan("t", source, there, same, half_read=[("", "1")]) == ([], [], False, 0)
    with pytest.raises(ThreadConflictError, match="pending writes"):
        make_plan("t", source, there, same, half_read=[("", "2")])


def test_parents_come_first_even_where_their_ids_are_greater():
    threads = thread(checkpoint("1", "5"), checkpoint("2", "1"), checkpoint("5", "4"), checkpoint("4"))
    assert [key for _, key in parents_first(threads, threads)] == ["4", "5", "1", "2"]


def test_a_circle_and_a_missing_parent_do_not_stop_it():
    threads = thread(checkpoint("1", "2"), checkpoint("2", "1"), checkpoint("3", "gone"))
    assert sorted(parents_first(threads, threads)) == sorted(threads)


def test_a_parent_of_another_namespace_is_none():
    threads = thread(checkpoint("1", "2"), checkpoint("2", ns="inner"))
    assert parents_first(threads, threads) == [("", "1"), ("inner", "2")]


def test_versions_are_new_where_the_value_is_not_the_parents():
    def seen(versions, values):
        return Seen(("", "1"), None, versions, b"r", values, frozenset(), ())

    parent = seen({"same": "1", "moved": "1", "mutated": "1", "unknown": "1"},
                  {"same": b"a", "moved": b"a", "mutated": b"a", "unknown": b""})  # fmt: skip
    this = seen(
        {"same": "1", "moved": "2", "mutated": "1", "unknown": "1", "new": "1", "empty": "2"},
        {"same": b"a", "moved": b"a", "mutated": b"b", "unknown": b"", "new": b"a", "unversioned": b"a"},
    )
    assert dict(changed_versions(this, parent)) == {"moved": "2", "mutated": "1", "unknown": "1", "new": "1"}
    assert dict(changed_versions(parent, None)) == dict(parent.versions)
