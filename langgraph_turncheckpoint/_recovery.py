"""Putting a thread in order before a run goes on or a new message comes, by what its journals and its checkpoints
tell. Written once, as steps that ask for LangGraph operations; who carries them out blocks or awaits.

Nothing here needs to know the graph's nodes: what tasks have finished is committed as LangGraph would commit it, and
the history is replaced in the same way.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.constants import END, START
from langgraph.pregel import Pregel
from langgraph.types import Overwrite, StateSnapshot

from . import _events
from ._evidence import Wishes, evidence_of, other_updates
from ._finalize import Facts, reason_of
from ._histories import CallEvidence, Evidence, FinalizedHistory, GivenAnswer, Text, finalize_history, is_healthy
from ._markup import Cell, table
from ._pending import STORED_CHECKPOINTS, error_text, held_ids, is_due, results_in, reviewed_calls
from ._running import RunningTurn
from ._transcript import Transcript, keys_of
from ._turn import Cause

#: The task id of writes that belong to no task; LangGraph applies them before anything else.
NULL_TASK_ID: Final = "00000000-0000-0000-0000-000000000000"


#: The first write of a replaced history may meet a write of an earlier run that wins over it, and is then repeated.
REPLACEMENT_ATTEMPTS: Final = 2


class Operation(NamedTuple):
    """A LangGraph operation that is wanted."""

    name: Literal["get_state", "get_tuple", "update_state", "put_writes"]
    args: tuple[Any, ...]


Graph = Pregel[Any, Any, Any, Any]
T = TypeVar("T")
Steps = Generator[Operation, Any, "RecoveryReport"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How a guard finalizes.

    Attributes:
        messages_key: The channel of the history.
        wishes: What to keep of a reply that was cut off.
        unanswered: Tools whose calls may stay open.
        texts: Texts instead of the usual ones, by tool.
    """

    messages_key: str = "messages"
    wishes: Wishes = field(default_factory=Wishes)
    unanswered: Collection[str] = ()
    texts: Mapping[str, Text] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was found on a thread, and what was done about it.

    Attributes:
        thread_id: The thread.
        turn_token: The turn it was done in.
        state: How the last turn that left something behind ended: "interrupted", "failed", "cancelled", ...
        cause: Why it ended.
        answers: The answers that tool calls were given.
        moved: Answers that stood too far down and were moved.
        set_aside: Messages that were taken out: answers to no call, and second answers.
        added: Messages that had not reached the history.
        changed: Whether anything was written.
    """

    thread_id: str
    turn_token: int
    state: str = "unknown"
    cause: Cause = "unknown"
    answers: Sequence[GivenAnswer] = ()
    moved: Sequence[ToolMessage] = ()
    set_aside: Sequence[BaseMessage] = ()
    added: Sequence[BaseMessage] = ()
    changed: bool = False

    def _repr_html_(self) -> str:
        rows: list[list[Cell | str]] = [
            [Cell(given.tool_name, title=given.call_id), given.outcome, given.cause, Cell(str(given.message.text))]
            for given in self.answers
        ]
        counts = {"moved": self.moved, "set aside": self.set_aside, "added": self.added}
        rows += [[f"{len(found)} {name}", "-", "-", "-"] for name, found in counts.items() if found]
        ended = f"the turn before ended as {self.state} ({self.cause})"
        note = f"In turn {self.turn_token}; {ended}." if self.changed else "Nothing was changed: all was in order."
        return table(f"Recovery of thread {self.thread_id}", ["tool", "outcome", "cause", "told"], rows, note=note)


class Recovery:
    """The recovery of one thread for one graph.

    Args:
        graph: The graph, unguarded.
        config: The thread, carrying the turn.
        running: The turn.
        rules: How to finalize.
        gated: Nodes that ask the guard before each tool.
    """

    def __init__(
        self, graph: Graph, config: RunnableConfig, running: RunningTurn, *, rules: Rules, gated: Collection[str] = ()
    ) -> None:
        self._graph, self._config, self._running = graph, config, running
        self._rules, self._gated = rules, gated
        self._state, self._cause = running.end_cause()
        self._reason, self._causes = reason_of(self._state, self._cause), running.causes()
        self._stored: set[str] = set()
        self._is_overtaken = True

    def by_hand(self) -> Steps:
        """Close everything that is open, although nothing comes."""
        self._is_overtaken = False
        return self.before_new_message([])

    def without_state(self) -> Steps:
        """Close what is open in the newest checkpoint, where what is pending on it cannot be applied.

        LangGraph drops that when a message comes. Until then nothing can be committed, so the closed history waits
        with the checkpoint, to be applied first.
        """
        self._is_overtaken = False
        return self._told(self._without_state())

    def _without_state(self) -> Steps:
        yield from self._look_back()
        saved: CheckpointTuple | None = yield Operation("get_tuple", (self._config,))
        key = self._rules.messages_key
        stored = [] if saved is None else history_in(saved, key)
        evidence = self._evidence(stored, paused=False)
        if saved is not None:
            evidence = _with_results(evidence, saved, key)
        done = self._finalized(stored, evidence, follower_comes=True)
        if done.changed and saved is not None:
            target = _with(self._config, saved.config.get("configurable", {}))
            yield Operation("put_writes", (target, [(key, self._replacement(done.messages))]))
        return self._report(done, changed=done.changed)

    def before_new_message(self, arriving: list[Any]) -> Steps:
        """Close everything that is open: new messages come instead of the run going on.

        Args:
            arriving: Those messages. Answers to calls among them are taken to their place and out of this list.
        """
        return self._told(self._before_new_message(arriving))

    def _before_new_message(self, arriving: list[Any]) -> Steps:
        yield from self._look_back()
        snapshot: StateSnapshot = yield Operation("get_state", (self._config,))
        committed = False
        questions = [question for task in snapshot.tasks for question in task.interrupts]
        errors = [text for task in snapshot.tasks if task.error is not None and (text := error_text(task.error))]
        if any(task.result is not None for task in snapshot.tasks):
            # Finished siblings keep what they gave, in the order of the tasks; nothing is pending any more.
            yield Operation("update_state", (self._config, None, END))
            snapshot, committed = (yield Operation("get_state", (self._config,))), True
        stored = self._history(snapshot)
        first = done = self._finalize(stored, arriving, questions=questions, errors=errors)
        if not first.changed:
            return self._report(first, changed=committed)
        # From the first of them on, everything comes with the input; in front of it, with the state.
        arriving[:] = _from_first(arriving, done.messages)
        coming = {id(message) for message in arriving}
        updates = other_updates(self._running.earlier, first.answers, first.messages, self._rules.messages_key)
        for _ in range(REPLACEMENT_ATTEMPTS):
            history = [message for message in done.messages if id(message) not in coming]
            if history == stored:
                break
            yield from self._replace(snapshot, history, updates)
            updates = []
            snapshot = yield Operation("get_state", (self._config,))
            stored = self._history(snapshot)
            done = self._finalize(stored, arriving, questions=questions)
        return self._report(first, changed=True)

    def of_arriving(self, saved: CheckpointTuple | None, arriving: list[Any], *, behind: list[Any]) -> None:
        """Put the messages of the input itself in order, in place.

        Args:
            saved: The checkpoint the run starts from.
            arriving: The messages of the input.
            behind: The history that stays in front of them; what is open at its end is answered among them.
        """
        evidence = self._evidence([*behind, *arriving], paused=False)
        if saved is not None:
            evidence = _with_results(evidence, saved, self._rules.messages_key)
        # What would have to stand further up stays away.
        for known in (evidence, dataclasses.replace(evidence, additions=())):
            messages = self._finalized([*behind, *arriving], known, follower_comes=False).messages
            if all(old is new for old, new in zip(behind, messages, strict=False)):
                arriving[:] = messages[len(behind) :]
                return

    def of_addressed(
        self, saved: CheckpointTuple, history: list[Any] | None, *, goes_on: bool, behind: bool
    ) -> Generator[Operation, Any, FinalizedHistory]:
        """The history of a checkpoint that a run is pointed at, with answers to the calls that it will pass over.

        Nothing is written, and nothing that other checkpoints lack is brought back: it may be another lineage.

        Args:
            saved: The checkpoint; the recovery's config is its.
            history: Its messages; `None` where they are not all in it.
            goes_on: Whether its tasks run.
            behind: Whether calls of its last message are answered among the messages of the input.
        """
        snapshot: StateSnapshot | None = None
        if history is None:
            snapshot = yield Operation("get_state", (self._config,))
            history = self._history(snapshot)
        if is_healthy(history, unanswered=self._rules.unanswered):
            return FinalizedHistory(history, [], [], [], [], changed=False)
        until = _tail(history)
        if until is not None and goes_on:
            snapshot = snapshot or (yield Operation("get_state", (self._config,)))
            until = until if self._will_answer(snapshot, history[until]) else None
        elif not behind:
            until = None
        evidence = _with_results(self._evidence(history, paused=False), saved, self._rules.messages_key)
        evidence = dataclasses.replace(evidence, additions=())
        done = self._finalized(history, evidence, follower_comes=False, until=until)
        given = [(answer.outcome, answer.cause) for answer in done.answers]
        _events.answered(self._running.store.root, self._running.thread_id, self._running.token, given)
        return done

    def _will_answer(self, snapshot: StateSnapshot, caller: AIMessage) -> bool:
        """Whether a task that is next may run the calls of the last message, or lead to one that does."""
        return any(not self._is_speaker(task.name, caller) for task in snapshot.tasks)

    def _is_speaker(self, node: str, caller: AIMessage) -> bool:
        """Whether a node is the model's that has made a message, in a graph whose tools are another node's."""
        replies = self._running.earlier.replies
        has_said = any(r.node == node and r.message is not None and r.message.id == caller.id for r in replies)
        return has_said and node not in self._gated and bool(_tool_nodes(self._graph))

    def before_continuing(self, *, is_cut_off: bool = False) -> Steps:
        """Bring back what had not reached the checkpoints, so that the run goes on from what really happened.

        Args:
            is_cut_off: Whether an earlier `before_new_message` had died half-way. It is finished, and nothing is
                left to go on with.
        """
        return self._told(self._before_continuing(is_cut_off=is_cut_off))

    def _before_continuing(self, *, is_cut_off: bool) -> Steps:
        yield from self._look_back()
        snapshot: StateSnapshot = yield Operation("get_state", (self._config,))
        history = self._history(snapshot)
        if is_cut_off:
            yield Operation("update_state", (self._config, None, END))
            return self._report(FinalizedHistory(history, [], [], [], [], changed=True), changed=True)
        restored = yield from self._restore(snapshot, history)
        if restored is not None:
            return restored
        passed_over = yield from self._close_passed_over(history)
        if passed_over is not None:
            return passed_over
        return (yield from self._close_opaque_tasks(snapshot, history))

    # --- steps ---

    def _told(self, steps: Steps) -> Steps:
        """The same steps; what came of them is logged."""
        began_ns, error, report = time.time_ns(), None, None
        try:
            report = yield from steps
            return report
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            done = report or self._report(FinalizedHistory([], [], [], [], [], changed=False), changed=False)
            _events.recovered(
                _events.Recovered(
                    self._running.store.root,
                    done.thread_id,
                    done.turn_token,
                    done.cause,
                    Counter((answer.outcome, answer.cause) for answer in done.answers),
                    len(done.moved),
                    len(done.set_aside),
                    len(done.added),
                    done.changed,
                    began_ns,
                    error,
                )
            )

    def _look_back(self) -> Generator[Operation, Any, None]:
        """Ask the newest checkpoints which messages they hold; what is missing of them now was taken out."""
        config: RunnableConfig | None = None if self._running.earlier.is_empty else self._config
        for _ in range(STORED_CHECKPOINTS):
            if config is None:
                return
            saved: CheckpointTuple | None = yield Operation("get_tuple", (config,))
            self._stored |= set() if saved is None else held_ids(saved, self._rules.messages_key)
            config = None if saved is None else saved.parent_config

    def _restore(self, snapshot: StateSnapshot, history: list[Any]) -> Generator[Operation, Any, RecoveryReport | None]:
        transcript = self._running.earlier
        evidence = self._evidence(history, paused=False)
        # Where no call is open, a prompt that was lost with its run is put back, and the run starts from it.
        lost_prompts = not snapshot.next or is_healthy(history, unanswered=self._rules.unanswered)
        probe = finalize_history(history, evidence, follower_comes=False, until=0)
        added = [message for message in probe.added if lost_prompts or isinstance(message, AIMessage)]
        touched = [m for m in added if isinstance(m, AIMessage) and transcript.was_touched(m)]
        if not added or not (touched or lost_prompts):
            return None
        node = self._node_of(transcript, touched[-1]) if touched else None
        open_from = None
        if node is not None:
            open_from = next(i for i, m in enumerate(probe.messages) if m is touched[-1])
            stored = {id(message) for message in history if not isinstance(message, ToolMessage)}
            if any(id(message) in stored for message in probe.messages[open_from + 1 :]):
                # Somebody has said more since: the calls are passed over, and the run starts from what was said.
                node = open_from = None
            else:
                del probe.messages[open_from + 1 :]
        done = finalize_history(probe.messages, evidence, cause=self._reason, until=open_from, texts=self._rules.texts)
        as_node = node or START
        if as_node not in self._graph.nodes:
            return None
        values = {self._rules.messages_key: self._replacement(done.messages)}
        yield Operation("update_state", (self._config, values, as_node))
        return self._report(done._replace(added=probe.added), changed=True)

    def _close_passed_over(self, history: list[Any]) -> Generator[Operation, Any, RecoveryReport | None]:
        """Answer calls that something else stands behind already: no task will run them any more."""
        evidence = dataclasses.replace(self._evidence(history, paused=False), additions=())
        rules = self._rules
        done = finalize_history(history, evidence, unanswered=rules.unanswered, texts=rules.texts)
        if _tail(history) is not None or not done.changed or START not in self._graph.nodes:
            return None  # the tail goes on by itself, and the next new message puts the rest in order
        values = {rules.messages_key: self._replacement(done.messages)}
        yield Operation("update_state", (self._config, values, START))
        return self._report(done, changed=True)

    def _node_of(self, transcript: Transcript, message: AIMessage) -> str | None:
        """The root graph's node that a reply came from, if its calls can go on from there."""
        for reply in reversed(transcript.replies):
            if reply.message is message and reply.checkpoint_ns == "" and reply.node in self._graph.nodes:
                return reply.node
        return None

    def _close_opaque_tasks(self, snapshot: StateSnapshot, history: list[Any]) -> Steps:
        """Answer the calls of nodes that run tools without asking the guard.

        Such a node would run all its tools again. It is given their results instead, if any of them had started. And
        where the model is next that has made the calls, nobody will run them.
        """
        nodes = {task.name for task in snapshot.tasks if task.result is None and not task.interrupts}
        opaque = nodes - set(self._gated)
        caller = next((m for m in reversed(history) if isinstance(m, AIMessage)), None)
        unchanged = FinalizedHistory(history, [], [], [], [], changed=False)
        has_open = not is_healthy(history, unanswered=self._rules.unanswered)
        if len(opaque) != 1 or caller is None or not has_open:
            return self._report(unchanged, changed=False)
        is_passed_over = nodes == opaque and self._is_speaker(next(iter(opaque)), caller)
        if not (is_passed_over or self._must_not_run_again(caller)):
            return self._report(unchanged, changed=False)
        evidence = dataclasses.replace(self._evidence(history, paused=False), additions=())
        done = self._finalized(history, evidence, follower_comes=False)
        if done.changed:
            values = {self._rules.messages_key: self._replacement(done.messages)}
            yield Operation("update_state", (self._config, values, self._writer(opaque.pop(), caller)))
        return self._report(done, changed=done.changed)

    def _writer(self, node: str, caller: AIMessage) -> str:
        """Who writes the answers to a message's calls in place of the task that is next.

        A model that is next although the calls of its own reply are open would route on from its reply once more, and
        where they are all answered its routes may lead nowhere. The tools had the word.
        """
        tool_nodes = _tool_nodes(self._graph)
        return tool_nodes[0] if self._is_speaker(node, caller) and len(tool_nodes) == 1 else node

    def _must_not_run_again(self, caller: AIMessage) -> bool:
        facts = [self._running.earlier.facts(key) for key in keys_of(caller)]
        return any(f.result or (f.started and f.error is None and not f.paused) for f in facts)

    def _replace(
        self, snapshot: StateSnapshot, messages: list[Any], updates: list[tuple[str, Any]]
    ) -> Generator[Operation, Any, None]:
        saved = snapshot.config.get("configurable", {})
        if not saved.get("checkpoint_id"):
            # Nothing was ever stored: the messages are all there is.
            if START in self._graph.nodes:
                yield Operation("update_state", (self._config, {self._rules.messages_key: messages}, START))
            return
        # No node is asked to write this, so no edge of the graph is followed.
        target = _with(self._config, saved)
        own = [write for write in updates if write[0] in self._graph.channels]
        yield Operation("put_writes", (target, [(self._rules.messages_key, self._replacement(messages)), *own]))
        yield Operation("update_state", (self._config, None, END))

    # --- what is known ---

    def _history(self, snapshot: StateSnapshot) -> list[Any]:
        values = snapshot.values
        found = values.get(self._rules.messages_key) if isinstance(values, Mapping) else None
        return list(found) if isinstance(found, (list, tuple)) else []

    def _evidence(self, history: list[Any], *, paused: bool) -> Evidence:
        evidence = evidence_of(
            self._running.earlier,
            history,
            cause=self._reason,
            causes=self._causes,
            turn_token=self._running.token,
            wishes=self._rules.wishes,
            namespaces=self._namespaces(),
            paused=paused,
            stored=self._stored,
        )
        return evidence if self._is_overtaken else dataclasses.replace(evidence, is_overtaken=False)

    def _namespaces(self) -> set[str]:
        """Where this history is written: the graph itself, and subgraphs that are its nodes and share the channel."""
        found = {""}
        key = self._rules.messages_key
        subgraphs = self._graph.get_subgraphs()
        sharing = {name for name, graph in subgraphs if isinstance(graph, Pregel) and key in graph.channels}
        for reply in self._running.earlier.replies:
            if reply.checkpoint_ns.partition(":")[0] in sharing and "|" not in reply.checkpoint_ns:
                found.add(reply.checkpoint_ns)
        return found

    def _finalize(
        self, stored: list[Any], arriving: list[Any], *, questions: Sequence[Any], errors: Sequence[str] = ()
    ) -> FinalizedHistory:
        history = [*stored, *arriving]
        evidence = self._evidence(history, paused=bool(questions))
        evidence = dataclasses.replace(evidence, reviewed=reviewed_calls(questions))
        done = self._finalized(history, evidence, follower_comes=True)
        unknown = [answer for answer in done.answers if answer.outcome == "unknown"]
        if len(errors) == len(unknown) == 1 and is_due(stored, unknown[0].call_id):
            # No journal knows; but where one error and one call are left, they belong together.
            raised = CallEvidence(Facts(started=True, error=errors[0]))
            calls = {**evidence.calls, (None, unknown[0].call_id): raised}
            done = self._finalized(history, dataclasses.replace(evidence, calls=calls), follower_comes=True)
        return done

    def _finalized(
        self, history: list[Any], evidence: Evidence, *, follower_comes: bool, until: int | None = None
    ) -> FinalizedHistory:
        return finalize_history(
            history,
            evidence,
            unanswered=self._rules.unanswered,
            texts=self._rules.texts,
            follower_comes=follower_comes,
            until=until,
        )

    def _replacement(self, messages: list[Any]) -> Any:
        channel = self._graph.channels.get(self._rules.messages_key)
        return replacement(channel, messages)

    def _report(self, done: FinalizedHistory, *, changed: bool) -> RecoveryReport:
        return RecoveryReport(
            thread_id=self._running.thread_id,
            turn_token=self._running.token,
            state=self._state,
            cause=self._cause,
            answers=tuple(done.answers),
            moved=tuple(done.moved),
            set_aside=tuple(done.set_aside),
            added=tuple(done.added),
            changed=changed,
        )


def history_in(saved: CheckpointTuple, messages_key: str) -> list[Any]:
    """The messages in a checkpoint, as a recovery that could not be committed has left them."""
    value = saved.checkpoint["channel_values"].get(messages_key)
    for task, channel, written in saved.pending_writes or ():
        if task == NULL_TASK_ID and channel == messages_key and isinstance(written, Overwrite):
            value = written.value
    return list(value) if isinstance(value, (list, tuple)) else []


def _tail(history: Sequence[Any]) -> int | None:
    """The place of the AIMessage that a history ends with, but for answers to its calls."""
    place = next((i for i in range(len(history) - 1, -1, -1) if not isinstance(history[i], ToolMessage)), None)
    return place if place is not None and isinstance(history[place], AIMessage) else None


def _tool_nodes(graph: Graph) -> list[str]:
    from langgraph.prebuilt import ToolNode  # noqa: PLC0415 - LangGraph's agents come with it

    return [name for name, each in graph.nodes.items() if isinstance(each.bound, ToolNode)]


def _with_results(evidence: Evidence, saved: CheckpointTuple, messages_key: str) -> Evidence:
    """What is known, and what finished tasks of a checkpoint have left with it."""
    results = results_in(saved, messages_key)
    calls = dict(evidence.calls)
    for message in results.answers:
        calls.setdefault((None, message.tool_call_id), CallEvidence(Facts(result=True), message))
    return dataclasses.replace(evidence, calls=calls, paused=results.paused, reviewed=results.reviewed)


def _from_first(arriving: list[Any], messages: list[Any]) -> list[Any]:
    """What of a history is to come: from the first arriving message on that is no answer to an earlier one."""
    coming = {id(message) for message in arriving}
    first = next((place for place, message in enumerate(messages) if id(message) in coming), len(messages))
    while first < len(messages) and isinstance(messages[first], ToolMessage) and id(messages[first]) in coming:
        first += 1  # it answers what is stored
    return messages[first:]


def replacement(channel: object, messages: list[Any]) -> Any:
    """The write that makes a channel hold exactly these messages, whatever its reducer."""
    return Overwrite(messages) if has_reducer(channel) else messages


def has_reducer(channel: object) -> bool:
    """Whether what is written to a channel is added to what it holds."""
    return isinstance(channel, (BinaryOperatorAggregate, DeltaChannel))


def run_steps(steps: Generator[Operation, Any, T], graph: Graph) -> T:
    """Carry out the operations, blocking."""
    result: Any = None
    while True:
        try:
            operation = steps.send(result)
        except StopIteration as stop:
            return cast(T, stop.value)
        try:
            result = _carry_out(operation, graph)
        except BaseException as error:
            steps.throw(error)  # which raises it again
            raise


def _carry_out(operation: Operation, graph: Graph) -> Any:
    if operation.name == "get_state":
        return graph.get_state(*operation.args)
    if operation.name == "get_tuple":
        return _saver(graph).get_tuple(*operation.args)
    if operation.name == "update_state":
        return graph.update_state(*operation.args)
    return _saver(graph).put_writes(*operation.args, NULL_TASK_ID)


async def arun_steps(steps: Generator[Operation, Any, T], graph: Graph) -> T:
    """Carry out the operations, awaiting each."""
    result: Any = None
    while True:
        try:
            operation = steps.send(result)
        except StopIteration as stop:
            return cast(T, stop.value)
        try:
            result = await _acarry_out(operation, graph)
        except BaseException as error:
            steps.throw(error)  # which raises it again
            raise


async def _acarry_out(operation: Operation, graph: Graph) -> Any:
    if operation.name == "get_state":
        return await graph.aget_state(*operation.args)
    if operation.name == "get_tuple":
        return await _saver(graph).aget_tuple(*operation.args)
    if operation.name == "update_state":
        return await graph.aupdate_state(*operation.args)
    return await _saver(graph).aput_writes(*operation.args, NULL_TASK_ID)


def _saver(graph: Graph) -> Any:
    return graph.checkpointer


def _with(config: RunnableConfig, saved: Mapping[str, Any]) -> RunnableConfig:
    return cast(RunnableConfig, {**config, "configurable": {**config.get("configurable", {}), **saved}})
