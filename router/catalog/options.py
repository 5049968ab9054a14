"""How a model is loaded: the options that a user may give for one model, each of which may be left open."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

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

    def agrees_with(self, other: LoadOptions) -> bool:
        """Whether a process with `other` does what this asks for; what is not asked for agrees with all."""
        if self is NO_OPTIONS:
            return True
        for name in _OF_THE_PROCESS:
            asked = getattr(self, name)
            if asked is not None and asked != getattr(other, name):
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
