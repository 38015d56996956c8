"""What a model takes, found by trying: the names of its `forward`, with the sizes that its config says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

LENGTH = 8


def candidates(model: PreTrainedModel) -> Iterator[dict[str, torch.Tensor]]:
    """Sets of inputs to try, the likeliest first: each name with an example."""
    names = list(inspect.signature(model.forward).parameters)
    config = model.config
    mels = _number(config, "num_mel_bins", "feature_size", "n_mels")
    audio = [(1, mels, frames) for frames in (64, 128)]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "pixel_values": [*_images(config)],
        "input_features": [*audio, *((1, frames, mels) for frames in (64, 128)), (1, 64, 160)],
        "input_values": [(1, 1600), (1, 1, 1600), (1, 128, 16), (1, 64, 16), (1, 1, 3200)],
        "past_values": [(1, _number(config, "context_length") or 16, _number(config, "num_input_channels") or 7)],
        "hidden_states": [(1, LENGTH, _number(config, "hidden_size") or 32)],
        "pixel_values_videos": [(1, 2, 3, 32, 32), (1, 4, 3, 32, 32)],
        "spectrogram": [(1, 64, _number(config, "model_in_dim", "num_mel_bins") or 80)],
    }
    main = model.main_input_name
    mains = [main, *(name for name in ("input_ids", *shapes) if name != main and name in names)]
    for first in mains:
        if first not in names:
            continue
        for shape in shapes.get(first, [(1, LENGTH)]):
            base = {first: _example(first, shape, config)}
            yield base
            if "decoder_input_ids" in names:
                yield {**base, "decoder_input_ids": _tokens((1, LENGTH), config)}
            if "bbox" in names:
                yield {**base, "bbox": torch.randint(0, 8, (1, LENGTH, 4)).sort(-1).values}
            if first != "input_ids" and "input_ids" in names:
                yield {"input_ids": _tokens((1, LENGTH), config), **base}
            if first != "pixel_values" and "pixel_values" in names:
                for image in shapes["pixel_values"]:
                    yield {**base, "pixel_values": torch.randn(image)}


def another(example: dict[str, torch.Tensor], config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Fresh inputs of the same shapes."""
    return {name: _example(name, tuple(value.shape), config) for name, value in example.items()}


def _example(name: str, shape: tuple[int, ...], config: PreTrainedConfig) -> torch.Tensor:
    if name == "bbox":
        return torch.randint(0, 8, shape).sort(-1).values
    return _tokens(shape, config) if name.endswith("ids") else torch.randn(shape)


def _tokens(shape: tuple[int, ...], config: PreTrainedConfig) -> torch.Tensor:
    high = _number(config, "vocab_size", "text_vocab_size") or 64
    return torch.randint(3, max(4, min(high, 100)), shape)


def _images(config: PreTrainedConfig) -> Iterator[tuple[int, ...]]:
    channels = _number(config, "num_channels") or 3
    size = _number(config, "image_size", "img_size", "input_size") or 32
    for side in dict.fromkeys((size, 32, 64)):
        yield 1, channels, side, side
    yield 1, 2, channels, size, size


def _number(config: Any, *names: str) -> int:
    """The first of these fields that the config or one of its parts has."""
    for part in [config, *(value for value in vars(config).values() if isinstance(value, PreTrainedConfig))]:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            if isinstance(value, int) and value:
                return value
    return 0
