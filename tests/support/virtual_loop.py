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

TURNS_MAX = 10_000
"""More than any chain of events in one instant takes."""


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

    @property
    def is_quiet(self) -> bool:
        """Nothing can run before time passes."""
        due = (timer for timer in self._scheduled if not timer.cancelled())
        return not self._ready and all(timer.when() > self.time() for timer in due)

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


async def until_quiet() -> None:
    """Let everything run, however long the chain, that can run without letting time pass."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise TypeError("only a virtual loop can tell")
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if loop.is_quiet:
            return
    raise Stalled(f"still busy after {TURNS_MAX} turns in which no time passed")


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a coroutine test an ordinary one that runs on a virtual clock."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual(test(*args, **kwargs))

    return run


def now() -> float:
    """Seconds on the running loop's clock."""
    return asyncio.get_running_loop().time()
