"""`Spec` to `Plan`: small passes, each a pure function between two named values.

::

    Spec ─ buckets ─ dims ─ wires ─┬─ schedule ─ spans ─┬─ Plan ─ order ─ Plan, or SpecError
                                   └─ sequences, buffers ┘

Nothing here knows a device or imports torch. A spec that reaches this package has passed the rules: its names
resolve and its shapes use declared dims. What only the order of capture can show is found here, and reported
the way the rules report.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphspec.errors import Diagnostic, SpecError
from graphspec.spec import Constant, Spec

if TYPE_CHECKING:
    from graphspec.plan import Plan

# The passes are imported where they are used: some rules need one of them, and `validate` starts fast.

__all__ = ["compile_spec", "lower"]


def compile_spec(spec: Spec) -> Plan:
    """Lower a checked spec to its plan.

    Raises:
        SpecError: a declared sequence reads a value before it is made, or after its memory was reused (GS3xx);
            all findings at once.
    """
    plan, findings = lower(spec)
    if findings:
        document = spec.document
        raise SpecError(findings, {} if document is None else {str(document.path): document.text})
    return plan


def lower(spec: Spec) -> tuple[Plan, list[Diagnostic]]:
    """The plan of a checked spec, and what `compile_spec` would raise for it."""
    from graphspec.compiler import order
    from graphspec.plan_json import digest

    plan = _lower(spec)
    return replace(plan, digest=digest(plan)), order.check(spec, plan)


def _lower(spec: Spec) -> Plan:
    from graphspec.compiler.buckets import bucket_list
    from graphspec.compiler.buffers import plan_buffers
    from graphspec.compiler.dims import region_dims
    from graphspec.compiler.schedule import capture_schedule, graphs_in, passes, pool_orders
    from graphspec.compiler.sequences import plan_sequences
    from graphspec.compiler.spans import plan_spans
    from graphspec.compiler.variants import plan_variants, unlisted
    from graphspec.compiler.wires import plan_regions
    from graphspec.plan import Plan

    buckets = bucket_list(spec)
    dims = region_dims(spec)
    sequences = plan_sequences(spec, dims, buckets)
    regions = plan_regions(spec, dims, sequences)
    schedule = capture_schedule(spec, regions, buckets)
    variants, more = plan_variants(spec), unlisted(spec)
    return Plan(
        name=spec.name,
        device=spec.device,
        constants={name: dim.value for name, dim in spec.dims.items() if isinstance(dim, Constant)},
        buckets=buckets,
        buffers=plan_buffers(spec, buckets),
        regions=regions,
        pools=pool_orders(spec, regions),
        graphs=graphs_in(schedule),
        spans=plan_spans(spec, regions, schedule),
        sequences=sequences,
        variants=variants,
        unlisted=more,
        when=spec.capture.when if len(variants) > 1 or more else "open",
        schedule=passes(buckets, schedule),
        dims=spec.dims,
        params=spec.params,
        model=spec.model,
        folder=spec.folder,
        seed=spec.seed,
        sample=spec.sample,
        combinations=spec.variants,
        capture=spec.capture,
        check=spec.check,
        npu=spec.npu,
        document=spec.document,
    )
