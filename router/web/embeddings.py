"""Embeddings in base64: the bytes of little-endian 32-bit floats, made here where a worker gives numbers."""

from __future__ import annotations

import array
import base64
import re
import sys
from typing import Any, Final

import msgspec
from msgspec import Raw

from router.errors import BadRequest
from router.web.upload import Body

FLOAT: Final = "float"
BASE64: Final = "base64"

_VECTOR: Final = re.compile(rb'"embedding"\s*:\s*(["\[])')
_decode_answer: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_vector: Final = msgspec.json.Decoder(list[float]).decode


def wants_base64(given: Any) -> bool:
    """Whether a request's `encoding_format` is base64.

    Raises:
        BadRequest: it is neither that nor `float`.
    """
    if given == BASE64:
        return True
    if given in (msgspec.UNSET, None, FLOAT):
        return False
    raise BadRequest(
        f"`encoding_format` is {str(given)[:40]!r}; it can be {FLOAT} or {BASE64}.", param="encoding_format"
    )


def has_numbers(start: Body) -> bool | None:
    """Whether an answer that begins like this has vectors of numbers; None while that cannot be told."""
    found = _VECTOR.search(start)
    return None if found is None else found[1] == b"["


def in_base64(answer: Body) -> bytes:
    """The answer with its vectors in base64; everything else, the order too, stays as it is.

    What is no list of embeddings is returned unchanged.
    """
    try:
        members = _decode_answer(answer)
        items = _decode_items(members["data"])
        for item in items:
            vector = bytes(item.get("embedding", b""))
            if vector.startswith(b"["):
                item["embedding"] = Raw(b'"%b"' % base64.b64encode(_packed(vector)))
        members["data"] = Raw(msgspec.json.encode(items))
        return msgspec.json.encode(members)
    except (msgspec.MsgspecError, KeyError, OverflowError, RecursionError):
        return bytes(answer)


def _packed(vector: bytes) -> bytes:
    numbers = array.array("f", _decode_vector(vector))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
