"""The operations of the saver that the fault lab lets fail, a store for them to work on, and what can be read from it.
How they fail, and whether the outcome is right, is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_turncheckpoint import ThreadBusyError, TurnCheckpointSaver
from langgraph_turncheckpoint._checkpoint_files import load_file, seen_writes
from langgraph_turncheckpoint._layout import CHECKPOINT_SUFFIX, EARLY_SUFFIX
from tests.contract.storing import addressed, named, numbered, packed

MAIN: Final = "main"
OTHER: Final = "other"
CLOSED: Final = "closed"
TARGET: Final = "target"
FRESH: Final = "fresh"
THREADS: Final = (MAIN, OTHER, CLOSED, TARGET, FRESH)
#: Messages in the oldest checkpoint of a thread: enough for a page that later ones refer to.
FIRST_COUNT: Final = 34


def messages(count: int) -> list[BaseMessage]:
    """A history of so many messages."""
    kinds: tuple[type[BaseMessage], ...] = (HumanMessage, AIMessage)
    return [kinds[n % 2](f"message {n}: " + "word " * 12, id=f"m{n}") for n in range(count)]


def at(number: int, thread_id: str = MAIN, checkpoint_ns: str = "") -> RunnableConfig:
    """Addresses the checkpoint of a number."""
    return addressed(thread_id, checkpoint_ns, numbered(number))


def put(
    saver: TurnCheckpointSaver, config: RunnableConfig, number: int, *, count: int = 0, **metadata: Any
) -> RunnableConfig:
    """Put the checkpoint of a number behind the one that is addressed; the same bytes each time."""
    version = f"{number:032}.5"
    values = {"messages": messages(count or FIRST_COUNT + number), "step": number}
    checkpoint: Any = {
        "v": 4,
        "id": numbered(number),
        "ts": "2024-01-02T03:04:05+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, version),
        "versions_seen": {"node": dict.fromkeys(values, version)},
        "updated_channels": [*values],
    }
    described: Any = {"source": "loop", "step": number, **metadata}
    return saver.put(config, checkpoint, described, dict.fromkeys(values, version))


def in_a_run(config: RunnableConfig) -> RunnableConfig:
    """The config as a LangGraph run passes it that has not touched the thread yet."""
    return joined(config, {"__pregel_runtime": SimpleNamespace(control=object())})


def joined(config: RunnableConfig, more: dict[str, Any]) -> RunnableConfig:
    """A config with more in it."""
    return {"configurable": {**config["configurable"], **more}}


def fill(saver: TurnCheckpointSaver) -> None:
    """Every kind of file, in as few of them as will do."""
    place: RunnableConfig = addressed(MAIN)
    for number in (1, 2):
        with saver.turn(addressed(MAIN)) as held:
            put(saver, joined(place, dict(held["configurable"])), number, run_id=f"run-{number}")
        place = at(number)
    put(saver, place, 3, run_id="run-3")
    saver.put_writes(at(3), [("messages", "pending"), ("step", 7)], "task-1")
    saver.put_writes(at(4), [("messages", "early" * 100)], "task-early")
    put(saver, addressed(MAIN, "child"), 2, count=2, run_id="run-1")
    for n in (1, 2):
        saver.inbox(MAIN).post(HumanMessage(f"posted {n}", id=f"posted-{n}"))
    put(saver, put(saver, addressed(OTHER), 1), 2)
    saver.prune([OTHER])
    put(saver, addressed(CLOSED), 1, count=1)
    saver.close_thread(CLOSED)
    put(saver, addressed(TARGET), 20, count=1)


# --- what can be read ---


def spelled(found: CheckpointTuple | None) -> Any:
    """A checkpoint in a form that can be compared exactly."""
    if found is None:
        return None
    return (
        found.config["configurable"],
        found.parent_config and found.parent_config["configurable"],
        packed(found.checkpoint),
        packed(found.metadata),
        found.pending_writes,
    )


class View(NamedTuple):
    """What can be read from a store.

    Attributes:
        items: Every checkpoint, message in an inbox, batch of early writes and closed thread, each with its content.
        tokens: The token of each thread.
    """

    items: dict[tuple[str, ...], Any]
    tokens: dict[str, int]


def view(path: str | Path) -> View:
    """What a saver that remembers nothing reads."""
    saver = TurnCheckpointSaver(path, fsync=False)
    items: dict[tuple[str, ...], Any] = {}
    for found in saver.list(None):
        conf = found.config["configurable"]
        items["checkpoint", conf["thread_id"], conf["checkpoint_ns"], conf["checkpoint_id"]] = spelled(found)
    tokens = {}
    for thread_id in THREADS:
        for message in saver.inbox(thread_id).pending():
            items["message", thread_id, str(message.id)] = message.content
        state = saver.store.thread(thread_id).ledger.read()
        tokens[thread_id] = 0 if state is None else state.token
        if state is None:
            continue
        if state.closed:
            items["closed", thread_id] = True
        for early in named(saver.store.thread(thread_id).generation(state), EARLY_SUFFIX):
            if not early.with_suffix(CHECKPOINT_SUFFIX).exists():
                image = load_file(str(early))
                if image is not None and (seen := seen_writes(image)):
                    items["early", thread_id, early.name] = seen
    return View(items, tokens)


# --- operations ---


class Scene:
    """A store, the saver that works on it, and somebody else who may hold its main thread."""

    def __init__(self, path: Path, *, is_warm: bool = False, is_busy: bool = False) -> None:
        self.path, self.saver = path, TurnCheckpointSaver(path)
        self.holder = ExitStack()
        if is_busy:
            self.holder.enter_context(TurnCheckpointSaver(path).turn(addressed(MAIN)))
        if is_warm:
            # It remembers the pages and the end of the newest file, and has swept.
            self.saver.put_writes(at(3), [("messages", "pending")], "task-1")
            self.saver.get_tuple(addressed(MAIN))

    def close(self) -> None:
        """Nobody holds the thread any more."""
        self.holder.close()


class Operation(NamedTuple):
    """One operation.

    Attributes:
        name: For messages.
        act: Does it, and gives what it reads.
        kind: "step": wholly or not at all; "pieces": item by item; "read": changes nothing.
        is_warm: Whether its saver has worked before.
        is_busy: Whether somebody else holds the main thread.
        may_be_done: Whether it may have been done although it raised: undoing could fail just the same, or what is
            left to do changes nothing that can be read.
    """

    name: str
    act: Callable[[Scene], Any]
    kind: Literal["step", "pieces", "read"] = "step"
    is_warm: bool = False
    is_busy: bool = False
    may_be_done: bool = False


def _opened(scene: Scene, *, thread_id: str = MAIN, **options: Any) -> str:
    try:
        with scene.saver.turn(addressed(thread_id), **options):
            return "held"
    except ThreadBusyError:
        return "busy"


def _opened_with_a_put(scene: Scene) -> None:
    with scene.saver.turn(addressed(MAIN)) as held:
        put(scene.saver, joined(at(3), dict(held["configurable"])), 5)


def _waited_for(scene: Scene) -> bool:
    """Stand in line, and get the thread when its holder has ended."""
    store = scene.saver.store
    pending = store.pending_turn(MAIN, strategy="enqueue")
    try:
        while (turn := pending.attempt()) is None:
            scene.close()
        store.settle_turn(MAIN, turn, "completed")
        return True
    finally:
        pending.abandon()


def _written_in_a_run(scene: Scene) -> None:
    config = in_a_run(at(3))
    scene.saver.put_writes(config, [("messages", "a"), ("messages", "b" * 2_000)], "task-2")


def _a_run(scene: Scene) -> None:
    """What LangGraph does in a step."""
    run = in_a_run(addressed(MAIN))
    scene.saver.get_tuple(run)
    put(scene.saver, joined(at(3), dict(run["configurable"]) | {"checkpoint_id": numbered(3)}), 5)


def _posted(scene: Scene, thread_id: str) -> str:
    return scene.saver.inbox(thread_id).post(HumanMessage("posted", id="posted-3"))


OPERATIONS: Final = (
    Operation("put", lambda s: put(s.saver, at(3), 5)),
    Operation("put, warm", lambda s: put(s.saver, at(3), 5), is_warm=True),
    Operation("put in a run", lambda s: put(s.saver, in_a_run(at(3)), 5)),
    Operation("read and put in a run, warm", _a_run, is_warm=True),
    Operation("put after early writes", lambda s: put(s.saver, at(3), 4)),
    Operation("put of the same id", lambda s: put(s.saver, at(2), 3, count=5), may_be_done=True),
    Operation("put of a pruned id", lambda s: put(s.saver, addressed(OTHER), 1), may_be_done=True),
    Operation("first put", lambda s: put(s.saver, addressed(FRESH), 1)),
    Operation("put_writes", lambda s: s.saver.put_writes(at(3), [("messages", "b" * 2_000)], "task-2")),
    Operation("put_writes in a run, warm", _written_in_a_run, is_warm=True),
    Operation("put_writes, early", lambda s: s.saver.put_writes(at(9), [("messages", "early")], "task-2")),
    Operation("put_writes, early again", lambda s: s.saver.put_writes(at(4), [("messages", "early")], "task-2")),
    Operation("get_tuple", lambda s: spelled(s.saver.get_tuple(addressed(MAIN))), "read"),
    Operation("get_tuple by id", lambda s: spelled(s.saver.get_tuple(at(2))), "read"),
    Operation("get_tuple, pruned", lambda s: spelled(s.saver.get_tuple(addressed(OTHER))), "read"),
    Operation("list", lambda s: [spelled(found) for found in s.saver.list(addressed(MAIN))], "read"),
    Operation("list of all", lambda s: [spelled(found) for found in s.saver.list(None)], "read"),
    Operation(
        "get_delta_channel_history",
        lambda s: s.saver.get_delta_channel_history(config=at(3), channels=["step", "none"]),
        "read",
    ),
    Operation("delete_thread", lambda s: s.saver.delete_thread(MAIN), may_be_done=True),
    Operation("delete_for_runs", lambda s: s.saver.delete_for_runs(["run-1", "run-2"]), "pieces"),
    Operation("prune", lambda s: s.saver.prune([MAIN]), "pieces"),
    Operation("prune, delete", lambda s: s.saver.prune([OTHER], strategy="delete"), may_be_done=True),
    Operation("copy_thread", lambda s: s.saver.copy_thread(MAIN, FRESH), may_be_done=True),
    Operation("copy_thread into another", lambda s: s.saver.copy_thread(MAIN, TARGET), may_be_done=True),
    Operation("turn", _opened),
    Operation("turn with a put", _opened_with_a_put, may_be_done=True),
    Operation("turn on a fresh thread", lambda s: _opened(s, thread_id=FRESH)),
    Operation("turn, interrupt", _opened, is_busy=True),
    Operation("turn, reject", lambda s: _opened(s, multitask_strategy="reject"), is_busy=True),
    Operation("turn, rollback", lambda s: _opened(s, multitask_strategy="rollback"), is_busy=True),
    Operation("turn, in vain", lambda s: _opened(s, multitask_strategy="enqueue", timeout=0.0), is_busy=True),
    Operation("turn, waited for", _waited_for, is_busy=True),
    Operation("turns", lambda s: s.saver.turns(MAIN), "read"),
    Operation("is_busy", lambda s: s.saver.is_busy(MAIN), "read"),
    Operation("is_busy, busy", lambda s: s.saver.is_busy(MAIN), "read", is_busy=True),
    Operation("cancel_turn", lambda s: s.saver.cancel_turn(MAIN, reason="user")),
    Operation("cancel_turn, busy", lambda s: s.saver.cancel_turn(MAIN, reason="user"), is_busy=True),
    Operation("close_thread", lambda s: s.saver.close_thread(MAIN), may_be_done=True),
    Operation("reopen_thread", lambda s: s.saver.reopen_thread(CLOSED), may_be_done=True),
    Operation("inbox.post", lambda s: _posted(s, MAIN)),
    Operation("inbox.post, first", lambda s: _posted(s, FRESH)),
    Operation("inbox.pending", lambda s: [m.content for m in s.saver.inbox(MAIN).pending()], "read"),
    Operation("inbox.acknowledge", lambda s: s.saver.inbox(MAIN).acknowledge(["posted-1", "posted-2"]), "pieces"),
    Operation("inbox.clear", lambda s: s.saver.inbox(MAIN).clear(), "pieces"),
    Operation("thread_ids", lambda s: s.saver.thread_ids(), "read"),
    Operation("stats", lambda s: s.saver.stats(), "read"),
    Operation("verify", lambda s: s.saver.verify(), "read"),
)
