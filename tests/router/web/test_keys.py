"""API keys: made, kept, asked for, and never told."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from router import logs
from router.errors import BadRequest, ConfigError, Conflict, NotFound
from router.settings import schema
from router.web import security
from router.web.keyfile import IN_FILE, IN_KEYRING, VARIABLE, KeyFile, digest
from router.web.keys import Keys
from tests.router.web.fakes import CHAT, Site, chat, reply, site

KEY = "a-key-of-the-users-own"


class Ring:
    """A keyring; `fails` makes it refuse everything, as one that is locked does."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.fails = False

    def set_password(self, service: str, username: str, password: str) -> None:
        self._ask()
        self.kept[service, username] = password

    def get_password(self, service: str, username: str) -> str | None:
        self._ask()
        return self.kept.get((service, username))

    def delete_password(self, service: str, username: str) -> None:
        self._ask()
        del self.kept[service, username]

    def _ask(self) -> None:
        if self.fails:
            raise RuntimeError("the keyring is locked")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "api-keys.json"


@pytest.fixture(autouse=True)
def _forget_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_hidden", set())


def test_a_key_goes_to_the_keyring_and_its_digest_to_the_file(path: Path) -> None:
    ring = Ring()
    keys = KeyFile(path, ring)
    entry, secret = keys.add("laptop")
    assert entry.kept_in == IN_KEYRING
    assert ring.kept == {("lemon-tray", "laptop"): secret}
    assert secret not in path.read_text()
    assert digest(secret) in path.read_text()
    assert len(secret) > 40
    assert keys.show("laptop") == secret
    keys.remove("laptop")
    assert not ring.kept
    assert keys.read() == ()


def test_what_a_newer_version_wrote_survives_a_change_by_this_one(path: Path) -> None:
    keys = KeyFile(path)
    keys.add("laptop")
    keys.add("phone")
    newer = json.loads(path.read_text()) | {"format": 7}
    newer["keys"][0]["scopes"] = ["chat"]
    newer["keys"][1]["scopes"] = []
    path.write_text(json.dumps(newer))

    keys.remove("phone")
    keys.add("desk")

    laptop, desk = (told := json.loads(path.read_text()))["keys"]
    assert told["format"] == 7
    assert laptop["scopes"] == ["chat"]
    assert desk["name"] == "desk"
    assert "scopes" not in desk


@pytest.mark.parametrize("ring", [None, Ring()], ids=["none", "locked"])
def test_without_a_keyring_it_is_in_the_file_that_only_its_user_reads(path: Path, ring: Ring | None) -> None:
    if ring is not None:
        ring.fails = True
    keys = KeyFile(path, ring)
    entry, secret = keys.add("laptop")
    assert entry.kept_in == IN_FILE
    assert keys.show("laptop") == secret
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    keys.remove("laptop")
    assert secret not in path.read_text()


def test_a_file_that_others_could_read_is_closed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = KeyFile(path)
    keys.add("laptop")
    path.chmod(0o644)
    keys.read()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "could be read by others" in caplog.text


def test_a_keyring_that_lost_a_key_says_so(path: Path) -> None:
    ring = Ring()
    keys = KeyFile(path, ring)
    keys.add("laptop")
    ring.kept.clear()
    with pytest.raises(NotFound, match="laptop"):
        keys.show("laptop")
    keys.remove("laptop")  # A warning is all that this takes.


def test_names(path: Path) -> None:
    keys = KeyFile(path)
    keys.add("laptop")
    with pytest.raises(Conflict, match="laptop"):
        keys.add("laptop")
    for name in ("", " ", "a/b", "x" * 65, "ü b"):
        with pytest.raises(BadRequest):
            keys.add(name)
    for call in (keys.show, keys.remove):
        with pytest.raises(NotFound):
            call("phone")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"keys":[{"name":1}]}', '{"keys":7}'])
def test_a_file_that_is_none_is_named_and_opens_nothing(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match="api-keys"):
        Keys(KeyFile(path)).load()


@pytest.mark.fault("F18")
@pytest.mark.parametrize("given", ["short", "x" * 600])
def test_a_key_in_the_environment_that_can_be_guessed_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=VARIABLE):
        Keys(None, {VARIABLE: given}).load()


@pytest.mark.fault("F18")
@pytest.mark.parametrize("given", ["", "  ", "\t"])
def test_an_empty_key_is_none(given: str) -> None:
    keys = Keys(None, {VARIABLE: given})
    keys.load()
    assert not keys.any
    assert not keys.accepts(given)


def _keys(path: Path | None = None) -> Keys:
    keys = Keys(KeyFile(path) if path else None, {VARIABLE: KEY})
    keys.load()
    return keys


def _from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "is_local", lambda request: False)


async def _statuses(s: Site, **headers: str) -> list[int]:
    return [
        (await s.ask("POST", CHAT, chat(), headers)).status,
        (await s.ask("GET", "/v1/models", None, headers)).status,
        (await s.ask("GET", "/metrics", None, headers)).status,
        (await s.ask("POST", "/internal/set", b"{}", headers)).status,
    ]


@pytest.mark.fault("F18")
async def test_other_machines_need_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(reply, host="0.0.0.0", keys=_keys()) as s:
        assert await _statuses(s) == [200] * 4  # This machine needs none.
        _from_elsewhere(monkeypatch)
        assert await _statuses(s) == [401] * 4
        assert await _statuses(s, Authorization=f"Bearer {KEY}") == [200] * 4
        assert await _statuses(s, Authorization=f"bearer  {KEY} ") == [200] * 4
        assert await _statuses(s, **{"X-Api-Key": KEY}) == [200] * 4
        assert await _statuses(s, **{"api-key": KEY}) == [200] * 4
        for wrong in (KEY[:-1], KEY + "x", KEY.upper(), "", " ", "null", "é"):
            assert await _statuses(s, Authorization=f"Bearer {wrong}") == [401] * 4, wrong
        assert await _statuses(s, Authorization=f"Basic {KEY}") == [401] * 4
        assert await _statuses(s, Authorization=KEY) == [401] * 4
        assert (await s.ask("GET", "/live")).status == 200
        assert (await s.ask("GET", f"/v1/models?key={KEY}")).status == 401


async def test_what_a_refusal_says(monkeypatch: pytest.MonkeyPatch) -> None:
    _from_elsewhere(monkeypatch)
    async with site(reply, host="0.0.0.0", keys=_keys()) as s:
        answer = await s.ask("GET", "/v1/models")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.error["code"] == "missing_api_key"
        assert answer.error["type"] == "authentication_error"
        answer = await s.ask("GET", "/v1/models", None, {"Authorization": "Bearer no"})
        assert answer.error["code"] == "invalid_api_key"
        assert (await s.ask("GET", "/nope")).status == 401


@pytest.mark.fault("F18")
async def test_a_body_is_asked_for_only_from_who_may_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _from_elsewhere(monkeypatch)
    async with site(reply, host="0.0.0.0", keys=_keys()) as s, s.client() as client:
        await client.send("POST", CHAT, None, {"Expect": "100-continue", "Content-Length": "50"})
        answer = await client.answer()
        assert (answer.status, answer.interim) == (401, [])


@pytest.mark.fault("F18")
async def test_without_any_key_other_machines_are_served_only_if_that_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _from_elsewhere(monkeypatch)
    async with site(reply, host="0.0.0.0") as s:
        assert await _statuses(s, Authorization="Bearer ") == [401] * 4
        s.api.settings = schema.apply(s.api.settings, {"allow_unauthenticated_lan": True})
        assert await _statuses(s) == [200] * 4
    async with site(reply, host="0.0.0.0", keys=_keys()) as s:
        s.api.settings = schema.apply(s.api.settings, {"allow_unauthenticated_lan": True})
        assert await _statuses(s) == [401] * 4  # Who has made keys wants them asked for.


async def test_this_machine_needs_one_if_that_is_set() -> None:
    async with site(reply, keys=_keys()) as s:
        assert await _statuses(s) == [200] * 4
        s.api.settings = schema.apply(s.api.settings, {"require_api_key": True})
        assert await _statuses(s) == [401] * 4
        assert await _statuses(s, Authorization=f"Bearer {KEY}") == [200] * 4


ELSEWHERE = {
    "X-Forwarded-For": (
        "203.0.113.9",
        "127.0.0.1, 203.0.113.9",
        "2001:db8::1",
        "203.0.113.9:4711",
        "unknown",
        "",
    ),
    "X-Real-IP": ("203.0.113.9",),
    "Forwarded": ("for=203.0.113.9", 'proto=https;For="[2001:db8::1]:4711"', "for=127.0.0.1, for=_hidden"),
}
HERE = {
    "X-Forwarded-For": ("127.0.0.1", "::1", "127.0.0.1:4711, [::1]:80", "::ffff:127.0.0.1", "localhost"),
    "X-Real-IP": ("::1",),
    "Forwarded": ("for=127.0.0.1;proto=http", 'for="[::1]:4711"', "proto=https;host=localhost"),
}


@pytest.mark.fault("F18")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_who_comes_through_a_proxy_needs_a_key_as_from_where_it_says(host: str) -> None:
    async with site(reply, host=host, keys=_keys()) as s:
        for name, values in ELSEWHERE.items():
            for value in values:
                told = {name: value}
                assert await _statuses(s, **told) == [401] * 4, told
                assert await _statuses(s, **told, Authorization=f"Bearer {KEY}") == [200] * 4, told
        for name, values in HERE.items():
            for value in values:
                assert await _statuses(s, **{name: value}) == [200] * 4, {name: value}


async def test_through_a_proxy_nobody_is_served_without_a_key_unless_that_is_set() -> None:
    async with site(reply) as s:
        told = {"X-Forwarded-For": "203.0.113.9"}
        assert await _statuses(s, **told) == [401] * 4
        assert "key add" in (await s.ask("GET", "/v1/models", None, told)).error["hint"]
        s.api.settings = schema.apply(s.api.settings, {"allow_unauthenticated_lan": True})
        assert await _statuses(s, **told) == [200] * 4


async def test_keys_come_and_go_while_it_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.web.keys._LOOK_S", 0.0)
    file = KeyFile(path)
    keys = Keys(file)
    keys.load()
    async with site(reply, keys=keys) as s:
        s.api.settings = schema.apply(s.api.settings, {"require_api_key": True})
        secret = file.add("laptop")[1]
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await s.ask("GET", "/v1/models", None, headers)).status == 200
        kept = path.read_bytes()
        path.write_text("{broken")
        assert (await s.ask("GET", "/v1/models", None, headers)).status == 200
        assert "stay as they were" in caplog.text
        path.write_bytes(kept)
        file.remove("laptop")
        assert (await s.ask("GET", "/v1/models", None, headers)).status == 401
        os.unlink(path)
        assert (await s.ask("GET", "/v1/models", None, headers)).status == 401


@pytest.mark.fault("F18")
async def test_secrets_never_reach_the_log(path: Path, tmp_path: Path) -> None:
    file = KeyFile(path)
    secret = file.add("laptop")[1]
    keys = Keys(file, {VARIABLE: KEY})
    keys.load()
    setup = logs.set_up(tmp_path / "log", level=logging.DEBUG)
    try:
        async with site(reply, keys=keys) as s:
            s.api.settings = schema.apply(s.api.settings, {"require_api_key": True})
            for one in (secret, KEY, "hf_wrongKeyOfSomebodyElse"):
                for headers in ({"Authorization": f"Bearer {one}"}, {"X-Api-Key": one}):
                    await s.ask("POST", CHAT, chat(text=f"my password is {one}"), headers)
                    await s.ask("POST", CHAT, f'{{"model": "{one}"'.encode(), headers)
                await s.ask("GET", f"/v1/models?api_key={one}")
                await s.ask("GET", f"/v1/{secret}")
                await s.ask("GET", "/v1/models", None, {"Authorization": f"Bearer {one}", "Host": one})
    finally:
        setup.stop()
    written = "".join(file.read_text() for file in (tmp_path / "log").iterdir())
    assert "POST /v1/chat/completions 200" in written
    assert "POST /v1/chat/completions 401" in written
    for one in (secret, KEY, "hf_wrong", "worker-key", "my password"):
        assert one not in written
