"""The Debian package in a bare system: installed, started, asked, upgraded, removed and purged.

`python3 dev.py test --packages` builds it first. It needs root, for the bare system, and takes some minutes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from router.service.notices import POOL_NOTICE
from router.version import __version__
from tests.e2e.desktop import wait_for
from tests.packages.bare import HOME, LONGEST_S, MODEL, USER, App, Bare, built, ends_with_an_error
from tests.support.gguf import write_model

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1200)]


def the_deb() -> Path:
    return built(f"lemon-tray_{__version__}_*.deb")


@pytest.fixture(scope="module")
def older(bare: Bare, demo_model: Path) -> Path:
    """The user's home as an older version left it: no new key, and a policy with three models."""
    home = bare.root / HOME.lstrip("/")
    gguf = home / "gguf"
    gguf.mkdir()
    shutil.copyfile(demo_model, gguf / demo_model.name)
    for name in ("second", "third"):
        write_model(gguf / f"{name}.gguf")
    config = home / ".config" / "lemon-tray"
    (config / "policies").mkdir(parents=True)
    (config / "config.json").write_text('{"max_loaded_models": 1, "of a later version": [1]}')
    (config / "policies" / "choice.json").write_text(
        json.dumps(
            {
                "version": "1",
                "recipe": "collection.router",
                "model_name": "choice",
                "components": [MODEL, "second", "third"],
                "routing": {
                    "candidates": [MODEL, "second", "third"],
                    "default_model": MODEL,
                    "rules": [{"id": "two", "match": {"keywords_any": ["two"]}, "route_to": "second"}],
                },
            }
        )
    )
    state = home / ".local" / "state" / "lemon-tray"
    state.mkdir(parents=True)
    (state / "state.json").write_text('{"last_run_version": "0.0.9"}')
    bare.run("chown", "-R", f"{USER}:{USER}", HOME)
    return home


def test_the_package_from_its_installation_to_its_purge(
    bare: Bare,
    start: Callable[..., App],
    older: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    deb = the_deb()
    shutil.copyfile(deb, bare.root / "tmp" / "first.deb")
    # What the package needs comes first, so that what it brings itself can be told from that.
    bare.run("apt-get", "-y", "--no-install-recommends", "install", "/tmp/first.deb")
    bare.run("dpkg", "--purge", "lemon-tray")
    before = bare.files()
    assert not [name for name in before if "lemon" in name.lower()]

    bare.run("dpkg", "--install", "/tmp/first.deb")
    assert "Lemon Tray" in bare.run("lemon-tray", "--version", user=USER)
    assert (bare.root / "usr/share/applications/lemon-tray.desktop").is_file()

    # It runs, and answers with a model in a worker of its own binary.
    app = start()
    first_s = app.answered_s
    assert app.chat()
    workers = subprocess.run(
        ["pgrep", "--parent", str(app.process.pid), "--list-full"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "/usr/lib/lemon-tray/lemon-tray --engine-worker" in workers.stdout
    rss = app.memory()

    # The notice is due, since an older version ran last; the panel shows it, and then it has been told.
    wait_for("the notice to be told", lambda: POOL_NOTICE not in app.notices(), LONGEST_S)
    told = json.loads((older / ".local/state/lemon-tray/state.json").read_text())
    assert told["owed"] == [POOL_NOTICE]
    assert told["told"] == [POOL_NOTICE]
    assert app.quit() == 0

    # Not again, after a start that is no upgrade.
    app = start()
    wait_for(
        "the policy",
        lambda: app.get("/v1/health")["llm_pool_autosize"]["candidate_floor"] == 3,
        LONGEST_S,
    )
    assert app.notices() == []

    # An upgrade while it runs ends it as quitting would: an answer under way gets some seconds, and then an
    # error in place of being cut. The settings stay.
    unpacked = tmp_path / "newer"
    subprocess.run(["dpkg-deb", "-R", deb, unpacked], check=True)
    control = unpacked / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 1:"))
    subprocess.run(["dpkg-deb", "-Znone", "-b", unpacked, bare.root / "tmp" / "newer.deb"], check=True)
    answer = app.stream()
    assert "Stopping Lemon Tray" in bare.run("dpkg", "--install", "/tmp/newer.deb")
    assert ends_with_an_error(answer)
    assert app.ended() == 0
    config = json.loads((older / ".config/lemon-tray/config.json").read_text())
    assert config["of a later version"] == [1]
    assert config["max_loaded_models"] == 1

    app = start()
    again_s = app.answered_s
    assert app.notices() == []
    assert "candidate_floor" in bare.run(
        "lemon-tray", "status", "--json", user=USER, XDG_RUNTIME_DIR="/run/user"
    )

    # So does a removal; and nothing stays but what is the user's.
    assert "Stopping Lemon Tray" in bare.run("dpkg", "--remove", "lemon-tray")
    assert app.ended() == 0
    bare.run("dpkg", "--purge", "lemon-tray")
    assert bare.files() - before == set()
    assert before - bare.files() == set()
    assert (older / ".config/lemon-tray/policies/choice.json").is_file()
    assert (older / ".config/lemon-tray/config.json").is_file()

    size = int(control.read_text().split("Installed-Size: ")[1].split()[0])
    for name, value in (
        ("package_mb", round(deb.stat().st_size / 1e6, 1)),
        ("installed_mb", round(size * 1024 / 1e6, 1)),
        ("first_start_s", round(first_s, 3)),
        ("later_start_s", round(again_s, 3)),
        ("rss_mb", round(rss / 1e6, 1)),
    ):
        record_property(name, value)
        print(f"{name}: {value}")  # noqa: T201  # for docs/packaging.md


def test_lintian_finds_nothing_but_what_is_overridden_with_a_reason() -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", the_deb()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
