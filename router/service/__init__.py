"""The rooms wired together: `Router` is what a tray, a command line or a test starts and stops."""

import router.tls  # noqa: F401  # before anything that imports aiohttp
from router.service.router import Router

__all__ = ["Router"]
