"""How a newer version is told: a banner, in the menu too, and one notification."""

from __future__ import annotations

from lemon_tray.notify import Notifier
from lemon_tray.present_update import update_banners
from lemon_tray.view import Banner, Command, Kind
from router.snapshot import Severity, UpdateView
from tests.ui import canned
from tests.ui.canned import entry


def banners(update: UpdateView) -> list[Banner]:
    return update_banners(canned.snapshot(update=update))


def test_there_is_no_banner_without_anything_to_tell() -> None:
    assert banners(UpdateView()) == []
    assert banners(UpdateView(is_on=True, checked=5.0)) == []


def test_a_newer_version_is_named_with_its_page_and_can_be_put_away() -> None:
    (banner,) = banners(UpdateView(True, "0.3", "https://x/0.3"))
    assert banner.title == "Version 0.3 is there"
    assert "Nothing is installed by itself" in banner.text
    assert [option.command for option in banner.options] == [
        Command(Kind.OPEN_PAGE, "https://x/0.3"),
        Command(Kind.DISMISS, banner.id),
    ]
    (without,) = banners(UpdateView(True, "0.3"))
    assert [option.command.kind for option in without.options] == [Kind.DISMISS]


def test_what_keeps_it_from_being_known_is_said_with_the_off_switch() -> None:
    (banner,) = banners(UpdateView(True, problem="update_feed names no release feed."))
    assert banner.text == "update_feed names no release feed."
    assert banner.options[0].command == Command(Kind.SET, "update_check", False)


def test_one_notification_tells_of_it() -> None:
    notifier = Notifier(lambda: 1000.0)
    assert notifier.consider([], panel_visible=False) is None
    told = entry(1, 0, "Lemon Tray 0.3 has been released.", code="update_available", severity=Severity.INFO)
    message = notifier.consider([told], panel_visible=False)
    assert message is not None
    assert message.text == "Lemon Tray 0.3 has been released."
    assert notifier.consider([told], panel_visible=False) is None
