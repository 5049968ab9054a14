"""Who may call."""

from __future__ import annotations

import pytest

from router.settings import schema
from router.web.keyfile import VARIABLE
from router.web.keys import Keys
from router.web.security import host_of, is_ours
from tests.router.web.fakes import CHAT, Peer, Site, chat, reply, site

PATHS = ["/v1/models", "/v1/health", "/metrics", "/live", "/internal/config", "/nope"]

OURS = [
    "localhost",
    "localhost:13305",
    "LOCALHOST:13305",
    "localhost.",
    "localhost.:13305",
    "127.0.0.1",
    "127.0.0.1:13305",
    "127.1.2.3:80",
    "[::1]",
    "[::1]:13305",
    "[::ffff:127.0.0.1]:13305",
    "desk.lan:13305",
]
FOREIGN = [
    "evil.example",
    "evil.example:13305",
    "127.0.0.1.evil.example",
    "127.0.0.1.evil.example:13305",
    "localhost.evil.example",
    "evil.example/127.0.0.1",
    "user@127.0.0.1",
    "192.168.1.20:13305",
    "0.0.0.0:13305",
    "[::]:13305",
    "8.8.8.8",
    "",
    ":13305",
    "127.0.0.1:port",
    "127.0.0.1:99999",
    "[::1",
    "localhost#x",
    "localhost?x",
    "2130706433",
]


@pytest.mark.fault("F18")
@pytest.mark.parametrize("host", OURS)
def test_our_hosts(host: str) -> None:
    assert is_ours(host, ("desk.lan",))


@pytest.mark.fault("F18")
@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_hosts(host: str) -> None:
    assert not is_ours(host, ("desk.lan",))


def test_an_address_that_the_connection_came_in_on_is_ours() -> None:
    assert is_ours("192.168.1.20:13305", (), "192.168.1.20")
    assert not is_ours("192.168.1.21:13305", (), "192.168.1.20")


def test_a_host_is_taken_apart() -> None:
    assert host_of("[FE80::1]:80") == "fe80::1"
    assert host_of("a b") is None or not is_ours("a b", ())


@pytest.mark.fault("F18")
@pytest.mark.parametrize("path", PATHS)
async def test_a_rebound_name_is_refused_everywhere(path: str) -> None:
    async with site(reply) as s, s.client() as client:
        await client.send("GET", path, host="evil.example")
        answer = await client.answer()
        assert answer.status == 403
        assert answer.error["code"] == "forbidden_host"


@pytest.mark.fault("F18")
@pytest.mark.parametrize("method", ["POST", "OPTIONS", "DELETE", "HEAD"])
async def test_a_rebound_name_is_refused_for_every_method(method: str) -> None:
    async with site(reply) as s, s.client() as client:
        await client.send(method, CHAT, host="evil.example")
        assert (await client.answer(head=method == "HEAD")).status == 403


@pytest.mark.fault("F18")
async def test_host_lines() -> None:
    async with site(reply) as s:
        port = s.endpoint.port
        for request, status in (
            (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
            (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
            (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
            (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),
            (b"GET /v1/models HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403),
            (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 403),
            (b"GET http://evil.example/v1/models HTTP/1.0\r\n\r\n", 403),
            (b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 403),
            (b"GET http://127.0.0.1:%d/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" % port, 200),
            (b"GET /v1/models HTTP/1.1\r\nHost: 192.168.1.20:%d\r\n\r\n" % port, 403),
            (b"GET /v1/models HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n" % port, 200),
            (b"GET /v1/models HTTP/1.1\r\nHost: LOCALHOST:%d\r\n\r\n" % port, 200),
        ):
            async with s.client() as client:
                answer = await client.raw(request)
                assert answer.status == status, request
                if status >= 400:
                    assert answer.error["message"]


@pytest.mark.fault("F18")
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1",
        "null",
        "file://",
        "http://evil.example:1",
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/unload", "/internal/set"])
async def test_pages_of_another_origin_are_refused(origin: str, path: str) -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", path, chat(), {"Origin": origin})
        assert answer.status == 403
        assert answer.error["code"] == "forbidden_origin"
        assert "access-control-allow-origin" not in answer.headers
        assert not s.api.asked
        assert not s.api.calls


async def test_a_rebound_name_is_not_asked_for_its_body() -> None:
    async with site(reply) as s, s.client() as client:
        headers = {"Expect": "100-continue", "Content-Length": "50"}
        await client.send("POST", CHAT, None, headers, host="evil.example")
        answer = await client.answer()
        assert answer.status == 403
        assert not answer.interim


async def test_a_page_of_our_own_origin_may_call() -> None:
    async with site(reply) as s:
        origin = f"http://127.0.0.1:{s.endpoint.port}"
        assert (await s.ask("POST", CHAT, chat(), {"Origin": origin})).status == 200
        assert (await s.ask("POST", CHAT, chat(), {"Origin": origin + "1"})).status == 403


@pytest.mark.fault("F18")
async def test_what_a_browser_says_of_a_call_without_an_origin() -> None:
    async with site(reply) as s:
        for site_of_call, mode, status in (
            ("cross-site", "no-cors", 403),
            ("same-site", "no-cors", 403),
            ("cross-site", "navigate", 200),
            ("same-origin", "cors", 200),
            ("none", "navigate", 200),
        ):
            headers = {"Sec-Fetch-Site": site_of_call, "Sec-Fetch-Mode": mode}
            assert (await s.ask("GET", "/v1/models", None, headers)).status == status


@pytest.mark.fault("F18")
async def test_a_preflight_gets_no_permission() -> None:
    async with site(reply) as s:
        headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        answer = await s.ask("OPTIONS", CHAT, None, headers)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.fault("F18")
@pytest.mark.parametrize(
    "path",
    [
        "/v1/load",
        "/v1/unload",
        "/v1/pull",
        "/v1/delete",
        "/internal/set",
        "/internal/pin",
        "/internal/policies/auto",
        "/internal/simulate",
    ],
)
@pytest.mark.parametrize(
    "declared", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"]
)
async def test_admin_calls_take_json_only(path: str, declared: str) -> None:
    async with site(reply) as s:
        answer = await s.ask("POST", path, b"{}", {"Content-Type": declared})
        assert answer.status == 415
        assert answer.error["param"] == "Content-Type"
        assert not s.api.calls


#: Answered by models, or by the router's own state: a body of any type can do no harm.
HARMLESS = ("/chat", "/completions", "/responses", "/messages", "/embeddings", "/rerank", "/reranking")
PAGES = (
    {"Origin": "https://evil.example", "Content-Type": "application/json"},
    {"Origin": "null", "Content-Type": "text/plain"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Content-Type": "text/plain"},
)
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "")
HARMLESS_TO_OLLAMAS = ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show")


@pytest.mark.fault("F18")
async def test_no_call_that_changes_anything_can_be_made_by_a_page() -> None:
    """Whatever calls there are: what a form or a script elsewhere can send is refused by each."""
    async with site(reply) as s:
        document = (await s.ask("GET", "/openapi.json")).json()
        asked = 0
        for path, operations in document["paths"].items():
            known = path.format(id="alpha", name="auto", digest="sha256:" + "0" * 64)
            for method in {"post", "delete", "put", "patch"} & set(operations):
                harmless = path in HARMLESS_TO_OLLAMAS or path.removeprefix("/v1").startswith(HARMLESS)
                for headers in (
                    {"Origin": "https://evil.example", "Content-Type": "application/json"},
                    {"Origin": "null", "Content-Type": "text/plain"},
                    {
                        "Sec-Fetch-Site": "cross-site",
                        "Sec-Fetch-Mode": "no-cors",
                        "Content-Type": "text/plain",
                    },
                ):
                    answer = await s.ask(method.upper(), known, b"{}", headers)
                    assert answer.status == 403, (method, path, headers)
                for declared in (
                    "text/plain",
                    "application/x-www-form-urlencoded",
                    "multipart/form-data",
                    "",
                ):
                    if harmless:
                        continue
                    # An old browser, or one that was told to, names no origin.
                    answer = await s.ask(method.upper(), known, b"{}", {"Content-Type": declared})
                    assert answer.status in (415, 501), (method, path, declared)
                    asked += 1
        assert asked > 40
        assert not s.api.calls
        assert not s.api.asked


LISTED = ["http://localhost:3000", "https://chat.example", "vscode-webview://*", "app://obsidian.md"]


def _list(s: Site) -> None:
    s.api.settings = schema.apply(s.api.settings, {"cors_origins": LISTED})


@pytest.mark.fault("F18")
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("HTTP://LOCALHOST:3000", 200),
        ("https://chat.example", 200),
        ("vscode-webview://0f3b8c", 200),
        ("app://obsidian.md", 200),
        ("http://localhost:3001", 403),
        ("https://localhost:3000", 403),
        ("http://chat.example", 403),
        ("https://chat.example.evil.example", 403),
        ("https://evil.example/https://chat.example", 403),
        ("app://evil", 403),
        ("null", 403),
        ("*", 403),
        ("", 403),
    ],
)
async def test_listed_origins_may_call(origin: str, status: int) -> None:
    async with site(reply) as s:
        _list(s)
        answer = await s.ask("POST", CHAT, chat(), {"Origin": origin})
        assert answer.status == status
        assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
        assert ("access-control-expose-headers" in answer.headers) == (status == 200)
        assert "access-control-allow-credentials" not in answer.headers
        refused = await s.ask("POST", CHAT, b"{", {"Origin": origin})
        assert refused.status == (400 if status == 200 else 403)
        # Its page may read what was wrong, too.
        assert ("access-control-allow-origin" in refused.headers) == (status == 200)


@pytest.mark.fault("F18")
async def test_a_listed_origin_gets_streams_and_permission() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin_stream()
        await peer.chunk(b"data: [DONE]\n\n")
        await peer.end_stream()

    origin = {"Origin": LISTED[0]}
    async with site(script) as s:
        _list(s)
        stream = await s.ask("POST", CHAT, chat(stream=True), origin)
        assert stream.headers["access-control-allow-origin"] == LISTED[0]
        asked = {
            **origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
            "Access-Control-Request-Private-Network": "true",
        }
        for path in (CHAT, "/v1/models", "/v1/load"):
            answer = await s.ask("OPTIONS", path, None, asked)
            assert answer.status == 204
            assert answer.headers["access-control-allow-origin"] == LISTED[0]
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert answer.headers["access-control-allow-headers"] == asked["Access-Control-Request-Headers"]
            assert answer.headers["access-control-allow-private-network"] == "true"
            assert answer.headers["vary"] == "Origin"


@pytest.mark.fault("F18")
@pytest.mark.parametrize("path", ["/internal/set", "/internal/config", "/%69nternal/set"])
async def test_settings_take_no_call_from_another_origin_even_a_listed_one(path: str) -> None:
    async with site(reply) as s:
        _list(s)
        for method in ("POST", "GET", "OPTIONS"):
            headers = {"Origin": LISTED[0], "Access-Control-Request-Method": "POST"}
            answer = await s.ask(method, path, b"{}" if method == "POST" else None, headers)
            assert answer.status == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.fault("F18")
async def test_a_preflight_needs_no_key_and_the_call_does() -> None:
    keys = Keys(None, {VARIABLE: "a-key-of-the-users-own"})
    keys.load()
    async with site(reply, keys=keys) as s:
        s.api.settings = schema.apply(s.api.settings, {"cors_origins": LISTED, "require_api_key": True})
        asked = {"Origin": LISTED[0], "Access-Control-Request-Method": "POST"}
        assert (await s.ask("OPTIONS", CHAT, None, asked)).status == 204
        answer = await s.ask("POST", CHAT, chat(), {"Origin": LISTED[0]})
        assert answer.status == 401
        assert answer.headers["access-control-allow-origin"] == LISTED[0]


async def test_listed_host_names_are_ours() -> None:
    async with site(reply) as s, s.client() as client:
        s.api.bound_hosts = ("127.0.0.1", "desk.local")
        await client.send("GET", "/v1/models", host="desk.local")
        assert (await client.answer()).status == 200
