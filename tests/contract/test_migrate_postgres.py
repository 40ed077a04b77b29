"""Threads move to PostgreSQL and back, blocking and async; against a server of our own, where there can be one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_turncheckpoint import PlaceError, StorageError, TurnCheckpointSaver
from langgraph_turncheckpoint._migrate_places import open_place
from langgraph_turncheckpoint.migration import amigrate, migrate
from tests.benchmarks.cluster import ROLE, NoClusterError, cluster
from tests.contract.migrating import listed, places_of_writes, populate, states

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("langgraph.checkpoint.postgres", reason="langgraph-checkpoint-postgres is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    try:
        with cluster() as directory:
            yield directory
    except NoClusterError as error:
        pytest.skip(str(error))


@pytest.fixture
def address(server: Path) -> str:
    """The address of an empty database."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(f"host={server} user={ROLE} dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://{ROLE}:secret@/{name}?host={server}"


@pytest.fixture
def filled(tmp_path: Path) -> tuple[TurnCheckpointSaver, list[str]]:
    saver = TurnCheckpointSaver(tmp_path / "ours", fsync=False)
    return saver, populate(saver)


def test_there_and_back(tmp_path, address, filled):
    ours, ids = filled
    with open_place(address, role="destination") as database:
        assert migrate(ours, database).copied > 0
        assert migrate(ours, database).copied == 0
        for thread_id in ids:
            assert listed(database, thread_id) == listed(ours, thread_id)
            assert states(database, thread_id) == states(ours, thread_id)
            assert places_of_writes(database, thread_id) == places_of_writes(ours, thread_id)
    back = TurnCheckpointSaver(tmp_path / "back", fsync=False)
    with open_place(address, role="source") as database:
        migrate(database, back)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            database.delete_thread(ids[0])
    for thread_id in ids:
        assert listed(back, thread_id) == listed(ours, thread_id)
        assert states(back, thread_id) == states(ours, thread_id)
        assert places_of_writes(back, thread_id) == places_of_writes(ours, thread_id)


def test_threads_that_graphs_left_in_the_database_come_over(tmp_path, address):
    ours, memory = TurnCheckpointSaver(tmp_path / "ours", fsync=False), InMemorySaver()
    with open_place(address, role="destination") as database:
        ids = populate(database)
        for destination in (ours, memory):
            migrate(database, destination)
            for thread_id in ids:
                assert listed(destination, thread_id) == listed(database, thread_id)
                assert states(destination, thread_id) == states(database, thread_id)
                assert places_of_writes(destination, thread_id) == places_of_writes(database, thread_id)


async def test_the_async_saver_moves_with_amigrate(tmp_path, address, filled):
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    ours, ids = filled
    back = TurnCheckpointSaver(tmp_path / "back", fsync=False)
    async with AsyncPostgresSaver.from_conn_string(address) as database:
        await database.setup()
        await amigrate(ours, database)
        await amigrate(database, back)
    for thread_id in ids:
        assert listed(back, thread_id) == listed(ours, thread_id)
        assert places_of_writes(back, thread_id) == places_of_writes(ours, thread_id)


def test_a_database_without_checkpoints_is_told_as_such_and_stays_empty(address):
    with pytest.raises(PlaceError, match="no table 'checkpoints'") as caught, open_place(address, role="source"):
        pass
    assert "secret" not in str(caught.value)
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_server_that_is_not_there_is_told_without_the_password(tmp_path):
    address = f"postgresql://somebody:secret@/app?host={tmp_path}"
    with pytest.raises(StorageError) as caught, open_place(address, role="source"):
        pass
    assert "secret" not in str(caught.value)


def test_a_saver_that_was_not_set_up_says_so(address, filled):
    from langgraph.checkpoint.postgres import PostgresSaver

    ours, _ = filled
    with PostgresSaver.from_conn_string(address) as database, pytest.raises(Exception, match=r"setup\(\)"):
        migrate(ours, database)


def test_a_value_that_the_database_cannot_hold_is_told_with_its_checkpoint(address):
    memory = InMemorySaver()
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "2024",
        "channel_values": {"text": "a\0b"},
        "channel_versions": {"text": "1"},
        "versions_seen": {},
    }
    memory.put({"configurable": {"thread_id": "1", "checkpoint_ns": ""}}, checkpoint, {}, {"text": "1"})
    with open_place(address, role="destination") as database, pytest.raises(Exception, match="refuses checkpoint 1"):
        migrate(memory, database)


def test_old_metadata_that_the_database_drops_is_no_difference(address):
    memory = InMemorySaver()
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "2024",
        "channel_values": {},
        "channel_versions": {},
        "versions_seen": {},
    }
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    memory.put(config, checkpoint, {"source": "loop", "writes": {"node": 1}}, {})  # type: ignore[typeddict-unknown-key]
    with open_place(address, role="destination") as database:
        assert migrate(memory, database).copied == 1
        assert migrate(memory, database).copied == 0
