"""The name of the model in a remote answer: as it is known here, and not as its provider calls it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

#: A member `model` with a text. It cannot be found inside a text: there its quotes have backslashes.
_MEMBER: Final = re.compile(rb'("model"[ \t\r\n]*:[ \t\r\n]*)"(?:[^"\\\r\n]|\\.)*"')
#: No member is longer: what is held back, so that one that is cut in two is found as well.
_LONGEST: Final = 1 << 10
_LONG_LINE: Final = 64 << 10


class Renaming:
    """Puts another name into the first `model` of each event of a stream, or of a whole answer.

    All other bytes pass as they are. A line of a stream goes on when it is whole, or found to be long.
    """

    __slots__ = ("_cut", "_events", "_found", "_held", "_name")

    def __init__(self, name: str, *, events: bool) -> None:
        """`events`: the answer is a stream."""
        self._name = msgspec.json.encode(name)
        self._events = events
        self._held = b""
        self._found = False
        self._cut = False

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go on."""
        return self._of_stream(data) if self._events else self._of_whole(data)

    def flush(self) -> bytes:
        """The answer ends: the bytes held back."""
        held, self._held = self._held, b""
        return held if self._found or self._cut else self._renamed(held)[0]

    def _of_stream(self, data: bytes) -> bytes:
        data = self._held + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        lines, self._held = data[:end], data[end:]
        begun = self._cut
        self._cut = self._cut and not end
        parts: list[bytes] = []
        for line in lines.splitlines(keepends=True):
            parts.append(line if begun else self._renamed(line)[0])
            begun = False
        if self._cut or len(self._held) > _LONG_LINE:
            # The rest of a long line follows as it comes.
            parts.append(self._held if self._cut else self._renamed(self._held)[0])
            self._held, self._cut = b"", True
        return b"".join(parts)

    def _of_whole(self, data: bytes) -> bytes:
        if self._found:
            return data
        data = self._held + data
        data, self._found = self._renamed(data)
        if self._found:
            self._held = b""
            return data
        keep = max(0, len(data) - _LONGEST)
        self._held = data[keep:]
        return data[:keep]

    def _renamed(self, data: bytes) -> tuple[bytes, bool]:
        found = _MEMBER.search(data)
        if found is None:
            return data, False
        return data[: found.end(1)] + self._name + data[found.end() :], True
