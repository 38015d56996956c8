"""Greedy decoding with a Gemma 2 from a small config, over the edge of its sliding window, in its own StaticCache.

Half of the layers see all tokens, the other half the last few only. Their caches count on the host what came: below the
window a token is written at its place, from then on everything moves up by one. Which of the two is all that the count
decides here, since positions and masks come from a tensor.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, StaticCache


class Decoder(nn.Module):
    """A language model together with the cache it decodes into. All rows are at the same position."""

    def __init__(self, config: Gemma2Config, batch: int, length: int) -> None:
        super().__init__()
        self.gemma = Gemma2ForCausalLM(config)
        self.cache = StaticCache(config, max_cache_len=length)
        weight = self.gemma.lm_head.weight
        self.cache.early_initialization(
            batch, config.num_key_value_heads, config.head_dim, dtype=weight.dtype, device=weight.device
        )
        self.register_buffer("every", torch.arange(length), persistent=False)
        self.register_buffer("window", torch.arange(config.sliding_window), persistent=False)

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token for each row [batch, 1], at ``position`` [], to the logits [batch, vocabulary] and next tokens."""
        masks = {
            "full_attention": (self.every <= position).view(1, 1, 1, -1),
            "sliding_attention": (self.window <= position).view(1, 1, 1, -1),  # a full window is seen as a whole
        }
        places = position.expand(tokens.shape)
        logits = self.gemma(tokens, attention_mask=masks, position_ids=places, cache=self.cache, use_cache=True).logits
        return logits[:, -1], logits[:, -1].argmax(dim=-1, keepdim=True)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], **options: bool) -> nn.Module:
        """Moves the cache along with the weights (``model.to(...)``): it is no module, so torch would leave it."""
        super()._apply(fn, **options)
        for layer in self.cache.layers:
            layer.keys, layer.values = fn(layer.keys), fn(layer.values)
            layer.cumulative_length = fn(layer.cumulative_length)
            layer.device = layer.keys.device
        return self


def build(layers: int, hidden: int, vocabulary: int, batch: int, length: int, window: int) -> nn.Module:
    """A decoder with random weights, for ``batch`` rows of up to ``length`` tokens."""
    config = Gemma2Config(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        sliding_window=window,
        initializer_range=0.2,
    )
    return Decoder(config, batch, length)


def example(length: int, window: int) -> dict[str, int]:
    """A count, and what the sliding layers make of it."""
    count = int(torch.randint(0, length, ()))
    return {"count": count, "full": window if count >= window else 0}
