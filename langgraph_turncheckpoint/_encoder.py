"""Building the tree of a value against what is known of the parent checkpoint: what did not change is referred
to, not written again. Pure; what the nodes mean is in `_sharing`.
"""

from __future__ import annotations

from typing import Any, Final

import ormsgpack

from ._records import INDEX_TAG, BlobRef, Sealed, encode_index
from ._sharing import (
    BLOB,
    DICT,
    INLINE,
    INLINE_SEALED,
    LIST,
    PAGE_BYTES,
    PAGE_ITEMS,
    PAGE_ITEMS_LIMIT,
    SMALL_PAGE_BYTES,
    WRAPPED,
    Child,
    Group,
    Index,
    Known,
    Node,
    Page,
    PageCodec,
    Part,
    Shape,
    StoredNode,
)

#: An item from this size on gets a page of its own, which is then never written again.
LARGE_ITEM_BYTES: Final = 4096
#: A value up to this size stays in the head.
INLINE_BYTES: Final = 512
#: So many items that came one by one share a page before a full one has gathered: each is written once more, and a
#: reader of 20 messages opens 6 files instead of 20.
TINY_PAGE_ITEMS: Final = 8
#: Beyond so many full pages, references to them move into a blob of their own, which many saves share.
UNINDEXED_PARTS: Final = 8
#: So many full pages are compared at once; more would not fit the allocator's fast sizes.
GROUP_PARTS: Final = 4
SMALL_PARTS: Final = 48
#: Containers deeper than this are stored whole, by the serializer if they need one. It ends values that
#: contain themselves with an error.
DEPTH_LIMIT: Final = 16

#: Stands for "this section" until the commit tells the file's name and the blob's number.
OWN: Final = ""


class _Run:
    """Small pages that follow each other."""

    __slots__ = ("count", "parts", "size")

    def __init__(self, parts: list[Part] | None = None) -> None:
        self.parts = parts or []
        self.count = sum(part.count for part in self.parts)
        self.size = sum(part.size for part in self.parts)

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.count += part.count
        self.size += part.size


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
        self._depth = 0

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
        if kind is dict and _has_plain_keys(value):
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
        # As deep as it will be in the head, where the packer's limit on nesting counts from the top.
        page = self._codec.fast_page([[[[[[value]]]]]])
        return page is not None and page.size <= INLINE_BYTES and self._codec.is_plain(page)

    # --- lists and dicts ---

    def _listing(self, items: list[Any], shape: Shape | None, kind: int) -> tuple[Node, Shape]:
        self._depth += 1
        try:
            parts, nodes = self._align(items, shape, kind)
        finally:
            self._depth -= 1
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
                elif items[at][0] == part.key and type(items[at][1]) in (list, dict) and self._depth < DEPTH_LIMIT:
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
        for part in parts[position + 1 : position + (SMALL_PARTS if first.is_small else GROUP_PARTS)]:
            if not isinstance(part, Part) or part.is_small != first.is_small:
                break
            run.append(part)
        return run

    def _is_child(self, entry: list[Any]) -> bool:
        if type(entry[1]) not in (list, dict) or not entry[1] or self._depth >= DEPTH_LIMIT:
            return False
        if not self._codec.may_show_keys:
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
        """Merge neighbouring small pages where enough have gathered: eight tiny ones, and all where they fill one."""
        merged: list[Part | Child] = []
        run, tiny = _Run(), _Run()
        at = 0
        for part in parts:
            if isinstance(part, Child):
                merged += [*run.parts, part]
                run, tiny, at = _Run(), _Run(), at + 1
                continue
            at += part.count
            if not part.is_small:
                merged += [*run.parts, part]
                run, tiny = _Run(), _Run()
                continue
            run.add(part)
            tiny = tiny if part.count < TINY_PAGE_ITEMS else _Run()
            if part.count < TINY_PAGE_ITEMS:
                tiny.add(part)
            if len(run.parts) > 1 and (run.count >= PAGE_ITEMS or run.size >= PAGE_BYTES):
                merged.append(self._one(items[at - run.count : at], run))
                run, tiny = _Run(), _Run()
            elif tiny.count >= TINY_PAGE_ITEMS and tiny.size < PAGE_BYTES // 2:
                page = self._one(items[at - tiny.count : at], tiny)
                run, tiny = _Run([*run.parts[: -len(tiny.parts)], page]), _Run()
        return merged + run.parts

    def _one(self, chunk: list[Any], run: _Run) -> Part:
        return self._stored(self._codec.page(chunk), chunk, run.parts[0].first)

    def _indexed(self, new: Shape, old: Shape | None) -> tuple[list[Part | Child], int | None]:
        """The parts to list in the node itself, and the number of the blob with those before."""
        parts = new.parts
        pages = [part for part in parts if isinstance(part, Part)]
        settled = len(pages)
        while settled and pages[settled - 1].is_small:
            settled -= 1
        if len(pages) < len(parts) or settled <= UNINDEXED_PARTS:
            return parts, None
        index = old.index if old is not None else None
        if index is not None:
            covered = len(index.refs)
            refs = [part.ref for part in pages[:covered]]
            if settled - covered <= UNINDEXED_PARTS and index.refs == refs:
                new.index = index
                return parts[covered:], self._foreign_number(index.ref)
        number = len(self.blobs)
        data = encode_index([(_relative(part.ref, number), part.count) for part in pages[:settled]])
        self.blobs.append(Sealed(INDEX_TAG, data))
        new.index = Index(BlobRef(OWN, number), [])
        self._own_indexes.append((new, pages[:settled]))
        return parts[settled:], number

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


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """Whether every key is a text that the head of a file can hold."""
    if not all(type(key) is str for key in value):
        return False
    try:
        "".join(value).encode()
    except UnicodeEncodeError:
        return False
    return True


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
