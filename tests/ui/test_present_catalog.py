"""The model browser's rows: verdicts, bars, facts, options."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lemon_tray.present_catalog import (
    CatalogRow,
    Fact,
    Verdict,
    facts,
    in_order,
    load_options,
    present_catalog,
    present_plan,
    shown_rows,
    types_of,
)
from lemon_tray.view import Command, Kind
from router.snapshot import DeviceState, ResidentState, Severity, Snapshot
from router.units import NBSP
from tests.ui import canned
from tests.ui.canned import device, gib, model, resident, snapshot


def rows(of: Snapshot | None = None) -> dict[str, CatalogRow]:
    return {row.model: row for row in present_catalog(of or canned.catalog())}


@pytest.mark.parametrize(
    ("name", "verdict", "title", "reason", "action"),
    [
        ("Qwen3-8B", Verdict.GOOD, "Loaded on CUDA0", f"Idle · 78.4{NBSP}tok/s", "Unload"),
        ("Gemma-3-4B", Verdict.BUSY, "Loading on CUDA0", f"43{NBSP}%", "Cancel"),
        (
            "Llama-3.3-70B",
            Verdict.PARTLY,
            "Loaded, partly on CUDA1",
            f"22.0{NBSP}GiB on the host · Idle · pinned · 2.6{NBSP}tok/s",
            "Unload",
        ),
        ("Phi-4-mini", Verdict.GOOD, "Fits on CUDA0", f"1.8{NBSP}GiB stays usable", "Load"),
        ("nomic-embed", Verdict.GOOD, "Fits on CUDA0", f"5.4{NBSP}GiB stays usable", "Load"),
        ("Mistral-7B", Verdict.GOOD, "Fits on CUDA0 + CUDA1", "Spread over several devices", "Load"),
        (
            "Qwen3-32B",
            Verdict.BAD,
            f"Does not fit: needs 52.1{NBSP}GiB",
            "A smaller context or file may help",
            "Load",
        ),
        ("half-a-file", Verdict.BAD, "Cannot be loaded", "The file ends within the tensor data.", ""),
        ("new-arrival", Verdict.UNKNOWN, "Not known yet", "What it needs is being worked out", "Load"),
    ],
)
def test_verdicts(name: str, verdict: Verdict, title: str, reason: str, action: str) -> None:
    row = rows()[name]
    assert (row.verdict, row.title, row.reason, row.action_label) == (verdict, title, reason, action)
    assert row.accessible == f"{name}: {title}; {reason}"


def one_card(available: float | None, needs: float, fits: bool | None, **changes: Any) -> CatalogRow:
    card = device(0, "RTX 4090", {"A": (9.0, 0)}, 3.0, **changes)
    card = msgspec.structs.replace(card, available=None if available is None else gib(available))
    of = snapshot(devices=(card,), models=(model("X", 5, needs, fits),), residents=())
    return rows(of)["X"]


@pytest.mark.parametrize(
    ("available", "needs", "fits", "verdict", "title"),
    [
        (11.0, 5.0, True, Verdict.GOOD, "Fits on CUDA0"),
        (11.0, 15.0, True, Verdict.AFTER, "Fits after unloading others"),
        (11.0, 30.0, False, Verdict.BAD, f"Does not fit: 7.0{NBSP}GiB short"),
        (None, 5.0, True, Verdict.GOOD, "Fits"),
        (None, 5.0, None, Verdict.UNKNOWN, "Not known"),
        (11.0, 5.0, None, Verdict.GOOD, "Fits on CUDA0"),
    ],
)
def test_verdicts_on_one_card(
    available: float | None, needs: float, fits: bool | None, verdict: Verdict, title: str
) -> None:
    row = one_card(available, needs, fits)
    assert (row.verdict, row.title) == (verdict, title)


def test_a_bar_shows_the_device_as_it_would_be() -> None:
    (bar,) = one_card(11.0, 6.0, True).bars
    assert (bar.others, bar.own, bar.short) == pytest.approx((12 / 24, 6 / 24, 0))
    assert bar.tick == pytest.approx(23 / 24)
    (after,) = one_card(11.0, 15.0, True).bars
    assert (after.others, after.own, after.short) == pytest.approx((8 / 24, 15 / 24, 0))
    (short,) = one_card(11.0, 30.0, False).bars
    assert short.others + short.own == pytest.approx(23 / 24)
    assert short.short == pytest.approx(1 / 24)
    unknown = one_card(11.0, 6.0, None, state=DeviceState.UNKNOWN).bars[0]
    assert (unknown.others, unknown.own, unknown.tick) == (0, 0, 1)


def test_a_loaded_models_own_memory_stands_out_on_its_devices() -> None:
    first, second = rows()["Llama-3.3-70B"].bars
    assert first.own == 0
    assert second.own == pytest.approx(18.4 / 24, abs=1e-3)
    assert second.others == 0


def test_every_share_of_a_bar_stays_within_it() -> None:
    for row in rows().values():
        for bar in row.bars:
            assert 0 <= bar.others <= 1
            assert 0 <= bar.own <= 1
            assert bar.others + bar.own + bar.short <= 1.0001


def test_loaded_models_come_first_and_all_others_by_name() -> None:
    names = list(rows())
    assert names[:3] == ["Gemma-3-4B", "Llama-3.3-70B", "Qwen3-8B"]
    assert names[3:] == sorted(names[3:], key=str.casefold)


def test_a_resident_whose_file_has_gone_is_there_to_be_unloaded() -> None:
    of = snapshot(models=(), residents=(resident("gone", 1, {"gpu0": 1}),), devices=(device(0, "X", {}),))
    row = rows(of)["gone"]
    assert row.action == Command(Kind.UNLOAD, "gone")


def test_a_failed_load_says_why() -> None:
    feed = (
        canned.entry(
            1,
            0,
            "X could not be loaded: out of memory.",
            code="load_failed",
            severity=Severity.ERROR,
            model="X",
            reason="load_failed",
        ),
    )
    of = snapshot(models=(model("X", 1, 1),), devices=(device(0, "G", {}, available=gib(9)),), feed=feed)
    assert rows(of)["X"].reason == "Last load failed: Out of memory."
    assert facts(of, "X")[0] == Fact("Last load failed", "Out of memory.")
    mended = (*feed, canned.entry(2, 1, "…", code="ready", model="X"))
    assert rows(msgspec.structs.replace(of, feed=mended))["X"].reason == f"8.0{NBSP}GiB stays usable"


def test_a_model_that_unloads_has_nothing_to_be_pressed() -> None:
    going = resident("A", 1, {"gpu0": 1}, state=ResidentState.EVICTING)
    row = rows(snapshot(models=(model("A", 1, 1),), residents=(going,), devices=(device(0, "G", {}),)))["A"]
    assert (row.title, row.action) == ("Unloading", None)


@pytest.mark.parametrize(
    ("query", "kind", "found"),
    [
        ("qwen", "", ["Qwen3-8B", "Qwen3-32B"]),
        ("", "embedding", ["nomic-embed"]),
        ("qwen", "embedding", []),
        ("ollama", "", ["Mistral-7B"]),
        ("language lm studio", "", ["Gemma-3-4B"]),
        ("does not", "", ["Qwen3-32B"]),
    ],
)
def test_search_and_types(query: str, kind: str, found: list[str]) -> None:
    assert [r.model for r in shown_rows(rows().values(), query, kind)] == found


def test_types_are_counted() -> None:
    assert types_of(canned.catalog()) == [("llm", 8), ("embedding", 1)]


def test_what_is_known_of_a_model() -> None:
    of = canned.catalog()
    assert [(f.label, f.text) for f in facts(of, "Phi-4-mini")] == [
        ("Found in", "Models"),
        ("Aliases", "phi, phi-4"),
        ("Its options", "ctx_size=16384"),
    ]
    assert facts(of, "Qwen3-8B")[-1].text == "chat, code"
    assert facts(of, "nothing") == ()


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"ctx_size": " "}, {}),
        ({"ctx_size": "8192", "parallel": "2"}, {"ctx_size": 8192, "parallel": 2}),
        ({"ctx_size": "auto", "keep_alive": "1h"}, {"ctx_size": "auto", "keep_alive": "1h"}),
        ({"device": "CUDA0, CUDA1"}, {"device": ["CUDA0", "CUDA1"]}),
        ({"keep_alive": "-1"}, {"keep_alive": "-1"}),
    ],
)
def test_options_are_made_of_what_is_filled_in(fields: dict[str, str], options: dict[str, Any]) -> None:
    assert load_options(fields) == options


def test_options_of_the_form_are_those_that_the_router_takes() -> None:
    from router.catalog.options import check_options

    check_options(
        load_options(
            {
                "ctx_size": "auto",
                "device": "CUDA0",
                "n_gpu_layers": "all",
                "parallel": "4",
                "cache_type_k": "q8_0",
                "cache_type_v": "q8_0",
                "keep_alive": "-1",
            }
        )
    )


def test_a_plan_in_words() -> None:
    plan = present_plan(
        {
            "verdict": "evicts",
            "reason": "Qwen3-8B would be unloaded first.",
            "devices": [{"id": "g", "label": "CUDA0", "needed": gib(7), "available": gib(5)}],
        }
    )
    assert plan.verdict is Verdict.AFTER
    assert plan.text == (
        f"Fits after unloading. CUDA0: needs 7.0{NBSP}GiB, 5.0{NBSP}GiB is usable. "
        "Qwen3-8B would be unloaded first."
    )
    assert present_plan({"verdict": "new one"}).verdict is Verdict.UNKNOWN


def test_names_are_in_the_order_in_which_people_count() -> None:
    names = ["model-10", "Model-2", "model-1", "2x", "10x", "model"]
    assert sorted(names, key=in_order) == ["2x", "10x", "model", "model-1", "Model-2", "model-10"]
