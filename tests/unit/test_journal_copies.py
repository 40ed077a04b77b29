"""Journals that come along with a copied thread: whole or damaged, none looks live, and none stands in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from langgraph_turncheckpoint import StorageError, _files
from langgraph_turncheckpoint._checkpoint_files import NamespaceFiles
from langgraph_turncheckpoint._journal import JournalFile, is_live, journal_path, journal_tokens, read_journal
from langgraph_turncheckpoint._journal_copies import copy_thread
from langgraph_turncheckpoint._layout import checkpoint_stem
from langgraph_turncheckpoint._thread_files import ThreadFiles
from langgraph_turncheckpoint._turn import LedgerEvent, Opened, Settled, advance
from langgraph_turncheckpoint._turn_log import LOG_NAME, TurnLog
from langgraph_turncheckpoint._turns import JournalHeader, encode_journal_header, logged_turns, parse_journal_header


class Thread:
    """A thread with checkpoints that nobody reads."""

    def __init__(self, root: Path, thread_id: str) -> None:
        self.files = ThreadFiles(str(root), thread_id, fsync=False)
        self.directory = Path(self.files.generation(self.state))

    @property
    def state(self):
        with self.files.ledger.hold() as held:
            return held.state

    def turn(self, token: int) -> None:
        """Its newest turn."""
        with self.files.ledger.hold() as held:
            state = held.state
            while state.token < token:
                state = advance(state, LedgerEvent.OPEN, thread_id=self.files.thread_id)
            held.write_twice(state, fsync=False)

    def checkpoint(self, checkpoint_id: str) -> None:
        namespace: NamespaceFiles = self.files.namespace(self.state, "")
        path = Path(namespace.bucket("")) / f"{checkpoint_stem(checkpoint_id)}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(checkpoint_id.encode())

    def journal(self, token: int, *records: bytes, thread_id: str | None = None) -> JournalFile:
        self.directory.mkdir(parents=True, exist_ok=True)
        opened = Opened(token, 10 * token, continues=3, start="there", known_end=True)
        header = encode_journal_header(JournalHeader(thread_id or self.files.thread_id, opened))
        made = JournalFile.create(journal_path(str(self.directory), token), header, fsync=False)
        for record in records:
            made.append(record, sync=False)
        return made

    def journals(self) -> dict[int, list[bytes]]:
        """By token, the records of each journal."""
        directory = self.files.generation(self.state)
        found = {}
        for token in journal_tokens(directory):
            content = read_journal(journal_path(directory, token))
            assert content is not None
            assert not is_live(journal_path(directory, token))
            found[token] = content.payloads
        return found


@pytest.fixture
def source(tmp_path):
    thread = Thread(tmp_path, "source")
    thread.checkpoint("5")
    return thread


@pytest.fixture
def target(tmp_path):
    return Thread(tmp_path, "target")


def copy(source: Thread, target: Thread) -> None:
    copy_thread(source.files, target.files, fsync=True, clock_ns=lambda: 77)


def test_journals_keep_their_tokens_where_those_are_free_and_the_next_turn_is_newer(source, target):
    for token in (2, 5):
        source.journal(token, b"record %d" % token).close()
    source.turn(6)
    copy(source, target)
    assert target.journals() == {2: [b"record 2"], 5: [b"record 5"]}
    assert target.state.token == 6


def test_journals_get_newer_tokens_where_the_target_has_had_turns(source, target):
    target.journal(3, b"its own").close()
    target.turn(4)
    for token in (2, 5):
        source.journal(token, b"record %d" % token).close()
    copy(source, target)
    assert target.journals() == {3: [b"its own"], 5: [b"record 2"], 8: [b"record 5"]}
    assert target.state.token == 9


def test_a_header_names_the_new_turn_and_thread_and_keeps_where_the_turn_began(source, target):
    source.journal(2, b"record").close()
    target.turn(2)
    copy(source, target)
    content = read_journal(journal_path(target.files.generation(target.state), 3))
    assert content is not None
    assert content.header is not None
    opened = Opened(3, 20, continues=0, start="there", known_end=True)
    assert parse_journal_header(content.header) == JournalHeader("target", opened)


def test_the_log_tells_how_each_turn_has_ended(source, target):
    live = source.journal(3, b"at work")
    source.journal(1, b"died").close()
    source.journal(2, b"failed").close()
    for token in (1, 2, 3):
        source.turn(token)
        opened = Opened(token, 10 * token, start="", known_end=True)
        TurnLog(str(source.directory), fsync=False).append([opened])
    TurnLog(str(source.directory), fsync=False).append([Settled(2, 25, "failed", "error")])
    copy(source, target)
    live.close()
    turns, _ = logged_turns(target.files, target.state)
    assert [(turn.opened.token, turn.state, turn.cause, turn.settled_at_ns) for turn in turns] == [
        (3, "cancelled", "unknown", 77),
        (2, "failed", "error", 25),
        (1, "interrupted", "restart", None),
    ]


def test_turns_that_have_recorded_nothing_leave_nothing(source, target):
    source.journal(1).close()
    copy(source, target)
    assert target.journals() == {}
    assert target.state.token == 1
    assert not os.path.exists(os.path.join(target.files.generation(target.state), LOG_NAME))


def test_no_journal_comes_to_a_thread_that_has_gone_further(source, target):
    source.journal(1, b"record").close()
    target.checkpoint("6")
    copy(source, target)
    assert target.journals() == {}


def test_damage_comes_along_so_that_silence_still_means_nothing(source, target):
    for token, at in ((1, 40), (2, -4)):
        journal = source.journal(token, b"first", b"second", b"third")
        journal.close()
        data = bytearray(Path(journal.path).read_bytes())
        data[at if at < 0 else 5] ^= 1
        Path(journal.path).write_bytes(data)
    source.journal(3, b"of another", thread_id="another").close()
    copy(source, target)
    directory = target.files.generation(target.state)
    contents = [read_journal(journal_path(directory, token)) for token in (1, 2)]
    assert [content is not None and bool(content.damaged) for content in contents] == [True, True]
    assert contents[0] is not None
    assert contents[0].header is None


def test_a_log_that_refuses_entries_fails_no_copy(source, target, monkeypatch):
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise StorageError(28, "No space left on device", "somewhere")

    source.journal(1, b"record").close()
    monkeypatch.setattr(TurnLog, "append", refuse)
    copy(source, target)
    assert target.journals() == {1: [b"record"]}


def test_a_journal_that_cannot_be_written_leaves_the_target_as_it_was(source, target, monkeypatch):
    def refuse(path: str, *_args: object, **_kwargs: object) -> None:
        raise StorageError(28, "No space left on device", path)

    source.journal(1, b"record").close()
    target.checkpoint("4")
    before = target.state
    monkeypatch.setattr(_files, "replace_file", refuse)
    with pytest.raises(StorageError):
        copy(source, target)
    monkeypatch.undo()
    assert target.state == before
    assert target.files.namespace(before, "").head_id() == "4"
