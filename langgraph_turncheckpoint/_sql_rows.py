"""What LangGraph's savers on databases do not tell through their interface, asked of their tables: how many checkpoints
each thread has, and where each pending write stands. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from ._blocking import run_on

_WRITES_SQL: Final = (
    "SELECT task_path, task_id, idx, channel FROM {table} "
    "WHERE thread_id = {mark} AND checkpoint_ns = {mark} AND checkpoint_id = {mark}"
)
_COUNTS_SQL: Final = "SELECT thread_id, COUNT(*) AS number FROM checkpoints GROUP BY thread_id"


class _Rows(Protocol):
    """Runs a query on the connection of a saver."""

    def __call__(self, saver: Any, sql: str, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]: ...


def _sqlite_rows(saver: Any, sql: str, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
    with saver.cursor(transaction=False) as cursor:
        return list(cursor.execute(sql, values))


def _async_sqlite_rows(saver: Any, sql: str, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
    async def fetch() -> Any:
        await saver.setup()
        async with saver.lock, saver.conn.execute(sql, values) as cursor:
            return await cursor.fetchall()

    return [tuple(row) for row in run_on(saver.loop, fetch())]


def _postgres_rows(saver: Any, sql: str, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
    with saver._cursor() as cursor:  # noqa: SLF001 - the saver has no public way to its connection or pool
        cursor.execute(sql, values)
        return [tuple(row.values()) for row in cursor.fetchall()]


def _async_postgres_rows(saver: Any, sql: str, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
    async def fetch() -> Any:
        async with saver._cursor() as cursor:  # noqa: SLF001 - as above
            await cursor.execute(sql, values)
            return await cursor.fetchall()

    return [tuple(row.values()) for row in run_on(saver.loop, fetch())]


class SqlTables(NamedTuple):
    """The tables of one of LangGraph's savers.

    Attributes:
        rows: Runs a query.
        writes: The table of the pending writes.
        mark: What stands for a value in a query.
        drops: The metadata keys whose values it does not keep.
    """

    rows: _Rows
    writes: str
    mark: str
    drops: frozenset[str] = frozenset()

    def counts(self, saver: Any) -> dict[Any, int]:
        """How many checkpoints each thread has."""
        return dict(self.rows(saver, _COUNTS_SQL, ()))

    def write_keys(self, saver: Any, thread_id: Any, key: tuple[str, str]) -> Iterable[tuple[Any, ...]]:
        """Task path, task, position and channel of each pending write of a checkpoint."""
        return self.rows(saver, _WRITES_SQL.format(table=self.writes, mark=self.mark), (thread_id, *key))


#: Found by name, so that no database has to be imported to find out that it is not used.
#: What older LangGraph kept in the metadata under "writes" is dropped by the savers on PostgreSQL.
_KNOWN: Final[Mapping[tuple[str, str], SqlTables]] = {
    ("langgraph.checkpoint.sqlite", "SqliteSaver"): SqlTables(_sqlite_rows, "writes", "?"),
    ("langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver"): SqlTables(_async_sqlite_rows, "writes", "?"),
    ("langgraph.checkpoint.postgres", "PostgresSaver"): SqlTables(
        _postgres_rows, "checkpoint_writes", "%s", frozenset({"writes"})
    ),
    ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver"): SqlTables(
        _async_postgres_rows, "checkpoint_writes", "%s", frozenset({"writes"})
    ),
}


def tables_of(saver: object) -> SqlTables | None:
    """The tables of a saver, or of the saver that it extends; `None` if it has none that are known."""
    names = ((kind.__module__, kind.__name__) for kind in type(saver).__mro__)
    return next((_KNOWN[name] for name in names if name in _KNOWN), None)
