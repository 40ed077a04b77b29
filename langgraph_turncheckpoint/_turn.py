"""Who may write to a thread: the states of its ledger and every decision about tokens, as pure
functions. No file, clock or LangGraph type belongs here; another home for turns would call the same
functions.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .errors import StaleTurnError, ThreadClosedError


class LedgerState(NamedTuple):
    """What the ledger of one thread says.

    Attributes:
        token: The newest turn's token. It only ever grows.
        generation: The life of the thread; deleting it starts the next one.
        epoch: Grows whenever stored pages may have been removed.
        closed: Whether new turns are refused.
        deleted_upto: The newest checkpoint id that was ever deleted with the whole thread.
        base: The checkpoint the newest turn was pointed at by id; empty if it started from the latest.
    """

    token: int = 0
    generation: int = 1
    epoch: int = 0
    closed: bool = False
    deleted_upto: str = ""
    base: str = ""


class LedgerEvent(Enum):
    """What can happen to a thread's ledger."""

    OPEN = "open a turn"
    CANCEL = "fence the running turn out"
    CLOSE = "refuse new turns"
    REOPEN = "admit new turns again"
    DELETE = "forget everything and fence the running turn out"
    COLLECT = "pages may be gone"


def advance(
    state: LedgerState,
    event: LedgerEvent,
    *,
    thread_id: str,
    newest_id: str = "",
    base: str = "",
) -> LedgerState:
    """The ledger after `event`. Tokens and generations never repeat.

    Args:
        state: What the ledger says now.
        event: What happens.
        thread_id: For the error.
        newest_id: With `DELETE`, the newest checkpoint id that goes.
        base: With `OPEN`, the checkpoint that the turn was pointed at by id.

    Raises:
        ThreadClosedError: A turn was to be opened on a closed thread. The ledger is unchanged.
    """
    if event is LedgerEvent.COLLECT:
        return state._replace(epoch=state.epoch + 1)
    if event is LedgerEvent.OPEN and state.closed:
        raise ThreadClosedError(thread_id)
    state = state._replace(token=state.token + 1, base=base)
    if event is LedgerEvent.CLOSE:
        return state._replace(closed=True)
    if event is LedgerEvent.REOPEN:
        return state._replace(closed=False)
    if event is LedgerEvent.DELETE:
        return state._replace(
            generation=state.generation + 1,
            epoch=state.epoch + 1,
            deleted_upto=max(state.deleted_upto, newest_id),
        )
    return state


def check_current(state: LedgerState, held: int, *, thread_id: str) -> None:
    """Refuse a write whose turn is no longer the newest.

    Raises:
        ThreadClosedError: The thread was closed under the turn.
        StaleTurnError: A newer turn, a cancel or a delete raised the token.
    """
    if held >= state.token:
        return
    if state.closed:
        raise ThreadClosedError(thread_id)
    raise StaleTurnError(thread_id, held, state.token)


def check_outside_turn(
    state: LedgerState,
    *,
    thread_id: str,
    named_id: str | None,
    named_exists: bool,
    read_head: str | None,
    head_id: str | None,
) -> None:
    """Refuse a write outside any turn that builds on something that has gone or moved.

    Args:
        state: What the ledger says now.
        thread_id: For the error.
        named_id: The checkpoint the write builds on or belongs to, if it names one.
        named_exists: Whether that checkpoint is in the store.
        read_head: If the writer got that id by asking for the latest, the newest id there was then. It differs
            from `named_id` where a damaged checkpoint was passed over.
        head_id: The newest id of the namespace now.

    Raises:
        ThreadClosedError: The thread is closed.
        StaleTurnError: The named checkpoint was deleted with its thread, or was read as the
            latest and is not the latest any more. One addressed by id may be forked freely.
    """
    if state.closed:
        raise ThreadClosedError(thread_id)
    if named_id is None:
        return
    if not named_exists and named_id <= state.deleted_upto:
        reason = f"checkpoint {named_id} was deleted with its thread"
        raise StaleTurnError(thread_id, 0, state.token, reason)
    if read_head is not None and head_id != read_head:
        reason = f"checkpoint {named_id} was read as the latest, and the thread has moved since"
        raise StaleTurnError(thread_id, 0, state.token, reason)
