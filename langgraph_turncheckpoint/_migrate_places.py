"""Opening what a command line names: `sqlite:app.db`, `postgresql://...`, or a directory of ours. A source is opened so
that it cannot be written to. Nothing is copied here.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from ._layout import is_component
from ._portable_values import PortableSerializer, unresolved_error
from ._thread_files import THREADS_NAME
from .errors import MissingExtraError, PlaceError, StorageError, UnresolvedTypeWarning
from .saver import TurnCheckpointSaver

Role = Literal["source", "destination"]

#: How long to wait for a database that another program has locked, in seconds.
BUSY_SECONDS: Final = 5.0

_SQLITE_HEADER: Final = b"SQLite format 3\0"
_COLUMNS: Final = {
    "checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "checkpoint", "metadata"},
    "writes": {"thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx", "channel", "type", "value"},
}
#: What callers of the library may do; commands say it in their own words.
MAKE_TABLES: Final = "give migrate a SqliteSaver on it, which makes its tables there"

_USAGE: Final = "a place is sqlite:FILE, postgresql://USER@HOST/DATABASE, or the directory of a TurnCheckpointSaver"


@contextlib.contextmanager
def open_place(
    place: str, *, role: Role, serde: SerializerProtocol | None = None, create_tables: bool = False
) -> Iterator[BaseCheckpointSaver[Any]]:
    """The saver on a place, while a `with` block lasts.

    A source is opened for reading only: SQLite with `mode=ro`, PostgreSQL in read-only transactions. Values of a class
    that cannot be imported here are refused, because the copy would hold their plain data instead.

    Args:
        place: `sqlite:` and a file, a `postgresql://` address, or a directory.
        role: Whether threads come from there or go there. A destination may be new.
        serde: For values; LangGraph's default if `None`.
        create_tables: Whether LangGraph's tables may be made in an SQLite database that has others only.

    Raises:
        PlaceError: It is no such place. Nothing was changed.
        StorageError: The system or another program refuses it.
        MissingExtraError: The package for it is not installed.
    """
    scheme, separator, rest = place.partition(":")
    if separator and scheme.lower() in ("postgres", "postgresql"):
        opened = _postgres(place, role, serde)
    elif separator and scheme.lower() == "sqlite":
        file = rest.removeprefix("//").removeprefix("/") if rest.startswith("///") else rest
        opened = _sqlite(file, role, serde, create_tables=create_tables)
    elif "://" in place:
        raise PlaceError(f"{scheme}: is not known here; {_USAGE}")
    else:
        opened = _directory(place, role, serde)
    with opened as saver:
        yield saver


# --- a directory ---


class _CheckedSaver(TurnCheckpointSaver):
    """A store whose values must all be what they were."""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        with _resolved():
            return super().get_tuple(config)

    def list(self, *args: Any, **options: Any) -> Iterator[CheckpointTuple]:
        found = super().list(*args, **options)
        while True:
            with _resolved():
                item = next(found, None)
            if item is None:
                return
            yield item


@contextlib.contextmanager
def _resolved() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for found in caught:
        if isinstance(found.message, UnresolvedTypeWarning):
            raise unresolved_error(str(found.message).partition(" ")[0])
        warnings.warn_explicit(found.message, found.category, found.filename, found.lineno)


@contextlib.contextmanager
def _directory(place: str, role: Role, serde: SerializerProtocol | None) -> Iterator[BaseCheckpointSaver[Any]]:
    if not place:
        raise PlaceError(f"no place was named; {_USAGE}")
    path = Path(place)
    if path.is_file():
        kind = f"is an SQLite database; did you mean sqlite:{place}?" if _is_sqlite(path) else f"is a file; {_USAGE}"
        raise PlaceError(f"{place} {kind}")
    if path.exists() or role == "source":
        _check_store(path, role)
    saver = _CheckedSaver if role == "source" else TurnCheckpointSaver
    with saver(path, serde=serde) as opened:
        yield opened


def _check_store(path: Path, role: Role) -> None:
    try:
        names = os.listdir(path)
        threads = os.listdir(path / THREADS_NAME) if THREADS_NAME in names else []
    except FileNotFoundError:
        raise PlaceError(f"there is no directory {path}") from None
    except NotADirectoryError:
        raise PlaceError(f"{path / THREADS_NAME} is a file; the directory belongs to another program") from None
    except OSError as error:
        raise StorageError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    is_store = THREADS_NAME in names and all(is_component("t", name) for name in threads)
    if role == "source" and not (is_store and threads):
        raise PlaceError(f"{path} holds no checkpoints of a TurnCheckpointSaver")
    if role == "destination" and names and not is_store:
        raise PlaceError(f"{path} belongs to another program; name a new or an empty directory")
    if role == "destination" and not os.access(path, os.W_OK | os.X_OK):
        raise StorageError(errno.EACCES, "the directory cannot be written to", str(path))


# --- SQLite ---


@contextlib.contextmanager
def _sqlite(
    place: str, role: Role, serde: SerializerProtocol | None, *, create_tables: bool
) -> Iterator[BaseCheckpointSaver[Any]]:
    try:
        sqlite_savers = importlib.import_module("langgraph.checkpoint.sqlite")
    except ImportError as error:
        raise MissingExtraError(_missing("an SQLite database", "sqlite")) from error
    path = Path(place)
    _check_sqlite_file(path, role)
    try:
        connection = _connect_sqlite(path, role)
    except sqlite3.Error as error:
        raise _sqlite_error(error, path) from error
    with contextlib.closing(connection):
        saver = sqlite_savers.SqliteSaver(connection, serde=serde or PortableSerializer())
        try:
            _check_tables(connection, path, role)
            if role == "destination" and not create_tables:
                _check_purpose(connection, path)
            if role == "source":
                saver.is_setup = True  # its set-up writes
                saver._has_task_path = "task_path" in _columns(connection, "writes")  # noqa: SLF001 - part of set-up
            else:
                saver.setup()
                connection.execute("DELETE FROM checkpoints WHERE 0")  # so that what is read-only shows itself now
                connection.rollback()
        except sqlite3.Error as error:
            raise _sqlite_error(error, path) from error
        yield saver


def _check_sqlite_file(path: Path, role: Role) -> None:
    if not str(path) or str(path) == ".":
        raise PlaceError("sqlite: names no file; write sqlite:app.db")
    if path.is_dir():
        raise PlaceError(f"{path} is a directory; write it without sqlite: if it is that of a TurnCheckpointSaver")
    if not path.exists():
        if role == "source":
            raise PlaceError(f"there is no file {path}")
        if not path.absolute().parent.is_dir():
            raise PlaceError(f"there is no directory {path.absolute().parent}; make it first")
        return
    is_new = role == "destination" and path.stat().st_size == 0
    if not is_new and not _is_sqlite(path):
        raise PlaceError(f"{path} is not an SQLite database")


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
    except OSError as error:
        raise StorageError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def _connect_sqlite(path: Path, role: Role) -> sqlite3.Connection:
    address = f"file:{quote(path.absolute().as_posix())}"

    def connect(mode: str) -> sqlite3.Connection:
        opened = sqlite3.connect(f"{address}?{mode}", uri=True, check_same_thread=False, timeout=BUSY_SECONDS)
        try:
            opened.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        except BaseException:
            opened.close()
            raise
        return opened

    if role == "destination":
        return connect("mode=rwc")
    try:
        return connect("mode=ro")
    except sqlite3.OperationalError as error:
        # A database in WAL mode needs a file beside it. Where that cannot be made, nobody is writing either, unless
        # there is a log.
        beside = path.with_name(f"{path.name}-wal")
        if "unable to open" in str(error) and not (beside.exists() and beside.stat().st_size):
            return connect("mode=ro&immutable=1")
        raise


def _check_tables(connection: sqlite3.Connection, path: Path, role: Role) -> None:
    for table, needed in _COLUMNS.items():
        columns = _columns(connection, table)
        if not columns and role == "source":
            raise PlaceError(f"{path} has no table {table!r}: no SqliteSaver has stored anything in it")
        if columns and not needed <= columns:
            raise PlaceError(f"the table {table!r} of {path} belongs to another program")


def _check_purpose(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that has tables, and none of LangGraph's: whoever named it may have meant another one."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    names = sorted(str(row[0]) for row in rows if not str(row[0]).startswith("sqlite_"))
    if names and not _COLUMNS.keys() & set(names):
        shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        raise PlaceError(
            f"{path} is the database of another program: its tables are {shown}. If it is to hold checkpoints, too, "
            f"{MAKE_TABLES}"
        )


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def _sqlite_error(error: sqlite3.Error, path: Path) -> Exception:
    text = str(error)
    if "locked" in text or "busy" in text:
        return StorageError(errno.EBUSY, "another program has locked the database; stop it or try again", str(path))
    if "readonly" in text:
        return StorageError(errno.EROFS, "the database, or its directory, cannot be written to", str(path))
    if "unable to open" in text:
        reason = "the database cannot be opened; may its directory be read, and for a destination be written to?"
        return StorageError(errno.EACCES, reason, str(path))
    if isinstance(error, sqlite3.OperationalError):
        return StorageError(errno.EIO, text, str(path))
    return PlaceError(f"{path} is no sound SQLite database: {text}")


# --- PostgreSQL ---


@contextlib.contextmanager
def _postgres(place: str, role: Role, serde: SerializerProtocol | None) -> Iterator[BaseCheckpointSaver[Any]]:
    try:
        psycopg = importlib.import_module("psycopg")
        rows = importlib.import_module("psycopg.rows")
        savers = importlib.import_module("langgraph.checkpoint.postgres")
    except ImportError as error:
        raise MissingExtraError(_missing("PostgreSQL", "postgres")) from error
    name = _without_password(place)
    try:
        connection = psycopg.connect(place, autocommit=True, prepare_threshold=0, row_factory=rows.dict_row)
    except psycopg.OperationalError as error:
        raise StorageError(errno.ECONNREFUSED, _one_line(error), name) from error
    except psycopg.Error as error:
        raise PlaceError(f"{name}: {_one_line(error)}") from error
    with contextlib.closing(connection):
        saver = savers.PostgresSaver(connection, serde=serde or PortableSerializer())
        try:
            if role == "destination":
                saver.setup()
            else:
                connection.execute("SET default_transaction_read_only = on")
                found = connection.execute("SELECT to_regclass('checkpoints') AS found").fetchone()
                if found["found"] is None:
                    raise PlaceError(f"{name} has no table 'checkpoints': no PostgresSaver was set up in it")
        except psycopg.Error as error:
            raise StorageError(errno.EIO, _one_line(error), name) from error
        yield saver


def _without_password(place: str) -> str:
    parts = urlsplit(place)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _missing(what: str, extra: str) -> str:
    return f'{what} needs the extra {extra!r}: pip install "langgraph-turncheckpoint[{extra}]"'
