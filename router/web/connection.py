"""One client's connection."""

from __future__ import annotations

import logging

from aiohttp import web

from router.errors import BadRequest, RouterError
from router.web.errors import error_response

log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """aiohttp's connection, with our error shape for what cannot be parsed."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionResetError("part of the answer has been sent")
        if status < 500:
            log.info("A request that is not valid HTTP was refused: %s", _first_line(message))
            error: RouterError = BadRequest(f"The request is not valid HTTP: {_first_line(message)}.")
        else:
            log.error("A request failed outside its handler", exc_info=exc)
            error = RouterError("The router failed; its log says why.", status=status)
        response = error_response(error)
        response.force_close()
        return response


def _first_line(message: str | None) -> str:
    return (message or "").strip().partition("\n")[0].rstrip(" :.")[:200] or "it cannot be parsed"
