"""`GET /metrics`, whose page is written by a package that is imported when somebody asks for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from router.web.api import RouterApi
from router.web.tally import Tally

if TYPE_CHECKING:
    from router.web.metrics import Metrics


class Scraping:
    """Answers scrapes."""

    def __init__(self, api: RouterApi, tally: Tally) -> None:
        self._api = api
        self._tally = tally
        self._page: Metrics | None = None

    async def scrape(self, request: web.Request) -> web.Response:
        """`GET /metrics`"""
        if self._page is None:
            self._page = await asyncio.to_thread(self._make)
        return web.Response(body=self._page.render(), headers={"Content-Type": self._page.content_type})

    def _make(self) -> Metrics:
        from router.web.metrics import Metrics

        return Metrics(self._api, self._tally)
