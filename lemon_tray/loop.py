"""asyncio's event loop and Qt's as one.

Qt's loop runs; asyncio's takes a turn whenever it has something to do. On Linux that is told by a single
descriptor, since an epoll set can itself be waited for: however many connections there are, and however many
callbacks run, Qt is asked for one notifier and one timer. Elsewhere qasync does it, with a notifier for each
socket and a timer for each callback, which costs several times as much.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
from collections.abc import Callable
from contextvars import Context
from typing import Final, TypeVarTuple, Unpack

from PySide6.QtCore import QCoreApplication, QObject, QSocketNotifier, Qt, QTimer

_Ts = TypeVarTuple("_Ts")

#: How long asyncio goes on while there is more to do, before Qt paints and takes what the user does.
TURN_S: Final = 0.002
_LONGEST_MS: Final = 86_400_000


def make_loop(app: QCoreApplication) -> asyncio.AbstractEventLoop:
    """A loop that is both, not yet running."""
    if hasattr(selectors, "EpollSelector"):
        return QtLoop(app)
    from qasync import QEventLoop

    loop: asyncio.AbstractEventLoop = QEventLoop(app)
    return loop


if sys.platform == "linux":

    class _Selector(selectors.EpollSelector):
        """Waits only when Qt does not. `found` tells how many are ready."""

        waits = False
        found = 0

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            ready = super().select(timeout if self.waits else 0)
            self.found = len(ready)
            return ready

    class QtLoop(asyncio.SelectorEventLoop):
        """An asyncio loop that lives in Qt's.

        `run_forever` runs Qt's loop. If that ends by itself, as when the display goes away, this one stops,
        and from then on runs without it, so that what there is to clean up can be.
        """

        def __init__(self, app: QCoreApplication) -> None:
            self._set = _Selector()
            self._turning = False
            self._awake = False
            self._armed_for = float("inf")
            self._failure: BaseException | None = None
            self._app = app
            self._owner = QObject()
            self._notifier = QSocketNotifier(self._set.fileno(), QSocketNotifier.Type.Read, self._owner)
            self._notifier.activated.connect(self._turn)
            self._timer = QTimer(self._owner)
            self._timer.setSingleShot(True)
            self._timer.setTimerType(Qt.TimerType.PreciseTimer)
            self._timer.timeout.connect(self._ring)
            super().__init__(self._set)

        # What asyncio calls

        def _run_once(self) -> None:
            """`run_forever` calls this again and again; once is enough while Qt's loop runs."""
            if self._set.waits:
                super()._run_once()  # type: ignore[misc]  # typeshed does not know it
                return
            self._notifier.setEnabled(True)
            self._wake()
            self._app.exec()
            self._notifier.setEnabled(False)
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if not self._stopping:  # type: ignore[attr-defined]  # as above
                self._set.waits = True
                self.stop()

        def call_soon(
            self,
            callback: Callable[[Unpack[_Ts]], object],
            *args: *_Ts,
            context: Context | None = None,
        ) -> asyncio.Handle:
            handle = super().call_soon(callback, *args, context=context)
            if not self._turning:
                self._wake()
            return handle

        def call_at(
            self,
            when: float,
            callback: Callable[[Unpack[_Ts]], object],
            *args: *_Ts,
            context: Context | None = None,
        ) -> asyncio.TimerHandle:
            handle = super().call_at(when, callback, *args, context=context)
            if not self._turning:
                self._wake()
            return handle

        def stop(self) -> None:
            super().stop()
            if not self._turning:
                self._wake()

        def close(self) -> None:
            self._notifier.setEnabled(False)
            self._timer.stop()
            super().close()

        # What Qt calls

        def _ring(self) -> None:
            self._awake = False
            self._armed_for = float("inf")
            self._turn()

        def _turn(self) -> None:
            """Run what is due, then say when the next turn is."""
            if self._turning:
                # A callback runs a loop of Qt's own. Its end is waited for: tasks cannot be nested.
                self._notifier.setEnabled(False)
                return
            self._turning = True
            end = self.time() + TURN_S
            try:
                while True:
                    super()._run_once()  # type: ignore[misc]  # as above
                    if self._stopping or self.time() >= end:  # type: ignore[attr-defined]  # as above
                        break
                    if not self._set.found and not self._ready:  # type: ignore[attr-defined]  # as above
                        break
            except BaseException as error:
                # Qt would swallow what is meant for whoever runs the loop: an exit, an interrupt.
                self._failure = error
                self._app.exit()
                return
            finally:
                self._turning = False
            if self._stopping:  # type: ignore[attr-defined]  # as above
                self._app.exit()
                return
            if not self._notifier.isEnabled():
                self._notifier.setEnabled(True)
            self._arm()

        def _wake(self) -> None:
            """Have a turn as soon as Qt is free. On the loop's thread only."""
            if not self._awake and not self._set.waits:
                self._awake = True
                self._armed_for = float("-inf")
                self._timer.start(0)

        def _arm(self) -> None:
            """Have a turn when the next timer is due."""
            if self._ready:  # type: ignore[attr-defined]  # as above
                self._wake()
                return
            scheduled = self._scheduled  # type: ignore[attr-defined]  # as above
            # A turn that comes too early does no harm, so a timer that is set for one is left as it is.
            if scheduled and scheduled[0].when() < self._armed_for:
                self._armed_for = scheduled[0].when()
                left = math.ceil((self._armed_for - self.time()) * 1000)
                self._timer.start(min(max(left, 0), _LONGEST_MS))
