"""Translation of what people read, without importing Qt.

The presenter is plain Python; the app plugs Qt's translator in at its start. `python3 dev.py texts` finds
the calls `translate("Context", "Text")` and `counted("Context", "{count} texts", count)`, whose texts are
constants.
"""

from __future__ import annotations

from collections.abc import Callable

Translator = Callable[[str, str, int], str]
"""Of a context, a text and the number that its form depends on, -1 for none."""


def _as_written(_context: str, text: str, _count: int) -> str:
    return text


_translator: Translator = _as_written


def use_translator(translator: Translator | None) -> None:
    """Translate with `translator` from now on; None: leave texts as written."""
    global _translator
    _translator = translator or _as_written


def translate(context: str, text: str) -> str:
    """`text` in the user's language, placeholders in braces left for `str.format`."""
    return _translator(context, text, -1)


def counted(context: str, text: str, count: int, *, one: str = "") -> str:
    """The form of `text` for `count` things, placeholders in braces left for `str.format`.

    Catalogues translate `text`, which is written for many, with as many forms as a language has. `one` is the
    form for a single thing as long as it is not translated.
    """
    form = _translator(context, text, count)
    return one if one and count == 1 and form == text else form
