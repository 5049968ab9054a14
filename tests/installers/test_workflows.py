"""The workflows: what they run exists, what they use is pinned, and what they may do is little."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import dev

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def steps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in load(path)["jobs"].items():
        for step in job["steps"]:
            yield name, step


def scripts(path: Path) -> str:
    return "\n".join(step["run"].replace("\\\n", " ") for _, step in steps(path) if "run" in step)


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> Path:
    path = request.param
    assert isinstance(path, Path)
    return path


def test_actions_are_pinned_to_a_commit_and_say_which_version_that_is(workflow: Path) -> None:
    uses = re.findall(r"^\s*(?:- )?uses: (.*)$", workflow.read_text("utf-8"), re.MULTILINE)
    assert len(uses) == sum("uses" in step for _, step in steps(workflow))
    for use in uses:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use
    # One version of each.
    assert len({use.split("@")[0] for use in uses}) == len(set(uses))


def test_rights_are_given_only_where_they_are_needed(workflow: Path) -> None:
    document = load(workflow)
    assert document["permissions"] == {"contents": "read"}
    for name, job in document["jobs"].items():
        wanted = {"contents": "write"} if name == "publish" else None
        assert job.get("permissions") == wanted, name
        assert job["timeout-minutes"] <= 90
    for _, step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # Values reach scripts as variables: put into the text, a name could become a command.
        assert "${{" not in step.get("run", "")


def test_the_commands_that_are_run_exist(workflow: Path, build: ModuleType) -> None:
    text = scripts(workflow)
    commands = re.findall(r"\bdev\.py (\S+)((?: +\S+)*)", text)
    for command, arguments in commands:
        assert command in dev.COMMANDS
        if command == "package":
            assert set(arguments.split()) <= {*build.KINDS, "all"}
        if command == "test" and arguments.strip():
            assert arguments.strip() in dev.USAGE
    for kinds in re.findall(r"\binstallers/build\.py((?: +\w+)+)", text):
        assert set(kinds.split()) <= {*build.KINDS, "all"}
    for line in re.findall(r"pip install (.*)", text):
        assert "--require-hashes" in line
        (lock,) = re.findall(r"-r (\S+)", line)
        assert lock in dev.Setup.LOCKS.values()
    assert commands


def test_scripts_for_a_shell_are_sound(workflow: Path, tmp_path: Path) -> None:
    for job, step in steps(workflow):
        if "run" in step and job != "windows":
            script = tmp_path / "script.sh"
            script.write_text(f"#!/bin/bash\n{step['run']}")
            subprocess.run(["bash", "-n", script], check=True)
            if shutil.which("shellcheck"):
                # `python3 -c` within quotes is meant as it stands.
                subprocess.run(["shellcheck", "-S", "warning", script], check=True)


def test_a_release_builds_all_on_three_systems_and_publishes_what_it_has_tried(build: ModuleType) -> None:
    (path,) = [each for each in WORKFLOWS if each.stem == "release"]
    jobs = load(path)["jobs"]
    runners = {
        entry["runner"]
        for job in jobs.values()
        for entry in job.get("strategy", {}).get("matrix", {}).get("include", [])
    } | {job["runs-on"] for job in jobs.values()}
    for system in ("ubuntu-22.04", "windows-2022", "macos-15", "macos-15-intel"):
        assert system in runners
    assert set(jobs["publish"]["needs"]) == {"linux", "windows", "macos"}
    for name in ("linux", "windows", "macos"):
        run = "\n".join(step.get("run", "") for step in jobs[name]["steps"])
        assert re.search(r"(dev\.py package|installers/build\.py) all", run)
        assert "upload-artifact" in jobs[name]["steps"][-1]["uses"]
    # Everywhere with checksums and a list of what is inside.
    assert all(kinds[-1] == "sums" for kinds in build.ALL.values())
    assert set(build.ALL) == {"linux", "win32", "darwin"}
    last = jobs["publish"]["steps"]
    assert "sha256sum" in last[1]["run"]
    assert "--draft" in last[-1]["run"]
    assert "router.version import __version__" in scripts(path)
