"""The upgrade notice: once, to those whom it concerns, until it has been seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.errors import NotFound
from router.paths import Paths
from router.service import Router
from router.service.notices import POOL_NOTICE, due, owed_after_start
from router.settings.state import State, mark_imported
from router.snapshot import PoolView
from router.version import __version__
from tests.support.gguf import write_model
from tests.support.policies import document


def pool(**changes: object) -> PoolView:
    values = {
        "autosize": True,
        "configured_limit": 1,
        "effective_limit": 3,
        "candidate_floor": 3,
        "loaded": 0,
        "loading": 0,
        "auto_evict": False,
    }
    return PoolView(**(values | changes))  # type: ignore[arg-type]  # a table of overrides


@pytest.mark.parametrize(
    ("state", "existed", "names_key", "owed"),
    [
        (State(), False, False, False),
        (State(), True, False, True),
        (State(), True, True, False),
        (State(last_run_version="0.0.9"), False, False, True),
        (State(last_run_version="0.0.9"), True, True, True),
        (State(last_run_version="0.1.0"), True, False, False),
        (State(last_run_version="0.2.0"), True, False, False),
        (State(last_run_version="nonsense"), True, False, True),
        (State(last_run_version="0.1.0", owed=(POOL_NOTICE,)), True, False, True),
        (State(last_run_version="0.0.9", told=(POOL_NOTICE,)), True, False, False),
    ],
)
def test_who_is_owed_the_notice(state: State, existed: bool, names_key: bool, owed: bool):
    assert owed_after_start(state, config_existed=existed, names_autosize=names_key) is owed


@pytest.mark.parametrize(
    ("state", "owed"),
    [
        (State(), True),
        (State(last_run_version="0.2.0"), True),
        (State(last_run_version="0.2.0", told=(POOL_NOTICE,)), False),
    ],
)
def test_an_import_makes_the_notice_owed(state: State, owed: bool):
    assert owed_after_start(state, config_existed=True, names_autosize=True, imported=True) is owed


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, True),
        ({"auto_evict": True}, False),
        ({"autosize": False, "effective_limit": 1}, False),
        ({"configured_limit": -1, "effective_limit": -1}, False),
        ({"configured_limit": 3}, False),
    ],
)
def test_the_notice_is_due_only_at_risk_and_tells_the_numbers(changes: dict[str, object], shown: bool):
    owed = State(owed=(POOL_NOTICE,))
    notices = due(owed, pool(**changes))
    assert bool(notices) is shown
    assert not due(State(), pool(**changes))
    assert not due(State(owed=(POOL_NOTICE,), told=(POOL_NOTICE,)), pool(**changes))
    if shown:
        assert "Up to 3 language models" in notices[0].text
        assert "your limit says 1" in notices[0].text


@pytest.fixture
def upgraded(tmp_path: Path) -> tuple[Paths, Path]:
    """Somebody who ran an older version, with settings and two models."""
    paths = Paths.under(tmp_path)
    paths.ensure()
    paths.config_file.write_text(json.dumps({"max_loaded_models": 1}))
    (paths.state_dir / "state.json").write_text(json.dumps({"last_run_version": "0.0.5"}))
    models = tmp_path / "gguf"
    models.mkdir()
    for name in ("small", "large"):
        write_model(models / f"{name}.gguf")
        with (models / f"{name}.gguf").open("ab") as file:
            file.write(name.encode())
    return paths, models


def router_of(upgraded: tuple[Paths, Path]) -> Router:
    paths, models = upgraded
    return Router(paths, overrides={"port": 0}, models_dirs=(models,), environ={})


POLICY = document(
    "auto",
    ("small", "large"),
    rules=[{"id": "hard", "match": {"keywords_any": ["prove"]}, "route_to": "large"}],
)


async def test_the_notice_comes_when_the_risk_does_and_stays_until_it_was_seen(upgraded):
    router = router_of(upgraded)
    await router.start()
    try:
        assert router.snapshot.notices == ()
        await router.register_policy(POLICY)
        assert [n.id for n in router.snapshot.notices] == [POOL_NOTICE]
    finally:
        await router.stop()
    # Not seen: the next start, no longer an upgrade by version, shows it again.
    for seen in (False, True):
        router = router_of(upgraded)
        await router.start()
        try:
            assert [n.id for n in router.snapshot.notices] == [POOL_NOTICE]
            if seen:
                await router.tell_notice(POOL_NOTICE)
                assert router.snapshot.notices == ()
                await router.tell_notice(POOL_NOTICE)
                with pytest.raises(NotFound):
                    await router.tell_notice("another")
        finally:
            await router.stop()
    router = router_of(upgraded)
    await router.start()
    try:
        assert router.snapshot.pool.at_risk
        assert router.snapshot.notices == ()
    finally:
        await router.stop()


async def test_a_fresh_install_is_never_shown_the_notice(tmp_path: Path, upgraded):
    paths = Paths.under(tmp_path / "fresh")
    paths.ensure()
    for _ in range(2):
        router = router_of((paths, upgraded[1]))
        await router.start()
        try:
            await router.register_policy(POLICY)
            await router.set_settings({"max_loaded_models": 1})
            assert router.snapshot.pool.at_risk
            assert router.snapshot.notices == ()
        finally:
            await router.stop()


async def test_after_an_import_the_notice_is_due_at_the_next_start_once(upgraded):
    paths, _ = upgraded
    # This version ran last, and the settings name the key: no upgrade, but for the import.
    (paths.state_dir / "state.json").write_text(json.dumps({"last_run_version": __version__}))
    paths.config_file.write_text(json.dumps({"max_loaded_models": 1, "llm_pool_autosize": True}))
    mark_imported(paths.state_dir)
    for due_now in (True, False):
        router = router_of(upgraded)
        await router.start()
        try:
            await router.register_policy(POLICY)
            assert [n.id for n in router.snapshot.notices] == ([POOL_NOTICE] if due_now else [])
            if due_now:
                await router.tell_notice(POOL_NOTICE)
        finally:
            await router.stop()
        assert not (paths.state_dir / "imported").exists()
