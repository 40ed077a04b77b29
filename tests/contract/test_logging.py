"""What the log tells of a store: the right logger, a useful level, no contents, and nothing where nobody listens."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langgraph_turncheckpoint import (
    DamagedCheckpointError,
    DamageWarning,
    JournalWarning,
    StaleTurnError,
    StorageError,
    ThreadClosedError,
    TurnCheckpointSaver,
    _events,
)
from langgraph_turncheckpoint._journal import JournalFile
from langgraph_turncheckpoint._turn_log import TurnLog
from langgraph_turncheckpoint.guard import TurnGuard
from tests.contract.guarded_agents import SOME_WAYS, WAYS, Agent, Ending, calls
from tests.contract.guarded_places import Place
from tests.contract.storing import Thread, addressed, named

SECRET = "the-password-is-swordfish"


@pytest.fixture(autouse=True)
def _listened(caplog):
    caplog.set_level(logging.DEBUG, "langgraph_turncheckpoint")
    _events._told.clear()


def told(caplog, name: str, level: str) -> list[str]:
    found = [r for r in caplog.records if r.name == f"langgraph_turncheckpoint.{name}" and r.levelname == level]
    return [record.getMessage() for record in found]


@pytest.fixture
def thread(tmp_path):
    return Thread(TurnCheckpointSaver(tmp_path / "store", fsync=False), "1")


def test_what_goes_well_is_not_told(thread, caplog):
    for n in range(3):
        thread.put({"messages": [SECRET] * n})
        thread.write("x")
        thread.saver.get_tuple(thread.config)
    assert [*thread.saver.list(addressed("1"))]
    assert caplog.records == []


def test_a_refused_write_is_a_warning_that_names_thread_and_turns(thread, caplog):
    with thread.saver.turn(addressed("1")) as config:
        thread.config = config
        thread.put({"messages": [SECRET]})
        thread.saver.cancel_turn("1", reason="user")
        with pytest.raises(StaleTurnError):
            thread.saver.put(config, thread.next({"messages": [SECRET]}), {}, {})
        on_it = {"configurable": {**config["configurable"], "checkpoint_id": thread.ids[-1]}}
        with pytest.raises(StaleTurnError):
            thread.saver.put_writes(on_it, [("messages", SECRET)], "task")
    assert told(caplog, "turns", "WARNING") == [
        "thread '1': put by turn 1 was refused: the thread is at turn 2",
        "thread '1': put_writes by turn 1 was refused: the thread is at turn 2",
    ]
    assert told(caplog, "turns", "INFO") == [
        "thread '1': fence the running turn out (user); turns up to 1 are fenced out"
    ]


def test_a_write_to_a_closed_thread_is_a_warning_too(thread, caplog):
    thread.put({"n": 1})
    thread.saver.close_thread("1")
    with pytest.raises(ThreadClosedError):
        thread.put({"n": 2})
    assert told(caplog, "turns", "WARNING") == [
        "thread '1': put by a writer outside any turn was refused: the thread is closed"
    ]


def test_a_takeover_is_told_and_a_turn_that_ends_only_to_who_debugs(thread, caplog):
    first, second = thread.saver.turn(addressed("1")), thread.saver.turn(addressed("1"))
    with first, second:
        pass
    assert told(caplog, "turns", "INFO") == ["thread '1': turn 2 took over from turn 1, which was running (interrupt)"]
    assert len(told(caplog, "turns", "DEBUG")) == 2


def test_a_turn_that_its_log_cannot_take_is_a_warning_once_and_fails_no_turn(thread, caplog, monkeypatch):
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise StorageError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(TurnLog, "append", refuse)
    for _ in range(2):
        with thread.saver.turn(addressed("1")) as config:
            thread.saver.put(config, thread.next({"n": 1}), {}, {"n": "1"})
    (line,) = told(caplog, "turns", "WARNING")
    assert line.startswith("thread '1': the log of its turns misses an entry, so `turns` will not tell all: ")
    assert line.endswith("StorageError: somewhere: No space left on device")


def test_a_damaged_file_is_a_warning_once_beside_the_damage_warning(thread, caplog):
    thread.put({"messages": [SECRET]})
    thread.put({"messages": [SECRET, SECRET]})
    file = named(thread.saver.path, ".ckpt")[-1]
    file.write_bytes(file.read_bytes()[:-9])
    for _ in range(3):
        with pytest.warns(DamageWarning):
            thread.saver.get_tuple(addressed("1"))
    assert told(caplog, "store", "WARNING") == [f"{file}: damaged, and passed over"]
    assert len(told(caplog, "store", "DEBUG")) == 2


def test_an_inbox_item_that_cannot_be_read_is_told_without_what_it_says(thread, caplog):
    thread.saver.inbox("1").post(HumanMessage(SECRET))
    (file,) = named(thread.saver.path, ".msg")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(DamageWarning):
        assert thread.saver.inbox("1").pending() == []
    assert told(caplog, "store", "WARNING") == [f"{file}: damaged, and passed over"]


def test_upkeep_tells_what_it_has_done(thread, caplog):
    thread.put({"messages": [SECRET]})
    thread.saver.delete_thread("1")
    thread.saver.sweep()
    first, second = told(caplog, "upkeep", "INFO")
    assert first == "thread '1': deleted"
    assert "swept" in second


@pytest.mark.parametrize("way", SOME_WAYS, ids=lambda way: way.name)
def test_a_recovery_tells_its_cause_and_how_many_answers_it_gave(tmp_path, caplog, way):
    place, reached = Place("turn", "sync", tmp_path), threading.Event()
    script = {SECRET: calls("fast", "slow")}
    agent = Agent(place, way, script, endings={"slow": Ending("stop", reached=reached, after=lambda: _is_done(place))})
    agent.stop_in(SECRET, reached)
    caplog.clear()
    Agent(place, way, script).say("and now?")
    lines = told(caplog, "guard", "INFO")
    assert len(lines) == 1
    assert "1 unknown (user)" in lines[0]
    # Where each call is a task of its own, LangGraph itself may have kept what had finished.
    assert way.fan_out or "1 recorded (user)" in lines[0]
    assert all(SECRET not in record.getMessage() for record in caplog.records)
    place.close()


def _is_done(place: Place) -> bool:
    return place.journals_hold("fast gave") or place.writes_hold("fast gave")


def test_a_healthy_run_recovers_nothing_and_says_nothing_to_who_does_not_debug(tmp_path, caplog):
    place = Place("turn", "sync", tmp_path)
    agent = Agent(place, WAYS["attach"], {"go": calls("fast")})
    agent.say("go")
    agent.say("again")
    assert [r for r in caplog.records if r.levelno > logging.DEBUG] == []
    place.close()


def test_a_recovery_that_breaks_off_is_a_warning(tmp_path, caplog, monkeypatch):
    place = Place("turn", "sync", tmp_path)
    agent = Agent(place, WAYS["recover"], {"go": calls("fast")})
    agent.say("go")

    def refuse(*_: Any) -> Any:
        raise StorageError(28, SECRET, "somewhere")

    monkeypatch.setattr(type(agent.graph), "get_state", refuse)
    with pytest.raises(StorageError, match=SECRET):
        TurnGuard(agent.saver).recover(agent.graph, agent.config)
    (line,) = told(caplog, "guard", "WARNING")
    assert line.endswith("recovery broke off: StorageError")
    place.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("then", ["a new message", "going on"])
def test_a_run_that_goes_on_although_its_recovery_broke_off_says_what_that_means(
    tmp_path, caplog, monkeypatch, then, colour
):
    place, reached = Place("turn", colour, tmp_path), threading.Event()
    script = {"go": calls("fast", "slow")}
    ending = Ending("stop", reached=reached, after=lambda: _is_done(place))
    Agent(place, WAYS["attach-one-task"], script, endings={"slow": ending}).stop_in("go", reached)
    caplog.clear()
    agent = Agent(place, WAYS["attach-one-task"], script)

    def refuse(*_: Any) -> Any:
        raise ValueError(SECRET)

    async def arefuse(*_: Any) -> Any:
        raise ValueError(SECRET)

    monkeypatch.setattr(type(agent.graph), "get_state", refuse)
    monkeypatch.setattr(type(agent.graph), "aget_state", arefuse)
    if then == "a new message":
        agent.go_on({"messages": [HumanMessage("and now?")]})
    else:
        agent.go_on(None)
    first, second = told(caplog, "guard", "WARNING")
    assert first == "thread 't': turn 3: recovery broke off: ValueError"
    assert second.startswith("thread 't': turn 3 goes on without recovery (ValueError): ")
    assert ("in front of the input" if then == "a new message" else "may be missing from its history") in second
    place.close()


def test_a_journal_that_misses_a_record_is_a_warning(tmp_path, caplog, monkeypatch):
    def refuse(*args: Any, **kwargs: Any) -> bool:
        raise StorageError(28, "No space left on device", "somewhere")

    place = Place("turn", "sync", tmp_path)
    agent = Agent(place, WAYS["attach"], {"go": calls("fast")})
    monkeypatch.setattr(JournalFile, "append", refuse)
    with pytest.warns(JournalWarning):
        agent.say("hello")
    (line,) = told(caplog, "guard", "WARNING")
    assert line.endswith("StorageError: somewhere: No space left on device")
    place.close()


def test_a_program_that_sets_up_no_logging_sees_none(tmp_path):
    body = (
        "from langgraph_turncheckpoint import TurnCheckpointSaver, StaleTurnError\n"
        "from tests.contract.storing import Thread, addressed\n"
        f"thread = Thread(TurnCheckpointSaver({str(tmp_path)!r}, fsync=False))\n"
        "with thread.saver.turn(addressed('thread')) as config:\n"
        "    thread.saver.cancel_turn('thread')\n"
        "    try: thread.saver.put(config, thread.next({'n': 1}), {}, {})\n"
        "    except StaleTurnError: print('refused')\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", body], cwd=root, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_an_error_is_told_without_its_values():
    assert _events.described(ValueError(SECRET)) == "ValueError"
    assert _events.described(DamagedCheckpointError("a/b", SECRET)) == "DamagedCheckpointError: a/b"
    assert _events.described(StorageError(30, os.strerror(30), "a/b")) == f"StorageError: a/b: {os.strerror(30)}"


def test_a_listener_that_fails_breaks_nothing(thread, caplog):
    def fail(event: object) -> None:
        raise RuntimeError(SECRET)

    root = thread.saver.store.root
    _events.listen(root, fail)
    try:
        _events.answered(root, "1", 1, [("unknown", "user")])
    finally:
        _events.unlisten(root, fail)
    assert _events.listeners == {}
