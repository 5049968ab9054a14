"""What runs the models: the banner that offers a build for the user's card, and the rows of the engines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from lemon_tray.names import download_progress, plain
from lemon_tray.present_devices import HOST, device_title, idle_cards, usable_devices
from lemon_tray.view import Banner, BannerKind, Command, Kind, Option, Progress
from lemon_tray.words import translate
from router.snapshot import DownloadView, EngineView, Snapshot
from router.units import MIB, NBSP

EMBEDDED: Final = "embedded"
BUILD: Final = "build"
OFFER: Final = "offer"
ENGINE: Final = "engine:"
"""How the ids of banners begin that say that a card is not used."""

GPU_BUILD: Final = "GPU build"
"""How the downloads of engines are called: alone for the best one, else with the one that was asked for."""

DOWNLOAD_OVER: Final = frozenset({"done", "cancelled"})
DOWNLOAD_FAILED: Final = "failed"


class EngineRow(Struct, frozen=True):
    """An engine that is there, or that can be had."""

    id: str
    title: str
    state: str
    detail: str
    problem: str
    in_use: bool
    options: tuple[Option, ...]
    progress: Progress | None = None


def is_engine_download(download: DownloadView) -> bool:
    """It brings an engine rather than a model."""
    return download.name == GPU_BUILD or download.name.startswith(f"{GPU_BUILD} ")


def engine_download(snapshot: Snapshot, engine: EngineView) -> DownloadView | None:
    """The download that brings this very engine, if there is or was one."""
    names = (f"{GPU_BUILD} {engine.id}", *(f"{GPU_BUILD} {backend}" for backend in engine.backends))
    return next((d for d in snapshot.downloads if d.name in names), None)


def last_download(downloads: Iterable[DownloadView]) -> DownloadView | None:
    """The one of these that is under way, else the last one that failed."""
    found = list(downloads)
    running = next((d for d in found if is_running(d)), None)
    return running or next((d for d in reversed(found) if d.state == DOWNLOAD_FAILED), None)


def is_running(download: DownloadView) -> bool:
    """It has not come to its end."""
    return download.state not in (*DOWNLOAD_OVER, DOWNLOAD_FAILED)


def _size(count: int) -> str:
    return f"{count / MIB:.0f}{NBSP}MiB"


def engine_title(engine: EngineView) -> str:
    """An engine's name as people read it."""
    return plain(engine.title or engine.id, 60)


def engine_banners(snapshot: Snapshot) -> list[Banner]:
    """What is to be said of engines: a card that nothing uses, an engine that does not work."""
    found = [_broken(e, snapshot) for e in snapshot.engines if e.in_use and e.problem]
    cards = idle_cards(snapshot)
    if snapshot.simulated or not cards or any(d.kind != HOST for d in usable_devices(snapshot)):
        return found
    if not snapshot.engines or any(e.kind != EMBEDDED and e.in_use and e.problem for e in snapshot.engines):
        return found  # not looked at yet, or it has been said already
    ready = next((e for e in snapshot.engines if e.kind == BUILD and not e.in_use and not e.problem), None)
    names = ", ".join(device_title(d) for d in cards)
    if ready is not None:
        found.append(_unused(names, ready))
    else:
        offer = next((e for e in snapshot.engines if e.kind == OFFER), None)
        found.append(
            _offer(names, offer, last_download(d for d in snapshot.downloads if is_engine_download(d)))
        )
    return found


def _title(names: str) -> str:
    return translate("Engine", "{names} found, but this engine runs on the processor only").format(
        names=names
    )


def _hide(key: str) -> Option:
    return Option(label=translate("Engine", "Hide"), command=Command(Kind.DISMISS, key))


def _unused(names: str, build: EngineView) -> Banner:
    key = f"{ENGINE}{build.id}"
    return Banner(
        id=key,
        kind=BannerKind.INFO,
        title=_title(names),
        text=translate("Engine", "A GPU build is here: {title}.").format(title=engine_title(build)),
        options=(
            Option(
                label=translate("Engine", "Use the GPU build"),
                command=Command(Kind.USE_ENGINE, build.id),
                key=f"`engine={build.id}`" if len(build.id) <= 24 else "",
                effect=translate("Engine", "from the next load on"),
                primary=True,
            ),
            _hide(key),
        ),
    )


def _offer(names: str, offer: EngineView | None, download: DownloadView | None) -> Banner:
    key = f"{ENGINE}offer"
    title = engine_title(offer) if offer is not None else translate("Engine", "A GPU build")
    if download is not None and is_running(download):
        return Banner(
            id=key,
            kind=BannerKind.INFO,
            title=_title(names),
            text=translate("Engine", "Getting the {build}.").format(build=plain(download.name, 60)),
            progress=download_progress(download),
            options=(
                Option(
                    label=translate("Engine", "Cancel"),
                    menu_label=translate("Engine", "Cancel the download"),
                    command=Command(Kind.CANCEL_DOWNLOAD, download.name),
                    effect=translate("Engine", "Models run meanwhile"),
                ),
            ),
        )
    problem = (offer.problem if offer is not None else "") or (download.error if download else "")
    text = translate("Engine", "{title} makes models use the card. It stays within this app.")
    if problem:
        text = translate("Engine", "{title} could not be had: {problem}.")
    return Banner(
        id=key,
        kind=BannerKind.INFO,
        title=_title(names),
        text=text.format(title=title, problem=plain(problem, 240).rstrip(".")),
        options=(
            Option(
                label=translate("Engine", "Try again") if problem else translate("Engine", "Get a GPU build"),
                menu_label=translate("Engine", "Get a GPU build"),
                command=Command(Kind.GET_ENGINE, offer.id if offer is not None else ""),
                key=translate("Engine", "An official release"),
                effect=translate("Engine", "About {size} to fetch").format(size=_size(offer.size))
                if offer is not None and offer.size
                else translate("Engine", "of llama.cpp"),
                primary=not problem,
                glyph="download",
            ),
            _hide(key),
        ),
    )


def _broken(engine: EngineView, snapshot: Snapshot) -> Banner:
    key = f"engine-problem:{engine.id}:{engine.problem}"
    options = [_hide(key)]
    if engine.kind != EMBEDDED and any(e.kind == EMBEDDED and not e.problem for e in snapshot.engines):
        options.insert(
            0,
            Option(
                label=translate("Engine", "Use the built-in one"),
                menu_label=translate("Engine", "Use the built-in engine"),
                command=Command(Kind.USE_ENGINE, EMBEDDED),
                key=f"`engine={EMBEDDED}`",
                effect=translate("Engine", "from the next load on"),
            ),
        )
    return Banner(
        id=key,
        kind=BannerKind.ERROR,
        title=translate("Engine", "The engine cannot be used"),
        text=translate("Engine", "{title}: {problem}").format(
            title=engine_title(engine), problem=plain(engine.problem, 300)
        ),
        options=tuple(options),
    )


def present_engines(snapshot: Snapshot) -> tuple[EngineRow, ...]:
    """A row for each engine, the one in use first, offers last."""
    order = sorted(snapshot.engines, key=lambda e: (e.kind == OFFER, not e.in_use))
    return tuple(_row(e, snapshot) for e in order)


def _row(engine: EngineView, snapshot: Snapshot) -> EngineRow:
    download = engine_download(snapshot, engine)
    title = engine_title(engine)
    parts = []
    if engine.version:
        parts.append(plain(engine.version, 40))
    if engine.backends:
        parts.append(", ".join(plain(b, 20) for b in engine.backends))
    if engine.devices:
        parts.append(", ".join(plain(d, 40) for d in engine.devices))
    if engine.kind == OFFER and engine.size:
        parts.append(translate("Engine", "{size} to fetch").format(size=_size(engine.size)))
    problem = engine.problem
    if not problem and download is not None and download.state == DOWNLOAD_FAILED:
        problem = download.error
    options: list[Option] = []
    progress = None
    if engine.in_use:
        state = translate("Engine", "In use")
    elif engine.kind == OFFER:
        state = translate("Engine", "Not here yet")
    else:
        state = translate("Engine", "Ready")
    if problem:
        state = translate("Engine", "Cannot be used")
    if download is not None and is_running(download):
        state = translate("Engine", "On its way")
        progress = download_progress(download)
        options.append(
            Option(
                label=translate("Engine", "Cancel"),
                command=Command(Kind.CANCEL_DOWNLOAD, download.name),
                effect=title,
            )
        )
    elif engine.kind == OFFER:
        options.append(
            Option(
                label=translate("Engine", "Try again") if problem else translate("Engine", "Get"),
                command=Command(Kind.GET_ENGINE, engine.id),
                effect=title,
                primary=not problem,
            )
        )
    else:
        if not engine.in_use and not engine.problem:
            options.append(
                Option(
                    label=translate("Engine", "Use"),
                    command=Command(Kind.USE_ENGINE, engine.id),
                    effect=title,
                )
            )
        if engine.kind == BUILD:
            options.append(
                Option(
                    label=translate("Engine", "Remove"),
                    command=Command(Kind.REMOVE_ENGINE, engine.id),
                    effect=title,
                )
            )
    return EngineRow(
        id=engine.id,
        title=title,
        state=state,
        detail=" · ".join(parts) or plain(engine.path, 200),
        problem=plain(problem, 300),
        in_use=engine.in_use,
        options=tuple(options),
        progress=progress,
    )
