"""What a store costs in bytes, files and memory as it grows: it follows what is new, not what is there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._checkpoint_files import BUCKET_SIZE
from tests.contract.storing import Thread, addressed, fresh, latest, named, numbered, packed, read, size_of
from tests.system_calls import SystemCalls, substituted
from tests.unit.test_serde import KeyedCipher, Pickling

BLOB = "b" * 1_000_000
LINES = [
    f"line {n} of a file that is about a megabyte long in all its lines, of which there are many" for n in range(9_000)
]

SERDES = {"default": None, "encrypting": EncryptedSerializer(KeyedCipher(b"key")), "custom": Pickling()}


def opened(operation):
    """How many files an operation opens."""
    with substituted(SystemCalls()) as calls:
        operation()
    return calls.names.count("open")


def written(operation):
    """How many bytes an operation writes."""

    class Counting(SystemCalls):
        total = 0

        def note(self, name, args):
            if name == "write":
                Counting.total += len(args[1])
            return super().note(name, args)

    with substituted(Counting()):
        operation()
    return Counting.total


def waits(thread):
    """Whether a thread waits for an event or a condition."""
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code.co_name == "wait"


# --- C39 ---


@pytest.mark.parametrize("serde", SERDES)
def test_two_hundred_turns_of_two_kilobytes_cost_near_linear_bytes(serde, tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False, serde=SERDES[serde])
    thread, messages, sizes = Thread(saver), [], []
    for turn in range(200):
        messages += [HumanMessage("q" * 1_000, id=f"q{turn}"), AIMessage("a" * 1_000, id=f"a{turn}")]
        thread.write(messages[-1], task_id=f"task{turn}") if turn else None
        thread.put({"messages": list(messages)})
        sizes.append(size_of(tmp_path) if turn in {99, 199} else 0)
    assert sizes[199] < 2.4 * sizes[99]
    assert sizes[199] < 8 * 200 * 2_000
    assert packed(latest(saver).checkpoint["channel_values"]) == packed({"messages": messages})


SHAPES = {
    "a channel": lambda step: {"blob": BLOB, "step": step},
    "bytes in a channel": lambda step: {"blob": BLOB.encode(), "step": step},
    "an item of a list": lambda step: {"items": ["x", BLOB, f"y{step}"]},
    "a dict of files": lambda step: {"files": {"big": BLOB, "notes": f"version {step}", f"new{step}": "x"}},
    "one level deeper": lambda step: {"state": {"files": {"big": BLOB, "notes": f"version {step}"}, "step": step}},
    "two levels deeper": lambda step: {"state": {"a": {"b": {"big": BLOB, "n": step}, "n": step}, "n": step}},
    "a file of lines": lambda step: {"files": {"big": {"lines": LINES, "changed": step}, "n": {"lines": [str(step)]}}},
    "a message's content": lambda step: {"messages": [HumanMessage(BLOB, id="big"), AIMessage(str(step), id="a")]},
    "a moving position": lambda step: {"items": [str(n) for n in range(step)] + [BLOB]},
    "files in changing order": lambda step: {"files": {f"n{step}": 1, "big": BLOB, "z": step}},
    "an integer-keyed dict beside it": lambda step: {"blob": {"big": BLOB}, "odd": {1: step}},
}
LINES = [
    f"line {n} of a file that is about a megabyte long in all its lines, of which there are many" for n in range(11_000)
]


@pytest.mark.parametrize("restarting", [False, True], ids=["one saver", "a saver for each step"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_unchanged_megabyte_is_stored_once(shape, restarting, tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    thread = Thread(saver)
    for step in range(50 if not restarting else 8):
        if restarting:
            thread.saver = fresh(saver)
        thread.put(SHAPES[shape](step))
    assert size_of(tmp_path) < 1_300_000
    assert packed(latest(saver).checkpoint["channel_values"]) == packed(SHAPES[shape](step))
    assert packed(read(saver, thread.at(3)).checkpoint["channel_values"]) == packed(SHAPES[shape](3))


@pytest.mark.parametrize("serde", ["encrypting", "custom"])
@pytest.mark.parametrize("shape", ["a dict of files", "one level deeper", "an item of a list"])
def test_an_unchanged_megabyte_is_stored_once_with_other_serdes(shape, serde, tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False, serde=SERDES[serde])
    thread = Thread(saver)
    for step in range(12):
        thread.put(SHAPES[shape](step))
    assert size_of(tmp_path) < 1_300_000
    thread.assert_whole(fresh(saver))


def test_a_megabyte_that_was_a_pending_write_first_is_not_stored_again(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    thread = Thread(saver)
    thread.put({"messages": ["start"]})
    thread.write(["start", BLOB])
    thread.put({"messages": ["start", BLOB]})
    assert size_of(tmp_path) < 1_300_000
    thread.assert_whole(fresh(saver))


def test_writes_that_come_while_their_checkpoint_is_being_put_wait_for_it(tmp_path):
    """LangGraph hands both over at once; a file of their own for the writes would cost four more waits for the disk."""
    saver = TurnCheckpointSaver(tmp_path)
    writers: list[threading.Thread] = []
    first = Thread(saver).put({"n": 0})
    second = addressed("thread", checkpoint_id=numbered(7))

    def write():
        saver.put_writes(second, [("n", 1)], "task")

    class WritingMeanwhile(SystemCalls):
        def note(self, name, args):
            if name == "flock" and not writers:
                # The checkpoint has not got the lock yet: writes that did not wait for it would get it first.
                writers.append(threading.Thread(target=write))
                writers[0].start()
                while writers[0].is_alive() and not waits(writers[0]):
                    writers[0].join(0.01)
            return super().note(name, args)

    checkpoint = empty_checkpoint()
    checkpoint["id"] = numbered(7)
    with substituted(WritingMeanwhile()) as calls:
        saver.put(first, checkpoint, {}, {})
        writers[0].join()
    assert [path for name, path in calls.calls if name == "open" and ".early" in str(path)] == []
    assert calls.names.count("fdatasync") + calls.names.count("fsync") == 4  # the token, the file, its name, the writes
    assert latest(fresh(saver)).pending_writes == [("task", "n", 1)]


def test_writes_that_are_there_already_are_synced_before_they_are_acknowledged_again(tmp_path):
    """Whoever wrote them first may have been killed between the write and its sync."""
    saver = TurnCheckpointSaver(tmp_path)
    thread = Thread(saver)
    thread.put({"n": 0})
    thread.write("once")
    with substituted(SystemCalls()) as calls:
        fresh(saver, fsync=True).put_writes(thread.config, [("messages", "once")], "task")
    assert calls.names.count("fdatasync") == 1
    assert len(latest(fresh(saver)).pending_writes) == 1


@pytest.mark.parametrize(("steps", "files"), [(7, 8), (8, 2), (20, 7), (31, 11), (32, 2)])
def test_messages_that_came_one_by_one_are_read_from_few_files(tmp_path, steps, files):
    """Of the last seven each is in the file of its step, eights and thirty-twos share one."""
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    thread, messages = Thread(saver), []
    for step in range(steps):
        messages.append(HumanMessage(f"message {step} " + "w" * 100, id=f"m{step}"))
        thread.put({"messages": list(messages)})
    assert opened(lambda: latest(fresh(saver))) <= files  # the ledger's among them
    thread.assert_whole(fresh(saver))


def test_early_writes_are_there_after_one_file(tmp_path):
    saver = TurnCheckpointSaver(tmp_path)
    Thread(saver).put({"n": 0})
    with substituted(SystemCalls()) as calls:
        saver.put_writes(addressed("thread", checkpoint_id=numbered(7)), [("n", 1)], "task")
    assert calls.names.count("fdatasync") + calls.names.count("fsync") == 2  # the file and its name


def test_a_fork_shares_with_the_checkpoint_it_starts_from(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    thread = Thread(saver)
    thread.put({"files": {"big": BLOB}})
    thread.put({"files": {"big": BLOB, "n": 1}})
    thread.config = thread.at(0)
    thread.put({"files": {"big": BLOB, "n": 2}})
    assert size_of(tmp_path) < 1_300_000
    thread.assert_whole(fresh(saver))


def test_a_changed_old_message_is_stored_and_little_else(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, fsync=False)
    thread = Thread(saver)
    messages = [HumanMessage("m" * 500, id=str(n)) for n in range(500)]
    thread.put({"messages": messages})
    messages[7].content = "changed in place"
    messages.append(HumanMessage("new", id="new"))
    checkpoint = thread.next({"messages": messages})
    checkpoint["channel_versions"] = {"messages": saver.get_next_version("1", None)}
    assert written(lambda: thread.put_checkpoint(checkpoint)) < 60_000
    assert latest(saver).checkpoint["channel_values"]["messages"][7].content == "changed in place"
    assert read(saver, thread.at(0)).checkpoint["channel_values"]["messages"][7].content == "m" * 500


# --- C40 ---


@pytest.fixture(scope="module")
def long_thread(tmp_path_factory):
    """A saver with a thread of 2,000 small checkpoints, written once for all tests that only read."""
    saver = TurnCheckpointSaver(tmp_path_factory.mktemp("long"), fsync=False)
    thread, calls = Thread(saver), []
    for step in range(2_000):
        if step in {10, 1_999}:
            with substituted(SystemCalls()) as recorded:
                thread.put({"step": step, "note": f"note {step}"})
            calls.append(recorded.names)
        else:
            thread.put({"step": step, "note": f"note {step}"})
    return thread, calls


def test_the_last_of_many_puts_makes_the_system_calls_of_an_early_one(long_thread):
    _, (early, late) = long_thread
    assert len(late) <= len(early) + 4


def test_the_latest_of_many_checkpoints_is_found_with_as_many_opened_files(long_thread, tmp_path):
    thread, _ = long_thread
    short = Thread(TurnCheckpointSaver(tmp_path, fsync=False))
    for step in range(10):
        short.put({"step": step})
    few = opened(lambda: fresh(short.saver).get_tuple(addressed("thread")))
    assert opened(lambda: fresh(thread.saver).get_tuple(addressed("thread"))) == few
    assert opened(lambda: fresh(thread.saver).get_tuple(thread.at(77))) == few
    assert latest(thread.saver).checkpoint["id"] == thread.ids[-1]


def test_a_limited_list_opens_as_many_files_as_it_gives(long_thread):
    thread, _ = long_thread

    def list_ten():
        assert [t.checkpoint["id"] for t in fresh(thread.saver).list(addressed("thread"), limit=10)] == thread.ids[
            :-11:-1
        ]

    assert opened(list_ten) <= 13
    assert opened(lambda: next(iter(fresh(thread.saver).list(addressed("thread"))))) <= 4
    before = addressed("thread", "", thread.ids[1_000])
    assert opened(lambda: list(fresh(thread.saver).list(addressed("thread"), before=before, limit=10))) <= 13
    assert opened(lambda: list(fresh(thread.saver).list(None, limit=10))) <= 15


def test_no_directory_of_a_long_thread_is_long(long_thread):
    thread, _ = long_thread
    sizes = [sum(1 for _ in directory.iterdir()) for directory in {p.parent for p in named(thread.saver.path, ".ckpt")}]
    assert sum(sizes) == 2_000
    assert max(sizes) < 8 * BUCKET_SIZE


def test_a_long_thread_lists_every_checkpoint_once_in_order(long_thread):
    thread, _ = long_thread
    found = [t.checkpoint["id"] for t in fresh(thread.saver).list(addressed("thread"))]
    assert found == thread.ids[::-1]


def test_thread_ids_and_stats_read_no_checkpoint(long_thread):
    thread, _ = long_thread
    assert opened(lambda: fresh(thread.saver).thread_ids()) <= 2
    assert opened(lambda: fresh(thread.saver).stats()) <= 4
    stats = thread.saver.stats()
    assert (stats.threads, stats.checkpoints, stats.files) == (1, 2_000, 2_001)
    assert stats.size_bytes == size_of(thread.saver.path)


def test_an_older_id_put_into_a_long_thread_is_found_in_its_place(long_thread):
    """Imports and forks with ids of their own come in any order."""
    thread, _ = long_thread
    other = Thread(thread.saver, "other")
    for number in (*range(900, 100, -1), 5_000, 3):
        other.put({"n": number}, number=number)
    found = [t.checkpoint["channel_values"]["n"] for t in fresh(thread.saver).list(addressed("other"))]
    assert found == sorted((*range(101, 901), 5_000, 3), reverse=True)
    assert latest(thread.saver, "other").checkpoint["channel_values"]["n"] == 5_000
    thread.saver.delete_thread("other")


# --- C47 ---


def test_memory_is_bounded_over_many_threads_and_checkpoints(tmp_path):
    """A quarter of the real thing; a saver that kept each checkpoint or each thread would be far above the bound."""
    script = textwrap.dedent("""
        import sys
        from langchain_core.messages import AIMessage
        from langgraph_turncheckpoint import TurnCheckpointSaver
        from tests.contract.storing import Thread

        def resident():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

        saver = TurnCheckpointSaver(sys.argv[1], fsync=False)
        warm = Thread(saver, "warm")
        for step in range(50):
            warm.put({"messages": [AIMessage("m" * 600, id=str(n)) for n in range(step)]})
        before = resident()
        for number in range(125):
            thread = Thread(saver, f"thread {number}")
            messages = []
            for step in range(20):
                messages.append(AIMessage("m" * 600, id=str(step)))
                thread.put({"messages": list(messages)})
        print(resident() - before)
    """)
    if sys.platform != "linux":
        pytest.skip("resident memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60_000
