"""The program in a worker process: one llama.cpp server for one model.

It needs nothing but the standard library and the engine, so that it starts quickly. What passes between it
and its router:

- standard input: first one line of JSON, the configuration; it holds the server's key, which must not be seen
  in the list of processes. Then nothing. Its end means: stop now, also when the router died.
- standard output: the engine's own progress lines while it loads, then one line `worker:ready:{...}` with
  host and port.
- standard error: the engine's log.

The engine holds Python's lock while it loads, so no thread of Python's can watch over the router meanwhile.
On Linux the kernel does: it kills this process when the thread that started it ends. Elsewhere a load that is
under way when the router dies runs to its end, finds standard input closed, and leaves then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

READY: Final = "worker:ready:"
#: Tells the engine to report its progress on standard output. Its value only has to be a number.
_REPORT: Final = "LLAMA_SERVER_ROUTER_PORT"
#: Tokens computed at once by models that embed or rank; they must see a whole text at once.
_WHOLE_TEXT: Final = 2048
_PR_SET_PDEATHSIG: Final = 1
_MAX_LINE: Final = 1 << 20


def main() -> NoReturn:
    """Serve until standard input ends. Exit status 0 then; 1 if the model cannot be loaded."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    requests, reports = os.dup(0), os.dup(1)
    line = _line(requests)
    if not line:
        os._exit(1)
    config = json.loads(line)
    # The router may have died before the request to the kernel above. A frozen program has a parent between.
    if not getattr(sys, "frozen", False) and os.getppid() != config["parent"]:
        os._exit(1)
    # When its standard input ends, the engine ends the process with an error status: it gets one that stays.
    idle, _ = os.pipe()
    os.dup2(idle, 0)
    os.environ[_REPORT] = "1"
    try:
        server = _serve(config)
    except RuntimeError as error:
        # Not os._exit: the engine writes its log from a thread, and the cause would be lost.
        sys.exit(f"{error}")
    address = urlsplit(server.listening_address)
    report = json.dumps({"host": address.hostname, "port": address.port})
    os.write(reports, f"{READY}{report}\n".encode())
    while os.read(requests, 4096):
        pass
    # Taking the server down in an orderly way waits for the answers under way, without a limit.
    os._exit(0)


def _line(fd: int) -> bytes:
    """One line, read without reading ahead; empty if the input ended before."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(fd, 65_536)
        if not piece or len(line) > _MAX_LINE:
            return b""
        line += piece
    return bytes(line)


def _serve(config: dict[str, Any]) -> Any:
    """Load the model and begin to serve. Returns the server.

    Raises:
        RuntimeError: it could not be loaded; why is in the log only.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = config["path"]
    params.model_alias = {config["model"]}
    params.hostnames = [config["host"]]
    params.port = 0
    params.api_keys = [config["api_key"]]
    # No web page is meant to read answers from here.
    params.cors_origins = ""
    params.cors_origins_explicit = True
    params.cors_credentials = False
    params.ui = False
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.n_ctx = config["ctx_size"]
    params.n_parallel = config["parallel"]
    # One cache for all slots: each may use the whole context.
    params.kv_unified = True
    params.n_gpu_layers = config["n_gpu_layers"]
    # The plan is made by the router; the engine must not change it, nor keep prompts in memory beyond it.
    params.fit_params = False
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.warmup = True
    if config["type"] != "llm":
        params.embedding = True
        params.n_batch = params.n_ubatch = max(min(config["ctx_size"], _WHOLE_TEXT), 1)
    if config["type"] == "reranking":
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
