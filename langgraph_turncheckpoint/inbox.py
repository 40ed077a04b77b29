"""`Inbox`: messages for a thread that is busy. Which messages may be posted, and how they become stored bytes, is
here; delivering them at the right moment is the guard's business.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langchain_core.messages.utils import MessageLikeRepresentation

from . import _events
from ._inbox_files import InboxFiles, Item
from ._offload import offload
from ._serde import ValueCodec
from .errors import (
    DamagedCheckpointError,
    InvalidIdError,
    InvalidMessageError,
    RefusedValueError,
    UnserializableValueError,
)


class Inbox:
    """The inbox of one thread. Made by `TurnCheckpointSaver.inbox`.

    Any process may post at any time, also while a run is under way: posting takes no turn and fences nobody out.
    A message stays until it is acknowledged, so it may be delivered more than once; its id tells.

    Attributes:
        thread_id: The thread.
    """

    def __init__(self, thread_id: str, files: InboxFiles, codec: ValueCodec, *, strict: bool) -> None:
        self.thread_id = thread_id
        self._files, self._codec, self._strict = files, codec, strict

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.thread_id!r})"

    def post(self, message: MessageLikeRepresentation) -> str:
        """Put a message into the inbox, behind all that are there.

        It is there wholly or not at all, and stored as the saver stores checkpoints, encrypted if its serde
        encrypts. On return it survives a killed process, and with the saver's `fsync` a power loss. Where a
        message of the same id waits already, that one is kept and nothing happens; so a post may be repeated.
        With an id of your own, the cost grows with the number of messages that wait.

        Args:
            message: A message, or what LangChain makes one of: a text is a user message. It is not changed.

        Returns:
            The message's id; one is made up if it has none.

        Raises:
            InvalidMessageError: It is not one message, or one that no model could be given: a tool's result, a
                removal, or an assistant's message with tool calls.
            InvalidIdError: Its id is empty or is not valid Unicode.
            ThreadClosedError: The thread is closed.
            UnserializableValueError: The serde cannot write a value in it.
            StorageError: The system refused. In all cases nothing was stored.
        """
        posted = _message_of(message)
        given = posted.id
        message_id = str(uuid.uuid4()) if given is None else _checked_id(given)
        posted = posted.model_copy(update={"id": message_id})
        try:
            sealed = self._codec.seal_page(self._codec.page([posted]), [posted])
        except UnserializableValueError:
            raise self._codec.explain("inbox", posted) from None
        self._files.post(message_id, sealed, may_be_there=given is not None)
        return message_id

    def pending(self) -> list[BaseMessage]:
        """The messages that wait, in the order in which they were posted, over all processes.

        No lock is held. A damaged one is passed over with a `DamageWarning` that names its file, and kept.

        Raises:
            DamagedCheckpointError: One is damaged, and the saver is `strict`.
            UnknownFormatError: One was posted by a newer version. It was not touched.
            RefusedValueError: One asks for something that must not be loaded, or is plaintext where the saver's
                serde encrypts.
        """
        messages = []
        for item in self._files.items(self._pass_over):
            try:
                messages.append(self._open(item))
            except DamagedCheckpointError as error:
                self._pass_over(error)
        return messages

    def acknowledge(self, message_ids: Collection[str]) -> int:
        """Remove messages that need not be delivered any more; ids that are not there are passed over.

        Call it when a durable checkpoint holds them. Durable on return, see `fsync`; a crash on the way leaves
        each message there or gone.

        Args:
            message_ids: Their ids; a single one may be given as it is.

        Returns:
            How many there were.

        Raises:
            StorageError: The system refused. Some may be gone; call again to remove the rest.
        """
        return self._files.remove([message_ids] if isinstance(message_ids, str) else message_ids)

    def clear(self) -> int:
        """Remove every message, delivered or not, and those that cannot be read, too. Durable on return.

        Returns:
            How many there were.

        Raises:
            StorageError: The system refused. Some may be gone; call again to remove the rest.
        """
        return self._files.clear()

    async def apost(self, message: MessageLikeRepresentation) -> str:
        """Async twin of `post`."""
        return await offload(self.post, message)

    async def apending(self) -> list[BaseMessage]:
        """Async twin of `pending`."""
        return await offload(self.pending)

    async def aacknowledge(self, message_ids: Collection[str]) -> int:
        """Async twin of `acknowledge`."""
        return await offload(self.acknowledge, message_ids)

    async def aclear(self) -> int:
        """Async twin of `clear`."""
        return await offload(self.clear)

    def _open(self, item: Item) -> BaseMessage:
        try:
            items, _ = self._codec.open_page(item.sealed, learn=False)
        except RefusedValueError as error:
            raise RefusedValueError(f"{error.what} in {item.path}", error.reason) from error
        except Exception as error:
            # The frame around it checks, so another program, or a serde that lost its class, has written this.
            reason = f"the message cannot be loaded: {type(error).__name__}: {error}"
            raise DamagedCheckpointError(item.path, reason) from error
        match items:
            case [BaseMessage() as message] if message.id == item.message_id:
                return message
        raise DamagedCheckpointError(item.path, f"does not hold the message {item.message_id!r:.200}")

    def _pass_over(self, error: DamagedCheckpointError) -> None:
        if self._strict:
            raise error
        _events.damaged(error.path, f"{error}; the message is passed over, its file is kept", stacklevel=4)


def undelivered(pending: Iterable[BaseMessage], history: Iterable[Any]) -> list[BaseMessage]:
    """The messages whose ids are not in a history yet, each once, in order. Neither argument is changed.

    Args:
        pending: Messages of an inbox.
        history: Messages, and whatever else a reducer leaves among them.
    """
    waiting = list(pending)
    if not waiting:
        return []  # nearly always, and a long history need not be looked at
    seen = {getattr(message, "id", None) for message in history}
    missing = []
    for message in waiting:
        if message.id not in seen:
            seen.add(message.id)
            missing.append(message)
    return missing


def _message_of(message: object) -> BaseMessage:
    several: Sequence[Any] = [message]
    try:
        (converted,) = convert_to_messages(several)
    except Exception as error:
        raise InvalidMessageError(f"is not one message: {type(error).__name__}: {error}") from error
    if isinstance(converted, BaseMessageChunk):
        converted = message_chunk_to_message(converted)
    if isinstance(converted, ToolMessage):
        raise InvalidMessageError("is a tool's result, which would answer no call where it is delivered")
    if isinstance(converted, RemoveMessage):
        raise InvalidMessageError("is a removal; change the history with `update_state`")
    if isinstance(converted, AIMessage) and (converted.tool_calls or converted.invalid_tool_calls):
        raise InvalidMessageError("has tool calls, which nobody would answer where it is delivered")
    return converted


def _checked_id(message_id: str) -> str:
    if not message_id:
        raise InvalidIdError("message id", message_id, "is empty; leave it out, and one is made up")
    try:
        message_id.encode()
    except UnicodeEncodeError:
        raise InvalidIdError("message id", message_id, "is not valid Unicode") from None
    return str.__str__(message_id)
