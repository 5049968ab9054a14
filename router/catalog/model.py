"""One model of the catalog."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable

from msgspec import Struct

from router.catalog.kinds import EMBEDDING as EMBEDDING
from router.catalog.kinds import LLM as LLM
from router.catalog.kinds import RERANKING as RERANKING
from router.catalog.kinds import TYPES as TYPES
from router.catalog.options import NO_OPTIONS, LoadOptions
from router.memory.header import ModelHeader


class Identity(Struct, frozen=True):
    """What makes a file the same file: real path, size in bytes, modification time in nanoseconds."""

    path: str
    size: int
    mtime_ns: int


class Model(Struct, frozen=True):
    """A model that exists on disk.

    `broken` says why it cannot be loaded ("" if it can); then `header` is None.
    A `remote` model is served elsewhere: it is in no pool and needs no memory here.

    Attributes:
        type: what the options say, else what the file's metadata say.
        size_bytes: of all files that hold the model's tensors, without a projector.
        options: those that the options file has for it.
        source: where it was found: a folder's name, `Hugging Face`, `LM Studio` or `Ollama`.
        mmproj: the file of the projector that belongs to it; "" for none.
        mmproj_bytes: bytes of the projector's tensors; 0 without one.
        provider: who serves a remote model; "" for one that is here.
        remote_id: the provider's own name for it.
        remote_context: tokens, as the provider tells; 0 if it does not.
        hops: how many servers away it is: 0 here, 1 at a provider, 2 at a provider of that one.
    """

    name: str
    path: str
    type: str
    size_bytes: int
    identity: Identity
    header: ModelHeader | None = None
    aliases: tuple[str, ...] = ()
    broken: str = ""
    remote: bool = False
    options: LoadOptions = NO_OPTIONS
    source: str = ""
    mmproj: str = ""
    mmproj_bytes: int = 0
    provider: str = ""
    remote_id: str = ""
    remote_context: int = 0
    hops: int = 0

    @property
    def context_length(self) -> int:
        """The length the model was trained for, or that its provider tells, in tokens; 0 if unknown."""
        return self.header.context_length if self.header else self.remote_context

    @property
    def asked_as(self) -> str:
        """The name under which whoever runs the model knows it."""
        return self.remote_id or self.name


def spelled(name: str) -> str:
    """A name as the catalog spells it: letters with their accents composed, however it was typed."""
    return unicodedata.normalize("NFC", name)


def written(text: str) -> str:
    """A file's name as a part of a model's: composed, printable, and writable as UTF-8."""
    composed = unicodedata.normalize("NFC", os.fsencode(text).decode("utf-8", "replace"))
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in composed)


def by_every_name(models: Iterable[Model]) -> dict[str, Model]:
    """Names and aliases to models; a name goes before an alias. Look up what is `spelled`."""
    lookup: dict[str, Model] = {}
    listed = list(models)
    for model in listed:
        for alias in model.aliases:
            lookup.setdefault(alias, model)
    for model in listed:
        lookup[model.name] = model
    return lookup
