"""Why a plan refuses a request: what is in the way, in numbers, and what would help."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from router.errors import InsufficientMemory, LoadFailed, ModelNotFound, RouterError, SlotsPinned, Unavailable
from router.residency.admission import UNBOUNDED, Memory, margin_of, others_on
from router.residency.placement import Placement
from router.residency.world import Failure, WaiterRow, World
from router.settings.schema import Settings
from router.units import gib, size


def gone(waiter: WaiterRow) -> RouterError:
    by = f" The policy {waiter.policy} names it as a candidate." if waiter.policy else ""
    return ModelNotFound(f"There is no model {waiter.model} any more.{by}", param="model")


def failed_before(model: str, failure: Failure, now: float) -> RouterError:
    wait = failure.until - now
    return _backed_off(model, failure, f"is not tried again for {wait:.0f} s", wait)


def not_worth_a_victim(model: str, failure: Failure) -> RouterError:
    return _backed_off(
        model, failure, "is not tried again as long as another would have to unload for it", 30
    )


def _backed_off(model: str, failure: Failure, what: str, retry_after_s: float) -> RouterError:
    times = "once" if failure.count == 1 else f"{failure.count} times in a row"
    return LoadFailed(
        f"{model} failed {times} and {what}. {failure.message}",
        code="load_backoff",
        status=503,
        retry_after_s=retry_after_s,
        hint="Load it explicitly to try at once, or replace the file.",
    )


def paused(model: str) -> RouterError:
    return Unavailable(
        f"Loading is paused, so {model} was not loaded.",
        code="paused",
        retry_after_s=30,
        hint="Resume from the tray, or load the model explicitly.",
    )


def slots_pinned(model: str, pins: list[str]) -> RouterError:
    names = ", ".join(pins)
    return SlotsPinned(
        f"{model} cannot be loaded: every slot is held by a pinned model ({names}).",
        param="model",
        hint="Unpin or unload one of them, or raise max_loaded_models.",
    )


def rejected(model: str, why: str) -> RouterError:
    """`admission=reject`: there may be room later, but nobody waits for it."""
    return Unavailable(
        f"{model} was not loaded: {why}, and admission=reject lets no request wait for room.",
        code="admission_rejected",
        retry_after_s=5,
        hint="Try again later, or set admission=wait.",
    )


def insufficient(
    model: str,
    placement: Placement | None,
    memory: Memory,
    world: World,
    settings: Settings,
    pinned: Iterable[str] = (),
    spared: Collection[str] = (),
    given_back: Mapping[str, int] = {},
) -> RouterError:
    """The model has no room, and nobody who could go would make any.

    Args:
        placement: the layout that came closest.
        pinned: models without which there would be room.
        spared: models that do not go for this one, though they would for others.
        given_back: bytes by device of the model's own process, which goes first.
    """
    names = list(pinned)
    devices = device_table(placement, memory, world, settings, given_back, spared)
    short = [row for row in devices if row["needed"] > row["possible"]]
    where = "; ".join(
        f"{row['label']} needs {gib(row['needed'])} and could have {gib(max(row['possible'], 0))}"
        for row in short or devices
    )
    if names:
        help_text = f"Unpin or unload {' or '.join(names)}."
    elif settings.vram_cap and any(row["needed"] > settings.vram_cap - row["margin"] for row in short):
        help_text = f"Raise vram_cap: it is {size(settings.vram_cap)}, and loads leave a margin of that free."
    elif any(row["others"] > row["needed"] - row["possible"] for row in short):
        help_text = "Close other programs that use the device, or take a smaller context or quantization."
    else:
        help_text = "Take a smaller ctx_size, cache_type_k and cache_type_v q8_0, or a smaller quantization."
    blocked = f" Pinned models hold the rest: {', '.join(names)}." if names else ""
    staying = sorted({r.model for r in world.residents if r.model in spared})
    if staying:
        blocked += f" For a routing decision none of its candidates is unloaded: {', '.join(staying)}."
    return InsufficientMemory(
        f"{model} does not fit: {where}.{blocked}",
        param="model",
        hint=help_text,
        details={"devices": devices, "pinned": names},
    )


def device_table(
    placement: Placement | None,
    memory: Memory,
    world: World,
    settings: Settings,
    given_back: Mapping[str, int] = {},
    spared: Collection[str] = (),
) -> list[dict[str, Any]]:
    """For each device that a layout takes from: what is needed, and where the memory is. Bytes.

    `possible` is what a load could have at most if every model were gone that is neither pinned nor spared.
    """
    booking = placement.booking if placement is not None else {}
    staying = {*world.pinned, *spared}
    stays = {
        device: sum(r.bytes.get(device, 0) for r in world.residents if r.model in staying)
        for device in memory.now
    }
    rows = []
    for reading in world.readings:
        device = reading.device.id
        if device not in memory.now or (booking and device not in booking):
            continue
        ours = sum(r.bytes.get(device, 0) for r in world.residents)
        room = memory.now[device]
        # What others wait for, or have just been given, they can be made to give up again.
        emptied = room if given_back else room + memory.taken.get(device, 0)
        rows.append(
            {
                "id": device,
                "label": reading.device.label,
                "needed": booking.get(device, 0),
                "available": None if room >= UNBOUNDED else max(0, room),
                "possible": emptied + (given_back.get(device, 0) if given_back else ours - stays[device]),
                "total": reading.total,
                "free": reading.free,
                "charged": ours,
                "reserved": memory.reserved.get(device, 0),
                "claimed": memory.claims.get(device, 0),
                "others": others_on(reading, world.residents),
                "margin": margin_of(reading.total, settings),
            }
        )
    return rows
