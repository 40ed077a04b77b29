"""From one history to another through a graph's own reducer, in the same step in which a node adds its messages. What
the other history is, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage


def edits_of(old: Sequence[Any], new: Sequence[Any]) -> tuple[list[BaseMessage], list[Any]] | None:
    """Two writes after which `add_messages` holds `new` where it held `old`: what to remove, and what to append.

    They leave alone what other nodes of the same step append. Both writes must come one after the other: a message
    that is removed and added in one of them keeps its place.

    Returns:
        The writes, or `None` where messages without an id cannot be addressed.
    """
    same = 0
    while same < min(len(old), len(new)) and old[same] is new[same]:
        same += 1
    tail = old[same:]
    if not all(isinstance(message, BaseMessage) and message.id for message in tail):
        return None
    return [RemoveMessage(id=str(message.id)) for message in tail], list(new[same:])
