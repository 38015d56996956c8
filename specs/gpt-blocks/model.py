"""A small GPT-2 of transformers, and the plain loop that trains it: neither knows of graphs."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Trainer:
    """A language model, its optimizer, and one step of its training."""

    def __init__(self, layers: int, width: int, device: str) -> None:
        config = GPT2Config(
            vocab_size=96, n_positions=32, n_embd=width, n_layer=layers, n_head=4, use_cache=False,
            attn_implementation="eager",
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    @torch.enable_grad()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss, after one update of the weights."""
        self.optimizer.zero_grad()
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def build(layers: int, width: int, device: str) -> Trainer:
    """A trainer with fresh weights."""
    return Trainer(layers, width, device)
