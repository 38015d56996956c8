"""GS413: a region that trains and whose rows a bucket may pad."""

from __future__ import annotations

from collections.abc import Iterator

from graphspec.compiler.dims import region_dims
from graphspec.errors import Diagnostic
from graphspec.finding import finding
from graphspec.spec import Buckets, Spec


def padded_training(spec: Spec) -> Iterator[Diagnostic]:
    """GS413: padded rows would take part in the loss, in its gradients, and so in every parameter."""
    dims = region_dims(spec)
    for region in spec.regions.values():
        if not region.trains or region.eager:
            continue
        key = "optimizer" if region.optimizer else "grads"
        for name in dims[region.name]:
            dim = spec.dims.get(name)
            if isinstance(dim, Buckets) and not dim.exact:
                message = (
                    f"region '{region.name}' trains, and a bucket may add rows along '{name}', which would train it"
                )
                hint = f"write `{name}: {{sizes: {list(dim.sizes[:8])}, exact: true}}`: only these sizes run"
                yield finding(spec.document, "GS413", message, ("regions", region.name, key), key=True, hint=hint)
