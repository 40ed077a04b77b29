"""Savers that only have async methods, for callers that wait: their coroutines run in the loop that they belong to, and
a thread beside it waits for the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from .errors import MigrationError

T = TypeVar("T")


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that another thread's loop runs."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def check_saver(saver: object) -> None:
    """Refuse what is no saver.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(saver, BaseCheckpointSaver):
        raise TypeError(f"{saver!r:.200} is no checkpoint saver of LangGraph's")


def check_outside_loop(saver: BaseCheckpointSaver[Any]) -> None:
    """Refuse to block the event loop that the saver itself needs, which would never end.

    Raises:
        MigrationError: The saver belongs to the loop that runs here.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if getattr(saver, "loop", None) is running:
        raise MigrationError(f"a {type(saver).__name__} cannot be waited for in its own event loop; use the async twin")


def blocking(saver: BaseCheckpointSaver[Any], loop: asyncio.AbstractEventLoop) -> BaseCheckpointSaver[Any]:
    """A saver whose blocking methods work in a thread beside the loop.

    Raises:
        TypeError: It is no saver.
    """
    check_saver(saver)
    if type(saver).get_tuple is not BaseCheckpointSaver.get_tuple:
        return saver
    return BlockingSaver(saver, loop)


class BlockingSaver(BaseCheckpointSaver[Any]):
    """The blocking methods of a saver that only has async ones, for a thread beside its event loop."""

    def __init__(self, saver: BaseCheckpointSaver[Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._loop = saver, loop

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `BaseCheckpointSaver`."""
        return run_on(self._loop, self._saver.aget_tuple(config))

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """See `BaseCheckpointSaver`."""
        found = self._saver.alist(config, **options)
        while (item := run_on(self._loop, _next_of(found))) is not None:
            yield item

    def put(self, *args: Any) -> RunnableConfig:
        """See `BaseCheckpointSaver`."""
        return run_on(self._loop, self._saver.aput(*args))

    def put_writes(self, *args: Any) -> None:
        """See `BaseCheckpointSaver`."""
        run_on(self._loop, self._saver.aput_writes(*args))

    def get_next_version(self, current: Any, channel: None) -> Any:
        """See `BaseCheckpointSaver`."""
        return self._saver.get_next_version(current, channel)


async def _next_of(found: Any) -> CheckpointTuple | None:
    return cast("CheckpointTuple | None", await anext(found, None))
