"""That every text can be translated, into languages with other plurals and other ways to write."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from PySide6.QtCore import QCoreApplication, Qt, QTranslator
from PySide6.QtWidgets import QApplication

from lemon_tray.language import use_language
from lemon_tray.words import counted, translate, use_translator
from tests.ui import canned
from tests.ui.conftest import view_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def texts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("texts", ROOT / "translations" / "texts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["texts"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def app(qapp: QApplication) -> Iterator[QApplication]:
    """The application, with its translators and its direction put back afterwards."""
    yield qapp
    for translator in qapp.findChildren(QTranslator):
        qapp.removeTranslator(translator)
        translator.deleteLater()
    qapp.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
    use_translator(None)


def fill(path: Path, forms: dict[str, list[str]]) -> None:
    """Translate these texts of a catalogue."""
    tree = ET.parse(path)  # noqa: S314  # made by this test
    for message in tree.getroot().iter("message"):
        wanted = forms.get(message.findtext("source", ""))
        translation = message.find("translation")
        assert translation is not None
        if wanted is None:
            continue
        del translation.attrib["type"]
        if message.get("numerus") == "yes":
            for form in translation.findall("numerusform"):
                translation.remove(form)
            for text in wanted:
                ET.SubElement(translation, "numerusform").text = text
        else:
            translation.text = wanted[0]
    tree.write(path, encoding="utf-8", xml_declaration=True)


def test_every_text_of_the_code_is_found(texts: ModuleType) -> None:
    found = {(m.context, m.source): m for m in texts.extract()}
    assert len(found) > 400
    assert found["Head", "{state} · {count} warnings"].counted
    assert not found["Menu", "Quit Lemon Tray"].counted
    assert found["Menu", "Quit Lemon Tray"].files == ("lemon_tray/menu.py",)
    from router.settings.schema import describe

    assert {info.title for info in describe()} <= {source for context, source in found if context == "Schema"}


@pytest.mark.parametrize(
    "code", ['translate("A", f"{x}")', 'translate("A", text)', 'counted("A", "x" + y, 2)', 'translate("A")']
)
def test_a_text_that_cannot_be_found_is_told(code: str, texts: ModuleType) -> None:
    with pytest.raises(texts.Unreadable, match=r"a\.py:1"):
        list(texts.texts_of(code, "a.py"))


def test_a_catalogue_keeps_what_was_translated(texts: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "lemon_tray_de.ts"
    old = [texts.Message("A", "kept"), texts.Message("A", "gone"), texts.Message("A", "now counted")]
    path.write_bytes(texts.catalogue(old, "de", {}))
    fill(path, {"kept": ["behalten"], "gone": ["weg"], "now counted": ["alt"]})
    new = [texts.Message("A", "kept"), texts.Message("A", "new"), texts.Message("A", "now counted", True)]
    path.write_bytes(texts.catalogue(new, "de", texts.known_translations(path)))
    known = texts.known_translations(path)
    assert sorted(source for _, source in known) == ["kept", "new", "now counted"]
    assert known["A", "kept"].text == "behalten"
    assert known["A", "new"].get("type") == "unfinished"
    assert known["A", "now counted"].get("type") == "unfinished"


def test_a_catalogue_translates_the_app_with_the_plurals_of_its_language(
    texts: ModuleType, tmp_path: Path, app: QApplication
) -> None:
    path = tmp_path / "lemon_tray_pl.ts"
    path.write_bytes(texts.catalogue(texts.extract(), "pl", {}))
    fill(path, {"{count} loaded": ["jeden", "kilka: {count}", "wiele: {count}"], "Ready": ["Gotowe"]})
    texts.compile_catalogue(path, tmp_path / "compiled" / "lemon_tray_pl.qm")
    assert use_language(app, tmp_path / "compiled", ["xx", "pl-PL", "de"]) == "pl-PL"
    assert translate("Head", "Ready") == "Gotowe"
    assert translate("Head", "Paused") == "Paused"  # not translated yet
    forms = [counted("Pool", "{count} loaded", count).format(count=count) for count in (1, 3, 5)]
    assert forms == ["jeden", "kilka: 3", "wiele: 5"]
    assert view_of(canned.warning()).pool.loaded == "kilka: 2"
    assert view_of(canned.warning()).head.title == "Gotowe · 1 warning"
    assert app.layoutDirection() is Qt.LayoutDirection.LeftToRight


def test_a_language_from_right_to_left_mirrors_the_app(
    texts: ModuleType, tmp_path: Path, app: QApplication
) -> None:
    path = tmp_path / "lemon_tray_ar.ts"
    path.write_bytes(texts.catalogue(texts.extract(), "ar", {}))
    fill(path, {"Ready": ["جاهز"]})
    texts.compile_catalogue(path, tmp_path / "lemon_tray_ar.qm")
    assert use_language(app, tmp_path, ["ar-EG"]) == "ar-EG"
    assert app.layoutDirection() is Qt.LayoutDirection.RightToLeft
    assert translate("Head", "Ready") == "جاهز"
    # Dialogs of Qt's own speak it too.
    assert QCoreApplication.translate("QPlatformTheme", "Cancel") != "Cancel"


@pytest.mark.parametrize("languages", [["en-GB", "pl"], ["fr", "en", "pl"], ["fr"], []])
def test_who_reads_english_rather_gets_english(
    languages: list[str], texts: ModuleType, tmp_path: Path, app: QApplication
) -> None:
    path = tmp_path / "lemon_tray_pl.ts"
    path.write_bytes(texts.catalogue([texts.Message("Head", "Ready")], "pl", {}))
    fill(path, {"Ready": ["Gotowe"]})
    texts.compile_catalogue(path, tmp_path / "lemon_tray_pl.qm")
    assert use_language(app, tmp_path, languages) == "en"
    assert translate("Head", "Ready") == "Ready"
    assert app.layoutDirection() is Qt.LayoutDirection.LeftToRight


def test_one_and_many_in_english() -> None:
    for count, words in ((0, "0 settings"), (1, "1 setting"), (2, "2 settings")):
        text = counted("Settings", "{count} settings", count, one="{count} setting")
        assert text.format(count=count) == words
