"""Copies the config and adds to a running sum layer by layer."""


def bytes_per_token(config):
    c = dict(config)
    if c.get("num_key_value_heads") is None:
        c["num_key_value_heads"] = c["num_attention_heads"]
    if c.get("head_dim") is None:
        c["head_dim"], remainder = divmod(c["hidden_size"], c["num_attention_heads"])
        assert remainder == 0
    total = 0
    for _ in range(c["num_hidden_layers"]):
        total += 2 * c["num_key_value_heads"] * c["head_dim"]
        total += 2 * c["num_key_value_heads"] * c["head_dim"]
    return total
