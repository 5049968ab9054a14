"""What goes into a packaged Lemon Tray, and what is left out. The spec and the tests read it."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
#: No domain of anybody's is claimed: the project has none. The login item of macOS has the same name.
BUNDLE_ID: Final = "local.lemon-tray"

# Imported by name only, so that nothing but these lines tells the builder.
HIDDEN_IMPORTS: Final = [
    "pynvml",
    "router.engines.guard",
    "router.engines.worker",
]

# Python modules that something imports if it is there, and nothing here uses.
EXCLUDED_MODULES: Final = [
    "PySide6.QtOpenGL",
    "PySide6.QtOpenGLWidgets",
    "PySide6.QtPrintSupport",
    "PySide6.QtQml",
    "PySide6.QtQuick",
    "PySide6.QtQuickWidgets",
    "PySide6.QtSql",
    "PySide6.QtTest",
    "PySide6.QtUiTools",
    "PySide6.QtXml",
    "click",
    "cryptography.hazmat.primitives.serialization.ssh",
    "doctest",
    # Of the hub's client only what tells what a repository holds: files are fetched by the app itself.
    "fsspec",
    "hf_xet",
    "httpx2._main",
    "huggingface_hub.cli",
    "huggingface_hub.fastai_utils",
    "huggingface_hub.inference",
    "huggingface_hub.serialization",
    "lib2to3",
    "pdb",
    "pydoc",
    "pydoc_data",
    "setuptools",
    "tkinter",
    "trove_classifiers",
    "unittest",
]

# Libraries of Qt that come along with a plugin or a module, and are not used: QML and Quick with the virtual
# keyboard, OpenGL with some widgets, EGL and KMS for screens without a desktop, PDF and TIFF as images.
DROPPED_LIBRARIES: Final = (
    "EglFSDeviceIntegration",
    "EglFsKmsSupport",
    "EglFsKmsGbmSupport",
    "OpenGL",
    "OpenGLWidgets",
    "Pdf",
    "Qml",
    "QmlMeta",
    "QmlModels",
    "QmlWorkerScript",
    "Quick",
    "Sql",
    "Test",
    "VirtualKeyboard",
    "VirtualKeyboardQml",
)
# Folders and single plugins, below Qt's folder of plugins.
DROPPED_PLUGINS: Final = (
    "egldeviceintegrations",
    "generic",
    "imageformats/qgif",
    "imageformats/qicns",
    "imageformats/qjpeg",
    "imageformats/qpdf",
    "imageformats/qtga",
    "imageformats/qtiff",
    "imageformats/qwbmp",
    "imageformats/qwebp",
    "networkinformation",
    "platforminputcontexts/qtvirtualkeyboardplugin",
    "platforms/qdirect2d",
    "platforms/qeglfs",
    "platforms/qlinuxfb",
    "platforms/qminimal",
    "platforms/qminimalegl",
    "platforms/qvkkhrdisplay",
    "platforms/qvnc",
    "platformthemes/qgtk3",
    "printsupport",
    "qmltooling",
    "sqldrivers",
    "tls",
    "virtualkeyboard",
)
# GTK is reached by its theme plugin alone, which brings half of a desktop along.
DROPPED_FAMILIES: Final = re.compile(
    r"lib(?:gtk-3|gdk-3|gdk_pixbuf|atk-|atk-bridge|atspi|cairo|pango|harfbuzz|fribidi|graphite2|thai|datrie|"
    r"epoxy|cloudproviders|pixman|rsvg|tiff|webp|jbig|Lerc|deflate|jpeg)"
)


def version() -> str:
    """The product's version, from its one place."""
    text = (ROOT / "router" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ValueError("router/version.py names no version")
    return found[1]


def wanted(name: str) -> bool:
    """Whether a file belongs into the package. `name` is its place in the package, on any system."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.suffix in (".pyi", ".qm"):  # Qt's own texts: the app has none of its dialogs
        return False
    library = re.match(r"(?:lib)?Qt6?(\w+?)(?:\.so\b|\.dll$|\.framework$|$)", path.name)
    if library and library[1] in DROPPED_LIBRARIES:
        return False
    if any(re.fullmatch(r"Qt(\w+)\.framework", part) for part in path.parts):
        framework = next(part for part in path.parts if part.endswith(".framework"))
        return framework[2 : -len(".framework")] not in DROPPED_LIBRARIES
    if "plugins" in path.parts and "PySide6" in path.parts:
        below = "/".join(path.parts[path.parts.index("plugins") + 1 :])
        plain = re.sub(r"(^|/)lib(q)", r"\1\2", below)
        return not any(
            plain == drop or re.match(rf"{re.escape(drop)}[./]", plain) for drop in DROPPED_PLUGINS
        )
    return not DROPPED_FAMILIES.match(path.name)
