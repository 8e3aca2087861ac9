"""dict.get with a default: a key that is there and None stays None."""


def bytes_per_token(config):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    return 2 * 2 * config["num_hidden_layers"] * kv_heads * head_dim
