"""Ids on a command line: shown so that they fit a line, and found again from what was shown. Text only."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

#: What a terminal shows as it is, although it is no printable character.
_PLAIN: Final = "\n\t"


def shown_id(text: str) -> str:
    """An id as it is shown: as it is, or as a JSON string where it could be taken for something else.

    That is the case for what does not print, what is empty or begins or ends with a space, and what begins with a
    dash or a quotation mark.
    """
    is_plain = text.isprintable() and text.strip() == text and text[:1] not in {"", "-", '"'}
    return text if is_plain else json.dumps(text)


def given_ids(text: str) -> list[str]:
    """The ids that somebody may mean who types this, likeliest first."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            meant = json.loads(text)
        except ValueError:
            return [text]
        if isinstance(meant, str):
            return [meant, text]
    return [text]


def clean(text: str) -> str:
    """A text that cannot move the cursor, change colours or fail to be written."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _PLAIN else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def resolve(given: str, ids: Sequence[str], *, parent: Callable[[str], str | None]) -> str | None:
    """The checkpoint that is meant.

    Args:
        given: An id, its beginning or its end if no other id has it, `latest`, or one of these with `~1` (its parent),
            `~2` and so on behind it.
        ids: All ids, newest first.
        parent: From an id to that of its parent.
    """
    name, mark, steps = given.rpartition("~")
    if mark and steps.isascii() and steps.isdigit():
        found = resolve(name, ids, parent=parent)
        for _ in range(int(steps)):
            found = None if found is None else parent(found)
        return found
    if given in ids:
        return given
    if given == "latest":
        return next(iter(ids), None)
    alike = [each for each in ids if each.startswith(given) or each.endswith(given)]
    return alike[0] if len(alike) == 1 and given else None
