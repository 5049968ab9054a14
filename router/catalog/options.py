"""How a model is loaded: the options that a user may give for one model, each of which may be left open."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from router.catalog.kinds import TYPES
from router.errors import BadRequest, near_matches
from router.memory.cache import CACHE_TYPES
from router.settings import schema
from router.settings.schema import shown
from router.units import parse_duration

#: Means `ctx_size: auto`: the largest context that fits beside what else is wanted.
CTX_AUTO: Final = -1
#: In `device`: no GPU at all.
NO_GPU: Final = "cpu"

#: Options that say how a loaded model is treated, not what its process is.
_NOT_OF_THE_PROCESS: Final = frozenset({"keep_alive", "evict_weight"})


class LoadOptions(Struct, frozen=True, omit_defaults=True):
    """Options of one model. None leaves a value to the model's file, the catalog file or the settings.

    Attributes:
        type: `llm`, `embedding` or `reranking`, in place of what the file's metadata say.
        device: ids or labels of GPUs, in the order of their use; `("cpu",)` for the processor alone. A model
            with a device is *pinned to it*: it is loaded there or not at all.
        split_mode: `none` puts everything on one of several devices, `layer` spreads whole blocks over them.
        main_gpu: index into `device` of the one that `none` uses.
        tensor_split: shares of the devices, in their order; none of them 0.
        n_gpu_layers: blocks on GPUs, the output being one more; -1 for all.
        n_cpu_moe: the experts of so many of the first blocks stay on the host.
        ctx_size: tokens of context for all slots together; -1 (`auto`) for the largest that fits.
        parallel: slots.
        cache_type_k, cache_type_v: element types of the cache.
        mmproj: path of a projector for images; "" for none although one lies beside the model.
        keep_alive: seconds after the last answer until it is unloaded; 0 when idle, -1 never.
        evict_weight: how much dearer than others it is to lose; 1 is ordinary.
        llamacpp_args: further arguments of the engine, from a list of those that are safe.
    """

    type: str | None = None
    device: tuple[str, ...] | None = None
    split_mode: Literal["none", "layer"] | None = None
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] | None = None
    n_gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    ctx_size: int | None = None
    parallel: int | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    mmproj: str | None = None
    keep_alive: float | None = None
    evict_weight: float | None = None
    llamacpp_args: tuple[str, ...] | None = None

    def agrees_with(self, other: LoadOptions, resolved: LoadOptions | None = None) -> bool:
        """Whether a process that was asked for with `other` does what this asks for.

        What is not asked for agrees with all. `resolved` is what became of `other`: a context that was asked
        for as a number agrees with that number, and `auto` with `auto`, whatever it came to.
        """
        if self is NO_OPTIONS:
            return True
        for name in _OF_THE_PROCESS:
            asked = getattr(self, name)
            if asked is None or asked == getattr(other, name):
                continue
            if resolved is None or asked != getattr(resolved, name):
                return False
        return True

    def over(self, base: LoadOptions) -> LoadOptions:
        """These options, completed by those of `base`."""
        asked = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(base, **asked) if asked else base


_OF_THE_PROCESS: Final = tuple(
    name for name in LoadOptions.__struct_fields__ if name not in _NOT_OF_THE_PROCESS
)
NO_OPTIONS: Final = LoadOptions()


#: Bounds that no sensible value reaches, so that what passes can be computed with.
_MAX_LAYERS: Final = 1 << 16
_MAX_CTX: Final = int(schema.info_of("ctx_size").maximum or 0)
_MAX_PARALLEL: Final = int(schema.info_of("parallel").maximum or 0)
_MAX_DEVICES: Final = 64
_MAX_SHARE: Final = 1e9
_MAX_WEIGHT: Final = 1e6
_MAX_ARGS: Final = 256
_MAX_TEXT: Final = 4096

_NO_SPLIT: Final = {
    "row": "row splitting moves data between GPUs for every row and its memory cannot be told beforehand",
    "tensor": "its memory on each GPU cannot be told beforehand",
}


class _Wrong(Exception):
    """The value is not what the option takes; the text, if there is one, says why."""


def check_options(given: Mapping[str, Any]) -> LoadOptions:
    """The options that a mapping names, as a request or the options file has them. None leaves one open.

    Raises:
        BadRequest: naming every option at fault and the expected form; `param` is the first.
    """
    return apply_options(NO_OPTIONS, given)


def apply_options(base: LoadOptions, given: Mapping[str, Any]) -> LoadOptions:
    """`base`, with what `given` names in its place: `auto` and None also undo what `base` says.

    Raises:
        BadRequest: as `check_options`, also where the two together contradict each other.
    """
    values, faults = read_options(given)
    if faults:
        first = next(iter(faults.values()))
        raise BadRequest(
            " | ".join(fault.message for fault in faults.values()), code=first.code, param=first.param
        )
    options = msgspec.structs.replace(base, **values)
    contradiction = contradicts(options)
    if contradiction is not None:
        raise contradiction
    return options


def read_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, BadRequest]]:
    """Each value by itself: those that can be used, in the form of `LoadOptions`, and what is wrong."""
    values: dict[str, Any] = {}
    faults: dict[str, BadRequest] = {}
    for key, value in given.items():
        option = _OPTIONS.get(key)
        if option is None:
            faults[key] = _unknown(key)
            continue
        expected, read = option
        try:
            values[key] = None if value is None and key != "mmproj" else read(value)
        except _Wrong as wrong:
            reason = f"; {wrong}" if str(wrong) else ""
            faults[key] = _fault(key, f"expected {expected}; got {shown(value)}{reason}")
    return values, faults


def contradicts(options: LoadOptions) -> BadRequest | None:
    """What is wrong with options that are sound one by one; `param` is the option to change."""
    device, shares = options.device, options.tensor_split
    if device == (NO_GPU,):
        for key in ("split_mode", "main_gpu", "tensor_split"):
            if getattr(options, key) is not None:
                return _fault(key, f"it is about GPUs, but device says {NO_GPU}")
        if options.n_gpu_layers:
            return _fault("n_gpu_layers", f"it puts layers on a GPU, but device says {NO_GPU}")
        return None
    if shares is not None and device is not None and len(shares) != len(device):
        return _fault(
            "tensor_split",
            f"it has {len(shares)} shares, but device names {len(device)}; give one share for each device",
        )
    if shares is not None and options.split_mode == "none":
        return _fault("tensor_split", "split_mode none puts everything on one device; leave one of them out")
    if options.main_gpu is None:
        return None
    if options.split_mode == "layer":
        return _fault("main_gpu", "it is for split_mode none; split_mode layer uses all devices")
    if device is not None and options.main_gpu >= len(device):
        return _fault(
            "main_gpu", f"it counts the entries of device from 0; the last one is {len(device) - 1}"
        )
    return None


def option_of_text(key: str, text: str) -> Any:
    """The value of an option that was written on a command line, still to be checked.

    Raises:
        BadRequest: there is no such option.
    """
    if key not in _OPTIONS:
        raise _unknown(key)
    if key not in _NUMBERS:
        return text
    plain = text.strip()
    try:
        return float(plain) if key == "evict_weight" else int(plain)
    except ValueError:
        return plain


def expected_of(key: str) -> str:
    """The form of an option's value, in words."""
    return _OPTIONS[key][0]


def as_mapping(options: LoadOptions) -> dict[str, Any]:
    """The options that are given, as people write them: what `check_options` takes back."""
    given: dict[str, Any] = {}
    for key in LoadOptions.__struct_fields__:
        value = getattr(options, key)
        if value is None:
            continue
        if key == "ctx_size" and value == CTX_AUTO:
            value = "auto"
        elif key == "n_gpu_layers" and value < 0:
            value = "all"
        elif key == "keep_alive" or key == "evict_weight":
            value = int(value) if float(value).is_integer() else value
        elif key == "mmproj" and not value:
            value = "none"
        elif key == "tensor_split":
            value = [int(share) if share.is_integer() else share for share in value]
        given[key] = list(value) if isinstance(value, tuple) else value
    return given


def _fault(key: str, words: str) -> BadRequest:
    return BadRequest(f"{key}: {words}", code="invalid_option", param=key)


def _unknown(key: str) -> BadRequest:
    near = near_matches(str(key).lower(), _OPTIONS)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(_OPTIONS)}"
    return BadRequest(
        f"{shown(key).strip(chr(34))}: no such option ({advice})", code="unknown_option", param=key
    )


def _whole(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _Wrong
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _Wrong
    try:
        number = float(value)
    except OverflowError:
        raise _Wrong from None
    if not math.isfinite(number):
        raise _Wrong
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise _Wrong
    return value.strip()


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _Wrong
        return value

    return read


def _items(value: Any) -> list[Any]:
    """A list, or a text with commas."""
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not 1 <= len(items) <= _MAX_DEVICES:
        raise _Wrong
    return list(items)


def _device(value: Any) -> tuple[str, ...]:
    names = tuple(_text(item) for item in _items(value))
    if not all(names):
        raise _Wrong
    if any(name.lower() == NO_GPU for name in names):
        if len(names) > 1:
            raise _Wrong(f"{NO_GPU} stands alone; n_gpu_layers keeps a part of a model off the GPUs")
        return (NO_GPU,)
    if len({name.lower() for name in names}) < len(names):
        raise _Wrong("it names one device twice")
    return names


def _split_mode(value: Any) -> str:
    if isinstance(value, str) and value in _NO_SPLIT:
        raise _Wrong(f"{value} is not offered: {_NO_SPLIT[value]}")
    return _one_of(("none", "layer"))(value)


def _tensor_split(value: Any) -> tuple[float, ...]:
    shares = []
    for item in _items(value):
        try:
            share = _number(float(item) if isinstance(item, str) else item)
        except ValueError:
            raise _Wrong from None
        if share == 0:
            raise _Wrong("to leave a device out, name the others in device")
        if not 0 < share <= _MAX_SHARE:
            raise _Wrong
        shares.append(share)
    return tuple(shares)


def _n_gpu_layers(value: Any) -> int | None:
    if value == "auto":
        return None
    return -1 if value in ("all", -1) and value is not True else _whole(value, 0, _MAX_LAYERS)


def _ctx_size(value: Any) -> int | None:
    if value == "auto":
        return CTX_AUTO
    return _whole(value, 0, _MAX_CTX) or None


def _mmproj(value: Any) -> str:
    if value is None or value == "" or value == "none":
        return ""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _MAX_TEXT:
        raise _Wrong
    path = os.path.expanduser(value)
    if not os.path.isabs(path):
        raise _Wrong
    return path


def _keep_alive(value: Any) -> float:
    try:
        seconds = parse_duration(_text(value)) if isinstance(value, str) else _number(value)
    except ValueError:
        raise _Wrong from None
    return -1.0 if seconds < 0 else seconds


def _evict_weight(value: Any) -> float:
    weight = _number(value)
    if not 0 < weight <= _MAX_WEIGHT:
        raise _Wrong
    return weight


def _llamacpp_args(value: Any) -> tuple[str, ...]:
    """Only their form. Which of them are safe, the engines know."""
    if isinstance(value, str):
        try:
            value = shlex.split(_text(value))
        except ValueError:
            raise _Wrong("a quotation mark is not closed") from None
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_ARGS:
        raise _Wrong
    if not all(isinstance(item, str) and len(item) <= _MAX_TEXT and item.isprintable() for item in value):
        raise _Wrong
    return tuple(value)


def _words(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


_CACHE_TYPES: Final = tuple(CACHE_TYPES)
_NUMBERS: Final = frozenset({"main_gpu", "n_gpu_layers", "n_cpu_moe", "ctx_size", "parallel", "evict_weight"})

#: By option: the form of its value in words, and what reads it.
_OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "type": (_words(TYPES), _one_of(TYPES)),
    "device": (
        'the names of GPUs such as "CUDA0,CUDA1" (or as a list), or cpu for no GPU',
        _device,
    ),
    "split_mode": ("none or layer", _split_mode),
    "main_gpu": (
        "a whole number from 0, the place in device of the GPU that split_mode none uses",
        lambda value: _whole(value, 0, _MAX_DEVICES - 1),
    ),
    "tensor_split": (
        'a share above 0 for each device, such as "3,1" (or as a list)',
        _tensor_split,
    ),
    "n_gpu_layers": (f"a whole number from 0 to {_MAX_LAYERS}, all or auto", _n_gpu_layers),
    "n_cpu_moe": (
        f"a whole number from 0 to {_MAX_LAYERS}",
        lambda value: _whole(value, 0, _MAX_LAYERS),
    ),
    "ctx_size": (f"a whole number from 1 to {_MAX_CTX}, 0 for the model's own, or auto", _ctx_size),
    "parallel": (
        f"a whole number from 1 to {_MAX_PARALLEL}",
        lambda value: _whole(value, 1, _MAX_PARALLEL),
    ),
    "cache_type_k": (_words(_CACHE_TYPES), _one_of(_CACHE_TYPES)),
    "cache_type_v": (_words(_CACHE_TYPES), _one_of(_CACHE_TYPES)),
    "mmproj": ("the full path of a projector, or none", _mmproj),
    "keep_alive": ("seconds, or a duration such as 24h; 0 for unload when idle, -1 for never", _keep_alive),
    "evict_weight": (f"a number above 0, at most {_MAX_WEIGHT:.0f}", _evict_weight),
    "llamacpp_args": ("arguments of llama-server as a text or a list of texts", _llamacpp_args),
}
