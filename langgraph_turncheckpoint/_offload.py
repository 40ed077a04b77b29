"""Running one blocking operation for async callers. Nothing of what the operation does lives here.

The threads are this package's own: an app's default executor may be full of slow tools, and a save
must not wait for them. They belong to no event loop, so a saver may be used from any number of loops.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from aiofiles.ospath import wrap

T = TypeVar("T")

#: Writers to one thread share a disk sync, so more threads than cores are useful.
WORKERS: Final = 32

_executor: ThreadPoolExecutor | None = None


def _current_executor() -> ThreadPoolExecutor:
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="turncheckpoint")
    return _executor


def _forget_executor() -> None:
    global _executor
    _executor = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_executor)


async def offload(operation: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run `operation` in a thread and return what it returns.

    A cancellation is delivered only once the operation has ended: when the caller sees
    `CancelledError`, nothing is still being written behind its back. What the operation raised is
    then dropped in favour of the cancellation, as for any cancelled task.
    """
    context = contextvars.copy_context()
    outcome: Future[T] = Future()

    def run() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(context.run(operation, *args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                outcome.set_exception(error)

    def started(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # A loop that ends cancels every task, this one too. What has begun is waited for all the same.
            outcome.cancel()
        elif task.exception() is not None:
            run()  # no thread can be had, as at the interpreter's end: better here than not at all

    running = asyncio.ensure_future(wrap(run)(executor=_current_executor()))
    running.add_done_callback(started)
    ended = asyncio.wrap_future(outcome)
    cancelled = False
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            cancelled = True
            outcome.cancel()  # succeeds only if the operation has not begun
        except Exception:  # noqa: BLE001
            break  # what it raised is read from `ended` below
    if cancelled:
        if not ended.cancelled():
            ended.exception()
        raise asyncio.CancelledError
    return ended.result()
