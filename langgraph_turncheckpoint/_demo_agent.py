"""The agent of the demo as any LangGraph app would write it: tools, graph, and the fake model's script.

Nothing here knows that the process will be killed, and nothing draws on a terminal.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

FILES: Final = 20
TURNS: Final = 30
SECTIONS_PER_TURN: Final = 3
#: What a tool shows of a file: 20 of them stay affordable for a real model.
SHOWN_CHARS: Final = 4_000

TASK: Final = (
    f"Read the {FILES} files that `list_files` names and write a Markdown summary of them. First call "
    "`list_files`. Then read one file per turn, in the given order. Then write one section per file "
    f"with `write_section`, {SECTIONS_PER_TURN} sections per turn; the number of a section is the "
    "number of its file. At last call `assemble_summary` once, and say that you are done."
)

#: Runs the work of one tool call: (tool call id, label, work) -> result.
RunTool: TypeAlias = Callable[[str, str, Callable[[], str]], str]
Graph: TypeAlias = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Where one demo keeps what it makes; its two processes share nothing else."""

    directory: Path

    @property
    def checkpoints(self) -> Path:
        """The saver's directory: all that a resume needs."""
        return self.directory / "checkpoints"

    @property
    def effects(self) -> Path:
        """One JSON line per start and end of a tool call."""
        return self.directory / "effects.jsonl"

    @property
    def sources(self) -> Path:
        """The list of files to read, chosen before the first process starts."""
        return self.directory / "sources.json"

    @property
    def sections(self) -> Path:
        """One Markdown file per section, until the summary is assembled."""
        return self.directory / "sections"

    @property
    def summary(self) -> Path:
        """The agent's work."""
        return self.directory / "summary.md"


def section_heading(number: int, path: str) -> str:
    """Heading of one file's section; the summary is complete when it has each of them."""
    return f"## {number}. `{path}`"


def label_call(name: str, subject: object = "") -> str:
    """How a tool call is shown and recorded: the tool and what it works on."""
    return f"{name} {subject}".strip()


def write_durably(path: Path, text: str) -> None:
    """Replace a small file of the agent's work; a kill leaves the old or the new one."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def build_tools(files: DemoFiles, run_tool: RunTool) -> list[BaseTool]:
    """The agent's four tools, over real files. Running one again replaces what it wrote."""
    sources = json.loads(files.sources.read_text(encoding="utf-8"))
    root = Path(sources["root"])
    listed: list[str] = sources["files"]

    @tool
    def list_files(tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """List the files to summarize, one path per line, in the order of their numbers."""
        return run_tool(tool_call_id, label_call("list_files"), lambda: "\n".join(listed))

    @tool
    def read_file(path: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Read one of the listed files: its size, purpose, top-level names and first characters."""

        def work() -> str:
            if path not in listed:
                return f"error: {path!r} is not one of the listed files"
            return report_file(path, (root / path).read_text(encoding="utf-8", errors="replace"))

        return run_tool(tool_call_id, label_call("read_file", path), work)

    @tool
    def write_section(number: int, text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Write the section about one file, by the file's number (1 is the first listed file)."""

        def work() -> str:
            if not 1 <= number <= len(listed):
                return f"error: there is no file number {number}"
            heading = section_heading(number, listed[number - 1])
            write_durably(files.sections / f"{number:02d}.md", f"{heading}\n\n{text}\n")
            return f"wrote section {number}"

        return run_tool(tool_call_id, label_call("write_section", number), work)

    @tool
    def assemble_summary(title: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Put all sections behind one title into the summary file."""

        def work() -> str:
            sections = [path.read_text(encoding="utf-8") for path in sorted(files.sections.glob("*.md"))]
            write_durably(files.summary, "\n".join([f"# {title}\n", *sections]))
            return f"wrote {files.summary.name} with {len(sections)} sections"

        return run_tool(tool_call_id, label_call("assemble_summary"), work)

    return [list_files, read_file, write_section, assemble_summary]


def report_file(path: str, text: str) -> str:
    """What `read_file` says about a file."""
    purpose, names = outline_python(text) if path.endswith(".py") else (first_line(text), [])
    shown = text[:SHOWN_CHARS]
    return (
        f"lines: {count_lines(text)}\n"
        f"purpose: {purpose}\n"
        f"names: {', '.join(names[:8]) or '-'}{', ...' if len(names) > 8 else ''}\n"
        f"first {len(shown)} characters:\n{shown}"
    )


def count_lines(text: str) -> int:
    """Lines as an editor counts them."""
    return text.count("\n") + (not text.endswith("\n"))


def outline_python(text: str) -> tuple[str, list[str]]:
    """Purpose and top-level names of a Python file, from its docstring or its first definition's."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return first_line(text), []
    defined = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    # What is public tells more; overloads share a name.
    public = [node for node in defined if not node.name.startswith("_")] or defined
    names = list(dict.fromkeys(node.name for node in public))
    if docstring := ast.get_docstring(tree):
        return first_sentence(docstring), names
    for node in public:
        if docstring := ast.get_docstring(node):
            return f"defines `{node.name}`: {first_sentence(docstring)}", names
    return "code without a docstring", names


def first_sentence(text: str) -> str:
    """First sentence of a docstring, on one line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def first_line(text: str) -> str:
    """First line that says something, without Markdown's heading marks."""
    return next(
        (line.strip("#").strip()[:120] for line in text.splitlines() if line.strip("# \t")),
        "an empty file",
    )


class Model(Protocol):
    """What the model node needs; both the script and a bound chat model have it."""

    def invoke(self, messages: list[AnyMessage], /) -> AIMessage:
        """Answer the conversation."""


class ScriptedModel:
    """A fake model without memory: what it says follows from the messages it is given alone.

    After a resume it can go on only if the restored history is whole, as with a real model.
    """

    def invoke(self, messages: list[AnyMessage], /) -> AIMessage:
        """Give the next turn of the script."""
        turn = count_turns(messages) + 1
        if turn == TURNS:
            return AIMessage(f"The summary of {FILES} files is written.", id=f"turn-{turn}")
        calls = [
            ToolCall(name=name, args=args, id=call_id(turn, position), type="tool_call")
            for position, (name, args) in enumerate(self._plan(turn, messages), start=1)
        ]
        return AIMessage("", tool_calls=calls, id=f"turn-{turn}")

    def _plan(self, turn: int, messages: list[AnyMessage]) -> list[tuple[str, dict[str, Any]]]:
        if turn == 1:
            return [("list_files", {})]
        results = {message.tool_call_id: message.text for message in messages if isinstance(message, ToolMessage)}
        if turn <= 1 + FILES:
            return [("read_file", {"path": results[call_id(1, 1)].splitlines()[turn - 2]})]
        if turn < TURNS - 1:
            first = 1 + SECTIONS_PER_TURN * (turn - FILES - 2)
            numbers = range(first, min(first + SECTIONS_PER_TURN, FILES + 1))
            return [
                (
                    "write_section",
                    {"number": number, "text": describe_report(results[call_id(number + 1, 1)])},
                )
                for number in numbers
            ]
        return [("assemble_summary", {"title": f"Summary of {FILES} files"})]


def call_id(turn: int, position: int) -> str:
    """Id of a scripted tool call."""
    return f"turn-{turn}-call-{position}"


def count_turns(messages: Sequence[AnyMessage]) -> int:
    """How often the model has answered in this history."""
    return sum(isinstance(message, AIMessage) for message in messages)


def describe_report(report: str) -> str:
    """A section as the script writes it, from what `read_file` reported."""
    head = report.partition("\nfirst ")[0]
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    purpose = facts["purpose"]
    return f"{purpose[:1].upper()}{purpose[1:]}.\n\n- lines: {facts['lines']}\n- defines: {facts['names']}"


def load_model(name: str | None, tools: Sequence[BaseTool]) -> Model:
    """The script, or a real chat model that knows the tools."""
    return ScriptedModel() if name is None else bind_chat_model(name, tools)


def bind_chat_model(name: str, tools: Sequence[BaseTool]) -> Model:
    """A real model by its name, as `langchain.chat_models.init_chat_model` understands it.

    Raises:
        Exception: Whatever langchain or the provider's package says: not installed, no model, no key.
    """
    from langchain.chat_models import init_chat_model  # noqa: PLC0415 - an extra

    bound: Any = init_chat_model(name).bind_tools(tools)
    return bound  # type: ignore[no-any-return]


def build_graph(
    model: Model,
    tools: Sequence[BaseTool],
    saver: BaseCheckpointSaver[Any],
    *,
    on_turn: Callable[[int, Sequence[ToolCall]], None],
) -> Graph:
    """A model node and a tool node, as compiled with a saver.

    Each tool call is a task of its own, so that a finished one is recorded by itself.
    """

    def ask_model(state: MessagesState) -> dict[str, list[AnyMessage]]:
        answer = model.invoke(state["messages"])
        on_turn(count_turns(state["messages"]) + 1, answer.tool_calls)
        return {"messages": [answer]}

    def route(state: MessagesState) -> list[Send] | str:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        return [Send("tools", [call]) for call in calls] or END

    builder = StateGraph(MessagesState)
    builder.add_node("model", ask_model)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)
