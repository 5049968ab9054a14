"""Every call of the endpoint, declared once: the routes and `/openapi.json` are made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from aiohttp.typedefs import Handler
from msgspec import Struct

from router.catalog.kinds import TYPES
from router.catalog.options import LoadOptions, expected_of
from router.settings import schema as settings
from router.web.admin import Admin
from router.web.engines import EngineCalls
from router.web.inference import Inference
from router.web.kinds import KINDS
from router.web.providers import ProviderCalls
from router.web.shapes import shape_of

PREFIXES: Final = ("/v1", "/api/v1", "/v0", "/api/v0")

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TEXT: Final = "text/plain"

Schema = Mapping[str, Any]

#: What any call may be answered: a wrong Host, no key, a page elsewhere, a head that is too long, the router
#: shutting down.
_ALWAYS: Final = (400, 401, 403, 431, 503)
#: What any call with a body may be answered besides.
_WITH_BODY: Final = (408, 413, 415)
#: What waiting for a model, and a worker, may end in besides.
MODEL_ERRORS: Final = (404, 409, 502, 507)


class Call(Struct, frozen=True):
    """One call.

    Attributes:
        path: below each prefix, or, with `rooted`, as it stands.
        body: JSON schema of the body; None for a call without one.
        optional: the body may be left out.
        answer: JSON schema of a successful answer, where it is JSON; None for any object.
        kinds: media types of a successful answer.
        good: statuses of a successful answer.
        bad: statuses besides those that every such call may get.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    group: str
    rooted: bool = False
    body: Schema | None = None
    optional: bool = False
    answer: Schema | None = None
    kinds: tuple[str, ...] = (JSON,)
    good: tuple[int, ...] = (200,)
    bad: tuple[int, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that it answers at; the first is the one to use."""
        return (self.path,) if self.rooted else tuple(f"{prefix}{self.path}" for prefix in PREFIXES)

    @property
    def shape(self) -> str:
        """Whose form its errors have."""
        return shape_of(self.paths[0])

    @property
    def errors(self) -> tuple[int, ...]:
        """Every status of an error that it may be answered with."""
        with_body = _WITH_BODY if self.body is not None else ()
        return tuple(sorted({*_ALWAYS, *with_body, *self.bad}))


def _object(*needed: str, **members: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": members}
    return {**made, "required": list(needed)} if needed else made


def _closed(*needed: str, **members: Schema) -> dict[str, Any]:
    return {**_object(*needed, **members), "additionalProperties": False}


def _maybe(kind: str) -> Schema:
    return {"type": [kind, "null"]}


_NAME: Final[Schema] = {"type": "string", "pattern": r"\S"}
_NAME_OR_ALL: Final[Schema] = {"type": ["string", "null"], "pattern": r"\S"}
_FLAG: Final[Schema] = {"type": "boolean"}
_TEXT: Final[Schema] = {"type": "string"}
_ONE_NAME: Final[Schema] = {"anyOf": [{"required": ["model"]}, {"required": ["model_name"]}]}
_NAMES: Final[dict[str, Schema]] = {"model": _NAME, "model_name": _NAME}

_COMMON: Final[dict[str, Schema]] = {
    "model": {**_NAME, "description": "A model's name or alias, or a policy's name."},
    "keep_alive": {
        "type": ["number", "string", "null"],
        "description": "How long the model stays loaded after this: seconds, or a text such as 5m. No engine "
        "sees it.",
    },
    "route_trace": {
        **_maybe("boolean"),
        "description": "Put into the answer how the policy chose. No engine sees it.",
    },
}
_MESSAGES: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "items": _object(role=_maybe("string")),
}
_SOME: Final[Schema] = {"not": {"type": "null"}}

_BODIES: Final[Mapping[str, Schema]] = {
    "/chat/completions": _object(
        "model", "messages", messages=_MESSAGES, stream=_maybe("boolean"), **_COMMON
    ),
    "/completions": _object("model", "prompt", prompt=_SOME, stream=_maybe("boolean"), **_COMMON),
    "/responses": _object("model", "input", input=_SOME, stream=_maybe("boolean"), **_COMMON),
    "/messages": _object("model", "messages", messages=_MESSAGES, stream=_maybe("boolean"), **_COMMON),
    "/messages/count_tokens": _object("model", "messages", messages=_MESSAGES, **_COMMON),
    "/embeddings": {
        **_object(
            "model",
            input={
                "oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}],
                "description": "A text, tokens, or a list of either.",
            },
            content=_SOME,
            encoding_format={"enum": ["float", "base64", None]},
            **_COMMON,
        ),
        "anyOf": [{"required": ["input"]}, {"required": ["content"]}],
    },
    "/rerank": {
        **_object(
            "model",
            "query",
            query=_TEXT,
            documents=_SOME,
            texts=_SOME,
            top_n={"type": ["integer", "null"], "minimum": 1},
            **_COMMON,
        ),
        "anyOf": [{"required": ["documents"]}, {"required": ["texts"]}],
    },
}
_SUMMARIES: Final = {
    "/chat/completions": "Answer a chat",
    "/completions": "Go on with a text",
    "/responses": "Answer in the form of the Responses API",
    "/messages": "Answer in the form of the Messages API",
    "/messages/count_tokens": "Count the tokens of a message",
    "/embeddings": "Embed texts",
    "/rerank": "Rank documents by how well they answer a query",
}


def _told(expected: str, about: str = "") -> Schema:
    """A value that is described in words; what it may be depends on more than a schema can say."""
    return {"description": f"{about} Takes {expected}.".strip()}


_LOAD: Final = {
    **_object(
        **_NAMES,
        pinned={**_maybe("boolean"), "description": "Never unload it to make room for others."},
        save_options={**_maybe("boolean"), "description": "Load it with these options from now on."},
        **{name: _told(expected_of(name)) for name in LoadOptions.__struct_fields__},
    ),
    **_ONE_NAME,
    "additionalProperties": False,
}
_DONE: Final = _object("status", "message", status={"const": "success"}, message=_TEXT)
_LISTED: Final = _object("id", "object", "type", id=_TEXT, object={"const": "model"}, type=_TEXT)
_COUNT: Final = {"type": "integer", "minimum": 0}
_HEALTH: Final = _object(
    "status",
    "version",
    "generation",
    "model_loaded",
    "all_models_loaded",
    "max_models",
    "llm_pool_autosize",
    "devices",
    "queue",
    status={"const": "ok"},
    version=_TEXT,
    generation=_COUNT,
    model_loaded=_maybe("string"),
    all_models_loaded={"type": "array", "items": {"type": "object"}},
    max_models={"type": "object", "additionalProperties": {"type": "integer"}},
    llm_pool_autosize={"type": "object"},
    devices={"type": "array", "items": {"type": "object"}},
    queue={"type": "object"},
)
_PROVIDER: Final = _object(
    "name", "url", "state", name=_TEXT, url=_TEXT, state={"enum": ["checking", "ready", "down", "refused"]}
)
_PROVIDERS: Final = _object("providers", providers={"type": "array", "items": _PROVIDER})
_LOOKED_AT: Final = _object(
    "status", "message", "provider", status={"const": "success"}, message=_TEXT, provider=_PROVIDER
)
_TEXTS: Final = {"type": "array", "items": _NAME}
_ADDED: Final = _closed(
    "name",
    "url",
    name={**_NAME, "description": "The first part of the names of its models."},
    url={**_NAME, "description": "Its base URL; most end in /v1."},
    key={**_maybe("string"), "description": "Its API key. Left out, the one that it has stays."},
    variable={**_TEXT, "description": "The environment variable that has its key."},
    models={**_TEXTS, "description": "Only these models."},
    types={"type": "object", "additionalProperties": {"enum": list(TYPES)}},
    allow_http=_FLAG,
    proxy=_FLAG,
    ca_file=_TEXT,
    idle_s={"type": "number", "minimum": 1, "maximum": 86_400},
)
_ENGINES: Final = _object("engines", engines={"type": "array", "items": {"type": "object"}})
_SETTINGS: Final = {
    "type": "object",
    "properties": {info.key: _told(info.expected, info.help) for info in settings.describe()},
}
_SET: Final = {**_SETTINGS, "additionalProperties": False}


def calls(
    admin: Admin,
    inference: Inference,
    engines: EngineCalls,
    providers: ProviderCalls,
    events: Handler,
    metrics: Handler,
) -> tuple[Call, ...]:
    """The table."""
    made: list[Call] = []

    def get(path: str, handler: Handler, summary: str, group: str, **more: Any) -> None:
        made.append(Call("GET", path, handler, summary, group, **more))

    def post(path: str, handler: Handler, summary: str, group: str, **more: Any) -> None:
        made.append(Call("POST", path, handler, summary, group, **more))

    for path, kind in KINDS.items():
        named = "/rerank" if path == "/reranking" else path
        post(
            path,
            cast(Handler, inference.handler(kind)),
            _SUMMARIES[named],
            "Models",
            body=_BODIES[named],
            kinds=(JSON, EVENTS) if kind.streams else (JSON,),
            # 422, 429 and 501 are an engine's or a provider's, 508 is a provider's that leads back here.
            bad=(*MODEL_ERRORS, 422, 429, 501, 508),
        )
    listing = _object("object", "data", object={"const": "list"}, data={"type": "array", "items": _LISTED})
    get("/models", admin.models, "List models and policies", "Catalog", answer=listing, bad=(508,))
    get("/models/{id}", admin.model, "Tell of one model or policy", "Catalog", answer=_LISTED, bad=(404,))
    post(
        "/load",
        admin.load,
        "Load a model, and wait until it is ready",
        "Residency",
        body=_LOAD,
        answer=_DONE,
        bad=MODEL_ERRORS,
    )
    post(
        "/plan",
        admin.plan,
        "Tell what loading a model would take on each device; load nothing",
        "Residency",
        body=_LOAD,
        bad=MODEL_ERRORS,
    )
    post(
        "/unload",
        admin.unload,
        "Unload a model, or all",
        "Residency",
        body=_closed(
            model={**_NAME_OR_ALL, "description": "Left out: all models."},
            model_name=_NAME_OR_ALL,
            wait={**_FLAG, "description": "Answer when it is gone; true unless it is set."},
            force={**_FLAG, "description": "Cut answers that are under way."},
        ),
        optional=True,
        answer=_DONE,
        good=(200, 202),
        bad=(404, 500),
    )
    post(
        "/pull",
        admin.pull,
        "Register a policy, or pull a model of the Hugging Face hub",
        "Catalog",
        body=_object(
            model_name={
                **_NAME,
                "description": "owner/repo, owner/repo:Q4_K_M or owner/repo:file.gguf, with @revision after "
                "the repository for another than main; or demo.",
            },
            model=_NAME,
            recipe=_TEXT,
            stream=_FLAG,
        ),
        answer=_DONE,
        kinds=(JSON, EVENTS),
        bad=(404, 409, 500, 502, 507),
    )
    post(
        "/pull/cancel",
        admin.cancel_pull,
        "Stop a pull; what has arrived is kept",
        "Catalog",
        body={**_closed(**_NAMES), **_ONE_NAME},
        answer=_DONE,
        bad=(404,),
    )
    post(
        "/delete",
        admin.delete,
        "Delete a policy, or the files of a model",
        "Catalog",
        body={**_closed(**_NAMES), **_ONE_NAME},
        answer=_DONE,
        bad=(404, 409, 500),
    )
    get("/health", admin.health, "Tell the state of everything", "State", answer=_HEALTH)
    get(
        "/events",
        events,
        "Tell snapshots and decisions as they happen",
        "State",
        kinds=(EVENTS,),
    )
    get("/stats", admin.stats, "Tell the timings of the newest answer", "State")
    get(
        "/system-info",
        admin.system_info,
        "Tell the machine's devices and engines",
        "State",
        answer=_object("version", "devices", "engines", version=_TEXT),
    )
    get("/notices", admin.notices, "Tell notices that are due", "State")
    post(
        "/notices",
        admin.tell_notice,
        "Note that a notice has been seen",
        "State",
        body=_closed("id", id=_TEXT),
        answer=_DONE,
        bad=(404,),
    )
    get("/live", admin.live, "Tell that the router runs", "State", rooted=True)
    get("/metrics", metrics, "Tell everything that is counted", "State", rooted=True, kinds=(TEXT,))
    get("/openapi.json", admin.openapi, "Tell this description", "State", rooted=True)
    get("/internal/config", admin.config, "Tell the settings in force", "Settings", rooted=True)
    get("/internal/config/defaults", admin.defaults, "Tell the defaults", "Settings", rooted=True)
    post(
        "/internal/set",
        admin.set,
        "Change settings, all or none",
        "Settings",
        rooted=True,
        body=_SET,
        answer=_object("generation", "settings", generation=_COUNT, settings={"type": "object"}),
        bad=(500,),
    )
    post(
        "/internal/pin",
        admin.pin,
        "Pin a model, or take its pin away",
        "Settings",
        rooted=True,
        body={**_closed(pinned=_FLAG, **_NAMES), **_ONE_NAME},
        answer=_DONE,
        bad=(404,),
    )
    post(
        "/internal/pause",
        admin.pause,
        "Load nothing that is not asked for explicitly, or go on",
        "Settings",
        rooted=True,
        body=_closed("paused", paused=_FLAG),
        answer=_DONE,
    )
    post(
        "/internal/shutdown",
        admin.shut_down,
        "End the program as quitting it does",
        "Settings",
        rooted=True,
        body=_closed(),
        optional=True,
        answer=_DONE,
        good=(202,),
        bad=(409,),
    )
    post(
        "/routing/validate",
        admin.try_policy,
        "Tell what a policy decides; register and answer nothing",
        "Policies",
        body=_closed(
            "policy",
            policy={"type": "object"},
            prompt=_maybe("string"),
            has_images=_maybe("boolean"),
            has_tools=_maybe("boolean"),
            metadata={"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        ),
        answer=_object(
            "decision", "normalized_policy", decision={"type": "object"}, normalized_policy={"type": "object"}
        ),
    )
    get(
        "/internal/policies",
        admin.policies,
        "List all policies, also those that are off",
        "Policies",
        rooted=True,
        answer=_object("policies", policies={"type": "array"}),
    )
    get(
        "/internal/policies/{name}",
        admin.policy_document,
        "Tell a policy's document",
        "Policies",
        rooted=True,
        bad=(404,),
    )
    post(
        "/internal/policies/{name}",
        admin.policy,
        "Switch a policy on or off",
        "Settings",
        rooted=True,
        body=_closed("enabled", enabled=_FLAG),
        answer=_DONE,
        bad=(404, 500),
    )
    post(
        "/internal/simulate",
        admin.simulate,
        "Change a simulated device",
        "Settings",
        rooted=True,
        body={"type": "object"},
        bad=(404,),
    )
    get(
        "/internal/providers",
        providers.list,
        "List remote providers",
        "Providers",
        rooted=True,
        answer=_PROVIDERS,
    )
    post(
        "/internal/providers/add",
        providers.add,
        "Add a remote provider, or change it, and look whether it answers",
        "Providers",
        rooted=True,
        body=_ADDED,
        answer=_LOOKED_AT,
    )
    for path, handler, summary in (
        ("test", providers.test, "Look whether a provider answers"),
        ("remove", providers.remove, "Remove a provider, its key and its models"),
    ):
        post(
            f"/internal/providers/{path}",
            handler,
            summary,
            "Providers",
            rooted=True,
            body=_closed("name", name=_NAME),
            answer=_LOOKED_AT if path == "test" else _DONE,
            bad=(404,),
        )
    get("/internal/engines", engines.list, "List engines", "Engines", rooted=True, answer=_ENGINES)
    post(
        "/internal/engines/refresh",
        engines.refresh,
        "Ask which GPU builds there are, and list all engines",
        "Engines",
        rooted=True,
        body=_closed(),
        optional=True,
        answer=_ENGINES,
        bad=(404, 409, 500, 502),
    )
    post(
        "/internal/engines/get",
        engines.get,
        "Fetch a GPU build",
        "Engines",
        rooted=True,
        body=_closed(id={"type": ["string", "null"], "pattern": r"\S"}, stream=_FLAG),
        optional=True,
        answer=_DONE,
        kinds=(JSON, EVENTS),
        good=(200, 202),
        bad=(404, 409, 500, 502),
    )
    post(
        "/internal/engines/use",
        engines.use,
        "Load models with an engine from now on",
        "Engines",
        rooted=True,
        body=_closed("id", id=_NAME),
        answer=_DONE,
        bad=(404, 409, 500),
    )
    post(
        "/internal/engines/remove",
        engines.remove,
        "Delete a GPU build",
        "Engines",
        rooted=True,
        body=_closed("id", id=_NAME),
        answer=_DONE,
        bad=(404, 409, 500),
    )
    return tuple(made)
