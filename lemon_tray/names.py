"""Names, numbers and addresses as people read them.

They are written the same wherever they are shown. No Qt.
"""

from __future__ import annotations

import functools
import re
import shlex
import time
import unicodedata
from collections.abc import Callable
from typing import Final

import msgspec

from lemon_tray.view import Progress
from lemon_tray.words import translate
from router.settings.schema import UNLIMITED
from router.snapshot import DownloadView
from router.units import MIB, NBSP

_UNSEEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})
_SPACES: Final = re.compile(r" {2,}")
Clock = Callable[[float], str]


def local_clock(moment: float) -> str:
    """`14:03`, in the user's time zone."""
    return time.strftime("%H:%M", time.localtime(moment))


@functools.lru_cache(maxsize=4096)  # the same names and sentences come with every snapshot
def plain(text: str, limit: int = 300) -> str:
    """`text` on one line, without control characters or backticks, shortened in the middle.

    A text with letters written from right to left is isolated, so that it cannot reorder its neighbours.
    """
    line = "".join(" " if unicodedata.category(c) in _UNSEEN else c for c in text)
    line = _SPACES.sub(" ", line).strip().replace("`", "'")
    if len(line) > limit:
        half = (limit - 1) // 2
        line = f"{line[:half]}…{line[-half:]}"
    return isolated(line) if is_right_to_left(line) else line


@functools.lru_cache(maxsize=4096)
def is_right_to_left(text: str) -> bool:
    """It has letters that are written from right to left."""
    return any(unicodedata.bidirectional(c) in ("R", "AL") for c in text)


_ISOLATED: Final = re.compile(
    "\N{FIRST STRONG ISOLATE}[^\N{POP DIRECTIONAL ISOLATE}]*\N{POP DIRECTIONAL ISOLATE}"
)


def is_sentence_right_to_left(text: str) -> bool:
    """It is written from right to left, whatever names stand isolated in it."""
    return is_right_to_left(text) and is_right_to_left(_ISOLATED.sub("", text))


def isolated(text: str) -> str:
    """`text` in its own direction, whatever stands beside it."""
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}"


def unmarked(text: str) -> str:
    """`text` for servers of trays and notifications, some of which read markup: with none in it."""
    return text.replace("<", "‹").replace(">", "›")


def percent(fraction: float) -> str:
    """`43 %`, never 100 before the end."""
    return f"{min(99, int(fraction * 100)) if fraction < 1 else 100}{NBSP}%"


def limit_text(limit: int) -> str:
    """A value of `max_loaded_models` in words."""
    return translate("Controls", "no limit") if limit == UNLIMITED else str(limit)


def base_url(endpoint: str) -> str:
    """What an app is to be told: the endpoint with `/v1`; "" while there is none."""
    return f"{endpoint.rstrip('/').removesuffix('/v1')}/v1" if endpoint else ""


def curl_example(endpoint: str, model: str) -> str:
    """A shell command that asks `model` for an answer."""
    body = msgspec.json.encode({"model": model, "messages": [{"role": "user", "content": "Hello"}]}).decode()
    header = "-H 'Content-Type: application/json'"
    return f"curl {shlex.quote(base_url(endpoint) + '/chat/completions')} {header} -d {shlex.quote(body)}"


def download_progress(download: DownloadView) -> Progress:
    """How far a download is: `41 of 94 MiB`."""
    done = f"{download.done / MIB:.0f}"
    if not download.total:
        return Progress(None, translate("Banner", "{done} MiB").format(done=done).replace(" ", NBSP))
    total = f"{download.total / MIB:.0f}{NBSP}MiB"
    return Progress(
        min(1.0, download.done / download.total),
        translate("Banner", "{done} of {total}").format(done=done, total=total),
    )
