"""The callback handler that feeds a turn's journal, whatever the graph looks like. It sees model calls, streamed text
and tools of every node and subgraph; what is made of the records is not its business.

It runs inline, also in event loops, so that records keep the order of events. A record costs a write that does not
wait for the disk, streamed text mostly an append to a list. Only the start of a tool that no `ToolNode` runs, and of a
node that may run tools unseen, waits for the disk here; other starts are recorded before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.types import Command

from . import _transcript as kinds
from ._finalize import Policy, decide_resume
from ._run_ends import STEP_TAG
from ._running import RunningTurn
from ._transcript import CallKey, messages_in
from .errors import UnresolvedCallError

#: A model call with one of these tags is not part of the conversation.
HIDDEN_TAGS: Final = frozenset({"nostream", "langsmith:nostream", "langsmith:hidden"})


class _SaidAnyway(logging.Filter):
    """Keeps LangChain from logging what a recorder raises: whoever runs the graph gets the error itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args
        return not (isinstance(args, tuple) and args and args[0] == RunRecorder.__name__)


logging.getLogger("langchain_core.callbacks.manager").addFilter(_SaidAnyway())


class View(NamedTuple):
    """What a recorder can see of a run.

    Attributes:
        covers: Whether the start of a tool will be seen, by its name.
        gated: Nodes that ask the guard before each tool; `None` if no other nodes are seen.
    """

    covers: Callable[[str], bool]
    gated: Collection[str] | None = None


class RunRecorder(GraphCallbackHandler):
    """Records one run of a graph.

    Args:
        running: The turn it belongs to.
        policy_of: The restart policy of a tool, by its name and metadata.
        view: What it can see.
    """

    raise_error = True  # so that a tool whose start cannot be recorded does not run
    run_inline = True  # so that records keep the order of events

    def __init__(
        self,
        running: RunningTurn,
        policy_of: Callable[[str, Mapping[str, Any] | None], Policy],
        view: View,
    ) -> None:
        super().__init__()
        self.running, self._policy_of, self.view = running, policy_of, view
        self._models: set[UUID] = set()
        self._tools: dict[UUID, CallKey] = {}
        self._nodes: dict[UUID, str] = {}
        self._root: UUID | None = None
        self._outside: set[UUID] = set()
        self._told: set[str] = set()
        self._unseen: dict[str, list[CallKey]] = {}

    # --- nodes ---

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A node of a superseded run does not start; one that may run tools unseen is noted before it does."""
        found = metadata or {}
        task = str(found.get("langgraph_checkpoint_ns") or "")
        is_node = any(tag.startswith(STEP_TAG) for tag in tags or ())
        if self._root is None and self.view.gated is not None:
            self._root = run_id
        if parent_run_id in self._outside or (is_node and "|" not in task and parent_run_id != self._root):
            # In a tool, or in a graph with a thread of its own: nothing that is said there is said in this history.
            self._outside.add(run_id)
            return
        if self.view.gated is None or not is_node:
            return
        self.running.check()
        self._nodes[run_id] = task
        is_opaque = "|" not in task and found.get("langgraph_node") not in self.view.gated
        if is_opaque and (calls := self.running.unseen_calls()):
            self.opaque_began(task, calls)

    def opaque_began(self, task: str, calls: list[CallKey], *, sync: bool = True) -> None:
        """A node begins that may run these calls unseen."""
        self.running.node_started(task, calls, sync=sync)
        self._told.add(task)
        self._unseen[task] = calls

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """What a node gave is what it says; what else its models have said was for itself."""
        self._outside.discard(run_id)
        task = self._nodes.pop(run_id, None)
        if task is not None:
            self.node_ended(task, outputs)

    def node_ended(self, task: str, outputs: Any) -> None:
        """A node is done; if anything is recorded of it, so is what it gave."""
        if task in self._told:
            self._told.discard(task)
            given = messages_in(outputs)
            # Until a checkpoint has them, these are what is known of calls that nobody saw run.
            calls = {key.call_id: key for key in self._unseen.pop(task, ())}
            for message in given:
                if isinstance(message, ToolMessage) and (key := calls.get(message.tool_call_id)) is not None:
                    self.running.tool_ended(key, message)
            self.running.returned(task, given)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A node that waits for a person has run no tool that it will not run again."""
        self._outside.discard(run_id)
        task = self._nodes.pop(run_id, None)
        if task is not None and isinstance(error, GraphInterrupt):
            self.node_rested(task)

    def node_rested(self, task: str) -> None:
        """A node has run no call unseen: it waits for a person, or asks the guard before each."""
        if task in self._told:
            self._told.discard(task)
            self._unseen.pop(task, None)
            self.running.node_rested(task)

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """The run waits for a person."""
        self.running.is_paused = True

    # --- models ---

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A model is called."""
        if HIDDEN_TAGS.intersection(tags or ()) or parent_run_id in self._outside:
            return
        found = metadata or {}
        task = str(found.get("langgraph_checkpoint_ns") or "")
        self._models.add(run_id)
        self._told.add(task)
        node = str(found.get("langgraph_node") or "")
        self.running.model_started(str(run_id), messages[0] if messages else [], node, task)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], **kwargs: Any) -> None:
        """Models that take plain text have no place in a history of messages."""

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        """A piece of a reply."""
        if run_id not in self._models:
            return
        message = getattr(chunk, "message", None)
        if message is None:
            if isinstance(token, str) and token:
                self.running.text(str(run_id), token)
            return
        if isinstance(message.content, str):
            text, reasoning = message.content, message.additional_kwargs.get("reasoning_content")
        else:
            text, reasoning = _split_blocks(message.content)
        if text:
            self.running.text(str(run_id), text)
        if isinstance(reasoning, str) and reasoning:
            self.running.text(str(run_id), reasoning, kind=kinds.REASONING)

    def on_stream_event(self, event: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A piece of a reply, from a stream of content blocks."""
        if run_id not in self._models or not isinstance(event, Mapping) or event.get("event") != "content-block-delta":
            return
        delta = event.get("delta") or event.get("content_block") or {}
        text, reasoning = _split_blocks([delta])
        if text:
            self.running.text(str(run_id), text)
        if reasoning:
            self.running.text(str(run_id), reasoning, kind=kinds.REASONING)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """A reply is whole."""
        if run_id not in self._models:
            return
        self._models.discard(run_id)
        generation = response.generations[0][0] if response.generations and response.generations[0] else None
        if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
            self.running.replied(str(run_id), generation.message, self.view.covers)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A reply was cut off. What there is of it stays until another try has said something."""
        self._models.discard(run_id)
        self.running.flush()

    # --- tools ---

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool is about to run; its start is durable before it does.

        Raises:
            StaleTurnError: The turn is over.
            UnresolvedCallError: The call did start in an earlier turn, and nobody has said that it may again.
            StorageError: The start cannot be recorded, and the tool must not run twice.
        """
        name = str((serialized or {}).get("name") or kwargs.get("name") or "tool")
        call_id = kwargs.get("tool_call_id")
        is_outside = parent_run_id in self._outside
        self._outside.add(run_id)
        if is_outside:
            return  # of an agent that a tool has called
        if call_id:
            if (armed := self.running.disarm(call_id, name)) is not None:
                self._tools[run_id] = armed
                return
            key: CallKey | None = self.running.key_of(call_id, name)
        else:
            key = self.running.call_for(name, inputs)
        if key is None:
            return  # called by code, not for a model
        policy = self._policy_of(name, metadata)
        if not self.running.is_allowed(key) and decide_resume(self.running.facts(key), policy) != "run":
            raise UnresolvedCallError(self.running.thread_id, key.call_id, name)
        self.running.tool_started(key, must_be_durable=policy != "rerun")
        self._tools[run_id] = key

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool gave its result."""
        self._outside.discard(run_id)
        key = self._tools.pop(run_id, None)
        if key is not None:
            if not messages_in(output) and not isinstance(output, Command):
                output = ToolMessage(content=str(output), name=key.tool, tool_call_id=key.call_id)
            self.running.tool_ended(key, output)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool raised, paused, or was cut off; only the first is an error of its own."""
        self._outside.discard(run_id)
        key = self._tools.pop(run_id, None)
        if key is None:
            return
        if isinstance(error, GraphInterrupt):
            self.running.tool_paused(key)
        elif isinstance(error, Exception) and not isinstance(error, (asyncio.CancelledError, GraphBubbleUp)):
            self.running.tool_failed(key, f"{type(error).__name__}: {error}")


def graph_namespace(node_ns: str) -> str:
    """The checkpoint namespace of the graph that a node is in."""
    return node_ns.rpartition("|")[0]


def _split_blocks(blocks: Sequence[Any]) -> tuple[str, str]:
    """Text and reasoning in a list of content blocks."""
    text, reasoning = [], []
    for block in blocks:
        if isinstance(block, str):
            text.append(block)
        elif isinstance(block, Mapping):
            kind = str(block.get("type") or "")
            if kind in ("text", "text-delta"):
                text.append(str(block.get("text") or ""))
            elif kind in ("reasoning", "thinking", "reasoning-delta"):
                reasoning.append(str(block.get("reasoning") or block.get("thinking") or ""))
    return "".join(text), "".join(reasoning)
