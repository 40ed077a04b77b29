"""C48, C49, C53 to C59, C66, C67, S8: odd ids, odd values, hostile files and secrets, read and on the disk."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_turncheckpoint import (
    DamagedCheckpointError,
    InvalidIdError,
    LossyTextWarning,
    RefusedValueError,
    TurnCheckpointSaver,
    UnresolvedTypeWarning,
    UnserializableValueError,
)
from langgraph_turncheckpoint._records import Sealed, encode_file, parse_file
from tests.contract.storing import (
    Thread,
    addressed,
    file_of,
    files_below,
    fresh,
    latest,
    named,
    noticed,
    numbered,
    packed,
    read,
)
from tests.langgraph_versions import needs_data_of_lost_classes
from tests.unit.test_layout import ODD_IDS
from tests.unit.test_serde import JsonOnly, KeyedCipher, Pickling, attacks

ENCRYPTING = EncryptedSerializer(KeyedCipher(b"key"))


@pytest.fixture
def quick(tmp_path):
    """A saver that does not wait for the disk."""
    return TurnCheckpointSaver(tmp_path / "store", fsync=False)


# --- ids ---


def test_any_string_is_a_thread_of_its_own_and_none_leaves_the_root(quick, tmp_path):
    """C48."""
    (tmp_path / "outside").write_text("untouched")
    for thread_id in ODD_IDS:
        Thread(quick, thread_id).put({"id": repr(thread_id)})
    for thread_id in ODD_IDS:
        assert latest(quick, thread_id).checkpoint["channel_values"] == {"id": repr(thread_id)}
        assert len(list(fresh(quick).list(addressed(thread_id)))) == 1
    assert sorted(fresh(quick).thread_ids()) == sorted(ODD_IDS)
    assert len(list(fresh(quick).list(None))) == len(ODD_IDS)
    assert sorted(os.listdir(tmp_path)) == ["outside", "store"]
    components = {part for name in files_below(quick.path) for part in Path(name).parts}
    assert all(re.fullmatch(r"[a-z0-9._-]{1,255}", part) for part in components)
    quick.delete_thread("Room")
    quick.delete_thread("..")
    assert sorted(fresh(quick).thread_ids()) == sorted(set(ODD_IDS) - {"Room", ".."})
    assert quick.verify() == []


def test_namespaces_are_told_apart_four_levels_deep(quick):
    """C49."""
    uuid = "1ef00000-0000-6000-8000-000000000001"
    namespaces = ["", "top", f"top:{uuid}", f"top:{uuid}|mid:{uuid}", f"top:{uuid}|mid:{uuid}|low:{uuid}|leaf:{uuid}"]
    namespaces += ["top|mid", "top:mid", "top.mid", "TOP", "|", ":", "é", "n" * 400, "../..", "\ud800"]
    for namespace in namespaces:
        Thread(quick, "thread", namespace).put({"ns": repr(namespace)})
    for namespace in namespaces:
        found = latest(quick, "thread", namespace)
        assert found.checkpoint["channel_values"] == {"ns": repr(namespace)}
        assert found.config["configurable"]["checkpoint_ns"] == namespace
    everywhere = fresh(quick).list({"configurable": {"thread_id": "thread"}})
    assert sorted(t.config["configurable"]["checkpoint_ns"] for t in everywhere) == sorted(namespaces)
    assert [t.checkpoint["channel_values"]["ns"] for t in fresh(quick).list(addressed("thread"))] == ["''"]


@pytest.mark.parametrize(
    "checkpoint_id", ["../../../x", "A", "a", "a:b", "a.b", "1", "é", "e\u0301", "con", "x" * 200, "\n"]
)
def test_any_short_string_is_a_checkpoint_id(quick, checkpoint_id):
    thread = Thread(quick)
    checkpoint = thread.next({"n": 1})
    checkpoint["id"] = checkpoint_id
    thread.put_checkpoint(checkpoint)
    thread.write("w")
    child = thread.next({"n": 2}, 5)
    thread.put_checkpoint(child)
    found = read(quick, addressed("thread", "", checkpoint_id))
    assert found.checkpoint["id"] == checkpoint_id
    assert found.pending_writes == [("task", "messages", "w")]
    assert read(quick, thread.at(1)).parent_config == addressed("thread", "", checkpoint_id)
    assert os.listdir(Path(quick.path).parent) == ["store"]


@pytest.mark.parametrize("checkpoint_id", ["x" * 5_000, "É" * 100, "x" * 201])
def test_a_checkpoint_id_too_long_for_a_file_name_is_an_invalid_id_and_changes_nothing(quick, checkpoint_id):
    thread = Thread(quick)
    thread.put({"n": 1})
    before = files_below(quick.path)
    address = addressed("thread", "", checkpoint_id)
    checkpoint = thread.next({"n": 2})
    checkpoint["id"] = checkpoint_id
    for operation in (
        lambda: quick.get_tuple(address),
        lambda: quick.put_writes(address, [("c", 1)], "task"),
        lambda: quick.put(thread.config, checkpoint, {}, {}),
        lambda: quick.put(address, thread.next({"n": 2}), {}, {}),
        lambda: list(quick.list(address)),
    ):
        with pytest.raises(InvalidIdError, match="checkpoint_id"):
            operation()
        assert files_below(quick.path) == before


@pytest.mark.parametrize("checkpoint_id", ["x" * 5_000, "x" * 100_000])
def test_a_turn_pointed_at_an_impossible_checkpoint_id_does_not_damage_the_ledger(quick, checkpoint_id):
    """A run that starts with such an id opens a turn, too, and the ledger's slots have a fixed size."""
    thread = Thread(quick)
    thread.put({"n": 1})
    runtime = types.SimpleNamespace(control=object())
    in_a_run = {"configurable": {"thread_id": "thread", "checkpoint_id": checkpoint_id, "__pregel_runtime": runtime}}
    for operation in (
        lambda: quick.get_tuple(in_a_run),
        lambda: quick.turn(addressed("thread", "", checkpoint_id)).__enter__(),
    ):
        with pytest.raises(InvalidIdError):
            operation()
    assert quick.verify() == []
    assert quick.thread_ids() == ["thread"]
    thread.put({"n": 2})
    thread.assert_whole(fresh(quick))


@pytest.mark.parametrize(
    "config", [{}, {"configurable": {}}, {"configurable": {"thread_id": None}}, {"configurable": None}, None]
)
def test_a_missing_thread_id_is_a_value_error_and_makes_nothing(quick, config):
    """C59."""
    checkpoint = Thread(quick).next({})
    for operation in (
        lambda: quick.get_tuple(config),
        lambda: quick.put(config, checkpoint, {}, {}),
        lambda: quick.put_writes(config, [("c", 1)], "task"),
        lambda: quick.turn(config),
        lambda: quick.get_delta_channel_history(config=config, channels=["c"]),
        lambda: (config is not None and list(quick.list(config))) or quick.get_tuple(config),
        lambda: quick.delete_thread(None),
        lambda: quick.prune([None]),
        lambda: quick.copy_thread("a", None),
    ):
        with pytest.raises(InvalidIdError) as caught:
            operation()
        assert isinstance(caught.value, ValueError)
    assert not Path(quick.path).exists()


@pytest.mark.parametrize("thread_id", [True, 1.5, b"x", ["x"], object()])
def test_other_thread_ids_are_value_errors(quick, thread_id):
    with pytest.raises(InvalidIdError, match="not a string, an int or a UUID"):
        quick.get_tuple(addressed(thread_id))


def test_a_number_or_uuid_and_its_text_are_one_thread(quick):
    Thread(quick, 1).put({"n": "one"})
    Thread(quick, UUID(int=7)).put({"n": "uuid"})
    assert latest(quick, "1").checkpoint["channel_values"] == {"n": "one"}
    assert latest(quick, str(UUID(int=7))).checkpoint["channel_values"] == {"n": "uuid"}
    assert sorted(quick.thread_ids()) == sorted(["1", str(UUID(int=7))])
    quick.delete_thread(1)
    assert quick.get_tuple(addressed("1")) is None


# --- filters ---


@pytest.mark.parametrize(
    "key",
    [
        "'; DROP TABLE checkpoints; --",
        "a.b",
        "$where",
        "",
        "__class__",
        "\x00",
        "step'",
        "../x",
        "source OR 1=1",
        "\ud800",
        7,
        None,
    ],
)
@pytest.mark.parametrize("value", ["x", 1, {"$ne": 1}, ["x"]])
def test_hostile_filter_keys_find_nothing(quick, key, value):
    """C55."""
    Thread(quick).put({"n": 1})
    assert list(quick.list(addressed("thread"), filter={key: value})) == []
    assert list(quick.list(None, filter={key: value, "source": "loop"})) == []


def test_filters_compare_whole_values(quick):
    thread = Thread(quick)
    thread.put({"n": 1}, metadata={"tags": ["a", "b"], "nested": {"k": 1}})
    assert len(list(quick.list(None, filter={"tags": ["a", "b"], "nested": {"k": 1}, "source": "loop"}))) == 1
    wrong: dict[str, Any]
    for wrong in ({"tags": ["a"]}, {"nested": {}}, {"source": "lo"}, {"step": "0"}):
        assert list(quick.list(None, filter=wrong)) == []


# --- what cannot be stored ---


def test_a_value_that_cannot_be_stored_is_named_and_nothing_is_written(quick):
    """C53."""
    thread = Thread(quick)
    thread.put({"messages": ["x"]})
    before = files_below(quick.path)
    bad = {"a": [1, {"b": lambda: 0}]}
    message = AIMessage("x", additional_kwargs={"deep": {"er": lambda: 0}})

    def put(changes, metadata=None):
        return lambda: quick.put(thread.config, {**thread.next({}), **changes}, metadata or {}, {})

    for operation, channel, path in (
        (put({"channel_values": {"ok": 1, "state": bad}}), "state", "['a'][1]['b']"),
        (put({"channel_values": {"messages": [message]}}), "messages", "[0].additional_kwargs['deep']['er']"),
        (put({}, {"writes": bad}), "metadata", "['writes']['a'][1]['b']"),
        (put({"versions_seen": bad}), "checkpoint", "['versions_seen']['a'][1]['b']"),
        (lambda: quick.put_writes(thread.config, [("ok", 1), ("state", bad)], "task"), "state", "['a'][1]['b']"),
    ):
        with pytest.raises(UnserializableValueError) as caught:
            operation()
        assert (caught.value.channel, caught.value.path) == (channel, path)
        assert {k: v for k, v in files_below(quick.path).items() if not k.endswith("turn")} == {
            k: v for k, v in before.items() if not k.endswith("turn")
        }
    thread.put({"messages": ["y"]})
    thread.assert_whole(fresh(quick))


@pytest.mark.timeout(5)  # a search for what is to blame must end
@pytest.mark.parametrize("kind", ["list", "dict", "large dict", "deep list", "deep dict"])
def test_a_value_that_contains_itself_or_is_too_deep_is_a_typed_error(quick, kind):
    loop: list[object] = []
    loop.append(loop)
    ring: dict[str, object] = {}
    ring["ring"] = ring
    large: dict[str, object] = {"big": "x" * 9_000}
    large["large"] = large
    deep_list: list[object] = []
    deep_dict: dict[str, object] = {}
    for _ in range(5_000):
        deep_list, deep_dict = [deep_list], {"d": deep_dict}
    value = {"list": loop, "dict": ring, "large dict": large, "deep list": deep_list, "deep dict": deep_dict}[kind]
    with pytest.raises(UnserializableValueError) as caught:
        quick.put(addressed("thread"), {**Thread(quick).next({}), "channel_values": {"state": value}}, {}, {})
    assert caught.value.channel == "state"
    assert named(quick.path, ".ckpt") == []


# --- text ---


def test_odd_and_large_text_is_exact(quick):
    """C54."""
    texts = ["\x00", "a\x00b", "\u202eRTL \u05d0\u05d1", "\U0001f468\u200d\U0001f469", "\ufeff\ufffe", "x" * 10_000_000]
    thread = Thread(quick)
    thread.put(
        {"texts": texts, "keys": {text[:50]: text for text in texts}, "messages": [HumanMessage(t) for t in texts]}
    )
    thread.write(texts[-1], task_id="\x00 task \u202e")
    thread.assert_whole(fresh(quick))
    assert latest(quick).pending_writes == [("\x00 task \u202e", "messages", texts[-1])]


@pytest.mark.parametrize(
    "values",
    [
        {"text": "\ud800"},
        {"messages": [HumanMessage("broken \ud83d emoji")]},
        {"files": {"a.txt": "\udcff" * 3_000, "b.txt": "fine" * 3_000}},
        {"deep": {"er": {"list": ["\ud800", "x" * 6_000]}}},
    ],
)
def test_a_lone_surrogate_is_stored_with_a_warning(quick, values):
    serde = JsonPlusSerializer()
    thread = Thread(quick)
    with pytest.warns(LossyTextWarning):
        thread.put(values)
    assert latest(quick).checkpoint["channel_values"] == serde.loads_typed(serde.dumps_typed(values))
    with pytest.warns(LossyTextWarning):
        thread.write(next(iter(values.values())))


@pytest.mark.parametrize("value", [{"\ud800": "x"}, {"\ud800": ["x"] * 5_000}, {"k": {"\ud800": {"x": "y" * 5_000}}}])
def test_a_key_that_is_no_text_is_stored_with_a_warning_or_an_error_that_names_its_channel(quick, value):
    blamed = ""
    with noticed() as warned:
        try:
            quick.put(addressed("thread"), {**Thread(quick).next({}), "channel_values": {"state": value}}, {}, {})
        except UnserializableValueError as error:
            blamed = error.channel
    assert blamed == "state" or set(warned) == {"LossyTextWarning"}


# --- hostile files ---


def tampered(saver: TurnCheckpointSaver, checkpoint_id: str, change: Callable[[Sealed], Sealed]) -> None:
    """Change the pages in a checkpoint's file as somebody who can compute checksums would."""
    path = file_of(saver, checkpoint_id)
    image = parse_file(path.read_bytes())
    assert image.body.blobs, "the test wants a page to change"
    body = image.body._replace(blobs=[change(blob) for blob in image.body.blobs])
    path.write_bytes(encode_file(image.kind, body))


@pytest.mark.parametrize(
    "attack", ["one argument", "positional", "keywords", "popen", "nested in a dict", "in a delta snapshot", "eval"]
)
def test_a_tampered_file_that_names_code_is_refused_and_nothing_runs(quick, attack, tmp_path):
    """C56."""
    target = tmp_path / "made-by-the-attack"
    thread = Thread(quick)
    thread.put({"n": "older"})
    thread.put({"state": [{1: "x" * 2_000}]})
    tampered(quick, thread.ids[1], lambda _: Sealed("s:msgpack", attacks(target)[attack]))
    for attempt in (
        lambda: fresh(quick).get_tuple(addressed("thread")),
        lambda: fresh(quick).get_tuple(thread.at(1)),
        lambda: list(fresh(quick, strict=True).list(addressed("thread"))),
    ):
        with pytest.raises(RefusedValueError):
            attempt()
    with noticed() as warned:
        assert [t.checkpoint["id"] for t in fresh(quick).list(addressed("thread"))] == [thread.ids[0]]
    assert warned
    assert not target.exists()


@pytest.mark.parametrize("tag", ["s:json", "s:pickle", "json", "pickle", "c:pickle", "p|pickle"])
@pytest.mark.parametrize("serde", [JsonPlusSerializer(), JsonPlusSerializer(pickle_fallback=True), ENCRYPTING])
def test_a_page_tagged_as_anything_but_what_we_write_is_refused(tmp_path, tag, serde):
    saver = TurnCheckpointSaver(tmp_path, serde=serde, fsync=False)
    thread = Thread(saver)
    thread.put({"state": ["x" * 2_000]})
    tampered(saver, thread.ids[0], lambda blob: Sealed(tag, blob.data))
    with pytest.raises(RefusedValueError):
        fresh(saver).get_tuple(addressed("thread"))


def test_a_page_of_nonsense_behind_a_right_checksum_is_damage(quick):
    thread = Thread(quick)
    for tag in ("p", "m", "s:msgpack"):
        for data in (b"", b"\xc1", b"\x01", b"\x93\x01", ormsgpack.packb({"a": 1}), b"\x92\xc5\x00\x01\x00\x01"):
            thread.config = addressed(f"{tag}{data!r}")
            thread.put({"state": ["x" * 2_000]}, number=1)
            (newest,) = named(quick.path, ".ckpt")
            image = parse_file(newest.read_bytes())
            body = image.body._replace(blobs=[Sealed(tag, data) for _ in image.body.blobs])
            newest.write_bytes(encode_file(image.kind, body))
            with noticed(), pytest.raises((DamagedCheckpointError, RefusedValueError)):
                fresh(quick).get_tuple(thread.config)
            newest.unlink()


# --- keys ---

SECRETS = [
    "secret-value",
    "secret-metadata",
    "secret_channel",
    "secret-write",
    "secret-key-of-a-dict",
    "secret_write_channel",
]


def put_secrets(saver):
    thread = Thread(saver, metadata={"note": "secret-metadata"})
    for n in range(3):
        messages = [HumanMessage("secret-value " * 200, id=f"m{k}") for k in range(n + 1)]
        thread.put(
            {
                "secret_channel": messages,
                "files": {"secret-key-of-a-dict": {"secret-key-of-a-dict": "x" * 5_000}},
                "n": n,
            }
        )
        thread.write("secret-write" * (1 + 300 * n), channel="secret_write_channel")
    saver.put_writes(
        addressed("thread", "", thread.next({}, 50)["id"]), [("secret_write_channel", "secret-write")], "t"
    )
    saver.copy_thread("thread", "copy")
    saver.prune(["copy"])
    return thread


def aes():
    pytest.importorskip("Crypto.Cipher.AES", exc_type=ImportError)
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


@pytest.mark.parametrize("made", [lambda: ENCRYPTING, aes], ids=["a toy cipher", "AES"])
def test_nothing_of_what_is_stored_can_be_read_without_the_key(tmp_path, made):
    saver = TurnCheckpointSaver(tmp_path, serde=made(), fsync=False)
    thread = put_secrets(saver)
    for name, data in files_below(tmp_path).items():
        assert [secret for secret in SECRETS if secret.encode() in data] == [], name
        assert b"HumanMessage" not in data
    thread.assert_whole(TurnCheckpointSaver(tmp_path, serde=made()))
    found: Any = latest(saver)
    assert found.metadata["note"] == "secret-metadata"
    assert found.pending_writes[0][1] == "secret_write_channel"
    assert saver.verify() == [], "verifying needs no key"
    keyless = TurnCheckpointSaver(tmp_path)
    assert sorted(keyless.thread_ids()) == ["copy", "thread"]
    assert keyless.stats().checkpoints == 4


def test_a_plaintext_file_in_an_encrypted_store_is_refused(tmp_path):
    """C57."""
    plain = TurnCheckpointSaver(tmp_path / "plain", fsync=False)
    secret = TurnCheckpointSaver(tmp_path / "secret", serde=ENCRYPTING, fsync=False)
    for thread in (Thread(plain), Thread(secret)):
        for n in range(2):
            thread.put({"messages": ["m" * 2_000] * (n + 1)})
            thread.write("pending")
    newest = numbered(2)
    file_of(secret, newest).write_bytes(file_of(plain, newest).read_bytes())
    for attempt in (
        lambda: fresh(secret).get_tuple(addressed("thread")),
        lambda: fresh(secret).get_tuple(addressed("thread", "", newest)),
        lambda: list(fresh(secret, strict=True).list(None)),
    ):
        with pytest.raises(RefusedValueError):
            attempt()


def test_plaintext_writes_in_an_encrypted_store_are_refused(tmp_path):
    plain = TurnCheckpointSaver(tmp_path / "plain", fsync=False)
    secret = TurnCheckpointSaver(tmp_path / "secret", serde=ENCRYPTING, fsync=False)
    for thread in (Thread(plain), Thread(secret)):
        thread.put({"n": 1})
        thread.write("planted")
    own, planted = file_of(secret, numbered(1)), file_of(plain, numbered(1)).read_bytes()
    data = own.read_bytes()
    own.write_bytes(data[: data.index(b"WRIT")] + planted[planted.index(b"WRIT") :])
    assert len(parse_file(own.read_bytes()).records) == 1
    with pytest.raises(RefusedValueError):
        fresh(secret).get_tuple(addressed("thread"))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (ENCRYPTING, EncryptedSerializer(KeyedCipher(b"another key"))),
        (ENCRYPTING, None),
        (None, ENCRYPTING),
        (Pickling(), None),
        (JsonOnly(), None),
        (None, JsonOnly()),
        (None, Pickling()),
    ],
    ids=[
        "another key",
        "no key",
        "a key for plaintext",
        "custom by default",
        "json by default",
        "default by json",
        "default by custom",
    ],
)
def test_a_store_is_refused_by_another_serde_and_read_by_its_own_again(tmp_path, written, read):
    saver = TurnCheckpointSaver(tmp_path, serde=written, fsync=False)
    thread = Thread(saver)
    thread.put({"messages": ["m" * 2_000]})
    thread.put({"messages": ["m" * 2_000, "n" * 2_000]})
    with pytest.raises(RefusedValueError):
        TurnCheckpointSaver(tmp_path, serde=read).get_tuple(addressed("thread"))
    thread.assert_whole(TurnCheckpointSaver(tmp_path, serde=written))


@pytest.mark.parametrize("serde", [JsonOnly(), Pickling()], ids=["json only", "custom"])
def test_a_custom_serde_stores_everything_and_shares_pages(tmp_path, serde):
    saver = TurnCheckpointSaver(tmp_path, serde=serde, fsync=False)
    thread = Thread(saver)
    for n in range(40):
        thread.put({"items": [f"item {k} " * 30 for k in range(n)], "files": {"big": "x" * 50_000, "n": n}})
        thread.write({"n": n}, task_id=f"t{n}")
    assert sum(map(len, files_below(tmp_path).values())) < 250_000
    thread.assert_whole(fresh(saver))
    assert latest(saver).pending_writes == [("t39", "messages", {"n": 39})]
    saver.prune(["thread"])
    thread.assert_whole(fresh(saver), thread.ids[-1:])


def test_a_custom_serde_that_tells_tuples_from_lists_gets_each_change_between_them(tmp_path):
    saver = TurnCheckpointSaver(tmp_path, serde=Pickling(), fsync=False)
    thread = Thread(saver)
    for point in ((1, 2), [1, 2], (1, 2)):
        checkpoint = thread.next({"items": [{"at": point, "text": "t" * 900}] * 3})
        checkpoint["channel_versions"] = {"items": saver.get_next_version(str(len(thread.ids)), None)}
        thread.put_checkpoint(checkpoint)
        assert latest(saver).checkpoint["channel_values"]["items"][0]["at"] == point


# --- privacy ---


def test_directories_and_files_are_for_their_owner_only(tmp_path):
    """S8."""
    before = os.umask(0)
    try:
        saver = TurnCheckpointSaver(tmp_path / "deep" / "store")
        thread = put_secrets(saver)
        file_of(saver, thread.ids[0]).write_bytes(b"damaged")
        thread.config = addressed("thread")
        with noticed():
            thread.put({"n": 0}, number=1)
    finally:
        os.umask(before)
    for directory, _, names in os.walk(tmp_path / "deep"):
        assert os.stat(directory).st_mode & 0o777 == 0o700, directory
        for name in names:
            assert os.stat(os.path.join(directory, name)).st_mode & 0o777 == 0o600, name


def test_redacted_metadata_never_reaches_the_disk(tmp_path):
    """C58."""
    saver = TurnCheckpointSaver(tmp_path, redact=("api_key", "token", "missing"), fsync=False)
    config = addressed("thread")
    config["configurable"].update(api_key="sk-secret", user="somebody")
    config["metadata"] = {"token": "tk-secret", "plain": "kept"}
    config = saver.put(config, Thread(saver).next({"n": 1}), {"source": "loop", "step": 1}, {})
    found: Any = latest(saver)
    assert (found.metadata["api_key"], found.metadata["token"]) == ("[redacted]", "[redacted]")
    assert (found.metadata["user"], found.metadata["plain"], found.metadata["step"]) == ("somebody", "kept", 1)
    assert "missing" not in found.metadata
    assert "api_key" not in config["configurable"]
    for data in files_below(tmp_path).values():
        assert b"-secret" not in data
    assert TurnCheckpointSaver(tmp_path, redact="api_key")._redact == {"api_key"}


# --- what others wrote ---


def test_old_versions_and_unknown_keys_come_back_unchanged(quick):
    """C66."""
    common = {"ts": "2024", "versions_seen": {}}
    checkpoint: Any
    for number, checkpoint in enumerate(
        (
            {**common, "v": 1, "id": "a", "channel_values": {"x": 1}, "channel_versions": {"x": 1}},
            {
                **common,
                "v": 2,
                "id": "b",
                "channel_values": {},
                "channel_versions": {"x": "1.5"},
                "pending_sends": [{}],
            },
            {
                **common,
                "v": 99,
                "id": "c",
                "channel_values": {"x": [1]},
                "channel_versions": {"x": 1.5},
                "future": [{2: 3}],
            },
            {"v": 4, "ts": None, "id": "d", "channel_values": {"x": 1}, "updated_channels": None, "": b"\x00"},
            {"id": "e", "channel_values": {"only": "this"}},
        )
    ):
        quick.put(addressed(f"thread {number}"), checkpoint, {"source": "input", "step": -2, "unknown": {"k": [1]}}, {})
        found: Any = latest(quick, f"thread {number}")
        assert found.checkpoint == checkpoint
        assert packed(dict(sorted(found.checkpoint.items()))) == packed(dict(sorted(checkpoint.items())))
        assert found.metadata["unknown"] == {"k": [1]}
        assert found.metadata["step"] == -2


def test_a_put_changes_neither_its_checkpoint_nor_its_metadata_nor_its_config(quick):
    thread = Thread(quick)
    checkpoint, metadata = thread.next({"messages": ["x"] * 100}), {"source": "loop", "step": 1}
    before = packed([checkpoint, metadata, thread.config])
    quick.put(thread.config, checkpoint, metadata, {})
    assert packed([checkpoint, metadata, thread.config]) == before


def test_what_is_read_can_be_changed_without_changing_what_is_stored(quick):
    thread = Thread(quick)
    thread.put({"messages": [{"n": 1}] * 50, "files": {"a": {"b": "x" * 5_000}}})
    found = quick.get_tuple(addressed("thread"))
    found.checkpoint["channel_values"]["messages"][0]["n"] = 2
    found.checkpoint["channel_values"]["files"]["a"]["b"] = "y"
    found.metadata["step"] = 99
    thread.assert_whole(quick)
    assert latest(quick).metadata["step"] == 0


@needs_data_of_lost_classes
def test_a_class_that_has_moved_gives_its_data_with_a_warning_and_the_list_works(quick, monkeypatch):
    """C67."""
    module: Any = types.ModuleType("moved_module")
    monkeypatch.setitem(sys.modules, "moved_module", module)
    made = dataclasses.make_dataclass("Gone", ["x"])
    made.__module__ = "moved_module"
    module.Gone = made
    thread = Thread(quick)
    for n in range(3):
        thread.put({"state": [made(x=n)], "n": n})
    thread.write(made(x="pending"))
    monkeypatch.delitem(sys.modules, "moved_module")
    with pytest.warns(UnresolvedTypeWarning, match=r"moved_module\.Gone"):
        found = latest(quick)
    assert found.checkpoint["channel_values"] == {"state": [{"x": 2}], "n": 2}
    assert found.pending_writes == [("task", "messages", {"x": "pending"})]
    with pytest.warns(UnresolvedTypeWarning):
        assert len(list(fresh(quick).list(addressed("thread")))) == 3
    thread.saver = fresh(quick)
    with pytest.warns(UnresolvedTypeWarning):
        thread.put({"state": "replaced", "n": 3})
