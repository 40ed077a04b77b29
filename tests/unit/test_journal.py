"""The journal of a turn: records are whole or absent, none comes after its end, and its lock says that it lives."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from langgraph_turncheckpoint import StorageError
from langgraph_turncheckpoint._journal import (
    JournalFile,
    is_live,
    journal_path,
    journal_token,
    journal_tokens,
    read_journal,
)
from tests.system_calls import CODES, SystemCalls, calls_of, lasting, once, substituted


@pytest.fixture
def path(tmp_path):
    return journal_path(str(tmp_path), 7)


def content_of(path):
    """What is in a journal that is there."""
    content = read_journal(path)
    assert content is not None
    return content


def test_records_come_back_in_order_behind_the_header(path):
    journal = JournalFile.create(path, b"header", fsync=True)
    blank = [journal.is_blank]
    assert all(journal.append(b"%d" % number, sync=number % 2 == 0) for number in range(5))
    assert [*blank, journal.is_blank] == [True, False]
    assert read_journal(path) == (b"header", [b"0", b"1", b"2", b"3", b"4"], [])
    journal.close()
    assert read_journal(path) == (b"header", [b"0", b"1", b"2", b"3", b"4"], [])


def test_a_late_record_of_an_ended_turn_is_dropped(path):
    journal = JournalFile.create(path, b"header", fsync=True)
    journal.close()
    journal.close()
    assert not journal.is_open
    assert journal.append(b"late", sync=True) is False
    assert journal.is_blank
    assert read_journal(path) == (b"header", [], [])


def test_a_journal_lives_until_it_is_closed(path):
    assert not is_live(path)
    journal = JournalFile.create(path, b"", fsync=False)
    assert is_live(path)
    journal.close()
    assert not is_live(path)
    assert os.path.exists(path)


def test_a_journal_is_never_made_over_another_one(path):
    first = JournalFile.create(path, b"first", fsync=False)
    with pytest.raises(StorageError) as caught:
        JournalFile.create(path, b"second", fsync=False)
    assert caught.value.errno == errno.EEXIST
    assert first.append(b"record", sync=False)
    assert read_journal(path) == (b"first", [b"record"], [])


def test_a_torn_tail_is_no_damage_and_a_changed_record_costs_itself_alone(path):
    journal = JournalFile.create(path, b"header", fsync=False)
    for payload in (b"one", b"two", b"three"):
        journal.append(payload, sync=False)
    journal.close()
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "wb") as file:
        file.write(whole[:-2])
    assert read_journal(path) == (b"header", [b"one", b"two"], [])
    with open(path, "wb") as file:
        file.write(whole.replace(b"two", b"twu"))
    header, payloads, damaged = content_of(path)
    assert (header, payloads, len(damaged)) == (b"header", [b"one", b"three"], 1)
    with open(path, "wb") as file:
        file.write(whole.replace(b"header", b"heaper"))
    header, payloads, damaged = content_of(path)
    assert (header, payloads, len(damaged)) == (None, [b"one", b"two", b"three"], 1)


def test_a_journal_whose_process_died_before_its_header_is_empty(path):
    with open(path, "wb"):
        pass
    assert read_journal(path) == (None, [], [])
    assert read_journal(f"{path}.gone") is None


@pytest.mark.parametrize("fault", [once, lasting])
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_journal_that_cannot_be_made_leaves_nothing(tmp_path, code, fault):
    rehearsal = journal_path(str(tmp_path), 0)
    names = calls_of(lambda: JournalFile.create(rehearsal, b"header", fsync=True))
    for position in range(len(names)):
        path = journal_path(str(tmp_path), 1 + position)
        with substituted(SystemCalls(fault(position, code))):
            try:
                journal = JournalFile.create(path, b"header", fsync=True)
            except StorageError:
                assert not os.path.exists(path), names[position]
                continue
        assert read_journal(path) == (b"header", [], []), names[position]
        journal.close()


@pytest.mark.parametrize("fault", [once, lasting])
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_record_that_cannot_be_written_leaves_those_before_it_and_can_be_repeated(tmp_path, code, fault):
    def journal_with_one(token):
        journal = JournalFile.create(journal_path(str(tmp_path), token), b"header", fsync=True)
        journal.append(b"one", sync=False)
        return journal

    rehearsed = journal_with_one(0)
    names = calls_of(lambda: rehearsed.append(b"two", sync=True))
    assert {"write", "fdatasync", "fsync"} <= set(names)
    for position, name in enumerate(names):
        journal = journal_with_one(1 + position)
        with substituted(SystemCalls(fault(position, code))):
            try:
                journal.append(b"two", sync=True)
            except StorageError:
                # The start of a tool that was refused must not be read as one.
                assert content_of(journal.path).payloads == [b"one"], name
        before = len(content_of(journal.path).payloads)
        assert journal.append(b"three", sync=True)
        header, payloads, damaged = content_of(journal.path)
        assert (header, len(payloads), payloads[-1], damaged) == (b"header", before + 1, b"three", [])
        journal.close()


def test_a_synced_record_is_durable_with_the_name_of_its_file(path):
    journal = JournalFile.create(path, b"header", fsync=True)
    assert not {"fsync", "fdatasync"} & set(calls_of(lambda: journal.append(b"1", sync=False)))
    first = calls_of(lambda: journal.append(b"2", sync=True))
    assert [name for name in first if name in {"write", "fdatasync", "fsync"}] == ["fsync", "write", "fdatasync"]
    second = calls_of(lambda: journal.append(b"3", sync=True))
    assert [name for name in second if name in {"write", "fdatasync", "fsync"}] == ["write", "fdatasync"]
    journal.close()


def test_a_store_without_fsync_syncs_no_journal(path):
    def all_of_it():
        journal = JournalFile.create(path, b"header", fsync=False)
        journal.append(b"record", sync=True)
        journal.close()

    assert not {"fsync", "fdatasync"} & set(calls_of(all_of_it))


def test_records_of_many_threads_are_whole_and_stop_at_the_end(path):
    journal, start, counts = JournalFile.create(path, b"header", fsync=False), threading.Barrier(9), []

    def write(name):
        start.wait(30)
        written = 0
        while journal.append(name * 100, sync=False):
            written += 1
        counts.append(written)

    threads = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    start.wait(30)
    while len(content_of(path).payloads) < 50:
        pass
    journal.close()
    for thread in threads:
        thread.join(30)
    header, payloads, damaged = content_of(path)
    assert (header, len(payloads), damaged) == (b"header", sum(counts), [])
    assert {len(payload) for payload in payloads} == {100}


@pytest.mark.parametrize("name", ["j-.journal", "j-07.journal", "j--1.journal", "j-7", "7.journal", "j-x.journal"])
def test_other_files_are_no_journals(tmp_path, name):
    assert journal_token(name) is None
    (tmp_path / name).touch()
    for token in (10, 9, 2):
        JournalFile.create(journal_path(str(tmp_path), token), b"", fsync=False).close()
    assert journal_tokens(str(tmp_path)) == [2, 9, 10]
    assert journal_tokens(str(tmp_path / "gone")) == []
