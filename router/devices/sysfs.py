"""Graphics cards as the Linux kernel lists them. Nothing here wakes a card that sleeps."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

from msgspec import Struct

SYS: Final = Path("/sys")
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NAMES: Final = tuple(Path(f"/usr/share/{folder}/pci.ids") for folder in ("hwdata", "misc"))


class Card(Struct, frozen=True):
    """A card of one maker: its PCI address and the folder with its attributes."""

    address: str
    folder: Path

    @property
    def is_asleep(self) -> bool:
        """Whether the kernel has put it to sleep, or is about to."""
        return text(self.folder / "power" / "runtime_status") in ("suspended", "suspending")


def text(path: Path) -> str:
    """An attribute's text; "" if it cannot be read, as when the card has just been pulled."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """An attribute that is a number; None if it cannot be read."""
    try:
        return int(text(path))
    except ValueError:
        return None


def cards_of_driver(driver: str, root: Path = SYS) -> tuple[Card, ...]:
    """The PCI devices that a driver has taken, in the order of their addresses."""
    folder = root / "bus" / "pci" / "drivers" / driver
    try:
        names = sorted(path.name for path in folder.iterdir() if _ADDRESS.fullmatch(path.name))
    except OSError:
        return ()
    return tuple(Card(name, folder / name) for name in names)


def cards_of_maker(vendor: str, root: Path = SYS) -> tuple[Card, ...]:
    """The graphics cards of a maker, given as `0x1002`, in the order of their addresses."""
    found = {}
    for entry in (root / "class" / "drm").glob("card*"):
        # The others are a card's connectors, such as card0-DP-1.
        if not re.fullmatch(r"card\d+", entry.name):
            continue
        folder = entry / "device"
        slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", text(folder / "uevent"), re.MULTILINE)
        if slot and text(folder / "vendor") == vendor:
            found[slot[1]] = Card(slot[1], folder)
    return tuple(found[address] for address in sorted(found))


def has_maker(vendor: str, root: Path = SYS) -> bool:
    """Whether any PCI device is of that maker, with or without a driver."""
    return any(text(path) == vendor for path in (root / "bus" / "pci" / "devices").glob("*/vendor"))


def name_of(card: Card, otherwise: str, lists: tuple[Path, ...] = _NAMES) -> str:
    """The card's name from its firmware or the system's list of PCI ids; else `otherwise` and its number."""
    told = text(card.folder / "product_name")
    if told:
        return told
    vendor, device = (text(card.folder / part).removeprefix("0x") for part in ("vendor", "device"))
    listed = _listed(vendor, device, lists)
    return f"{otherwise.split()[0]} {listed}" if listed else f"{otherwise} {device}".strip()


@functools.cache
def _listed(vendor: str, device: str, lists: tuple[Path, ...]) -> str:
    """The name in the first list that has it: the one in brackets, which is the one on the box, if any."""
    if not vendor or not device:
        return ""
    for path in lists:
        section = re.search(rf"^{vendor}  .*\n((?:[\t#].*\n|\n)*)", text(path) + "\n", re.MULTILINE)
        entry = section and re.search(rf"^\t{device}  (.+)$", section[1], re.MULTILINE)
        if entry:
            marketed = re.search(r"\[(.+)\]", entry[1])
            return marketed[1] if marketed else entry[1].strip()
    return ""
