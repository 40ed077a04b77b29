"""What a thread's processes have said outward, and whether what is stored and what the model is asked with agree with
it. Nothing is run or killed here.
"""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_turncheckpoint import TurnCheckpointSaver
from tests.crash.guarded_turns import invalid, refused
from tests.crash.storm_agent import PROMPT, RERUN, Looked, Round, digest, outcome_of

CHECKPOINTS: Final = "acknowledged checkpoints lost"
HISTORIES: Final = "histories that no provider takes"
RESULTS: Final = "recorded results lost, or told otherwise"
EFFECTS: Final = "effects that came twice"
UNTRUE: Final = "calls said not to have run that had"
MESSAGES: Final = "prompts and updates lost or doubled"
INBOX: Final = "inbox messages lost or doubled"
STUCK: Final = "threads that could not go on"
TEMPORARIES: Final = "temporaries left after a sweep"
JOURNALS: Final = "journals left behind complete turns"
DAMAGE: Final = "findings of verify"
KINDS: Final = (
    CHECKPOINTS,
    HISTORIES,
    RESULTS,
    EFFECTS,
    UNTRUE,
    MESSAGES,
    INBOX,
    STUCK,
    TEMPORARIES,
    JOURNALS,
    DAMAGE,
)


class Wrong(NamedTuple):
    """One thing that is wrong: what kind of thing, and which."""

    kind: str
    text: str


class Truth:
    """What is known of one thread, over all rounds."""

    def __init__(self) -> None:
        self._read = 0
        self._results: dict[str, str] = {}
        self._started: Counter[str] = Counter()
        #: Texts of messages that must be in every later history, once.
        self._must_be_there: set[str] = set()
        self._posted: set[str] = set()
        self._checkpoints: dict[str, list[int]] = {}
        self._newest = ""
        #: Whether the last round was cut off in a turn, and before it had begun one.
        self.was_in_turn = False

    def learn(self, given: Round) -> Iterator[Wrong]:
        """Go through what was said in the last round, in order."""
        self.was_in_turn = False
        asked = given.asked.read_bytes() if given.asked.exists() else b""
        given.asked.unlink(missing_ok=True)
        for line in self._unread(given.said):
            kind, *what = json.loads(line)
            if kind == "asked":
                history = pickle.load(io.BytesIO(asked[what[0] :]))
                yield from self._complaints("asked", history)
            elif kind == "started":
                yield from self._effect(what[0])
            else:
                self._note(kind, what)

    def look(self, given: Round, looked: Looked) -> Iterator[Wrong]:
        """Hold what there is after a whole round against what is known."""
        yield from self._complaints("stored", looked.history)
        for each in refused(looked.history):
            yield Wrong(HISTORIES, f"stored: {each}")
        texts = Counter(str(message.id) for message in looked.history)
        for message_id in sorted(self._posted):
            if texts[message_id] + looked.waiting.count(message_id) != 1:
                where = f"{texts[message_id]} times in the history, {looked.waiting.count(message_id)} in the inbox"
                yield Wrong(INBOX, f"{message_id} is there {where}")
        last = looked.history[-1]
        if looked.next or looked.is_busy or not isinstance(last, AIMessage) or last.tool_calls:
            yield Wrong(STUCK, f"it ends with {last!r}, next is {looked.next}, busy: {looked.is_busy}")
        directory = Path(TurnCheckpointSaver(given.store).store.thread(given.thread).path)
        names = sorted(path.name for path in directory.rglob("*") if path.is_file())
        yield from (Wrong(TEMPORARIES, name) for name in names if name.endswith(".tmp"))
        yield from (Wrong(JOURNALS, name) for name in names if name.endswith(".journal"))

    def stored(self, given: Round) -> Iterator[Wrong]:
        """Whether each checkpoint that was acknowledged since the last prune is there, and as it was."""
        saver = TurnCheckpointSaver(given.store)
        conf = {"thread_id": given.thread, "checkpoint_ns": ""}
        head = saver.get_tuple({"configurable": conf}) if self._newest else None
        if self._newest and (head is None or head.checkpoint["id"] < self._newest):
            yield Wrong(CHECKPOINTS, f"the head is older than {self._newest}")
        for checkpoint_id, said in self._checkpoints.items():
            found = saver.get_tuple({"configurable": {**conf, "checkpoint_id": checkpoint_id}})
            messages = None if found is None else found.checkpoint["channel_values"].get("messages", ())
            if messages is None or digest(messages) != said:
                yield Wrong(
                    CHECKPOINTS,
                    f"{checkpoint_id} with {said[0]} messages is {'gone' if not found else 'not as it was'}",
                )

    def forget_checkpoints(self) -> None:
        """Those that were seen to be there need not be looked at again."""
        self._checkpoints.clear()

    # --- what is said ---

    def _unread(self, path: Path) -> Sequence[bytes]:
        if not path.exists():
            return ()
        with path.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        self._read += len(lines)
        return lines.splitlines()

    def _note(self, kind: str, what: list[Any]) -> None:
        if kind == "checkpoint":
            self._checkpoints[what[0]] = what[1]
            self._newest = max(self._newest, what[0])
        elif kind == "pruning":
            self._checkpoints.clear()
        elif kind == "result":
            self._results.setdefault(*what)
        elif kind == "posted":
            self._posted.add(what[0])
        elif kind == "updated":
            self._must_be_there.add(what[0])
        elif kind in ("begun", "over"):
            self.was_in_turn = kind == "begun"

    def _effect(self, key: str) -> Iterator[Wrong]:
        self._started[key] += 1
        if key in self._results:
            yield Wrong(EFFECTS, f"{key} ran again, although its result was recorded: {self._results[key]}")
        elif self._started[key] > 1 and not key.startswith(RERUN):
            yield Wrong(EFFECTS, f"{key} took effect {self._started[key]} times")

    # --- what must hold of a history ---

    def _complaints(self, name: str, history: Sequence[BaseMessage]) -> Iterator[Wrong]:
        yield from (Wrong(HISTORIES, f"{name}: {each}") for each in invalid(history))
        answers = {message.tool_call_id: message for message in history if isinstance(message, ToolMessage)}
        for key, result in self._results.items():
            answer = answers.get(key)
            if answer is None or answer.content != result or answer.status != "success":
                told = "nothing" if answer is None else repr(answer.content)
                yield Wrong(RESULTS, f"{name}: {key} gave {result}, and the model is told {told}")
        for key, answer in answers.items():
            if outcome_of(answer) == "not_run" and self._started[key]:
                yield Wrong(UNTRUE, f"{name}: {key} is said not to have run")
        texts = Counter(str(message.content) for message in history if isinstance(message, HumanMessage))
        for text in sorted(self._must_be_there):
            if texts[text] != 1:
                yield Wrong(MESSAGES, f"{name}: {text} is there {texts[text]} times")
        for text in sorted(self._posted):
            if texts[text] > 1:
                yield Wrong(INBOX, f"{name}: {text} is there {texts[text]} times")
        self._must_be_there.update(text for text in texts if text.startswith(PROMPT))
