"""A small transformer that classifies sequences, with its optimizer."""

import torch
from torch import nn


class Classifier(nn.Module):
    """Tokens [batch, length] to logits [batch, classes], and the two halves of a training step."""

    def __init__(self, vocabulary: int, width: int, layers: int, classes: int, device: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)
        self.to(device)
        # What changes lies in a tensor, since a graph would freeze a number: the learning rate, and the step count,
        # which `fused` keeps in one on the CPU, and `capturable` elsewhere.
        rate, on_cpu = torch.tensor(1e-3, device=device), torch.device(device).type == "cpu"
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=rate, fused=on_cpu, capturable=not on_cpu)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits [batch, classes]."""
        return self.head(self.encoder(self.embedding(tokens)).mean(dim=1))

    def learn(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a micro-batch, whose gradients are added to those that are there."""
        loss = nn.functional.cross_entropy(self(tokens), labels)
        loss.backward()
        return loss

    def update(self) -> torch.Tensor:
        """Clip, step and forget the gradients; their norm before."""
        norm = nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


def build(vocabulary: int, width: int, layers: int, classes: int, device: str) -> nn.Module:
    """A classifier with random weights, on the device."""
    return Classifier(vocabulary, width, layers, classes, device)
