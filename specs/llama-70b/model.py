"""A Llama of 70B parameters with its StaticCache: the sizes of Llama 3 70B, the classes of the transformers package.

Built as it is this takes 131.4 GiB for the weights alone. `graphspec check` builds it on fake tensors, which have
shapes and no memory.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

CONFIG = {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
}


class Decoder(nn.Module):
    """A language model together with the cache it decodes into. All rows are at the same position."""

    def __init__(self, config: LlamaConfig, batch: int, length: int) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(config)
        self.cache = StaticCache(config, max_cache_len=length)
        weight = self.llama.lm_head.weight
        self.cache.early_initialization(
            batch, config.num_key_value_heads, config.head_dim, dtype=weight.dtype, device=weight.device
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One token for each row [batch, 1] to the logits [batch, vocabulary]."""
        rows = copy.copy(self.cache)  # the first rows of the cache, as a cache: views of the owner's memory
        rows.layers = [copy.copy(layer) for layer in self.cache.layers]
        for layer in rows.layers:
            count = layer.batch_size = tokens.shape[0]
            layer.keys, layer.values = layer.keys[:count], layer.values[:count]
        return self.llama(input_ids=tokens, cache=rows, use_cache=True).logits[:, -1]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], **options: bool) -> nn.Module:
        """Moves the cache along with the weights (``model.to(...)``): it is no module, so torch would leave it."""
        super()._apply(fn, **options)
        for layer in self.cache.layers:
            layer.keys, layer.values = fn(layer.keys), fn(layer.values)
            layer.cumulative_length = fn(layer.cumulative_length)
            layer.device = layer.keys.device
        return self


def build(batch: int, length: int) -> nn.Module:
    """A decoder for up to ``batch`` rows of up to ``length`` tokens."""
    return Decoder(LlamaConfig(**CONFIG, max_position_embeddings=length), batch, length)
