"""A gated recurrent cell that takes its state as an argument and returns the next one."""

import torch
from torch import nn


class Cell(nn.Module):
    """One step: ``x`` [batch, features] and ``hidden`` [batch, hidden] to the output and the new hidden state."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRUCell(features, hidden)
        self.head = nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The output [batch, features] and the next hidden state [batch, hidden]; nothing is changed in place."""
        hidden = self.gru(x, hidden)
        return self.head(hidden), hidden


def build(features: int, hidden: int) -> nn.Module:
    """A cell with random weights."""
    return Cell(features, hidden)
