"""Pictures of threads that real graphs have made, and what a notebook shows of a saver and its reports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from langgraph_turncheckpoint import StorageError, Timeline, TurnCheckpointSaver, UnknownFormatError, display
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
        without = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|<1 ms|\d+(\.\d)? m?s\b", "", line)
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
    crashed = "turn 1 crashed input > model > tools? [fast: ok, slow: unknown, third: ok] > process died"
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


def wait_in_a_tool(line: Line, path: Path) -> None:
    class Waiting:
        def wait(self, seconds: float) -> bool:
            line.tell("in the tool")
            return bool(line.hear())

    with opened("turn", "sync", path) as place:
        ending = Ending("block", resumed=Waiting())
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
    assert first == "turn 1 superseded input > model > tools? [slow: ok] > taken over by turn 2"
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
