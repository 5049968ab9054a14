"""Models to be had: those that are on their way, and well-known ones that fit this machine. No Qt."""

from __future__ import annotations

from typing import Final

from lemon_tray.names import download_progress, plain
from lemon_tray.present_devices import HOST, usable_devices
from lemon_tray.present_engines import DOWNLOAD_FAILED, EngineRow, is_running
from lemon_tray.view import Command, Kind, Option, Progress
from lemon_tray.words import translate
from router.snapshot import DownloadView, Snapshot, SuggestionView
from router.units import GIB, MIB, NBSP, gib

CANCELLED: Final = "cancelled"
#: By which the demo model is pulled, and what its download is called.
DEMO: Final = "demo"
DEMO_DOWNLOAD: Final = "SmolLM2-135M-Instruct.Q4_1"


def present_get(snapshot: Snapshot) -> tuple[EngineRow, ...]:
    """What is on its way, the newest first, and then what could be."""
    downloads = [d for d in snapshot.downloads if d.kind == "model" and d.state != "done"]
    under_way = {download.name.casefold() for download in downloads}
    rows = [_download(download) for download in reversed(downloads)]
    offers = [s for s in snapshot.suggestions if not s.here and s.name.casefold() not in under_way]
    on_cards = _room_on_cards(snapshot)
    whole = [s for s in offers if s.fits and 0 < s.needs <= on_cards]
    partly = [s for s in offers if s.fits and s not in whole]
    unknown = [s for s in offers if s.fits is None]
    # The largest that a card holds is the best that runs fast; without one, the smallest runs best.
    whole.sort(key=lambda s: -s.needs)
    rows += [_offer(s, _whole_text(s is whole[0])) for s in whole]
    slow = translate("Get", "Partly on the processor: slower")
    if not on_cards:
        slow = translate("Get", "Runs on the processor")
    rows += [_offer(s, slow) for s in partly]
    rows += [_offer(s, translate("Get", "Not known yet whether it fits")) for s in unknown]
    return tuple(rows)


def _whole_text(is_best: bool) -> str:
    if is_best:
        return translate("Get", "Best fit: all of it on your GPU")
    return translate("Get", "Fits on your GPU")


def _room_on_cards(snapshot: Snapshot) -> int:
    """Bytes that models could have on cards, were nothing else loaded."""
    cards = [d for d in usable_devices(snapshot) if d.kind != HOST and d.total is not None]
    return sum(max(0, (card.total or 0) - card.margin) for card in cards)


def _about(suggestion: SuggestionView) -> str:
    words = {
        "tiny": translate("Get", "Tiny: quick answers, and a small model beside a large one"),
        "small": translate("Get", "Small: short tasks"),
        "general": translate("Get", "For conversation, writing and code"),
        "fast": translate("Get", "For conversation and code; fast for its size"),
        "reasoning": translate("Get", "Thinks before it answers; for code and hard questions"),
        "vision": translate("Get", "Looks at images, too"),
    }
    return words.get(suggestion.about, "")


def _offer(suggestion: SuggestionView, state: str) -> EngineRow:
    size = translate("Get", "{size} to fetch").format(size=shown_size(suggestion.size_bytes))
    parts = [_about(suggestion), size]
    if suggestion.needs:
        needs = translate("Get", "needs about {size}").format(size=gib(suggestion.needs))
        parts.append(needs)
    parts.append(plain(suggestion.name, 100))
    get = Option(label=translate("Get", "Get"), command=Command(Kind.PULL, suggestion.name))
    return EngineRow(
        id=suggestion.name,
        title=plain(suggestion.title, 60),
        state=state,
        detail=" · ".join(part for part in parts if part),
        problem="",
        in_use=False,
        options=(get,),
    )


def _download(download: DownloadView) -> EngineRow:
    name = plain(download.name, 100)
    target = DEMO if download.name == DEMO_DOWNLOAD else download.name
    if is_running(download):
        return EngineRow(
            id=download.name,
            title=name,
            state=stage_text(download),
            detail="",
            problem="",
            in_use=False,
            options=(
                Option(
                    label=translate("Get", "Cancel"),
                    command=Command(Kind.CANCEL_DOWNLOAD, download.name),
                    effect=translate("Get", "What has arrived is kept"),
                ),
            ),
            progress=pull_progress(download),
        )
    again = translate("Get", "Try again")
    state = translate("Get", "Did not arrive")
    if download.state == CANCELLED:
        again, state = translate("Get", "Go on"), translate("Get", "Stopped; what has arrived is kept")
    failed = download.state == DOWNLOAD_FAILED
    return EngineRow(
        id=download.name,
        title=name,
        state=state,
        detail="",
        problem=plain(download.error, 400) if failed else "",
        in_use=False,
        options=(Option(label=again, command=Command(Kind.PULL, target)),),
    )


def stage_text(download: DownloadView) -> str:
    """What a download under way does."""
    words = {
        "resolving": translate("Get", "Asking the hub"),
        "waiting": translate("Get", "Waiting for another download"),
        "checking": translate("Get", "Checking what is here already"),
        "placing": translate("Get", "Checked; putting it in its place"),
    }
    return words.get(download.stage, translate("Get", "Fetching"))


def pull_progress(download: DownloadView) -> Progress:
    """How far a download is: `1.2 of 4.7 GiB, 24 MiB/s, 3 min left`."""
    total = download.total
    if not total or total < GIB:
        progress = download_progress(download)
    else:
        done = f"{download.done / GIB:.1f}"
        text = translate("Get", "{done} of {total}").format(done=done, total=gib(total))
        progress = Progress(min(1.0, download.done / total), text)
    if download.per_s < 1:
        return progress
    rate = translate("Get", "{rate} MiB/s").format(rate=f"{download.per_s / MIB:.1f}").replace(" ", NBSP)
    text = f"{progress.text}, {rate}"
    if total:
        text += f", {left_text((total - download.done) / download.per_s)}"
    return Progress(progress.fraction, text)


def left_text(seconds: float) -> str:
    """About how long something still takes."""
    minutes = int(seconds // 60) + 1
    if seconds < 60:
        text = translate("Get", "under a minute left")
    elif minutes < 60:
        text = translate("Get", "{count} min left").format(count=minutes)
    else:
        text = translate("Get", "{hours} h {minutes} min left").format(
            hours=minutes // 60, minutes=minutes % 60
        )
    return text.replace(" ", NBSP)


def shown_size(count: int) -> str:
    """Bytes in GiB, or in MiB if there are few."""
    return gib(count) if count >= GIB else f"{count / MIB:.0f}{NBSP}MiB"
