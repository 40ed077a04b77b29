"""The threads of the load: what each holds after each visit, the graph that makes it so, and whether what was read can
be true. No process and no clock lives here.

A visit is one run of a graph: a person's message comes in, and a node answers it in three super-steps. Every message
follows from its place in the thread, so whatever is read can be checked by itself.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

#: Checkpoints of one visit: its input, and one for each super-step.
STEPS_A_VISIT: Final = 5
MESSAGES_A_VISIT: Final = 4
#: Bytes of a message's text: that of a short answer.
TEXT_LENGTH: Final = 240

#: Threads that any number of workers write to at once; all others have one writer at a time.
CONTENDED: Final = 40


class Standing(NamedTuple):
    """How far a thread has come: which of its lives, and how many messages of it. Later is greater."""

    life: int
    messages: int


class Plan(NamedTuple):
    """What happens to which thread.

    Attributes:
        threads: How many there are.
        visits: How many each one gets; 0 if that is not known.
        life_visits: After how many a thread is deleted and begun again; 0 for only some threads, half-way.
    """

    threads: int
    visits: int
    life_visits: int = 0

    def name(self, number: int) -> str:
        """The id of a thread; not all are as plain as a number."""
        return f"Thread {number}" if number % 5 == 0 else f"thread-{number}"

    def life(self, number: int) -> int:
        """Visits of one life of a thread; 0 if it has only one."""
        if self.life_visits:
            return self.life_visits
        return max(1, self.visits // 2) if number % 20 == 7 else 0

    def standing(self, number: int, visit: int) -> Standing:
        """Where a thread stands when a visit begins; what went before is deleted by then."""
        life = self.life(number)
        # Where all threads are deleted now and then, they are not all deleted at once: first lives are shorter.
        missed = number % life if self.life_visits else 0
        whole, into = divmod(visit + missed, life) if life else (0, visit)
        return Standing(whole, (into if whole else visit) * MESSAGES_A_VISIT)

    def reached(self, number: int, visits: int) -> Standing:
        """Where a thread stands after so many visits, before the next one begins."""
        if visits == 0:
            return Standing(0, 0)
        life, messages = self.standing(number, visits - 1)
        return Standing(life, messages + MESSAGES_A_VISIT)

    def begins_anew(self, number: int, visit: int) -> bool:
        """Whether a visit begins with deleting the thread."""
        return visit > 0 and self.standing(number, visit).messages == 0

    def ends(self, number: int) -> bool:
        """Whether the thread is deleted after its last visit."""
        return bool(self.visits) and number % 50 == 11

    def may_be_gone(self, number: int) -> bool:
        """Whether a reader may find nothing there at some time."""
        return bool(self.life(number)) or self.ends(number)

    def is_pruned_by_its_writer(self, number: int) -> bool:
        """Whether it is pruned after each visit."""
        return number % 10 == 3

    def is_pruned_at_any_time(self, number: int) -> bool:
        """Whether somebody else prunes it while it may be written to."""
        return number % 10 == 4

    def checkpoints(self, number: int) -> int | None:
        """How many checkpoints it has after its last visit; `None` where that depends on when it was pruned."""
        if self.is_pruned_at_any_time(number):
            return None
        if self.is_pruned_by_its_writer(number):
            return 1
        return (self.visits - 1) % (self.life(number) or self.visits) * STEPS_A_VISIT + STEPS_A_VISIT


class Log(TypedDict, total=False):
    messages: Annotated[list[BaseMessage], operator.add]
    knock: str  # the thread's id, where no message comes in


def configured(thread_id: str) -> RunnableConfig:
    """The config of a thread."""
    return {"configurable": {"thread_id": thread_id}}


def message(thread_id: str, life: int, number: int) -> BaseMessage:
    """The message that a thread holds at a place."""
    made: type[BaseMessage] = AIMessage if number % MESSAGES_A_VISIT else HumanMessage
    return made(content=_text(thread_id, life, number), id=f"{thread_id}/{life}/{number}")


def _text(thread_id: str, life: int, number: int) -> str:
    return f"{number} of life {life} of {thread_id}".ljust(TEXT_LENGTH, "·-"[number % 2])


def answering(state: Log) -> Log:
    """Appends the message that comes next."""
    messages = state.get("messages") or []
    thread_id, life, _ = str(messages[-1].id).rsplit("/", 2) if messages else (state["knock"], "0", "")
    return {"messages": [message(thread_id, int(life), len(messages))]}


def built() -> StateGraph[Any]:
    """A graph whose runs add one visit's messages."""
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("answer", answering)
    builder.add_edge(START, "answer")

    def onward(state: Log) -> str:
        return "answer" if len(state["messages"]) % MESSAGES_A_VISIT else END

    builder.add_conditional_edges("answer", onward, ["answer", END])
    return builder


def standing_of(thread_id: str, messages: Sequence[BaseMessage]) -> Standing:
    """How far the thread had come when these were its messages.

    Raises:
        WrongReadError: It cannot have held them at any time.
    """
    if not messages:
        return Standing(0, 0)
    life = int(str(messages[0].id).rsplit("/", 2)[1])
    for number, found in enumerate(messages):
        if found.id != f"{thread_id}/{life}/{number}" or found.content != _text(thread_id, life, number):
            raise WrongReadError(f"{thread_id!r} holds {found.id!r} with {found.content!r:.60} in place {number}")
    return Standing(life, len(messages))


class WrongReadError(AssertionError):
    """Something was read that cannot be."""


def check_standing(thread_id: str, found: Standing, *, least: Standing) -> None:
    """Fail if what had been acknowledged before a read is not in what it found."""
    if found < least:
        raise WrongReadError(f"{thread_id!r} stands at {found}, though {least} was stored before")


def check_falling(thread_id: str, listed: Sequence[tuple[str, Standing]]) -> None:
    """Fail if a listing is not of one history, the newest first."""
    for (newer_id, newer), (older_id, older) in itertools.pairwise(listed):
        if older_id >= newer_id or older > newer:
            raise WrongReadError(f"{thread_id!r} lists {newer_id} at {newer} before {older_id} at {older}")
