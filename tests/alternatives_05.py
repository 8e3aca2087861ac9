"""Right answers to lesson 05's exercises that look unlike the references."""

import math
from fractions import Fraction


def bytes_by_prod(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    return math.prod((batch, seq_len, n_layers, n_kv_heads, head_dim, 2 * bytes_per_element))


def bytes_by_bits(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    bits = int(8 * bytes_per_element)
    return (2 * batch * seq_len * n_layers * n_kv_heads * head_dim * bits + 7) // 8


def bytes_by_adding(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    keys = values = n_kv_heads * head_dim * seq_len * batch
    return float((keys + values) * n_layers) * bytes_per_element


def token_by_try(config):
    try:
        head_dim = int(config["head_dim"])
    except (KeyError, TypeError):
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    try:
        kv = int(config["num_key_value_heads"])
    except (KeyError, TypeError):
        kv = config["num_attention_heads"]
    return 4 * config["num_hidden_layers"] * kv * head_dim


def token_by_filtering(config):
    c = {k: v for k, v in config.items() if v is not None}
    heads = c["num_attention_heads"]
    width = c.get("head_dim", c["hidden_size"] // heads)
    return 2 * 2 * c["num_hidden_layers"] * c.get("num_key_value_heads", heads) * width


def token_by_layers(config):
    total = 0
    heads = config["num_attention_heads"]
    kv = heads if config.get("num_key_value_heads") is None else config["num_key_value_heads"]
    d = config.get("head_dim")
    for _ in range(config["num_hidden_layers"]):
        for _kind in ("key", "value"):
            total += kv * (config["hidden_size"] // heads if d is None else d) * 2
    return total


def crossover_by_search(weight_bytes, per_token, batch):
    low, high = 0, weight_bytes // per_token + 1
    while high - low > 1:
        middle = (low + high) // 2
        if middle * per_token * batch > weight_bytes:
            high = middle
        else:
            low = middle
    return high


def crossover_by_divmod(weight_bytes, per_token, batch):
    quotient, _ = divmod(weight_bytes, per_token * batch)
    return quotient + 1


def crossover_by_fraction(weight_bytes, per_token, batch):
    return math.floor(Fraction(weight_bytes, per_token * batch) + 1)


def sequences_by_counting(memory_bytes, weight_bytes, per_token, seq_len):
    n, free = 0, memory_bytes - weight_bytes
    while free >= per_token * seq_len:
        free -= per_token * seq_len
        n += 1
    return n


def sequences_by_branch(memory_bytes, weight_bytes, per_token, seq_len):
    if memory_bytes < weight_bytes:
        return 0
    return math.floor((memory_bytes - weight_bytes) / (per_token * seq_len))


def sequences_by_tokens(memory_bytes, weight_bytes, per_token, seq_len):
    tokens = max(memory_bytes - weight_bytes, 0) // per_token
    return tokens // seq_len


ALTERNATIVES = {
    "cache_bytes": [bytes_by_prod, bytes_by_bits, bytes_by_adding],
    "bytes_per_token": [token_by_try, token_by_filtering, token_by_layers],
    "crossover_tokens": [crossover_by_search, crossover_by_divmod, crossover_by_fraction],
    "max_sequences": [sequences_by_counting, sequences_by_branch, sequences_by_tokens],
}
