"""One model type as a spec: built small, captured, and run on fresh inputs beside eager."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from inputs import another, candidates
from rows import Row
from tiny import SIZES, tiny
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, StaticCache

import graphspec

PARAMETERS = 40_000_000  # more than that is not small
RUNS = 3
TOLERANCE = 1e-4  # of the largest number of a result; bit-equal where the table says nothing


def once(name: str, folder: Path) -> Row:
    """One call with fixed sizes, on three fresh inputs, and on one more with other weights."""
    torch.manual_seed(0)
    first: Exception = ValueError("no size was tried")
    for config in _configs(name):
        try:
            model = _small(config, AutoModel)
            example, outputs = _call(model)
            break
        except Exception as error:  # noqa: BLE001 - the walk's own limits, not graphspec's
            first = error
    else:
        return Row(name, "not evaluated", detail=_line(first))
    return _judged(name, folder, model, example, list(outputs))


def _judged(
    name: str, folder: Path, model: Any, example: dict[str, torch.Tensor], outputs: list[str], **constants: Any
) -> Row:
    """The verdict; where the refusal advises a keyword argument, that of the model called with it."""
    _write(folder, example, {f"y{i}": path for i, path in enumerate(outputs)}, constants)
    try:
        with graphspec.open(folder / "model.yaml", model=model, device="cpu") as runner:
            operators = sum(graph.operators or 0 for graph in runner.graphs)
            worst = 0.0
            for run in range(RUNS + 1):
                inputs = another(example, model.config)
                if run == RUNS:
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter.mul_(0.9)
                with torch.random.fork_rng():
                    got = runner.run(**inputs)
                with torch.no_grad():
                    want = _tensors(model(**inputs, **constants))
                for i, path in enumerate(outputs):
                    worst = max(worst, _apart(got[f"y{i}"], want[path]))
    except graphspec.GraphSpecError as error:
        findings = getattr(error, "diagnostics", ())
        takes = "use_cache" in inspect.signature(model.forward).parameters
        if takes and not constants and any("use_cache: {const: false}" in (each.hint or "") for each in findings):
            return _judged(name, folder, model, example, outputs, use_cache=False)
        code = next((found.code for found in findings if found.code), "")
        return Row(name, "refused", code, _line(error))
    how = ", ".join(f"{key}: {{const: {str(value).lower()}}}" for key, value in constants.items())
    return Row(
        name, "match" if worst <= TOLERANCE else "mismatch", how, f"{worst:.1e}" if worst else "", operators=operators
    )


def decode(name: str, folder: Path) -> Row:
    """A causal language model decoding one token a run into its own StaticCache, for eight steps."""
    torch.manual_seed(0)
    try:
        model = _small(next(_configs(name)), AutoModelForCausalLM)
        steps = [_ids() for _ in range(8)]
        with torch.no_grad():
            eager = Decoder(model, 32)
            want = [eager(step) for step in steps]
    except Exception as error:  # noqa: BLE001
        return Row(name, "not evaluated", detail=_line(error))
    _write(folder, {"tokens": steps[0]}, "y0", {})
    decoder = Decoder(model, 32)
    try:
        with graphspec.open(folder / "model.yaml", model=decoder, device="cpu") as runner:
            operators = sum(graph.operators or 0 for graph in runner.graphs)
            got = [runner.run(tokens=step)["y0"] for step in steps]
    except graphspec.GraphSpecError as error:
        code = next((found.code for found in getattr(error, "diagnostics", ()) if found.code), "")
        return Row(name, "refused", code, _line(error))
    worst = max(_apart(mine, theirs) for mine, theirs in zip(got, want, strict=True))
    return Row(
        name, "match" if worst <= TOLERANCE else "mismatch", detail=f"{worst:.1e}" if worst else "", operators=operators
    )


class Decoder(torch.nn.Module):
    """A language model with the cache that it decodes into, allocated before the first call."""

    def __init__(self, model: PreTrainedModel, length: int) -> None:
        super().__init__()
        self.model = model
        self.cache = StaticCache(model.config, max_cache_len=length)
        with torch.no_grad():  # a cache allocates in its first call
            self(torch.full((1, 1), 3))
        self.cache.reset()  # type: ignore[no-untyped-call]
        self.eval()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One token [1, 1] to its logits [1, vocabulary]."""
        logits: torch.Tensor = self.model(input_ids=tokens, past_key_values=self.cache, use_cache=True).logits
        return logits[:, -1]


def _configs(name: str) -> Iterator[Callable[[], PreTrainedConfig]]:
    for size in range(SIZES):
        yield partial(tiny, CONFIG_MAPPING[name], size)


def _small(config: Callable[[], PreTrainedConfig], auto: Any) -> PreTrainedModel:
    with torch.device("meta"):
        size = sum(each.numel() for each in auto.from_config(config()).parameters())
    if size > PARAMETERS:
        message = f"not small: {size / 1e6:.0f} million parameters"
        raise ValueError(message)
    model: PreTrainedModel = auto.from_config(config())
    model.train(False)
    return model


def _call(model: PreTrainedModel) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The first inputs that the model takes, and the tensors it gives for them."""
    first: Exception = ValueError("no size was tried")
    for example in candidates(model):
        try:
            with torch.no_grad():
                outputs = _tensors(model(**example))
        except Exception as error:  # noqa: BLE001 - try the next ones
            first = first or error
            continue
        if outputs and all(torch.isfinite(each).all() for each in outputs.values() if each.is_floating_point()):
            return example, outputs
        first = first or ValueError("no finite tensors came back")
    raise first or ValueError(f"no inputs are known for {model.main_input_name}")


def _ids() -> torch.Tensor:
    return torch.randint(3, 60, (1, 1))


def _tensors(result: Any) -> dict[str, torch.Tensor]:
    """The tensors of a ModelOutput under their paths; caches and the like are left out."""
    return {
        str(key): value for key, value in (result.items() if hasattr(result, "items") else [("", result)])
        if isinstance(value, torch.Tensor) and not value.is_sparse
    }  # fmt: skip


def _apart(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, where 1 is the size of the largest number."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if not got.numel():
        return 0.0
    got, want = got.double(), want.double()
    return float((got - want).abs().max() / want.abs().max().clamp(min=1))


def _write(folder: Path, example: dict[str, torch.Tensor], outputs: Any, constants: dict[str, Any]) -> None:
    buffers = {
        name: {
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "sample": _sample(value),
        }
        for name, value in example.items()
    }
    inputs = {name: name for name in example} | {name: {"const": value} for name, value in constants.items()}
    region = {"call": "model", "inputs": inputs, "outputs": outputs}
    spec = {"graphspec": 1, "name": "walk", "model": {"factory": "model.py:build"}, "buffers": buffers,
            "regions": {"step": region}, "replay": ["step"]}  # fmt: skip
    (folder / "model.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    (folder / "model.py").write_text("def build():\n    raise RuntimeError('the walk gives its model')\n")


def _sample(value: torch.Tensor) -> dict[str, Any]:
    return {"normal": [0, 1]} if value.is_floating_point() else {"randint": [3, int(value.max()) + 1]}


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
