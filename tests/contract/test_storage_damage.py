"""S6, C44, C50, C52: damaged files are reported and passed over, never read as data or overwritten; litter is swept."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
import textwrap
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from langgraph_turncheckpoint import (
    DamagedCheckpointError,
    DamageWarning,
    StorageError,
    TurnCheckpointSaver,
    UnknownFormatError,
)
from langgraph_turncheckpoint._ledger import LEDGER_NAME
from langgraph_turncheckpoint._records import COMMITTING_OFFSET, FORMAT_VERSION, MAGIC
from tests.contract.storing import Thread, addressed, file_of, files_below, fresh, latest, named, noticed, packed
from tests.system_calls import SystemCalls, substituted

MESSAGES = [f"message {n}, long enough to be no inline value of a few bytes" for n in range(40)]


@pytest.fixture
def thread(tmp_path):
    """Three checkpoints that share pages, with writes on the newest."""
    thread = Thread(TurnCheckpointSaver(tmp_path / "store", fsync=False))
    for count in (35, 36, 37):
        thread.put({"messages": MESSAGES[:count], "step": count})
    thread.write("first", task_id="task-1")
    thread.write("second", "third" * 120, task_id="task-2")
    return thread


def damages(data):
    """Each way of C50, but for the flipped bytes."""
    yield "empty", b""
    yield "cut to one byte", data[:1]
    yield "cut in the header", data[:20]
    yield "cut in the body", data[:90]
    yield "all NUL", bytes(len(data))
    yield "NUL from the body on", data[:90] + bytes(len(data) - 90)
    yield "another file's bytes", b"PK\x03\x04" + data[4:]
    yield "text", b"{'messages': []}"
    yield "started twice", data[:90] + data


def observed(saver):
    """What a reader gets, or the error."""
    with noticed() as warned:
        try:
            found = latest(saver)
            result: Any = (found.checkpoint["id"], packed(found.checkpoint["channel_values"]), found.pending_writes)
        except StorageError as error:
            result = type(error)
    return result, warned


@pytest.mark.parametrize("way", [name for name, _ in damages(b"x" * 99)])
def test_a_damaged_head_falls_back_with_a_warning_and_survives_the_next_put(thread, way):
    path = file_of(thread.saver, thread.ids[2])
    damaged = dict(damages(path.read_bytes()))[way]
    path.write_bytes(damaged)
    with pytest.warns(DamageWarning, match=r"c-1ef00000-0000-6000-8000-000000000003\.ckpt: .*; falling back"):
        found = latest(thread.saver)
    assert found.checkpoint["id"] == thread.ids[1]
    assert packed(found.checkpoint["channel_values"]) == thread.values[thread.ids[1]]
    thread.config = thread.at(1)
    thread.put({"messages": MESSAGES[:38], "step": 38}, number=9)
    assert packed(latest(thread.saver).checkpoint["channel_values"]) == thread.values[thread.ids[-1]]
    assert damaged in files_below(thread.saver.path).values()


@pytest.mark.parametrize("way", [name for name, _ in damages(b"x" * 99)])
def test_with_strict_a_damaged_head_raises(thread, way):
    path = file_of(thread.saver, thread.ids[2])
    path.write_bytes(dict(damages(path.read_bytes()))[way])
    for read in (
        lambda saver: saver.get_tuple(addressed("thread")),
        lambda saver: saver.get_tuple(thread.at(2)),
        lambda saver: list(saver.list(addressed("thread"))),
    ):
        with pytest.raises(DamagedCheckpointError) as caught:
            read(fresh(thread.saver, strict=True))
        assert caught.value.path == str(path)


def test_a_damaged_checkpoint_addressed_by_id_raises_and_is_left_out_of_the_list(thread):
    path = file_of(thread.saver, thread.ids[1])
    path.write_bytes(b"damaged")
    with pytest.raises(DamagedCheckpointError, match="bytes long"):
        fresh(thread.saver).get_tuple(thread.at(1))
    with pytest.warns(DamageWarning, match="left out of the list"):
        found = [t.checkpoint["id"] for t in fresh(thread.saver).list(addressed("thread"))]
    # The newest refers to a page of the first and perhaps to one of the damaged file; it is never wrong.
    assert thread.ids[1] not in found
    assert thread.ids[0] in found


def test_where_nothing_is_whole_the_newest_damage_is_raised(thread):
    for path in named(thread.saver.path, ".ckpt"):
        path.write_bytes(b"")
    with pytest.warns(DamageWarning), pytest.raises(DamagedCheckpointError) as caught:
        latest(thread.saver)
    assert thread.ids[2] in caught.value.path


def acceptable(thread, whole):
    """What may be read where the newest file is damaged: it as it was, fewer of its writes, or an ancestor."""
    identity, values, writes = whole

    def check(result, warned):
        if isinstance(result, type):
            return issubclass(result, DamagedCheckpointError)
        if not warned:
            return result == whole
        if result[0] == identity:
            return result[1] == values and all(write in writes for write in result[2])
        return result[1] == thread.values[result[0]]

    return check


def test_each_changed_byte_of_the_newest_file_gives_what_was_written_or_a_warning(thread):
    path = file_of(thread.saver, thread.ids[2])
    data = path.read_bytes()
    check = acceptable(thread, observed(thread.saver)[0])
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x20]) + data[position + 1 :])
        result, warned = observed(thread.saver)
        assert warned, position
        assert check(result, warned), position


def test_each_truncation_of_the_newest_file_gives_what_was_written_or_a_warning(thread):
    path = file_of(thread.saver, thread.ids[2])
    data = path.read_bytes()
    whole, _ = observed(thread.saver)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        result, warned = observed(thread.saver)
        if warned:
            assert result[1] == thread.values[result[0]], length
        else:
            # A record cut short is one that a crash interrupted: it was never acknowledged.
            assert result[:2] == whole[:2], length
            assert result[2] == whole[2][: len(result[2])], length


def test_each_changed_byte_of_an_older_file_that_pages_come_from_never_gives_wrong_data(thread):
    path = file_of(thread.saver, thread.ids[0])
    data = path.read_bytes()
    check = acceptable(thread, observed(thread.saver)[0])
    for position in range(0, len(data), 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x01]) + data[position + 1 :])
        result, warned = observed(thread.saver)
        assert check(result, warned), position
        assert warned or result == observed(thread.saver)[0]


def test_each_changed_byte_of_the_ledger_changes_no_data_and_lowers_no_token(thread):
    (path,) = named(thread.saver.path, "turn")
    data = path.read_bytes()
    whole, _ = observed(thread.saver)
    with thread.saver.turn(addressed("thread")):
        pass
    data = path.read_bytes()
    opened = thread.saver.turn(addressed("thread"))
    with opened:
        token = opened.token
    for position in range(0, len(data), 5):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x04]) + data[position + 1 :])
        result, _ = observed(thread.saver)
        assert result == whole, position
        assert thread.saver.thread_ids() == ["thread"]
        with noticed():
            again = fresh(thread.saver).turn(addressed("thread"))
            with again:
                assert again.token >= token, position


@pytest.mark.parametrize("junk", [b"\x01", b"junk behind the end " * 9, b"WRIT" * 30])
def test_trailing_junk_is_reported_and_the_checkpoint_before_it_is_read(thread, junk):
    path = file_of(thread.saver, thread.ids[2])
    whole, _ = observed(thread.saver)
    path.write_bytes(path.read_bytes() + junk)
    result, warned = observed(thread.saver)
    assert result == whole
    assert warned or len(junk) < 20
    with noticed():
        thread.write("after", task_id="task-3")
    result, _ = observed(thread.saver)
    assert result[2] == [*whole[2], ("task-3", "messages", "after")]


def test_writes_onto_a_damaged_file_are_kept_and_the_damaged_file_is_set_aside(thread):
    path = file_of(thread.saver, thread.ids[2])
    damaged = b"\x00" + path.read_bytes()[1:]
    restored = path.with_name("restored")  # as a backup would: in one step
    restored.write_bytes(damaged)
    restored.rename(path)
    thread.saver = fresh(thread.saver)
    with pytest.warns(DamageWarning, match="its bytes were put aside in"):
        thread.write("late", task_id="task-9")
    assert damaged in files_below(thread.saver.path).values()
    thread.config = thread.at(1)
    thread.put({"messages": MESSAGES[:37], "step": 37}, number=3)
    found = latest(thread.saver)
    assert found.pending_writes == [("task-9", "messages", "late")]
    assert damaged in files_below(thread.saver.path).values()


def test_a_damaged_record_costs_only_that_record(thread):
    path = file_of(thread.saver, thread.ids[2])
    data = path.read_bytes()
    at = data.index(b"WRIT")
    path.write_bytes(data[: at + 30] + b"\xff\xff" + data[at + 32 :])
    with pytest.warns(DamageWarning, match="the writes in its sound part are used"):
        found = latest(thread.saver)
    assert [write[0] for write in found.pending_writes] == ["task-2", "task-2"]


def test_a_file_under_another_checkpoints_name_is_damage(thread):
    """A restore from a backup can mix files up; each says whose it is."""
    old, new = file_of(thread.saver, thread.ids[0]), file_of(thread.saver, thread.ids[2])
    new.write_bytes(old.read_bytes())
    with pytest.warns(DamageWarning, match="holds another checkpoint than its name says"):
        assert latest(thread.saver).checkpoint["id"] == thread.ids[1]


def test_a_missing_older_file_is_damage_and_never_a_shorter_list(thread):
    file_of(thread.saver, thread.ids[0]).unlink()
    result, warned = observed(thread.saver)
    assert warned
    assert isinstance(result, type) or result[1] == thread.values[result[0]]


def newer(data):
    start = data[:8] + struct.pack("<H", FORMAT_VERSION + 1) + data[10:12]
    assert data.startswith(MAGIC)
    return start + struct.pack("<I", zlib.crc32(start)) + b"\x00 anything at all \xff" * 9


def test_a_newer_format_is_a_typed_error_and_the_file_is_not_touched(thread):
    """C65."""
    path = file_of(thread.saver, thread.ids[2])
    path.write_bytes(newer(path.read_bytes()))
    before = path.read_bytes()
    saver = fresh(thread.saver)
    for operation in (
        lambda: saver.get_tuple(addressed("thread")),
        lambda: saver.get_tuple(thread.at(2)),
        lambda: saver.put_writes(thread.at(2), [("messages", "x")], "task"),
        lambda: list(fresh(saver, strict=True).list(addressed("thread"))),
        lambda: saver.prune(["thread"]),  # what such a file refers to cannot be told
    ):
        with pytest.raises(UnknownFormatError) as caught:
            operation()
        assert (caught.value.version, caught.value.path) == (FORMAT_VERSION + 1, str(path))
        assert path.read_bytes() == before
    with pytest.warns(DamageWarning):
        assert thread.ids[2] not in [t.checkpoint["id"] for t in saver.list(addressed("thread"))]
    assert "newer" in {finding.kind for finding in saver.verify()}
    assert path.read_bytes() == before


# --- C52 ---


LONG_NAME = f"c-{'x' * 230}.ckpt"


def test_files_of_others_are_ignored_everywhere(thread):
    root = Path(thread.saver.path)
    bucket = file_of(thread.saver, thread.ids[0]).parent
    for place in (root, root / "threads", bucket.parents[2], bucket.parents[1], bucket.parents[0], bucket):
        for name in (
            ".DS_Store",
            "Thumbs.db",
            "core",
            "c-.ckpt",
            "c-A.ckpt",
            LONG_NAME,
            "notes.txt",
            "x.tmp.bak",
            "t-",
            "g-x",
            "n-.zz",
        ):
            (place / name).write_bytes(b"junk") if not (place / name).exists() else None
        for name in ("lost+found", "g-", "b-A", "n-%41", "t-%41", "__pycache__"):
            (place / name).mkdir(exist_ok=True)
            (place / name / "c-x.ckpt").write_bytes(b"junk")
        (place / "c-directory.ckpt.d").mkdir(exist_ok=True)
        (place / "link").symlink_to(root)
    thread.assert_whole(fresh(thread.saver))
    assert thread.saver.thread_ids() == ["thread"]
    assert thread.saver.stats().threads == 1
    assert thread.saver.stats().checkpoints == 3
    thread.put({"messages": MESSAGES, "step": 40})
    thread.saver.prune(["thread"])
    assert len(list(fresh(thread.saver).list(None))) == 1
    assert (root / "threads" / "notes.txt").read_bytes() == b"junk"
    assert [finding for finding in thread.saver.verify() if finding.kind != "foreign"] == []


def test_a_directory_where_a_checkpoints_file_belongs_is_a_typed_error_or_passed_over(thread):
    file_of(thread.saver, thread.ids[2]).unlink()
    (file_of(thread.saver, thread.ids[1]).parent / f"c-{thread.ids[2]}.ckpt").mkdir()
    result, warned = observed(thread.saver)
    assert isinstance(result, type) or (warned and result[0] == thread.ids[1])


# --- C44 ---

WRITER = textwrap.dedent("""
    import json, os, signal, sys
    from langgraph_turncheckpoint import TurnCheckpointSaver
    from tests.contract.storing import Thread, addressed, fresh
    from tests.system_calls import SystemCalls, substituted

    path, log = sys.argv[1:]

    def killed_at(position):
        seen = [0]
        def fault(at, name):
            seen[0] += 1
            if seen[0] == position:
                os.kill(os.getpid(), signal.SIGKILL)
        return fault

    for line in sys.stdin:
        position = int(line)
        child = os.fork()
        if child == 0:
            saver = TurnCheckpointSaver(path)
            thread = Thread(saver)
            found = saver.get_tuple(addressed("thread"))
            if found is not None:
                thread.config, thread.last = found.config, found.checkpoint
                thread.ids = [None] * found.checkpoint["channel_values"]["count"]
            with substituted(SystemCalls(killed_at(position))), open(log, "a") as acknowledged:
                while True:
                    count = len(thread.ids) + 1
                    thread.put({"messages": ["m" * 300] * count, "count": count})
                    acknowledged.write(f"{count}\\n")
                    acknowledged.flush()
                    thread.write(f"write {count}")
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), flush=True)
""")


def test_twenty_processes_killed_while_writing_lose_nothing_and_leave_nothing(tmp_path):
    """Each dies at another system call of its writes; what it had acknowledged is there, and its litter goes."""
    if not hasattr(os, "fork"):
        pytest.skip("the processes are forked from one that has imported everything")
    store, log = tmp_path / "store", tmp_path / "log"
    saver = TurnCheckpointSaver(store)
    command = [sys.executable, "-c", WRITER, str(store), str(log)]
    littered, before = 0, (0, 0)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        for position in (150, *range(16, 54, 2)):
            print(position, file=process.stdin, flush=True)
            assert json.loads(process.stdout.readline()) == 9
            littered += len(named(store, ".tmp"))
            acknowledged = [int(line) for line in log.read_text().split()] if log.exists() else []
            found = fresh(saver).get_tuple(addressed("thread"))
            count = found.checkpoint["channel_values"]["count"] if found else 0
            assert max(acknowledged, default=0) <= count
            # One more than was acknowledged may be there: a kill can come right before the acknowledgement.
            assert count - before[0] <= len(acknowledged) - before[1] + 1
            before = count, len(acknowledged)
            if found:
                assert found.checkpoint["channel_values"]["messages"] == ["m" * 300] * count
            assert [t.checkpoint["channel_values"]["count"] for t in fresh(saver).list(None)] == list(
                range(count, 0, -1)
            )
        process.stdin.close()
        assert process.wait(60) == 0
    assert littered, "no kill came between a temporary and its rename"
    found = latest(saver)
    thread = Thread(saver)
    thread.config, thread.last, thread.ids = found.config, found.checkpoint, [""] * 500
    thread.put({"messages": [], "count": 501})
    assert named(store, ".tmp") == []
    assert saver.verify() == []


def temporary(thread, position=-1, of=None):
    """What a writer that died before its rename leaves."""
    path = file_of(thread.saver, thread.ids[position])
    litter = path.with_name(f"{of or path.name}.0123456789abcdef.tmp")
    litter.write_bytes(path.read_bytes()[:-3])
    return litter


def mark_as_interrupted(thread):
    """What a process leaves in the ledger that dies in the middle of a commit."""
    (ledger,) = named(thread.saver.path, LEDGER_NAME)
    with ledger.open("r+b") as file:
        file.seek(COMMITTING_OFFSET)
        file.write(b"\x01")


def test_litter_of_dead_writers_is_swept_by_the_next_put_wherever_it_is(thread):
    """A thread's older buckets and its pages of removed checkpoints are written to, too."""
    for number in range(100, 1_100):
        thread.put({"step": number}, number=number)
    buckets = sorted({path.parent for path in named(thread.saver.path, ".ckpt")})
    assert len(buckets) > 1
    litter = [
        bucket / f"c-x{suffix}.0123456789abcdef.tmp" for bucket in buckets for suffix in (".ckpt", ".pages", ".early")
    ]
    for path in litter:
        path.write_bytes(b"half")
    mark_as_interrupted(thread)
    thread.put({"step": 2_000}, number=2_000)
    assert [path for path in litter if path.exists()] == []


def test_litter_is_kept_while_the_damaged_file_it_may_replace_is_there(thread):
    """It may be the only good copy."""
    litter = temporary(thread)
    damaged = file_of(thread.saver, thread.ids[2])
    damaged.write_bytes(b"damaged")
    for number in (9, 10, 11):
        thread.config = thread.at(1)
        thread.saver = fresh(thread.saver)
        thread.put({"step": number}, number=number)
        assert litter.exists(), number
        assert damaged.read_bytes() == b"damaged"


@pytest.mark.parametrize(("ours", "theirs"), [("thread", "other"), ("thread", "thread")])
def test_a_writer_that_lives_keeps_its_temporary(ours, theirs, tmp_path):
    """One stands still right before its rename while the other puts."""
    saver = TurnCheckpointSaver(tmp_path)
    slow, quick = Thread(saver, theirs), Thread(fresh(saver), ours)
    slow.put({"n": 0})
    quick.put({"n": 0}, number=5)
    before_rename, go_on = threading.Event(), threading.Event()
    failures = []

    def write_slowly():
        def stand_still(_, name):
            if name == "replace" and threading.current_thread() is writer:
                before_rename.set()
                go_on.wait(30)

        try:
            with substituted(SystemCalls(stand_still)):
                slow.put({"n": 1}, number=8)
        except Exception as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    writer = threading.Thread(target=write_slowly)
    writer.start()
    assert before_rename.wait(30)
    (live,) = named(tmp_path, ".tmp")
    putting = threading.Thread(target=lambda: quick.put({"n": 1}, number=9))
    putting.start()
    if ours != theirs:
        putting.join(30)
        assert not putting.is_alive()
    assert live.exists()
    go_on.set()
    writer.join(30)
    putting.join(30)
    assert failures == []
    found = {t.checkpoint["id"] for t in fresh(saver).list(None)}
    assert {slow.ids[-1], quick.ids[-1]} <= found
    assert named(tmp_path, ".tmp") == []


# --- verify ---


def kinds(saver):
    return {(finding.kind, Path(finding.path).name) for finding in saver.verify()}


def test_verify_finds_nothing_in_a_whole_store(thread):
    thread.saver.put_writes(addressed("thread", "", thread.next({}, 50)["id"]), [("c", 1)], "t")
    thread.saver.copy_thread("thread", "copy")
    thread.saver.prune(["copy"])
    thread.saver.delete_thread("copy")
    assert thread.saver.verify() == []
    assert TurnCheckpointSaver(Path(thread.saver.path) / "nothing").verify() == []


def test_verify_names_each_kind_of_finding_and_changes_nothing(thread):
    saver, ids = thread.saver, thread.ids
    for number in (50, 51):
        thread.put({"step": number}, number=number)
    bucket = file_of(saver, ids[0]).parent
    thread_directory = bucket.parents[2]
    file_of(saver, ids[1]).write_bytes(b"damaged")
    file_of(saver, ids[3]).write_bytes(newer(file_of(saver, ids[3]).read_bytes()))
    (bucket / "c-x.ckpt.00.tmp").write_bytes(b"")
    (bucket / "stranger").write_bytes(b"")
    (bucket.parent / "stranger").mkdir()
    (bucket.parent / "damaged").mkdir()
    (bucket.parent / "damaged" / "c-old.ckpt.12345678").write_bytes(b"")
    (thread_directory / "g-77").mkdir()
    (bucket / f"c-{ids[4]}.early").write_bytes(file_of(saver, ids[4]).read_bytes())
    (Path(saver.path) / "stranger").write_bytes(b"")
    (Path(saver.path) / "threads" / "stranger").mkdir()
    before = files_below(saver.path)
    found = kinds(saver)
    assert files_below(saver.path) == before
    assert found >= {
        ("damaged", f"c-{ids[1]}.ckpt"),
        ("newer", f"c-{ids[3]}.ckpt"),
        ("temporary", "c-x.ckpt.00.tmp"),
        ("foreign", "stranger"),
        ("aside", "c-old.ckpt.12345678"),
        ("orphan", "g-77"),
        ("orphan", f"c-{ids[4]}.early"),
    }
    assert all(finding.reason for finding in saver.verify())


def test_verify_reports_pages_that_are_missing(thread):
    file_of(thread.saver, thread.ids[0]).unlink()
    assert ("missing", f"c-{thread.ids[0]}.ckpt") in kinds(thread.saver)


def test_verify_reports_a_damaged_record_and_a_damaged_or_missing_ledger(thread):
    path = file_of(thread.saver, thread.ids[2])
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\xff")
    assert ("damaged", path.name) in kinds(thread.saver)
    (ledger,) = named(thread.saver.path, "turn")
    whole = ledger.read_bytes()
    ledger.write_bytes(b"\xff" + whole[1:])
    assert ("damaged", "turn") in kinds(thread.saver)
    ledger.unlink()
    with noticed():
        assert ("missing", "turn") in kinds(thread.saver)


def test_verify_reports_a_file_that_cannot_be_read(thread):
    path = file_of(thread.saver, thread.ids[1])

    class Unreadable(SystemCalls):
        def __getattr__(self, name):
            if name == "open":
                return self._open
            return super().__getattr__(name)

        def _open(self, name, *args):
            if name == str(path):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return os.open(name, *args)

    with substituted(Unreadable()):
        assert ("damaged", path.name) in kinds(thread.saver)
