"""What must hold in whatever a crash leaves: one function per promise, each of which yields what is wrong. How the
state came to be is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.crash.disk.contents import Contents, Journal, Key
from tests.crash.disk.looks import Look


@dataclass(frozen=True, slots=True)
class Asked:
    """What a state is asked for.

    Attributes:
        now: What was acknowledged.
        maybe: What else may be there, wholly or not at all: what an operation that was under way would have made of it.
        is_atomic: Whether that operation is done or not, with nothing in between.
        fixed: Items that were acknowledged by somebody who came after that operation.
        keeps_all: Whether the system lives on and only the process was killed, so that nothing it has written is lost.
        is_torn: Whether bytes that were not acknowledged are there in part.
    """

    now: Contents
    maybe: tuple[Contents, ...] = ()
    is_atomic: bool = True
    fixed: frozenset[Key] = frozenset()
    keeps_all: bool = False
    is_torn: bool = False
    _shown: list[dict[Key, Any]] = field(default_factory=list)

    def shown(self) -> list[dict[Key, Any]]:
        """What a look may find, as it was acknowledged and as it may be instead."""
        if not self._shown:
            self._shown.extend(contents.visible() for contents in (self.now, *self.maybe))
        return self._shown


_ABSENT: Final = object()

Invariant = Callable[[Look, Asked], Iterator[str]]


def what_was_acknowledged_is_there(look: Look, asked: Asked) -> Iterator[str]:
    """S2, S3, G7: each item is equal to what was acknowledged, or to what was on its way."""
    now, *maybe = asked.shown()
    for key, value in now.items():
        found = look.items.get(key, _ABSENT)
        others = [] if key in asked.fixed else [other.get(key, _ABSENT) for other in maybe]
        if found is not value and found != value and not any(found is other or found == other for other in others):
            yield f"{_named(key)} is {'gone' if found is _ABSENT else 'another one'}"


def nothing_comes_back_or_from_nowhere(look: Look, asked: Asked) -> Iterator[str]:
    """T6: nothing is there that was deleted, pruned or acknowledged as delivered, or that nobody has written."""
    several = asked.shown()
    for key in look.items:
        if not any(key in shown for shown in several):
            yield f"{_named(key)} should not be there"
        elif key in asked.fixed and key not in several[0]:
            yield f"{_named(key)} has come back"
    yield from (f"{thread!r:.20} is listed" for thread in set(look.threads) - _threads(look.items))


def an_operation_is_done_or_not(look: Look, asked: Asked) -> Iterator[str]:
    """S2: what was under way is wholly there or wholly absent."""
    if not asked.is_atomic or len(asked.maybe) != 1:
        return
    now, after = asked.shown()
    changed = [key for key in now.keys() | after.keys() if now.get(key, _ABSENT) != after.get(key, _ABSENT)]
    done = [key for key in changed if look.items.get(key, _ABSENT) == after.get(key, _ABSENT)]
    if done and len(done) < len(changed):
        missing = next(key for key in changed if key not in done)
        yield f"{_named(done[0])} is as after the operation, {_named(missing)} is not"


def the_head_is_not_older(look: Look, asked: Asked) -> Iterator[str]:
    """S2: the newest checkpoint is the acknowledged one or the one on its way."""
    for place in {key[1:3] for shown in asked.shown() for key in shown if key[0] == "checkpoint"}:
        thread, checkpoint_ns = place
        several = [contents.ids(thread, checkpoint_ns) for contents in (asked.now, *asked.maybe)]
        heads = {max(ids, default=None) for ids in several}
        found = look.heads.get((thread, checkpoint_ns))
        if not asked.is_atomic:
            # Each of them may be gone already; those that stay are asked for elsewhere.
            heads |= {
                each for ids in several for each in ids if each >= max(set(ids).intersection(*several), default="")
            }
        if found not in heads:
            yield f"the head of {thread!r:.20} {checkpoint_ns!r} is {found} and not one of {sorted(map(str, heads))}"
        listed = max((k[3] for k in look.items if k[:3] == ("checkpoint", thread, checkpoint_ns)), default=None)
        if found != listed:
            yield f"the head of {thread!r:.20} {checkpoint_ns!r} is {found}, the newest that is listed is {listed}"


def a_token_never_goes_back(look: Look, asked: Asked) -> Iterator[str]:
    """T6, T9: the token is not below any that protected something, nor below one that something was stored under."""
    for thread, token in (asked.now.handed if asked.keeps_all else asked.now.certain).items():
        if look.tokens.get(thread, 0) < token:
            yield f"the token of {thread!r:.20} is {look.tokens.get(thread, 0)} after {token}"
    for thread, token in own_tokens(look, asked).items():
        if look.tokens.get(thread, 0) < token:
            yield f"the token of {thread!r:.20} is {look.tokens.get(thread, 0)}, and {token} has written"


def a_journal_keeps_what_it_promised(look: Look, asked: Asked) -> Iterator[str]:
    """G1: the records that were durable are there, in order, and none that was not written."""
    several = (asked.now, *asked.maybe)
    for thread, token in {key for contents in several for key in contents.journals} | look.journals.keys():
        versions = [each.journals.get((thread, token)) for each in several]
        found = look.journals.get((thread, token))
        known = [version for version in versions if version is not None]
        if not known:
            yield f"journal {token} of {thread!r:.20} should not be there"
            continue
        may_be_gone = any(version is None or version.may_be_gone for version in versions)
        promised = versions[0] or Journal()
        certain = len(promised.records) if asked.keeps_all else promised.certain
        written = max((version.records for version in known), key=len)
        if found is None:
            if certain and not may_be_gone:
                yield f"journal {token} of {thread!r:.20} is gone"
        elif not _is_subsequence(found, written):
            yield f"journal {token} of {thread!r:.20} holds records that nobody wrote: {found} for {written}"
        elif certain and not may_be_gone and not _is_subsequence(written[:certain], found):
            yield f"journal {token} of {thread!r:.20} lacks one of its {certain} durable records"
        elif asked.keeps_all and found != written[: len(found)]:
            yield f"journal {token} of {thread!r:.20} has a hole"


def everything_is_readable(look: Look, asked: Asked) -> Iterator[str]:
    """S6: reading fails nowhere, and damage is reported only where bytes on their way were torn."""
    yield from look.errors
    if not asked.is_torn:
        yield from look.warnings


def verify_agrees_with_reading(look: Look, asked: Asked) -> Iterator[str]:
    """S6: where reading tells of damage, so does `verify`; and `verify` finds none where nothing was torn."""
    bad = [f"{kind} {path}" for kind, path in look.findings if kind in {"damaged", "missing", "newer", "foreign"}]
    if look.warnings and not bad:
        yield f"reading says {look.warnings[0]!r}, verify finds nothing"
    for kind, path in look.findings:
        if kind in {"newer", "foreign"} or (kind in {"damaged", "missing"} and not asked.is_torn):
            yield f"verify finds {path} {kind}"


def messages_come_in_order_and_once(look: Look, asked: Asked) -> Iterator[str]:
    """G7: the inbox gives messages in the order of posting."""
    for thread in asked.now.handed:
        found = [key[2] for key in look.items if key[:2] == ("message", thread)]
        if found != sorted(found):
            yield f"messages of {thread!r:.20} come as {found}"


INVARIANTS: Final[tuple[Invariant, ...]] = (
    what_was_acknowledged_is_there,
    nothing_comes_back_or_from_nowhere,
    an_operation_is_done_or_not,
    the_head_is_not_older,
    a_token_never_goes_back,
    a_journal_keeps_what_it_promised,
    everything_is_readable,
    verify_agrees_with_reading,
    messages_come_in_order_and_once,
)


def own_tokens(look: Look, asked: Asked) -> dict[str, int]:
    """By thread, the newest token under which something is stored; not where a copy has brought those of others."""
    copied = frozenset().union(*(contents.copied for contents in (asked.now, *asked.maybe)))
    return {thread: token for thread, token in look.stored_tokens.items() if thread not in copied}


def name_of(invariant: Callable[..., object]) -> str:
    """An invariant in words."""
    return invariant.__name__.strip("_").replace("_", " ")


def _named(key: Key) -> str:
    kind, thread, *rest = key
    return " ".join([kind, f"{thread!r:.20}", *map(repr, rest)])


def _threads(items: Mapping[Key, Any]) -> set[str]:
    return {key[1] for key in items if key[0] == "checkpoint"}


def _is_subsequence(part: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    rest = iter(whole)
    return all(any(each == other for other in rest) for each in part)
