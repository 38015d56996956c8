"""What only real values prove: the results of graphs and of calls, and tensors that changed without a word."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch

from graphspec.errors import Diagnostic
from graphspec.recording.comparison import parting
from graphspec.runtime.opened.context import CapturedRegion
from graphspec.runtime.rehearsal.observation import Observation
from graphspec.spec import CheckOptions

#: The tensors of each output, by name.
Results = Mapping[str, list[torch.Tensor]]


def other_results(captured: CapturedRegion, wanted: Results, allowed: CheckOptions) -> Iterator[Diagnostic]:
    """GS723: on the inputs of the dry run a graph gives other results than eager did there."""
    if captured.graph.compile_s is not None:
        yield from _other_rounding(captured, wanted, allowed)
        return
    for name in _differing({name: captured.tensors(name) for name in wanted}, wanted, allowed):
        message = (
            f"region '{captured.plan.region}': on other inputs than it was captured with, the graph gives "
            f"other values for '{name}' than eager"
        )
        hint = "something it uses is not an operator on tensors: host state, another library, another thread"
        yield Diagnostic("GS723", message, hint=hint)


def otherwise_trained(region: str, have: Results, want: Results, allowed: CheckOptions) -> Iterator[Diagnostic]:
    """GS723: after its graph has run, weights or gradients are other ones than after the dry run."""
    there = {name: have.get(name, []) for name in want}
    missing = [name for name, tensors in there.items() if not tensors]
    for name in missing or _differing(there, want, allowed):
        message = (
            f"region '{region}': on other inputs than it was captured with, the graph leaves another {name} than eager"
        )
        hint = "something it uses is not an operator on tensors: host state, another library, another thread"
        yield Diagnostic("GS723", message, hint=hint)
        return


def _other_rounding(captured: CapturedRegion, wanted: Results, allowed: CheckOptions) -> Iterator[Diagnostic]:
    """The same of a compiled region: its kernels round otherwise, by as much as the spec allows."""
    have = {name: captured.tensors(name) for name in wanted}
    for name in _differing(have, wanted, allowed):
        pairs = zip(have[name], wanted[name], strict=True)
        most = max(
            (float((one.double() - other.double()).abs().max()) for one, other in pairs if one.numel()), default=0
        )
        yield Diagnostic(
            "GS723",
            f"region '{captured.plan.region}': compiled, it gives other values for '{name}' than the uncompiled "
            f"callable, by up to {most:.2g} (rtol {allowed.rtol:g}, atol {allowed.atol:g})",
            hint="compiled kernels round otherwise: if that is all, say `check: {rtol: ..., atol: ...}`; "
            "or remove `compile`",
        )


def another_way(
    captured: Observation, eager: Observation, results: tuple[Results, Results], allowed: CheckOptions
) -> Iterator[Diagnostic]:
    """GS730: a model that asks whether it is captured, and then computes something else than it does in eager.

    ``results`` are those of both ways on the same inputs.
    """
    found = parting(captured.recording, eager.recording, shapes=False)
    if found is None or not any(True for _ in _differing(*results, allowed)):
        return
    here, there = found.words
    site = next(call.site for call in found.calls if call is not None)  # that of the capture
    yield Diagnostic(
        "GS730",
        f"region '{captured.region}' computes something else while it is captured: it calls {here}, where eager calls "
        f"{there}, and the results differ",
        file=site.file if site.line else None,
        line=site.line or None,
        hint="code that asks torch.cuda.is_current_stream_capturing() goes another way: let both ways give the same",
    )


def unexplained(names: Collection[str]) -> Iterator[Diagnostic]:
    """GS728: tensors that changed although no operator that ran says it writes them."""
    for name in names:
        yield Diagnostic(
            "GS728",
            f"{name} changed in a way no operator says: by a kernel with a wrong schema, numpy, or another thread",
            hint="write through torch operators, or run it in an eager region",
        )


def _differing(have: Results, want: Results, allowed: CheckOptions) -> Iterator[str]:
    """The outputs that differ by more than is allowed."""
    for name, tensors in want.items():
        if not all(_close(one, other, allowed) for one, other in zip(have[name], tensors, strict=True)):
            yield name


def _close(have: torch.Tensor, want: torch.Tensor, allowed: CheckOptions) -> bool:
    if have.shape != want.shape or have.dtype != want.dtype:
        return False
    if have.is_floating_point() and have.itemsize == 1:  # float8 has no kernels to compare
        have, want = have.float(), want.float()
    return torch.allclose(have, want, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
