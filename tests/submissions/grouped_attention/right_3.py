"""Unusual: five-letter einsum with the group as an axis of its own, log-sum-exp instead of a division."""

import numpy as np


def grouped_attention(q, k, v):
    n_kv_heads, n_total, d = k.shape
    n_new = q.shape[1]
    grouped = q.reshape(n_kv_heads, q.shape[0] // n_kv_heads, n_new, d)
    s = np.einsum("grnd,gtd->grnt", grouped, k) * d**-0.5
    late = np.triu_indices(n_new, n_total - n_new + 1, n_total)
    s[..., late[0], late[1]] = -np.inf
    w = np.exp(s - np.logaddexp.reduce(s, axis=-1, keepdims=True))
    return np.einsum("grnt,gtd->grnd", w, v).reshape(q.shape)
