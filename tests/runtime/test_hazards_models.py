"""No false hazards: models of the transformers library as they are served, from small configurations."""

import pytest
import torch
import transformers as T  # noqa: N812 - dozens of its names

from graphspec.runtime.hazards import watch

WIDTH = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**WIDTH, "vocab_size": 99, "pad_token_id": 0}
DECODER = {**TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}
IDS = torch.tensor([[1, 2, 3]])
PIXELS = torch.ones(1, 3, 32, 32)
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99}
IMAGE = {"image_size": 32, "patch_size": 8}


def decoder(cls, config):
    """One decode step on a static cache."""
    model = cls(config).eval()
    cache = T.StaticCache(config=config, max_cache_len=16)
    token, position = torch.tensor([[5]]), torch.tensor([[0]])
    return model, lambda: model(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True)


def encoder(model, **inputs):
    model = model.eval()
    return model, lambda: model(**inputs)


MODELS = {
    "llama": lambda: decoder(T.LlamaForCausalLM, T.LlamaConfig(**DECODER)),
    "llama eager attention": lambda: decoder(
        T.LlamaForCausalLM, T.LlamaConfig(**DECODER, attn_implementation="eager")
    ),
    "llama prefill": lambda: encoder(T.LlamaForCausalLM(T.LlamaConfig(**DECODER)), input_ids=IDS, use_cache=False),
    "llama prefill with mask": lambda: encoder(
        T.LlamaForCausalLM(T.LlamaConfig(**DECODER)), input_ids=IDS, attention_mask=torch.ones_like(IDS)
    ),
    "gemma": lambda: decoder(T.GemmaForCausalLM, T.GemmaConfig(**DECODER, head_dim=8)),
    "mixtral": lambda: decoder(T.MixtralForCausalLM, T.MixtralConfig(**DECODER, num_local_experts=4)),
    "mixtral batched experts": lambda: decoder(
        T.MixtralForCausalLM, T.MixtralConfig(**DECODER, num_local_experts=4, experts_implementation="batched_mm")
    ),
    "gpt2": lambda: decoder(T.GPT2LMHeadModel, T.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99)),
    "bert": lambda: encoder(T.BertModel(T.BertConfig(**TEXT)), input_ids=IDS),
    "bert with mask": lambda: encoder(
        T.BertModel(T.BertConfig(**TEXT)), input_ids=IDS, attention_mask=torch.ones_like(IDS)
    ),
    "t5": lambda: encoder(
        T.T5ForConditionalGeneration(T.T5Config(**T5)),
        input_ids=IDS, attention_mask=torch.ones_like(IDS), decoder_input_ids=IDS,
    ),
    "vit": lambda: encoder(T.ViTForImageClassification(T.ViTConfig(**WIDTH, **IMAGE)), pixel_values=PIXELS),
    "clip vision": lambda: encoder(T.CLIPVisionModel(T.CLIPVisionConfig(**WIDTH, **IMAGE)), pixel_values=PIXELS),
    "resnet": lambda: encoder(
        T.ResNetForImageClassification(T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])),
        pixel_values=PIXELS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["cpu", "cuda", "npu"])
def test_a_served_model_of_transformers_has_no_hazard(name, device):
    torch.manual_seed(0)
    model, call = MODELS[name]()
    with torch.no_grad():
        for _ in range(2):  # the first call makes the cache
            with watch("decode", device_label=device, root=model) as session:
                call()
            assert [str(finding) for finding in session.findings] == []


def test_the_expert_loop_of_mixtral_is_refused_because_it_asks_the_host_which_experts_were_hit():
    config = T.MixtralConfig(**DECODER, num_local_experts=4, experts_implementation="eager")
    model, call = decoder(T.MixtralForCausalLM, config)
    with torch.no_grad(), watch("decode", root=model) as session:
        call()
    assert {(f.code, f.file.rsplit("/", 1)[1]) for f in session.findings} == {
        ("GS701", "modeling_mixtral.py"),
        ("GS702", "modeling_mixtral.py"),
    }
    assert any("Tensor.nonzero" in f.message for f in session.findings)
