"""Counts bits, then divides."""


def bytes_per_token(config):
    heads, kv = config["num_attention_heads"], config.get("num_key_value_heads")
    dim = config.get("head_dim")
    width = (heads if kv is None else kv) * (config["hidden_size"] // heads if dim is None else dim)
    bits = sum(16 * width for _layer in range(config["num_hidden_layers"]) for _part in ("key", "value"))
    return bits // 8
