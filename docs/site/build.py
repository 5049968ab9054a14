"""Builds the documentation's site into build/docs/site: `python3 dev.py docs`.

The pages are the Markdown files in docs/, and README, CONTRIBUTING and CHANGELOG. The builder checks every
link and anchor between them. Links to other files of the checkout and pictures are checked here, and so is
that every page is in the table of contents. The site fetches nothing from the network.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"

#: The table of contents: sections, and the pages in each.
CONTENTS: Final[dict[str, tuple[str, ...]]] = {
    "Start": ("index.md", "install.md", "first-steps.md", "troubleshooting.md"),
    "Use": (
        "tray.md",
        "models.md",
        "policies-by-example.md",
        "policies.md",
        "memory.md",
        "devices.md",
        "engines.md",
        "ollama.md",
        "anthropic.md",
        "providers.md",
        "integrations.md",
        "importing.md",
    ),
    "Reference": (
        "settings.md",
        "endpoint.md",
        "calls.md",
        "errors.md",
        "commands.md",
        "admission.md",
        "residency.md",
    ),
    "Trust": ("security.md", "benchmarks.md", "soak.md", "changelog.md"),
    "Develop": ("contributing.md", "architecture.md", "development.md", "packaging.md", "adr/*"),
}
#: Pages that stand outside docs/, and what they are called in the site.
OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}

_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_FETCHES: Final = re.compile(
    r"<(?:script|img|iframe|source)[^>]* src=\"?https?:|<link[^>]* href=\"?https?:(?![^>]*rel=\"?canonical)"
)

CONFIGURATION: Final = """\
[project]
site_name = "Lemon Tray"
site_description = "Language models on your own machine, for all your apps, from the tray."
docs_dir = "pages"
site_dir = "site"
nav = {nav}

[project.theme]
font = false
language = "en"
features = ["navigation.sections", "navigation.indexes", "search.highlight", "toc.follow"]
palette = [
    {{ media = "(prefers-color-scheme: light)", scheme = "default", primary = "black" }},
    {{ media = "(prefers-color-scheme: dark)", scheme = "slate", primary = "black" }},
]
"""


class Faults(Exception):
    """What is wrong with the pages, one sentence a line."""


def sources() -> dict[str, Path]:
    """The file of each page, by its place in the site."""
    found = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")}
    return found | {name: ROOT / outside for outside, name in OUTSIDE.items()}


def contents(pages: dict[str, Path]) -> list[dict[str, list[str]]]:
    """The table of contents, of the pages that there are.

    Raises:
        Faults: a page is in none of its sections.
    """
    made = []
    listed: set[str] = set()
    for section, names in CONTENTS.items():
        here: list[str] = []
        for name in names:
            if name.endswith("/*"):
                here += sorted(page for page in pages if page.startswith(name[:-1]))
            elif name in pages:
                here.append(name)
        made.append({section: here})
        listed |= set(here)
    missing = sorted(set(pages) - listed)
    if missing:
        raise Faults("\n".join(f"docs/{name} is not in CONTENTS of docs/site/build.py" for name in missing))
    return made


def assemble(folder: Path) -> None:
    """Put all pages and pictures into a folder, with links that hold there.

    Raises:
        Faults: a link leads nowhere.
    """
    pages, faults = sources(), list[str]()
    by_path = {path.resolve(): name for name, path in pages.items()}
    for name, path in pages.items():
        text = _linked(path, name, by_path, faults)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    if (DOCS / "images").is_dir():
        shutil.copytree(DOCS / "images", folder / "images")
    if faults:
        raise Faults("\n".join(faults))


def _linked(path: Path, name: str, pages: dict[Path, str], faults: list[str]) -> str:
    """The page's text with its links turned to where things are in the site."""
    depth = name.count("/")
    text = path.read_text(encoding="utf-8")

    def turned(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        if re.match(r"[a-z][a-z0-9+.-]*:|#", target):
            return found[0]
        file, hash, anchor = target.partition("#")
        there = (path.parent / file).resolve()
        if there in pages:
            return f"[{label}]({'../' * depth}{pages[there]}{hash}{anchor})"
        if not there.exists():
            line = text[: found.start()].count("\n") + 1
            faults.append(f"{path.relative_to(ROOT)}:{line}: {target} is not there")
            return found[0]
        if picture and there.is_relative_to(DOCS):
            return f"![{label}]({'../' * depth}{there.relative_to(DOCS).as_posix()})"
        # A file of the checkout, which is no page: its name must do.
        return label

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(turned, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(turned, text[end:])])


def build(folder: Path) -> Path:
    """Assemble and build below `folder`. Returns where the site is.

    Raises:
        Faults: a link or an anchor leads nowhere, or the site would fetch something.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    assemble(folder / "pages")
    nav = json.dumps(contents(sources()))
    # TOML's inline tables are JSON's objects with another sign.
    nav = nav.replace('": [', '" = [')
    (folder / "zensical.toml").write_text(CONFIGURATION.format(nav=nav), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Faults(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout))
    site = folder / "site"
    fetching = [
        f"{page.relative_to(site)}: {found[0]}"
        for page in site.rglob("*.html")
        for found in _FETCHES.finditer(page.read_text(encoding="utf-8"))
    ]
    if fetching:
        raise Faults("The site would fetch from the network:\n" + "\n".join(fetching))
    return site


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py docs", description="Build the documentation's site.")
    parser.add_argument("--write", action="store_true", help="write the pages made from the code anew, first")
    given = parser.parse_args(arguments)
    if given.write:
        # This checkout's code, wherever another one is installed.
        sys.path.insert(0, str(ROOT))
        import pages

        for name in pages.write():
            print(f"wrote docs/{name}")
    try:
        site = build(ROOT / "build" / "docs")
    except Faults as faults:
        print(faults, file=sys.stderr)
        return 1
    print(f"docs: {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
