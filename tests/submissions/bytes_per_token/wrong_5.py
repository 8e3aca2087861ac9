"""Without head_dim, shares hidden_size among the KV heads in place of the query heads."""


def bytes_per_token(config):
    kv_heads = config.get("num_key_value_heads")
    if kv_heads is None:
        kv_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = config["hidden_size"] // kv_heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * 2
