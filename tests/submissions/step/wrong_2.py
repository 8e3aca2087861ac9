"""Wrong: uses -1 in reshape, which raises when n_new is 0."""

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    n_new = x.shape[0]
    q = (x @ wq).reshape(n_new, n_heads, -1).transpose(1, 0, 2)
    k_new = (x @ wk).reshape(n_new, n_kv_heads, -1).transpose(1, 0, 2)
    v_new = (x @ wv).reshape(n_new, n_kv_heads, -1).transpose(1, 0, 2)
    k, v = cache.append(k_new, v_new)
    return attention(q, k, v).transpose(1, 0, 2).reshape(n_new, -1)
