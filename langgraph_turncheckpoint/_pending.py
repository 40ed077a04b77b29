"""What checkpoints themselves tell about tool calls: results of tasks that had finished when their run was cut off
are pending writes of the checkpoint it stopped at. Reading only, through LangGraph's public interface, so any saver
will do.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from ._finalize import Facts
from ._histories import CallEvidence, ReviewedCall
from ._tool_calls import last_caller
from ._transcript import messages_in

#: How many checkpoints are looked at, from the newest back, before a result is given up.
CHECKPOINTS_LOOKED_AT: Final = 32

#: How many checkpoints are asked which messages they hold.
STORED_CHECKPOINTS: Final = 4

#: The channels that a pause and an error are written to.
INTERRUPT: Final = "__interrupt__"
ERROR: Final = "__error__"

#: How errors begin that are none of the task's own.
_STOPPED: Final = ("CancelledError", "KeyboardInterrupt", "SystemExit", "GeneratorExit")


class PendingEvidence(NamedTuple):
    """What pending writes tell.

    Attributes:
        calls: The recorded results, by AI message and call.
        paused: Whether the checkpoint with the calls waited for a person.
        reviewed: The calls that the person was asked about, if that is known; see `reviewed_calls`.
        updates: What the tasks with these results have written beside them.
    """

    calls: dict[tuple[str | None, str], CallEvidence]
    paused: bool
    reviewed: list[ReviewedCall] | None
    updates: list[tuple[str, Any]]


class Results(NamedTuple):
    """What the pending writes of one checkpoint tell.

    Attributes:
        answers: The answers of tools.
        paused: Whether one of its tasks waits for a person.
        errors: What its tasks have raised.
        reviewed: The calls that the person was asked about, if that is known; see `reviewed_calls`.
    """

    answers: list[ToolMessage]
    paused: bool
    errors: list[str]
    reviewed: list[ReviewedCall] | None


def pending_evidence(
    saver: BaseCheckpointSaver[Any],
    config: RunnableConfig,
    wanted: Collection[str],
    *,
    messages_key: str,
) -> PendingEvidence:
    """Results of calls that are pending writes of a thread's checkpoints.

    Args:
        saver: The thread's saver.
        config: The thread and namespace.
        wanted: Ids of the calls that have no answer.
        messages_key: The channel of the history.
    """
    found: dict[tuple[str | None, str], CallEvidence] = {}
    updates: list[tuple[str, Any]] = []
    missing, paused = set(wanted), False
    reviewed: list[ReviewedCall] | None = None
    saved = saver.get_tuple(config)
    for _ in range(CHECKPOINTS_LOOKED_AT):
        if saved is None or not missing:
            break
        results = results_in(saved, messages_key)
        for message in results.answers:
            if message.tool_call_id in missing:
                missing.discard(message.tool_call_id)
                ai_id = _caller(saved, message.tool_call_id, messages_key)
                found[ai_id, message.tool_call_id] = CallEvidence(Facts(result=True), message)
                updates += _beside(saved, message, messages_key)
        open_here = [call_id for call_id in missing if is_due(_history(saved, messages_key), call_id)]
        if results.paused and open_here and not paused:
            paused, reviewed = True, results.reviewed
        if len(open_here) == len(results.errors) == 1:
            # Which task ran which call is not written down; where one of each is left, there is no doubt.
            ai_id = _caller(saved, open_here[0], messages_key)
            found[ai_id, open_here[0]] = CallEvidence(Facts(started=True, error=results.errors[0]))
        saved = saver.get_tuple(saved.parent_config) if saved.parent_config is not None else None
    return PendingEvidence(found, paused, reviewed, updates)


def is_due(history: Sequence[Any], call_id: str) -> bool:
    """Whether a call is what happens next: its message is the last, but for answers to its siblings.

    Behind an older one, what a task has raised is some other node's business.
    """
    caller = last_caller(history, call_id)
    behind = itertools.takewhile(lambda message: message is not caller, reversed(history))
    return caller is not None and all(isinstance(message, ToolMessage) for message in behind)


def stored_ids(saver: BaseCheckpointSaver[Any], config: RunnableConfig, *, messages_key: str) -> frozenset[str]:
    """Ids of the messages that a thread's newest checkpoints hold; what is missing of them now was taken out."""
    found: set[str] = set()
    saved = saver.get_tuple(config)
    for _ in range(STORED_CHECKPOINTS):
        if saved is None:
            break
        found |= held_ids(saved, messages_key)
        saved = saver.get_tuple(saved.parent_config) if saved.parent_config is not None else None
    return frozenset(found)


def held_ids(saved: CheckpointTuple, messages_key: str) -> set[str]:
    """Ids of the messages that one checkpoint holds."""
    return {m.id for m in _history(saved, messages_key) if isinstance(m, BaseMessage) and m.id}


def results_in(saved: CheckpointTuple, messages_key: str) -> Results:
    """What a checkpoint's pending writes tell."""
    answers: list[ToolMessage] = []
    errors: list[str] = []
    questions: list[Any] = []
    for _, channel, value in saved.pending_writes or ():
        if channel == INTERRUPT:
            questions += value if isinstance(value, (list, tuple)) else [value]
        elif channel == ERROR and (text := error_text(value)):
            errors.append(text)
        elif channel == messages_key:
            answers += _new_answers(messages_in(value))
    return Results(answers, bool(questions), errors, reviewed_calls(questions))


def reviewed_calls(questions: Sequence[Any]) -> list[ReviewedCall] | None:
    """The calls that a person is asked about before any tool of their message runs, in LangChain's form of asking.

    Returns:
        Tool and arguments of each; `None` where something else is asked, which may be about any call.
    """
    found: list[ReviewedCall] = []
    for question in questions:
        value = question.get("value") if isinstance(question, Mapping) else getattr(question, "value", None)
        if not isinstance(value, Mapping) or not {"action_requests", "review_configs"} <= value.keys():
            return None
        requests = value["action_requests"]
        if not isinstance(requests, (list, tuple)) or not all(isinstance(each, Mapping) for each in requests):
            return None
        found += [ReviewedCall(each.get("name"), each.get("args")) for each in requests]
    return found


def _beside(saved: CheckpointTuple, answer: ToolMessage, messages_key: str) -> list[tuple[str, Any]]:
    """What the task that gave an answer has written to other channels of the state."""
    writes = saved.pending_writes or ()
    tasks = {w[0] for w in writes if w[1] == messages_key and any(m is answer for m in messages_in(w[2]))}
    return [
        (channel, value)
        for task, channel, value in writes
        if task in tasks and channel != messages_key and not channel.startswith(("__", "branch:"))
    ]


def _new_answers(written: list[BaseMessage]) -> list[ToolMessage]:
    """The answers in what a task wrote; of a whole history, those behind its last reply."""
    start = max((place + 1 for place, message in enumerate(written) if isinstance(message, AIMessage)), default=0)
    return [message for message in written[start:] if isinstance(message, ToolMessage)]


def error_text(error: object) -> str:
    """A stored error, as text; empty if it only says that the task was stopped.

    Some serializers keep the exception, others what it looks like.
    """
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return "" if text.startswith(_STOPPED) else text


def _history(saved: CheckpointTuple, messages_key: str) -> Sequence[Any]:
    value = saved.checkpoint["channel_values"].get(messages_key)
    return value if isinstance(value, (list, tuple)) else ()


def _caller(saved: CheckpointTuple, call_id: str, messages_key: str) -> str | None:
    message = last_caller(_history(saved, messages_key), call_id)
    return None if message is None else message.id
