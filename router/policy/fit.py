"""Which candidate a request falls back to: in candidate order, and by what its context can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from router.policy.document import Policy
from router.policy.request import IMAGES

ASCII_PER_TOKEN: Final = 4
"""ASCII characters in one token of ordinary text; of other scripts a character counts as a token."""
SURELY: Final = 2
"""A text surely has no fewer tokens than its estimate divided by this."""
IMAGE_TOKENS: Final = 1_000

CONTEXT: Final = "context_too_small"
CANNOT_LOAD: Final = "cannot_be_loaded"
MISSING: Final = "not_found"
OTHER_TYPE: Final = "other_type"


class Size(Struct, frozen=True):
    """What a request takes of a context, in tokens, by estimate: no tokenizer is asked.

    Attributes:
        prompt: of all that it says.
        answer: what it allows the answer; 0 if it does not tell.
    """

    prompt: int = 0
    answer: int = 0

    @property
    def least(self) -> int:
        """What the prompt surely takes."""
        return self.prompt // SURELY


class GaveWay(Struct, frozen=True):
    """A candidate that was passed over, and why."""

    candidate: str
    reason: str


def request_size(body: Mapping[str, Any]) -> Size:
    """The size of a decoded body: its texts, tools and images."""
    ascii_count = other = images = 0
    for key in ("messages", "prompt", "input", "system", "instructions", "tools"):
        for kind, text in _texts(body.get(key)):
            if kind == "image":
                images += 1
                continue
            plain = len(text) if text.isascii() else sum(map(str.isascii, text))
            ascii_count += plain
            other += len(text) - plain
    limits = (body.get(k) for k in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    answer = next((n for n in limits if isinstance(n, int) and not isinstance(n, bool) and n > 0), 0)
    return Size(ascii_count // ASCII_PER_TOKEN + other + images * IMAGE_TOKENS, answer)


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """The texts of a part of a body, and a mark for each image, whose own data is left out."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield "text", value
        elif isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            if value.get("type") in IMAGES:
                yield "image", ""
            else:
                left += value.values()


def in_order(policy: Policy, chosen: str) -> list[str]:
    """The chosen candidate, then those after it, then those before it; each once."""
    names = list(dict.fromkeys(policy.candidates))
    at = names.index(chosen)
    return names[at:] + names[:at]


def fitting(
    names: list[str], size: Size, window: Callable[[str], int]
) -> tuple[list[str], tuple[GaveWay, ...]]:
    """The candidates that a request may go to, in order, and those that are passed over before the first.

    Those whose context holds the prompt and the answer come before those that hold the prompt alone. Where
    none seems to hold it the estimate may be wrong: then the largest is left, unless it surely is too small.

    Args:
        window: the context of a candidate for one request, in tokens; 0 if unknown.
    """
    windows = {name: window(name) for name in names}

    def holds(name: str, tokens: int) -> bool:
        return windows[name] == 0 or tokens < windows[name]

    whole = [name for name in names if holds(name, size.prompt + size.answer)]
    prompt = [name for name in names if holds(name, size.prompt) and name not in whole]
    # A limit on the answer that no context holds says nothing.
    kept = whole + prompt if whole else prompt
    if not kept:
        largest = max(names, key=windows.__getitem__)
        kept = [largest] if holds(largest, size.least) else []
    before = names.index(kept[0]) if kept else len(names)
    return kept, tuple(GaveWay(name, CONTEXT) for name in names[:before])
