"""The one error shape: raised anywhere, rendered by the web layer, printed by the CLI, shown by the tray."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Final

#: Characters of a message, and of a name that is compared with others. Both may come from a client, who may
#: send megabytes.
MAX_MESSAGE: Final = 4_000
MAX_COMPARED: Final = 256
#: Names that are compared letter by letter, and the pieces of a name by which those are found among more.
_MOST_COMPARED: Final = 64
_PIECE: Final = 3
_PIECES: Final = 12


def near_matches(name: str, known: Iterable[str], most: int = 1, *, alike: float = 0.6) -> list[str]:
    """Up to `most` of the known names that are like this one, the most alike first.

    There are none for a name that is far too long for one: looking would hold the loop up for seconds. Of
    thousands of known names only those that share most with it are compared, for the same reason.
    """
    if len(name) > MAX_COMPARED:
        return []
    names = list(known)
    if len(names) > _MOST_COMPARED:
        step = max(1, (len(name) - _PIECE + 1) // _PIECES)
        pieces = [name[at : at + _PIECE] for at in range(0, max(1, len(name) - _PIECE + 1), step)]
        names = heapq.nlargest(_MOST_COMPARED, names, key=lambda each: sum(map(each.__contains__, pieces)))
    return difflib.get_close_matches(name, names, n=most, cutoff=alike)


def _cut(text: str) -> str:
    """The text, or the beginning and the end of a long one."""
    if len(text) <= MAX_MESSAGE:
        return text
    half = MAX_MESSAGE // 2
    return f"{text[:half]}[...]{text[-half:]}"


class RouterError(Exception):
    """An error that a user is meant to read.

    Attributes:
        code: machine-readable, stable, `snake_case`.
        status: the HTTP status that goes with it.
        message: what happened and what to do, one or two sentences.
        hint: an optional further way out, such as the exact setting to change.
        param: the request field or setting at fault, if there is one.
        retry_after_s: seconds after which trying again may help; sent as `Retry-After`.
        details: further members of the error object, ready for JSON, such as a table of devices; they never
            take the place of the others.
    """

    code = "router_error"
    status = 500

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        hint: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        message = _cut(message)
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status or type(self).status
        self.hint = hint
        self.param = _cut(param) if param else param
        self.retry_after_s = retry_after_s
        self.details: Mapping[str, Any] = details or {}

    @property
    def type(self) -> str:
        """OpenAI's `type` for this status."""
        if self.status in (401, 403):
            return "authentication_error" if self.status == 401 else "permission_error"
        if self.status < 500:
            return "invalid_request_error"
        return "server_error"

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape, ready for JSON."""
        return {
            "error": {
                **self.details,
                "message": self.message,
                "type": self.type,
                "code": self.code,
                "param": self.param,
                "hint": self.hint,
            }
        }


class BadRequest(RouterError):
    code = "invalid_request"
    status = 400


class Forbidden(RouterError):
    code = "forbidden"
    status = 403


class NotFound(RouterError):
    code = "not_found"
    status = 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class Conflict(RouterError):
    code = "conflict"
    status = 409


class SlotsPinned(Conflict):
    """Every slot that a load could take is held by a pinned model."""

    code = "slots_pinned_error"


class TooLarge(RouterError):
    code = "request_too_large"
    status = 413


class WorkerDied(RouterError):
    code = "worker_died"
    status = 502


class LoadFailed(RouterError):
    """The engine could not bring the model up; `message` carries the cause."""

    code = "load_failed"
    status = 502


class Unavailable(RouterError):
    code = "unavailable"
    status = 503


class InsufficientMemory(RouterError):
    """A model has no room on its devices, and nobody who could go would make any."""

    code = "insufficient_memory"
    status = 507


class ShuttingDown(Unavailable):
    code = "shutting_down"


class ConfigError(RouterError):
    """A settings, policy or model file that cannot be used; the message names file, key and expected form."""

    code = "config_error"
    status = 400


class InstanceError(RouterError):
    """Another instance runs, or the port is taken."""

    code = "instance_error"
    status = 409
