"""`saver.repair`: what becomes of damaged files and of threads that were cut off, without their graphs."""

from __future__ import annotations

import itertools
import os
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langgraph_turncheckpoint import DamagedCheckpointError, DamageWarning, Repair, TurnCheckpointSaver, TurnGuard
from langgraph_turncheckpoint._repair import ThreadFacts, why_not
from langgraph_turncheckpoint._repair_files import Remedy, remedy_for
from langgraph_turncheckpoint._store import Store
from tests.contract import cut_off_threads as cut
from tests.contract.stopped_agents import broken_rule, history, outcomes
from tests.crash import damaged_store


@pytest.fixture
def store(tmp_path):
    """The store of an app that was killed."""
    return cut.copy_of_store(tmp_path)


@pytest.fixture
def saver(store):
    return TurnCheckpointSaver(store)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def messages_of(saver: TurnCheckpointSaver, thread_id: str) -> list[Any]:
    found = saver.get_tuple(cut.config(thread_id))
    assert found is not None
    messages: list[Any] = found.checkpoint["channel_values"]["messages"]
    return messages


# --- which threads may be touched ---

REST = ThreadFacts(closed=False, busy=False, last_state="interrupted", waits=False, seconds_idle=0.0)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (REST, None),
        (REST._replace(closed=True), "closed"),
        (REST._replace(busy=True), "running"),
        (REST._replace(waits=True), "waits for a person"),
        (REST._replace(last_state="paused"), "waits for a person"),
        (REST._replace(last_state="unknown", seconds_idle=9.0), "may be at work"),
        (REST._replace(last_state="unknown", seconds_idle=10.0), None),
        (REST._replace(last_state="failed"), None),
    ],
)
def test_a_history_is_finalized_only_where_nobody_is_at_work_or_asked(facts, reason):
    found = why_not(facts, idle=10.0)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("kind", "name", "parent", "is_partial", "remedy"),
    [
        ("damaged", "c-1.ckpt", "b-", False, Remedy.ASIDE),
        ("damaged", "c-1.ckpt", "b-", True, Remedy.TRIM),
        ("damaged", "c-1.early", "b-", True, Remedy.TRIM),
        ("damaged", "c-1.pages", "b-", False, Remedy.ASIDE),
        ("damaged", "turn", "t-1", False, Remedy.LEDGER),
        ("missing", "turn", "t-1", False, Remedy.LEDGER),
        ("damaged", "turns", "g-1", False, Remedy.LOG),
        ("damaged", "j-1.journal", "g-1", False, Remedy.EVIDENCE),
        ("damaged", "i-0000000000000001.msg", "inbox", False, Remedy.ASIDE),
        ("damaged", "what", "g-1", False, Remedy.LEAVE),
        ("newer", "c-1.ckpt", "b-", False, Remedy.LEAVE),
        ("missing", "c-1.ckpt", "b-", False, None),
        ("temporary", "c-1.ckpt.tmp", "b-", False, None),
        ("foreign", "notes", "g-1", False, None),
        ("orphan", "c-1.pages", "b-", False, None),
        ("aside", "c-1.ckpt.1", "damaged", False, None),
    ],
)
def test_each_finding_has_its_remedy(kind, name, parent, is_partial, remedy):
    assert remedy_for(kind, name, parent, is_partial=is_partial) is remedy


# --- histories ---


def test_a_dry_run_tells_what_would_be_done_and_changes_no_file(saver, store):
    before = contents(store)
    told = saver.repair(idle=0)
    assert contents(store) == before
    assert {(each.thread_id, each.kind) for each in told} == {
        *((thread_id, "finalized") for thread_id in cut.CUT_OFF),
        (cut.WAITING, "pending"),
    }
    done = saver.repair(idle=0, dry_run=False)
    assert [each._replace(reason="") for each in done] == [each._replace(reason="") for each in told]


def test_a_dry_run_says_what_would_be_done_and_a_repair_what_was(saver, store):
    damage(sorted((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)[-2])
    chosen = [cut.PLAIN, cut.WHOLE]
    told, done = (saver.repair(chosen, idle=0, dry_run=dry_run) for dry_run in (True, False))
    assert all(" would " in f" {each.reason}" for each in told), told
    assert not any("would" in each.reason for each in done), done


def test_what_will_not_run_any_more_is_told(saver):
    (told,) = saver.repair([cut.PLAIN], idle=0)
    assert told.not_run == ("tools",)
    assert "tools, which comes next, would not run any more" in told.reason


def test_every_call_gets_the_answer_that_is_true_of_it(saver):
    saver.repair(idle=0, dry_run=False)
    found = {thread_id: outcomes(messages_of(saver, thread_id)) for thread_id in cut.CUT_OFF}
    assert found == {
        cut.PLAIN: {"look-1": "unknown", "ship-1": "unknown"},  # nobody has seen which of them had ended
        cut.SENDS: {"pay-1": "real", "ship-1": "unknown"},
        cut.GUARDED: {"look-1": "real", "ship-1": "unknown"},
        cut.OWN_CUT_OFF: {"look-1": "real", "ship-1": "unknown"},
    }
    assert all(broken_rule(messages_of(saver, thread_id)) is None for thread_id in cut.CUT_OFF)


@pytest.mark.parametrize("thread_id", cut.CUT_OFF)
def test_the_graph_finds_nothing_left_to_do_and_goes_on_with_the_next_message(saver, thread_id):
    saver.repair([thread_id], idle=0, dry_run=False)
    graph = cut.graphs(saver)[thread_id]
    assert graph.get_state(cut.config(thread_id)).next == ()
    graph.invoke(cut.given(thread_id, "go on"), cut.config(thread_id))
    messages = history(graph, cut.config(thread_id))
    assert broken_rule(messages) is None
    assert [m.text for m in messages[-2:]] == ["go on", "done after 1"]


@pytest.mark.parametrize("thread_id", cut.CUT_OFF)
def test_a_guard_has_nothing_left_to_recover(saver, thread_id):
    saver.repair([thread_id], idle=0, dry_run=False)
    guard, graph = TurnGuard(saver), cut.unguarded(saver, thread_id)
    assert not guard.recover(graph, cut.config(thread_id)).changed


@pytest.mark.parametrize("thread_id", cut.CUT_OFF)
def test_a_second_repair_finds_nothing(saver, store, thread_id):
    saver.repair([thread_id], idle=0, dry_run=False)
    before = contents(store)
    assert saver.repair([thread_id], idle=0, dry_run=False) == []
    assert contents(store) == before


def test_what_a_finished_task_wrote_beside_its_answer_is_applied_once(saver):
    saver.repair([cut.SENDS], idle=0, dry_run=False)
    graph = cut.graphs(saver)[cut.SENDS]
    graph.invoke(cut.given(cut.SENDS, "go on"), cut.config(cut.SENDS))
    graph.invoke(cut.given(cut.SENDS, "and on"), cut.config(cut.SENDS))
    assert graph.get_state(cut.config(cut.SENDS)).values["paid"] == 7


def test_a_repair_does_what_the_guard_does(saver, tmp_path):
    other = TurnCheckpointSaver(cut.copy_of_store(tmp_path / "other"))
    saver.repair([cut.GUARDED], idle=0, dry_run=False)
    TurnGuard(other).recover(cut.unguarded(other, cut.GUARDED), cut.config(cut.GUARDED))
    here, there = messages_of(saver, cut.GUARDED), messages_of(other, cut.GUARDED)
    assert [(m.type, m.content, m.id) for m in here[:-1]] == [(m.type, m.content, m.id) for m in there[:-1]]
    assert here[-1].content == there[-1].content


def test_a_thread_that_waits_for_a_person_is_left_and_can_be_resumed(saver):
    assert [each.kind for each in saver.repair([cut.WAITING], idle=0, dry_run=False)] == ["pending"]
    graph = cut.graphs(saver)[cut.WAITING]
    graph.invoke(Command(resume="yes"), cut.config(cut.WAITING))
    messages = history(graph, cut.config(cut.WAITING))
    assert [m.text for m in messages if isinstance(m, ToolMessage)] == ["yes"]


def test_whole_threads_are_not_touched(saver, store):
    before = contents(store)
    assert saver.repair([cut.WHOLE, cut.ODD, cut.OWN_CLASS], dry_run=False) == []
    assert saver.repair(["who?"], dry_run=False) == []
    assert contents(store) == before


def test_a_plain_run_that_wrote_lately_may_be_at_work_still(saver, store):
    before = contents(store)
    (left,) = saver.repair([cut.PLAIN], dry_run=False)
    assert (left.kind, "may be at work" in left.reason) == ("left", True)
    assert contents(store) == before


def test_a_plain_run_that_the_log_has_lost_may_be_at_work_still(saver):
    def stop() -> None:
        raise SystemExit

    with saver.turn(cut.config("1")):
        pass
    log = Path(saver.store.generation_dir("1")) / "turns"
    told = log.read_bytes()
    with pytest.raises(SystemExit):
        cut.one_task(saver, cut.call("ship", 1), block=stop).invoke(cut.given("1"), cut.config("1"))
    log.write_bytes(told)  # it is not synced, and a full disk or a power loss may take what came last
    (left,) = saver.repair(["1"], dry_run=False)
    assert (left.kind, "may be at work" in left.reason) == ("left", True)
    (done,) = saver.repair(["1"], idle=0, dry_run=False)
    assert done.kind == "finalized"


def pauses(saver: TurnCheckpointSaver) -> Any:
    """The graph of a thread that was cut off, which asks a person now."""

    def ask(_state: Any) -> Any:
        return {"messages": [ToolMessage(str(interrupt("may I?")), tool_call_id="look-1")]}

    return _of_tools(saver, ask)


def _of_tools(saver: TurnCheckpointSaver, node: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=saver)


def test_who_is_asked_between_the_look_and_the_repair_is_not_answered(saver, monkeypatch):
    open_turn = Store.open_turn

    def late(self: Store, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Store, "open_turn", open_turn)
        pauses(saver).invoke(None, cut.config(cut.PLAIN))
        return open_turn(self, *args, **options)

    monkeypatch.setattr(Store, "open_turn", late)
    (left,) = saver.repair([cut.PLAIN], idle=0, dry_run=False)
    assert (left.kind, "waits for a person" in left.reason) == ("pending", True)
    assert [each.value for each in pauses(saver).get_state(cut.config(cut.PLAIN)).interrupts] == ["may I?"]
    assert saver.store.standing(cut.PLAIN).state == "paused"


def test_what_only_the_graph_can_add_stays_if_it_came_between_the_look_and_the_repair(saver, monkeypatch):
    open_turn = Store.open_turn

    def late(self: Store, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Store, "open_turn", open_turn)
        found = saver.get_tuple(cut.config(cut.PLAIN))
        more = [ToolMessage("found", tool_call_id="look-1"), AIMessage("and more")]
        saver.put_writes(found.config, [("messages", more)], "a-task")
        return open_turn(self, *args, **options)

    monkeypatch.setattr(Store, "open_turn", late)
    before = len(messages_of(saver, cut.PLAIN))
    (left,) = saver.repair([cut.PLAIN], idle=0, dry_run=False)
    assert (left.kind, "only the graph can add" in left.reason) == ("left", True)
    assert len(messages_of(saver, cut.PLAIN)) == before
    assert saver.store.standing(cut.PLAIN).state == "unfinished"


def test_moving_files_aside_is_no_writing_of_a_run(saver, store):
    """A thread that has rested is put in order in one go, as the dry run says."""
    files = sorted((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)
    damage(files[3])
    for path in (store / "threads/t-whole").rglob("*"):
        os.utime(path, (0, 0))
    told, done = (saver.repair([cut.WHOLE], dry_run=dry_run) for dry_run in (True, False))
    kinds = ["lost", "aside", "aside", "finalized"]
    assert ([each.kind for each in told], [each.kind for each in done]) == (kinds, kinds)


def test_a_busy_thread_is_left(saver):
    with saver.turn(cut.config(cut.PLAIN)):
        (left,) = saver.repair([cut.PLAIN], idle=0, dry_run=False)
    assert (left.kind, "running" in left.reason) == ("pending", True)


def test_a_closed_thread_is_left(saver):
    saver.close_thread(cut.PLAIN)
    (left,) = saver.repair([cut.PLAIN], idle=0, dry_run=False)
    assert (left.kind, "reopen" in left.reason) == ("left", True)


def test_a_repair_is_a_turn_that_fences_out_whoever_wakes_up(saver):
    saver.repair([cut.GUARDED], idle=0, dry_run=False)
    newest = saver.turns(cut.GUARDED, limit=1)[0]
    assert (newest.token, newest.state) == (2, "completed")
    assert newest.last_checkpoint_id is not None


def test_calls_of_a_tool_that_answers_later_may_stay_open(saver):
    assert saver.repair([cut.PLAIN], idle=0, unanswered=["ship", "look"]) == []


async def test_the_async_twin_does_the_same(saver):
    told = await saver.arepair([cut.PLAIN], idle=0)
    assert told == saver.repair([cut.PLAIN], idle=0)


def test_values_of_classes_that_cannot_be_imported_stay_what_they_are(saver, monkeypatch):
    with monkeypatch.context() as patch:
        patch.delattr(cut, "Order")
        told = saver.repair([cut.OWN_CUT_OFF], idle=0, dry_run=False)
    assert [each.kind for each in told] == ["finalized"]
    found = saver.get_tuple(cut.config(cut.OWN_CUT_OFF))
    assert found is not None
    assert found.checkpoint["channel_values"]["order"] == cut.Order("pen", 3)


# --- crashes on the way ---


class Crashed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("thread_id", [cut.SENDS, cut.GUARDED])
def test_a_repair_that_dies_anywhere_is_finished_by_the_next(tmp_path, monkeypatch, thread_id):
    from langgraph_turncheckpoint import _files

    for number in itertools.count():
        path = cut.copy_of_store(tmp_path / str(number))
        saver = TurnCheckpointSaver(path, fsync=False)
        left = iter([False] * number + [True])

        def dying(call, left=left):
            def wrapped(*args, **kwargs):
                if next(left, False):
                    raise Crashed
                return call(*args, **kwargs)

            return wrapped

        with monkeypatch.context() as patch:
            for name in ("replace_file", "append_file", "remove_file", "move_file"):
                patch.setattr(_files, name, dying(getattr(_files, name)))
            try:
                saver.repair([thread_id], idle=0, dry_run=False)
                is_over = True
            except Crashed:
                is_over = False
        TurnCheckpointSaver(path).repair([thread_id], idle=0, dry_run=False)
        expected = {"ship-1": "unknown", ("pay-1" if thread_id == cut.SENDS else "look-1"): "real"}
        assert outcomes(messages_of(saver, thread_id)) == expected
        if is_over:
            assert number >= 2
            return


# --- files ---


@pytest.fixture
def filled(tmp_path):
    """A store with every kind of file."""
    path = tmp_path / "filled"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        damaged_store.fill(TurnCheckpointSaver(path))
    return path


def damage(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[6 if path.name == "turn" else len(data) // 2] ^= 1  # not all of a ledger is in use
    path.write_bytes(data)
    return bytes(data)


def aside(store: Path, data: bytes) -> list[str]:
    """Where these bytes lie, apart from where they were."""
    return [path.parent.name for path in store.rglob("*") if path.is_file() and path.read_bytes() == data]


def whole(saver: TurnCheckpointSaver) -> bool:
    return not any(found.kind in {"damaged", "missing", "newer"} for found in saver.verify())


@pytest.mark.parametrize("position", range(10))
def test_no_byte_of_a_damaged_file_is_lost_and_the_store_is_whole_afterwards(filled, position):
    kind = [k for k in damaged_store.kinds(filled) if k.name != "ticket"][position]
    spoiled = damage(kind.path)
    saver = TurnCheckpointSaver(filled)
    assert not whole(saver)
    before = contents(filled)
    told = saver.repair(idle=0)
    assert contents(filled) == before
    assert told
    done = saver.repair(idle=0, dry_run=False)
    assert {each.kind for each in done} <= {"lost", "aside", "rewritten", "finalized", "left"}
    if kind.name == "journal":
        assert [each.kind for each in done if each.path] == ["left"]  # what is sound in it is evidence
        return
    if any("no other checkpoint" in each.reason for each in done):
        assert aside(filled, spoiled) == [kind.path.parent.name]
        warnings.simplefilter("ignore")
        with pytest.raises(DamagedCheckpointError):
            saver.get_tuple(cut.config(done[0].thread_id))
        return
    if "ledger" not in kind.name and "tombstone" not in kind.name:
        assert "damaged" in aside(filled, spoiled)
    assert whole(saver)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DamageWarning)
        for thread_id in saver.thread_ids():
            assert saver.get_tuple(cut.config(thread_id)) is not None
            saver.turns(thread_id)


def test_a_thread_goes_on_from_the_newest_checkpoint_that_can_be_read(saver, store):
    config = cut.config(cut.WHOLE)
    ids = [found.config["configurable"]["checkpoint_id"] for found in saver.list(config)]
    (second,) = (path for path in store.rglob("*.ckpt") if ids[1] in path.name)
    damage(second)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        survivors = [found.config["configurable"]["checkpoint_id"] for found in saver.list(config)]
    done = saver.repair([cut.WHOLE], idle=0, dry_run=False)
    assert [each.kind for each in done] == ["lost", "aside", "aside", "finalized"]  # a call is open where it goes on
    assert [found.config["configurable"]["checkpoint_id"] for found in saver.list(config)][1:] == survivors
    assert whole(saver)
    cut.graphs(saver)[cut.WHOLE].invoke(cut.given(cut.WHOLE, "go on"), config)


def test_what_the_damage_costs_a_thread_is_told_before_and_after(saver, store):
    files = sorted((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)
    ids = [path.name.removeprefix("c-").removesuffix(".ckpt") for path in files]
    for path in files[2:4]:
        damage(path)  # the newest of five, which has its own file whole, needs what they hold
    told, done = (saver.repair([cut.WHOLE], idle=0, dry_run=dry_run)[0] for dry_run in (True, False))
    assert (told.kind, done.kind) == ("lost", "lost")
    assert told.reason == (
        "would go back from step 3 to step 0, and would lose 3 of its 4 messages; "
        f"3 checkpoints cannot be read: {ids[2]} to {ids[4]}"
    )
    assert done.reason == (
        "went back from step 3 to step 0, and lost 3 of its 4 messages; "
        f"3 checkpoints cannot be read any more: {ids[2]} to {ids[4]}"
    )
    assert len(messages_of(saver, cut.WHOLE)) == 1


def test_a_backup_that_is_put_back_makes_moved_checkpoints_readable_again(saver, store):
    config = cut.config(cut.WHOLE)
    wanted = saver.get_tuple(config)
    first = min((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)
    backup = first.read_bytes()
    damage(first)
    done = saver.repair([cut.WHOLE], dry_run=False)
    moved = [Path(each.path) for each in done if each.kind == "aside"]
    for path in moved:
        (kept,) = (store / "threads/t-whole").rglob(f"damaged/{path.name}.*")
        path.write_bytes(backup if path == first else kept.read_bytes())
    assert saver.get_tuple(config) == wanted


def test_a_thread_of_which_nothing_can_be_read_stays_loud(saver, store):
    for path in (store / "threads/t-whole").rglob("*.ckpt"):
        damage(path)
    before = contents(store)
    left = saver.repair([cut.WHOLE], idle=0, dry_run=False)
    assert {each.kind for each in left} == {"left"}
    assert contents(store).keys() == before.keys()
    warnings.simplefilter("ignore")
    with pytest.raises(DamagedCheckpointError):
        saver.get_tuple(cut.config(cut.WHOLE))


def test_damage_in_one_thread_does_not_concern_another(saver, store):
    before = {path: data for path, data in contents(store).items() if "t-whole" not in str(path)}
    damage(max((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name))
    saver.repair([cut.WHOLE], dry_run=False)
    assert {path: data for path, data in contents(store).items() if "t-whole" not in str(path)} == before


def test_a_file_of_a_newer_format_is_left(saver, store):
    from langgraph_turncheckpoint import _records

    path = max((store / "threads/t-whole").rglob("*.ckpt"), key=lambda path: path.name)
    data = path.read_bytes()
    start = _records._HEADER.pack(_records.MAGIC, _records.FORMAT_VERSION + 1, 1, 0)
    crc = zlib.crc32(start).to_bytes(4, "little")
    path.write_bytes(start + crc + data[len(start) + 4 :])
    left = saver.repair([cut.WHOLE], dry_run=False)
    assert {each.kind for each in left} == {"left"}
    assert path.exists()


def test_the_reports_can_be_told_apart_and_are_plain_data(saver):
    (told,) = saver.repair([cut.PLAIN], idle=0)
    assert told == Repair("finalized", cut.PLAIN, "", told.reason, ("tools",))
    assert "ship (ship-1)" in told.reason
