"""The commands about policies."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.cli import main
from tests.router.web.fakes import Site, reply, site
from tests.support.policies import document

pytestmark = pytest.mark.usefixtures("paths")

POLICY = document(
    "user.Desk",
    ("near", "far"),
    rules=[
        {
            "id": "tax",
            "match": {"any": [{"keywords_any": ["tax"]}, {"metadata": {"key": "k", "equals": "v"}}]},
            "route_to": "far",
            "outputs": {"ü": "\u009b"},
        },
        {"id": "tools", "match": {"has_tools": True}, "route_to": "far"},
    ],
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(POLICY))
    return path


@pytest.fixture
async def router() -> AsyncIterator[Site]:
    async with site(reply) as running:
        yield running


async def run(*argv: str) -> int:
    return await asyncio.to_thread(main, argv)


async def at(router: Site, *argv: str) -> int:
    return await run("policy", *argv, "--endpoint", router.endpoint.url)


async def test_a_policy_is_tried_out_without_a_router(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("policy", "test", str(file), "--prompt", "my TAX") == 0
    assert capsys.readouterr().out == (
        'far (rule tax)\n  yes keywords_any\noutputs: {"ü": "\N{REPLACEMENT CHARACTER}"}\n'
    )
    assert await run("policy", "test", str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "version": "1",
        "route_to": "near",
        "matched_rule": "",
        "default_used": True,
        "outputs": {},
        "trace": [
            {"condition": "keywords_any", "result": False},
            {"condition": "metadata", "result": False},
            {"condition": "has_tools", "result": False},
        ],
    }
    assert await run("policy", "test", str(file), "--metadata", "k=v", "--json") == 0
    told = capsys.readouterr().out
    assert "\\u009b" in told
    assert json.loads(told)["matched_rule"] == "tax"
    assert await run("policy", "test", str(file), "--tools") == 0
    assert capsys.readouterr().out.startswith("far (rule tools)\n")


async def test_prompt_and_document_may_come_from_elsewhere(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("the tax"))
    assert await run("policy", "test", str(file), "--prompt", "-") == 0
    assert capsys.readouterr().out.startswith("far (rule tax)")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert await run("policy", "test", "-", "--prompt", "nothing") == 0
    assert capsys.readouterr().out.startswith("near (the default, as no rule matched)\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "it is no JSON"),
        (b"[]", "expected an object"),
        (b'{"version": "2"}', "$.version"),
        (None, "cannot be read"),
    ],
)
async def test_a_file_that_is_no_policy_is_refused(
    file: Path, content: bytes | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        file.unlink()
        file.mkdir()
        assert await run("policy", "add", str(file)) == 1
    else:
        file.write_bytes(content)
        assert await run("policy", "test", str(file)) == 1
    assert words in capsys.readouterr().err


async def test_a_policy_that_asks_models_is_tried_out_by_the_router(
    router: Site, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(json.dumps(POLICY))
    document["routing"]["classifiers"] = [
        {"id": "c", "type": "classifier", "model": "near", "labels": ["x"], "on_error": "match_true"}
    ]
    document["routing"]["rules"].append({"id": "model", "match": {"classifier": "c"}, "route_to": "far"})
    file.write_text(json.dumps(document))
    assert await at(router, "test", str(file), "--prompt", "hello") == 0
    out = capsys.readouterr().out
    assert out.startswith("far (rule model)\n")
    assert "  yes classifier:c, failed: there are no scores for it\n" in out
    # An address at which nothing answers, whatever runs on this machine.
    assert await run("policy", "test", str(file), "--endpoint", "127.0.0.1:1") == 3


async def test_policies_are_added_listed_shown_switched_and_removed(
    router: Site, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await at(router, "add", str(file)) == 0
    assert router.api.calls == [("register", POLICY)]
    assert await at(router, "list") == 0
    assert await at(router, "list", "--json") == 0
    assert await at(router, "show", "auto") == 0
    assert await at(router, "disable", "auto") == 0
    assert await at(router, "enable", "auto") == 0
    assert router.api.calls[1:] == [("enable", "auto", False), ("enable", "auto", True)]
    assert await at(router, "remove", "auto") == 0
    assert "auto" not in router.api.policies
    assert await at(router, "show", "auto") == 1
    out, err = capsys.readouterr()
    assert "user.Desk is registered" in out
    assert "auto is off\nauto is on\nauto is removed\n" in out
    assert '{\n  "model_name": "auto"\n}' in out
    assert "There is no policy auto" in err


async def test_a_registered_policy_is_tried_out_by_name(
    router: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router.api, "policy_document", lambda name: {**POLICY, "enabled": False})
    assert await at(router, "test", "user.Desk", "--prompt", "tax") == 0
    assert capsys.readouterr().out.startswith("far (rule tax)")
