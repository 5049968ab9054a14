"""A bare Debian system, and the program that a package put into it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.desktop import free_port, virtual_screen, wait_for

USER: Final = "tester"
HOME: Final = f"/home/{USER}"
PATHS: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MODEL: Final = "SmolLM2-135M-Instruct.Q4_1"
LONGEST_S: Final = 120.0
#: What installing any package changes.
OF_APT: Final = (
    "var/cache",
    "var/lib/apt",
    "var/lib/dpkg",
    "var/log",
    "proc",
    "sys",
    "dev",
    "tmp",
    "run",
    "home",
)


def built(pattern: str) -> Path:
    """The package that is tried. `python3 dev.py test --packages` says where they are."""
    folder = os.environ.get("PACKAGES_TEST_DIR")
    found = sorted(Path(folder).glob(pattern)) if folder else []
    if not found:
        pytest.skip(f"no {pattern} was built: python3 dev.py test --packages")
    return found[-1]


class Bare:
    """A Debian system with nothing in it that a package does not ask for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def command(self, *words: str, user: str = "", **environment: str) -> list[str]:
        """The words that run words in it."""
        home = HOME if user else "/root"
        given = {
            "HOME": home,
            "PATH": PATHS,
            "LANG": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            **environment,
        }
        return [
            *(
                "chroot",
                *((f"--userspec={user}:{user}",) if user else ()),
                str(self.root),
                "/usr/bin/env",
                "-i",
            ),
            *(f"{name}={value}" for name, value in given.items()),
            *words,
        ]

    def run(self, *words: str, user: str = "", **environment: str) -> str:
        done = subprocess.run(
            self.command(*words, user=user, **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    def files(self) -> set[str]:
        """Everything in it but what apt keeps for itself."""
        found: set[str] = set()
        for folder, folders, names in os.walk(self.root):
            inside = os.path.relpath(folder, self.root)
            folders[:] = [name for name in folders if os.path.normpath(f"{inside}/{name}") not in OF_APT]
            found.update(os.path.normpath(f"{inside}/{name}") for name in (*names, *folders))
        return found


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    if os.geteuid() != 0:
        pytest.skip("a bare system can only be made by root")
    if shutil.which("mmdebstrap") is None or shutil.which("Xvfb") is None:
        pytest.skip("mmdebstrap and Xvfb (packages mmdebstrap and xvfb) are not installed")
    root = tmp_path_factory.mktemp("bare") / "root"
    apt = Path("/etc/apt")
    sources = [apt / "sources.list.d" / f"{name}.sources" for name in ("debian", "ubuntu")]
    source = next((path for path in (*sources, apt / "sources.list") if path.is_file()), None)
    suite = os.environ.get("PACKAGES_TEST_SUITE") or platform.freedesktop_os_release()["VERSION_CODENAME"]
    made = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", suite, str(root), *([str(source)] if source else [])],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a bare {suite} cannot be made here: {made.stderr[-500:]}")
    # The way to the package index that this machine is set up with.
    for name in ("etc/resolv.conf", "etc/hosts"):
        if Path("/", name).exists():
            shutil.copyfile(Path("/", name), root / name)
    for name in ("etc/apt/apt.conf.d", "etc/ssl", "usr/local/share/ca-certificates"):
        if Path("/", name).is_dir():
            subprocess.run(["cp", "-rLn", f"/{name}/.", str(root / name)], check=False, capture_output=True)
    with contextlib.ExitStack() as stack:
        for name in ("proc", "sys", "dev"):
            place = str(root / name)
            if subprocess.run(["mount", "--bind", f"/{name}", place], check=False).returncode:
                pytest.skip("file systems cannot be mounted here")
            stack.callback(subprocess.run, ["umount", "-l", place], check=False)
            if name != "proc":
                # Should a clean-up of the folder ever come first, it must not reach this machine's devices.
                subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root / "dev" / "shm")], check=True)
        system = Bare(root)
        system.run("apt-get", "-qq", "update")
        system.run("useradd", "--create-home", USER)
        yield system


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """A screen on this machine: programs in the bare system reach it by its abstract socket."""
    with virtual_screen() as (_, name):
        yield name


class App:
    """The installed program, started as the user would."""

    def __init__(self, bare: Bare, display: str, program: str) -> None:
        self.port = free_port()
        runtime = bare.root / "run" / "user"
        runtime.mkdir(parents=True, exist_ok=True, mode=0o777)
        runtime.chmod(0o1777)
        started = time.monotonic()
        self.process = subprocess.Popen(
            bare.command(
                *(program, "--port", str(self.port), "--models-dir", f"{HOME}/gguf"),
                user=USER,
                DISPLAY=display,
                XDG_RUNTIME_DIR="/run/user",
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_for("the endpoint", self._answers, LONGEST_S)
        self.answered_s = time.monotonic() - started

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            assert self.process.stdout is not None
            raise AssertionError(self.process.stdout.read()[-3000:])
        try:
            return bool(self.get("/live") is not None)
        except OSError:
            return False

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.loads(answer.read() or b"{}")

    def chat(self) -> str:
        body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "Name a fruit."}]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=LONGEST_S * 4) as answer:  # noqa: S310  # our own
            return str(json.loads(answer.read())["choices"][0]["message"]["content"])

    def stream(self) -> http.client.HTTPResponse:
        """An answer that goes on for minutes, with its first piece read."""
        body = {
            "model": MODEL,
            "stream": True,
            "max_tokens": 100_000,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "Count."}],
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        # With the answer's end the socket is closed, too.
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 200
        # Before it there may be comments: the model is being loaded.
        while not (line := answer.readline()).startswith(b"data: "):
            assert line.startswith((b":", b"\n")), line
        return answer

    def notices(self) -> list[str]:
        return [notice["id"] for notice in self.get("/v1/notices")["notices"]]

    def memory(self) -> int:
        """Bytes of the app itself."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) << 10

    def ended(self) -> int:
        return self.process.wait(60)

    def quit(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()


@pytest.fixture
def start(bare: Bare, display: str) -> Iterator[Callable[..., App]]:
    """Starts the program, by its name or path; what still runs at the end is ended."""
    apps: list[App] = []

    def start(program: str = "lemon-tray") -> App:
        apps.append(App(bare, display, program))
        return apps[-1]

    yield start
    for app in apps:
        if app.process.poll() is None:
            app.process.kill()
            app.process.wait(30)
        if app.process.stdout is not None:
            app.process.stdout.close()


def ends_with_an_error(answer: http.client.HTTPResponse) -> bool:
    """Whether an answer under way was ended in an orderly way: whole, and its last event is an error."""
    events = [line for line in answer.read().splitlines() if line.startswith(b"data: ")]
    last = next(line for line in reversed(events) if line != b"data: [DONE]")
    return json.loads(last.removeprefix(b"data: ")).get("error", {}).get("code") == "shutting_down"
