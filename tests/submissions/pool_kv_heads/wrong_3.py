"""Wrong: adds into a view of w, so the caller's weights change (the result is right the first time)."""

import numpy as np


def pool_kv_heads(w, n_heads, n_kv_heads):
    group = n_heads // n_kv_heads
    heads = w.reshape(w.shape[0], n_heads, -1)
    pooled = []
    for g in range(n_kv_heads):
        total = heads[:, g * group]
        for h in range(g * group + 1, (g + 1) * group):
            total += heads[:, h]
        pooled.append(total / group)
    return np.concatenate(pooled, axis=1)
