"""What only real values prove: the results of a graph on other inputs, and tensors that changed without a word."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch

from graphspec.errors import Diagnostic
from graphspec.runtime.context import CapturedRegion
from graphspec.spec import CheckOptions


def other_results(
    captured: CapturedRegion, wanted: Mapping[str, list[torch.Tensor]], allowed: CheckOptions
) -> Iterator[Diagnostic]:
    """GS723: on the inputs of the dry run a graph gives other results than eager did there."""
    for name, tensors in wanted.items():
        for have, want in zip(captured.tensors(name), tensors, strict=True):
            if have.is_floating_point() and have.itemsize == 1:  # float8 has no kernels to compare
                have, want = have.float(), want.float()  # noqa: PLW2901
            if torch.allclose(have, want, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True):
                continue
            message = (
                f"region '{captured.plan.region}': on other inputs than it was captured with, the graph gives "
                f"other values for '{name}' than eager"
            )
            hint = "something it uses is not an operator on tensors: host state, another library, another thread"
            yield Diagnostic("GS723", message, hint=hint)


def unexplained(names: Collection[str]) -> Iterator[Diagnostic]:
    """GS728: tensors that changed although no operator that ran says it writes them."""
    for name in names:
        yield Diagnostic(
            "GS728",
            f"{name} changed in a way no operator says: by a kernel with a wrong schema, numpy, or another thread",
            hint="write through torch operators, or run it in an eager region",
        )
