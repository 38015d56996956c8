"""One-token greedy decoding with a Llama from a small config and the StaticCache of the transformers package.

What makes the step capturable is the usual recipe for static-cache decoding, none of it special to graphspec:
the cache is allocated before the first call, the position is a tensor that each call advances in place, and
nothing reads a tensor's value on the host.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache


def first_rows(cache: StaticCache, count: int) -> StaticCache:
    """The first ``count`` rows of a cache, as a cache: its writes and its position are the owner's.

    StaticCache has one fixed batch size. Slicing makes views, so that every batch size uses the same memory.
    """
    rows = copy.copy(cache)
    rows.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in rows.layers:
        layer.keys, layer.values, layer.batch_size = layer.keys[:count], layer.values[:count], count
    return rows


class Decoder(nn.Module):
    """A language model together with the cache it decodes into. All rows are at the same position."""

    def __init__(self, config: LlamaConfig, batch: int, length: int) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(config)
        self.cache = StaticCache(config, max_cache_len=length)
        # Left to itself a StaticCache allocates in its first call: captured there, every replay would clear it.
        weight = self.llama.lm_head.weight
        self.cache.early_initialization(
            batch, config.num_key_value_heads, config.head_dim, dtype=weight.dtype, device=weight.device
        )

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token for each row [batch, 1] to the logits [batch, vocabulary] and the next tokens [batch, 1]."""
        cache = first_rows(self.cache, tokens.shape[0])
        logits = self.llama(input_ids=tokens, cache=cache, use_cache=True).logits[:, -1]
        return logits, logits.argmax(dim=-1, keepdim=True)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], **options: bool) -> nn.Module:
        """Moves the cache along with the weights (``model.to(...)``): it is no module, so torch would leave it."""
        super()._apply(fn, **options)
        for layer in self.cache.layers:
            layer.keys, layer.values = fn(layer.keys), fn(layer.values)
            layer.cumulative_length = fn(layer.cumulative_length)
            layer.device = layer.keys.device
        return self


def build(layers: int, hidden: int, vocabulary: int, batch: int, length: int) -> nn.Module:
    """A decoder with random weights, for up to ``batch`` rows of up to ``length`` tokens."""
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        initializer_range=0.2,  # ten times the default: random logits far enough apart that greedy tokens vary
    )
    return Decoder(config, batch, length)
