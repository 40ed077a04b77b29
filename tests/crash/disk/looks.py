"""A look at a store that a crash has left, by a saver that knows nothing of what was there. Nothing is judged here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from langgraph_turncheckpoint import TurnCheckpointSaver
from langgraph_turncheckpoint._journal import journal_path, journal_tokens, read_journal
from langgraph_turncheckpoint._transcript import decode_records
from langgraph_turncheckpoint.errors import DamageWarning, TurnCheckpointError
from tests.crash.disk.contents import Key, key_of
from tests.crash.disk.world import NAMESPACES, THREADS, config_of, plain

T = TypeVar("T")

#: Kind and fields of each record of a journal.
Records: TypeAlias = tuple[tuple[str, str], ...]


class Look(NamedTuple):
    """What is seen.

    Attributes:
        items: Everything that can be read, see `Contents.visible`.
        heads: By thread and namespace, the newest checkpoint as `get_tuple` has it.
        tokens: By thread, the token of the ledger.
        stored_tokens: By thread, the newest token that a checkpoint or a journal was written under.
        journals: By thread and token, the records.
        errors: What could not be read at all.
        warnings: What was said about damage.
        findings: Kind and path of what `verify` reports.
        threads: What `thread_ids` gives.
    """

    items: dict[Key, Any]
    heads: dict[tuple[str, str], str]
    tokens: dict[str, int]
    stored_tokens: dict[str, int]
    journals: dict[tuple[str, int], Records]
    errors: list[str]
    warnings: list[str]
    findings: list[tuple[str, str]]
    threads: list[str]


def attempt(action: Callable[[], T], errors: list[str]) -> T | None:
    """What an action gives; an error of the store is noted."""
    try:
        return action()
    except TurnCheckpointError as error:
        errors.append(f"{type(error).__name__}: {error}")
        return None


def look_at(saver: TurnCheckpointSaver, threads: Sequence[str] = THREADS) -> Look:
    """Read everything that there is in these threads."""
    look = Look({}, {}, {}, {}, {}, [], [], [], [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Before anything is read: reading a ledger that is half there mends it.
        findings = attempt(saver.verify, look.errors) or []
        for thread in threads:
            attempt(lambda thread=thread: _look_at_thread(saver, thread, look), look.errors)  # type: ignore[misc]
        look.threads[:] = attempt(saver.thread_ids, look.errors) or []
    look.findings[:] = [(finding.kind, os.path.relpath(finding.path, saver.path)) for finding in findings]
    look.warnings[:] = [str(each.message) for each in caught if issubclass(each.category, DamageWarning)]
    look.errors.extend(str(each.message) for each in caught if not issubclass(each.category, DamageWarning))
    return look


def _look_at_thread(saver: TurnCheckpointSaver, thread: str, look: Look) -> None:
    files = saver.store.thread(thread)
    state = files.ledger.read()
    if state is None:
        return
    look.tokens[thread] = state.token
    if state.closed:
        look.items["closed", thread] = True
    tokens = [0]
    for checkpoint_ns in NAMESPACES:
        namespace = files.namespace(state, checkpoint_ns)
        for found in saver.list(config_of((thread, checkpoint_ns, None))):
            conf = cast(Mapping[str, Any], found.config["configurable"])
            checkpoint_id = conf["checkpoint_id"]
            parent = None if found.parent_config is None else found.parent_config["configurable"]["checkpoint_id"]
            place = thread, checkpoint_ns, checkpoint_id
            look.items[key_of("checkpoint", place)] = dict(found.checkpoint), dict(found.metadata), parent
            if found.pending_writes:
                look.items[key_of("writes", place)] = found.pending_writes
            image = namespace.read(checkpoint_id)
            tokens.append(0 if image is None else int(image.body.fields[3]))
        head = attempt(lambda: saver.get_tuple(config_of((thread, checkpoint_ns, None))), look.errors)  # noqa: B023
        if head is not None:
            look.heads[thread, checkpoint_ns] = str(head.config["configurable"]["checkpoint_id"])
    for message in saver.inbox(thread).pending():
        look.items["message", thread, str(message.id)] = message.content
    for token, records in journals_of(saver, files.generation(state), look.warnings).items():
        look.journals[thread, token] = records
        tokens.append(token if records else 0)
    look.stored_tokens[thread] = max(tokens)


def journals_of(saver: TurnCheckpointSaver, generation: str, unreadable: list[str]) -> dict[int, Records]:
    """By token, what the journals in a generation's directory record; what cannot be read is noted."""
    found: dict[int, Records] = {}
    for token in journal_tokens(generation):
        content = read_journal(journal_path(generation, token))
        if content is not None:
            records, notes = decode_records(saver.store.codec, content.payloads)
            unreadable.extend(notes)
            found[token] = tuple((record.kind, plain(record.fields)) for record in records)
    return found
