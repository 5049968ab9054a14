"""When passes happen: kicks that coalesce, one timer, progress now and then, and a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EDIT_INTERVAL_S = 0.025
"""Least time between two passes that only edits ask for."""

PROGRESS_INTERVAL_S = 0.1
"""Least time between two publications that only progress asks for."""

SHORTEST_TIMER_S = 0.001
"""No timer is armed for sooner. Loops run timers a little early: a pass that runs a hair before its deadline
would ask for the next one at once, again and again."""

LONGEST_TIMER_S = 86_400.0
"""No timer is armed for longer: Qt's count milliseconds in 31 bits."""

HEARTBEAT_S, SLEPT_S = 5.0, 10.0
"""How often the heart looks at the clock, and how late it must be to have been asleep."""


class Pace:
    """Calls `run` when a pass is due, and the others when theirs is.

    Args:
        run: runs a pass.
        publish: publishes what has changed without one.
        slept: told how many seconds the machine slept, or the program was stopped.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Callable[[], None],
        publish: Callable[[], None],
        slept: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._run = run
        self._publish = publish
        self._slept = slept
        self._kicked: asyncio.Handle | None = None
        self._kicked_at_once = False
        self._kicked_lazily = False
        self._timer: asyncio.TimerHandle | None = None
        self._publishing: asyncio.TimerHandle | None = None
        self._last_run = float("-inf")
        self._awake_at = loop.time()
        self._heart: asyncio.TimerHandle = loop.call_later(HEARTBEAT_S, self._beat)

    @property
    def is_armed(self) -> bool:
        """Whether a timer is set for a later pass."""
        return self._timer is not None

    def kick(self) -> None:
        """Ask for a pass as soon as the loop is free. Kicks coalesce."""
        if self._kicked is not None:
            if self._kicked_at_once:
                return
            self._kicked.cancel()
        self._kicked = self._loop.call_soon(self._run_kicked)
        self._kicked_at_once = True
        self._kicked_lazily = False

    def kick_for_edit(self) -> None:
        """As `kick`, but a burst of edits costs few passes: what they ask for is published already."""
        if self._kicked is not None:
            if self._kicked_lazily:
                self.kick()
            return
        wait = self._last_run + EDIT_INTERVAL_S - self._loop.time()
        if wait <= 0:
            self.kick()
        else:
            self._kicked = self._loop.call_later(wait, self._run_kicked)
            self._kicked_at_once = False

    def kick_lazily(self) -> None:
        """Ask for a pass that has nothing to decide, only to set the next timer: one for many who ask."""
        if self._kicked is None:
            self._kicked = self._loop.call_later(EDIT_INTERVAL_S, self._run_kicked)
            self._kicked_at_once = False
            self._kicked_lazily = True

    def ran(self, next_deadline: float | None) -> None:
        """A pass has run. The next is due at the deadline (the loop's clock) if nothing happens before."""
        self._last_run = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_deadline is not None:
            earliest, latest = self._last_run + SHORTEST_TIMER_S, self._last_run + LONGEST_TIMER_S
            self._timer = self._loop.call_at(min(max(next_deadline, earliest), latest), self._run_timer)

    def publish_soon(self) -> None:
        """Publish within a tenth of a second, once for all who ask until then."""
        if self._publishing is None:
            self._publishing = self._loop.call_later(PROGRESS_INTERVAL_S, self._publish_now)

    def stop(self) -> None:
        """Nothing is called any more, unless it is asked for anew."""
        for handle in (self._kicked, self._timer, self._publishing, self._heart):
            if handle is not None:
                handle.cancel()
        self._kicked = self._timer = self._publishing = None

    def _run_kicked(self) -> None:
        self._kicked = None
        self._kicked_lazily = False
        self._run()

    def _run_timer(self) -> None:
        self._timer = None
        self._run()

    def _publish_now(self) -> None:
        self._publishing = None
        self._publish()

    def _beat(self) -> None:
        """Notice time in which nothing ran. Due before any deadline that passed meanwhile, it comes first."""
        now = self._loop.time()
        lost = now - self._awake_at - HEARTBEAT_S
        if lost > SLEPT_S:
            self._slept(lost)
        self._awake_at = now
        self._heart = self._loop.call_later(HEARTBEAT_S, self._beat)
