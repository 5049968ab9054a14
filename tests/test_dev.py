"""dev.py: its decisions, its messages, and a set-up that was interrupted."""

from __future__ import annotations

import ast
import errno
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import dev

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)", re.MULTILINE)


# --- the lock files ----------------------------------------------------------------------------------


def locked(name: str) -> dict[str, Version]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return {canonicalize_name(pin["name"]): Version(pin["version"]) for pin in PIN.finditer(text)}


def declared(*groups: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = list(project["project"]["dependencies"])
    named = project["dependency-groups"] | project["project"]["optional-dependencies"]
    for group in groups:
        lines += named[group]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("requirements.lock", ("build",)),
        ("requirements-dev.lock", ("build", "dev")),
        ("requirements-package.lock", ("build", "package")),
    ],
)
def test_the_lock_matches_pyproject(name: str, groups: tuple[str, ...]) -> None:
    pins = locked(name)
    stale = [
        str(requirement)
        for requirement in declared(*groups)
        if (pin := pins.get(canonicalize_name(requirement.name))) is None or pin not in requirement.specifier
    ]
    assert stale == [], "run: python3 dev.py lock"


@pytest.mark.parametrize("name", ["requirements-dev.lock", "requirements-package.lock"])
def test_all_locks_name_the_same_releases(name: str) -> None:
    assert locked("requirements.lock").items() <= locked(name).items()


def test_the_build_backend_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pins = locked("requirements.lock")
    for line in project["build-system"]["requires"]:
        requirement = Requirement(line)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("name", dev.Setup.LOCKS.values())
def test_the_lock_names_no_place_and_hashes_everything(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    requirements = re.sub(r"\\\n\s*", "", text)
    lines = [line for line in requirements.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"^[A-Za-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line
    assert not re.search(r"https?:|file:| @ |--(?:extra-)?index-url|--find-links", text)


# --- an old Python -----------------------------------------------------------------------------------


def test_an_old_python_is_told_so() -> None:
    source = (ROOT / "dev.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))  # or the message would be a syntax error
    program = (
        "import runpy, sys; sys.version_info = (3, 9, 2, 'final', 0); sys.version = '3.9.2 (old)'; "
        "sys.argv = ['dev.py', 'test']; runpy.run_path('dev.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Lemon Tray needs Python 3.11 or newer, and this is 3.9.2:")


# --- commands ----------------------------------------------------------------------------------------


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main([]) == 0
    text = capsys.readouterr().out
    assert set(re.findall(r"^  (\w+) ", text, re.MULTILINE)) == set(dev.COMMANDS)


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["tset"]) == dev.NEEDS_YOU
    # Last, where it is seen, and with what was meant.
    assert capsys.readouterr().err.endswith("\ndev.py knows no command 'tset'. Did you mean test?\n")
    assert dev.main(["xyz"]) == dev.NEEDS_YOU
    assert capsys.readouterr().err.endswith("knows no command 'xyz'.\n")


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["bench", "nothing"]) == dev.NEEDS_YOU
    assert "first_token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        ([], True),
        (["--demo"], True),
        (["run", "--demo"], True),
        (["serve", "--port", "0"], False),
        (["--version"], False),
    ],
)
def test_only_the_tray_app_needs_qt(arguments: list[str], window: bool) -> None:
    assert dev.opens_window(arguments) is window


@pytest.mark.parametrize(
    ("arguments", "needs"), [([], True), (["run"], True), (["serve"], True), (["status"], False)]
)
def test_whatever_loads_models_needs_the_engines_libraries(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], needs: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(dev, "missing_libraries", lambda libraries: list(libraries.values()))
    assert ("libgomp1" in dev.missing_to_run(arguments)) is needs


@pytest.mark.skipif(sys.platform != "linux", reason="ldd is Linux's")
def test_every_library_that_the_engine_is_linked_to_is_installed_by_name() -> None:
    """A machine in use has them all, so only their names show what a new one lacks."""
    wheel = importlib.util.find_spec("xllamacpp")
    assert wheel is not None
    assert wheel.origin is not None
    found = set()
    for file in Path(wheel.origin).parent.rglob("*.so*"):
        told = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout
        found |= {line.split()[0] for line in told.splitlines() if "=>" in line}
    assert found
    # The C library's own, and what comes along with the C++ library's package.
    of_libc = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1"}
    assert found - of_libc <= set(dev.ENGINE_LIBRARIES)


class Replaced(Exception):
    """Stands for the program that dev.py becomes."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        super().__init__()
        self.command = list(command)
        self.environment = environment


@pytest.fixture
def becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to set up, and the program is not started but raised."""

    def replace(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        raise Replaced(command, environment or {})

    monkeypatch.setattr(dev, "replace", replace)
    monkeypatch.setattr(dev.Setup, "ensure", lambda *args, **kwargs: None)
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("becomes")
def test_run_passes_its_arguments_on() -> None:
    with pytest.raises(Replaced) as replaced:
        dev.main(["run", "--demo", "--simulate", "24GiB,24GiB"])
    assert replaced.value.command[1:] == ["-P", "-m", "lemon_tray", "--demo", "--simulate", "24GiB,24GiB"]


@pytest.mark.usefixtures("becomes")
@pytest.mark.parametrize(
    ("arguments", "tail", "profile"),
    [
        (["-k", "a or b"], ["-m", "not long and not vulkan and not packages", "-k", "a or b"], {}),
        (["--vulkan", "-x"], ["-m", "vulkan", "-x"], {}),
        (
            ["--long", "-x"],
            ["-m", "long", "-o", "faulthandler_timeout=0", "-x"],
            {"HYPOTHESIS_PROFILE": "long"},
        ),
    ],
)
def test_test_passes_its_arguments_on(
    arguments: list[str], tail: list[str], profile: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev, "ensure_vulkan", lambda setup: None)
    with pytest.raises(Replaced) as replaced:
        dev.main(["test", *arguments])
    assert replaced.value.command[1:] == ["-m", "pytest", *tail]
    assert replaced.value.environment == profile


@pytest.mark.usefixtures("becomes")
@pytest.mark.parametrize(("cores", "processes"), [(None, "1"), (2, "2"), (64, str(dev.MOST_AT_ONCE))])
def test_all_tests_run_side_by_side(
    cores: int | None, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    with pytest.raises(Replaced) as replaced:
        dev.main(["test"])
    assert replaced.value.command[-4:] == ["--numprocesses", processes, "--dist", "worksteal"]


@pytest.mark.parametrize("program", ["translations/texts.py", "tests/e2e/shots.py"])
def test_a_wrong_option_is_no_name_of_a_file(program: str) -> None:
    command = [sys.executable, str(ROOT / program), "--hlep"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unrecognized arguments: --hlep" in done.stderr


def test_a_user_without_a_home_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a number that has no name
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    dev.has_font()
    assert dev.cache_of_tests({}).name == "lemon-tray-tests"


# --- the system's packages ---------------------------------------------------------------------------


def test_missing_libraries_become_packages() -> None:
    libraries = {"liba.so.1": "a", "libb.so.2": "b", "libc.so.3": "c"}
    assert dev.missing_libraries(libraries, lambda library: library == "libb.so.2") == ["a", "c"]


def test_a_library_that_is_not_there_does_not_load() -> None:
    assert not dev.loads("libnothing-of-that-name.so.77")
    assert dev.loads("libc.so.6") or sys.platform != "linux"


def test_missing_tools_become_packages() -> None:
    assert dev.missing_tools(lambda tool: None if tool in ("xprop", "trayer") else f"/usr/bin/{tool}") == [
        "trayer",
        "x11-utils",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="only there a compiler is asked for")
def test_a_compiler_is_one_with_headers(tmp_path: Path) -> None:
    header = tmp_path / "stdio.h"
    wanted = ["gcc", "libc6-dev"]
    assert dev.missing_compiler(lambda tool: f"/usr/bin/{tool}", header) == wanted
    header.touch()
    assert dev.missing_compiler(lambda tool: f"/usr/bin/{tool}", header) == []
    assert dev.missing_compiler(lambda tool: None, header) == wanted


def test_fonts_are_looked_for_below_the_folders(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    assert not dev.has_font([tmp_path, tmp_path / "missing"])
    (tmp_path / "truetype").mkdir()
    (tmp_path / "truetype" / "Some.TTF").touch()
    assert dev.has_font([tmp_path])
    assert not dev.has_font([tmp_path], family=dev.TEST_FONT)
    (tmp_path / "Inter-Regular.otf").touch()
    assert dev.has_font([tmp_path], family=dev.TEST_FONT)


@pytest.mark.parametrize(
    ("uid", "apt", "expected"),
    [
        (
            1000,
            "/usr/bin/apt-get",
            "  sudo apt-get update && sudo apt-get install -y --no-install-recommends a b\n",
        ),
        (1000, None, "no apt here"),
        (0, None, "no apt here"),
    ],
)
def test_who_may_not_install_is_told_how(
    monkeypatch: pytest.MonkeyPatch, uid: int, apt: str | None, expected: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(shutil, "which", lambda name: apt)
    with pytest.raises(dev.Stop, match="Packages are missing for the tray app") as stop:
        dev.install(["a", "b"], "the tray app")
    assert stop.value.code == dev.NEEDS_YOU
    assert expected in str(stop.value)


def test_root_installs_with_apt_and_hears_why_it_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    apt = tmp_path / "apt-get"
    apt.write_text(
        f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >> {log}\n'
        'case "$*" in *broken*) echo "E: Unable to locate package broken."; exit 100;; esac\n'
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    dev.install([], "Nothing")
    assert not log.exists()
    dev.install(["a", "b"], "the tests")
    update, install = log.read_text().splitlines()
    assert update.startswith("noninteractive")
    assert update.endswith("update")
    assert install.endswith("install -y --no-install-recommends a b")
    with pytest.raises(
        dev.Stop, match=r"could not install broken: Unable to locate package broken\."
    ) as stop:
        dev.install(["broken"], "the tests")
    assert stop.value.code == dev.NOT_FETCHED


# --- pip's words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "WARNING: Retrying: NewConnectionError('Temporary failure in name resolution')\n"
            "ERROR: Could not find a version that satisfies the requirement a==1\n"
            "ERROR: No matching distribution found for a==1\n",
            "could not be fetched (No matching distribution found for a==1). Check the network",
        ),
        ("ERROR: No matching distribution found for a==1\n", "found for a==1: the package index cannot be"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n  a==1\n",
            "its hash differs",
        ),
        ("ERROR: Could not install packages due to an OSError: No space left\n", "OSError: No space left"),
    ],
)
def test_pip_failures_become_one_line(output: str, expected: str) -> None:
    line = dev.explain_pip(output)
    assert expected in line
    assert "\n" not in line


def test_a_disk_without_room_and_a_folder_that_is_not_ours_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(setup: dev.Setup, arguments: list[str]) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", f"{ROOT}/.venv.lock")

    monkeypatch.setitem(dev.COMMANDS, "run", denied)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert dev.main(["run"]) == dev.NEEDS_YOU
    told = capsys.readouterr().err
    assert told.startswith(
        f"dev.py: {ROOT}/.venv.lock: Permission denied. dev.py sets up everything in {ROOT}:"
    )
    assert told.count("\n") == 1
    monkeypatch.undo()
    usage = shutil.disk_usage(ROOT)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5 << 20))
    assert dev.how_to_write().startswith(" Only 5 MiB are free in")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=dev.ROOM))
    assert dev.how_to_write() == ""


# --- the environment ---------------------------------------------------------------------------------


class Machine:
    """Stands for all programs that the set-up starts. `fail` is what the next matching command does."""

    def __init__(self, setup: dev.Setup) -> None:
        self.setup = setup
        self.commands: list[str] = []
        self.fail: dict[str, BaseException | str] = {}
        self.environments = 0
        self.packages: set[str] = set()

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        words = " ".join(command)
        self.commands.append(words)
        for part, failure in self.fail.items():
            if part in words:
                del self.fail[part]
                if isinstance(failure, BaseException):
                    raise failure
                return subprocess.CompletedProcess(command, 1, failure)
        output = ""
        if "-m venv" in words:
            self.environments += 1
            self.packages.clear()
            self.setup.interpreter.parent.mkdir(parents=True)
            self.setup.interpreter.touch()
        elif "sys.prefix" in words:
            if not self.setup.interpreter.exists():
                return subprocess.CompletedProcess(command, 127, "not found")
            output = f"{sys.version_info[0]} {sys.version_info[1]} {self.setup.venv}\n"
        elif "--require-hashes" in words:
            self.packages.add(Path(command[-1]).name)
        return subprocess.CompletedProcess(command, 0, output)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "version.py").write_text('__version__ = "1"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "lemon-tray"\n')
    for lock in dev.Setup.LOCKS.values():
        (tmp_path / lock).write_text("a==1 --hash=sha256:0\n")
    machine = Machine(dev.Setup(tmp_path, sys.executable))
    monkeypatch.setattr(dev, "run_quietly", machine)
    return machine


def test_a_second_start_does_nothing(machine: Machine) -> None:
    machine.setup.ensure("run")
    assert machine.packages == {"requirements.lock"}
    machine.commands.clear()
    machine.setup.ensure("run")
    assert machine.commands == []


def test_the_development_group_serves_to_run(machine: Machine) -> None:
    machine.setup.ensure("dev")
    machine.commands.clear()
    machine.setup.ensure("run")
    assert machine.commands == []


def test_tests_add_to_what_run_installed(machine: Machine) -> None:
    machine.setup.ensure("run")
    machine.setup.ensure("dev")
    assert machine.packages == {"requirements.lock", "requirements-dev.lock"}
    assert machine.environments == 1


@pytest.mark.parametrize("step", ["-m venv", "--require-hashes", "--editable", "PySide6"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), "ERROR: broken"], ids=["killed", "failed"])
def test_an_interrupted_setup_is_made_anew(machine: Machine, step: str, failure: BaseException | str) -> None:
    machine.fail[step] = failure
    with pytest.raises((dev.Stop, KeyboardInterrupt)):
        machine.setup.ensure("dev", purpose="the tests")
    assert not machine.setup.ready("dev")
    assert not machine.setup.ready("run")
    left = machine.setup.venv / "half-installed"
    left.touch()

    machine.setup.ensure("dev", purpose="the tests")
    assert machine.setup.ready("dev")
    assert machine.packages == {"requirements-dev.lock"}
    assert not left.exists()


def test_a_kill_before_the_first_mark_is_noticed(machine: Machine) -> None:
    machine.setup.venv.mkdir()
    machine.setup.ensure("run")
    assert machine.environments == 1


def test_an_interrupted_update_is_made_anew(machine: Machine) -> None:
    machine.setup.ensure("run")
    (machine.setup.root / "requirements.lock").write_text("a==2 --hash=sha256:0\n")
    machine.fail["--require-hashes"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        machine.setup.ensure("run")
    machine.setup.ensure("run")
    assert machine.environments == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.lock", "a==2 --hash=sha256:0\n"),
        ("router/version.py", '__version__ = "2"\n'),
        ("pyproject.toml", '[project]\nname = "lemon-tray"\ndependencies = ["a"]\n'),
    ],
)
def test_a_change_that_matters_is_installed(machine: Machine, name: str, text: str) -> None:
    machine.setup.ensure("run")
    (machine.setup.root / name).write_text(text)
    assert not machine.setup.ready("run")
    machine.setup.ensure("run")
    assert machine.setup.ready("run")
    assert machine.environments == 1


def test_a_change_of_a_tool_s_settings_installs_nothing(machine: Machine) -> None:
    machine.setup.ensure("run")
    (machine.setup.root / "pyproject.toml").write_text('[project]\nname = "lemon-tray"\n[tool.ruff]\nx = 1\n')
    assert machine.setup.ready("run")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_checkout_with_an_umlaut_in_its_path_is_found_in_every_locale(tmp_path: Path, locale: str) -> None:
    setup = dev.Setup(tmp_path / "Übung eins", sys.executable)
    packages = setup.venv / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (setup.root / "found_here.py").touch()
    # As the build backend writes it, without a line's end.
    (packages / "_lemon_tray.pth").write_text(str(setup.root), encoding="utf-8")
    (packages / "other.pth").write_text("import sys\n", encoding="utf-8")
    setup.spell_in_ascii()
    program = f"import site; site.addsitedir({os.fsencode(packages)!r}.decode()); import found_here"
    environment = {"PATH": os.environ["PATH"], "LC_ALL": locale}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (packages / "other.pth").read_text() == "import sys\n"


def test_an_environment_made_by_hand_is_kept(machine: Machine) -> None:
    machine([sys.executable, "-m", "venv", str(machine.setup.venv)])
    machine.setup.ensure("dev")
    assert machine.environments == 1
    assert machine.setup.ready("dev")


def test_a_dead_python_is_replaced(machine: Machine) -> None:
    machine.setup.ensure("run")
    (machine.setup.root / "requirements.lock").write_text("a==2 --hash=sha256:0\n")
    machine.setup.interpreter.unlink()
    machine.setup.ensure("run")
    assert machine.environments == 2


def test_missing_packages_of_the_system_are_installed_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[tuple[list[str], str]] = []
    missing = ["libegl1"]

    def install(packages: list[str], purpose: str) -> None:
        installed.append((list(packages), purpose))
        missing.clear()

    monkeypatch.setattr(dev, "install", install)
    machine.setup.ensure("run", packages=lambda: list(missing), purpose="the tray app")
    assert installed == [(["libegl1"], "the tray app")]
    installed.clear()
    machine.setup.ensure("run", packages=lambda: list(missing), purpose="the tray app")
    assert installed == []
    # They may also vanish after the environment was made.
    missing.append("libgl1")
    machine.setup.ensure("run", packages=lambda: list(missing), purpose="the tray app")
    assert installed == [(["libgl1"], "the tray app")]


def test_debian_s_python_without_venv_gets_its_package(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(dev, "install", lambda packages, purpose: installed.append(list(packages)))
    machine.fail["import ensurepip, venv"] = "ModuleNotFoundError: No module named 'ensurepip'"
    machine.setup.ensure("run", packages=lambda: ["libegl1"], purpose="the tray app")
    # In one go, so that whoever may not install has one line to type.
    assert installed == [[f"python{sys.version_info[0]}.{sys.version_info[1]}-venv", "libegl1"]]
    assert machine.setup.ready("run")


def test_only_one_setup_works_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "lock"
    with dev.alone(lock), lock.open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_setup_waits_for_another(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import dev, pathlib\n"
    program += f"with dev.alone(pathlib.Path({str(lock)!r})): print('in')\n"
    with dev.alone(lock):
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        assert "waiting" in child.stderr.readline()
        assert child.poll() is None
    out, _ = child.communicate(timeout=60)
    assert out == "in\n"
    assert child.returncode == 0


def test_what_a_killed_setup_leaves_running_is_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    child = "import sys; print('at work', file=sys.stderr, flush=True); sys.stdin.read()"
    program = f"""
import os, pathlib, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
import dev
with dev.alone(pathlib.Path({str(lock)!r})):
    run = subprocess.run
    subprocess.run = lambda command, **options: run(command, **{{**options, "stdin": None, "stderr": None}})
    dev.run_quietly([sys.executable, "-c", {child!r}])
"""
    setup = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert setup.stderr is not None
    assert setup.stdin is not None
    assert setup.stderr.readline() == "at work\n"
    setup.kill()
    setup.wait()
    with lock.open("w") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        setup.stdin.close()
        fcntl.flock(other, fcntl.LOCK_EX)
    setup.stderr.close()
