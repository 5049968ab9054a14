"""What the tray asks of the service besides: what a policy would decide, and what decides a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import ModelNotFound
from tests.service.live import live, policy


async def test_a_registered_policy_decides_about_a_prompt_and_nothing_is_loaded(
    tmp_path: Path, tiny_models: Path
) -> None:
    async with live(tmp_path, tiny_models) as router:
        await router.router.register_policy(policy("chat", "alpha", "beta"))
        decided = await router.router.test_policy("chat", "BETA, tell me")
        assert decided["route_to"] == "beta"
        assert decided["matched_rule"] == "beta"
        assert [step["result"] for step in decided["trace"]] == [False, True]
        assert (await router.router.test_policy("chat", "anything"))["default_used"] is True
        with pytest.raises(ModelNotFound):
            await router.router.test_policy("nothing", "")
        assert router.router.snapshot.residents == ()
        assert router.router.snapshot.overridden == {"port": "the command line"}
