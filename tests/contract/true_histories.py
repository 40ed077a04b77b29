"""What holds for every history that a guard leaves behind, whatever went wrong before. Only messages are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

#: Key of the guard's note in an answer.
NOTE: Final = "turncheckpoint"


def assert_valid(history: Sequence[Any]) -> None:
    """Every call of every AIMessage is answered exactly once, right behind it; no answer lacks a call."""
    open_ids: list[str] = []
    for place, message in enumerate(history):
        if isinstance(message, ToolMessage):
            assert message.tool_call_id in open_ids, f"{place}: an answer to no call {shape(history)}"
            open_ids.remove(message.tool_call_id)
            continue
        assert not open_ids, f"{place}: no answer to {open_ids} in {shape(history)}"
        if isinstance(message, AIMessage):
            open_ids = [str(call["id"]) for call in [*message.tool_calls, *message.invalid_tool_calls]]
    assert not open_ids, f"no answer to {open_ids} in {shape(history)}"


def shape(history: Sequence[Any]) -> list[str]:
    """One word a message: who speaks; for answers the call, and its text or its outcome."""
    return [
        f"{message.tool_call_id}={outcome(message) or message.text}"
        if isinstance(message, ToolMessage)
        else message.type
        for message in history
    ]


def outcome(message: BaseMessage) -> str:
    """The outcome that the guard has noted in an answer; empty in a real one."""
    return str(message.response_metadata.get(NOTE, {}).get("outcome", ""))


def cause(message: BaseMessage) -> str:
    """The cause that the guard has noted in an answer; empty in a real one."""
    return str(message.response_metadata.get(NOTE, {}).get("cause", ""))


def answers(history: Sequence[Any]) -> dict[str, ToolMessage]:
    """The answers by call; where ids repeat, the last."""
    return {m.tool_call_id: m for m in history if isinstance(m, ToolMessage)}


def assert_honest(message: ToolMessage, *, ran: bool) -> None:
    """No answer claims more than is known.

    Args:
        message: The answer.
        ran: Whether its tool has started.
    """
    text, found = message.text.lower(), outcome(message)
    if not found:
        assert ran or message.status == "error"
        return
    assert message.status == "error"
    assert "succe" not in text
    assert "cancel" not in text
    if ran:
        assert "not run" not in text
        assert found in ("unknown", "failed", "answered_by_person")
    if cause(message) != "user":
        assert "user" not in text
