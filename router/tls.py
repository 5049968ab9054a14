"""Imports aiohttp without the certificates that it would read: they take a tenth of the start.

While it is imported, aiohttp has the system's certificates read, twice, for two contexts of its own. Every
client here brings another one, made in a thread when it is needed (`router.fetch`, `router.providers`). A
client that did not would trust nobody: its connections would be refused, not fooled.

Import this before anything that imports aiohttp.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: What reads certificates into a context.
_READS: Final = ("load_default_certs", "set_default_verify_paths")


@contextmanager
def _certificates_unread() -> Iterator[None]:
    """Contexts that are made meanwhile hold no certificates."""
    kind = ssl.SSLContext
    own = {name: kind.__dict__[name] for name in _READS if name in kind.__dict__}
    for name in _READS:
        setattr(kind, name, lambda *_: None)
    try:
        yield
    finally:
        for name in _READS:
            if name in own:
                setattr(kind, name, own[name])
            else:  # it was, and is again, the base's
                delattr(kind, name)


if "aiohttp" not in sys.modules:
    with _certificates_unread():
        import aiohttp  # noqa: F401  # for what it does
