"""Where the app keeps its files, by the conventions of the system it runs on."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Final

import platformdirs
from msgspec import Struct
from platformdirs.api import PlatformDirsABC

from router.errors import ConfigError

APP_NAME: Final = "lemon-tray"
CONFIG_NAME: Final = "config.json"
OPTIONS_NAME: Final = "models.json"


class Paths(Struct, frozen=True):
    """Every place that the app reads or writes.

    `models_dir` is the app's own folder of models; the user's further folders are a setting.
    """

    config_file: Path
    policies_dir: Path
    models_dir: Path
    state_dir: Path
    log_dir: Path
    cache_dir: Path
    runtime_dir: Path

    @classmethod
    def default(cls) -> Paths:
        """The system's places: on Linux the XDG ones, each movable by its `XDG_*` variable.

        Raises:
            ConfigError: the user has no home folder.
        """
        dirs = platformdirs.PlatformDirs(APP_NAME, appauthor=False)
        try:
            config = dirs.user_config_path
            return cls(
                config_file=config / CONFIG_NAME,
                policies_dir=config / "policies",
                models_dir=dirs.user_data_path / "models",
                state_dir=dirs.user_state_path,
                log_dir=dirs.user_log_path,
                cache_dir=dirs.user_cache_path,
                runtime_dir=_runtime_dir(dirs),
            )
        except RuntimeError as error:
            raise ConfigError(
                "This user has no home folder to keep settings in.", hint="Set HOME to a folder of its own."
            ) from error

    @classmethod
    def under(cls, root: Path) -> Paths:
        """Everything below one folder: for tests, and for a second router beside the user's own."""
        return cls(
            config_file=root / "config" / CONFIG_NAME,
            policies_dir=root / "config" / "policies",
            models_dir=root / "data" / "models",
            state_dir=root / "state",
            log_dir=root / "state" / "log",
            cache_dir=root / "cache",
            runtime_dir=root / "run",
        )

    @property
    def engines_dir(self) -> Path:
        """Builds of the engine that the app has fetched; made when the first one is."""
        return self.models_dir.parent / "engines"

    @property
    def options_file(self) -> Path:
        """Options of single models."""
        return self.config_file.with_name(OPTIONS_NAME)

    @property
    def headers_dir(self) -> Path:
        """What the headers of model files say; everything in it can be read again from those files."""
        return self.cache_dir / "headers"

    @property
    def rewritten(self) -> tuple[Path, ...]:
        """The folders of small files that are written anew, each as a whole."""
        return self.config_file.parent, self.policies_dir, self.state_dir, self.cache_dir

    def ensure(self) -> None:
        """Create what is missing. Folders that can hold private things are closed to other users (0700).

        Raises:
            ConfigError: a folder cannot be created, or the runtime folder belongs to someone else.
        """
        private = (
            self.config_file.parent,
            self.policies_dir,
            self.state_dir,
            self.log_dir,
            self.cache_dir,
            self.runtime_dir,
        )
        for folder in private:
            _create(folder, 0o700)
        _create(self.models_dir, 0o755)
        # The fallback runtime folder lies in a place that everybody can write to.
        if hasattr(os, "getuid") and self.runtime_dir.stat().st_uid != os.getuid():
            raise ConfigError(
                f"{self.runtime_dir} belongs to another user; set XDG_RUNTIME_DIR to one of your own."
            )


def resource(*parts: str) -> Path:
    """A file that comes with the app: beside the packages in a checkout, within the tray's once installed.

    Raises:
        FileNotFoundError: it is in neither place.
    """
    root = Path(__file__).resolve().parent.parent
    for folder in (root / "resources", root / "lemon_tray" / "resources"):
        file = folder.joinpath(*parts)
        if file.is_file():
            return file
    raise FileNotFoundError(f"{'/'.join(parts)} is not there: reinstall Lemon Tray")


def _runtime_dir(dirs: PlatformDirsABC) -> Path:
    """The session's own folder. `ensure` checks who owns it."""
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    # After `su` the variable still names the folder of the user before.
    if os.path.isabs(named) and not os.access(named, os.W_OK | os.X_OK) and hasattr(os, "getuid"):
        return Path(tempfile.gettempdir()) / f"runtime-{os.getuid()}" / APP_NAME
    with warnings.catch_warnings():
        # Where there is none, a fallback will do.
        warnings.simplefilter("ignore")
        return dirs.user_runtime_path


def _create(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The folder {folder} cannot be created: {error.strerror or error}.") from error
