"""A chat model that says what its script says, chosen by the history alone, so that a restart does not confuse it.

No graph and no tool lives here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable


def call(name: str, number: int, **args: Any) -> dict[str, Any]:
    """One tool call of a scripted answer."""
    return {"name": name, "args": args, "id": f"call-{name}-{number}", "type": "tool_call"}


class ScriptedModel(BaseChatModel):
    """Gives the answer after as many answers as the history already holds; then only says that it is done."""

    answers: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        given = sum(isinstance(message, AIMessage) for message in messages)
        answer = self.answers[given] if given < len(self.answers) else AIMessage(f"done after {given}")
        message = answer.model_copy(update={"id": f"ai-{given}"})
        return ChatResult(generations=[ChatGeneration(message=message)])
