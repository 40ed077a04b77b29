"""Pauses for a person behave over our saver as over LangGraph's own: static, dynamic, several, resumed by map."""

from __future__ import annotations

import operator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    topic: str


def _chain(driver: Driver, *names: str) -> StateGraph[Log]:
    """Nodes that each note their own name, one after the other."""
    builder = StateGraph(Log)
    for name in names:
        builder.add_node(name, _noting(driver, name))
    builder.add_edge(START, names[0])
    for before, after in pairwise(names):
        builder.add_edge(before, after)
    builder.add_edge(names[-1], END)
    return builder


def _noting(driver: Driver, name: str) -> Any:
    def node(state: Log) -> Log:
        driver.effect(name)
        return {"log": [name]}

    return node


def _asking(driver: Driver, name: str, *questions: Any) -> Any:
    def node(state: Log) -> Log:
        driver.effect(f"{name} started")
        answers = [interrupt(question) for question in questions]
        driver.effect(f"{name} answered")
        return {"log": [(name, answers)]}

    return node


def static_pauses_before_and_after(driver: Driver) -> None:
    builder = _chain(driver, "plan", "act", "check", "close")
    graph = driver.graph(
        lambda saver: builder.compile(checkpointer=saver, interrupt_before=["act"], interrupt_after=["check"])
    )
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke(None)
    graph.state()
    graph.invoke(None)
    graph.invoke({"log": ["again"]})


def static_pause_before_every_node_chosen_by_the_call(driver: Driver) -> None:
    builder = _chain(driver, "plan", "act")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]}, interrupt_before="*")
    graph.invoke(None, interrupt_before="*")
    graph.state()
    graph.invoke(None)


def one_question_answered(driver: Driver) -> None:
    builder = _chain(driver, "plan", "act")
    builder.add_node("ask", _asking(driver, "ask", {"question": "sure?", "choices": ["y", "n"], "raw": b"\x00"}))
    builder.add_edge("act", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.state()
    graph.invoke(Command(resume={"answer": ["y", None]}))
    graph.state()


def questions_in_a_row_in_one_node(driver: Driver) -> None:
    builder = _chain(driver, "plan")
    builder.add_node("ask", _asking(driver, "ask", "first", "second", "third"))
    builder.add_edge("plan", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    for answer in ("one", "two"):
        graph.invoke(Command(resume=answer))
        graph.state()
    graph.invoke(Command(resume="three"))


def _parallel_questions(driver: Driver) -> StateGraph[Log]:
    builder = StateGraph(Log)
    for name in ("left", "right", "middle"):
        builder.add_node(name, _asking(driver, name, f"{name}?"))
        builder.add_edge(START, name)
    builder.add_node("free", _noting(driver, "free"))
    builder.add_edge(START, "free")
    builder.add_node("join", _noting(driver, "join"))
    builder.add_edge(["left", "right", "middle", "free"], "join")
    return builder


def several_questions_answered_by_one_map(driver: Driver) -> None:
    builder = _parallel_questions(driver)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    asked = graph.state().interrupts
    graph.invoke(Command(resume={each.id: f"answer to {each.value}" for each in asked}))


def several_questions_answered_one_by_one(driver: Driver) -> None:
    builder = _parallel_questions(driver)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    for _ in range(3):
        first = graph.state().interrupts[0]
        graph.invoke(Command(resume={first.id: f"answer to {first.value}"}))
    graph.state()


def several_questions_and_a_plain_resume_is_refused(driver: Driver) -> None:
    builder = _parallel_questions(driver)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    graph.invoke(Command(resume="for whom?"))
    graph.state()
    asked = graph.state().interrupts
    graph.invoke(Command(resume={each.id: "for you" for each in asked}))


def questions_of_fanned_out_tasks(driver: Driver) -> None:
    builder = StateGraph(Log)

    def ask(state: Log) -> Log:
        driver.effect(f"asked {state['topic']}")
        return {"log": [(state["topic"], interrupt(f"which {state['topic']}?"))]}

    builder.add_node("ask", ask)
    builder.add_node("join", _noting(driver, "join"))
    builder.add_conditional_edges(
        START, lambda state: [Send("ask", {"topic": str(number)}) for number in range(4)], ["ask"]
    )
    builder.add_edge("ask", "join")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    asked = graph.state().interrupts
    graph.invoke(Command(resume={each.id: number for number, each in enumerate(asked[:2])}))
    graph.state()
    graph.invoke(Command(resume={each.id: number + 2 for number, each in enumerate(asked[2:])}))


def a_resume_that_also_updates(driver: Driver) -> None:
    builder = _chain(driver, "plan")
    builder.add_node("ask", _asking(driver, "ask", "sure?"))
    builder.add_edge("plan", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    graph.invoke(Command(resume="yes", update={"topic": "changed", "log": ["by the person"]}))
    graph.state()


def a_resume_that_goes_elsewhere(driver: Driver) -> None:
    builder = _chain(driver, "plan")
    builder.add_node("ask", _asking(driver, "ask", "sure?"))
    builder.add_node("other", _noting(driver, "other"))
    builder.add_edge("plan", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    graph.invoke(Command(goto="other", update={"log": ["rerouted"]}))
    graph.state()


def a_new_message_instead_of_an_answer(driver: Driver) -> None:
    builder = _parallel_questions(driver)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": ["go"]})
    graph.invoke({"log": ["never mind"]})
    graph.state()


def asked_again_when_run_without_an_answer(driver: Driver) -> None:
    builder = _parallel_questions(driver)
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    graph.invoke(None)
    graph.invoke(None)
    graph.state()


def asked_until_the_answer_is_good(driver: Driver) -> None:
    def ask(state: Log) -> Log:
        question: Any = "age?"
        while True:
            answer = interrupt(question)
            driver.effect("asked")
            if isinstance(answer, int):
                return {"log": [answer]}
            question = f"{answer!r} is no age"

    builder = StateGraph(Log)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    answers: list[Any] = ["old", None, [], 42]
    for answer in answers:
        graph.invoke(Command(resume=answer))
    graph.state()


def the_state_edited_while_paused(driver: Driver) -> None:
    builder = _chain(driver, "plan")
    builder.add_node("ask", _asking(driver, "ask", "sure?"))
    builder.add_edge("plan", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    graph.invoke({"log": []})
    graph.update({"topic": "edited", "log": ["edit"]}, as_node="plan")
    graph.state()
    graph.invoke(None)
    graph.invoke(Command(resume="yes"))
    graph.invoke({"log": ["second turn"]})
    graph.update({"log": ["answered by hand"]}, as_node="ask")
    graph.state()
    graph.invoke(None)


def two_threads_paused_in_turn(driver: Driver) -> None:
    builder = _chain(driver, "plan")
    builder.add_node("ask", _asking(driver, "ask", "sure?"))
    builder.add_edge("plan", "ask")
    graph = driver.graph(lambda saver: builder.compile(checkpointer=saver))
    for thread in ("one", "two"):
        graph.invoke({"log": [thread]}, thread=thread)
    for thread in ("two", "one"):
        graph.invoke(Command(resume=f"yes {thread}"), thread=thread)
        graph.state(thread=thread)


SCRIPTS: tuple[Script, ...] = (
    static_pauses_before_and_after,
    static_pause_before_every_node_chosen_by_the_call,
    one_question_answered,
    questions_in_a_row_in_one_node,
    several_questions_answered_by_one_map,
    several_questions_answered_one_by_one,
    several_questions_and_a_plain_resume_is_refused,
    questions_of_fanned_out_tasks,
    a_resume_that_also_updates,
    a_resume_that_goes_elsewhere,
    a_new_message_instead_of_an_answer,
    asked_again_when_run_without_an_answer,
    asked_until_the_answer_is_good,
    the_state_edited_while_paused,
    two_threads_paused_in_turn,
)


@each_way(*SCRIPTS)
def test_pauses_are_the_same(script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool) -> None:
    """Whoever is asked, in whatever order the answers come, the thread goes on as over the in-memory saver."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)
