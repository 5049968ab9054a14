"""A llama-server that answers at once and misbehaves as prompts tell it to: a program, not imported.

Some of its loads fail, which ones is decided by the seed in the file `seed` beside it, the model and how
often that was loaded. It gets its first line when it is written to a soak's folder.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

HELP = """
-np,   --parallel N
--port PORT
--fit-ctx N, --fit [on|off]
--metrics, --no-ui, --kv-unified, --cache-ram N, --slots, --alias STRING, --log-verbosity N
"""


def say(fd: int, text: str) -> None:
    os.write(fd, f"{text}\n".encode())


def state(name: str, value: float = 0.0) -> None:
    payload = {"stages": ["text_model"], "current": "text_model", "value": value}
    say(1, "cmd_child_to_router:state:" + json.dumps({"state": name, "payload": payload}))


def chunk(text: str | None) -> dict[str, Any]:
    delta = {"content": text} if text is not None else {}
    finish = None if text is not None else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fake",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.whole(200, {"status": "ok"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(body)
        for misdeed in ("refuse", "rubbish"):
            if f"please {misdeed}" in text:
                if misdeed == "refuse":
                    self.whole(500, {"error": {"message": "no", "type": "server_error", "code": 500}})
                else:
                    self.wfile.write(b"\0\xff rubbish\r\n\r\n")
                    self.close_connection = True
                return
        if not body.get("stream"):
            if "please die" in text:
                os._exit(3)
            self.answer(body, cut="please cut" in text)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(int(body.get("max_tokens") or 4)):
            self.event(json.dumps(chunk(f"{number} ")))
            if "please die" in text:
                os._exit(3)
            if "please cut" in text:
                self.close_connection = True
                return
        self.event(json.dumps(chunk(None)))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data: str) -> None:
        sent = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(sent), sent))

    def answer(self, body: dict[str, Any], *, cut: bool) -> None:
        if self.path.endswith("/embeddings"):
            told: dict[str, Any] = {"object": "list", "model": "fake", "data": [], "usage": {}}
            told["data"].append({"object": "embedding", "index": 0, "embedding": [0.5] * 8})
        elif self.path.endswith("count_tokens"):
            told = {"input_tokens": 3}
        else:
            message = {"role": "assistant", "content": "So it is."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            told = {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "fake",
                "choices": [choice],
            }
        self.whole(200, told, cut=cut)

    def whole(self, status: int, told: dict[str, Any], *, cut: bool = False) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut

    def log_message(self, *_: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients leave."""


def load(model: str) -> None:
    """Come up, or fail as the seed decides."""
    here = Path(sys.argv[0]).parent
    kept = here / "loads" / f"{Path(model).name}.txt"
    with kept.open("a+") as loads:
        loads.write("x")
        loads.flush()
        number = loads.tell()
    rng = random.Random(f"{(here / 'seed').read_text()} {Path(model).name} {number}")
    match rng.choices(("well", "short", "fails", "crashes"), (7, 1, 1, 1))[0]:
        case "short":
            say(2, "0.00.1 E ggml_vulkan: Device memory allocation of size 99 failed.")
            say(2, "0.00.1 E ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory")
            sys.exit(1)
        case "fails":
            say(2, "0.00.1 E llama_model_load: error loading model: tensor 'blk.0' not found")
            sys.exit(1)
        case "crashes":
            os.abort()


def serve(model: str) -> None:
    state("loading", 0.3)
    load(model)
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(2, f"0.00.079.311 I srv  llama_server: listening on http://127.0.0.1:{server.server_port}")
    state("ready")
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    match sys.argv[1]:
        case "--version":
            say(2, "version: 9999 (abcdef0)\nbuilt with GNU 11.4.0 for Linux x86_64")
        case "--help":
            say(1, HELP)
        case "--list-devices":
            say(1, "Available devices:\n  (none)")
        case _:
            serve(sys.argv[sys.argv.index("--model") + 1])


if __name__ == "__main__":
    main()
