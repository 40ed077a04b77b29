"""Reading the tree of a value back from its pages. Pure; where the pages come from is the caller's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._records import BlobRef, MalformedError, Sealed, parse_index
from ._sharing import (
    BLOB,
    DICT,
    INLINE,
    INLINE_SEALED,
    LIST,
    WRAPPED,
    Child,
    Index,
    Node,
    PageCodec,
    Part,
    Shape,
)
from .errors import RefusedValueError


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
        except (RefusedValueError, OSError):
            raise
        except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise MalformedError(f"unreadable value: {error}") from error

    def length(self, node: Node) -> int:
        """How many items the listing of a node has; none of their pages is opened."""
        number = node[2]
        listed = [] if number is None else parse_index(self._fetch(self._ref(number)).data, self._ref(number))
        return sum(count for _, count in listed) + sum(int(count) for _, count in node[1])

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
