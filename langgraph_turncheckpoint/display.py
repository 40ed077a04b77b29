"""`Timeline`: the picture of a thread, to be shown in a notebook or saved; and what a notebook shows of a saver. What
is in them is read in `_sightings`, told in `_timeline` and drawn in `_drawing`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from . import _files
from ._drawing import page_of, svg_of, table_of, text_of
from ._markup import TONES, Cell, table
from ._picture import lay_out
from ._shapes import moment
from ._sightings import look_at
from ._store import Store
from ._story import ThreadStory, facts_of
from ._timeline import tell
from .errors import DamageWarning, TurnCheckpointError

#: How many threads a notebook shows of a saver.
THREADS_SHOWN: Final = 20

_SUFFIXES: Final = (".svg", ".html", ".txt")


class Timeline:
    """The picture of a thread as it was when it was read: turns, super-steps, tool calls, crashes, takeovers, forks.

    A notebook shows it; `save` writes it to a file. It needs no script and nothing from elsewhere, is readable on
    light and on dark ground, and all that is in it can be reached with the keyboard and has a name for screen readers.
    Text of strangers, such as thread ids, names of nodes and what was said, stands in it as text only.

    Made by `TurnCheckpointSaver.timeline`.
    """

    __slots__ = ("_story",)

    def __init__(self, story: ThreadStory) -> None:
        self._story = story

    @property
    def thread_id(self) -> str:
        """The thread."""
        return self._story.thread_id

    @property
    def svg(self) -> str:
        """The picture as an SVG file. The same thread gives the same text."""
        return svg_of(lay_out(self._story))

    @property
    def html(self) -> str:
        """A whole HTML page: the picture, and the turns as a table."""
        return page_of(f"Thread {self._story.thread_id}", self._fragment())

    @property
    def text(self) -> str:
        """The turns in plain text, a line each."""
        return text_of(self._story)

    def to_dict(self) -> dict[str, Any]:
        """The turns as data that JSON can carry; `turncheckpoint timeline --json` prints it.

        Times are in UTC, ISO 8601, durations in seconds; `None` is what is not known.

        Returns:
            A dict with `thread_id`, `closed`, `turns`, `earlier` (what is not listed: `turns`, `parts`, `states`,
            `first_at`, `last_at`; or `None`), `damaged`. Each turn, oldest first, has `token` (`None` for an edit
            outside any), `part` (of an imported turn with several runs, which one), `state`, `left_as` (of what was
            imported, how it had ended), `reason`, `opened_at`, `seconds`, `prompt`, `end`, `refused`, `continues`,
            `takes_over`, `branch`, and `steps`: `kind`, `nodes`, `finished`, `seconds`, `at`, `checkpoint_id`, `inner`,
            and `calls` with `name`, `result`, `note`, `detail`, `seconds`.
        """
        return facts_of(self._story)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the picture to a file, in one step; a file that is there gives way to it. Only the owner can read it.

        Args:
            path: A file whose name ends in ".svg", ".html" or ".txt", in a directory that exists.

        Returns:
            The absolute path.

        Raises:
            ValueError: The name has another ending. Nothing was written.
            StorageError: The system refused. A file that was there before is unchanged.
        """
        target = os.path.abspath(os.fspath(path))
        suffix = os.path.splitext(target)[1].lower()
        if suffix not in _SUFFIXES:
            raise ValueError(f"{target!r}: a picture can be saved as {', '.join(_SUFFIXES)}; give one of these endings")
        made = {".svg": lambda: self.svg, ".html": lambda: self.html, ".txt": lambda: self.text}[suffix]()
        _files.replace_file(target, made.encode(), temporary=f"{target}.{uuid4().hex[:8]}.tmp", fsync=False)
        return target

    def __repr__(self) -> str:
        return f"Timeline({self.thread_id!r}, turns={_turns_of(self._story)})"

    def __str__(self) -> str:
        return self.text

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return self._fragment()

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """What Jupyter chooses from: the picture in two forms, and plain text where neither can be shown."""
        makers = {
            "text/plain": lambda: self.text,
            "image/svg+xml": lambda: self.svg,
            "text/html": self._fragment,
        }
        return {
            kind: make()
            for kind, make in makers.items()
            if (not include or kind in include) and kind not in (exclude or ())
        }

    def _fragment(self) -> str:
        picture = svg_of(lay_out(self._story), standalone=False)
        if not self._story.bands:
            return picture
        return f"{picture}<details><summary>The same as a table</summary>\n{table_of(self._story)}</details>\n"


def _turns_of(story: ThreadStory) -> int:
    """How many turns are shown."""
    return len({band.token for band in story.bands if band.token})


def timeline(store: Store, thread_id: str, *, turns: int, texts: bool) -> Timeline:
    """The picture of a thread; see `TurnCheckpointSaver.timeline`."""
    if turns < 1:
        raise ValueError(f"turns={turns!r} is not a number of turns from 1 on")
    return Timeline(tell(look_at(store, thread_id, turns=turns, texts=texts), turns=turns))


def threads_table(store: Store) -> str | None:
    """The threads of a store as an HTML table, each with its last turn; `None` if they cannot be read."""
    try:
        return _threads_table(store)
    except (TurnCheckpointError, DamageWarning, OSError):  # a warning, where warnings are errors
        return None  # a notebook then shows the plain text, which does not look at the disk


def _threads_table(store: Store) -> str:
    found = [*islice(store.thread_ids(), THREADS_SHOWN + 1)]
    rows = []
    for thread_id in found[:THREADS_SHOWN]:
        row: list[Cell | str] = [thread_id, "-", Cell("cannot be read", TONES["failed"][0]), "-"]
        with suppress(TurnCheckpointError):
            story = tell(look_at(store, thread_id, turns=1, texts=False), turns=1)
            row = [thread_id, *_last_turn(story)]
        rows.append(row)
    note = f"The first {THREADS_SHOWN} threads are shown; thread_ids() lists all." if len(found) > THREADS_SHOWN else ""
    if not found:
        note = "There are no threads yet."
    return table(f"Checkpoints in {store.root}", ["thread", "turns", "last turn", "opened (UTC)"], rows, note=note)


def _last_turn(story: ThreadStory) -> list[Cell | str]:
    turns = _turns_of(story) + (story.folded.turns if story.folded is not None else 0)
    if not story.bands:
        return ["0", "-", "-"]
    band = story.bands[-1]
    outcome = band.left_as or band.outcome
    state = Cell(outcome + (", closed" if story.is_closed else ""), TONES[outcome][0], band.reason)
    return [str(turns), state, f"{moment(band.opened_at):%Y-%m-%d %H:%M:%S}"]
