"""Pictures of threads that real graphs have made, and what a notebook shows of a saver and its reports."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langgraph_turncheckpoint import (
    StaleTurnError,
    StorageError,
    Timeline,
    TurnCheckpointSaver,
    UnknownFormatError,
    display,
    migrate,
)
from tests.contract.guarded_agents import WAYS, Agent, Ending, calls
from tests.contract.guarded_places import Place, opened
from tests.crash.processes import Child, Line

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    with opened("turn", "sync", tmp_path) as made:
        yield made


@pytest.fixture
def saver(tmp_path) -> TurnCheckpointSaver:
    return TurnCheckpointSaver(tmp_path / "store", fsync=False)


def say(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


def echo(saver: TurnCheckpointSaver) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda values: {"messages": [AIMessage(f"{len(values['messages'])} messages")]})
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


def picture(path: Path, **options: Any) -> Timeline:
    """Of the thread "t", by a saver that knows nothing else."""
    made = TurnCheckpointSaver(path / "store", fsync=False).timeline("t", **options)
    ET.fromstring(made.svg)
    return made


def lines(timeline: Timeline) -> list[str]:
    """Its turns in words, without times."""
    found = []
    for line in timeline.text.splitlines()[1:]:
        without = re.sub(r" \((<1 ms|\d+(\.\d)? m?s)\)", "", line)
        without = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|<1 ms|\d+(\.\d)? m?s\b", "", without)
        found.append(" ".join(without.split()))
    return found


# --- what threads look like ---


def test_a_chat_shows_each_turn_with_its_prompt(saver, tmp_path):
    for text in ("hello there", "and then?", "thank you"):
        echo(saver).invoke(say(text), CONFIG)
    timeline = picture(tmp_path)
    assert lines(timeline) == [f"turn {n} completed input > model" for n in (1, 2, 3)]
    assert "hello there" in timeline.svg
    assert "hello there" not in saver.timeline("t", texts=False).svg
    assert timeline.svg == picture(tmp_path).svg


def die_in_a_tool(line: Line, path: Path) -> None:
    with opened("turn", "sync", path) as place:
        ending = Ending("kill", after=lambda: place.writes_hold("fast gave") and place.writes_hold("third gave"))
        Agent(place, WAYS["attach"], {"go": calls("fast", "slow", "third")}, endings={"slow": ending}).run(say("go"))


def test_a_killed_turn_shows_what_is_known_of_each_call_and_the_resumed_one_what_it_kept(place, tmp_path):
    with Child(die_in_a_tool, tmp_path) as child:
        assert child.end() == -9
    crashed = "turn 1 interrupted input > model > tools? [fast: ok, slow: unknown, third: ok] > process died"
    assert lines(picture(tmp_path)) == [crashed]
    Agent(place, WAYS["attach"]).go_on(None)
    resumed = "turn 2 completed tools [fast: kept, slow: told, third: kept] > model"
    assert lines(picture(tmp_path)) == [crashed, resumed]
    assert "continues turn 1" in picture(tmp_path).svg
    # The journal is gone; what the guard has told the model is what is known.
    assert list(tmp_path.rglob("j-1.journal")) == []
    assert place.effects.counts() == {"fast": 1, "slow": 1, "third": 1}


def test_a_new_message_after_a_kill_shows_the_repair(place, tmp_path):
    with Child(die_in_a_tool, tmp_path) as child:
        assert child.end() == -9
    Agent(place, WAYS["attach"]).say("what now?")
    assert lines(picture(tmp_path))[1] == (
        "turn 2 completed repair [fast: kept, third: kept, slow: told] > input > model"
    )


def die_after_two_results(line: Line, path: Path, way: str) -> None:
    with opened("turn", "sync", path) as place:
        # The checkpoint that asks for the tools is put beside their start, and is to be seen first.
        held = ("fast gave", "third gave")
        ending = Ending("kill", after=lambda: place.history_holds("slow") and all(map(place.journals_hold, held)))
        Agent(place, WAYS[way], {"go": calls("fast", "slow", "third")}, endings={"slow": ending}).run(say("go"))


@pytest.mark.parametrize("way", ["attach", "attach-one-task"])
@pytest.mark.parametrize("how", ["message", "recover", "repair", "go on"])
def test_the_killed_turn_goes_on_telling_the_truth_when_the_thread_is_in_order(place, tmp_path, way, how):
    """Its journal is gone then, and the results that it had recorded are in the history."""
    with Child(die_after_two_results, tmp_path, way) as child:
        assert child.end() == -9
    killed = "turn 1 interrupted input > model > tools? [fast: ok, slow: unknown, third: ok] > process died"
    assert lines(picture(tmp_path)) == [killed]
    if how == "repair":
        (repair,) = TurnCheckpointSaver(tmp_path / "store", fsync=False).repair(dry_run=False)
        assert repair.kind == "finalized"
    elif how == "recover":
        Agent(place, WAYS[way]).recover()
    elif how == "go on":
        Agent(place, WAYS[way]).go_on(None)
    else:
        Agent(place, WAYS[way]).say("what now?")
    first, second = lines(picture(tmp_path))[:2]
    assert first == killed
    assert ("tools [" if how == "go on" else "repair [") in second
    assert all(f"{name}: kept" in second for name in ("fast", "third"))
    assert "slow: told" in second
    Agent(place, WAYS[way]).say("and then?")
    assert list(tmp_path.rglob("j-1.journal")) == []
    assert lines(picture(tmp_path))[:2] == [first, second]


def wait_in_a_tool(line: Line, path: Path) -> None:
    class Waiting:
        def wait(self, seconds: float) -> bool:
            line.tell("in the tool")
            return bool(line.hear())

    with opened("turn", "sync", path) as place:
        # The checkpoint that asks for the tool is put beside the tool's start, and is to be seen first.
        ending = Ending("block", after=lambda: place.history_holds("slow"), resumed=Waiting())
        agent = Agent(place, WAYS["attach-one-task"], {"go": calls("slow")}, endings={"slow": ending})
        try:
            agent.run(say("go"))
        except Exception as error:  # noqa: BLE001 - it is what is asked about
            line.tell(type(error).__name__)


@pytest.mark.filterwarnings("default")
def test_a_takeover_shows_who_was_overtaken_by_whom(place, tmp_path):
    with Child(wait_in_a_tool, tmp_path) as child:
        assert child.hear() == "in the tool"
        assert lines(picture(tmp_path)) == ["turn 1 running input > model > tools? [slow: running]"]
        Agent(place, WAYS["attach"]).say("never mind")
        child.tell(True)
        assert child.hear() == "StaleTurnError"
    first, second = lines(picture(tmp_path))
    ended = "taken over by turn 2 > refused: a checkpoint and a result"
    assert first == f"turn 1 superseded input > model > tools? [slow: ok] > {ended}"
    assert second == "turn 2 completed repair [slow: told] > input > model"
    assert "takes over turn 1" in picture(tmp_path).svg


def test_parallel_calls_show_what_became_of_each(place, tmp_path):
    endings = {"boom": Ending("error", after=lambda: place.writes_hold("fast gave"))}
    agent = Agent(place, WAYS["attach"], {"go": calls("fast", "boom")}, endings=endings)
    with pytest.raises(ValueError, match="boom broke"):
        agent.run(say("go"))
    (line,) = lines(picture(tmp_path))
    assert line.startswith("turn 1 failed input > model > tools? [fast: ok, boom: error] > ValueError")
    assert "boom broke" not in picture(tmp_path, texts=False).svg


def test_a_pause_shows_who_waits_and_the_answer_that_came(place, tmp_path):
    agent = Agent(place, WAYS["attach"], {"go": calls("fast", "ask")})
    agent.run(say("go"))
    waiting = "turn 1 paused input > model > tools? [fast: ok, ask: paused] > "
    assert lines(picture(tmp_path)) == [f"{waiting}waits for a person"]
    agent.go_on(Command(resume="yes"))
    first, second = lines(picture(tmp_path))
    assert first == f"{waiting}waited for a person"
    assert second.endswith("completed tools [fast: kept, ask: ok] > model")


def test_a_fork_is_a_branch_and_an_edit_stands_by_itself(saver, tmp_path):
    graph = echo(saver)
    graph.invoke(say("first"), CONFIG)
    state = graph.get_state(CONFIG)
    graph.invoke(say("left"), CONFIG)
    graph.invoke(say("right"), state.config)
    graph.update_state(CONFIG, say("by hand"))
    timeline = picture(tmp_path)
    assert "forks from turn 1" in timeline.svg
    assert lines(timeline)[-1] == "edit update"


def test_an_edit_and_a_fork_leave_nothing_behind_that_was_never_begun(saver, tmp_path):
    graph = echo(saver)
    graph.invoke(say("first"), CONFIG)
    before_model = next(state for state in graph.get_state_history(CONFIG) if state.next == ("model",))
    graph.update_state(CONFIG, say("by hand"), as_node=START)
    graph.invoke(None, before_model.config)
    timeline = picture(tmp_path)
    assert [line.split()[0] for line in lines(timeline)] == ["turn", "edit", "turn"]
    assert lines(timeline)[1:] == ["edit update", f"{lines(timeline)[2].split(' fork')[0]} fork > model"]
    assert "begun" not in re.sub(r"<style>.*?</style>", "", timeline.svg)


def test_tools_that_run_side_by_side_show_how_long_each_took(place, tmp_path):
    agent = Agent(place, WAYS["attach"], {"go": calls("fast", "third")})
    agent.run(say("go"))
    assert re.search(r"fast: ok \([^)]+\), third: ok \([^)]+\)", picture(tmp_path).text)
    assert "returned a result, in " in picture(tmp_path).svg


def test_of_tools_in_one_task_nobody_knows_how_long_each_took(place, tmp_path):
    Agent(place, WAYS["attach-one-task"], {"go": calls("fast", "third")}).run(say("go"))
    assert "[fast: ok, third: ok]" in picture(tmp_path).text


GIVEN: list[Any] = [
    HumanMessage("hello there"),
    ("user", "hello there"),
    ["human", "hello there"],
    {"role": "user", "content": "hello there"},
    {"role": "user", "content": [{"type": "text", "text": "hello there"}]},
    "hello there",
]


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("given", GIVEN, ids=["message", "tuple", "list", "dict", "blocks", "text"])
def test_what_was_said_is_shown_in_whatever_form_it_was_given(saver, given, durability):
    # LangGraph gives a message an id in place, and takes two of one id for one.
    echo(saver).invoke({"messages": [copy.copy(given)]}, CONFIG, durability=durability)
    if not isinstance(given, list):
        echo(saver).invoke({"messages": copy.copy(given)}, CONFIG, durability=durability)
    assert {turn["prompt"] for turn in saver.timeline("t").to_dict()["turns"]} == {"hello there"}
    assert "hello there" not in saver.timeline("t", texts=False).svg


@pytest.mark.parametrize(
    "given",
    [[("system", "be short")], [{"role": "assistant", "content": "hi"}], [("nobody", "x")], [{"a": 1}], [3], "", []],
    ids=repr,
)
def test_what_no_person_has_said_is_no_prompt(saver, given):
    with contextlib.suppress(ValueError, NotImplementedError, TypeError):
        echo(saver).invoke({"messages": given}, CONFIG)
    assert [turn["prompt"] for turn in saver.timeline("t").to_dict()["turns"]] in ([], [""])


def stopping(saver: TurnCheckpointSaver, *, stops: bool) -> Any:
    """A model that may be stopped in its first step."""

    def model(state: Any) -> Any:
        if stops:
            raise KeyboardInterrupt
        return {"messages": [AIMessage("hello")]}

    return StateGraph(MessagesState).add_node("model", model).add_edge(START, "model").compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_plain_run_that_goes_on_shows_what_it_continues(saver, durability):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            stopping(saver, stops=True).invoke(say("hi"), CONFIG, durability=durability)
    stopping(saver, stops=False).invoke(None, CONFIG, durability=durability)
    stopping(saver, stops=False).invoke(say("and?"), CONFIG, durability=durability)
    found = [(turn["continues"], turn["prompt"]) for turn in saver.timeline("t").to_dict()["turns"]]
    assert found == [(None, "hi"), (None, "hi"), (2, ""), (None, "and?")]
    assert "continues turn 2" in saver.timeline("t").svg


@pytest.mark.parametrize("way", ["attach", "middleware", "node"])
def test_a_person_who_is_asked_what_became_of_a_call_is_waited_for(place, tmp_path, way):
    with Child(die_after_two_results, tmp_path, way) as child:
        assert child.end() == -9
    agent = Agent(place, WAYS[way], default_on_restart="ask")
    agent.run(None)
    asked = "turn 2 paused tools? [fast: kept, slow: paused, third: kept] > waits for a person"
    assert lines(picture(tmp_path))[1] == asked
    agent.run(Command(resume="rerun"))
    assert lines(picture(tmp_path))[1] == asked.replace("waits", "waited")
    assert "slow: ok" in lines(picture(tmp_path))[2]


@pytest.mark.filterwarnings("default")
def test_a_rollback_of_the_first_turn_starts_from_nothing(place, tmp_path):
    with Child(wait_in_a_tool, tmp_path) as child:
        assert child.hear() == "in the tool"
        Agent(place, WAYS["attach"], multitask_strategy="rollback").say("never mind")
        child.tell(True)
        assert child.hear() == "StaleTurnError"
    timeline = picture(tmp_path)
    assert "fork" not in timeline.svg
    assert "starts from nothing" in timeline.svg


# --- what came from elsewhere ---


def asking(saver: Any) -> Any:
    """A model that asks for a look, and for a payment that a person has to allow."""

    def pay(state: Any) -> Any:
        interrupt("may I?")
        return {"messages": [ToolMessage("paid", tool_call_id="p")]}

    def model(state: Any) -> Any:
        if state["messages"][-1].content != "pay":
            return {"messages": [AIMessage("hello")]}
        wanted: list[Any] = [{"name": name, "args": {}, "id": name[0]} for name in ("look", "pay")]
        return {"messages": [AIMessage("", tool_calls=wanted)]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("look", lambda state: {"messages": [ToolMessage("seen", tool_call_id="l")]})
    builder.add_node("pay", pay)
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda state: ["look", "pay"] if state["messages"][-1].tool_calls else END, ["look", "pay", END]
    )
    return builder.compile(checkpointer=saver)


def test_what_was_imported_is_told_by_its_own_runs_and_times(saver, tmp_path):
    with SqliteSaver.from_conn_string(":memory:") as old:
        graph = asking(old)
        graph.invoke(say("hi"), CONFIG)
        graph.invoke(say("pay"), CONFIG)
        made = [str(state.created_at) for state in graph.get_state_history(CONFIG)]
        migrate(old, saver)
    first, second = lines(picture(tmp_path))
    assert first == "turn 1.1 imported input > model"
    assert second == "turn 1.2 imported input > model > look+pay? [look: ok, pay: paused] > waits for a person"
    assert len(lines(picture(tmp_path, turns=1))) == 2
    assert lines(picture(tmp_path, turns=1))[0] == "1 earlier part of an imported turn"
    facts = picture(tmp_path).to_dict()
    assert [turn["opened_at"] for turn in facts["turns"]] == [made[-1], made[-4]]
    assert facts["turns"][1]["seconds"] is None
    assert [call["seconds"] for call in facts["turns"][1]["steps"][-1]["calls"]] == [None, None]
    asking(saver).invoke(Command(resume=True), CONFIG)
    assert lines(picture(tmp_path))[1].endswith("waited for a person")
    assert lines(picture(tmp_path))[2].endswith("completed look+pay [look: kept, pay: ok]")


def test_the_table_of_a_saver_says_how_an_imported_thread_stands(saver):
    with SqliteSaver.from_conn_string(":memory:") as old:
        asking(old).invoke(say("pay"), CONFIG)
        migrate(old, saver)
    assert "paused" in (saver._repr_html_() or "")


# --- writers that came too late ---


def test_what_a_turn_tried_when_it_was_over_is_told_in_its_band(saver, tmp_path):
    with saver.turn(CONFIG) as older:
        echo(saver).invoke(say("one"), older)
        found: Any = saver.get_tuple(CONFIG)
        late: Any = {"configurable": {**found.config["configurable"], **older["configurable"]}}
        with saver.turn(CONFIG) as newer:
            echo(saver).invoke(say("two"), newer)
            for _ in range(3):
                with pytest.raises(StaleTurnError):
                    saver.put_writes(late, [("messages", [])], "task")
    assert lines(picture(tmp_path))[0] == "turn 1 superseded input > model > taken over by turn 2 > refused: a result"
    assert ">refused: a result<" in picture(tmp_path).svg


# --- as data ---


def test_the_picture_is_there_as_data(saver):
    echo(saver).invoke(say("hello there"), CONFIG)
    facts = saver.timeline("t").to_dict()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["thread_id"], facts["closed"], facts["earlier"], facts["damaged"]) == ("t", False, None, [])
    (turn,) = facts["turns"]
    assert (turn["token"], turn["state"], turn["prompt"]) == (1, "completed", "hello there")
    assert [step["nodes"] for step in turn["steps"]] == [["input"], ["model"]]
    assert saver.timeline("t", texts=False).to_dict()["turns"][0]["prompt"] == ""


def test_of_a_long_thread_the_newest_turns_are_shown(saver, tmp_path):
    graph = echo(saver)
    for n in range(30):
        graph.invoke(say(f"message {n}"), CONFIG)
    found = lines(picture(tmp_path, turns=5))
    assert found == ["25 earlier turns", *(f"turn {n} completed input > model" for n in range(26, 31))]
    assert "25 earlier turns" in picture(tmp_path, turns=5).svg
    assert len(lines(picture(tmp_path, turns=100))) == 30


def test_of_a_long_thread_only_the_newest_checkpoints_are_read(saver, monkeypatch):
    graph = echo(saver)
    for n in range(12):
        graph.invoke(say(f"message {n}"), CONFIG)
    read: list[Any] = []
    whole = type(saver.store).file

    def noted(self: Any, files: Any, checkpoint_id: Any, *args: Any) -> Any:
        read.append(checkpoint_id)
        return whole(self, files, checkpoint_id, *args)

    monkeypatch.setattr(type(saver.store), "file", noted)
    saver.timeline("t", turns=3)
    assert len(read) == 10


def test_a_run_stored_at_its_end_shows_the_calls_of_all_its_steps(place, tmp_path):
    other = Agent(place, WAYS["attach"], {"go": calls("fast", "slow")}, thread="x")
    place.call(other.guarded, "invoke", say("go"), other.config, durability="exit")
    text = TurnCheckpointSaver(tmp_path / "store").timeline("x").text
    assert "fast: ok, slow: ok" in text


def test_checkpoints_of_subgraphs_are_counted(saver, tmp_path):
    inner = StateGraph(MessagesState)
    inner.add_node("a", lambda values: {"messages": [AIMessage("a")]})
    inner.add_edge(START, "a")
    outer = StateGraph(MessagesState)
    outer.add_node("team", inner.compile(checkpointer=True))
    outer.add_edge(START, "team")
    outer.add_edge("team", END)
    outer.compile(checkpointer=saver).invoke(say("go"), CONFIG)
    assert "+3 inner" in picture(tmp_path).svg


def test_a_closed_thread_says_so(saver):
    echo(saver).invoke(say("hello"), CONFIG)
    saver.close_thread("t")
    assert "(closed)" in saver.timeline("t").text
    assert "new turns are refused" in saver.timeline("t").svg


def test_a_pruned_thread_is_shown_as_far_as_it_is_there(saver, tmp_path):
    for text in ("one", "two", "three"):
        echo(saver).invoke(say(text), CONFIG)
    saver.prune(["t"])
    assert lines(picture(tmp_path))[-1] == "turn 3 completed step"


def test_an_encrypted_thread_is_shown_to_who_has_the_key(tmp_path):
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    saver = TurnCheckpointSaver(tmp_path / "store", fsync=False, serde=serde)
    echo(saver).invoke(say("hello there"), CONFIG)
    assert "hello there" in saver.timeline("t").svg
    without = TurnCheckpointSaver(tmp_path / "store", fsync=False).timeline("t")
    assert "hello there" not in without.svg
    assert "not readable" in without.text


# --- what is not as it should be ---


@pytest.mark.parametrize("thread_id", ["nobody", "", "\ud800", "../../etc"])
def test_a_thread_that_is_not_there_gives_a_picture_that_says_so(saver, thread_id):
    timeline = saver.timeline(thread_id)
    assert "Nothing is stored" in timeline.svg
    assert not os.path.exists(saver.path)
    assert "nothing is stored" in timeline.text
    assert timeline._repr_html_()


def test_a_deleted_thread_shows_nothing_of_what_it_was(saver):
    echo(saver).invoke(say("hello there"), CONFIG)
    saver.delete_thread("t")
    assert "Nothing is stored" in saver.timeline("t").svg


@pytest.mark.parametrize("turns", [0, -1])
def test_no_turns_at_all_cannot_be_shown(saver, turns):
    with pytest.raises(ValueError, match="turns="):
        saver.timeline("t", turns=turns)


def test_damaged_checkpoints_are_left_out_and_told(saver, tmp_path):
    for text in ("one", "two"):
        echo(saver).invoke(say(text), CONFIG)
    newest = max((tmp_path / "store").rglob("*.ckpt"))
    data = newest.read_bytes()
    newest.write_bytes(data[:30] + bytes([data[30] ^ 1]) + data[31:])
    timeline = picture(tmp_path)
    assert "could not be read" in timeline.svg
    assert lines(timeline)[0] == "turn 1 completed input > model"


@pytest.mark.parametrize("name", ["turns", "j-1.journal"])
def test_a_damaged_log_or_journal_is_passed_over_and_told(saver, tmp_path, name):
    with saver.turn(CONFIG) as held:
        echo(saver).invoke(say("one"), held)
        (found,) = (tmp_path / "store").rglob(name)
        with found.open("r+b") as file:
            file.seek(20)
            file.write(b"\xff\xff")
        assert "turn 1" in saver.timeline("t").text


def test_a_newer_log_of_turns_is_refused(saver, tmp_path, monkeypatch):
    echo(saver).invoke(say("one"), CONFIG)
    monkeypatch.setattr("langgraph_turncheckpoint._turn_log.LOG_VERSION", 0)
    with pytest.raises(UnknownFormatError):
        saver.timeline("t")


def test_looking_changes_no_file(place, tmp_path):
    with Child(die_in_a_tool, tmp_path) as child:
        assert child.end() == -9
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    saver = TurnCheckpointSaver(tmp_path / "store")
    saver.timeline("t")
    saver._repr_html_()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_prune_under_the_look_is_looked_at_again(saver, monkeypatch):
    for text in ("one", "two"):
        echo(saver).invoke(say(text), CONFIG)
    whole = type(saver.store).file
    pruned: list[Any] = []

    def prune_first(self: Any, files: Any, checkpoint_id: Any, *args: Any) -> Any:
        if not pruned:
            pruned.append(checkpoint_id)
            TurnCheckpointSaver(saver.path, fsync=False).prune(["t"])
        return whole(self, files, checkpoint_id, *args)

    monkeypatch.setattr(type(saver.store), "file", prune_first)
    timeline = saver.timeline("t")
    assert pruned
    assert "not readable" not in timeline.text
    assert lines(timeline)[-1] == "turn 2 completed step"


# --- saving and showing ---


def test_a_picture_is_saved_in_the_form_its_name_asks_for(saver, tmp_path):
    echo(saver).invoke(say("hello"), CONFIG)
    timeline = saver.timeline("t")
    assert timeline.save(tmp_path / "a.svg") == str(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == timeline.svg
    timeline.save(str(tmp_path / "a.HTML"))
    assert (tmp_path / "a.HTML").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    timeline.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == timeline.text == str(timeline)


def test_a_form_that_there_is_not_is_refused_and_nothing_written(saver, tmp_path):
    with pytest.raises(ValueError, match=r"\.svg"):
        saver.timeline("t").save(tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_a_picture_that_cannot_be_saved_leaves_what_was_there(saver, tmp_path):
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(StorageError):
        saver.timeline("t").save(tmp_path / "a.svg")
    with pytest.raises(StorageError):
        saver.timeline("t").save(tmp_path / "nowhere" / "a.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


def test_a_notebook_gets_the_picture_in_each_form_it_may_choose(saver):
    echo(saver).invoke(say("hello"), CONFIG)
    timeline = saver.timeline("t")
    bundle = timeline._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert bundle["image/svg+xml"] == timeline._repr_svg_()
    assert bundle["text/html"] == timeline._repr_html_()
    assert set(timeline._repr_mimebundle_(include={"text/plain", "text/html"}, exclude={"text/html"})) == {"text/plain"}
    assert "<details>" in bundle["text/html"]
    assert repr(timeline) == "Timeline('t', turns=1)"


async def test_the_async_twin_gives_the_same_picture(saver):
    echo(saver).invoke(say("hello"), CONFIG)
    assert (await saver.atimeline("t", turns=3, texts=False)).svg == saver.timeline("t", turns=3, texts=False).svg


def test_a_notebook_shows_the_threads_of_a_saver_with_their_last_turn(saver, monkeypatch):
    assert "no threads yet" in (saver._repr_html_() or "")
    for thread_id in ("a", "<b>"):
        echo(saver).invoke(say("hello"), {"configurable": {"thread_id": thread_id}})
    shown = saver._repr_html_() or ""
    root = ET.fromstring(f"<div>{shown}</div>")
    cells = [["".join(cell.itertext()).strip() for cell in row.iter("td")][:3] for row in root.iter("tr")][1:]
    assert [[cell.removeprefix("\u25cf ") for cell in row] for row in cells] == [
        ["<b>", "1", "completed"],
        ["a", "1", "completed"],
    ]
    monkeypatch.setattr(display, "THREADS_SHOWN", 1)
    assert "thread_ids() lists all" in (saver._repr_html_() or "")


def test_a_saver_that_cannot_be_read_is_shown_as_plain_text(saver, monkeypatch):
    def refuse(*args: Any) -> Any:
        raise StorageError("scandir", saver.path, PermissionError(13, "no"))

    monkeypatch.setattr(type(saver.store), "thread_ids", refuse)
    assert saver._repr_html_() is None


def test_turns_are_a_list_that_a_notebook_shows_as_a_table(saver):
    with saver.turn(CONFIG) as held:
        echo(saver).invoke(say("hello"), held)
    turns = saver.turns("t")
    assert isinstance(turns, list)
    assert "completed" in turns._repr_html_()  # type: ignore[attr-defined]
    assert "completed" in turns[0]._repr_html_()
    assert "No turns" in saver.turns("nobody")._repr_html_()


def test_a_recovery_report_is_shown_as_a_table(place, tmp_path):
    with Child(die_in_a_tool, tmp_path) as child:
        assert child.end() == -9
    agent = Agent(place, WAYS["attach"])
    report = agent.recover()
    shown = report._repr_html_()
    ET.fromstring(f"<div>{shown}</div>")
    assert "slow" in shown
    assert "unknown" in shown
    assert "in order" in agent.recover()._repr_html_()
