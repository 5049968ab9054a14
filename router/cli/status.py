"""A snapshot as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from router.cli.client import Client
from router.errors import RouterError
from router.settings.schema import UNLIMITED
from router.snapshot import DeviceView, DownloadView, PoolView, ResidentView, Snapshot
from router.units import NBSP, gib


def plain(text: str) -> str:
    """Text that cannot steer a terminal: names come from files and from other programs.

    Spaces are plain, so that `grep` finds "1.5 GiB".
    """
    return "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text.replace(NBSP, " ")
    )


def snapshots(client: Client, *, timeout_s: float | None = None) -> Iterator[Snapshot]:
    """The router's state, and each that follows it. `timeout_s` bounds each wait.

    Raises:
        RouterError: the router does not answer, or is of another version.
    """
    for name, data in client.events("/v1/events", timeout_s=timeout_s):
        if name != "snapshot":
            continue
        try:
            yield msgspec.json.decode(data, type=Snapshot)
        except msgspec.MsgspecError as error:
            raise RouterError(f"{client.url} speaks another version: {error}.") from error


def render(snapshot: Snapshot) -> str:
    """The whole as a few lines, the last without a line end."""
    lines = [f"Lemon Tray {snapshot.version}: {snapshot.status}, {snapshot.endpoint}", _pool(snapshot.pool)]
    if snapshot.pool.at_risk:
        lines.append(
            "  More than max_loaded_models may stay loaded, and auto_evict is off. "
            "Hard limit: lemon-tray config set llm_pool_autosize=false"
        )
    if snapshot.degraded:
        lines.append(f"Fault: {snapshot.degraded}")
    lines += _section("Problems", [*snapshot.problems, *snapshot.failures])
    lines += _section("Devices", [_device(device) for device in snapshot.devices])
    lines += _section("Models", [_resident(resident) for resident in snapshot.residents])
    policies = [
        f"{policy.name}{'' if policy.enabled else ' (off)'}: {', '.join(policy.candidates)}"
        + (f"; not found: {', '.join(policy.unresolved)}" if policy.unresolved else "")
        + (f"; {policy.problem}" if policy.problem else "")
        for policy in snapshot.policies
    ]
    lines += _section("Policies", policies)
    providers = [
        f"{provider.name}: {provider.state}, {provider.models} model{'' if provider.models == 1 else 's'}"
        + (f", {provider.in_use} in use" if provider.in_use else "")
        + (f": {provider.problem}" if provider.problem else f" at {provider.url}")
        for provider in snapshot.providers
    ]
    lines += _section("Providers", providers)
    if snapshot.queue.waiting:
        waiting = ", ".join(f"{model} {count}" for model, count in snapshot.queue.by_model.items())
        lines.append(f"Waiting requests: {snapshot.queue.waiting} ({waiting})")
    lines += _section("Downloads", [_download(item) for item in snapshot.downloads])
    if snapshot.update.version:
        lines.append(f"Update: {snapshot.update.version} has been released {snapshot.update.url}".rstrip())
    elif snapshot.update.problem:
        lines.append(f"Update: {snapshot.update.problem}")
    return "\n".join(plain(line) for line in lines)


def _section(title: str, entries: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []


def _pool(pool: PoolView) -> str:
    def limit(number: int) -> str:
        return "unlimited" if number == UNLIMITED else str(number)

    loading = f" and {pool.loading} loading" if pool.loading else ""
    held = pool.room_for is not None and pool.room_for < pool.candidate_floor
    memory = f", memory for {pool.room_for} of these" if held else ""
    return (
        f"Pool: {pool.loaded} loaded{loading}, room for {limit(pool.effective_limit)} "
        f"(max_loaded_models {limit(pool.configured_limit)}, policies name {pool.candidate_floor}{memory}, "
        f"autosize {'on' if pool.autosize else 'off'})"
    )


def _download(item: DownloadView) -> str:
    if item.error:
        return f"{item.name}: {item.state}: {item.error}"
    return f"{item.name}: {item.state} {gib(item.done)}" + (f" of {gib(item.total)}" if item.total else "")


def _device(device: DeviceView) -> str:
    if device.total is None or device.free is None:
        return f"{device.name}: unknown ({device.reason})"
    return (
        f"{device.name}: {gib(device.free)} of {gib(device.total)} free; models {gib(device.ours)}, "
        f"reserved {gib(device.reserved)}, other programs {gib(device.others)}"
        + (f", kept for waiting loads {gib(device.claimed)}" if device.claimed else "")
    )


def _resident(resident: ResidentView) -> str:
    words = [f"{resident.state}"]
    if resident.progress is not None:
        words[0] += f" {resident.progress:.0%}"
    words.append(gib(resident.bytes))
    if resident.in_use:
        words.append(f"{resident.in_use} in use")
    if resident.waiting:
        words.append(f"{resident.waiting} waiting")
    if resident.pinned:
        words.append("pinned")
    if resident.stuck:
        words.append("stuck")
    if resident.reason:
        words.append(resident.reason)
    return f"{resident.model}: {', '.join(words)}"
