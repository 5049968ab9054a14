"""The documentation's site: it builds strictly, and the pages made from the code are those of this code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"


def load(name: str) -> ModuleType:
    """A program of docs/site as a module: the folder is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load("build")


def test_the_site_builds_with_every_link_and_anchor(tmp_path: Path) -> None:
    site = build.build(tmp_path)
    assert (site / "memory" / "index.html").exists()
    assert (site / "images" / "memory-device.svg").exists()
    assert 'href="../troubleshooting/' in (site / "install" / "index.html").read_text()


def small(folder: Path, **pages: str) -> None:
    """A checkout with these pages, by the names of their files without `.md`."""
    (folder / "docs" / "images").mkdir(parents=True)
    for name in ("README", "CONTRIBUTING", "CHANGELOG"):
        (folder / f"{name}.md").write_text(f"# {name}\n")
    for name, text in pages.items():
        (folder / "docs" / f"{name}.md").write_text(text)
    (folder / "LICENSE").write_text("")


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("# A\n\n[nowhere](nowhere.md)\n", "nowhere.md is not there"),
        ("# A\n\n![none](images/none.svg)\n", "images/none.svg is not there"),
        ("# A\n\n[readme](../README.md#nowhere)\n", "anchor does not exist"),
        ("# A\n\n<img src=https://example.org/x.png>\n", "fetch from the network"),
    ],
)
def test_what_leads_nowhere_is_told(
    page: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(tmp_path, tray=page)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "DOCS", tmp_path / "docs")
    with pytest.raises(build.Faults, match=told):
        build.build(tmp_path / "built")


def test_a_page_that_is_not_in_the_contents_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, stray="# Stray\n")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "DOCS", tmp_path / "docs")
    with pytest.raises(build.Faults, match=r"docs/stray\.md is not in CONTENTS"):
        build.build(tmp_path / "built")


def test_links_hold_where_the_pages_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, tray="# A\n\n[contribute](../CONTRIBUTING.md) and [license](../LICENSE)\n")
    (tmp_path / "README.md").write_text("# R\n\n[tray](docs/tray.md#a)\n\n```\n[code](docs/none.md)\n```\n")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "DOCS", tmp_path / "docs")
    build.assemble(tmp_path / "pages")
    assert (
        tmp_path / "pages" / "tray.md"
    ).read_text() == "# A\n\n[contribute](contributing.md) and license\n"
    assert "[tray](tray.md#a)" in (tmp_path / "pages" / "index.md").read_text()
    assert "[code](docs/none.md)" in (tmp_path / "pages" / "index.md").read_text()


def test_the_pages_made_from_the_code_are_up_to_date() -> None:
    """Those who change a call, a command or a setting write them anew: `python3 dev.py docs --write`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SITE)!r}); import pages; pages.check()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
