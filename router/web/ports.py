"""The listening sockets, and who has a port that is taken."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from router.errors import InstanceError

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})


async def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind the endpoint's address, the main one first; on loopback `::1` beside it, where that can be had.

    Raises:
        InstanceError: the address cannot be bound; names the port's holder where it can be told.
    """
    if host in _LOOPBACK:
        main = await _open(socket.AF_INET, "127.0.0.1", port)
        try:
            return [main, _bind(socket.AF_INET6, "::1", main.getsockname()[1])]
        except OSError:
            return [main]  # No IPv6 here, or the port is taken there: the main address is enough.
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise InstanceError(
            f"The address {host} is unknown: {exc.strerror}. Change the setting `host`.", code="bad_address"
        ) from exc
    family, address = found[0][0], str(found[0][4][0])
    return [await _open(family, address, port)]


def next_free_port(host: str, port: int, tries: int = 100) -> int | None:
    """The next port above `port` that can be bound now on `host`, an IP literal; None if none is near."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port + 1, min(port + 1 + tries, 65_536)):
        try:
            _bind(family, host, candidate).close()
        except OSError:
            continue
        return candidate
    return None


def holder(port: int) -> str | None:
    """The program that listens on a port, as `name (pid 123)`; None where the system does not tell."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return None
    for process in _PROC.iterdir():
        if process.name.isdecimal() and _has_socket(process, inodes):
            try:
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
            except OSError:
                return f"pid {process.name}"
    return None


async def _open(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    try:
        return _bind(family, address, port)
    except OSError as exc:
        raise await asyncio.to_thread(_explained, exc, address, port) from exc


def _bind(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address == "::" else 1)
        sock.bind((address, port))
        sock.listen(1024)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _explained(exc: OSError, address: str, port: int) -> InstanceError:
    where = f"{address} port {port}"
    if exc.errno == errno.EADDRINUSE:
        by = holder(port)
        free = next_free_port(address, port)
        other = free or 0
        return InstanceError(
            f"{where} is taken by {by or 'another program'}. Stop that program, or choose another port: "
            f"set `port` to {other or 'a free one'}, with --port {other} or LEMON_TRAY_PORT={other}.",
            code="port_in_use",
            param="port",
            hint=f"port={other}",
        )
    if exc.errno == errno.EACCES:
        return InstanceError(
            f"This user may not listen on {where}. Set `port` to 1024 or more.",
            code="port_refused",
            param="port",
        )
    if exc.errno == errno.EADDRNOTAVAIL:
        return InstanceError(
            f"{address} is not an address of this machine. Change the setting `host`.",
            code="bad_address",
            param="host",
        )
    return InstanceError(
        f"{where} cannot be listened on: {exc.strerror or os.strerror(exc.errno or 0)}.", code="port_refused"
    )


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _has_socket(process: Path, inodes: set[str]) -> bool:
    try:
        for descriptor in (process / "fd").iterdir():
            link = os.readlink(descriptor)
            if link.startswith("socket:[") and link[8:-1] in inodes:
                return True
    except OSError:
        return False  # It ended, or it is another user's.
    return False
