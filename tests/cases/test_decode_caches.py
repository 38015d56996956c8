"""Decode caches of transformers as they are: over the edge of a sliding window, and with states of their own."""

import pytest
import torch

DECODER = """
    from transformers import {name}Config, {name}ForCausalLM, StaticCache

    CONFIG = dict(
        num_hidden_layers=2, hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=50, max_position_embeddings=32, sliding_window=4, initializer_range=0.3,
    )

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            config = {name}Config(**CONFIG)
            self.model = {name}ForCausalLM(config)
            self.cache = StaticCache(config, max_cache_len=16)
            self.cache.early_initialization(2, 1, 8, dtype=torch.float32, device="cpu")

        def forward(self, tokens):
            return self.model(input_ids=tokens, cache=self.cache, use_cache=True).logits[:, -1]
"""
SPEC = """
    dims: {length: 16}
    params:
      filled: {type: int, min: 0, max: length, specialize: true}
    buffers:
      tokens: {shape: [2, 1], dtype: int64, sample: {randint: [0, 50]}}
      keys: {role: state, attr: model.cache.layers.*.keys}
      values: {role: state, attr: model.cache.layers.*.values}
      position: {role: state, attr: model.cache.layers.*.cumulative_length}
      logits: {role: output, shape: [2, 50], dtype: float32}
    regions:
      decode:
        call: model
        inputs: [tokens]
        outputs: logits
        warmup: 1
        bind: {model.cache.layers.*.cumulative_length_int: filled}
"""


@pytest.mark.takes(10)
@pytest.mark.parametrize("name", ["Gemma2", "Mistral"])
def test_a_decoder_with_its_own_static_cache_goes_over_the_edge_of_the_sliding_window(case, name):
    runner = case.open(DECODER.format(name=name), SPEC)
    eager = case.eager()
    eager.load_state_dict(runner.model.state_dict())
    for _ in range(2):  # the second turn on the graphs of the first
        for step in range(6):
            tokens = torch.randint(0, 50, (2, 1))
            got = runner.run(tokens=tokens, filled=step)["logits"]
            torch.testing.assert_close(got, eager(tokens), rtol=1e-5, atol=1e-5)
            assert runner.model.cache.get_seq_length() == eager.cache.get_seq_length() == step + 1
        assert len(runner.graphs) == 6
        runner.reset()
        eager.cache.reset()
