"""The answer to "will it fit": a model's plan as a table, for people and for JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from router.catalog.model import Model
from router.residency.admitting import Preview
from router.service.placing import Layout


def plan_table(model: Model, preview: Preview) -> dict[str, Any]:
    """What loading takes by device and part, what there is, who would go, and the verdict. Bytes."""
    layout = preview.placement.details if preview.placement is not None else None
    rows = []
    for row in preview.devices:
        parts: dict[str, int] = {}
        if isinstance(layout, Layout) and row["id"] in layout.demand.per_device:
            parts = msgspec.to_builtins(layout.demand.per_device[row["id"]])
        rows.append({**row, "parts": parts})
    table: dict[str, Any] = {
        "model": model.name,
        "verdict": preview.verdict,
        "reason": preview.reason,
        "victims": list(preview.victims),
        "needed": sum(preview.placement.booking.values()) if preview.placement is not None else None,
        "devices": rows,
    }
    if isinstance(layout, Layout):
        chosen = layout.options
        table |= {
            "source": layout.demand.source,
            "estimate": layout.demand.estimate,
            "layers": {"on_gpus": layout.layers[0], "of": layout.layers[1]},
            "options": {
                "ctx_size": chosen.ctx_size,
                "parallel": chosen.parallel,
                "cache_type_k": chosen.cache_type_k,
                "cache_type_v": chosen.cache_type_v,
                "split_mode": chosen.split_mode,
                "tensor_split": list(chosen.tensor_split),
                "n_gpu_layers": chosen.n_gpu_layers,
                "n_cpu_moe": chosen.n_cpu_moe,
            },
        }
    return table
