"""Workflows of the functional API behave over our saver as over LangGraph's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.func import entrypoint, task
from langgraph.types import Command, RetryPolicy, interrupt

from tests.contract.differential import assert_same, each_way
from tests.contract.driver import Driver, Script, Subject

AT_ONCE = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=ConnectionError)


def _workflow(driver: Driver, body: Any) -> Subject:
    return driver.graph(lambda saver: entrypoint(checkpointer=saver)(body))


def what_was_returned_before(driver: Driver) -> None:
    def total(number: int, *, previous: Any = None) -> Any:
        return {"total": number + (previous or {"total": 0})["total"]}

    graph = _workflow(driver, total)
    for number in (1, 2, 3):
        graph.invoke(number)
    graph.invoke(10, thread="other")
    graph.state()


def what_is_saved_is_not_what_is_returned(driver: Driver) -> None:
    def total(number: int, *, previous: Any = None) -> Any:
        return entrypoint.final(value=f"added {number}", save=(previous or 0) + number)

    graph = _workflow(driver, total)
    for number in (1, 2, 3):
        graph.invoke(number)


def finished_tasks_do_not_run_again_after_a_question(driver: Driver) -> None:
    @task
    def double(number: int) -> int:
        driver.effect(f"double {number}")
        return number * 2

    @task
    def ask(question: str) -> Any:
        driver.effect("ask")
        return interrupt({"question": question})

    def flow(numbers: list[int]) -> Any:
        doubled = [future.result() for future in [double(number) for number in numbers]]
        first = interrupt("directly?")
        second = ask("in a task?").result()
        return {"doubled": doubled, "answers": [first, second]}

    graph = _workflow(driver, flow)
    graph.invoke([1, 2, 3])
    graph.state()
    graph.invoke(Command(resume="one"))
    graph.state()
    graph.invoke(Command(resume="two"))
    graph.invoke([4])


def finished_tasks_outlive_a_failing_one(driver: Driver) -> None:
    @task
    def work(number: int) -> int:
        if driver.effect(f"work {number}") == 1 and number == 2:
            raise ValueError("not ready")
        return number * 10

    def flow(count: int) -> list[int]:
        return [work(number).result() for number in range(count)]

    graph = _workflow(driver, flow)
    graph.invoke(4)
    graph.state()
    graph.invoke(None)
    graph.state()


def a_task_within_a_task(driver: Driver) -> None:
    @task
    def inner(number: int) -> int:
        driver.effect(f"inner {number}")
        return number + 1

    @task
    def outer(number: int) -> int:
        driver.effect(f"outer {number}")
        return inner(number).result() * inner(number + 1).result()

    def flow(number: int) -> Any:
        before = outer(number).result()
        return before, interrupt("go on?"), outer(before).result()

    graph = _workflow(driver, flow)
    graph.invoke(1)
    graph.invoke(Command(resume="yes"))
    graph.state()


def a_task_tried_again(driver: Driver) -> None:
    @task(retry_policy=AT_ONCE)  # type: ignore[arg-type]  # without arguments, nothing tells what it may be called with
    def fetch() -> str:
        if driver.effect("fetch") < 3:
            raise ConnectionError("no line")
        return "fetched"

    def flow(_: Any) -> str:
        return fetch().result()

    graph = _workflow(driver, flow)
    graph.invoke({"go": True})
    graph.state()


def values_of_many_kinds(driver: Driver) -> None:
    def keep(value: Any, *, previous: Any = None) -> Any:
        return [value, (previous or [None])[0]]

    graph = _workflow(driver, keep)
    for value in ({"a": (1, 2)}, b"\x00\xff", [None, True, 1, 1.0, ""], {"s": {1, 2}, "deep": [[[["x"]]]]}):
        graph.invoke({"value": value})


def a_workflow_inside_a_workflow(driver: Driver) -> None:
    @entrypoint()
    def inner(number: int) -> Any:
        driver.effect("inner")
        return number, interrupt("inner?")

    def flow(number: int) -> Any:
        return inner.invoke(number), interrupt("outer?")

    graph = _workflow(driver, flow)
    graph.invoke(1)
    graph.state(subgraphs=True)
    graph.invoke(Command(resume="to the inner"))
    graph.invoke(Command(resume="to the outer"))


SCRIPTS: tuple[Script, ...] = (
    what_was_returned_before,
    what_is_saved_is_not_what_is_returned,
    finished_tasks_do_not_run_again_after_a_question,
    finished_tasks_outlive_a_failing_one,
    a_task_within_a_task,
    a_task_tried_again,
    values_of_many_kinds,
    a_workflow_inside_a_workflow,
)


@each_way(*SCRIPTS)
def test_workflows_are_the_same(script: Script, tmp_path: Path, colour: str, durability: str, restarts: bool) -> None:
    """Tasks that finished are not run again, and a workflow remembers what it remembers in memory."""
    assert_same(script, tmp_path, colour=colour, durability=durability, restarts=restarts)
