"""Rounds the sequence up to pages of 16 tokens."""


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    padded = -(-seq_len // 16) * 16
    return 2 * batch * padded * n_layers * n_kv_heads * head_dim * bytes_per_element
