"""What every operator of torch really writes, against what `effect_of` says, on torch's own sample inputs.

    python tests/recording/every_write.py

A process of its own: importing torch's samples changes global flags of torch. Every call that reaches a dispatch mode
is compared, forward and backward; in inference mode composite operators are among them. What has an ``.out`` form is
called by that too. It prints each argument whose memory changed unsaid; 1 if any.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from graphspec.recording.writes import effect_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch_samples import samples_of

SAMPLES = 4
CALLS = 3
LEAST = 1_250
#: Ends the process: it is told to write more results than it is given.
BROKEN = {"aten::_native_batch_norm_legit.no_stats_out"}


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def content(tensor: torch.Tensor) -> torch.Tensor | None:
    """The bytes of a whole storage."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()


def copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


class Witness(TorchDispatchMode):
    """Compares each call. ``calls`` keeps some of each operator, ``found`` what was written unsaid."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, list[tuple[Any, ...]]] = {}
        self.found: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        said = {tensor.untyped_storage()._cdata for tensor in tensors(effect_of(func).targets(args, kwargs))
                if tensor.layout is torch.strided}  # fmt: skip
        given = dict(zip([it.name for it in func._schema.arguments], args, strict=False))
        others = [(name, tensor, content(tensor)) for name, value in {**given, **kwargs}.items()
                  for tensor in tensors(value)]  # fmt: skip
        seen = self.calls.setdefault(func, [])
        kept = (copied(args), copied(kwargs)) if len(seen) < CALLS else None
        result = func(*args, **kwargs)
        if kept is not None:
            seen.append((*kept, copied(result)))
        for name, tensor, before in others:
            if before is None or tensor.untyped_storage()._cdata in said:
                continue
            if not torch.equal(content(tensor)[: before.numel()], before):
                self.found[f"{func.name()} writes '{name}' unsaid"] = None
        return result


def samples() -> Iterator[tuple[Any, Any]]:
    for operator in op_db:
        for dtype in (torch.float32, torch.int64):
            if dtype in operator.supported_dtypes("cpu"):
                grad = dtype.is_floating_point and operator.supports_autograd
                try:
                    given = samples_of(operator, dtype, SAMPLES, requires_grad=grad)
                except (RuntimeError, TypeError, ImportError):
                    continue
                yield from ((operator.op, sample) for sample in given)


def differentiated(function: Any, sample: Any) -> None:
    results = [one for one in tensors(function(sample.input, *sample.args, **sample.kwargs)) if one.requires_grad]
    leaves = [leaf for leaf in tensors((sample.input, sample.args, sample.kwargs)) if leaf.requires_grad]
    if results and leaves:
        torch.autograd.grad([result.sum() for result in results], leaves, allow_unused=True)


def out_forms(calls: Mapping[Any, list[tuple[Any, ...]]]) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
    """Seen calls again, by other overloads that take the results as arguments."""
    for func, seen in calls.items():
        for name in func.overloadpacket.overloads():
            other = getattr(func.overloadpacket, name)
            outs = [it for it in other._schema.arguments if it.is_out]
            rest = [it for it in other._schema.arguments if not it.is_out]
            if other is func or not outs or other.name() in BROKEN:
                continue
            for args, kwargs, result in seen:
                given = {it.name: it.default_value for it in func._schema.arguments} | kwargs
                given |= dict(zip([it.name for it in func._schema.arguments], args, strict=False))
                results = list(result) if isinstance(result, (tuple, list)) else [result]
                results = [results] if len(outs) == 1 and len(results) > 1 else results
                if all(it.name in given for it in rest) and len(results) == len(outs):
                    named = {it.name: given[it.name] for it in rest if it.kwarg_only}
                    named |= {it.name: value for it, value in zip(outs, results, strict=True)}
                    yield other, *copied(([given[it.name] for it in rest if not it.kwarg_only], named))


def main() -> int:
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    witness = Witness()
    refused = (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, IndexError, AssertionError)
    for function, sample in samples():
        for way in ("autograd", "inference"):
            try:
                if way == "autograd":
                    with witness:
                        differentiated(function, sample)
                else:
                    given, args, kwargs = copied((sample.input, sample.args, sample.kwargs))
                    with torch.inference_mode(), witness:
                        function(given, *args, **kwargs)
            except refused:  # not for these arguments
                continue
    for other, args, kwargs in list(out_forms(witness.calls)):
        try:
            with torch.no_grad(), witness:
                other(*args, **kwargs)
        except refused:
            continue
    sys.stdout.write("\n".join([*witness.found, f"{len(witness.calls)} operators"]) + "\n")
    return 1 if witness.found or len(witness.calls) < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
