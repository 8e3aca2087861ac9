"""Walks over layers and the two tensors, adding up; always a float."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    total = 0.0
    for _layer in range(n_layers):
        for _tensor in ("k", "v"):
            total += batch * n_kv_heads * seq_len * head_dim * bytes_per_element
    return total
