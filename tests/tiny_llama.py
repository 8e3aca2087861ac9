"""Random Llama checkpoints of a few thousand numbers, written by transformers: the oracle of kvlab.llama."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)  # on tensors this small threads only wait for each other

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "as many KV heads": {"num_key_value_heads": 6},
    "one KV head": {"num_key_value_heads": 1},
    "head_dim apart": {"head_dim": 16},
    "llama3": {"rope_parameters": LLAMA3, "head_dim": 16},
    "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
}


def make_model(seed: int = 0, **fields: Any) -> Any:
    """A LlamaForCausalLM with loud random weights: at the usual scale a wrong mask would hardly show."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 61,
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-3,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**(sizes | fields)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = torch.randn_like(weight)
            weight.copy_(1 + 0.2 * spread if weight.ndim == 1 else spread * (0.3 if "embed" in name else 0.25))
    return model.eval()


def write(folder: Path, dtype: torch.dtype = torch.float32, shard: str | None = None, **fields: Any) -> Any:
    """Write a checkpoint; return the model as transformers holds it, in that dtype."""
    model = make_model(**fields).to(dtype)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    return model
