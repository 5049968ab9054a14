"""The catalogues of what people read: `python3 dev.py texts [LANGUAGE ...]`.

For each language named, such as `de`, `translations/lemon_tray_LANGUAGE.ts` is made, or brought up to date
with the code: what was translated stays, what is new is marked unfinished, what is gone is left out. Those
that are there already need not be named. The files are Qt's own format, edited with `pyside6-linguist`. Then
each becomes `resources/translations/lemon_tray_LANGUAGE.qm`, which the app loads.

A call `translate("Context", "Text")` is a text; `counted("Context", "{count} texts", count)` is one whose
form depends on a number.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "lemon_tray"
CATALOGUES = ROOT / "translations"
COMPILED = ROOT / "resources" / "translations"
DECLARED = "Schema"
"""The context of what the settings' declaration says: these texts are no constants in the code."""


class Unreadable(Exception):
    """A text is not written so that it can be found."""


@dataclass(frozen=True)
class Message:
    """One text: where it is said, and whether its form depends on a number."""

    context: str
    source: str
    counted: bool = False
    files: tuple[str, ...] = ()


def texts_of(code: str, name: str) -> Iterator[Message]:
    """The texts of one file.

    Raises:
        Unreadable: a text is put together while the program runs.
    """
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in ("translate", "counted"):
            continue
        parts = [a.value if isinstance(a, ast.Constant) else None for a in node.args]
        if node.func.id == "translate" and parts[:1] == [DECLARED]:
            continue
        if len(parts) < 2 or not all(isinstance(part, str) for part in parts[:2]):
            raise Unreadable(f"{name}:{node.lineno}: a text has to be one constant")
        yield Message(str(parts[0]), str(parts[1]), node.func.id == "counted", (name,))


def declared_texts() -> Iterator[Message]:
    """What the settings' declaration says of each: title, help, group, and words for values."""
    from router.settings.schema import describe

    for info in describe():
        for text in (info.title, info.help, info.group, *info.choices, *info.special.values()):
            yield Message(DECLARED, text, files=("router/settings/declaration.py",))


def extract(folder: Path = SOURCES) -> list[Message]:
    """Every text of the app, in the order of contexts and texts.

    Raises:
        Unreadable: a text is put together while the program runs.
    """
    found: dict[tuple[str, str], Message] = {}
    every = [
        m
        for path in sorted(folder.rglob("*.py"))
        for m in texts_of(path.read_text(encoding="utf-8"), f"lemon_tray/{path.relative_to(folder)}")
    ]
    for message in (*every, *declared_texts()):
        key = (message.context, message.source)
        before = found.get(key)
        files = message.files if before is None else tuple(sorted({*before.files, *message.files}))
        counted = message.counted or (before is not None and before.counted)
        found[key] = replace(message, counted=counted, files=files)
    return [found[key] for key in sorted(found)]


def known_translations(path: Path) -> dict[tuple[str, str], ET.Element]:
    """What a catalogue translates, by context and text."""
    if not path.exists():
        return {}
    known = {}
    for context in ET.parse(path).getroot().iter("context"):  # noqa: S314  # a file of this project
        for message in context.iter("message"):
            translation = message.find("translation")
            if translation is not None:
                known[context.findtext("name", ""), message.findtext("source", "")] = translation
    return known


def catalogue(messages: Iterable[Message], language: str, known: dict[tuple[str, str], ET.Element]) -> bytes:
    """A catalogue as Qt's tools read it."""
    root = ET.Element("TS", version="2.1", language=language, sourcelanguage="en")
    contexts: dict[str, ET.Element] = {}
    for message in messages:
        context = contexts.get(message.context)
        if context is None:
            context = contexts[message.context] = ET.SubElement(root, "context")
            ET.SubElement(context, "name").text = message.context
        entry = ET.SubElement(context, "message", {"numerus": "yes"} if message.counted else {})
        for file in message.files:
            ET.SubElement(entry, "location", filename=f"../{file}")
        ET.SubElement(entry, "source").text = message.source
        translation = known.get((message.context, message.source))
        if translation is None or (translation.find("numerusform") is not None) is not message.counted:
            translation = ET.Element("translation", type="unfinished")
            if message.counted:
                ET.SubElement(translation, "numerusform")
        entry.append(translation)
    ET.indent(root, "    ")
    head = b'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE TS>\n'
    return head + ET.tostring(root, encoding="unicode").encode() + b"\n"


def compile_catalogue(source: Path, target: Path) -> None:
    """Make of a catalogue what the app loads.

    Raises:
        subprocess.CalledProcessError: Qt's tool refused it.
    """
    import PySide6

    tool = Path(PySide6.__file__).parent / "lrelease"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([str(tool), "-silent", str(source), "-qm", str(target)], check=True)


def language(text: str) -> str:
    """A language as files and Qt name it: `de`, `pt_BR`."""
    if not re.fullmatch(r"[a-z]{2,3}(_[A-Za-z]{2,4})?", text):
        raise argparse.ArgumentTypeError(f"expected a language such as de or pt_BR; got {text!r}")
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="dev.py texts", description="Bring the catalogues of what people read up to date."
    )
    parser.add_argument(
        "languages", metavar="LANGUAGE", nargs="*", type=language, help="a new one, such as de"
    )
    named = parser.parse_args(arguments).languages
    there = {path.stem.removeprefix("lemon_tray_") for path in CATALOGUES.glob("lemon_tray_*.ts")}
    messages = extract()
    for each in sorted(there | set(named)):
        path = CATALOGUES / f"lemon_tray_{each}.ts"
        path.write_bytes(catalogue(messages, each, known_translations(path)))
        compile_catalogue(path, COMPILED / f"lemon_tray_{each}.qm")
        print(path)
    print(f"{len(messages)} texts")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
