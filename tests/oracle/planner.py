"""Asks the embedded engine's own planner what a model would take, on made-up GPUs and without loading it.

A program, run as a child: one JSON object on standard input, one on standard output. It reaches into the
engine's shared library by symbol, and registers devices that are nothing but call-backs, so it is for tests
only. Where the library lacks the symbols, or has a device interface that is not known here, it says so and
ends with status 3.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any, Final

from xllamacpp import xllamacpp as engine

Pointer = ctypes.c_void_p
Size = ctypes.c_size_t

UNUSABLE: Final = 3
#: Versions of the device interface whose tables are laid out as below.
KNOWN_INTERFACES: Final = (3, 4, 5)
ALIGNMENT: Final = 128
ROW: Final = 512
#: Like CUDA: weights in host memory are copied to the device for batches of at least this many rows.
OFFLOAD_ROWS: Final = 32

_TYPES: Final = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_VECTOR: Final = "RSt6vectorIP19ggml_backend_deviceSaIS9_EERjSD_SD_"
_MODEL_PARAMS: Final = "_Z28common_model_params_to_llamaR13common_params"
_CONTEXT_PARAMS: Final = "_Z30common_context_params_to_llamaRK13common_params"
_MEASURE: Final = (
    "_Z29common_get_device_memory_dataPKcPK18llama_model_paramsPK20llama_context_params"
    f"{_VECTOR}14ggml_log_level"
)
_ERROR_LEVEL: Final = 4


class Params(ctypes.Structure):
    """Room for a structure that the engine returns by value and that is only passed on."""

    _fields_ = (("room", ctypes.c_char * 4096),)


class Vector(ctypes.Structure):
    """A C++ vector: where it begins, ends, and could grow to."""

    _fields_ = (("begin", Pointer), ("end", Pointer), ("room", Pointer))


class Row(ctypes.Structure):
    """What the planner says of one device."""

    _fields_ = (
        ("total", ctypes.c_int64),
        ("free", ctypes.c_int64),
        ("weights", Size),
        ("kv_cache", Size),
        ("compute", Size),
    )


class Properties(ctypes.Structure):
    """A device's description of itself."""

    _fields_ = (
        ("name", Pointer),
        ("description", Pointer),
        ("free", Size),
        ("total", Size),
        ("type", ctypes.c_int),
        ("id", Pointer),
        ("abilities", ctypes.c_bool * 5),
    )


class Registry(ctypes.Structure):
    """A back end."""

    _fields_ = (("version", ctypes.c_int), ("functions", Pointer * 4), ("context", Pointer))


class Unusable(Exception):
    """This engine cannot be asked."""


class Planner:
    """The engine's library with `frees` made-up GPUs, named `FAKE0` on, of so many free bytes."""

    def __init__(self, frees: list[int]) -> None:
        self._library = ctypes.CDLL(engine.__file__)
        self._kept: list[Any] = []
        self.frees = frees
        self._model_params = self._symbol(_MODEL_PARAMS, Params, Pointer)
        self._context_params = self._symbol(_CONTEXT_PARAMS, Params, Pointer)
        self._measure = self._symbol(_MEASURE, Vector, ctypes.c_char_p, *[Pointer] * 6, ctypes.c_int)
        self._device_name = self._symbol("ggml_backend_dev_name", ctypes.c_char_p, Pointer)
        self._logger = self._callback(None, ctypes.c_int, ctypes.c_char_p, Pointer)(self._log)
        self._symbol("llama_backend_init", None)()
        self._symbol("llama_log_set", None, Pointer, Pointer)(self._logger, None)
        if frees:
            self._register()

    def _log(self, level: int, text: bytes, _data: int) -> None:
        if level >= _ERROR_LEVEL:
            sys.stderr.write((text or b"").decode("utf-8", "replace"))

    def _symbol(self, name: str, result: Any, *arguments: Any) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise Unusable(f"the engine's library does not export {name}") from None
        function.restype, function.argtypes = result, arguments
        return function

    def _callback(self, result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], int]:
        def address(function: Callable[..., Any]) -> int:
            made = ctypes.CFUNCTYPE(result, *arguments)(function)
            self._kept.append(made)
            place = ctypes.cast(made, Pointer).value
            assert place is not None
            return place

        return address

    def _table(self, *entries: int | None) -> Any:
        table = (Pointer * len(entries))(*entries)
        self._kept.append(table)
        return table

    def _text(self, text: str) -> int:
        buffer = ctypes.create_string_buffer(text.encode())
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def _register(self) -> None:
        first = self._symbol("ggml_backend_dev_get", Pointer, Size)(0)
        registry = self._symbol("ggml_backend_dev_backend_reg", Pointer, Pointer)(first)
        version = ctypes.c_int.from_address(registry).value
        if version not in KNOWN_INTERFACES:
            raise Unusable(f"the engine's device interface has version {version}")
        text, of, take = Pointer, self._callback, Size
        devices: list[int] = []
        name = self._text("FAKE")
        mine = Registry(
            version,
            (Pointer * 4)(
                of(text, Pointer)(lambda _: name),
                of(take, Pointer)(lambda _: len(devices)),
                of(Pointer, Pointer, take)(lambda _, index: devices[index]),
                of(Pointer, Pointer, ctypes.c_char_p)(lambda _, _name: None),
            ),
            None,
        )
        self._kept.append(mine)
        for index in range(len(self.frees)):
            devices.append(self._device(index, ctypes.addressof(mine)))
        self._symbol("ggml_backend_register", None, Pointer)(ctypes.addressof(mine))

    def _device(self, index: int, registry: int) -> int:
        of, flag = self._callback, ctypes.c_bool
        name, description = self._text(f"FAKE{index}"), self._text("a made-up GPU")
        identity, guid = self._text(f"fake:{index}"), self._text(f"{index:016d}")
        size_of = self._symbol("ggml_nbytes", Size, Pointer)
        is_quantized = self._symbol("ggml_is_quantized", flag, ctypes.c_int)
        row_size = self._symbol("ggml_row_size", Size, ctypes.c_int, ctypes.c_int64)
        operation = self._symbol("ggml_op_desc", ctypes.c_char_p, Pointer)

        def allocated(_buffers: int, tensor: int) -> int:
            size: int = size_of(tensor)
            kind, columns = _kind(tensor), _extents(tensor)[0]
            if is_quantized(kind) and columns % ROW:
                size += row_size(kind, ROW - columns % ROW)
            return size

        def wants(_device: int, tensor: int) -> bool:
            extents = _extents(tensor)
            what = operation(tensor)
            if what == b"GET_ROWS":
                return False
            rows = extents[2] if what == b"MUL_MAT_ID" else extents[1]
            return rows >= OFFLOAD_ROWS

        def memory(_device: int, free: int, total: int) -> None:
            Size.from_address(free).value = Size.from_address(total).value = self.frees[index]

        def properties(_device: int, place: int) -> None:
            shown = Properties.from_address(place)
            shown.name, shown.description, shown.id = name, description, identity
            shown.free = shown.total = self.frees[index]
            shown.type = 1
            shown.abilities[:] = [True, False, False, True, False]  # works asynchronously, and has events

        named = of(Pointer, Pointer)(lambda _: name)
        buffers = self._table(
            named, None, None, of(Size, Pointer)(lambda _: ALIGNMENT), None,
            of(Size, Pointer, Pointer)(allocated), None, None, None, None,
        )  # fmt: skip
        place = ctypes.addressof(buffers)
        worker = self._table(guid, named, of(None, Pointer)(lambda _: None), *[None] * 37)
        device = self._table(
            named,
            of(Pointer, Pointer)(lambda _: description),
            of(None, Pointer, Pointer, Pointer)(memory),
            of(ctypes.c_int, Pointer)(lambda _: 1),
            of(None, Pointer, Pointer)(properties),
            of(Pointer, Pointer, Pointer)(lambda _device, _parameters: ctypes.addressof(worker)),
            of(Pointer, Pointer)(lambda _: place),
            None,
            None,
            of(flag, Pointer, Pointer)(lambda _device, _tensor: True),
            of(flag, Pointer, Pointer)(lambda _device, other: other == place),
            of(flag, Pointer, Pointer)(wants),
            None,
            None,
            None,
            registry,
            None,
        )
        buffers[8] = worker[17] = ctypes.addressof(device)
        return ctypes.addressof(device)

    def plan(self, case: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Bytes by device and part.

        Raises:
            Unusable: the engine's parameters cannot be passed on.
        """
        # The engine ends the process over a model that it cannot load: then this line tells which.
        sys.stderr.write(f"{case}\n")
        sys.stderr.flush()
        params = _params(case)
        place = _inside(params)
        self.frees[:] = case.get("frees") or self.frees
        model, context = self._model_params(place), self._context_params(place)
        devices, numbers = Vector(), [ctypes.c_uint32() for _ in range(3)]
        rows = self._measure(
            case["path"].encode(),
            ctypes.addressof(model),
            ctypes.addressof(context),
            ctypes.addressof(devices),
            *[ctypes.addressof(number) for number in numbers],
            _ERROR_LEVEL,
        )
        count = ((devices.end or 0) - (devices.begin or 0)) // ctypes.sizeof(Pointer)
        names = [self._device_name(Pointer.from_address(devices.begin + 8 * at).value) for at in range(count)]
        if ((rows.end or 0) - (rows.begin or 0)) // ctypes.sizeof(Row) != count + 1:
            raise Unusable("the planner's answer has another form")
        table = (Row * (count + 1)).from_address(rows.begin)
        return {
            label: {"weights": row.weights, "kv_cache": row.kv_cache, "compute": row.compute}
            for label, row in zip([*(name.decode() for name in names), "host"], table, strict=True)
        }


def _kind(tensor: int) -> int:
    return ctypes.c_int.from_address(tensor).value


def _extents(tensor: int) -> list[int]:
    return list((ctypes.c_int64 * 4).from_address(tensor + 16))


def _params(case: dict[str, Any]) -> Any:
    params = engine.CommonParams()
    params.model.path = case["path"]
    params.n_ctx = case.get("ctx_size", 4096)
    params.n_parallel = case.get("parallel", 1)
    params.kv_unified = case.get("kv_unified", True)
    layers = case.get("n_gpu_layers", -1)
    params.n_gpu_layers = layers if layers >= 0 else -2  # -1 would let the engine choose
    params.n_ubatch = case.get("ubatch", 512)
    params.n_batch = max(case.get("ubatch", 512), 2048)
    params.embedding = case.get("embedding", False)
    if not params.embedding:
        # The server asks for no more rows of logits than it has slots.
        params.n_outputs_max = max(1, params.n_parallel)
        params.n_outputs_max_per_seq = 1
    # Repacked weights are in buffers that the planner does not count.
    params.no_extra_bufts = True
    params.swa_full = case.get("swa_full", False)
    mode = case.get("split_mode", "layer").upper()
    params.split_mode = getattr(engine.llama_split_mode, f"LLAMA_SPLIT_MODE_{mode}")
    params.main_gpu = case.get("main_gpu", 0)
    if case.get("tensor_split"):
        rest = len(params.tensor_split) - len(case["tensor_split"])
        params.tensor_split = [*case["tensor_split"], *[0.0] * rest]
    if case.get("n_cpu_moe"):
        params.tensor_buft_overrides = _overrides(case["n_cpu_moe"])
    attention = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}[case.get("flash_attn", "auto")]
    params.flash_attn_type = getattr(engine.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{attention}")
    params.cache_type_k = engine.ggml_type(_TYPES[case.get("cache_type_k", "f16")])
    params.cache_type_v = engine.ggml_type(_TYPES[case.get("cache_type_v", "f16")])
    return params


def _overrides(blocks: int) -> str:
    experts = "ffn_(up|down|gate|gate_up)_(ch|)exps"
    return ",".join(rf"blk\.{block}\.{experts}=CPU" for block in range(blocks))


def _inside(params: Any) -> int:
    """Where the C++ structure in a Python object is: after the object's head. Checked with a mark."""
    place = id(params) + object.__basicsize__
    mark, before = 0x5A5A1234, params.n_predict
    params.n_predict = mark
    raw = ctypes.string_at(place, type(params).__basicsize__ - object.__basicsize__)
    params.n_predict = before
    if mark.to_bytes(4, "little") not in raw:
        raise Unusable("the engine's parameters are not stored in their Python object")
    return place


def main() -> int:
    request = json.load(sys.stdin)
    try:
        planner = Planner(request["frees"])
        answers = [planner.plan(case) for case in request["cases"]]
    except Unusable as reason:
        sys.stdout.write(f"{reason}\n")
        return UNUSABLE
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
