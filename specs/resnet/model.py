"""ResNet-18 for images of 64x64, as the transformers package builds it. No weights are fetched."""

import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification


def build(labels: int) -> nn.Module:
    """A classifier with random weights: [batch, 3, side, side] to an output whose ``logits`` are [batch, labels]."""
    config = ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=labels,
    )
    return ResNetForImageClassification(config).to(memory_format=torch.channels_last)
