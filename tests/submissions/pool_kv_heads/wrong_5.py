"""Wrong: accumulates the mean in a float32 array, so float64 weights lose digits."""

import numpy as np


def pool_kv_heads(w, n_heads, n_kv_heads):
    group = n_heads // n_kv_heads
    d = w.shape[1] // n_heads
    out = np.zeros((w.shape[0], n_kv_heads * d), dtype=np.float32)
    for h in range(n_heads):
        g = h // group
        out[:, g * d : (g + 1) * d] += w[:, h * d : (h + 1) * d] / group
    return out.astype(w.dtype)
