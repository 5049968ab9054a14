"""What policies look at in a request's body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

#: The types of content parts that are images. A tuple: what a body has as a type need not be hashable.
IMAGES: Final = ("image_url", "input_image", "image")


class RequestView(Struct, frozen=True):
    """What a policy sees of a request. `metadata` has the values that are texts."""

    text: str = ""
    has_tools: bool = False
    has_images: bool = False
    metadata: Mapping[str, str] = {}


def request_view(body: Mapping[str, Any]) -> RequestView:
    """The view of a decoded body. Whatever has another form than the API's counts as absent."""
    tools, metadata = body.get("tools"), body.get("metadata")
    return RequestView(
        text=request_text(body),
        has_tools=isinstance(tools, list) and bool(tools),
        has_images=has_images(body),
        metadata={k: v for k, v in metadata.items() if isinstance(v, str)}
        if isinstance(metadata, dict)
        else {},
    )


def request_text(body: Mapping[str, Any]) -> str:
    """The text of a request that policies look at.

    Of `messages` it is that of the last user message; without `messages` it is `prompt`, and without both it
    is `input`.
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


def has_images(body: Mapping[str, Any]) -> bool:
    """Whether any message, or any item of `input`, brings an image."""
    return any(isinstance(part, dict) and part.get("type") in IMAGES for part in _all_parts(body))


def _all_parts(body: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("messages", "input"):
        items = body.get(key)
        for item in items if isinstance(items, list) else ():
            yield item
            content = item.get("content") if isinstance(item, dict) else None
            if isinstance(content, list):
                yield from content


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


def _parts(items: Iterable[Any]) -> str:
    """The texts among content parts, one a line."""
    texts = []
    for item in items:
        text = item.get("text") if isinstance(item, dict) else item
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


def conversation(body: Mapping[str, Any]) -> int | None:
    """What the requests of one conversation have in common: a hash of all up to the first user message.

    None where nothing tells, as in a request without messages.
    """
    items: Any = next((body[k] for k in ("messages", "input") if isinstance(body.get(k), list)), [])
    start: list[str] = []
    for item in items:
        if not isinstance(item, dict):
            return None
        start.append(repr(item.get("content")))
        if item.get("role") == "user":
            return hash(tuple(start))
    return None
