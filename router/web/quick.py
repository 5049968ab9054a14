"""The shortest way: from a client's bytes to the worker's and back, in callbacks, without a task.

Most requests are in plain form, for a model that is loaded and has a slot free, and many of their answers
come as a whole. Those are answered here. Whatever turns out otherwise goes on in a task, by the same code as
all others, from where it stands: a stream, a large answer, an error, a connection that breaks, a lease that
is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from router.errors import RouterError
from router.web import security
from router.web.asking import Answer, Asking
from router.web.cut import EndedByCut
from router.web.guard import CLIENT_LEFT, Parts, is_trusted, needs_key, note, told
from router.web.inflight import Ongoing
from router.web.job import Begun, Job, last
from router.web.kinds import Kind
from router.web.plain import PlainRequest
from router.web.respond import Whole
from router.web.sse import Usage, usage_in

PlainHandler = Callable[[PlainRequest], Awaitable[Answer]]


class Client(Protocol):
    """The connection that a request came on."""

    def occupy(self, ongoing: Ongoing) -> None:
        """It is busy with this from now on."""

    def settle(self, request: PlainRequest, answer: Answer) -> None:
        """Send the whole answer to the request that it is busy with, and go on."""

    def take_over(self, request: PlainRequest, handle: PlainHandler) -> asyncio.Task[None]:
        """Have the request that it is busy with answered by a task."""

    def give_way(self) -> None:
        """Close it now."""


def begin(request: PlainRequest, client: Client, *, parts: Parts, kind: Kind) -> bool:
    """Answer a request in this way, if it can be. If not, nothing has been done, and `guard` is to answer."""
    if parts.inflight.closing or not _may_ask(request, parts):
        return False
    job = parts.inference.understood_at_once(request, kind)
    if job is None:
        return False
    try:
        parts.bodies.take(request)
    except RouterError:
        return False
    lease = parts.api.lease_at_once(job.name)
    if lease is None:
        parts.bodies.let_go(request)
        return False
    began = asyncio.get_running_loop().time()
    request.notes.began = began
    request.notes.model = job.name
    begun = Begun(lease, parts.relay.exchange(lease.worker), began)
    Quick(request, client, parts, job, begun).send()
    return True


def _may_ask(request: PlainRequest, parts: Parts) -> bool:
    """Whether the request is allowed for certain, and comes from no page."""
    settings = parts.api.settings
    if request.head.allowed_by is not settings:
        try:
            if security.check(request, parts.api.bound_hosts, settings.cors_origins) is not None:
                return False
        except RouterError:
            return False
        request.head.allowed_by = settings
        request.head.is_trusted = is_trusted(request, parts)
    if request.head.is_trusted and not settings.require_api_key:
        return True
    return not needs_key(request, parts) or parts.keys.accepts_at_once(request)


class Quick:
    """One request on this way, until it is answered or a task goes on with it."""

    __slots__ = ("_begun", "_client", "_cut", "_is_over", "_job", "_parts", "_request", "_stream")

    def __init__(self, request: PlainRequest, client: Client, parts: Parts, job: Job, begun: Begun) -> None:
        self._request = request
        self._client = client
        self._parts = parts
        self._job = job
        self._begun = begun
        # A stream's silence counts from now on.
        self._stream = parts.inference.stream_for(request, job) if job.streams else None
        self._cut = EndedByCut(begun.lease, begun.exchange, self._stream, parts.options.stalled_client_s)
        self._is_over = False

    def send(self) -> None:
        """Send the request to the worker."""
        exchange = self._begun.exchange
        self._client.occupy(self)
        self._parts.inflight.enter(self)
        self._parts.inference.running[exchange] = self._stream
        self._cut.__enter__()
        is_sent = exchange.begin(self._job.kind.path, self._request.raw_headers, self._job.body, self._look)
        if not is_sent:
            self._go_on_slowly()

    def cancel(self) -> None:
        """The client has left, or the end has come: let the worker go. Idempotent."""
        if self._is_over:
            return
        self._end(Usage())
        self._note(CLIENT_LEFT)
        self._client.give_way()

    def _look(self) -> None:
        """Something has come from the worker, or the exchange has ended."""
        exchange = self._begun.exchange
        if self._is_over or not exchange.has_news:
            return
        body = exchange.whole(self._parts.options.max_held) if self._stream is None else None
        if body is None:
            self._go_on_slowly()
        else:
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        exchange, asked = self._begun.exchange, self._begun.asked
        try:
            usage, answer = usage_in(body), Whole(body, exchange.headers())
        except Exception:
            # In a callback nobody would hear of it. The task meets the same, and tells it.
            self._go_on_slowly()
            return
        now = asyncio.get_running_loop().time()
        total_s = now - asked
        seconds = usage.seconds or total_s
        first_s = (exchange.first_byte or now) - asked
        if self._parts.inflight.closing:
            answer.force_close()
        self._end(usage, seconds)
        self._parts.tally.answered(last(self._job, usage, seconds, first_s, total_s))
        self._client.settle(self._request, answer)
        self._note(answer.status)

    def _go_on_slowly(self) -> None:
        self._pause()
        task = self._client.take_over(self._request, self._told)
        self._parts.inflight.enter(task)
        self._parts.inflight.leave(self)
        task.add_done_callback(self._over)

    async def _told(self, request: PlainRequest) -> Answer:
        self._is_over = True
        return await told(self._parts, request, self._go_on)

    async def _go_on(self, request: Asking) -> Answer:
        inference = self._parts.inference
        stream = self._stream or inference.stream_for(request, self._job)
        return await inference.answer(request, self._job, stream, self._begun)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._parts.inflight.leave(task)
        if not self._is_over:  # It was cancelled before it began.
            self._end(Usage())
            self._note(CLIENT_LEFT)

    def _pause(self) -> None:
        self._begun.exchange.unwatch()
        self._cut.__exit__()

    def _end(self, usage: Usage, seconds: float = 0.0) -> None:
        self._is_over = True
        self._pause()
        self._parts.inference.running.pop(self._begun.exchange, None)
        self._begun.exchange.close()
        self._begun.lease.release(tokens=usage.tokens, seconds=seconds)
        self._parts.bodies.let_go(self._request)
        self._parts.inflight.leave(self)
        if self._stream is not None:
            self._stream.close()

    def _note(self, status: int) -> None:
        notes = self._request.notes
        seconds = asyncio.get_running_loop().time() - notes.began
        note(self._request, notes, status, seconds, self._parts.tally)
