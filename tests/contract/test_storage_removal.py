"""C41, C42, C43: pruning, deleting and copying take exactly what they should, and what stays keeps its values."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import InvalidIdError, StaleTurnError, TurnCheckpointSaver
from tests.contract.storing import Thread, addressed, file_of, files_below, fresh, latest, named, packed, read, size_of

MESSAGES = [f"message {n}, long enough to be no inline value " * 4 for n in range(100)]


@pytest.fixture
def thread(tmp_path):
    """Ten checkpoints, each with two messages more than the one before it, of ten runs, with writes on each."""
    thread = Thread(TurnCheckpointSaver(tmp_path / "store", fsync=False))
    for n in range(10):
        thread.put({"messages": MESSAGES[: 40 + 2 * n], "n": n}, metadata={"run_id": f"run-{n}"})
        thread.write(f"write {n}", task_id=f"task-{n}")
    return thread


def ids(saver, thread_id="thread"):
    return [t.checkpoint["id"] for t in fresh(saver).list(addressed(thread_id))]


# --- prune ---


def test_prune_keeps_the_latest_with_its_writes_and_is_idempotent(thread):
    for _ in range(3):
        thread.saver.prune(["thread"])
        thread.assert_whole(fresh(thread.saver), [thread.ids[-1]])
        assert latest(thread.saver).pending_writes == [("task-9", "messages", "write 9")]
        assert thread.saver.verify() == []


def test_prune_gives_space_back(thread):
    thread.put({"messages": ["x" * 500_000], "n": 10})
    thread.put({"messages": MESSAGES[:2], "n": 11})
    before = size_of(thread.saver.path)
    thread.saver.prune(["thread"])
    assert size_of(thread.saver.path) < before - 500_000


@pytest.mark.parametrize("forgetful", [False, True])
def test_pruning_again_and_again_while_the_thread_grows_keeps_every_value(thread, forgetful):
    """Pages pass from checkpoint to checkpoint long after the one that brought them has gone."""
    for n in range(10, 30):
        if forgetful:
            thread.saver = fresh(thread.saver)
        thread.put({"messages": MESSAGES[: 40 + 2 * n], "n": n})
        if n % 3 == 0:
            thread.saver.prune(["thread"])
            thread.assert_whole(fresh(thread.saver), [thread.ids[-1]])
            assert thread.saver.verify() == []
    thread.put({"messages": []})
    thread.put({"messages": [1]})
    thread.saver.prune(["thread"])
    assert len([*named(thread.saver.path, ".pages"), *named(thread.saver.path, ".ckpt")]) == 1


def test_a_pruned_thread_goes_on(thread):
    thread.saver.prune(["thread"])
    thread.put({"messages": MESSAGES[:70], "n": 10})
    thread.assert_whole(fresh(thread.saver), thread.ids[-2:])


def test_pruning_in_another_process_between_two_puts_loses_no_page(thread):
    """The putting saver still remembers pages of the checkpoints that went."""
    fresh(thread.saver).prune(["thread"])
    thread.config = addressed("thread", "", thread.ids[-1])
    thread.put({"messages": MESSAGES[:62], "n": 10})
    thread.assert_whole(fresh(thread.saver), thread.ids[-2:])
    thread.put({"messages": MESSAGES[:40], "n": 11})  # as an early checkpoint had it, by pages that went with it
    thread.assert_whole(fresh(thread.saver), thread.ids[-3:])


def test_prune_drops_writes_whose_checkpoint_never_came_but_not_newer_ones(thread):
    old = addressed("thread", "", thread.ids[4] + "0")
    new = addressed("thread", "", thread.next({}, 500)["id"])
    for config in (old, new):
        thread.saver.put_writes(config, [("messages", "early")], "task")
    thread.saver.prune(["thread"])
    assert [path.name for path in named(thread.saver.path, ".early")] == [
        f"c-{new['configurable']['checkpoint_id']}.early"
    ]


def test_prune_treats_each_namespace_and_each_named_thread_alone(thread):
    for other in (Thread(thread.saver, "thread", "child:1"), Thread(thread.saver, "other")):
        for n in range(3):
            other.put({"n": n})
    thread.saver.prune(["thread", "missing"])
    assert len(list(fresh(thread.saver).list(addressed("thread", "child:1")))) == 1
    assert len(ids(thread.saver, "other")) == 3
    assert "missing" not in thread.saver.thread_ids()


def test_an_unknown_strategy_removes_nothing(thread):
    with pytest.raises(ValueError, match="keep_some"):
        thread.saver.prune(["thread"], strategy="keep_some")
    assert len(ids(thread.saver)) == 10
    thread.saver.prune(["thread"], strategy="delete")
    assert ids(thread.saver) == []


def test_the_checkpoint_that_a_turn_was_pointed_at_is_not_pruned_before_the_turn_has_put(thread):
    with thread.saver.turn(thread.at(3)) as config:
        thread.saver.prune(["thread"])
        assert ids(thread.saver) == [thread.ids[9], thread.ids[3]]
        thread.config = config
        thread.put({"messages": MESSAGES[:46], "n": 50}, number=50)
    thread.assert_whole(fresh(thread.saver), [thread.ids[3], thread.ids[9], thread.ids[-1]])


# --- real graphs ---


def extend(current: list[Any], writes: Any) -> list[Any]:
    return [*current, *(item for write in writes for item in write)]


class DeltaState(TypedDict):
    items: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=1000)]


class PausingState(TypedDict):
    log: Annotated[list[str], operator.add]


def test_pruning_a_delta_channel_keeps_its_values(tmp_path):
    """C41."""
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    builder = StateGraph(DeltaState)
    builder.add_node("add", lambda state: {"items": [f"seen {len(state['items'])}"]})
    builder.add_edge(START, "add")
    builder.add_edge("add", END)
    graph = builder.compile(checkpointer=saver)
    config = addressed("thread")
    for n in range(5):
        graph.invoke({"items": [f"said {n}"]}, config)
    before = graph.get_state(config).values
    assert len(before["items"]) == 10
    saver.prune(["thread"])
    after = builder.compile(checkpointer=fresh(saver))
    assert after.get_state(config).values == before
    assert after.invoke({"items": ["more"]}, config)["items"][:10] == before["items"]


def pausing(saver):
    child = StateGraph(PausingState)
    child.add_node("before", lambda _: {"log": ["child before"]})
    child.add_node("ask", lambda _: {"log": [f"child heard {interrupt('child?')}"]})
    child.add_edge(START, "before")
    child.add_edge("before", "ask")
    builder = StateGraph(PausingState)
    builder.add_node("first", lambda _: {"log": ["first"]})
    builder.add_node("child", child.compile())
    builder.add_node("ask", lambda _: {"log": [f"heard {interrupt('parent?')}"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "child")
    builder.add_edge("child", "ask")
    return builder.compile(checkpointer=saver)


def test_an_interrupt_in_a_subgraph_is_resumed_after_pruning(tmp_path):
    """C42."""
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    config = addressed("thread")
    pausing(saver).invoke({"log": ["start"]}, config)
    saver.prune(["thread"])
    saver = fresh(saver)
    paused = pausing(saver).invoke(Command(resume="yes"), config)
    assert paused["log"][-1] == "child heard yes"
    assert paused["__interrupt__"][0].value == "parent?"
    saver.prune(["thread"])
    done = pausing(fresh(saver)).invoke(Command(resume="no"), config)
    assert done["log"] == ["start", "first", "start", "first", "child before", "child heard yes", "heard no"]


# --- delete ---


def test_deleting_the_newer_of_two_that_share_a_page_leaves_the_older_whole(thread):
    thread.saver.delete_for_runs(["run-9"])
    thread.assert_whole(fresh(thread.saver), thread.ids[:9])
    assert thread.saver.verify() == []


@pytest.mark.parametrize("gone", [[0], [0, 1, 2], [3, 5, 7], [9], [0, 9], list(range(9)), list(range(10))])
@pytest.mark.parametrize("forgetful", [False, True])
def test_deleting_any_runs_leaves_all_others_whole(thread, gone, forgetful):
    saver = fresh(thread.saver) if forgetful else thread.saver
    saver.delete_for_runs([f"run-{n}" for n in gone])
    kept = [checkpoint_id for n, checkpoint_id in enumerate(thread.ids) if n not in gone]
    thread.assert_whole(fresh(saver), kept)
    saver.delete_for_runs([f"run-{n}" for n in gone])
    thread.assert_whole(fresh(saver), kept)
    assert saver.verify() == []
    if not kept:
        assert named(saver.path, ".pages") == []
        return
    thread.config = addressed("thread", "", kept[-1])
    thread.put({"messages": MESSAGES[:80], "n": 99}, number=99)
    thread.assert_whole(fresh(saver), [*kept, thread.ids[-1]])


def test_a_removed_checkpoint_that_is_put_again_keeps_the_pages_others_need(thread):
    thread.saver.delete_for_runs(["run-0"])
    assert named(thread.saver.path, ".pages")
    thread.ids.pop(0)
    thread.config = addressed("thread")
    thread.put({"messages": ["another"], "n": 100}, number=1)
    thread.ids.sort()
    thread.assert_whole(fresh(thread.saver))
    assert thread.saver.verify() == []


def test_a_checkpoint_that_is_put_again_keeps_its_writes_and_the_pages_others_need(thread):
    before = latest(thread.saver).checkpoint["channel_values"]
    thread.config = addressed("thread")
    for _ in range(3):
        thread.put({"messages": ["another"], "n": 100}, number=1)
        thread.ids.pop()
    assert packed(latest(thread.saver).checkpoint["channel_values"]) == packed(before)
    thread.assert_whole(fresh(thread.saver))
    assert read(thread.saver, thread.at(0)).pending_writes == [("task-0", "messages", "write 0")]
    thread.saver.prune(["thread"])
    thread.assert_whole(fresh(thread.saver), [thread.ids[-1]])


def test_no_runs_and_unknown_runs_delete_nothing(thread):
    before = files_below(thread.saver.path)
    thread.saver.delete_for_runs([])
    thread.saver.delete_for_runs(["run-99", ""])
    assert files_below(thread.saver.path) == before


def test_deleting_a_thread_leaves_its_tombstone_and_its_neighbours(tmp_path):
    """C43."""
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    neighbours = [Thread(saver, name) for name in ("thread2", "Thread", "threa", "thread/", "t")]
    for neighbour in neighbours:
        neighbour.put({"messages": MESSAGES[:40]})
    before = files_below(tmp_path)
    for namespace in ("", "child:1|grandchild:2", "n" * 300):
        mine = Thread(saver, "thread", namespace)
        mine.put({"messages": MESSAGES[:40]})
        mine.put({"messages": MESSAGES[:45]})
        mine.write("pending")
        saver.put_writes(addressed("thread", namespace, "zz"), [("c", "early")], "task")
    saver.delete_thread("thread")
    after = files_below(tmp_path)
    assert {name: data for name, data in after.items() if name in before} == before
    assert sorted(after.keys() - before.keys()) == ["threads/t-thread/turn"]
    assert len(after["threads/t-thread/turn"]) < 4_096
    assert b"message" not in after["threads/t-thread/turn"]
    assert saver.get_tuple(addressed("thread")) is None
    assert list(saver.list(addressed("thread"))) == []
    assert set(saver.thread_ids()) == {neighbour.thread_id for neighbour in neighbours}
    for neighbour in neighbours:
        neighbour.assert_whole(fresh(saver))
    assert saver.verify() == []


def test_a_deleted_thread_stays_deleted_and_a_new_start_works(thread):
    thread.saver.delete_thread("thread")
    with pytest.raises(StaleTurnError):
        thread.put({"messages": []})
    again = Thread(thread.saver)
    again.put({"messages": ["new"]}, number=70)
    again.assert_whole(fresh(thread.saver))


def test_deleting_what_is_not_there_makes_nothing(tmp_path):
    saver = TurnCheckpointSaver(tmp_path / "store")
    saver.delete_thread("missing")
    saver.prune(["missing"])
    saver.delete_for_runs(["missing"])
    saver.copy_thread("missing", "target")
    assert not (tmp_path / "store").exists()


# --- copy ---


def test_a_copy_is_whole_and_independent_of_its_source(thread):
    thread.saver.prune(["thread"])
    thread.put({"messages": MESSAGES[:70], "n": 10})
    child = Thread(thread.saver, "thread", "child:1")
    child.put({"messages": MESSAGES[:50]})
    thread.saver.copy_thread("thread", "target")
    thread.saver.delete_thread("thread")
    for source in (thread, child):
        source.thread_id = "target"
        source.assert_whole(fresh(thread.saver), source.ids[-2:])
    assert latest(thread.saver, "target").parent_config == addressed("target", "", thread.ids[-2])
    assert thread.saver.verify() == []


def test_a_copy_onto_an_existing_thread_adds_to_it_and_may_be_repeated(thread):
    target = Thread(thread.saver, "target")
    for n in range(3):
        target.put({"messages": MESSAGES[:50], "n": n}, number=100 + n)
    target.write("pending")
    for _ in range(3):
        thread.saver.copy_thread("thread", "target")
        assert ids(thread.saver, "target") == [*target.ids[::-1], *thread.ids[::-1]]
        assert latest(thread.saver, "target").pending_writes == [("task", "messages", "pending")]
    assert thread.saver.verify() == []
    thread.thread_id = "target"
    thread.values |= target.values
    thread.assert_whole(fresh(thread.saver), [*thread.ids, *target.ids])


def test_a_repeated_copy_brings_what_is_new(thread):
    thread.saver.copy_thread("thread", "target")
    thread.write("later", task_id="late")
    thread.put({"messages": MESSAGES[:90], "n": 90})
    thread.saver.copy_thread("thread", "target")
    assert ids(thread.saver, "target") == thread.ids[::-1]
    found = read(thread.saver, addressed("target", "", thread.ids[-2]))
    assert ("late", "messages", "later") in (found.pending_writes or [])
    thread.thread_id = "target"
    thread.assert_whole(fresh(thread.saver))


def test_a_copy_that_contradicts_the_target_changes_nothing(thread):
    other = Thread(thread.saver, "target")
    other.put({"messages": ["something else"]}, number=1)
    before = {name: data for name, data in files_below(thread.saver.path).items() if not name.endswith("turn")}
    with pytest.raises(InvalidIdError, match="copy to a fresh id"):
        thread.saver.copy_thread("thread", "target")
    after = {name: data for name, data in files_below(thread.saver.path).items() if not name.endswith("turn")}
    assert after == before
    other.assert_whole(fresh(thread.saver))
    thread.assert_whole(fresh(thread.saver))


def test_a_thread_copied_onto_itself_is_unchanged(thread):
    before = files_below(thread.saver.path)
    thread.saver.copy_thread("thread", "thread")
    assert files_below(thread.saver.path) == before


def test_a_copy_of_a_pruned_target_and_a_pruned_source_share_no_fate(thread):
    thread.saver.copy_thread("thread", "target")
    thread.saver.prune(["target"])
    thread.assert_whole(fresh(thread.saver))
    thread.saver.copy_thread("thread", "target")
    thread.thread_id = "target"
    thread.assert_whole(fresh(thread.saver))
    assert thread.saver.verify() == []


def test_what_stays_of_a_removed_checkpoint_is_private(thread):
    thread.saver.delete_for_runs(["run-0"])
    for path in named(thread.saver.path, ".pages"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert Path(file_of(thread.saver, thread.ids[1])).exists()
