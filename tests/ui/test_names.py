"""Names, numbers and addresses as people read them."""

from __future__ import annotations

import subprocess

import msgspec
import pytest

from lemon_tray.names import curl_example, percent, plain
from router.units import NBSP


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0"), (0.429, "42"), (0.999, "99"), (0.99999, "99"), (1, "100")]
)
def test_percent_is_never_100_before_the_end(fraction: float, text: str) -> None:
    assert percent(fraction) == f"{text}{NBSP}%"


def test_the_curl_command_survives_a_shell() -> None:
    line = curl_example("http://127.0.0.1:1/v1", 'it\'s "odd" & $(rm)')
    script = f"curl() {{ printf '%s\\n' \"$5\"; }}; {line}"
    body = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert msgspec.json.decode(body)["model"] == 'it\'s "odd" & $(rm)'


@pytest.mark.fault("F13")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("two\nlines\t", "two lines"),
        ("9.1\N{NO-BREAK SPACE}GiB", "9.1\N{NO-BREAK SPACE}GiB"),
        ("a\x1b[31mb\x00", "a [31mb"),
        ("tick`tick", "tick'tick"),
        ("\u202eevil", "evil"),
        ("שלום", "\u2068שלום\u2069"),
        ("", ""),
    ],
)
def test_names_from_outside_become_one_plain_line(name: str, shown: str) -> None:
    assert plain(name) == shown


@pytest.mark.fault("F13")
def test_a_long_name_keeps_both_ends() -> None:
    name = plain("A" * 200 + "Q4_K_M", 60)
    assert len(name) <= 60
    assert name.startswith("AAA")
    assert name.endswith("Q4_K_M")
