"""The names of commands, which are known before any is loaded."""

from __future__ import annotations

from typing import Final

CLI_COMMANDS: Final = frozenset(
    {
        "config",
        "delete",
        "engine",
        "hub",
        "import",
        "key",
        "load",
        "models",
        "plan",
        "policy",
        "provider",
        "pull",
        "serve",
        "status",
        "stop",
        "unload",
        "--version",
    }
)
