"""Opening what a command names: a store, its serializer, a thread in it. What cannot be opened gets a sentence that
says why, and is left as it is.
"""

from __future__ import annotations

import difflib
import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from . import _files
from ._cli_ids import given_ids, shown_id
from ._cli_values import LookingSaver
from ._layout import is_component
from ._thread_files import THREADS_NAME
from .errors import MissingExtraError, StorageError
from .saver import TurnCheckpointSaver

_SCHEMES: Final = frozenset({"sqlite", "postgres", "postgresql"})
_SQLITE_HEADER: Final = b"SQLite format 3\0"
#: Ids that are this much alike may be meant for each other.
_ALIKE: Final = 0.6


class UsageError(Exception):
    """What was asked for makes no sense as it stands; the message says why."""


class ProblemError(Exception):
    """A command could not do what it was asked for; the message says why."""


def why_no_store(path: Path) -> str | None:
    """Why a path is no store, in one sentence; `None` if it is one."""
    scheme, colon, rest = str(path).partition(":")
    if colon and scheme.lower() in _SCHEMES and not path.exists():
        where = f"{scheme}:{rest}" if scheme.lower() == "sqlite" else f"{scheme}://..."  # there may be a password in it
        return f"{where} is a database, and a store is a directory; {_take_over(where)}"
    if path.is_file():
        is_database = _begins_like_sqlite(path)
        return f"{path} is a file, and a store is a directory" + (
            f"; {_take_over(f'sqlite:{path}')}" if is_database else ""
        )
    if not path.is_dir():
        return f"{path} does not exist"
    try:
        names = _files.list_directory(str(path / THREADS_NAME))
        is_there = (path / THREADS_NAME).is_dir()
        inner = [each.name for each in sorted(path.iterdir()) if not is_there and (each / THREADS_NAME).is_dir()]
    except (StorageError, OSError) as error:
        return f"{path} cannot be read: {error}"
    if not is_there:
        meant = f"; did you mean {path / inner[0]}?" if inner else "; it is one once an app has saved something there"
        return f"{path} is no store: there is no directory {THREADS_NAME!r} in it{meant}"
    if names and not any(is_component("t", name) for name in names):
        return f"{path} is no store: its directory {THREADS_NAME!r} is of another program"
    return None


def _take_over(place: str) -> str:
    return f"to take a database over into a new store: turncheckpoint migrate {shlex.quote(place)} DIR"


def _begins_like_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER
    except OSError:
        return False


def look_into(store: Path, serde: str | None, *, fsync: bool = False) -> LookingSaver:
    """The store, to read from, or to remove something without a look at the app's code.

    Raises:
        UsageError: It is none, or there is no such serializer.
    """
    _check_store(store)
    return LookingSaver(str(store), serde=load_serde(serde), fsync=fsync)


def open_store(store: Path, serde: str | None) -> TurnCheckpointSaver:
    """The store, to write to.

    Raises:
        UsageError: It is none, or there is no such serializer.
    """
    _check_store(store)
    return TurnCheckpointSaver(store, serde=load_serde(serde))


def _check_store(store: Path) -> None:
    reason = why_no_store(store)
    if reason is not None:
        raise UsageError(reason)


def load_serde(given: str | None) -> SerializerProtocol | None:
    """The serializer that somebody has named; its code runs.

    Raises:
        UsageError: There is none by this name, or it cannot be made.
    """
    if not given:
        return None
    if given == "aes":
        try:
            return EncryptedSerializer.from_pycryptodome_aes()
        except ImportError as error:
            text = "--serde aes needs pycryptodome: pip install 'langgraph-turncheckpoint[encrypt]'"
            raise MissingExtraError(text) from error
        except ValueError as error:
            raise UsageError(f"--serde aes: {error}") from error
    module, colon, name = given.partition(":")
    if not (module and colon and name):
        raise UsageError(f"--serde {given}: it takes MODULE:FACTORY, such as myapp.store:make_serde, or aes")
    if "" not in sys.path:
        sys.path.insert(0, "")  # an installed command does not look where it is started, and `python -m` does
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if isinstance(found, type) or not hasattr(found, "dumps_typed"):
            found = found()
    except Exception as error:
        raise UsageError(f"--serde {given}: {type(error).__name__}: {error}") from error
    if not hasattr(found, "dumps_typed"):
        raise UsageError(f"--serde {given}: that is no serializer of LangGraph's; it has no dumps_typed")
    serde: SerializerProtocol = found
    return serde


def existing_thread(saver: TurnCheckpointSaver, given: str) -> str:
    """The id of a thread that is there.

    Raises:
        ProblemError: There is no such thread.
    """
    for meant in given_ids(given):
        thread = saver.store.thread(meant)
        state = thread.ledger.read() if _files.is_directory(thread.path) else None
        if state is not None and _files.list_directory(thread.generation(state)):
            return meant
    meant = given_ids(given)[0]
    raise ProblemError(f"there is no thread {shown_id(meant)} in {saver.path}; {_instead(saver, meant)}")


def _instead(saver: TurnCheckpointSaver, meant: str) -> str:
    """What somebody may do who has named a thread that is not there."""
    alike = difflib.get_close_matches(meant, saver.thread_ids(), n=3, cutoff=_ALIKE)
    listing = f"turncheckpoint threads {shlex.quote(saver.path)} lists all"
    return f"did you mean {' or '.join(map(shown_id, alike))}? {listing}" if alike else listing


def chosen_threads(saver: TurnCheckpointSaver, given: Sequence[str] | None) -> list[str]:
    """The threads that were named, or all; each must be there."""
    if not given:
        return sorted(saver.thread_ids())
    return [existing_thread(saver, each) for each in given]
