"""reshape(..., -1) cannot infer head_dim when n_new is 0, so it raises there."""

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    n = len(x)
    q = (x @ wq).reshape(n, n_heads, -1).transpose(1, 0, 2)
    k = (x @ wk).reshape(n, n_kv_heads, -1).transpose(1, 0, 2)
    v = (x @ wv).reshape(n, n_kv_heads, -1).transpose(1, 0, 2)
    k, v = cache.append(k, v)
    return attention(q, k, v).transpose(1, 0, 2).reshape(n, -1)
