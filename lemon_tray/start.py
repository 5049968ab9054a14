"""From the arguments to a running app, or to the running one, or to a router without a screen."""

from __future__ import annotations

import os
import sys

from lemon_tray.display import missing_display
from lemon_tray.options import Options
from router import logs
from router.errors import RouterError
from router.instance import InstanceLock, read_holder
from router.loading import uncollected
from router.paths import Paths


def start(options: Options) -> int:
    """Run the app until it is quit; returns the exit status."""
    try:
        paths = Paths.default()
        paths.ensure()
        lock = InstanceLock(paths.state_dir)
        if not lock.acquire():
            return _raise_the_first(paths)
    except RouterError as error:
        hint = f" ({error.hint.rstrip('.')})" if error.hint else ""
        _say(f"lemon-tray: {error.message}{hint}")
        return 1
    try:
        reason = missing_display(os.environ)
        if not reason:
            try:
                with uncollected():
                    from lemon_tray.app import run
            except ImportError as error:
                reason = f"Qt cannot be loaded ({error})"
        if reason:
            lock.release()
            return _headless(reason, options)
        log = logs.set_up(paths.log_dir)
        try:
            return run(paths, lock, options)
        finally:
            log.stop()
    finally:
        lock.release()


def _headless(reason: str, options: Options) -> int:
    from router.cli.main import main as command_line

    _say(f"lemon-tray: {reason}; serving without a tray.")
    return command_line(["serve", *options.serve])


def _raise_the_first(paths: Paths) -> int:
    """A second start: show the panel of the first, and leave."""
    holder = read_holder(paths.state_dir)
    try:
        from lemon_tray.single_instance import bell_name, ring

        shown = ring(bell_name(paths))
    except ImportError:
        shown = False
    if not shown:
        where = f" at {holder.endpoint}" if holder and holder.endpoint else ""
        _say(f"lemon-tray: it runs already{where}, without a panel to show.")
    return 0


def _say(text: str) -> None:
    if sys.stderr is not None:  # a windowed program on Windows has none
        print(text, file=sys.stderr, flush=True)  # noqa: T201  # the one line that a user of a terminal gets
