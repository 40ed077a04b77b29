"""The files of an inbox: whole or not there, in order, and never taken for something else."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from pathlib import Path

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_turncheckpoint import DamagedCheckpointError, StorageError, ThreadClosedError, UnknownFormatError
from langgraph_turncheckpoint import _inbox_files as module
from langgraph_turncheckpoint._frames import encode_frame
from langgraph_turncheckpoint._inbox_files import (
    ITEM_FORMAT_VERSION,
    InboxFiles,
    encode_item,
    item_number,
    load_item,
    parse_item,
)
from langgraph_turncheckpoint._records import MalformedError, NewerFormatError, Sealed
from langgraph_turncheckpoint._thread_files import ThreadFiles
from langgraph_turncheckpoint._turn import LedgerEvent, advance
from tests.system_calls import SystemCalls, calls_of, once, substituted


class Clock:
    """Tells the time it is set to."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def thread(tmp_path):
    return ThreadFiles(str(tmp_path), "main", fsync=True)


@pytest.fixture
def inbox(thread):
    return InboxFiles(thread, fsync=True)


def unexpected(error: DamagedCheckpointError) -> None:
    raise AssertionError(error)


def post(inbox: InboxFiles, *ids: str) -> None:
    for message_id in ids:
        inbox.post(message_id, Sealed("t", message_id.encode()), may_be_there=True)


def ids_in(inbox: InboxFiles) -> list[str]:
    return [item.message_id for item in inbox.items(unexpected)]


def files_of(thread: ThreadFiles) -> list[Path]:
    return sorted(Path(thread.path).glob("g-*/inbox/*"))


def happen(thread: ThreadFiles, event: LedgerEvent) -> None:
    with thread.ledger.hold() as held:
        held.write_twice(advance(held.state, event, thread_id=thread.thread_id))


# --- bytes ---


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text("abc|+:"), st.binary())
def test_an_item_comes_back_as_it_was_encoded(message_id, tag, data):
    assert parse_item(encode_item(message_id, Sealed(tag, data))) == (message_id, Sealed(tag, data))


def test_no_cut_and_no_changed_bit_of_an_item_is_believed():
    whole = encode_item("id", Sealed("t", b"some bytes"))
    for length in range(len(whole)):
        with pytest.raises(MalformedError):
            parse_item(whole[:length])
    for position in range(len(whole) * 8):
        changed = bytearray(whole)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(MalformedError):
            parse_item(bytes(changed))
    for wrong in (whole + b"\0", b"\0" + whole, whole + whole):
        with pytest.raises(MalformedError):
            parse_item(wrong)


@pytest.mark.parametrize(
    "fields",
    [None, [], {}, [1], [0, "i", "t", b""], [1, 2, "t", b""], [1, "i", "t", "text"]],
    ids=repr,
)
def test_a_whole_frame_that_holds_no_item_is_damage(fields):
    with pytest.raises(MalformedError):
        parse_item(encode_frame(ormsgpack.packb(fields)))
    with pytest.raises(MalformedError):
        parse_item(encode_frame(b"\xc1"))


@pytest.mark.parametrize("fields", [[ITEM_FORMAT_VERSION + 1], [9, {"anything": "else"}]], ids=repr)
def test_a_newer_item_is_told_from_a_damaged_one(fields):
    with pytest.raises(NewerFormatError):
        parse_item(encode_frame(ormsgpack.packb(fields)))


def test_only_numbered_messages_are_items():
    assert item_number("i-0000000000000042.msg") == 42
    assert item_number("i-12345678901234567.msg") == 12345678901234567
    for name in (
        "i-1.msg",
        "i-0000000000000042.msg.aa.tmp",
        "x-0000000000000042.msg",
        "i-٤٢٤٢٤٢٤٢٤٢٤٢٤٢٤٢.msg",
        "turn",
    ):
        assert item_number(name) is None


# --- posting ---


def test_items_come_back_in_the_order_of_posting_from_any_instance(inbox, thread):
    post(inbox, "c", "a", "b")
    assert ids_in(InboxFiles(thread, fsync=False)) == ["c", "a", "b"]


def test_an_item_is_a_private_file_in_the_life_of_its_thread(inbox, thread):
    post(inbox, "a")
    (path,) = files_of(thread)
    assert path.parent == Path(thread.path, "g-1", "inbox")
    assert item_number(path.name) is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_same_id_posted_twice_keeps_the_first(inbox):
    assert inbox.post("a", Sealed("t", b"first"), may_be_there=True)
    assert not inbox.post("a", Sealed("t", b"second"), may_be_there=True)
    assert [item.sealed.data for item in inbox.items(unexpected)] == [b"first"]


def test_posting_leaves_the_token_where_it_is(inbox, thread):
    happen(thread, LedgerEvent.OPEN)
    before = thread.ledger.read()
    post(inbox, "a", "b")
    assert thread.ledger.read() == before


def test_a_closed_thread_takes_no_item_and_gives_those_it_has(inbox, thread):
    post(inbox, "a")
    happen(thread, LedgerEvent.CLOSE)
    with pytest.raises(ThreadClosedError):
        post(inbox, "b")
    assert ids_in(inbox) == ["a"]
    assert inbox.remove(["a"]) == 1
    happen(thread, LedgerEvent.REOPEN)
    post(inbox, "c")
    assert ids_in(inbox) == ["c"]


def test_a_clock_that_goes_back_changes_no_order(thread):
    clock = Clock(1_000_000_000_000_000_000)
    inbox = InboxFiles(thread, fsync=False, clock_ns=clock)
    post(inbox, "a")
    for number, now_ns in enumerate([0, -5, 999, 1_000_000_000_000_000_000, 10_000_000_000_000_000_000]):
        clock.now_ns = now_ns
        post(inbox, f"b{number}")
    assert ids_in(inbox) == ["a", "b0", "b1", "b2", "b3", "b4"]


def test_a_reader_never_finds_a_later_item_without_an_earlier_one(inbox, thread, monkeypatch):
    """A number that was used again would put a new item under a name that the reader has listed."""
    post(inbox, "a", "b", "c")

    def load(path):
        found = load_item(path)
        monkeypatch.setattr(module, "load_item", load_item)
        inbox.remove(["a", "b", "c"])
        post(inbox, "d", "e")
        return found

    monkeypatch.setattr(module, "load_item", load)
    assert ids_in(inbox) == ["a"]
    assert ids_in(inbox) == ["d", "e"]


def test_what_a_dead_poster_left_goes_with_the_next_post(inbox, thread):
    post(inbox, "a")
    (item,) = files_of(thread)
    litter = item.with_name(item.name + ".0123456789abcdef.tmp")
    litter.write_bytes(b"half")
    foreign = item.with_name("notes.tmp")
    foreign.write_bytes(b"of somebody else")
    assert ids_in(inbox) == ["a"]
    post(inbox, "b")
    assert not litter.exists()
    assert foreign.exists()
    assert ids_in(inbox) == ["a", "b"]


def test_litter_that_cannot_be_removed_refuses_no_post(inbox, thread):
    post(inbox, "a")
    (item,) = files_of(thread)
    item.with_name(item.name + ".0123456789abcdef.tmp").write_bytes(b"half")
    with substituted(SystemCalls(lambda at, name: errno.EACCES if name == "unlink" else None)):
        post(inbox, "b")
    assert ids_in(inbox) == ["a", "b"]


def test_threads_of_one_process_post_side_by_side(inbox, thread):
    def work(name: str) -> None:
        post(InboxFiles(thread, fsync=False), *[f"{name}{number}" for number in range(20)])

    workers = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = ids_in(inbox)
    assert len(found) == 80
    for name in "abcd":
        assert [message_id for message_id in found if message_id[0] == name] == [f"{name}{n}" for n in range(20)]


def test_an_acknowledged_post_has_synced_the_ledger_the_item_and_its_directory(inbox):
    post(inbox, "a")
    with substituted(SystemCalls()) as calls:
        post(inbox, "b")
    names = calls.names
    assert names.count("fdatasync") == 2
    assert names.index("fdatasync") < names.index("write") < names.index("replace") < names.index("fsync")
    with substituted(SystemCalls()) as calls:
        inbox.remove(["a"])
    assert calls.names.index("unlink") < calls.names.index("fsync")


def test_the_name_of_a_new_inbox_is_durable_before_its_first_item(inbox, thread):
    with substituted(SystemCalls()) as calls:
        post(inbox, "a")
    generation = os.path.join(thread.path, "g-1")
    made = calls.calls.index(("mkdir", os.path.join(generation, "inbox")))
    assert calls.calls[made + 1] == ("open", generation)
    assert calls.names[made + 2] == "fsync"


def test_without_fsync_nothing_waits_for_the_disk(thread):
    relaxed = InboxFiles(ThreadFiles(os.path.dirname(os.path.dirname(thread.path)), "main", fsync=False), fsync=False)
    with substituted(SystemCalls()) as calls:
        post(relaxed, "a")
        relaxed.remove(["a"])
    assert not {"fsync", "fdatasync"} & set(calls.names)


# --- removing ---


def test_removing_takes_what_is_named_and_says_how_much_was_there(inbox):
    post(inbox, "a", "b", "c")
    assert inbox.remove(["c", "a", "never posted"]) == 2
    assert inbox.remove(["a"]) == 0
    assert ids_in(inbox) == ["b"]


def test_an_id_can_be_posted_again_once_it_was_removed(inbox):
    post(inbox, "a", "b")
    inbox.remove(["a"])
    post(inbox, "a")
    assert ids_in(inbox) == ["b", "a"]


def test_reading_and_removing_make_nothing_of_a_thread_that_is_not_there(inbox, tmp_path):
    assert ids_in(inbox) == []
    assert inbox.remove(["a"]) == inbox.clear() == 0
    assert list(tmp_path.iterdir()) == []


# --- damage, and lives of the thread ---


def test_a_damaged_item_is_told_and_kept_and_its_number_not_used_again(inbox, thread):
    post(inbox, "a", "b", "c")
    _, second, last = files_of(thread)
    second.write_bytes(second.read_bytes()[:-1])
    last.write_bytes(b"")
    told: list[DamagedCheckpointError] = []
    assert [item.message_id for item in inbox.items(told.append)] == ["a"]
    assert [error.path for error in told] == [str(second), str(last)]
    post(inbox, "b")
    assert inbox.remove(["a", "c"]) == 1
    assert len(files_of(thread)) == 3
    assert last.read_bytes() == b""
    assert inbox.clear() == 3
    assert files_of(thread) == []


def test_an_item_of_a_newer_format_is_refused_and_stays_through_other_work(inbox, thread):
    post(inbox, "a")
    newer = files_of(thread)[0].with_name("i-0000000000000007.msg")
    newer.write_bytes(encode_frame(ormsgpack.packb([ITEM_FORMAT_VERSION + 1, "new"])))
    with pytest.raises(UnknownFormatError, match=newer.name) as caught:
        inbox.items(unexpected)
    assert caught.value.version == ITEM_FORMAT_VERSION + 1
    post(inbox, "b")
    assert inbox.remove(["a", "b"]) == 2
    assert files_of(thread) == [newer]


def test_an_item_that_cannot_be_read_is_an_error_and_no_damage(inbox):
    post(inbox, "a")
    names = calls_of(lambda: inbox.items(unexpected))
    _, of_the_item, _ = [position for position, name in enumerate(names) if name == "read"]
    with substituted(SystemCalls(once(of_the_item, errno.EIO))), pytest.raises(StorageError, match=r"i-\d+\.msg"):
        inbox.items(unexpected)


def test_a_delete_takes_the_items_along(inbox, thread):
    post(inbox, "a", "b")
    thread.delete()
    assert ids_in(inbox) == []
    assert files_of(thread) == []
    post(inbox, "c")
    assert ids_in(inbox) == ["c"]
    assert files_of(thread)[0].parent.parent.name == "g-2"


def test_a_reader_that_meets_a_delete_or_a_copy_looks_again(inbox, thread, monkeypatch):
    post(inbox, "a", "b")
    other = ThreadFiles(os.path.dirname(os.path.dirname(thread.path)), "other", fsync=False)
    post(InboxFiles(other, fsync=False), "of the other")

    def load(path):
        monkeypatch.setattr(module, "load_item", load_item)
        thread.copy_from(other)
        return load_item(path)

    monkeypatch.setattr(module, "load_item", load)
    assert ids_in(inbox) == ["a", "b"]


def test_a_ledger_that_is_lost_loses_no_item(inbox, thread):
    post(inbox, "a")
    os.remove(thread.ledger.path)
    with pytest.warns(UserWarning, match="ledger is damaged or gone"):
        assert ids_in(inbox) == ["a"]


def test_what_is_no_item_is_left_alone(inbox, thread):
    post(inbox, "a")
    directory = files_of(thread)[0].parent
    (directory / "README").write_text("of somebody else")
    shutil.copy(files_of(thread)[1], directory / "copy of i-0000000000000001.msg")
    assert ids_in(inbox) == ["a"]
    assert inbox.clear() == 1
    assert len(files_of(thread)) == 2
