"""A provider's base URL: what may be one, and to whom a key may go without encryption."""

from __future__ import annotations

import ipaddress
import urllib.parse
from typing import Final

from router.errors import BadRequest

MAX_URL: Final = 2_048

#: Endings of names that no public host has: RFC 6762, RFC 8375, ICANN's `.internal`, and clusters' own.
_PRIVATE_ENDINGS: Final = (".localhost", ".local", ".internal", ".home.arpa", ".lan", ".svc")


def base_url(text: str, *, allow_http: bool = False) -> str:
    """The URL as it is kept: without a slash at its end, and with `/v1` where it had no path.

    Args:
        allow_http: plain HTTP may go to any host, not only to this machine and to private networks.

    Raises:
        BadRequest: it cannot be one, naming what is wrong.
    """
    given = text.strip()
    if len(given) > MAX_URL or not given.isascii() or any(c.isspace() or not c.isprintable() for c in given):
        raise _wrong("it has characters that no URL has, or is too long")
    try:
        parts = urllib.parse.urlsplit(given)
        port = parts.port
    except ValueError as error:
        raise _wrong(str(error)) from error
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host:
        raise _wrong("it must begin with https:// or http:// and name a host")
    if "@" in parts.netloc:
        raise _wrong("it must not hold a user or password; the key is kept apart")
    if parts.query or parts.fragment or "?" in given or "#" in given:
        raise _wrong("it must have no query and no fragment")
    if port == 0:
        raise _wrong("there is no port 0")
    if any(part in (".", "..") for part in urllib.parse.unquote(parts.path).split("/")):
        raise _wrong("its path must not have . or .. in it")
    if parts.scheme == "http" and not allow_http and not is_private(host):
        raise BadRequest(
            f"Key and prompts would go to {host} unencrypted. Use https://.",
            code="insecure_url",
            param="url",
            hint="If that is what you want: --allow-http, or allow_http in a request.",
        )
    path = parts.path.rstrip("/") or "/v1"
    netloc = f"[{host}]" if ":" in host else host
    if port is not None:
        netloc += f":{port}"
    return f"{parts.scheme}://{netloc}{path}"


def is_private(host: str) -> bool:
    """Whether a host's name or literal says that it is this machine or in a private network.

    A name counts by its form: one label, such as a service in a cluster has, or an ending that no public host
    has. Nothing is looked up: what a lookup answers may change.
    """
    name = host.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        looks_numeric = name.replace(".", "").isdigit() or name.startswith("0x")
        return not looks_numeric and ("." not in name or name.endswith(_PRIVATE_ENDINGS) or ".svc." in name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified or address.is_multicast:
        return False
    if address.is_loopback or address.is_link_local:
        return True
    return any(address in network for network in _PRIVATE_NETWORKS if network.version == address.version)


#: Private networks proper, and the shared one that overlay networks such as Tailscale use.
_PRIVATE_NETWORKS: Final = tuple(
    ipaddress.ip_network(written)
    for written in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)


def origin(url: str) -> str:
    """Scheme, host and port of a URL, to compare hosts by."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def _wrong(why: str) -> BadRequest:
    return BadRequest(
        f"`url` is no base URL: {why}.", param="url", hint="Such as https://api.example.com/v1."
    )
