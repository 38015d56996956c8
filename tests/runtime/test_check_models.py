"""`check` finds no false hazard in models of the transformers library, from small configurations and real ones.

Two models have all the layers of a real one: mixtral_8x7b here and llama-70b in cli/test_check.py. The others of real
width have two layers: a trace of the rest would repeat them.
"""

import pytest

from graphspec.loading import load
from graphspec.runtime.check import check_spec

MODEL = """
import torch
import transformers as T
from torch import nn

WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**WIDTH, "vocab_size": 99, "pad_token_id": 0}
DECODER = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
IMAGE = {"image_size": 32, "patch_size": 8}


class Decoder(nn.Module):
    def __init__(self, model, config, batch):
        super().__init__()
        self.model = model
        self.cache = T.StaticCache(config, max_cache_len=16)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weight = next(model.parameters())
        self.cache.early_initialization(batch, heads, width, dtype=weight.dtype, device=weight.device)

    def forward(self, ids):
        return self.model(input_ids=ids, cache=self.cache, use_cache=True).logits

    def _apply(self, fn, **options):
        super()._apply(fn, **options)
        for layer in self.cache.layers:
            layer.keys, layer.values = fn(layer.keys), fn(layer.values)
            layer.cumulative_length = fn(layer.cumulative_length)
            layer.device = layer.keys.device
        return self


def decoder(name, batch=2, **config):
    config = getattr(T, name + "Config")(**config)
    suffix = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    return Decoder(getattr(T, name + suffix)(config), config, batch)


def llama():
    return decoder("Llama", **DECODER)

def gemma():
    return decoder("Gemma", **DECODER, head_dim=8)

def gpt2():
    return decoder("GPT2", n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64)

def mixtral(experts="grouped_mm"):
    return decoder("Mixtral", **DECODER, num_local_experts=4, experts_implementation=experts)

def mixtral_loop():
    return mixtral("eager")

def mixtral_8x7b():
    return decoder("Mixtral", dtype="bfloat16")

def gemma_7b():
    return decoder("Gemma", num_hidden_layers=2)

def bert():
    return T.BertModel(T.BertConfig(**TEXT))

def bert_large():
    return T.BertModel(T.BertConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=2, num_attention_heads=16))

def t5():
    return T.T5ForConditionalGeneration(
        T.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99))

def vit():
    return T.ViTForImageClassification(T.ViTConfig(**WIDTH, **IMAGE))

def vit_huge():
    return T.ViTForImageClassification(T.ViTConfig(
        hidden_size=1280, intermediate_size=5120, num_hidden_layers=2, num_attention_heads=16, patch_size=14))

def swin():
    return T.SwinModel(T.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4))

def clip():
    return T.CLIPVisionModel(T.CLIPVisionConfig(**WIDTH, **IMAGE))

def resnet():
    return T.ResNetForImageClassification(T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))
"""

IDS = "ids: {shape: [batch, 5], dtype: int64, pad: 0, sample: {randint: [0, 99]}}"
ONE = "ids: {shape: [batch, 1], dtype: int64, pad: 0, sample: {randint: [0, 99]}}"
MASK = "mask: {shape: [batch, 5], dtype: int64, pad: 0}"
SMALL = "pixels: {shape: [batch, 3, 32, 32], dtype: float32}"
LARGE = "pixels: {shape: [batch, 3, 224, 224], dtype: float32}"
STEP = ((ONE,), "[ids]", "y")
ENCODE = ((IDS, MASK), "{input_ids: ids, attention_mask: mask}", "{y: last_hidden_state}")
SEE = "{pixel_values: pixels}"

#: By factory: (buffers, inputs, outputs, shape of y, dtype).
MODELS = {
    "llama": (*STEP, "[batch, 1, 99]", "float32"),
    "gemma": (*STEP, "[batch, 1, 99]", "float32"),
    "gpt2": (*STEP, "[batch, 1, 99]", "float32"),
    "mixtral": (*STEP, "[batch, 1, 99]", "float32"),
    "mixtral_8x7b": (*STEP, "[batch, 1, 32000]", "bfloat16"),
    "gemma_7b": (*STEP, "[batch, 1, 256000]", "float32"),
    "bert": (*ENCODE, "[batch, 5, 32]", "float32"),
    "bert_large": (*ENCODE, "[batch, 5, 1024]", "float32"),
    "t5": (
        (IDS, MASK), "{input_ids: ids, attention_mask: mask, decoder_input_ids: ids}", "{y: logits}",
        "[batch, 5, 99]", "float32",
    ),
    "vit": ((SMALL,), SEE, "{y: logits}", "[batch, 2]", "float32"),
    "vit_huge": ((LARGE,), SEE, "{y: logits}", "[batch, 2]", "float32"),
    "swin": ((SMALL,), SEE, "{y: pooler_output}", "[batch, 32]", "float32"),
    "clip": ((SMALL,), SEE, "{y: pooler_output}", "[batch, 32]", "float32"),
    "resnet": ((SMALL,), SEE, "{y: logits}", "[batch, 2]", "float32"),
}  # fmt: skip
#: Their cache has one batch size.
DECODERS = {"mixtral_loop", "llama", "gemma", "gpt2", "mixtral", "mixtral_8x7b", "gemma_7b"}


@pytest.fixture
def spec(tmp_path):
    def written(factory):
        buffers, inputs, outputs, shape, dtype = MODELS.get(factory, MODELS["mixtral"])
        result = f"y: {{role: output, shape: {shape}, dtype: {dtype}}}"
        lines = "\n".join(f"  {buffer}" for buffer in (*buffers, result))
        (tmp_path / "model.py").write_text(MODEL)
        (tmp_path / "spec.yaml").write_text(f"""
graphspec: 1
name: {factory}
model: {{factory: "model.py:{factory}", dtype: {dtype}}}
dims: {{batch: {"2" if factory in DECODERS else "[1, 3, 4]"}}}
buffers:
{lines}
regions:
  step: {{call: model, inputs: {inputs}, outputs: {outputs}}}
replay: [step]
""")
        return load(tmp_path / "spec.yaml")

    return written


@pytest.mark.parametrize("factory", MODELS)
def test_a_model_of_transformers_has_no_finding(spec, factory):
    for device in ("npu", "auto") if "_" not in factory else ("npu",):
        report = check_spec(spec(factory), device)
        assert [str(finding) for finding in report.findings] == []
        assert [region.ended for region in report.regions] == [False]
        assert report.regions[0].operators > 20


def test_the_expert_loop_of_mixtral_is_refused_at_its_own_line(spec):
    report = check_spec(spec("mixtral_loop"), "npu")
    assert {finding.code for finding in report.findings} <= {"GS701", "GS702"}
    assert all(finding.file.endswith("modeling_mixtral.py") for finding in report.findings)
    assert report.findings
