"""What Ollama's store says of its models. Its format is not documented; this is what its files look like.

`manifests/HOST/NAMESPACE/NAME/TAG` is a JSON object whose `layers` name files by hash: `sha256:HEX` is the
file `blobs/sha256-HEX`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.catalog.model import written

#: Folders between `manifests` and a manifest, and the manifest.
LEVELS: Final = 4
MAX_BYTES: Final = 1 << 20

_HOST: Final = "registry.ollama.ai"
_NAMESPACE: Final = "library"
_TAG: Final = "latest"
_MODEL: Final = "application/vnd.ollama.image.model"
_PROJECTOR: Final = "application/vnd.ollama.image.projector"
_ADAPTER: Final = "application/vnd.ollama.image.adapter"
_DIGEST: Final = re.compile(r"sha256[:-]([0-9a-f]{64})")


class _Layer(Struct, frozen=True, rename={"media_type": "mediaType"}):
    media_type: str = ""
    digest: str = ""


class _Document(Struct, frozen=True):
    layers: tuple[_Layer, ...] | None = None


class Manifest(Struct, frozen=True):
    """Names of files in `blobs`; "" for none. `fault` says why the model cannot be used."""

    model: str = ""
    projector: str = ""
    fault: str = ""


def names(parts: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Name and aliases, as Ollama writes them, from a manifest's path below `manifests`."""
    plain = [written(part) for part in parts]
    *above, tag = plain
    if above[:1] == [_HOST]:
        above = above[2:] if above[1:2] == [_NAMESPACE] else above[1:]
    base = "/".join(above)
    return f"{base}:{tag}", ((base,) if tag == _TAG else ())


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. One without a model, such as of a model that is served elsewhere, names none.

    Raises:
        ValueError: it is none, or names files in an unknown way; the text says what is wrong.
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is no regular file")
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        layers = msgspec.json.decode(raw, type=_Document).layers or ()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is no manifest ({error})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    found: dict[str, list[str]] = {_MODEL: [], _PROJECTOR: [], _ADAPTER: []}
    for layer in layers:
        if layer.media_type not in found:
            continue
        match = _DIGEST.fullmatch(layer.digest)
        if match is None:
            raise ValueError("it names a file by something that is no SHA-256")
        found[layer.media_type].append(f"sha256-{match[1]}")
    fault = ""
    if found[_ADAPTER]:
        fault = "it has an adapter, which cannot be used here"
    elif len(found[_MODEL]) > 1:
        fault = f"it is made of {len(found[_MODEL])} files, which cannot be used here"
    return Manifest(
        next(iter(found[_MODEL]), ""),
        next(iter(found[_PROJECTOR]), ""),
        fault,
    )
