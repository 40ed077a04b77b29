"""How a thread stands: whether its newest checkpoint can be read, what that leaves to do, and how a run ended that
nobody announced the end of. Heads are read, and no value of a channel that holds more than which node comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ._checkpoint_files import NamespaceFiles
from ._loading import Head, LoadedFile, WriteMark
from ._records import INDEX_TAG, BlobRef, Image, MalformedError, Section, parse_index
from ._serde import ValueCodec
from ._turn import Cause, LoggedTurn, TurnState, inferred_state
from .errors import DamagedCheckpointError, RefusedValueError, UnknownFormatError

#: How a thread stands: as its newest turn ended, or "damaged" if its newest checkpoint cannot be read for damage.
ThreadState: TypeAlias = TurnState | Literal["damaged"]

#: Why a checkpoint cannot be read.
UNREADABLE: Final = (DamagedCheckpointError, UnknownFormatError, RefusedValueError)

#: How often a look is repeated because the thread has moved under it.
_LOOKS: Final = 8

#: Channels of LangGraph, or how their names begin.
NEXT: Final = "branch:to:"
_JOIN: Final = "join:"
_TASKS: Final = "__pregel_tasks"
_INPUT: Final = "__start__"
ERROR: Final = "__error__"
INTERRUPT: Final = "__interrupt__"
_RESUME: Final = "__resume__"
#: What says how a task stands. A task that has written anything else has ended.
_CONTROL: Final = frozenset({ERROR, "__error_source_node__", INTERRUPT, _RESUME})

#: The task id of writes that belong to no task; LangGraph applies them before anything else.
NULL_TASK_ID: Final = "00000000-0000-0000-0000-000000000000"


class Left(NamedTuple):
    """What a checkpoint leaves to do.

    Attributes:
        nodes: The nodes that come next; none once the graph is at its end.
        waiting: Whether a person is asked first.
    """

    nodes: list[str]
    waiting: bool


class Standing(NamedTuple):
    """How a thread stands.

    Attributes:
        state: How its newest turn ended. Where nobody announced that, or it only brought checkpoints from elsewhere, or
            the log does not know of it, what its newest checkpoint tells; "unknown" if that cannot be read, for want of
            a key, say.
        cause: Why the turn ended before its work was done, if it did and somebody said so.
        left: What the newest checkpoint leaves to do; `None` if it cannot be read, or there is none.
        damage: What is wrong with the newest checkpoint, or empty.
    """

    state: ThreadState
    cause: Cause | None = None
    left: Left | None = None
    damage: str = ""


def left_of(file: LoadedFile) -> Left:
    """What a checkpoint leaves to do.

    Raises:
        DamagedCheckpointError, RefusedValueError: It cannot be read.
    """
    head = file.head()
    nodes = [name.removeprefix(NEXT) for name in head.channels if name.startswith(NEXT)]
    nodes += [name.rpartition(":")[2] for name in head.channels if _is_joined(file, head, name)]
    nodes += _sent_to(file, head)
    if _INPUT in head.channels:
        nodes.append(_INPUT)
    return Left(sorted(set(nodes)), is_asked(file.write_marks()))


def _sent_to(file: LoadedFile, head: Head) -> list[str]:
    """The nodes that tasks were sent to by `Send`, and that run next."""
    tasks = file.value(head, _TASKS) if _TASKS in head.channels else ()
    return [str(getattr(task, "node", "?")) for task in (tasks if isinstance(tasks, (list, tuple)) else ())]


def nodes_between(before: tuple[LoadedFile, Head] | None, after: Head) -> list[str]:
    """The nodes that ran between a checkpoint and one that was made of it: those that have seen other versions of their
    channels since, and those that tasks were sent to, which see none.
    """
    seen = {} if before is None else before[1].checkpoint.get("versions_seen") or {}
    now = after.checkpoint.get("versions_seen") or {}
    ran = [str(name) for name, versions in now.items() if versions != seen.get(name)]
    if before is not None and after.metadata.get("source") == "loop":
        try:
            ran += _sent_to(*before)
        except UNREADABLE:
            ran += ["?"]
    return list(dict.fromkeys(ran))


def is_asked(marks: Iterable[WriteMark]) -> bool:
    """Whether a person is asked by what was written on a checkpoint, and has not answered.

    Each task asks for itself, and asks again after an answer to its first question. An answer that is for no task in
    particular is for all that have asked by then. In a copy nothing tells what came first: a question that has
    such an answer counts as open there, as it does for LangGraph.
    """
    asking: set[str] = set()
    for mark in marks:
        if INTERRUPT in mark.channels:
            asking.add(mark.task_id)
        elif mark.task_id == NULL_TASK_ID:
            if _RESUME in mark.channels:
                asking.clear()
        elif _RESUME in mark.channels or not mark.channels <= _CONTROL:
            asking.discard(mark.task_id)
    return bool(asking)


def newest_known(turns: Sequence[LoggedTurn], file: LoadedFile) -> LoggedTurn | None:
    """A thread's newest turn; `None` if its log does not tell of it, because its newest checkpoint is of a later one.

    The log is not synced, and a disk may be full: what came last may be missing there.

    Args:
        turns: The turns that the log tells of, newest first.
        file: The newest checkpoint.

    Raises:
        DamagedCheckpointError, RefusedValueError: It cannot be read.
    """
    newest = turns[0] if turns else None
    writers = (file.token, *(mark.token for mark in file.write_marks()))
    return None if newest is None or newest.opened.token < max(writers) else newest


def ending(file: LoadedFile, token: int) -> TurnState:
    """How a plain run ended, by the last checkpoint that it wrote, or wrote on; what others wrote there is not its.

    "unknown" if that cannot be read.
    """
    try:
        marks = [mark for mark in file.write_marks() if mark.token == token]
        return inferred_state(
            has_error=any(ERROR in mark.channels for mark in marks),
            is_waiting=is_asked(marks),
            has_next=_has_next(file),
        )
    except UNREADABLE:
        return "unknown"


def ending_at_head(file: LoadedFile, newest: int) -> TurnState:
    """How a thread's newest run ended, by the thread's newest checkpoint, whoever wrote it.

    Args:
        file: The checkpoint.
        newest: The token of the newest turn there is a record of. An error that an older one met there is past, also
            where the newest is known by what it wrote there alone.

    Raises:
        DamagedCheckpointError, RefusedValueError: It cannot be read.
    """
    marks = file.write_marks()
    newest = max(newest, *(mark.token for mark in marks), 0)
    return inferred_state(
        has_error=any(ERROR in mark.channels and not 0 < mark.token < newest for mark in marks),
        is_waiting=is_asked(marks),
        has_next=_has_next(file),
    )


def _has_next(file: LoadedFile) -> bool:
    """Whether nodes are left to run; tasks are counted, and what they are given is not read if that can be told."""
    head = file.head()
    updated = head.checkpoint.get("updated_channels")
    if isinstance(updated, (list, tuple)) and _TASKS in updated:
        return True
    if any(name.startswith(NEXT) or name == _INPUT for name in head.channels):
        return True
    if any(_is_joined(file, head, name) for name in head.channels):
        return True
    return updated is None and _TASKS in head.channels and bool(file.value(head, _TASKS))


def _is_joined(file: LoadedFile, head: Head, channel: str) -> bool:
    """Whether a channel lets a node run because all those that it waits for have."""
    prefix, _, rest = channel.partition(":")
    names, colon, _ = rest.rpartition(":")
    if prefix + ":" != _JOIN or not colon:
        return False
    seen: Any = file.value(head, channel)
    if isinstance(seen, (list, tuple)) and len(seen) == 2 and isinstance(seen[1], bool):
        seen = seen[0] if seen[1] else ()  # of a node that is put off to the end
    if not isinstance(seen, (set, frozenset, list, tuple)) or not seen:
        return False
    # A name may have a plus in it.
    return all(isinstance(name, str) for name in seen) and len("+".join(seen)) == len(names)


def standing(codec: ValueCodec, files: NamespaceFiles, turns: Sequence[LoggedTurn]) -> Standing:
    """How a thread stands. Its newest checkpoint's head is read, and whether its pages are there.

    Args:
        codec: Reads heads.
        files: The root namespace.
        turns: The turns that its log tells of, newest first.
    """
    newest = turns[0] if turns else None
    state, cause = _told(newest)
    for _ in range(_LOOKS):
        head_id = files.head_id()
        if head_id is None:
            return Standing(state or "unknown", cause)
        try:
            file = _whole(codec, files, head_id)
            if file is None:
                continue  # removed under our eyes
            left = left_of(file)
            state, cause = _told(newest_known(turns, file))
            if state is None:
                state = ending_at_head(file, newest.opened.token if newest is not None else 0)
            return Standing(state, cause, left)
        except DamagedCheckpointError as error:
            if files.head_id() == head_id:
                return Standing("damaged", cause, None, str(error))
        except (UnknownFormatError, RefusedValueError):
            break
    return Standing(state or "unknown", cause)


def _told(turn: LoggedTurn | None) -> tuple[ThreadState | None, Cause | None]:
    """How a thread stands after its newest turn, and why; without a state if that turn's log does not tell."""
    if turn is None or turn.state in {"unknown", "imported"}:
        return None, None if turn is None else turn.cause
    return turn.state, turn.cause


def _whole(codec: ValueCodec, files: NamespaceFiles, checkpoint_id: str) -> LoadedFile | None:
    image = files.read(checkpoint_id)
    if image is None:
        return None
    if damage := image.damage or missing_page(files, checkpoint_id, image):
        raise DamagedCheckpointError(files.file(checkpoint_id), damage)
    return LoadedFile(codec, files, checkpoint_id, image)


def missing_page(files: NamespaceFiles, checkpoint_id: str, image: Image) -> str:
    """What of the pages of a checkpoint cannot be read, or empty. No value is decoded, and no key is needed."""
    there = files.snapshot()
    images = {checkpoint_id: image}
    try:
        waiting = [ref for section in _sections(image) for ref in _refs(checkpoint_id, section)]
        seen = set(waiting)
        while waiting:
            ref = waiting.pop()
            if ref.checkpoint_id not in images:
                images[ref.checkpoint_id] = there.read_pages(ref.checkpoint_id)
            blob = images[ref.checkpoint_id].blobs.get(ref.number)
            if blob is None:
                return f"page {ref.number} of {there.file(ref.checkpoint_id)} is missing"
            if blob.tag == INDEX_TAG:
                new = {part for part, _ in parse_index(blob.data, ref)} - seen
                seen |= new
                waiting += new
    except (DamagedCheckpointError, MalformedError) as error:
        return f"needs pages that cannot be read: {error}"
    return ""


def _sections(image: Image) -> list[Section]:
    return [image.body, *(section for _, section in image.records)]


def _refs(checkpoint_id: str, section: Section) -> list[BlobRef]:
    """The pages that a section needs: its own, and those that it shares."""
    own = [BlobRef(checkpoint_id, section.first_blob + position) for position in range(len(section.blobs))]
    return [*own, *section.refs.unpacked()]
