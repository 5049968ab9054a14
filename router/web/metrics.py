"""`GET /metrics`: Prometheus' text, made from the snapshot and the counters at the moment of the scrape."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from router.snapshot import LOAD_BOUNDS_S, DeviceView, Snapshot
from router.web.api import RouterApi
from router.web.health import effective_limits
from router.web.tally import Tally


class RouterCollector(Collector):
    """Reads the router; keeps nothing."""

    def __init__(self, api: RouterApi, tally: Tally) -> None:
        self._api = api
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        snapshot = self._api.snapshot
        yield from _limits(snapshot)
        yield from _state(snapshot)
        yield from _devices(snapshot.devices)
        yield from _counters(self._tally)


class Metrics:
    """The metrics page, with a registry of its own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, api: RouterApi, tally: Tally) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(RouterCollector(api, tally))

    def render(self) -> bytes:
        """The page, in the text format."""
        return generate_latest(self._registry)


def _limits(snapshot: Snapshot) -> Iterator[Metric]:
    effective = effective_limits(snapshot)
    configured = GaugeMetricFamily(
        "lemonade_max_loaded_models_configured",
        "Configured limit of loaded models (max_loaded_models); -1: no limit.",
        labels=["type"],
    )
    now = GaugeMetricFamily(
        "lemonade_max_loaded_models",
        "Effective limit of loaded models, after llm_pool_autosize; -1: no limit.",
        labels=["type"],
    )
    for kind, limit in sorted(effective.items()):
        configured.add_metric([kind], snapshot.pool.configured_limit)
        now.add_metric([kind], limit)
    yield configured
    yield now
    yield _gauge(
        "lemonade_llm_candidate_floor",
        "Distinct local language models that the active policies name as candidates.",
        snapshot.pool.candidate_floor,
    )


def _state(snapshot: Snapshot) -> Iterator[Metric]:
    residents = GaugeMetricFamily(
        "lemonade_resident_models", "Models with a worker process.", labels=["type", "state"]
    )
    for (kind, state), count in sorted(Counter((r.type, r.state.value) for r in snapshot.residents).items()):
        residents.add_metric([kind, state], count)
    yield residents
    if snapshot.providers:
        ready = GaugeMetricFamily(
            "lemonade_provider_ready", "1 while a remote provider answers, else 0.", labels=["provider"]
        )
        asked = GaugeMetricFamily(
            "lemonade_provider_requests", "Requests that a remote provider is answering.", labels=["provider"]
        )
        for provider in snapshot.providers:
            ready.add_metric([provider.name], provider.state == "ready")
            asked.add_metric([provider.name], provider.in_use)
        yield ready
        yield asked
    yield _gauge("lemonade_queue_length", "Requests that wait for a model.", snapshot.queue.waiting)
    yield _gauge(
        "lemonade_queue_bytes", "Bytes of the bodies of waiting requests.", snapshot.queue.waiting_bytes
    )
    events = CounterMetricFamily(
        "lemonade_events", "Decisions and events, as in the feed.", labels=["code", "reason"]
    )
    for code, reason, count in snapshot.event_counts:
        events.add_metric([code, reason], count)
    yield events
    loads = HistogramMetricFamily("lemonade_load_seconds", "How long loads took that came to their end.")
    sums = itertools.accumulate(snapshot.load_times.counts)
    bounds = (*map(str, LOAD_BOUNDS_S), "+Inf")
    loads.add_metric([], list(zip(bounds, sums, strict=True)), snapshot.load_times.total_s)
    yield loads
    yield _gauge(
        "lemonade_loop_lag_seconds", "Worst lag of the event loop in the last minute.", snapshot.loop_lag_s
    )
    yield _gauge("lemonade_snapshot_generation", "Generation of the newest snapshot.", snapshot.generation)
    yield _gauge("lemonade_uptime_seconds", "Seconds since the router started.", snapshot.uptime_s)


def _devices(devices: Iterable[DeviceView]) -> Iterator[Metric]:
    known = tuple(devices)
    for name, text in (
        ("total", "All memory of the device; absent while it cannot be read."),
        ("free", "Free memory of the device; absent while it cannot be read."),
        ("reserved", "Memory that loads in flight are still to take."),
        ("ours", "Memory that loaded models hold."),
    ):
        family = GaugeMetricFamily(f"lemonade_device_{name}_bytes", text, labels=["device", "name"])
        for device in known:
            value = getattr(device, name)
            if value is not None:
                family.add_metric([device.id, device.name], value)
        yield family


def _counters(tally: Tally) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "lemonade_requests", "Requests answered, by model and HTTP status.", labels=["model", "status"]
    )
    for (model, status), count in sorted(tally.requests.items()):
        requests.add_metric([model, str(status)], count)
    yield requests
    yield from _routes(tally)
    totals: tuple[tuple[str, str, Mapping[str, float]], ...] = (
        ("lemonade_request_seconds", "Seconds spent on requests, waiting included.", tally.seconds),
        ("lemonade_tokens_generated", "Tokens generated.", tally.tokens),
        ("lemonade_tokens_prompt", "Tokens of prompts.", tally.prompt_tokens),
    )
    for name, text, counts in totals:
        family = CounterMetricFamily(name, text, labels=["model"])
        for model, amount in sorted(counts.items()):
            family.add_metric([model], amount)
        yield family


def _routes(tally: Tally) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "lemonade_route_decisions", "Decisions of policies, by rule.", labels=["policy", "rule", "route_to"]
    )
    for decided, count in sorted(tally.routes.items()):
        decisions.add_metric(decided, count)
    yield decisions
    fallbacks = CounterMetricFamily(
        "lemonade_route_fallbacks",
        "Candidates that gave way to another one.",
        labels=["policy", "candidate", "reason"],
    )
    for passed, count in sorted(tally.fallbacks.items()):
        fallbacks.add_metric(passed, count)
    yield fallbacks
    switches = CounterMetricFamily(
        "lemonade_route_switches",
        "Requests that went to another model than their conversation's last one.",
        labels=["policy"],
    )
    for policy, count in sorted(tally.switches.items()):
        switches.add_metric([policy], count)
    yield switches


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
