"""Wrong: averages neighbouring columns inside a head; the shape is right."""


def pool_kv_heads(w, n_heads, n_kv_heads):
    group = n_heads // n_kv_heads
    return w.reshape(w.shape[0], -1, group).mean(axis=-1)
