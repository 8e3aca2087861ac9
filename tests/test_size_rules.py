"""Caches of more families than the forty cases: the fields of public configurations, priced by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.sizes import explain, price

FULL, SLIDING, MAMBA = "full_attention", "sliding_attention", "mamba"
ELM = [4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 8, 8, 8, 8]

# model: (config, tokens, bytes of keys and values in 16 bits as a product, values of the recurrent states)
MODELS: dict[str, tuple[dict[str, Any], int, int, int]] = {
    "nemotron-h-8b": (
        {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "hidden_size": 4096,
            "num_hidden_layers": 52,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "expand": 2,
            "max_position_embeddings": 8192,
        },
        8192,
        4 * 2 * 8 * 128 * 2 * 8192,
        24 * (3 * (128 * 64 + 2 * 8 * 128) + 128 * 64 * 128),
    ),
    "jamba-v0.1": (
        {
            "model_type": "jamba",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_offset": 4,
            "attn_layer_period": 8,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_expand": 2,
        },
        262144,
        4 * 2 * 8 * 128 * 2 * 262144,
        28 * (3 * 8192 + 8192 * 16),
    ),
    "llama4-maverick": (
        {
            "model_type": "llama4",
            "text_config": {
                "model_type": "llama4_text",
                "hidden_size": 5120,
                "num_hidden_layers": 48,
                "num_attention_heads": 40,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "attention_chunk_size": 8192,
                "no_rope_layers": [],
            },
        },
        131072,
        (12 * 131072 + 36 * 8192) * 2 * 8 * 128 * 2,
        0,
    ),
    "chatglm3-6b": (
        {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 28,
            "seq_length": 8192,
        },
        8192,
        28 * 2 * 2 * 128 * 2 * 8192,
        0,
    ),
    "gemma-4-31b": (
        {
            "model_type": "gemma4",
            "text_config": {
                "model_type": "gemma4_text",
                "hidden_size": 5376,
                "num_hidden_layers": 60,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "num_global_key_value_heads": 4,
                "head_dim": 256,
                "global_head_dim": 512,
                "sliding_window": 1024,
                "attention_k_eq_v": True,
                "num_kv_shared_layers": 0,
                "layer_types": ([SLIDING] * 5 + [FULL]) * 10,
            },
        },
        32768,
        (10 * 4 * 512 * 32768 + 50 * 16 * 256 * 1024) * 2 * 2,
        0,
    ),
    "mimo-v2-flash": (
        {
            "model_type": "mimo_v2",
            "num_hidden_layers": 48,
            "num_attention_heads": 64,
            "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, *([1, 1, 1, 1, 1, 0] * 7)],
            "num_key_value_heads": 4,
            "swa_num_key_value_heads": 8,
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
            "sliding_window_size": 128,
            "sliding_window": 128,
            "attention_chunk_size": 128,
        },
        8192,
        (9 * 4 * 8192 + 39 * 8 * 128) * (192 + 128) * 2,
        0,
    ),
    "deepseek-v3.2": (
        {
            "dim": 7168,
            "n_layers": 61,
            "n_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 2048,
            "model_type": "deepseek_v32",
        },
        32768,
        61 * (512 + 64 + 128) * 2 * 32768,
        0,
    ),
    "glm-5": (
        {
            "model_type": "glm_moe_dsa",
            "hidden_size": 6144,
            "num_hidden_layers": 78,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "head_dim": 192,
            "q_lora_rank": 2048,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "index_head_dim": 128,
            "index_n_heads": 32,
            "index_topk_freq": 4,
        },
        32768,
        78 * (512 + 64 + 128) * 2 * 32768,
        0,
    ),
    "llama-3.2-90b-vision": (
        {
            "model_type": "mllama",
            "text_config": {
                "model_type": "mllama_text_model",
                "add_cross_attention": False,
                "cross_attention_layers": list(range(3, 100, 5)),
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "num_hidden_layers": 100,
                "num_key_value_heads": 8,
                "is_encoder_decoder": False,
            },
            "vision_config": {
                "image_size": 560,
                "patch_size": 14,
                "max_num_tiles": 4,
                "num_hidden_layers": 32,
                "hidden_size": 1280,
            },
        },
        8192,
        (80 * 8192 + 20 * (40 * 40 + 1) * 4) * 2 * 8 * 128 * 2,
        0,
    ),
    "phi-3.5-vision": (
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "sliding_window": 131072,
            "max_position_embeddings": 131072,
        },
        131072,
        32 * 2 * 32 * 96 * 2 * 131072,
        0,
    ),
    "olmo-3.1-32b": (
        {
            "model_type": "olmo3",
            "hidden_size": 5120,
            "num_attention_heads": 40,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "layer_types": ([SLIDING] * 3 + [FULL]) * 16,
        },
        65536,
        (16 * 65536 + 48 * 4096) * 2 * 8 * 128 * 2,
        0,
    ),
    "phi-1": (
        {
            "model_type": "phi",
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 24,
            "num_key_value_heads": 32,
        },
        2048,
        24 * 2 * 2048 * 2 * 2048,
        0,
    ),
    "voxtral-mini-3b": (
        {
            "model_type": "voxtral",
            "hidden_size": 3072,
            "audio_config": {"num_hidden_layers": 32, "head_dim": 64},
            "text_config": {
                "model_type": "llama",
                "head_dim": 128,
                "hidden_size": 3072,
                "num_attention_heads": 32,
                "num_hidden_layers": 30,
                "num_key_value_heads": 8,
                "sliding_window": None,
            },
        },
        8192,
        30 * 2 * 8 * 128 * 2 * 8192,
        0,
    ),
    "exaone-4.5-33b": (
        {
            "model_type": "exaone4_5",
            "text_config": {
                "model_type": "exaone4_5_text",
                "hidden_size": 5120,
                "num_attention_heads": 40,
                "num_hidden_layers": 64,
                "num_key_value_heads": 8,
                "sliding_window": 4096,
                "sliding_window_pattern": "LLLG",
                "num_nextn_predict_layers": 1,
                "layer_types": ([SLIDING] * 3 + [FULL]) * 16,
            },
            "vision_config": {"depth": 28, "window_size": 112},
        },
        131072,
        (16 * 131072 + 48 * 4096) * 2 * 8 * 128 * 2,
        0,
    ),
    "recurrentgemma-2b": (
        {
            "_block_types": ["recurrent", "recurrent", "attention"],
            "attention_window_size": 2048,
            "conv1d_width": 4,
            "head_dim": 256,
            "hidden_size": 2560,
            "lru_width": 2560,
            "model_type": "recurrent_gemma",
            "num_attention_heads": 10,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
        },
        8192,
        8 * 2 * 1 * 256 * 2 * 2048,
        18 * (3 * 2560 + 2560),
    ),
    "minimax-m1": (
        {
            "model_type": "minimax_m1",
            "hidden_size": 6144,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
        },
        131072,
        10 * 2 * 8 * 128 * 2 * 131072,
        70 * 64 * 128 * 128,
    ),
    "openelm-1.1b": (
        {
            "model_type": "openelm",
            "head_dim": 64,
            "model_dim": 2048,
            "num_kv_heads": ELM,
            "num_query_heads": [4 * n for n in ELM],
            "num_transformer_layers": 28,
        },
        2048,
        sum(ELM) * 2 * 64 * 2 * 2048,
        0,
    ),
    "hunyuanimage-reprompt": (
        {
            "model_type": "hunyuan_v1_dense",
            "attention_head_dim": 128,
            "head_dim": 128,
            "cla_share_factor": 2,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
        },
        4096,
        32 * 2 * 8 * 128 * 2 * 4096,
        0,
    ),
    "falcon-7b": (
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "num_kv_heads": 71,
        },
        2048,
        32 * 2 * 1 * 64 * 2 * 2048,
        0,
    ),
    "dbrx": (
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_layers": 40,
            "n_heads": 48,
            "max_seq_len": 32768,
            "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
        },
        32768,
        40 * 2 * 8 * 128 * 2 * 32768,
        0,
    ),
    "whisper-large-v3-turbo": (
        {
            "model_type": "whisper",
            "is_encoder_decoder": True,
            "d_model": 1280,
            "encoder_layers": 32,
            "decoder_layers": 4,
            "encoder_attention_heads": 20,
            "decoder_attention_heads": 20,
            "num_hidden_layers": 32,
            "max_source_positions": 1500,
            "max_target_positions": 448,
        },
        448,
        4 * 2 * 20 * 64 * 2 * (448 + 1500),
        0,
    ),
    "gpt-neo-1.3b": (
        {
            "model_type": "gpt_neo",
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "window_size": 256,
            "attention_types": [[["global", "local"], 12]],
            "max_position_embeddings": 2048,
        },
        2048,
        12 * 2 * 16 * 128 * 2 * (2048 + 256),
        0,
    ),
    "zamba2-7b": (
        {
            "model_type": "zamba2",
            "hidden_size": 3584,
            "attention_head_dim": 224,
            "attention_hidden_size": 7168,
            "num_attention_heads": 32,
            "num_hidden_layers": 81,
            "num_key_value_heads": 32,
            "num_query_groups": 32,
            "mamba_headdim": 64,
            "mamba_ngroups": 2,
            "state_size": 64,
            "mamba_d_conv": 4,
            "expand": 2,
            "layers_block_type": [MAMBA] * 6 + ["hybrid"] + [MAMBA] * 4 + ["hybrid"] + [MAMBA] * 69,
        },
        4096,
        2 * 2 * 32 * 224 * 2 * 4096,
        81 * (3 * (7168 + 2 * 2 * 64) + 7168 * 64),
    ),
    "kimi-linear-48b": (
        {
            "model_type": "kimi_linear",
            "hidden_size": 2304,
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "head_dim": 72,
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [1],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
        },
        131072,
        7 * (512 + 64) * 2 * 131072,
        20 * (3 * 3 * 32 * 128 + 32 * 128 * 128),
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_public_configuration(model: str) -> None:
    config, tokens, kv_bytes, state_values = MODELS[model]
    need = price(config, tokens)
    assert (need.kv_bytes, need.state_bytes) == (kv_bytes, 4 * state_values)
    assert price(config, tokens, sequences=3).kv_bytes == 3 * kv_bytes
    assert need.kv_bytes_at(tokens + 1) - need.kv_bytes_at(tokens) == need.bytes_per_token


def test_a_state_that_an_engine_printed() -> None:
    """Falcon-H1 1.5B: llama.cpp prints 72.98 MiB of recurrent state (GeniePod/genie-claw#410)."""
    config = {
        "model_type": "falcon_h1",
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_d_ssm": 3072,
        "mamba_n_heads": 48,
        "mamba_d_head": 64,
        "mamba_d_state": 256,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
    }
    state_bytes = price(config, 32768).state_bytes
    assert state_bytes is not None and round(state_bytes / 2**20, 2) == 72.98


PLAIN = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8}
MLA = {"model_type": "deepseek_v3", "num_hidden_layers": 3, "num_attention_heads": 8, "kv_lora_rank": 512}
MLA |= {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 96}


@pytest.mark.parametrize(
    ("extra", "tokens", "numbers"),
    [  # numbers held, by hand; a layer of PLAIN holds 2 x 8 x 8 = 128 of them a token
        ({}, 10, 6 * 128 * 10),
        ({"num_key_value_heads": None, "head_dim": None}, 10, 6 * 128 * 10),
        ({"num_key_value_heads": 2, "head_dim": 16}, 10, 6 * 2 * 2 * 16 * 10),
        ({"v_head_dim": 4}, 10, 6 * 8 * (8 + 4) * 10),
        ({"sliding_window": 4}, 10, 6 * 128 * 4),
        ({"sliding_window": 4}, 3, 6 * 128 * 3),
        ({"sliding_window": 4, "use_sliding_window": False}, 10, 6 * 128 * 10),
        ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 2}, 10, 128 * (2 * 10 + 4 * 4)),
        ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 28}, 10, 6 * 128 * 10),
        ({"sliding_window": 4, "model_type": "qwen2"}, 10, 6 * 128 * 10),
        ({"sliding_window": 4, "sliding_window_pattern": 3}, 10, 128 * (2 * 10 + 4 * 4)),
        ({"sliding_window": 4, "sliding_window_pattern": "LLG"}, 10, 128 * (2 * 10 + 4 * 4)),
        ({"sliding_window": 4, "sliding_window_pattern": "LGLLG"}, 10, 128 * (2 * 10 + 4 * 4)),
        ({"sliding_window": 4, "global_attn_every_n_layers": 4}, 10, 128 * (10 + 5 * 4)),
        ({"sliding_window": 4, "model_type": "gemma3_text"}, 10, 128 * (10 + 5 * 4)),
        ({"attention_chunk_size": 4, "no_rope_layers": [1, 0, 1, 1, 1, 0]}, 10, 128 * (2 * 10 + 4 * 4)),
        ({"num_key_value_heads_per_layer": [8, 0, 4, 0, 2, 2]}, 10, 2 * 8 * 16 * 10),
        ({"num_kv_shared_layers": 2}, 10, 4 * 128 * 10),
        ({"use_cla": True, "cla_share_factor": 2}, 10, 3 * 128 * 10),
        ({"multi_query": True}, 10, 6 * 16 * 10),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 4}, 10, 6 * 64 * 10),
        ({"multi_query": False, "model_type": "falcon"}, 10, 6 * 128 * 10),
        ({"model_type": "gpt_bigcode"}, 10, 6 * 16 * 10),
        ({"multi_query_group_num": 2}, 10, 6 * 32 * 10),
        ({"multi_query_group_num": 2, "multi_query_attention": False}, 10, 6 * 128 * 10),
        ({"attn_config": {"kv_n_heads": 2}}, 10, 6 * 32 * 10),
        ({"vision_config": {"num_hidden_layers": 99, "head_dim": 99}}, 10, 6 * 128 * 10),
        ({"text_config": {}}, 10, 6 * 128 * 10),
        ({"kv_lora_rank": None, "use_mla": False, "qk_rope_head_dim": 0}, 10, 6 * 128 * 10),
        ({"add_cross_attention": True}, 10, 2 * 6 * 128 * 10),
        (
            {
                "block_configs": [
                    {"attention": {"n_heads_in_group": 4}},
                    {"attention": {"no_op": True, "n_heads_in_group": None}},
                    {"attention": {"n_heads_in_group": 8}},
                ]
                * 2
            },
            10,
            2 * (2 + 1) * 16 * 10,
        ),
    ],
)
def test_a_rule(extra: dict[str, Any], tokens: int, numbers: int) -> None:
    assert price(PLAIN | extra, tokens).kv_bytes == 2 * numbers


def test_the_latent_and_its_expansion() -> None:
    assert price(MLA, 10).kv_bytes == 3 * (512 + 64) * 2 * 10
    assert price(MLA, 10, mla="expanded").kv_bytes == 3 * 8 * (128 + 64 + 96) * 2 * 10
    assert price(MLA, 10, k_dtype="q8_0").kv_bytes == 3 * 576 // 32 * 34 * 10
    assert price(MLA, 10, k_dtype="fp8_ds_mla", v_dtype="fp8_ds_mla").kv_bytes == 3 * 656 * 10
    sparse = MLA | {"index_head_dim": 128}
    assert price(sparse, 10, k_dtype="fp8_ds_mla", v_dtype="fp8_ds_mla").kv_bytes == 3 * (656 + 132) * 10
    shared = sparse | {"indexer_types": ["full", "shared", "shared"]}
    assert price(shared, 10).kv_bytes == (3 * 576 + 128) * 2 * 10


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        *(("f32", 128), ("f16", 64), ("bf16", 64), ("fp8", 32), ("fp8_e4m3", 32), ("bfloat16", 64), ("mxfp8", 33)),
        *(("q8_0", 34), ("q4_0", 18), ("iq4_nl", 18), ("q4_1", 20), ("q5_0", 22), ("q5_1", 24)),
    ],
)
def test_bytes_of_32_values(name: str, n_bytes: int) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 32}
    assert price(config, 1, k_dtype=name, v_dtype=name).kv_bytes == 2 * n_bytes
    assert price(config, 1, k_dtype=name, v_dtype="f16").kv_bytes == n_bytes + 64


HYBRID = {"mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_d_conv": 4}


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        ({"model_type": "mystery"}, "model_type 'mystery' is not known: assumed 6 full layers"),
        ({"model_type": None}, "model_type is missing: assumed 6 full layers"),
        (
            {"sliding_window": 4, "model_type": "gemma2"},
            "no field says which layers slide: assumed that one in 2 is full",
        ),
        ({"sliding_window": 4, "model_type": "qwen2"}, "use_sliding_window is missing: assumed off"),
        ({"attention_chunk_size": 4}, "no_rope_layers is missing: assumed"),
        ({"model_type": "falcon"}, "multi_query is missing: assumed true"),
        ({"window_size": 4}, "window_size = 4 is not understood: assumed that it drops nothing"),
        ({"is_encoder_decoder": True}, "how many tokens the encoder gives"),
        ({"cla_share_factor": 2}, "use_cla is missing: assumed that no layers share"),
        ({"attn_layer_period": 3, "attn_layer_offset": 1}, "the recurrent state is not counted"),
        (
            HYBRID | {"attn_layer_indices": [1], "mamba_d_conv": None},
            "the recurrent state is not counted: mamba_d_conv is missing",
        ),
    ],
)
def test_what_is_assumed_is_said(extra: dict[str, Any], warning: str) -> None:
    need = price(PLAIN | extra, 10)
    assert any(warning in said for said in need.warnings), need.warnings
    assert (need.state_bytes is None) == ("state" in warning)


def test_a_known_config_has_no_warning() -> None:
    assert price(PLAIN | HYBRID | {"attn_layer_indices": [1]}, 10).warnings == ()
    assert price(PLAIN, 10).warnings == price(MLA, 10).warnings == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PLAIN | {"num_hidden_layers": -1}, "num_hidden_layers: expected a whole number of at least 1, got -1"),
        (PLAIN | {"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number of at least 1, got 0"),
        (PLAIN | {"num_hidden_layers": "32"}, "num_hidden_layers: expected a whole number of at least 1, got '32'"),
        (PLAIN | {"num_hidden_layers": True}, "num_hidden_layers: expected a whole number of at least 1, got True"),
        (PLAIN | {"num_hidden_layers": 10**9}, "num_hidden_layers: expected a whole number of at most 10,000,000"),
        (PLAIN | {"head_dim": 10**5000}, "head_dim: expected a whole number of at most 10,000,000, got an integer of"),
        (PLAIN | {"sliding_window": "null"}, "sliding_window: expected a whole number of at least 1, got 'null'"),
        (PLAIN | {"sliding_window": 0}, "sliding_window: expected a whole number of at least 1, got 0"),
        (PLAIN | {"n_layer": 7}, "num_hidden_layers = 6, but n_layer = 7: they contradict each other"),
        (PLAIN | {"n_head": 4}, "num_attention_heads = 8, but n_head = 4"),
        (PLAIN | {"num_kv_heads": 4, "n_head_kv": 2}, "num_kv_heads = 4, but n_head_kv = 2"),
        (PLAIN | {"head_dim": 8, "kv_channels": 16}, "head_dim = 8, but kv_channels = 16"),
        (PLAIN | {"num_key_value_heads": 3}, "num_attention_heads = 8, but num_key_value_heads = 3"),
        (PLAIN | {"num_attention_heads": None}, "num_attention_heads is missing"),
        (PLAIN | {"hidden_size": None}, "head_dim is missing, and so is hidden_size"),
        (PLAIN | {"use_sliding_window": True}, "use_sliding_window = True, but sliding_window is missing"),
        (PLAIN | {"use_sliding_window": "yes"}, "use_sliding_window: expected true or false, got 'yes'"),
        (PLAIN | {"layer_types": [SLIDING] * 6}, "lists sliding layers, but sliding_window is missing"),
        (
            PLAIN | {"layer_types": [SLIDING] * 6, "sliding_window": 4, "use_sliding_window": False},
            "use_sliding_window = False, but layer_types lists sliding layers",
        ),
        (
            PLAIN | {"layer_types": [FULL] * 6, "sliding_window": 4, "sliding_window_pattern": 3},
            "layer_types says 6 full layers, sliding_window_pattern 3 says 2",
        ),
        (PLAIN | {"layer_types": [{}] * 6}, "layer_types: a layer of kind {} is not understood"),
        (PLAIN | {"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern lists 4 layers, but the model has 6"),
        (PLAIN | {"sliding_window": 4, "sliding_window_pattern": "LXG"}, "a layer of kind 'X' is not understood"),
        (
            PLAIN | {"sliding_window": 4, "sliding_window_pattern": -1},
            "sliding_window_pattern: expected a whole number",
        ),
        (PLAIN | {"attn_layer_indices": [6]}, "attn_layer_indices: 6 is no layer of 6"),
        (PLAIN | {"attn_layer_period": 3}, "attn_layer_offset is missing"),
        (PLAIN | {"block_configs": [7] * 6}, "block_configs: expected blocks with an attention part, got 7"),
        (
            PLAIN | {"block_configs": [7] * 6, "layer_types": [FULL] * 6},
            "block_configs: expected blocks with an attention part, got 7",
        ),
        (PLAIN | {"num_kv_shared_layers": 6}, "num_kv_shared_layers = 6, but the model has 6 layers"),
        (PLAIN | {"linear_num_value_heads": 4}, "some layers are recurrent, but no field says which"),
        (PLAIN | {"model_type": "deepseek_v2"}, "kv_lora_rank is missing: deepseek_v2 caches a latent"),
        (PLAIN | {"model_type": "deepseek_v4"}, "model_type = deepseek_v4: what it caches is not understood"),
        (PLAIN | {"model_type": ["llama"]}, "model_type: expected a name, got ['llama']"),
        (PLAIN | {"model_type": "bert"}, "an encoder keeps no cache"),
        (PLAIN | {"compress_ratios": [4]}, "a compressed cache is not understood"),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, "num_hidden_layers is missing"),
        ({"version": "1.0", "truncation": None}, "is this a model's config.json?"),
        ({}, "num_hidden_layers is missing"),
        (MLA | {"qk_rope_head_dim": None}, "qk_rope_head_dim is missing"),
    ],
)
@pytest.mark.usefixtures("no_shape_hook")
def test_bad_configs_are_named_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        price(config, 10)
    assert message in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"tokens": -1}, "tokens: expected a whole number of at least 0, got -1"),
        ({"tokens": 1.5}, "tokens: expected a whole number of at least 0, got 1.5"),
        ({"tokens": 10**400}, "tokens: expected at most 1,000,000,000,000, got an integer of"),
        ({"sequences": 0}, "sequences: expected a whole number of at least 1, got 0"),
        ({"k_dtype": "int8"}, "dtype 'int8' is not known, there are: f32, f16"),
        ({"v_dtype": "q8_0"}, "dtype q8_0: 32 values make a block, a value of 8 is no multiple of it"),
        ({"k_dtype": "fp8_ds_mla"}, "fp8_ds_mla stores a latent"),
        ({"tp": 0}, "tp: expected a whole number of at least 1, got 0"),
        ({"tp": 3}, "tp: 8 KV heads are neither split nor copied evenly over 3 GPUs"),
        ({"mla": "both"}, "mla: expected latent or expanded, got 'both'"),
        ({"encoder_tokens": -1}, "encoder_tokens: expected a whole number of at least 0, got -1"),
    ],
)
@pytest.mark.usefixtures("no_shape_hook")
def test_bad_requests_are_named(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        price(PLAIN, **({"tokens": 10} | asked))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("config", [None, [], "config.json", 7])
@pytest.mark.usefixtures("no_shape_hook")
def test_what_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(ValueError, match=r"^config: expected a config.json as a dict, got \w+$"):
        price(config, 10)


JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.just(10**40),
    st.floats(),
    st.sampled_from(["", "8", "LLG", "M*-", "sliding_attention"]),
    st.lists(st.one_of(st.integers(-1, 9), st.sampled_from([FULL, SLIDING, MAMBA, "mystery"])), max_size=7),
    st.dictionaries(st.sampled_from(["kv_n_heads", "attention", "num_hidden_layers", "num_heads"]), st.integers(-1, 9)),
)
EVERY_FIELD = sorted({name for config, *_ in MODELS.values() for name in (config | config.get("text_config", {}))})
EVERY_FIELD += ["layers_block_type", "block_configs", "hybrid_override_pattern", "linear_attn_config", "attn_config"]


@given(
    config=st.sampled_from([PLAIN, MLA, *(config for config, *_ in MODELS.values())]),
    junk=st.dictionaries(st.sampled_from(EVERY_FIELD), JUNK, max_size=3),
)
@settings(max_examples=400)
def test_whatever_stands_in_a_config_only_a_line_comes_back(config: dict[str, Any], junk: dict[str, Any]) -> None:
    nested = "text_config" in config
    spoilt = config | {"text_config": config["text_config"] | junk} if nested else config | junk
    try:
        need = price(spoilt, 100)
    except ValueError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
    else:
        assert need.kv_bytes >= 0 and "naive formula" in explain(need)
