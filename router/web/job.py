"""A request for a model, understood: what the client asked for, and what of it matters to the answer."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct

from router.errors import BadRequest
from router.policy.document import Policy
from router.web import anthropic
from router.web.api import Lease
from router.web.kinds import EMBEDDINGS, MESSAGES, Kind
from router.web.relay import Exchange
from router.web.requests import Fields
from router.web.routing import Route
from router.web.sse import FirstEvent, Usage
from router.web.tally import Last
from router.web.turned import Back
from router.web.upload import Body

ROUTE_HEADER: Final = "x-lemonade-route"
ROUTE_MEMBER: Final = "x_lemonade_route"

_OBJECT: Final = re.compile(rb"\s*\{\s*(.)", re.DOTALL)


class Job(Struct):
    """A request, understood. Its body is let go as soon as it cannot be needed again.

    Attributes:
        name: the model that answers; the policy's name until that has chosen.
        is_told_late: the headers went out before the policy had chosen, so they do not tell the route.
    """

    kind: Kind
    fields: Fields
    body: Body
    name: str
    policy: Policy | None = None
    route: Route | None = None
    keep_alive_s: float | None = None
    base64: bool = False
    back: Back | None = None
    context: int = 0
    is_told_late: bool = False

    def trace(self) -> dict[str, Any] | None:
        """How the policy chose, if there is one, and the client asks for it or knows nothing of it yet."""
        if self.route is None or not (self.fields.route_trace is True or self.is_told_late):
            return None
        return self.route.trace()

    @property
    def streams(self) -> bool:
        """Whether the client asks for a stream."""
        return self.kind.streams and self.fields.stream is True

    @property
    def stops(self) -> bool:
        """Whether it is a request in Anthropic's form that names texts to stop at."""
        return self.kind is MESSAGES and given(self.fields.stop_sequences)

    def splices(self) -> list[FirstEvent | anthropic.Mender]:
        """What is changed in a stream on its way, in this order."""
        made: list[FirstEvent | anthropic.Mender] = []
        if self.kind is MESSAGES:
            made.append(anthropic.Mender(self.name, stops=self.stops))
        if (trace := self.trace()) is not None:
            made.append(FirstEvent(ROUTE_MEMBER, trace))
        return made


def require(fields: Fields, kind: Kind) -> None:
    """Refuse a request that lacks what its kind needs.

    Raises:
        BadRequest: naming the field.
    """
    for names in kind.needs:
        # Written out: this runs for each request, and nearly always the first name is there.
        if not given(getattr(fields, names[0])) and not any(given(getattr(fields, n)) for n in names[1:]):
            raise BadRequest(f"`{names[0]}` is missing.", param=names[0])
    if "messages" in kind.needs[0] and not fields.messages:
        raise BadRequest("`messages` is empty.", param="messages")
    if kind is EMBEDDINGS and isinstance(fields.input, Raw) and bytes(fields.input) in (b'""', b"[]"):
        raise BadRequest("`input` is empty.", param="input")


def given(value: object) -> bool:
    return (
        value is not UNSET and value is not None and not (isinstance(value, Raw) and bytes(value) == b"null")
    )


def with_trace(body: bytes, job: Job) -> bytes:
    """The JSON object with the trace as its first member, if one was asked for; all else byte for byte."""
    trace = job.trace()
    opening = _OBJECT.match(body) if trace is not None else None
    if opening is None:
        return body
    member = msgspec.json.encode({ROUTE_MEMBER: trace})[:-1]
    comma = b"" if opening[1] == b"}" else b","
    return member + comma + body[opening.start(1) :]


def last(job: Job, usage: Usage, seconds: float, first_s: float, total_s: float) -> Last:
    prompt_s = usage.prompt_seconds
    return Last(
        model=job.name,
        path=job.kind.shown,
        time_to_first_token_s=first_s,
        total_s=total_s,
        prompt_tokens=usage.prompt_tokens,
        tokens=usage.tokens,
        tokens_per_s=usage.tokens / seconds if seconds > 0 else None,
        prompt_tokens_per_s=usage.prompt_computed / prompt_s if prompt_s > 0 else None,
    )


class Begun(NamedTuple):
    """A request on its way: its hold on the model, its exchange with the worker, and when it was sent.

    `asked` is in seconds, on the loop's clock.
    """

    lease: Lease
    exchange: Exchange
    asked: float
