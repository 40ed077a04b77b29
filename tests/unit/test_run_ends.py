"""The end of the outermost run is told to who listens, once, with its error and whether it has paused."""

from __future__ import annotations

import asyncio
import threading
from uuid import UUID, uuid4

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.errors import GraphInterrupt

from langgraph_turncheckpoint import _run_ends
from langgraph_turncheckpoint._run_ends import RunEnds, run_ends


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[BaseException | None, bool]] = []

    def __call__(self, error: BaseException | None, paused: bool) -> None:  # noqa: FBT001 - as it is called
        self.calls.append((error, paused))


def started(ends: RunEnds, parent: UUID | None = None) -> UUID:
    run_id = uuid4()
    ends.on_chain_start(None, None, run_id=run_id, parent_run_id=parent)
    return run_id


def test_the_end_is_told_once():
    ends, heard = RunEnds(), Heard()
    root = started(ends)
    assert ends.listen(root, heard)
    ends.on_chain_end(None, run_id=root)
    ends.on_chain_end(None, run_id=root)
    assert heard.calls == [(None, False)]


def test_an_error_is_handed_on():
    ends, heard, error = RunEnds(), Heard(), ValueError("x")
    root = started(ends)
    ends.listen(root, heard)
    ends.on_chain_error(error, run_id=root)
    assert heard.calls == [(error, False)]


def test_the_end_of_a_part_is_not_the_end():
    ends, heard = RunEnds(), Heard()
    root = started(ends)
    node = started(ends, root)
    part = started(ends, node)
    ends.listen(part, heard)
    ends.on_chain_end(None, run_id=part)
    ends.on_chain_error(ValueError(), run_id=node)
    assert heard.calls == []
    ends.on_chain_end(None, run_id=root)
    assert heard.calls == [(None, False)]


def test_a_tool_is_a_part_too():
    ends, heard = RunEnds(), Heard()
    root, call = started(ends), uuid4()
    ends.on_tool_start(None, "", run_id=call, parent_run_id=root)
    inner = started(ends, call)
    assert ends.listen(inner, heard)
    ends.on_chain_end(None, run_id=inner)
    ends.on_tool_error(ValueError(), run_id=call)
    assert heard.calls == []
    ends.on_chain_end(None, run_id=root)
    assert len(heard.calls) == 1


def test_a_pause_anywhere_is_a_pause_of_the_run():
    ends, heard, other = RunEnds(), Heard(), Heard()
    root, elsewhere = started(ends), started(ends)
    node = started(ends, root)
    ends.listen(node, heard)
    ends.listen(elsewhere, other)
    ends.on_chain_error(GraphInterrupt(()), run_id=node)
    ends.on_chain_end(None, run_id=root)
    ends.on_chain_end(None, run_id=elsewhere)
    assert heard.calls == [(None, True)]
    assert other.calls == [(None, False)]


def test_several_listeners_are_all_told_also_when_one_fails():
    ends, heard = RunEnds(), Heard()
    root = started(ends)
    ends.listen(root, heard)
    ends.listen(root, heard)
    ends.on_chain_end(None, run_id=root)
    assert heard.calls == [(None, False)] * 2


@pytest.mark.parametrize("unknown", [None, uuid4()])
def test_a_run_that_is_not_known_cannot_be_listened_to(unknown):
    assert not RunEnds().listen(unknown, Heard())


def test_a_run_that_is_over_cannot_be_listened_to():
    ends = RunEnds()
    root = started(ends)
    ends.on_chain_end(None, run_id=root)
    assert not ends.listen(root, Heard())


def test_runs_that_never_end_are_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr(_run_ends, "RUNS_KEPT", 10)
    ends, heard = RunEnds(), Heard()
    first = started(ends)
    ends.listen(first, heard)
    kept = [started(ends) for _ in range(10)]
    assert not ends.listen(first, heard)
    assert all(ends.listen(run_id, Heard()) for run_id in kept)
    ends.on_chain_end(None, run_id=first)
    assert heard.calls == []
    assert len(ends._parents) == 9 + (kept[0] in ends._parents)
    assert not ends._listeners.get(first)


def test_nothing_of_a_run_that_ended_is_kept():
    ends = RunEnds()
    root = started(ends)
    for _ in range(100):
        ends.on_chain_end(None, run_id=started(ends, root))
    node = started(ends, root)
    ends.listen(node, Heard())
    ends.on_chain_error(GraphInterrupt(()), run_id=node)
    ends.on_chain_end(None, run_id=root)
    assert (len(ends._parents), ends._listeners, ends._paused) == (0, {}, set())


def test_runs_of_many_threads_do_not_disturb_each_other():
    ends = RunEnds()
    heard = [Heard() for _ in range(8)]

    def work(mine: Heard) -> None:
        for _ in range(50):
            root = started(ends)
            assert ends.listen(started(ends, root), mine)
            ends.on_chain_end(None, run_id=root)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(mine.calls) for mine in heard] == [50] * 8


# --- the handler of this process ---


def test_there_is_one_handler_and_it_joins_every_run():
    ends = run_ends()
    assert run_ends() is ends
    heard = Heard()

    def listen(value: int, config: object) -> int:
        manager = config["callbacks"]  # type: ignore[index]
        assert any(handler is ends for handler in manager.handlers)
        assert ends.listen(manager.parent_run_id, heard)
        return value

    chain = RunnableLambda(lambda value: value) | RunnableLambda(listen)
    assert chain.invoke(1) == 1
    assert heard.calls == [(None, False)]
    assert asyncio.run(chain.ainvoke(2)) == 2
    assert heard.calls == [(None, False)] * 2


def test_a_new_context_has_the_handler_too():
    ends, found = run_ends(), []
    worker = threading.Thread(
        target=lambda: RunnableLambda(
            lambda _, config: found.append(any(handler is ends for handler in config["callbacks"].handlers))
        ).invoke(None)
    )
    worker.start()
    worker.join()
    assert found == [True]


def test_a_chain_within_a_tool_is_part_of_the_run_around_it():
    ends, heard, order = run_ends(), Heard(), []

    @tool
    def ask() -> str:
        """Ask."""
        inner = RunnableLambda(lambda _, config: ends.listen(config["callbacks"].parent_run_id, heard))
        assert inner.invoke(None)
        order.append(len(heard.calls))
        return "asked"

    RunnableLambda(lambda _: ask.invoke({})).invoke(None)
    assert order == [0]
    assert len(heard.calls) == 1
