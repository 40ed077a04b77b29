"""The short form of the lab `storm`; that it notices each kind of broken version; and what it has found, by itself."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langgraph_turncheckpoint import (
    _attached,
    _files,
    _guard_core,
    _ledger,
    _recovery,
    _running,
)
from langgraph_turncheckpoint._checkpoint_files import NamespaceFiles
from langgraph_turncheckpoint._inbox_files import InboxFiles
from langgraph_turncheckpoint._transcript import RESULT
from tests.crash import storm
from tests.crash import storm_agent as storm_agent_module
from tests.crash.processes import PATIENCE_SECONDS, Child, Line, answers
from tests.crash.storm_agent import DURABILITIES, WAYS, Agent, Round
from tests.crash.storm_truth import (
    CHECKPOINTS,
    EFFECTS,
    HISTORIES,
    INBOX,
    JOURNALS,
    MESSAGES,
    RESULTS,
    STUCK,
    TEMPORARIES,
    UNTRUE,
    Truth,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked and killed by signals")

#: The modules as they are broken: typed loosely, because that is no part of what they offer.
files: Any = _files
attached: Any = _attached
running: Any = _running.RunningTurn
inbox: Any = InboxFiles
ledger: Any = _ledger.HeldLedger
storm_agent: Any = storm_agent_module
core: Any = _guard_core.GuardCore
recovery: Any = _recovery.Recovery
namespace: Any = NamespaceFiles


def test_an_agent_killed_at_random_instants_goes_on_each_time_and_nothing_is_lost_or_done_twice():
    """S2, S3, S9, G1 to G7: some hundred kills in two directories."""
    parser = argparse.ArgumentParser()
    storm.add_arguments(parser)
    figures, findings = storm.run(parser.parse_args(["--rounds", "150", "--seed", "7"]))
    assert findings == []
    counted = {figure.name: figure.value for figure in figures}
    assert counted["of these in a turn"] > 50
    assert counted["rounds that came to their end"] > 10
    assert all(figure.is_met for figure in figures)


# --- what the storm has found ---


def die_when(line: Line, given: Round, text: str, kind: str, count: int) -> None:
    """A turn that is killed when it says something of a kind for the `count`th time."""
    agent, left = Agent(given), count
    real = agent._said.say

    def say(*what: Any) -> None:
        nonlocal left
        real(*what)
        left -= what[0] == kind
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    agent._said.say = say  # type: ignore[method-assign]
    agent._say(text)


def update_it(line: Line, given: Round) -> None:
    Agent(given)._update()
    line.tell("updated")


def go_on_with_it(line: Line, given: Round) -> None:
    agent = Agent(given)
    agent._go_on()
    line.tell(agent._graph.get_state(agent._config).values["messages"])


def said_by_people(history: Any) -> list[Any]:
    """But for what the agent's tools leave in the inbox, which may or may not have been there in time."""
    said = [message.content for message in history if isinstance(message, HumanMessage)]
    return [content for content in said if not str(content).startswith("posted-")]


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("way", WAYS)
def test_an_update_behind_a_reply_that_a_kill_had_cut_off_is_there_when_the_run_goes_on(tmp_path, way, durability):
    """Under "exit" the reply is only in the journal, and is put back in front of what was said since."""
    given = Round(tmp_path, "t", way, durability, "sync", fsync=False, number=1)
    with Child(die_when, given, "prompt-1", "ended", 1) as child:
        assert child.end() == -signal.SIGKILL
    assert answers(update_it, given) == "updated"
    prompt, updated = said_by_people(answers(go_on_with_it, given))
    assert prompt == "prompt-1"
    assert updated.startswith("updated-")


def die_before_a_second_checkpoint(line: Line, given: Round, text: str | None) -> None:
    """The model is asked, and nothing behind the input is stored."""
    agent, is_asked, stored = Agent(given), threading.Event(), iter(range(2))
    say, put = agent._said.say, agent.saver.put

    def say_and_wait(*what: Any) -> None:
        say(*what)
        if what[0] == "asked":
            is_asked.set()
            threading.Event().wait(PATIENCE_SECONDS)

    def put_or_die(*args: Any) -> Any:
        if text is None or next(stored) > 0:
            is_asked.wait(PATIENCE_SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        return put(*args)

    agent._said.say, agent.saver.put = say_and_wait, put_or_die  # type: ignore[method-assign, assignment]
    if text is None:
        agent._go_on()
    else:
        agent._say(text)


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_that_was_read_anew_after_each_of_several_kills_is_there_once(tmp_path, way):
    """It has no id of its own, so each run gave it another; then an update moves the thread on."""
    given = Round(tmp_path, "t", way, "async", "sync", fsync=False, number=1)
    for text in ("prompt-1", None, None):
        with Child(die_before_a_second_checkpoint, given, text) as child:
            assert child.end() == -signal.SIGKILL
    assert answers(update_it, given) == "updated"
    prompt, updated, *_ = said_by_people(answers(go_on_with_it, given))
    assert prompt == "prompt-1"
    assert updated.startswith("updated-")


@pytest.mark.parametrize("prompts", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_all_replies_and_results_that_only_journals_hold_are_there_when_the_run_goes_on(tmp_path, way, prompts):
    """Two steps of one turn, and a later turn's first: none of them had reached a checkpoint."""
    given = Round(tmp_path, "t", way, "exit", "sync", fsync=False, number=1)
    assert answers(update_it, given) == "updated"
    deaths = [("prompt-1", "asked", 3), ("prompt-2", "result", 1)]
    for text, kind, count in deaths[:prompts]:
        with Child(die_when, given, text, kind, count) as child:
            assert child.end() == -signal.SIGKILL
    history = answers(go_on_with_it, given)
    truth = Truth()
    assert list(truth.learn(given)) == []
    told = [message.content for message in history]
    said = [json.loads(line) for line in given.said.read_text().splitlines()]
    results = dict(what[1:] for what in said if what[0] == "result")
    assert len(results) >= 2 + 2 * prompts
    assert [result for result in results.values() if told.count(result) != 1] == []
    assert [text for text in told if str(text).startswith("prompt-")] == ["prompt-1", "prompt-2"][:prompts]


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_goes_on_behind_a_new_message_that_died_while_it_put_the_calls_before_it_in_order(
    tmp_path, way, durability
):
    """Some of the parallel calls were finished; that much is stored, and the model is next."""
    given = Round(tmp_path, "t", way, durability, "sync", fsync=False, number=1)
    for text, kind, count in [("prompt-1", "result", 4), ("prompt-2", "checkpoint", 1)]:
        with Child(die_when, given, text, kind, count) as child:
            assert child.end() == -signal.SIGKILL
    answers(go_on_with_it, given)
    assert list(Truth().learn(given)) == []


# --- broken versions; those that are wrong for a moment only make that moment longer ---


def work_long() -> None:
    """Most kills come while tools are at work."""
    storm_agent.WORK_SECONDS = 0.1


def rename_late() -> None:
    """Many kills come between a temporary file and its name."""

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def replace(self, source: str, target: str) -> None:
            time.sleep(0.01)
            os.replace(source, target)

    files.os = Slow()


def late(real: Any) -> Any:
    """The function, with each call coming when the next one is made."""
    waiting: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> None:
        waiting.append((args, kwargs))
        while len(waiting) > 1:
            earlier, named = waiting.pop(0)
            real(*earlier, **named)

    return call


def acknowledge_before_the_rename() -> None:
    """A checkpoint takes its name a little later than is said."""
    files.replace_file = late(_files.replace_file)


def skip_recovery() -> None:
    """What earlier turns have left behind is not looked at."""
    work_long()
    attached.GuardedRun._steps = lambda self, saved: None


def journal_no_start() -> None:
    """A tool may run before that is on the disk."""
    work_long()

    def tool_started(self: Any, key: Any, *, must_be_durable: bool) -> None:
        with self._lock:
            self._now[key] = {}

    running.tool_started = tool_started


def journal_no_result() -> None:
    """The result of a tool is said to be recorded, and is not."""
    work_long()
    real = _running.RunningTurn._append_record

    def append(self: Any, kind: str, fields: list[Any], *, sync: bool) -> bool:
        return True if kind == RESULT else real(self, kind, fields, sync=sync)

    running._append_record = append


def drop_what_stands_behind() -> None:
    """Where a history is put in order, its last message goes."""
    work_long()
    real = _recovery.Recovery._replacement

    def replacement(self: Any, messages: list[Any]) -> Any:
        return real(self, [message for message in messages[:-1] if not isinstance(message, HumanMessage)])

    recovery._replacement = replacement


def post_a_little_later() -> None:
    """A message is in the inbox a little later than is said."""
    inbox.post = late(InboxFiles.post)


def stop_where_somebody_died() -> None:
    """A commit that was cut off keeps the thread locked for good."""
    rename_late()
    real = _ledger.HeldLedger.__init__

    def begin(self: Any, *args: Any, interrupted: bool, **kwargs: Any) -> None:
        assert not interrupted, "somebody has died here"
        real(self, *args, interrupted=interrupted, **kwargs)

    ledger.__init__ = begin


def sweep_nothing() -> None:
    """Temporaries stay."""
    rename_late()
    namespace.sweep = lambda self: None


def keep_journals() -> None:
    """A complete turn leaves its journal where it is."""
    core._remove_older_journals = lambda self, turn: None
    real = _guard_core.GuardCore.forget

    def forget(self: Any, turn: Any, *, is_over: bool) -> None:
        turn.is_absorbed = False
        real(self, turn, is_over=is_over)

    core.forget = forget


@pytest.mark.parametrize(
    ("sabotage", "kind"),
    [
        (acknowledge_before_the_rename, CHECKPOINTS),
        (skip_recovery, HISTORIES),
        (journal_no_start, EFFECTS),
        (journal_no_result, RESULTS),
        (journal_no_start, UNTRUE),
        (drop_what_stands_behind, MESSAGES),
        (post_a_little_later, INBOX),
        (stop_where_somebody_died, STUCK),
        (sweep_nothing, TEMPORARIES),
        (keep_journals, JOURNALS),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_version_is_noticed(tmp_path, sabotage, kind):
    broken = storm.Storm(tmp_path / "storm", "3", fsync=False, ways=["attach"], sabotage=sabotage)
    for _ in range(12):
        broken.run(12)
        if broken.wrong[kind]:
            break
    assert broken.wrong[kind]
