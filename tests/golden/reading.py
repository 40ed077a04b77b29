"""How a store's contents are spelled out as JSON, so that files of an old format can be compared with what they held.

Types are part of it: a value that comes back as another type is another value.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt

from langgraph_turncheckpoint import TurnCheckpointSaver

#: What is longer is given by its length and checksum.
SPELLED_OUT: Final = 60


def spelled(value: Any) -> Any:  # noqa: PLR0911 - one line for each type
    """A value as JSON with the names of its types."""
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return value if len(value) <= SPELLED_OUT else _summed("str", value)
    if type(value) is list:
        items = [spelled(item) for item in value]
        return items if len(items) <= SPELLED_OUT else _summed("list", items)
    if type(value) is dict:
        return {"dict": [[spelled(key), spelled(content)] for key, content in value.items()]}
    if isinstance(value, BaseMessage):
        # Fields that a later LangChain adds with their defaults are no difference.
        fields = {name: content for name, content in vars(value).items() if content not in (None, [], {}, False)}
        return {type(value).__name__: spelled(dict(sorted(fields.items())))}
    if type(value) is _DeltaSnapshot:
        return {"_DeltaSnapshot": spelled(value.value)}
    if isinstance(value, Interrupt):
        return {"Interrupt": [spelled(value.value), value.id]}
    if isinstance(value, (set, frozenset)):
        return {type(value).__name__: sorted(map(repr, value))}
    if isinstance(value, (bytes, bytearray)):
        return {type(value).__name__: value.hex()}
    return {type(value).__name__: repr(value)}


def _summed(kind: str, value: Any) -> dict[str, Any]:
    return {kind: [len(value), hashlib.sha256(json.dumps(value).encode()).hexdigest()]}


def contents(saver: TurnCheckpointSaver) -> dict[str, Any]:
    """Everything that can be read from a store."""
    return {
        "threads": sorted(saver.thread_ids()),
        "checkpoints": [
            {
                "config": found.config["configurable"],
                "parent": found.parent_config and found.parent_config["configurable"],
                "checkpoint": spelled(dict(found.checkpoint)),
                "metadata": spelled(dict(found.metadata)),
                "writes": [
                    [task_id, channel, spelled(value)] for task_id, channel, value in found.pending_writes or ()
                ],
            }
            for found in saver.list(None)
        ],
    }
