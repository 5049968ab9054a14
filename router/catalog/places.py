"""Where models are looked for: the user's folders, and the stores that other programs keep."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from router.settings.schema import MODEL_SOURCES


class PlaceKind(StrEnum):
    """How the files of a place are arranged. The stores' values are those of the setting `model_sources`."""

    FOLDER = "folder"
    HUGGING_FACE = "huggingface"
    LM_STUDIO = "lmstudio"
    OLLAMA = "ollama"


LABELS: Final = {
    PlaceKind.HUGGING_FACE: "Hugging Face",
    PlaceKind.LM_STUDIO: "LM Studio",
    PlaceKind.OLLAMA: "Ollama",
}

#: Where Ollama's service keeps its store on Linux: its own installer's choice, and that of distributions.
_OLLAMA_SERVICE: Final = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama")


class Place(Struct, frozen=True):
    """One folder to look through.

    Attributes:
        label: what people are told it is.
        own: the user named it, so it is a fault if it is not there.
    """

    path: Path
    kind: PlaceKind = PlaceKind.FOLDER
    label: str = ""
    own: bool = True


def folder(path: Path) -> Place:
    """A folder that the user named."""
    expanded = Path(os.path.expanduser(path))  # Path's own raises where there is no such user
    return Place(expanded, label=expanded.name or os.fspath(expanded))


def stores(
    sources: Collection[str] = MODEL_SOURCES,
    environ: Mapping[str, str] = os.environ,
    system: str = sys.platform,
) -> tuple[Place, ...]:
    """The stores of those programs, whether they exist or not.

    Args:
        sources: values of the setting `model_sources`.
        environ: where those programs' own variables move their stores.
        system: as `sys.platform` names it.
    """
    kinds = [kind for kind in LABELS if kind in sources]
    return tuple(
        Place(path, kind, LABELS[kind], own=False)
        for kind in kinds
        for path in dict.fromkeys(_paths(kind, environ, system))
    )


def _paths(kind: PlaceKind, environ: Mapping[str, str], system: str) -> Iterator[Path]:
    """Without a home folder only what variables name."""
    home = _home(environ)

    def named(variable: str) -> Path | None:
        value = environ.get(variable, "").strip()
        if home is not None and (value == "~" or value.startswith(("~/", "~\\"))):
            value = os.fspath(home / value[2:])
        return Path(value) if os.path.isabs(value) else None

    match kind:
        case PlaceKind.HUGGING_FACE:
            hub = named("HF_HUB_CACHE") or named("HUGGINGFACE_HUB_CACHE")
            if hub is not None:
                yield hub
                return
            above = named("HF_HOME")
            cache = named("XDG_CACHE_HOME")
            if cache is None and home is not None:
                cache = home / ".cache"
            if above is None and cache is not None:
                above = cache / "huggingface"
            if above is not None:
                yield above / "hub"
        case PlaceKind.LM_STUDIO if home is not None:
            yield home / ".lmstudio" / "models"
            yield home / ".cache" / "lm-studio" / "models"
        case PlaceKind.OLLAMA:
            moved = named("OLLAMA_MODELS")
            if moved is not None:
                yield moved
            elif home is not None:
                yield home / ".ollama" / "models"
                if system.startswith("linux"):
                    yield from map(Path, _OLLAMA_SERVICE)
        case _:
            return


def _home(environ: Mapping[str, str]) -> Path | None:
    named = (environ.get(variable, "") for variable in ("HOME", "USERPROFILE"))
    return next((Path(path) for path in named if os.path.isabs(path)), None)
