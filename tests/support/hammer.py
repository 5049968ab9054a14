"""Made-up requests to everything that `/openapi.json` describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from router.web.shapes import OLLAMA, shape_of

CHECKS: list[CheckFunction] = [
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
]


def hammer(document: dict[str, Any], url: str, examples: int, skip: Collection[str]) -> Counter[int]:
    """Ask everything but the paths to skip, `examples` times rightly and as often wrongly.

    Every answer has a status, a type and a form that are described, a wrong request is refused, every error
    has the shape of its protocol, and none is a 500. Returns how often each status came. Blocks.
    """
    statuses: Counter[int] = Counter()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = found.ok()
        if operation.path in skip:
            continue
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE and not operation.body:
                continue
            once = 1 if not operation.body and not operation.path_parameters else examples

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=once,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: Case) -> None:
                answer = case.call(base_url=url, timeout=20)
                statuses[answer.status_code] += 1
                case.validate_response(answer, checks=CHECKS)
                assert answer.status_code != 500, (case.body, answer.text)
                if answer.status_code >= 400:
                    error = answer.json()["error"]
                    if shape_of(case.path) == OLLAMA:
                        assert isinstance(error, str)
                    else:
                        assert set(error) >= {"message", "type", "code", "param", "hint"}

            ask()
    return statuses
