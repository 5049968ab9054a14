"""A request of another protocol, put into OpenAI's form, and the way its answer goes back."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from router.errors import RouterError
from router.web.kinds import Kind
from router.web.upload import Body


class Back(Protocol):
    """Turns one answer back."""

    def begin(self, model: str | None = None) -> None:
        """The model is there, and is asked now. `model` names it where the client named a policy."""

    def whole(self, body: bytes) -> bytes:
        """The whole answer.

        Raises:
            BadAnswer: it is none.
        """

    def feed(self, data: bytes) -> bytes:
        """What a fragment of a stream becomes; nothing while it is part of something.

        Raises:
            BadAnswer: it is no part of an answer.
        """

    def ending(self) -> bytes:
        """What comes after the last fragment of a stream that is complete."""

    def failure(self, error: RouterError) -> bytes:
        """What ends a stream that has failed."""


class Turned(Struct):
    """A request for a model. The body is let go when it is taken.

    Attributes:
        kind: the call that it has become.
        context: the tokens of context that it asks for; 0 where it does not say.
    """

    kind: Kind
    body: Body
    back: Back
    context: int = 0

    def take(self) -> Body:
        """The body, once."""
        body, self.body = self.body, b""
        return body
