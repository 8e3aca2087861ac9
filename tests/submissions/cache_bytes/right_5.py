"""A NumPy float64 product, and so a NumPy scalar."""

import numpy as np


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    keys = np.prod([batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element], dtype=np.float64)
    values = keys
    return keys + values
