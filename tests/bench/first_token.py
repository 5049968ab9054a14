"""From process start to the first streamed token: the router against the bare engine.

Pairs are interleaved, so that a change of the machine's mood hits both. The bare engine is what somebody
would start by hand: the same library in a child process, with the same model and context, asked directly.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from _common import (
    PYTHON,
    child,
    clean_environment,
    demo_model,
    first_token,
    often,
    report,
    wait_for_url,
)

PAIRS = often(9, 1)
# What the router gives this model: its own context size.
CONTEXT = 8192

BARE = """
import signal, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = int(sys.argv[2])
params.n_parallel = 1
params.hostnames = ["127.0.0.1"]
params.port = 0
params.fit_params = False
params.ui = False
params.verbosity = 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
signal.sigwait({signal.SIGTERM})
"""


def bare_s(model: Path) -> tuple[float, float]:
    """Seconds for the engine alone: until it answers, and until the first token."""
    with clean_environment() as environment:
        start = time.monotonic()
        with child([PYTHON, "-c", BARE, str(model), str(CONTEXT)], environment) as process:
            url = wait_for_url(process)
            return time.monotonic() - start, first_token(url, model.stem) - start


def product_s(model: Path, folder: Path) -> tuple[float, float]:
    """The same for `lemon-tray serve`, which answers first and loads the model when it is asked."""
    command = [PYTHON, "-m", "lemon_tray", "serve", "--host", "127.0.0.1", "--port", "0"]
    with clean_environment() as environment:
        start = time.monotonic()
        with child([*command, "--models-dir", str(folder)], environment) as process:
            url = wait_for_url(process)
            return time.monotonic() - start, first_token(url, model.stem) - start


def main() -> int:
    model = demo_model()
    bare: list[tuple[float, float]] = []
    product: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / model.name).symlink_to(model)
        # Once each unmeasured: the files are in memory then, for both.
        bare_s(model)
        product_s(model, folder)
        for _ in range(PAIRS):
            bare.append(bare_s(model))
            product.append(product_s(model, folder))
    bare_ready, bare_token = ([round(pair[i], 4) for pair in bare] for i in (0, 1))
    product_ready, product_token = ([round(pair[i], 4) for pair in product] for i in (0, 1))
    bare_median, product_median = statistics.median(bare_token), statistics.median(product_token)
    extra = statistics.median(ours - theirs for ours, theirs in zip(product_token, bare_token, strict=True))
    report(
        {
            "bench": "first_token",
            "pairs": PAIRS,
            "bare_s": bare_token,
            "product_s": product_token,
            "bare_answers_median_s": round(statistics.median(bare_ready), 4),
            "product_answers_median_s": round(statistics.median(product_ready), 4),
            "bare_median_s": round(bare_median, 4),
            "product_median_s": round(product_median, 4),
            "median_difference_s": round(extra, 4),
            "ratio": round(product_median / bare_median, 3),
        },
        f"first token after start: bare engine {bare_median:.2f} s, lemon-tray {product_median:.2f} s "
        f"(median of {PAIRS} pairs; difference {extra:+.2f} s, ratio {product_median / bare_median:.2f})",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
