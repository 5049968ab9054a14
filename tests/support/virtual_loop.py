"""An event loop whose clock jumps to the next timer whenever there is nothing else to do.

Hours pass in microseconds and always in the same order. Only timers and callbacks work: nothing that waits
for the world outside.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stalled(AssertionError):
    """Everything waits for something that no timer and no callback will bring."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.stalls = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            # A loop in a real thread would wait for ever here.
            self.stalls += 1
            if self.stalls > 1:
                raise Stalled("nothing left to happen")
        elif timeout > 0:
            self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop on a virtual clock that starts at 1,000 s."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return 1000.0 + self._jumping.now

    def sleep_machine(self, seconds: float) -> None:
        """As if the machine had been asleep: the clock is on, and nothing ran."""
        self._jumping.now += seconds


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a virtual loop; tasks that are left over are a failure."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


async def settle(turns: int = 20) -> None:
    """Let everything run that can run now, without letting time pass."""
    for _ in range(turns):
        await asyncio.sleep(0)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a coroutine test an ordinary one that runs on a virtual clock."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run
