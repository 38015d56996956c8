"""Speculative greedy decoding: a small Llama proposes a few tokens, a larger one checks them all in one call.

Both are LlamaForCausalLM of the transformers package with a StaticCache of their own. What was proposed and not taken
is forgotten by setting the caches back; the tokens are those of the larger model alone.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache


class Decoder(nn.Module):
    """A language model together with the cache it decodes into."""

    def __init__(self, config: LlamaConfig, length: int) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(config)
        self.cache = StaticCache(config, max_cache_len=length)
        self.cache.early_initialization(
            1, config.num_key_value_heads, config.head_dim, dtype=torch.float32, device=self.llama.device
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The token that follows each of ``tokens`` [1, n], which the cache holds from then on."""
        return self.llama(input_ids=tokens, cache=self.cache, use_cache=True).logits.argmax(dim=-1)

    def set_length(self, length: torch.Tensor) -> None:
        """The cache holds the first ``length`` tokens, whatever else is in it."""
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(length)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], **options: bool) -> nn.Module:
        """Moves the cache along with the weights (``model.to(...)``): it is no module, so torch would leave it."""
        super()._apply(fn, **options)
        for layer in self.cache.layers:
            layer.keys, layer.values = fn(layer.keys), fn(layer.values)
            layer.cumulative_length = fn(layer.cumulative_length)
            layer.device = layer.keys.device
        return self


class Speculative(nn.Module):
    """A target and its draft. ``ahead`` tokens are proposed in each round."""

    def __init__(self, target: Decoder, draft: Decoder, ahead: int, room: int) -> None:
        super().__init__()
        self.target, self.draft, self.ahead, self.room = target, draft, ahead, room

    def start(self, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Both read the prompt [1, n]; the first token, the tokens so far, how many they are, and whether to go on."""
        count = torch.ones((), dtype=torch.int64, device=prompt.device)
        for decoder in (self.target, self.draft):
            decoder.set_length(torch.zeros_like(count))
        self.draft(prompt)
        last = self.target(prompt)[:, -1:]
        return last, nn.functional.pad(last[0], (0, self.room - 1)), count, count > 0

    def propose(self, last: torch.Tensor) -> torch.Tensor:
        """The next tokens as the draft sees them [1, ahead]; its cache has them all."""
        proposed = [last]
        for _ in range(self.ahead + 1):
            proposed.append(self.draft(proposed[-1]))
        return torch.cat(proposed[1:-1], dim=1)

    def check(self, last: torch.Tensor, proposed: torch.Tensor) -> torch.Tensor:
        """What the target says after ``last`` and after each of the proposed tokens [1, ahead + 1]: one call."""
        return self.target(torch.cat([last, proposed], dim=1))

    def accept(
        self, proposed: torch.Tensor, said: torch.Tensor, tokens: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """On the host: take what both agree on and one token of the target's own, and set the caches back to that."""
        agreed = 0
        while agreed < self.ahead and proposed[0, agreed] == said[0, agreed]:
            agreed += 1
        begin = int(count)
        end = min(begin + agreed + 1, self.room)
        tokens = tokens.clone()
        tokens[begin:end] = said[0, : end - begin]
        count = torch.full_like(count, end)
        for decoder in (self.target, self.draft):
            decoder.set_length(decoder.cache.layers[0].cumulative_length - self.ahead + agreed)
        return said[:, agreed : agreed + 1], tokens, count, count < self.room

    def finish(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens [room]."""
        return tokens.clone()


def build(vocabulary: int, prompt: int, ahead: int, room: int) -> nn.Module:
    """A target of three layers with random weights, and a draft that is its first layer."""
    length = prompt + room + ahead + 1

    def decoder(layers: int) -> Decoder:
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
        return Decoder(config, length)

    target, draft = decoder(3), decoder(1)
    draft.load_state_dict({name: target.state_dict()[name] for name in draft.state_dict()})
    return Speculative(target, draft, ahead, room)
