"""A desktop on a virtual screen: an X server, a window manager, a tray, and the real program in it.

Nothing in the program helps: icon, panel and menu are found as a user finds them, on the screen.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from PySide6.QtGui import QImage

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
LONGEST_S: Final = 120.0
PANEL_WIDTH: Final = 400
_WINDOW: Final = re.compile(
    r'^\s+(0x[0-9a-f]+) (?:"(?P<name>[^"]*)"|\(has no name\)): \((?P<cls>.*)\)\s+'
    r"(?P<w>\d+)x(?P<h>\d+)[+-]-?\d+[+-]-?\d+\s+\+(?P<x>-?\d+)\+(?P<y>-?\d+)$"
)


class Window(NamedTuple):
    """A window of the X server, in screen coordinates."""

    id: str
    name: str
    x: int
    y: int
    width: int
    height: int

    @property
    def middle(self) -> tuple[int, int]:
        return self.x + self.width // 2, self.y + self.height // 2


def wait_for(what: str, look: Callable[[], T | None], seconds: float = LONGEST_S) -> T:
    """What `look` finds, as soon as it finds something that is true."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        pause.wait(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def virtual_screen(
    size: str = "1280x1000x24", environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """An X server without a monitor, and the value of `DISPLAY` for it."""
    read, write = os.pipe()
    process = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", size, "-nolisten", "tcp"],
        env=dict(environ),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(write,),
    )
    os.close(write)
    try:
        with os.fdopen(read) as numbers:
            display = f":{numbers.readline().strip()}"
        yield process, display
    finally:
        end(process)


class Desktop:
    """One virtual screen and what runs on it."""

    def __init__(self, root: Path, size: str = "1280x1000x24") -> None:
        self.root = root
        self._size = size
        self._stack = contextlib.ExitStack()
        self._tray: subprocess.Popen[bytes] | None = None
        self.x_server: subprocess.Popen[bytes] | None = None
        runtime = root / "runtime"
        runtime.mkdir(mode=0o700, parents=True)
        self.environ = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("XDG_", "QT_", "LEMON_TRAY_", "DBUS_", "WAYLAND_"))
        }
        self.environ |= {"HOME": str(root), "XDG_RUNTIME_DIR": str(runtime), "LC_ALL": "C.UTF-8"}
        for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
            self.environ[f"XDG_{kind}_HOME"] = str(root / kind.lower())

    def __enter__(self) -> Desktop:
        self.x_server, self.environ["DISPLAY"] = self._stack.enter_context(
            virtual_screen(self._size, self.environ)
        )
        self.run(["openbox"])
        wait_for(
            "the window manager", lambda: "_NET_SUPPORTING_WM_CHECK(WINDOW)" in self.tool("xprop", "-root")
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program that ends with the desktop at the latest."""
        options.setdefault("stdout", subprocess.DEVNULL)
        options.setdefault("stderr", subprocess.DEVNULL)
        process = subprocess.Popen(command, env=self.environ, cwd=ROOT, **options)
        self._stack.callback(end, process)
        return process

    def tool(self, *command: str) -> str:
        """The output of a small X program, "" if it failed."""
        ran = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=False, timeout=LONGEST_S
        )
        return ran.stdout

    def start_tray(self) -> None:
        options = ["--edge", "top", "--align", "right", "--widthtype", "request", "--height", "28"]
        self._tray = self.run(["trayer", *options, "--SetDockType", "true", "--SetPartialStrut", "true"])
        wait_for("the tray", lambda: any(w.name == "panel" for w in self.windows()))

    def stop_tray(self) -> None:
        assert self._tray is not None
        end(self._tray)

    def windows(self) -> list[Window]:
        """All windows that are on the screen or could be."""
        found = []
        for line in self.tool("xwininfo", "-root", "-tree").splitlines():
            match = _WINDOW.match(line)
            if match:
                x, y, w, h = (int(match[k]) for k in ("x", "y", "w", "h"))
                found.append(Window(match[1], match["name"] or "", x, y, w, h))
        return found

    def is_shown(self, window: Window) -> bool:
        return "Map State: IsViewable" in self.tool("xwininfo", "-id", window.id)

    def icon(self) -> Window | None:
        """The program's icon in the tray."""
        for window in self.windows():
            if window.name == "Lemon Tray" and 8 < window.width < 64 and 0 <= window.y < 40:
                return window if self.is_shown(window) else None
        return None

    def panel(self) -> Window | None:
        for window in self.windows():
            if window.name == "Lemon Tray" and window.width == PANEL_WIDTH and self.is_shown(window):
                return window
        return None

    def menu(self) -> Window | None:
        """The text menu, or None while none is open."""
        for window in self.windows():
            is_ours = window.name in ("__main__.py", "lemon-tray", "Lemon Tray")
            if is_ours and window.width != PANEL_WIDTH and window.width > 64 and self.is_shown(window):
                return window
        return None

    def click(self, x: int, y: int, button: int = 1) -> None:
        self.tool("xdotool", "mousemove", str(x), str(y), "click", str(button))

    def key(self, *keys: str) -> None:
        self.tool("xdotool", "key", *keys)

    def picture(self, path: Path | None = None) -> QImage:
        """The screen as it is."""
        target = path or self.root / "screen.png"
        self.tool("import", "-window", "root", str(target))
        return QImage(str(target))

    def pixel(self, x: int, y: int) -> str:
        return self.picture().pixelColor(x, y).name()

    def open_menu(self) -> Window:
        """Click the icon with the right button until its menu is there."""
        icon = wait_for("the icon", self.icon)
        # Elsewhere each time: two clicks at one place could make a double click, which opens nothing. And
        # again, for a window that has just closed may take the menu with it when the keyboard goes elsewhere.
        for side in itertools.islice(itertools.cycle((3, 18, 10)), 6):
            self.click(icon.x + side, icon.middle[1], button=3)
            with contextlib.suppress(AssertionError):
                return wait_for("the menu", self.menu, 4)
        return wait_for("the menu", self.menu)

    def app(self, *arguments: str, port: int | None = None) -> App:
        """Start the program."""
        return App(self, port if port is not None else free_port(), arguments)


class App:
    """The running program, seen from outside."""

    def __init__(self, desktop: Desktop, port: int, arguments: tuple[str, ...]) -> None:
        self.desktop = desktop
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.errors = desktop.root / f"stderr-{port}.txt"
        self.output = desktop.root / f"stdout-{port}.txt"
        command = [sys.executable, "-X", "dev", "-m", "lemon_tray", "--port", str(port), *arguments]
        with self.errors.open("wb") as errors, self.output.open("wb") as output:
            self.process = desktop.run(command, stderr=errors, stdout=output)

    def ready(self) -> App:
        """Wait until the endpoint answers."""
        wait_for("the endpoint", lambda: self.process.poll() is None and self.health())
        return self

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=LONGEST_S) as answer:  # noqa: S310  # our own URL
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(  # noqa: S310  # our own URL
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:  # noqa: S310  # our own URL
            return json.load(answer)

    def health(self) -> dict[str, Any] | None:
        """The health document, None while nothing answers."""
        try:
            answer: dict[str, Any] = self.get("/v1/health")
        except (OSError, urllib.error.URLError):
            return None
        return answer

    def children(self) -> set[int]:
        """Processes below the program, however deep."""
        found: set[int] = set()
        waiting = [self.process.pid]
        while waiting:
            for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    new = {int(pid) for pid in task.read_text().split()} - found
                    found |= new
                    waiting += new
        return found

    def ended(self, seconds: float = LONGEST_S) -> int:
        """Wait for its end; the exit status."""
        return self.process.wait(seconds)

    def complaints(self) -> list[str]:
        """What it wrote to stderr, but for the log's lines of normal life and of a busy machine."""
        lines = self.errors.read_text(encoding="utf-8", errors="replace").splitlines()
        usual = (" INFO ", "Executing <", "The event loop was blocked")
        return [line for line in lines if not any(words in line for words in usual)]


def alive(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a program, gently first."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def desktop_with_tray(root: Path) -> Iterator[Desktop]:
    with Desktop(root) as desktop:
        desktop.start_tray()
        yield desktop
