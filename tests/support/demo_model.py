"""The demo model for tests and benchmarks: fetched once, kept outside the checkout."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from router.catalog.demo import fetch_demo


def cache_folder() -> Path:
    """Where it is kept between runs: `LEMON_TRAY_TEST_CACHE`, else a folder in the user's cache."""
    return Path(os.environ.get("LEMON_TRAY_TEST_CACHE") or platformdirs.user_cache_dir("lemon-tray-tests"))


def fetch(folder: Path, environ: Mapping[str, str]) -> Path:
    """The model's file, fetched if it is not there. `environ` holds the user's own settings of pip.

    Raises:
        RouterError: it could not be fetched.
    """
    # In a thread of its own: the caller's may have a loop, which asyncio.run would displace.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(fetch_demo(folder, environ=environ))).result()
