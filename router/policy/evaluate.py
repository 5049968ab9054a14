"""Which candidate a request goes to: pure, and quick."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from router.policy.document import Policy
from router.policy.parse import VERSION


class RequestView(Struct, frozen=True):
    """What a policy sees of a request."""

    text: str = ""


class Decision(Struct, frozen=True):
    """Where a request goes, and why. `matched_rule` is "" when no rule matched."""

    route_to: str
    matched_rule: str
    default_used: bool
    outputs: dict[str, Any] = {}
    version: str = VERSION


def decide(policy: Policy, view: RequestView) -> Decision:
    """The first rule that matches decides; else the policy's default model is taken."""
    text = _fold(view.text)
    for rule in policy.rules:
        if any(keyword in text for keyword in _folded(rule.keywords_any)):
            return Decision(rule.route_to, rule.id, False, rule.outputs)
    return Decision(policy.default_model, "", True)


def _fold(text: str) -> bytes:
    """UTF-8 with the ASCII letters in lower case; all others stay, as version "1" has it."""
    return text.encode("utf-8", "surrogatepass").lower()


@functools.lru_cache(maxsize=4096)
def _folded(keywords: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(map(_fold, keywords))


def request_text(body: Mapping[str, Any]) -> str:
    """The text of a request that policies look at.

    Of `messages` it is that of the last user message; without `messages` it is `prompt`, and without both it
    is `input`. Whatever has another form than the API's counts as no text.
    """
    messages = body.get("messages")
    if isinstance(messages, list):
        return _last_user_text(messages) or ""
    prompt = body.get("prompt")
    if prompt is not None:
        return _lines(prompt)
    given = body.get("input")
    if isinstance(given, list):
        of_user = _last_user_text(given)
        return of_user if of_user is not None else _parts(item for item in given if not _has_role(item))
    return given if isinstance(given, str) else ""


def _last_user_text(items: list[Any]) -> str | None:
    """The text of the last item by the user; None if there is none."""
    for item in reversed(items):
        if isinstance(item, dict) and item.get("role") == "user":
            content = item.get("content")
            return (
                _parts(content) if isinstance(content, list) else content if isinstance(content, str) else ""
            )
    return None


def _lines(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else ""


def _has_role(item: Any) -> bool:
    return isinstance(item, dict) and "role" in item


def _parts(items: Any) -> str:
    """The texts among content parts, one a line."""
    texts = []
    for item in items:
        text = item.get("text") if isinstance(item, dict) else item
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)
