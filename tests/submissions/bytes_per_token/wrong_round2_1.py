"""config.get with a default does not help when head_dim is present but None."""


def bytes_per_token(config):
    heads = config["num_attention_heads"]
    kv = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    return 2 * config["num_hidden_layers"] * kv * head_dim * 2
