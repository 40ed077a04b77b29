"""What retention and pruning may never take: what a recovery, a rollback, a resume, a subgraph, a delta channel or a
reader that is under way still needs, however the limits are set and wherever they are cut short.
"""

from __future__ import annotations

import errno
import operator
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import DamagedCheckpointError, TurnCheckpointSaver, _collect, _housekeeping, _upkeep
from langgraph_turncheckpoint._loading import LoadedFile
from langgraph_turncheckpoint._retention import Retention
from langgraph_turncheckpoint._runs import TURN_KEY
from langgraph_turncheckpoint._transcript import GAP, encode_record
from langgraph_turncheckpoint._turn import LedgerState
from tests.contract.storing import Thread, addressed, file_of, fresh, named
from tests.crash.processes import PATIENCE_SECONDS
from tests.langgraph_versions import needs_answered_questions_to_be_gone
from tests.system_calls import SystemCalls, calls_of, substituted

MESSAGES = [f"message {n}, long enough to be no inline value " * 4 for n in range(200)]
BIG = ["a page of its own, for certain " * 300]

#: Older than this is everything.
NO_AGE = 1e-9


def ids_of(saver: TurnCheckpointSaver, thread_id: str = "thread", checkpoint_ns: str = "") -> list[str]:
    return [found.checkpoint["id"] for found in fresh(saver).list(addressed(thread_id, checkpoint_ns))]


def filled(path: Path, count: int, **options: Any) -> Thread:
    thread = Thread(TurnCheckpointSaver(path, **{"fsync": False, **options}))
    for n in range(count):
        thread.put({"messages": MESSAGES[: 40 + 2 * n], "n": n})
    return thread


def retained(saver: TurnCheckpointSaver, thread_id: str = "thread", **retention: Any) -> int:
    return _upkeep.retain(saver.store, thread_id, Retention(**retention))


def pruned(saver: TurnCheckpointSaver, thread_id: str = "thread") -> None:
    saver.prune([thread_id])


def thinned(saver: TurnCheckpointSaver, thread_id: str = "thread") -> None:
    retained(saver, thread_id, keep_last=1)


EITHER = pytest.mark.parametrize("remove", [pruned, thinned])


# --- delta channels ---


def extend(old: list[Any], writes: list[Any]) -> list[Any]:
    return [*old, *(item for write in writes for item in write)]


def delta_graph(saver: TurnCheckpointSaver, frequency: int = 7) -> Any:
    """A graph whose list is written whole in each so manieth step, and has to be rebuilt in between."""
    state: Any = TypedDict("state", {"items": Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=frequency)]})
    builder: Any = StateGraph(state)
    builder.add_node("add", lambda state: {"items": [f"seen {len(state['items'])}"]})
    builder.add_edge(START, "add")
    builder.add_edge("add", END)
    return builder.compile(checkpointer=saver)


def history_of(saver: TurnCheckpointSaver) -> dict[str, Any]:
    states = delta_graph(fresh(saver)).get_state_history(addressed("thread"))
    return {state.config["configurable"]["checkpoint_id"]: state.values for state in states}


def delta_thread(path: Path, runs: int) -> TurnCheckpointSaver:
    saver = TurnCheckpointSaver(path, fsync=False)
    graph = delta_graph(saver)
    for n in range(runs):
        graph.invoke({"items": [f"said {n}"]}, addressed("thread"))
    return saver


@pytest.mark.parametrize("keep_last", [1, 2, 3])
@pytest.mark.parametrize("runs", range(4, 12))
def test_wherever_the_newest_snapshot_is_what_stays_keeps_its_values_and_no_more_stays(tmp_path, runs, keep_last):
    """C41: the ancestors that an older one needs stay with it, also where the newest needs none of them."""
    saver = delta_thread(tmp_path, runs)
    before = history_of(saver)
    retained(saver, keep_last=keep_last)
    after = history_of(saver)
    assert [*after][:keep_last] == [*before][:keep_last]
    assert after == {checkpoint_id: before[checkpoint_id] for checkpoint_id in after}
    assert len(after) <= keep_last + 10  # back to a snapshot, and no further
    assert saver.verify() == []


def test_a_retention_that_is_cut_short_leaves_nothing_that_has_lost_what_it_is_rebuilt_from(tmp_path):
    saver = delta_thread(tmp_path, 20)
    before, asked = history_of(saver), [False, True]
    gone = _upkeep.retain(saver.store, "thread", Retention(keep_last=2), is_stopped=lambda: asked.pop(0))
    assert gone == _upkeep.BATCH
    after = history_of(saver)
    assert len(after) == len(before) - gone
    assert after == {checkpoint_id: before[checkpoint_id] for checkpoint_id in after}


# --- the lock, and what comes between ---


def test_the_lock_is_given_back_after_each_batch(tmp_path, monkeypatch):
    """A write waits for one batch, not for all that is to go."""
    thread = filled(tmp_path, 2 * _upkeep.BATCH + 5)
    real, removed = _collect.remove_checkpoints, []

    def remove(files, chosen):
        removed.append(len(chosen))
        real(files, chosen)

    monkeypatch.setattr(_upkeep, "remove_checkpoints", remove)
    assert retained(thread.saver, keep_last=1) == sum(removed) == 2 * _upkeep.BATCH + 4
    assert removed == [_upkeep.BATCH, _upkeep.BATCH, 4]


def test_a_retention_that_is_told_to_stop_before_it_begins_removes_nothing(tmp_path):
    thread = filled(tmp_path, 6)
    assert _upkeep.retain(thread.saver.store, "thread", Retention(keep_last=1), is_stopped=lambda: True) == 0
    thread.assert_whole(fresh(thread.saver))


@EITHER
def test_a_saver_that_remembers_pages_stores_again_what_went_with_a_removal_elsewhere(tmp_path, remove):
    """S4: the removal tells by the epoch that pages may be gone; the values of a later put are all there."""
    thread = Thread(TurnCheckpointSaver(tmp_path, fsync=False))
    for value in (BIG, ["another"]):
        thread.put({"x": value})
    remove(fresh(thread.saver))
    thread.put({"x": ["another"], "y": 1})
    thread.put({"x": BIG})
    thread.assert_whole(fresh(thread.saver), thread.ids[1:])
    assert thread.saver.verify() == []


@EITHER
def test_a_removal_raises_the_epoch_and_one_that_finds_nothing_does_not(tmp_path, remove):
    thread = filled(tmp_path, 6)

    def epoch() -> int:
        return (thread.saver.store.thread("thread").ledger.read() or LedgerState()).epoch

    before = epoch()
    remove(thread.saver)
    assert epoch() == before + 1
    remove(thread.saver)
    assert epoch() == before + 1


@pytest.mark.parametrize("count", [5, 2 * _upkeep.BATCH])
def test_writes_whose_checkpoint_never_came_go_with_those_around_them_and_newer_ones_stay(tmp_path, count):
    thread = filled(tmp_path, count)
    for position in (0, count // 2, count - 3, count - 2, count - 1):
        thread.saver.put_writes(addressed("thread", "", thread.ids[position] + "0"), [("n", "early")], "task")
    retained(thread.saver, keep_last=1)
    assert [path.name for path in named(tmp_path, ".early")] == [f"c-{i}0.early" for i in thread.ids[-2:]]
    thread.assert_whole(fresh(thread.saver), thread.ids[-1:])


def test_a_thread_that_is_deleted_between_choosing_and_removing_stays_deleted(tmp_path, monkeypatch):
    thread = filled(tmp_path, 6)
    real = _upkeep._plan

    def plan(*args):
        planned = real(*args)
        thread.saver.delete_thread("thread")
        return planned

    monkeypatch.setattr(_upkeep, "_plan", plan)
    assert retained(thread.saver, keep_last=1) == 0 or ids_of(thread.saver) == []
    assert thread.saver.thread_ids() == []
    assert thread.saver.verify() == []


def test_a_reader_that_has_begun_a_list_gets_whole_checkpoints_and_no_error_after_a_removal(tmp_path):
    thread = filled(tmp_path, 40)
    reading = fresh(thread.saver).list(addressed("thread"))
    seen = [next(reading), next(reading)]
    retained(thread.saver, keep_last=5)
    seen += reading
    found = [each.checkpoint["id"] for each in seen]
    assert found[:5] == thread.ids[:-6:-1]
    assert found == sorted(found, reverse=True)
    for each in seen:
        n = thread.ids.index(each.checkpoint["id"])
        assert each.checkpoint["channel_values"] == {"messages": MESSAGES[: 40 + 2 * n], "n": n}


# --- what is damaged ---


@EITHER
def test_where_the_newest_shares_pages_with_a_damaged_one_the_newest_that_loads_stays_too(tmp_path, remove):
    """S6: what a reader falls back to is not taken away."""
    thread = Thread(TurnCheckpointSaver(tmp_path, fsync=False))
    for values in ({"x": ["older"]}, {"x": ["whole"]}, {"x": BIG}, {"x": [*BIG, "more"]}):
        thread.put(values)
    file = file_of(thread.saver, thread.ids[2])
    file.write_bytes(file.read_bytes()[:-100])
    remove(thread.saver)
    assert len(named(tmp_path, ".ckpt")) == 3
    with pytest.warns():
        found = fresh(thread.saver).get_tuple(addressed("thread"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": ["whole"]}


@EITHER
def test_where_the_writes_of_the_newest_make_no_sense_the_one_before_it_stays_too(tmp_path, remove, monkeypatch):
    """Their checksum may be right all the same: another program, or a faulty one, has written them."""
    thread = filled(tmp_path, 4)
    thread.write("a result", task_id="task")
    real = LoadedFile.writes

    def writes(self: LoadedFile, *args: Any, **options: Any) -> Any:
        if self.checkpoint_id == thread.ids[-1]:
            raise DamagedCheckpointError("somewhere", "its writes make no sense")
        return real(self, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LoadedFile, "writes", writes)
        remove(fresh(thread.saver))
    assert ids_of(thread.saver) == thread.ids[:-3:-1]


def test_ages_are_told_although_checkpoints_between_cannot_be_read(tmp_path):
    thread = Thread(TurnCheckpointSaver(tmp_path, fsync=False))
    for n in range(6):
        thread.put({"n": n})
    for position in (0, 3):
        file = file_of(thread.saver, thread.ids[position])
        file.write_bytes(file.read_bytes()[:40])
    retained(thread.saver, max_age=NO_AGE)
    assert ids_of(thread.saver) == thread.ids[-1:]


def test_ancestors_that_cannot_be_told_keep_nothing_from_going(tmp_path):
    thread = Thread(TurnCheckpointSaver(tmp_path, fsync=False))
    for n in range(8):
        thread.put({"n": n})
    file = file_of(thread.saver, thread.ids[-2])
    file.write_bytes(file.read_bytes()[:40])
    assert retained(thread.saver, keep_last=3) == 5


# --- turns ---


def dead_turn(thread: Thread, count: int, *, payload: bool) -> Any:
    """A turn that has put so many checkpoints when its process died."""
    opened = thread.saver.turn(addressed("thread"))
    config = opened.__enter__()
    for n in range(count):
        thread.config = {"configurable": {**config["configurable"], "checkpoint_id": thread.ids[-1]}}
        thread.put({"messages": MESSAGES[:n], "n": 100 + n})
    assert opened.journal is not None
    if payload:
        opened.journal.append(encode_record(thread.saver.store.codec, GAP, []), sync=False)
    opened.journal.close()
    return opened


@EITHER
def test_nobody_rolls_back_a_turn_that_is_dead_so_its_start_goes(tmp_path, remove):
    thread = filled(tmp_path, 4)
    dead_turn(thread, 3, payload=False)
    remove(fresh(thread.saver))
    assert ids_of(thread.saver) == thread.ids[-1:]


@pytest.mark.parametrize("how", ["damaged", "whole"])
def test_a_journal_that_a_dead_turn_left_keeps_what_a_recovery_looks_at_also_where_it_is_damaged(tmp_path, how):
    thread = filled(tmp_path, 20)
    opened = dead_turn(thread, 3, payload=True)
    if how == "damaged":
        path = Path(opened.journal.path)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert retained(thread.saver, keep_last=2) == 0
    assert len(ids_of(thread.saver)) == 23


def test_a_turn_that_runs_has_left_no_journal_yet(tmp_path):
    thread = filled(tmp_path, 20)
    with thread.saver.turn(addressed("thread")) as config:
        opened = thread.saver.store.explicit_turn("thread", config["configurable"][TURN_KEY]["token"])
        assert opened.journal is not None
        opened.journal.append(encode_record(thread.saver.store.codec, GAP, []), sync=False)
        assert retained(thread.saver, keep_last=2) == 18


@EITHER
def test_a_turn_that_starts_over_from_an_old_checkpoint_keeps_what_its_subgraphs_held_then(tmp_path, remove):
    """C42: a subgraph that keeps its state goes on from its own newest checkpoint of that time."""
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    root, child = Thread(saver, "thread"), Thread(saver, "thread", "child")
    for n in range(6):
        child.put({"n": n}, number=2 * n + 1)
        root.put({"n": n}, number=2 * n + 2)
    with saver.turn(root.at(2)):
        remove(saver)
        assert ids_of(saver) == [root.ids[-1], root.ids[2]]
        assert ids_of(saver, "thread", "child") == [child.ids[-1], child.ids[2]]
    with saver.turn(addressed("thread")):
        remove(saver)
        assert ids_of(saver, "thread", "child") == child.ids[-1:]


# --- subgraphs ---

CALL = "inner:0a1b2c3d-0000-5000-8000-00000000000f"


def spread(saver: TurnCheckpointSaver, **numbers: list[int]) -> None:
    """Checkpoints by namespace, numbered in the order in which they were made."""
    names = {"root": "", "call": CALL, "kept": "child"}
    threads = {name: Thread(saver, "thread", names[name]) for name in numbers}
    for number, name in sorted((number, name) for name, found in numbers.items() for number in found):
        threads[name].put({"n": number}, number=number)


@pytest.mark.parametrize("kept", [[1, 9], [8, 9], [2, 3]])
def test_only_the_root_tells_whether_a_call_can_still_be_come_back_to(tmp_path, kept):
    """Subgraphs that keep their state have checkpoints of their own times."""
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    spread(saver, root=[4, 5], call=[6, 7], kept=kept)
    retained(saver, keep_last=1)
    assert len(ids_of(saver, "thread", CALL)) == 1
    saver = TurnCheckpointSaver(tmp_path / "later", fsync=False)
    spread(saver, root=[4, 5, 8], call=[6, 7], kept=kept)
    retained(saver, keep_last=1)
    assert ids_of(saver, "thread", CALL) == []
    assert len(ids_of(saver, "thread", "child")) == 1


def test_a_namespace_that_has_served_its_purpose_goes_also_where_no_number_is_exceeded(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    spread(saver, root=[4, 5], call=[1, 2, 3])
    assert retained(saver, keep_last=5) == 3
    assert (len(ids_of(saver)), ids_of(saver, "thread", CALL)) == (2, [])


def test_a_subgraph_is_thinned_out_also_where_its_root_has_few(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    spread(saver, root=[9], kept=[1, 2, 3, 4, 5])
    assert retained(saver, keep_last=2) == 3
    assert len(ids_of(saver, "thread", "child")) == 2


# --- people who take their time ---


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def asking(saver: TurnCheckpointSaver, effects: list[Any]) -> Any:
    """A graph with two subgraphs beside each other that each ask a person in their second step."""

    def ask(state: Any) -> Any:
        answer = interrupt("may I?")
        effects.append(answer)
        return {"log": [answer]}

    inner: Any = StateGraph(Log)
    inner.add_node("first", lambda _: {"log": ["first"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    outer: Any = StateGraph(Log)
    outer.add_node("inner", inner.compile())
    outer.add_conditional_edges(START, lambda _: [Send("inner", {"log": ["a"]}), Send("inner", {"log": ["b"]})])
    outer.add_edge("inner", END)
    return outer.compile(checkpointer=saver)


@needs_answered_questions_to_be_gone
@pytest.mark.parametrize("limits", [{"max_age": NO_AGE}, {"keep_last": 1}, {"keep_last": 1, "max_age": NO_AGE}])
def test_a_thread_that_waits_for_a_person_longer_than_anything_is_kept_is_resumed_as_if_it_had_not(tmp_path, limits):
    """C42: with two questions in subgraphs, answered one after the other, and a removal before each answer."""
    seen = []
    for is_thinned in (False, True):
        saver, effects = TurnCheckpointSaver(tmp_path / str(is_thinned), fsync=False), list[Any]()
        config: Any = {"configurable": {"thread_id": "thread"}}
        for n in range(3):
            asking(saver, effects).invoke({"log": [n]}, config)
            while questions := asking(fresh(saver), effects).get_state(config).interrupts:
                if is_thinned:
                    retained(saver, **limits)
                answer = f"yes {n} {len(questions)}"
                asking(fresh(saver), effects).invoke(Command(resume={questions[0].id: answer}), config)
        seen.append((effects, asking(fresh(saver), effects).get_state(config).values))
        assert saver.verify() == []
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 6


@pytest.mark.parametrize("limits", [{"max_age": NO_AGE}, {"keep_last": 1}])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_plain_run_on_an_old_checkpoint_keeps_its_fork_whatever_is_removed_while_it_runs(
    tmp_path, limits, durability
):
    """Its parent stays until the next run begins, so that the branch can be built, and read back."""
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    is_thinning = False

    def add(state: Any) -> Any:
        if is_thinning:
            retained(saver, **limits)
        return {"log": [len(state["log"])]}

    builder: Any = StateGraph(Log)
    for name, before in (("a", START), ("b", "a")):
        builder.add_node(name, add)
        builder.add_edge(before, name)
    builder.add_edge("b", END)
    graph = builder.compile(checkpointer=saver)
    for n in range(4):
        graph.invoke({"log": [f"said {n}"]}, addressed("thread"))
    old = [*graph.get_state_history(addressed("thread"))][9]
    assert old.next == ("b",)
    is_thinning = True
    forked = graph.invoke(None, old.config, durability=durability)
    assert forked["log"] == [*old.values["log"], len(old.values["log"])]
    assert graph.get_state(addressed("thread")).values == forked
    assert graph.get_state(old.config).values == old.values
    graph.invoke({"log": ["on"]}, addressed("thread"))
    assert old.config["configurable"]["checkpoint_id"] not in ids_of(saver)
    assert saver.verify() == []


# --- limits that make no sense ---


@pytest.mark.parametrize("keep_last", [0, -1, True, False, 2.0, "2", "", [2], timedelta(2), float("nan")])
def test_a_number_that_is_none_is_refused_before_anything_is_made(tmp_path, keep_last):
    with pytest.raises(ValueError, match="keep_last="):
        TurnCheckpointSaver(tmp_path / "store", keep_last=keep_last)
    assert not (tmp_path / "store").exists()


ODD_AGES: list[Any] = [0, -1, True, False, "30", "30d", "", [1], float("nan"), float("inf"), 10**400]
ODD_AGES += [timedelta(0), timedelta(-1), timedelta, object()]


@pytest.mark.parametrize("max_age", ODD_AGES, ids=lambda age: repr(age)[:12])
def test_an_age_that_is_none_is_refused_and_nothing_goes(tmp_path, max_age):
    thread = filled(tmp_path, 3)
    with pytest.raises(ValueError, match="max_age="):
        TurnCheckpointSaver(tmp_path, max_age=max_age)
    for dry_run in (True, False):
        with pytest.raises(ValueError, match="max_age="):
            thread.saver.sweep(max_age=max_age, dry_run=dry_run)
    thread.assert_whole(fresh(thread.saver))


@pytest.mark.parametrize("max_age", [timedelta.max, 10**300, 1e308, timedelta(days=30), 1])
def test_any_positive_time_is_an_age(tmp_path, max_age):
    thread = filled(tmp_path, 3, max_age=max_age)
    assert _housekeeping.drain(PATIENCE_SECONDS)
    thread.assert_whole(fresh(thread.saver))
    assert thread.saver.sweep(max_age=max_age).threads == ()


# --- faults ---


def only_there(fault: Callable[[int], int | None]) -> Callable[[int, str], int | None]:
    """A fault that counts, and meets, the system calls of the retention's own thread alone."""
    count = iter(range(10**9))

    def decide(_: int, name: str) -> int | None:
        return fault(next(count)) if threading.current_thread().name == "turncheckpoint-upkeep" else None

    return decide


def positions(path: Path) -> Iterator[int]:
    template = filled(path, 8)
    names = calls_of(lambda: retained(TurnCheckpointSaver(path), keep_last=2))
    assert template.saver.verify() == []
    yield from range(0, len(names), 9)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_whatever_system_call_fails_in_a_retention_no_write_beside_it_fails(tmp_path, code):
    for position in positions(tmp_path / "counted"):
        saver = TurnCheckpointSaver(tmp_path / str(position), keep_last=2)
        thread = Thread(saver)
        fault = only_there(lambda at, position=position: code if at >= position else None)  # type: ignore[misc]
        with substituted(SystemCalls(fault)):
            for n in range(20):
                thread.put({"messages": MESSAGES[: 40 + n], "n": n})
                thread.write(f"write {n}", task_id=f"task-{n}")
            assert _housekeeping.drain(PATIENCE_SECONDS)
        thread.assert_whole(fresh(saver), ids_of(saver)[::-1])
        assert ids_of(saver)[0] == thread.ids[-1]
        retained(saver, keep_last=2)
        thread.assert_whole(fresh(saver), thread.ids[-2:])
        assert saver.verify() == []
