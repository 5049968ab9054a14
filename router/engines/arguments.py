"""Arguments of llama-server that a user may add for a model, in `llamacpp_args`.

Only listed ones are passed on. What moves memory is refused, because the plan would be wrong then, and names
the option that does the same within the plan. What reads or writes a path, opens a port, fetches anything or
sets what the router relies on is refused too.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from router.errors import BadRequest

PARAM: Final = "llamacpp_args"
#: Characters in one value, and arguments at all.
_LONGEST: Final = 65_536
_MOST: Final = 100

Kind = Literal["flag", "int", "float", "text", "choice", "json", "switch"]


class Argument(Struct, frozen=True):
    """An argument that may be used.

    Attributes:
        name: its long name, as it is passed on.
        kind: `flag` takes no value, `switch` takes on or off, `choice` one of `choices`.
        also: other names.
        attribute: where the embedded engine takes it: a path in its parameters; "" if it does not.
        value: what a flag sets there; for a choice, `enum` names the type and the prefix of its members.
    """

    name: str
    kind: Kind
    also: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    attribute: str = ""
    value: bool = True
    enum: tuple[str, str] = ("", "")


def _number(kind: Kind, name: str, attribute: str = "", *also: str) -> Argument:
    return Argument(name, kind, also, attribute=attribute)


def _flags(attribute: str, on: Sequence[str], off: Sequence[str]) -> Iterator[Argument]:
    if on:
        yield Argument(on[0], "flag", tuple(on[1:]), attribute=attribute, value=True)
    if off:
        yield Argument(off[0], "flag", tuple(off[1:]), attribute=attribute, value=False)


_SAFE: Final = (
    # Processor
    _number("int", "--threads", "cpuparams.n_threads", "-t"),
    _number("int", "--threads-batch", "cpuparams_batch.n_threads", "-tb"),
    _number("int", "--threads-http", "n_threads_http"),
    _number("int", "--poll", "cpuparams.poll"),
    Argument("--prio", "int"),
    Argument("--prio-batch", "int"),
    Argument("--cpu-mask", "text", ("-C",)),
    Argument("--cpu-range", "text", ("-Cr",)),
    Argument("--cpu-strict", "int"),
    Argument(
        "--numa",
        "choice",
        choices=("distribute", "isolate", "numactl"),
        attribute="numa",
        enum=("ggml_numa_strategy", "GGML_NUMA_STRATEGY_"),
    ),
    # Sampling, where a request does not say otherwise
    _number("float", "--temp", "sampling.temp", "--temperature"),
    _number("int", "--top-k", "sampling.top_k"),
    _number("float", "--top-p", "sampling.top_p"),
    _number("float", "--min-p", "sampling.min_p"),
    Argument("--top-n-sigma", "float", ("--top-nsigma",)),
    _number("float", "--typical", "sampling.typ_p", "--typical-p"),
    _number("float", "--xtc-probability", "sampling.xtc_probability"),
    _number("float", "--xtc-threshold", "sampling.xtc_threshold"),
    _number("int", "--repeat-last-n", "sampling.penalty_last_n"),
    _number("float", "--repeat-penalty", "sampling.penalty_repeat"),
    _number("float", "--presence-penalty", "sampling.penalty_present"),
    _number("float", "--frequency-penalty", "sampling.penalty_freq"),
    _number("float", "--dry-multiplier", "sampling.dry_multiplier"),
    _number("float", "--dry-base", "sampling.dry_base"),
    _number("int", "--dry-allowed-length", "sampling.dry_allowed_length"),
    _number("int", "--dry-penalty-last-n", "sampling.dry_penalty_last_n"),
    Argument("--dry-sequence-breaker", "text"),
    _number("float", "--dynatemp-range", "sampling.dynatemp_range"),
    _number("float", "--dynatemp-exp", "sampling.dynatemp_exponent"),
    _number("int", "--mirostat", "sampling.mirostat"),
    _number("float", "--mirostat-lr", "sampling.mirostat_eta"),
    _number("float", "--mirostat-ent", "sampling.mirostat_tau"),
    _number("float", "--adaptive-target", "sampling.adaptive_target"),
    _number("float", "--adaptive-decay", "sampling.adaptive_decay"),
    _number("int", "--seed", "sampling.seed", "-s"),
    Argument("--samplers", "text", attribute="sampling.samplers"),
    Argument("--sampler-seq", "text", ("--sampling-seq",)),
    Argument("--ignore-eos", "flag", attribute="sampling.ignore_eos"),
    Argument("--logit-bias", "text", ("-l",)),
    Argument("--grammar", "text"),
    Argument("--json-schema", "json", ("-j",)),
    _number("int", "--predict", "n_predict", "-n", "--n-predict"),
    _number("int", "--keep", "n_keep"),
    Argument("--reverse-prompt", "text", ("-r",)),
    Argument("--special", "flag", ("-sp",), attribute="special"),
    Argument("--spm-infill", "flag"),
    *_flags("escape", ("--escape", "-e"), ("--no-escape",)),
    # Positions
    Argument(
        "--rope-scaling",
        "choice",
        choices=("none", "linear", "yarn"),
        attribute="rope_scaling_type",
        enum=("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_"),
    ),
    Argument("--rope-scale", "float"),
    _number("float", "--rope-freq-base", "rope_freq_base"),
    _number("float", "--rope-freq-scale", "rope_freq_scale"),
    _number("int", "--yarn-orig-ctx", "yarn_orig_ctx"),
    _number("float", "--yarn-ext-factor", "yarn_ext_factor"),
    _number("float", "--yarn-attn-factor", "yarn_attn_factor"),
    _number("float", "--yarn-beta-slow", "yarn_beta_slow"),
    _number("float", "--yarn-beta-fast", "yarn_beta_fast"),
    # Chat
    *_flags("use_jinja", ("--jinja",), ("--no-jinja",)),
    Argument("--chat-template", "text", attribute="chat_template"),
    Argument("--chat-template-kwargs", "json", attribute="default_template_kwargs"),
    Argument(
        "--reasoning-format",
        "choice",
        choices=("none", "auto", "deepseek", "deepseek-legacy"),
        attribute="reasoning_format",
        enum=("common_reasoning_format", "COMMON_REASONING_FORMAT_"),
    ),
    Argument("--reasoning", "choice", ("-rea",), choices=("on", "off", "auto")),
    Argument("--reasoning-effort", "text"),
    _number("int", "--reasoning-budget", "sampling.reasoning_budget_tokens"),
    Argument("--reasoning-budget-message", "text", attribute="sampling.reasoning_budget_message"),
    *_flags("", ("--reasoning-preserve",), ("--no-reasoning-preserve",)),
    *_flags("prefill_assistant", ("--prefill-assistant",), ("--no-prefill-assistant",)),
    *_flags("force_pure_content_parser", ("--skip-chat-parsing",), ("--no-skip-chat-parsing",)),
    _number("int", "--image-min-tokens", "image_min_tokens"),
    _number("int", "--image-max-tokens", "image_max_tokens"),
    # Embedding
    Argument(
        "--pooling",
        "choice",
        choices=("none", "mean", "cls", "last", "rank"),
        attribute="pooling_type",
        enum=("llama_pooling_type", "LLAMA_POOLING_TYPE_"),
    ),
    _number("int", "--embd-normalize", "embd_normalize"),
    # Serving
    *_flags("cont_batching", ("--cont-batching", "-cb"), ("--no-cont-batching", "-nocb")),
    *_flags("ctx_shift", ("--context-shift",), ("--no-context-shift",)),
    *_flags("cache_prompt", ("--cache-prompt",), ("--no-cache-prompt",)),
    _number("int", "--cache-reuse", "n_cache_reuse"),
    _number("float", "--slot-prompt-similarity", "slot_prompt_similarity", "-sps"),
    _number("int", "--sse-ping-interval", "sse_ping_interval"),
    _number("int", "--timeout", "timeout_read", "-to"),
    *_flags("warmup", ("--warmup",), ("--no-warmup",)),
    Argument("--check-tensors", "flag", attribute="check_tensors"),
    *_flags("no_perf", (), ("--perf",)),
    *_flags("no_perf", ("--no-perf",), ()),
)

#: What moves memory, and the option that does it within the plan.
_OPTIONS: Final = {
    "ctx_size": ("--ctx-size", "-c"),
    "parallel": ("--parallel", "-np"),
    "device": ("--device", "-dev"),
    "n_gpu_layers": ("--n-gpu-layers", "--gpu-layers", "-ngl"),
    "split_mode": ("--split-mode", "-sm"),
    "tensor_split": ("--tensor-split", "-ts"),
    "main_gpu": ("--main-gpu", "-mg"),
    "n_cpu_moe": ("--n-cpu-moe", "-ncmoe", "--cpu-moe", "-cmoe", "--override-tensor", "-ot"),
    "cache_type_k": ("--cache-type-k", "-ctk"),
    "cache_type_v": ("--cache-type-v", "-ctv"),
    "mmproj": ("--mmproj", "-mm", "--mmproj-url", "-mmu", "--no-mmproj", "--mmproj-auto", "--no-mmproj-auto"),
    "type": ("--embedding", "--embeddings", "--reranking", "--rerank"),
}
#: What moves memory, and has no option of ours.
# fmt: off
_MEMORY: Final = frozenset(
    {
        "--batch-size", "-b", "--ubatch-size", "-ub", "--swa-full", "--flash-attn", "-fa", "--kv-offload",
        "--no-kv-offload", "-kvo", "-nkvo", "--kv-unified", "--no-kv-unified", "-kvu", "-no-kvu", "--fit",
        "-fit", "--fit-target", "-fitt", "--fit-ctx", "-fitc", "--mlock", "--mmap", "--no-mmap",
        "--load-mode", "-lm", "--direct-io", "-dio", "--no-direct-io", "-ndio", "--repack", "--no-repack",
        "-nr", "--no-host", "--op-offload", "--no-op-offload", "--mmproj-offload", "--no-mmproj-offload",
        "--mmproj-device", "--cache-ram", "-cram", "--cache-idle-slots", "--no-cache-idle-slots",
        "--ctx-checkpoints", "-ctxcp", "--swa-checkpoints", "--checkpoint-min-step", "-cms",
        "--defrag-thold", "-dt", "--backend-sampling", "-bs", "--rpc", "--sleep-idle-seconds",
        "--n-cpu-ffn", "--override-kv", "--mtmd-batch-max-tokens",
    }
)
# fmt: on
#: What reads, writes, fetches or runs something outside the model.
_OUTSIDE: Final = re.compile(
    r"-{1,2}(?:\S*-(?:file|path|dir|url|config|preset)|\S*hf\S*|lora\S*|control-vector\S*|tools\S*|mcp\S*"
    r"|agent|ag|jf|lcs|lcd|lookup-cache\S*|docker-repo|dr|mu|model-url|path|models\S*|log-prompts-dir|\S+-default"
    r"|offline|spec\S*|draft\S*|md|model-draft|\S+-draft)"
)
_BY_NAME: Final[Mapping[str, Argument]] = {name: arg for arg in _SAFE for name in (arg.name, *arg.also)}
_OF_OPTION: Final[Mapping[str, str]] = {name: option for option, names in _OPTIONS.items() for name in names}


class Setting(Struct, frozen=True):
    """One thing for the embedded engine to set: `enum` is the type whose member `value` names."""

    attribute: str
    value: Any
    enum: str = ""


def check_arguments(given: str | Iterable[str]) -> tuple[str, ...]:
    """Arguments as they are passed on: long names, each value an argument of its own.

    One text is taken apart at spaces, with quotes as in a shell; no shell sees it.

    Raises:
        BadRequest: naming the argument, and the option that does what it would.
    """
    return tuple(part for argument, value in _pairs(given) for part in (argument.name, value) if part)


def embedded_settings(given: Iterable[str]) -> tuple[Setting, ...]:
    """The same for the embedded engine.

    Raises:
        BadRequest: one that it does not take; a llama-server does.
    """
    settings: list[Setting] = []
    for argument, value in _pairs(given):
        if not argument.attribute:
            raise BadRequest(
                f"The embedded engine does not take {argument.name}.",
                param=PARAM,
                hint="A llama-server does: set engine to the path of one.",
            )
        settings.append(_setting(argument, value))
    return tuple(settings)


def _setting(argument: Argument, value: str) -> Setting:
    kind, prefix = argument.enum
    match argument.kind:
        case "flag":
            return Setting(argument.attribute, argument.value)
        case "int":
            number = int(value)
            # A seed of -1 is a random one; the engine's own number for that has no sign.
            return Setting(argument.attribute, number % (1 << 32) if argument.name == "--seed" else number)
        case "float":
            return Setting(argument.attribute, float(value))
        case "choice":
            return Setting(argument.attribute, prefix + value.upper().replace("-", "_"), kind)
        case "json":
            # Values are texts of JSON there.
            return Setting(
                argument.attribute, {key: json.dumps(item) for key, item in json.loads(value).items()}
            )
        case _:
            return Setting(argument.attribute, value)


def _pairs(given: str | Iterable[str]) -> Iterator[tuple[Argument, str]]:
    parts = _split(given)
    while parts:
        name, equals, inline = parts.pop(0).partition("=")
        argument = _find(name)
        if argument.kind == "flag":
            if equals:
                raise _bad(f"{name} takes no value.")
            yield argument, ""
            continue
        if equals:
            value = inline
        elif parts:
            value = parts.pop(0)
        else:
            raise _bad(f"{name} needs a value.")
        yield argument, _checked(argument, value)


def _split(given: str | Iterable[str]) -> list[str]:
    if isinstance(given, str):
        try:
            parts = shlex.split(given)
        except ValueError as error:
            raise _bad(f"{PARAM} cannot be taken apart: {error}.") from error
    else:
        parts = list(given)
        # In a list, one item may hold name and value: "--temp 0.5".
        if any(not isinstance(part, str) for part in parts):
            raise _bad(f"{PARAM} is a text, or a list of texts.")
        parts = [piece for part in parts for piece in _unpacked(part)]
    if len(parts) > _MOST:
        raise _bad(f"{PARAM} has {len(parts)} parts; {_MOST} are the most.")
    for part in parts:
        if len(part) > _LONGEST or "\0" in part:
            raise _bad(f"{part[:40]!r}: a part of {PARAM} is too long, or holds a zero byte.")
    return parts


def _unpacked(part: str) -> list[str]:
    name, space, value = part.partition(" ")
    return [name, value] if space and name in _BY_NAME and _BY_NAME[name].kind != "flag" else [part]


def _find(name: str) -> Argument:
    if argument := _BY_NAME.get(name):
        return argument
    shown = name[:80]
    if option := _OF_OPTION.get(name):
        raise _bad(f"{shown} is set by the model's option {option}.", f"Use {option} in place of {shown}.")
    if name in _MEMORY:
        raise _bad(f"{shown} changes how much memory is needed, and where: the plan would be wrong with it.")
    if not name.startswith("-"):
        raise _bad(f"{shown!r} is no argument: arguments begin with a dash.")
    if _OUTSIDE.fullmatch(name):
        raise _bad(f"{shown} reads, writes or fetches something besides the model; that is not allowed here.")
    raise _bad(f"{shown} is not among the arguments that a model may have.")


def _checked(argument: Argument, value: str) -> str:
    try:
        match argument.kind:
            case "int":
                return str(int(value))
            case "float":
                number = float(value)
                if number != number or abs(number) == float("inf"):
                    raise ValueError(value)
            case "json":
                if not isinstance(json.loads(value), dict):
                    raise ValueError(value)
            case "text":
                # Never a value that another version might take for an argument.
                if value.startswith("-"):
                    raise _bad(f"{argument.name}: a value that begins with a dash is not allowed here.")
            case "choice":
                if value not in argument.choices:
                    raise _bad(
                        f"{argument.name} is one of {', '.join(argument.choices)}, not {value[:80]!r}."
                    )
    except (ValueError, RecursionError) as error:
        wanted = {"int": "a whole number", "float": "a number", "json": "an object in JSON"}[argument.kind]
        raise _bad(f"{argument.name} takes {wanted}, not {value[:80]!r}.") from error
    return value


def _bad(message: str, hint: str | None = None) -> BadRequest:
    return BadRequest(message, param=PARAM, hint=hint)
