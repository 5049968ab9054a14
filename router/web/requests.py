"""What the router reads of a request body: a few fields, checked, so that a bad request loads nothing.

A body goes to the worker as it came. Only where the router must change something (a policy's name in `model`,
keys that are for the router alone) is it written anew, and then every other value keeps its bytes.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from router.errors import BadRequest
from router.policy.fit import Size, request_size
from router.policy.request import RequestView, conversation, request_view
from router.units import parse_duration
from router.web.options import WebOptions
from router.web.upload import Body

T = TypeVar("T")

ROUTER_KEYS: Final = ("route_trace", "keep_alive")

_BOM: Final = b"\xef\xbb\xbf"
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
# An escaped backslash, a pair of surrogates, or (with a group) a surrogate without its other half.
_SURROGATES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F])"
)
_SOMETHING: Final = re.compile(rb"\S")
_PIECE: Final = 1 << 20
# Parsing holds all threads up while it lasts, so what is long is first taken out, piece by piece.
_LONG: Final = 1 << 20
_BLOCK: Final = 64 << 10
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"
_POSITION: Final = re.compile(r" \(byte \d+\)")
_FAULT_PATH: Final = re.compile(r" - at `\$(.*)`$", re.DOTALL)


class Message(Struct, frozen=True):
    """One message of a chat; its content is the worker's business."""

    role: str | None = None


class Fields(Struct, frozen=True):
    """The fields of a request that matter here. `UNSET` means that the key is absent."""

    model: str
    stream: bool | None = None
    messages: list[Message] | UnsetType | None = UNSET
    prompt: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    query: str | UnsetType | None = UNSET
    documents: Raw | UnsetType = UNSET
    texts: Raw | UnsetType = UNSET
    route_trace: bool | UnsetType | None = UNSET
    keep_alive: str | int | float | UnsetType | None = UNSET
    encoding_format: str | UnsetType | None = UNSET
    stop_sequences: Raw | UnsetType = UNSET
    top_n: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET

    @property
    def has_router_keys(self) -> bool:
        """Whether the body has keys that no worker should see."""
        return self.route_trace is not UNSET or self.keep_alive is not UNSET


_decode_fields: Final = msgspec.json.Decoder(Fields).decode
_decode_any: Final = msgspec.json.Decoder().decode
_decode_raw: Final = msgspec.json.Decoder(dict[str, Raw]).decode


def check_content_type(declared: str) -> None:
    """Refuse forms and other charsets; a missing type passes, and so does `curl -d`'s default one.

    Raises:
        BadRequest: naming the header.
    """
    if declared == "application/json":
        return
    kind, _, parameters = declared.partition(";")
    if kind.strip().lower().startswith("multipart/"):
        raise BadRequest("The body must be JSON, not a multipart form.", param="Content-Type")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() != "charset":
            continue
        charset = value.strip().strip("\"'").lower()
        if charset not in ("utf-8", "utf8", "us-ascii", "ascii"):
            raise BadRequest(
                f"The charset {charset[:40]!r} is not supported. Send UTF-8.", param="Content-Type"
            )


async def decode_fields(body: Body, options: WebOptions) -> Fields:
    """The fields of an inference request.

    Raises:
        BadRequest: naming the field at fault.
    """
    return _named(await _decoded(body, _decode_fields, options, of_form=True))


def fields_at_once(body: Body) -> Fields:
    """As `decode_fields`, of a small body.

    Raises:
        BadRequest: naming the field at fault.
    """
    return _named(_checked(body, _decode_fields, True))


def _named(fields: Fields) -> Fields:
    if not fields.model.strip():
        raise BadRequest("`model` is empty. Name a model; GET /v1/models lists them.", param="model")
    return fields


async def decode_object(body: Body, options: WebOptions) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        BadRequest: it is none.
    """
    value = await _decoded(body, _decode_object, options)
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    return value


async def decode_as(kind: type[T], body: Body, options: WebOptions) -> T:
    """The body as `kind`, a struct.

    Raises:
        BadRequest: naming the field at fault.
    """
    return await _decoded(body, msgspec.json.Decoder(kind).decode, options)


class Asked(Struct, frozen=True):
    """What routing looks at in a request. `conversation` is the same for all requests of one."""

    view: RequestView = RequestView()
    size: Size = Size()
    conversation: int | None = None


async def policy_view(body: Body, options: WebOptions, *, sized: bool) -> Asked:
    """What a policy looks at; with `sized`, how much of a context the request takes, too."""
    if len(body) <= options.inline_body:
        return _asked(body, sized)
    return await asyncio.to_thread(_asked, body, sized)


async def rewritten(
    body: Body, options: WebOptions, *, model: str | None = None, drop: Collection[str] = ROUTER_KEYS
) -> bytes:
    """The body without the keys of `drop` and, if given, with another `model`; all else byte for byte."""
    if len(body) <= options.inline_body:
        return _rewritten(body, model, drop)
    return await asyncio.to_thread(_rewritten, body, model, drop)


def keep_alive_s(value: str | int | float | UnsetType | None) -> float | None:
    """Seconds of `keep_alive`: a number of seconds, or a duration such as `5m` or `1h30m`; negative: -1.

    Raises:
        BadRequest: it is neither.
    """
    if value is UNSET or value is None:
        return None
    try:
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise BadRequest(
            f"`keep_alive` is {str(value)[:40]!r}; give seconds, or a duration such as '5m'.",
            param="keep_alive",
        )
    return -1.0 if seconds < 0 else seconds


async def _decoded(
    body: Body, decode: Callable[[Body], T], options: WebOptions, *, of_form: bool = False
) -> T:
    """What `decode` makes of the body; with `of_form` it does not matter what long texts say."""
    if len(body) <= options.inline_body:
        return _checked(body, decode, of_form)
    return await asyncio.to_thread(_checked, body, decode, of_form)


def _checked(body: Body, decode: Callable[[Body], T], of_form: bool) -> T:
    if _SOMETHING.search(body) is None:
        raise BadRequest("The body is empty. Send a JSON object.")
    if body.startswith(_BOM):
        raise BadRequest("The body starts with a byte order mark. Send UTF-8 without one.")
    # Decoding skips the values that it does not need and does not look into their text.
    if len(body) <= _LONG:
        if not body.isascii():
            _check_utf8(body)
        outline = body
    else:
        _check_utf8(body)
        outline = _outline(body) if of_form else body
    if _SURROGATE.search(outline):
        _check_surrogates(outline)
    return _told(outline, decode, whole=outline is body)


def _told(body: Body, decode: Callable[[Body], T], *, whole: bool = True) -> T:
    """What `decode` makes of it. If it is not the `whole` body, no places in it are told.

    Raises:
        BadRequest: naming the field at fault.
    """
    try:
        return decode(body)
    except msgspec.ValidationError as exc:
        raise _fault(str(exc)) from None
    except msgspec.DecodeError as exc:
        what = exc if whole else _POSITION.sub("", str(exc))
        raise BadRequest(f"The body is not valid JSON: {what}.") from None
    except RecursionError:
        raise BadRequest("The body is not usable: its JSON is nested too deeply.") from None


def _check_utf8(body: Body) -> None:
    """Piece by piece: a large body is not held a second time as text, nor do others wait for all of it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for start in range(0, len(body), _PIECE):
        piece = view[start : start + _PIECE]
        held = len(decoder.getstate()[0])
        try:
            decoder.decode(piece, final=start + _PIECE >= len(body))
        except UnicodeDecodeError as exc:
            at = start - held + exc.start
            raise BadRequest(f"The body is not UTF-8: byte {at} is wrong.") from None


def _outline(body: Body) -> Body:
    """The body with the insides of long base64 texts left out: it has the same form, and the same fields.

    Only whole blocks of base64's letters go. They can only be inside a text, since JSON has none elsewhere in
    a row; their first bytes stay, as an escape may reach into them.
    """
    view = memoryview(body)
    parts: list[memoryview] = []
    start = 0
    for begin in range(0, len(body) - _BLOCK + 1, _BLOCK):
        if not bytes(view[begin : begin + _BLOCK]).translate(None, _BASE64):
            parts.append(view[start : begin + 8])
            start = begin + _BLOCK
    return body if not parts else b"".join([*parts, view[start:]])


def _check_surrogates(body: Body) -> None:
    for found in _SURROGATES.finditer(body):
        if found[1] is not None:
            raise BadRequest(
                f"The body is not valid JSON: half of a surrogate pair is missing at byte {found.start()}."
            )


def _fault(message: str) -> BadRequest:
    found = _FAULT_PATH.search(message)
    what = message[: found.start()] if found else message
    what = what[:1].lower() + what[1:]
    if found and found[1] and not found[1].startswith("[...]"):  # That is "some key or other".
        param = found[1].lstrip(".")
        return BadRequest(f"`{param}` is wrong: {what}.", param=param)
    missing = re.search(r"required field `(\w+)`", message)
    if missing:
        return BadRequest(f"`{missing[1]}` is missing.", param=missing[1])
    return BadRequest(f"The body is wrong: {what}.")


def _decode_object(body: Body) -> Any:
    """Any value. A number that is too large is told with the key that has it, which msgspec does not name."""
    try:
        return _decode_any(body)
    except msgspec.ValidationError as exc:
        for key, value in _decode_raw(body).items():
            try:
                _decode_any(value)
            except msgspec.ValidationError as fault:
                what = _FAULT_PATH.sub("", str(fault))
                raise BadRequest(f"`{key}` is wrong: {what[:1].lower()}{what[1:]}.", param=key) from None
        raise exc


def _asked(body: Body, sized: bool) -> Asked:
    # Only now are all values read: those that the router does not need may still be wrong.
    given: Mapping[str, Any] = _told(body, _decode_object)
    return Asked(request_view(given), request_size(given) if sized else Size(), conversation(given))


def _rewritten(body: Body, model: str | None, drop: Collection[str]) -> bytes:
    members = _told(body, _decode_raw)
    for key in drop:
        members.pop(key, None)
    if model is not None:
        members["model"] = Raw(msgspec.json.encode(model))
    return msgspec.json.encode(members)
