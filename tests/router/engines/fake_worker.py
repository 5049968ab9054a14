"""A worker that misbehaves as told by its arguments: a program for tests, not imported by them."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any


def say(fd: int, text: str) -> None:
    os.write(fd, f"{text}\n".encode())


def serve(status: int = 200) -> int:
    """A server in a thread; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_port)


def announce(port: int, host: str = "127.0.0.1") -> None:
    say(1, "worker:ready:" + json.dumps({"host": host, "port": port}))


def state(value: float) -> None:
    payload = {"stages": ["text_model"], "current": "text_model", "value": value}
    say(1, "cmd_child_to_router:state:" + json.dumps({"state": "loading", "payload": payload}))


def until_told() -> None:
    """Live until standard input ends."""
    sys.stdin.buffer.read()


def forever() -> None:
    while True:
        signal.pause()


def main(mode: str, *rest: str) -> None:
    config = json.loads(sys.stdin.buffer.readline())
    match mode:
        case "good":
            announce(serve())
            until_told()
        case "silent":
            forever()
        case "exits":
            say(2, "I have no reason")
            sys.exit(int(rest[0]))
        case "says":
            os.write(2, bytes.fromhex(rest[1]))
            sys.exit(int(rest[0]))
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wrong port":
            announce(int(rest[0]))
            forever()
        case "wrong host":
            announce(80, "192.0.2.1")
            forever()
        case "no http":
            announce(int(rest[0]))
            forever()
        case "unready":
            announce(serve(503))
            forever()
        case "nonsense":
            for line in (b"worker:ready:", b"worker:ready:[]", b'worker:ready:{"port": "x"}', b"\xff\xfe"):
                os.write(1, line + b"\n")
            for text in (b"", b"{}", b"[1]", b'{"state": "loading", "payload": {"stages": [], "value": 1}}'):
                os.write(1, b"cmd_child_to_router:state:" + text + b"\n")
            announce(serve())
            until_told()
        case "flood":
            block = (b"x" * 1023 + b"\n") * 1024
            for _ in range(int(rest[0])):
                os.write(2, block)
            os.write(2, b"y" * 3_000_000 + b"\xff\xfe the end")
            announce(serve())
            until_told()
        case "steps":
            for step in range(int(rest[0])):
                time.sleep(float(rest[1]))  # noqa: TID251  # a load that takes its time
                state(step / int(rest[0]))
            announce(serve())
            until_told()
        case "busy":
            end = time.process_time() + float(rest[0])
            while time.process_time() < end:
                pass
            announce(serve())
            until_told()
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            announce(serve())
            forever()
        case "polite":
            # Does not heed its input, but ends when terminated.
            announce(serve())
            forever()
        case "leaves a child":
            child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
            say(2, str(child.pid))
            sys.exit(3)
        case "tells":
            report = {
                "config": config,
                "argv": sys.argv,
                "environ": dict(os.environ),
                "session": os.getsid(0),
            }
            say(2, "REPORT " + json.dumps(report))
            announce(serve())
            until_told()


if __name__ == "__main__":
    main(*sys.argv[1:])
