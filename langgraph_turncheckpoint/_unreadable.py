"""What a copy cannot take from a store of ours, and what it should not bring back there: checkpoints whose files are
damaged, and those that were pruned. Files are looked at here; nothing is copied, and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Literal, NamedTuple

from . import _files
from ._checkpoint_files import DAMAGED_NAME, NamespaceFiles
from ._collect import was_pruned
from ._layout import CHECKPOINT_SUFFIX, checkpoint_id_of
from ._same_values import Key
from ._store import Store
from ._turn import LedgerState
from .errors import DamagedCheckpointError, MigrationError, RefusedValueError, StorageError, UnknownFormatError

#: How many checkpoints a message names.
NAMED_CHECKPOINTS: Final = 2

_REASON: Final = 120


class Unreadable(NamedTuple):
    """A checkpoint of the source that could not be read.

    Attributes:
        checkpoint_ns: Its namespace; `None` if that cannot be told any more, and it is not the root.
        checkpoint_id: Its id.
        reason: Why, in a few words.
        part: `checkpoint`: it is not in the copy. `writes`: it is, without some of the writes that waited on it.
    """

    checkpoint_ns: str | None
    checkpoint_id: str
    reason: str
    part: Literal["checkpoint", "writes"] = "checkpoint"


def unreadable(store: Store, thread_id: str, found: Collection[Key]) -> list[Unreadable]:
    """What of a thread is stored and was not found by who has read all of it, oldest first.

    Args:
        store: The store.
        thread_id: The thread.
        found: The checkpoints that could be read.
    """
    thread = store.thread(thread_id)
    state = thread.ledger.read()
    if state is None:
        return []
    names = {files.path: checkpoint_ns for checkpoint_ns, files in thread.namespaces(state)}
    lost: list[Unreadable] = []
    for files in thread.unnamed_namespaces(state):
        checkpoint_ns = names.get(files.path)
        for checkpoint_id in files.ids():
            is_found = checkpoint_ns is not None and (checkpoint_ns, checkpoint_id) in found
            lost += _looked_at(store, files, (checkpoint_ns, checkpoint_id), is_found=is_found)
    return sorted(lost, key=lambda each: (each.checkpoint_id, each.checkpoint_ns or ""))


def _looked_at(
    store: Store, files: NamespaceFiles, key: tuple[str | None, str], *, is_found: bool
) -> Iterator[Unreadable]:
    try:
        file = store.file(files, key[1])
        if file is None:
            return  # removed meanwhile
        if not is_found:
            file.values(file.head())
            file.writes()
    except (DamagedCheckpointError, UnknownFormatError, RefusedValueError) as error:
        if not is_found:
            yield Unreadable(*key, _short(error, key[1]))
        return
    except StorageError as error:
        yield Unreadable(*key, f"cannot be read: {error.strerror}"[:_REASON])
        return
    if file.image.damage:
        yield Unreadable(*key, f"writes that waited on it are lost: {file.image.damage}"[:_REASON], "writes")


def _short(error: DamagedCheckpointError | UnknownFormatError | RefusedValueError, checkpoint_id: str) -> str:
    if isinstance(error, RefusedValueError):
        return str(error)[:_REASON]
    reason = str(error.strerror)
    other = checkpoint_id_of(os.path.basename(error.path), CHECKPOINT_SUFFIX)
    shares = "" if other in (None, checkpoint_id) else f"it shares values with {other}: "
    return f"{shares}{reason}"[:_REASON]


def pruned(store: Store, thread_id: str, keys: Iterable[Key]) -> set[Key]:
    """Those of `keys` that were removed, if any ever was; what is damaged there, or was set aside, was not."""
    thread = store.thread(thread_id)
    state = thread.ledger.read() or LedgerState()
    if not was_pruned(thread.generation(state)):
        return set()
    gone: set[Key] = set()
    aside: dict[str, set[str]] = {}
    for key in keys:
        files = thread.namespace(state, key[0])
        if files.path not in aside:
            names = _files.list_directory(os.path.join(files.path, DAMAGED_NAME))
            aside[files.path] = {name.rpartition(".")[0] for name in names}
        if not files.exists(key[1]) and os.path.basename(files.file(key[1])) not in aside[files.path]:
            gone.add(key)
    return gone


# --- words ---


def not_copied(lost: Iterable[Unreadable]) -> list[Unreadable]:
    """Those of which nothing is in the copy."""
    return [each for each in lost if each.part == "checkpoint"]


def check_readable(thread_id: str, found: Collection[Key], lost: Collection[Unreadable], *, strict: bool) -> None:
    """Refuse a thread of which nothing can be read; with `strict` one of which anything cannot.

    Raises:
        MigrationError: It is refused. Nothing of it was copied.
    """
    if lost and (strict or not found):
        whole = "" if found else "none of it can be read: "
        raise MigrationError(f"{whole}{described(lost, len(found))}. Nothing of it was copied", thread_id)


def goes_back(found: Iterable[Key], lost: Iterable[Unreadable]) -> bool:
    """Whether a copy goes on from an older checkpoint of the root namespace, because the newest cannot be read."""
    newest = max((key[1] for key in found if not key[0]), default="")
    return any(each.checkpoint_id > newest for each in not_copied(lost) if each.checkpoint_ns == "")


def described(lost: Collection[Unreadable], readable: int, *, back: bool = False) -> str:
    """What could not be read, in one line, with the first reasons; `back` as `goes_back` tells."""
    missing = not_copied(lost)
    half = len(lost) - len(missing)
    parts = []
    if missing:
        total = readable + len(missing)
        newest = ", the newest among them," if back else ""
        parts.append(f"{len(missing)} of its {total} checkpoint{'s' * (total != 1)}{newest} could not be read")
    if half:
        parts.append(f"{half} checkpoint{'s' * (half != 1)} could not be read with all waiting writes")
    named = [f"{each.checkpoint_id} ({each.reason})" for each in list(lost)[:NAMED_CHECKPOINTS]]
    more = f" and {len(lost) - NAMED_CHECKPOINTS} more" if len(lost) > NAMED_CHECKPOINTS else ""
    return f"{' and '.join(parts)}: {', '.join(named)}{more}"
