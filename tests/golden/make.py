"""Makes the golden files of the current format, with every kind of file and record that the format knows.

    python -m tests.golden.make            # a new format: writes tests/golden/format-<n>
    python -m tests.golden.make --replace  # while a format is unreleased

Files of a released format are never made again: that they still load is what they are for.
"""

from __future__ import annotations

import json
import shutil
import sys
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send

from langgraph_turncheckpoint import StorageError, TurnCheckpointSaver
from langgraph_turncheckpoint._records import FORMAT_VERSION
from tests.contract.storing import Thread, addressed, named, numbered
from tests.golden.reading import contents
from tests.unit.test_serde import KeyedCipher

HERE: Final = Path(__file__).parent
#: The key is no secret; the cipher is a toy of the tests.
ENCRYPTING: Final = EncryptedSerializer(KeyedCipher(b"golden key"))
CLOSED: Final = "closed"
DELETED: Final = "deleted"

ODD_VALUES: Final[dict[str, Any]] = {
    "set": {1, 2},
    "keys": {1: "one", (2, 3): "pair"},
    "when": datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
    "uuid": UUID(int=7),
    "decimal": Decimal("1.10"),
    "send": Send("node", {"k": 1}),
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"array"),
    "float": 1.5,
    "large": 1 << 63,
    "text": "\x00 é \U0001f600 \u05d0",
    "nested": [[["x" * 600]], {"a": {"b": []}}],
    "snapshot": _DeltaSnapshot([f"snapshot item {n} with some text around it" for n in range(40)]),
    "nothing": None,
}


class FixedThread(Thread):
    """A thread whose checkpoints are the same whenever they are made."""

    def next(self, values: Any, number: int | None = None) -> Any:
        """The next checkpoint with a time and versions that do not change."""
        checkpoint = super().next(values, number)
        checkpoint["ts"] = "2024-01-02T03:04:05+00:00"
        step = len(self.ids) + 1
        checkpoint["channel_versions"] = dict.fromkeys(values, f"{step:032}.5")
        checkpoint["versions_seen"] = {"node": dict.fromkeys(values, f"{step:032}.5")}
        return checkpoint


def _messages(count: int) -> list[Any]:
    call = {"name": "search", "args": {"query": "q", "n": 1}, "id": "call-0", "type": "tool_call"}
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 1}}
    messages: list[Any] = [
        SystemMessage("You are helpful.", id="s"),
        HumanMessage([{"type": "text", "text": "hello"}], id="h", name="somebody"),
        AIMessage("", id="a", tool_calls=[call], usage_metadata=usage, response_metadata={"model_name": "m"}),
        ToolMessage("result", tool_call_id="call-0", id="t", artifact={"rows": [1, 2]}),
        AIMessageChunk(content="chunk", id="c"),
        AIMessage("", id="i", additional_kwargs={"refusal": None}, invalid_tool_calls=[
            {"name": "f", "args": "{", "id": "x", "error": "cut", "type": "invalid_tool_call"}
        ]),
    ]  # fmt: skip
    return messages + [HumanMessage(f"message {n}: " + "word " * 12, id=f"m{n}") for n in range(count)]


def _conversation(saver: TurnCheckpointSaver, thread_id: str, checkpoint_ns: str = "") -> FixedThread:
    thread = FixedThread(saver, thread_id, checkpoint_ns, {"run_id": "run-1", "writes": {"node": ["x"]}})
    for step in range(4):
        thread.put({"messages": _messages(3 + step), "files": {"a.txt": "a" * 5_000, "n.txt": f"{step}"}, "step": step})
    thread.write("ordinary", {"nested": ["y" * 2_000]}, task_id="00000000-0000-0000-0000-000000000001")
    saver.put_writes(
        thread.config, [("__interrupt__", [Interrupt(value="ask", id="i")])], "task-2", "~__pregel_pull, n"
    )
    saver.put_writes(
        thread.config, [("__interrupt__", [Interrupt(value="again", id="i")])], "task-2", "~__pregel_pull, n"
    )
    return thread


def fill(saver: TurnCheckpointSaver) -> None:
    """Put every kind of thing into a store."""
    _conversation(saver, "conversation")
    _conversation(saver, "conversation", "child:1|grandchild:2")
    FixedThread(saver, "Odd / id: é").put(ODD_VALUES)
    FixedThread(saver, "x" * 300, "n" * 300).put({"n": 1})

    early = FixedThread(saver, "early")
    early.put({"n": 1})
    saver.put_writes(addressed("early", "", numbered(2)), [("n", "early " * 200)], "task")
    early.put({"n": 2})
    saver.put_writes(addressed("early", "", numbered(3)), [("n", "still early")], "task")

    # More pages than a node lists by itself, so that an index is written.
    long = FixedThread(saver, "long")
    items = [f"item {n:05} of a list that needs an index of its pages" for n in range(1_700)]
    for count in (1_600, 1_601, 1_700):
        long.put({"items": items[:count]})

    pruned = _conversation(saver, "pruned")
    saver.prune(["pruned"])
    pruned.put({"messages": _messages(9), "step": 5})

    again = FixedThread(saver, "put again")
    for n in range(2):
        again.put({"messages": _messages(4 + n)})
    again.config = addressed("put again")
    again.put({"messages": _messages(1)}, number=1)

    _conversation(saver, DELETED)
    saver.delete_thread(DELETED)
    FixedThread(saver, CLOSED).put({"n": 1})
    saver.close_thread(CLOSED)
    saver.copy_thread("conversation", "copy")


def main() -> None:
    """Write the store, an encrypted one, and what they hold."""
    target = HERE / f"format-{FORMAT_VERSION}"
    if target.exists():
        if sys.argv[1:] != ["--replace"]:
            sys.exit(f"{target} exists; released files stay as they are")
        shutil.rmtree(target)
    expected = {}
    for name, serde in (("plain", None), ("encrypted", ENCRYPTING)):
        saver = TurnCheckpointSaver(target / name, serde=serde)
        fill(saver)
        for ending in (".ckpt", ".pages", ".early", "turn"):
            if not named(target / name, ending):
                raise StorageError(0, f"no file {ending} was made")
        expected[name] = contents(TurnCheckpointSaver(target / name, serde=serde))
    (target / "expected.json").write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
