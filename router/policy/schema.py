"""The JSON Schema of policies, and what is wrong with a document that does not keep to it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from router.errors import BadRequest, near_matches
from router.paths import resource

if TYPE_CHECKING:
    import fastjsonschema

SCHEMA_FILE: Final = "collection.router.1.schema.json"

_SHOWN: Final = 80


class PolicyFault(BadRequest):
    """A document that is no policy. `param` is the JSON path of the fault."""

    code = "invalid_policy"


def schema_path() -> Path:
    """The schema's file: beside the packages in a checkout, with the app's resources once installed.

    Raises:
        FileNotFoundError: neither is there.
    """
    return resource("schemas", SCHEMA_FILE)


@functools.cache
def _validator() -> Callable[[Any], Any]:
    import fastjsonschema  # only where there is a policy

    schema = json.loads(schema_path().read_bytes())
    validate: Callable[[Any], Any] = fastjsonschema.compile(schema, use_default=False)
    return validate


def check_form(document: Any) -> None:
    """Compare a document with the schema. The first call compiles it, which takes some 60 ms.

    Raises:
        PolicyFault: with the JSON path of the first fault, and what was expected there.
    """
    import fastjsonschema

    try:
        _validator()(document)
    except fastjsonschema.JsonSchemaValueException as error:
        _explain(document, error)


def _explain(document: Any, error: fastjsonschema.JsonSchemaValueException) -> NoReturn:
    path = json_path(_steps(document, error.path[1:]))
    definition, value = error.definition, error.value
    if error.rule == "additionalProperties":
        known = list(definition["properties"])
        key = next(key for key in value if key not in known)
        near = near_matches(str(key), known)
        advice = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        raise PolicyFault(f"{path}: unknown key {shown(key)} ({advice})", param=path)
    if error.rule == "required":
        key = next(key for key in definition["required"] if key not in value)
        raise PolicyFault(f"{path}: the key {shown(key)} is missing", param=path)
    expected(path, definition.get("title", "another form"), value)


def _steps(document: Any, tokens: Sequence[str]) -> list[str | int]:
    """The keys and places that lead to a value, from the validator's path.

    That path is cut at dots and brackets, also at those in a key, so the document tells which key is meant.
    """
    steps: list[str | int] = []
    left, value = list(tokens), document
    while left:
        if isinstance(value, list):
            place = int(left.pop(0))
            steps.append(place)
            value = value[place]
            continue
        whole = "\0".join(left) + "\0"
        keys = [key for key in value if whole.startswith("\0".join(_tokens(key)) + "\0")]
        if not keys:
            break
        key = max(keys, key=len)
        steps.append(key)
        left = left[len(_tokens(key)) :]
        value = value[key]
    return steps


def _tokens(key: str) -> list[str]:
    return [token for token in key.replace("[", ".").replace("]", ".").split(".") if token]


def json_path(steps: Iterable[str | int]) -> str:
    """`$.routing.rules[0].id`; a key that is no plain word is quoted in brackets."""
    written = "$"
    for step in steps:
        if isinstance(step, int):
            written += f"[{step}]"
        elif step.isascii() and step.isidentifier():
            written += f".{step}"
        else:
            written += f"[{json.dumps(step)}]"
    return written


def expected(path: str, form: str, value: Any) -> NoReturn:
    """Refuse a value.

    Raises:
        PolicyFault: always.
    """
    raise PolicyFault(f"{path}: expected {form}; got {shown(value)}", param=path)


def fault(path: str, what: str, value: Any) -> NoReturn:
    """Refuse a value for what it means.

    Raises:
        PolicyFault: always.
    """
    raise PolicyFault(f"{path}: {what}; got {shown(value)}", param=path)


def shown(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    if isinstance(value, str):
        value = value[: _SHOWN + 1]
    elif isinstance(value, (list, dict)) and len(value) > _SHOWN:
        return f"{'a list' if isinstance(value, list) else 'an object'} with {len(value)} entries"
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
