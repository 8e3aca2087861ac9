"""A ChainMap of what the config sets over the derived defaults."""

from collections import ChainMap


def bytes_per_token(config):
    heads = config["num_attention_heads"]
    given = {name: value for name, value in config.items() if value is not None}
    usual = {"num_key_value_heads": heads}
    if "head_dim" not in given:
        usual["head_dim"] = config["hidden_size"] // heads
    full = ChainMap(given, usual)
    return (full["num_hidden_layers"] * full["num_key_value_heads"] * full["head_dim"]) << 2
