"""The command line: run the router without a screen, and ask or steer a running one."""

from router.cli.main import main

__all__ = ["main"]
