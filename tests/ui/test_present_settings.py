"""Settings as rows: words for values, what differs, what a search finds."""

from __future__ import annotations

from typing import Any

import pytest

from lemon_tray.present_settings import (
    LOGIN,
    groups,
    marked,
    matches,
    present_settings,
    read_value,
    size_parts,
    value_text,
    waiting_for_restart,
)
from router.errors import BadRequest
from router.settings import schema
from router.settings.schema import info_of
from router.units import GIB, MIB, NBSP


def rows(changes: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    settings = {**schema.defaults(), **(changes or {})}
    overridden = options.pop("overridden", {})
    return {v.key: v for v in present_settings(settings, overridden, options.pop("login", None))}


def test_every_setting_of_the_schema_has_a_row_in_its_group() -> None:
    found = rows()
    assert list(found) == [i.key for i in schema.describe()]
    by_group = {g.name: g.keys for g in groups(found.values())}
    assert "vram_margin" in by_group["Memory"]
    assert sum(len(keys) for keys in by_group.values()) == len(found)


def test_the_login_row_is_there_where_the_desktop_knows_that() -> None:
    assert LOGIN not in rows()
    row = rows(login=True)[LOGIN]
    assert row.value is True
    assert not row.changed


def test_what_differs_from_the_default_says_so() -> None:
    found = rows({"auto_evict": True, "models_dirs": ["/a"]})
    assert [k for k, v in found.items() if v.changed] == ["auto_evict", "models_dirs"]
    assert found["auto_evict"].default_text == "off"
    assert found["models_dirs"].default_text == "none"
    assert found["host"].overridden == ""
    assert rows(overridden={"host": "LEMON_TRAY_HOST"})["host"].overridden == "LEMON_TRAY_HOST"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("auto_evict", True, "on"),
        ("max_loaded_models", -1, "no limit"),
        ("max_loaded_models", 3, "3"),
        ("evict_idle_timeout_s", 0, "when idle"),
        ("vram_margin", 512 * MIB, f"512{NBSP}MiB"),
        ("vram_margin", GIB, f"1{NBSP}GiB"),
        ("vram_margin", 1536 * MIB, f"1.5{NBSP}GiB"),
        ("vram_cap", 0, "no cap"),
        ("models_dirs", (), "none"),
        ("models_dirs", ("/a", "/b"), "/a, /b"),
        ("admission", "wait", "wait"),
        ("auto_evict_threshold_pct", 0.9, "0.9"),
    ],
)
def test_values_as_people_read_them(key: str, value: Any, text: str) -> None:
    assert value_text(info_of(key), value) == text


@pytest.mark.parametrize("size", [0, 1, MIB, 100 * MIB, 1000 * MIB, GIB, 24 * GIB, 3 * MIB + 1, 5 << 40])
def test_a_size_in_parts_is_the_same_size(size: int) -> None:
    number, unit = size_parts(size)
    assert float(number) * {"MiB": MIB, "GiB": GIB}[unit] == pytest.approx(size, abs=1)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("max_loaded_models", "no limit", -1),
        ("max_loaded_models", " No Limit ", -1),
        ("max_loaded_models", "4", 4),
        ("vram_margin", "2GiB", 2 * GIB),
        ("vram_margin", "1.5 GiB", 1536 * MIB),
        ("vram_cap", "no cap", 0),
        ("auto_evict_threshold_pct", "0.8", 0.8),
        ("host", "127.0.0.1", "127.0.0.1"),
        ("evict_idle_timeout_s", "never", -1),
    ],
)
def test_what_is_typed_is_read(key: str, text: str, value: Any) -> None:
    assert read_value(info_of(key), text) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("max_loaded_models", "0"),
        ("max_loaded_models", "many"),
        ("vram_margin", "2 GB"),
        ("port", "70000"),
        ("host", ""),
        ("auto_evict_threshold_pct", "nan"),
    ],
)
def test_what_is_no_value_says_what_is_expected(key: str, text: str) -> None:
    with pytest.raises(BadRequest, match=f"{key}: expected"):
        read_value(info_of(key), text)


@pytest.mark.parametrize(
    ("query", "key", "found"),
    [
        ("", "port", True),
        ("vram", "vram_margin", True),
        ("keep free", "vram_margin", True),
        ("FREE each", "vram_margin", True),
        ("vram", "port", False),
    ],
)
def test_search_looks_at_name_key_and_help(query: str, key: str, found: bool) -> None:
    assert matches(rows()[key], query) is found


@pytest.mark.parametrize(
    ("text", "query", "pieces"),
    [
        ("Keep free", "", [("Keep free", False)]),
        ("Keep free", "FREE", [("Keep ", False), ("free", True)]),
        ("aaab", "aa b", [("aaab", True)]),
        ("Straße", "strasse", [("Straße", False)]),
    ],
)
def test_what_a_search_found_is_marked(text: str, query: str, pieces: list[tuple[str, bool]]) -> None:
    assert marked(text, query) == pieces


def test_only_changed_settings_that_need_it_wait_for_a_restart() -> None:
    views = tuple(rows({"port": 8080, "auto_evict": True}).values())
    assert waiting_for_restart(views, schema.defaults()) == ["port"]
    assert waiting_for_restart(views, {**schema.defaults(), "port": 8080}) == []
    assert waiting_for_restart(views, {}) == []
