"""A second port of the endpoint, on this machine only, where apps that speak only Ollama look for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from router.errors import InstanceError
from router.web import ports

log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"


class SecondPort:
    """Listens at the port that was asked for last, if it is free.

    Attributes:
        url: where it answers, without a path; "" while it does not.
        problem: why it does not although it should, in a sentence; "" otherwise.
    """

    def __init__(self) -> None:
        self.url = ""
        self.problem = ""
        self._make: Callable[[], Any] | None = None
        self._servers: list[asyncio.Server] = []
        self._wanted = 0
        self._port = 0
        self._order = asyncio.Lock()

    def use(self, make: Callable[[], Any]) -> None:
        """Serve connections by what `make` makes."""
        self._make = make

    async def move(self, port: int, endpoint: str, own_port: int) -> None:
        """Listen at `port` instead; 0: at none. What is asked for last holds.

        A port that is taken is no error: `problem` says by whom. Connections that are open stay.

        Args:
            endpoint: where the endpoint answers anyway.
            own_port: its port, which needs no second one.
        """
        self._wanted = port
        async with self._order:
            if self._wanted != port or (port == self._port and not self.problem):
                return
            self._close()
            if port and port != own_port and self._make is not None:
                await self._open(port, endpoint, self._make)
            if self._wanted != port:  # The end came meanwhile.
                self._close()
            else:
                self._port = port

    def close(self) -> None:
        """Take no new connections, for good."""
        self._wanted, self._make = -1, None
        self._close()

    async def _open(self, port: int, endpoint: str, make: Callable[[], Any]) -> None:
        try:
            sockets = await ports.open_sockets(_HOST, port)
        except InstanceError as error:
            self.problem = await self._told(error, port, endpoint)
            log.warning("%s", self.problem)
            return
        loop = asyncio.get_running_loop()
        try:
            for sock in sockets:
                self._servers.append(await loop.create_server(make, sock=sock, backlog=1024))
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        self.url = f"http://{_HOST}:{port}"
        log.info("Ollama's apps are answered at %s, too", self.url)

    async def _told(self, error: InstanceError, port: int, endpoint: str) -> str:
        if error.code == "port_in_use":
            by = await asyncio.to_thread(ports.holder, port)
            what = f"Port {port} (ollama_port) is taken by {by or 'another program'}"
        else:
            what = f"Port {port} (ollama_port) cannot be listened on"
        return f"{what}. Apps that look for Ollama there do not find Lemon Tray, which answers at {endpoint}."

    def _close(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        self.url = self.problem = ""
        self._port = 0
