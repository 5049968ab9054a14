"""Smooth change of what a widget draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QAbstractAnimation, QEasingCurve, QRect, QVariantAnimation
from PySide6.QtWidgets import QWidget

FRAME_MS: Final = 30
"""Least time between two steps: a third of what the screen could show looks as smooth on so short a way."""

STEP_PX: Final = 1.5
"""What moves by less is not worth a repaint of its own."""


class Motion(QVariantAnimation):
    """A number of `widget` on its way to a goal, fast first; each step repaints the widget.

    `area` tells what of the widget that is, if not all of it. The widget calls `finish` when it is hidden.
    """

    def __init__(self, widget: QWidget, at: float = 0.0, area: Callable[[], QRect] | None = None) -> None:
        super().__init__(widget)
        self._area = area
        self.at = at
        self._drawn_ms = 0
        self._least = 0.0
        self._widget = widget
        self.setEasingCurve(QEasingCurve.Type.OutCubic)
        self.valueChanged.connect(self._step)

    def go(self, goal: float, ms: int, *, start: float | None = None, reach: float = 0.0) -> None:
        """Move to `goal` from `start`, or from where it is; a hidden widget, or 0 ms, jumps there.

        `reach` is how many px the drawing moves when the number goes from 0 to 1: steps that nobody would
        see are left out.
        """
        begin = self.at if start is None else start
        self._least = STEP_PX / reach if reach else 0.0
        if not self._widget.isVisible() or abs(goal - begin) < self._least:
            ms = 0
        self.stop()
        if not ms:
            self._set(float(goal))
            return
        self.setStartValue(float(begin))
        self.setEndValue(float(goal))
        self.setDuration(ms)
        self._drawn_ms = -FRAME_MS
        self.start()

    def finish(self) -> None:
        """Jump to the goal, so that nothing runs while hidden."""
        if self.state() is QAbstractAnimation.State.Running:
            self.setCurrentTime(self.duration())
            self.stop()

    def _step(self, value: object) -> None:
        assert isinstance(value, float)
        now = self.currentTime()
        running = self.state() is QAbstractAnimation.State.Running
        early = now - self._drawn_ms < FRAME_MS or abs(value - self.at) < self._least
        if running and early and now < self.duration():
            return
        self._drawn_ms = now
        self._set(value)

    def _set(self, value: float) -> None:
        if value != self.at:
            self.at = value
            if self._area is None:
                self._widget.update()
            else:
                self._widget.update(self._area())
