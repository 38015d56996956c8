"""Small configs of the transformers package, made by the names of their fields.

Nothing here knows a model: a field is made small by what its name says, in sub-configs too, and what does not fit
together is left to the class, which then says so.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from transformers import PreTrainedConfig

HIDDEN, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 128, 32, 8

# A name matches the first pattern that is found in it, and takes its number where that is smaller.
_SMALL = [
    (r"special|token_id|token_index|_loss|_cost|dropout|temperature$|theta|epsilon|sampling_rate|sample_rate", None),
    (
        r"num_channels|in_chans|num_labels|num_classes|stride|padding|kernel|dilation|scale|ratio|factor|hop_length",
        None,
    ),
    (r"vocab_size|vocabulary|num_embeddings$", VOCABULARY),
    (r"key_value_heads|kv_heads|query_groups", HEADS // 2),
    (r"experts_per_tok|moe_topk|top_?k$|n_group$|topk_group", 2),
    (r"num_experts|n_routed_experts|num_local_experts|n_experts|expert_num", HEADS),
    (r"(attention|encoder|decoder|num|n|swa)_?heads?$|attention_heads|heads_per|^heads$|num_head_channels", HEADS),
    (r"lora_rank|dt_rank|time_step_rank", 8),
    (r"head_dim|dim_head|d_kv|head_size|headdim|d_head", HIDDEN // HEADS),
    (r"state_size|d_state|ssm_state", 8),
    (r"chunk_size|block_size", 8),
    (r"sliding_window|window_length|local_attention|attention_window", 16),
    (
        r"(num|n)?_?(hidden|encoder|decoder|conv|l|x|r|fusion|input|recurrent|output)?_?(layers?|blocks?)$|^depth$",
        LAYERS,
    ),
    (r"num_codebooks|n_codebooks|num_quantizers|codebook_groups|codevector_groups", 2),
    (r"codebook_size|codevectors_per_group|num_clusters|num_negatives", 16),
    (r"intermediate|ffn|d_ff|mlp_dim|inner|feed_?forward|mlp_hidden", 2 * HIDDEN),
    (r"image_size|img_size|input_size$", IMAGE),
    (r"patch_size$", PATCH),
    (r"position|n_ctx|context_length|max_len|max_seq", 64),
    (r"num_frames", 2),
    (r"mel_bins|n_mels|num_filter_banks", 16),
    (r"num_queries|num_query_tokens|num_proposals|num_denoising|num_latents", 8),
    (r"hidden|d_model|n_embd|embed|projection|project|^dim$|_dim$|width|units|channels|filters|feature_size", HIDDEN),
]


# Fields that can be small by themselves: nothing else in a config has to fit to them.
_ALONE = re.compile(r"vocab|layers?$|blocks?$|experts$|num_local_experts|codebook_size")


SIZES = 2


def tiny(config_class: type[PreTrainedConfig], size: int) -> PreTrainedConfig:
    """A small config of this class: the smallest (``size`` 0), or with the widths that the class has by default (1).

    Raises whatever the class raises where the small numbers do not fit together.
    """
    return config_class(**_arguments(config_class(), keep_widths=size == 1))


def _arguments(config: PreTrainedConfig, *, keep_widths: bool) -> dict[str, Any]:
    """The keyword arguments that make this config small."""
    fields = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    taken = inspect.signature(type(config).__init__).parameters
    known = fields if any(each.kind is each.VAR_KEYWORD for each in taken.values()) else fields.keys() & taken.keys()
    small: dict[str, Any] = {}
    for name in known:
        value = fields[name]
        if isinstance(value, PreTrainedConfig):
            small[name] = {"model_type": value.model_type, **_arguments(value, keep_widths=keep_widths)}
        elif keep_widths and not _ALONE.search(name):
            continue
        elif (made := _smaller(name, value)) != value:
            small[name] = made
    if "num_key_value_heads" in small and fields["num_key_value_heads"] == fields.get("num_attention_heads"):
        small["num_key_value_heads"] = small["num_attention_heads"]
    rope = fields.get("rope_parameters")
    if not keep_widths and isinstance(rope, dict) and "mrope_section" in rope:  # it divides half of a head
        small["rope_parameters"] = {**rope, "mrope_section": [2, 1, 1]}
    for name, value in fields.items():
        if name.endswith(("token_id", "token_index")) and isinstance(value, int) and value >= VOCABULARY:
            small[name] = VOCABULARY - 1 - (value % 8)
    return small


def _smaller(name: str, value: Any) -> Any:
    """The value that a field of this name has in a small config: its own where the name says nothing."""
    number = next((number for pattern, number in _SMALL if re.search(pattern, name)), None)
    if name == "depths" and isinstance(value, (list, tuple)):
        return type(value)(1 for _ in value)
    if number is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return min(value, number)
    if isinstance(value, (list, tuple)) and value and all(type(each) is int for each in value):
        return type(value)(min(each, number) for each in value)
    return value
