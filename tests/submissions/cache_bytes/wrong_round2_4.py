"""Rounds seq_len up to pages of 16 tokens."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    pages = -(-seq_len // 16)
    return 2 * batch * pages * 16 * n_layers * n_kv_heads * head_dim * bytes_per_element
