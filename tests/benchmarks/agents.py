"""An agent that answers at once, bare or guarded, at work on one thread at a time. Nothing is timed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint.guard import TurnGuard
from tests.benchmarks.contenders import Saver
from tests.benchmarks.counting import CountingSaver, Saves
from tests.benchmarks.messages import TOOLS, tool_using_turns
from tests.benchmarks.timing import Round

Way = Literal["bare", "attach", "middleware"]
Durability = Literal["sync", "async", "exit"]

#: LangGraph's own choice.
DEFAULT_DURABILITY: Final = "async"


class Script:
    """What is said in the turn that is under way, and what to look at while its tool runs."""

    def __init__(self) -> None:
        self.prompt = HumanMessage("")
        self.calls = self.answers = AIMessage("")
        self.result = ToolMessage("", tool_call_id="none")
        self.while_tool_runs: Callable[[], None] | None = None

    def take(self, turn: tuple[HumanMessage, AIMessage, ToolMessage, AIMessage]) -> None:
        """Say this next."""
        self.prompt, self.calls, self.result, self.answers = turn

    def run_tool(self) -> str:
        """The tool's result."""
        if self.while_tool_runs is not None:
            self.while_tool_runs()
        return str(self.result.content)


class InstantModel(BaseChatModel):
    """Calls the script's tool, and gives the script's answer once the tool has given its result."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        said = self.script.answers if isinstance(messages[-1], ToolMessage) else self.script.calls
        return ChatResult(generations=[ChatGeneration(message=said.model_copy())])


class StreamingModel(BaseChatModel):
    """Streams the same tokens as fast as they are taken; before each, `on_token` is called with its number."""

    streaming: bool = True
    tokens: Sequence[str]
    on_token: Callable[[int], None]

    @property
    def _llm_type(self) -> str:
        return "streaming"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise RuntimeError("this model only streams")

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for number, token in enumerate(self.tokens):
            self.on_token(number)
            yield ChatGenerationChunk(message=AIMessageChunk(content=token))


def guarded_agent(model: BaseChatModel, tools: Sequence[BaseTool], saver: Saver | None, way: Way) -> tuple[Any, Any]:
    """The agent as LangChain makes it, and what runs it: itself, or its guarded copy."""
    if saver is None or way == "bare":
        agent: Any = create_agent(model, tools, checkpointer=saver)
        return agent, agent
    guard = TurnGuard(saver)
    if way == "attach":
        agent = create_agent(model, tools, checkpointer=saver)
        return agent, guard.attach(agent)
    agent = create_agent(model, tools, middleware=[guard.middleware()], checkpointer=saver)
    return agent, agent


class AgentLane:
    """An agent over one saver and the thread it is talking on; each turn has a prompt, a tool and an answer.

    Attributes:
        saver: Where it saves to; without one, each turn is given all that was said before.
        way: How it is guarded.
        config: The thread.
    """

    def __init__(self, saver: Saver | None, way: Way, *, durability: Durability = DEFAULT_DURABILITY) -> None:
        self.saver, self.way = saver, way
        self._script = Script()
        self._agent, self._graph = guarded_agent(InstantModel(script=self._script), self._tools(), saver, way)
        # Without a saver there is nothing to be durable.
        self._options: dict[str, Any] = {} if saver is None else {"durability": durability}
        self._said: list[AnyMessage] = []
        self._runs = 0
        self.enter("none")

    def enter(self, thread_id: str, *, history: int = 0) -> None:
        """Go on with a new thread, which holds the first turns of its conversation already.

        Args:
            thread_id: The thread; it also seeds what is said.
            history: How many messages it holds; whole turns, so up to three fewer.
        """
        self.config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        self._turns = tool_using_turns(thread_id)
        self._said, self._runs = [], 0
        for _ in range(history // 4):
            self._said += next(self._turns)
        if self._said and self.saver is not None:
            self._agent.update_state(self.config, {"messages": list(self._said)}, as_node="model")

    @contextmanager
    def turn(self, number: int) -> Iterator[Callable[[], Any]]:
        """A round that times one turn, from the prompt to the answer."""
        self._script.take(next(self._turns))
        script = self._script
        before = self._said if self.saver is None else []
        given = {"messages": [*before, script.prompt.model_copy()]}
        yield lambda: self._graph.invoke(given, self.config, **self._options)
        self._said += (script.prompt, script.calls, script.result, script.answers)
        self._runs += 1

    def threads_of(self, turns: int) -> Callable[[int], Round]:
        """Rounds of one turn each, with a new thread every so many."""

        def prepare(number: int) -> Round:
            if number % turns == 0:
                self.check()
                self.enter(f"thread-{number // turns}")
            return self.turn(number)

        return prepare

    def check(self) -> None:
        """See that the thread holds what was said and nothing else, and that each of its turns is known and complete.

        Raises:
            RuntimeError: It is not so, and figures would be those of something else.
        """
        if self.saver is None:
            return
        found = self._agent.get_state(self.config).values.get("messages", [])
        if [(m.type, m.content) for m in found] != [(m.type, m.content) for m in self._said]:
            raise RuntimeError(f"the {self.way} agent on {self.saver!r} did not store what was said")
        if self.way != "bare" and isinstance(self.saver, TurnCheckpointSaver):
            records = self.saver.turns(str(self.config["configurable"]["thread_id"]), limit=self._runs)
            if [record.state for record in records] != ["completed"] * self._runs:
                raise RuntimeError(f"turns of the {self.way} agent are {records}")

    def check_journal(self, root: Path) -> None:
        """Run a turn on a thread of its own, and see that its prompt is in a journal while its tool runs.

        Raises:
            RuntimeError: It is not, though the agent is guarded; or it is, and the agent is bare.
        """
        found: list[bool] = []
        text = self._script_text
        self._script.while_tool_runs = lambda: found.append(journals_hold(root, text()))
        self.enter("journal")
        with self.turn(0) as call:
            call()
        self._script.while_tool_runs = None
        if found != [self.way != "bare"]:
            raise RuntimeError(f"prompt in the journal of the {self.way} agent while a tool runs: {found}")

    def _script_text(self) -> str:
        return str(self._script.prompt.content)

    def _tools(self) -> list[BaseTool]:
        def run(path: str, reason: str, limit: int) -> str:
            return self._script.run_tool()

        return [StructuredTool.from_function(run, name=name, description="Looks something up.") for name in TOOLS]


def saves_of_a_turn() -> Saves:
    """What one turn of an agent without a guard saves, as LangGraph runs it by default."""
    saver = CountingSaver()
    lane = AgentLane(saver, "bare")
    with lane.turn(0) as call:
        call()
    return saver.saves


def journals(root: Path) -> list[Path]:
    """The journals below a directory."""
    return list(root.rglob("*.journal"))


def journals_hold(root: Path, text: str) -> bool:
    """Whether a text is in a journal below a directory."""
    return any(text.encode() in path.read_bytes() for path in journals(root))
