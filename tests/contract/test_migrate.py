"""Threads that real graphs left behind come out the same in another saver, whichever two they are, and go on there."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from langgraph_turncheckpoint import MigrationError, TurnCheckpointSaver
from langgraph_turncheckpoint._fields import written_at
from langgraph_turncheckpoint._records import WRITES
from langgraph_turncheckpoint._turn import LedgerState
from langgraph_turncheckpoint.migration import MigrationReport, Progress, amigrate, migrate
from tests.contract.migrating import (
    GRAPHS,
    KINDS,
    config_of,
    listed,
    places_of_writes,
    populate,
    sqlite_saver,
    states,
)
from tests.langgraph_versions import needs_savers_that_sort_writes

pytestmark = needs_savers_that_sort_writes


@contextmanager
def opened(kind: str, tmp_path: Path, name: str) -> Iterator[BaseCheckpointSaver[Any]]:
    """A fresh saver of a kind."""
    with ExitStack() as stack:
        key = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
        match kind:
            case "sqlite":
                yield stack.enter_context(sqlite_saver(tmp_path / f"{name}.db"))
            case "encrypted-sqlite":
                yield stack.enter_context(sqlite_saver(tmp_path / f"{name}.db", serde=key))
            case "memory":
                yield InMemorySaver()
            case "encrypted-ours":
                yield TurnCheckpointSaver(tmp_path / name, fsync=False, serde=key)
            case _:
                yield TurnCheckpointSaver(tmp_path / name, fsync=False)


def assert_same_threads(
    source: BaseCheckpointSaver[Any], destination: BaseCheckpointSaver[Any], ids: list[str]
) -> None:
    for thread_id in ids:
        assert listed(destination, thread_id) == listed(source, thread_id), thread_id
        assert states(destination, thread_id) == states(source, thread_id), thread_id
        assert places_of_writes(destination, thread_id) == places_of_writes(source, thread_id), thread_id


WAYS = [
    ("sqlite", "ours"),
    ("ours", "sqlite"),
    ("memory", "ours"),
    ("ours", "memory"),
    ("sqlite", "memory"),
    ("memory", "sqlite"),
    ("ours", "ours"),
    ("encrypted-sqlite", "encrypted-ours"),
    ("encrypted-ours", "sqlite"),
    ("sqlite", "encrypted-ours"),
]


@pytest.mark.parametrize(("one", "other"), WAYS, ids=["-to-".join(way) for way in WAYS])
def test_everything_comes_over_and_a_second_run_changes_nothing(tmp_path, one, other):
    with opened(one, tmp_path, "one") as source, opened(other, tmp_path, "other") as destination:
        ids = populate(source)
        report = migrate(source, destination)
        assert [thread.thread_id for thread in report.threads] == ids
        assert {thread.state for thread in report.threads} == {"copied"}
        assert report.copied == report.checkpoints > len(ids)
        assert_same_threads(source, destination, ids)

        again = migrate(source, destination)
        assert {thread.state for thread in again.threads} == {"unchanged"}
        assert again.copied == 0
        assert_same_threads(source, destination, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_go_on_in_the_destination_as_they_would_have_in_the_source(tmp_path, kind):
    with opened("sqlite", tmp_path, "one") as source:
        KINDS[kind](source, f"{kind}-0")
        destination = TurnCheckpointSaver(tmp_path / "other", fsync=False)
        migrate(source, destination)
        outcomes = []
        for saver in (source, destination):
            graph, config = GRAPHS[kind](saver), config_of(f"{kind}-0")
            try:
                going_on: Any = Command(resume="go on") if kind in {"talk", "nest", "fork"} else None
                result: Any = graph.invoke(going_on, config)
            except RuntimeError as error:
                result = str(error)
            state = graph.get_state(config)
            outcomes.append((repr(_without_ids(result)), state.next, len(state.tasks)))
        assert outcomes[0] == outcomes[1]


def _without_ids(result: Any) -> Any:
    if not isinstance(result, dict) or "messages" not in result:
        return result
    return {**result, "messages": [(m.type, m.content) for m in result["messages"]], "__interrupt__": None}


def test_a_few_hundred_threads_go_there_and_back(tmp_path):
    with sqlite_saver(tmp_path / "app.db") as source, sqlite_saver(tmp_path / "back.db") as back:
        ids = populate(source, each=40)
        ours = TurnCheckpointSaver(tmp_path / "ours", fsync=False)
        assert len(migrate(source, ours).threads) == len(ids) == 200
        assert migrate(ours, back).copied == migrate(source, back).checkpoints
        for thread_id in ids:
            assert listed(back, thread_id) == listed(source, thread_id)
            assert places_of_writes(back, thread_id) == places_of_writes(source, thread_id)
        sql = "SELECT * FROM {} ORDER BY 1, 2, 3, 4, 5, 6"
        assert (
            source.conn.execute(sql.format("writes")).fetchall() == back.conn.execute(sql.format("writes")).fetchall()
        )
        assert ours.verify() == []


def test_some_threads_only(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    populate(source)
    report = migrate(source, destination, thread_ids=["talk-0", "nest-0", "talk-0"])
    assert [thread.thread_id for thread in report.threads] == ["talk-0", "nest-0"]
    assert sorted(destination.thread_ids()) == ["nest-0", "talk-0"]


def test_a_thread_that_is_not_there_is_named_before_anything_is_copied(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    populate(source)
    with pytest.raises(MigrationError, match="no thread 'nobody'"):
        migrate(source, destination, thread_ids=["talk-0", "nobody"])
    assert destination.thread_ids() == []


def test_the_thread_continues_where_the_source_has_gone_on(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    graph = GRAPHS["talk"](source)
    graph.invoke({"messages": [("user", "one")]}, config_of("talk-0"))
    first = migrate(source, destination).threads[0]
    assert graph.get_state(config_of("talk-0")).next  # it asks, so its newest checkpoint has pending writes
    graph.invoke(Command(resume="yes"), config_of("talk-0"))
    second = migrate(source, destination).threads[0]
    assert (first.state, second.state) == ("copied", "continued")
    assert second.copied == second.checkpoints - first.checkpoints > 0
    assert_same_threads(source, destination, ["talk-0"])


def test_a_destination_that_has_gone_on_is_left_alone(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    populate(source)
    migrate(source, destination)
    GRAPHS["talk"](destination).invoke(Command(resume="yes"), config_of("talk-0"))
    before = listed(destination, "talk-0")
    report = migrate(source, destination)
    assert {t.thread_id: t.state for t in report.threads}["talk-0"] == "ahead"
    assert listed(destination, "talk-0") == before


def test_progress_counts_up_to_everything(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    ids = populate(source)
    told: list[Progress] = []
    report = migrate(source, destination, progress=told.append)
    assert told[-1].threads_done == told[-1].threads_total == len(ids)
    assert told[-1].checkpoints_done == told[-1].checkpoints_total == report.checkpoints
    done = [each.checkpoints_done for each in told]
    assert done == sorted(done)
    assert {each.thread_id for each in told} == set(ids)


def test_the_report_says_it_in_one_line(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    populate(source)
    assert str(migrate(source, destination, thread_ids=["talk-0"])).startswith("1 thread (1 copied), ")
    assert "there already" in str(migrate(source, destination, thread_ids="talk-0"))
    assert str(MigrationReport((), verified=False)) == "0 threads (none), 0 of 0 checkpoints put now"


def test_the_turn_of_a_migration_says_that_it_brought_the_thread(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    populate(source)
    migrate(source, destination)
    for thread_id in destination.thread_ids():
        (record,) = destination.turns(thread_id)
        assert (record.state, record.cause) == ("imported", None)
    migrate(source, destination)
    assert len(destination.turns("talk-0")) == 1  # nothing was put, so there was no turn
    GRAPHS["talk"](destination).invoke(Command(resume="yes"), config_of("talk-0"))
    newest, first = destination.turns("talk-0")
    assert (newest.state != "imported", first.state) == (True, "imported")


def test_the_turn_of_a_migration_that_is_broken_off_says_who_did_it(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    populate(source)

    def stop(at: Progress) -> None:
        if 0 < at.checkpoints_done < at.checkpoints_total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate(source, destination, thread_ids=["talk-0"], progress=stop)
    (record,) = destination.turns("talk-0")
    assert (record.state, record.cause) == ("cancelled", "user")
    migrate(source, destination)
    assert [record.state for record in destination.turns("talk-0")] == ["imported", "cancelled"]


@pytest.mark.parametrize("broken_off", [False, True])
def test_no_time_is_told_of_writes_that_were_made_elsewhere(tmp_path, broken_off):
    source, destination = TurnCheckpointSaver(tmp_path / "one", fsync=False), TurnCheckpointSaver(tmp_path / "other")
    KINDS["talk"](source, "talk-0")

    def stop(at: Progress) -> None:
        if broken_off and at.checkpoints_done == at.checkpoints_total - 1:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        migrate(source, destination, progress=stop)
    migrate(source, destination)
    assert set(times_of_writes(source)) > {None}
    assert set(times_of_writes(destination)) == {None}
    GRAPHS["talk"](destination).invoke(Command(resume="yes"), config_of("talk-0"))
    assert set(times_of_writes(destination)) > {None}  # its own runs tell them


def times_of_writes(saver: TurnCheckpointSaver) -> list[float | None]:
    store = saver.store
    thread = store.thread("talk-0")
    found: list[float | None] = [None]
    for files in thread.unnamed_namespaces(thread.ledger.read() or LedgerState()):
        for checkpoint_id in files.ids():
            image = files.read(checkpoint_id)
            assert image is not None
            found += [written_at(checkpoint_id, s.fields) for kind, s in image.records if kind == WRITES]
    return found


def test_without_verify_the_copy_is_the_same(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    ids = populate(source)
    assert not migrate(source, destination, verify=False).verified
    assert_same_threads(source, destination, ids)


class Bare(BaseCheckpointSaver[str]):
    """A saver of which nothing is known; it passes everything on."""

    def __init__(self, inner: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner

    def get_tuple(self, config):
        return self.inner.get_tuple(config)

    def list(self, config, **options):
        return self.inner.list(config, **options)

    def put(self, *args):
        return self.inner.put(*args)

    def put_writes(self, *args):
        return self.inner.put_writes(*args)

    def get_next_version(self, current, channel):
        return self.inner.get_next_version(current, channel)


def test_an_unknown_saver_keeps_all_but_the_paths_of_its_tasks(tmp_path):
    inner, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    ids = populate(inner)
    migrate(Bare(inner), destination)
    for thread_id in ids:
        assert listed(destination, thread_id) == listed(inner, thread_id)
        assert states(destination, thread_id) == states(inner, thread_id)
    back = InMemorySaver()
    migrate(destination, Bare(back), thread_ids=ids)
    for thread_id in ids:
        assert listed(back, thread_id) == listed(inner, thread_id)


class ListsNothing(Bare):
    def list(self, config, **options):
        if config is None:
            raise NotImplementedError
        return self.inner.list(config, **options)


def test_a_saver_that_cannot_list_its_threads_needs_them_named(tmp_path):
    inner, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "other", fsync=False)
    populate(inner)
    with pytest.raises(MigrationError, match="name them with thread_ids"):
        migrate(ListsNothing(inner), destination)
    assert migrate(ListsNothing(inner), destination, thread_ids=["fan-0"]).copied > 0
    with pytest.raises(MigrationError, match="no such thread"):
        migrate(ListsNothing(inner), destination, thread_ids=["nobody"])


def test_a_pickling_serde_moves_objects_that_msgpack_cannot_hold(tmp_path):
    serde = JsonPlusSerializer(pickle_fallback=True)
    source, destination = InMemorySaver(serde=serde), InMemorySaver(serde=serde)
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "2024",
        "channel_values": {"odd": {"key": 1 << 100, "items": [1]}},
        "channel_versions": {"odd": "1"},
        "versions_seen": {},
    }
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    source.put(config, checkpoint, {"source": "loop"}, {"odd": "1"})
    assert migrate(source, destination).copied == 1
    assert list(destination.list(config)) == list(source.list(config))
    assert migrate(source, destination).copied == 0


async def test_async_savers_move_with_amigrate(tmp_path):
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    memory = InMemorySaver()
    ids = populate(memory)
    ours = TurnCheckpointSaver(tmp_path / "ours", fsync=False)
    told: list[Progress] = []
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "app.db")) as database:
        assert (await amigrate(memory, database, progress=told.append)).copied > 0
        assert told[-1].threads_done == len(ids)
        await amigrate(database, ours)
        with pytest.raises(MigrationError, match="async twin"):
            migrate(database, ours)
    assert_same_threads(memory, ours, ids)


class AsyncOnly(BaseCheckpointSaver[str]):
    """A saver that has nothing but async methods."""

    def __init__(self, inner: BaseCheckpointSaver[Any]) -> None:
        super().__init__()
        self.inner = inner

    async def aget_tuple(self, config):
        return self.inner.get_tuple(config)

    async def alist(self, config, **options):
        for found in self.inner.list(config, **options):
            yield found

    async def aput(self, *args):
        return self.inner.put(*args)

    async def aput_writes(self, *args):
        return self.inner.put_writes(*args)

    def get_next_version(self, current, channel):
        return self.inner.get_next_version(current, channel)


async def test_savers_without_blocking_methods_move_with_amigrate(tmp_path):
    one, other = InMemorySaver(), InMemorySaver()
    ids = populate(one)
    await amigrate(AsyncOnly(one), AsyncOnly(other))
    for thread_id in ids:
        assert listed(other, thread_id) == listed(one, thread_id)


async def test_a_cancelled_amigrate_stops_and_can_be_repeated(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "ours", fsync=False)
    ids = populate(source)
    begun = asyncio.Event()
    running = asyncio.ensure_future(amigrate(source, destination, progress=lambda at: begun.set()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    there = len(destination.thread_ids())
    assert there < len(ids)
    await amigrate(source, destination)
    assert_same_threads(source, destination, ids)


def test_what_the_progress_callback_raises_ends_the_migration_and_nothing_is_lost(tmp_path):
    source, destination = InMemorySaver(), TurnCheckpointSaver(tmp_path / "ours", fsync=False)
    ids = populate(source)
    before = copy.deepcopy(dict(source.blobs))

    def enough(at: Progress) -> None:
        if at.checkpoints_done == 7:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        migrate(source, destination, progress=enough)
    migrate(source, destination)
    assert_same_threads(source, destination, ids)
    assert source.blobs == before
