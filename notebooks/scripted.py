"""What the notebooks have in common: a fake chat model that follows a script, a second kernel, and a readable history.
Nothing here belongs to an app; what an app needs stands in the notebooks themselves.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import DEVNULL
from textwrap import wrap
from types import TracebackType
from typing import Any, Final

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

#: How long a notebook waits for its second kernel, in seconds; nothing here takes a tenth of it.
PATIENCE: Final = 60.0


class HistoryRefusedError(Exception):
    """A tool call is not answered. The providers of real models refuse such a history, with their own words."""


class ScriptedModel(BaseChatModel):
    """A chat model without a mind: `script` is given the history and returns the reply. It needs no key, no network.

    Like real ones it refuses a history in which a tool call has no answer.
    """

    script: Callable[[list[BaseMessage]], AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:  # noqa: ARG002
        """The same model: the script knows the tools."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - LangChain's interface
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> ChatResult:
        _check_answered(messages)
        return ChatResult(generations=[ChatGeneration(message=self.script(messages))])


def call(*names: str, **args: Any) -> AIMessage:
    """A reply that calls these tools, in this order, with the same arguments."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{name}"} for name in names])


def _check_answered(messages: Sequence[BaseMessage]) -> None:
    waiting: dict[str | None, str] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            waiting.pop(message.tool_call_id, None)
        elif waiting:
            break
        elif isinstance(message, AIMessage):
            waiting = {made["id"]: made["name"] for made in message.tool_calls}
    if waiting:
        raise HistoryRefusedError(f"400: these tool calls have no answer: {', '.join(waiting.values())}")


def show(messages: Sequence[BaseMessage]) -> None:
    """Print a history, a line for each message and each call."""
    for message in messages:
        who = {"human": "you", "ai": "agent"}.get(message.type, message.name or message.type)
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        for text in [message.text] * bool(message.text) + [f"calls {made['name']}" for made in calls]:
            lines = wrap(text, 100)
            print("\n".join([f"{who:>14} | {lines[0]}", *(f"{'':>14} | {line}" for line in lines[1:])]))


class SecondKernel:
    """A second notebook's kernel: a process of its own, in the directory in which this one works.

    Leaving the `with` block, or `close`, ends it.
    """

    def __init__(self) -> None:
        self._manager = KernelManager(kernel_name="python3")
        here = str(Path(__file__).parent)
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._manager.start_kernel(cwd=os.getcwd(), env=environment, stdout=DEVNULL, stderr=DEVNULL)
        self._client: BlockingKernelClient = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE)
        self._printed = ""
        self._cell = ""

    def __enter__(self) -> SecondKernel:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, code: str) -> None:
        """Run a cell there, and do not wait for it."""
        self._printed = ""
        self._cell = self._client.execute(code)

    def wait_for(self, text: str) -> None:
        """Wait until the cell has printed something; `finish` then returns what comes behind it."""
        while text not in self._printed:
            if self._next_message() == "idle":
                raise RuntimeError(f"the cell ended without printing {text!r}; it printed {self._printed!r}")
        self._printed = self._printed.partition(text)[2]

    def finish(self) -> str:
        """Wait for the end of the cell. Returns what it has printed; an error's last line counts, too."""
        while self._next_message() != "idle":
            pass
        return self._printed.strip("\n")

    def kill(self) -> str:
        """End the process as the system does when memory runs out: with SIGKILL. It cannot defend itself."""
        provisioner: Any = self._manager.provisioner
        os.kill(provisioner.pid, signal.SIGKILL)
        provisioner.process.wait()
        return "killed"

    def close(self) -> None:
        """End the kernel, if it still lives, and remove what it has left."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()

    def _next_message(self) -> str:
        """Take the next message of the running cell; returns "idle" for the one that ends it."""
        message = self._client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") != self._cell:
            return ""
        content = message["content"]
        if message["msg_type"] == "stream":
            self._printed += content["text"]
        elif message["msg_type"] == "error":
            self._printed += f"{content['ename']}: {content['evalue']}\n"
        elif message["msg_type"] == "status":
            return str(content["execution_state"])
        return ""
