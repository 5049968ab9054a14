"""Requests for models: which one, wait for it, pass its answer on."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs
from msgspec import UNSET

from router.catalog.kinds import A_MODEL, EMBEDDING, LLM, RERANKING
from router.catalog.model import Model
from router.engines.base import Exit, Worker
from router.errors import BadRequest, RouterError, WorkerDied
from router.policy.document import Policy
from router.providers.faults import ProviderError
from router.web import anthropic, embeddings, refusals, requests, respond
from router.web.api import Lease, RouterApi
from router.web.asking import Answer, Asking
from router.web.cut import EndedByCut, died
from router.web.job import ROUTE_HEADER, Begun, Job, last, require, with_trace
from router.web.kinds import EMBEDDINGS, Kind
from router.web.lines import LineStream
from router.web.notes import NOTES
from router.web.options import WebOptions
from router.web.plain import PlainRequest
from router.web.relay import Exchange, Relay
from router.web.remote import exchange_with
from router.web.routing import GivesWay, Routing
from router.web.sse import Usage, usage_in
from router.web.stream import EventStream
from router.web.tally import Tally
from router.web.turned import Back, Turned
from router.web.upload import Bodies
from router.web.upstream import BadAnswer, Broken, NotReached, Silent, UpstreamError

log = logging.getLogger(__name__)


_PATHS: Final = {LLM: "/v1/chat/completions", EMBEDDING: "/v1/embeddings", RERANKING: "/v1/rerank"}
_OLLAMA_PATHS: Final = {**_PATHS, LLM: "/api/chat", EMBEDDING: "/api/embed"}


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
        #: What is under way, with its stream once there is one.
        self.running: dict[Exchange, EventStream | None] = {}

    def end_all(self, error: RouterError) -> None:
        """End all answers that are under way: streams with an event, others with a status."""
        for exchange, stream in list(self.running.items()):
            exchange.fail(error)
            if stream is not None:
                stream.expire(self._options.stalled_client_s)

    def handler(self, kind: Kind) -> Callable[[Asking], Awaitable[Answer]]:
        """The handler of one call."""

        return functools.partial(self._handle, kind=kind)

    async def translated(self, request: Asking, turned: Turned) -> Answer:
        """Answer a request of another protocol, which has been put into OpenAI's form."""
        return await self._handle(request, turned.kind, turned)

    async def _handle(self, request: Asking, kind: Kind, turned: Turned | None = None) -> Answer:
        job = await self._understand(request, kind, turned)
        return await self.answer(request, job, self.stream_for(request, job))

    def stream_for(self, request: Asking, job: Job) -> EventStream:
        """The client's side of an answer that may be a stream. Whoever asked for none hears nothing early."""
        kind = job.kind
        if job.back is not None:
            return LineStream(request, None, job.back, kind.keep)
        silence_s = self._options.silence_s if job.policy is None else self._options.route_silence_s
        return EventStream(
            request, None, silence_s if job.streams else None, kind.keep, kind.event, kind.beat
        )

    async def answer(
        self, request: Asking, job: Job, stream: EventStream, begun: Begun | None = None
    ) -> Answer:
        """Answer a request that has been understood; `begun`: it has been sent to its worker already."""
        try:
            if job.policy is not None:
                await self._route(request, job, job.policy, stream)
            return await self._try_candidates(request, job, stream, begun)
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

    def understood_at_once(self, request: PlainRequest, kind: Kind) -> Job | None:
        """A request for a local model by its name, whose body goes on as it came; None if it is any other.

        What is wrong with a request is told by `handler`.
        """
        if kind.mend is not None or hdrs.CONTENT_ENCODING in request.headers:
            return None
        try:
            requests.check_content_type(request.headers.get(hdrs.CONTENT_TYPE, ""))
            fields = requests.fields_at_once(request.body)
            require(fields, kind)
            target = self._api.resolve(fields.model)
        except RouterError:
            return None
        if isinstance(target, Policy) or target.remote or target.type != kind.type:
            return None
        if fields.has_router_keys or fields.encoding_format is not UNSET:
            return None
        return Job(kind, fields, request.body, target.name)

    async def _understand(self, request: Asking, kind: Kind, turned: Turned | None) -> Job:
        options = self._options
        if turned is not None:
            body = turned.take()
        else:
            requests.check_content_type(request.headers.get(hdrs.CONTENT_TYPE, ""))
            body = await self._bodies.read(request)
        if kind.mend is not None:
            body = await kind.mend(body, options)
        fields = await requests.decode_fields(body, options)
        require(fields, kind)
        keep_alive_s = requests.keep_alive_s(fields.keep_alive)
        base64 = kind.path == EMBEDDINGS.path and embeddings.wants_base64(fields.encoding_format)
        target = self._api.resolve(fields.model)
        job = Job(kind, fields, body, target.name, keep_alive_s=keep_alive_s, base64=base64)
        if turned is not None:
            job.back, job.context = turned.back, turned.context
        if isinstance(target, Policy):
            job.policy = target
        else:
            await self._aim(request, job, target)
        return job

    async def _route(self, request: Asking, job: Job, policy: Policy, stream: EventStream) -> None:
        """Let a policy choose who answers."""
        route = job.route = await self._routing.choose(policy, job.body)
        request[NOTES].route = route.header
        await self._aim(request, job, self._routing.first(route, job.kind.type))
        job.is_told_late = stream.started
        stream.routed(route.header, self._options.silence_s)

    async def _aim(self, request: Asking, job: Job, target: Model) -> None:
        """Let this model answer.

        Raises:
            BadRequest: it is of another type.
        """
        kind = job.kind
        job.name = request[NOTES].model = target.name
        paths = _OLLAMA_PATHS if kind.called else _PATHS
        if target.type != kind.type and not target.remote:  # Of those, types may be guessed.
            raise BadRequest(
                f"{target.name} is {A_MODEL.get(target.type, target.type)}; {kind.shown} needs "
                f"{A_MODEL[kind.type]}. Use {paths.get(target.type, 'the path for its type')}, "
                "or another model.",
                param="model",
            )
        is_renamed = job.route is not None or target.remote
        if is_renamed or job.fields.has_router_keys:
            named = target.asked_as if is_renamed else None
            job.body = await requests.rewritten(job.body, self._options, model=named)

    async def _try_candidates(
        self, request: Asking, job: Job, stream: EventStream, begun: Begun | None
    ) -> Answer:
        while True:
            try:
                return await self._answer_by(request, job, stream, begun)
            except GivesWay:
                assert job.route is not None
                model = self._routing.candidate(job.route)
                request[NOTES].model = job.name = model.name
                job.body = await requests.rewritten(job.body, self._options, model=model.asked_as)

    async def _answer_by(self, request: Asking, job: Job, stream: EventStream, begun: Begun | None) -> Answer:
        """Let the model that the job names answer.

        Raises:
            GivesWay: another candidate is to answer.
        """
        try:
            return await self._attempt(request, job, stream, begun)
        except NotReached:
            # Its process died between the grant and the request, or nobody listens there any more. Nothing
            # was sent: ask anew, once.
            stream.reprieve()
        try:
            return await self._attempt(request, job, stream)
        except NotReached as exc:
            raise WorkerDied(f"The worker of {job.name} cannot be reached. {exc}") from exc

    async def _attempt(
        self, request: Asking, job: Job, stream: EventStream, begun: Begun | None = None
    ) -> Answer:
        loop = asyncio.get_running_loop()
        if begun is None:
            lease = await self._acquire(job)
            begun = Begun(lease, exchange_with(self._relay, lease.worker), loop.time())
        lease, exchange, asked = begun
        if job.back is not None:
            job.back.begin(job.name if job.route is not None else None)
        began = asked
        usage: Usage | None = None
        self.running[exchange] = stream
        try:
            with EndedByCut(lease, exchange, stream, self._options.stalled_client_s):
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
                    if job.streams:
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
            del self.running[exchange]
            first = exchange.first_byte or loop.time()
            exchange.close()
            tokens = usage.tokens if usage is not None else 0
            seconds = usage.seconds if usage is not None else 0.0
            if tokens and not seconds:
                seconds = loop.time() - began
            if usage is not None:
                self._tally.answered(last(job, usage, seconds, first - asked, loop.time() - asked))
            lease.release(tokens=tokens, seconds=seconds)

    async def _acquire(self, job: Job) -> Lease:
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

    async def _send_plainer(self, request: Asking, job: Job, exchange: Exchange) -> None:
        """Ask once more without `encoding_format`, if it is that what a worker refuses."""
        refusal = await self._refusal(job, exchange)
        if job.kind.path != EMBEDDINGS.path or "encoding" not in refusal.message:
            raise refusal
        plainer = await requests.rewritten(job.body, self._options, drop=("encoding_format",))
        await exchange.send(job.kind.path, request.raw_headers, plainer)

    async def _pass_on(
        self, request: Asking, job: Job, stream: EventStream, exchange: Exchange
    ) -> tuple[Answer, Usage]:
        status = exchange.status
        if status >= 400:
            raise await self._refusal(job, exchange)
        if status != 200:
            raise BadAnswer(f"The worker answered with status {status}.")
        if exchange.is_stream:
            return await self._pass_stream(job, stream, exchange)
        if stream.started:
            raise BadAnswer("The worker answered with no stream although one was asked for.")
        return await self._pass_whole(request, job, stream, exchange)

    async def _pass_stream(self, job: Job, stream: EventStream, exchange: Exchange) -> tuple[Answer, Usage]:
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
            raise exchange.unfinished()
        await stream.finish()
        return response, ending.usage

    async def _pass_whole(
        self, request: Asking, job: Job, stream: EventStream, exchange: Exchange
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
                return respond.whole(request, with_trace(body, job), headers), usage
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

    async def _pass_large(self, request: Asking, job: Job, start: bytes, exchange: Exchange) -> Answer:
        response = respond.streaming(request, self._headers(job, exchange))
        begin = with_trace(start, job)
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

    def _headers(self, job: Job, exchange: Exchange) -> tuple[tuple[str, str], ...]:
        headers = exchange.headers()
        return headers if job.route is None else (*headers, (ROUTE_HEADER, job.route.header))

    async def _refusal(self, job: Job, exchange: Exchange) -> RouterError:
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
            return died(lease)
        code = "worker_silent" if isinstance(failure, Silent) else "worker_answer_broken"
        return WorkerDied(f"The answer of {lease.model.name} is not complete. {failure}", code=code)
