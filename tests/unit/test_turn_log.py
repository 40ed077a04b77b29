"""The log of a thread's turns: what was sound is used, a torn end is forgotten, and it does not grow for ever."""

from __future__ import annotations

import errno
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from langgraph_turncheckpoint import StorageError, TurnCheckpointSaver, UnknownFormatError, _turn_log
from langgraph_turncheckpoint._frames import encode_frame
from langgraph_turncheckpoint._turn import (
    TURN_STATES,
    Entry,
    Gave,
    LoggedTurn,
    Marked,
    Opened,
    Refused,
    Settled,
    call_mark,
)
from langgraph_turncheckpoint._turn_log import TurnLog, record_of
from tests.system_calls import CODES, SystemCalls, calls_of, once, substituted

UUID = "1ef00000-0000-6000-8000-000000000001"
ENTRIES: list[Entry] = [
    Opened(1, 10),
    Marked(1, 11, 0, "odd \ud800 id"),
    Opened(2, 20, 1, UUID, known_end=True),
    Settled(1, 21, "superseded", "superseded"),
    Opened(3, 30, 0, "", known_end=True),
    Settled(3, 31, "completed", None),
    Refused(2, 33, "put_writes"),
    Gave(1, 34, (call_mark("c1"), call_mark("odd \ud800 id"))),
]


@pytest.fixture
def log(tmp_path):
    return TurnLog(str(tmp_path), fsync=True)


def size(log):
    return os.path.getsize(log.path)


def test_entries_come_back_as_they_were_added(log):
    assert log.read() == ([], 0, 0)
    for entry in ENTRIES:
        log.append([entry])
    assert log.read() == (ENTRIES, size(log), 0)


def test_a_log_that_is_not_to_be_started_is_not(log, tmp_path):
    log.append([Settled(1, 1, "completed", None)], create=False)
    assert os.listdir(tmp_path) == []


def test_adding_an_entry_waits_for_no_disk(log):
    log.append(ENTRIES[:1])
    names = calls_of(lambda: log.append(ENTRIES[1:3]))
    assert not {"fsync", "fdatasync"} & set(names)
    assert names.count("write") == 1


@pytest.mark.parametrize("cut", [1, 5, 17, 30])
def test_a_torn_end_is_forgotten_and_written_over(log, cut):
    log.append(ENTRIES[:3])
    os.truncate(log.path, size(log) - cut)
    assert log.read()[0] == ENTRIES[:2]
    assert log.read().damaged == 0
    log.append([ENTRIES[5]])
    assert log.read() == ([*ENTRIES[:2], ENTRIES[5]], size(log), 0)


def test_each_changed_byte_costs_an_entry_at_most_and_is_told(log):
    log.append(ENTRIES)
    with open(log.path, "rb") as file:
        whole = file.read()
    for position in range(len(whole)):
        with open(log.path, "wb") as file:
            file.write(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        entries, _, damaged = log.read()
        missing = len(ENTRIES) - len(entries)
        assert [entry for entry in ENTRIES if entry in entries] == entries
        assert missing <= 1
        # The last entry cannot be told from one that was torn.
        assert damaged == 1 or ENTRIES[-1] not in entries
        log.append([Opened(9, 90)])
        assert log.read().entries == [*entries, Opened(9, 90)]


def test_a_newer_log_is_refused_and_not_touched(log):
    with open(log.path, "wb") as file:
        file.write(encode_frame(ormsgpack.packb(["turns", 2])) + encode_frame(b"whatever"))
    before = size(log)
    for attempt in (log.read, lambda: log.append(ENTRIES[:1])):
        with pytest.raises(UnknownFormatError):
            attempt()
    assert size(log) == before


def test_entries_that_make_no_sense_are_passed_over_and_counted(log):
    log.append(ENTRIES[:1])
    junk = [
        ["opened"],
        ["x"],
        ["x", "1", 2],
        [1, 1, 2],
        ["settled", 1, 2, "sleeping", None],
        ["settled", 1, 2, "failed", "x"],
        ["refused", 1, 2, 3],
        ["gave", 1, 2, ["text"]],
        ["gave", 1, 2, None],
        7,
        ["opened", "1", 2],
    ]
    with open(log.path, "ab") as file:
        file.write(b"".join(encode_frame(ormsgpack.packb(entry)) for entry in junk))
    log.append(ENTRIES[1:2])
    assert log.read() == (ENTRIES[:2], size(log), len(junk))


def test_entries_of_kinds_that_a_later_version_knows_are_passed_over_and_kept(log, monkeypatch):
    later = [encode_frame(ormsgpack.packb(fields)) for fields in (["noted", 8, 2, "more"], ["x", 9])]
    log.append(ENTRIES[:1])
    with open(log.path, "ab") as file:
        file.write(b"".join(later))
    assert log.read() == (ENTRIES[:1], size(log), 0)
    log.restore(log.kept())
    assert log.read() == (ENTRIES[:1], size(log), 0)
    monkeypatch.setattr(_turn_log, "LOG_LIMIT_BYTES", size(log) + 1)
    log.append([Opened(10, 1)])
    assert log.read().entries == [Opened(10, 1)]  # it was rewritten, with the newest
    assert b"".join(later) in Path(log.path).read_bytes()


def test_a_log_that_is_rewritten_is_synced_whoever_appends(tmp_path, monkeypatch):
    monkeypatch.setattr(_turn_log, "LOG_LIMIT_BYTES", 4 << 10)
    saver = TurnCheckpointSaver(tmp_path / "s")
    config: Any = {"configurable": {"thread_id": "t"}}
    with substituted(SystemCalls()) as calls:
        for _ in range(60):
            with saver.turn(config):
                pass
            saver.cancel_turn("t")
    moved = [n for n, (name, path) in enumerate(calls.calls) if name == "replace" and path.endswith("turns.tmp")]
    assert len(moved) > 3
    for at in moved[1:]:  # the first has made the log, and may go with it
        begun = max(n for n in range(at) if calls.names[n] == "open")
        assert {"fsync", "fdatasync"} & set(calls.names[begun:at])
        assert calls.names[at + 1] == "fsync"


def test_a_log_keeps_the_newest_turns_within_its_limit(log, monkeypatch):
    monkeypatch.setattr(_turn_log, "TURNS_KEPT", 50)
    monkeypatch.setattr(_turn_log, "LOG_LIMIT_BYTES", 8 << 10)
    largest = 0
    for token in range(1, 500):
        log.append([Opened(token, token, known_end=True)])
        log.append([Settled(token, token, "completed", None)])
        largest = max(largest, size(log))
        entries = log.read().entries
        assert entries[-1] == Settled(token, token, "completed", None)
        assert len({entry.token for entry in entries}) >= min(token, 20)
    assert largest <= 8 << 10
    assert os.listdir(os.path.dirname(log.path)) == ["turns"]


def test_long_ids_do_not_make_every_entry_a_rewrite(log, monkeypatch):
    monkeypatch.setattr(_turn_log, "LOG_LIMIT_BYTES", 8 << 10)
    rewritten = 0
    for token in range(1, 300):
        entry = Opened(token, token, 0, "x" * 200)
        with substituted(SystemCalls()) as calls:
            log.append([entry])
        rewritten += "replace" in calls.names
    assert rewritten < 40
    assert size(log) <= 8 << 10


def test_what_a_dead_process_left_of_a_rewrite_is_no_hindrance(log, tmp_path):
    (tmp_path / "turns.tmp").write_bytes(b"half")
    log.append(ENTRIES)
    assert log.read().entries == ENTRIES


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_an_append_that_fails_anywhere_leaves_the_log_as_it_was(tmp_path, code):
    def fresh(name):
        (tmp_path / name).mkdir()
        log = TurnLog(str(tmp_path / name), fsync=True)
        log.append(ENTRIES[:2])
        return log

    rehearsed = fresh("rehearsal")
    for position, name in enumerate(calls_of(lambda: rehearsed.append(ENTRIES[2:3]))):
        log = fresh(str(position))
        with substituted(SystemCalls(once(position, code))):
            try:
                log.append(ENTRIES[2:3])
            except StorageError:
                expected = [ENTRIES[:2], ENTRIES[:3]]
            else:
                expected = [ENTRIES[:3]]
        assert log.read().entries in expected, name
        assert log.read().damaged == 0


def test_a_record_tells_times_in_utc_and_nothing_that_is_not_known():
    turn = LoggedTurn(Opened(5, 1_500_000_000, 4), "completed", None, 2_000_000_000)
    record = record_of(turn, ("a", "b"))
    assert (record.opened_at, record.settled_at) == (
        datetime(1970, 1, 1, 0, 0, 1, 500_000, timezone.utc),
        datetime(1970, 1, 1, 0, 0, 2, 0, timezone.utc),
    )
    assert (record.first_checkpoint_id, record.last_checkpoint_id, record.continues) == ("a", "b", 4)
    assert (record.state, record.announced) == ("completed", True)
    record = record_of(LoggedTurn(Opened(5, 0), "unknown", None, None), None)
    assert (record.settled_at, record.first_checkpoint_id, record.last_checkpoint_id, record.continues) == (None,) * 4


def test_what_a_plain_run_s_checkpoint_tells_is_its_state_and_is_marked_as_such():
    record = record_of(LoggedTurn(Opened(5, 0), "unknown", None, None), ("a", "b"), "paused")
    assert (record.state, record.announced) == ("paused", False)
    record = record_of(LoggedTurn(Opened(5, 0), "imported", None, 1), ("a", "b"), "paused")
    assert (record.state, record.announced) == ("imported", True)


def test_every_state_can_be_shown_as_a_table():
    for state in TURN_STATES:
        table = record_of(LoggedTurn(Opened(5, 0), state, None, None), None)._repr_html_()
        assert state in table
