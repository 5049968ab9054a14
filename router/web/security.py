"""Who may call: only who names this machine, and web pages of another origin only if that is listed.

A web page can make a browser send requests to loopback. Two checks stop it, before anything else is done
with a request: the `Host` header must name this endpoint, which defeats a name that an attacker's DNS points
at 127.0.0.1; and an `Origin` must be the endpoint's own, or one that the user listed. What is below
`/internal` takes no call from another origin at all.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from router.errors import BadRequest, Forbidden
from router.web.asking import Asking
from router.web.errors import UnsupportedMediaType

_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


_PRIVATE: Final = "/internal"
_EXPOSED: Final = "x-lemonade-route, retry-after, x-should-retry"
METHODS: Final = "GET, HEAD, POST, DELETE, OPTIONS"
#: Where a proxy names the machine that it asks for.
_FORWARDED: Final = ("x-forwarded-for", "x-real-ip", "forwarded")
_FORWARDED_FOR: Final = re.compile(r"(?:^|[;,\s])for=\s*(\"[^\"]*\"|[^;,\s]*)", re.IGNORECASE)
_HEADER_NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,1000}")


def check(request: Asking, bound_hosts: Collection[str], cors_origins: Collection[str] = ()) -> str | None:
    """Refuse a request that is not addressed to this endpoint or that another site's page makes.

    Returns the origin of a page elsewhere that may call because it is one of `cors_origins`; else None.

    Raises:
        BadRequest: there are several `Host` headers, or none where HTTP/1.1 wants one.
        Forbidden: the host is not ours, or the call crosses origins.
    """
    host = _host_header(request)
    if (
        host is not None
        and host_of(host) not in _LOOPBACK_NAMES
        and not is_ours(host, bound_hosts, _own_address(request))
    ):
        raise Forbidden(
            f"The host {host[:100]!r} is not an address of this endpoint. Use localhost or 127.0.0.1.",
            code="forbidden_host",
        )
    named = _host_in_target(request.raw_path)
    if named is not None and not is_ours(named, bound_hosts, _own_address(request)):
        raise Forbidden("The request's target is not an address of this endpoint.", code="forbidden_host")
    return _check_origin(request, host, cors_origins)


def is_local(request: Asking) -> bool:
    """Whether the caller is on this machine: it comes from loopback, or from the address that it calls."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    theirs = _literal(str(peer[0])) if isinstance(peer, tuple) else None
    if theirs is None:
        return False
    own = _own_address(request)
    return theirs.is_loopback or (own is not None and theirs == _literal(own))


def is_forwarded(request: Asking) -> bool:
    """Whether a proxy says that it asks for another machine: then it is not the proxy that calls.

    What cannot be read as an address is taken for another machine.
    """
    headers = request.headers
    for name in _FORWARDED:
        if name not in headers:
            continue
        for value in headers.getall(name, []):
            named = _FORWARDED_FOR.findall(value) if name == "forwarded" else value.split(",")
            if not all(_is_here(each.strip(' "')) for each in named):
                return True
    return False


def is_listed(origin: str, cors_origins: Collection[str]) -> bool:
    """Whether an origin is on the user's list; `scheme://*` there means every origin of an app's scheme."""
    if not cors_origins:
        return False
    origin = origin.lower()
    scheme = origin.partition("://")[0]
    return any(known.lower() in (origin, f"{scheme}://*") for known in cors_origins)


def cors_headers(origin: str) -> Mapping[str, str]:
    """What lets a page of that origin read the answer."""
    return {
        hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin,
        hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: _EXPOSED,
        hdrs.VARY: hdrs.ORIGIN,
    }


def preflight(request: Asking) -> web.Response | None:
    """The answer to a browser that asks whether a listed page may call; None if this is no such question."""
    if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers:
        return None
    headers: dict[str, str] = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
        hdrs.ACCESS_CONTROL_MAX_AGE: "600",
    }
    wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    if wanted and _HEADER_NAMES.fullmatch(wanted):
        headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
    if request.headers.get("Access-Control-Request-Private-Network", "") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def is_ours(authority: str, bound_hosts: Collection[str], own_address: str | None = None) -> bool:
    """Whether a `Host` value means this endpoint.

    It does if it is a loopback name or literal, one of `bound_hosts`, or the address that the connection came
    in on. The port is not compared: a forwarded port is as good.
    """
    name = host_of(authority)
    if name is None:
        return False
    if is_loopback(name) or name in {known.lower() for known in bound_hosts}:
        return True
    address = _literal(name)
    return address is not None and own_address is not None and address == _literal(own_address)


def is_loopback(name: str) -> bool:
    """Whether a host's name or literal, in lower case, means this machine alone."""
    if name in _LOOPBACK_NAMES:
        return True
    address = _literal(name)
    return address is not None and address.is_loopback


@functools.lru_cache(maxsize=256)
def host_of(authority: str) -> str | None:
    """The host of `host[:port]` in lower case, without brackets and a final dot; None if it is none."""
    try:
        parts = urlsplit(f"//{authority}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if (
        not name
        or parts.netloc != authority
        or "@" in authority
        or parts.path
        or parts.query
        or parts.fragment
    ):
        return None
    return name.removesuffix(".")


def require_json(request: Asking) -> None:
    """Refuse a call that changes the router unless its body is declared as JSON.

    A page can send other content types anywhere without asking first; JSON it cannot.

    Raises:
        UnsupportedMediaType: the content type is missing or another one.
    """
    declared = request.headers.get(hdrs.CONTENT_TYPE, "")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType(
            "This call takes JSON only. Send the header Content-Type: application/json.", param="Content-Type"
        )


def _host_header(request: Asking) -> str | None:
    hosts = request.headers.getall(hdrs.HOST, [])
    if len(hosts) > 1:
        raise BadRequest("The request has more than one Host header.", param="Host")
    if hosts:
        return hosts[0]
    if request.version >= (1, 1):
        raise BadRequest("The request has no Host header.", param="Host")
    # No browser leaves the header out, so HTTP/1.0 without one is a plain local program.
    return None


def _host_in_target(target: str) -> str | None:
    """The host of a target such as `http://host/path`, which outranks the header; None for a plain path."""
    if target.startswith("/") or target == "*":
        return None
    try:
        return urlsplit(target).netloc or target
    except ValueError:
        return ""


def _own_address(request: Asking) -> str | None:
    transport = request.transport
    name = transport.get_extra_info("sockname") if transport is not None else None
    return str(name[0]) if isinstance(name, tuple) else None


def _is_here(address: str) -> bool:
    """Whether an address, with or without a port, is a loopback one."""
    literal = _literal(address)
    if literal is not None:
        return literal.is_loopback
    name = host_of(address)
    return name is not None and is_loopback(name)


def _literal(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a literal writes, an IPv4 address in IPv6's clothes taken as what it is."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _check_origin(request: Asking, host: str | None, cors_origins: Collection[str]) -> str | None:
    origins = request.headers.getall(hdrs.ORIGIN, [])
    listed = None
    for origin in origins:
        if _same_origin(origin, request.scheme, host):
            continue
        if request.path.startswith(_PRIVATE) or len(origins) > 1 or not is_listed(origin, cors_origins):
            raise Forbidden(
                f"Calls from web pages of another origin ({origin[:100]}) are refused.",
                code="forbidden_origin",
                hint=None if request.path.startswith(_PRIVATE) else "The setting cors_origins lists them.",
            )
        listed = origin
    if origins:
        return listed
    # Without an Origin (an image, a script, a plain GET) the browser still says where the call comes from.
    # Following a link to here is fine: the page that has the link does not see the answer.
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site in ("cross-site", "same-site") and request.headers.get("Sec-Fetch-Mode", "") != "navigate":
        raise Forbidden("Calls from web pages of another origin are refused.", code="forbidden_origin")
    return None


def _same_origin(origin: str, scheme: str, host: str | None) -> bool:
    if host is None:
        return False
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"{scheme}://{host}")
        default = 443 if scheme == "https" else 80
        return (theirs.scheme, theirs.hostname, theirs.port or default) == (
            ours.scheme,
            ours.hostname,
            ours.port or default,
        ) and bool(theirs.hostname)
    except ValueError:
        return False
