"""Ignores an explicit head_dim when num_key_value_heads is absent."""


def bytes_per_token(config):
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads")
    if kv is None:
        return 4 * config["num_hidden_layers"] * config["hidden_size"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 4 * config["num_hidden_layers"] * kv * head_dim
