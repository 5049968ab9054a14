"""Has the kernel kill a program when its router dies, whatever program that is.

On Linux a process can ask to be killed when the thread that started it ends, and what it executes then
inherits that. So a child runs this file, which asks, and becomes the program: with the same process id, and
without code between fork and exec in the router. It needs nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
#: Exit status of a command that cannot be started, as in shells.
NOT_STARTED = 127


def guarded(command: Sequence[str]) -> tuple[str, ...]:
    """The command that starts another under guard; where there is no such guard, that command itself."""
    if sys.platform != "linux":
        return tuple(command)
    own = (
        (sys.executable, "--engine-worker", "guard")
        if getattr(sys, "frozen", False)
        else (sys.executable, "-I", "-S", os.path.abspath(__file__))
    )
    return (*own, str(os.getpid()), *command)


def program_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to set for a program of the system's: a packaged app leads to libraries of its own."""
    if not getattr(sys, "frozen", False):
        return {}
    return {
        name: environ.get(f"{name}_ORIG", "")
        for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
        if name in environ
    }


def outside_environ(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment as it was before a packaged app began to change it, here in the guard itself."""
    if not getattr(sys, "frozen", False):
        return dict(environ)
    found = {name: value for name, value in environ.items() if not name.startswith("_PYI_")}
    for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        before = found.pop(f"{name}_ORIG", "")
        found.pop(name, None)
        if before:
            found[name] = before
    return found


def die_with_parent() -> None:
    """From now on the kernel kills this process when the thread that started it ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(parent: int, command: Sequence[str]) -> NoReturn:
    """Become the command, unless the parent has died."""
    die_with_parent()
    # It may have died before the request to the kernel. A packaged app has a parent of its own between.
    if not getattr(sys, "frozen", False) and os.getppid() != parent:
        os._exit(1)
    try:
        os.execve(command[0], list(command), outside_environ())
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
    sys.stderr.flush()
    os._exit(NOT_STARTED)


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2:])
