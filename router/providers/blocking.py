"""Calls that may hang: on a thread that keeps neither the loop nor the program's end waiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon(work: Callable[[], T], timeout_s: float) -> T:
    """The result of `work`, on a thread of its own. One that hangs is left behind.

    Raises:
        TimeoutError: it takes longer than `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # without an error it is what work returned

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile: nobody waits any more.
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="keyring", daemon=True).start()
    async with asyncio.timeout(timeout_s):
        return await done
