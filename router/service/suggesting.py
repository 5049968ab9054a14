"""Which well-known models this machine could run: sized as those that are here are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from router.catalog.model import Model
from router.catalog.suggestions import as_models, suggestions
from router.devices.base import DeviceReading
from router.service.placing import Placing
from router.service.sizing import Size, Sizing
from router.settings.schema import Settings
from router.snapshot import SuggestionView
from router.tasks import Tasks

log = logging.getLogger(__name__)


class Suggesting:
    """Keeps the sizes of the suggestions current.

    Args:
        on_change: called when the views may have changed.
    """

    def __init__(self, tasks: Tasks, on_change: Callable[[], None]) -> None:
        self._sizing = Sizing(tasks, on_change)
        self._models: Mapping[str, Model] = {}
        self._views: tuple[SuggestionView, ...] = ()
        self._shown: tuple[object, object] = (None, None)
        try:
            self._models = as_models()
        except (OSError, ValueError) as error:
            log.warning("There is nothing to suggest: %s", error)

    def look(self, placing: Placing, settings: Settings, readings: tuple[DeviceReading, ...]) -> None:
        """Work out the sizes for this machine, unless that was done."""
        self._sizing.look(self._models, placing, settings, readings)

    def views(self, known: Mapping[str, Model]) -> tuple[SuggestionView, ...]:
        """The suggestions for the snapshot. `known` are the models that are here, by name and alias."""
        if self._models and not self._is_current(known):
            self._shown = (known, self._sizing.sizes)
            sizes = self._sizing.sizes
            self._views = tuple(
                SuggestionView(
                    name=suggestion.name,
                    title=suggestion.title,
                    about=suggestion.about,
                    size_bytes=suggestion.bytes + suggestion.projector_bytes,
                    needs=sizes.get(suggestion.name, Size()).needs,
                    fits=sizes.get(suggestion.name, Size()).fits,
                    here=suggestion.name in known,
                )
                for suggestion in suggestions()
            )
        return self._views

    def _is_current(self, known: Mapping[str, Model]) -> bool:
        """By identity: both are made anew whenever they change."""
        return self._shown[0] is known and self._shown[1] is self._sizing.sizes
