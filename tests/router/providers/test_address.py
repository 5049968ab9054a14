"""What may be a provider's base URL."""

from __future__ import annotations

import pytest

from router.errors import BadRequest
from router.providers.address import base_url, is_private


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        ("https://api.example.com", "https://api.example.com/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://[::1]:8000/openai/v1", "http://[::1]:8000/openai/v1"),
        ("HTTP://LocalHost:1/v1", "http://localhost:1/v1"),
        ("http://gpu-box:8000/v1", "http://gpu-box:8000/v1"),
        ("http://vllm.models.svc.cluster.local/v1", "http://vllm.models.svc.cluster.local/v1"),
        ("http://10.1.2.3/v1", "http://10.1.2.3/v1"),
        ("http://100.100.1.1:13305", "http://100.100.1.1:13305/v1"),
    ],
)
def test_good_ones_are_kept_in_one_form(given: str, kept: str) -> None:
    assert base_url(given) == kept
    assert base_url(kept) == kept


@pytest.mark.parametrize(
    "given",
    [
        "",
        "api.example.com",
        "ftp://api.example.com",
        "https://",
        "https://user:secret@api.example.com/v1",
        "https://user@api.example.com/v1",
        "https://@api.example.com/v1",
        "https://api.example.com/v1?key=1",
        "https://api.example.com/v1#x",
        "https://api.example.com/v1?",
        "https://api.example.com:99999/v1",
        "https://api.example.com:0/v1",
        "https://api.example.com/v1/../admin",
        "https://api.example.com/v1/%2e%2e/admin",
        "https://api.example.com/v 1",
        "https://api.example.com/\r\nX: y",
        "https://ex\u00e4mple.com/v1",
        "https://api.example.com/" + "a" * 3000,
    ],
)
def test_others_are_refused(given: str) -> None:
    with pytest.raises(BadRequest) as refused:
        base_url(given, allow_http=True)
    assert refused.value.param == "url"
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    "host", ["api.example.com", "8.8.8.8", "1.1", "0x7f000001", "0.0.0.0", "224.0.0.1", "2001:4860::1"]
)
def test_plain_http_leaves_private_networks_only_if_allowed(host: str) -> None:
    url = f"http://[{host}]/v1" if ":" in host else f"http://{host}/v1"
    with pytest.raises(BadRequest) as refused:
        base_url(url)
    assert refused.value.code == "insecure_url"
    assert "--allow-http" in (refused.value.hint or "")
    assert base_url(url, allow_http=True) == url


@pytest.mark.parametrize(
    "host", ["fd00::1", "fe80::1", "::ffff:10.0.0.1", "nas.local", "box.lan", "localhost."]
)
def test_private_hosts(host: str) -> None:
    assert is_private(host)


@pytest.mark.parametrize("host", ["::ffff:8.8.8.8", "local", "evil.local.example.com"])
def test_what_only_looks_private(host: str) -> None:
    # One label is a name in the own network, whatever it is.
    assert is_private(host) is (host == "local")
