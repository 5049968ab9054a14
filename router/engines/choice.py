"""Which engine loads models: decided from the setting and from what each engine was found to reach."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from router.engines.base import Capabilities

AUTO: Final = "auto"
EMBEDDED: Final = "embedded"

#: What a build or program is expected to be fast with, the fastest first.
_ORDER: Final = ("cuda", "rocm", "metal", "vulkan")


class Choice(Struct, frozen=True):
    """An engine, and why it.

    Attributes:
        id: of the engine to use.
        reason: a sentence.
        problem: why it is not the one that the setting names; "" if it is.
    """

    id: str
    reason: str
    problem: str = ""


def kind_of(engine: Capabilities) -> str:
    """`embedded`, `build` for one that the app fetched, `found` for a program of the user's."""
    if engine.id == EMBEDDED:
        return EMBEDDED
    return "found" if engine.id == engine.path else "build"


def choose(setting: str, engines: Iterable[Capabilities]) -> Choice:
    """The engine that loads models from now on.

    `auto` takes the best fetched build that reaches a GPU, else a found llama-server that does, else the
    embedded engine. A name or path takes that engine; if it cannot be used, the choice is what `auto` would
    take, and `problem` says so.
    """
    known = {engine.id: engine for engine in engines}
    if setting == AUTO:
        return _automatic(known)
    named = known.get(setting)
    if named is not None and (not named.problem or setting == EMBEDDED):
        return Choice(setting, f"The setting engine names {_called(named)}.", _unusable(named))
    if setting == EMBEDDED:
        return Choice(EMBEDDED, "The setting engine names the embedded engine.")
    instead = _automatic(known)
    reason = _unusable(named) if named is not None else f"There is no engine {setting}."
    now = known.get(instead.id)
    called = _called(now) if now is not None else "the embedded engine"
    return Choice(instead.id, instead.reason, f"{reason} In its place {called} is used.")


def _automatic(known: dict[str, Capabilities]) -> Choice:
    usable = [engine for engine in known.values() if not engine.problem and engine.devices]
    builds = [engine for engine in usable if kind_of(engine) == "build"]
    if builds:
        best = max(builds, key=_rank)
        return Choice(best.id, f"{_called(best)} reaches {_devices(best)}.")
    found = [engine for engine in usable if kind_of(engine) == "found"]
    if found:
        # Equal ones in the order in which they were found.
        best = max(found, key=_speed)
        return Choice(best.id, f"{_called(best)} is on this machine and reaches {_devices(best)}.")
    embedded = known.get(EMBEDDED)
    if embedded is not None and embedded.devices:
        return Choice(EMBEDDED, f"The embedded engine reaches {_devices(embedded)}.")
    return Choice(EMBEDDED, "No engine that reaches a GPU is here; the embedded one runs on the processor.")


def _rank(engine: Capabilities) -> tuple[int, int]:
    number = re.search(r"\d+", engine.id)
    return (_speed(engine), int(number[0][:15]) if number else 0)


def _speed(engine: Capabilities) -> int:
    """Higher for a faster back end."""
    places = [_ORDER.index(backend) for backend in engine.backends if backend in _ORDER]
    return len(_ORDER) - min(places, default=len(_ORDER))


def _called(engine: Capabilities) -> str:
    return "the embedded engine" if engine.id == EMBEDDED else engine.id


def _devices(engine: Capabilities) -> str:
    names = [device.description or device.name for device in engine.devices]
    return names[0] if len(names) == 1 else f"{len(names)} GPUs ({', '.join(names)})"


def _unusable(engine: Capabilities) -> str:
    if not engine.problem:
        return ""
    called = _called(engine)
    return f"{called[:1].upper()}{called[1:]} cannot be used: {engine.problem.rstrip('.')}."
