"""Which well-known models this machine could run: sized as those that are here are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from msgspec import structs

from router.catalog.hub import HubModel
from router.catalog.model import Model
from router.catalog.suggestions import Suggestion, as_models, suggestions
from router.devices.base import DeviceReading
from router.service.placing import Placing
from router.service.sizing import Size, Sizing
from router.settings.schema import Settings
from router.snapshot import SuggestionView
from router.tasks import Tasks
from router.units import gib

log = logging.getLogger(__name__)


class Suggesting:
    """Keeps the sizes of the suggestions current.

    Args:
        on_change: called when the views may have changed.
        on_misfit: called with a code and a sentence when one that is being pulled turns out not to fit.
    """

    def __init__(
        self, tasks: Tasks, on_change: Callable[[], None], on_misfit: Callable[[str, str], None]
    ) -> None:
        self._sizing = Sizing(tasks, self._sized)
        self._on_change = on_change
        self._on_misfit = on_misfit
        self._suggestions: tuple[Suggestion, ...] = ()
        self._models: Mapping[str, Model] = {}
        self._views: tuple[SuggestionView, ...] = ()
        self._shown: tuple[object, object, object] = (None, None, None)
        self._looked: tuple[Placing, Settings, tuple[DeviceReading, ...]] | None = None
        self._learned: str | None = None
        try:
            self._suggestions = suggestions()
            self._models = as_models(self._suggestions)
        except (OSError, ValueError) as error:
            log.warning("There is nothing to suggest: %s", error)

    def look(self, placing: Placing, settings: Settings, readings: tuple[DeviceReading, ...]) -> None:
        """Work out the sizes for this machine, unless that was done."""
        self._looked = placing, settings, readings
        self._sizing.look(self._models, placing, settings, readings)

    def learn(self, name: str, told: HubModel) -> None:
        """The hub tells the bytes of a model, which is about to be fetched: they count from now on."""
        projector = told.projector.size if told.projector is not None else 0
        known = next((each for each in self._suggestions if each.name.casefold() == name.casefold()), None)
        size = told.size - projector
        if known is None or (known.bytes, known.projector_bytes) == (size, projector):
            return
        log.info("%s has %d bytes, and %d were expected.", known.name, size, known.bytes)
        learned = structs.replace(known, bytes=size, projector_bytes=projector)
        self._suggestions = tuple(learned if each is known else each for each in self._suggestions)
        self._models = as_models(self._suggestions)
        if self._sizing.sizes.get(known.name, Size()).fits:
            self._learned = known.name
        if self._looked is not None:
            self.look(*self._looked)
        self._on_change()

    def _sized(self) -> None:
        """The sizes have changed."""
        if self._learned is not None and self._sizing.sized is self._models:
            self._tell_misfit(self._learned)
            self._learned = None
        self._on_change()

    def _tell_misfit(self, name: str) -> None:
        size = self._sizing.sizes.get(name, Size())
        if size.fits is False:
            self._on_misfit(
                "model_too_large",
                f"{name} is larger than expected: it needs {gib(size.needs)}, and no device here holds that. "
                f"It is fetched all the same; to stop that: lemon-tray pull --cancel {name}",
            )

    def views(self, known: Mapping[str, Model]) -> tuple[SuggestionView, ...]:
        """The suggestions for the snapshot. `known` are the models that are here, by name and alias."""
        if self._models and not self._is_current(known):
            self._shown = (known, self._sizing.sizes, self._suggestions)
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
                for suggestion in self._suggestions
            )
        return self._views

    def _is_current(self, known: Mapping[str, Model]) -> bool:
        """By identity: all are made anew whenever they change."""
        shown, current = self._shown, (known, self._sizing.sizes, self._suggestions)
        return all(before is now for before, now in zip(shown, current, strict=True))
