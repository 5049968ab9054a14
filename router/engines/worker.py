"""The program in a worker process: one llama.cpp server for one model.

It needs nothing but the standard library and the engine, so that it starts quickly. What passes between it
and its router:

- standard input: first one line of JSON, the configuration; it holds the server's key, which must not be seen
  in the list of processes. Then nothing. Its end means: stop now, also when the router died.
- standard output: the engine's own progress lines while it loads, then one line `worker:ready:{...}` with
  host and port.
- standard error: the engine's log. It is written by a thread, and may say a little later that it listens.

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
DEVICES: Final = "worker:devices:"
#: What comes before the arguments where a packaged app is its own worker.
_OPTION: Final = "--engine-worker"
#: Tells the engine to report its progress on standard output. Its value only has to be a number.
_REPORT: Final = "LLAMA_SERVER_ROUTER_PORT"
_PR_SET_PDEATHSIG: Final = 1
_MAX_LINE: Final = 1 << 20


def main() -> NoReturn:
    """Do what the arguments say: `devices`, `guard PARENT COMMAND...`, or nothing for a worker."""
    arguments = sys.argv[2:] if sys.argv[1:2] == [_OPTION] else sys.argv[1:]
    if arguments[:1] == ["guard"]:
        # Only a packaged app comes here; else that file is run by itself.
        from router.engines.guard import run

        run(int(arguments[1]), arguments[2:])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if arguments == ["devices"]:
        _tell_devices()
    _work()


def _work() -> NoReturn:
    """Serve until standard input ends. Exit status 0 then; 1 if the model cannot be loaded."""
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
    report = json.dumps({"host": address.hostname, "port": address.port, "logs": True})
    os.write(reports, f"{READY}{report}\n".encode())
    while os.read(requests, 4096):
        pass
    # Taking the server down in an orderly way waits for the answers under way, without a limit.
    os._exit(0)


def _tell_devices() -> NoReturn:
    """Print a line of JSON for the engine's GPUs, and end."""
    import xllamacpp

    gpus = [
        {"name": found["name"], "description": found["description"], "total": found["memory_total"]}
        for found in xllamacpp.get_device_info()
        if "GPU" in found["type"].name
    ]
    os.write(1, f"{DEVICES}{json.dumps(gpus)}\n".encode())
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
    params.split_mode = _member(xllamacpp.llama_split_mode, "LLAMA_SPLIT_MODE_", config["split_mode"])
    # What is visible is what may be used, in its order.
    params.main_gpu = 0
    if config["tensor_split"]:
        shares = config["tensor_split"]
        params.tensor_split = shares + [0.0] * (len(params.tensor_split) - len(shares))
    params.cache_type_k = _member(xllamacpp.ggml_type, "GGML_TYPE_", config["cache_type_k"])
    params.cache_type_v = _member(xllamacpp.ggml_type, "GGML_TYPE_", config["cache_type_v"])
    if config["overrides"]:
        params.tensor_buft_overrides = config["overrides"]
    if config["mmproj"]:
        params.mmproj.path = config["mmproj"]
        params.mmproj_use_gpu = config["mmproj_on_gpu"]
    # The plan is made by the router; the engine must not change it, nor keep prompts in memory beyond it.
    params.fit_params = False
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.warmup = True
    params.verbosity = config["verbosity"]
    if config["type"] != "llm":
        params.embedding = True
    if config["batch"]:
        params.n_batch = params.n_ubatch = config["batch"]
    if config["type"] == "reranking":
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    for setting in config["settings"]:
        *path, name = setting["attribute"].split(".")
        target = params
        for step in path:
            target = getattr(target, step)
        kind, value = setting["enum"], setting["value"]
        setattr(target, name, getattr(getattr(xllamacpp, kind), value) if kind else value)
    return xllamacpp.Server(params)


def _member(kind: Any, prefix: str, name: str) -> Any:
    """The engine's number for one of its own names, such as `q8_0`."""
    return getattr(kind, prefix + name.upper())


if __name__ == "__main__":
    main()
