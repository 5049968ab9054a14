"""Faults that programs of this kind have had: each that concerns what is built has a test that names it.

A test is tied to a fault by `@pytest.mark.fault("F08")`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

TESTS = Path(__file__).parent

#: Area to faults: number and what goes wrong.
FAULTS: Final = {
    "admission": {
        "F01": "Two loads count on the same free memory.",
        "F09": "A load begins before the memory of the model that made room for it is back.",
        "F10": "Room is judged by the sum of all devices instead of the one that is short.",
        "F19": "A reading that is not supported is taken for zero.",
        "F30": "A plan leaves out the context, and the first long prompt ends the worker.",
        "F36": "What other programs hold changes what the user's headroom means.",
    },
    "config": {
        "F20": "A wrong type, a typo or a broken edit of the file takes more down than itself.",
        "F27": "A setting is shown that is not in force.",
    },
    "http": {
        "F02": "A client leaves, and its request goes on.",
        "F04": "A malformed request is a server error, or blames the wrong thing.",
        "F07": "A worker fails in the middle of a stream, and its client hears nothing of it.",
        "F16": "A load is thrown away because the client that asked for it gave up.",
        "F21": "A strict client stumbles over details of a stream.",
        "F28": "A relayed stream is changed, or held back.",
        "F33": "Embeddings in base64 are refused or ignored.",
    },
    "lifecycle": {
        "F06": "Quitting hangs, or leaves tasks behind on a closed loop.",
        "F08": "Workers live on after the program.",
        "F14": "A load never ends, or a limit on its time makes a slow model useless.",
        "F25": "A second start, a lock left behind, or a port that is taken.",
        "F35": "A busy worker is taken for a stuck one, or a stuck one holds everything up.",
    },
    "models": {
        "F26": "A file that is cut short or no model is listed as one.",
        "F32": "Models behind links are missed, counted twice, or searched for ever.",
        "F34": "Paths with spaces or letters from elsewhere do not work.",
    },
    "packaging": {
        "F39": "It runs only where it was written.",
    },
    "policy": {
        "F05": "A lowered limit leaves the pool as large as it was.",
        "F23": "What is shown is pieced together from different moments, or an older state wins.",
        "F37": "A prompt is sent to a model whose context is too small for it.",
    },
    "residency": {
        "F03": "A model is unloaded while it answers.",
        "F11": "A worker that has died is still listed as loaded.",
        "F12": "A model that is still loading is chosen to make room.",
        "F15": "Idle time starts or ends at the wrong moment, or keep-alive does nothing.",
        "F17": "A model that cannot load is tried again and again, at the expense of the others.",
        "F22": "A pin, or a load by hand, holds against too little or too much.",
        "F29": "Requests for different models in turn make them load in turn, or one never gets its turn.",
        "F38": "Options of a request reload the model each time, or options of a load do nothing.",
    },
    "security": {
        "F18": "Web pages or the network reach a server that is meant for this machine.",
    },
    "tray": {
        "F13": "The menu is empty, or shows what was.",
        "F24": "There is no tray, or it comes later than the app.",
        "F31": "One event makes a crowd of notifications, or none.",
    },
}

#: Areas of which every fault must have a test now.
COMPLETE: Final = (
    "admission",
    "config",
    "http",
    "lifecycle",
    "models",
    "packaging",
    "policy",
    "residency",
    "security",
    "tray",
)
#: Faults of other areas that must have one as well.
COMPLETE_TOO: Final = ("F30",)


def named_faults(source: str) -> list[str]:
    """The faults that a test file's markers name."""
    return [
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "pytest.mark.fault"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def files_by_fault() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__):
            continue
        for fault in named_faults(path.read_text(encoding="utf-8")):
            found[fault].append(str(path.relative_to(TESTS)))
    return found


def test_each_fault_has_a_test() -> None:
    needed = {fault for area in COMPLETE for fault in FAULTS[area]} | set(COMPLETE_TOO)
    titles = {fault: title for faults in FAULTS.values() for fault, title in faults.items()}
    missing = {fault: titles[fault] for fault in sorted(needed - files_by_fault().keys())}
    assert missing == {}


def test_markers_name_faults_that_exist() -> None:
    known = {fault for faults in FAULTS.values() for fault in faults}
    assert sorted(known) == [f"F{number:02}" for number in range(1, 40)]
    assert {f: files for f, files in files_by_fault().items() if f not in known} == {}


def test_markers_are_found_wherever_they_stand() -> None:
    source = """
pytestmark = [pytest.mark.engine, pytest.mark.fault("F01")]

@pytest.mark.fault("F02")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.fault("F03"))])
def test_it(x): ...

@pytest.mark.other("F04")
async def test_other(): ...
"""
    assert sorted(named_faults(source)) == ["F01", "F02", "F03"]
