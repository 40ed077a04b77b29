"""Peers that need more than the tests of this project: a server, a package of their own. No measuring here.

Each takes part where it can be had, and is left out with a reason where it cannot.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from langchain_core.runnables import RunnableConfig

from tests.benchmarks.cluster import ROLE, NoClusterError, cluster
from tests.benchmarks.contenders import CONTENDERS, Contender, InMemory, Ours, Saver, Sqlite
from tests.benchmarks.weighing import DiskUse, disk_use

if TYPE_CHECKING:
    from psycopg import Connection

#: What is written into a directory that stands for a database of the server.
_MARKER: Final = "database.json"


class Postgres(Contender):
    """PostgresSaver on one connection to a server of our own; AsyncPostgresSaver where async methods are measured.

    A directory of a row stands for a database of its own. It is set up once: a restarted app connects to it.

    Args:
        server: The directory of the cluster, which has the socket.
    """

    name = "postgres"
    label = "PostgresSaver"
    module = "langgraph.checkpoint.postgres"
    setting = "PostgresSaver on a local socket with fsync=on and synchronous_commit=on"

    def __init__(self, server: Path) -> None:
        self.server = self._cluster = server

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        from langgraph.checkpoint.postgres import PostgresSaver

        is_new = not (root / _MARKER).exists()
        if is_new:
            self._create(root, template="template0")
        connection = self._connect(_database_of(root))
        if not durable:
            connection.execute("SET synchronous_commit = off")
        saver = PostgresSaver(connection)
        if is_new:
            saver.setup()
        opened: Saver = saver
        return opened

    def close(self, saver: Saver) -> None:
        saver.conn.close()  # type: ignore[attr-defined]

    @asynccontextmanager
    async def open_async(self, root: Path, config: RunnableConfig) -> AsyncIterator[tuple[Saver, RunnableConfig]]:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        # The blocking sibling makes the database, so that this coroutine touches no path.
        self.close(self.open(root))
        address = f"host={self._cluster} user={ROLE} dbname={_database_of(root)}"
        async with AsyncPostgresSaver.from_conn_string(address) as saver:
            yield saver, config

    def copy(self, source: Path, target: Path) -> None:
        self._create(target, template=_database_of(source))

    def write_back(self, saver: Saver) -> None:
        saver.conn.execute("CHECKPOINT")  # type: ignore[attr-defined]

    def disk_use(self, root: Path) -> DiskUse:
        """The database's files without those of an empty one; the server's log is shared by all and not counted."""
        marker = json.loads((root / _MARKER).read_text())
        return disk_use(self._files(marker["oid"])).without(DiskUse(*marker["empty"]))

    def _create(self, root: Path, *, template: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        database = _database_of(root)
        with self._connect("postgres") as connection:
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"'.encode())
            # Until its files are flushed, the file system has not given them their blocks.
            connection.execute("CHECKPOINT")
            row = connection.execute("SELECT oid FROM pg_database WHERE datname = %s", (database,)).fetchone()
        assert row is not None
        (root / _MARKER).write_text(json.dumps({"oid": row["oid"], "empty": disk_use(self._files(row["oid"]))}))

    def _files(self, oid: int) -> Path:
        return self._cluster / "data" / "base" / str(oid)

    def _connect(self, database: str) -> Connection[dict[str, Any]]:
        from psycopg import Connection
        from psycopg.rows import dict_row

        # As `PostgresSaver.from_conn_string` connects.
        return Connection.connect(
            host=str(self._cluster),
            user=ROLE,
            dbname=database,
            autocommit=True,
            prepare_threshold=0,
            row_factory=dict_row,
        )


def _database_of(root: Path) -> str:
    """The name of the database that a directory stands for."""
    return f"row_{hashlib.blake2b(str(root.absolute()).encode(), digest_size=12).hexdigest()}"


class ObjectStorage(Contender):
    """ObjectStorageSaver on a local directory. It writes files in place and does not wait for the disk."""

    name = "objectstorage"
    label = "ObjectStorageSaver"
    module = "langgraph_checkpoint_objectstorage"
    setting = "ObjectStorageSaver on a local directory, which never waits for the disk"

    def open(self, root: Path, *, durable: bool = True) -> Saver:
        from langgraph_checkpoint_objectstorage import ObjectStorageSaver

        root.mkdir(parents=True, exist_ok=True)
        opened: Saver = ObjectStorageSaver.from_conn_string(root.absolute().as_uri())
        return opened

    def close(self, saver: Saver) -> None:
        # It has no way to close: its thread ends when it is collected, and its event loop is never closed.
        loop, thread = saver._bg_loop, saver._bg_thread  # type: ignore[attr-defined]
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


#: Headings, in the order of the table.
LABELS: Final = {kind.name: kind.label for kind in (Ours, Sqlite, Postgres, ObjectStorage, InMemory)}
NAMES: Final = tuple(LABELS)


def named(name: str, *, server: Path | None = None) -> Contender:
    """The contender of that name.

    Args:
        name: One of `NAMES`.
        server: The directory of the PostgreSQL cluster, which only that contender needs.
    """
    if name == "postgres":
        assert server is not None
        return Postgres(server)
    known: dict[str, Contender] = {one.name: one for one in (*CONTENDERS, ObjectStorage())}
    return known[name]


@contextmanager
def contenders(names: Iterable[str], *, below: Path | None = None) -> Iterator[tuple[list[Contender], dict[str, str]]]:
    """Those of `names` that can be had here, in the order of the table, and the reason for each that cannot.

    Args:
        names: Who is wanted.
        below: Where a server keeps its files.
    """
    wanted = set(names)
    found: list[Contender] = []
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for name in NAMES:
            if name not in wanted:
                continue
            try:
                if name == "postgres":
                    importlib.import_module(Postgres.module)
                    found.append(Postgres(stack.enter_context(cluster(below))))
                else:
                    contender = named(name)
                    contender.load()
                    found.append(contender)
            except (ImportError, NoClusterError) as reason:
                missing[name] = str(reason).splitlines()[0]
        yield found, missing
