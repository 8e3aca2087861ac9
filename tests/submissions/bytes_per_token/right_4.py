"""Uses `or` for the fallbacks and lets torch say how wide a half is."""

import torch


def bytes_per_token(config):
    n_heads = config["num_attention_heads"]
    row = torch.empty(
        config["num_hidden_layers"],
        2,
        config.get("num_key_value_heads") or n_heads,
        config.get("head_dim") or config["hidden_size"] // n_heads,
        dtype=torch.bfloat16,
        device="meta",
    )
    return row.numel() * row.element_size()
