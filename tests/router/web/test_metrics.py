"""The metrics page."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.residency.feed import Feed
from router.snapshot import DeviceState, DeviceView, PoolView, QueueView
from tests.router.web.fakes import CHAT, Site, chat, reply, site, snapshot

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def _scrape(s: Site) -> tuple[Samples, dict[str, str]]:
    answer = await s.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(bytes(answer.body).decode()))
    samples = {
        (x.name, tuple(sorted(x.labels.items()))): x.value for family in families for x in family.samples
    }
    return samples, {family.name: family.documentation for family in families}


async def test_limits_queue_and_devices() -> None:
    async with site(reply) as s:
        device = DeviceView("gpu-0", "A card", "CUDA0", "gpu", 1000, 400, 300, 50, 200, 10, DeviceState.OK)
        blind = DeviceView("host", "RAM", "CPU", "host", None, None, 0, 0, 0, 0, DeviceState.UNKNOWN)
        s.api.publish(
            snapshot(
                9,
                pool=PoolView(True, 1, 3, 3, 2, 0, False),
                effective_limits={"llm": 3, "embedding": 1},
                devices=(device, blind),
                queue=QueueView(4, 100, {}),
            )
        )
        samples, help_texts = await _scrape(s)
        llm = (("type", "llm"),)
        assert samples["lemonade_max_loaded_models_configured", llm] == 1
        assert samples["lemonade_max_loaded_models", llm] == 3
        assert samples["lemonade_max_loaded_models", (("type", "embedding"),)] == 1
        assert "ffective" in help_texts["lemonade_max_loaded_models"]
        assert samples["lemonade_llm_candidate_floor", ()] == 3
        assert samples["lemonade_queue_length", ()] == 4
        assert samples["lemonade_queue_bytes", ()] == s.api.snapshot.queue.waiting_bytes > 0
        assert samples["lemonade_snapshot_generation", ()] == 9
        card = (("device", "gpu-0"), ("name", "A card"))
        assert samples["lemonade_device_total_bytes", card] == 1000
        assert samples["lemonade_device_free_bytes", card] == 400
        assert samples["lemonade_device_reserved_bytes", card] == 50
        ram = (("device", "host"), ("name", "RAM"))
        assert ("lemonade_device_free_bytes", ram) not in samples
        assert samples["lemonade_device_reserved_bytes", ram] == 0


async def test_requests_and_tokens_are_counted() -> None:
    async with site(reply) as s:
        await s.ask("POST", CHAT, chat())
        await s.ask("POST", CHAT, chat())
        await s.ask("POST", CHAT, chat(model="unknown-name"))
        samples, _ = await _scrape(s)
        assert samples["lemonade_requests_total", (("model", "alpha"), ("status", "200"))] == 2
        assert samples["lemonade_requests_total", (("model", ""), ("status", "404"))] == 1
        assert samples["lemonade_tokens_generated_total", (("model", "alpha"),)] == 14
        assert samples["lemonade_tokens_prompt_total", (("model", "alpha"),)] == 6
        assert s.api.leases[0].tokens == 7
        assert samples["lemonade_request_seconds_total", (("model", "alpha"),)] > 0
        assert not [labels for _, labels in samples if ("model", "unknown-name") in labels]


async def test_the_seconds_of_loads_are_a_histogram() -> None:
    feed = Feed()
    for seconds in (0.1, 0.5, 0.6, 45.0, 3600.0):
        feed.loaded(seconds)
    async with site(reply) as s:
        samples, _ = await _scrape(s)
        assert samples["lemonade_load_seconds_count", ()] == 0
        s.api.publish(snapshot(2, load_times=feed.load_times()))
        samples, _ = await _scrape(s)
        told = {le: samples["lemonade_load_seconds_bucket", (("le", le),)] for le in ("0.5", "1.0", "60.0")}
        assert told == {"0.5": 2, "1.0": 3, "60.0": 4}
        assert samples["lemonade_load_seconds_bucket", (("le", "+Inf"),)] == 5
        assert samples["lemonade_load_seconds_count", ()] == 5
        assert samples["lemonade_load_seconds_sum", ()] == pytest.approx(3646.2)


async def test_two_endpoints_do_not_share_counters() -> None:
    async with site(reply) as one, site(reply) as two:
        await one.ask("POST", CHAT, chat())
        samples, _ = await _scrape(two)
        assert not [name for name, labels in samples if ("model", "alpha") in labels]
        assert msgspec.json.encode(sorted(samples.values()))


async def test_events_are_counted_by_code_and_reason() -> None:
    async with site(reply) as s:
        s.api.publish(snapshot(event_counts=(("evict", "make_room", 3), ("ready", "", 2)), loop_lag_s=0.02))
        samples, _ = await _scrape(s)
        assert samples["lemonade_events_total", (("code", "evict"), ("reason", "make_room"))] == 3
        assert samples["lemonade_events_total", (("code", "ready"), ("reason", ""))] == 2
        assert samples["lemonade_loop_lag_seconds", ()] == 0.02
