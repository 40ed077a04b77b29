"""Two writers of one file where nothing locks them out: one stops at each of its calls while the other one writes all.
Whole files are written by names of their own, so whatever comes of it is what one of the two has written. What a crash
leaves is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from langgraph_turncheckpoint._checkpoint_files import NamespaceFiles, load_file
from langgraph_turncheckpoint._fields import checkpoint_fields
from langgraph_turncheckpoint._records import NO_REFS, Sealed, Section
from langgraph_turncheckpoint.errors import StorageError
from tests.crash.disk.filesystem import Disk
from tests.crash.disk.recording import Recorder, directory, recorded

_ID: Final = "1f000001"
_EARLIER, _LONG, _SHORT = b"earlier" * 50, b"one " * 900, b"other " * 300


class Race(NamedTuple):
    """One way in which two writers met.

    Attributes:
        call: The call before which the first one stopped.
        wrong: What was wrong, if anything.
    """

    call: int
    wrong: list[str]


def races() -> Iterator[Race]:
    """The first writer stops before its first call, its second, and so on."""
    for first, second in ((_LONG, _SHORT), (_SHORT, _LONG)):
        call, has_stopped = 0, True
        while has_stopped:
            with directory() as root:
                has_stopped, wrong = _race(root, call, first, second)
            if has_stopped:
                yield Race(call, wrong)
            call += 1


def _race(root: str, call: int, first: bytes, second: bytes) -> tuple[bool, list[str]]:
    recorder, wrong, calls = Recorder(root, Disk()), list[str](), 0
    files = NamespaceFiles(f"{root}/n-", fsync=True)

    def write(content: bytes) -> None:
        try:
            files.commit(_ID, Section(checkpoint_fields(_ID, "", None, 0), 0, NO_REFS, Sealed("text", content), []))
        except StorageError as error:
            wrong.append(f"a writer fails: {error}")

    def meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls == call + 1:
            recorder.before = None
            write(second)

    with recorded(recorder, locks=False):
        write(_EARLIER)
        recorder.before = meanwhile
        write(first)
    has_stopped = calls > call
    try:
        image = load_file(files.file(_ID))
    except StorageError as error:
        return has_stopped, [*wrong, str(error)]
    found = b"" if image is None else bytes(image.body.head.data)
    if image is None or image.damage or found not in {first, second}:
        wrong.append("the file is a mixture")
    return has_stopped, wrong
