"""What a provider lists at `/models`, as models of ours; and the same kept on disk for the next start."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from router.catalog.kinds import EMBEDDING, LLM, RERANKING, TYPES
from router.catalog.model import Identity, Model, spelled
from router.providers.store import MAX_LISTED, Provider
from router.settings.files import write_atomically

log = logging.getLogger(__name__)

MAX_HOPS: Final = 2
"""How many routers may stand behind a provider that is one itself. In a ring of them lists would grow."""
MAX_NAME: Final = 256
MAX_CONTEXT: Final = 1 << 31

#: Under which key servers tell a model's context: ours and OpenRouter, vLLM, Groq, LM Studio, Mistral.
_CONTEXT: Final = (
    "context_length",
    "max_model_len",
    "context_window",
    "max_context_length",
    "loaded_context_length",
)
_TYPES: Final = {
    "embedding": EMBEDDING,
    "embeddings": EMBEDDING,
    "feature-extraction": EMBEDDING,
    "rerank": RERANKING,
    "reranker": RERANKING,
    "reranking": RERANKING,
    "text-classification": RERANKING,
    "llm": LLM,
    "vlm": LLM,
    "chat": LLM,
}
_RERANKS: Final = re.compile(r"rerank", re.IGNORECASE)
_EMBEDS: Final = re.compile(r"embed|(?:^|[/_-])(?:bge|gte|e5|minilm)(?:[-_]|$)", re.IGNORECASE)


class Listed(Struct, frozen=True, omit_defaults=True):
    """One model of a provider, by its own name. `context` is in tokens, 0 if it does not tell."""

    id: str
    type: str = LLM
    context: int = 0
    created: int = 0
    hops: int = 0


class Listing(Struct, frozen=True):
    """A provider's models. `more` were left out, being too many or of no use here."""

    models: tuple[Listed, ...] = ()
    more: int = 0


class _Kept(Struct, frozen=True):
    url: str
    wanted: tuple[str, ...]
    listing: Listing


class BadListing(ValueError):
    """The answer is no list of models."""


def read_listing(body: bytes | bytearray, wanted: tuple[str, ...] = ()) -> Listing:
    """The models in an answer. A long one takes a while: call it off the loop.

    Args:
        wanted: only these; what is wanted and not listed is taken as it is.

    Raises:
        BadListing: it is none; the text says why.
    """
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadListing("what it lists is no JSON") from error
    entries = answer.get("data") if isinstance(answer, dict) else answer
    if not isinstance(entries, list):
        raise BadListing("what it lists is no list of models")
    found: dict[str, Listed] = {}
    more = 0
    for entry in entries:
        listed = _listed(entry)
        if listed is None or (wanted and listed.id not in wanted):
            continue
        if listed.hops > MAX_HOPS or len(found) >= MAX_LISTED:
            more += 1
            continue
        found.setdefault(listed.id, listed)
    if wanted:
        return Listing(tuple(found.get(id) or Listed(id, _type_of({}, id)) for id in wanted), more)
    return Listing(tuple(found.values()), more)


def unlisted(wanted: tuple[str, ...]) -> Listing:
    """What is known of a provider that has not answered yet."""
    return Listing(tuple(Listed(id, _type_of({}, id)) for id in wanted))


def _listed(entry: Any) -> Listed | None:
    if not isinstance(entry, dict):
        return None
    id = entry.get("id")
    if not isinstance(id, str) or not id.strip() or not id.isprintable() or len(id) > MAX_NAME:
        return None
    context = next((n for key in _CONTEXT if (n := _number(entry.get(key), MAX_CONTEXT))), 0)
    hops = _number(entry.get("hops"), 1_000)
    return Listed(
        id=id,
        type=_type_of(entry, id),
        context=context or _number(_inner(entry, "meta").get("n_ctx_train"), MAX_CONTEXT),
        created=_number(entry.get("created"), 1 << 40),
        hops=hops,
    )


def _inner(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = entry.get(key)
    return inner if isinstance(inner, dict) else {}


def _number(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0
    return int(min(max(value, 0), most))


def _type_of(entry: Mapping[str, Any], id: str) -> str:
    """As the entry tells, else as the name suggests."""
    for key in ("type", "task"):
        told = entry.get(key)
        if isinstance(told, str) and told in _TYPES:
            return _TYPES[told]
    if _RERANKS.search(id):
        return RERANKING
    return EMBEDDING if _EMBEDS.search(id) else LLM


def models_of(provider: Provider, listing: Listing) -> dict[str, Model]:
    """The models as the router knows them, by name: the provider's name, a slash, its own name for it."""
    made: dict[str, Model] = {}
    for listed in listing.models:
        name = spelled(f"{provider.name}/{listed.id}")
        kind = provider.types.get(listed.id, listed.type)
        made[name] = Model(
            name=name,
            path="",
            type=kind if kind in TYPES else LLM,
            size_bytes=0,
            identity=Identity(f"{provider.url}/{listed.id}", 0, listed.created * 1_000_000_000),
            remote=True,
            source=provider.name,
            provider=provider.name,
            remote_id=listed.id,
            remote_context=listed.context,
            hops=listed.hops + 1,
        )
    return made


class ListingCache:
    """Listings on disk. Everything here blocks: use it from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, provider: Provider) -> Listing | None:
        """What was kept of the provider at this address; None if nothing was, or it cannot be used."""
        try:
            kept = msgspec.json.decode(self._path(provider).read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError):
            return None  # The next look at the provider makes it anew.
        return kept.listing if (kept.url, kept.wanted) == (provider.url, provider.models) else None

    def write(self, provider: Provider, listing: Listing) -> None:
        """Keep it. A cache that cannot be written is told in the log and does without."""
        try:
            write_atomically(
                self._path(provider), msgspec.json.encode(_Kept(provider.url, provider.models, listing))
            )
        except OSError as error:
            log.warning("The models of %s could not be kept: %s", provider.name, error)

    def forget(self, provider: Provider) -> None:
        """Delete what was kept."""
        try:
            self._path(provider).unlink(missing_ok=True)
        except OSError as error:
            log.warning("The models of %s could not be forgotten: %s", provider.name, error)

    def _path(self, provider: Provider) -> Path:
        digest = hashlib.sha256(provider.url.encode()).hexdigest()[:8]
        return self._folder / f"{provider.name}-{digest}.json"
