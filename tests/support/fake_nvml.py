"""A machine with pretended NVIDIA GPUs: the driver's library in C, and the file that says what it answers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".c")


def compile_library(path: Path, *flags: str) -> Path:
    """Compile the library with the C compiler of this machine."""
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True)
    return path


class FakeNvml:
    """What the library answers. Each change is in force from the next call on, whole."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.touched = folder / "touched"
        self.ledger = folder / "ledger"
        self.environment = {"FAKE_NVML_STATE": str(self.state), "FAKE_NVML_TOUCHED": str(self.touched)}
        self.init = 0
        self.cards: dict[int, dict[str, Any]] = {}
        self.parts: dict[tuple[int, int], dict[str, Any]] = {}
        self.uses: list[str] = []
        self.write()

    def card(self, slot: int, **fields: Any) -> None:
        """Add a card, or change fields of one."""
        self.cards.setdefault(slot, {}).update(fields)
        self.write()

    def part(self, slot: int, number: int, **fields: Any) -> None:
        """Add a MIG instance."""
        self.parts[slot, number] = fields
        self.write()

    def use(self, *uses: str) -> None:
        """The processes on the cards, such as `0 4711 1024`; replaces those before."""
        self.uses = list(uses)
        self.write()

    def pull(self, slot: int) -> None:
        """Take a card out."""
        del self.cards[slot]
        self.write()

    def fail(self, code: int) -> None:
        """Let every call answer with this code; 0 ends that."""
        self.init = code
        self.write()

    def keep_account(self, others: Mapping[int, int]) -> dict[str, str]:
        """Let processes tell what they take, and answer by that. Returns what to set in the environment.

        Args:
            others: bytes that other programs hold, by slot.
        """
        self.ledger.write_text("".join(f"0.0 {slot} 0 {size}\n" for slot, size in others.items()))
        return {"FAKE_NVML_LEDGER": str(self.ledger)}

    def killed(self) -> list[int]:
        """Slots on which a process was killed for taking more than there was."""
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        return [int(slot) for _, slot, pid, _ in lines if int(pid) < 0]

    def write(self) -> None:
        """Replace the state in one step, so that no call sees half of it."""
        lines = [f"init {self.init}"]
        lines += [f"card {slot} {_fields(fields)}" for slot, fields in self.cards.items()]
        lines += [f"part {slot}.{number} {_fields(fields)}" for (slot, number), fields in self.parts.items()]
        lines += [f"use {use}" for use in self.uses]
        new = self.state.with_suffix(".new")
        new.write_text("\n".join([*lines, "end", ""]))
        new.replace(self.state)

    def take_touched(self) -> list[str]:
        """Addresses of cards touched since the last time, with `open` and `close` in between."""
        try:
            lines = self.touched.read_text().split()
        except FileNotFoundError:
            return []
        self.touched.unlink()
        return lines


def _fields(fields: dict[str, Any]) -> str:
    return " ".join(f"{key}={str(value).replace(' ', '_')}" for key, value in fields.items())
