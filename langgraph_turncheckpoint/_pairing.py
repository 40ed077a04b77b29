"""Which tool call of a history is answered by which message, and the history with every answer in its place.
What an answer says is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from ._tool_calls import CALL_BLOCKS, Call, calls_of, complete_calls


def is_surely_paired(messages: Sequence[Any]) -> bool:
    """Whether every call is answered once, right behind its message; `False` where only `Survey` can tell.

    One loop, with a function call only for messages that are neither prompts nor answers: 1 ms for 5,000.
    """
    wanted: set[Any] = set()
    try:
        for message in messages:
            cls = type(message)
            if cls is ToolMessage:
                wanted.remove(message.tool_call_id)
            elif wanted:
                return False
            elif cls is AIMessage:
                calls = message.tool_calls
                if message.invalid_tool_calls:
                    return False
                if calls:
                    wanted = {call["id"] for call in calls if call["name"] and call["id"]}
                    if len(wanted) != len(calls):
                        return False
                if type(message.content) is list and not _repeats(message.content, wanted):
                    return False
            elif cls is not HumanMessage and cls is not SystemMessage and isinstance(message, _PAIRED):
                return False
    except (AttributeError, KeyError, TypeError):
        return False
    return not wanted


_PAIRED: Final = (AIMessage, ToolMessage)


def _repeats(content: list[Any], wanted: set[Any]) -> bool:
    """Whether all calls in the content are among those wanted."""
    for block in content:
        kind = block["type"]
        if kind in CALL_BLOCKS and block[CALL_BLOCKS[kind]] not in wanted:
            return False
    return True


class Slot:
    """A tool call, and the answer it has.

    Attributes:
        ai: The place of the message that states the call.
        call: The call.
        is_open: It may stay without an answer, and an answer it has stays where it is.
        answer: Its answer, if there is one.
        place: The answer's place.
        is_astray: The answer does not stand right behind the message.
    """

    __slots__ = ("ai", "answer", "call", "is_astray", "is_open", "place")

    def __init__(self, ai: int, call: Call, *, is_open: bool) -> None:
        self.ai, self.call, self.is_open = ai, call, is_open
        self.answer: ToolMessage | None = None
        self.place = -1
        self.is_astray = False


def _answer_in_content(content: list[Any], waiting: dict[str, list[Slot]], ai: int) -> None:
    """Let calls stay open that a prompt right behind them answers itself, in Anthropic's form."""
    for block in content:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            slots = waiting.get(block.get("tool_use_id", ""))
            if slots and slots[-1].ai == ai:
                slots.pop().is_open = True


class Survey:
    """Which call of a history is answered where. Takes one pass and changes nothing.

    A ToolMessage answers the nearest call before it that has its id: ids may repeat in later messages. The first
    answer counts, whoever made it.

    Args:
        items: The history. What is no message belongs to nobody and stays where it is.
        unanswered: Names of tools whose calls may stay open.
        until: Calls of messages from this place on may stay open; `None` for none.

    Attributes:
        slots_of: The calls of each message that has some, by the message's place.
        surplus: Places of answers to no call, and of second answers.
        newest_with: By call id, the place of the last message that states it.
        is_damaged: Whether `rebuild` would change anything.
    """

    def __init__(self, items: Sequence[Any], unanswered: frozenset[str], until: int | None) -> None:
        self.items = items
        self.slots_of: dict[int, list[Slot]] = {}
        self.surplus: list[int] = []
        self.newest_with: dict[str, int] = {}
        self._find(unanswered, len(items) if until is None else until)
        self.is_damaged = bool(self.surplus) or any(
            (slot.answer is None and not slot.is_open) or slot.is_astray or not slot.call.is_complete
            for slot in self.slots()
        )

    def _find(self, unanswered: frozenset[str], until: int) -> None:
        waiting: dict[str, list[Slot]] = {}  # stated call id -> calls of the last message that states it
        just_behind = -1  # the AIMessage behind which only answers have come so far
        for place, item in enumerate(self.items):
            if isinstance(item, ToolMessage):
                slots = waiting.get(item.tool_call_id)
                if not slots:
                    self.surplus.append(place)
                    continue
                slot = slots.pop()
                slot.answer, slot.place = item, place
                slot.is_astray = slot.ai != just_behind and not slot.is_open
            elif isinstance(item, AIMessage):
                just_behind = place
                calls = calls_of(item, place)
                if not calls:
                    continue
                slots = [Slot(place, call, is_open=place >= until or call.name in unanswered) for call in calls]
                self.slots_of[place] = slots
                for call in calls:
                    waiting[call.stated_id] = []
                    self.newest_with[call.stated_id] = place
                for slot in reversed(slots):
                    waiting[slot.call.stated_id].append(slot)
            else:
                if isinstance(item, HumanMessage) and type(item.content) is list:
                    _answer_in_content(item.content, waiting, just_behind)
                just_behind = -1

    def slots(self) -> Iterator[Slot]:
        """Every call, in order."""
        for slots in self.slots_of.values():
            yield from slots

    def missing(self) -> Iterator[Slot]:
        """Every call that needs an answer and has none."""
        return (slot for slot in self.slots() if slot.answer is None and not slot.is_open)

    def rebuild(self, given: Mapping[int, ToolMessage]) -> list[Any]:
        """The history with an answer behind every call. `given` has one for each missing, by `id` of its slot.

        Where answers are complete they keep their order; elsewhere they get that of the calls.
        """
        out: list[Any] = []
        done = set(self.surplus)
        renamed: dict[int, ToolMessage] = {}
        for place, item in enumerate(self.items):
            if place in done:
                continue
            slots = self.slots_of.get(place)
            if slots is None:
                out.append(renamed.get(place, item))
                continue
            complete = all(slot.call.is_complete for slot in slots)
            out.append(item if complete else complete_calls(item, [slot.call for slot in slots]))
            for slot in slots:
                if slot.answer is not None and slot.answer.tool_call_id != slot.call.id:
                    renamed[slot.place] = slot.answer.model_copy(update={"tool_call_id": slot.call.id})
            firm = [slot for slot in slots if not slot.is_open]
            if any(slot.answer is None or slot.is_astray for slot in firm):
                for slot in firm:
                    answer = given[id(slot)] if slot.answer is None else renamed.get(slot.place, slot.answer)
                    out.append(answer)
                    done.add(slot.place)
        return out
