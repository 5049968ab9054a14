"""The calls that ask models, and what is particular to each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from router.catalog.kinds import EMBEDDING, LLM, RERANKING
from router.web import anthropic
from router.web.options import WebOptions
from router.web.sse import COMMENT
from router.web.upload import Body


class Kind(Struct, frozen=True):
    """One of the API's calls.

    Attributes:
        path: the worker's path.
        type: the type of model that answers it.
        needs: per entry, the fields of which one must be there.
        streams: whether it can answer with a stream.
        keep: bytes of a stream's end that are kept to read its ending from.
        event: the name that an error's event needs for its clients to notice it; "" for none.
        beat: what tells a client that waits that it does not wait in vain.
        mend: makes of the body what the engine understands.
        called: the path that clients call, where that is another protocol's.
    """

    path: str
    type: str
    needs: tuple[tuple[str, ...], ...]
    streams: bool = False
    keep: int = 64 << 10
    event: str = ""
    beat: bytes = COMMENT
    mend: Callable[[Body, WebOptions], Awaitable[Body]] | None = None
    called: str = ""

    @property
    def shown(self) -> str:
        """The path, as clients know it."""
        return self.called or self.path


CHAT: Final = Kind("/v1/chat/completions", LLM, (("messages",),), streams=True)
COMPLETIONS: Final = Kind("/v1/completions", LLM, (("prompt",),), streams=True)
# The last event repeats the whole answer.
RESPONSES: Final = Kind("/v1/responses", LLM, (("input",),), streams=True, keep=1 << 20)
MESSAGES: Final = Kind(
    "/v1/messages",
    LLM,
    (("messages",),),
    streams=True,
    event="error",
    beat=anthropic.PING,
    mend=anthropic.mended,
)
COUNT_TOKENS: Final = Kind("/v1/messages/count_tokens", LLM, (("messages",),), mend=anthropic.mended)
EMBEDDINGS: Final = Kind("/v1/embeddings", EMBEDDING, (("input", "content"),))
RERANK: Final = Kind("/v1/rerank", RERANKING, (("query",), ("documents", "texts")))

KINDS: Final = {
    "/chat/completions": CHAT,
    "/completions": COMPLETIONS,
    "/responses": RESPONSES,
    "/messages": MESSAGES,
    "/messages/count_tokens": COUNT_TOKENS,
    "/embeddings": EMBEDDINGS,
    "/rerank": RERANK,
    "/reranking": RERANK,
}
