"""G7: messages for a busy thread wait in order, as private as checkpoints, until they are acknowledged."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.prompt_values import StringPromptValue
from langchain_core.prompts import HumanMessagePromptTemplate
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from langgraph_turncheckpoint import (
    DamagedCheckpointError,
    DamageWarning,
    Inbox,
    InvalidIdError,
    InvalidMessageError,
    RefusedValueError,
    ThreadClosedError,
    TurnCheckpointSaver,
    UnknownFormatError,
    UnserializableValueError,
)
from langgraph_turncheckpoint._frames import encode_frame
from langgraph_turncheckpoint._inbox_files import encode_item, parse_item
from langgraph_turncheckpoint.inbox import undelivered
from tests.contract.storing import Thread, fresh, named
from tests.unit.test_layout import ODD_IDS
from tests.unit.test_serde import KeyedCipher, Pickling

SERDES = {"default": None, "encrypting": EncryptedSerializer(KeyedCipher(b"key")), "custom": Pickling()}


@pytest.fixture(params=SERDES)
def any_saver(request, tmp_path):
    """A saver with each kind of serde."""
    return TurnCheckpointSaver(tmp_path / "store", serde=SERDES[request.param])


def texts(inbox: Inbox) -> list[Any]:
    return [message.content for message in inbox.pending()]


def items(saver: TurnCheckpointSaver) -> list[Path]:
    return named(saver.path, ".msg")


# --- what may be posted ---

MESSAGES = [
    HumanMessage("plain", id="h"),
    HumanMessage([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}], id="m"),
    HumanMessage("named", id="n", name="Ana", additional_kwargs={"at": 1.5}, response_metadata={"x": [None]}),
    SystemMessage("rule", id="s"),
    AIMessage("note of another agent", id="a"),
    ChatMessage(content="odd role", role="critic", id="c"),
    HumanMessage("Grüße, 你好, \N{FAMILY}, \U0001f469\u200d\U0001f4bb, \0, عربى", id="ü-\U0001f4bb"),
    HumanMessage("", id="empty"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_a_message_comes_back_equal_and_of_the_same_class(any_saver, message):
    assert any_saver.inbox("t").post(message) == message.id
    (found,) = fresh(any_saver).inbox("t").pending()
    assert type(found) is type(message)
    assert found == message


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("hi", HumanMessage("hi")),
        ("{braces} stay", HumanMessage("{braces} stay")),
        (("user", "hi"), HumanMessage("hi")),
        (["system", "rule"], SystemMessage("rule")),
        ({"role": "user", "content": "hi"}, HumanMessage("hi")),
        ({"type": "human", "content": "hi", "id": "own"}, HumanMessage("hi", id="own")),
        (HumanMessageChunk(content="hi"), HumanMessage("hi")),
        (AIMessageChunk(content="hi", id="own"), AIMessage("hi", id="own")),
    ],
    ids=repr,
)
def test_what_langchain_takes_for_a_message_can_be_posted(saver, given, made):
    inbox = saver.inbox("t")
    message_id = inbox.post(given)
    (found,) = inbox.pending()
    assert type(found) is type(made)
    assert found == made.model_copy(update={"id": message_id})
    assert made.id in (None, message_id)


def test_an_id_is_made_up_only_where_there_is_none_and_the_callers_message_is_not_changed(saver):
    message, inbox = HumanMessage("hi"), saver.inbox("t")
    first, second = inbox.post(message), inbox.post(message)
    assert message.id is None
    assert first != second
    assert [found.id for found in inbox.pending()] == [first, second]


REFUSED = [
    None,
    7,
    b"hi",
    [],
    [HumanMessage("one"), HumanMessage("two")],
    [HumanMessage("one")],
    ("user", "one", "two"),
    ("nobody", "hi"),
    {"content": "no role"},
    {"role": "user"},
    {"role": "user", "content": object()},
    StringPromptValue(text="prompt"),
    HumanMessagePromptTemplate.from_template("{x}"),
    ToolMessage("result", tool_call_id="1"),
    RemoveMessage(id="x"),
    AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}]),
    AIMessage("", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": None}]),
    AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(name="f", args="{}", id="1", index=0)]),
]


@pytest.mark.parametrize("given", REFUSED, ids=lambda given: repr(given)[:40])
def test_what_is_not_one_message_for_a_model_is_refused_and_nothing_is_touched(saver, given):
    with pytest.raises(InvalidMessageError) as caught:
        saver.inbox("t").post(given)
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not Path(saver.path).exists()


@pytest.mark.parametrize("message_id", ["", "\ud800"], ids=ascii)
def test_an_id_that_cannot_be_kept_is_refused(saver, message_id):
    with pytest.raises(InvalidIdError, match="message id"):
        saver.inbox("t").post(HumanMessage("hi", id=message_id))
    assert not Path(saver.path).exists()


def test_a_value_that_cannot_be_stored_is_named(saver):
    with pytest.raises(UnserializableValueError) as caught:
        saver.inbox("t").post(HumanMessage("hi", additional_kwargs={"deep": [1, object]}))
    assert caught.value.channel == "inbox"
    assert "['deep'][1]" in caught.value.path
    assert not Path(saver.path).exists()


def test_a_thread_id_is_checked_as_everywhere(saver):
    saver.inbox(7).post("hi")
    assert texts(saver.inbox("7")) == ["hi"]
    for thread_id in (None, True, 1.5):
        with pytest.raises(InvalidIdError):
            saver.inbox(thread_id)


def test_every_thread_id_has_an_inbox_of_its_own(saver):
    for thread_id in ODD_IDS:
        saver.inbox(thread_id).post(repr(thread_id))
    assert all(texts(fresh(saver).inbox(thread_id)) == [repr(thread_id)] for thread_id in ODD_IDS)


# --- posting and acknowledging ---


def test_the_same_id_posted_twice_is_kept_once(any_saver):
    inbox = any_saver.inbox("t")
    inbox.post(HumanMessage("first", id="1"))
    inbox.post(HumanMessage("other", id="2"))
    assert inbox.post(HumanMessage("repeated", id="1")) == "1"
    assert texts(inbox) == ["first", "other"]


def test_acknowledging_removes_what_is_named_and_clearing_everything(saver):
    inbox = saver.inbox("t")
    ids = [inbox.post(text) for text in "abcd"]
    saver.inbox("other").post("of the other")
    assert inbox.acknowledge([ids[2], ids[0], "unknown"]) == 2
    assert texts(inbox) == ["b", "d"]
    assert inbox.acknowledge(ids[1]) == 1
    assert inbox.acknowledge([]) == 0
    assert inbox.clear() == 1
    assert texts(inbox) == []
    assert texts(saver.inbox("other")) == ["of the other"]


async def test_the_async_twins_do_the_same(saver):
    inbox = saver.inbox("t")
    ids = [await inbox.apost(text) for text in ("a", "b", "c")]
    assert [message.id for message in await inbox.apending()] == ids
    assert await inbox.aacknowledge(ids[:1]) == 1
    assert await inbox.aclear() == 2
    await asyncio.gather(*(inbox.apost(str(number)) for number in range(30)))
    assert sorted(message.content for message in await inbox.apending()) == sorted(map(str, range(30)))


async def test_sync_methods_return_in_a_running_loop(saver):
    """C36."""
    inbox = saver.inbox("t")
    message_id = inbox.post("hi")
    assert texts(inbox) == ["hi"]
    assert inbox.acknowledge([message_id]) == 1
    assert inbox.clear() == 0


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def test_posting_during_a_run_fences_nobody_out_and_can_be_delivered_by_a_node(saver):
    config: Any = {"configurable": {"thread_id": "t"}}

    def work(state: State) -> State:
        saver.inbox("t").post("and bring milk")
        return {"messages": [AIMessage("working")]}

    def deliver(state: State) -> State:
        return {"messages": undelivered(saver.inbox("t").pending(), state["messages"])}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_node("deliver", deliver)
    builder.add_node("deliver_again", deliver)
    builder.add_edge(START, "work")
    builder.add_edge("work", "deliver")
    builder.add_edge("deliver", "deliver_again")
    builder.add_edge("deliver_again", END)
    result = builder.compile(checkpointer=saver).invoke({"messages": [HumanMessage("go")]}, config)
    assert [message.content for message in result["messages"]] == ["go", "working", "and bring milk"]
    assert saver.inbox("t").acknowledge([message.id for message in result["messages"]]) == 1


def test_what_a_history_has_already_is_not_delivered_again():
    waiting = [HumanMessage(text, id=text) for text in "abcb"]
    history = [HumanMessage("c", id="c"), ("user", "no message"), {"role": "user"}, AIMessage("without an id")]
    assert [message.id for message in undelivered(waiting, history)] == ["a", "b"]
    assert undelivered(waiting, waiting) == undelivered([], history) == []
    assert len(waiting) == len(history) == 4


# --- the thread's life ---


def test_a_closed_thread_takes_no_message(saver):
    inbox = saver.inbox("t")
    inbox.post("before")
    saver.close_thread("t")
    with pytest.raises(ThreadClosedError):
        inbox.post("late")
    assert texts(inbox) == ["before"]
    saver.reopen_thread("t")
    inbox.post("after")
    assert texts(inbox) == ["before", "after"]


def test_a_delete_takes_the_inbox_along_and_the_next_life_has_its_own(saver):
    inbox = saver.inbox("t")
    inbox.post("before")
    Thread(saver, "t").put({"x": 1})
    saver.delete_thread("t")
    assert texts(inbox) == []
    assert items(saver) == []
    inbox.post("after")
    assert texts(fresh(saver).inbox("t")) == ["after"]


def test_a_thread_that_is_an_inbox_only_can_be_deleted(saver):
    saver.inbox("t").post("hi")
    saver.delete_thread("t")
    assert items(saver) == []
    assert saver.verify() == []


def test_a_copy_leaves_the_sources_messages_behind_and_keeps_the_targets(any_saver):
    Thread(any_saver, "source").put({"x": 1})
    any_saver.inbox("source").post("for the source")
    any_saver.inbox("target").post("for the target")
    for _ in range(2):
        any_saver.copy_thread("source", "target")
        assert texts(any_saver.inbox("source")) == ["for the source"]
        assert texts(any_saver.inbox("target")) == ["for the target"]
    any_saver.copy_thread("source", "new")
    assert texts(any_saver.inbox("new")) == []
    assert any_saver.verify() == []


def test_copying_a_thread_that_is_an_inbox_only_copies_nothing(saver):
    saver.inbox("source").post("for the source")
    saver.inbox("target").post("for the target")
    saver.copy_thread("source", "target")
    saver.copy_thread("source", "new")
    assert [texts(saver.inbox(thread_id)) for thread_id in ("source", "target", "new")] == [
        ["for the source"],
        ["for the target"],
        [],
    ]
    assert saver.thread_ids() == []


def test_pruning_and_deleting_runs_spare_the_inbox(saver):
    thread = Thread(saver, "t", metadata={"run_id": "r"})
    thread.put({"x": 1})
    thread.put({"x": 2})
    saver.inbox("t").post("hi")
    saver.prune(["t"])
    saver.delete_for_runs(["r"])
    assert texts(saver.inbox("t")) == ["hi"]
    assert saver.thread_ids() == []


def test_an_inbox_alone_is_no_checkpoint_and_its_files_count(saver):
    saver.inbox("t").post("hi")
    assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
    assert list(saver.list(None)) == saver.thread_ids() == saver.verify() == []
    stats = saver.stats()
    assert (stats.threads, stats.checkpoints, stats.files) == (0, 0, 2)
    assert stats.size_bytes == sum(path.stat().st_size for path in Path(saver.path).rglob("*") if path.is_file())


# --- privacy and damage ---


def test_an_encrypting_serde_leaves_nothing_of_a_message_in_clear(tmp_path):
    """S8."""
    saver = TurnCheckpointSaver(tmp_path, serde=SERDES["encrypting"])
    saver.inbox("t").post(HumanMessage("the secret text", id="shown", name="secret name"))
    data = items(saver)[0].read_bytes()
    assert b"secret" not in data
    assert b"shown" in data


def test_plaintext_is_refused_where_the_serde_encrypts_and_the_other_way_round(tmp_path):
    """C57."""
    plain, encrypting = TurnCheckpointSaver(tmp_path), TurnCheckpointSaver(tmp_path, serde=SERDES["encrypting"])
    other_key = TurnCheckpointSaver(tmp_path, serde=EncryptedSerializer(KeyedCipher(b"another key")))
    for writer, readers in ((plain, [encrypting]), (encrypting, [plain, other_key])):
        writer.inbox("t").post("hi")
        for reader in readers:
            with pytest.raises(RefusedValueError, match=r"i-\d+\.msg"):
                reader.inbox("t").pending()
        assert texts(writer.inbox("t")) == ["hi"]
        writer.inbox("t").clear()


def test_a_damaged_message_is_passed_over_with_a_warning_kept_and_reported(saver):
    inbox = saver.inbox("t")
    for text in "abc":
        inbox.post(text)
    _, second, _ = items(saver)
    damaged = second.read_bytes()[:-2]
    second.write_bytes(damaged)
    with pytest.warns(DamageWarning, match=second.name) as warned:
        assert texts(inbox) == ["a", "c"]
    assert [warning.filename for warning in warned] == [__file__]
    strict = TurnCheckpointSaver(saver.path, strict=True).inbox("t")
    with pytest.raises(DamagedCheckpointError, match=second.name):
        strict.pending()
    assert second.read_bytes() == damaged
    assert [(finding.path, finding.kind) for finding in saver.verify()] == [(str(second), "damaged")]
    strict.post("d")
    with pytest.warns(DamageWarning):
        assert texts(inbox) == ["a", "c", "d"]


def test_a_message_under_the_name_of_another_is_damage(saver):
    inbox = saver.inbox("t")
    inbox.post(HumanMessage("a", id="1"))
    (path,) = items(saver)
    _, sealed = parse_item(path.read_bytes())
    for forged in (encode_item("2", sealed), encode_item("1", sealed._replace(data=b"\xc1"))):
        path.write_bytes(forged)
        with pytest.warns(DamageWarning, match=path.name):
            assert inbox.pending() == []


def test_a_message_of_a_newer_version_is_a_typed_error_and_is_reported(saver):
    inbox = saver.inbox("t")
    inbox.post("hi")
    (path,) = items(saver)
    newer = encode_frame(b"\x91\x02")
    path.write_bytes(newer)
    with pytest.raises(UnknownFormatError, match="format version 2"):
        inbox.pending()
    assert [finding.kind for finding in saver.verify()] == ["newer"]
    assert path.read_bytes() == newer


def test_what_lies_about_in_an_inbox_is_reported(saver):
    saver.inbox("t").post("hi")
    directory = items(saver)[0].parent
    (directory / "i-0000000000000001.msg.0123456789abcdef.tmp").write_bytes(b"half")
    (directory / "notes.txt").write_bytes(b"")
    (directory / "i-0000000000000002.msg").mkdir()
    assert [finding.kind for finding in saver.verify()] == ["temporary", "damaged", "foreign"]


def test_an_inbox_says_whose_it_is(saver):
    assert saver.inbox("t").thread_id == "t"
    assert repr(saver.inbox("t")) == "Inbox('t')"
