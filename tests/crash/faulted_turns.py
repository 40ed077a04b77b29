"""A whole guarded turn, with a tool that counts its effects, in which one system call fails; then the thread goes on.
How calls fail is `failing_system`'s business; what is injected, the fault lab's.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import ormsgpack
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.errors import EmptyInputError

from langgraph_turncheckpoint import JournalWarning, StorageError, TurnCheckpointError, TurnCheckpointSaver, TurnGuard
from langgraph_turncheckpoint._frames import split_frames
from langgraph_turncheckpoint._journal import journal_token
from langgraph_turncheckpoint._transcript import START
from tests.contract.guarded_agents import Model, calls
from tests.contract.storing import addressed, named, noticed
from tests.contract.true_histories import answers, assert_honest, assert_valid, outcome
from tests.crash.failing_system import Fault, Outcome, System, descriptors_below, failing, faults_at

THREAD: Final = "t"
CONFIG: Final = addressed(THREAD)
PROMPT, FIRST, LATER = "pay", "hello", "and now?"
#: The effect of a tool whose start is in no journal.
UNRECORDED: Final = "pay, unrecorded"

Way = Literal["attach", "middleware"]
Policy = Literal["report", "rerun"]

#: Calls by which a journal that is there is written.
_WRITING: Final = frozenset({"write", "fdatasync", "fsync", "ftruncate", "lseek"})


class Case(NamedTuple):
    """How the guard is in the graph, and what may be done about a tool that had started."""

    way: Way
    policy: Policy

    def __str__(self) -> str:
        return f"guarded turn by {self.way}, {self.policy}"


CASES: Final = tuple(Case(way, policy) for way in ("attach", "middleware") for policy in ("report", "rerun"))


def _is_recorded(path: Path) -> bool:
    """Whether the newest journal says that a tool has started; looked up behind the failing system's back."""
    newest = max(named(path, ".journal"), key=lambda file: journal_token(file.name) or 0)
    payloads = split_frames(newest.read_bytes()).payloads[1:]
    return any(ormsgpack.unpackb(payload)[0] == START for payload in payloads)


class _Agent:
    """One process' life with the agent."""

    def __init__(self, path: Path, case: Case, effects: list[str]) -> None:
        from langchain.agents import create_agent

        def pay() -> str:
            effects.append("pay" if _is_recorded(path) else UNRECORDED)
            return "paid"

        saver = TurnCheckpointSaver(path)
        guard = TurnGuard(saver, default_on_restart=case.policy)
        tool = StructuredTool.from_function(func=pay, name="pay", description="pay")
        model = Model(script={PROMPT: calls("pay")}, seen=[])
        middleware = [guard.middleware()] if case.way == "middleware" else []
        graph: Any = create_agent(model, [tool], middleware=middleware, checkpointer=saver)
        self.graph = guard.attach(graph) if case.way == "attach" else graph

    def say(self, text: str) -> None:
        """A turn with a message."""
        self._invoke({"messages": [HumanMessage(text, id=f"prompt: {text}")]})

    def go_on(self) -> None:
        """Let the run that was stopped go on, if there is anything to do."""
        with contextlib.suppress(EmptyInputError):
            self._invoke(None)

    def _invoke(self, given: Any) -> None:
        self.graph.invoke(given, CONFIG, durability="sync")

    def history(self) -> list[Any]:
        """The messages of the thread."""
        return list(self.graph.get_state(CONFIG).values.get("messages", []))


class TurnBench:
    """A guarded turn, to be run over and over.

    Args:
        case: How the guard is in the graph.
        template: Where a store with one finished turn is made.
        path: Where it is copied to for each run.

    Attributes:
        calls: The system calls of the turn, by name.
    """

    def __init__(self, case: Case, template: Path, path: Path) -> None:
        self._case, self._template, self._path = case, template, path
        shutil.rmtree(template, ignore_errors=True)
        _Agent(template, case, []).say(FIRST)
        effects: list[str] = []
        system = System()
        agent = self._staged(effects)
        with failing(system):
            agent.say(PROMPT)
        self.calls = [name for name, _ in system.calls]
        assert effects == ["pay"], effects

    def faults(self) -> list[Fault]:
        """Every fault there can be."""
        return [fault for position, name in enumerate(self.calls) for fault in faults_at(position, name)]

    def _staged(self, effects: list[str]) -> _Agent:
        shutil.rmtree(self._path, ignore_errors=True)
        shutil.copytree(self._template, self._path)
        return _Agent(self._path, self._case, effects)

    def suffer(self, fault: Fault) -> Outcome:
        """Let the turn suffer a fault, then go on in another process."""
        effects: list[str] = []
        agent, system = self._staged(effects), System(fault)
        error: TurnCheckpointError | None = None
        problems: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with failing(system):
                    agent.say(PROMPT)
            except TurnCheckpointError as raised:
                error = raised.with_traceback(None)
            except Exception as raised:  # noqa: BLE001 - that is what is looked for
                return Outcome(True, [f"raised a bare {raised!r}"])
        problems += self._wrong_error(error, fault, system, effects)
        said = [str(each.message) for each in caught]
        others = [str(each.message) for each in caught if each.category is not JournalWarning]
        if others or sum("misses a record" in text for text in said) > 1:
            problems.append(f"warned: {said}")
        is_refused, error = error is not None, None
        before = len(effects)
        if not is_refused:
            problems += self._wrong_history(agent, effects, expects=["human", "ai", "human", "ai", "tool", "ai"])
        del agent
        problems += self._leaked()
        with noticed() as warned:
            try:
                problems += self._wrong_continuation(effects, is_refused=is_refused)
            except TurnCheckpointError as raised:
                problems.append(f"going on raises {raised!r}")
        if set(warned) - ({"DamageWarning"} if fault.kind == "dropped" else set()):
            problems.append(f"going on warns with {warned}")
        if self._case.policy == "report" and UNRECORDED in effects:
            problems.append("the tool ran although its start could not be recorded")
        if self._case.policy == "report" and len(effects) > 1:
            problems.append(f"the tool took effect {len(effects)} times, {before} of them before the fault was over")
        return Outcome(is_refused, problems)

    def _wrong_error(
        self, error: TurnCheckpointError | None, fault: Fault, system: System, effects: list[str]
    ) -> Iterator[str]:
        if error is None:
            return
        if not isinstance(error, StorageError):
            yield f"raised {error!r}, which is not what happened"
        elif error.errno != fault.code:
            yield f"raised {error!r}, which does not tell the errno"
        if fault.is_harmless:
            yield f"raised {error!r} for what it could have got along with"
        written = [system.calls[hit] for hit in system.hits]
        if not all(name in _WRITING and os.path.basename(path).startswith("j-") for name, path in written):
            return
        if ("write", written[0][1]) not in system.calls[: system.hits[0]]:
            return  # without its header there is no turn yet
        if self._case.policy == "rerun" or effects:
            yield f"failed for its journal, after effects {effects}: {error!r}"

    def _leaked(self) -> Iterator[str]:
        if descriptors_below(str(self._path)):
            gc.collect()
            if leaked := descriptors_below(str(self._path)):
                yield f"left open: {leaked}"

    def _wrong_history(self, agent: _Agent, effects: list[str], *, expects: list[str] | None = None) -> Iterator[str]:
        history = agent.history()
        if expects is not None and [message.type for message in history] != expects:
            yield f"acknowledged, but the history is {history!r:.600}"
        try:
            assert_valid(history)
            for answer in answers(history).values():
                assert_honest(answer, ran=bool(effects))
        except AssertionError as broken:
            yield f"history: {broken.args or history}"
        real = [m for m in history if isinstance(m, ToolMessage) and not outcome(m) and m.status == "success"]
        if len(real) > len(effects):
            yield f"results without effects: {history!r:.600}"
        if effects and not any(message.id == f"prompt: {PROMPT}" for message in history):
            yield "the prompt is gone, and the tool has run"

    def _wrong_continuation(self, effects: list[str], *, is_refused: bool) -> Iterator[str]:
        """What is wrong once another process has gone on."""
        agent = _Agent(self._path, self._case, effects)
        if is_refused:
            agent.go_on()
            yield from self._wrong_history(agent, effects)
        agent.say(LATER)
        yield from self._wrong_history(agent, effects)
        last = agent.history()[-1]
        if not isinstance(last, AIMessage):
            yield f"the thread does not go on: {last!r:.300}"
