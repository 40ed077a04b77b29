"""What happens at the door of a tool: whether it runs, or which answer it gives without running. Decisions are
`_finalize`'s; what the tool then does is recorded by the callback handler.
"""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, interrupt

from . import _events
from ._finalize import Outcome, Policy, cause_in, decide_resume, wording
from ._guard_core import GuardCore
from ._histories import Text, made_answer
from ._offload import offload
from ._running import RunningTurn, new_id
from ._tool_calls import Call, calls_of, last_caller
from ._transcript import CallKey, messages_in, tool_message
from .errors import PolicyWarning

#: The `type` of the question a person is asked under the policy "ask".
QUESTION: Final = "turncheckpoint.unknown_outcome"
CHOICES: Final = ("rerun", "report", "result")


class Passed(NamedTuple):
    """The call that a gate has let through and that now runs."""

    place: tuple[object, ...]
    core: GuardCore
    policy: Policy


_passed: ContextVar[Passed | None] = ContextVar("turncheckpoint_passed", default=None)


class Verdict(NamedTuple):
    """Whether a tool runs; if not, either an answer, or a question to a person."""

    action: Literal["run", "answer", "ask"]
    answer: Any = None


def guarded_call(core: GuardCore, request: Any, execute: Callable[[Any], Any]) -> Any:
    """A tool call of a `ToolNode`, if it may run; otherwise the answer it gets."""
    entered = None if _has_passed(core, request) else _enter(core, request)
    if entered is None:
        return execute(request)
    running, key, verdict, policy = entered
    if verdict.action == "ask":
        verdict = ask(running, key, request.tool_call, core.rules.texts)
        if verdict.action == "run":
            start(running, key, policy)
    elif verdict.action == "run":
        _skip_answers(running, key)
    if verdict.action == "answer":
        return verdict.answer
    with _passing(core, request, policy), _pauses(running, key):
        return _given(running, key, execute(request))


async def aguarded_call(core: GuardCore, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
    """Async twin of `guarded_call`."""
    if _has_passed(core, request):
        return await execute(request)
    return await _beside_siblings(core, request, _aguarded(core, request, execute))


async def _aguarded(core: GuardCore, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
    entered = await offload(_enter, core, request)
    if entered is None:
        return await execute(request)
    running, key, verdict, policy = entered
    if verdict.action == "ask":
        verdict = ask(running, key, request.tool_call, core.rules.texts)
        if verdict.action == "run":
            await offload(start, running, key, policy)
    elif verdict.action == "run":
        _skip_answers(running, key)
    if verdict.action == "answer":
        return verdict.answer
    with _passing(core, request, policy), _pauses(running, key):
        return _given(running, key, await execute(request))


def with_unreadable(core: GuardCore, request: Any, output: Any) -> Any:
    """The output of a message's first call, with answers to those of its calls that could not be parsed.

    No tool node runs those, and while the run goes on nobody else would answer them.
    """
    history = core.history(request.state)
    caller = last_caller(history, request.tool_call.get("id") or "")
    if caller is None or not caller.invalid_tool_calls or request.tool_call["id"] != caller.tool_calls[0]["id"]:
        return output
    behind = itertools.takewhile(lambda message: message is not caller, reversed(history))
    answered = {message.tool_call_id for message in behind if isinstance(message, ToolMessage)}
    invalid = [call for call in calls_of(caller, 0) if call.invalid and call.id == call.stated_id]
    texts = core.rules.texts
    answers = [
        made_answer(call, "invalid", "error", texts=texts, turn_token=0, id=new_id())
        for call in invalid
        if call.id not in answered
    ]
    return [*(output if isinstance(output, list) else [output]), *answers]


async def _beside_siblings(core: GuardCore, request: Any, output: Awaitable[Any]) -> Any:
    """What a call gives. If it raises or pauses, the other calls of its message end first.

    A `ToolNode` that awaits several calls is left with the first error, and what the others give later would be
    lost; one that blocks waits for all of them, as this does.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    caller = last_caller(core.history(request.state), request.tool_call.get("id") or "")
    conf = request.runtime.config.get("configurable") or {}
    place = str(conf.get("thread_id")), conf.get("checkpoint_ns"), None if caller is None else caller.id
    siblings = core.in_flight.setdefault(place, set())
    siblings.add(done)
    try:
        return await output
    except Exception:
        siblings.discard(done)
        if waiting := [other for other in siblings if other.get_loop() is loop]:
            await asyncio.wait(waiting)
        raise
    finally:
        siblings.discard(done)
        if not siblings:
            core.in_flight.pop(place, None)
        if not done.done():
            done.set_result(None)


def _enter(core: GuardCore, request: Any) -> tuple[RunningTurn, CallKey, Verdict, Policy] | None:
    """Decide about a call, and record its start if it runs; `None` where nothing is saved."""
    running = core.contact(request.runtime.config)
    call = request.tool_call
    if running is None or not call.get("id"):
        return None
    core.record_into(request.runtime.config, running)
    policy, history = core.policy_of(request), core.history(request.state)
    running.check()
    caller = last_caller(history, call["id"])
    if caller is not None:
        running.cover(caller)
        key = CallKey(caller.id, call["id"], call["name"])
    else:
        key = running.key_of(call["id"], call["name"])
    verdict = judge(running, key, call, policy=policy, texts=core.rules.texts)
    if verdict.action == "run":
        start(running, key, policy)
    core.is_gated(request.runtime.config, running)
    return running, key, verdict, policy


def start(running: RunningTurn, key: CallKey, policy: Policy) -> None:
    """Record that a tool is about to run; durable on return.

    Raises:
        StaleTurnError: The turn is over.
        StorageError: It cannot be recorded, and the tool must not run twice.
    """
    running.tool_started(key, must_be_durable=policy != "rerun")
    running.arm(key)


@contextmanager
def _passing(core: GuardCore, request: Any, policy: Policy) -> Iterator[None]:
    """Lets the call through every further gate: an attached agent may have the guard's middleware, too."""
    token = _passed.set(Passed(_place(request), core, policy))
    try:
        yield
    finally:
        _passed.reset(token)


def _has_passed(core: GuardCore, request: Any) -> bool:
    """Whether a gate further out has decided about the call."""
    passed = _passed.get()
    if passed is None or passed.place != _place(request):
        return False
    if passed.core is not core and (own := core.policy_of(request)) != passed.policy:
        name = request.tool_call["name"]
        text = (
            f"two guards are around tool {name!r}: the outer one's policy {passed.policy!r} counts, and the inner "
            f"one's {own!r} does not; use one guard"
        )
        warnings.warn(text, PolicyWarning, stacklevel=2)
    return True


def _place(request: Any) -> tuple[object, ...]:
    """Which call of which tool node this is; a tool that runs a graph of its own may see the same call id in there."""
    conf = request.runtime.config.get("configurable") or {}
    return conf.get("thread_id"), conf.get("checkpoint_ns"), request.tool_call.get("id")


def _skip_answers(running: RunningTurn, key: CallKey) -> None:
    """Take the answers that the guard's own question once took, so that the tool gets those to its own."""
    for _ in range(running.consumed(key)):
        interrupt(None)


@contextmanager
def _pauses(running: RunningTurn, key: CallKey) -> Iterator[None]:
    """A call that waits for a person, be it in the tool or in a middleware before it, has not run."""
    try:
        yield
    except GraphInterrupt:
        running.tool_paused(key)
        raise


def _given(running: RunningTurn, key: CallKey, output: Any) -> Any:
    running.tool_ended(key, output)  # as the graph gets it, errors that were handled included
    return output


def judge(
    running: RunningTurn,
    key: CallKey,
    call: Mapping[str, Any],
    *,
    policy: Policy,
    texts: Mapping[str, Text],
) -> Verdict:
    """Decide about one call. Appends to files; never waits for a person."""
    if running.is_allowed(key):
        return Verdict("run")
    action, output = decide_resume(running.facts(key), policy), running.output(key)
    if action == "give" and isinstance(output, Command) and output.graph is None:
        # One without an answer would leave the call open.
        action = "give" if tool_message(output, key.call_id) is not None else "report"
    if action == "give":
        if not isinstance(output, Command) and not messages_in(output):
            output = ToolMessage(content=str(output), name=key.tool, tool_call_id=key.call_id, id=new_id())
        running.tool_ended(key, output)
        _told(running, key, "recorded")
        return Verdict("answer", output)
    if action == "report":
        answer = _answer(running, key, call, "unknown", texts)
        running.tool_ended(key, answer)
        return Verdict("answer", answer)
    if action == "ask":
        return Verdict("ask")
    return Verdict("run")


def ask(running: RunningTurn, key: CallKey, call: Mapping[str, Any], texts: Mapping[str, Text]) -> Verdict:
    """Ask a person through LangGraph's `interrupt`; a resumed run gets its answer here.

    The answer is "rerun", "report", or a dict `{"action": "rerun" | "report" | "result", "content": ...}`, where
    "result" hands on what the person knows the tool has done. Anything else is asked again: a bare `True` may well mean
    that something was read, and would pay twice.
    """
    complaint = ""
    cause = running.cause_of(key)
    question: dict[str, Any] = {
        "type": QUESTION,
        "tool_call_id": key.call_id,
        "name": call["name"],
        "args": call.get("args"),
        "description": wording("unknown", cause, call["name"]),
        "choices": list(CHOICES),
    }
    put_after = running.earlier.asked(key)
    for values in itertools.count():
        if complaint:
            question["error"] = complaint
        try:
            reply = interrupt(question)
        except GraphInterrupt:
            running.asked(key, values)
            raise
        if put_after is None or values < put_after:
            continue  # LangGraph hands out again what was answered to another question of the same task
        action = reply.get("action") if isinstance(reply, Mapping) else reply
        if action == "rerun":
            running.allowed(key, values + 1)
            return Verdict("run")
        if action == "report":
            return Verdict("answer", _answer(running, key, call, "answered_by_person", texts))
        if action == "result" and isinstance(reply, Mapping) and reply.get("content") is not None:
            message = ToolMessage(content=reply["content"], name=call["name"], tool_call_id=key.call_id, id=new_id())
            _told(running, key, "answered_by_person")
            return Verdict("answer", message)
        complaint = f"{reply!r:.200} is no answer; use 'rerun', 'report' or {{'action': 'result', 'content': ...}}"
    raise AssertionError  # pragma: no cover - the loop has no end of its own


def _told(running: RunningTurn, key: CallKey, outcome: Outcome) -> None:
    _events.answered(running.store.root, running.thread_id, running.token, [(outcome, cause_in(running.cause_of(key)))])


def _answer(
    running: RunningTurn, key: CallKey, call: Mapping[str, Any], outcome: Outcome, texts: Mapping[str, Text]
) -> ToolMessage:
    """An answer that the tool did not give."""
    _told(running, key, outcome)
    stated = Call(call["id"], call["id"], call["name"], invalid=False, stated=call)
    return made_answer(stated, outcome, running.cause_of(key), texts=texts, turn_token=running.token, id=new_id())
