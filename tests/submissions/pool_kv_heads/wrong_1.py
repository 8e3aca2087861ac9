"""Wrong: strided groups, heads h, h + n_kv_heads, ... are averaged."""


def pool_kv_heads(w, n_heads, n_kv_heads):
    d_model, width = w.shape
    head_dim = width // n_heads
    grouped = w.reshape(d_model, n_heads // n_kv_heads, n_kv_heads, head_dim)
    return grouped.mean(axis=1).reshape(d_model, n_kv_heads * head_dim)
