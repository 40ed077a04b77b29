"""Everything this package raises or warns with, as one tree. No behaviour lives here.

    TurnCheckpointError
    ├── InvalidIdError            (ValueError)   an id that cannot name a thread or a checkpoint
    ├── InvalidMessageError       (ValueError)   what an inbox cannot take
    ├── StaleTurnError                           a newer turn, or a delete, fenced this write out
    ├── ThreadBusyError                          another turn is running, and was not to be disturbed
    ├── ThreadClosedError                        the thread was closed
    ├── UnresolvedCallError                      a tool that may have run already was about to run again
    ├── UnknownPolicyError        (ValueError)   a restart policy that does not exist
    ├── UnsupportedSaverError     (TypeError)    a checkpointer the guard cannot work with
    ├── UnsupportedGraphError     (TypeError)    a graph the guard cannot work with
    ├── MissingExtraError         (ImportError)  an optional package is not installed
    ├── UnserializableValueError  (TypeError)    a value the serializer cannot write
    ├── RefusedValueError         (ValueError)   stored bytes the serializer must not load
    ├── MigrationError                           threads that could not be taken over
    │   ├── ThreadConflictError                  the destination holds something else under the id
    │   ├── DeletedThreadError                   the destination has deleted the thread
    │   ├── SourceChangedError                   the thread went on while it was copied
    │   ├── CopyDiffersError                     what was read back is not what was copied
    │   ├── PlaceError            (ValueError)   what was named is no place for checkpoints
    │   └── ForeignFileError      (ValueError)   a file to import that is not what it should be
    └── StorageError              (OSError)      the disk, the directory or a file in it
        ├── DamagedCheckpointError               a file that is not what was written
        └── UnknownFormatError                   a file from a newer version of this package

    TurnCheckpointWarning (UserWarning)
    ├── DamageWarning             a damaged file was passed over
    ├── JournalWarning            a journal could not be written; the turn goes on
    ├── PolicyWarning             a restart policy names a tool that there is not
    ├── LossyTextWarning          the serializer replaced text it cannot encode
    └── UnresolvedTypeWarning     a stored class is gone; its plain data was returned

An error leaves the directory as it was before the call, unless its docstring says otherwise.
All arguments are kept in `args`, so every error survives pickling to another process.
"""

from __future__ import annotations

import errno


class TurnCheckpointError(Exception):
    """Base of every error of this package."""


class InvalidIdError(TurnCheckpointError, ValueError):
    """A thread id, namespace or checkpoint id is missing or cannot be used. Nothing was touched."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name, self.value, self.reason = name, value, reason

    def __str__(self) -> str:
        return f"{self.name} {self.value!r:.200} {self.reason}"


class InvalidMessageError(TurnCheckpointError, ValueError):
    """What was posted to an inbox is not one message, or none that can be delivered. Nothing was stored."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"what was posted {self.reason:.1000}"


class StaleTurnError(TurnCheckpointError):
    """A write came from a turn that a newer turn, a cancel or a delete has superseded.

    Nothing was written. Retrying with the same token cannot succeed; start a new run, or open a
    new turn, and build on the state it reads.

    Attributes:
        thread_id: The thread that was written to.
        held: The token the writer held; 0 for a write outside any turn.
        current: The thread's number now. It is the newest turn's token, or was taken by what ended that: its own end, a
            cancel, a close or a delete takes one, too, so there may be no turn of this number.
        reason: What fenced the writer out, as a clause.
    """

    def __init__(
        self,
        thread_id: str,
        held: int,
        current: int,
        reason: str = "a newer turn, a cancel, a delete or its own end came first",
    ) -> None:
        super().__init__(thread_id, held, current, reason)
        self.thread_id, self.held, self.current, self.reason = thread_id, held, current, reason

    def __str__(self) -> str:
        advice = "start a new run on the thread" if self.held else "read the state again and repeat"
        held = f"turn {self.held}" if self.held else "a write outside any turn"
        now = f" (the thread is at number {self.current}; an end, a cancel or a delete takes one, too)"
        number = now if 0 < self.held < self.current else ""
        return f"thread {self.thread_id!r}: {held} was refused, {self.reason}{number}. Nothing was written; {advice}."


class ThreadBusyError(TurnCheckpointError):
    """Another turn is running on the thread, and this one was not to take over. Nothing has changed.

    Attributes:
        thread_id: The thread.
        token: The token of the turn that is running, or for which others wait, too.
        waited: How long this turn has waited for it, in seconds.
    """

    def __init__(self, thread_id: str, token: int, waited: float = 0.0) -> None:
        super().__init__(thread_id, token, waited)
        self.thread_id, self.token, self.waited = thread_id, token, waited

    def __str__(self) -> str:
        waited = f", also after waiting for {self.waited:.3g} s" if self.waited else ""
        return (
            f"thread {self.thread_id!r} is busy with turn {self.token}{waited}. Try again once it has ended; or "
            "wait for it with multitask_strategy='enqueue', or take over with 'interrupt' or 'rollback'."
        )


class ThreadClosedError(TurnCheckpointError):
    """The thread was closed. Nothing was written; `reopen_thread` admits new turns again."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id)
        self.thread_id = thread_id

    def __str__(self) -> str:
        return f"thread {self.thread_id!r} is closed; call reopen_thread({self.thread_id!r}) first"


class UnresolvedCallError(TurnCheckpointError):
    """A tool call that had started in an earlier run was about to run again, and nobody has allowed that.

    The tool did not run. This happens where tools are called by a node the guard cannot look into. Let
    `TurnGuard.recover` close the call, send a new message, or give the tool the policy "rerun".

    Attributes:
        thread_id: The thread.
        call_id: The tool call's id.
        tool: The tool's name.
    """

    def __init__(self, thread_id: str, call_id: str, tool: str) -> None:
        super().__init__(thread_id, call_id, tool)
        self.thread_id, self.call_id, self.tool = thread_id, call_id, tool

    def __str__(self) -> str:
        return (
            f"thread {self.thread_id!r}: the call {self.call_id} to {self.tool!r} had started in an earlier run, "
            "and its outcome is unknown. It was not run again; call recover() on the thread, send a new message, "
            'or allow another try with on_restart "rerun".'
        )


class UnknownPolicyError(TurnCheckpointError, ValueError):
    """A restart policy that does not exist. Nothing was changed."""

    def __init__(self, where: str, policy: object, known: tuple[str, ...]) -> None:
        super().__init__(where, policy, known)
        self.where, self.policy, self.known = where, policy, known

    def __str__(self) -> str:
        return f"{self.where} is {self.policy!r}; use one of {', '.join(map(repr, self.known))}"


class UnsupportedSaverError(TurnCheckpointError, TypeError):
    """A checkpointer the guard cannot work with. Nothing was changed."""


class UnsupportedGraphError(TurnCheckpointError, TypeError):
    """A graph the guard cannot work with. Nothing was changed."""


class MissingExtraError(TurnCheckpointError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class UnserializableValueError(TurnCheckpointError, TypeError):
    """The serializer cannot write a value. Nothing was written.

    Attributes:
        channel: The channel (or `metadata`, `checkpoint`) that holds the value.
        path: Where in the channel's value it sits, for example `['a'][3].args`.
        reason: What the serializer said.
    """

    def __init__(self, channel: str, path: str, reason: str) -> None:
        super().__init__(channel, path, reason)
        self.channel, self.path, self.reason = channel, path, reason

    def __str__(self) -> str:
        return (
            f"channel {self.channel!r}: the value at {self.path or 'its root'} cannot be stored: "
            f"{self.reason}. Keep it out of the state, or pass a serde that can write it."
        )


class RefusedValueError(TurnCheckpointError, ValueError):
    """Stored bytes ask for something that loading a checkpoint must never do.

    A payload tagged `json` or `pickle`, a callable that is no data class, or plaintext where the
    saver encrypts. The file was not changed; nothing in it was executed.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"refused to load {self.what}: {self.reason}"


class MigrationError(TurnCheckpointError):
    """Threads could not be taken over, or a migration could not begin.

    What was there before is as it was, in the source and in the destination. What was copied stays, and the same
    call goes on from there once the reason is gone.

    Attributes:
        reason: What happened and what to do, as a sentence.
        thread_id: The thread it is about; `None` if it is about several, or none.
        errors: Of a whole migration, the error of each thread that is not in the destination, whole and checked.
        report: Of a whole migration, the `MigrationReport` on the others.
    """

    def __init__(
        self,
        reason: str,
        thread_id: str | None = None,
        errors: tuple[Exception, ...] = (),
        report: object = None,
    ) -> None:
        super().__init__(reason, thread_id, errors, report)
        self.reason, self.thread_id, self.errors, self.report = reason, thread_id, errors, report

    def __str__(self) -> str:
        return self.reason if self.thread_id is None else f"thread {self.thread_id!r}: {self.reason}"


class ThreadConflictError(MigrationError):
    """The destination holds something else under the thread's id. Nothing of it was overwritten."""


class DeletedThreadError(MigrationError):
    """The destination has deleted these checkpoints with their thread. They were not brought back."""


class SourceChangedError(MigrationError):
    """The thread was written to, or pruned, while it was copied. The same call again goes on."""


class CopyDiffersError(MigrationError):
    """The destination does not give back what was put there; the reason names the first differences."""


class PlaceError(MigrationError, ValueError):
    """What was named is no place that checkpoints can be read from, or written to. Nothing was changed."""


class ForeignFileError(MigrationError, ValueError):
    """A file that was to be imported is cut short, changed, or of another kind. Nothing was imported.

    Attributes:
        path: The file.
        place: Where in it, for example `line 3` or `messages[4]`; empty for the whole of it.
    """

    def __init__(self, path: str, place: str, reason: str) -> None:
        super().__init__(reason)
        self.args = (path, place, reason)
        self.path, self.place = path, place

    def __str__(self) -> str:
        return f"{self.path}: {self.place}: {self.reason}" if self.place else f"{self.path}: {self.reason}"


class StorageError(TurnCheckpointError, OSError):
    """The operating system refused a file operation.

    What had been acknowledged before is intact. `errno` and `filename` are those of the failed
    call, so `except OSError` and `error.errno == errno.ENOSPC` work as usual.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.errno}, {self.strerror!r}, {self.filename!r})"


class DamagedCheckpointError(StorageError):
    """A file is not what this package wrote: truncated, changed, or of another program.

    The file was left where it is. Other checkpoints of the thread are unaffected; a checkpoint
    can be deleted with its thread, or restored from a backup.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EIO, reason, path)
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type[DamagedCheckpointError], tuple[str, str]]:
        return type(self), (self.path, self.reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class UnknownFormatError(StorageError):
    """A file has a format version newer than this package knows. It was not touched; upgrade."""

    def __init__(self, path: str, version: int, known: int) -> None:
        super().__init__(errno.EIO, f"format version {version} is newer than {known}", path)
        self.path, self.version, self.known = path, version, known

    def __reduce__(self) -> tuple[type[UnknownFormatError], tuple[str, int, int]]:
        return type(self), (self.path, self.version, self.known)

    def __str__(self) -> str:
        return (
            f"{self.path}: format version {self.version} is newer than {self.known}, the newest "
            "this version reads. Upgrade langgraph-turncheckpoint; the file was not touched."
        )


class TurnCheckpointWarning(UserWarning):
    """Base of every warning of this package."""


class DamageWarning(TurnCheckpointWarning):
    """A damaged file was passed over; the message names the file and the reason."""


class JournalWarning(TurnCheckpointWarning):
    """A turn's journal could not be written, and after a crash less would be known about it; or what is in the
    checkpoints by now could not be removed from journals and inbox. The turn goes on.
    """


class PolicyWarning(TurnCheckpointWarning):
    """What a guard was told does not fit: a restart policy for a tool that the graph does not have, or that of another
    guard around this one; or a function for texts that fails.
    """


class LossyTextWarning(TurnCheckpointWarning):
    """The serializer cannot encode a text exactly (a lone surrogate) and replaced part of it."""


class UnresolvedTypeWarning(TurnCheckpointWarning):
    """A stored value's class cannot be found any more; its plain data was returned instead."""
