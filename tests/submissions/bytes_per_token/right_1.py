"""Straightforward, with a test for None at each optional key."""


def bytes_per_token(config):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads")
    if kv_heads is None:
        kv_heads = heads
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * 2
