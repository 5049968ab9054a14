"""The language of the app: the first of the user's that has a catalogue, and the way that it runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QTranslator
from PySide6.QtWidgets import QApplication

from lemon_tray.assets import resource_root
from lemon_tray.words import use_translator

log = logging.getLogger(__name__)

CATALOGUE: Final = "lemon_tray"
WRITTEN_IN: Final = "en"


def translated(context: str, text: str, count: int) -> str:
    """What Qt's translators make of a text; `count` is -1 for one without a number."""
    return QCoreApplication.translate(context, text, None, count)


def use_language(
    app: QApplication, folder: Path | None = None, languages: Sequence[str] | None = None
) -> str:
    """Speak to the user in the first of `languages` that the app knows; returns it.

    Args:
        app: is mirrored for a language that is written from right to left.
        folder: where the catalogues are, if not with the other resources.
        languages: such as `de-DE`, if not those of the system.
    """
    folder = resource_root() / "translations" if folder is None else folder
    use_translator(translated)
    for language in QLocale.system().uiLanguages() if languages is None else languages:
        locale = QLocale(language)
        if language.split("-")[0].split("_")[0] == WRITTEN_IN:
            break
        translator = QTranslator(app)
        if not translator.load(locale, CATALOGUE, "_", str(folder)):
            continue
        of_qt = QTranslator(app)
        if of_qt.load(locale, "qtbase", "_", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
            app.installTranslator(of_qt)
        app.installTranslator(translator)
        app.setLayoutDirection(locale.textDirection())
        log.info("The app speaks %s.", language)
        return language
    return WRITTEN_IN
