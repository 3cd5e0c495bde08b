"""Any architecture's configuration, shrunk until a random model of it runs in a moment.

The default configuration says which settings exist. Each rule below names settings by their usual names over
transformers and gives the small value; what belongs together (layers and their types, heads and their widths)
is kept consistent. What still does not build is listed with its own reason, not patched up model by model.
"""

from __future__ import annotations

import re
from inspect import signature
from typing import Any

from transformers import PretrainedConfig

VOCABULARY = 128
LAYERS = 2
LAYERS_MAX = 6

_SIZES: tuple[tuple[str, int], ...] = (
    (
        r"(vocab_size|n_words|vocabulary_size|.*_vocab_size|codebook_size|vocab_size_per_layer_input)",
        VOCABULARY,
    ),
    (r"(max_position_embeddings|n_positions|n_ctx|max_sequence_length|max_seq_len|seq_length)", 128),
    (r"(max_source_positions|max_target_positions|decoder_max_position.*|encoder_max_position.*)", 128),
    (r"(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|num_encoder_layers)", LAYERS),
    (
        r"(num_decoder_layers|encoder_num_hidden_layers|decoder_num_hidden_layers|num_hidden_layers_.*)",
        LAYERS,
    ),
    (r"(num_key_value_heads|num_kv_heads|multi_query_group_num|n_head_kv|kv_n_heads)", 2),
    (r"(.*num_attention_heads|.*_attention_heads|n_heads?|num_heads|num_query_heads|encoder_n_heads)", 4),
    (r"(linear_num_key_heads|mamba_n_groups|n_groups|mamba_num_groups)", 2),
    (r"(linear_num_value_heads|mamba_n_heads|mamba_num_heads|ssm_num_heads)", 4),
    (
        r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|dim|model_dim|encoder_hidden_size)",
        32,
    ),
    (r"(decoder_hidden_size|projection_dim|word_embed_proj_dim|lru_width|attention_hidden_size|d_embed)", 32),
    (r"(mamba_intermediate_size|mamba_d_inner|mamba_d_ssm)", 64),
    (
        r"(.*intermediate_size|.*ffn_dim|d_ff|n_inner|ffn_hidden_size|dim_feedforward|d_inner|mlp_hidden.*)",
        64,
    ),
    (r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_experts_per_layer)", 4),
    (r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_top_k|top_k_experts|moe_k)", 2),
    (r"(n_shared_experts|num_shared_experts|n_group|topk_group|first_k_dense_replace)", 1),
    (r"(head_dim|qk_nope_head_dim|qk_rope_head_dim|v_head_dim|qk_head_dim)", 8),
    (r"(mamba_d_head|mamba_head_dim)", 16),
    (r"(linear_key_head_dim|linear_value_head_dim|attention_head_dim|rotary_dim|d_kv|swa_head_dim)", 8),
    (r"(q_lora_rank|kv_lora_rank|.*_lora_rank|time_step_rank|.*low_rank_dim)", 16),
    (r"(state_size|mamba_d_state|ssm_state_size|chunk_size|mamba_chunk_size)", 8),
    (r"(sliding_window|attention_chunk_size|local_attention|attention_window_size|window_size)", 16),
    (r"(num_conv_layers|num_mem_blocks|num_nextn_predict_layers|num_mtp_layers)", 1),
    (r"(image_size|input_size)", 32),
    (r"(patch_size)", 8),
    (r"(num_mel_bins|feature_size)", 16),
    (r"(hidden_size_per_layer_input)", 8),
)
"""(setting, value): the first that matches decides. Only ever made smaller."""

_TOKENS = re.compile(r"(.*_)?token_id|.*_token_index|.*_token_id_.*")
_NEEDED = {"num_experts_per_tok"}
"""Settings without a usable default."""
_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "hybrid_override_pattern", "block_types")
_PER_LAYER = re.compile(r".*(layer_types|layers_block_type|_pattern|block_types|per_layer|layers)$")


def tiny(config: PretrainedConfig) -> PretrainedConfig:
    """A small configuration of the same class."""
    settings = config.to_dict()
    parameters = signature(type(config).__init__).parameters
    derived = {name for name, item in parameters.items() if item.default is None} - _NEEDED
    changes: dict[str, Any] = {}
    layers = _layers(settings)
    for name, value in settings.items():
        if name in config.sub_configs and isinstance(vars(config).get(name), PretrainedConfig):
            changes[name] = tiny(vars(config)[name])
        elif name == "per_layer_config" and isinstance(value, dict):
            changes[name] = {index: item for index, item in value.items() if int(index) < layers}
        elif (name not in derived or isinstance(value, (list, tuple))) and (
            small := _small(name, value, layers)
        ) != value:
            changes[name] = small
    _match_widths(settings, changes)
    _match_rotary(settings, changes)
    kept = {name: value for name, value in settings.items() if name in _KINDS and name not in changes}
    return type(config)(**{**kept, **changes})


def _layers(settings: dict[str, Any]) -> int:
    """Enough layers to have one of each kind."""
    for name in _KINDS:
        kinds = settings.get(name)
        if isinstance(kinds, (list, tuple)) and kinds and isinstance(kinds[0], str):
            last = max(list(kinds).index(kind) for kind in set(kinds))
            return min(max(LAYERS, last + 1), LAYERS_MAX)
    return LAYERS


def _small(name: str, value: Any, layers: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (list, tuple)) and _PER_LAYER.fullmatch(name) and len(value) > layers:
        return _one_of_each(list(value), layers)
    if isinstance(value, int) and _TOKENS.fullmatch(name):
        return value if value < VOCABULARY else value % 100 + 10
    if isinstance(value, int):
        for pattern, small in _SIZES:
            if re.fullmatch(pattern, name):
                return min(value, layers if small == LAYERS and "layers" in name else small)
    return value


def _one_of_each(kinds: list[Any], layers: int) -> list[Any]:
    """The first ``layers``, with every kind among them where that is possible."""
    chosen = kinds[:layers]
    missing = [kind for kind in dict.fromkeys(map(str, kinds)) if kind not in map(str, chosen)]
    for position, kind in enumerate(missing[: layers - 1]):
        chosen[layers - 1 - position] = next(item for item in kinds if str(item) == kind)
    return chosen


def _match_widths(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    """As many key heads as heads where it was so; inner heads that fill the inner width."""
    key_heads = settings.get("num_key_value_heads")
    if key_heads and key_heads == settings.get("num_attention_heads") and "num_attention_heads" in changes:
        changes["num_key_value_heads"] = changes["num_attention_heads"]
    if "expand" in settings and "num_heads" in changes:
        changes["head_dim"] = int(settings["expand"]) * changes["hidden_size"] // changes["num_heads"]


def _match_rotary(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    """Sections of a rotary embedding sum to half a head's width."""
    for name in ("rope_parameters", "rope_scaling"):
        rotary = settings.get(name)
        if isinstance(rotary, dict) and "mrope_section" in rotary:
            changes[name] = {**rotary, "mrope_section": [2, 1, 1]}
