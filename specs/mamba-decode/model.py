"""One-token decoding with a Mamba from a small config, in the cache that transformers makes for it.

Each layer keeps two states of fixed size, a convolution's and the recurrent one, under an integer key: they are made by
a first call in the factory, so that all later calls write them in place.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from transformers import DynamicCache, MambaConfig, MambaForCausalLM


def first_rows(cache: DynamicCache, count: int) -> DynamicCache:
    """The first ``count`` rows of a cache, as a cache: what it writes are the owner's rows."""
    rows = copy.copy(cache)
    rows.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in rows.layers:
        layer.conv_states = {key: state[:count] for key, state in layer.conv_states.items()}
        layer.recurrent_states = {key: state[:count] for key, state in layer.recurrent_states.items()}
    return rows


class Decoder(nn.Module):
    """A language model together with the cache it decodes into; a row that is reset begins a new text."""

    def __init__(self, config: MambaConfig, batch: int) -> None:
        super().__init__()
        self.mamba = MambaForCausalLM(config).eval()
        self.cache = DynamicCache(config=config)
        with torch.no_grad():  # makes the states, which are then those of a text without tokens
            self.mamba(torch.zeros(batch, 1, dtype=torch.int64), cache=self.cache, use_cache=True)
        for layer in self.cache.layers:
            for state in (*layer.conv_states.values(), *layer.recurrent_states.values()):
                state.zero_()

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token for each row [batch, 1] to the logits [batch, vocabulary] and the next tokens [batch, 1]."""
        cache = first_rows(self.cache, tokens.shape[0])
        logits = self.mamba(tokens, cache=cache, use_cache=True).logits[:, -1]
        return logits, logits.argmax(dim=-1, keepdim=True)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], **options: bool) -> nn.Module:
        """Moves the cache along with the weights (``model.to(...)``): it is no module, so torch would leave it."""
        super()._apply(fn, **options)
        for layer in self.cache.layers:
            layer.conv_states = {key: fn(state) for key, state in layer.conv_states.items()}
            layer.recurrent_states = {key: fn(state) for key, state in layer.recurrent_states.items()}
            layer.device = layer.conv_states[0].device
        return self


def build(layers: int, hidden: int, vocabulary: int, batch: int) -> nn.Module:
    """A decoder with random weights, for up to ``batch`` rows."""
    config = MambaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        state_size=8,
        vocab_size=vocabulary,
        time_step_rank=4,
        initializer_range=0.2,
    )
    return Decoder(config, batch)
