"""A ChainMap of the config without its None entries over the defaults."""

from collections import ChainMap


def bytes_per_token(config):
    given = {key: value for key, value in config.items() if value is not None}
    heads = given["num_attention_heads"]
    full = ChainMap(given, {"num_key_value_heads": heads, "head_dim": given["hidden_size"] // heads})
    k_and_v, bits = 2, 16
    per_layer = full["num_key_value_heads"] * full["head_dim"] * k_and_v
    return per_layer * full["num_hidden_layers"] * bits // 8
