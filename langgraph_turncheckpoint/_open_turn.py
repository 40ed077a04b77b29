"""`OpenTurn`: a turn by hand, for as long as a block lasts. How a turn is opened and settled is `_turns`' business;
here is who waits for it in which colour, and what the end of the block says about the end of the turn.
"""

from __future__ import annotations

import asyncio
import os
import time
from types import TracebackType
from typing import cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError

from ._journal import JournalFile
from ._offload import offload
from ._runs import TURN_KEY
from ._store import Store
from ._turn import Cause, Strategy, TurnState
from ._turns import PendingTurn, Turn
from .errors import StaleTurnError, ThreadClosedError


def end_of(error: BaseException | None) -> tuple[TurnState, Cause | None]:
    """How a turn has ended, by what its block or its run raised.

    A cancellation tells nothing about who wanted it; only an interrupt from the keyboard comes from a person.
    """
    if error is None:
        return "completed", None
    if isinstance(error, StaleTurnError):
        return "superseded", "superseded"
    if isinstance(error, GraphRecursionError):
        return "failed", "limit"
    if isinstance(error, KeyboardInterrupt):
        return "cancelled", "user"
    if isinstance(error, ThreadClosedError) or not isinstance(error, Exception):
        return "cancelled", "unknown"
    return "failed", "error"


class OpenTurn:
    """A turn on a thread while a `with` or `async with` block lasts. Made by `TurnCheckpointSaver.turn`.

    The block gets the config to run with. The turn ends with the block, unless it was settled before.
    """

    def __init__(
        self,
        store: Store,
        config: RunnableConfig,
        thread_id: str,
        *,
        base: str,
        strategy: Strategy,
        timeout: float | None,
        continues: int,
    ) -> None:
        self._store, self._config, self.thread_id = store, config, thread_id
        self._base, self._strategy, self._timeout, self._continues = base, strategy, timeout, continues
        self._turn: Turn | None = None
        self._is_settled = True
        self._process_id = 0

    @property
    def token(self) -> int:
        """The token the turn holds; 0 before it is opened."""
        return 0 if self._turn is None else self._turn.token

    @property
    def base(self) -> str | None:
        """Of a rollback, the checkpoint that the turn starts from, empty for none; `None` for any other turn."""
        return None if self._turn is None else self._turn.base

    @property
    def journal(self) -> JournalFile | None:
        """The turn's journal; `None` before it is opened."""
        return None if self._turn is None else self._turn.journal

    def settle(self, state: TurnState, cause: Cause | None = None) -> None:
        """End the turn before the block does, and say how. The first call counts.

        What the turn has not written by now is refused. A turn that is not the newest any more was superseded,
        whatever this says.

        Raises:
            StorageError: The system refused. The turn is over, and counts as interrupted.
        """
        # A forked child has the block, too, but the turn is its parent's.
        if self._turn is not None and not self._is_settled and self._process_id == os.getpid():
            self._is_settled = True
            self._store.settle_turn(self.thread_id, self._turn, state, cause)

    async def asettle(self, state: TurnState, cause: Cause | None = None) -> None:
        """Async twin of `settle`."""
        await offload(self.settle, state, cause)

    def __enter__(self) -> RunnableConfig:
        pending = self._pending()
        try:
            while (turn := pending.attempt()) is None:
                time.sleep(pending.pause())
            return self._opened(turn)
        except BaseException:
            pending.abandon()
            raise

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.settle(*end_of(exc_value))

    async def __aenter__(self) -> RunnableConfig:
        pending = self._pending()
        try:
            # An event would have to come from another process, which has none to give.
            while (turn := await offload(pending.attempt)) is None:  # noqa: ASYNC110
                await asyncio.sleep(pending.pause())
            return self._opened(turn)
        except BaseException:
            # A cancellation hides what the last attempt gave.
            await offload(pending.abandon)
            raise

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.asettle(*end_of(exc_value))

    def _pending(self) -> PendingTurn:
        if not self._is_settled:
            raise RuntimeError(f"turn {self.token} is open already; call saver.turn again for another one")
        return self._store.pending_turn(
            self.thread_id,
            base=self._base,
            strategy=self._strategy,
            timeout=self._timeout,
            continues=self._continues,
        )

    def _opened(self, turn: Turn) -> RunnableConfig:
        self._store.adopt_turn(self.thread_id, turn)
        self._turn, self._is_settled, self._process_id = turn, False, os.getpid()
        carried: dict[str, object] = {"thread_id": self.thread_id, "token": turn.token}
        if turn.base is not None:
            carried["base"] = turn.base
        conf = {**self._config.get("configurable", {}), TURN_KEY: carried}
        return cast(RunnableConfig, {**self._config, "configurable": conf})
