"""The tray's menu and tooltip: the panel's facts in a line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lemon_tray.names import curl_example, percent, plain, unmarked
from lemon_tray.present_models import load_progress
from lemon_tray.present_pool import LLM
from lemon_tray.view import Bar, Head, MenuModel, MenuView, Pool
from lemon_tray.words import translate
from router.snapshot import ResidentState, ResidentView, Snapshot
from router.units import NBSP, gib


def present_menu(
    snapshot: Snapshot, head: Head, bars: Sequence[Bar], pool: Pool, labels: Mapping[str, str]
) -> MenuView:
    """What the menu says; `labels` are the devices' short names by id."""
    status = [head.title]
    for bar in bars:
        device = f"{bar.title} ({bar.label})" if bar.label else bar.title
        if bar.total is None:
            line = translate("Menu", "{device}: {reason}").format(device=device, reason=bar.reason)
        else:
            line = translate("Menu", "{device}: {used} of {total}").format(
                device=device, used=bar.used, total=bar.total_text
            )
        status.append(f"{line}, {bar.claim}" if bar.claim else line)
        if bar.total is None and bar.note:
            status.append(bar.note)
    status.append(
        translate("Menu", "LLM pool: {parts}").format(
            parts=", ".join((pool.loaded, pool.room, pool.limit, pool.floor))
        )
    )
    residents = tuple(_menu_model(r, labels) for r in snapshot.residents)
    loaded = {r.model for r in snapshot.residents}
    loadable = tuple(
        (m.name, plain(m.name, 60)) for m in snapshot.models if m.name not in loaded and not m.broken
    )
    tooltip = [translate("Menu", "Lemon Tray: {state}").format(state=head.title)]
    tooltip += [f"{bar.title}: {bar.used} / {bar.total_text}" for bar in bars if bar.total is not None]
    chat = [r.model for r in snapshot.residents if r.type == LLM]
    chat += [p.name for p in snapshot.policies if p.enabled]
    chat += [m.name for m in snapshot.models if m.type == LLM and not m.broken]
    return MenuView(
        status=tuple(status),
        residents=residents,
        loadable=loadable,
        tooltip=unmarked("\n".join(tooltip)),
        paused=snapshot.paused,
        curl=curl_example(snapshot.endpoint, chat[0] if chat else "MODEL"),
    )


def _menu_model(resident: ResidentView, labels: Mapping[str, str]) -> MenuModel:
    loading = resident.state is ResidentState.LOADING
    name = plain(resident.model, 60)
    parts = []
    if loading:
        parts.append(translate("Menu", "loading {percent}").format(percent=percent(load_progress(resident))))
    elif resident.state is ResidentState.READY:
        parts.append(translate("Menu", "ready"))
    else:
        parts.append(translate("Menu", "unloading"))
    if resident.pinned:
        parts.append(translate("Menu", "pinned"))
    if not loading:
        parts.append(gib(resident.bytes))
        if resident.tokens_per_s is not None:
            parts.append(f"{resident.tokens_per_s:.1f}{NBSP}tok/s")
    detail = ", ".join(f"{labels.get(d, d)} {gib(b)}" for d, b in resident.devices.items() if b > 0)
    return MenuModel(
        model=resident.model,
        label=f"{name}: {', '.join(parts)}",
        detail=detail or gib(resident.bytes),
        pinned=resident.pinned,
        loading=loading,
    )
