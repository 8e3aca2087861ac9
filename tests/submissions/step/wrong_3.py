"""Wrong: appends to the cache but attends over the new tokens only."""

from kvlab.attention import attention


def step(x, wq, wk, wv, cache, n_heads, n_kv_heads):
    head_dim = wq.shape[1] // n_heads
    q = (x @ wq).reshape(len(x), n_heads, head_dim).transpose(1, 0, 2)
    k = (x @ wk).reshape(len(x), n_kv_heads, head_dim).transpose(1, 0, 2)
    v = (x @ wv).reshape(len(x), n_kv_heads, head_dim).transpose(1, 0, 2)
    cache.append(k, v)
    return attention(q, k, v).transpose(1, 0, 2).reshape(len(x), n_heads * head_dim)
