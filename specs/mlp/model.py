"""A multilayer perceptron. Nothing in this file knows about graphspec."""

from torch import nn


def build(layers: int, width: int) -> nn.Module:
    """A stack of ``layers`` square linear layers, each followed by a ReLU: [batch, width] to [batch, width]."""
    return nn.Sequential(*(module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())))
