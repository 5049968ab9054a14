"""A worker that takes memory of a pretended GPU bit by bit: a program for tests, not imported by them.

Arguments: the library with the ledger, and a file with what each model does, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from fake_worker import announce, serve, until_told


def main(library: str, plans: str) -> None:
    config = json.loads(sys.stdin.buffer.readline())
    plan = json.loads(Path(plans).read_text())[config["model"]]
    card = ctypes.CDLL(library)
    take = card.fake_take
    take.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_ulonglong)
    pid = os.getpid()
    for size in plan["steps"]:
        time.sleep(plan["step_s"])  # noqa: TID251  # a load that takes its time
        take(plan["slot"], pid, size)
    announce(serve())
    until_told()
    time.sleep(plan["linger_s"])  # noqa: TID251  # memory is held until the process has gone
    take(plan["slot"], pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
