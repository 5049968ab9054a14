"""The list of what is inside, and the licences: what was taken, no more and no less."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from router.version import __version__


def test_what_is_locked_is_listed_with_its_terms(inventory: ModuleType) -> None:
    contents = inventory.Contents.locked()
    document = json.loads(inventory.sbom(contents))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    components = {component["name"]: component for component in document["components"]}
    assert {"PySide6_Essentials", "Qt", "xllamacpp", "aiohttp", "CPython"} <= set(components)
    assert components["Qt"]["version"] == importlib.metadata.version("PySide6_Essentials")
    assert not set(components) & {"pytest", "pyinstaller"}
    aiohttp = components["aiohttp"]
    assert aiohttp["purl"] == f"pkg:pypi/aiohttp@{importlib.metadata.version('aiohttp')}"
    assert all(component["version"] for component in components.values())
    product = document["metadata"]["component"]
    assert product["version"] == __version__
    edges = {edge["ref"]: edge["dependsOn"] for edge in document["dependencies"]}
    assert set(edges[product["bom-ref"]]) == {component["bom-ref"] for component in components.values()}
    assert components["yarl"]["bom-ref"] in edges[aiohttp["bom-ref"]]
    known = {product["bom-ref"], *(component["bom-ref"] for component in components.values())}
    assert set(edges) | {ref for needed in edges.values() for ref in needed} <= known
    text = inventory.third_party(contents)
    assert "LGPL" in text
    assert "aio-libs" in text


def test_the_same_contents_are_listed_alike(inventory: ModuleType) -> None:
    contents = inventory.Contents.locked()
    assert inventory.sbom(contents) == inventory.sbom(contents)
    fewer = inventory.Contents(contents.packages[1:])
    numbers = {json.loads(inventory.sbom(each))["serialNumber"] for each in (contents, fewer)}
    assert len(numbers) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="libraries of the system are taken along on Linux only")
def test_only_what_was_taken_is_listed_with_the_packages_of_its_libraries(
    inventory: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import aiohttp

    code = Path(aiohttp.__file__)
    library = "/usr/lib/x86_64-linux-gnu/libz.so.1"
    monkeypatch.setattr(
        inventory,
        "_libraries",
        lambda sources: (inventory.SystemPackage("zlib1g", "1:1.2", "zlib"),) if library in sources else (),
    )
    monkeypatch.setattr(inventory.os.path, "realpath", lambda path: path)
    (tmp_path / "PYZ-00.toc").write_text(repr(("x.pyz", [("aiohttp", str(code), "PYMODULE")])))
    (tmp_path / "COLLECT-00.toc").write_text(repr(([("libz.so.1", library, "BINARY")],)))
    contents = inventory.Contents.taken(tmp_path)
    assert [one.metadata["Name"] for one in contents.packages] == ["aiohttp"]
    document = json.loads(inventory.sbom(contents))
    assert {component["name"] for component in document["components"]} == {"aiohttp", "CPython", "zlib1g"}
    assert any(component.get("purl", "").endswith("/zlib1g@1%3A1.2") for component in document["components"])
    assert "zlib1g 1:1.2" in inventory.third_party(contents)


@pytest.mark.skipif(sys.platform != "linux", reason="libraries of the system are taken along on Linux only")
def test_a_library_is_found_by_either_name_of_its_folder(
    inventory: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyInstaller's list has files in /usr/lib, where /lib leads; packages may list them in /lib."""
    tool = tmp_path / "dpkg-query"
    tool.write_text(
        "#!/bin/bash\n"
        "shown=$1; shift\n"
        '[ "$shown" = --search ] || { shift; printf "%s\\t1\\tsource\\n" "${@%:*}"; exit; }\n'
        'for f; do case "$f" in\n'
        '/lib/x/libz.so.1) echo "zlib1g:amd64: $f" ;;\n'
        '/usr/lib/x/libpng.so) echo "libpng:amd64: $f" ;;\n'
        '*) echo "dpkg-query: no path found matching pattern $f" >&2 ;;\n'
        "esac; done\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = inventory._libraries(["/usr/lib/x/libz.so.1", "/usr/lib/x/libpng.so", "/opt/python/libpython.so"])
    assert [library.name for library in found] == ["libpng", "zlib1g"]
