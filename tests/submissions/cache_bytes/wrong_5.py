"""Charges at least one byte an element."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    width = max(1, bytes_per_element)
    return 2 * n_layers * batch * seq_len * n_kv_heads * head_dim * width
