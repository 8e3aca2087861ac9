"""Counts the keys and forgets the values."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    return batch * seq_len * n_layers * n_kv_heads * head_dim * bytes_per_element
