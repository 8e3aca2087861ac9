"""Takes the width of the weights' dtype for the width of the cache."""


def bytes_per_token(config):
    width = 4 if config.get("torch_dtype") == "float32" else 2
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * width
