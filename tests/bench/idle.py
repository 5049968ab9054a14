"""What the tray app costs when nothing happens: memory and processor time over a minute.

The app runs on a virtual screen without a tray, so that it opens its panel as a window: shown, and idle.
No model is loaded. `--offscreen` does without a virtual screen.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import sys
import time
from collections.abc import Iterator
from subprocess import Popen

from _common import PATIENCE_S, PYTHON, child, clean_environment, cpu_s, family, memory, often, report

from tests.e2e.desktop import free_port, virtual_screen

SETTLE_S = often(10, 1)
MEASURE_S = often(60, 2)
MIB = 1 << 20


@contextlib.contextmanager
def screen(environment: dict[str, str]) -> Iterator[None]:
    """Put the environment on a new virtual screen."""
    with virtual_screen("1280x800x24", environment) as (_, display):
        if display == ":":
            raise RuntimeError("Xvfb did not start")
        environment["DISPLAY"] = display
        environment["QT_QPA_PLATFORM"] = "xcb"
        yield


def wait_until_live(process: Popen[str], port: int) -> None:
    """Return once the app answers.

    Raises:
        RuntimeError: it ended, or took too long.
    """
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the app ended with code {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/live")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.05)
    raise RuntimeError("the app did not answer in time")


def main(arguments: list[str]) -> int:
    offscreen = "--offscreen" in arguments or shutil.which("Xvfb") is None
    port = free_port()
    with clean_environment() as environment, contextlib.ExitStack() as stack:
        environment["LEMON_TRAY_PORT"] = str(port)
        environment.pop("WAYLAND_DISPLAY", None)
        if offscreen:
            environment["QT_QPA_PLATFORM"] = "offscreen"
        else:
            stack.enter_context(screen(environment))
        start = time.monotonic()
        process = stack.enter_context(child([PYTHON, "-m", "lemon_tray"], environment))
        wait_until_live(process, port)
        start_s = time.monotonic() - start
        time.sleep(SETTLE_S)
        used, since = cpu_s(process.pid), time.monotonic()
        time.sleep(MEASURE_S)
        share = (cpu_s(process.pid) - used) / (time.monotonic() - since)
        cost = memory(process.pid)
        others = len(family(process.pid)) - 1
    report(
        {
            "bench": "idle",
            "platform": "offscreen" if offscreen else "xcb",
            "start_to_live_s": round(start_s, 3),
            "seconds": MEASURE_S,
            "cpu_percent": round(share * 100, 3),
            "rss_bytes": cost["rss"],
            "pss_bytes": cost["pss"],
            "child_processes": others,
        },
        f"idle tray app: {cost['rss'] / MIB:.0f} MiB RSS, {cost['pss'] / MIB:.0f} MiB PSS, "
        f"{share * 100:.2f} % of one core over {MEASURE_S} s, live {start_s:.2f} s after its start",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
