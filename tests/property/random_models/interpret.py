"""A draw as the two files a user would write: a Python module with the model, and a spec."""

from __future__ import annotations

import json
import linecache
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from random_models.language import Draw, RegionDraw

HEADER = """\
import random
import time

import numpy as np
import torch
import torch.nn.functional as F


class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
"""


def source(draw: Draw) -> str:
    """The Python module of the model."""
    return module_text(draw.init, draw.regions)


def module_text(init: Sequence[str], regions: Sequence[RegionDraw]) -> str:
    """The Python module of a model with these methods."""
    body = "".join(f"        {line}\n" for line in init)
    methods = "".join(_method(region) for region in regions)
    return f"{HEADER}{body}{methods}\n\ndef build():\n    return M()\n"


def _method(region: RegionDraw) -> str:
    names = "".join(f", {argument.name}" for argument in region.arguments)
    lines = "".join(f"        {line}\n" for line in (*region.lines, f"return {region.returns}"))
    return f"\n    def {region.name}(self{names}):\n{lines}"


def spec_text(draw: Draw) -> str:
    """The spec, written as JSON, which is YAML."""
    data: dict[str, Any] = {"graphspec": 1, "name": f"draw-{draw.seed}", "model": {"factory": "model.py:build"}}
    for key in ("dims", "params", "buffers", "pools"):
        if getattr(draw, key):
            data[key] = getattr(draw, key)
    data["regions"] = {region.name: _region(region) for region in draw.regions}
    sequences = {name: list(steps) for name, steps in draw.sequences.items()}
    data["replay"] = sequences["replay"] if list(sequences) == ["replay"] else sequences
    sections = (f'"{key}": {_block(value)}' for key, value in data.items())
    return "{" + ",\n".join(sections) + "}\n"


def _block(value: Any) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()) + "\n}"


def _region(region: RegionDraw) -> dict[str, Any]:
    inputs: Any = [argument.value for argument in region.arguments]
    if region.keyword:
        inputs = {argument.name: argument.value for argument in region.arguments}
    return {"call": f"model.{region.name}", "inputs": inputs, "outputs": region.outputs, **region.keys}


def write(draw: Draw, folder: Path) -> Path:
    """Write model.py and model.yaml into ``folder``; the path of the spec."""
    (folder / "model.py").write_text(source(draw))
    path = folder / "model.yaml"
    path.write_text(spec_text(draw))
    return path


def make_model(draw: Draw, folder: Path) -> torch.nn.Module:
    """The model, in eval mode, its weights fixed by the seed of the draw. Its lines are those of model.py."""
    return model_from(source(draw), str(folder / "model.py"), draw.seed)


def model_from(text: str, file: str, seed: int) -> torch.nn.Module:
    """The model of a module's text."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "drawn_model"}
    exec(compile(text, file, "exec"), names)  # noqa: S102  a generated module
    torch.default_generator.manual_seed(seed)
    model: torch.nn.Module = names["build"]()
    return model.eval()
