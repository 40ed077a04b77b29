"""What happens at the door of a tool: whether it runs, or which answer it gives without running. Decisions are
`_finalize`'s; what the tool then does is recorded by the callback handler.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, interrupt

from ._finalize import Outcome, Policy, decide_resume, wording
from ._guard_core import GuardCore
from ._histories import METADATA_KEY, Text
from ._offload import offload
from ._running import RunningTurn, new_id
from ._tool_calls import last_caller
from ._transcript import messages_in
from ._turn import Cause

#: The `type` of the question a person is asked under the policy "ask".
QUESTION: Final = "turncheckpoint.unknown_outcome"
CHOICES: Final = ("rerun", "report", "result")


class Verdict(NamedTuple):
    """Whether a tool runs; if not, either an answer, or a question to a person."""

    action: Literal["run", "answer", "ask"]
    answer: Any = None


def guarded_call(core: GuardCore, request: Any, execute: Callable[[Any], Any]) -> Any:
    """A tool call of a `ToolNode`, if it may run; otherwise the answer it gets."""
    entered = _enter(core, request)
    if entered is None:
        return execute(request)
    running, verdict, policy = entered
    if verdict.action == "ask":
        verdict = ask(running, request.tool_call, core.rules.texts)
        if verdict.action == "run":
            start(running, request.tool_call, policy)
    if verdict.action == "answer":
        return verdict.answer
    with _pauses(running, request):
        return _given(running, request, execute(request))


async def aguarded_call(core: GuardCore, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
    """Async twin of `guarded_call`."""
    entered = await offload(_enter, core, request)
    if entered is None:
        return await execute(request)
    running, verdict, policy = entered
    if verdict.action == "ask":
        verdict = ask(running, request.tool_call, core.rules.texts)
        if verdict.action == "run":
            await offload(start, running, request.tool_call, policy)
    if verdict.action == "answer":
        return verdict.answer
    with _pauses(running, request):
        return _given(running, request, await _beside_siblings(running, request, execute(request)))


async def _beside_siblings(running: RunningTurn, request: Any, output: Awaitable[Any]) -> Any:
    """What the tool gives. If it raises or pauses, its siblings end first.

    A `ToolNode` that awaits several calls is left with the first error, and what the others give later would be
    lost; one that blocks waits for all of them, as this does.
    """
    call_id, loop = request.tool_call.get("id") or "", asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    siblings = running.in_flight.setdefault(running.caller(call_id), {})
    siblings[call_id] = done
    try:
        return await output
    except Exception:
        siblings.pop(call_id, None)
        if waiting := [other for other in siblings.values() if other.get_loop() is loop]:
            await asyncio.wait(waiting)
        raise
    finally:
        siblings.pop(call_id, None)
        if not done.done():
            done.set_result(None)


def _enter(core: GuardCore, request: Any) -> tuple[RunningTurn, Verdict, Policy] | None:
    """Decide about a call, and record its start if it runs; `None` where nothing is saved."""
    running = core.contact(request.runtime.config)
    if running is None:
        return None
    core.record_into(request.runtime.config, running)
    policy, history = core.policy_of(request), core.history(request.state)
    verdict = judge(running, request.tool_call, history, policy=policy, texts=core.rules.texts)
    if verdict.action == "run":
        start(running, request.tool_call, policy)
    return running, verdict, policy


def start(running: RunningTurn, call: Mapping[str, Any], policy: Policy) -> None:
    """Record that a tool is about to run; durable on return.

    Raises:
        StaleTurnError: The turn is over.
        StorageError: It cannot be recorded, and the tool must not run twice.
    """
    if call.get("id"):
        running.tool_started(call["id"], call["name"], must_be_durable=policy != "rerun")
        running.arm(call["id"])


@contextmanager
def _pauses(running: RunningTurn, request: Any) -> Iterator[None]:
    """A call that waits for a person, be it in the tool or in a middleware before it, has not run."""
    try:
        yield
    except GraphInterrupt:
        if request.tool_call.get("id"):
            running.tool_paused(request.tool_call["id"])
        raise


def _given(running: RunningTurn, request: Any, output: Any) -> Any:
    if request.tool_call.get("id"):
        running.tool_ended(request.tool_call["id"], output)  # as the graph gets it, errors that were handled included
    return output


def judge(
    running: RunningTurn,
    call: Mapping[str, Any],
    history: Sequence[Any],
    *,
    policy: Policy,
    texts: Mapping[str, Text],
) -> Verdict:
    """Decide about one call. Reads and appends to files; never waits for a person.

    Raises:
        StaleTurnError: The turn is over; the tool must not run.
    """
    running.check()
    call_id = call.get("id")
    if not call_id:
        return Verdict("run")
    caller = last_caller(history, call_id)
    if isinstance(caller, AIMessage):
        running.cover(caller)
    if running.is_allowed(call_id):
        return Verdict("run")
    action = decide_resume(running.facts(call_id), policy)
    if action == "give":
        output = running.earlier.output(running.caller(call_id), call_id)
        if not isinstance(output, Command) and not messages_in(output):
            return Verdict("answer", _as_message(call, output))
        running.tool_ended(call_id, output)
        return Verdict("answer", output)
    if action == "report":
        answer = _answer(running, call, "unknown", texts)
        running.tool_ended(call_id, answer)
        return Verdict("answer", answer)
    if action == "ask":
        return Verdict("ask")
    running.allow(call_id)
    return Verdict("run")


def ask(running: RunningTurn, call: Mapping[str, Any], texts: Mapping[str, Text]) -> Verdict:
    """Ask a person through LangGraph's `interrupt`; a resumed run gets its answer here.

    The answer is "rerun", "report", or a dict `{"action": "rerun" | "report" | "result", "content": ...}`, where
    "result" hands on what the person knows the tool has done. Anything else is asked again.
    """
    call_id, complaint = call["id"], ""
    _, cause = running.end_cause()
    question: dict[str, Any] = {
        "type": QUESTION,
        "tool_call_id": call_id,
        "name": call["name"],
        "args": call.get("args"),
        "description": wording("unknown", cause, call["name"]),
        "choices": list(CHOICES),
    }
    put_after = running.earlier.asked(running.caller(call_id), call_id)
    for values in itertools.count():
        if complaint:
            question["error"] = complaint
        try:
            reply = interrupt(question)
        except GraphInterrupt:
            running.asked(call_id, values)
            raise
        if put_after is None or values < put_after:
            continue  # LangGraph hands out again what was answered to another question of the same task
        action = reply.get("action") if isinstance(reply, Mapping) else reply
        if action in ("rerun", True):
            running.allow(call_id)
            return Verdict("run")
        if action in ("report", False):
            return Verdict("answer", _answer(running, call, "answered_by_person", texts))
        if action == "result" and isinstance(reply, Mapping) and reply.get("content") is not None:
            message = ToolMessage(content=reply["content"], name=call["name"], tool_call_id=call_id, id=new_id())
            return Verdict("answer", message)
        complaint = f"{reply!r:.200} is no answer; use 'rerun', 'report' or {{'action': 'result', 'content': ...}}"
    raise AssertionError  # pragma: no cover - the loop has no end of its own


def _answer(running: RunningTurn, call: Mapping[str, Any], outcome: Outcome, texts: Mapping[str, Text]) -> ToolMessage:
    """An answer that the tool did not give."""
    _, cause = running.end_cause()
    return made_answer(call, outcome, cause, texts=texts, turn_token=running.token)


def made_answer(
    call: Mapping[str, Any], outcome: Outcome, cause: Cause, *, texts: Mapping[str, Text], turn_token: int
) -> ToolMessage:
    """An answer that says what is known of a call, marked as such."""
    text = texts.get(call["name"], texts.get("*"))
    if text is None:
        text = wording(outcome, cause, call["name"])
    elif callable(text):
        text = text(outcome, cause, call)
    return ToolMessage(
        content=text,
        name=call["name"],
        tool_call_id=call["id"],
        id=new_id(),
        status="error",
        response_metadata={METADATA_KEY: {"outcome": outcome, "cause": cause, "turn_token": turn_token}},
    )


def _as_message(call: Mapping[str, Any], output: Any) -> ToolMessage:
    return ToolMessage(content=str(output), name=call["name"], tool_call_id=call["id"], id=new_id())
