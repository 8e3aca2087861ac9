"""The plain product, keys and values counted by a leading 2."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    return 2 * batch * seq_len * n_layers * n_kv_heads * head_dim * bytes_per_element
