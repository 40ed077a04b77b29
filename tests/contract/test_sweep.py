"""Sweeping, decision by decision: what is somebody's stays, whatever state it is in, and what is nobody's goes in an
order that a crash cannot turn into a loss. The large cases are in `test_upkeep`.
"""

from __future__ import annotations

import errno
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import HumanMessage

from langgraph_turncheckpoint import StorageError, TurnCheckpointSaver, _files, _sweep, _turns, _upkeep
from langgraph_turncheckpoint._frames import encode_frame
from langgraph_turncheckpoint._journal import journal_path
from langgraph_turncheckpoint._ledger import LEDGER_NAME
from langgraph_turncheckpoint._records import COMMITTING_OFFSET
from langgraph_turncheckpoint._transcript import ENDED, GAP, encode_record
from langgraph_turncheckpoint._turns import JOURNAL_VERSION
from langgraph_turncheckpoint._waiting import Ticket, ticket_path
from tests.contract.storing import Thread, addressed, file_of, fresh, named
from tests.system_calls import SystemCalls, substituted

DAY = 86_400.0
COMPLETE = (ENDED, ["completed", None])


def filled(path: Path, count: int = 3, **options: Any) -> Thread:
    thread = Thread(TurnCheckpointSaver(path, **{"fsync": False, **options}), "1")
    for n in range(count):
        thread.put({"n": n})
    return thread


def generation(saver: TurnCheckpointSaver, thread_id: str = "1") -> Path:
    return Path(saver.store.generation_dir(thread_id))


def left_journal(saver: TurnCheckpointSaver, *records: tuple[str, list[Any]]) -> Path:
    """What a turn that has ended has left."""
    opened = saver.turn(addressed("1"))
    with opened:
        assert opened.journal is not None
        for kind, fields in records:
            opened.journal.append(encode_record(saver.store.codec, kind, fields), sync=False)
    path = Path(opened.journal.path)
    path.touch()  # a blank one is removed with its turn
    return path


def rewritten(path: Path, *frames: bytes, behind: bytes = b"") -> Path:
    path.write_bytes(b"".join(map(encode_frame, frames)) + behind)
    return path


def header_of(saver: TurnCheckpointSaver, token: int, version: int = JOURNAL_VERSION) -> bytes:
    fields = {"v": version, "kind": "turn", "thread_id": b"1", "token": token, "opened_at_ns": 1, "continues": 0}
    return ormsgpack.packb({**fields, "start": None})


def record_of(saver: TurnCheckpointSaver, kind: str, fields: list[Any]) -> bytes:
    return encode_record(saver.store.codec, kind, fields)


# --- journals ---


def test_of_journals_only_those_go_that_an_equal_or_later_complete_one_speaks_for(tmp_path):
    saver, gap = filled(tmp_path).saver, (GAP, list[Any]())
    before, complete, after = (left_journal(saver, record) for record in (gap, COMPLETE, gap))
    assert saver.sweep().journals == 2
    assert [path.exists() for path in (before, complete, after)] == [False, False, True]


def test_while_a_turn_runs_no_journal_goes(tmp_path):
    """It may be reading them this instant, to go on from what they tell."""
    saver = filled(tmp_path).saver
    left_journal(saver, COMPLETE)
    with saver.turn(addressed("1")):
        assert fresh(saver).sweep().journals == 0
    assert fresh(saver).sweep().journals == 1


@pytest.mark.parametrize("record", [(ENDED, ["failed", "error"]), (ENDED, ["unknown", None]), ("of another day", [])])
def test_a_journal_that_does_not_say_that_its_runs_were_complete_stays(tmp_path, record):
    saver = filled(tmp_path).saver
    path = left_journal(saver, record)
    assert saver.sweep().journals == 0
    assert path.exists()


def test_a_journal_with_a_record_that_cannot_be_read_stays(tmp_path):
    saver = filled(tmp_path).saver
    path = Path(journal_path(str(generation(saver)), 1))
    rewritten(path, header_of(saver, 1), b"no record", record_of(saver, *COMPLETE))
    assert saver.sweep().journals == 0
    assert path.exists()


@pytest.mark.parametrize("complete", [False, True])
def test_a_journal_of_a_newer_format_stays_whatever_it_says(tmp_path, complete):
    saver = filled(tmp_path).saver
    path = journal_path(str(generation(saver)), 1)
    records = [record_of(saver, *COMPLETE)] if complete else []
    kept = rewritten(Path(path), header_of(saver, 1, JOURNAL_VERSION + 1), *records)
    assert saver.sweep().journals == 0
    assert kept.exists()


def test_a_journal_that_has_lost_something_says_nothing_however_it_ends(tmp_path):
    """What was lost may be what a recovery needs."""
    saver = filled(tmp_path).saver
    directory, complete = str(generation(saver)), record_of(saver, *COMPLETE)
    damaged = rewritten(Path(journal_path(directory, 1)), header_of(saver, 1), complete, behind=b"?" * 40)
    headless = Path(journal_path(directory, 2))
    headless.write_bytes(b"?" * 40 + encode_frame(complete) + encode_frame(complete))
    nothing_sound = rewritten(Path(journal_path(directory, 3)), header_of(saver, 3), behind=b"?" * 40)
    for dry_run in (True, False):
        assert saver.sweep(dry_run=dry_run).journals == 0
    assert [path.exists() for path in (damaged, headless, nothing_sound)] == [True] * 3


def test_a_complete_journal_whose_header_is_of_no_known_kind_goes(tmp_path):
    saver = filled(tmp_path).saver
    path = rewritten(Path(journal_path(str(generation(saver)), 1)), b"no header", record_of(saver, *COMPLETE))
    assert saver.sweep().journals == 1
    assert not path.exists()


def test_the_blank_journal_of_an_overtaken_turn_stays_while_its_process_lives(tmp_path):
    saver = filled(tmp_path).saver
    older = saver.turn(addressed("1"))
    older.__enter__()
    with fresh(saver).turn(addressed("1")):
        pass
    assert older.journal is not None
    assert saver.sweep().journals == 0
    assert os.path.exists(older.journal.path)
    older.journal.close()
    assert saver.sweep().journals == 1


def refusing(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    real = _files.remove_file

    def remove(path: str) -> None:
        if path in paths:
            raise StorageError(errno.EACCES, "Permission denied", path)
        real(path)

    monkeypatch.setattr(_files, "remove_file", remove)


def test_where_an_older_journal_cannot_be_removed_the_one_that_speaks_for_it_stays(tmp_path, monkeypatch):
    saver = filled(tmp_path).saver
    older, speaker = left_journal(saver, (GAP, [])), left_journal(saver, COMPLETE)
    with monkeypatch.context() as patched:
        refusing(patched, str(older))
        report = saver.sweep()
    assert (report.journals, len(report.problems)) == (0, 1)
    assert older.exists()
    assert speaker.exists()
    assert saver.sweep().journals == 2


def test_older_journals_are_gone_for_good_before_the_one_that_speaks_for_them_goes(tmp_path):
    saver = filled(tmp_path, fsync=True).saver
    left_journal(saver, (GAP, []))
    left_journal(saver, COMPLETE)
    with substituted(SystemCalls()) as calls:
        assert saver.sweep().journals == 2
    first, second = [at for at, name in enumerate(calls.names) if name == "unlink"]
    assert "fsync" in calls.names[first:second]


# --- what waits, and what is being made ---


def test_the_ticket_of_a_waiter_stays_for_as_long_as_it_waits(tmp_path):
    saver = filled(tmp_path).saver
    ticket = Ticket.take(str(generation(saver)))
    assert saver.sweep().tickets == 0
    assert Path(ticket_path(ticket.generation_dir, ticket.number)).exists()
    ticket.leave()


def test_what_cannot_be_removed_is_told_and_not_counted(tmp_path, monkeypatch):
    saver = filled(tmp_path).saver
    stuck, free = (Path(ticket_path(str(generation(saver)), number)) for number in (3, 4))
    for path in (stuck, free):
        path.write_bytes(b"12345")
    refusing(monkeypatch, str(stuck))
    report = saver.sweep()
    assert (report.tickets, report.size_bytes) == (1, 5)
    assert report.problems == (f"{stuck}: could not be removed: Permission denied",)


def test_a_ticket_that_is_taken_between_the_look_and_the_lock_stays(tmp_path, monkeypatch):
    """That of a dead waiter was seen; who comes next removes it, and gets its number."""
    saver = filled(tmp_path).saver
    path = Path(ticket_path(str(generation(saver)), 1))
    path.touch()
    real, taken = _sweep._litter, list[Ticket]()

    def look(*args: Any) -> Any:
        found = real(*args)
        if not taken:
            path.unlink()
            taken.append(Ticket.take(str(generation(saver))))
        return found

    monkeypatch.setattr(_sweep, "_litter", look)
    assert saver.sweep().tickets == 0
    assert taken[0].number == 1
    assert path.exists()
    taken[0].leave()


def test_an_error_that_names_no_file_is_told_with_the_threads_directory_and_the_rest_is_done(tmp_path, monkeypatch):
    saver = filled(tmp_path).saver
    Thread(saver, "2").put({"n": 1})
    ticket = Path(ticket_path(str(generation(saver, "2")), 3))
    ticket.touch()
    real = _sweep._sweep_thread

    def sweep_thread(store: Any, thread: Any, tally: Any) -> None:
        if thread.thread_id == "1":
            raise OSError(errno.EIO, "Input/output error")
        real(store, thread, tally)

    monkeypatch.setattr(_sweep, "_sweep_thread", sweep_thread)
    report = saver.sweep()
    assert report.problems == (f"{generation(saver).parent}: [Errno 5] Input/output error",)
    assert report.tickets == 1


# --- when a thread was touched ---


def old_thread(path: Path, thread_id: str = "1", days: float = 31) -> Thread:
    thread = Thread(TurnCheckpointSaver(path, fsync=False), thread_id)
    checkpoint = thread.next({"n": 1})
    checkpoint["ts"] = (datetime.now(timezone.utc) - timedelta(days=days)).isoformat()
    thread.put_checkpoint(checkpoint)
    return thread


def test_a_turn_that_nobody_has_settled_touches_its_thread_by_having_begun(tmp_path):
    thread = old_thread(tmp_path)
    opened = thread.saver.turn(addressed("1"))
    opened.__enter__()
    assert opened.journal is not None
    opened.journal.close()  # its process has died
    assert thread.saver.sweep(max_age=DAY).threads == ()
    later = time.time_ns() + int(2 * DAY * 1e9)
    swept = _sweep.sweep(thread.saver.store, max_age=DAY, dry_run=False, clock_ns=lambda: later)
    assert swept.threads == ("1",)


def test_a_turn_that_began_long_ago_touches_its_thread_when_it_ends(tmp_path, monkeypatch):
    thread = old_thread(tmp_path)
    with thread.saver.turn(addressed("1")):
        pass
    real = _turns.logged_turns

    def began_long_ago(*args: Any) -> Any:
        turns, damaged = real(*args)
        return [turn._replace(opened=turn.opened._replace(at_ns=1)) for turn in turns], damaged

    monkeypatch.setattr(_sweep, "logged_turns", began_long_ago)
    assert thread.saver.sweep(max_age=DAY).threads == ()


def test_a_newest_checkpoint_that_cannot_be_read_counts_from_its_file(tmp_path):
    thread = old_thread(tmp_path)
    file = file_of(thread.saver, thread.ids[-1])
    file.write_bytes(file.read_bytes()[:30])
    assert thread.saver.sweep(max_age=DAY).threads == ()
    long_ago = time.time() - 31 * DAY
    os.utime(file, (long_ago, long_ago))
    assert thread.saver.sweep(max_age=DAY).threads == ("1",)


def test_a_thread_that_would_be_deleted_is_told_once_and_not_swept_besides(tmp_path):
    thread = old_thread(tmp_path)
    Path(ticket_path(str(generation(thread.saver)), 3)).touch()
    for dry_run in (True, False):
        report = thread.saver.sweep(max_age=DAY, dry_run=dry_run)
        assert (report.threads, report.tickets, report.remains) == (("1",), 0, 0)


# --- inboxes ---


@pytest.mark.parametrize("held", ["in a list", "in a tuple", "alone"])
def test_a_message_is_delivered_once_the_newest_checkpoint_holds_it_in_whatever_channel(tmp_path, held):
    thread = filled(tmp_path)
    inbox = thread.saver.inbox("1")
    for message_id in ("m1", "m2"):
        inbox.post(HumanMessage("x", id=message_id))
    message = HumanMessage("x", id="m1")
    thread.put({"n": 9, "where": {"in a list": [message], "in a tuple": (message,), "alone": message}[held]})
    assert thread.saver.sweep().inbox_items == 1
    assert [waiting.id for waiting in inbox.pending()] == ["m2"]


def test_a_run_that_is_under_way_acknowledges_its_messages_itself(tmp_path):
    thread = filled(tmp_path)
    inbox = thread.saver.inbox("1")
    inbox.post(HumanMessage("x", id="m1"))
    with thread.saver.turn(addressed("1")) as config:
        conf = {**config["configurable"], "checkpoint_id": thread.ids[-1]}
        thread.config = {"configurable": conf}
        thread.put({"messages": [HumanMessage("x", id="m1")]})
        assert thread.saver.sweep().inbox_items == 0
        assert len(inbox.pending()) == 1
    assert thread.saver.sweep().inbox_items == 1


# --- removing, which sweeping finishes ---


def test_a_removal_sweeps_first_what_a_dead_writer_has_left(tmp_path):
    thread = filled(tmp_path)
    path = file_of(thread.saver, thread.ids[0])
    litter = path.with_name(f"{path.name}.0123456789abcdef.tmp")
    litter.write_bytes(b"half")
    (ledger,) = named(thread.saver.path, LEDGER_NAME)
    with ledger.open("r+b") as file:
        file.seek(COMMITTING_OFFSET)
        file.write(b"\x01")
    fresh(thread.saver).prune(["1"])
    assert not litter.exists()


def test_that_pages_may_be_gone_is_on_the_disk_before_the_first_of_them_goes(tmp_path):
    """A power loss in between must not leave a saver that believes in them."""
    thread = filled(tmp_path, fsync=True)
    with substituted(SystemCalls()) as calls:
        TurnCheckpointSaver(tmp_path).prune(["1"])
    first = next(at for at, name in enumerate(calls.names) if name in {"replace", "unlink"})
    assert {"fsync", "fdatasync"} & set(calls.names[:first])
    thread.assert_whole(fresh(thread.saver), thread.ids[-1:])


def test_a_thread_that_is_deleted_while_a_runs_checkpoints_are_looked_for_stays_deleted(tmp_path, monkeypatch):
    thread = filled(tmp_path)
    ledger = thread.saver.store.thread("1").ledger
    real, left = _upkeep._run_id, list[Any]()

    def run_id(*args: Any) -> Any:
        real(*args)
        if not left:
            fresh(thread.saver).delete_thread("1")
            left.append(ledger.read())
        return "theirs"

    monkeypatch.setattr(_upkeep, "_run_id", run_id)
    thread.saver.delete_for_runs(["theirs"])
    assert left == [ledger.read()]
    assert thread.saver.thread_ids() == []
    assert thread.saver.verify() == []
    assert named(tmp_path, ".ckpt") == []


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process cannot be set here")
def test_a_time_without_a_zone_is_utc_wherever_the_process_is(tmp_path, monkeypatch):
    thread = Thread(TurnCheckpointSaver(tmp_path, fsync=False), "1")
    thread.put_checkpoint({**thread.next({"n": 1}), "ts": "2020-01-01T00:00:00"})
    store = thread.saver.store
    state = store.thread("1").ledger.read()
    assert state is not None
    files = store.thread("1").namespace(state, "")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert _upkeep.made_at(store, files, thread.ids[0]) == 1_577_836_800.0
    finally:
        monkeypatch.undo()
        time.tzset()
