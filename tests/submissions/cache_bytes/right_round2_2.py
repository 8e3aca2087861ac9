"""Adds keys and values layer by layer."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    per_layer = dict.fromkeys("kv", batch * n_kv_heads * seq_len * head_dim * bytes_per_element)
    return sum(sum(per_layer.values()) for _ in range(n_layers))
