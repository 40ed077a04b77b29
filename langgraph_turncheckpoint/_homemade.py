"""Threads from the JSON files of home-made agent loops: `{"messages": [...], "turn": n}`. What such a file means is
here; how the thread it becomes is stored is `_thread_copy`'s business.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, convert_to_messages
from langchain_core.messages.tool import invalid_tool_call
from langchain_core.messages.utils import messages_from_dict
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from xxhash import xxh3_128_hexdigest

from . import _files
from ._blocking import blocking, check_outside_loop
from ._copy_plan import ANOTHER_ID
from ._offload import offload
from ._same_values import Key
from ._saver_views import view_of
from ._thread_copy import Rules, ThreadCopy, ThreadReport
from ._unreadable import Unreadable
from ._write_calls import WriteKey
from .errors import DamagedCheckpointError, ForeignFileError, StorageError

#: The version of the one channel there is, in the form that LangGraph's savers use.
_VERSION: Final = f"{1:032}.{0:016}"

_NAMESPACE: Final = uuid.UUID("5f0c2f0e-3f0b-5d55-9d0a-6f6f2d6d6164")
_KNOWN: Final = frozenset({"messages", "turn"})


def import_homemade(
    path: str | os.PathLike[str],
    saver: BaseCheckpointSaver[Any],
    *,
    thread_id: str | None = None,
    messages_key: str = "messages",
    restore_deleted: bool = False,
) -> ThreadReport:
    """Make a thread of a JSON file with a list of messages. A second call on the same file changes nothing.

    The file holds `{"messages": [...], "turn": n}`, or the list alone. Messages may be those of OpenAI's interface,
    LangChain's (`messages_to_dict`, `model_dump`, `dumpd`), or `[role, content]` pairs. The thread gets one
    checkpoint, with `turn` as its step and everything else of the file in its metadata, under `homemade`; a graph with
    `MessagesState` reads it and goes on from it. Messages without an id get one.

    Args:
        path: The file.
        saver: Where the thread goes.
        thread_id: Its id; the name of the file without its ending if `None`.
        messages_key: The channel that the graph keeps its messages in.
        restore_deleted: Whether a thread that the destination has deleted may come back.

    Raises:
        ForeignFileError: The file is no such file; it says where. Nothing was stored.
        DeletedThreadError: The destination has deleted this thread. It was not brought back.
        ThreadConflictError: There is another thread under the id. It was not touched.
        StorageError: The file cannot be read, or the system refused.
    """
    check_outside_loop(saver)
    place = Path(os.fspath(path))
    target = view_of(saver)
    version = saver.get_next_version(None, None)
    file = HomemadeFile(
        place,
        thread_id=place.stem if thread_id is None else thread_id,
        messages_key=messages_key,
        version=_VERSION if isinstance(version, str) else version,
    )
    there = target.tuple_at(file.thread_id, file.key)
    if there is not None:
        file.taken_in_at(there.checkpoint["ts"])  # a file that was only touched since is the same file
    stop = threading.Event()
    copy = ThreadCopy(file, file.thread_id, target, file.thread_id, stop=stop, instead=ANOTHER_ID)
    return copy.run(lambda _done, _total: None, Rules(restore_deleted=restore_deleted))


async def aimport_homemade(
    path: str | os.PathLike[str],
    saver: BaseCheckpointSaver[Any],
    *,
    thread_id: str | None = None,
    messages_key: str = "messages",
    restore_deleted: bool = False,
) -> ThreadReport:
    """Async twin of `import_homemade`."""
    saver = blocking(saver, asyncio.get_running_loop())
    options: dict[str, Any] = {"messages_key": messages_key, "restore_deleted": restore_deleted}
    return await offload(import_homemade, path, saver, thread_id=thread_id, **options)


def read_homemade(path: str | os.PathLike[str]) -> tuple[list[AnyMessage], int, dict[str, Any]]:
    """The messages of a file, its turn, and everything else in it.

    Raises:
        ForeignFileError: It is no such file; it says where.
        StorageError: It cannot be read.
    """
    name = os.fspath(path)
    data = _files.read_file(name)
    if data is None:
        raise StorageError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    try:
        found = json.loads(data)
    except json.JSONDecodeError as error:
        raise ForeignFileError(name, f"line {error.lineno}, column {error.colno}", f"no JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ForeignFileError(name, "", f"no JSON: {type(error).__name__}") from None
    if isinstance(found, list):
        found = {"messages": found}
    if not isinstance(found, dict) or not isinstance(found.get("messages"), list):
        raise ForeignFileError(name, "", "has no list of messages under the key 'messages'")
    turn = found.get("turn", 0)
    if not isinstance(turn, int) or isinstance(turn, bool):
        raise ForeignFileError(name, "turn", "is no whole number")
    messages = [_message(name, position, raw) for position, raw in enumerate(found["messages"])]
    return messages, turn, {key: value for key, value in found.items() if key not in _KNOWN}


def _message(name: str, position: int, raw: Any) -> AnyMessage:
    place = f"messages[{position}]"
    try:
        if isinstance(raw, dict) and isinstance(raw.get("data"), dict):
            found: BaseMessage = messages_from_dict([raw])[0]
        else:
            found = convert_to_messages([_without_bad_calls(raw)])[0]
            found = _with_bad_calls(found, raw)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ForeignFileError(name, place, f"is no message: {type(error).__name__}: {reason}") from error
    if not found.id:
        seed = f"{position} {json.dumps(raw, sort_keys=True)}"
        found = found.model_copy(update={"id": str(uuid.uuid5(_NAMESPACE, seed))})
    return cast(AnyMessage, found)


def _is_bad(call: Any) -> bool:
    """Whether a tool call has arguments that are no JSON object, as a model may well write them."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return False
    try:
        return not isinstance(json.loads(call["function"]["arguments"], strict=False), dict)
    except (ValueError, TypeError, KeyError):
        return not isinstance(call["function"].get("arguments"), dict)


def _without_bad_calls(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    if raw.get("tool_calls", ()) is None:
        raw = {key: value for key, value in raw.items() if key != "tool_calls"}
    if isinstance(raw.get("tool_calls"), list):
        return {**raw, "tool_calls": [call for call in raw["tool_calls"] if not _is_bad(call)]}
    return raw


def _with_bad_calls(found: BaseMessage, raw: Any) -> BaseMessage:
    if not isinstance(found, AIMessage) or not isinstance(raw, dict):
        return found
    bad = [
        invalid_tool_call(
            id=call.get("id"),
            name=call["function"].get("name"),
            args=str(call["function"].get("arguments")),
            error="the arguments are no JSON object",
        )
        for call in raw.get("tool_calls") or ()
        if _is_bad(call)
    ]
    return found.model_copy(update={"invalid_tool_calls": [*found.invalid_tool_calls, *bad]}) if bad else found


class HomemadeFile:
    """Such a file, in the part of a source.

    Raises:
        ForeignFileError: It is no such file.
    """

    counts_threads = True

    def __init__(self, path: Path, *, thread_id: str, messages_key: str, version: Any) -> None:
        self.thread_id = thread_id
        self._messages_key, self._version = messages_key, version
        self._messages, self._turn, self._rest = read_homemade(path)
        content = [message.model_dump_json() for message in self._messages]
        digest = xxh3_128_hexdigest(
            json.dumps([content, self._turn, self._rest, messages_key], sort_keys=True).encode()
        )
        # Of the version and in the form of LangGraph's own ids, but older than any of them.
        checkpoint_id = f"00000000-{digest[:4]}-6{digest[4:7]}-8{digest[7:10]}-{digest[10:22]}"
        self.key: Key = ("", checkpoint_id)
        self._ts = datetime.fromtimestamp(path.stat().st_mtime, tz=timezone.utc).isoformat()

    def taken_in_at(self, ts: str) -> None:
        """Date the checkpoint as it was dated before."""
        self._ts = ts

    def thread_counts(self) -> Mapping[Any, int]:
        """See `Origin`."""
        return {self.thread_id: 1}

    def tuples(self, thread_id: Any) -> Iterator[CheckpointTuple]:
        """See `Origin`."""
        found = self.tuple_at(thread_id, self.key)
        return iter(() if found is None else (found,))

    def tuple_at(self, thread_id: Any, key: Key) -> CheckpointTuple | None:
        """See `Origin`."""
        if key != self.key:
            return None
        checkpoint = {
            "v": 4,
            "id": key[1],
            "ts": self._ts,
            "channel_values": {self._messages_key: list(self._messages)},
            "channel_versions": {self._messages_key: self._version},
            "versions_seen": {},
            "updated_channels": [self._messages_key],
        }
        metadata: dict[str, Any] = {"source": "update", "step": self._turn, "parents": {}}
        if self._rest:
            metadata["homemade"] = self._rest
        conf = {"thread_id": thread_id, "checkpoint_ns": key[0], "checkpoint_id": key[1]}
        return CheckpointTuple({"configurable": conf}, cast(Any, checkpoint), cast(Any, metadata), None, [])

    def write_keys(self, thread_id: Any, key: Key) -> Sequence[WriteKey] | None:  # noqa: ARG002 - there are none
        """See `Origin`."""
        return []

    def unreadable(self, thread_id: Any, found: Collection[Key]) -> Sequence[Unreadable]:  # noqa: ARG002
        """See `Origin`: a file is whole."""
        return ()

    def lost_threads(self) -> Sequence[DamagedCheckpointError]:
        """See `Origin`."""
        return ()
