"""int32 product: overflows from 2 GiB on."""

import numpy as np


def cache_bytes(batch, seq_len, n_layers, n_kv_heads, head_dim, bytes_per_element):
    sizes = np.array([2, batch, seq_len, n_layers, n_kv_heads, head_dim], dtype=np.int32)
    return int(np.prod(sizes, dtype=np.int32)) * bytes_per_element
