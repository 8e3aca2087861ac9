"""An element takes at least one byte: wrong for 0.5."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    return 2 * batch * seq_len * n_layers * n_kv_heads * head_dim * max(1, bytes_per_element)
