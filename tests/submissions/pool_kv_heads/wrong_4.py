"""Wrong: keeps the first head of each group and drops the others."""


def pool_kv_heads(w, n_heads, n_kv_heads):
    d_model, width = w.shape
    heads = w.reshape(d_model, n_heads, width // n_heads)
    return heads[:, :: n_heads // n_kv_heads].reshape(d_model, -1)
