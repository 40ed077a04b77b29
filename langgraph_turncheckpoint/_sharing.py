"""Values as trees of shared pages: what did not change since the parent checkpoint is referred to, not
written again. Pure: pages are packed by a codec and fetched by a function that the caller supplies.

A long list becomes pages of about 32 items, a dict the same over its entries, with large containers in
it as trees of their own. Every page is packed anew at every save and compared by its fingerprint, so an
object that was changed in place is seen; only pages with a new fingerprint are stored. New items start
as small pages of their own and are merged once 32 have gathered, so that each is written about twice.

Nodes, as they are stored (numbers from 0 up are the section's own blobs, from -1 down its references):

    [0, value]              a small plain value
    [1, tag, bytes]         a small value as the codec stores it
    [2, number]             a value in a blob
    [3 or 4, parts, index]  a list or a dict; a part is [number, count] or, for a container, [key, node];
                            the parts in the index blob, if any, come first
    [5, name, node]         a value that the codec takes out of its wrapper
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import ormsgpack

from ._records import INDEX_TAG, BlobRef, MalformedError, Sealed, encode_index, parse_index

PAGE_ITEMS: Final = 32
PAGE_ITEMS_LIMIT: Final = 250
PAGE_BYTES: Final = 16384
#: A page below this is worth growing even when it has its 32 items.
SMALL_PAGE_BYTES: Final = 1024
#: An item from this size on gets a page of its own, which is then never written again.
LARGE_ITEM_BYTES: Final = 4096
INLINE_BYTES: Final = 512
#: Reference lists longer than this move into a blob of their own.
DIRECT_PARTS: Final = 48
#: So many full pages are compared at once; more would not fit the allocator's fast sizes.
GROUP_PARTS: Final = 4

Node: TypeAlias = list[Any]


class Page(NamedTuple):
    """Some items, packed.

    Attributes:
        digest: Equal for two pages exactly if loading them gives the same items.
        size: Bytes of the packed form.
        plain: The packed form.
        tag: How the codec packed them; empty for plain data.
    """

    digest: bytes
    size: int
    plain: bytes
    tag: str


class PageCodec(Protocol):
    """How items become bytes and back."""

    def fast_page(self, items: list[Any]) -> Page | None:
        """Pack items that need no serializer; `None` for anything else."""

    def page(self, items: list[Any]) -> Page:
        """Pack any items."""

    def seal_page(self, page: Page, items: list[Any]) -> Sealed:
        """What to store for a page."""

    def open_page(self, sealed: Sealed, *, learn: bool) -> tuple[list[Any], Page | None]:
        """The items of a stored page; with `learn` also the page that packing them would give."""

    def is_plain(self, page: Page) -> bool:
        """Whether the items may be stored in the head as they are."""

    def unwrap(self, value: object) -> tuple[str, Any] | None:
        """The name and the content of a wrapper whose content is worth sharing."""

    def wrap(self, name: str, value: Any) -> Any:
        """The wrapper again."""


class Part:
    """A stored page as the encoder knows it."""

    __slots__ = ("count", "digest", "first", "group", "is_small", "ref", "size")

    def __init__(self, ref: BlobRef, count: int, size: int, digest: bytes, first: bytes) -> None:
        self.ref, self.count, self.size, self.digest, self.first = ref, count, size, digest, first
        #: The pages from here on that are compared with one packing, once they have been.
        self.group: Group | None = None
        #: Whether the page should be merged with its neighbours.
        self.is_small = (
            size < PAGE_BYTES // 2 and count < PAGE_ITEMS_LIMIT and (count < PAGE_ITEMS or size < SMALL_PAGE_BYTES)
        )


class Group(NamedTuple):
    """Pages that follow each other, how many items they hold, and the digest of all packed as one.

    Comparing page by page costs a third more than comparing by fours, and a tail of 31 pages with one item
    each costs as much as 1,000 items in full pages.
    """

    parts: list[Part]
    size: int
    digest: bytes


class Child(NamedTuple):
    """A container inside a dict, with a tree of its own."""

    key: str
    shape: Shape | None


class Index(NamedTuple):
    """The blob that lists the first parts of a listing."""

    ref: BlobRef
    refs: list[BlobRef]


class Shape:
    """How one value was stored: what the next save of it is compared with."""

    __slots__ = ("index", "kind", "parts")

    def __init__(self, kind: int, parts: list[Part | Child], index: Index | None = None) -> None:
        self.kind, self.parts, self.index = kind, parts, index


INLINE, INLINE_SEALED, BLOB, LIST, DICT, WRAPPED = range(6)

#: Stands for "this section" until the commit tells the file's name and the blob's number.
OWN: Final = ""


class StoredNode(NamedTuple):
    """A channel of the parent checkpoint as it was stored, whatever has become of the value since.

    Attributes:
        version: The channel's version in the parent.
        packed: The node.
        own: Where the blobs with numbers from 0 up are.
        refs: The blobs with numbers from -1 down.
    """

    version: object
    packed: bytes
    own: BlobRef
    refs: list[BlobRef]


class Known:
    """The stored pages that a new checkpoint may refer to.

    Attributes:
        shapes: How each channel of the parent checkpoint was stored.
        stored: The node of each channel of the parent checkpoint.
        pages: Pages that may be referred to, by digest: the parent's, those of its writes, and some of
            older checkpoints.
    """

    __slots__ = ("pages", "shapes", "stored")

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self.stored: dict[str, StoredNode] = {}
        self.pages: dict[bytes, Part] = {}

    def add(self, name: str, shape: Shape | None) -> None:
        """Take in how a channel was stored."""
        if shape is not None:
            self.shapes[name] = shape
            self.add_pages(shape)

    def add_pages(self, shape: Shape | None) -> None:
        """Take in the pages of a value."""
        for part in shape.parts if shape is not None else ():
            if type(part) is Part:
                self.pages[part.digest] = part
            elif isinstance(part, Child):
                self.add_pages(part.shape)

    def followed_by(self, shapes: dict[str, Shape | None], new: list[Part]) -> Known:
        """What is known after a checkpoint that was encoded against this one."""
        known = Known()
        found = {name: shape for name, shape in shapes.items() if shape is not None}
        if len(self.pages) > 64 + 2 * sum(len(shape.parts) for shape in found.values()):
            for name, shape in found.items():
                known.add(name, shape)
            return known
        # The pages are passed on rather than copied: taking in 190 again costs as much as the rest of a
        # small save, and one that is in no newer checkpoint can still be referred to.
        known.shapes, known.pages = found, self.pages
        for part in new:
            known.pages[part.digest] = part
        return known

    @property
    def weight(self) -> int:
        """How many pages are known; a measure of memory."""
        return len(self.pages) + len(self.shapes) + len(self.stored)


class Encoder:
    """Encodes the values of one section against what is known of the parent checkpoint.

    Args:
        codec: Packs pages.
        known: The pages that may be referred to.
    """

    def __init__(self, codec: PageCodec, known: Known | None) -> None:
        self._codec = codec
        self._known = known or Known()
        self._fresh: dict[bytes, Part] = {}
        self.own: list[Part] = []
        self._numbers: dict[BlobRef, int] = {}
        self._own_indexes: list[tuple[Shape, list[Part]]] = []
        self.blobs: list[Sealed] = []

    @property
    def refs(self) -> list[BlobRef]:
        """The foreign blobs that the nodes refer to, in the order of their numbers."""
        return list(self._numbers)

    def encode(self, value: Any, name: str = "") -> tuple[Node, Shape | None]:
        """The node of a value, and its shape if it has pages; `name` finds the parent's shape."""
        return self._value(value, self._known.shapes.get(name))

    def is_stored(self, name: str, version: object) -> bool:
        """Whether the parent has stored the channel at this very version."""
        stored = self._known.stored.get(name)
        return stored is not None and version is not None and stored.version == version

    def repeat(self, name: str) -> tuple[Node, Shape | None]:
        """The node of a channel that has not changed since the parent, without looking at its value."""
        stored = self._known.stored[name]
        node: Node = ormsgpack.unpackb(stored.packed)
        return self._renumbered(node, stored), self._known.shapes.get(name)

    def _renumbered(self, node: Node, stored: StoredNode) -> Node:
        def number(old: int) -> int:
            if old < 0:
                return self._foreign_number(stored.refs[-1 - old])
            return self._foreign_number(stored.own._replace(number=stored.own.number + old))

        kind = node[0]
        if kind == BLOB:
            return [BLOB, number(node[1])]
        if kind in (LIST, DICT):
            parts = [
                [head, self._renumbered(tail, stored)] if isinstance(head, str) else [number(head), tail]
                for head, tail in node[1]
            ]
            return [kind, parts, None if node[2] is None else number(node[2])]
        if kind == WRAPPED:
            return [WRAPPED, node[1], self._renumbered(node[2], stored)]
        return node

    def resolve(self, checkpoint_id: str, first_blob: int) -> None:
        """Tell all new parts where the commit has put them."""
        for part in self.own:
            part.ref = BlobRef(checkpoint_id, first_blob + part.ref.number)
        for shape, parts in self._own_indexes:
            assert shape.index is not None
            ref = BlobRef(checkpoint_id, first_blob + shape.index.ref.number)
            shape.index = Index(ref, [part.ref for part in parts])

    def _value(self, value: Any, shape: Shape | None) -> tuple[Node, Shape | None]:
        kind = type(value)
        if kind is list:
            known = _of_kind(shape, LIST)
            if value and (known is not None or not self._fits_inline(value)):
                return self._listing(value, known, LIST)
            return [INLINE, value], None
        if kind is dict and all(type(key) is str for key in value):
            known = _of_kind(shape, DICT)
            if value and (known is not None or not self._fits_inline(value)):
                entries = [[key, content] for key, content in value.items()]
                return self._listing(entries, known, DICT)
            return [INLINE, value], None
        if (wrapped := self._codec.unwrap(value)) is not None:
            node, inner = self._value(wrapped[1], shape)
            return [WRAPPED, wrapped[0], node], inner
        page = self._codec.page([value])
        if page.size <= INLINE_BYTES:
            if self._codec.is_plain(page):
                return [INLINE, value], None
            return [INLINE_SEALED, *self._codec.seal_page(page, [value])], None
        part = self._stored(page, [value])
        return [BLOB, self._number(part)], Shape(BLOB, [part])

    def _fits_inline(self, value: list[Any] | dict[str, Any]) -> bool:
        if len(value) > INLINE_BYTES:
            return False
        page = self._codec.fast_page([value])
        return page is not None and page.size <= INLINE_BYTES and self._codec.is_plain(page)

    # --- lists and dicts ---

    def _listing(self, items: list[Any], shape: Shape | None, kind: int) -> tuple[Node, Shape]:
        parts, nodes = self._align(items, shape, kind)
        new = Shape(kind, self._merged(items, parts))
        self._group(items, new.parts)
        listed, index = self._indexed(new, shape)
        return [kind, [self._part_node(part, nodes) for part in listed], index], new

    def _part_node(self, part: Part | Child, nodes: dict[str, Node]) -> Node:
        if isinstance(part, Part):
            return [self._number(part), part.count]
        return [part.key, nodes[part.key]]

    def _align(self, items: list[Any], shape: Shape | None, kind: int) -> tuple[list[Part | Child], dict[str, Node]]:
        """Match items with the parent's parts in order; after a mismatch, find the way back."""
        base = shape.parts if shape is not None else []
        parts: list[Part | Child] = []
        nodes: dict[str, Node] = {}
        starts: dict[bytes, list[int]] | None = None
        run: list[Any] = []
        at, expected, total = 0, 0, len(items)
        page_of = self._codec.page
        while at < total:
            if 0 <= expected < len(base):
                part = base[expected]
                if isinstance(part, Part):
                    if (group := self._matched_group(items, at, base, expected)) is not None:
                        self._flush(run, parts)
                        parts += group.parts
                        at, expected = at + group.size, expected + len(group.parts)
                        continue
                    end = at + part.count
                    if end <= total and page_of(items[at:end]).digest == part.digest:
                        self._flush(run, parts)
                        parts.append(part)
                        at, expected = end, expected + 1
                        continue
                elif items[at][0] == part.key and type(items[at][1]) in (list, dict):
                    self._flush(run, parts)
                    nodes[part.key], inner = self._value(items[at][1], part.shape)
                    parts.append(Child(part.key, inner))
                    at, expected = at + 1, expected + 1
                    continue
                expected = -1
            if kind == DICT and self._is_child(items[at]):
                key, content = items[at]
                self._flush(run, parts)
                position = _child_position(base, key)
                child = base[position] if position >= 0 else None
                known = child.shape if isinstance(child, Child) else None
                nodes[key], inner = self._value(content, known)
                parts.append(Child(key, inner))
                at, expected = at + 1, position + 1 if position >= 0 else expected
                continue
            if not base and kind == LIST and not self._known.pages:
                run = items[at:]
                break
            if starts is None:
                # Behind the last known part there is nothing to find the way back to.
                starts = {} if expected == len(base) else _starts(base)
            single = page_of(items[at : at + 1])
            found = self._resume(items, at, single, base, starts)
            if found is None:
                run.append(items[at])
                at += 1
                continue
            part, position = found
            self._flush(run, parts)
            parts.append(part)
            at, expected = at + part.count, position + 1 if position >= 0 else expected
        self._flush(run, parts)
        return parts, nodes

    def _matched_group(self, items: list[Any], at: int, base: list[Part | Child], expected: int) -> Group | None:
        """The pages from `expected` on that the items at `at` match all at once."""
        group = getattr(base[expected], "group", None)
        if group is None or base[expected : expected + len(group.parts)] != group.parts:
            return None
        page = self._codec.fast_page(items[at : at + group.size])
        return None if page is None or page.digest != group.digest else group

    def _group(self, items: list[Any], parts: list[Part | Child]) -> None:
        """Prepare the next comparison: full pages by fours, and neighbouring small ones together."""
        position = at = 0
        while position < len(parts):
            first = parts[position]
            if not isinstance(first, Part):
                position, at = position + 1, at + 1
                continue
            run = self._run(parts, position, first)
            size = sum(part.count for part in run)
            if len(run) > 1 and (first.group is None or first.group.parts != run):
                page = self._codec.fast_page(items[at : at + size])
                first.group = None if page is None else Group(run, size, page.digest)
            position, at = position + len(run), at + size

    @staticmethod
    def _run(parts: list[Part | Child], position: int, first: Part) -> list[Part]:
        run = [first]
        for part in parts[position + 1 : position + (DIRECT_PARTS if first.is_small else GROUP_PARTS)]:
            if not isinstance(part, Part) or part.is_small != first.is_small:
                break
            run.append(part)
        return run

    def _is_child(self, entry: list[Any]) -> bool:
        if type(entry[1]) not in (list, dict) or not entry[1]:
            return False
        page = self._codec.fast_page([entry])
        return page is None or page.size >= LARGE_ITEM_BYTES

    def _resume(
        self,
        items: list[Any],
        at: int,
        single: Page,
        base: list[Part | Child],
        starts: dict[bytes, list[int]],
    ) -> tuple[Part, int] | None:
        """A known page that starts with the item at `at`, and its position in `base` (-1: none)."""
        for position in starts.get(single.digest, ()):
            part = base[position]
            assert isinstance(part, Part)
            end = at + part.count
            if part.count == 1:
                return part, position
            if end <= len(items) and self._codec.page(items[at:end]).digest == part.digest:
                return part, position
        known = self._known.pages.get(single.digest)
        return None if known is None else (known, -1)

    def _flush(self, run: list[Any], parts: list[Part | Child]) -> None:
        if run:
            parts += self._paged(run)
            run.clear()

    def _paged(self, items: list[Any]) -> list[Part]:
        """New pages for new items."""
        parts, at = [], 0
        while at < len(items):
            chunk = items[at : at + PAGE_ITEMS]
            page = self._codec.page(chunk)
            if page.size < SMALL_PAGE_BYTES and len(chunk) == PAGE_ITEMS:
                chunk = items[at : at + PAGE_ITEMS_LIMIT]
                page = self._codec.page(chunk)
            if page.size > PAGE_BYTES and len(chunk) > 1:
                chunk = self._prefix(chunk)
                page = self._codec.page(chunk)
            parts.append(self._stored(page, chunk))
            at += len(chunk)
        return parts

    def _prefix(self, chunk: list[Any]) -> list[Any]:
        """The items that fit one page; a large item stands alone."""
        size = 0
        for position, item in enumerate(chunk):
            item_size = self._codec.page([item]).size
            if item_size >= LARGE_ITEM_BYTES:
                return chunk[: position or 1]
            size += item_size
            if size > PAGE_BYTES:
                return chunk[: position or 1]
        return chunk

    def _merged(self, items: list[Any], parts: list[Part | Child]) -> list[Part | Child]:
        """Merge neighbouring small pages wherever enough have gathered."""
        merged: list[Part | Child] = []
        run: list[Part] = []
        at, count, size = 0, 0, 0
        for part in parts:
            if isinstance(part, Child):
                merged += [*run, part]
                run, count, size, at = [], 0, 0, at + 1
                continue
            at += part.count
            if not part.is_small:
                merged += [*run, part]
                run, count, size = [], 0, 0
                continue
            run.append(part)
            count, size = count + part.count, size + part.size
            if len(run) > 1 and (count >= PAGE_ITEMS or size >= PAGE_BYTES):
                chunk = items[at - count : at]
                merged.append(self._stored(self._codec.page(chunk), chunk, run[0].first))
                run, count, size = [], 0, 0
        return merged + run

    def _indexed(self, new: Shape, old: Shape | None) -> tuple[list[Part | Child], int | None]:
        """The parts to list in the node itself, and the number of the blob with those before."""
        parts = new.parts
        if len(parts) <= DIRECT_PARTS or any(isinstance(part, Child) for part in parts):
            return parts, None
        pages = [part for part in parts if isinstance(part, Part)]
        index = old.index if old is not None else None
        if index is not None:
            covered = len(index.refs)
            if len(pages) - covered <= 2 * DIRECT_PARTS and index.refs == [part.ref for part in pages[:covered]]:
                new.index = index
                return parts[covered:], self._foreign_number(index.ref)
        covered = len(pages)
        while covered > len(pages) - PAGE_ITEMS and pages[covered - 1].is_small:
            covered -= 1
        number = len(self.blobs)
        data = encode_index([(_relative(part.ref, number), part.count) for part in pages[:covered]])
        self.blobs.append(Sealed(INDEX_TAG, data))
        new.index = Index(BlobRef(OWN, number), [])
        self._own_indexes.append((new, pages[:covered]))
        return parts[covered:], number

    # --- blobs ---

    def _stored(self, page: Page, items: list[Any], first: bytes | None = None) -> Part:
        part = self._known.pages.get(page.digest) or self._fresh.get(page.digest)
        if part is not None and part.count == len(items):
            return part
        if first is None:
            first = page.digest if len(items) == 1 else self._codec.page(items[:1]).digest
        part = Part(BlobRef(OWN, len(self.blobs)), len(items), page.size, page.digest, first)
        self.blobs.append(self._codec.seal_page(page, items))
        self.own.append(part)
        self._fresh[page.digest] = part
        return part

    def _number(self, part: Part) -> int:
        return self._foreign_number(part.ref) if part.ref.checkpoint_id else part.ref.number

    def _foreign_number(self, ref: BlobRef) -> int:
        return -1 - self._numbers.setdefault(ref, len(self._numbers))


def _relative(ref: BlobRef, number: int) -> BlobRef:
    # Where this section's blobs will be numbered from is not known before the commit.
    return ref if ref.checkpoint_id else BlobRef(OWN, ref.number - number)


def _of_kind(shape: Shape | None, kind: int) -> Shape | None:
    return shape if shape is not None and shape.kind == kind else None


def _starts(base: list[Part | Child]) -> dict[bytes, list[int]]:
    starts: dict[bytes, list[int]] = {}
    for position, part in enumerate(base):
        if isinstance(part, Part):
            starts.setdefault(part.first, []).append(position)
    return starts


def _child_position(base: list[Part | Child], key: str) -> int:
    for position, part in enumerate(base):
        if isinstance(part, Child) and part.key == key:
            return position
    return -1


class Decoder:
    """Decodes the values of one section.

    Args:
        codec: Unpacks pages.
        fetch: Gives the stored bytes of a blob.
        own: The id and first blob number of the section.
        refs: The section's references.
        learn: Whether to remember shapes for the next save.
    """

    def __init__(
        self,
        codec: PageCodec,
        fetch: Callable[[BlobRef], Sealed],
        own: BlobRef,
        refs: list[BlobRef],
        *,
        learn: bool,
    ) -> None:
        self._codec, self._fetch, self._own, self._refs = codec, fetch, own, refs
        self._learn = learn

    def decode(self, node: Node) -> tuple[Any, Shape | None]:
        """The value of a node, and its shape if it has pages and shapes are wanted.

        Raises:
            MalformedError: The node makes no sense.
        """
        try:
            return self._value(node)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, OSError) or type(error) not in _MALFORMED:
                raise
            raise MalformedError(f"unreadable value: {error}") from error

    def _value(self, node: Node) -> tuple[Any, Shape | None]:
        kind = node[0]
        if kind == INLINE:
            return node[1], None
        if kind == INLINE_SEALED:
            (value,), _ = self._codec.open_page(Sealed(node[1], node[2]), learn=False)
            return value, None
        if kind == BLOB:
            items, part = self._page(self._ref(node[1]), 1)
            return items[0], None if part is None else Shape(BLOB, [part])
        if kind in (LIST, DICT):
            return self._listing(kind, node[1], node[2])
        if kind == WRAPPED:
            value, shape = self._value(node[2])
            return self._codec.wrap(node[1], value), shape
        raise MalformedError(f"a node of unknown kind {kind!r}")

    def _listing(self, kind: int, nodes: list[Node], number: int | None) -> tuple[Any, Shape | None]:
        items: list[Any] = []
        parts: list[Part | Child] = []
        index = None
        if number is not None:
            ref = self._ref(number)
            listed = parse_index(self._fetch(ref).data, ref)
            index = Index(ref, [part_ref for part_ref, _ in listed])
            for part_ref, count in listed:
                self._extend(items, parts, part_ref, count)
        for head, tail in nodes:
            if isinstance(head, str):
                value, shape = self._value(tail)
                items.append([head, value])
                parts.append(Child(head, shape))
            else:
                self._extend(items, parts, self._ref(head), tail)
        shape = Shape(kind, parts, index) if self._learn else None
        return (items if kind == LIST else dict(items)), shape

    def _extend(self, items: list[Any], parts: list[Part | Child], ref: BlobRef, count: int) -> None:
        found, part = self._page(ref, count)
        items += found
        if part is not None:
            parts.append(part)

    def _page(self, ref: BlobRef, count: int) -> tuple[list[Any], Part | None]:
        items, page = self._codec.open_page(self._fetch(ref), learn=self._learn)
        if len(items) != count:
            raise MalformedError(f"a page holds {len(items)} items where {count} belong")
        if page is None:
            return items, None
        first = page.digest if count == 1 else self._codec.page(items[:1]).digest
        return items, Part(ref, count, page.size, page.digest, first)

    def _ref(self, number: int) -> BlobRef:
        if number < 0:
            return self._refs[-1 - number]
        return BlobRef(self._own.checkpoint_id, self._own.number + number)


_MALFORMED: Final = (IndexError, KeyError, TypeError, ValueError)
