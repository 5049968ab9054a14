"""What the relay costs beside others: nginx, LiteLLM, and no relay at all.

All stand before one fake engine that answers at once: direct, nginx (no buffering, one worker), LiteLLM's
proxy (one worker), this router under uvloop without a screen, and this router in the tray app, offscreen,
with every window painted anew ten times a second. What relays has one core; the engine and what asks share a
second one. All run all the time and are measured in turn, so that a change of the machine's mood meets all
alike; a ratio is the median over the rounds of the ratios of one round. The engine and what asks are Python,
and limit what direct and nginx reach: there, compare the processor time. LiteLLM is measured if `LITELLM`
names its program, such as that of a virtual environment of its own; nginx if it is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import PATIENCE_S, PYTHON, child, clean_environment, family, report, wait_for_url
from idle import free_port

from tests.support import gguf

HERE = Path(__file__).parent
ROUNDS = 5
WARM_S = 0.7
ONE_S = 1.5
MANY_S = 2.5
CONNECTIONS = 16
STREAMS = 50
TOKENS = 150
#: LiteLLM cannot keep up with 50 streams: it is asked for 10, and the delay of its events is that of 10.
FEW_STREAMS = 10
LITELLM = "LiteLLM"
HEADLESS = "ours, headless"
TRAY = "ours, in the tray"
MIB = 1 << 20

NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 128; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""

LITELLM_CONFIG = """
model_list:
  - model_name: alpha
    litellm_params: {{model: openai/alpha, api_base: "http://127.0.0.1:{engine}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
"""
LITELLM_ENVIRONMENT = {
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


class Relay:
    """What is measured: its port and its process; none for the engine itself."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[str] | None) -> None:
        self.name = name
        self.port = port
        self.pids = [] if process is None else [process.pid]

    def cpu_s(self) -> float:
        """Processor time of all its threads and children so far."""
        total = 0
        for pid in self.pids:
            for each in family(pid):
                for task in Path(f"/proc/{each}/task").glob("*/schedstat"):
                    with contextlib.suppress(OSError):
                        total += int(task.read_text().split()[0])
        return total / 1e9

    def rss(self) -> int:
        """Bytes of memory of it and its children."""
        pages = 0
        for pid in self.pids:
            for each in family(pid):
                with contextlib.suppress(OSError):
                    pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def pinned(core: int, command: Sequence[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if shutil.which("taskset") else list(command)


def asked(core: int, *arguments: object) -> dict[str, Any]:
    command = pinned(core, [PYTHON, str(HERE / "_load.py"), *map(str, arguments)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def wait_until_it_answers(port: int) -> None:
    body = b'{"model":"alpha","messages":[{"role":"user","content":"x"}]}'
    end = time.monotonic() + PATIENCE_S
    while True:
        sent = urllib.request.Request(  # an address of this machine
            f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(sent, timeout=30) as answer:  # noqa: S310  # as above
                answer.read()
                return
        except (OSError, urllib.error.HTTPError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@contextlib.contextmanager
def relays(core: int, others: int) -> Iterator[list[Relay]]:
    """Everything that is measured, running."""
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(clean_environment())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lemon-tray-bench-")))
        engine_port = free_port()
        engine = [PYTHON, str(HERE / "_load.py"), "engine", str(engine_port)]
        wait_for_url(stack.enter_context(child(pinned(others, engine), environment)))
        made = [Relay("direct", engine_port, None)]

        def add(name: str, command: Sequence[str], port: int, extra: Mapping[str, str]) -> None:
            process = stack.enter_context(child(pinned(core, command), {**environment, **extra}))
            wait_until_it_answers(port)
            made.append(Relay(name, port, process))

        if nginx := shutil.which("nginx"):
            port = free_port()
            (folder / "nginx.conf").write_text(NGINX.format(folder=folder, engine=engine_port, port=port))
            add("nginx", [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")], port, {})
        if litellm := os.environ.get("LITELLM"):
            port = free_port()
            (folder / "litellm.yaml").write_text(LITELLM_CONFIG.format(engine=engine_port))
            command = [litellm, "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1"]
            add(
                LITELLM,
                [*command, "--port", str(port), "--num_workers", "1", "--telemetry", "False"],
                port,
                LITELLM_ENVIRONMENT,
            )
        gguf.write_model(folder / "alpha.gguf")
        for name, arguments in ((HEADLESS, ["serve"]), (TRAY, [])):
            port = free_port()
            home = folder / name.replace(", ", "-").replace(" ", "-")
            extra = {
                **{f"XDG_{kind}_HOME": str(home / kind) for kind in ("CONFIG", "DATA", "STATE", "CACHE")},
                "XDG_RUNTIME_DIR": str(home),
                "LEMON_TRAY_PORT": str(port),
                "LEMON_TRAY_MODELS_DIRS": json.dumps([str(folder)]),
                "LEMON_TRAY_PARALLEL": str(max(CONNECTIONS, STREAMS)),
                "LEMON_TRAY_MODEL_SOURCES": "[]",
                "PYTHONPATH": str(HERE.parents[1]),
                "QT_QPA_PLATFORM": "offscreen",
            }
            home.mkdir(mode=0o700)
            add(name, [PYTHON, str(HERE / "_relayed.py"), str(engine_port), *arguments], port, extra)
        yield made


def measure(relay: Relay, others: int) -> dict[str, float]:
    """One round of one relay."""
    asked(others, "closed", relay.port, CONNECTIONS, WARM_S)
    one = asked(others, "closed", relay.port, 1, ONE_S)
    before = relay.cpu_s()
    many = asked(others, "closed", relay.port, CONNECTIONS, MANY_S)
    used = relay.cpu_s() - before
    before = relay.cpu_s()
    streams = FEW_STREAMS if relay.name == LITELLM else STREAMS
    stream = asked(others, "stream", relay.port, streams, TOKENS)
    return {
        "rps": many["rps"],
        "cpu_s_per_1000": used / max(1, many["requests"]) * 1000,
        "one_p50_us": one["p50_us"],
        "one_p99_us": one["p99_us"],
        "event_p50_us": stream["delay_p50_us"],
        "event_p99_us": stream["delay_p99_us"],
        "cpu_us_per_event": (relay.cpu_s() - before) / max(1, stream["events"]) * 1e6,
        "events": stream["events"] / (streams * TOKENS),
        "rss_mib": relay.rss() / MIB,
        "wrong": one["wrong"] + many["wrong"] + stream["wrong"],
    }


def median_ratio(
    rounds: Sequence[Mapping[str, Mapping[str, float]]], key: str, a: str, b: str
) -> float | None:
    """The median over the rounds of one relay's value to another's."""
    found = [r[a][key] / r[b][key] for r in rounds if a in r and b in r and r[b][key] > 0]
    return round(statistics.median(found), 3) if found else None


def main() -> int:
    cores = sorted(os.sched_getaffinity(0))
    core, others = cores[0], cores[-1]
    rounds: list[dict[str, dict[str, float]]] = []
    with relays(core, others) as made:
        for number in range(ROUNDS):
            order = made if number % 2 == 0 else made[::-1]
            rounds.append({relay.name: measure(relay, others) for relay in order})
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    for one in rounds:
        for values in one.values():
            # What the relay adds to the engine's own time.
            values["added_p50_us"] = values["one_p50_us"] - one["direct"]["one_p50_us"]
            values["added_p99_us"] = values["one_p99_us"] - one["direct"]["one_p99_us"]
    names = [relay.name for relay in made]
    medians = {
        name: {key: round(statistics.median(r[name][key] for r in rounds), 4) for key in rounds[0][name]}
        for name in names
    }
    ratios = {
        f"{key}, {ours} to {other}": median_ratio(rounds, key, ours, other)
        for ours in (HEADLESS, TRAY)
        for other, key in (
            (LITELLM, "rps"),
            ("nginx", "rps"),
            ("nginx", "cpu_s_per_1000"),
            ("nginx", "added_p50_us"),
            ("nginx", "event_p50_us"),
            ("nginx", "event_p99_us"),
        )
    }
    lines = [
        f"{name}: {m['rps']:.0f} requests/s, {m['cpu_s_per_1000']:.4f} CPU s/1000, "
        f"+{m['added_p50_us']:.0f}/{m['added_p99_us']:.0f} us p50/p99 at 1, "
        f"events {m['event_p50_us']:.0f}/{m['event_p99_us']:.0f} us p50/p99, {m['rss_mib']:.0f} MiB"
        for name, m in medians.items()
    ]
    report(
        {"bench": "relay", "rounds": ROUNDS, "load": os.getloadavg(), "medians": medians, "ratios": ratios},
        "\n".join([*lines, *(f"{name}: {value}" for name, value in ratios.items() if value is not None)]),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
