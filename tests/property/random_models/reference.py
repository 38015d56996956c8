"""The eager meaning of a draw: its regions called in order on plain tensors, and nothing of graphspec.

Rules of the language that are no PyTorch: a result is what the producer returned, copied right after it; an output that
bears the name of a state is copied into it; a state of a bucketed shape has its largest size, and a run sees its rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from random_models.language import Draw, RunDraw, concrete


class NeverMadeError(Exception):
    """A region reads what no run has made before."""


class Reference:
    """Runs a draw on its own copy of the model. ``values`` are what regions made last, by name."""

    def __init__(self, draw: Draw, model: torch.nn.Module) -> None:
        self._draw = draw
        self.model = copy.deepcopy(model)
        self.values: dict[str, Any] = {}
        self._params = {name: param["default"] for name, param in draw.params.items() if not param.get("shape")}
        self._held: dict[str, torch.Tensor] = {}
        largest = {dim: max(sizes_of(written)) for dim, written in draw.dims.items()}
        self.states = {
            name: torch.full(concrete(buffer["shape"], largest), buffer["init"], dtype=getattr(torch, buffer["dtype"]))
            for name, buffer in draw.buffers.items()
            if buffer.get("role") == "state" and "attr" not in buffer
        }
        self._initial = {name: value.clone() for name, value in self.owned().items()}

    def owned(self) -> dict[str, torch.Tensor]:
        """The tensors of declared states, the model's too."""
        attributes = {
            name: getattr(self.model, buffer["attr"].partition(".")[2])
            for name, buffer in self._draw.buffers.items()
            if "attr" in buffer
        }
        return {**self.states, **attributes}

    def reset(self) -> None:
        """States as they were first."""
        with torch.no_grad():
            for name, tensor in self.owned().items():
                tensor.copy_(self._initial[name])

    def run(self, run: RunDraw, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> dict[str, Any]:
        """The results of every region of the sequence, by name, at ``sizes``: the real ones, or those of the bucket.

        Rows of states beyond the real ones stay as they were.
        """
        before = {name: tensor.clone() for name, tensor in self.states.items()}
        results = self._run(run, inputs, sizes)
        for name, tensor in self.states.items():
            real = tensor[_rows(self._draw, name, run.sizes)].clone()
            tensor.copy_(before[name])
            tensor[_rows(self._draw, name, run.sizes)].copy_(real)
        return {name: cloned(value) for name, value in results.items()}

    def _run(self, run: RunDraw, inputs: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> dict[str, Any]:
        draw = self._draw
        self._params.update(run.params)
        self._held.update((name, value) for name, value in inputs.items() if draw.buffers[name].get("hold"))
        env = {**self.values, **self._params, **self._held, **inputs, **self._derived(run)}
        env.update((name, tensor[_rows(draw, name, sizes)]) for name, tensor in self.states.items())
        results: dict[str, Any] = {}
        torch.default_generator.manual_seed(run.seed)
        with torch.no_grad():
            for step in draw.sequences[run.sequence]:
                region = draw.region(step)
                arguments = {each.name: self._argument(each.value, env) for each in region.arguments}
                returned = getattr(self.model, region.name)(**arguments)
                named = dict(_named(region.outputs, returned))
                written = [env[name] for name in named if name in self.states]
                apart = {name: cloned(value) if _lies_in(value, written) else value for name, value in named.items()}
                for name, value in apart.items():  # all at once, as `a, b = f()` assigns
                    self._take(name, value, env, results)
        return results

    def _take(self, name: str, value: Any, env: dict[str, Any], results: dict[str, Any]) -> None:
        if name in self.states:
            env[name].copy_(value)
            results[name] = env[name].clone()
            return
        if self._draw.buffers.get(name, {}).get("static"):
            value = value.clone()
        env[name] = self.values[name] = value
        lent = not self._draw.buffers.get(name, {}).get("copy", True)
        results[name] = value if lent else cloned(value)

    def _derived(self, run: RunDraw) -> dict[str, torch.Tensor]:
        found = {}
        for name, buffer in self._draw.buffers.items():
            source = buffer.get("from")
            if isinstance(source, str):
                dtype = torch.float32 if source == "p1" else torch.int64
                found[name] = torch.tensor(self._params.get(source, run.params.get(source)), dtype=dtype)
            elif source and "size" in source:
                found[name] = torch.tensor(run.sizes[source["size"]])
            elif source:
                found[name] = torch.tensor(bucket(self._draw, run.sizes)[source["bucket"]])
        return found

    def _argument(self, value: Any, env: Mapping[str, Any]) -> Any:
        if isinstance(value, str):
            if value not in env and not self._draw.buffers.get(value, {}).get("optional"):
                raise NeverMadeError(value)
            return env.get(value)
        ((key, inside),) = value.items()
        if key == "const":
            return inside
        if key == "attr":
            return getattr(self.model, inside.partition(".")[2])
        names = inside if isinstance(inside, list) else list(inside)
        values = [self._argument(name, env) for name in names]
        return values if key == "list" else dict(zip(names, values, strict=True))


def sizes_of(written: Any) -> list[int]:
    """The bucket sizes of a dim as the spec writes it."""
    return list(written["sizes"] if isinstance(written, dict) else written)


def bucket(draw: Draw, sizes: Mapping[str, int]) -> dict[str, int]:
    """The bucket a run of these sizes takes."""
    return {dim: min(size for size in sizes_of(draw.dims[dim]) if size >= real) for dim, real in sizes.items()}


def cloned(value: Any) -> Any:
    """A value with memory of its own."""
    return value.clone() if isinstance(value, torch.Tensor) else tuple(item.clone() for item in value)


def _lies_in(value: Any, others: list[torch.Tensor]) -> bool:
    parts = [value] if isinstance(value, torch.Tensor) else value
    storages = {other.untyped_storage()._cdata for other in others}
    return any(part.untyped_storage()._cdata in storages for part in parts)


def _rows(draw: Draw, name: str, sizes: Mapping[str, int]) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in concrete(draw.buffers[name]["shape"], sizes))


def _named(outputs: Any, returned: Any) -> list[tuple[str, Any]]:
    if isinstance(outputs, str):
        return [(outputs, returned)]
    if isinstance(outputs, list):
        return list(zip(outputs, returned, strict=True))
    return [(name, returned[key]) for name, key in outputs.items()]
