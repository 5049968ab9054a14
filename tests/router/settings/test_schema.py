"""The declaration of settings: descriptions, checks, text forms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.errors import BadRequest
from router.settings import docs, schema
from router.settings.schema import Applies, Settings, apply, check, describe, parse

ROOT = Path(__file__).parents[3]


def test_every_field_is_described_with_a_value_that_it_takes_itself() -> None:
    infos = describe()
    assert [info.key for info in infos] == list(msgspec.structs.asdict(Settings()))
    for info in infos:
        assert info.title
        assert info.help
        assert info.group
        assert info.expected
        assert check(info.key, info.default) == info.default
        assert info.environment == f"LEMON_TRAY_{info.key.upper()}"


@pytest.mark.fault("F20")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", "8080"),
        ("port", 8080.0),
        ("port", True),
        ("port", 70_000),
        ("port", -1),
        ("port", None),
        ("max_loaded_models", "2"),
        ("max_loaded_models", 0),
        ("max_loaded_models", -2),
        ("max_loaded_models", 1e9),
        ("max_loaded_models", True),
        ("max_loaded_models", 10**30),
        ("evict_idle_timeout_s", -2),
        ("auto_evict_threshold_pct", float("nan")),
        ("auto_evict_threshold_pct", float("inf")),
        ("auto_evict_threshold_pct", 0.4),
        ("auto_evict_threshold_pct", True),
        ("llm_pool_autosize", 1),
        ("llm_pool_autosize", "false"),
        ("host", ""),
        ("host", " "),
        ("host", "a\nb"),
        ("host", 1),
        ("models_dirs", "/a"),
        ("models_dirs", ["relative"]),
        ("models_dirs", ["/a", 1]),
        ("models_dirs", ["/\udcff"]),
        ("models_dirs", {}),
        ("vram_margin", -1),
        ("vram_margin", 1.5),
        ("vram_margin", True),
        ("vram_margin", "2GB"),
        ("vram_margin", "much"),
        ("vram_margin", "-1GiB"),
        ("vram_margin", "100TiB"),
        ("vram_cap", None),
        ("admission", "Wait"),
        ("admission", True),
        ("admission", ""),
        ("unknown_device", "wait"),
        ("model_sources", ["huggingface", "steam"]),
        ("model_sources", "ollama"),
        ("model_sources", [1]),
        ("allowed_hosts", ["a b"]),
        ("allowed_hosts", ["desk.local:80"]),
        ("allowed_hosts", ["*"]),
        ("allowed_hosts", [""]),
        ("cors_origins", ["*"]),
        ("cors_origins", ["null"]),
        ("cors_origins", ["file://"]),
        ("cors_origins", ["http://*"]),
        ("cors_origins", ["https://*.example"]),
        ("cors_origins", ["http://localhost/"]),
        ("cors_origins", ["localhost:3000"]),
    ],
)
def test_a_wrong_value_is_refused_naming_key_form_and_value(key: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        check(key, value)
    assert caught.value.param == key
    expected = next(info.expected for info in describe() if info.key == key)
    assert caught.value.message.startswith(f"{key}: expected {expected}; got ")


def test_the_message_says_what_would_be_right() -> None:
    with pytest.raises(BadRequest) as caught:
        check("max_loaded_models", 0)
    assert caught.value.message == (
        "max_loaded_models: expected a whole number from 1 to 1024, or -1 for no limit; got 0"
    )


@pytest.mark.parametrize(
    ("key", "value", "held"),
    [
        ("max_loaded_models", -1, -1),
        ("max_loaded_models", 1024, 1024),
        ("evict_idle_timeout_s", 0, 0),
        ("evict_idle_timeout_s", -1, -1),
        ("port", 0, 0),
        ("vram_margin", "1 GiB", 1 << 30),
        ("vram_margin", "1.5GiB", 3 << 29),
        ("vram_margin", 1000, 1000),
        ("vram_margin", "32TiB", 1 << 45),
        ("vram_cap", "0", 0),
        ("vram_cap", 0, 0),
        ("admission", "proceed", "proceed"),
        ("model_sources", [], ()),
        ("model_sources", ["ollama", "ollama", "lmstudio"], ("ollama", "lmstudio")),
        ("models_dirs", ["/a b/ü", "/a b/ü", "~/models"], ("/a b/ü", "~/models")),
        (
            "allowed_hosts",
            ["desk.local", "192.168.1.20", "fe80::1"],
            ("desk.local", "192.168.1.20", "fe80::1"),
        ),
        (
            "cors_origins",
            ["http://localhost:3000", "https://a.example"],
            ("http://localhost:3000", "https://a.example"),
        ),
        (
            "cors_origins",
            ["vscode-webview://*", "app://obsidian.md"],
            ("vscode-webview://*", "app://obsidian.md"),
        ),
        ("cors_origins", ["http://[::1]:80"], ("http://[::1]:80",)),
    ],
)
def test_right_values(key: str, value: Any, held: Any) -> None:
    assert check(key, value) == held


def test_a_misspelt_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadRequest) as caught:
        check("max_modles", 1)
    assert "did you mean max_loaded_models?" in caught.value.message


@pytest.mark.fault("F36")
@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("2GB", "use 2GiB"),
        ("1.5g", "use 1.5GiB"),
        ("500 MB", "use 500MiB"),
        ("9000TiB", "more than 1024 TiB"),
    ],
)
def test_a_size_in_another_unit_is_answered_with_the_one_to_use(value: str, advice: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check("vram_margin", value)
    assert caught.value.message.startswith("vram_margin: expected a size such as 512MiB or 2GiB; got ")
    assert advice in caught.value.message


def test_values_are_written_as_they_are_read() -> None:
    for key, value, text in (
        ("vram_margin", 512 << 20, "512 MiB"),
        ("vram_margin", 3 << 29, "1536 MiB"),
        ("vram_margin", 1 << 45, "32 TiB"),
        ("vram_margin", 1000, "1000 B"),
        ("vram_cap", 0, "0"),
        ("admission", "wait", "wait"),
        ("auto_evict", True, "true"),
        ("models_dirs", ["/ü"], '["/ü"]'),
        ("port", 13305, "13305"),
    ):
        assert schema.written(key, value) == text
        held = tuple(value) if isinstance(value, list) else value
        assert parse(key, text) == held


def test_apply_takes_all_or_none_and_names_every_fault() -> None:
    before = Settings()
    with pytest.raises(BadRequest) as caught:
        apply(before, {"port": 1, "max_loaded_models": 0, "prot": 2})
    assert "max_loaded_models: expected" in caught.value.message
    assert "prot: no such setting (did you mean port?)" in caught.value.message
    assert caught.value.param == "max_loaded_models"
    after = apply(before, {"port": 1, "models_dirs": ["/m"]})
    assert (after.port, after.models_dirs, before.port) == (1, ("/m",), 13305)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("llm_pool_autosize", "Off", False),
        ("llm_pool_autosize", "1", True),
        ("max_loaded_models", " -1 ", -1),
        ("auto_evict_threshold_pct", "0.75", 0.75),
        ("host", "::1", "::1"),
        ("models_dirs", '["/a", "/b:c"]', ("/a", "/b:c")),
        ("models_dirs", os.pathsep.join(("/a", "/b")), ("/a", "/b")),
        ("models_dirs", "", ()),
        ("cors_origins", "http://a:1, http://b", ("http://a:1", "http://b")),
        ("vram_margin", " 1GiB ", 1 << 30),
        ("vram_margin", "1073741824", 1 << 30),
        ("model_sources", "ollama, huggingface", ("ollama", "huggingface")),
        ("model_sources", "", ()),
    ],
)
def test_text_is_read_by_the_type_of_the_setting(key: str, text: str, value: Any) -> None:
    assert parse(key, text) == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("port", "8080.0"),
        ("port", "1_000"),
        ("port", "0x10"),
        ("port", "true"),
        ("port", ""),
        ("auto_evict_threshold_pct", "nan"),
        ("llm_pool_autosize", "maybe"),
        ("models_dirs", "[1]"),
        ("models_dirs", "[broken"),
    ],
)
def test_text_of_another_form_is_refused(key: str, text: str) -> None:
    with pytest.raises(BadRequest, match=f"^{key}: expected"):
        parse(key, text)


def test_the_page_of_settings_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text("utf-8") == docs.text(), (
        "run: python -m router.settings.docs > docs/settings.md"
    )


def test_the_module_prints_the_page() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "router.settings.docs"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    assert done.stdout == docs.text()


def test_the_page_lists_what_may_evict_apart() -> None:
    section = docs.text().split("## Live, may evict at once")[1].split("\n## ")[0]
    for key in ("llm_pool_autosize", "max_loaded_models"):
        assert f"| `{key}` |" in section
        assert schema.info_of(key).applies is Applies.LIVE_MAY_EVICT
    assert all(f"`{info.key}`" in docs.text() for info in describe())
