"""How a thread stands, and how its turns ended: `saver.turns`, and the word of a thread, for runs of which somebody has
announced the end and for those of which nobody has.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import warnings
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.constants import END, START
from langgraph.func import entrypoint, task
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from langgraph_turncheckpoint import StaleTurnError, TurnCheckpointSaver, TurnGuard, migrate
from langgraph_turncheckpoint._cli_facts import checkpoint_lines
from langgraph_turncheckpoint._loading import WriteMark
from langgraph_turncheckpoint._repair import RepairRules, repair_thread
from langgraph_turncheckpoint._standing import NULL_TASK_ID, is_asked
from langgraph_turncheckpoint._turn_log import TurnRecord
from tests.contract import cut_off_threads as cut
from tests.contract.scripted_model import ScriptedModel, call
from tests.langgraph_versions import needs_answered_questions_to_be_gone
from tests.system_calls import calls_of

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


class OutOfOrderError(Exception):
    """What a node raises."""


@pytest.fixture
def saver(tmp_path):
    return TurnCheckpointSaver(tmp_path / "store")


def line(saver: Any, *nodes: tuple[str, Any], **options: Any) -> Any:
    """A graph of nodes in a row."""
    builder: Any = StateGraph(State)
    for name, node in nodes:
        builder.add_node(name, node)
    for before, after in zip((START, *(name for name, _ in nodes)), (*(name for name, _ in nodes), END), strict=True):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver, **options)


def work(_state: State) -> dict[str, Any]:
    return {"seen": ["work"]}


def fail(_state: State) -> dict[str, Any]:
    raise OutOfOrderError("no paper")


def ask(_state: State) -> dict[str, Any]:
    return {"seen": [str(interrupt("may I?"))]}


def ask_twice(_state: State) -> dict[str, Any]:
    return {"seen": [str(interrupt("may I?")), str(interrupt("really?"))]}


def start(graph: Any, given: Any = None) -> None:
    with contextlib.suppress(OutOfOrderError):
        graph.invoke(given if given is not None else {"seen": []}, CONFIG, durability="sync")


def ends(saver: TurnCheckpointSaver) -> list[Any]:
    """How the turns ended, oldest first, and whether that was announced."""
    return [(record.state, record.announced) for record in saver.turns("1")][::-1]


def word(saver: TurnCheckpointSaver) -> str:
    return saver.store.standing("1").state


# --- plain runs ---


@pytest.mark.parametrize(
    ("node", "options", "state"),
    [
        (work, {}, "completed"),
        (fail, {}, "failed"),
        (ask, {}, "paused"),
        (work, {"interrupt_before": ["b"]}, "unfinished"),
    ],
    ids=["completed", "failed", "paused", "unfinished"],
)
def test_a_plain_run_ended_as_its_last_checkpoint_tells(saver, node, options, state):
    start(line(saver, ("a", work), ("b", node), **options))
    assert ends(saver) == [(state, False)]
    assert word(saver) == state


def test_a_person_who_is_asked_again_in_the_same_node_is_asked(saver):
    graph = line(saver, ("a", ask_twice))
    start(graph)
    assert word(saver) == "paused"
    start(graph, Command(resume="yes"))
    assert (word(saver), ends(saver)) == ("paused", [("paused", False), ("paused", False)])
    start(graph, Command(resume="yes, really"))
    assert (word(saver), ends(saver)) == ("completed", [("paused", False), ("paused", False), ("completed", False)])


def test_who_is_asked_again_in_a_tool_is_not_answered_by_a_repair(saver):
    def ask_for_a_tool(_state: Any) -> dict[str, Any]:
        return ask_twice({"seen": []})

    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", ask_for_a_tool)
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=saver)
    asking = AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "pay-1", "type": "tool_call"}])
    start(graph, {"messages": [HumanMessage("pay"), asking]})
    start(graph, Command(resume="yes"))
    found = repair_thread(saver, saver.store, "1", rules=RepairRules(idle=0.0), dry_run=True)
    assert [each.kind for each in found] == ["pending"]


ASKS, ANSWERED, FAILED, DONE = ({"__interrupt__"}, {"__resume__", "seen"}, {"__error__"}, {"seen"})


@pytest.mark.parametrize(
    ("marks", "asked"),
    [
        ([("x", ASKS)], True),
        ([("x", ASKS), ("x", ANSWERED)], False),
        ([("x", ASKS), ("x", ASKS | {"__resume__"})], True),
        ([("x", ASKS), ("x", DONE)], False),
        ([("x", ASKS), ("x", FAILED)], True),
        ([("x", ASKS), ("x", FAILED | {"__resume__"})], False),
        ([("x", ASKS), (NULL_TASK_ID, {"__resume__"})], False),
        ([("x", ASKS), (NULL_TASK_ID, {"seen"})], True),
        ([("x", ASKS), (NULL_TASK_ID, {"__resume__"}), ("x", ASKS | {"__resume__"})], True),
        # As a copy has it, which knows no order: whether the answer is to this question cannot be told.
        ([(NULL_TASK_ID, {"__resume__"}), ("x", ASKS)], True),
    ],
)
def test_a_person_is_asked_by_each_task_until_that_is_answered(marks, asked):
    assert is_asked([WriteMark(1, frozenset(channels), task) for task, channels in marks]) is asked


def test_of_two_tasks_that_ask_the_answer_to_one_is_none_to_the_other():
    both = [WriteMark(1, frozenset(ASKS), task) for task in ("x", "y")]
    later = [WriteMark(2, frozenset(ASKS), "y"), WriteMark(2, frozenset(ANSWERED), "x")]
    assert all(is_asked([*both, *order]) for order in permutations(later))
    assert not any(is_asked([*both, *order, WriteMark(3, frozenset(ANSWERED), "y")]) for order in permutations(later))


class Telling(TurnCheckpointSaver):
    """Tells once a task has written a result, or asked."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.written = {channel: threading.Event() for channel in ("messages", "__interrupt__")}

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        for channel, _ in writes:
            if channel in self.written:
                self.written[channel].set()


@needs_answered_questions_to_be_gone
@pytest.mark.parametrize("waits_for", ["messages", "__interrupt__"], ids=["answered first", "asked again first"])
def test_of_two_questions_at_once_the_one_that_is_open_is_waited_for(tmp_path, waits_for):
    saver = Telling(tmp_path)

    def tool(name: str, waits: bool) -> Any:
        def run(_state: Any) -> Any:
            if waits:
                assert saver.written[waits_for].wait(30)
            return {"messages": [ToolMessage(str(interrupt(name)), tool_call_id=name)]}

        return run

    def graph(last: str) -> Any:
        builder: Any = StateGraph(MessagesState)
        for name in ("x", "y"):
            builder.add_node(name, tool(name, name == last))
            builder.add_edge(START, name)
        return builder.compile(checkpointer=saver)

    calls: Any = [{"name": name, "args": {}, "id": name, "type": "tool_call"} for name in ("x", "y")]
    start(graph(""), {"messages": [HumanMessage("both"), AIMessage("", tool_calls=calls)]})
    saver.written["__interrupt__"].clear()
    # The answer is to x. Either y asks again first, or x goes on first.
    resumed = graph("x" if waits_for == "__interrupt__" else "y")
    (asked,) = [each for each in resumed.get_state(CONFIG).interrupts if each.value == "x"]
    resumed.invoke(Command(resume={asked.id: "yes"}), CONFIG, durability="sync")
    assert [each.value for each in resumed.get_state(CONFIG).interrupts] == ["y"]
    assert (word(saver), ends(saver)) == ("paused", [("paused", False), ("paused", False)])
    left = saver.store.standing("1").left
    assert left is not None
    assert left.waiting
    found = repair_thread(saver, saver.store, "1", rules=RepairRules(idle=0.0), dry_run=False)
    assert [each.kind for each in found] == ["pending"]
    assert [each.value for each in resumed.get_state(CONFIG).interrupts] == ["y"]


def test_an_answer_after_which_a_run_died_is_known_in_its_own_store_and_not_once_it_was_copied(saver, tmp_path):
    def die_once_answered(_state: State) -> dict[str, Any]:
        interrupt("may I?")
        raise SystemExit

    graph = line(saver, ("a", die_once_answered))
    start(graph)
    with pytest.raises(SystemExit):
        start(graph, Command(resume="yes"))
    copy = TurnCheckpointSaver(tmp_path / "copy")
    migrate(saver, copy)
    assert (word(saver), word(copy)) == ("unfinished", "paused")


def test_an_error_that_an_older_run_met_is_not_that_of_the_one_that_tries_again(saver):
    seen: list[Any] = []

    def look(_state: State) -> dict[str, Any]:
        seen.append((ends(saver), word(saver)))
        return {}

    start(line(saver, ("a", fail)))
    line(saver, ("a", look)).invoke(None, CONFIG)
    assert seen == [([("failed", False), ("unfinished", False)], "unfinished")]


def test_a_run_that_only_failed_again_has_failed(saver):
    failing = line(saver, ("a", work), ("b", fail))
    start(failing)
    for _ in range(2):
        with pytest.raises(OutOfOrderError):
            failing.invoke(None, CONFIG)
    assert ends(saver) == [("failed", False)] * 3
    line(saver, ("a", work), ("b", work)).invoke(None, CONFIG)
    assert ends(saver) == [*[("failed", False)] * 3, ("completed", False)]


def test_what_a_join_or_a_send_has_started_is_left_to_do(saver):
    builder: Any = StateGraph(State)
    for name in ("a", "b", "+", "c", "d"):
        builder.add_node(name, work)
    for name in ("a", "b", "+"):
        builder.add_edge(START, name)
    builder.add_edge(["a", "b", "+"], "c")
    builder.add_conditional_edges("c", lambda _state: [Send("d", {"seen": []})], ["d"])
    graph = builder.compile(checkpointer=saver, interrupt_before=["c", "d"])
    start(graph)
    assert saver.store.standing("1").left == (["c"], False)
    graph.invoke(None, CONFIG)
    assert saver.store.standing("1").left == (["d"], False)
    assert ends(saver) == [("unfinished", False), ("unfinished", False)]
    graph.invoke(None, CONFIG)
    assert (saver.store.standing("1").left, word(saver)) == (([], False), "completed")
    assert ends(saver)[-1] == ("completed", False)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize(
    ("body", "state"), [(work, "completed"), (fail, "failed"), (ask, "paused")], ids=["completed", "failed", "paused"]
)
def test_it_is_the_same_for_the_functional_api_and_subgraphs(tmp_path, body, state, durability):
    @task
    def step(given: State) -> Any:
        return body(given)

    def made(saver: Any) -> list[Any]:
        @entrypoint(checkpointer=saver)
        def flow(given: State) -> Any:
            return step(given).result()

        return [flow, line(saver, ("a", line(None, ("b", body))), ("c", work))]

    for position in range(2):
        saver = TurnCheckpointSaver(tmp_path / str(position))
        with contextlib.suppress(OutOfOrderError):
            made(saver)[position].invoke({"seen": []}, CONFIG, durability=durability)
        assert ends(saver) == [(state, False)]
        assert word(saver) == state


def test_a_plain_run_that_went_on_after_a_newer_one_had_begun_was_superseded(saver):
    def be_overtaken(_state: State) -> dict[str, Any]:
        newer = threading.Thread(target=start, args=(line(saver, ("a", work)),))
        newer.start()
        newer.join()
        return {}

    with pytest.raises(StaleTurnError):
        start(line(saver, ("a", be_overtaken)))
    newest, first = saver.turns("1")
    assert (first.state, first.cause, newest.state) == ("superseded", "superseded", "completed")
    assert first.refused_at is not None
    assert word(saver) == "completed"


def test_an_update_by_hand_does_not_change_how_a_run_ended(saver):
    graph = line(saver, ("a", work), ("b", ask))
    start(graph)
    graph.update_state(CONFIG, {"seen": ["by hand"]}, as_node="b")
    assert ends(saver) == [("paused", False)]
    assert word(saver) == "completed"


def test_a_turn_of_which_no_checkpoint_is_left_is_unknown(saver):
    for _ in range(3):
        start(line(saver, ("a", work)))
    saver.prune(["1"])
    assert ends(saver) == [("unknown", False), ("unknown", False), ("completed", False)]


def test_a_turn_whose_last_checkpoint_is_damaged_is_unknown_and_the_thread_damaged(saver):
    for _ in range(2):
        start(line(saver, ("a", work)))
    damage(files_of(saver)[-1])
    warnings.simplefilter("ignore")
    assert ends(saver) == [("completed", False), ("unknown", False)]
    assert word(saver) == "damaged"


# --- announced ends ---


def test_what_was_announced_is_told_as_it_is(saver):
    with saver.turn(CONFIG) as config:
        line(saver, ("a", work), interrupt_before=["a"]).invoke({"seen": []}, config)
    assert ends(saver) == [("completed", True)]
    assert word(saver) == "completed"
    guarded = TurnGuard(saver).attach(line(saver, ("a", ask)))
    guarded.invoke({"seen": []}, CONFIG)
    assert ends(saver)[1:] == [("paused", True)]
    assert word(saver) == "paused"


def test_a_thread_that_was_cut_off_with_a_guard_reads_interrupted(tmp_path):
    saver = TurnCheckpointSaver(cut.copy_of_store(tmp_path))
    (record,) = saver.turns(cut.GUARDED)
    assert (record.state, record.announced) == ("interrupted", True)
    assert saver.store.standing(cut.GUARDED).state == "interrupted"
    (record,) = saver.turns(cut.PLAIN)
    assert (record.state, record.announced) == ("unfinished", False)


@pytest.mark.parametrize(
    ("node", "state"), [(work, "completed"), (fail, "failed"), (ask, "paused")], ids=["completed", "failed", "paused"]
)
def test_an_imported_thread_stands_as_it_stood(saver, node, state):
    memory = InMemorySaver()
    start(line(memory, ("a", node)))
    migrate(memory, saver)
    assert word(saver) == state
    assert [record.announced for record in saver.turns("1")] == [True]


def test_a_turn_that_only_imported_is_listed_as_imported(saver):
    start(line(saver, ("a", ask)))
    turn = saver.store.open_turn("1")
    saver.store.settle_turn("1", turn, "imported")
    assert ends(saver) == [("paused", False), ("imported", True)]
    assert word(saver) == "paused"


# --- a log that does not tell of the newest run ---


def cut_off_and_forgotten(saver: TurnCheckpointSaver, **options: Any) -> None:
    """A thread with a turn that was announced, and a plain run of which its log, which is not synced, has lost all."""

    def die(_state: State) -> dict[str, Any]:
        raise SystemExit

    with saver.turn(CONFIG) as config:
        line(saver, ("a", work)).invoke({"seen": []}, config)
    log = Path(saver.store.generation_dir("1")) / "turns"
    told = log.read_bytes()
    with pytest.raises(SystemExit):
        start(line(saver, *options.get("first", [("a", work)]), ("b", die)))
    log.write_bytes(told)


@pytest.mark.parametrize("first", [[("a", work)], []], ids=["later", "at once"])
def test_a_run_that_the_log_has_lost_counts_by_what_it_wrote(saver, first):
    cut_off_and_forgotten(saver, first=first)
    found = saver.store.standing("1")
    assert (found.state, found.cause) == ("unfinished", None)
    assert ends(saver) == [("completed", True)]


def test_a_run_that_the_log_has_lost_and_that_only_wrote_on_a_checkpoint_counts(saver):
    with saver.turn(CONFIG) as config:
        line(saver, ("a", work), ("b", ask), interrupt_before=["b"]).invoke({"seen": []}, config)
    assert word(saver) == "completed"
    log = Path(saver.store.generation_dir("1")) / "turns"
    told = log.read_bytes()
    line(saver, ("a", work), ("b", ask)).invoke(None, CONFIG)
    log.write_bytes(told)
    assert word(saver) == "paused"


# --- damage ---


def files_of(saver: TurnCheckpointSaver) -> list[Any]:
    return sorted(Path(saver.path).rglob("*.ckpt"), key=lambda path: path.name)


def damage(path: Any) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def long_thread(saver: TurnCheckpointSaver) -> None:
    """A thread in which a later checkpoint shares pages with earlier ones."""
    graph = line(saver, ("a", lambda _state: {"seen": ["x" * 300] * 40}))
    for _ in range(4):
        start(graph)


def test_damage_anywhere_that_the_newest_checkpoint_needs_shows(saver, tmp_path):
    """Whatever file is damaged, the word is "damaged" exactly if the newest checkpoint cannot be read."""
    long_thread(saver)
    found = set()
    for path in files_of(saver):
        whole = path.read_bytes()
        damage(path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = saver.get_tuple(CONFIG)
        assert loaded is not None
        assert (word(saver) == "damaged") == bool(caught), path.name
        found.add(word(saver))
        path.write_bytes(whole)
    assert found == {"damaged", "completed"}


def test_what_is_wrong_is_told(saver):
    start(line(saver, ("a", work)))
    damage(files_of(saver)[-1])
    found = saver.store.standing("1")
    assert files_of(saver)[-1].name in found.damage
    assert found.left is None


# --- what it costs ---


def test_a_thread_s_word_reads_its_newest_checkpoint_alone(saver):
    for _ in range(50):
        start(line(saver, ("a", work)))
    names = calls_of(lambda: saver.store.standing("1"))
    assert names.count("open") <= 8


def test_only_the_turns_that_are_asked_for_are_looked_at(saver, monkeypatch):
    from langgraph_turncheckpoint._loading import LoadedFile

    for _ in range(10):
        start(line(saver, ("a", work)))
    looked: list[str] = []
    head = LoadedFile.head

    def watched(self: LoadedFile) -> Any:
        looked.append(self.checkpoint_id)
        return head(self)

    monkeypatch.setattr(LoadedFile, "head", watched)
    assert len(saver.turns("1", limit=2)) == 2
    assert len(set(looked)) == 2
    looked.clear()
    with saver.turn(CONFIG):
        pass
    assert saver.turns("1", limit=1)[0].announced
    assert looked == []


async def test_the_async_twin_tells_the_same(saver):
    start(line(saver, ("a", ask)))
    assert await saver.aturns("1") == saver.turns("1")
    assert isinstance(saver.turns("1")[0], TurnRecord)


# --- what ran ---


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_tasks_that_were_sent_ran_in_every_turn(tmp_path, durability):
    """A node that tasks are sent to sees no version of any channel, however often it runs."""

    @tool
    def look(at: int) -> str:
        """Look."""
        return f"seen {at}"

    answers = [AIMessage("", tool_calls=[call("look", n, at=n)]) if n % 2 == 0 else AIMessage("so") for n in range(6)]
    saver = TurnCheckpointSaver(tmp_path / "s", fsync=False)
    graph = create_agent(ScriptedModel(answers=answers), [look], checkpointer=saver)
    for _ in range(3):
        graph.invoke({"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "t"}}, durability=durability)
    ran = [line.ran for line in checkpoint_lines(saver.store, "t", "") if line.source == "loop"]
    assert ran == [["model"], ["tools"], ["model"], []] * 3
    assert saver.timeline("t").text.count("tools [look: ok") == 3
