"""Translation of what people read, without importing Qt.

The presenter is plain Python; the app plugs Qt's translator in at its start. The call has the shape that
Qt's `lupdate` extracts: `translate("Context", "Text")`.
"""

from __future__ import annotations

from collections.abc import Callable

Translator = Callable[[str, str], str]


def _as_written(_context: str, text: str) -> str:
    return text


_translator: Translator = _as_written


def use_translator(translator: Translator | None) -> None:
    """Translate with `translator` from now on; None: leave texts as written."""
    global _translator
    _translator = translator or _as_written


def translate(context: str, text: str) -> str:
    """`text` in the user's language, placeholders in braces left for `str.format`."""
    return _translator(context, text)
