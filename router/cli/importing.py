"""`import lemonade`: takes over what a Lemonade Server on this machine is set to, and says what it left.

Nothing of that server's is changed. What this reads, and what it takes for granted about those files, is in
docs/importing.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from router.catalog.options import check_options
from router.cli.context import Context
from router.cli.status import plain
from router.engines.arguments import check_arguments
from router.errors import BadRequest, ConfigError, RouterError
from router.policy.parse import RECIPE, parse_policy
from router.policy.store import file_name
from router.settings import schema
from router.settings.files import read_object, write_atomically, write_object
from router.settings.migrations import STEPS, VERSION_KEY, back_up, migrate
from router.settings.state import mark_imported
from router.units import GIB

CONFIG: Final = "config.json"
MODELS: Final = "user_models.json"
OPTIONS: Final = "recipe_options.json"
MAX_BYTES: Final = 16 << 20
#: More than any machine has; a larger number is no amount of memory.
MOST_GIB: Final = 1 << 20

#: Settings that are called and meant alike there.
ALIKE: Final = (
    "auto_evict",
    "auto_evict_threshold_pct",
    "llm_pool_autosize",
    "max_loaded_models",
    "port",
)
#: What a program that is not asked about a model's engine can do nothing with.
_NOTHING_SET: Final[tuple[Any, ...]] = (None, "", "auto", [], {}, False)
#: Names before the dot of a model's name there that say where it comes from.
_SOURCES: Final = ("user.", "extra.", "builtin.")


class Findings(Struct):
    """What is taken over, by where it goes, and what is left: each with the reason in words."""

    settings: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.settings or self.policies or self.options)


def add_commands(commands: Any) -> None:
    """Add `import` to the commands."""
    importing = commands.add_parser("import", help="take over the settings of another program")
    sources = importing.add_subparsers(title="programs", metavar="PROGRAM", required=True)
    lemonade = sources.add_parser(
        "lemonade", help="of Lemonade Server: limits, folders, port, policies, options"
    )
    lemonade.add_argument("path", metavar="PATH", nargs="?", help="its folder, or its config.json")
    lemonade.add_argument("--dry-run", action="store_true", help="only say what would be taken and left")
    lemonade.set_defaults(command=_lemonade)


def _lemonade(context: Context, arguments: argparse.Namespace) -> int:
    home = Path(context.environ.get("HOME") or Path.home())
    if arguments.path is not None:
        given = Path(arguments.path).expanduser().absolute()
        folders = given_folders(given)
    else:
        folders = usual_folders(home, context.environ)
    documents = read_documents(folders)
    if not documents:
        where = ", ".join(str(folder) for folder in folders)
        raise ConfigError(
            f"No settings of Lemonade Server were found in {where}.",
            hint="Name its folder: lemon-tray import lemonade PATH. That of a service may need sudo to read.",
        )
    for name, (path, _) in documents.items():
        print(f"{name}: {path}")
    found = survey({name: document for name, (_, document) in documents.items()}, home)
    if not arguments.dry_run:
        _write(context, found)
    _tell(found, dry=arguments.dry_run, running=context.running)
    return 0


def given_folders(path: Path) -> tuple[Path, ...]:
    """Where the files lie beside a path that the user gave."""
    if path.is_file():
        path = path.parent
    found = [
        path,
        path / ".cache" / "lemonade",
        path / ".config" / "lemonade",
        path / ".cache",
        path / ".config",
    ]
    # Newer versions keep the models' files apart from the settings.
    if path.parts[-2:] == (".cache", "lemonade"):
        found.append(path.parents[1] / ".config" / "lemonade")
        found.append(path.parents[1])
    return tuple(found)


def usual_folders(home: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where its installers put the files, the user's own first."""
    named = environ.get("LEMONADE_CACHE_DIR", "")
    return (
        *((Path(named),) if named else ()),
        home / ".cache" / "lemonade",
        home / ".config" / "lemonade",
        Path("/var/lib/lemonade/.cache/lemonade"),
        Path("/var/lib/lemonade"),
        Path("/opt/var/lib/lemonade/.cache/lemonade"),
        Path("/Library/Application Support/lemonade/.cache"),
        Path("/Library/Application Support/lemonade/.config"),
    )


def read_documents(folders: tuple[Path, ...]) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Each file by name, from the first folder that has it.

    Raises:
        ConfigError: a file is there and cannot be read, or is no JSON object.
    """
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for name in (CONFIG, MODELS, OPTIONS):
        for folder in folders:
            path = folder / name
            try:
                if path.stat().st_size > MAX_BYTES:
                    raise ConfigError(f"{path} is larger than {MAX_BYTES >> 20} MiB.")
                found[name] = path, read_object(path.read_bytes())
                break
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path}: {error}.") from error
    return found


def survey(documents: Mapping[str, Mapping[str, Any]], home: Path) -> Findings:
    """What of those files can be taken over. Pure: nothing is read or written."""
    found = Findings()
    names = _names(documents.get(MODELS, {}))
    _settings(documents.get(CONFIG, {}), home, found)
    _policies(documents.get(MODELS, {}), names, found)
    _options(documents.get(OPTIONS, {}), names, found)
    return found


def _settings(config: Mapping[str, Any], home: Path, found: Findings) -> None:
    folders: list[str] = []
    for key, value in config.items():
        if key in ("config_version", "_generated"):
            continue
        if key in ALIKE:
            _take(key, value, found)
        elif key == "host":
            _host(value, found)
        elif key == "ctx_size":
            if value == -1:
                found.left.append(
                    "ctx_size -1 (as large as fits): models take their own context, at most 16384"
                )
            else:
                _take(key, value, found)
        elif key in ("extra_models_dir", "models_dir"):
            if value not in _NOTHING_SET:
                folders += _folder(key, value, home, found)
        elif key == "max_gpu_memory_occupancy_gb":
            _cap(value, found)
        elif isinstance(value, dict):
            _section(key, value, found)
        elif value not in _NOTHING_SET:
            found.left.append(f"{key}: there is nothing like it here")
    if folders:
        _take("models_dirs", list(dict.fromkeys(folders)), found)


def _folder(key: str, value: Any, home: Path, found: Findings) -> tuple[str, ...]:
    """The folder that is meant, as a path from the root; none if it is no folder of this user's to find."""
    if not isinstance(value, str) or (value.startswith("~") and value != "~" and value[1] != "/"):
        found.left.append(f"{key} {plain(str(value))}: expected one folder, from / or ~")
        return ()
    path = os.path.expandvars(value)
    return (str(home / path.removeprefix("~").lstrip("/") if path.startswith("~") else home / path),)


def _take(key: str, value: Any, found: Findings) -> None:
    try:
        found.settings[key] = schema.check(key, value)
    except BadRequest as fault:
        found.left.append(f"{plain(fault.message)}")


def _host(value: Any, found: Findings) -> None:
    if value in ("localhost", "127.0.0.1", "::1"):
        found.settings["host"] = "127.0.0.1"
    elif not isinstance(value, str):
        found.left.append(f"host {plain(str(value))}: expected an address")
    else:
        found.left.append(
            f"host {plain(str(value))}: open to the network needs a key here; lemon-tray key add NAME makes "
            f"one, then lemon-tray config set host={plain(str(value))}"
        )


def _cap(value: Any, found: Findings) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 < value <= MOST_GIB:
        found.left.append(
            f"max_gpu_memory_occupancy_gb {value:g} is for all GPUs together; here each device has its own "
            f"limit: lemon-tray config set vram_cap={int(value * GIB) >> 20}MiB"
        )
    elif value not in _NOTHING_SET and not (is_number and value <= 0):
        found.left.append(f"max_gpu_memory_occupancy_gb {plain(str(value))}: expected a number of GiB")


def _section(key: str, section: Mapping[str, Any], found: Findings) -> None:
    """A back end's settings. Only what its user has changed is worth a line."""
    if key != "llamacpp":
        if section.get("enabled") is True or any(
            name.endswith("args") and value for name, value in section.items()
        ):
            found.left.append(f"{key}: that engine is not part of Lemon Tray")
        return
    for name, value in section.items():
        usual = value in _NOTHING_SET or value == "builtin" or name == "prefer_system"
        if usual:
            continue
        if name == "args" or name.endswith("_args"):
            hint = "arguments for all models: give them to a model as llamacpp_args in models.json"
        elif name == "device":
            hint = "devices are chosen for each load; option device of a model pins it"
        else:
            hint = "choose an engine with lemon-tray engine"
        found.left.append(f"llamacpp.{name} {plain(str(value))}: {hint}")


def _names(models: Mapping[str, Any]) -> dict[str, str]:
    """What a model that was registered there is called here: by repository and quantization, or by file."""
    names: dict[str, str] = {}
    for name, entry in models.items():
        if not isinstance(entry, dict):
            continue
        checkpoints = entry.get("checkpoints")
        main = checkpoints.get("main") if isinstance(checkpoints, dict) else None
        checkpoint = entry.get("checkpoint") or main
        if isinstance(checkpoint, str) and checkpoint:
            repository, _, variant = checkpoint.partition(":")
            here = variant.removesuffix(".gguf").split("/")[-1] if variant.endswith(".gguf") else checkpoint
            names[f"user.{name}"] = names[name] = here or repository
    return names


def _named(name: str, names: Mapping[str, str]) -> str:
    if name in names:
        return names[name]
    return next((name.removeprefix(source) for source in _SOURCES if name.startswith(source)), name)


def _policies(models: Mapping[str, Any], names: Mapping[str, str], found: Findings) -> None:
    ordinary = 0
    for name, entry in models.items():
        if not isinstance(entry, dict):
            found.left.append(f"model {plain(name)}: expected an object")
            continue
        recipe = entry.get("recipe")
        if recipe != RECIPE:
            if isinstance(recipe, str) and recipe.startswith("collection"):
                found.left.append(
                    f"model {plain(name)}: there are no collections of the kind {plain(recipe)} here"
                )
            elif recipe == "llamacpp":
                ordinary += 1
            else:
                found.left.append(
                    f"model {plain(name)}: the engine {plain(str(recipe))} is not part of Lemon Tray"
                )
            continue
        fields = ("version", "recipe", "components", "routing", "enabled")
        document: dict[str, Any] = {key: entry[key] for key in fields if key in entry}
        document.setdefault("version", "1")
        # Apps ask for the policy by the name that they know.
        document["model_name"] = name if name.startswith("user.") else f"user.{name}"
        document = _renamed(document, names)
        try:
            found.policies[parse_policy(document).name] = document
        except RouterError as fault:
            found.left.append(f"policy {plain(name)}: {plain(fault.message)}")
    if ordinary:
        found.left.append(
            f"{ordinary} registered model{'s' * (ordinary > 1)}: files of the Hugging Face cache are listed "
            "by themselves (model_sources)"
        )


def _renamed(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    """A policy whose models are called as they are here."""
    if isinstance(value, dict):
        return {name: _renamed(inner, names, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names, key) for inner in value]
    of_models = key in ("components", "candidates", "default_model", "route_to", "model")
    return _named(value, names) if of_models and isinstance(value, str) else value


def _options(recipes: Mapping[str, Any], names: Mapping[str, str], found: Findings) -> None:
    for name, entry in recipes.items():
        if not isinstance(entry, dict):
            found.left.append(f"options of {plain(name)}: expected an object")
            continue
        here = _named(name, names)
        if not here.strip() or not here.isprintable():
            found.left.append(f"options of {plain(name)!r}: no model has such a name")
            continue
        for option, given in entry.items():
            key, value = {"llamacpp_device": "device"}.get(option, option), given
            if key == "ctx_size" and value == -1:
                value = "auto"
            elif key == "llamacpp_args" and isinstance(given, str):
                try:
                    value = shlex.split(given)
                except ValueError as error:
                    found.left.append(f"{plain(name)}: llamacpp_args: {error}")
                    continue
            if given in _NOTHING_SET:
                continue
            if key not in ("ctx_size", "device", "llamacpp_args"):
                found.left.append(f"{plain(name)}: {plain(option)}: there is nothing like it here")
                continue
            try:
                check_options({key: value})
                if key == "llamacpp_args":
                    check_arguments(value)
            except BadRequest as fault:
                found.left.append(f"{plain(name)}: {plain(fault.message)}")
            else:
                found.options.setdefault(here, {})[key] = value


def _write(context: Context, found: Findings) -> None:
    """Put it into this app's files, each whole or not at all. A running router sees them change.

    Raises:
        RouterError: a file could not be read or written; the ones before it have been.
    """
    paths = context.paths
    if found.empty:
        return
    paths.ensure()
    try:
        if found.settings:
            _merge_settings(paths.config_file, found.settings)
        if found.options:
            _merge(paths.options_file, found.options)
        for name, document in found.policies.items():
            write_atomically(paths.policies_dir / file_name(name), write_object(document))
        mark_imported(paths.state_dir)
    except ValueError as error:
        raise RouterError(f"{error}: mend that file first, then import again.") from error
    except OSError as error:
        raise RouterError(
            f"{error.filename or paths.config_file.parent}: {error.strerror or error}."
        ) from error


def _object(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b"", {}
    try:
        return data, read_object(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _merge_settings(path: Path, settings: Mapping[str, Any]) -> None:
    data, before = _object(path)
    migrated = migrate(before)
    if data:
        back_up(path, migrated.found, data)
    written = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
    own = before.get("models_dirs")
    if "models_dirs" in written and isinstance(own, list):
        written["models_dirs"] = list(dict.fromkeys([*own, *written["models_dirs"]]))
    write_atomically(path, write_object({VERSION_KEY: len(STEPS), **migrated.raw, **written}))


def _merge(path: Path, options: Mapping[str, Mapping[str, Any]]) -> None:
    _, before = _object(path)
    for name, entry in options.items():
        own = before.get(name)
        # What the user has set here goes before what was set there.
        before[name] = {**entry, **own} if isinstance(own, dict) else dict(entry)
    write_atomically(path, write_object(before))


def _lines(found: Findings) -> Iterator[str]:
    for key, value in found.settings.items():
        yield f"setting {key} = {plain(schema.written(key, value))}"
    for name, document in found.policies.items():
        yield plain(f"policy {name}: {', '.join(document.get('routing', {}).get('candidates', ()))}")
    for name, entry in found.options.items():
        yield plain(f"options of {name}: {', '.join(f'{key} {value}' for key, value in entry.items())}")


def _tell(found: Findings, *, dry: bool, running: bool) -> None:
    lines = list(_lines(found))
    print(f"\n{'Would take' if dry else 'Taken'}: {len(lines) or 'nothing'}")
    for line in lines:
        print(f"  {line}")
    print(f"\nLeft: {len(found.left) or 'nothing'}")
    for line in found.left:
        print(f"  {line}")
    if lines and not dry:
        when = "host and port act at its next start" if running else "it acts at the next start"
        print(f"\nWritten to Lemon Tray's own files; {when}. Nothing was changed where it comes from.")
    sys.stdout.flush()
