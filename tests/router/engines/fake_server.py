"""A llama-server that behaves as told by the file `mode` beside it: a program for tests, not imported.

It is started under another name, with another first line; see `fake_server` in conftest.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HELP = """
-t,    --threads N                      number of CPU threads
-np,   --parallel N                     number of server slots
--port PORT                             port to listen
--metrics                               enable metrics
--temp, --temperature N                 temperature
--fit-ctx N, --fit [on|off]
--no-ui, --kv-unified, --cache-ram N, --slots, --alias STRING, --log-verbosity N
"""
DEVICES = """ggml_cuda_init: found 2 CUDA devices:
Available devices:
  CUDA0: NVIDIA GeForce RTX 3060 (12288 MiB, 11900 MiB free)
  CUDA1: NVIDIA GeForce RTX 4090 (D) (24564 MiB, 24000 MiB free)
  CPU: 13th Gen Intel(R) Core(TM)
"""


def say(fd: int, text: str) -> None:
    os.write(fd, f"{text}\n".encode())


def state(name: str, value: float = 0.0) -> None:
    payload = {"stages": ["text_model"], "current": "text_model", "value": value}
    say(1, "cmd_child_to_router:state:" + json.dumps({"state": name, "payload": payload}))


def serve(mode: str) -> None:
    # Slow to import, and not needed for the other answers.
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    listens = f"listening on http://127.0.0.1:{server.server_port}"
    if mode == "tells":
        report = {"argv": sys.argv, "environ": dict(os.environ), "session": os.getsid(0)}
        say(2, "REPORT " + json.dumps(report))
    if mode == "old":
        say(2, f"main: server is {listens} - starting the main loop")
    else:
        state("loading", 0.5)
        for line in ("Vulkan0 model buffer size =    92.10 MiB", "   CPU KV buffer size =  1.50 MiB"):
            say(2, f"0.00.078.182 I load_tensors:      {line}")
        say(2, f"0.00.079.311 I srv  llama_server: {listens}")
        state("ready")
    sys.stdin.buffer.read()
    sys.exit(1)


def main() -> None:
    mode = Path(sys.argv[0]).with_name("mode").read_text().strip()
    option = sys.argv[1]
    with Path(sys.argv[0]).with_name("asked").open("a") as log:
        log.write(f"{option}\n")
    match mode:
        case "hangs":
            signal.pause()
        case "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "wrong processor" if option == "--list-devices":
            os.kill(os.getpid(), signal.SIGILL)
        case "no library":
            say(2, f"{sys.argv[0]}: error while loading shared libraries: libcudart.so.12: cannot open it")
            sys.exit(127)
        case "script":
            Path("/no/such/setup").read_text()
        case "rubbish":
            for _ in range(1000):
                os.write(1, bytes(range(256)) * 16)
            return
        case "out of memory" if option == "--model":
            state("loading")
            say(2, "0.00.1 E ggml_vulkan: Device memory allocation of size 99 failed.")
            say(2, "0.00.1 E ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory")
            sys.exit(1)
    match option:
        case "--version":
            say(2, "version: 9999 (abcdef0)\nbuilt with GNU 11.4.0 for Linux x86_64")
        case "--help":
            say(1, HELP)
        case "--list-devices":
            say(1, "Available devices:\n  (none)" if mode == "no devices" else DEVICES)
            if mode == "no devices":
                say(2, "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient")
        case _:
            serve(mode)


if __name__ == "__main__":
    main()
