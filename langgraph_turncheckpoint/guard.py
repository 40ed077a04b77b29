"""`TurnGuard`: half-finished tool calls become true results when a thread goes on. The ways into it are here, and
nothing of what they do.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel

from ._evidence import Wishes
from ._guard_core import GuardCore
from ._guarded_node import guarded_node
from ._histories import Text
from ._home import home_of
from ._offload import offload
from ._policies import Policies
from ._recovery import RecoveryReport, Rules
from ._run_ends import run_ends
from ._tool_gate import aguarded_call, guarded_call
from ._turn import check_strategy
from .errors import MissingExtraError, ThreadClosedError
from .inbox import Inbox

if TYPE_CHECKING:
    from ._middleware import GuardMiddleware

GraphT = TypeVar("GraphT", bound=Pregel[Any, Any, Any, Any])


class TurnGuard:
    """Lets a thread go on from what really happened.

    A run that is killed, cancelled or overtaken leaves tool calls without an answer; providers refuse such a
    history, and nobody knows whether the tools have run. The guard keeps a journal of the running turn, and uses
    it when the thread goes on: a recorded result is used and its tool not run again; a tool that had started is
    reported, run again or asked about, as its policy says; a call that never started runs, or is closed as not
    run if a new message came instead. What a reply had said before it was cut off is kept, and so is the prompt.

    The same behaviour is to be had in four ways: `middleware` for `create_agent`, `node` and `wrap_tool_call` for
    a graph built by hand, `attach` for a compiled graph that nobody wants to change, and `recover` by hand. Only
    `attach` and `TurnCheckpointSaver.turn` see a run before its input is stored, so `multitask_strategy` is for
    those.

    With a `TurnCheckpointSaver` turns and journals are kept in its directory. With another saver of LangGraph's
    they have a directory of their own; the guard then refuses late nodes and tools, and with `attach` late
    writes, too.

    What survives which crash: the start of a tool is on the disk before the tool runs, with the saver's `fsync`
    also under power loss. Results, replies and streamed text survive a killed process at once (text at most
    0.15 seconds late), and power loss with the next synced record or checkpoint.

    Args:
        saver: The graph's checkpointer.
        on_restart: By tool name, what to do about a call that had started and left no result, when its run goes
            on: `"report"` that the outcome is unknown, `"rerun"` the tool, or `"ask"` a person through LangGraph's
            `interrupt`. A tool may say so itself, in `metadata={"on_restart": ...}`.
        default_on_restart: The same for every other tool.
        multitask_strategy: For `attach`, what a run does on a busy thread; see `TurnCheckpointSaver.turn`.
        timeout: With `"enqueue"`, how long a run waits, in seconds.
        path: For savers other than `TurnCheckpointSaver`, the directory for turns and journals. By default it is
            beside a `SqliteSaver`'s database, and temporary for an `InMemorySaver`.
        messages_key: The channel of the history.
        unanswered: Names of tools whose calls a node answers later, so that they may stay open.
        texts: By tool name (`"*"` for all others), a text for answers the guard gives, or a function of outcome,
            cause and tool call: `lambda outcome, cause, call: f"{call['name']}: {outcome}"`. Where it fails, the usual
            text is given, with a `PolicyWarning`.
        keep_partial_text: Whether the text of a reply that was cut off becomes a message.
        mark_interruptions: Whether a short note follows it.

    Raises:
        UnknownPolicyError: A policy has another name than those three.
        UnsupportedSaverError: The guard cannot work with the saver, or needs a `path` for it.
        TypeError: `on_restart` is no mapping, or a text is neither a string nor a function.
        ValueError: The strategy is unknown, or has no use for a timeout; or the saver has no use for a `path`.

    Example:
        ```python
        guard = TurnGuard(saver, on_restart={"search": "rerun", "deploy": "ask"})
        agent = create_agent(model, tools, middleware=[guard.middleware()], checkpointer=saver)
        ```
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        *,
        on_restart: Mapping[str, str] | None = None,
        default_on_restart: str = "report",
        multitask_strategy: str = "interrupt",
        timeout: float | None = None,
        path: str | os.PathLike[str] | None = None,
        messages_key: str = "messages",
        unanswered: Collection[str] = (),
        texts: Mapping[str, Text] | None = None,
        keep_partial_text: bool = True,
        mark_interruptions: bool = True,
    ) -> None:
        self.saver: Final = saver
        rules = Rules(
            messages_key=messages_key,
            wishes=Wishes(keep_text=keep_partial_text, mark=mark_interruptions),
            unanswered=frozenset([unanswered] if isinstance(unanswered, str) else unanswered),
            texts=_checked_texts(texts or {}),
        )
        self._core: Final = GuardCore(
            saver,
            home_of(saver, path),
            policies=Policies(on_restart, default_on_restart),
            rules=rules,
            strategy=check_strategy(multitask_strategy, timeout),
            timeout=timeout,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.saver!r})"

    # --- the ways in ---

    def middleware(self) -> GuardMiddleware:
        """The guard for `langchain.agents.create_agent(..., middleware=[...])`. Put it first, that is outermost.

        Raises:
            MissingExtraError: LangChain is not installed.
            ValueError: The guard has another `multitask_strategy` than "interrupt"; `attach` the agent instead.
        """
        self._check_in_nodes("middleware")
        try:
            from ._middleware import GuardMiddleware  # noqa: PLC0415 - comes with an extra
        except ImportError as error:
            text = "TurnGuard.middleware needs LangChain: pip install 'langgraph-turncheckpoint[agents]'"
            raise MissingExtraError(text) from error
        self._gate_tools()
        return GuardMiddleware(self._core)

    def node(self, node: Any, *, messages_key: str | None = None) -> Any:
        """The guard around a node that calls the model: a function, sync or async, or a Runnable.

        The node gets a history in order, in the shape of its state (a dict, a pydantic model, a dataclass or a
        list of messages), and what was put in order is written with what it returns.

        Args:
            node: The node; whatever else it takes (`config`, `runtime`, `store`, ...) it still gets.
            messages_key: The key of the history, if it is not the guard's.

        Raises:
            TypeError: It is neither a function nor a Runnable.
            ValueError: The guard has another `multitask_strategy` than "interrupt".
        """
        self._check_in_nodes("node")
        return guarded_node(self._core, node, messages_key or self._core.rules.messages_key)

    @property
    def wrap_tool_call(self) -> Callable[[Any, Callable[[Any], Any]], Any]:
        """The guard for `ToolNode(tools, wrap_tool_call=...)`; give it `awrap_tool_call`, too.

        It raises `StaleTurnError` if the turn is over, and `StorageError` if the start cannot be recorded and the
        tool must not run twice; in both cases the tool did not run.
        """
        self._gate_tools()
        return self._wrap_tool_call

    @property
    def awrap_tool_call(self) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]:
        """Async twin of `wrap_tool_call`."""
        self._gate_tools()
        return self._awrap_tool_call

    def _gate_tools(self) -> None:
        self._core.gates_tools = True
        run_ends()  # what joins runs after they have begun does not hear of their end

    def _wrap_tool_call(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        return guarded_call(self._core, request, execute)

    async def _awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        return await aguarded_call(self._core, request, execute)

    def attach(self, graph: GraphT) -> GraphT:
        """A guarded copy of a compiled graph, of the same class and with the same interface.

        Its runs open their turn before they read the thread, by the guard's `multitask_strategy`, and settle it
        when they end, however that is. Tools that a `ToolNode` runs, also in subgraphs, ask the guard first.

        Args:
            graph: A compiled graph with a checkpointer; also what `create_agent` and `create_react_agent` give.

        Raises:
            UnsupportedGraphError: It is no compiled graph, has no checkpointer, keeps its history in another channel
                than `messages_key`, or is attached to another guard.
            UnsupportedSaverError: Its checkpointer is not the guard's.
            UnknownPolicyError: The metadata of one of its tools names a policy that does not exist.

        A policy for a tool that the graph does not have is a `PolicyWarning`.
        """
        from ._attached import attached  # noqa: PLC0415 - LangGraph's agents come with it, which a saver alone needs not

        run_ends()  # the guarded graph may become a node of one that nobody attached
        return attached(self._core, graph)

    def recover(self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> RecoveryReport:
        """Close everything that is open on a thread, as a new message would, and tell what was found.

        A thread that waits for a person waits no more: the call that asked is answered as not run any further. The
        recovery holds a turn, opened by the guard's `multitask_strategy`, unless the config carries one. A second
        call changes nothing.

        Args:
            graph: The compiled graph, attached or not.
            config: With the `thread_id`.

        Raises:
            UnsupportedGraphError, UnsupportedSaverError, UnknownPolicyError: As `attach`. Nothing has changed.
            InvalidIdError: There is no thread id, or one that cannot be used.
            ThreadBusyError: The thread is busy, and the strategy is "reject", or "enqueue" and its time is over.
            ThreadClosedError: The thread is closed.
            StaleTurnError: A newer turn came in between. What was written before stays; call again.
        """
        from ._attached import recover_by_hand  # noqa: PLC0415 - see `attach`

        return recover_by_hand(self._core, graph, config)

    async def arecover(self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> RecoveryReport:
        """Async twin of `recover`."""
        from ._attached import arecover_by_hand  # noqa: PLC0415 - see `attach`

        return await arecover_by_hand(self._core, graph, config)

    def close_thread(self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> RecoveryReport:
        """Close everything that is open on a thread, then the thread itself: nothing is written to it any more.

        A second call changes nothing.

        Returns:
            What was found and done before the thread was closed.

        Raises:
            As `recover`, but for a thread that is closed already.
        """
        try:
            report = self.recover(graph, config)
        except ThreadClosedError as error:
            return self._core.unchanged(error.thread_id)
        self._core.home.close_thread(report.thread_id)
        return report

    async def aclose_thread(self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> RecoveryReport:
        """Async twin of `close_thread`."""
        try:
            report = await self.arecover(graph, config)
        except ThreadClosedError as error:
            return await offload(self._core.unchanged, error.thread_id)
        await self._core.home.aclose_thread(report.thread_id)
        return report

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with its journals and its inbox, whatever the saver is, and fence its running turn out.

        Raises:
            StorageError: A file could not be removed; call again.
        """
        self._core.home.delete_thread(thread_id)
        if not self._core.knows_turns:
            self.saver.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """Async twin of `delete_thread`."""
        await self._core.home.adelete_thread(thread_id)
        if not self._core.knows_turns:
            await self.saver.adelete_thread(thread_id)

    def inbox(self, thread_id: str) -> Inbox:
        """The inbox of a thread, also for a saver that has none."""
        return self._core.home.inbox(thread_id)

    def _check_in_nodes(self, way: str) -> None:
        if self._core.strategy != "interrupt":
            raise ValueError(
                f"multitask_strategy {self._core.strategy!r} must know of a run before its input is stored, and "
                f"{way}() sits inside the run; use guard.attach(graph), or saver.turn(config, multitask_strategy=...)"
            )
        run_ends()


def _checked_texts(texts: Mapping[str, Text]) -> dict[str, Text]:
    for name, text in texts.items():
        if not isinstance(text, str) and not callable(text):
            raise TypeError(
                f"texts[{name!r}] is {type(text).__name__}; it takes a string, or a function that gives one"
            )
    return dict(texts)
