"""What the documents show must be what the router takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from router.policy.parse import parse_policy
from router.policy.schema import schema_path

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")


def examples(text: str) -> list[str]:
    return re.findall(r"```json\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("file", ["README.md", "docs/policies.md"])
def test_the_policies_shown_are_policies(file: str) -> None:
    found = [e for e in examples((ROOT / file).read_text(encoding="utf-8")) if "collection.router" in e]
    assert found
    for example in found:
        parse_policy(example.encode())


def test_every_key_of_the_language_is_explained() -> None:
    schema = json.loads(schema_path().read_text())
    for name in ("routing", "match", "classifier", "metadata"):
        for key in schema["definitions"][name]["properties"]:
            assert re.search(rf"[`\"]{key}[`\"]|`(routing\.)?{key}`", GUIDE), key


def test_the_schema_comes_with_the_package() -> None:
    assert '"resources" = "lemon_tray/resources"' in (ROOT / "pyproject.toml").read_text()
    assert schema_path() == ROOT / "resources" / "schemas" / "collection.router.1.schema.json"
