"""What is noted of one request on its way, for its line in the log and its headers."""

from __future__ import annotations

from typing import Final

from aiohttp import web


class Notes:
    """Attributes:
    began: when it came, by the loop's clock; 0 until that is noted.
    model: the model that is to answer.
    route: how a policy chose it, as its header says.
    failed: the code of an error that came after the headers.
    origin: the page elsewhere that may call.
    """

    __slots__ = ("began", "failed", "model", "origin", "route")

    def __init__(self) -> None:
        self.began = 0.0
        self.model = self.route = self.failed = self.origin = ""


#: Every request has them: to ask a request for what it does not have is costly.
NOTES: Final = web.RequestKey("notes", Notes)
