"""Ollama's calls. Those that a model answers are put into OpenAI's form and go the way of all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from aiohttp import hdrs, web
from msgspec import Struct, structs

from router.catalog.model import Identity, Model
from router.errors import BadRequest, ModelNotFound, RouterError
from router.memory.gguf import Scalar, read_values
from router.policy.document import Policy
from router.web import ollama_models, requests
from router.web import ollama_requests as asked
from router.web.api import RouterApi
from router.web.inference import Inference
from router.web.kinds import CHAT, COMPLETIONS, EMBEDDINGS
from router.web.ollama_answers import TextAnswer, Timed, VectorAnswer, timestamp
from router.web.options import WebOptions
from router.web.turned import Turned
from router.web.upload import Bodies

if TYPE_CHECKING:
    from router.web.asking import Answer, Asking

T = TypeVar("T", bound=Struct)

GREETING: Final = b"Ollama is running"
_FOR_PEOPLE: Final = (
    b"Lemon Tray is running. Apps reach it in OpenAI's form at /v1, in Anthropic's at /v1/messages, and in "
    b"Ollama's right here: Ollama is running.\n"
)
#: More than any model has.
_MOST_CONTEXT: Final = 1 << 24
#: Files whose metadata are kept.
_KEPT: Final = 128

OLLAMA_CHAT: Final = structs.replace(CHAT, called="/api/chat")
OLLAMA_GENERATE: Final = structs.replace(CHAT, called="/api/generate")
OLLAMA_RAW: Final = structs.replace(COMPLETIONS, called="/api/generate")
OLLAMA_INFILL: Final = structs.replace(COMPLETIONS, path="/infill", called="/api/generate with a suffix")
OLLAMA_EMBED: Final = structs.replace(EMBEDDINGS, called="/api/embed")
OLLAMA_EMBEDDINGS: Final = structs.replace(EMBEDDINGS, called="/api/embeddings")

_NOT_HERE: Final = {
    "/api/create": "Models are not made here. Put a GGUF file into a models folder.",
    "/api/copy": "Models are not copied here. A file in a models folder is a model.",
    "/api/push": "Models are not uploaded from here.",
}


class _Show(Struct, frozen=True):
    """`name` is the older spelling."""

    model: str = ""
    name: str = ""
    verbose: bool | None = None


class Ollama:
    """The handlers."""

    def __init__(self, api: RouterApi, inference: Inference, bodies: Bodies, options: WebOptions) -> None:
        self._api = api
        self._inference = inference
        self._bodies = bodies
        self._options = options
        self._values: dict[Identity, Mapping[str, Scalar]] = {}

    # Models

    async def root(self, request: web.Request) -> web.Response:
        """`GET /`: what apps that look for Ollama expect; a browser's user is told more."""
        for_people = "text/html" in request.headers.get(hdrs.ACCEPT, "")
        return web.Response(
            body=_FOR_PEOPLE if for_people else GREETING,
            content_type="text/plain",
            charset="utf-8",
            headers={hdrs.VARY: hdrs.ACCEPT},
        )

    async def version(self, request: web.Request) -> web.Response:
        """`GET /api/version`"""
        return _json(ollama_models.version())

    async def tags(self, request: web.Request) -> web.Response:
        """`GET /api/tags`: models and policies."""
        return _json(ollama_models.tags(self._api.listing()))

    async def ps(self, request: web.Request) -> web.Response:
        """`GET /api/ps`"""
        snapshot = self._api.snapshot
        known = {item.name: item for item in self._api.listing() if isinstance(item, Model)}
        windows = {r.model: self._api.window(r.model) for r in snapshot.residents}
        return _json(ollama_models.running(snapshot, known, windows))

    async def show(self, request: Asking) -> Answer:
        """`POST /api/show {model}`"""
        wanted = await self._read(request, _Show, self._options.max_admin_body)
        item = self._find(wanted.model or wanted.name)
        if isinstance(item, Policy):
            return _json(ollama_models.shown(item, {}, 0, False))
        loaded = any(r.model == item.name for r in self._api.snapshot.residents)
        values = await self._values_of(item)
        return _json(ollama_models.shown(item, values, self._api.window(item.name), loaded))

    async def not_here(self, request: web.Request) -> web.Response:
        """Calls of Ollama's that have no meaning here.

        Raises:
            RouterError: always.
        """
        why = _NOT_HERE.get(request.path, "Files of models are not uploaded here.")
        raise RouterError(why, code="not_supported", status=501)

    # Answers

    async def chat(self, request: Asking) -> Answer:
        """`POST /api/chat`; without messages it only loads or unloads the model."""
        return await self._answered(request, await self._chat(request))

    async def generate(self, request: Asking) -> Answer:
        """`POST /api/generate`; without a prompt it only loads or unloads the model."""
        return await self._answered(request, await self._generate(request))

    async def embed(self, request: Asking) -> Answer:
        """`POST /api/embed`"""
        return await self._answered(request, await self._embed(request))

    async def embeddings(self, request: Asking) -> Answer:
        """`POST /api/embeddings`, the older call."""
        return await self._answered(request, await self._embeddings(request))

    async def _answered(self, request: Asking, turned: Turned | Answer) -> Answer:
        if isinstance(turned, Turned):
            return await self._inference.translated(request, turned)
        return turned

    async def _chat(self, request: Asking) -> Turned | Answer:
        wanted = await self._read(request, asked.Chat)
        name = self._find(wanted.model).name
        back = TextAnswer(wanted.model, of_chat=True, with_thinking=wanted.think is not False)
        if not wanted.messages:
            reason = await self._hold(name, wanted.keep_alive, wanted.options)
            said = {"message": {"role": "assistant", "content": ""}}
            return _json(_held(wanted.model, said, reason, back))
        body = await self._written(request, asked.chat_body, wanted, name)
        return Turned(OLLAMA_CHAT, body, back, _context(wanted.options))

    async def _generate(self, request: Asking) -> Turned | Answer:
        wanted = await self._read(request, asked.Generate)
        name = self._find(wanted.model).name
        back = TextAnswer(wanted.model, of_chat=False, with_thinking=wanted.think is not False)
        if wanted.is_empty:
            reason = await self._hold(name, wanted.keep_alive, wanted.options)
            return _json(_held(wanted.model, {"response": ""}, reason, back))
        kind, make = OLLAMA_GENERATE, asked.generate_body
        if wanted.suffix:
            kind, make = OLLAMA_INFILL, asked.infill_body
        elif wanted.raw:
            kind, make = OLLAMA_RAW, asked.raw_body
        body = await self._written(request, make, wanted, name)
        return Turned(kind, body, back, _context(wanted.options))

    async def _embed(self, request: Asking) -> Turned | Answer:
        wanted = await self._read(request, asked.Embed)
        name = self._find(wanted.model).name
        back = VectorAnswer(wanted.model, dimensions=wanted.dimensions or 0)
        if not wanted.texts:
            return await self._no_text(name, wanted, back)
        body = await self._written(request, asked.embed_body, wanted, name)
        return Turned(OLLAMA_EMBED, body, back, _context(wanted.options))

    async def _embeddings(self, request: Asking) -> Turned | Answer:
        wanted = await self._read(request, asked.Embeddings)
        name = self._find(wanted.model).name
        back = VectorAnswer(wanted.model, single=True)
        if not wanted.prompt:
            return await self._no_text(name, wanted, back)
        body = await self._written(request, asked.embeddings_body, wanted, name)
        return Turned(OLLAMA_EMBEDDINGS, body, back, _context(wanted.options))

    async def _no_text(
        self, name: str, wanted: asked.Embed | asked.Embeddings, back: VectorAnswer
    ) -> web.Response:
        await self._hold(name, wanted.keep_alive, wanted.options)
        back.begin()
        return web.Response(body=back.empty(), content_type="application/json")

    # Parts

    def _find(self, name: str) -> Model | Policy:
        """The model or policy that a client means: with or without `:latest`.

        Raises:
            BadRequest: it is empty.
            ModelNotFound: there is none.
        """
        if not name.strip():
            raise BadRequest("`model` is empty. Name a model; GET /api/tags lists them.", param="model")
        first: ModelNotFound | None = None
        for spelling in ollama_models.spellings(name):
            try:
                return self._api.resolve(spelling)
            except ModelNotFound as exc:
                first = first or exc
        assert first is not None
        raise first

    async def _read(self, request: Asking, kind: type[T], limit: int | None = None) -> T:
        requests.check_content_type(request.headers.get(hdrs.CONTENT_TYPE, ""))
        return await requests.decode_as(kind, await self._bodies.read(request, limit), self._options)

    async def _written(
        self, request: Asking, make: Callable[[T, str], dict[str, Any]], wanted: T, name: str
    ) -> bytes:
        """The body that `make` makes, written off the loop where the one that came may be large."""
        length = request.content_length
        if length is not None and length <= self._options.inline_body:
            return msgspec.json.encode(make(wanted, name))
        return await asyncio.to_thread(lambda: msgspec.json.encode(make(wanted, name)))

    async def _hold(self, name: str, keep_alive: asked.KeepAlive, options: asked.Options | None) -> str:
        """Load a model and let it stay as asked for; with 0 unload it, now or with its last answer.

        A policy's model is the one that it takes where nothing else is said. Returns what was done.
        """
        seconds = requests.keep_alive_s(keep_alive)
        item = self._api.resolve(name)
        if isinstance(item, Policy):
            item = self._api.resolve(item.default_model)
        loaded = next((r for r in self._api.snapshot.residents if r.model == item.name), None)
        if seconds == 0:
            if loaded is None:
                return "unload"
            if not loaded.in_use and not loaded.waiting:
                await self._api.unload(item.name)
                return "unload"
        lease = await self._api.acquire(item.name, keep_alive_s=seconds, context=_context(options))
        lease.release()
        return "unload" if seconds == 0 else "load"

    async def _values_of(self, model: Model) -> Mapping[str, Scalar]:
        """What the model's file says. A file that cannot be read says nothing."""
        if model.remote or not model.path:
            return {}
        kept = self._values.get(model.identity)
        if kept is None:
            try:
                kept = await asyncio.to_thread(read_values, Path(model.path))
            except RouterError:
                return {}
            while len(self._values) >= _KEPT:
                self._values.pop(next(iter(self._values)))
            self._values[model.identity] = kept
        return kept


def _held(model: str, said: Mapping[str, Any], reason: str, answer: Timed) -> dict[str, Any]:
    answer.begin()
    moment = {"model": model, "created_at": timestamp()}
    return {**moment, **said, "done": True, "done_reason": reason, **answer.durations()}


def _context(options: asked.Options | None) -> int:
    return int(min(max(0, options.num_ctx or 0), _MOST_CONTEXT)) if options is not None else 0


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
