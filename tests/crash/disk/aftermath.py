"""Going on after a crash: what must work in any state that a crash has left. It changes the state, so it comes last."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any, Final

from langgraph_turncheckpoint import StaleTurnError, ThreadClosedError, TurnCheckpointSaver
from langgraph_turncheckpoint._layout import thread_component
from langgraph_turncheckpoint._runs import TURN_KEY
from langgraph_turncheckpoint._turns import Turn
from langgraph_turncheckpoint.errors import TurnCheckpointError
from tests.crash.disk.contents import Contents, Key, in_order, key_of
from tests.crash.disk.invariants import Asked, own_tokens
from tests.crash.disk.looks import Look, look_at
from tests.crash.disk.world import AT_LAST, World, checkpoint_id, config_of

CLOSED: Final = "a closed thread stays closed"
DELETED: Final = "deleted stays deleted"
REPEATED: Final = "a token never repeats"
FENCED: Final = "an older turn is fenced"
EARLY: Final = "writes before their checkpoint are there"
WORKS: Final = "the store works"
SWEPT: Final = "stale temporaries are swept"
READABLE: Final = "everything is readable"
#: What is asked here.
PROMISES: Final = (CLOSED, DELETED, REPEATED, FENCED, EARLY, WORKS, SWEPT)

#: The name of a promise that is broken, and what is wrong.
Broken = tuple[str, str]


def the_store_works(root: str, look: Look, asked: Asked, thread: str, *, fsync: bool) -> Iterator[Broken]:
    """Use a thread again, as whoever comes next does."""
    world = World(root, Contents(items=dict(look.items)), fsync=fsync, dice=random.Random(0), first=AT_LAST)
    found = list[Broken]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found.extend(_used_again(world, look, asked, thread))
        except TurnCheckpointError as error:
            found.append((WORKS, f"{type(error).__name__}: {error}"))
        finally:
            world.close()
    yield from found
    if not asked.is_torn:
        yield from ((READABLE, str(each.message)) for each in caught)


def _used_again(world: World, look: Look, asked: Asked, thread: str) -> Iterator[Broken]:
    saver = world.saver
    if ("closed", thread) in look.items:
        try:
            saver.store.open_turn(thread)
            yield CLOSED, "a turn was opened"
        except ThreadClosedError:
            saver.reopen_thread(thread)
            world.contents = world.contents.without([("closed", thread)])
    turn = saver.store.open_turn(thread)
    assert turn.journal is not None
    try:
        yield from _old_ones_are_refused(world, look, asked, thread, turn)
        extra: dict[str, Any] = {TURN_KEY: {"thread_id": thread, "token": turn.token}}
        expected = {key: value for key, value in look.items.items() if key[1] == thread and key[0] != "closed"}
        yield from _early_writes_are_taken_in(world, asked, thread, extra, expected)
        for checkpoint_ns in world.contents.namespaces(thread) or [""]:
            ids = world.contents.ids(thread, checkpoint_ns)
            new_id = checkpoint_id(world.number())
            world.contents = world.put((thread, checkpoint_ns, ids[-1] if ids else None), new_id, extra)
        saver.inbox(thread).post("later")
    finally:
        turn.journal.close()
    put = {key: value for key, value in world.contents.items.items() if key[1] == thread and key not in expected}
    yield from _is_as_it_was_put(look_at(TurnCheckpointSaver(saver.path, fsync=world.fsync), [thread]), expected | put)


def _old_ones_are_refused(world: World, look: Look, asked: Asked, thread: str, turn: Turn) -> Iterator[Broken]:
    certain = asked.now.certain.get(thread, 0)
    handed = asked.now.handed.get(thread, 0) if asked.keeps_all else certain
    newest = max(handed, look.tokens.get(thread, 0), own_tokens(look, asked).get(thread, 0))
    if turn.token <= newest:
        yield REPEATED, f"a new turn gets {turn.token} after {newest}"
    for token in {turn.token - 1, certain} - {0}:
        try:
            extra = {TURN_KEY: {"thread_id": thread, "token": token}}
            world.put((thread, "", None), checkpoint_id(world.number()), extra)
            yield FENCED, f"a write under {token} was taken"
        except StaleTurnError:
            continue
    if deleted := asked.now.deleted.get(thread):
        try:
            world.put((thread, "", deleted), checkpoint_id(world.number()), None)
            yield DELETED, f"a write on {deleted} was taken"
        except StaleTurnError:
            return


def _early_writes_are_taken_in(
    world: World, asked: Asked, thread: str, extra: dict[str, Any], expected: dict[Key, Any]
) -> Iterator[Broken]:
    """The checkpoint comes that writes have waited for: with it they can be seen."""
    several = (asked.now, *asked.maybe)
    early = {place for contents in several for place in contents.early() if place[0] == thread}
    for place in sorted(early):
        if ("checkpoint", *place) in expected:
            continue
        parents = [i for i in world.contents.ids(thread, place[1]) if i < place[2]]
        world.contents = world.put((thread, place[1], parents[-1] if parents else None), place[2], extra)
        found = world.saver.get_tuple(config_of(place))
        written = [] if found is None else found.pending_writes or []
        allowed = [in_order(contents.writes.get(place, {})) for contents in several]
        if not any(written == each for each in allowed):
            yield EARLY, f"{written} for one of {allowed}"
        if written:
            expected[key_of("writes", place)] = written


def _is_as_it_was_put(look: Look, expected: dict[Key, Any]) -> Iterator[Broken]:
    found = {key: value for key, value in look.items.items() if key[0] != "message" or value != "later"}
    for key in expected.keys() | found.keys():
        if key not in found or key not in expected or found[key] != expected[key]:
            yield WORKS, f"{key} is not as it was put"
    if len(look.items) != len(found) + 1:
        yield WORKS, "a message that was posted is not there"
    yield from ((WORKS, error) for error in look.errors)
    used = {thread_component(thread) for thread in look.tokens}
    yield from ((SWEPT, path) for kind, path in look.findings if kind == "temporary" and path.split("/")[1] in used)
