"""Fills the missing entries into the caller's dict."""


def bytes_per_token(config):
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = config["num_attention_heads"]
    if config.get("head_dim") is None:
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
