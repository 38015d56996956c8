"""A Llama of the transformers package that decodes one token for each row; its attention stays out of the graphs."""

from collections.abc import Callable

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache


class Decoder(nn.Module):
    """A language model together with the cache it decodes into. All rows are at the same position."""

    def __init__(self, config: LlamaConfig, batch: int, length: int) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(config)
        self.cache = StaticCache(config, max_cache_len=length)
        self.cache.early_initialization(
            batch, config.num_key_value_heads, config.head_dim, dtype=torch.float32, device=self.llama.device
        )

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token for each row [batch, 1] to the logits [batch, vocabulary] and the next tokens [batch, 1]."""
        logits = self.llama(input_ids=tokens, cache=self.cache, use_cache=True).logits[:, -1]
        return logits, logits.argmax(dim=-1, keepdim=True)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], **options: bool) -> nn.Module:
        """Moves the cache along with the weights (``model.to(...)``): it is no module, so torch would leave it."""
        super()._apply(fn, **options)
        for layer in self.cache.layers:
            layer.keys, layer.values = fn(layer.keys), fn(layer.values)
            layer.cumulative_length = fn(layer.cumulative_length)
            layer.device = layer.keys.device
        return self


def build(layers: int, vocabulary: int, batch: int, length: int) -> nn.Module:
    """A decoder with random weights."""
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        initializer_range=0.2,
    )
    return Decoder(config, batch, length)
