"""The banners that are due: what is wrong, what is worth knowing, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lemon_tray.names import plain
from lemon_tray.present_devices import HOST, device_title, usable_devices
from lemon_tray.present_engines import engine_banners, is_engine_download, is_running, last_download
from lemon_tray.present_get import pull_progress
from lemon_tray.present_pool import unknown_candidates
from lemon_tray.present_update import update_banners
from lemon_tray.view import Banner, BannerKind, Command, Kind, Option
from lemon_tray.words import translate
from router.snapshot import DeviceState, DeviceView, DownloadView, NoticeView, PoolView, Snapshot
from router.units import NBSP

_ORDER: Final = tuple(BannerKind)


def present_banners(
    snapshot: Snapshot, fault: Banner | None, notices: tuple[NoticeView, ...]
) -> list[Banner]:
    """All that are due, worst first: `fault` and `notices` are those of the app."""
    found: list[Banner] = []
    if fault is not None:
        found.append(fault)  # of its kind the first: it is the answer to something that the user did
    refuses = snapshot.settings.get("unknown_device") == "refuse"
    found.extend(
        _unknown_device(d, refuses) for d in usable_devices(snapshot) if d.state is DeviceState.UNKNOWN
    )
    if snapshot.degraded:
        text = plain(snapshot.degraded, 400)
        found.append(
            _plain_banner("degraded", BannerKind.ERROR, translate("Banner", "Lemon Tray is limited"), text)
        )
    found.extend(_notice(n, snapshot.pool) for n in notices)
    if snapshot.pool.at_risk:
        found.append(_exceeds(snapshot.pool))
    if snapshot.problems:
        title = translate("Banner", "A file could not be read")
        found.append(
            _plain_banner("problems", BannerKind.WARNING, title, plain(" ".join(snapshot.problems), 400))
        )
    unknown = unknown_candidates(snapshot)
    if unknown:
        title = translate("Banner", "A policy names an unknown model")
        found.append(
            _plain_banner("unresolved", BannerKind.WARNING, title, plain(". ".join(unknown) + ".", 400))
        )
    if snapshot.scanned and not snapshot.models:
        found.append(_no_models([d for d in snapshot.downloads if not is_engine_download(d)]))
    found.extend(engine_banners(snapshot))
    found.extend(update_banners(snapshot))
    return sorted(found, key=lambda b: _ORDER.index(b.kind))  # stable: the order above holds within a kind


def _plain_banner(key: str, kind: BannerKind, title: str, text: str) -> Banner:
    """A fact that can only be read and put away; another text of the same kind shows again."""
    target = f"{key}:{text}"
    hide = Option(label=translate("Banner", "Hide"), command=Command(Kind.DISMISS, target))
    return Banner(id=target, kind=kind, title=title, text=text, options=(hide,))


def _unknown_device(device: DeviceView, refuses: bool) -> Banner:
    reason = plain(device.reason or translate("Banner", "No reading"), 200).rstrip(".")
    refuse = Option(
        label=translate("Banner", "Refuse loads"),
        menu_label=translate("Banner", "Refuse loads there (unknown_device=refuse)"),
        command=_set("unknown_device", "refuse"),
        key="`unknown_device=refuse`",
        effect=translate("Banner", "Now only our models count"),
    )
    hide = Option(
        label=translate("Banner", "Hide"),
        command=Command(Kind.DISMISS, f"device:{device.id}:{device.reason}"),
        effect=translate("Banner", "Asked again all the time"),
    )
    return Banner(
        id=f"device:{device.id}:{device.reason}",
        kind=BannerKind.ERROR,
        title=translate("Banner", "{name} cannot be read").format(name=device_title(device)),
        text=translate("Banner", "{reason}. Its memory is unknown until it answers again.").format(
            reason=reason[:1].upper() + reason[1:]
        ),
        options=(hide,) if refuses or device.kind == HOST else (refuse, hide),
    )


def _set(key: str, value: object) -> Command:
    return Command(Kind.SET, key, value)


def _evict_option(pool: PoolView) -> Option:
    return Option(
        label=translate("Banner", "Unload if short"),
        menu_label=translate("Banner", "Let VRAM pressure unload idle models (auto_evict=true)"),
        command=_set("auto_evict", True),
        key="`auto_evict=true`",
        effect=translate("Banner", "Up to {room}; idle ones go if short").format(room=pool.effective_limit),
    )


def _hard_limit_option(pool: PoolView) -> Option:
    surplus = pool.loaded - pool.configured_limit
    effect = translate("Banner", "Limit {limit}, as you set it").format(limit=pool.configured_limit)
    if surplus > 0:
        effect = translate("Banner", "Limit {limit}; unloads {surplus} now").format(
            limit=pool.configured_limit, surplus=surplus
        )
    return Option(
        label=translate("Banner", "Restore hard limit"),
        menu_label=translate("Banner", "Restore hard limit (llm_pool_autosize=false)"),
        command=_set("llm_pool_autosize", False),
        key="`llm_pool_autosize=false`",
        effect=effect,
    )


def _exceeds(pool: PoolView) -> Banner:
    return Banner(
        id="exceeds",
        kind=BannerKind.WARNING,
        title=translate("Banner", "The pool may exceed your limit"),
        text=translate(
            "Banner",
            "Up to {room} language models may stay loaded; your limit is {limit} "
            "(`max_loaded_models={limit}`). Idle models stay even when other programs need VRAM "
            "(`auto_evict=false`).",
        ).format(room=pool.effective_limit, limit=pool.configured_limit),
        options=(_evict_option(pool), _hard_limit_option(pool)),
    )


def _notice(notice: NoticeView, pool: PoolView) -> Banner:
    options = [
        Option(
            label=translate("Banner", "Keep"),
            menu_label=translate("Banner", "Keep (changes no setting)"),
            command=Command(Kind.DISMISS, f"notice:{notice.id}"),
            key=translate("Banner", "changes no setting"),
            effect=translate("Banner", "Up to {room} stay loaded").format(room=pool.effective_limit),
        )
    ]
    if pool.at_risk:
        options += [_hard_limit_option(pool), _evict_option(pool)]
    return Banner(
        id=f"notice:{notice.id}",
        kind=BannerKind.NOTICE,
        title=plain(notice.title, 60),
        text=plain(notice.text, 500),
        options=tuple(options),
        footer=translate("Banner", "Shown once. Both settings stay under Live controls."),
    )


def _no_models(downloads: Iterable[DownloadView]) -> Banner:
    title = translate("Banner", "No models yet")
    folder = Option(
        label=translate("Banner", "Add a folder"),
        menu_label=translate("Banner", "Add a folder with models…"),
        command=Command(Kind.ADD_FOLDER),
        key=translate("Banner", "GGUF files you have"),
        effect="`models_dirs`",
        glyph="folder",
    )
    download = last_download(downloads)
    if download is not None and is_running(download):
        return Banner(
            id="no-models",
            kind=BannerKind.INFO,
            title=title,
            text=translate("Banner", "Getting {model}.").format(model=plain(download.name, 60)),
            progress=pull_progress(download),
            options=(
                Option(
                    label=translate("Banner", "Cancel"),
                    menu_label=translate("Banner", "Cancel the download"),
                    command=Command(Kind.CANCEL_DOWNLOAD, download.name),
                    effect=translate("Banner", "What has arrived is kept"),
                ),
            ),
        )
    text = translate("Banner", "The endpoint is up, with nothing to load. Three ways on:")
    if download is not None:
        reason = plain(download.error or translate("Banner", "the connection broke"), 200).rstrip(".")
        text = translate("Banner", "{model} did not arrive: {reason}.").format(
            model=plain(download.name, 60), reason=reason
        )
    get = Option(
        label=translate("Banner", "Get a demo model"),
        menu_label=translate("Banner", "Get a small demo model"),
        command=Command(Kind.GET_DEMO),
        key=translate("Banner", "A small one, to try"),
        effect=translate("Banner", "About {size} to fetch").format(size=f"90{NBSP}MiB"),
    )
    if download is not None:
        # The names of the hub's models have a slash.
        again = Command(Kind.PULL, download.name) if "/" in download.name else get.command
        get = Option(
            label=translate("Banner", "Try again"),
            menu_label=translate("Banner", "Try to get it again"),
            command=again,
            effect=translate("Banner", "What has arrived is kept"),
        )
    find = Option(
        label=translate("Banner", "Get a model"),
        menu_label=translate("Banner", "Get a model that fits this machine…"),
        command=Command(Kind.OPEN_WINDOW, "get"),
        key=translate("Banner", "One that fits this machine"),
        effect=translate("Banner", "From huggingface.co"),
        primary=True,
        glyph="download",
    )
    options = (find, get, folder) if download is None else (get, find, folder)
    return Banner(id="no-models", kind=BannerKind.INFO, title=title, text=text, options=options)
