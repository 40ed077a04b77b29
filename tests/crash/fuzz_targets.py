"""What the fuzzer fuzzes: for each decoder of stored bytes, what must hold for any bytes, where to begin, and how to
make checksums right so that changed bytes get behind them. Nothing is fuzzed here, and no fuzzer is needed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from xxhash import xxh3_64_digest, xxh3_64_intdigest, xxh3_128_digest

from langgraph_turncheckpoint import RefusedValueError, StorageError, TurnCheckpointSaver, _frames, _layout, _messages
from langgraph_turncheckpoint import _records as records
from langgraph_turncheckpoint._checkpoint_files import NamespaceFiles, checked
from langgraph_turncheckpoint._inbox_files import Item, encode_item, item_number, parse_item
from langgraph_turncheckpoint._journal import journal_path, journal_token, read_journal
from langgraph_turncheckpoint._loading import LoadedFile
from langgraph_turncheckpoint._records import MalformedError, NewerFormatError
from langgraph_turncheckpoint._serde import ValueCodec
from langgraph_turncheckpoint._sharing import Known
from langgraph_turncheckpoint._transcript import CallKey, Transcript, decode_records
from langgraph_turncheckpoint._turn import assemble_turns
from langgraph_turncheckpoint._turn_log import LOG_NAME, TurnLog, _encoded, record_of
from langgraph_turncheckpoint._turns import parse_journal_header
from langgraph_turncheckpoint._waiting import ticket_number
from langgraph_turncheckpoint.errors import UnserializableValueError
from langgraph_turncheckpoint.inbox import Inbox
from tests.contract.storing import named
from tests.crash import damaged_store

CODEC: Final = ValueCodec(JsonPlusSerializer())
#: A file system has no longer names.
NAME_LIMIT: Final = 255

_SCRATCH: Final = tempfile.TemporaryDirectory(prefix="turncheckpoint-fuzz-")


class Target(NamedTuple):
    """A decoder.

    Attributes:
        name: On the command line, and of its corpus.
        check: Fails if anything is wrong about these bytes.
        mend: Makes checksums and lengths right.
        seeds: Bytes to begin with.
    """

    name: str
    check: Callable[[bytes], None]
    mend: Callable[[bytes], bytes]
    seeds: Callable[[], Sequence[bytes]]


def _kept(data: bytes) -> bytes:
    return data


def _stored(ending: str) -> Callable[[], list[bytes]]:
    """The files of a small store whose names end so."""

    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory() as path:
            damaged_store.fill(TurnCheckpointSaver(path, fsync=False))
            return [file.read_bytes() for file in named(path, ending) if file.is_file()]

    return seeds


# --- checkpoint files ---


def _mend_file(data: bytes) -> bytes:
    """A file whose header and records check, whatever they say."""
    if len(data) < records.HEADER_SIZE:
        return data
    start = records.MAGIC + data[len(records.MAGIC) : 12]
    (length,) = struct.unpack_from("<Q", data, 16)
    end = records.HEADER_SIZE + min(length, len(data) - records.HEADER_SIZE)
    body = data[records.HEADER_SIZE : end]
    start += struct.pack("<IQ", zlib.crc32(start), len(body))
    mended = start + xxh3_128_digest(start + body) + body
    while end + records.RECORD_HEADER_SIZE <= len(data):
        tag, length = data[end : end + 4], int.from_bytes(data[end + 4 : end + 8], "little")
        payload = data[end + records.RECORD_HEADER_SIZE :][:length]
        head = tag + len(payload).to_bytes(4, "little")
        mended += head + zlib.crc32(head).to_bytes(4, "little") + xxh3_64_digest(payload) + payload
        end += records.RECORD_HEADER_SIZE + len(payload)
    return mended + data[end:]


def _plain(section: records.Section) -> Any:
    def sealed(each: records.Sealed) -> tuple[str, bytes]:
        return each.tag, bytes(each.data)

    return (
        section.fields,
        section.first_blob,
        section.refs,
        sealed(section.head),
        [sealed(blob) for blob in section.blobs],
    )


def _check_records(data: bytes) -> None:
    """A file is refused, or what it says is said again by a file made of it."""
    try:
        image = records.parse_file(data)
        image.body.refs.unpacked()
    except (MalformedError, NewerFormatError):
        return
    try:
        again = [records.encode_record(kind, section) for kind, section in image.records]
        copy = records.parse_file(records.encode_file(image.kind, image.body, b"".join(again)))
    except TypeError:
        return  # fields that only msgpack's other dialects can say
    assert not copy.damage
    assert _plain(copy.body) == _plain(image.body)
    assert [(kind, _plain(section)) for kind, section in copy.records] == [
        (kind, _plain(section)) for kind, section in image.records
    ]


def _check_checkpoint(data: bytes) -> None:
    """A checkpoint is refused with a typed error, or all of it can be read."""
    try:
        image = checked("file", data)
        file = LoadedFile(CODEC, NamespaceFiles(os.path.join(_SCRATCH.name, "none"), fsync=False), "id", image)
        _ = file.parent_id, file.token
        head, known = file.head(), Known()
        file.values(head, known)
        file.writes(known=known)
    except (StorageError, RefusedValueError):
        return


# --- frames, and what is in them ---


def _mend_frames(data: bytes) -> bytes:
    """Every stretch that begins like a frame is one."""
    parts = data.split(_frames.MAGIC)
    mended = parts[0]
    for part in parts[1:]:
        payload = part[12:]
        length = len(payload).to_bytes(4, "little")
        mended += _frames.MAGIC + length + xxh3_64_intdigest(length + payload).to_bytes(8, "little") + payload
    return mended


def _check_frames(data: bytes) -> None:
    """Payloads and damage account for every byte before the end, in order."""
    found = _frames.split_frames(data)
    stretches = sorted(found.damaged)
    assert stretches == found.damaged
    size = sum(end - start for start, end in stretches) + sum(len(p) + 16 for p in found.payloads)
    assert size == found.end <= len(data)
    sound = b"".join(map(_frames.encode_frame, found.payloads))
    assert _frames.split_frames(sound) == (found.payloads, len(sound), [])
    for cut in {0, len(sound) // 2, max(0, len(sound) - 1)}:
        kept = _frames.split_frames(sound[:cut]).payloads
        assert all(payload in sound for payload in kept)


def _written(name: str, data: bytes) -> str:
    path = os.path.join(_SCRATCH.name, name)
    Path(path).write_bytes(data)
    return path


def _check_log(data: bytes) -> None:
    """Whatever a log holds becomes records of turns, and its entries can be written again."""
    _written(LOG_NAME, data)
    try:
        content = TurnLog(_SCRATCH.name, fsync=False).read()
    except StorageError:
        return
    for turn in assemble_turns(content.entries, current=3, is_live=lambda token: token == 3):
        record_of(turn, None)
    _written(LOG_NAME, b"".join(map(_encoded, content.entries)))
    assert TurnLog(_SCRATCH.name, fsync=False).read().entries == content.entries


def _check_journal(data: bytes) -> None:
    """Whatever a journal holds becomes a transcript that can be asked everything."""
    content = read_journal(_written(os.path.basename(journal_path("", 1)), data))
    assert content is not None
    if content.header is not None:
        with contextlib.suppress(MalformedError, NewerFormatError):
            parse_journal_header(content.header)
    try:
        found, _ = decode_records(CODEC, content.payloads)
    except RefusedValueError:
        return
    transcript = Transcript()
    transcript.add(1, found)
    _ = transcript.timeline, transcript.call_evidence(), transcript.is_empty
    for key in (*damaged_store.CALLS, CallKey(None, "call-0", "pay")):
        transcript.facts(key)
        transcript.consumed(key)
        transcript.token_of(key)


def _check_inbox(data: bytes) -> None:
    """A message is refused with a typed error, or is a message of that id."""
    try:
        message_id, sealed = parse_item(data)
    except (MalformedError, NewerFormatError):
        return
    try:
        message = Inbox("thread", None, CODEC, strict=True)._open(Item("path", message_id, sealed))  # type: ignore[arg-type]
    except (StorageError, RefusedValueError):
        return
    assert isinstance(message, BaseMessage)
    assert message.id == message_id
    assert parse_item(encode_item(message_id, sealed)) == (message_id, (sealed.tag, bytes(sealed.data)))


# --- ledgers ---


def _mend_ledger(data: bytes) -> bytes:
    """Slots and the thread's id check, whatever they say."""
    data = data.ljust(records.LEDGER_ID_OFFSET, b"\x00")
    mended = b""
    for at in (0, records.SLOT_SIZE):
        slot = records.LEDGER_MAGIC + data[at + 4 : at + records.SLOT_SIZE]
        length = min(int.from_bytes(slot[12:14], "little"), records.SLOT_SIZE - 14 - 8 - 1)
        start = slot[:12] + length.to_bytes(2, "little") + slot[14 : 14 + length]
        mended += (start + xxh3_64_digest(start) + slot[len(start) + 8 :])[: records.SLOT_SIZE]
    rest = data[records.LEDGER_ID_OFFSET :]
    if len(rest) > 16:
        start = records.LEDGER_MAGIC + (len(rest) - 16).to_bytes(4, "little") + rest[8:-8]
        rest = start + xxh3_64_digest(start)
    return mended + rest


def _check_ledger(data: bytes) -> None:
    """A slot is ignored, or says what a slot made of it says, in the types that decisions are made with."""
    slot, is_doubtful = records.parse_slots(data)
    assert isinstance(is_doubtful, bool)
    if slot is not None:
        state = slot.state
        assert all(type(number) is int for number in (slot.serial, state.token, state.generation, state.epoch))
        assert type(state.closed) is bool
        assert type(state.deleted_upto) is type(state.base) is str
        assert records.parse_slot(records.encode_slot(slot)) == slot
    thread_id = records.parse_ledger_id(data)
    if thread_id is not None:
        whole = bytes(records.LEDGER_ID_OFFSET) + records.encode_ledger_id(thread_id)
        assert records.parse_ledger_id(whole) == thread_id


# --- messages, values and names ---

_MESSAGE_CLASSES: Final = (HumanMessage, AIMessage, ToolMessage, SystemMessage)


def _check_messages(data: bytes) -> None:
    """Bytes are no page of messages, or give what the classes' own constructors give."""
    try:
        found = _messages.unpack_messages(data)
    except ValueError:
        return
    codes, packed = _messages.split_messages(data)
    for code, values, message in zip(codes, ormsgpack.unpackb(packed), found, strict=True):
        cls = _MESSAGE_CLASSES[code]
        assert type(message) is cls
        try:
            expected = cls(**values)
        except Exception:  # noqa: BLE001 - what validation refuses is kept as it is
            expected = cls.model_construct(**values)
        assert repr(vars(message)) == repr(vars(expected))
        assert message.model_fields_set == expected.model_fields_set or values.keys() == message.model_fields_set
    again = _messages.pack_messages(found)
    if again is not None:
        repeated = _messages.unpack_messages(_messages.join_messages(*again))
        assert [repr(vars(each)) for each in repeated] == [repr(vars(each)) for each in found]


def _check_values(data: bytes) -> None:
    """A page is refused with a typed error, or is a list that can be packed and read again."""
    tag, _, rest = data.partition(b"\n")
    sealed = records.Sealed({b"m": "m", b"p": "p", b"s": "s:msgpack"}.get(tag, tag.decode("latin-1")), rest)
    try:
        items, page = CODEC.open_page(sealed, learn=True)
    except (RefusedValueError, ValueError):
        return
    assert type(items) is list
    assert page is not None
    try:
        stored = CODEC.seal_page(CODEC.page(items), items)
    except UnserializableValueError:
        return
    again, _ = CODEC.open_page(stored, learn=False)
    assert repr(again) == repr(items)


def _check_names(data: bytes) -> None:
    """A name is of others, or is the only one that its id has."""
    name = data[:NAME_LIMIT].decode("utf-8", "surrogateescape")
    for kind, component in (("t", _layout.thread_component), ("n", _layout.namespace_component)):
        found = _layout.literal_id(kind, name)
        if found is not None and len(name) <= _layout.LITERAL_LIMIT + 2:
            assert component(found) == name
        made = component(name)
        assert _layout.is_component(kind, made)
        assert _layout.literal_id(kind, made) in (None, name) or made.startswith(f"{kind}_")
    bound = _layout.bucket_bound(name)
    assert bound is None or _layout.bucket_component(bound) == name
    found = _layout.checkpoint_id_of(name)
    assert found is None or _layout.checkpoint_stem(found) + _layout.CHECKPOINT_SUFFIX == name
    assert _layout.checkpoint_ids_of([name]) == ([] if found is None else [found])
    for number, again in (
        (_layout.generation_of(name), _layout.generation_component),
        (journal_token(name), lambda token: os.path.basename(journal_path("", token))),
        (ticket_number(name), lambda ticket: f"q-{ticket}"),
    ):
        assert number is None or again(number) == name
    item_number(name)


def _pages() -> list[bytes]:
    messages: list[BaseMessage] = [
        SystemMessage("s", id="s"),
        HumanMessage([{"type": "text", "text": "h"}], id="h", name="n"),
        AIMessage("", id="a", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c", "type": "tool_call"}]),
        ToolMessage("r", tool_call_id="c", id="t", artifact={"a": [1]}),
        AIMessage("u", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    ]
    packed = [_messages.pack_messages(each) for each in ([m] for m in messages)]
    return [_messages.join_messages(*each) for each in packed if each is not None]


def _values() -> list[bytes]:
    seeds = [b"m\n" + page for page in _pages()]
    for value in ({"a": [1, None, 2.5]}, {1, 2}, ("x", b"y"), damaged_store.history(2), complex(1, 2)):
        try:
            sealed = CODEC.seal_page(CODEC.page([value]), [value])
        except UnserializableValueError:
            continue
        seeds.append(sealed.tag[:1].encode() + b"\n" + bytes(sealed.data))
    return seeds


def _names() -> list[bytes]:
    names = [_layout.thread_component(text) for text in ("a", "A b/é", "x" * 300, "")]
    names += [_layout.bucket_component("id"), _layout.checkpoint_stem("1ef0-a") + ".ckpt", "g-12", "j-3.journal", "q-4"]
    return [name.encode() for name in [*names, "n-child.3a1", "i-0000000000000001.msg"]]


def _quietly(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def quiet(data: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(data)

    return quiet


TARGETS: Final = {
    target.name: target
    for target in (
        Target("records", _quietly(_check_records), _mend_file, _stored(".ckpt")),
        Target("checkpoint", _quietly(_check_checkpoint), _mend_file, _stored(".ckpt")),
        Target("frames", _quietly(_check_frames), _mend_frames, _stored(".journal")),
        Target("ledger", _quietly(_check_ledger), _mend_ledger, _stored("turn")),
        Target("log", _quietly(_check_log), _mend_frames, _stored("turns")),
        Target("journal", _quietly(_check_journal), _mend_frames, _stored(".journal")),
        Target("inbox", _quietly(_check_inbox), _mend_frames, _stored(".msg")),
        Target("messages", _quietly(_check_messages), _kept, _pages),
        Target("values", _quietly(_check_values), _kept, _values),
        Target("names", _quietly(_check_names), _kept, _names),
    )
}
