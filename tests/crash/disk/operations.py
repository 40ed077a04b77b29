"""Every operation of a store that a crash may interrupt: how it is done, and what it must have changed once it has
returned. What a crash makes of it is not said here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from langchain_core.messages import HumanMessage

from langgraph_turncheckpoint._running import RunningTurn, discard_journals_before
from langgraph_turncheckpoint._runs import RUNTIME_KEY
from langgraph_turncheckpoint._transcript import CallKey
from tests.crash.disk.contents import Contents, Journal, Place, key_of
from tests.crash.disk.looks import Records, journals_of
from tests.crash.disk.world import NAMESPACES, RUNS, THREADS, OpenedTurn, World, checkpoint_id, config_of

Step = Callable[[World], Contents | None]


def put_a_checkpoint(world: World) -> Contents | None:
    thread = world.choose(lambda thread: not world.is_closed(thread))
    if thread is None:
        return None
    checkpoint_ns = "" if world.dice.random() < 0.7 else world.dice.choice(NAMESPACES)
    ids = world.contents.ids(thread, checkpoint_ns)
    parent = None if not ids else ids[-1] if world.dice.random() < 0.8 else world.dice.choice(ids)
    extra = world.writer(thread) if world.dice.random() < 0.8 else None
    return world.put((thread, checkpoint_ns, parent), checkpoint_id(world.number()), extra)


def put_a_checkpoint_again(world: World) -> Contents | None:
    thread = world.choose(lambda thread: not world.is_closed(thread) and world.contents.namespaces(thread))
    place = None if thread is None else world.some_place(thread)
    if place is None:
        return None
    parent = world.contents.items[key_of("checkpoint", place)][2]
    if parent is not None and ("checkpoint", *place[:2], parent) not in world.contents.items:
        return None
    return world.put((place[0], place[1], parent), place[2], world.writer(place[0]))


def put_writes_on_a_checkpoint(world: World) -> Contents | None:
    thread = world.choose(lambda thread: not world.is_closed(thread) and world.contents.namespaces(thread))
    place = None if thread is None else world.some_place(thread)
    return None if place is None else _some_writes(world, place, world.writer(place[0]))


def put_writes_before_their_checkpoint(world: World) -> Contents | None:
    early = sorted(world.contents.early())
    thread = world.choose(lambda thread: not world.is_closed(thread))
    if thread is None:
        return None
    waiting = [place for place in early if place[0] == thread]
    if waiting and world.dice.random() < 0.5:
        place = world.dice.choice(waiting)
    else:
        place = (thread, world.dice.choice(NAMESPACES), checkpoint_id(world.number()))
    return _some_writes(world, place, world.writer(thread))


def put_the_checkpoint_that_writes_wait_for(world: World) -> Contents | None:
    early = [place for place in sorted(world.contents.early()) if not world.is_closed(place[0])]
    if not early:
        return None
    thread, checkpoint_ns, new_id = world.dice.choice(early)
    parents = [i for i in world.contents.ids(thread, checkpoint_ns) if i < new_id]
    return world.put((thread, checkpoint_ns, parents[-1] if parents else None), new_id, world.writer(thread))


def _some_writes(world: World, place: Place, extra: dict[str, Any] | None) -> Contents:
    task = f"task-{world.dice.randrange(3)}"
    writes: list[tuple[str, Any]] = [("log", f"by {task} {world.number()}"), ("n", world.dice.random())]
    chance = world.dice.random()
    if chance < 0.3:
        writes = [(world.dice.choice(["__error__", "__interrupt__", "__resume__"]), f"special {world.number()}")]
    elif chance < 0.4:
        writes.append(("large", world.dice.randbytes(1500).hex()))
    return world.put_writes(place, extra, task, writes)


def start_a_run(world: World) -> Contents | None:
    thread = world.choose(lambda thread: not world.is_closed(thread))
    if thread is None:
        return None
    world.overtaken(thread)
    world.runs[thread] = {RUNTIME_KEY: SimpleNamespace(control=object())}
    world.saver.get_tuple(config_of((thread, "", None), world.runs[thread]))
    return world.contents.with_token(thread, world.token(thread), certain=False)


def open_a_turn(world: World) -> Contents | None:
    thread = world.choose(lambda thread: not world.is_closed(thread))
    if thread is None:
        return None
    store = world.saver.store
    turn = store.open_turn(thread)
    world.overtaken(thread)
    world.turns[thread] = OpenedTurn(turn, RunningTurn(store, thread, turn))
    # A journal by this token can be there only if its turn was never opened, as far as the disk knows.
    contents = world.contents.with_journal(thread, turn.token, Journal())
    return contents.with_token(thread, turn.token, certain=True)


def record_a_prompt(world: World) -> Contents | None:
    thread = world.choose(world.turns.get)
    if thread is None:
        return None
    message = HumanMessage(f"prompt {world.number()}", id=f"p-{world.number()}")
    return world.record(thread, lambda running: running.prompt(None, [message]), certain=True)


def record_a_model_call(world: World) -> Contents | None:
    thread = world.choose(world.turns.get)
    if thread is None:
        return None
    run = f"model-{world.number()}"
    return world.record(thread, lambda running: running.model_started(run, [], "agent", "agent:1"), certain=False)


def record_the_start_of_a_tool(world: World) -> Contents | None:
    thread = world.choose(world.turns.get)
    if thread is None:
        return None
    key = CallKey("ai", f"call-{world.number()}", "pay")
    return world.record(thread, lambda running: running.tool_started(key, must_be_durable=True), certain=True)


def record_the_result_of_a_tool(world: World) -> Contents | None:
    thread = world.choose(world.turns.get)
    if thread is None:
        return None
    key, output = CallKey("ai", f"call-{world.number()}", "pay"), f"paid {world.number()}"
    return world.record(thread, lambda running: running.tool_ended(key, output), certain=False)


def settle_the_turn(world: World) -> Contents | None:
    thread = world.choose(world.turns.get)
    if thread is None:
        return None
    turn = world.turns[thread].turn
    contents = world.record(thread, lambda running: running.end_run("completed", None), certain=False)
    is_blank = turn.journal is None or turn.journal.is_blank
    world.saver.store.settle_turn(thread, turn, "completed")
    world.overtaken(thread)
    journal = contents.journals[thread, turn.token]._replace(may_be_gone=is_blank)
    contents = contents.with_journal(thread, turn.token, journal)
    return contents.with_token(thread, world.token(thread), certain=False)


def forget_older_journals(world: World) -> Contents | None:
    thread = world.choose(world.turns.get)
    if thread is None:
        return None
    token, contents = world.turns[thread].turn.token, world.contents
    discard_journals_before(world.saver.store, thread, token)
    for (name, older), journal in world.contents.journals.items():
        if name == thread and older < token:
            contents = contents.with_journal(thread, older, journal._replace(may_be_gone=True))
    return contents


def cancel_the_turn(world: World) -> Contents | None:
    thread = world.choose(world.contents.handed.get)
    if thread is None:
        return None
    world.saver.cancel_turn(thread, reason="user")
    world.overtaken(thread)
    return world.contents.with_token(thread, world.token(thread), certain=True)


def close_a_thread(world: World) -> Contents | None:
    thread = world.choose(lambda thread: world.contents.handed.get(thread) and not world.is_closed(thread))
    if thread is None:
        return None
    world.saver.close_thread(thread)
    world.overtaken(thread)
    contents = world.contents.with_token(thread, world.token(thread), certain=True)
    return contents.with_items({("closed", thread): True})


def reopen_a_thread(world: World) -> Contents | None:
    thread = world.choose(world.is_closed)
    if thread is None:
        return None
    world.saver.reopen_thread(thread)
    contents = world.contents.with_token(thread, world.token(thread), certain=True)
    return contents.with_items({("closed", thread): False})


def delete_a_thread(world: World) -> Contents | None:
    thread = world.choose(world.contents.handed.get)
    if thread is None:
        return None
    contents = world.contents
    newest = max((key[3] for key in contents.items if key[:2] == ("checkpoint", thread)), default="")
    world.saver.delete_thread(thread)
    world.overtaken(thread)
    kept_items = {key: value for key, value in contents.items.items() if key[1] != thread or key[0] == "closed"}
    journals = {key: journal for key, journal in contents.journals.items() if key[0] != thread}
    contents = replace(
        contents.without_writes([place for place in contents.writes if place[0] == thread]),
        items=kept_items,
        journals=journals,
        deleted={**contents.deleted, thread: max(newest, contents.deleted.get(thread, ""))},
    )
    return contents.with_token(thread, world.token(thread), certain=True)


def prune_a_thread(world: World) -> Contents | None:
    thread = world.choose(world.contents.namespaces)
    if thread is None:
        return None
    world.saver.prune([thread])
    contents = world.contents
    for checkpoint_ns in contents.namespaces(thread):
        doomed = contents.ids(thread, checkpoint_ns)[:-1]
        if doomed:
            early = [place for place in contents.early() if place[:2] == (thread, checkpoint_ns)]
            gone = [(thread, checkpoint_ns, i) for i in doomed] + [place for place in early if place[2] <= doomed[-1]]
            contents = contents.without(("checkpoint", *place) for place in gone).without_writes(gone)
    return contents


def delete_what_a_run_wrote(world: World) -> Contents | None:
    if not any(key[0] == "checkpoint" for key in world.contents.items):
        return None
    run = world.dice.choice(RUNS)
    world.saver.delete_for_runs([run])
    items = world.contents.items.items()
    gone = [key for key, value in items if key[0] == "checkpoint" and value[1]["run_id"] == run]
    return world.contents.without(gone).without_writes(cast(Place, key[1:]) for key in gone)


def copy_a_thread(world: World) -> Contents | None:
    source, target = world.dice.sample(THREADS, 2)
    contents = world.contents
    there = {place[1:] for place in [*contents.writes, *_places(contents)] if place[0] == target}
    moved = [place for place in [*contents.writes, *_places(contents)] if place[0] == source]
    if not contents.namespaces(source) or world.is_closed(target) or there & {place[1:] for place in moved}:
        return None
    journals = _journals_to_copy(world, source, target)
    world.saver.copy_thread(source, target)
    world.overtaken(target)
    for place in moved:
        copy = (target, *place[1:])
        if ("checkpoint", *place) in contents.items:
            contents = contents.with_items({("checkpoint", *copy): contents.items[key_of("checkpoint", place)]})
        if place in contents.writes:
            contents = contents.with_writes(copy, contents.writes[place])
    for token, records in journals.items():
        contents = contents.with_journal(target, token, Journal(records, len(records)))
    contents = replace(contents, copied=contents.copied | {target})
    return contents.with_token(target, world.token(target), certain=True)


def _journals_to_copy(world: World, source: str, target: str) -> dict[int, Records]:
    """By token in the target, what the source's journals record; none where the target has gone further itself."""
    newest = [max(world.contents.ids(thread, ""), default="") for thread in (source, target)]
    files = world.saver.store.thread(source)
    state = files.ledger.read()
    there = {} if state is None else journals_of(world.saver, files.generation(state), [])
    found = {token: records for token, records in there.items() if records}
    if not found or newest[1] > newest[0]:
        return {}
    shift = max(0, world.token(target) + 1 - min(found))
    return {token + shift: records for token, records in found.items()}


def _places(contents: Contents) -> list[Place]:
    return [cast(Place, key[1:]) for key in contents.items if key[0] == "checkpoint"]


def post_a_message(world: World) -> Contents | None:
    thread = world.choose(lambda thread: not world.is_closed(thread))
    if thread is None:
        return None
    number = world.number()
    message_id = f"posted-{number:06}"
    world.saver.inbox(thread).post(HumanMessage(f"message {number}", id=message_id))
    contents = world.contents.with_items({("message", thread, message_id): f"message {number}"})
    return contents.with_token(thread, world.token(thread), certain=True)


def acknowledge_a_message(world: World) -> Contents | None:
    thread = world.choose(world.contents.messages)
    if thread is None:
        return None
    message_id = world.dice.choice(world.contents.messages(thread))
    world.saver.inbox(thread).acknowledge([message_id])
    return world.contents.without([("message", thread, message_id)])


class Operation(NamedTuple):
    """An operation.

    Attributes:
        step: Does it, and gives what is there afterwards; `None` where there is nothing to do it to.
        is_atomic: Whether a crash may not leave half of it.
        weight: How often it is drawn.
    """

    step: Step
    is_atomic: bool = True
    weight: int = 2

    @property
    def name(self) -> str:
        """In words."""
        return self.step.__name__.replace("_", " ")


OPERATIONS: Final = (
    Operation(put_a_checkpoint, weight=6),
    Operation(put_a_checkpoint_again),
    Operation(put_writes_on_a_checkpoint, weight=4),
    Operation(put_writes_before_their_checkpoint),
    Operation(put_the_checkpoint_that_writes_wait_for),
    Operation(start_a_run, weight=3),
    Operation(open_a_turn, weight=4),
    Operation(record_a_prompt),
    Operation(record_a_model_call),
    Operation(record_the_start_of_a_tool, weight=3),
    Operation(record_the_result_of_a_tool),
    Operation(settle_the_turn),
    Operation(forget_older_journals),
    Operation(cancel_the_turn, weight=1),
    Operation(close_a_thread, weight=1),
    Operation(reopen_a_thread, weight=4),
    Operation(delete_a_thread, weight=1),
    Operation(prune_a_thread, is_atomic=False, weight=1),
    Operation(delete_what_a_run_wrote, is_atomic=False, weight=1),
    Operation(copy_a_thread),
    Operation(post_a_message),
    Operation(acknowledge_a_message),
)
