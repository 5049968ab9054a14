"""The rooms wired together: `Router` is what a tray, a command line or a test starts and stops."""

from router.service.router import Router

__all__ = ["Router"]
