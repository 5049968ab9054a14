"""The Debian package in a bare system: installed, started, asked, upgraded, removed and purged.

`python3 dev.py test --packages` builds it first. It needs root, for the bare system, and takes some minutes.
"""

from __future__ import annotations

import contextlib
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

from router.service.notices import POOL_NOTICE
from tests.e2e.desktop import free_port, virtual_screen, wait_for
from tests.support.gguf import write_model

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1200)]

ROOT: Final = Path(__file__).resolve().parents[2]
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


def the_deb() -> Path:
    given = os.environ.get("PACKAGES_TEST_DEB")
    found = [Path(given)] if given else sorted((ROOT / "dist").glob("lemon-tray_*.deb"))
    if not found:
        pytest.skip("there is no package in dist/: python3 dev.py package deb")
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


@pytest.fixture(scope="module")
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
            done = subprocess.run(["mount", "--bind", f"/{name}", str(root / name)], check=False)
            if done.returncode:
                pytest.skip("file systems cannot be mounted here")
            stack.callback(subprocess.run, ["umount", "-l", str(root / name)], check=False)
        system = Bare(root)
        system.run("apt-get", "-qq", "update")
        system.run("useradd", "--create-home", USER)
        yield system


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """A screen on this machine: programs in the bare system reach it by its abstract socket."""
    with virtual_screen() as (_, name):
        yield name


class App:
    """The installed program, started as the user would."""

    def __init__(self, bare: Bare, display: str) -> None:
        self.port = free_port()
        runtime = bare.root / "run" / "user"
        runtime.mkdir(parents=True, exist_ok=True, mode=0o777)
        runtime.chmod(0o1777)
        started = time.monotonic()
        self.process = subprocess.Popen(
            bare.command(
                *("lemon-tray", "--port", str(self.port), "--models-dir", f"{HOME}/gguf"),
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
def start(bare: Bare, display: str) -> Iterator[Callable[[], App]]:
    """Starts the program; what still runs at the end is ended."""
    apps: list[App] = []

    def start() -> App:
        apps.append(App(bare, display))
        return apps[-1]

    yield start
    for app in apps:
        if app.process.poll() is None:
            app.process.kill()
            app.process.wait(30)
        if app.process.stdout is not None:
            app.process.stdout.close()


@pytest.fixture(scope="module")
def older(bare: Bare, demo_model: Path) -> Path:
    """The user's home as an older version left it: no new key, and a policy with three models."""
    home = bare.root / HOME.lstrip("/")
    gguf = home / "gguf"
    gguf.mkdir()
    shutil.copyfile(demo_model, gguf / demo_model.name)
    for name in ("second", "third"):
        write_model(gguf / f"{name}.gguf")
    config = home / ".config" / "lemon-tray"
    (config / "policies").mkdir(parents=True)
    (config / "config.json").write_text('{"max_loaded_models": 1, "of a later version": [1]}')
    (config / "policies" / "choice.json").write_text(
        json.dumps(
            {
                "version": "1",
                "recipe": "collection.router",
                "model_name": "choice",
                "components": [MODEL, "second", "third"],
                "routing": {
                    "candidates": [MODEL, "second", "third"],
                    "default_model": MODEL,
                    "rules": [{"id": "two", "match": {"keywords_any": ["two"]}, "route_to": "second"}],
                },
            }
        )
    )
    state = home / ".local" / "state" / "lemon-tray"
    state.mkdir(parents=True)
    (state / "state.json").write_text('{"last_run_version": "0.0.9"}')
    bare.run("chown", "-R", f"{USER}:{USER}", HOME)
    return home


def test_the_package_from_its_installation_to_its_purge(
    bare: Bare,
    start: Callable[[], App],
    older: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    deb = the_deb()
    shutil.copyfile(deb, bare.root / "tmp" / "first.deb")
    # What the package needs comes first, so that what it brings itself can be told from that.
    bare.run("apt-get", "-y", "--no-install-recommends", "install", "/tmp/first.deb")
    bare.run("dpkg", "--purge", "lemon-tray")
    before = bare.files()
    assert not [name for name in before if "lemon" in name.lower()]

    bare.run("dpkg", "--install", "/tmp/first.deb")
    assert "Lemon Tray" in bare.run("lemon-tray", "--version", user=USER)
    assert (bare.root / "usr/share/applications/lemon-tray.desktop").is_file()

    # It runs, and answers with a model in a worker of its own binary.
    app = start()
    first_s = app.answered_s
    assert app.chat()
    workers = subprocess.run(
        ["pgrep", "--parent", str(app.process.pid), "--list-full"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "/usr/lib/lemon-tray/lemon-tray --engine-worker" in workers.stdout
    rss = app.memory()

    # The notice is due, since an older version ran last; the panel shows it, and then it has been told.
    wait_for("the notice to be told", lambda: POOL_NOTICE not in app.notices(), LONGEST_S)
    told = json.loads((older / ".local/state/lemon-tray/state.json").read_text())
    assert told["owed"] == [POOL_NOTICE]
    assert told["told"] == [POOL_NOTICE]
    assert app.quit() == 0

    # Not again, after a start that is no upgrade.
    app = start()
    wait_for(
        "the policy",
        lambda: app.get("/v1/health")["llm_pool_autosize"]["candidate_floor"] == 3,
        LONGEST_S,
    )
    assert app.notices() == []

    # An upgrade while it runs ends it as quitting would, and the settings stay.
    unpacked = tmp_path / "newer"
    subprocess.run(["dpkg-deb", "-R", deb, unpacked], check=True)
    control = unpacked / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 1:"))
    subprocess.run(["dpkg-deb", "-Znone", "-b", unpacked, bare.root / "tmp" / "newer.deb"], check=True)
    assert "Stopping Lemon Tray" in bare.run("dpkg", "--install", "/tmp/newer.deb")
    assert app.ended() == 0
    config = json.loads((older / ".config/lemon-tray/config.json").read_text())
    assert config["of a later version"] == [1]
    assert config["max_loaded_models"] == 1

    app = start()
    again_s = app.answered_s
    assert app.notices() == []
    assert "candidate_floor" in bare.run(
        "lemon-tray", "status", "--json", user=USER, XDG_RUNTIME_DIR="/run/user"
    )

    # So does a removal; and nothing stays but what is the user's.
    assert "Stopping Lemon Tray" in bare.run("dpkg", "--remove", "lemon-tray")
    assert app.ended() == 0
    bare.run("dpkg", "--purge", "lemon-tray")
    assert bare.files() - before == set()
    assert before - bare.files() == set()
    assert (older / ".config/lemon-tray/policies/choice.json").is_file()
    assert (older / ".config/lemon-tray/config.json").is_file()

    size = int(control.read_text().split("Installed-Size: ")[1].split()[0])
    for name, value in (
        ("package_mb", round(deb.stat().st_size / 1e6, 1)),
        ("installed_mb", round(size * 1024 / 1e6, 1)),
        ("first_start_s", round(first_s, 3)),
        ("later_start_s", round(again_s, 3)),
        ("rss_mb", round(rss / 1e6, 1)),
    ):
        record_property(name, value)
        print(f"{name}: {value}")  # noqa: T201  # for docs/packaging.md


def test_lintian_finds_nothing_but_what_is_overridden_with_a_reason() -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", the_deb()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
