"""Notices: what users are told once, when an upgrade changed something that can cost them memory."""

from __future__ import annotations

from typing import Final

from router.settings.state import State
from router.snapshot import NoticeView, PoolView

POOL_NOTICE: Final = "llm-pool-autosize"

POOL_NOTICE_SINCE: Final = (0, 1, 0)
"""The first version that sizes the pool by policies: who comes from an older one is told."""


def owed_after_start(
    state: State, *, config_existed: bool, names_autosize: bool, imported: bool = False
) -> bool:
    """Whether this start is an upgrade that the user has to be told about, as soon as it matters to them.

    It is if an older version ran last, if settings were imported from another program since, or if there are
    settings of unknown origin that do not name the key.
    Someone who starts afresh has nothing to be surprised by.
    """
    if POOL_NOTICE in state.told:
        return False
    if POOL_NOTICE in state.owed or imported:
        return True
    if state.last_run_version:
        return _version(state.last_run_version) < POOL_NOTICE_SINCE
    return config_existed and not names_autosize


def due(state: State, pool: PoolView) -> tuple[NoticeView, ...]:
    """The notices to show now: those that are owed, not told, and true at the moment."""
    if POOL_NOTICE not in state.owed or POOL_NOTICE in state.told or not pool.at_risk:
        return ()
    return (
        NoticeView(
            id=POOL_NOTICE,
            title="The model pool sizes itself now",
            text=(
                f"Up to {pool.effective_limit} language models may now stay loaded; your limit says "
                f"{pool.configured_limit}. The policies that are on name {pool.candidate_floor}, and each "
                "gets room, so that switching between them reloads nothing. Idle models are not unloaded "
                "when other programs need the memory, unless auto_evict is on."
            ),
        ),
    )


def _version(text: str) -> tuple[int, ...]:
    """The numbers at the start of a version; what cannot be read is older than everything."""
    numbers: list[int] = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
