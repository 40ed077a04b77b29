"""From a checkpoint's file to what LangGraph gets: heads, values, writes, and what the next save may share.
It reads; nothing is written and no turn is looked at.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias

import ormsgpack
from langgraph.checkpoint.base import PendingWrite

from ._checkpoint_files import NamespaceFiles
from ._decoder import Decoder
from ._encoder import Encoder
from ._records import (
    WRITES,
    BlobRef,
    Image,
    MalformedError,
    Sealed,
    Section,
    pack_refs,
    unpack_id,
)
from ._serde import ValueCodec
from ._sharing import INLINE, INLINE_SEALED, LIST, Known, Node, Shape, StoredNode
from .errors import DamagedCheckpointError, RefusedValueError, UnserializableValueError

#: A head from this size on is compressed.
COMPRESSED_BYTES: Final = 384
_WINDOW_BITS: Final = 12
_MEMORY_LEVEL: Final = 5

_PLAIN: Final = b"\x00"
_COMPRESSED: Final = b"\x01"


class Changes(NamedTuple):
    """The versions of a checkpoint's channels, and of those that changed."""

    versions: Mapping[str, object]
    new_versions: Mapping[str, object]


class Body(NamedTuple):
    """An encoded checkpoint: its section, and what the next save wants to know of it."""

    section: Section
    shapes: dict[str, Shape | None]
    nodes: dict[str, Node]


class WriteMark(NamedTuple):
    """Which task has written to which channels, in one go, and in which turn; 0 outside any turn."""

    token: int
    channels: frozenset[str]
    task_id: str = ""


class Head(NamedTuple):
    """What the head of a checkpoint says, before any value is decoded."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    channels: dict[str, Node]


def encode_inline(codec: ValueCodec, name: str, value: Any) -> Node:
    """A node that holds a whole value in the head, whatever its size.

    Raises:
        UnserializableValueError: The serde cannot write it; the error names where.
    """
    try:
        page = codec.page([value])
    except UnserializableValueError:
        raise codec.explain(name, value) from None
    if codec.is_plain(page):
        return [INLINE, value]
    return [INLINE_SEALED, *codec.seal_page(page, [value])]


def encode_values(
    codec: ValueCodec,
    encoder: Encoder,
    values: Mapping[str, Any],
    changes: Changes,
) -> tuple[dict[str, Node], dict[str, Shape | None]]:
    """Nodes and shapes of channel values.

    A channel whose version is still the parent's keeps what the parent has stored. Its value may be newer:
    under `durability="async"` the run goes on while a save waits for the one before it, and some channels
    and reducers change their value in place.

    Raises:
        UnserializableValueError: The serde cannot write one; the error names channel and path.
    """
    nodes, shapes = {}, {}
    for channel, value in values.items():
        if channel not in changes.new_versions and encoder.is_stored(channel, changes.versions.get(channel)):
            nodes[channel], shapes[channel] = encoder.repeat(channel)
            continue
        try:
            nodes[channel], shapes[channel] = encoder.encode(value, channel)
        except UnserializableValueError:
            raise codec.explain(channel, value) from None
    return nodes, shapes


def stored_nodes(
    nodes: Mapping[str, Node], versions: Mapping[str, object], own: BlobRef, refs: list[BlobRef]
) -> dict[str, StoredNode]:
    """How a checkpoint's channels are stored, for the checkpoint after it."""
    return {
        channel: StoredNode(versions[channel], ormsgpack.packb(node), own, refs)
        for channel, node in nodes.items()
        if channel in versions
    }


#: By task id and index: the task path, the channel, and the value, not yet decoded.
_FoundWrites: TypeAlias = dict[tuple[str, int], tuple[str, str, tuple[Decoder, Node]]]


class LoadedFile:
    """One checkpoint's file, decoded on demand.

    Args:
        codec: Decodes values.
        files: The namespace, for pages in other files.
        checkpoint_id: The checkpoint.
        image: Its parsed file.
        images: Files already read, by checkpoint id; shared between loads of one call.
    """

    def __init__(
        self,
        codec: ValueCodec,
        files: NamespaceFiles,
        checkpoint_id: str,
        image: Image,
        images: dict[str, Image] | None = None,
    ) -> None:
        self._codec, self._files, self.checkpoint_id, self.image = codec, files, checkpoint_id, image
        self._pages: NamespaceFiles | None = None
        self._images = {} if images is None else images
        self._images[checkpoint_id] = image

    @property
    def path(self) -> str:
        """The file, for messages."""
        return self._files.file(self.checkpoint_id)

    @property
    def parent_id(self) -> str | None:
        """The parent checkpoint's id."""
        return unpack_id(self.image.body.fields[2])

    @property
    def token(self) -> int:
        """The token of the turn that wrote the checkpoint; 0 outside any turn."""
        return int(self.image.body.fields[3])

    def head(self) -> Head:
        """What the head says.

        Raises:
            DamagedCheckpointError: It makes no sense.
            RefusedValueError: It must not be loaded.
        """
        body = self.image.body
        try:
            checkpoint, metadata, channels = _unpacked_head(self._codec.open(body.head))
            decoder = self._decoder(body, learn=False)
            return _checked_head(decoder.decode(checkpoint)[0], decoder.decode(metadata)[0], channels)
        except RefusedValueError:
            raise
        except (ValueError, TypeError, MalformedError) as error:
            raise self._damaged(error) from error

    def values(self, head: Head, known: Known | None = None) -> dict[str, Any]:
        """The channel values; `known` takes in what the next save may share.

        Raises:
            DamagedCheckpointError: A page is damaged or missing.
            RefusedValueError: A value must not be loaded.
        """
        decoder = self._decoder(self.image.body, learn=known is not None)
        values = {}
        for channel, node in head.channels.items():
            values[channel], shape = self._decoded(decoder, node)
            if known is not None:
                known.add(channel, shape)
        if known is not None:
            body = self.image.body
            own = BlobRef(self.checkpoint_id, body.first_blob)
            versions = head.checkpoint.get("channel_versions") or {}
            known.stored = stored_nodes(head.channels, versions, own, body.refs.unpacked())
        return values

    def value(self, head: Head, channel: str) -> Any:
        """One channel's value."""
        return self._decoded(self._decoder(self.image.body, learn=False), head.channels[channel])[0]

    def length(self, head: Head, channel: str) -> int | None:
        """How many items the list in a channel holds, without reading them; `None` if it is none.

        Raises:
            DamagedCheckpointError: The page that tells it is damaged or missing.
            RefusedValueError: A small list must not be read.
        """
        node = head.channels.get(channel)
        if node is None:
            return None
        try:
            if node[0] == LIST:
                decoder = self._decoder(self.image.body, learn=False)
                return decoder.length(node)
            if node[0] not in {INLINE, INLINE_SEALED}:
                return None
        except (IndexError, TypeError, ValueError, MalformedError) as error:
            raise self._damaged(error) from error
        value = self.value(head, channel)
        return len(value) if isinstance(value, list) else None

    def writes(self, channels: set[str] | None = None, known: Known | None = None) -> list[PendingWrite]:
        """The writes made on the checkpoint, in LangGraph's order; only to `channels` if given."""
        found = self._found_writes(learn=known is not None)
        writes = []
        for _, task_id, index, channel in _in_order(found):
            decoder, node = found[task_id, index][2]
            if channels is None or channel in channels:
                value, shape = self._decoded(decoder, node)
                if known is not None:
                    known.add_pages(shape)
                writes.append((task_id, channel, value))
        return writes

    def write_keys(self) -> list[tuple[str, str, int, str]]:
        """Task path, task id, index and channel of each write, in LangGraph's order; no value is decoded."""
        return _in_order(self._found_writes(learn=False))

    def write_marks(self) -> list[WriteMark]:
        """What was written on the checkpoint, in the order in which it came; no value is decoded.

        Raises:
            DamagedCheckpointError: Something of it makes no sense.
            RefusedValueError: It must not be read.
        """
        marks = []
        for kind, section in self.image.records:
            if kind == WRITES:
                found: _FoundWrites = {}
                self._add_writes(section, found, learn=False)
                channels = frozenset(channel for _, channel, _ in found.values())
                marks.append(WriteMark(int(section.fields[2]), channels, unpack_id(section.fields[0]) or ""))
        return marks

    def _found_writes(self, *, learn: bool) -> _FoundWrites:
        found: _FoundWrites = {}
        for kind, section in self.image.records:
            if kind == WRITES:
                self._add_writes(section, found, learn=learn)
        return found

    def _add_writes(
        self,
        section: Section,
        found: _FoundWrites,
        *,
        learn: bool,
    ) -> None:
        task_id = unpack_id(section.fields[0]) or ""
        try:
            task_path, entries = _unpacked_head(self._codec.open(section.head))
            decoder = self._decoder(section, learn=learn)
            for index, channel, node in entries:
                _check_names(task_path, index, channel)
                if index < 0 or (task_id, index) not in found:
                    found[task_id, index] = (task_path, channel, (decoder, node))
        except RefusedValueError:
            raise
        except (ValueError, TypeError, MalformedError) as error:
            raise self._damaged(error) from error

    def _decoder(self, section: Section, *, learn: bool) -> Decoder:
        own = BlobRef(self.checkpoint_id, section.first_blob)
        return Decoder(self._codec, self._fetch, own, section.refs.unpacked(), learn=learn)

    def _decoded(self, decoder: Decoder, node: Node) -> tuple[Any, Shape | None]:
        try:
            return decoder.decode(node)
        except MalformedError as error:
            raise self._damaged(error) from error

    def _fetch(self, ref: BlobRef) -> Sealed:
        image = self._images.get(ref.checkpoint_id)
        if image is None:
            if self._pages is None:
                self._pages = self._files.snapshot()
            image = self._images[ref.checkpoint_id] = self._pages.read_pages(ref.checkpoint_id)
        blob = image.blobs.get(ref.number)
        if blob is None:
            path = self._files.file(ref.checkpoint_id)
            raise DamagedCheckpointError(path, f"page {ref.number} is missing")
        return blob

    def _damaged(self, error: Exception) -> DamagedCheckpointError:
        return DamagedCheckpointError(self.path, f"its contents make no sense: {error}")


def _in_order(found: _FoundWrites) -> list[tuple[str, str, int, str]]:
    # Task path, task id, index: what `writes_sort_key` sorts by in the LangGraph versions that have it.
    return sorted((path, task_id, index, channel) for (task_id, index), (path, channel, _) in found.items())


def encode_checkpoint(
    codec: ValueCodec,
    encoder: Encoder,
    fields: list[Any],
    parts: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, object]],
) -> Body:
    """The body of a checkpoint's file; `parts` are the checkpoint, its metadata, and the new versions.

    Raises:
        UnserializableValueError: The serde cannot write a value.
    """
    checkpoint, metadata, new_versions = parts
    rest = {key: value for key, value in checkpoint.items() if key != "channel_values"}
    changes = Changes(checkpoint.get("channel_versions") or {}, new_versions)
    nodes, shapes = encode_values(codec, encoder, checkpoint["channel_values"], changes)
    head = [
        encode_inline(codec, "checkpoint", rest),
        encode_inline(codec, "metadata", dict(metadata)),
        nodes,
    ]
    sealed = codec.seal(_packed_head(head))
    return Body(Section(fields, 0, pack_refs(encoder.refs), sealed, encoder.blobs), shapes, nodes)


def encode_writes(
    codec: ValueCodec, encoder: Encoder, task_path: str, entries: list[list[Any]]
) -> tuple[Sealed, list[Shape | None]]:
    """The head of a writes record: `entries` are `[index, channel, value]`.

    Raises:
        UnserializableValueError: The serde cannot write a value.
    """
    encoded, shapes = [], []
    for index, channel, value in entries:
        try:
            node, shape = encoder.encode(value)
        except UnserializableValueError:
            raise codec.explain(channel, value) from None
        encoded.append([index, channel, node])
        shapes.append(shape)
    return codec.seal(_packed_head([task_path, encoded])), shapes


def _packed_head(head: list[Any]) -> bytes:
    try:
        packed = ormsgpack.packb(head)
    except (TypeError, ValueError) as error:
        raise UnserializableValueError("checkpoint", "", f"a name or id: {error}") from error
    # Version strings of 49 bytes, several times over, are most of a small step: they shrink by half.
    if len(packed) >= COMPRESSED_BYTES:
        # With its usual window zlib clears 256 KiB first, which takes 74 us where compressing takes 5.
        compressor = zlib.compressobj(1, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
        return _COMPRESSED + compressor.compress(packed) + compressor.flush()
    return _PLAIN + packed


def _checked_head(checkpoint: Any, metadata: Any, channels: Any) -> Head:
    versions = checkpoint.get("channel_versions") if type(checkpoint) is dict else ()
    if not (type(metadata) is type(channels) is dict and isinstance(versions, (dict, NoneType))):
        raise MalformedError("a head without its parts")
    return Head(checkpoint, metadata, channels)


def _check_names(task_path: Any, index: Any, channel: Any) -> None:
    if not (type(index) is int and type(channel) is type(task_path) is str):
        raise MalformedError("a write without its names")


def _unpacked_head(data: bytes | memoryview) -> Any:
    form, packed = bytes(data[:1]), data[1:]
    if form == _COMPRESSED:
        try:
            packed = zlib.decompress(packed)
        except zlib.error as error:
            raise MalformedError(str(error)) from error
    elif form != _PLAIN:
        raise MalformedError("a head of unknown form")
    return ormsgpack.unpackb(packed)
