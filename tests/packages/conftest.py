"""The system that packages are tried in."""

from tests.packages.bare import bare, display, start

__all__ = ["bare", "display", "start"]
