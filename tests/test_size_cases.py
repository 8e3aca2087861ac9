"""`kvlab.sizes.price` against caches of real models: what engines printed, and what independent code stores."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvlab.sizes import price

CASES = json.loads((Path(__file__).parent / "cases" / "cache_sizes.json").read_text(encoding="utf-8"))["cases"]


def test_there_are_forty_cases() -> None:
    assert len({case["id"] for case in CASES}) == 40


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_to_the_byte(case: dict[str, Any]) -> None:
    before = json.dumps(case["config"])
    need = price(
        case["config"],
        *(case["tokens"], case["sequences"], case["k_dtype"], case["v_dtype"]),
        mla=case.get("mla", "latent"),
    )
    assert need.kv_bytes == case["kv_bytes"]
    assert need.state_bytes == case.get("state_bytes", need.state_bytes)
    assert json.dumps(case["config"]) == before
    assert sum(row["bytes"] or 0 for row in need.as_dict()["layers"]) == need.kv_bytes + (need.state_bytes or 0)


# The independent oracle: transformers runs a small model of each family, and the tensors in its cache are counted.

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WIDE = SMALL | {"head_dim": 16}
MAMBA_2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_conv": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4},
    "gpt_bigcode": {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "multi_query": True},
    "falcon": {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "multi_query": True,
        "num_kv_heads": 4,
        "new_decoder_architecture": False,
    },
    "mistral": WIDE | {"sliding_window": 8},
    "qwen2": SMALL | {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2},
    "gemma2": WIDE | {"sliding_window": 8},
    "gemma3_text": WIDE | {"sliding_window": 8, "sliding_window_pattern": 3},
    "cohere2": WIDE | {"sliding_window": 8},
    "olmo3": SMALL | {"sliding_window": 8},
    "gpt_oss": WIDE
    | {
        "sliding_window": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "llama4_text": WIDE
    | {
        "attention_chunk_size": 16,
        "no_rope_layers": [1, 1, 1, 0, 1, 1],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 32,
    },
    "mimo_v2_flash": WIDE
    | {
        "v_head_dim": 8,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 16,
        "swa_v_head_dim": 8,
        "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1],
        "sliding_window": 8,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "moe_layer_freq": [0] * 6,
        "n_group": 1,
        "topk_group": 1,
    },
    "gemma3n_text": WIDE
    | {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
        "laurel_rank": 4,
        "intermediate_size": [32] * 6,
        "activation_sparsity_pattern": [0.0] * 6,
    },
    "deepseek_v3": SMALL
    | {
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 6,
    },
    "qwen3_next": WIDE
    | {
        "full_attention_interval": 3,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    "falcon_h1": WIDE | MAMBA_2 | {"mamba_d_ssm": 64, "mamba_expand": 2},
    "bamba": SMALL | MAMBA_2 | {"attn_layer_indices": [2, 4], "mamba_expand": 2},
    "lfm2": SMALL | {"layer_types": ["conv", "full_attention"] * 3, "conv_L_cache": 3},
    "nemotron_h": WIDE
    | {
        "hybrid_override_pattern": "M-M*M*",
        "ssm_state_size": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "conv_kernel": 4,
        "use_mamba_kernels": False,
    },
}


@pytest.fixture(scope="module")
def cached_bytes() -> dict[str, tuple[int, int]]:
    """What transformers holds in keys and values after 6 tokens and after 40, in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    found = {}
    for model_type, fields in FAMILIES.items():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields), dtype=torch.float32)
        sizes = []
        for n_tokens in (6, 40):
            with torch.no_grad():
                cache = model.eval()(torch.ones((1, n_tokens), dtype=torch.long), use_cache=True).past_key_values
            pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
            sizes.append(sum(k.nbytes + v.nbytes for k, v in pairs if torch.is_tensor(k)))
        found[model_type] = (sizes[0], sizes[1])
    return found


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.filterwarnings("ignore")  # transformers warns about kernels that are not installed
def test_against_the_caches_of_transformers(model_type: str, cached_bytes: dict[str, tuple[int, int]]) -> None:
    """The same tensors, but that transformers keeps one token less than the window: the newest query sees itself."""
    config = FAMILIES[model_type] | {"model_type": model_type}
    short, long = (price(config, n, k_dtype="f32", v_dtype="f32") for n in (6, 40))
    one_less = sum(r.group.n_layers * r.row_bytes for r in long.rows if r.group.holds is not None)
    assert (short.kv_bytes, long.kv_bytes - one_less) == cached_bytes[model_type]


@pytest.mark.filterwarnings("ignore")
def test_a_transformers_config_object_is_a_config() -> None:
    from transformers import AutoConfig

    for model_type in ("mistral", "gemma3_text", "deepseek_v3", "qwen3_next", "nemotron_h", "llama4_text"):
        fields = FAMILIES[model_type]
        loaded = AutoConfig.for_model(model_type, **fields)
        assert price(loaded, 40).kv_bytes == price(fields | {"model_type": model_type}, 40).kv_bytes, model_type
