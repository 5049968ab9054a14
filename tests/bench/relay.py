"""What the relay costs beside others: nginx, LiteLLM, and no relay at all.

All stand before one fake engine that answers at once: direct, nginx (no buffering, one worker), LiteLLM's
proxy (one worker), this router under uvloop without a screen, and this router in the tray app, offscreen,
with its panel open and following readings that move ten times a second. What relays has one core; the engine
and what asks share a second one. All are there all the time and are measured in turn, while the others stand
still, so that a change of the machine's mood meets all alike; a ratio is the median over the rounds of one
round's ratios. The engine and what asks are Python, and limit what direct and nginx reach: there, compare the
processor time. LiteLLM is measured if `LITELLM` names its program or the virtual environment `litellm` is in
the folder that tests keep things in; nginx if it is installed. `ROUNDS` is how often all are measured, five
times if not set.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _common import PATIENCE_S, PYTHON, child, clean_environment, family, report, wait_for_url
from idle import free_port

from tests.support import gguf
from tests.support.demo_model import cache_folder

HERE = Path(__file__).parent
ROUNDS = int(os.environ.get("ROUNDS", "5"))
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

    def __init__(
        self, name: str, port: int, process: subprocess.Popen[str] | None, painted: Path | None = None
    ) -> None:
        self.name = name
        self.port = port
        self.pids = [] if process is None else [process.pid]
        self._painted = painted

    def painted(self) -> int:
        """How many times its windows were painted so far."""
        return int(self._painted.read_text() or 0) if self._painted and self._painted.exists() else 0

    @contextlib.contextmanager
    def alone(self, relays: Sequence[Relay]) -> Iterator[None]:
        """While it lasts, the other relays stand still."""
        others = [pid for relay in relays if relay is not self for top in relay.pids for pid in family(top)]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

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


def wait_until_it_answers(port: int, process: subprocess.Popen[str]) -> None:
    body = b'{"model":"alpha","messages":[{"role":"user","content":"x"}]}'
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None:
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
    raise RuntimeError(f"{process.args!r} ended instead of answering")


def find_litellm() -> str:
    """The program of LiteLLM's proxy; empty if there is none."""
    kept = cache_folder() / "litellm" / "bin" / "litellm"
    return os.environ.get("LITELLM") or (str(kept) if kept.exists() else "")


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
            try:
                wait_until_it_answers(port, process)
            except (OSError, RuntimeError) as error:
                if name != LITELLM:
                    raise
                # On a busy machine it takes minutes to start. What else there is to measure goes on.
                process.kill()
                print(f"{LITELLM} is left out: {error}", file=sys.stderr, flush=True)
                return
            painted = extra.get("PAINTED")
            made.append(Relay(name, port, process, Path(painted) if painted else None))

        if nginx := shutil.which("nginx"):
            port = free_port()
            (folder / "nginx.conf").write_text(NGINX.format(folder=folder, engine=engine_port, port=port))
            add("nginx", [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")], port, {})
        if litellm := find_litellm():
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
                "PAINTED": "" if arguments else str(home / "painted"),
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
    before, painted, began = relay.cpu_s(), relay.painted(), time.monotonic()
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
        "paints_per_s": (relay.painted() - painted) / (time.monotonic() - began),
        "rss_mib": relay.rss() / MIB,
        "wrong": one["wrong"] + many["wrong"] + stream["wrong"],
    }


class Goal(NamedTuple):
    """A bound on the median over the rounds of one relay's value, or of its ratio to `other`'s."""

    text: str
    key: str
    ours: str
    other: str
    bound: float
    at_least: bool = False

    def measured(self, rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> float | None:
        found = []
        for each in rounds:
            below = each[self.other][self.key] if self.other in each else 0.0 if self.other else 1.0
            if self.ours in each and below > 0:
                found.append(each[self.ours][self.key] / below)
        return round(statistics.median(found), 3) if found else None

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


GOALS = (
    Goal("headless, requests/s, times LiteLLM's, at least 80", "rps", HEADLESS, LITELLM, 80, True),
    Goal("headless, CPU a request, times nginx's, at most 4", "cpu_s_per_1000", HEADLESS, "nginx", 4),
    Goal("headless, added p50 at 1, times nginx's, at most 1.5", "added_p50_us", HEADLESS, "nginx", 1.5),
    Goal("headless, event delay p50, times nginx's, at most 1.5", "event_p50_us", HEADLESS, "nginx", 1.5),
    Goal("headless, event delay p99, times nginx's, at most 2", "event_p99_us", HEADLESS, "nginx", 2),
    Goal("headless, MiB, at most 60", "rss_mib", HEADLESS, "", 60),
    Goal("tray, requests/s, times LiteLLM's, at least 40", "rps", TRAY, LITELLM, 40, True),
    Goal("tray, added p50 at 1 in us, at most 300", "added_p50_us", TRAY, "", 300),
    Goal("tray, event delay p99 in us, at most 2000", "event_p99_us", TRAY, "", 2000),
    Goal("tray, paints a second, at least 9.5", "paints_per_s", TRAY, "", 9.5, True),
)


def main() -> int:
    cores = sorted(os.sched_getaffinity(0))
    core, others = cores[0], cores[-1]
    rounds: list[dict[str, dict[str, float]]] = []
    with relays(core, others) as made:
        for number in range(ROUNDS):
            order = made if number % 2 == 0 else made[::-1]
            measured = {}
            for relay in order:
                with relay.alone(made):
                    measured[relay.name] = measure(relay, others)
            rounds.append(measured)
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
    goals = [(goal, goal.measured(rounds)) for goal in GOALS]
    lines = [
        f"{'':18}{'req/s':>8}{'CPU us/req':>12}{'+p50 us':>9}{'+p99 us':>9}"
        f"{'event p50':>11}{'event p99':>11}{'MiB':>6}{'paints/s':>10}{'wrong':>7}"
    ]
    for name, m in medians.items():
        lines.append(
            f"{name:18}{m['rps']:8.0f}{m['cpu_s_per_1000'] * 1000:12.1f}{m['added_p50_us']:9.0f}"
            f"{m['added_p99_us']:9.0f}{m['event_p50_us']:11.0f}{m['event_p99_us']:11.0f}{m['rss_mib']:6.0f}"
            f"{m['paints_per_s']:10.1f}{m['wrong']:7.0f}"
        )
    lines += [
        f"{goal.text}: {value:.2f} ({'met' if goal.is_met(value) else 'missed'})"
        for goal, value in goals
        if value is not None
    ]
    load = os.getloadavg()
    lines.append(
        f"{ROUNDS} rounds; load of the machine {load[0]:.1f}, before that {load[1]:.1f} and {load[2]:.1f}"
    )
    report(
        {
            "bench": "relay",
            "rounds": ROUNDS,
            "load": load,
            "medians": medians,
            "goals": {goal.text: value for goal, value in goals},
        },
        "\n".join(lines),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
