"""What an engine is and which devices it reaches, found out in short-lived children.

Nothing is found out twice: what was found is kept in memory and, where an engine can be used, on the disk, by
everything that the answer depends on.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from router.engines import worker as worker_program
from router.engines.base import Capabilities, EngineDevice
from router.engines.guard import guarded, program_environ
from router.engines.llama import common_environ
from router.engines.process import StopLimits, WorkerProcess, launch
from router.engines.worker import DEVICES
from router.settings.files import write_atomically
from router.units import MIB

log = logging.getLogger(__name__)

#: Seconds for one child. A GPU's driver may take long over its first use after the start of the machine.
LIMIT_S: Final = 30.0
#: Characters of one child's output that are looked at.
_MAX_OUTPUT: Final = 1 << 18
_FORMAT: Final = 1
PACKAGE: Final = "xllamacpp"
_TITLE: Final = "llama.cpp, embedded"
_OPTION: Final = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_VERSION: Final = re.compile(r"version: (?P<first>\S+)(?: \((?P<rest>[^)]*)\))?")
_DEVICE: Final = re.compile(
    r"\s*(?P<name>[A-Za-z]+\d+): (?P<description>.+) \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)\s*"
)
#: Names of back ends where they are not the small letters of the device's name.
_BACKENDS: Final = {"mtl": "metal"}
#: Environment on which it depends what an engine reaches, by the beginnings of names.
_MATTERS: Final = tuple(
    f"{name}_"
    for name in (
        *("CUDA", "NVIDIA", "HIP", "ROCR", "HSA", "GPU_DEVICE", "GGML", "VK", "MESA", "DRI", "LD", "DYLD"),
        *("ONEAPI", "SYCL", "ZE", "MUSA", "LIBVA"),
    )
)
#: What must be among the options of a program that is a llama-server.
_SERVER: Final = frozenset({"--parallel", "--port", "--metrics"})
_ERROR: Final = re.compile(r"\berror\b|error:|cannot|no such file|not found|refused|denied", re.IGNORECASE)
_GPU_TROUBLE: Final = re.compile(
    r"(?:failed to initialize|no (?:cuda|rocm|hip|vulkan)\S* devices? |driver version is insufficient|"
    r"no devices found|failed to load)",
    re.IGNORECASE,
)


def worker_command() -> tuple[str, ...]:
    """The command that runs the worker program. Its own folder is kept off its import path."""
    if getattr(sys, "frozen", False):
        return (sys.executable, "--engine-worker")
    return (sys.executable, "-P", "-X", "utf8", os.fspath(Path(worker_program.__file__).resolve()))


def package_version() -> str:
    """The version of the embedded engine's package; "" if it is not installed."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def backend_of(name: str) -> str:
    """The back end of a device of that name: `CUDA0` is `cuda`'s."""
    prefix = name.rstrip("0123456789").lower()
    return _BACKENDS.get(prefix, prefix)


class _Said(Struct, frozen=True):
    code: int
    lines: tuple[str, ...]
    problem: str = ""


class _Record(Struct, frozen=True):
    format: int
    key: str
    found: Capabilities


class Prober:
    """Probes engines; `await prober(path)`, with None for the embedded one. Use it on one loop.

    A child is killed after `limit_s` seconds, and when the call is cancelled.
    """

    def __init__(
        self, cache_dir: Path | None = None, *, limit_s: float = LIMIT_S, command: Sequence[str] = ()
    ) -> None:
        """`cache_dir` keeps what was found; None for memory only. `command` replaces the worker program's."""
        self._cache_dir = cache_dir
        self._limit_s = limit_s
        self._command = tuple(command) or worker_command()
        self._known: dict[str, Capabilities] = {}
        self._under_way: dict[str, asyncio.Lock] = {}

    async def __call__(self, path: Path | None = None, *, again: bool = False) -> Capabilities:
        """What the engine is. `again` asks it although the answer is known.

        Never raises for the engine's fault: `problem` tells. Its `id` is the path, or `embedded`.
        """
        environ = common_environ()
        program = path or _package_file()
        key = await asyncio.to_thread(_key, program, path is None, environ)
        async with self._under_way.setdefault(key, asyncio.Lock()):
            if not again:
                if (known := self._known.get(key)) is not None:
                    return known
                if (kept := await asyncio.to_thread(self._read, key)) is not None:
                    self._known[key] = kept
                    return kept
            if path is None:
                found = await self._probe_embedded(environ)
            else:
                found = await self._probe_program(path, environ)
            if found.problem:
                log.info("%s cannot be used: %s", found.path or "The embedded engine", found.problem)
            else:
                await asyncio.to_thread(self._write, key, found)
            self._known[key] = found
            return found

    async def _probe_embedded(self, environ: Mapping[str, str]) -> Capabilities:
        base = Capabilities("embedded", _TITLE, package_version())
        said = await self._ask((*self._command, "devices"), environ)
        line = next((line for line in said.lines if line.startswith(DEVICES)), "")
        problem = said.problem or ("" if line else _problem(said, "the engine told nothing"))
        if problem:
            return msgspec.structs.replace(base, problem=problem)
        try:
            devices = tuple(
                EngineDevice(gpu["name"], backend_of(gpu["name"]), gpu["description"], int(gpu["total"]))
                for gpu in json.loads(line.removeprefix(DEVICES))
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return msgspec.structs.replace(base, problem="the engine's list of devices cannot be read")
        return msgspec.structs.replace(base, devices=devices, note=_note(said.lines, devices))

    async def _probe_program(self, path: Path, environ: Mapping[str, str]) -> Capabilities:
        base = Capabilities(str(path), f"llama-server at {path}", "", str(path))
        if problem := await asyncio.to_thread(_no_program, path):
            return msgspec.structs.replace(base, problem=problem)
        environ = {**environ, **program_environ()}
        answers: list[_Said] = []
        # One after the other: what is wrong with the first is wrong with all.
        for option in ("--version", "--help", "--list-devices"):
            said = await self._ask(guarded((str(path), option)), environ)
            if said.problem or said.code:
                return msgspec.structs.replace(
                    base, problem=said.problem or _problem(said, "it told nothing")
                )
            answers.append(said)
        version, help, listed = answers
        options = frozenset(option for line in help.lines for option in _OPTION.findall(line))
        told = next((match for line in version.lines if (match := _VERSION.search(line))), None)
        if told is None or not options >= _SERVER:
            return msgspec.structs.replace(base, problem="it is no llama-server")
        devices = tuple(
            EngineDevice(
                match["name"], backend_of(match["name"]), match["description"], int(match["total"]) * MIB
            )
            for line in listed.lines
            if (match := _DEVICE.fullmatch(line))
        )
        return msgspec.structs.replace(
            base,
            version=f"{told['first']} ({told['rest']})" if told["rest"] else told["first"],
            devices=devices,
            options=tuple(sorted(options)),
            note=_note(listed.lines, devices),
        )

    async def _ask(self, command: Sequence[str], environ: Mapping[str, str]) -> _Said:
        """Run a command to its end and return what it printed, or a problem."""
        child = WorkerProcess(
            command, "", StopLimits(), lambda share: None, lambda data: None, max_tail=_MAX_OUTPUT
        )
        try:
            await launch(child, environ)
        except OSError as error:
            return _Said(1, (), f"it cannot be started: {error.strerror or error}")
        in_time = False
        try:
            child.end_input()
            await asyncio.wait([child.exited], timeout=self._limit_s)
            in_time = child.exited.done()
        finally:
            await child.kill()
            await child.aclose()
        if not in_time:
            return _Said(1, (), f"it did not answer within {self._limit_s:g} s")
        ended = child.exited.result()
        return _Said(ended.code, ended.log_tail)

    def _path(self, key: str) -> Path | None:
        return None if self._cache_dir is None else self._cache_dir / f"engine-{key[:32]}.json"

    def _read(self, key: str) -> Capabilities | None:
        path = self._path(key)
        if path is None:
            return None
        try:
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
        except (OSError, msgspec.MsgspecError):
            return None
        return record.found if record.format == _FORMAT and record.key == key else None

    def _write(self, key: str, found: Capabilities) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            write_atomically(path, msgspec.json.encode(_Record(_FORMAT, key, found)))
        except OSError as error:
            log.warning("What an engine can do cannot be kept in %s: %s", path.parent, error)


def _package_file() -> Path | None:
    """The embedded engine's library, found without loading it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return next(iter(sorted(folder.glob(f"{PACKAGE}.*"))), Path(spec.origin))


def _key(program: Path | None, embedded: bool, environ: Mapping[str, str]) -> str:
    """Changes with whatever the answer depends on. A driver that is new has mostly come with a new boot."""
    parts = [f"{_FORMAT}", sys.version, "embedded" if embedded else "program", str(program), _boot()]
    try:
        if program is not None:
            status = program.stat()
            parts += [str(program.resolve()), str(status.st_size), str(status.st_mtime_ns)]
    except OSError as error:
        parts.append(str(error.errno))
    parts += sorted(f"{name}={value}" for name, value in environ.items() if name.startswith(_MATTERS))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _no_program(path: Path) -> str:
    """Why that cannot be a program; "" if it can."""
    try:
        if path.is_dir():
            return "it is a folder"
        if not path.exists():
            return "there is no such file"
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    if not path.is_file():
        return "it is no file"
    return "" if os.access(path, os.X_OK) else "it is not executable"


def _problem(said: _Said, otherwise: str) -> str:
    if said.code == -signal.SIGILL:
        return "it is built for another kind of processor than this machine's"
    last = next((line.strip() for line in reversed(said.lines) if line.strip()), "")
    if said.code < 0:
        return f"it was ended by signal {-said.code}" + (f": {last[:300]}" if last else "")
    if error := next((line.strip() for line in said.lines if _ERROR.search(line)), ""):
        return error[:300]
    if said.code:
        return f"it ended with status {said.code}" + (f" ({last[:300].rstrip('.')})" if last else "")
    return otherwise


def _note(lines: Sequence[str], devices: Sequence[EngineDevice]) -> str:
    """What was said about GPUs, if none was found."""
    if devices:
        return ""
    return next((line.strip()[:300] for line in lines if _GPU_TROUBLE.search(line)), "")
