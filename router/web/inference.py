"""Requests for models: which one, wait for it, pass its answer on."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import hdrs
from msgspec import UNSET, Raw, Struct

from router.catalog.kinds import A_MODEL, EMBEDDING, LLM, RERANKING
from router.engines.base import Exit, Worker
from router.errors import BadRequest, RouterError, ShuttingDown, Unavailable, WorkerDied
from router.policy.document import Policy
from router.providers.faults import ProviderError
from router.providers.live import REMOVED
from router.web import anthropic, embeddings, refusals, requests, respond
from router.web.api import Lease, RouterApi
from router.web.asking import Answer, Asking
from router.web.kinds import EMBEDDINGS, MESSAGES, Kind
from router.web.lines import LineStream
from router.web.notes import NOTES
from router.web.options import WebOptions
from router.web.relay import BadAnswer, Broken, Exchange, NotReached, Relay, Silent, UpstreamError
from router.web.remote import exchange_with
from router.web.requests import Fields
from router.web.routing import GivesWay, Route, Routing
from router.web.sse import FirstEvent, Usage, usage_in
from router.web.stream import EventStream
from router.web.tally import Last, Tally
from router.web.turned import Back, Turned
from router.web.upload import Bodies, Body

log = logging.getLogger(__name__)

ROUTE_HEADER: Final = "x-lemonade-route"
ROUTE_MEMBER: Final = "x_lemonade_route"

_EVENT_STREAM: Final = "text/event-stream"
_OBJECT: Final = re.compile(rb"\s*\{\s*(.)", re.DOTALL)


_PATHS: Final = {LLM: "/v1/chat/completions", EMBEDDING: "/v1/embeddings", RERANKING: "/v1/rerank"}
_OLLAMA_PATHS: Final = {**_PATHS, LLM: "/api/chat", EMBEDDING: "/api/embed"}


class _Job(Struct):
    """A request, understood. Its body is let go as soon as it cannot be needed again."""

    kind: Kind
    fields: Fields
    body: Body
    name: str
    route: Route | None
    keep_alive_s: float | None
    base64: bool = False
    back: Back | None = None
    context: int = 0

    def trace(self) -> dict[str, Any] | None:
        """How the policy chose, if there is one and the client asks for it."""
        return self.route.trace() if self.route is not None and self.fields.route_trace is True else None

    @property
    def stops(self) -> bool:
        """Whether it is a request in Anthropic's form that names texts to stop at."""
        return self.kind is MESSAGES and _given(self.fields.stop_sequences)

    def splices(self) -> list[FirstEvent | anthropic.Mender]:
        """What is changed in a stream on its way, in this order."""
        made: list[FirstEvent | anthropic.Mender] = []
        if self.kind is MESSAGES:
            made.append(anthropic.Mender(self.name, stops=self.stops))
        if (trace := self.trace()) is not None:
            made.append(FirstEvent(ROUTE_MEMBER, trace))
        return made


class Inference:
    """The handlers of the calls that a model answers."""

    def __init__(
        self, api: RouterApi, relay: Relay, tally: Tally, bodies: Bodies, options: WebOptions
    ) -> None:
        self._api = api
        self._bodies = bodies
        self._relay = relay
        self._tally = tally
        self._options = options
        self._routing = Routing(api, tally, options)
        self._running: dict[Exchange, EventStream] = {}

    def end_all(self, error: RouterError) -> None:
        """End all answers that are under way: streams with an event, others with a status."""
        for exchange, stream in self._running.items():
            exchange.fail(error)
            stream.expire(self._options.stalled_client_s)

    def handler(self, kind: Kind) -> Callable[[Asking], Awaitable[Answer]]:
        """The handler of one call."""

        return functools.partial(self._handle, kind=kind)

    async def translated(self, request: Asking, turned: Turned) -> Answer:
        """Answer a request of another protocol, which has been put into OpenAI's form."""
        return await self._handle(request, turned.kind, turned)

    async def _handle(self, request: Asking, kind: Kind, turned: Turned | None = None) -> Answer:
        job = await self._understand(request, kind, turned)
        streams = kind.streams and job.fields.stream is True
        silence_s = self._options.silence_s if streams else None
        route = job.route.header if job.route else None
        if job.back is not None:
            stream: EventStream = LineStream(request, route, job.back, kind.keep)
        else:
            stream = EventStream(request, route, silence_s, kind.keep, kind.event, kind.beat)
        try:
            return await self._answer(request, job, stream)
        except RouterError as error:
            if not stream.started:
                raise
            request[NOTES].failed = error.code
            return await stream.fail(error)
        except ConnectionError:
            raise
        except Exception:
            if not stream.started:
                raise
            log.exception("A stream of %s failed", job.name)
            return await stream.fail(RouterError("The router failed; its log says why."))
        finally:
            stream.close()

    async def _understand(self, request: Asking, kind: Kind, turned: Turned | None) -> _Job:
        options = self._options
        if turned is not None:
            body = turned.take()
        else:
            requests.check_content_type(request.headers.get(hdrs.CONTENT_TYPE, ""))
            body = await self._bodies.read(request)
        if kind.mend is not None:
            body = await kind.mend(body, options)
        fields = await requests.decode_fields(body, options)
        _require(fields, kind)
        keep_alive_s = requests.keep_alive_s(fields.keep_alive)
        base64 = kind.path == EMBEDDINGS.path and embeddings.wants_base64(fields.encoding_format)
        target = self._api.resolve(fields.model)
        route = None
        if isinstance(target, Policy):
            route = await self._routing.choose(target, body)
            request[NOTES].route = route.header
            target = self._routing.first(route, kind.type)
        request[NOTES].model = target.name
        paths = _OLLAMA_PATHS if kind.called else _PATHS
        if target.type != kind.type and not target.remote:  # Of those, types may be guessed.
            raise BadRequest(
                f"{target.name} is {A_MODEL.get(target.type, target.type)}; {kind.shown} needs "
                f"{A_MODEL[kind.type]}. Use {paths.get(target.type, 'the path for its type')}, "
                "or another model.",
                param="model",
            )
        if route is not None or target.remote or fields.has_router_keys:
            named = target.asked_as if route is not None or target.remote else None
            body = await requests.rewritten(body, options, model=named)
        back, context = (turned.back, turned.context) if turned is not None else (None, 0)
        return _Job(kind, fields, body, target.name, route, keep_alive_s, base64, back, context)

    async def _answer(self, request: Asking, job: _Job, stream: EventStream) -> Answer:
        while True:
            try:
                return await self._answer_by(request, job, stream)
            except GivesWay:
                assert job.route is not None
                model = self._routing.candidate(job.route)
                request[NOTES].model = job.name = model.name
                job.body = await requests.rewritten(job.body, self._options, model=model.asked_as)

    async def _answer_by(self, request: Asking, job: _Job, stream: EventStream) -> Answer:
        """Let the model that the job names answer.

        Raises:
            GivesWay: another candidate is to answer.
        """
        try:
            return await self._attempt(request, job, stream)
        except NotReached:
            # Its process died between the grant and the request, or nobody listens there any more. Nothing
            # was sent: ask anew, once.
            stream.reprieve()
        try:
            return await self._attempt(request, job, stream)
        except NotReached as exc:
            raise WorkerDied(f"The worker of {job.name} cannot be reached. {exc}") from exc

    async def _attempt(self, request: Asking, job: _Job, stream: EventStream) -> Answer:
        lease = await self._acquire(job)
        if job.back is not None:
            job.back.begin(job.name if job.route is not None else None)
        loop = asyncio.get_running_loop()
        asked = began = loop.time()
        usage: Usage | None = None
        exchange = exchange_with(self._relay, lease.worker)
        self._running[exchange] = stream
        try:
            with _EndedByCut(lease, exchange, stream, self._options.stalled_client_s):
                try:
                    await exchange.send(job.kind.path, request.raw_headers, job.body)
                    if exchange.status >= 400 and job.fields.encoding_format is not UNSET:
                        await self._send_plainer(request, job, exchange)
                    if exchange.status >= 400 and job.route is not None:
                        refusal = await self._refusal(job, exchange)
                        self._routing.refused(job.route, refusal)
                        raise refusal
                    job.body = b""
                    self._bodies.let_go(request)
                    began = loop.time()
                    response, usage = await self._pass_on(request, job, stream, exchange)
                except ProviderError as exc:
                    if job.route is not None:
                        self._routing.cannot_load(job.route, exc)
                    raise
                except NotReached as exc:
                    if await self._death(lease.worker) is None and exc.refused:
                        lease.condemn()
                    raise
                except UpstreamError as exc:
                    raise await self._explained(lease, exc) from exc
            return response
        finally:
            del self._running[exchange]
            first = exchange.first_byte or loop.time()
            exchange.close()
            tokens = usage.tokens if usage is not None else 0
            seconds = usage.seconds if usage is not None else 0.0
            if tokens and not seconds:
                seconds = loop.time() - began
            if usage is not None:
                self._tally.answered(_last(job, usage, seconds, first - asked, loop.time() - asked))
            lease.release(tokens=tokens, seconds=seconds)

    async def _acquire(self, job: _Job) -> Lease:
        route = job.route
        try:
            lease = await self._api.acquire(
                job.name,
                policy=route.policy.name if route else None,
                body_bytes=len(job.body),
                keep_alive_s=job.keep_alive_s,
                # The candidates of a policy have the contexts that it was made for.
                context=0 if route else job.context,
            )
        except RouterError as error:
            if route is not None:
                self._routing.cannot_load(route, error)
            raise
        if route is not None:
            self._routing.granted(route, lease.model.name)
        return lease

    async def _send_plainer(self, request: Asking, job: _Job, exchange: Exchange) -> None:
        """Ask once more without `encoding_format`, if it is that what a worker refuses."""
        refusal = await self._refusal(job, exchange)
        if job.kind.path != EMBEDDINGS.path or "encoding" not in refusal.message:
            raise refusal
        plainer = await requests.rewritten(job.body, self._options, drop=("encoding_format",))
        await exchange.send(job.kind.path, request.raw_headers, plainer)

    async def _pass_on(
        self, request: Asking, job: _Job, stream: EventStream, exchange: Exchange
    ) -> tuple[Answer, Usage]:
        status = exchange.status
        if status >= 400:
            raise await self._refusal(job, exchange)
        if status != 200:
            raise BadAnswer(f"The worker answered with status {status}.")
        if exchange.header(b"content-type").lower().startswith(_EVENT_STREAM):
            return await self._pass_stream(job, stream, exchange)
        if stream.started:
            raise BadAnswer("The worker answered with no stream although one was asked for.")
        return await self._pass_whole(request, job, stream, exchange)

    async def _pass_stream(self, job: _Job, stream: EventStream, exchange: Exchange) -> tuple[Answer, Usage]:
        splices = job.splices()
        response = await stream.start(exchange.headers())
        try:
            while data := await exchange.read():
                for splice in splices:
                    data = splice.feed(data)
                if data:
                    await stream.write(data)
            held = b""
            for splice in splices:
                held = splice.feed(held) + splice.flush()
            if held:
                await stream.write(held)
        except (UpstreamError, RouterError):
            # After its last event only the connection's own end was missing.
            if not stream.scanner.ending().final or not stream.scanner.at_boundary:
                raise
        ending = stream.scanner.ending()
        if not ending.final:
            raise Broken("The worker ended its stream before the answer was complete.")
        await stream.finish()
        return response, ending.usage

    async def _pass_whole(
        self, request: Asking, job: _Job, stream: EventStream, exchange: Exchange
    ) -> tuple[Answer, Usage]:
        """Hold the answer until its end is known, so that a broken one gets a true status.

        A large one goes on as it comes.
        """
        held: list[bytes] = []
        size = 0
        most = self._options.max_body if job.back is not None else self._options.max_held
        while size <= most:
            data = await exchange.read()
            if not data:
                body = b"".join(held)
                usage = usage_in(body)
                if job.back is not None:
                    body = await self._turned_back(job.back, body)
                elif job.base64 and embeddings.has_numbers(body):
                    body = await self._in_base64(body)
                elif job.stops:
                    body = anthropic.told_stop(body)
                headers = self._headers(job, exchange)
                return respond.whole(request, _with_trace(body, job), headers), usage
            held.append(data)
            size += len(data)
            if size > most and job.base64 and embeddings.has_numbers(b"".join(held)):
                most = self._options.max_body
        if most > self._options.max_held:
            raise BadAnswer("The worker's answer is too large to be converted.")
        return await self._pass_large(request, job, b"".join(held), exchange), Usage()

    async def _turned_back(self, back: Back, body: bytes) -> bytes:
        if len(body) <= self._options.inline_body:
            return back.whole(body)
        return await asyncio.to_thread(back.whole, body)

    async def _in_base64(self, body: bytes) -> bytes:
        if len(body) <= self._options.inline_body:
            return embeddings.in_base64(body)
        return await asyncio.to_thread(embeddings.in_base64, body)

    async def _pass_large(self, request: Asking, job: _Job, start: bytes, exchange: Exchange) -> Answer:
        response = respond.streaming(request, self._headers(job, exchange))
        begin = _with_trace(start, job)
        length = exchange.header(b"content-length")
        if length.isdecimal():
            response.content_length = int(length) + len(begin) - len(start)
        await response.prepare(request)
        await response.write(begin)
        try:
            while data := await exchange.read():
                await response.write(data)
        except (UpstreamError, RouterError) as exc:
            # Too late for a status. A connection cut short is how HTTP says that an answer is not whole.
            log.warning("An answer of %s was cut short: %s", job.name, exc)
            request[NOTES].failed = "cut_short"
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the answer could not be completed") from exc
        await response.write_eof()
        return response

    def _headers(self, job: _Job, exchange: Exchange) -> list[tuple[str, str]]:
        headers = exchange.headers()
        if job.route is not None:
            headers.append((ROUTE_HEADER, job.route.header))
        return headers

    async def _refusal(self, job: _Job, exchange: Exchange) -> RouterError:
        """The worker's error, with its status, message and code."""
        body = b""
        while len(body) <= self._options.max_held and (data := await exchange.read()):
            body += data
        return refusals.error_of(exchange.status, body, model=job.name, path=job.kind.shown)

    async def _death(self, worker: Worker) -> Exit | None:
        """How the worker ended, or None if it still runs."""
        await asyncio.wait([worker.exited], timeout=self._options.death_s)
        return worker.exited.result() if worker.exited.done() else None

    async def _explained(self, lease: Lease, failure: UpstreamError) -> RouterError:
        """The same failure as the client is told."""
        if isinstance(failure, Broken) and await self._death(lease.worker) is not None:
            return _died(lease)
        code = "worker_silent" if isinstance(failure, Silent) else "worker_answer_broken"
        return WorkerDied(f"The answer of {lease.model.name} is not complete. {failure}", code=code)


class _EndedByCut:
    """While it lasts, the lease's cut ends the exchange, and a client that does not read ends with it."""

    __slots__ = ("_exchange", "_lease", "_over", "_stalled_s", "_stream")

    def __init__(self, lease: Lease, exchange: Exchange, stream: EventStream, stalled_s: float) -> None:
        self._lease = lease
        self._exchange = exchange
        self._stream = stream
        self._stalled_s = stalled_s
        self._over = False

    def __enter__(self) -> None:
        self._lease.cut.add_done_callback(self._end)

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._lease.cut.remove_done_callback(self._end)

    def _end(self, cut: asyncio.Future[str]) -> None:
        if not self._over and not cut.cancelled():
            self._exchange.fail(_cut(self._lease, cut.result()))
            self._stream.expire(self._stalled_s)


def _require(fields: Fields, kind: Kind) -> None:
    for names in kind.needs:
        # Written out: this runs for each request, and nearly always the first name is there.
        if not _given(getattr(fields, names[0])) and not any(_given(getattr(fields, n)) for n in names[1:]):
            raise BadRequest(f"`{names[0]}` is missing.", param=names[0])
    if "messages" in kind.needs[0] and not fields.messages:
        raise BadRequest("`messages` is empty.", param="messages")
    if kind is EMBEDDINGS and isinstance(fields.input, Raw) and bytes(fields.input) in (b'""', b"[]"):
        raise BadRequest("`input` is empty.", param="input")


def _given(value: object) -> bool:
    return (
        value is not UNSET and value is not None and not (isinstance(value, Raw) and bytes(value) == b"null")
    )


def _with_trace(body: bytes, job: _Job) -> bytes:
    """The JSON object with the trace as its first member, if one was asked for; all else byte for byte."""
    trace = job.trace()
    opening = _OBJECT.match(body) if trace is not None else None
    if opening is None:
        return body
    member = msgspec.json.encode({ROUTE_MEMBER: trace})[:-1]
    comma = b"" if opening[1] == b"}" else b","
    return member + comma + body[opening.start(1) :]


def _last(job: _Job, usage: Usage, seconds: float, first_s: float, total_s: float) -> Last:
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


def _cut(lease: Lease, why: str) -> RouterError:
    name = lease.model.name
    if why == "shutting_down":
        return ShuttingDown("The router is shutting down.")
    if why == "worker_died":
        return _died(lease)
    if why == REMOVED:
        return Unavailable(f"The provider of {name} was removed before its answer was complete.", code=why)
    return Unavailable(f"{name} was unloaded before its answer was complete.", code=why)


def _died(lease: Lease) -> WorkerDied:
    exited = lease.worker.exited
    how = ""
    if exited.done() and not exited.cancelled():
        end = exited.result()
        how = f" (signal {-end.code})" if end.code < 0 else f" (exit status {end.code})"
        if end.log_tail:
            how += f". Its last words: {end.log_tail[-1].strip()[:300]}"
    return WorkerDied(f"The worker of {lease.model.name} ended before the answer was complete{how}.")
