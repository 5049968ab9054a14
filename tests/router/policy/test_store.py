"""The folder of policies."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from router.errors import ModelNotFound, RouterError
from router.policy import store as store_module
from router.policy.parse import PolicyFault, parse_policy
from router.policy.store import PolicyStore, file_name, unresolved
from router.settings.watching import Settling
from tests.support import policies


def document(name: str = "p", default: str = "a", **more: Any) -> dict[str, Any]:
    return {**policies.document(name, ("a", "b"), default_model=default, rules=[]), **more}


def put(folder: Path, file: str, content: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def changes() -> list[None]:
    return []


@pytest.fixture
def store(tmp_path: Path, clock: Clock, changes: list[None]) -> PolicyStore:
    return PolicyStore(
        tmp_path / "policies",
        on_change=lambda: changes.append(None),
        settling=Settling(2.0, clock),
        interval_s=0.01,
    )


def test_no_folder_is_no_policy(store: PolicyStore) -> None:
    assert dict(store.load()) == {}
    assert not store.problems


@pytest.mark.fault("F20")
def test_a_bad_file_is_named_and_harms_no_other(store: PolicyStore) -> None:
    put(store.folder, "a.json", document("good"))
    put(store.folder, "b.json", document("bad", default="zzz"))
    put(store.folder, "c.json", "{")
    put(store.folder, "d.json", document("good"))
    put(store.folder, ".hidden.json", "{")
    put(store.folder, "notes.txt", "{")
    (store.folder / "dangling.json").symlink_to("nowhere")
    os.mkfifo(store.folder / "pipe.json")
    assert list(store.load()) == ["good"]
    problems = "\n".join(store.problems)
    assert f"{store.folder / 'b.json'}: $.routing.default_model: expected" in problems
    assert f"{store.folder / 'c.json'}: $: " in problems
    assert f"{store.folder / 'd.json'}: $.model_name: a.json holds a policy of this name" in problems
    assert f"{store.folder / 'pipe.json'}: it cannot be read (it is no regular file)" in problems
    assert len(store.problems) == 5


async def test_registering_is_persistent_and_replaces(store: PolicyStore, changes: list[None]) -> None:
    first = await store.register(document("my policy/1"))
    assert store.policies["my policy/1"] == first
    second = await store.register(json.dumps(document("my policy/1", default="b")).encode())
    assert store.policies == {"my policy/1": second}
    assert len(changes) == 2
    (file,) = store.folder.iterdir()
    assert file.parent == store.folder
    assert dict(PolicyStore(store.folder).load()) == {"my policy/1": second}


async def test_registering_what_is_registered_changes_nothing(
    store: PolicyStore, changes: list[None]
) -> None:
    await store.register(document())
    await store.register(document())
    assert len(changes) == 1


async def test_a_refused_document_leaves_what_was_there(store: PolicyStore, changes: list[None]) -> None:
    policy = await store.register(document())
    with pytest.raises(PolicyFault):
        await store.register(document(default="zzz"))
    assert store.policies == {"p": policy}
    assert len(changes) == 1
    assert dict(PolicyStore(store.folder).load()) == {"p": policy}


async def test_a_full_disk_leaves_what_was_there(store: PolicyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = await store.register(document())

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module, "write_atomically", full)
    with pytest.raises(RouterError, match="No space left on device"):
        await store.register(document(default="b"))
    with pytest.raises(RouterError, match="No space left on device"):
        await store.enable("p", False)
    assert store.policies == {"p": policy}


async def test_the_switch_is_kept_and_survives_a_document_that_does_not_name_it(store: PolicyStore) -> None:
    await store.register(document())
    assert not (await store.enable("p", False)).enabled
    assert not store.policies["p"].enabled
    assert not PolicyStore(store.folder).load()["p"].enabled
    await store.register(document(default="b"))
    assert (store.policies["p"].enabled, store.policies["p"].default_model) == (False, "b")
    await store.register(document(enabled=True))
    assert store.policies["p"].enabled


async def test_deleting(store: PolicyStore, changes: list[None]) -> None:
    await store.register(document("policy-one"))
    with pytest.raises(ModelNotFound, match="near matches: policy-one"):
        await store.delete("policy-onne")
    await store.delete("policy-one")
    assert not store.policies
    assert not list(store.folder.iterdir())
    assert len(changes) == 2
    with pytest.raises(ModelNotFound):
        await store.enable("policy-one", True)


@pytest.mark.fault("F20")
async def test_a_file_that_becomes_bad_keeps_the_running_policy(
    store: PolicyStore, changes: list[None]
) -> None:
    put(store.folder, "x.json", document("p"))
    put(store.folder, "y.json", document("q"))
    before = dict(store.load())
    changes.clear()
    put(store.folder, "x.json", '{"version": ')
    assert not await store.rescan()
    assert dict(store.policies) == before
    assert len(store.problems) == 1
    put(store.folder, "x.json", document("p", default="b"))
    assert await store.rescan()
    assert store.policies["p"].default_model == "b"
    assert store.policies["q"] is not None
    assert not store.problems
    assert len(changes) == 1


async def test_a_removed_file_settles_before_its_policy_goes(store: PolicyStore, clock: Clock) -> None:
    put(store.folder, "x.json", document("p"))
    store.load()
    (store.folder / "x.json").unlink()
    assert not await store.rescan()
    clock.now = 1.0
    put(store.folder, "x.json", document("p"))
    assert not await store.rescan()
    (store.folder / "x.json").unlink()
    assert not await store.rescan()
    clock.now = 3.0
    assert await store.rescan()
    assert not store.policies


async def test_a_renamed_policy_replaces_the_old_name_at_once(store: PolicyStore) -> None:
    put(store.folder, "x.json", document("p"))
    store.load()
    put(store.folder, "x.json", document("q"))
    assert await store.rescan()
    assert list(store.policies) == ["q"]


async def test_what_is_known_is_not_parsed_again(store: PolicyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store.folder, "x.json", document("p"))
    store.load()
    await store.register(document("q"))
    before = dict(store.policies)
    parsed: list[str] = []

    def parse(value: Any) -> Any:
        parsed.append(value["model_name"])
        return parse_policy(value)

    monkeypatch.setattr(store_module, "parse_policy", parse)
    assert not await store.rescan()
    assert parsed == []
    assert dict(store.policies) == before
    put(store.folder, "x.json", document("p", default="b"))
    assert await store.rescan()
    assert parsed == ["p"]
    assert store.policies["p"].default_model == "b"


async def test_watching(store: PolicyStore, changes: list[None]) -> None:
    changed = asyncio.Event()
    store.on_change = changed.set
    watch = asyncio.create_task(store.watch())
    put(store.folder, "x.json", document("p"))
    await asyncio.wait_for(changed.wait(), 30)
    assert list(store.policies) == ["p"]
    watch.cancel()
    await asyncio.wait([watch])


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/b", ".", "..", "CON", "山月", "x" * 255, "\udc00", "a b"]
)
def test_every_name_gives_a_safe_file_name(name: str) -> None:
    made = file_name(name)
    assert made == Path(made).name
    assert made.isascii()
    assert len(made) < 100
    assert not made.startswith(".")
    assert made.endswith(".json")


def test_names_that_differ_in_case_only_have_different_files() -> None:
    assert file_name("User.P").lower() != file_name("user.p").lower()


def test_unresolved_components_are_named_as_written() -> None:
    policy = parse_policy(document())
    assert unresolved(policy, {"a": 1, "b": 2}.get) == ()
    assert unresolved(policy, {"b": 2}.get) == ("a",)
