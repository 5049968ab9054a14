"""The banner that tells of a newer version. No Qt."""

from __future__ import annotations

from lemon_tray.names import plain
from lemon_tray.view import Banner, BannerKind, Command, Kind, Option
from lemon_tray.words import translate
from router.snapshot import Snapshot


def update_banners(snapshot: Snapshot) -> list[Banner]:
    """One if there is a newer version, or if it cannot be known although the user wants to know."""
    update = snapshot.update
    if update.version:
        return [_newer(plain(update.version, 40), update.url, snapshot.version)]
    if not update.problem:
        return []
    text = plain(update.problem, 400)
    off = Option(
        label=translate("Update", "Do not look"),
        menu_label=translate("Update", "Do not look for updates (update_check=false)"),
        command=Command(Kind.SET, "update_check", False),
        key="`update_check=false`",
    )
    return [
        Banner(
            id=f"update:{text}",
            kind=BannerKind.INFO,
            title=translate("Update", "Updates are not known"),
            text=text,
            options=(off, _hide(f"update:{text}")),
        )
    ]


def _newer(version: str, page: str, running: str) -> Banner:
    target = f"update:{version}"
    options = [_hide(target)]
    if page:
        options.insert(
            0,
            Option(
                label=translate("Update", "Read about it"),
                menu_label=translate("Update", "Read about version {version}").format(version=version),
                command=Command(Kind.OPEN_PAGE, page),
                effect=translate("Update", "Opens the web browser"),
                primary=True,
            ),
        )
    return Banner(
        id=target,
        kind=BannerKind.INFO,
        title=translate("Update", "Version {version} is there").format(version=version),
        text=translate("Update", "You have {version}. Nothing is installed by itself.").format(
            version=running
        ),
        options=tuple(options),
    )


def _hide(target: str) -> Option:
    return Option(label=translate("Update", "Hide"), command=Command(Kind.DISMISS, target))
