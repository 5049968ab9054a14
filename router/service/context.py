"""The context that a request asks for, against the one that its model has or would have.

A context only ever grows for a request: one that is large enough is left as it is, so that programs which ask
for different contexts of one model do not have it loaded again in turn.
"""

from __future__ import annotations

from router.catalog.model import Model
from router.catalog.options import NO_OPTIONS, LoadOptions


def wider(model: Model, tokens: int, window: int, parallel: int) -> LoadOptions:
    """Options for a load that gives a request `tokens` of context; none where that changes nothing.

    Args:
        tokens: what the request asks for; what the model was trained for is the most that it gets.
        window: what a request has now, or would have; 0 if unknown.
        parallel: slots, which share the whole context.
    """
    most = model.context_length
    wanted = min(tokens, most) if most else tokens
    if not 0 < window < wanted:
        return NO_OPTIONS
    return LoadOptions(ctx_size=wanted * parallel)
