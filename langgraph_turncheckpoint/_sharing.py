"""The model of shared values: pages, the trees they form, and what a new checkpoint knows of its parent's.
Pure. Trees are built in `_encoder` and read in `_decoder`; items are packed by a codec, which is neither's.

A long list becomes pages of about 32 items, a dict the same over its entries, with large containers in
it as trees of their own. Every page is packed anew at every save and compared by its fingerprint, so an
object that was changed in place is seen; only pages with a new fingerprint are stored. New items start
as small pages of their own; eight of them are merged, and then all once 32 have gathered, so that each is written about
three times.

Nodes, as they are stored (numbers from 0 up are the section's own blobs, from -1 down its references):

    [0, value]              a small plain value
    [1, tag, bytes]         a small value as the codec stores it
    [2, number]             a value in a blob
    [3 or 4, parts, index]  a list or a dict; a part is [number, count] or, for a container, [key, node];
                            the parts in the index blob, if any, come first
    [5, name, node]         a value that the codec takes out of its wrapper
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ._records import BlobRef, Sealed

PAGE_ITEMS: Final = 32
PAGE_ITEMS_LIMIT: Final = 250
PAGE_BYTES: Final = 16384
#: A page below this is worth growing even when it has its 32 items.
SMALL_PAGE_BYTES: Final = 1024

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

    @property
    def may_show_keys(self) -> bool:
        """Whether a dict's keys may stand in the head of a file."""

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
