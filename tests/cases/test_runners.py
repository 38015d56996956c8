"""Stand-ins of public runners, of the same structure: their own files, and nothing beside them but a factory."""

import textwrap

import pytest
import torch

import graphspec
from graphspec.cli import main

FILES = {
    "gpt": {
        "model.py": """
            import torch
            import torch.nn.functional as F
            from torch import nn


            class KVCache(nn.Module):
                def __init__(self, batch, length, heads, width):
                    super().__init__()
                    self.register_buffer("k_cache", torch.zeros(batch, heads, length, width))
                    self.register_buffer("v_cache", torch.zeros(batch, heads, length, width))

                def update(self, input_pos, k_val, v_val):
                    k_out, v_out = self.k_cache, self.v_cache
                    k_out[:, :, input_pos] = k_val
                    v_out[:, :, input_pos] = v_val
                    return k_out, v_out


            class Int8Linear(nn.Module):
                def __init__(self, inside, outside):
                    super().__init__()
                    self.register_buffer("weight", torch.randint(-9, 9, (outside, inside), dtype=torch.int8))
                    self.register_buffer("scales", torch.rand(outside) / 9)

                def forward(self, x):
                    return F.linear(x, self.weight.to(dtype=x.dtype)) * self.scales


            class Block(nn.Module):
                def __init__(self, width):
                    super().__init__()
                    self.wqkv, self.wo = Int8Linear(width, 3 * width), Int8Linear(width, width)
                    self.kv_cache = None

                def forward(self, x, input_pos, mask):
                    q, k, v = (each.view(*x.shape[:2], 2, -1).transpose(1, 2) for each in self.wqkv(x).chunk(3, -1))
                    if self.kv_cache is not None:
                        k, v = self.kv_cache.update(input_pos, k, v)
                    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                    return x + self.wo(y.transpose(1, 2).flatten(2))


            class Transformer(nn.Module):
                def __init__(self, width=8, vocabulary=30):
                    super().__init__()
                    self.embed = nn.Embedding(vocabulary, width)
                    self.layers = nn.ModuleList(Block(width) for _ in range(2))
                    self.output = nn.Linear(width, vocabulary, bias=False)
                    self.causal_mask = None
                    self.max_seq_length = -1

                def setup_caches(self, batch, length):
                    if self.max_seq_length >= length:
                        return
                    self.max_seq_length = length
                    for block in self.layers:
                        block.kv_cache = KVCache(batch, length, 2, 4)
                    self.causal_mask = torch.tril(torch.ones(length, length, dtype=torch.bool))

                def forward(self, idx, input_pos):
                    assert self.causal_mask is not None, "caches must be made first"
                    mask = self.causal_mask[None, None, input_pos]
                    x = self.embed(idx)
                    for block in self.layers:
                        x = block(x, input_pos, mask)
                    return self.output(x)
        """,
        "generate.py": """
            import functools
            from types import SimpleNamespace

            import torch
            from model import Transformer


            def multinomial_sample_one_no_sync(probs):
                q = torch.empty_like(probs).exponential_(1)
                return torch.argmax(probs / q, dim=-1, keepdim=True).to(dtype=torch.int)


            def logits_to_probs(logits, temperature=1.0, top_k=None):
                logits = logits / max(temperature, 1e-5)
                if top_k is not None:
                    v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                    logits = torch.where(logits < v.select(-1, -1).unsqueeze(-1), -float("Inf"), logits)
                return torch.nn.functional.softmax(logits, dim=-1)


            def sample(logits, temperature=1.0, top_k=None):
                probs = logits_to_probs(logits[:, -1], temperature, top_k)
                return multinomial_sample_one_no_sync(probs), probs


            def decode_one_token(model, x, input_pos, **sampling_kwargs):
                assert input_pos.shape[-1] == 1
                logits = model(x, input_pos)
                return sample(logits, **sampling_kwargs)


            def build(length):
                model = Transformer().eval()
                model.setup_caches(1, length)
                return SimpleNamespace(model=model, decode_one_token=functools.partial(decode_one_token, model))
        """,
        "spec.yaml": """
            graphspec: 1
            model: {factory: generate.py:build, args: {length: {dim: length}}}
            dims: {length: 12}
            buffers:
              x: {shape: [1, 1], dtype: int64, sample: {randint: [0, 30]}}
              input_pos: {shape: [1], dtype: int64, sample: {randint: [0, 12]}}
              keys: {role: state, attr: model.model.layers.*.kv_cache.k_cache}
              values: {role: state, attr: model.model.layers.*.kv_cache.v_cache}
            regions:
              decode:
                call: model.decode_one_token
                inputs: {x: x, input_pos: input_pos, temperature: {const: 0.8}, top_k: {const: 5}}
                outputs: [token, probs]
        """,
    },
    "engine": {
        "utils/__init__.py": "",
        "utils/context.py": """
            from dataclasses import dataclass

            import torch


            @dataclass(slots=True)
            class Context:
                is_prefill: bool = False
                cu_seqlens_q: torch.Tensor | None = None
                slot_mapping: torch.Tensor | None = None
                context_lens: torch.Tensor | None = None
                block_tables: torch.Tensor | None = None


            _CONTEXT = Context()


            def get_context():
                return _CONTEXT


            def set_context(is_prefill, cu_seqlens_q=None, slot_mapping=None, context_lens=None, block_tables=None):
                global _CONTEXT
                _CONTEXT = Context(is_prefill, cu_seqlens_q, slot_mapping, context_lens, block_tables)


            def reset_context():
                global _CONTEXT
                _CONTEXT = Context()
        """,
        "layers/__init__.py": "",
        "layers/attention.py": """
            import torch
            from torch import nn
            from utils.context import get_context


            class Attention(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.k_cache = self.v_cache = torch.tensor([])

                def forward(self, q, k, v):
                    context = get_context()
                    if self.k_cache.numel() and self.v_cache.numel():
                        self.k_cache.flatten(0, 1).index_copy_(0, context.slot_mapping, k)
                        self.v_cache.flatten(0, 1).index_copy_(0, context.slot_mapping, v)
                    if context.is_prefill:
                        return q
                    keys, values = (cache[context.block_tables].flatten(1, 2) for cache in (self.k_cache, self.v_cache))
                    places = torch.arange(keys.shape[1], device=q.device)
                    scores = (keys * q.unsqueeze(1)).sum(-1)
                    scores = scores.masked_fill(places >= context.context_lens.unsqueeze(1), -1e9)
                    return (scores.softmax(-1).unsqueeze(-1) * values).sum(1)
        """,
        "engine/__init__.py": "",
        "engine/model_runner.py": """
            import torch
            from layers.attention import Attention
            from torch import nn
            from utils.context import get_context, reset_context, set_context


            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.embed = nn.Embedding(30, 8)
                    self.qkv = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
                    self.attn = nn.ModuleList(Attention() for _ in range(2))
                    self.lm_head = nn.Linear(8, 30)

                def forward(self, input_ids, positions):
                    x = self.embed(input_ids) + positions.unsqueeze(1) / 10
                    for qkv, attn in zip(self.qkv, self.attn):
                        x = x + attn(*qkv(x).chunk(3, -1))
                    return x

                def compute_logits(self, hidden):
                    return self.lm_head(hidden)


            class ModelRunner:
                block_size = 2

                def __init__(self, num_blocks):
                    self.model = Model()
                    self.kv_cache = torch.zeros(2, 2, num_blocks, self.block_size, 8)
                    for index, module in enumerate(self.model.attn):
                        module.k_cache, module.v_cache = self.kv_cache[0, index], self.kv_cache[1, index]

                def run(self, input_ids, positions, slot_mapping, context_lens, block_tables):
                    set_context(False, None, slot_mapping, context_lens, block_tables)
                    logits = self.model.compute_logits(self.model(input_ids, positions))
                    reset_context()
                    return logits
        """,
        "factory.py": """
            import torch
            from engine.model_runner import ModelRunner


            def build():
                return ModelRunner(9)


            def example(batch):
                lens = torch.randint(1, 5, (batch,))
                tables = torch.randperm(8)[: 2 * batch].view(batch, 2) + 1
                last = lens - 1
                slots = tables.gather(1, last.unsqueeze(1) // 2).squeeze(1) * 2 + last % 2
                return {"context_lens": lens, "block_tables": tables, "slot_mapping": slots, "positions": last}
        """,
        "spec.yaml": """
            graphspec: 1
            model: {factory: factory.py:build}
            dims: {batch: [1, 2, 4]}
            sample: {make: "factory.py:example"}
            buffers:
              input_ids: {shape: [batch], dtype: int64, pad: 0, sample: {randint: [0, 30]}}
              positions: {shape: [batch], dtype: int64, pad: 0}
              slot_mapping: {shape: [batch], dtype: int64, pad: 0}
              context_lens: {shape: [batch], dtype: int64, pad: 1}
              block_tables: {shape: [batch, 2], dtype: int64, pad: 0}
              keys: {role: state, attr: model.model.attn.*.k_cache}
              values: {role: state, attr: model.model.attn.*.v_cache}
              hidden: {role: intermediate, shape: [batch, 8], dtype: float32}
              logits: {role: output, shape: [batch, 30], dtype: float32}
            regions:
              decode:
                call: model.model
                inputs: [input_ids, positions]
                outputs: hidden
                pad_rows: {keys: [0], values: [0]}
                around:
                  call: "utils.context:set_context"
                  inputs:
                    is_prefill: {const: false}
                    slot_mapping: slot_mapping
                    context_lens: context_lens
                    block_tables: block_tables
                  after: "utils.context:reset_context"
              logits: {call: model.model.compute_logits, inputs: [hidden], outputs: logits}
            pools: {step: [decode, logits]}
            replay: [decode, logits]
        """,
    },
}


@pytest.fixture
def opened(tmp_path):
    def open_(name, **options):
        for file, text in FILES[name].items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).strip() + "\n")
        spec = tmp_path / name / "spec.yaml"
        assert main(["check", str(spec), "--device", "cpu"]) == 0
        return graphspec.open(spec, device="cpu", **options)

    return open_


def test_decode_one_token_of_a_generate_file_draws_what_it_draws_by_itself(opened):
    with opened("gpt") as runner:
        made = runner.model
        first = [torch.zeros_like(layer.kv_cache.k_cache) for layer in made.model.layers]
        assert all(torch.equal(a, layer.kv_cache.k_cache) for a, layer in zip(first, made.model.layers, strict=True))
        tokens = {}
        for way in ("graph", "eager"):
            runner.reset()
            torch.manual_seed(7)
            token, tokens[way] = torch.tensor([[3]]), []
            for position in range(10):
                given = {"x": token, "input_pos": torch.tensor([position])}
                if way == "graph":
                    token = runner.run(**given)["token"].long()
                else:
                    token = made.decode_one_token(**given, temperature=0.8, top_k=5)[0].long()
                tokens[way].append(int(token))
        assert tokens["graph"] == tokens["eager"]


def test_an_engine_step_with_a_context_in_a_global_is_that_of_the_engine(opened):
    with opened("engine") as runner:
        engine, kept = runner.model, torch.zeros(2, 2, 9, 2, 8)
        for seed, batch in enumerate((4, 3, 1, 2)):
            given = runner.sample("replay", {"batch": batch}, seed=seed)
            got = runner.run(**given)["logits"]
            after = engine.kv_cache.clone()
            engine.kv_cache.copy_(kept)
            names = ("input_ids", "positions", "slot_mapping", "context_lens", "block_tables")
            torch.testing.assert_close(got, engine.run(*(given[name] for name in names)))
            torch.testing.assert_close(after[:, :, 1:], engine.kv_cache[:, :, 1:])
            kept = after
            engine.kv_cache.copy_(after)
        assert main(["run", str(runner.plan.folder / "spec.yaml"), "--device", "cpu", "--steps", "6"]) == 0
