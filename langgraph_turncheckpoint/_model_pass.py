"""What happens before a model is called from a node the guard sits in: the history is looked at, put in order if it
must be, and messages from the inbox join it. It returns what to do; it writes no state.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from . import _events
from ._evidence import evidence_of, graph_names, lost_prompts, other_updates, recorded_reply
from ._histories import FinalizedHistory, finalize_history, is_healthy
from ._pending import pending_evidence, stored_ids
from ._recovery import Rules
from ._running import RunningTurn
from ._tool_calls import anchor_of, end_of_replies
from .inbox import Inbox, undelivered


class Prepared(NamedTuple):
    """What a model is to be called with.

    Attributes:
        running: The turn.
        old: The history in the state.
        messages: The history, in order.
        changed: Whether it differs from the state, which must be told then.
        updates: What tools whose recorded results are used have written beside messages.
        reply: The model's reply, if it is known already: it must not be asked again.
    """

    running: RunningTurn
    old: Sequence[Any]
    messages: list[Any]
    changed: bool
    updates: list[tuple[str, Any]]
    reply: AIMessage | None = None

    def was_called(self, task: str, messages: Sequence[BaseMessage]) -> None:
        """The node is done, with these messages; what was put in order is written with them."""
        self.running.recovered_graphs.add(graph_names(task.rpartition("|")[0]))
        self.running.returned(task, messages, is_fresh=self.reply is None)


def prepare(
    running: RunningTurn,
    history: Sequence[Any],
    *,
    rules: Rules,
    saver: BaseCheckpointSaver[Any],
    config: RunnableConfig,
    inbox: Inbox,
) -> Prepared:
    """Look at the history that a model is about to get. A healthy one costs a look and no update.

    Args:
        running: The turn.
        history: The messages in the state.
        rules: How to finalize.
        saver: The thread's saver, for results that only pending writes hold.
        config: The thread and the namespace of the graph.
        inbox: Messages that wait for the thread.

    Raises:
        StaleTurnError: The turn is over; the model must not be called.
    """
    running.check()
    messages: list[Any] = history if isinstance(history, list) else list(history)
    changed, goes_on, stored = False, False, frozenset[str]()
    updates: list[tuple[str, Any]] = []
    checkpoint_ns = config["configurable"].get("checkpoint_ns", "")
    running.history_is(history, checkpoint_ns)
    graph = graph_names(checkpoint_ns)
    has_evidence = graph not in running.recovered_graphs and not running.earlier.is_empty
    if graph not in running.recovered_graphs:
        _record_prompt(running, history, checkpoint_ns)
    if has_evidence:
        # What the recorded reply was an answer to may not have reached the state itself.
        stored = stored_ids(saver, config, messages_key=rules.messages_key)
        asked = finalize_history(messages, lost_prompts(running.earlier, messages, stored=stored), until=0)
        goes_on = recorded_reply(running.earlier, asked.messages, checkpoint_ns=checkpoint_ns) is not None
    if has_evidence or not is_healthy(history, unanswered=rules.unanswered):
        done, updates = _finalized(running, history, rules=rules, saver=saver, config=config, stored=stored)
        place = _last_touched(running, done) if goes_on else None
        if place is not None:
            # Its own calls are its run's business; in front of it stands whatever earlier turns have left.
            reply, before = done.messages[place], done.messages[:place]
            running.know(reply)
            updates += _answered(running, done, rules, but={call["id"] for call in reply.tool_calls})
            return Prepared(running, history, before, not _is_same(before, history), updates, reply)
        updates += _answered(running, done, rules)
        messages, changed = done.messages, done.changed
    pending = [] if checkpoint_ns else inbox.pending()
    waiting = undelivered(pending, messages)
    # Those that the history has already were stored by a run that died before it could say so.
    running.handed_on(str(message.id) for message in pending)
    if waiting:
        # With them in its journal, a reply to them can be brought back before any checkpoint has them.
        running.prompt(anchor_of(messages), waiting)
        messages, changed = [*messages, *waiting], True
    return Prepared(running, history, messages, changed, updates)


def _finalized(
    running: RunningTurn,
    history: Sequence[Any],
    *,
    rules: Rules,
    saver: BaseCheckpointSaver[Any],
    config: RunnableConfig,
    stored: Collection[str],
) -> tuple[FinalizedHistory, list[tuple[str, Any]]]:
    checkpoint_ns = config["configurable"].get("checkpoint_ns", "")
    evidence = evidence_of(
        running.earlier,
        history,
        cause=running.end_reason(),
        causes=running.causes(),
        turn_token=running.token,
        wishes=rules.wishes,
        namespaces={checkpoint_ns},
        stored=stored,
    )
    done = finalize_history(history, evidence, unanswered=rules.unanswered, texts=rules.texts)
    updates: list[tuple[str, Any]] = []
    missing = [answer.call_id for answer in done.answers if answer.outcome != "recorded"]
    if missing:
        # Tasks that had finished have left their results with the checkpoint that the run stopped at.
        pending = pending_evidence(saver, config, missing, messages_key=rules.messages_key)
        updates += pending.updates
        if pending.calls or pending.paused:
            # Without the id of its message a call may be an older one of the same id; then the journal knows better.
            found = {
                key: call for key, call in pending.calls.items() if key[0] is not None or key not in evidence.calls
            }
            known = {**evidence.calls, **found}
            evidence = dataclasses.replace(evidence, calls=known, paused=pending.paused, reviewed=pending.reviewed)
            done = finalize_history(history, evidence, unanswered=rules.unanswered, texts=rules.texts)
    return done, updates


def _answered(
    running: RunningTurn, done: FinalizedHistory, rules: Rules, *, but: Collection[str | None] = ()
) -> list[tuple[str, Any]]:
    """Tell of the answers, and return what tools whose recorded results are used have written beside messages.

    Not for the calls `but`.
    """
    answers = [answer for answer in done.answers if answer.call_id not in but]
    given = [(answer.outcome, answer.cause) for answer in answers]
    _events.answered(running.store.root, running.thread_id, running.token, given)
    return other_updates(running.earlier, answers, done.messages, rules.messages_key)


def _last_touched(running: RunningTurn, done: FinalizedHistory) -> int | None:
    """Where the last reply stands that was brought back and has calls that were started.

    Behind it is nothing but its answers, and what will be said anew.
    """
    added = {id(message) for message in done.added}
    for place in range(len(done.messages) - 1, -1, -1):
        message = done.messages[place]
        if isinstance(message, AIMessage) and id(message) in added and running.earlier.was_touched(message):
            return place
    return None


def _is_same(messages: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(messages) == len(others) and all(map(operator.is_, messages, others))


def _record_prompt(running: RunningTurn, history: Sequence[Any], checkpoint_ns: str) -> None:
    """The messages behind the last one of a model or tool are what the run was started with."""
    cut = end_of_replies(history)
    fresh = [message for message in history[cut:] if message.id is not None]
    after = anchor_of(history[:cut])
    if fresh and len(fresh) == len(history) - cut and (after is not None or cut == 0):
        running.prompt(after, fresh, checkpoint_ns)
