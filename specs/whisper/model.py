"""Whisper from a small config: the encoder runs once for a recording, the decoder once for each token.

What the decoder reads of the encoder are keys and values for its cross-attention. They lie in one half of the cache of
transformers, and are written there by the encoder's region; the other half is that of the tokens.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import EncoderDecoderCache, StaticCache, WhisperConfig, WhisperForConditionalGeneration


class Recogniser(nn.Module):
    """A Whisper together with the cache it decodes into."""

    def __init__(self, config: WhisperConfig, batch: int) -> None:
        super().__init__()
        self.whisper = WhisperForConditionalGeneration(config).eval()
        shape = (batch, config.decoder_attention_heads, config.d_model // config.decoder_attention_heads)
        lengths = (config.max_target_positions, config.max_source_positions)
        halves = [StaticCache(config, max_cache_len=length) for length in lengths]
        for half in halves:
            half.early_initialization(*shape, dtype=torch.float32, device=torch.device("cpu"))
        self.cache = EncoderDecoderCache(*halves)
        self.cache.is_updated = dict.fromkeys(range(config.decoder_layers), True)  # what `encode` has written is read
        self.register_buffer("heard", torch.zeros(batch, config.max_source_positions, config.d_model), persistent=False)

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Log-mel features [batch, bins, 2 * source] to what is heard [batch, source, width], and into the cache."""
        heard = self.whisper.model.encoder(features).last_hidden_state
        for layer, kept in zip(self.whisper.model.decoder.layers, self.cache.cross_attention_cache.layers, strict=True):
            for project, target in ((layer.encoder_attn.k_proj, kept.keys), (layer.encoder_attn.v_proj, kept.values)):
                target.copy_(project(heard).unflatten(-1, (target.shape[1], -1)).transpose(1, 2))
        for layer in self.cache.self_attention_cache.layers:
            layer.cumulative_length.zero_()
        return heard

    def decode(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token for each row [batch, 1] to the logits [batch, vocabulary] and the next tokens [batch, 1]."""
        # That there was an encoder is all that the decoder is told: its keys and values are in the cache.
        hidden = self.whisper.model.decoder(
            tokens, encoder_hidden_states=self.heard, cache=self.cache, use_cache=True
        ).last_hidden_state
        logits = self.whisper.proj_out(hidden[:, -1])
        return logits, logits.argmax(dim=-1, keepdim=True)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], **options: bool) -> nn.Module:
        """Moves the cache along with the weights (``model.to(...)``): it is no module, so torch would leave it."""
        super()._apply(fn, **options)
        for half in (self.cache.self_attention_cache, self.cache.cross_attention_cache):
            for layer in half.layers:
                layer.keys, layer.values = fn(layer.keys), fn(layer.values)
                layer.cumulative_length = fn(layer.cumulative_length)
                layer.device = layer.keys.device
        return self


def build(layers: int, width: int, vocabulary: int, batch: int, bins: int, source: int, target: int) -> nn.Module:
    """A recogniser with random weights, for ``batch`` recordings and up to ``target`` tokens of each."""
    config = WhisperConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=width,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        vocab_size=vocabulary,
        num_mel_bins=bins,
        max_source_positions=source,
        max_target_positions=target,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        init_std=0.2,
    )
    return Recogniser(config, batch)
