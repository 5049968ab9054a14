"""The golden cases of routing policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import run
from tests.support.policies import document

CORPUS = Path(__file__).parent / "corpus"


def test_every_case_comes_out_to_the_letter() -> None:
    outcomes = [*run.replay(CORPUS), *run.replay_refusals(CORPUS)]
    assert len(outcomes) > 380
    assert [f"{o.name}: {o.fault}" for o in outcomes if o.fault] == []


def write_group(root: Path, decision: dict[str, Any]) -> None:
    rules = [{"id": "r", "match": {"keywords_any": ["x"]}, "route_to": "b", "outputs": {"n": 1}}]
    policy = document("p", ("a", "b"), rules=rules)
    group = root / "1" / "group"
    group.mkdir(parents=True)
    (group / "policy.json").write_text(json.dumps(policy))
    case = {"name": "c", "request": {"prompt": "x", "route_trace": True}, "decision": decision}
    (group / "cases.jsonl").write_text(json.dumps(case) + "\n\n")


RIGHT: dict[str, Any] = {
    "version": "1",
    "route_to": "b",
    "matched_rule": "r",
    "default_used": False,
    "outputs": {"n": 1},
    "trace": [{"condition": "keywords_any", "result": True}],
}


def test_a_right_case_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_group(tmp_path, RIGHT)
    assert run.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 cases, 0 failed\n"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"route_to": "a"},
        {"matched_rule": ""},
        {"default_used": 0},
        {"outputs": {"n": 1.0}},
        {"outputs": {"n": True}},
        {"trace": []},
        {"more": None},
    ],
)
def test_a_case_that_differs_in_anything_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    write_group(tmp_path, {**RIGHT, **change})
    assert run.main([str(tmp_path)]) == 1
    assert "FAILED 1/group/c: wanted" in capsys.readouterr().out


def test_a_missing_key_fails(tmp_path: Path) -> None:
    write_group(tmp_path, {key: value for key, value in RIGHT.items() if key != "trace"})
    assert run.main([str(tmp_path)]) == 1


def test_a_policy_that_is_refused_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_group(tmp_path, RIGHT)
    (tmp_path / "1" / "group" / "policy.json").write_text("{}")
    assert run.main([str(tmp_path)]) == 1
    assert "it is refused: $" in capsys.readouterr().out


def test_nothing_to_replay_is_no_success(tmp_path: Path) -> None:
    assert run.main([str(tmp_path)]) == 2


def test_a_document_that_is_not_refused_fails(tmp_path: Path) -> None:
    write_group(tmp_path, RIGHT)
    document = json.loads((tmp_path / "1" / "group" / "policy.json").read_text())
    case = {"name": "c", "path": "$.version", "document": document}
    (tmp_path / "refused.jsonl").write_text(json.dumps(case))
    assert [o.fault for o in run.replay_refusals(tmp_path)] == ["accepted"]
    (tmp_path / "refused.jsonl").write_text(json.dumps({**case, "document": {**document, "recipe": "x"}}))
    assert [o.fault for o in run.replay_refusals(tmp_path)] == ["refused at $.recipe instead of $.version"]
