"""The ledger of a thread: two slots of which one may be torn, and tokens that never go back, whatever is lost."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
import warnings
from pathlib import Path

import pytest

from langgraph_turncheckpoint import DamageWarning, StorageError
from langgraph_turncheckpoint._ledger import LEDGER_NAME, HeldLedger, Ledger
from langgraph_turncheckpoint._records import LEDGER_ID_OFFSET, SLOT_SIZE, parse_slot, parse_slots
from langgraph_turncheckpoint._turn import LedgerEvent, LedgerState, advance
from tests.system_calls import SystemCalls, substituted


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "thread"), "main", fsync=True)


def happen(ledger: Ledger, *events: LedgerEvent) -> LedgerState:
    """Lets events happen to a ledger as the commits do it; returns the last state."""
    state = LedgerState()
    for event in events:
        with ledger.hold() as held:
            state = advance(held.state, event, thread_id="main", newest_id="n", base="")
            (held.write if event is LedgerEvent.OPEN else held.write_twice)(state)
            held.sync()
    return state


def file_of(ledger: Ledger) -> Path:
    return Path(ledger.path)


def damage(ledger: Ledger, *slots: int) -> None:
    """Changes one byte in each of the slots: 0 is the older one, 1 the newer."""
    path = file_of(ledger)
    data = bytearray(path.read_bytes())
    serials = [parse_slot(bytes(data[at : at + SLOT_SIZE])) for at in (0, SLOT_SIZE)]
    order = sorted((0, 1), key=lambda place: -1 if serials[place] is None else serials[place].serial)  # type: ignore[union-attr]
    for slot in slots:
        data[order[slot] * SLOT_SIZE + 5] ^= 0xFF
    path.write_bytes(bytes(data))


def test_a_thread_that_nobody_has_written_to_has_no_ledger(ledger):
    assert ledger.read() is None
    assert not file_of(ledger).exists()


def test_what_is_written_is_read_again_by_another_instance(ledger, tmp_path):
    state = happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    assert Ledger(str(tmp_path / "thread"), "main", fsync=False).read() == state


def test_the_id_is_spelled_out(ledger, tmp_path):
    happen(ledger, LedgerEvent.OPEN)
    assert Ledger(str(tmp_path / "thread"), None, fsync=True).thread_id() == "main"


@pytest.mark.parametrize("thread_id", ["", "x" * 5000, "🧵\ud800", "a\x00b"])
def test_any_id_is_spelled_out(tmp_path, thread_id):
    """S7."""
    ledger = Ledger(str(tmp_path / "thread"), thread_id, fsync=True)
    happen(ledger, LedgerEvent.OPEN)
    assert ledger.thread_id() == thread_id


def test_a_damaged_id_is_repaired_by_the_next_writer(ledger):
    happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    path = file_of(ledger)
    path.write_bytes(path.read_bytes()[:LEDGER_ID_OFFSET] + b"junk")
    assert ledger.thread_id() is None
    happen(ledger, LedgerEvent.OPEN)
    assert ledger.thread_id() == "main"


def test_writes_alternate_between_two_slots(ledger):
    """The state before is always there whole: a write that is cut short destroys the older one only."""
    happen(ledger, LedgerEvent.OPEN)
    previous = file_of(ledger).read_bytes()
    for _ in range(4):
        happen(ledger, LedgerEvent.OPEN)
        data = file_of(ledger).read_bytes()
        changed = [at for at in (0, SLOT_SIZE) if data[at : at + SLOT_SIZE] != previous[at : at + SLOT_SIZE]]
        slot, doubtful = parse_slots(previous)
        assert slot is not None
        assert not doubtful
        assert len(changed) == 1
        kept = SLOT_SIZE - changed[0]
        assert parse_slot(data[kept : kept + SLOT_SIZE]) == slot
        previous = data


@pytest.mark.parametrize("length", [0, 1, 13, 14, 40, SLOT_SIZE - 1])
def test_a_slot_torn_at_any_length_leaves_a_token_that_is_not_lower_than_any_handed_out(ledger, length):
    """A crash in the middle of the write of token 3; whoever comes next holds a token of its own."""
    happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    before = file_of(ledger).read_bytes()
    happen(ledger, LedgerEvent.OPEN)
    after = file_of(ledger).read_bytes()
    (at,) = [at for at in (0, SLOT_SIZE) if before[at : at + SLOT_SIZE] != after[at : at + SLOT_SIZE]]
    file_of(ledger).write_bytes(before[:at] + after[at : at + length] + before[at + length :])
    assert happen(ledger, LedgerEvent.OPEN).token >= 3


@pytest.mark.parametrize("event", list(LedgerEvent))
def test_a_damaged_newer_slot_fences_like_the_lost_state(ledger, event):
    """What the lost slot said is not known, but a token it may have handed out is not handed out again."""
    running = happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    with ledger.hold() as held:
        lost = advance(held.state, event, thread_id="main", newest_id="n")
        held.write(lost)
    damage(ledger, 1)
    read = ledger.read()
    assert read is not None
    assert read.token >= lost.token > 0
    assert read.epoch >= lost.epoch or event is LedgerEvent.DELETE
    assert happen(ledger, LedgerEvent.OPEN).token > max(lost.token, running.token)


@pytest.mark.parametrize("event", [LedgerEvent.CLOSE, LedgerEvent.DELETE, LedgerEvent.CANCEL])
@pytest.mark.parametrize("slot", [0, 1])
def test_a_tombstone_outlives_one_damaged_slot(ledger, event, slot):
    """T6: it is in both slots."""
    happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    state = happen(ledger, event)
    damage(ledger, slot)
    read = ledger.read()
    assert read is not None
    assert (read.closed, read.generation, read.deleted_upto) == (state.closed, state.generation, state.deleted_upto)
    assert read.token >= state.token


def test_a_reader_that_finds_a_slot_half_written_waits_for_the_writer(ledger):
    """A read without the lock may meet another process in the middle of its write: that is no damage."""
    happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    half_written, finish, found = threading.Event(), threading.Event(), []

    def write() -> None:
        with ledger.hold() as held:
            whole = file_of(ledger).read_bytes()
            damage(ledger, 0)
            half_written.set()
            assert finish.wait(60)
            file_of(ledger).write_bytes(whole)
            held.write(advance(held.state, LedgerEvent.OPEN, thread_id="main"))

    def read() -> None:
        found.append(ledger.read())

    writer, reader = threading.Thread(target=write), threading.Thread(target=read)
    writer.start()
    assert half_written.wait(60)
    reader.start()
    finish.set()
    writer.join(60)
    reader.join(60)
    assert [state.token for state in found if state is not None] == [3]


def test_nobody_reads_while_another_holds_the_lock_and_everybody_counts(ledger):
    """S9: the lock excludes threads; no token is handed out twice."""
    tokens: list[int] = []

    def open_turns() -> None:
        tokens.extend(happen(ledger, LedgerEvent.OPEN).token for _ in range(25))

    threads = [threading.Thread(target=open_turns) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(tokens) == list(range(1, 201))


def lose(ledger: Ledger, how: str) -> None:
    path = file_of(ledger)
    if how == "both slots":
        damage(ledger, 0, 1)
    elif how == "zeroed":
        path.write_bytes(bytes(path.stat().st_size))
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "junk":
        path.write_bytes(os.urandom(3000))
    else:
        path.unlink()


LOSSES = ["both slots", "zeroed", "emptied", "junk", "removed"]


@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_ledger_of_a_stored_thread_jumps_ahead_with_a_warning(ledger, how):
    """S6, T9: no token of before is current any more, and the thread's newest generation is found again."""
    old = happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    for name in ("g-1", "g-2"):
        (Path(ledger.path).parent / name).mkdir()
    lose(ledger, how)
    with pytest.warns(DamageWarning, match="turn.*(damaged or gone).*jump ahead"):
        read = ledger.read()
    assert read is not None
    assert read.generation == 2
    assert read.token > old.token + 2**20
    assert happen(ledger, LedgerEvent.OPEN).token == read.token + 1


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("how", [*LOSSES, "newer slot"])
def test_a_reader_who_may_not_write_sees_what_a_writer_would_mend(ledger, how, code):
    """S6: one thread's ledger does not keep anybody from looking into a directory that is only lent to them."""
    happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN)
    (Path(ledger.path).parent / "g-1").mkdir()
    damage(ledger, 1) if how == "newer slot" else lose(ledger, how)
    locks = SystemCalls(lambda _, name: code if name in {"flock", "write"} else None)
    with substituted(locks), warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        found = ledger.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        mended = Ledger(os.path.dirname(ledger.path), "main", fsync=True).read()
    assert found is not None
    assert mended is not None
    assert found.generation == mended.generation
    assert 2 <= found.token <= mended.token


@pytest.mark.parametrize("how", LOSSES)
def test_tokens_grow_over_every_loss_of_the_ledger(ledger, how):
    """T9: a ledger can be lost more than once in the life of a turn, and the tokens of each life are above the last."""
    tokens = [happen(ledger, LedgerEvent.OPEN).token]
    (Path(ledger.path).parent / "g-1").mkdir()
    for _ in range(6):
        lose(ledger, how)
        with pytest.warns(DamageWarning):
            tokens.append(happen(ledger, LedgerEvent.OPEN).token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("how", ["both slots", "zeroed", "junk"])
def test_a_damaged_tombstone_is_not_taken_for_a_new_thread(ledger, how):
    """T6: of a deleted thread only the ledger is left, so nothing but its own bytes tells that there was one."""
    old = happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN, LedgerEvent.DELETE)
    lose(ledger, how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        assert happen(ledger, LedgerEvent.OPEN).token > old.token


def test_an_older_copy_of_the_ledger_gives_no_token_twice_to_a_running_writer(ledger, tmp_path):
    """T9: a directory restored under a running process. The commit raises the ledger to the token it admits."""
    happen(ledger, LedgerEvent.OPEN)
    shutil.copy(ledger.path, tmp_path / "copy")
    held_token = happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN).token
    shutil.copy(tmp_path / "copy", ledger.path)
    with ledger.hold() as held:
        held.write(held.state._replace(token=held_token))
    assert happen(ledger, LedgerEvent.OPEN).token == held_token + 1


def test_a_failed_operation_releases_the_lock_and_changes_nothing(ledger):
    happen(ledger, LedgerEvent.OPEN)
    before = file_of(ledger).read_bytes()

    def fail(held: HeldLedger) -> None:
        raise ZeroDivisionError(held.state.token)

    with pytest.raises(ZeroDivisionError), ledger.hold() as held:
        fail(held)
    assert file_of(ledger).read_bytes() == before
    assert happen(ledger, LedgerEvent.OPEN).token == 2


def test_a_ledger_that_is_a_directory_is_a_typed_error(ledger):
    file_of(ledger).mkdir(parents=True)
    with pytest.raises(StorageError), ledger.hold():
        raise AssertionError("locked")


@pytest.mark.parametrize(("at", "bit"), list(itertools.product(range(0, 60, 7), (0, 7))))
def test_a_flipped_bit_in_either_slot_never_lowers_the_token(ledger, at, bit):
    """C50 on the ledger: what is read is never below what was handed out."""
    state = happen(ledger, LedgerEvent.OPEN, LedgerEvent.OPEN, LedgerEvent.OPEN)
    whole = file_of(ledger).read_bytes()
    for start in (0, SLOT_SIZE):
        data = bytearray(whole)
        data[start + at] ^= 1 << bit
        file_of(ledger).write_bytes(bytes(data))
        read = ledger.read()
        assert read is not None
        assert state.token <= read.token <= state.token + 1


def test_the_ledger_is_called_by_its_name(ledger):
    """The name is part of the format: released stores have it."""
    assert (LEDGER_NAME, os.path.basename(ledger.path)) == ("turn", "turn")
