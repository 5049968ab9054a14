"""Starting reads no certificates, and every client of ours brings what it trusts."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

ROUTER = Path(__file__).resolve().parents[2] / "router"

# Says which certificates are read, by whom a module's import has them read.
WATCHED = """
import importlib, ssl, sys
def told(self, *rest):
    print("read", flush=True)
ssl.SSLContext.load_default_certs = ssl.SSLContext.set_default_verify_paths = told
for name in sys.argv[1:]:
    importlib.import_module(name)
context = ssl.create_default_context()
"""


@pytest.mark.parametrize("module", ["router.cli.serve", "router.service"])
def test_starting_reads_no_certificates(module: str) -> None:
    command = [sys.executable, "-c", WATCHED, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Once, by the last line of the program: what was put aside is back in its place.
    assert done.stdout == "read\n"


def test_contexts_are_as_they_were_after_it() -> None:
    code = (
        "import ssl; before = dict(vars(ssl.SSLContext)); import router.tls;"
        "assert dict(vars(ssl.SSLContext)) == before; print(len(ssl.create_default_context().get_ca_certs()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(ssl.create_default_context().get_ca_certs())


def test_every_client_of_ours_brings_a_context() -> None:
    """A session with aiohttp's own context would trust nobody."""
    found = 0
    for path in ROUTER.rglob("*.py"):
        text = path.read_text("utf-8")
        for match in re.finditer(r"ClientSession\(", text):
            call = text[match.end() : match.end() + 400]
            assert re.search(r"connector=aiohttp\.TCPConnector\(ssl=", call), f"{path}: {call[:80]}"
            found += 1
    assert found
