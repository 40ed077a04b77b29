"""Who may write to a thread: the states of its ledger, every decision about tokens and busy threads, and what a
turn's record says, as pure functions. No file, clock or LangGraph type belongs here; another home for turns would
call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from xxhash import xxh3_64_digest

from .errors import StaleTurnError, ThreadClosedError

#: Why a turn ended before its work was done.
Cause: TypeAlias = Literal["restart", "user", "superseded", "limit", "error", "unknown"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)

#: Where a turn stands. "interrupted": its process died. "imported": it brought checkpoints from elsewhere. Nobody
#: announces the end of a plain run: its log says "unknown", and `inferred_state` what its last checkpoint tells;
#: "unfinished" has left work behind, or is at work.
TurnState: TypeAlias = Literal[
    "running",
    "completed",
    "paused",
    "failed",
    "cancelled",
    "superseded",
    "interrupted",
    "imported",
    "unfinished",
    "unknown",
]
TURN_STATES: Final[tuple[TurnState, ...]] = get_args(TurnState)

#: What a new turn does where another one, whose end is known, is still running.
Strategy: TypeAlias = Literal["interrupt", "reject", "enqueue", "rollback"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)


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


class Opening(Enum):
    """What becomes of a wish to open a turn."""

    OPEN = "open it now"
    REFUSE = "the thread is busy"
    WAIT = "ask again later"


def decide_opening(strategy: Strategy, *, busy: bool, is_first_in_line: bool) -> Opening:
    """Whether a turn may be opened now.

    Args:
        strategy: What the newcomer asked for.
        busy: Whether a turn whose end is known is running.
        is_first_in_line: Whether nobody who came earlier is waiting. Only who waits, too, lets them go first.
    """
    if strategy == "enqueue":
        return Opening.WAIT if busy or not is_first_in_line else Opening.OPEN
    return Opening.REFUSE if busy and strategy == "reject" else Opening.OPEN


def check_strategy(strategy: str, timeout: float | None) -> Strategy:
    """The strategy, if it is one.

    Raises:
        ValueError: It is none, or a timeout goes with one that does not wait. Nothing has happened.
    """
    for known in STRATEGIES:
        if strategy == known:
            if timeout is not None and known != "enqueue":
                raise ValueError(f"timeout={timeout!r} means something with multitask_strategy='enqueue' only")
            if timeout is not None and not timeout >= 0:
                raise ValueError(f"timeout={timeout!r} is not a number of seconds from 0 on")
            return known
    raise ValueError(f"multitask_strategy={strategy!r} is not one of {', '.join(map(repr, STRATEGIES))}")


def check_cause(cause: str) -> Cause:
    """The cause, if it is one.

    Raises:
        ValueError: It is none. Nothing has happened.
    """
    for known in CAUSES:
        if cause == known:
            return known
    raise ValueError(f"{cause!r} is not one of {', '.join(map(repr, CAUSES))}")


def inferred_state(*, has_error: bool, is_waiting: bool, has_next: bool) -> TurnState:
    """How a run ended that nobody announced the end of, as far as the last checkpoint that it wrote tells.

    Args:
        has_error: Whether an error of one of its tasks is recorded there.
        is_waiting: Whether a person is asked there, and has not answered.
        has_next: Whether nodes are left to run.
    """
    if has_error:
        return "failed"
    if is_waiting:
        return "paused"
    return "unfinished" if has_next else "completed"


class Opened(NamedTuple):
    """A turn was opened.

    Attributes:
        token: Its token.
        at_ns: When, in nanoseconds since 1970.
        continues: The token of the turn it continues, or 0.
        start: The newest checkpoint of the root namespace before its input: what a rollback goes back to. Empty if
            there was none, `None` if nobody looked.
        known_end: Whether its end is announced, so that it counts as running until then.
    """

    token: int
    at_ns: int
    continues: int = 0
    start: str | None = None
    known_end: bool = False


class Marked(NamedTuple):
    """The end of a plain run's turn is announced after all; see `Opened`."""

    token: int
    at_ns: int
    continues: int
    start: str


class Settled(NamedTuple):
    """A turn has ended."""

    token: int
    at_ns: int
    state: TurnState
    cause: Cause | None


class Refused(NamedTuple):
    """A turn that was over tried to write, and was refused. Only its first try of a kind is told.

    Attributes:
        token: Its token.
        at_ns: When, in nanoseconds since 1970.
        operation: What it tried: "put" or "put_writes".
    """

    token: int
    at_ns: int
    operation: str


class Gave(NamedTuple):
    """What the journal of a turn that was cut off had recorded when it was removed.

    Attributes:
        token: The turn.
        at_ns: When it was removed, in nanoseconds since 1970.
        calls: The tool calls that ran in it and had returned a result, by `call_mark`; of very many the first.
    """

    token: int
    at_ns: int
    calls: tuple[bytes, ...]


def call_mark(call_id: str) -> bytes:
    """Stands for the id of a tool call where ids must stay short, and are nobody's business in an encrypted store."""
    return xxh3_64_digest(call_id.encode("utf-8", "surrogatepass"))


Entry: TypeAlias = Opened | Marked | Settled | Refused | Gave


class LoggedTurn(NamedTuple):
    """What a log says of one turn, all in all."""

    opened: Opened
    state: TurnState
    cause: Cause | None
    settled_at_ns: int | None
    refused: tuple[Refused, ...] = ()
    gave: frozenset[bytes] = frozenset()


def assemble_turns(log: Iterable[Entry], *, current: int, is_live: Callable[[int], bool]) -> list[LoggedTurn]:
    """The turns of a log, newest first.

    Of several ends of one turn the first counts: who cancels or supersedes a turn says so before the turn itself
    notices. A plain run says nothing, but one whose write was refused after a newer turn had begun was superseded by
    that. An end without a beginning is dropped. Where a token is opened again, power loss took the token of a turn that
    never wrote and left its entry: only the later turn counts.

    Args:
        log: Its entries, in order.
        current: The thread's token.
        is_live: Whether the holder of a turn is alive, for turns with a known end that no entry has ended.
    """
    opened: dict[int, Opened] = {}
    settled: dict[int, Settled] = {}
    refused: dict[int, dict[str, Refused]] = {}
    gave: dict[int, frozenset[bytes]] = {}
    log = list(log)
    overtaken = _overtaken(log)
    for entry in log:
        if isinstance(entry, Opened):
            opened[entry.token] = entry
            settled.pop(entry.token, None)
            refused.pop(entry.token, None)
            gave.pop(entry.token, None)
        elif isinstance(entry, Settled):
            settled.setdefault(entry.token, entry)
        elif isinstance(entry, Refused):
            refused.setdefault(entry.token, {}).setdefault(entry.operation, entry)
        elif isinstance(entry, Gave):
            gave[entry.token] = gave.get(entry.token, frozenset()).union(entry.calls)
        elif entry.token in opened:
            began = opened[entry.token]
            opened[entry.token] = began._replace(continues=entry.continues, start=entry.start, known_end=True)
    turns = []
    for token in sorted(opened, reverse=True):
        end, at_ns = settled.get(token), None
        state: TurnState
        cause: Cause | None
        if end is not None:
            state, cause, at_ns = end.state, end.cause, end.at_ns
        elif not opened[token].known_end:
            state, cause = ("superseded", "superseded") if token in overtaken else ("unknown", None)
        elif not is_live(token):
            state, cause = "interrupted", "restart"
        elif token < current:
            # Its holder has not noticed yet.
            state, cause = "superseded", "superseded"
        else:
            state, cause = "running", None
        late = tuple(refused.get(token, {}).values())
        turns.append(LoggedTurn(opened[token], state, cause, at_ns, late, gave.get(token, frozenset())))
    return turns


def _overtaken(log: Iterable[Entry]) -> set[int]:
    """The turns of which a write was refused after a newer one had begun."""
    newest, found = 0, set[int]()
    for entry in log:
        if isinstance(entry, Opened):
            newest = max(newest, entry.token)
            found.discard(entry.token)
        elif isinstance(entry, Refused) and entry.token < newest:
            found.add(entry.token)
    return found
