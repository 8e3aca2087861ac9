"""Wrong: reshapes to (heads, n_new, head_dim) with no transpose, right only for one new token."""

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    n_new = x.shape[0]
    head_dim = wq.shape[1] // n_heads
    q = (x @ wq).reshape(n_heads, n_new, head_dim)
    k_new = (x @ wk).reshape(n_kv_heads, n_new, head_dim)
    v_new = (x @ wv).reshape(n_kv_heads, n_new, head_dim)
    k, v = cache.append(k_new, v_new)
    return attention(q, k, v).transpose(1, 0, 2).reshape(n_new, n_heads * head_dim)
