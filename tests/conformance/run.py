#!/usr/bin/env python3
"""Replays golden cases of routing policies: `run.py DIR ...`. It takes no server and no model.

Below DIR every folder with a `policy.json` and a `cases.jsonl` is a group: each line of the latter has a
`name`, a `request`, and the `decision` that must come out, to the letter; `trace` is compared where the
request asks for it with `route_trace`. A line may give `scores`, by classifier id: label to score
(`{"by_label": ...}`) or why there is none (`{"error": ...}`). A folder with a `refused.jsonl` has documents
that must be refused instead: `name`, `document` (or `text`, where it is no JSON) and the JSON `path` of the
fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from router.policy.document import Policy
from router.policy.evaluate import Decision, Failure, Scores, decide
from router.policy.parse import PolicyFault, parse_policy
from router.policy.request import RequestView, request_view

Decide = Callable[[Policy, RequestView, Mapping[str, Scores | Failure]], Decision]
Parse = Callable[[Any], Policy]


class Outcome(msgspec.Struct, frozen=True):
    """One case, and what is wrong with what came out; "" if nothing is."""

    name: str
    fault: str


def replay(
    root: Path, decide: Decide = decide, view: Callable[[Any], RequestView] = request_view
) -> Iterator[Outcome]:
    """Replay every group below a folder."""
    for file in sorted(root.rglob("policy.json")):
        group = file.parent.relative_to(root)
        try:
            policy = parse_policy(file.read_bytes())
        except PolicyFault as fault:
            yield Outcome(f"{group}/policy.json", f"it is refused: {fault.message}")
            continue
        for case in _lines(file.with_name("cases.jsonl")):
            yield Outcome(f"{group}/{case['name']}", _difference(policy, case, decide, view))


def replay_refusals(root: Path, parse: Parse = parse_policy) -> Iterator[Outcome]:
    """Replay every list of documents that are to be refused."""
    for file in sorted(root.rglob("refused.jsonl")):
        group = file.parent.relative_to(root)
        for case in _lines(file):
            yield Outcome(f"{group}/{case['name']}", _refusal(case, parse))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)


def _difference(
    policy: Policy, case: Mapping[str, Any], decide: Decide, view: Callable[[Any], RequestView]
) -> str:
    request, wanted = case["request"], case["decision"]
    scores = {id: _scores(given) for id, given in case.get("scores", {}).items()}
    try:
        decision = decide(policy, view(request), scores)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    got = decision.document(trace=request.get("route_trace") is True)
    # Exact: in JSON 1 and 1.0 and true are three values.
    if _canonical(got) == _canonical(wanted):
        return ""
    return f"wanted {_canonical(wanted)}, got {_canonical(got)}"


def _scores(given: Mapping[str, Any]) -> Scores | Failure:
    if "error" in given:
        return Failure(given["error"])
    return Scores(given["by_label"], given.get("rationale"))


def _refusal(case: Mapping[str, Any], parse: Parse) -> str:
    document = case["text"].encode() if "text" in case else case["document"]
    try:
        parse(document)
    except PolicyFault as fault:
        if fault.param != case["path"]:
            return f"refused at {fault.param} instead of {case['path']}"
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def main(arguments: list[str]) -> int:
    """Replay the folders named; 0 if all is as it should be, 1 if not, 2 if nothing was found."""
    outcomes: list[Outcome] = []
    for argument in arguments:
        root = Path(argument)
        outcomes += [*replay(root), *replay_refusals(root)]
    for outcome in outcomes:
        if outcome.fault:
            print(f"FAILED {outcome.name}: {outcome.fault}")
    failed = sum(bool(outcome.fault) for outcome in outcomes)
    print(f"{len(outcomes)} cases, {failed} failed")
    if not outcomes:
        print(f"There are no cases in {', '.join(arguments) or 'no folder'}.", file=sys.stderr)
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
