"""Whether there is a screen to draw on, found out without Qt: that ends the process when there is none."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

PROBE_S: Final = 3.0
T = TypeVar("T")


def missing_display(environ: Mapping[str, str], platform: str = sys.platform) -> str:
    """Why no window can be opened here; "" if one can."""
    if not platform.startswith("linux"):
        return ""
    chosen = environ.get("QT_QPA_PLATFORM", "").split(";")[0].split(":")[0]
    if chosen and chosen not in ("xcb", "wayland", "wayland-egl"):
        return ""  # offscreen, vnc, linuxfb: the user knows why
    display, wayland = environ.get("DISPLAY", ""), environ.get("WAYLAND_DISPLAY", "")
    if not display and not wayland:
        return "there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set)"
    if wayland and chosen != "xcb" and _wayland_answers(wayland, environ.get("XDG_RUNTIME_DIR", "")):
        return ""
    if not display or chosen.startswith("wayland"):
        return f"the Wayland display {wayland} does not answer"
    if not x11_answers(display):
        return f"the display {display} does not answer"
    return _plugin_fault()


def _wayland_answers(name: str, runtime_dir: str) -> bool:
    path = Path(runtime_dir) / name  # an absolute name stands for itself
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_S)
        probe.connect(str(path))
        return True
    return False


def x11_answers(display: str) -> bool:
    """An X server answers at this display and lets us in."""
    return _with_x11(display, lambda _xcb, _connection, _screen: True, False)


def is_composited(display: str) -> bool:
    """A compositor runs, so that windows may have round corners."""
    return _has_owner(display, "_NET_WM_CM_S")


def has_xembed_tray(display: str) -> bool:
    """A panel of the older kind hosts icons there, as windows within its own."""
    return _has_owner(display, "_NET_SYSTEM_TRAY_S")


def _has_owner(display: str, selection: str) -> bool:
    """A program holds the selection of that name for the screen."""

    def ask(xcb: ctypes.CDLL, connection: int, screen: int) -> bool:
        name = f"{selection}{screen}".encode()
        atom_cookie = xcb.xcb_intern_atom(connection, 0, len(name), name)
        atom = _reply_field(xcb.xcb_intern_atom_reply, connection, atom_cookie)
        owner_cookie = xcb.xcb_get_selection_owner(connection, atom)
        return _reply_field(xcb.xcb_get_selection_owner_reply, connection, owner_cookie) != 0

    return _with_x11(display, ask, False)


class _Cookie(ctypes.Structure):
    _fields_ = (("sequence", ctypes.c_uint),)


def _reply_field(
    reply: Callable[[ctypes.c_void_p, _Cookie, None], int | None], connection: int, cookie: _Cookie
) -> int:
    """The 32-bit number at offset 8 of a reply: an atom or a window. 0 if there is no reply."""
    address = reply(ctypes.c_void_p(connection), cookie, None)
    if not address:
        return 0
    value = ctypes.c_uint32.from_address(address + 8).value
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.free(address)
    return value


def _with_x11(display: str, ask: Callable[[ctypes.CDLL, int, int], T], otherwise: T) -> T:
    """Ask an X server something; `otherwise` if it is not there or does not answer in time."""
    result: list[T] = []

    def work() -> None:
        try:
            xcb = ctypes.CDLL("libxcb.so.1")
        except OSError:
            return
        xcb.xcb_connect.restype = ctypes.c_void_p
        xcb.xcb_connection_has_error.argtypes = (ctypes.c_void_p,)
        xcb.xcb_disconnect.argtypes = (ctypes.c_void_p,)
        xcb.xcb_intern_atom.restype = _Cookie
        xcb.xcb_intern_atom.argtypes = (
            ctypes.c_void_p,
            ctypes.c_uint8,
            ctypes.c_uint16,
            ctypes.c_char_p,
        )
        xcb.xcb_intern_atom_reply.restype = ctypes.c_void_p
        xcb.xcb_get_selection_owner.restype = _Cookie
        xcb.xcb_get_selection_owner.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        xcb.xcb_get_selection_owner_reply.restype = ctypes.c_void_p
        screen = ctypes.c_int(0)
        connection = xcb.xcb_connect(os.fsencode(display), ctypes.byref(screen))
        if connection and not xcb.xcb_connection_has_error(connection):
            result.append(ask(xcb, connection, screen.value))
        if connection:
            xcb.xcb_disconnect(connection)

    # A display on another host may not answer for minutes.
    thread = threading.Thread(target=work, name="x11-probe", daemon=True)
    thread.start()
    thread.join(PROBE_S)
    return result[0] if result else otherwise


def _plugin_fault() -> str:
    """What Qt's X11 part misses here, such as a library; "" if it can be loaded."""
    try:
        from PySide6.QtCore import QLibraryInfo
    except ImportError as error:
        return f"Qt cannot be loaded ({error})"
    folder = QLibraryInfo.path(QLibraryInfo.LibraryPath.PluginsPath)
    plugin = Path(folder) / "platforms" / "libqxcb.so"
    if not plugin.exists():
        return ""  # Qt of the system, with places of its own
    try:
        ctypes.CDLL(str(plugin))
    except OSError as error:
        return f"Qt's X11 part cannot be loaded ({error}); on Debian, install libxcb-cursor0 and its friends"
    return ""
