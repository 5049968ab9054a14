"""What a provider lists, as models of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.catalog.model import EMBEDDING, LLM, RERANKING
from router.providers.listing import (
    MAX_HOPS,
    BadListing,
    Listed,
    Listing,
    ListingCache,
    models_of,
    read_listing,
)
from router.providers.store import MAX_LISTED, Provider

CLOUD = Provider("cloud", "https://api.example.com/v1")


def entries(*given: Any) -> bytes:
    return msgspec.json.encode({"object": "list", "data": list(given)})


def test_a_model_is_named_by_its_provider_and_its_own_name() -> None:
    listing = read_listing(entries({"id": "meta/llama-3", "created": 7, "max_model_len": 8192}))
    (model,) = models_of(CLOUD, listing).values()
    assert (model.name, model.remote_id, model.provider) == ("cloud/meta/llama-3", "meta/llama-3", "cloud")
    assert model.remote
    assert model.asked_as == "meta/llama-3"
    assert (model.context_length, model.type, model.hops) == (8192, LLM, 1)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"id": "gpt"}, LLM),
        ({"id": "text-embedding-3-small"}, EMBEDDING),
        ({"id": "BAAI/bge-m3"}, EMBEDDING),
        ({"id": "intfloat/e5-base"}, EMBEDDING),
        ({"id": "BAAI/bge-reranker-v2"}, RERANKING),
        ({"id": "mage5-chat"}, LLM),
        ({"id": "x", "type": "embedding"}, EMBEDDING),
        ({"id": "x", "type": "embeddings"}, EMBEDDING),
        ({"id": "embedder", "type": "llm"}, LLM),
        ({"id": "x", "type": "reranking"}, RERANKING),
        ({"id": "x", "type": ["odd"]}, LLM),
    ],
)
def test_types_are_told_or_guessed(entry: dict[str, Any], kind: str) -> None:
    assert read_listing(entries(entry)).models[0].type == kind


def test_a_type_that_the_user_gave_holds() -> None:
    provider = msgspec.structs.replace(CLOUD, types={"x": RERANKING})
    assert models_of(provider, read_listing(entries({"id": "x"})))["cloud/x"].type == RERANKING


@pytest.mark.parametrize(
    ("entry", "context"),
    [
        ({"context_length": 4096}, 4096),
        ({"context_window": 4096.0}, 4096),
        ({"meta": {"n_ctx_train": 2048}}, 2048),
        ({"context_length": True}, 0),
        ({"context_length": "many"}, 0),
        ({"context_length": -5, "max_model_len": 9}, 9),
        ({"meta": []}, 0),
    ],
)
def test_contexts(entry: dict[str, Any], context: int) -> None:
    assert read_listing(entries({"id": "x", **entry})).models[0].context == context


def test_odd_entries_are_left_out_and_the_others_stay() -> None:
    body = entries(
        1, None, {}, {"id": 5}, {"id": ""}, {"id": "a\nb"}, {"id": "x" * 300}, {"id": "ok"}, {"id": "ok"}
    )
    assert [m.id for m in read_listing(body).models] == ["ok"]
    assert [m.id for m in read_listing(b'[{"id": "bare"}]').models] == ["bare"]


def test_a_huge_list_is_cut_and_says_so() -> None:
    listing = read_listing(entries(*({"id": f"m{n}"} for n in range(MAX_LISTED + 500))))
    assert (len(listing.models), listing.more) == (MAX_LISTED, 500)
    wanted = read_listing(entries(*({"id": f"m{n}"} for n in range(MAX_LISTED + 500))), ("m1200", "other"))
    assert [m.id for m in wanted.models] == ["m1200", "other"]


def test_routers_behind_routers_end_somewhere() -> None:
    body = entries({"id": "far", "hops": MAX_HOPS}, {"id": "too-far", "hops": MAX_HOPS + 1})
    listing = read_listing(body)
    assert ([m.id for m in listing.models], listing.more) == (["far"], 1)
    assert models_of(CLOUD, listing)["cloud/far"].hops == MAX_HOPS + 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"data": {}}', b"5", b"[" * 100_000])
def test_what_is_no_list(body: bytes) -> None:
    with pytest.raises(BadListing):
        read_listing(body)


def test_a_listing_is_kept_for_its_address(tmp_path: Path) -> None:
    cache = ListingCache(tmp_path / "providers")
    listing = Listing((Listed("a", context=5), Listed("b", EMBEDDING)), more=2)
    assert cache.read(CLOUD) is None
    cache.write(CLOUD, listing)
    assert cache.read(CLOUD) == listing
    moved = msgspec.structs.replace(CLOUD, url="https://other.example.com/v1")
    assert cache.read(moved) is None
    next((tmp_path / "providers").iterdir()).write_bytes(b"{")
    assert cache.read(CLOUD) is None
    cache.forget(CLOUD)
    assert list((tmp_path / "providers").iterdir()) == []
