"""The providers on disk, and where their keys are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.errors import BadRequest, ConfigError, NotFound
from router.providers.store import Provider, ProviderFile, make_provider
from tests.router.providers.fakes import KEY

URL = "https://api.example.com/v1"


class Ring:
    """A keyring in memory."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


class Locked(Ring):
    """A keyring that refuses."""

    def set_password(self, service: str, username: str, password: str) -> None:
        raise RuntimeError("locked")


def without_keyring(folder: Path) -> ProviderFile:
    return ProviderFile(folder / "providers.json", keyring=lambda: None, environ={"VARIABLE": " key-of-it "})


def provider(name: str = "cloud", **more: object) -> Provider:
    return make_provider({"name": name, "url": URL, **more})


def test_a_key_goes_into_the_keyring_and_nowhere_else(tmp_path: Path) -> None:
    ring = Ring()
    file = ProviderFile(tmp_path / "providers.json", keyring=lambda: ring)
    kept = file.put(provider(), KEY)
    assert (kept.key, kept.secret) == ("keyring", "")
    assert KEY not in file.path.read_text()
    assert file.read() == (kept,)
    assert file.secret(kept) == KEY
    assert list(ring.kept) == [("lemon-tray", "provider:cloud")]
    file.remove("cloud")
    assert (file.read(), ring.kept) == ((), {})


@pytest.mark.parametrize("ring", [None, Locked()])
def test_without_a_keyring_the_file_has_it_for_its_owner_only(tmp_path: Path, ring: Ring | None) -> None:
    file = ProviderFile(tmp_path / "providers.json", keyring=lambda: ring)
    kept = file.put(provider(), KEY)
    assert (kept.key, file.secret(kept)) == ("file", KEY)
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.path.chmod(0o644)
    assert file.read() == (kept,)
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_keyring_that_does_not_give_it_is_no_missing_key(tmp_path: Path) -> None:
    ring = Ring()
    file = ProviderFile(tmp_path / "providers.json", keyring=lambda: ring)
    kept = file.put(provider(), KEY)
    ring.kept.clear()
    assert file.secret(kept) is None


def test_a_variable_is_named_and_not_copied(tmp_path: Path) -> None:
    file = without_keyring(tmp_path)
    kept = file.put(provider(variable="VARIABLE"), None)
    assert (kept.key, file.secret(kept)) == ("variable", "key-of-it")
    assert "key-of-it" not in file.path.read_text()
    gone = file.put(provider(variable="NOT_SET"), None)
    assert file.secret(gone) is None
    with pytest.raises(BadRequest):
        file.put(provider(variable="VARIABLE"), KEY)


def test_a_change_keeps_the_key_for_the_same_host_only(tmp_path: Path) -> None:
    file = without_keyring(tmp_path)
    file.put(provider(), KEY)
    moved = file.put(provider(url="https://api.example.com/v2"), None)
    assert file.secret(moved) == KEY
    with pytest.raises(BadRequest) as refused:
        file.put(provider(url="https://other.example.com/v1"), None)
    assert refused.value.param == "key"
    assert file.read() == (moved,)
    assert file.secret(file.put(provider(url="https://other.example.com/v1"), "")) == ""


def test_what_is_wrong_in_the_file_is_left_out_and_kept(tmp_path: Path) -> None:
    file = without_keyring(tmp_path)
    wrong = {"name": "odd", "url": "https://user:pw@example.com/v1"}
    file.path.write_text(json.dumps({"providers": [wrong, {"name": "good", "url": URL}]}))
    assert [each.name for each in file.read()] == ["good"]
    file.put(provider("new"), None)
    assert [each.name for each in file.read()] == ["good", "new"]
    assert "user:pw@example.com" in file.path.read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"providers": [{"name": 1, "url": ""}]}'])
def test_a_damaged_file_is_told(tmp_path: Path, text: str) -> None:
    file = without_keyring(tmp_path)
    file.path.write_text(text)
    with pytest.raises(ConfigError):
        file.read()
    with pytest.raises(ConfigError):
        file.put(provider(), None)
    assert file.path.read_text() == text


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"name": "Upper"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "-a"}, "name"),
        ({"name": "a" * 33}, "name"),
        ({"types": {"m": "image"}}, "types"),
        ({"variable": "A B"}, "variable"),
        ({"idle_s": 0}, "idle_s"),
        ({"idle_s": float("nan")}, "idle_s"),
        ({"models": [""]}, "models"),
        ({"models": "m"}, None),
        ({"url": 1}, None),
    ],
)
def test_what_a_provider_may_be(given: dict[str, object], param: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        make_provider({"name": "cloud", "url": URL, **given})
    assert refused.value.param == param


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "\u00fc", "k" * 5000])
def test_a_key_that_no_header_takes_is_refused(tmp_path: Path, key: str) -> None:
    file = without_keyring(tmp_path)
    with pytest.raises(BadRequest) as refused:
        file.put(provider(), key)
    assert key not in refused.value.message
    assert file.read() == ()


def test_removing_what_is_not_there_names_what_is(tmp_path: Path) -> None:
    file = without_keyring(tmp_path)
    file.put(provider(), None)
    with pytest.raises(NotFound) as refused:
        file.remove("nope")
    assert "cloud" in (refused.value.hint or "")


def test_what_a_newer_version_wrote_survives_a_change_by_this_one(tmp_path: Path) -> None:
    file = without_keyring(tmp_path)
    file.put(provider(), KEY)
    file.put(provider("other"), None)
    newer = json.loads(file.path.read_text()) | {"format": 7}
    newer["providers"][0]["weights"] = {"big": 1.5}
    newer["providers"][1]["region"] = "north"
    file.path.write_text(json.dumps(newer))

    file.put(provider(idle_s=5.0), None)
    file.put(provider("third"), None)
    file.remove("other")

    cloud, third = (told := json.loads(file.path.read_text()))["providers"]
    assert told["format"] == 7
    assert (cloud["idle_s"], cloud["secret"], cloud["weights"]) == (5.0, KEY, {"big": 1.5})
    assert third["name"] == "third"
    assert "region" not in third


def test_a_key_that_a_newer_version_keeps_elsewhere_is_missing_and_no_leave_to_ask_without(
    tmp_path: Path,
) -> None:
    file = without_keyring(tmp_path)
    file.path.write_text(json.dumps({"providers": [{"name": "cloud", "url": URL, "key": "vault"}]}))
    assert file.secret(file.read()[0]) is None
