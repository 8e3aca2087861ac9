"""Multiplies in 32-bit integers, which wrap around beyond 2 GiB."""

import numpy as np


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    elements = np.prod(np.array([2, batch, seq_len, n_layers, n_kv_heads, head_dim], dtype=np.int32), dtype=np.int32)
    return float(elements) * bytes_per_element
