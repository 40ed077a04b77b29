"""What a command line may name as a place, and what it is told about everything else. Sources are never written to."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from langgraph_turncheckpoint import (
    MigrationError,
    MissingExtraError,
    PlaceError,
    StorageError,
    TurnCheckpointSaver,
    _migrate_places,
)
from langgraph_turncheckpoint._migrate_places import open_place
from langgraph_turncheckpoint.migration import amigrate, migrate
from tests.contract.migrating import listed, populate, sqlite_saver, talk
from tests.langgraph_versions import needs_savers_that_sort_writes

pytestmark = needs_savers_that_sort_writes


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with sqlite_saver(path) as saver:
        populate(saver)
    return path


def refusal(place: Any, role: Any) -> Exception:
    with pytest.raises((PlaceError, StorageError)) as caught, open_place(str(place), role=role):
        pass
    return caught.value


def move(one: Any, other: Any) -> Any:
    with open_place(str(one), role="source") as source, open_place(str(other), role="destination") as destination:
        return migrate(source, destination)


def test_a_database_moves_to_a_directory_and_back(tmp_path, database):
    report = move(f"sqlite:{database}", tmp_path / "ours")
    assert len(report.threads) == 5
    back = tmp_path / "back.db"
    assert move(tmp_path / "ours", f"sqlite:{back}").copied == report.copied
    assert move(f"sqlite:{database}", f"sqlite:///{back}").copied == 0
    with sqlite_saver(database) as one, sqlite_saver(back) as other:
        for thread in report.threads:
            assert listed(other, thread.thread_id) == listed(one, thread.thread_id)


def test_a_source_database_keeps_every_byte_and_cannot_be_written_to(tmp_path, database):
    before = database.read_bytes()
    with open_place(f"sqlite:{database}", role="source") as source:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            source.delete_thread("talk-0")
        migrate(source, TurnCheckpointSaver(tmp_path / "ours", fsync=False))
    assert database.read_bytes() == before


def test_a_source_directory_keeps_every_byte(tmp_path, database):
    move(f"sqlite:{database}", tmp_path / "ours")
    before = {path: path.read_bytes() for path in (tmp_path / "ours").rglob("*") if path.is_file()}
    move(tmp_path / "ours", f"sqlite:{tmp_path / 'back.db'}")
    assert {path: path.read_bytes() for path in (tmp_path / "ours").rglob("*") if path.is_file()} == before


def test_a_database_from_before_task_paths_is_read(tmp_path, database):
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("ALTER TABLE writes DROP COLUMN task_path")
        connection.commit()
    before = database.read_bytes()
    report = move(f"sqlite:{database}", tmp_path / "ours")
    assert len(report.threads) == 5
    assert database.read_bytes() == before


def test_an_odd_file_name_is_no_obstacle(tmp_path):
    path = tmp_path / "a b?c#d%20\N{SNOWMAN}.db"
    with sqlite_saver(path) as saver:
        talk(saver, "talk-0")
    assert move(f"sqlite:{path}", tmp_path / "ours").copied > 0


def test_files_that_are_no_database_of_checkpoints_are_told_apart(tmp_path):
    text, empty, other, foreign = (tmp_path / name for name in ("text.db", "empty.db", "other.db", "foreign.db"))
    text.write_text("hello, this is no database at all")
    empty.write_bytes(b"")
    for path, table in ((other, "things (x)"), (foreign, "checkpoints (x)")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE {table}")
    assert "is not an SQLite database" in str(refusal(f"sqlite:{text}", "source"))
    assert "is not an SQLite database" in str(refusal(f"sqlite:{text}", "destination"))
    assert "is not an SQLite database" in str(refusal(f"sqlite:{empty}", "source"))
    assert "has no table 'checkpoints'" in str(refusal(f"sqlite:{other}", "source"))
    assert "belongs to another program" in str(refusal(f"sqlite:{foreign}", "source"))
    assert "belongs to another program" in str(refusal(f"sqlite:{foreign}", "destination"))
    assert text.read_text() == "hello, this is no database at all"
    with open_place(f"sqlite:{empty}", role="destination") as saver:
        talk(saver, "talk-0")


def test_the_database_of_another_program_gets_tables_only_if_that_is_asked_for(tmp_path):
    path = tmp_path / "app.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users (x INTEGER PRIMARY KEY AUTOINCREMENT)")
    before = path.read_bytes()
    error = refusal(f"sqlite:{path}", "destination")
    assert isinstance(error, PlaceError)
    assert f"{path} is the database of another program: its tables are 'users'" in str(error)
    assert "SqliteSaver" in str(error)
    assert path.read_bytes() == before
    with open_place(f"sqlite:{path}", role="destination", create_tables=True) as saver:
        talk(saver, "talk-0")
    with open_place(f"sqlite:{path}", role="destination") as saver:  # now it holds checkpoints, too
        assert saver.get_tuple({"configurable": {"thread_id": "talk-0"}}) is not None


@pytest.mark.parametrize("state", ["new", "used"])
def test_a_destination_that_cannot_be_written_to_is_told_with_its_path(tmp_path, database, monkeypatch, state):
    connect = sqlite3.connect
    path = database if state == "used" else tmp_path / "new.db"

    def reading(address: str, **options: Any) -> sqlite3.Connection:
        opened: sqlite3.Connection = connect(address.replace("mode=rwc", "mode=ro"), **options)
        return opened  # as on a file system that is read-only

    monkeypatch.setattr(sqlite3, "connect", reading)
    error = refusal(f"sqlite:{path}", "destination")
    assert isinstance(error, StorageError)
    assert error.filename == str(path)
    assert "written to" in str(error)
    assert repr(error) == f"StorageError({error.errno}, {error.strerror!r}, {str(path)!r})"


def test_migrate_takes_places_too(tmp_path, database):
    report = migrate(f"sqlite:{database}", tmp_path / "ours")
    assert (len(report.threads), report.verified) == (5, True)
    assert migrate(str(tmp_path / "ours"), f"sqlite:{tmp_path / 'back.db'}").copied == report.copied
    with pytest.raises(PlaceError, match="did you mean sqlite:"):
        migrate(str(database), tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (tmp_path / "ours").rename(tmp_path / "moved")  # nothing is kept open
    (tmp_path / "back.db").unlink()


async def test_the_async_twin_takes_places_too(tmp_path, database):
    assert (await amigrate(f"sqlite:{database}", str(tmp_path / "ours"))).copied > 0
    assert (await amigrate(tmp_path / "ours", InMemorySaver())).copied > 0
    with pytest.raises(PlaceError):
        await amigrate(f"sqlite:{tmp_path / 'no.db'}", tmp_path / "ours")


def test_a_damaged_database_is_told_as_such(tmp_path, database):
    data = bytearray(database.read_bytes())
    data[100:4096] = b"\xff" * 3996
    (tmp_path / "bad.db").write_bytes(data)
    assert isinstance(refusal(f"sqlite:{tmp_path / 'bad.db'}", "source"), PlaceError)


def test_a_database_that_another_program_has_locked_is_told_as_such(tmp_path, database, monkeypatch):
    monkeypatch.setattr(_migrate_places, "BUSY_SECONDS", 0.01)
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as holder:
        holder.execute("PRAGMA journal_mode=DELETE")
        holder.execute("BEGIN EXCLUSIVE")
        for role in ("source", "destination"):
            error = refusal(f"sqlite:{database}", role)
            assert isinstance(error, StorageError)
            assert "locked" in str(error)


def test_what_is_not_there_is_not_made_for_a_source(tmp_path):
    for place in (tmp_path / "no", f"sqlite:{tmp_path / 'no.db'}"):
        assert "there is no" in str(refusal(place, "source"))
    assert list(tmp_path.iterdir()) == []
    assert "make it first" in str(refusal(f"sqlite:{tmp_path / 'no' / 'no.db'}", "destination"))


def test_directories_of_others_are_left_alone(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").write_text("pass")
    (tmp_path / "mail" / "threads" / "Inbox").mkdir(parents=True)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "threads").write_text("a file")
    (tmp_path / "empty").mkdir()
    for name in ("project", "mail", "odd"):
        assert "belongs to another program" in str(refusal(tmp_path / name, "destination"))
    for name in ("project", "mail", "empty"):
        assert "holds no checkpoints" in str(refusal(tmp_path / name, "source"))
    with open_place(str(tmp_path / "empty"), role="destination") as saver:
        talk(saver, "talk-0")


def test_a_directory_that_cannot_be_written_to_is_told_before_anything_is_copied(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "cannot be written to" in str(refusal(tmp_path / "locked", "destination"))


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("", "no place was named"),
        ("sqlite:", "names no file"),
        ("mysql://host/db", "mysql: is not known here"),
        ("redis://host", "redis: is not known here"),
    ],
)
def test_a_place_that_is_not_understood_says_what_a_place_is(place, complaint):
    assert complaint in str(refusal(place, "source"))


def test_likely_mix_ups_get_a_hint(tmp_path, database):
    assert f"did you mean sqlite:{database}" in str(refusal(database, "source"))
    (tmp_path / "notes.txt").write_text("x")
    assert "is a file" in str(refusal(tmp_path / "notes.txt", "source"))
    assert "write it without sqlite:" in str(refusal(f"sqlite:{tmp_path}", "source"))


@pytest.mark.parametrize(
    ("place", "package", "extra"), [("sqlite:x.db", "sqlite", "sqlite"), ("postgresql://x", "postgres", "postgres")]
)
def test_a_missing_package_names_its_extra(monkeypatch, place, package, extra):
    monkeypatch.setitem(sys.modules, f"langgraph.checkpoint.{package}", None)
    with (
        pytest.raises(MissingExtraError, match=rf"langgraph-turncheckpoint\[{extra}\]"),
        open_place(place, role="source"),
    ):
        pass


@pytest.fixture
def vanishing(monkeypatch):
    """A class in a module that can be made to go."""
    module = types.ModuleType("vanishing_app")

    class Order(BaseModel):
        number: int

    Order.__module__, Order.__qualname__ = module.__name__, "Order"
    module.Order = Order  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Order


@pytest.mark.parametrize("kind", ["sqlite", "ours"])
def test_a_value_whose_class_is_not_here_is_refused_rather_than_copied_as_plain_data(
    tmp_path, monkeypatch, vanishing, kind
):
    memory = InMemorySaver()
    checkpoint: Any = {
        "v": 4,
        "id": "1",
        "ts": "2024",
        "channel_values": {"orders": [vanishing(number=7)]},
        "channel_versions": {"orders": "1"},
        "versions_seen": {},
    }
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    memory.put(config, checkpoint, {"source": "loop"}, {"orders": "1"})
    place = f"sqlite:{tmp_path / 'app.db'}" if kind == "sqlite" else str(tmp_path / "store")
    with open_place(place, role="destination") as saver:
        migrate(memory, saver)
    with open_place(place, role="source") as source:
        assert migrate(source, InMemorySaver()).copied == 1
        monkeypatch.setitem(sys.modules, "vanishing_app", None)
        with pytest.raises(MigrationError, match=r"vanishing_app\.Order, which cannot be imported here"):
            migrate(source, InMemorySaver())
