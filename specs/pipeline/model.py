"""A small classifier that looks at a few tokens of each row only; which ones is decided on the host."""

import torch
from torch import nn


class Pipeline(nn.Module):
    """Four steps that a spec can name one by one; called in order they are the model."""

    def __init__(self, vocabulary: int, width: int, keep: int, classes: int) -> None:
        super().__init__()
        self.keep = keep
        self.embed = nn.Embedding(vocabulary, width)
        self.encode = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.head = nn.Linear(width, classes)

    def pick(self, encoded: torch.Tensor) -> torch.Tensor:
        """The strongest positions of each row [batch, keep], in reading order.

        ``tolist`` reads values on the host and the list is built by Python: neither fits in a graph.
        """
        strongest = encoded.norm(dim=-1).topk(self.keep).indices
        return torch.tensor([sorted(row) for row in strongest.tolist()], device=encoded.device)

    def score(self, encoded: torch.Tensor, picked: torch.Tensor, temperature: float) -> torch.Tensor:
        """Class scores [batch, classes] from the picked positions, divided by ``temperature``."""
        chosen = encoded.gather(1, picked.unsqueeze(-1).expand(-1, -1, encoded.shape[-1]))
        return self.head(chosen.mean(dim=1)) / temperature


def build(vocabulary: int, width: int, keep: int, classes: int) -> nn.Module:
    """A pipeline with random weights."""
    return Pipeline(vocabulary, width, keep, classes)
