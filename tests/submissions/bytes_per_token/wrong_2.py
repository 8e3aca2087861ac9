"""Always divides hidden_size by the heads, even where head_dim says otherwise."""


def bytes_per_token(config):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config["hidden_size"] // heads
    return 2 * 2 * config["num_hidden_layers"] * kv_heads * head_dim
