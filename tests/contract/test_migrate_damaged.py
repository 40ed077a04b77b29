"""Threads of which some checkpoints cannot be read: the others are copied, and the report says which are missing."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from langgraph_turncheckpoint import DamageWarning, MigrationError, StorageError, TurnCheckpointSaver
from langgraph_turncheckpoint._layout import checkpoint_id_of
from langgraph_turncheckpoint._portable import ExportReport, export_thread, import_thread
from langgraph_turncheckpoint.migration import MigrationReport, aexport_thread, amigrate, migrate
from tests.contract.migrating import listed, populate, talk
from tests.langgraph_versions import needs_savers_that_sort_writes

pytestmark = [
    needs_savers_that_sort_writes,
    pytest.mark.filterwarnings("ignore::langgraph_turncheckpoint.DamageWarning"),
]


@pytest.fixture
def store(tmp_path: Path) -> TurnCheckpointSaver:
    saver = TurnCheckpointSaver(tmp_path / "store", fsync=False)
    for thread_id in ("talk-0", "talk-1"):
        talk(saver, thread_id)
    return saver


def files_of(saver: TurnCheckpointSaver, thread_id: str) -> list[Path]:
    """The files of the root namespace, oldest first."""
    found = [path for path in Path(saver.path).rglob("*.ckpt") if f"t-{thread_id}" in str(path)]
    assert found
    return sorted(found, key=id_of)


def id_of(path: Path) -> str:
    found = checkpoint_id_of(path.name)
    assert found is not None
    return found


def spoil(path: Path) -> str:
    """Damage the file, so that nothing of it can be used; its checkpoint."""
    data = bytearray(path.read_bytes())
    data[10:60] = b"\xff" * 50
    path.write_bytes(data)
    return id_of(path)


def readable(saver: Any, thread_id: str) -> set[str]:
    return {key[1] for key in listed(saver, thread_id)}


@pytest.mark.parametrize("victim", [2, 3, -1], ids=["third", "fourth", "newest"])
def test_what_cannot_be_read_is_counted_and_named_and_the_rest_is_copied(tmp_path, store, victim):
    total = len(files_of(store, "talk-0"))
    spoiled = spoil(files_of(store, "talk-0")[victim])
    left = readable(store, "talk-0")
    assert 0 < len(left) < total
    report = migrate(store, other := InMemorySaver())
    damaged, whole = report.threads
    assert (whole.unreadable, whole.damage) == ((), "")
    assert {each.checkpoint_id for each in damaged.unreadable} == {
        id_of(path) for path in files_of(store, "talk-0")
    } - left
    assert {each.part for each in damaged.unreadable} == {"checkpoint"}
    assert spoiled in {each.checkpoint_id for each in damaged.unreadable}
    assert all(0 < len(each.reason) <= 120 for each in damaged.unreadable)
    assert (damaged.checkpoints, damaged.copied) == (total, len(left))
    assert not report.verified
    assert damaged.goes_back is (id_of(files_of(store, "talk-0")[-1]) not in left)
    lost = total - len(left)
    assert f"; {lost} checkpoint{'s' * (lost > 1)} of 1 thread could not be read" in str(report)
    newest = ", the newest among them," if damaged.goes_back else ""
    assert f"{lost} of its {total} checkpoints{newest} could not be read: " in damaged.damage
    assert str(tmp_path) not in damaged.damage
    assert listed(other, "talk-0") == listed(store, "talk-0")
    again = migrate(store, other)
    assert (again.copied, again.threads[0].unreadable) == (0, damaged.unreadable)


def test_what_shares_values_with_a_damaged_one_says_with_which(store):
    told = []
    for path in files_of(store, "talk-0")[2:]:
        data = path.read_bytes()
        spoiled = spoil(path)
        (damaged,) = migrate(store, InMemorySaver(), thread_ids=["talk-0"]).threads
        others = [each for each in damaged.unreadable if each.checkpoint_id != spoiled]
        assert all(f"shares values with {spoiled}" in each.reason for each in others)
        told += others
        path.write_bytes(data)
    assert told


def test_a_good_child_of_a_damaged_parent_is_copied_with_its_parents_id(store):
    files = files_of(store, "talk-0")
    candidates = []
    for position in range(len(files) - 1):
        data = files[position].read_bytes()
        spoil(files[position])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if id_of(files[position + 1]) in readable(store, "talk-0"):
                candidates.append(position)
        files[position].write_bytes(data)
    parent = spoil(files[candidates[0]])
    other = InMemorySaver()
    migrate(store, other, thread_ids=["talk-0"])
    child = id_of(files[candidates[0] + 1])
    found = other.get_tuple({"configurable": {"thread_id": "talk-0", "checkpoint_id": child, "checkpoint_ns": ""}})
    assert found is not None
    assert found.parent_config is not None
    assert found.parent_config["configurable"]["checkpoint_id"] == parent


def test_a_thread_of_which_nothing_can_be_read_is_an_error(store, tmp_path):
    for path in files_of(store, "talk-0"):
        spoil(path)
    with pytest.raises(MigrationError) as caught:
        migrate(store, InMemorySaver())
    (error,) = caught.value.errors
    assert isinstance(error, MigrationError)
    assert error.thread_id == "talk-0"
    assert "none of it can be read" in str(error)
    assert isinstance(caught.value.report, MigrationReport)
    assert [thread.thread_id for thread in caught.value.report.threads] == ["talk-1"]
    with pytest.raises(MigrationError, match="none of it can be read"):
        export_thread(store, "talk-0", tmp_path / "x.jsonl")
    assert not (tmp_path / "x.jsonl").exists()


def test_who_asks_for_it_gets_an_error_and_nothing_of_the_thread_is_copied(store, tmp_path):
    spoil(files_of(store, "talk-0")[-1])
    other = InMemorySaver()
    with pytest.raises(MigrationError) as caught:
        migrate(store, other, strict=True)
    (error,) = caught.value.errors
    assert "thread 'talk-0': 1 of its " in str(error)
    assert "Nothing of it was copied" in str(error)
    assert listed(other, "talk-0") == {}
    assert listed(other, "talk-1") == listed(store, "talk-1")
    with pytest.raises(MigrationError, match="could not be read"):
        export_thread(store, "talk-0", tmp_path / "x.jsonl", strict=True)
    assert not (tmp_path / "x.jsonl").exists()


def test_a_strict_source_names_the_damaged_file(store):
    spoil(files_of(store, "talk-0")[2])
    strict = TurnCheckpointSaver(store.path, strict=True)
    with pytest.raises(MigrationError) as caught:
        migrate(strict, InMemorySaver())
    (error,) = caught.value.errors
    assert isinstance(error, StorageError)
    assert "t-talk-0" in str(error)


def test_writes_that_are_damaged_are_told_and_the_checkpoint_is_copied(store):
    spoiled = []
    for path in files_of(store, "talk-0"):
        data = bytearray(path.read_bytes())
        data[-3] ^= 0x55
        path.write_bytes(data)
        if len(readable(store, "talk-0")) == len(files_of(store, "talk-0")):
            spoiled.append(id_of(path))
            break
        data[-3] ^= 0x55
        path.write_bytes(data)
    assert spoiled
    report = migrate(store, other := InMemorySaver(), thread_ids=["talk-0"])
    (thread,) = report.threads
    ((_, checkpoint_id, reason, part),) = thread.unreadable
    assert (checkpoint_id, part) == (spoiled[0], "writes")
    assert "writes that waited on it are lost" in reason
    assert thread.copied == thread.checkpoints == len(files_of(store, "talk-0"))
    assert "; 1 checkpoint could not be read with all waiting writes" in str(report)
    assert listed(other, "talk-0") == listed(store, "talk-0")


def test_what_was_copied_before_the_damage_stays_and_is_no_conflict(store):
    other = InMemorySaver()
    migrate(store, other)
    before = listed(other, "talk-0")
    spoil(files_of(store, "talk-0")[-1])
    spoil(files_of(store, "talk-0")[2])
    thread = migrate(store, other).threads[0]
    assert (thread.state, thread.copied) == ("unchanged", 0)
    assert thread.unreadable
    assert listed(other, "talk-0") == before


def test_writes_that_were_copied_before_the_damage_stay_and_are_no_conflict(store):
    other = InMemorySaver()
    migrate(store, other)
    before = listed(other, "talk-0")
    for path in files_of(store, "talk-0"):
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 0x55]) + whole[-2:])
        if len(readable(store, "talk-0")) == len(files_of(store, "talk-0")):
            (thread,) = migrate(store, other, thread_ids=["talk-0"]).threads
            assert (thread.state, thread.copied) == ("unchanged", 0)
            assert [each.part for each in thread.unreadable] == ["writes"]
            assert listed(other, "talk-0") == before
            break
        path.write_bytes(whole)
    else:
        raise AssertionError("no checkpoint has writes")


def test_damage_in_the_destination_is_mended_by_another_migration(store, tmp_path):
    ours = TurnCheckpointSaver(tmp_path / "ours", fsync=False)
    migrate(store, ours)
    spoil(files_of(ours, "talk-0")[2])
    with pytest.warns(DamageWarning):
        report = migrate(store, ours)
    assert report.copied > 0
    assert listed(ours, "talk-0") == listed(store, "talk-0")


def test_a_damaged_namespace_whose_name_is_lost_is_told(tmp_path):
    store = TurnCheckpointSaver(tmp_path / "store", fsync=False)
    builder: StateGraph[Any] = StateGraph(MessagesState)
    inner: StateGraph[Any] = StateGraph(MessagesState)
    inner.add_node("answer", lambda state: {"messages": [("ai", "hello")]})
    inner.add_edge(START, "answer")
    inner.add_edge("answer", END)
    name = "a long name " * 20
    builder.add_node(name, inner.compile(checkpointer=True))
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    builder.compile(checkpointer=store).invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "1"}})
    root = {path for path in Path(store.path).rglob("*.ckpt") if checkpoint_id_of(path.name) in readable_root(store)}
    nested = [path for path in Path(store.path).rglob("*.ckpt") if path not in root]
    assert nested
    copied_before = InMemorySaver()
    migrate(store, copied_before)
    for path in nested:
        spoil(path)
    (thread,) = migrate(store, InMemorySaver()).threads
    assert {each.checkpoint_id for each in thread.unreadable} == {id_of(path) for path in nested}
    assert {each.checkpoint_ns for each in thread.unreadable} == {None}
    assert migrate(store, copied_before).threads[0].state == "unchanged"


def test_whether_a_copy_goes_back_is_not_told_by_a_namespace_whose_name_is_lost(tmp_path):
    store = TurnCheckpointSaver(tmp_path / "store", fsync=False)
    inner: StateGraph[Any] = StateGraph(MessagesState)
    inner.add_node("ask", lambda state: {"messages": [interrupt("?")]})
    inner.add_edge(START, "ask")
    builder: StateGraph[Any] = StateGraph(MessagesState)
    builder.add_node("a long name " * 20, inner.compile())
    builder.add_edge(START, "a long name " * 20)
    builder.compile(checkpointer=store).invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "1"}})
    newest = max(Path(store.path).rglob("*.ckpt"), key=id_of)  # of the subgraph, which waits
    assert id_of(newest) not in readable_root(store)
    for path in newest.parent.glob("*.ckpt"):
        spoil(path)
    (thread,) = migrate(store, InMemorySaver()).threads
    assert (thread.goes_back, bool(thread.unreadable)) == (False, True)
    assert "the newest among them" not in thread.damage


def readable_root(saver: TurnCheckpointSaver) -> set[str]:
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    return {found.checkpoint["id"] for found in saver.list(config)}


def test_a_thread_that_has_lost_its_name_is_an_error_of_its_own(tmp_path):
    store = TurnCheckpointSaver(tmp_path / "store", fsync=False)
    long = "a thread with a long name " * 20
    talk(store, "talk-0")
    graph_config: Any = {"configurable": {"thread_id": long}}
    first = next(iter(store.list({"configurable": {"thread_id": "talk-0"}})))
    store.put(graph_config, first.checkpoint, first.metadata, first.checkpoint["channel_versions"])
    (ledger,) = [path for path in Path(store.path).rglob("turn") if "talk-0" not in str(path)]
    ledger.write_bytes(b"")
    with pytest.raises(MigrationError) as caught:
        migrate(store, InMemorySaver())
    (error,) = caught.value.errors
    assert "has lost its name" in str(error)
    assert str(ledger) in str(error)
    assert "1 of 2 threads" in str(caught.value)
    assert migrate(store, InMemorySaver(), thread_ids=["talk-0"]).verified


def test_a_file_that_the_system_does_not_give_keeps_only_its_own_thread_back(store):
    path = files_of(store, "talk-0")[2]
    path.unlink()
    path.mkdir()
    other = InMemorySaver()
    with pytest.raises(MigrationError) as caught:
        migrate(store, other)
    (error,) = caught.value.errors
    assert isinstance(error, StorageError)
    assert error.filename == str(path)
    assert listed(other, "talk-1") == listed(store, "talk-1")


def test_a_store_read_without_its_key_is_told_as_that(tmp_path):
    key = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    talk(TurnCheckpointSaver(tmp_path / "private", fsync=False, serde=key), "talk-0")
    with pytest.raises(MigrationError, match="none of it can be read: .*refused to load"):
        migrate(TurnCheckpointSaver(tmp_path / "private"), InMemorySaver())


# --- as a file ---


def test_an_export_says_what_is_not_in_the_file(store, tmp_path):
    spoiled = spoil(files_of(store, "talk-0")[-1])
    report = export_thread(store, "talk-0", tmp_path / "x.jsonl")
    assert isinstance(report, ExportReport)
    assert [each.checkpoint_id for each in report.unreadable] == [spoiled]
    total = report.checkpoints + 1
    assert f"1 of its {total} checkpoints, the newest among them, could not be read: {spoiled} (" in report.damage
    assert json.loads((tmp_path / "x.jsonl").read_text().splitlines()[-1])["checkpoints"] == report.checkpoints
    other = InMemorySaver()
    assert import_thread(tmp_path / "x.jsonl", other).unreadable == ()
    assert listed(other, "talk-0") == listed(store, "talk-0")


async def test_the_async_twins_say_the_same(store, tmp_path):
    spoil(files_of(store, "talk-0")[-1])
    assert (await amigrate(store, InMemorySaver())).unreadable == 1
    assert len((await aexport_thread(store, "talk-0", tmp_path / "x.jsonl")).unreadable) == 1
    with pytest.raises(MigrationError):
        await amigrate(store, InMemorySaver(), strict=True)


def test_every_kind_of_thread_with_any_file_damaged_loses_nothing_without_a_word(tmp_path):
    store = TurnCheckpointSaver(tmp_path / "store", fsync=False)
    populate(store)
    for path in sorted(Path(store.path).rglob("*.ckpt"))[::7]:
        data = path.read_bytes()
        spoil(path)
        total = sum(1 for _ in Path(store.path).rglob("*.ckpt"))
        other = InMemorySaver()
        missing = lost_by(store, other)
        assert missing
        assert sum(1 for _ in other.list(None)) + missing == total
        path.write_bytes(data)


def lost_by(source: TurnCheckpointSaver, destination: InMemorySaver) -> int:
    """How many checkpoints a migration says it could not copy, those of a wholly unreadable thread included."""
    lost = 0
    report: Any
    try:
        report = migrate(source, destination, verify=False)
    except MigrationError as error:  # what all others share values with may be damaged
        report = error.report
        for cause in error.errors:
            lost += len(files_of(source, str(getattr(cause, "thread_id", None))))
    for thread in report.threads:
        lost += sum(each.part == "checkpoint" for each in thread.unreadable)
    return lost
